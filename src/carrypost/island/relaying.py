"""Relays: datagrams that go to hosts that are no neighbours, along a path that their sender chose.

To the rest of a host, the way to such a host is a `Link` like any other (`Route`): messages are moved over it in the
same way, and no other module knows how. A relay neither decodes nor stores what it passes on. If the next host on the
path is gone, it leads the rest of the path round that link, once; else it drops the datagram and reports that to the
sender, which avoids the link for a minute.

A relay trusts no sender: it accepts from a neighbour only datagrams whose path leads through that neighbour, and passes
on no more bytes for it than `limits.link_relay_bytes_per_s`. The source that a datagram names may be forged. So a frame
that comes over a route counts no more than one that comes from a neighbour: messages and acknowledgements are signed.

`Flows` has datagrams that a host passes on by their first bytes, as a router does. All Relays that one host sends to
another along one path begin alike, up to their bodies. The first one of such a *flow* is decoded, checked and passed on
as any frame is. That decides what becomes of the others as long as the neighbours are the same: they go to the same
one, with the same beginning, and of each no more is looked at than whether it is one whole Relay. What is charged for
them is the same. A flow saves the work and not the checks: a datagram that begins as no flow does, or is beyond a
budget, is left to the long way, which counts it and says why.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from carrypost.errors import LimitError, RemoteError
from carrypost.gossip.timers import REQUEST_AGAIN
from carrypost.gossip.transfers.accounts import FRAME, PARCEL
from carrypost.gossip.transfers.link import Link
from carrypost.gossip.wire import codec
from carrypost.gossip.wire import frames as fr
from carrypost.gossip.wire.frames import hops
from carrypost.model.ids import PREFIX_BYTES, NodeId, node_prefix
from carrypost.model.times import NEVER

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from carrypost.config import Limits
    from carrypost.gossip.layer import Handler
    from carrypost.gossip.transfers.link import HostContext, Links
    from carrypost.gossip.wire.frames import Relay
    from carrypost.island.links import Routes


FLOWS_MAX: Final = 1_024
"""Flows that are kept; beyond it, all are found again, at the price of one Relay each that goes the long way."""
RELAY_BYTES_MIN: Final = 1_000
"""A shorter datagram counts as this many bytes of `limits.link_relay_bytes_per_s`: each costs as much work."""
_OVERHEAD: Final = codec.datagram_overhead(1)


class _Flow(NamedTuple):
    source: bytes
    """Prefix of the neighbour that it comes from: addresses may change hands."""
    head: bytes
    """Beginning of what comes."""
    to: str
    """Address of the next host."""
    moved: bytes
    """Beginning of what is sent there."""


class Flows:
    """The flows that one host is a relay of."""

    __slots__ = ("_flows", "_latest", "_limits", "_links", "_usable", "relayed_bytes")

    def __init__(self, links: Links, limits: Limits) -> None:
        self._links, self._limits = links, limits
        self._usable: list[Link] = []
        """The neighbours that the flows hold for: `Links.usable`, which is replaced when they change."""
        self._flows: dict[tuple[str, bytes], _Flow] = {}
        """By the address that they come from, and how they begin."""
        self._latest: dict[str, _Flow] = {}
        """By address, the flow of the last datagram: most often that of the next one."""
        self.relayed_bytes = 0
        """Bytes that were passed on for others, in flows or not."""

    def note(self, link: Link, frame: Relay, following: Link, moved: Relay) -> None:
        """Note what became of a Relay of a neighbour: it was sent to another one, with one place further in its path.

        A report of a broken link has no body, and nothing follows it.
        """
        if not frame.body:
            return
        if self._usable is not self._links.usable or len(self._flows) >= FLOWS_MAX:
            self._usable = self._links.usable
            self._flows.clear()
            self._latest.clear()
        flow = _Flow(link.prefix, codec.relay_head(frame), following.peer, codec.relay_head(moved))
        self._flows[link.peer, flow.head] = self._latest[link.peer] = flow

    def pass_on(self, datagram: bytes, peer: str, now: int) -> tuple[str, bytes] | None:
        """Return the datagram that is to be sent instead of one that came, and where to; None: it is of no flow."""
        flow = self._latest.get(peer)
        if flow is None or self._usable is not self._links.usable:
            return None
        if not datagram.startswith(flow.head):
            flow = self._flows.get((peer, codec.head_of_relay(datagram)))
            if flow is None:
                return None
            self._latest[peer] = flow
        link, at, length = self._links[peer], len(flow.head), len(datagram)
        if not (
            link.prefix == flow.source
            and at < length <= self._limits.datagram_bytes_max
            and codec.ends_with_body(datagram, at)
            and self._links.accounts.listens(peer, now, neighbour=True)
            and link.relayed.try_spend(max(length - _OVERHEAD, RELAY_BYTES_MIN), now)
        ):
            return None
        self.relayed_bytes += length - _OVERHEAD
        return flow.to, datagram.replace(flow.head, flow.moved, 1)  # of as many bytes: this copies once


_BROKEN: Final = 20
"""Work for answering that a link on the path of a frame is gone (`gossip.transfers.accounts`)."""
_BODY_BYTES: Final = 64
"""Bytes of a relayed datagram that make one unit of work."""
IDLE_US: Final = 60_000_000
"""Time without traffic after which a route is closed."""
_INSIDE: Final = {
    fr.Offer, fr.Request, fr.Ack, fr.WholeDescriptor, fr.DescriptorPart, fr.HashList, fr.Data, fr.BlankData,
    fr.OpenParcel, fr.AckRecord,
}  # fmt: skip
"""Kinds that are taken out of a relayed datagram. With a host that is no neighbour nothing is compared."""


class Route(Link):
    """The way to one host of the island that is no neighbour."""

    __slots__ = ("_relaying", "path", "used_us")
    route = True

    def __init__(self, relaying: Relaying, context: HostContext, node: NodeId) -> None:
        datagram_bytes_max = context.settings.datagram_bytes - relaying.room_bytes
        super().__init__(
            f"route:{node}",
            context.links,
            broadcast=False,
            datagram_bytes_max=datagram_bytes_max,
            patience_us=round(context.settings.island_patience_s * 1e6),
        )
        self._relaying = relaying
        self.path = ()
        self.used_us = 0
        """Time at which something went or came over it."""
        self.claim(node)

    def send(self, frames: Sequence[fr.Frame]) -> None:
        """Send frames along the best path that there is now. Without one they are lost, as on any link."""
        self._relaying.send(self, frames)

    def came(self, frames: Sequence[fr.Frame], path: tuple[NodeId, ...], now: int) -> None:
        """Take frames that came along a path."""
        self.path, self.used_us = path, now
        self.begun(now)
        self.receive_inner(frames, now)


_Arrived = dict[tuple[Route, tuple["NodeId", ...]], list[fr.Frame]]
"""Frames that came over a route, by the relays that they came along."""


class Relaying:
    """The routes of one host, and what it passes on for others."""

    def __init__(self, context: HostContext, routes: Routes) -> None:
        self._context, self._links, self._outputs = context, context.links, context.outputs
        self._holdings, self._limits = context.holdings, context.limits
        self._own, self._prefix = context.node, context.prefix
        self._routes = routes
        settings = context.settings
        self._hosts_max = settings.island_hops_max + 1
        self._routes_max = settings.routes_max
        longest = fr.Relay(bytes(self._hosts_max * PREFIX_BYTES), 1, bytes(2 * PREFIX_BYTES), bytes(256))
        self.room_bytes = len(codec.encode(longest)) - 256 + codec.datagram_overhead(1)
        """Bytes of a datagram that are not left for the datagram inside."""
        self._open: dict[NodeId, Route] = {}
        """By host, the one that was used last at the end."""
        self._usable: list[Link] = []
        self._by_prefix: dict[bytes, Link] = {}
        """Links of neighbours by the prefixes of their hosts, as long as `Links.usable` is what it was."""
        self.flows = Flows(context.links, context.limits)
        self.due_us = NEVER
        """Time at which a route may have to be closed."""

    def __len__(self) -> int:
        return len(self._open)

    @property
    def relayed_bytes(self) -> int:
        """Bytes that were passed on for others."""
        return self.flows.relayed_bytes

    @property
    def handlers(self) -> Mapping[type, Handler]:
        """Take what is relayed."""
        return {fr.Relay: self._receive, fr.OpenRelay: self._receive}

    # --- routes --------------------------------------------------------------------------------------------

    def route(self, node: NodeId, now: int) -> Route | None:
        """Return the route to a host, a new one if need be; None if there are as many as there may be, all in use."""
        route = self._open.pop(node, None)
        if route is None:
            # One that was used in this step has frames to send, or to process.
            if len(self._open) >= self._routes_max and not self._close_idle(now, 1):
                return None
            route = Route(self, self._context, node)
            self._links.add(route)
            self._links.open(route, usable=True)
            self.due_us = min(self.due_us, now + IDLE_US)
        self._open[node] = route
        route.used_us = now
        route.fit(self._inner_bytes(route))
        return route

    def _inner_bytes(self, route: Route) -> int:
        """Return the longest datagram that goes inside others to the end of a route, as far as is known here."""
        carried = 0 if route.doubted else self._links.datagram_bytes - self.room_bytes
        return max(route.datagram_bytes_max, carried)

    def close(self, node: NodeId) -> None:
        """Close the route to a host, if there is one. What is under way over it ends with the step."""
        route = self._open.pop(node, None)
        if route is not None:
            self._links.remove(route)

    def expire(self, now: int) -> None:
        """Close the routes that were not used for a while."""
        while self._close_idle(now, IDLE_US):
            pass
        self.due_us = NEVER
        if self._open:
            self.due_us = max(now + IDLE_US // 10, min(route.used_us for route in self._open.values()) + IDLE_US)

    def _close_idle(self, now: int, idle_us: int) -> bool:
        """Close the route that was not used for longest, if nothing is under way over it.

        Messages that were requested in vain are not under way. The other end may have forged its offers.
        """
        for node, route in self._open.items():
            waits = route.timers.due[REQUEST_AGAIN] < NEVER
            if now - route.used_us >= idle_us and not (route.outbox.jobs or waits):
                self.close(node)
                return True
        return False

    def neighbour(self, prefix: bytes) -> Link | None:
        """Return the link to the neighbour that a prefix stands for, if there is one."""
        if self._usable is not self._links.usable:
            self._usable = self._links.usable
            self._by_prefix = {link.prefix: link for link in self._usable if not (link.route or link.is_old)}
        return self._by_prefix.get(prefix)

    # --- own datagrams -------------------------------------------------------------------------------------

    def send(self, route: Route, frames: Sequence[fr.Frame]) -> None:
        """Send frames to the other end of a route, in datagrams that fit into those of its first hop."""
        now = self._holdings.now_us
        route.used_us = now
        nodes = self._routes.path(route.node, now)
        while nodes is not None:
            link = self.neighbour(node_prefix(nodes[0]))
            if link is not None:
                path = b"".join((self._prefix, *map(node_prefix, nodes)))
                for start, stop, _ in codec.runs(codec.wire_sizes(frames), self._inner_bytes(route)):
                    link.send((fr.OpenRelay(tuple(frames[start:stop]), path, 1),))
                return
            self._routes.avoid(self._own, nodes[0], now)
            nodes = self._routes.path(route.node, now)

    # --- what comes ----------------------------------------------------------------------------------------

    def _receive(self, link: Link, frames: Sequence[fr.Relay | fr.OpenRelay], now: int) -> None:
        """Take what a neighbour passes on, for this host or for others. What came one way is taken together."""
        came: _Arrived = {}
        for frame in frames:
            try:
                self._receive_one(link, frame, came, now)
            except RemoteError as error:
                self._outputs.refuse(error.reason, link.peer)
        for (route, relays), inner in came.items():
            route.came(inner, relays, now)
        link.begun(now)

    def _receive_one(self, link: Link, frame: fr.Relay | fr.OpenRelay, came: _Arrived, now: int) -> None:
        """Pass a datagram on, or note what is inside if it is for this host; raises `RemoteError`."""
        link.work.begin(PARCEL + (len(frame.body) // _BODY_BYTES if isinstance(frame, fr.Relay) else 0))
        path, position = hops(frame.path), frame.position
        if len(path) > self._hosts_max or path[position] != self._prefix or path[position - 1] != link.prefix:
            raise RemoteError("path")
        if position == len(path) - 1:
            self._arrived(link, frame, path, came, now)
        elif not link.relayed.try_spend(max(nbytes := codec.wire_size(frame), RELAY_BYTES_MIN), now):
            raise LimitError("relayed")
        elif self._pass_on(link, frame, path, now):
            self.flows.relayed_bytes += nbytes
        else:
            return
        link.work.credit()

    def _pass_on(self, link: Link, frame: fr.Relay | fr.OpenRelay, path: list[bytes], now: int) -> bool:
        """Send a datagram to the next host on its path, or round a link that is gone. Returns False if neither goes."""
        at = frame.position
        following = self.neighbour(path[at + 1])
        if following is not None:
            moved = msgspec.structs.replace(frame, position=at + 1)
            following.send((moved,))
            if isinstance(frame, fr.Relay) and isinstance(moved, fr.Relay):
                self.flows.note(link, frame, following, moved)
            return True
        edge = path[at] + path[at + 1]
        if isinstance(frame, fr.Relay) and not frame.body:
            return False  # No node is informed: the sender's wait times out.
        if not frame.broken and (round_it := self._way_round(path, at, now)) is not None:
            following, rest = round_it
            found = b"".join((*path[: at + 1], *rest))
            following.send((msgspec.structs.replace(frame, path=found, position=at + 1, broken=edge),))
            return True
        link.work.did(_BROKEN)
        link.answer((fr.Relay(b"".join(reversed(path[: at + 1])), 1, edge),), now)
        return False

    def _way_round(self, path: list[bytes], at: int, now: int) -> tuple[Link, list[bytes]] | None:
        """Return another way to the target of a path, and its first link; None if it leads through a host before."""
        target, gone = self._routes.named(path[-1]), self._routes.named(path[at + 1])
        if gone is not None:
            self._routes.avoid(self._own, gone, now)
        nodes = None if target is None else self._routes.path(target, now)
        rest = [node_prefix(node) for node in nodes or ()]
        if not rest or at + 1 + len(rest) > self._hosts_max or not set(rest).isdisjoint(path[: at + 1]):
            return None
        link = self.neighbour(rest[0])
        return None if link is None else (link, rest)

    def _arrived(
        self, link: Link, frame: fr.Relay | fr.OpenRelay, path: list[bytes], came: _Arrived, now: int
    ) -> None:  # fmt: skip
        """Note what is in a datagram that is for this host, as if it had come from its source."""
        nodes = [self._routes.named(prefix) for prefix in path[:-1]]
        source, relays = nodes[0], tuple([node for node in nodes[1:] if node is not None])
        if source is None or len(relays) < len(path) - 2:
            raise RemoteError("path")  # Of strangers.
        if isinstance(frame, fr.OpenRelay):
            frames: Sequence[fr.Frame] = frame.inner
        elif not frame.body:
            self._broke(link, frame.broken, path, now)
            return
        else:
            decoded = codec.decode(frame.body, self._limits)
            frames = decoded.frames
            for reason, count in decoded.refused.items():
                self._outputs.refuse(reason, link.peer, count=count)
                link.work.owe(FRAME * count)
        accepted = [each for each in frames if type(each) in _INSIDE]
        if len(accepted) < len(frames):
            self._outputs.refuse("relay", link.peer, count=len(frames) - len(accepted))
            link.work.owe(FRAME * (len(frames) - len(accepted)))
        route = self.route(source, now) if accepted else None
        if route is not None:
            came.setdefault((route, relays), []).extend(accepted)
        elif accepted:
            raise LimitError("routes")

    def _broke(self, link: Link, broken: bytes, path: list[bytes], now: int) -> None:
        """Avoid a link that one of its ends says is gone, if a route of this host leads by that neighbour over it."""
        ends = [broken[:PREFIX_BYTES], broken[PREFIX_BYTES:]]
        for route in self._open.values() if ends[0] == path[0] else ():
            nodes = self._routes.path(route.node, now) or ()
            used = [self._prefix, *map(node_prefix, nodes)]
            if nodes and used[1] == link.prefix and ends in [used[at : at + 2] for at in range(1, len(used) - 1)]:
                at = used.index(ends[0])
                self._routes.avoid(nodes[at - 1], nodes[at], now)
                return
        raise RemoteError("broken")
