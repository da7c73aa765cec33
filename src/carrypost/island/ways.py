"""Ways to recipients: which messages go straight to their recipients, and which go from hand to hand."""

# The problem. In a connected group, epidemic routing copies a message to every host although one of
# them wants it. In a network that is never whole, routing alone loses it: by the time a message
# arrives at the end of a path, the path may be gone. A host cannot know which of the two it is in;
# it only knows what others said of their links.
#
# The way chosen. A message of this host whose recipients are all in the island is pushed to each
# over its route, or its own link, and *withheld* from the epidemic: no other host gets a copy. If
# only some of them are in the island, it is pushed to those and goes from hand to hand as well. The
# id is the same either way, so a recipient accepts it once, and pieces that came one way are
# completed by the other. A recipient keeps such a message to itself while all other recipients are
# in the island. Messages carried for others are offered to their recipients, too, as soon as these
# come into the island, but not withheld.
#
# What must hold.
# 1. Nothing is withheld for long. A message is *released* when its recipients accepted nothing of
#    it for `island_patience_s`, or did not acknowledge it in that time; when one of them is not
#    reachable any more, or was restarted; and in any case after a minute. So a lie about links
#    costs a delay, and never a message.
# 2. Only the signed acknowledgement counts (`gossip.acked`): relays may lie about everything else.
# 3. A recipient that was tried in vain twice within a minute is not relied upon for the next:
#    nothing is withheld for it.
# 4. Cost. Each recipient is sent the message separately, the epidemic takes one transmission per
#    host of the island. The paths to all recipients may have `FANOUT` times as many hops as the
#    island has other hosts; beyond that the message goes from hand to hand alone. No path is longer
#    than that number of hosts, so `FANOUT` recipients are never too many.
# 5. `connected` messages are for hosts of the island alone. Whatever would release another message
#    drops such a one.
# 6. Momentary messages are not acknowledged: they are dropped once the link says that they arrived. A
#    relay that lies about that does no more harm than one that drops them, and their authors repeat
#    what gets no answer.

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from carrypost.gossip.acked.acked import STRAIGHT_US
from carrypost.gossip.holdings.cache import ISLAND
from carrypost.gossip.holdings.copies import Copy
from carrypost.gossip.slots import bits
from carrypost.log.events import Reason
from carrypost.model.descriptor_values import recipients
from carrypost.model.ids import NodeId, node_prefix
from carrypost.model.times import NEVER

if TYPE_CHECKING:
    from collections.abc import Collection, Container, Iterable, Sequence

    from carrypost.gossip.strategy.strategy import Strategy
    from carrypost.gossip.transfers.link import HostContext, Link
    from carrypost.island.links import Routes
    from carrypost.island.relaying import Relaying
    from carrypost.model.ids import MessageId

WITHHELD_US_MAX: Final = 60_000_000
"""Longest time that a message is withheld: a host on the path may acknowledge it a byte at a time."""
DOUBT_US: Final = 60_000_000
"""A recipient that was tried in vain twice within this time is not relied upon for as long."""
_AGAIN_US: Final = 2_000_000
"""Delay before a host is tried again to which there was no path for a moment, without its becoming unreachable."""
FANOUT: Final = 8
"""Largest number of transmissions of a message along paths for each other host of the island. It is large: messages
that go straight need no room elsewhere, and on some seed fewer messages arrived with each smaller bound that was
tried."""
_ALL, _COMPLETE = 2**62, -1
_SEVERAL: Final = 2


@dataclass(eq=False, slots=True)
class Errand:
    """One message on its way to recipients in the island."""

    copy: Copy
    left: dict[NodeId, None]
    """Recipients that it is pushed to, and that have not acknowledged it."""
    began_us: int
    withheld: bool
    connected: bool = False
    sent: bool = True
    """False: another host sends it to them."""


@dataclass(eq=False, slots=True)
class Leg:
    """One message on its way to one host."""

    errand: Errand
    moved_us: int
    """Time at which a part of it last arrived."""
    remains: int = _ALL
    """Frames that had not arrived then; `_COMPLETE`: the host reports that it has all of it."""


