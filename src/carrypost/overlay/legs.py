"""Legs: messages that pass on another one from broker to broker, along the routes of the overlay (OVERLAY §2.2)."""

# A leg is a message to one broker. It has the payload of the message that it passes on, and that
# one's descriptor and signature (`Headers.origin`); its `Pass` item has the remaining routes. A
# broker makes one leg for each next broker, for all routes that begin there. The payload is copied
# in the store and never read.
#
# Why a new message per hop, and not the same one passed on? A message is signed by its author with
# its destination. A broker that changed the route would break the signature, and a message
# addressed to its last broker would be carried by all nodes. The price is measured: a leg costs 2.0
# to 3.1 times a gossiped copy (docs/benchmarks.md, "The overlay"). So an event goes to the home of
# its producer as it is, since its author knows that broker (`Headers.home`); legs begin there.
#
# What must hold.
# 1. Nothing is passed on whose origin or routes do not fit: otherwise brokers would sign for
#    forgeries.
# 2. A leg that arrived is acknowledged and dropped in the batch of the legs that follow it, or in a
#    later one, so a crash loses none. It may repeat one: the last broker reports each message once
#    (`LegArrivals`).
# 3. A route is repaired at most once. If the next broker cannot be reached, another path to the
#    last one is searched; without any, the leg goes straight to the last broker, and is carried
#    there if that cannot be reached either. Legs on their way to a lost broker are treated alike.
#    Repairing again and again would let a leg wander between two brokers that each believe the
#    other to be nearer.
# 4. Legs of other nodes' messages have a share of the cache (`LegRoom`). Beyond it
#    arriving legs wait, unanswered. They do not wait for events to a broker that cannot be reached:
#    those are dropped, the oldest first, and its seats ask the producer for them when it is back.
#    Otherwise a broker that crashed would keep the events of its producers from all other brokers.
#
# Detours (OVERLAY §2.4, step 3). The source of a relocation asks the homes of producers (`Detour`)
# to pass on events also to the broker that the seat moves to, unless that one has seats of the
# channel, and so gets its events already. A home does so from the next event on, and answers with
# the numbers of the last events that it had passed on before (`Detoured`). The same question gets
# the same answer. After a restart the answer may have higher numbers. That does no harm: the source
# then processes more events, and its state says which. A detour ends when the source says so, or
# after the longest time that a relocation takes. From then on the destination's roster counts.

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from carrypost.errors import LocalError, RemoteError
from carrypost.gossip.draft import Draft
from carrypost.gossip.holdings.eviction import Usage
from carrypost.log.events import LayerEvent, Reason
from carrypost.model import address
from carrypost.model.descriptor import Descriptor
from carrypost.model.headers import ORIGIN_BYTES_MAX, Headers
from carrypost.model.ids import MessageId, NodeId, node_prefix
from carrypost.model.times import NEVER
from carrypost.overlay.items import (
    CURSORS_MAX,
    ITEMS,
    ROUTE_BROKERS_MAX,
    Detour,
    Detoured,
    Pass,
    brokers_of,
    event_of,
    pages,
)
from carrypost.overlay.relocation import DESTINATION_STAYS, DestinationState, HandoffId
from carrypost.security.identity import check_origin

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from carrypost.config import Settings
    from carrypost.gossip.holdings.copies import Copy
    from carrypost.gossip.outputs import Journal
    from carrypost.gossip.transfers.link import HostContext
    from carrypost.overlay.topology import Topology

_AGAIN_US = 5_000_000
"""Delay before a leg for which there was no room is published again."""
TOLD_MAX: Final = 4_096
"""Number of messages that are remembered, the latest. Legs of one message come within seconds of each other."""
_KIND: Final = "overlay"
FAMILY: Final = b"L"
"""First bytes of the names of rows; the id of the message follows. The value is the time at which that message ends."""
_TIME_BYTES: Final = 8


class LegArrived(LayerEvent, frozen=True):
    """A message, but no event, that was passed on along the overlay is at this broker, the last one of its route."""

    descriptor: Descriptor
    """The message as its author published it."""
    channel: str
    """Name of its channel; empty if it is of none."""
    brokers: int
    """Brokers that it has passed, this one not included, as far as this one knows: 0 or 1."""


