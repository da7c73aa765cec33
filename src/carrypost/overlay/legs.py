"""Legs: messages that pass on another one from broker to broker, along the routes of the overlay (OVERLAY §2.2).

A leg is a message to one broker. It has the payload of the message that it passes on, and that one's descriptor and
signature (`Headers.origin`); its `Pass` item has the routes that are left. A broker makes one leg for each next broker,
for all routes that begin there. The payload is copied in the store and never read.

If the next broker of a route cannot be reached, another path to the last one is looked for, once; without any, the leg
goes straight to the last broker, and is carried there if that cannot be reached either. A leg that came is acknowledged
when the legs that follow it are durable, so a crash loses none.

The one invariant: nothing is passed on whose origin or routes do not fit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from carrypost.errors import LocalError, RemoteError
from carrypost.events import LayerEvent, Reason
from carrypost.gossip.layer import Draft
from carrypost.model import address
from carrypost.model.descriptor import Descriptor
from carrypost.model.headers import ORIGIN_BYTES_MAX, Headers
from carrypost.model.ids import MessageId
from carrypost.model.times import NEVER
from carrypost.overlay.items import ITEMS, ROUTES_MAX, Pass, brokers_of, route_of
from carrypost.security.origins import check_origin

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from carrypost.gossip.holdings.copies import Copy
    from carrypost.gossip.transfers.ground import Ground
    from carrypost.model.ids import NodeId
    from carrypost.overlay.topology import Topology

_AGAIN_US = 5_000_000
"""Where there was no room for a leg, it is tried again after so long."""


class LegArrived(LayerEvent, frozen=True):
    """A message that was passed on along the overlay is at this broker, the last one of its route."""

    descriptor: Descriptor
    """The message as its author published it."""
    channel: str
    """Name of its channel; empty if it is of none."""
    brokers: int
    """Brokers that it has passed, this one not included, as far as this one knows: 0 or 1."""


class _Leg(msgspec.Struct, eq=False):
    """A leg that has to be published."""

    to: NodeId
    item: Pass


class _Passage(msgspec.Struct, eq=False):
    """A message that is here until all legs that pass it on are durable."""

    copy: Copy
    legs: list[_Leg]
    came: bool
    """True if it is a leg itself, which is of no use afterwards; else it is a message of this node."""
    after_us: int = 0
    """Time before which nothing more is published of it."""
    unwritten: int = 0
    """Number of legs that were published, and are not durable yet."""


class Legs:
    """The legs that one node makes and takes."""

    def __init__(self, ground: Ground, topology: Topology) -> None:
        self._node, self._prefix, self._outputs = ground.node, ground.prefix, ground.outputs
        self._holdings, self._journal, self._in_reach = ground.holdings, ground.outputs.journal, ground.links.in_reach
        self._topology, self._direct = topology, ground.settings.overlay.paths == "direct"
        self._open: dict[MessageId, _Passage] = {}
        """Bounded by the cache, which has their copies."""
        self._leaving: dict[tuple[str, bytes, MessageId], tuple[_Passage, _Leg]] = {}
        """Legs that were given to the host to publish, by destination, items and origin."""
        self._sent: dict[MessageId, tuple[_Passage, _Leg]] = {}
        """Legs that were published, and are not durable yet."""
        self._serials: dict[int, list[MessageId]] = {}
        """The same, by the number of their batch."""
        self.passed = self.repaired = 0
        """Legs that were passed on, and routes that were changed on their way."""

    @property
    def due_us(self) -> int:
        """Time at which `drafts` has something."""
        return min([each.after_us for each in self._open.values() if each.legs], default=NEVER)

    # --- sending -------------------------------------------------------------------------------------------

    def send(self, copy: Copy, brokers: Iterable[NodeId], channel: str = "") -> None:
        """Pass on a message that is here to these brokers; raises `LocalError` if it cannot be."""
        if copy.descriptor.wire_bytes > ORIGIN_BYTES_MAX or copy.descriptor.original is not copy.descriptor:
            raise LocalError(
                f"a message that is passed on has at most {ORIGIN_BYTES_MAX} bytes beside its body, and passes on none "
                "itself: shorten its properties and header fields"
            )
        routes = []
        for node in dict.fromkeys(brokers):
            info = self._topology.brokers.get(node)
            if info is None and node != self._node:
                raise LocalError(f"{node!r} is not known here as a broker: see `host.overlay.view().brokers`")
            if info is None:
                self._outputs.tell(LegArrived(copy.descriptor, channel, 0))
            else:
                way = None if self._direct else self._topology.routes.way(info.prefix)
                routes.append([info.prefix] if way is None else list(way.path))
        self._pass(copy, routes, Pass(channel), came=False)

    def _pass(self, copy: Copy, routes: Sequence[list[bytes]], item: Pass, *, came: bool) -> None:
        """Make one leg for each next broker."""
        found: dict[tuple[NodeId, bool], list[bytes]] = {}
        for route in routes:
            brokers, repaired = self._passable(route, repaired=item.repaired)
            info = self._topology.brokers.at(brokers[0])
            if info is None:
                self._outputs.refuse("route", copy.descriptor.node, copy.descriptor.shown)
            else:
                found.setdefault((info.node, repaired), []).append(route_of(brokers[1:]))
        legs = [
            _Leg(node, Pass(item.channel, tuple(ends[at : at + ROUTES_MAX]), repaired))
            for (node, repaired), ends in found.items()
            for at in range(0, len(ends), ROUTES_MAX)
        ]
        self._open[copy.id] = _Passage(copy, legs, came)

    def _passable(self, route: list[bytes], *, repaired: bool) -> tuple[list[bytes], bool]:
        """Return the route, or another one to the same broker if its next one cannot be reached."""
        info = self._topology.brokers.at(route[0])
        if (info is not None and info.node in self._in_reach) or len(route) == 1:
            return route, repaired
        self.repaired += 1
        way = None if repaired else self._topology.routes.way(route[-1], but=route[0])
        first = None if way is None else self._topology.brokers.at(way.path[0])
        if way is None or first is None or first.node not in self._in_reach:
            return route[-1:], True
        return list(way.path), True

    # --- taking --------------------------------------------------------------------------------------------

    def arrived(self, copy: Copy, item: Pass) -> None:
        """Take a leg: pass it on, or tell that it is here. One whose origin or routes do not fit is dropped."""
        descriptor = copy.descriptor
        try:
            routes = [brokers_of(route, self._prefix) for route in item.routes]
        except ValueError:
            self._refuse(copy, "route")
            return
        try:
            check_origin(descriptor)
        except RemoteError as error:
            self._refuse(copy, error.reason)
            return
        if not all(routes):
            self._outputs.tell(LegArrived(descriptor.original, item.channel, 1))
        self.passed += any(routes)
        self._pass(copy, [route for route in routes if route], item, came=True)

    def _refuse(self, copy: Copy, reason: str) -> None:
        self._outputs.refuse(reason, copy.descriptor.node, copy.descriptor.shown)
        self._holdings.discard(copy, Reason.UNREADABLE, done=True)

    # --- drafts --------------------------------------------------------------------------------------------

    def drafts(self, now: int) -> list[Draft]:
        """Return the legs that may be published, and let go what all legs of are durable."""
        made: list[Draft] = []
        self._leaving = {}
        for passage in list(self._open.values()):
            if not passage.legs and not passage.unwritten:
                self._settle(passage)
            elif passage.legs and passage.after_us <= now:
                passage.after_us = now + _AGAIN_US
                made += [self._draft(passage, leg, now) for leg in passage.legs]
        return made

    def _draft(self, passage: _Passage, leg: _Leg, now: int) -> Draft:
        origin, destination = passage.copy.descriptor.original, address.overlay(leg.to)
        lifetime_us = None if origin.deadline_us is None else max(origin.deadline_us - now, 1)
        control = ITEMS.encode([leg.item])
        self._leaving[destination, control, origin.id] = passage, leg
        return Draft(
            destination, b"", lifetime_us=lifetime_us, persistent=origin.persistent, priority=origin.priority,
            headers=Headers(control=control, origin=origin.wire), payload_of=passage.copy.id,
        )  # fmt: skip

    def published(self, copies: Sequence[Copy]) -> None:
        """Note the legs among messages of this node that were admitted."""
        for copy in copies if self._leaving else ():
            descriptor, headers = copy.descriptor, copy.descriptor.headers
            if headers is None or not headers.origin:
                continue
            found = self._leaving.pop((descriptor.destination, headers.control, descriptor.original.id), None)
            if found is not None:
                passage, leg = self._sent[copy.id] = found
                passage.legs.remove(leg)
                passage.unwritten += 1
                self._serials.setdefault(self._journal.serial, []).append(copy.id)

    def durable(self, serial: int) -> None:
        """Note the legs that are on disk."""
        for message in self._serials.pop(serial, ()):
            if (found := self._sent.pop(message, None)) is not None:
                found[0].unwritten -= 1

    def lost(self, serial: int) -> None:
        """Note that a batch was lost; `left` tells of the legs in it."""
        self._serials.pop(serial, None)

    def left(self, copies: Sequence[Copy], reason: Reason) -> None:
        """Publish legs again that could not be written; forget what is gone."""
        for copy in copies:
            self._open.pop(copy.id, None)
            if reason is Reason.STORE and (found := self._sent.pop(copy.id, None)) is not None:
                passage, leg = found
                passage.unwritten -= 1
                passage.legs.append(leg)
                passage.after_us = self._holdings.now_us + _AGAIN_US

    def _settle(self, passage: _Passage) -> None:
        """Let go what was passed on; a leg that came is acknowledged, so that carriers drop it."""
        copy = passage.copy
        del self._open[copy.id]
        if passage.came and copy.here:
            self._holdings.acknowledge(copy.id, copy.descriptor.ends_us)
            self._holdings.discard(copy, Reason.PURGED, done=True)