@dataclass(eq=False, slots=True)
class Way:
    """The messages that go straight to one host."""

    link: Link | None
    """The link over which they go; None: its contact is over."""
    legs: dict[MessageId, Leg]
    moved_us: int
    """Time at which a part of any message last arrived."""
    tries: int = 0
    """Number of offers since then."""
    due_us: int = NEVER
    """Time at which it is examined again."""


class Ways:
    """Choice of ways for the messages of one host."""

    def __init__(self, context: HostContext, strategy: Strategy[Any], routes: Routes, relaying: Relaying) -> None:
        self._holdings, self._cache, self._own = context.holdings, context.holdings.cache, context.node
        self._transfers, self._strategy = strategy.transfers, strategy
        self._routes, self._relaying = routes, relaying
        self._links, self._in_reach = context.links, context.links.in_reach
        self._patience_us = round(context.settings.island_patience_s * 1e6)
        self._told_us = round(context.settings.acked_s * 1e6)
        """Time in which a host hears, by broadcasts, of others' acknowledgements."""
        self._errands: dict[MessageId, Errand] = {}
        self._ways: dict[NodeId, Way] = {}
        self._fresh: list[Copy] = []
        """Messages that were published in this step, or have to be durable before they may leave."""
        self._partial = 0
        """Slots of half-received messages with recipients, at the end of the last step."""
        self._found: dict[NodeId, None] = {}
        """Hosts that came into the island in this step."""
        self._failed_us: dict[NodeId, int] = {}
        """Times at which each host was last tried in vain; no more hosts than there are in the island."""
        self._doubted_us: dict[NodeId, int] = {}
        """Time until which a host is not relied upon."""
        self._again_us: dict[NodeId, int] = {}
        """Times at which hosts of the island that were tried in vain, or had no path, are tried again."""
        self.due_us = NEVER

    @property
    def withheld(self) -> int:
        """Number of messages that are kept from the epidemic."""
        return sum(errand.withheld for errand in self._errands.values())

    # --- what happens --------------------------------------------------------------------------------------

    def published(self, copies: Sequence[Copy]) -> None:
        """Decide the ways of this host's messages, before they are offered to any neighbour."""
        now = self._holdings.now_us
        for copy in copies:
            nodes = recipients(copy.descriptor)
            if nodes and self._own not in nodes:
                self._decide(copy, nodes, now, hidden=True)
                self._fresh.append(copy)

    def received(self, copies: Sequence[Copy]) -> None:
        """Withhold messages that arrived here and are also for others, while all of those are in the island.

        The host that sent them here sends them there as well.
        """
        now = self._holdings.now_us
        for copy in copies:
            headers = copy.descriptor.headers
            if headers is None or len(headers.recipients) < _SEVERAL or headers.connected or copy.own:
                continue
            left = self._holdings.recipients.left(copy.descriptor)
            others = [node for node in left if node != self._own]
            if not others or self._own not in left or copy.id in self._errands or not self._came_straight(copy):
                continue
            if self._reached(others, now) != others:
                continue
            links = [link for node in others if (link := self._link(node, now)) is not None]
            # If a host has no route, because all are in use for others, nothing would report progress to it.
            if len(links) == len(others):
                errand = self._note(Errand(copy, dict.fromkeys(others), now, withheld=True, sent=False))
                self._holdings.withhold(copy, ISLAND)
                for node, link in zip(others, links, strict=True):
                    self._add(node, link, Leg(errand, now, _COMPLETE))

    def _came_straight(self, copy: Copy) -> bool:
        """Return False if a message has too many recipients to be sent to each: then it goes from hand to hand."""
        nodes, link = recipients(copy.descriptor), self._links.get(copy.giver or "")
        if len(nodes) <= FANOUT or (link is not None and link.route):
            return True
        found = self._routes.distances(copy.descriptor.node)
        return not self._is_dear([found[node] for node in nodes if node in found])

    def left(self, copies: Sequence[Copy]) -> None:
        """Forget copies that left."""
        if not self._errands:
            return
        for copy in copies:
            if (errand := self._errands.pop(copy.id, None)) is not None:
                for node in list(errand.left):
                    self._drop(errand, node)
        if not (self._errands or self._ways):  # Nothing is left to look at: the host need not wake for it.
            self.due_us = min(self._again_us.values(), default=NEVER)

    def reachable(self, node: NodeId) -> None:
        """Note a host that came into the island: it is sent its messages at the end of the step."""
        self._found[node] = None

    def unreachable(self, node: NodeId, now: int) -> None:
        """Leave a host that left the island to the epidemic."""
        self._found.pop(node, None)
        self._leave(node, now)
        for times in (self._failed_us, self._doubted_us, self._again_us):
            times.pop(node, None)

    def restarted(self, node: NodeId, now: int) -> None:
        """Start over with a host that was restarted, and may have lost what it had acknowledged."""
        self._leave(node, now)
        self._found[node] = None

    def parted(self, link: Link) -> None:
        """End a contact: what was on its way over the link is lost, and goes over the next one."""
        way = self._ways.get(link.node)
        if way is not None and way.link is link:
            way.link = None

    def changed(self, now: int) -> None:
        """Examine the ways without a link for whose hosts there is a path now."""
        for node, way in self._ways.items():
            if way.link is None and self._routes.path(node, now) is not None:
                way.due_us = self.due_us = now

    def _leave(self, node: NodeId, now: int) -> None:
        way = self._ways.get(node)
        for leg in list(way.legs.values()) if way is not None else ():
            self._give_up(leg.errand, node, now)
        self._relaying.close(node)

    def finish(self, now: int) -> None:
        """End a step: push messages that may leave, and those for hosts that were found."""
        if self._holdings.kept_events:
            self.left(self._holdings.kept_events)
            self._holdings.kept_events = []
        partial = self._cache.partial & self._holdings.index.listed
        if begun := partial & ~self._partial:
            self.received([copy for slot in bits(begun) if (copy := self._cache.copies[slot]) is not None])
        self._partial = partial
        if self._found:
            found, self._found = self._found, {}
            self._look_for(found, now)
        if self._fresh:
            fresh, self._fresh = self._fresh, []
            going: list[Copy] = []
            for copy in fresh:
                if copy.here:
                    (self._fresh if self._holdings.is_withheld(copy, but_by=ISLAND) else going).append(copy)
            if going:
                self._begin(going, now)

    def push_momentary(self, now: int) -> None:
        """Push momentary messages in the step in which they were published: no batch has to be written first."""
        if going := [copy for copy in self._fresh if copy.descriptor.service.momentary]:
            self._fresh = [copy for copy in self._fresh if copy not in going]
            self._begin(going, now)

    def expire(self, now: int) -> None:
        """Repeat offers, and release messages that failed."""
        for node, way in list(self._ways.items()):
            if way.due_us <= now:
                self._look(node, way, now)
        for node in [each for each, again_us in self._again_us.items() if again_us <= now]:
            del self._again_us[node]
            self._found[node] = None
        for errand in [each for each in self._errands.values() if now - each.began_us >= WITHHELD_US_MAX]:
            for node in list(errand.left):
                self._give_up(errand, node, now)
            self._end_if_done(errand)
        ends = [errand.began_us + WITHHELD_US_MAX for errand in self._errands.values()]
        looks = [way.due_us for way in self._ways.values()]
        self.due_us = min([*self._again_us.values(), *looks, *ends], default=NEVER)

    # --- decisions -----------------------------------------------------------------------------------------

    def _decide(self, copy: Copy, nodes: Collection[NodeId], now: int, *, hidden: bool) -> Errand | None:
        """Make an errand of a message if any of its recipients is in the island, and paths to them are not too long.

        It is withheld if it is this host's own, and all recipients are in the island; `hidden`: then comparisons with
        neighbours leave it out.
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
        sure = copy.own and len(there) == len(nodes) and not any(self._doubted_us.get(node, 0) > now for node in nodes)
        errand = self._note(Errand(copy, dict.fromkeys(there), now, sure or connected, connected))
        if errand.withheld:
            self._holdings.withhold(copy, ISLAND)
            if hidden:
                self._holdings.index.mark_unknown(copy)
        return errand

    def _note(self, errand: Errand) -> Errand:
        """Record an errand; it ends within `WITHHELD_US_MAX`, whatever becomes of its links."""
        self._errands[errand.copy.id] = errand
        self.due_us = min(self.due_us, errand.began_us + WITHHELD_US_MAX)
        return errand

    def _reached(self, nodes: Iterable[NodeId], now: int) -> list[NodeId]:
        """Return the hosts among these to which there is a path."""
        return [node for node in nodes if self._routes.path(node, now) is not None]

    def _is_dear(self, hops: Sequence[int]) -> bool:
        """Return True if paths of these lengths cost more transmissions than a message is worth in this island."""
        return sum(hops) > FANOUT * len(self._in_reach)

    def _begin(self, copies: Iterable[Copy], now: int) -> None:
        """Send messages that were decided upon, except those that have still to be durable; together over each link."""
        going: dict[Link, list[Copy]] = {}
        for copy in copies:
            errand = self._errands.get(copy.id)
            if errand is None or self._holdings.is_withheld(copy, but_by=ISLAND):
                continue
            errand.began_us = now
            for node in list(errand.left):
                if (link := self._prepare(node, errand, now)) is not None:
                    going.setdefault(link, []).append(copy)
            self._end_if_done(errand)
        for link, together in going.items():
            self._send(link, together, now)

    def _look_for(self, nodes: Container[NodeId], now: int) -> None:
        """Push messages to hosts that came into the island."""
        decided: list[Copy] = []
        for copy in [each for each in self._cache.copies if each is not None and each.whole]:
            headers = copy.descriptor.headers
            if copy.id in self._errands or not any(node in nodes for node in recipients(copy.descriptor)):
                continue
            stays = self._holdings.is_kept_event(copy) if copy.own else headers is not None and headers.connected
            if stays:
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
        """Return the link by which a message goes straight to one of its recipients; None: it goes another way."""
        link = self._link(node, now)
        if link is None:
            self._give_up(errand, node, now)
        elif not (link.route or errand.withheld):
            self._drop(errand, node)  # It is a neighbour: the strategy offers it there.
        elif self._add(node, link, Leg(errand, now)).link is link:
            return link
        return None

    def _add(self, node: NodeId, link: Link, leg: Leg) -> Way:
        """Record a message that goes to a host."""
        way = self._ways.get(node)
        if way is None:
            way = self._ways[node] = Way(link, {}, leg.moved_us)
        way.legs[leg.errand.copy.id] = leg
        # Over another link than before everything starts over, at once.
        wait_us = link.outbox.recovery.answer_us(0) if way.link is link else 0
        way.due_us = min(way.due_us, leg.moved_us + wait_us)
        self.due_us = min(self.due_us, way.due_us)
        return way

    def _send(self, link: Link, copies: Sequence[Copy], now: int) -> None:
        """Send own messages unasked, and offer carried ones, which others may have brought."""
        if own := [copy for copy in copies if copy.own]:
            self._transfers.push(link, own, now)
        if carried := [copy for copy in copies if not copy.own]:
            self._transfers.offer(link, carried)

    def _look(self, node: NodeId, way: Way, now: int) -> None:
        """Check the progress of all messages to one host; offer again those without any."""
        link = self._link(node, now)
        for leg in list(way.legs.values()):
            if node not in self._holdings.recipients.left(leg.errand.copy.descriptor):
                self._drop(leg.errand, node)
                self._end_if_done(leg.errand)
        if link is not None:
            self._measure(way, link, now)
            self._drop_momentary(node, way)
        for leg in list(way.legs.values()):
            moved_us = leg.moved_us if leg.remains == _COMPLETE else max(leg.moved_us, way.moved_us)
            patience_us = self._patience_us + (0 if leg.errand.sent else self._told_us)
            if link is None or now - moved_us >= patience_us:
                if leg.errand.sent:
                    self._note_failure(node, now)
                self._give_up(leg.errand, node, now)
        if link is None or not way.legs:
            return
        jobs, sent = link.outbox.jobs, [leg for leg in way.legs.values() if leg.errand.sent]
        if silent := [leg.errand.copy for leg in sent if leg.remains != _COMPLETE and leg.errand.copy.slot not in jobs]:
            self._send(link, silent, now)
        # It may wait for its turn, or be lost: then this asks for it again.
        late_us = now - STRAIGHT_US
        if unanswered := [leg.errand.copy for leg in sent if leg.remains == _COMPLETE and leg.moved_us <= late_us]:
            self._transfers.offer(link, unanswered)
        way.tries += bool(silent or unanswered)
        way.due_us = max(now + link.outbox.recovery.answer_us(way.tries, self._patience_us), _late_us(way))

    def _drop_momentary(self, node: NodeId, way: Way) -> None:
        """End the errands of momentary messages that arrived."""
        for leg in list(way.legs.values()):
            copy = leg.errand.copy
            if leg.remains == _COMPLETE and copy.descriptor.service.momentary:
                self._drop(leg.errand, node)
                self._errands.pop(copy.id, None)
                self._holdings.discard(copy, Reason.PURGED, done=True)

    def _measure(self, way: Way, link: Link, now: int) -> None:
        """Record what arrived since the last check. Over another link everything starts over."""
        known, outbox = link.known, link.outbox
        moved = link is not way.link
        for leg in way.legs.values():
            slot = leg.errand.copy.slot
            remains = _COMPLETE if known >> slot & 1 else _ALL
            if (job := outbox.jobs.get(slot)) is not None:
                remains = job.left + len(job.in_flight) + len(outbox.retransmissions.of(job))
            if leg.errand.sent and (remains < leg.remains or link is not way.link):
                leg.remains, leg.moved_us, moved = remains, now, True
        if moved:
            way.link, way.moved_us, way.tries = link, now, 0

    # --- the end -------------------------------------------------------------------------------------------

    def _note_failure(self, node: NodeId, now: int) -> None:
        """Remember that a host was tried in vain; several messages at the same time are one try."""
        if 0 < now - self._failed_us.get(node, -NEVER) < DOUBT_US:
            self._doubted_us[node] = now + DOUBT_US
        self._failed_us[node] = now
        self._again_us[node] = now + DOUBT_US

    def _try_again(self, node: NodeId, now: int) -> None:
        """Retry later a host without a path that is still in the island, as nothing may report its return."""
        if node in self._in_reach and node not in self._again_us:
            self._again_us[node] = now + _AGAIN_US
            self.due_us = min(self.due_us, now + _AGAIN_US)

    def _drop(self, errand: Errand, node: NodeId) -> None:
        """Remove one recipient from a message's errand."""
        errand.left.pop(node, None)
        way = self._ways.get(node)
        if way is not None and way.legs.pop(errand.copy.id, None) is not None and not way.legs:
            del self._ways[node]

    def _give_up(self, errand: Errand, node: NodeId, now: int) -> None:
        """Leave one recipient of a message to the epidemic, if that is allowed."""
        self._drop(errand, node)
        self._try_again(node, now)
        copy = errand.copy
        if errand.withheld and not errand.connected:
            errand.withheld = False
            self._holdings.permit(copy, ISLAND)
            if not self._holdings.is_withheld(copy, but_by=ISLAND):
                self._strategy.published((copy,), now)
        self._end_if_done(errand)

    def _end_if_done(self, errand: Errand) -> None:
        """End an errand without recipients; a message for connected hosts alone is dropped with it."""
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


def _late_us(way: Way) -> int:
    """Return the time at which an acknowledgement is late; 0 if any message to the host did not arrive yet."""
    if any(leg.remains != _COMPLETE for leg in way.legs.values()):
        return 0
    return min(leg.moved_us for leg in way.legs.values()) + STRAIGHT_US