class LegArrivals:
    """The messages that came to one broker along the overlay, each of which is reported once.

    The same message may come by several legs: a restarted broker passes on again what it had not acknowledged, and one
    that was given up may have arrived nevertheless. So the broker at the end of a route remembers what it reported, in
    the batch that the event waits for. After a crash before that batch is durable the leg comes again.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._reported: dict[MessageId, int] = {}
        """Messages that were reported, and the end of each, the latest last."""
        self.count = 0
        """Number of messages that arrived since the start, events that came again included."""

    def restore(self, rows: Iterable[tuple[bytes, bytes]]) -> None:
        """Restore the messages reported before a restart, by names of rows and their values."""
        found = [(int.from_bytes(row, "big"), MessageId(name[len(FAMILY) :])) for name, row in rows]
        self._reported = {message: until_us for until_us, message in sorted(found)}

    def report(self, event: LegArrived, now: int) -> None:
        """Report a message as soon as the record of it is durable, unless it was reported before."""
        message = event.descriptor.id
        if message in self._reported:
            return
        self._reported[message] = event.descriptor.ends_us
        self.count += 1
        self._journal.put((_KIND, FAMILY + message, 0), event.descriptor.ends_us.to_bytes(_TIME_BYTES, "big"))
        self._journal.hold(event)
        while self._reported:
            oldest, until_us = next(iter(self._reported.items()))
            if len(self._reported) <= TOLD_MAX and until_us > now:
                break
            del self._reported[oldest]
            self._journal.delete((_KIND, FAMILY + oldest, 0))


class LegRoom:
    """The legs of others' messages that one broker published, and that are still here.

    They must not push out everything else. All of them together have `share_queues` of the cache, as what is carried
    between nodes has, and those of one node `share_author` of that. One leg alone is never too much.
    """

    def __init__(self, own: NodeId, settings: Settings) -> None:
        share, self._author_part = settings.limits.share_queues, settings.limits.share_author
        self._own = own
        self._messages_max, self._bytes_max = settings.cache_messages_max * share, settings.cache_bytes_max * share
        self._all = Usage()
        self._of: dict[NodeId, Usage] = {}
        """By the node that legs are charged to: those with a leg here."""
        self.legs: dict[MessageId, tuple[NodeId, Copy]] = {}
        """Legs that are here, with the nodes that they are charged to; the oldest first."""

    def has_room(self, copy: Copy, payer: NodeId, legs: int) -> bool:
        """Return True if a node's share has room for this many legs with the payload of a copy."""
        if payer == self._own:
            return True
        nbytes = copy.descriptor.length * legs
        return self._fits(self._all, legs, nbytes, 1.0) and (
            payer not in self._of or self._fits(self._of[payer], legs, nbytes, self._author_part)
        )

    def _fits(self, used: Usage, legs: int, nbytes: int, part: float) -> bool:
        messages, nbytes = used.messages + legs, used.bytes + nbytes
        return not used.messages or (messages <= self._messages_max * part and nbytes <= self._bytes_max * part)

    def add(self, leg: Copy, payer: NodeId) -> None:
        """Charge a leg that was published to a node."""
        if payer != self._own:
            self.legs[leg.id] = payer, leg
            for used in (self._all, self._of.setdefault(payer, Usage())):
                used.add(1, leg.descriptor.length)

    def of(self, payer: NodeId) -> list[Copy]:
        """Return the legs that are charged to a node, the oldest first."""
        return [leg for charged, leg in self.legs.values() if charged == payer]

    def remove(self, leg: Copy) -> None:
        """Stop charging for a leg that is gone."""
        payer, _ = self.legs.pop(leg.id)
        for used in (self._all, self._of[payer]):
            used.add(-1, -leg.descriptor.length)
        if not self._of[payer].messages:
            del self._of[payer]


class _Answer(NamedTuple):
    """A detour, and its answer."""

    channel: str
    to: NodeId
    item: Detoured
    until_us: int


