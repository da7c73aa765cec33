"""Ways to recipients: which messages go straight to the hosts that they are for, and which go from hand to hand.

A message of this host whose recipients are all in the island is pushed to each over its route, or its own link, and
*withheld* from the epidemic: nobody else gets a copy. If only some of them are in the island, it is pushed to those and
goes from hand to hand as well. The same id is used either way, so a recipient takes it once, and pieces that came one
way are completed by the other. A recipient keeps what it got to itself for as long while all others that it is for
are in the island. What is carried for others is offered to their recipients, too, as soon as these come into the
island, but not withheld.

Each recipient is sent a message by itself, so that to very many of them it goes from hand to hand alone. The epidemic
takes one transmission for each host of the island; the paths to all recipients may have `FANOUT` times as many hops. No
path has more hops than the island has other hosts, so a message to `FANOUT` recipients is never too dear.

Nothing is withheld for long. A message is *released* once its recipients took nothing of it for `island_patience_s`, or
did not acknowledge it in that time; when one of them is not reachable any more, or was restarted; and in any case after
a minute. The acknowledgement that counts is the signed one (`gossip.acked`): relays may lie about all else. If a
recipient was tried in vain twice within a minute, nothing is withheld on its account for the next.

`connected` messages are for hosts of the island alone. What would release another message drops such a one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from carrypost.events import Reason
from carrypost.gossip.acked.acked import STRAIGHT_US
from carrypost.gossip.holdings.owners import ISLAND
from carrypost.gossip.slots import bits
from carrypost.model.ids import NodeId, node_prefix
from carrypost.model.recipients import recipients
from carrypost.model.times import NEVER

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from carrypost.gossip.holdings.copies import Copy
    from carrypost.gossip.strategy.strategy import Strategy
    from carrypost.gossip.transfers.ground import Ground
    from carrypost.gossip.transfers.link import Link
    from carrypost.island.relaying import Relaying
    from carrypost.island.routes import Routes
    from carrypost.model.ids import MessageId

WITHHELD_US_MAX = 60_000_000
"""No message is withheld for longer: somebody on the path may acknowledge it a byte at a time."""
DOUBT_US = 60_000_000
"""A recipient that was tried in vain twice within this time is not relied upon for as long."""
_AGAIN_US = 2_000_000
"""A host to which there was no path for a moment, without its being told as unreachable, is tried again after this."""
FANOUT = 8
"""Transmissions of a message along paths, at most, for each other host of the island. It is wide: what goes straight
needs no room elsewhere, and on some seed fewer messages arrived with each narrower bound that was tried."""
_ALL, _THERE = 2**62, -1
_SEVERAL = 2


class Errand(msgspec.Struct, eq=False):
    """One message on its way to recipients in the island."""

    copy: Copy
    left: set[NodeId]
    """Recipients that it is pushed to, and that have not acknowledged it."""
    began_us: int
    withheld: bool
    connected: bool = False
    sent: bool = True
    """False: somebody else sends it to them."""


class Leg(msgspec.Struct, eq=False):
    """One message on its way to one host."""

    errand: Errand
    moved_us: int
    """Time at which a part of it was seen to arrive."""
    remains: int = _ALL
    """Frames that had not arrived then; `_THERE`: the host says that it has all of it."""


class Way(msgspec.Struct, eq=False):
    """The messages that go straight to one host."""

    link: Link
    legs: dict[MessageId, Leg]
    moved_us: int
    """Time at which a part of any message was seen to arrive."""
    tries: int = 0
    """Offers since then."""
    due_us: int = NEVER
    """Time at which to look at it again."""


class Ways:
    """Choice of ways for the messages of one host."""

    def __init__(self, ground: Ground, strategy: Strategy[Any], routes: Routes, relaying: Relaying) -> None:
        self._holdings, self._cache, self._own = ground.holdings, ground.holdings.cache, ground.node
        self._transfers, self._strategy = strategy.transfers, strategy
        self._routes, self._relaying = routes, relaying
        self._links, self._in_reach = ground.links, ground.links.in_reach
        self._patience_us = round(ground.settings.island_patience_s * 1e6)
        self._told_us = round(ground.settings.acked_s * 1e6)
        """Time in which a host hears, by broadcasts, of what others acknowledged."""
        self._errands: dict[MessageId, Errand] = {}
        self._ways: dict[NodeId, Way] = {}
        self._fresh: list[Copy] = []
        """Messages that were published in this step, or had to be durable before they may leave."""
        self._partial = 0
        """Slots of half-received messages with recipients, at the end of the last step."""
        self._found: set[NodeId] = set()
        """Hosts that came into the island in this step."""
        self._vain_us: dict[NodeId, int] = {}
        """Times at which each host was last tried in vain; no more hosts than there are in the island."""
        self._doubted_us: dict[NodeId, int] = {}
        """Until when a host is not relied upon."""
        self._again_us: dict[NodeId, int] = {}
        """Times at which hosts of the island that were tried in vain, or had no path, are tried again."""
        self.due_us = NEVER

    @property
    def withheld(self) -> int:
        """Number of messages that are kept from the epidemic."""
        return sum(errand.withheld for errand in self._errands.values())

    # --- what happens --------------------------------------------------------------------------------------

    def published(self, copies: Sequence[Copy]) -> None:
        """Decide how messages of this host go, before they are offered to anybody."""
        now = self._holdings.now_us
        for copy in copies:
            nodes = recipients(copy.descriptor)
            if nodes and self._own not in nodes:
                self._decide(copy, nodes, now, hidden=True)
                self._fresh.append(copy)

    def received(self, copies: Sequence[Copy]) -> None:
        """Keep what came, all or some of it, and is also for others, to this host while all of those are in the island.

        Whoever sent it here sends it there as well.
        """
        now = self._holdings.now_us
        for copy in copies:
            headers = copy.descriptor.headers
            if headers is None or len(headers.recipients) < _SEVERAL or headers.connected or copy.own:
                continue
            left = self._holdings.recipients.left(copy.descriptor)
            others = set(left) - {self._own}
            if not others or self._own not in left or copy.id in self._errands or not self._came_straight(copy):
                continue
            if self._reached(others, now) == others:
                errand = self._errands[copy.id] = Errand(copy, others, now, withheld=True, sent=False)
                self._holdings.withhold(copy, ISLAND)
                for node in others:
                    if (link := self._link(node, now)) is not None:
                        self._add(node, link, Leg(errand, now, _THERE))

    def _came_straight(self, copy: Copy) -> bool:
        """Return False if a message was for too many to be sent to each of them: then it goes from hand to hand."""
        nodes, link = recipients(copy.descriptor), self._links.get(copy.giver or "")
        if len(nodes) <= FANOUT or (link is not None and link.route):
            return True
        found = self._routes.distances(copy.descriptor.node)
        return not self._is_dear([found[node] for node in nodes if node in found])

    def left(self, copies: Sequence[Copy]) -> None:
        """Forget copies that left."""
        for copy in copies if self._errands else ():
            if (errand := self._errands.pop(copy.id, None)) is not None:
                for node in list(errand.left):
                    self._drop(errand, node)

    def reachable(self, node: NodeId) -> None:
        """Note that a host came into the island: it gets what is here for it at the end of the step."""
        self._found.add(node)

    def unreachable(self, node: NodeId, now: int) -> None:
        """Leave it to the epidemic to reach a host that left the island."""
        self._found.discard(node)
        self._leave(node, now)
        for times in (self._vain_us, self._doubted_us, self._again_us):
            times.pop(node, None)

    def rebooted(self, node: NodeId, now: int) -> None:
        """Begin anew with a host that was restarted, and may have lost what it had acknowledged."""
        self._leave(node, now)
        self._found.add(node)

    def _leave(self, node: NodeId, now: int) -> None:
        way = self._ways.get(node)
        for leg in list(way.legs.values()) if way is not None else ():
            self._give_up(leg.errand, node, now)
        self._relaying.close(node)

    def finish(self, now: int) -> None:
        """End a step: push what may leave, and what is here for hosts that were found."""
        partial = self._cache.partial & self._holdings.index.listed
        if begun := partial & ~self._partial:
            self.received([copy for slot in bits(begun) if (copy := self._cache.copies[slot]) is not None])
        self._partial = partial
        if self._found:
            found, self._found = self._found, set()
            self._look_for(found, now)
        if self._fresh:
            waiting = [copy for copy in self._fresh if copy.here]
            self._fresh = [copy for copy in waiting if self._holdings.is_withheld(copy, but_by=ISLAND)]
            self._begin(waiting, now)

    def expire(self, now: int) -> None:
        """Repeat offers, and release what came to nothing."""
        for node, way in list(self._ways.items()):
            if way.due_us <= now:
                self._look(node, way, now)
        for node in [each for each, again_us in self._again_us.items() if again_us <= now]:
            del self._again_us[node]
            self._found.add(node)
        for errand in [each for each in self._errands.values() if now - each.began_us >= WITHHELD_US_MAX]:
            for node in list(errand.left):
                self._give_up(errand, node, now)
        self.due_us = min([*self._again_us.values(), *[way.due_us for way in self._ways.values()]], default=NEVER)

    # --- decisions -----------------------------------------------------------------------------------------

    def _decide(self, copy: Copy, nodes: Iterable[NodeId], now: int, *, hidden: bool) -> Errand | None:
        """Make an errand of a message if any of its recipients is in the island, and paths to them are not too dear.

        It is withheld if it is this host's own, and all are; `hidden`: then neighbours are not to find it missing.
        """
        there = self._reached(nodes, now)
        for node in nodes:
            if node not in there:
                self._try_again(node, now)
        headers = copy.descriptor.headers
        connected = headers is not None and headers.connected
        dear = len(there) > FANOUT and self._is_dear([self._routes.hops(node, now) for node in there])
        if (dear or not there) and not connected:
            return None
        sure = copy.own and there.issuperset(nodes) and not any(self._doubted_us.get(node, 0) > now for node in nodes)
        errand = self._errands[copy.id] = Errand(copy, there, now, sure or connected, connected)
        if errand.withheld:
            self._holdings.withhold(copy, ISLAND)
            if hidden:
                self._holdings.index.mark_unknown(copy)
        return errand

    def _reached(self, nodes: Iterable[NodeId], now: int) -> set[NodeId]:
        """Return those of some hosts that there is a path to."""
        return {node for node in nodes if self._routes.path(node, now) is not None}

    def _is_dear(self, hops: Sequence[int]) -> bool:
        """Return True if paths of so many hops are more transmissions than a message is worth in this island."""
        return sum(hops) > FANOUT * len(self._in_reach)

    def _begin(self, copies: Iterable[Copy], now: int) -> None:
        """Send messages that were decided upon, but those that have still to be durable; over each link all at once."""
        going: dict[Link, list[Copy]] = {}
        for copy in copies:
            errand = self._errands.get(copy.id)
            if errand is None or self._holdings.is_withheld(copy, but_by=ISLAND):
                continue
            errand.began_us = now
            for node in list(errand.left):
                if (link := self._prepare(node, errand, now)) is not None:
                    going.setdefault(link, []).append(copy)
            self._settle(errand)
        for link, together in going.items():
            self._send(link, together, now)

    def _look_for(self, nodes: set[NodeId], now: int) -> None:
        """Push to hosts that came into the island what is here for them."""
        decided: list[Copy] = []
        for copy in [each for each in self._cache.copies if each is not None and each.whole]:
            headers = copy.descriptor.headers
            if nodes.isdisjoint(recipients(copy.descriptor)) or copy.id in self._errands:
                continue
            if not copy.own and headers is not None and headers.connected:
                continue
            left = self._holdings.recipients.left(copy.descriptor)
            if self._own not in left and self._decide(copy, left, now, hidden=False) is not None:
                decided.append(copy)
        self._begin(decided, now)

    # --- pushing -------------------------------------------------------------------------------------------

    def _link(self, node: NodeId, now: int) -> Link | None:
        """Return the link over which a host of the island is reached: its own, or a route."""
        path = self._routes.path(node, now)
        if path is None:
            return None
        direct = self._relaying.neighbour(node_prefix(node)) if len(path) == 1 else None
        return direct if direct is not None else self._relaying.route(node, now)

    def _prepare(self, node: NodeId, errand: Errand, now: int) -> Link | None:
        """Return the link by which a message is to go straight to one of its recipients; None: it goes another way."""
        link = self._link(node, now)
        if link is None:
            self._give_up(errand, node, now)
        elif not (link.route or errand.withheld):
            self._drop(errand, node)  # It is a neighbour: the strategy offers it there.
        elif self._add(node, link, Leg(errand, now)).link is link:
            return link
        return None

    def _add(self, node: NodeId, link: Link, leg: Leg) -> Way:
        """Note what goes to a host."""
        way = self._ways.get(node)
        if way is None:
            way = self._ways[node] = Way(link, {}, leg.moved_us)
        way.legs[leg.errand.copy.id] = leg
        way.due_us = min(way.due_us, leg.moved_us + link.outbox.recovery.answer_us(0))
        self.due_us = min(self.due_us, way.due_us)
        return way

    def _send(self, link: Link, copies: Sequence[Copy], now: int) -> None:
        """Send own messages unasked. Others have what is carried, too: it is offered."""
        if own := [copy for copy in copies if copy.own]:
            self._transfers.push(link, own, now)
        if carried := [copy for copy in copies if not copy.own]:
            self._transfers.offer(link, carried)

    def _look(self, node: NodeId, way: Way, now: int) -> None:
        """See what came of all that goes to one host; offer again what nothing is heard of."""
        link = self._link(node, now)
        for leg in list(way.legs.values()):
            if node not in self._holdings.recipients.left(leg.errand.copy.descriptor):
                self._drop(leg.errand, node)
                self._settle(leg.errand)
        if link is not None:
            self._measure(way, link, now)
        for leg in list(way.legs.values()):
            moved_us = leg.moved_us if leg.remains == _THERE else max(leg.moved_us, way.moved_us)
            patience_us = self._patience_us + (0 if leg.errand.sent else self._told_us)
            if link is None or now - moved_us >= patience_us:
                if leg.errand.sent:
                    self._note_vain(node, now)
                self._give_up(leg.errand, node, now)
        if link is None or not way.legs:
            return
        jobs, sent = link.outbox.jobs, [leg for leg in way.legs.values() if leg.errand.sent]
        if silent := [leg.errand.copy for leg in sent if leg.remains != _THERE and leg.errand.copy.slot not in jobs]:
            self._send(link, silent, now)
        # It may wait for its turn, or be lost: then this asks for it again.
        late_us = now - STRAIGHT_US
        if unsaid := [leg.errand.copy for leg in sent if leg.remains == _THERE and leg.moved_us <= late_us]:
            self._transfers.offer(link, unsaid)
        way.tries += bool(silent or unsaid)
        way.due_us = now + link.outbox.recovery.answer_us(way.tries, self._patience_us)

    def _measure(self, way: Way, link: Link, now: int) -> None:
        """Note what arrived since the last look. Over another link everything begins anew."""
        known, outbox = link.known, link.outbox
        moved = link is not way.link
        for leg in way.legs.values():
            slot = leg.errand.copy.slot
            remains = _THERE if known >> slot & 1 else _ALL
            if (job := outbox.jobs.get(slot)) is not None:
                remains = job.left + len(job.in_flight) + len(outbox.retransmissions.of(job))
            if leg.errand.sent and (remains < leg.remains or link is not way.link):
                leg.remains, leg.moved_us, moved = remains, now, True
        if moved:
            way.link, way.moved_us, way.tries = link, now, 0

    # --- the end -------------------------------------------------------------------------------------------

    def _note_vain(self, node: NodeId, now: int) -> None:
        """Remember that a host was tried in vain; several messages at the same time are one try."""
        if 0 < now - self._vain_us.get(node, -NEVER) < DOUBT_US:
            self._doubted_us[node] = now + DOUBT_US
        self._vain_us[node] = now
        self._again_us[node] = now + DOUBT_US

    def _try_again(self, node: NodeId, now: int) -> None:
        """Look later for what is here for a host that has no path and is still in the island: nobody may tell of it."""
        if node in self._in_reach and node not in self._again_us:
            self._again_us[node] = now + _AGAIN_US
            self.due_us = min(self.due_us, now + _AGAIN_US)

    def _drop(self, errand: Errand, node: NodeId) -> None:
        """Have nothing more to do with one recipient of a message."""
        errand.left.discard(node)
        way = self._ways.get(node)
        if way is not None and way.legs.pop(errand.copy.id, None) is not None and not way.legs:
            del self._ways[node]

    def _give_up(self, errand: Errand, node: NodeId, now: int) -> None:
        """Leave one recipient of a message to the epidemic, if that may be."""
        self._drop(errand, node)
        self._try_again(node, now)
        copy = errand.copy
        if errand.withheld and not errand.connected:
            errand.withheld = False
            self._holdings.permit(copy, ISLAND)
            if not self._holdings.is_withheld(copy, but_by=ISLAND):
                self._strategy.published((copy,), now)
        self._settle(errand)

    def _settle(self, errand: Errand) -> None:
        """End an errand that nobody is left of; a message for connected hosts alone goes with it."""
        if errand.left:
            return
        self._errands.pop(errand.copy.id, None)
        copy = errand.copy
        if not copy.here:
            return
        if not errand.connected and errand.withheld:
            self._holdings.permit(copy, ISLAND)
        elif errand.connected and self._holdings.recipients.left(copy.descriptor):
            self._holdings.discard(copy, Reason.UNREACHABLE, done=True)