class Detours:
    """Detours of the events that one home of producers passes on."""

    def __init__(self, context: HostContext, topology: Topology) -> None:
        self._topology = topology
        self._life_us = DESTINATION_STAYS[DestinationState.EXPECTING].us(context.settings.overlay)
        self._most = context.limits.handoffs_max
        self._most_of_one = max(round(self._most * context.limits.share_author), 1)
        self._answers: dict[HandoffId, _Answer] = {}

    def asked(
        self, item: Detour, author: NodeId, last: Sequence[tuple[NodeId, int]], now: int
    ) -> list[Detoured] | None:
        """Begin or end a detour; return the answer, if there is one, None if the question does not count.

        `last`: producers of the channel that are attached here, and the numbers of their last events.
        """
        self._answers = {h: answer for h, answer in self._answers.items() if answer.until_us > now}
        if item.h.source != author or not self._has_seats(author, item.channel):
            return None
        if item.to == author:
            self._answers.pop(item.h, None)
            return []
        if (answer := self._answers.get(item.h)) is None:
            if not self._has_room(author):
                # Those whose destinations have seats by now get all events anyway. Otherwise, after
                # many consumers moved at once, none could move for long.
                self._answers = {
                    h: each for h, each in self._answers.items() if not self._has_seats(each.to, each.channel)
                }
                if not self._has_room(author):
                    return None
            answered = Detoured(item.h, tuple(last[:CURSORS_MAX]))
            answer = _Answer(item.channel, NodeId(item.to), answered, now + self._life_us)
            self._answers[item.h] = answer
        return [answer.item]

    def _has_room(self, author: NodeId) -> bool:
        of_one = sum(h.source == author for h in self._answers)
        return len(self._answers) < self._most and of_one < self._most_of_one

    def _has_seats(self, broker: NodeId, channel: str) -> bool:
        served = self._topology.rosters.serving(channel).get(node_prefix(broker))
        return served is not None and served.seats > 0

    def of(self, channel: str, now: int) -> set[bytes]:
        """Return the brokers that get events of a channel by detours, by four bytes each."""
        found = self._answers.values() if self._answers else ()
        return {node_prefix(each.to) for each in found if each.channel == channel and each.until_us > now}


class _Forwarding(msgspec.Struct, eq=False):
    """A message that is here until all legs that pass it on are published."""

    copy: Copy
    legs: list[tuple[NodeId, Pass]]
    """The legs that have to be published: to whom, and the item."""
    payer: NodeId
    """The node whose share of the room for legs it uses."""
    passing: bool
    """True if it is dropped in the end: a leg that came, an event that came to its home, or a leg of this node that
    others replace."""
    after_us: int = 0
    """Time before which nothing more is published of it."""
    holders: int = 0
    """Number of seats that have still to process it."""


class Legs:
    """The legs that one node makes and receives."""

    def __init__(self, context: HostContext, topology: Topology, detours: Detours) -> None:
        self._node, self._prefix, self._outputs = context.node, context.prefix, context.outputs
        self._holdings, self._detours = context.holdings, detours
        self._topology, self._direct = topology, context.settings.overlay.paths == "direct"
        self.arrivals = LegArrivals(context.outputs.journal)
        self._leg_room = LegRoom(context.node, context.settings)
        self.events: list[tuple[Copy, str]] = []
        """Messages of channels at the last broker of their route, until seats get them."""
        self.modules: list[Copy] = []
        """Modules at the last broker of their route, until they are read."""
        self._open: dict[MessageId, _Forwarding] = {}
        """Messages being forwarded; bounded by the cache, which has their copies."""
        self.fresh: list[_Forwarding] = []
        """Forwardings whose legs may be published, or that may be complete, since `drafts` and `settle`."""
        self._leaving: dict[tuple[str, bytes, bytes], tuple[_Forwarding, tuple[NodeId, Pass]]] = {}
        """Legs that were passed to the host to publish, by destination, items and origin."""
        self.due_us = NEVER
        """Time at which legs that had no room are published again."""
        self._droppable: dict[NodeId, list[Copy]] = {}
        """By the node that they are charged to: legs that may be dropped in this call of `drafts`, the oldest last."""
        self.passed = self.repaired = 0
        """Numbers of legs that were passed on, and of routes that were changed on the way."""

    def restore(self, rows: Iterable[tuple[bytes, bytes]]) -> None:
        """Restore the arrivals, and the legs that were under way, after a restart."""
        self.arrivals.restore(rows)
        for copy in self._holdings.known_copies():
            if copy.own and copy.here and copy.descriptor.original is not copy.descriptor:
                self._leg_room.add(copy, copy.descriptor.original.node)

    # --- sending -------------------------------------------------------------------------------------------

    def send(self, copy: Copy, brokers: Iterable[NodeId], channel: str = "", *, spread: bool = False) -> None:
        """Pass on a message that is here to these brokers; raises `LocalError` if it cannot be.

        `spread`: it is an event of this node, and the broker is its home, which passes it on to all with seats.
        """
        if copy.descriptor.wire_bytes > ORIGIN_BYTES_MAX or copy.descriptor.original is not copy.descriptor:
            raise LocalError(
                f"a message to pass on must have at most {ORIGIN_BYTES_MAX} bytes beside its body, and must not pass "
                "on another one itself: shorten its properties and header fields"
            )
        routes = []
        for node in dict.fromkeys(brokers):
            info = self._topology.brokers.get(node)
            if info is None and node != self._node:
                raise LocalError(f"{node!r} is not known here as a broker: see `host.overlay.view().brokers`")
            if info is not None:
                routes.append(self.route(info.prefix))
                continue
            self._arrive(copy, channel, 0)
            if spread:
                routes, spread = self._to_seats(channel), False
        self._pass(copy, routes, Pass(channel, spread=spread))

    def route(self, prefix: bytes) -> list[bytes]:
        """Return the brokers that a leg to one passes, that one included."""
        path = None if self._direct else self._path(prefix)
        return path or [prefix]

    def _to_seats(self, channel: str) -> list[list[bytes]]:
        """Return routes to all other brokers that have seats of a channel, or expect one."""
        serving = self._topology.rosters.serving(channel)
        seated = {prefix for prefix, served in serving.items() if served.seats}
        return [
            self.route(prefix)
            for prefix in sorted(seated | self._detours.of(channel, self._holdings.now_us))
            if prefix != self._prefix and self._topology.brokers.at(prefix) is not None
        ]

    def _arrive(self, copy: Copy, channel: str, brokers: int) -> None:
        """Note that a message is at the last broker of its route: give events to seats, and report other messages."""
        # Seats recognize events that come again by their numbers: to remember each of them, too, would cost a row.
        if event_of(copy.descriptor.original):
            self.arrivals.count += 1
        else:
            self.arrivals.report(LegArrived(copy.descriptor.original, channel, brokers), self._holdings.date_us)
        if channel:
            self.events.append((copy, channel))
        elif address.module_of(copy.descriptor.original.destination) is not None:
            self.modules.append(copy)

    def on_way(self, broker: NodeId, since_us: int) -> set[bytes]:
        """Return the descriptors of messages that left this node for a broker since a date, and did not arrive there.

        They are passed on by legs, or go there themselves.
        """
        wanted, kept = address.overlay(broker), self._holdings.is_kept_event
        known = [(copy, copy.descriptor) for copy in self._holdings.known_copies() if copy.own and copy.here]
        own = [(copy, each) for copy, each in known if each.created_us >= since_us]
        legs = {each.original.wire for _, each in own if each.destination == wanted and each.original is not each}
        return legs | {each.wire for copy, each in own if each.home == broker and not kept(copy)}

    def reroute(self, broker: NodeId) -> None:
        """Find another path for this node's legs on their way to a broker that cannot be reached."""
        wanted, lost = address.overlay(broker), node_prefix(broker)
        for copy in self._holdings.known_copies():
            descriptor = copy.descriptor
            if descriptor.destination != wanted or not (copy.own and copy.here) or copy.id in self._open:
                continue
            items, _ = ITEMS.items_of(descriptor)
            if descriptor.original is descriptor or not isinstance(items[0], Pass) or items[0].repaired:
                continue
            if any(items[0].routes):  # Else that broker is the last one, and it is carried there.
                routes = [[lost, *brokers_of(route, self._prefix)] for route in items[0].routes]
                self._pass(copy, routes, items[0])

    def _pass(self, copy: Copy, routes: Sequence[list[bytes]], item: Pass) -> None:
        """Make one leg for each next broker."""
        found: dict[tuple[NodeId, bool], list[bytes]] = {}
        for route in routes:
            brokers, repaired = self._passable(route, repaired=item.repaired)
            info = self._topology.brokers.at(brokers[0])
            if info is None:
                self._outputs.refuse("route", copy.descriptor.node, copy.descriptor.shown)
            else:
                found.setdefault((info.node, repaired), []).append(b"".join(brokers[1:]))
        legs = [
            (node, Pass(item.channel, page, repaired, item.spread))
            for (node, repaired), ends in found.items()
            for page in pages(ends)
        ]
        forwarding = self._open.get(copy.id)
        if forwarding is None:
            passing = copy.descriptor.original is not copy.descriptor or self.is_at_home(copy)
            forwarding = self._open[copy.id] = _Forwarding(copy, [], self._payer(copy), passing)
        forwarding.legs += legs
        forwarding.after_us = 0
        self.fresh.append(forwarding)

    def _payer(self, copy: Copy) -> NodeId:
        """Return the node that a forwarding is charged to: the author of the leg, or of the message inside it.

        Otherwise a broker would have to share one part among all authors whose messages it passes on.
        """
        author = copy.descriptor.node
        passed_on = author == self._node or author in self._topology.brokers
        return copy.descriptor.original.node if passed_on else author

    def _passable(self, route: list[bytes], *, repaired: bool) -> tuple[list[bytes], bool]:
        """Return the route, or another one to the same broker if its next one cannot be reached."""
        info = self._topology.brokers.at(route[0])
        if (info is not None and self._topology.can_reach(info.node)) or len(route) == 1:
            return route, repaired
        self.repaired += 1
        path = None if repaired else self._path(route[-1], avoiding=route[0])
        first = None if path is None else self._topology.brokers.at(path[0])
        if path is None or first is None or not self._topology.can_reach(first.node):
            return route[-1:], True
        return path, True

    def _path(self, prefix: bytes, *, avoiding: bytes | None = None) -> list[bytes] | None:
        """Return the brokers on the way to one; `avoiding`: not by this neighbour.

        None: it is unknown, or the way is too long.
        """
        way = self._topology.routes.leg_way(prefix, avoiding=avoiding)
        return None if way is None or len(way.path) > ROUTE_BROKERS_MAX else list(way.path)

    # --- taking --------------------------------------------------------------------------------------------

    def arrived(self, copy: Copy, item: Pass) -> None:
        """Process a leg: pass it on, or report its arrival. One whose origin or routes do not fit is dropped."""
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
        onward = [route for route in routes if route]
        if not all(routes):
            self._arrive(copy, item.channel, 1)
            if item.spread:
                onward += self._to_seats(item.channel)
                item = Pass(item.channel, repaired=item.repaired)
        self.passed += any(routes)
        self._pass(copy, onward, item)

    def is_at_home(self, copy: Copy) -> bool:
        """Return True if a copy is an event of another node, and this broker is its home."""
        return copy.descriptor.home == self._node and not copy.own

    def came_home(self, copy: Copy) -> None:
        """Give an event that came to its home to the seats here, and pass it on to all other brokers with seats."""
        channel = address.channel_of(copy.descriptor.destination) or ""
        self._arrive(copy, channel, 0)
        self._pass(copy, self._to_seats(channel), Pass(channel))

    def hold(self, copy: Copy) -> None:
        """Keep a message that arrived until a seat has processed it."""
        if (forwarding := self._open.get(copy.id)) is not None:
            forwarding.holders += 1

    def release(self, copy: Copy) -> None:
        """Release a message that a seat has processed, or does not need."""
        if (forwarding := self._open.get(copy.id)) is not None and forwarding.holders:
            forwarding.holders -= 1
            self.fresh.append(forwarding)

    def _refuse(self, copy: Copy, reason: str) -> None:
        self._outputs.refuse(reason, copy.descriptor.node, copy.descriptor.shown)
        self._holdings.discard(copy, Reason.UNREADABLE, done=True)

    # --- drafts --------------------------------------------------------------------------------------------

    def drafts(self, now: int) -> list[Draft]:
        """Return the legs that may be published."""
        drafts: list[Draft] = []
        self._leaving, self._droppable = {}, {}
        ready, self.fresh = self.fresh, []
        if self.due_us <= now:
            self.due_us = NEVER
            ready = list(self._open.values())
        for forwarding in ready:
            if not forwarding.legs:
                self.fresh.append(forwarding)
            elif forwarding.after_us > now:
                self.due_us = min(self.due_us, forwarding.after_us)
            else:
                drafts += self._leave(forwarding, now)
        return drafts

    def _leave(self, forwarding: _Forwarding, now: int) -> list[Draft]:
        """Return the legs of a forwarding, if there is room for them; else they are tried again later."""
        first = not forwarding.after_us
        self._put_off(forwarding, now)  # Until `published` removes them: the cache may have no room for them.
        # Legs that replace others need no room of their own.
        if (forwarding.passing and forwarding.copy.own) or self._has_room(forwarding):
            return [self._draft(forwarding, to, item, now) for to, item in forwarding.legs]
        if first:
            self._outputs.refuse("legs", forwarding.payer, forwarding.copy.descriptor.shown)
        return []

    def _has_room(self, forwarding: _Forwarding) -> bool:
        """Return True if the legs of a forwarding may be published; drop older legs of the same node if necessary."""
        while not self._leg_room.has_room(forwarding.copy, forwarding.payer, len(forwarding.legs)):
            if forwarding.payer not in self._droppable:
                self._droppable[forwarding.payer] = self._to_absent(forwarding.payer)
            if not self._droppable[forwarding.payer]:
                return False
            leg = self._droppable[forwarding.payer].pop()
            self._leg_room.remove(leg)
            self._holdings.discard(leg, Reason.NO_ROOM)
        return True

    def _to_absent(self, payer: NodeId) -> list[Copy]:
        """Return the legs that pass on events of a node to brokers that cannot be reached, the oldest last."""
        legs = [each for each in self._leg_room.of(payer) if each.here and event_of(each.descriptor.original)]
        brokers = {each.descriptor.destination: address.addressee(each.descriptor.destination) for each in legs}
        absent = {to for to, node in brokers.items() if node is None or not self._topology.can_reach(node)}
        return [each for each in reversed(legs) if each.descriptor.destination in absent and each.id not in self._open]

    def _put_off(self, forwarding: _Forwarding, now: int) -> None:
        forwarding.after_us = now + _AGAIN_US
        self.due_us = min(self.due_us, forwarding.after_us)

    def _draft(self, forwarding: _Forwarding, to: NodeId, item: Pass, now: int) -> Draft:
        origin, destination = forwarding.copy.descriptor.original, address.overlay(to)
        date_us = self._holdings.date_of(now)
        lifetime_us = None if origin.deadline_us is None else max(origin.deadline_us - date_us, 1)
        control = ITEMS.encode([item])
        self._leaving[destination, control, origin.wire] = forwarding, (to, item)
        return Draft(
            destination, b"", lifetime_us=lifetime_us, persistent=origin.persistent, priority=origin.priority,
            headers=Headers(control=control, origin=origin.wire), payload_of=forwarding.copy.id,
            # The number of an event of this node must be on disk before another node sees it.
            withheld=not forwarding.passing,
        )  # fmt: skip

    def published(self, copies: Sequence[Copy]) -> None:
        """Note the legs among messages of this node that were admitted."""
        for copy in copies if self._leaving else ():
            descriptor, headers = copy.descriptor, copy.descriptor.headers
            if headers is None or not headers.origin:
                continue
            found = self._leaving.pop((descriptor.destination, headers.control, headers.origin), None)
            if found is not None:
                forwarding, leg = found
                forwarding.legs.remove(leg)
                self.fresh.append(forwarding)
                self._leg_room.add(copy, forwarding.payer)
                if self._holdings.watched >> forwarding.copy.slot & 1:  # A program may wait for a carrier.
                    self._holdings.watch(copy)

    def left(self, copies: Sequence[Copy]) -> None:
        """Forget what is gone."""
        for copy in copies:
            if copy.id in self._open:
                del self._open[copy.id]
            if copy.id in self._leg_room.legs:
                self._leg_room.remove(copy)

    def settle(self) -> list[Copy]:
        """Release messages whose legs are all published; return those of this node.

        A leg that arrived is acknowledged, so that carriers drop it, and dropped. Both are in the batch of the legs
        that pass it on, or in a later one.
        """
        fresh, self.fresh = self.fresh, []
        settled: list[Copy] = []
        passed: list[Copy] = []
        for forwarding in fresh:
            copy = forwarding.copy
            if self._open.get(copy.id) is not forwarding or forwarding.holders:
                continue
            if forwarding.legs:
                if not forwarding.after_us:
                    self.fresh.append(forwarding)
                continue
            del self._open[copy.id]
            if not forwarding.passing:
                settled.append(copy)
            elif copy.here:
                if not copy.own:
                    self._holdings.acknowledge(copy.id, copy.descriptor.ends_us)
                passed.append(copy)
        if passed:
            self._holdings.cache.throw_out(passed, Reason.PURGED)
        return settled
