"""The island: the layer that knows which hosts can be reached over several hops now, with the survey of their links.

The layer joins the parts: exchanging records of links (`Survey`), paths (`routes`), datagrams along them (`relaying`),
and the choice of messages that go straight to their recipients (`ways`). `IslandOverview` has its figures, for people
who ask.

The `Survey` has a host's reports of its own links, its choice of relays, and its knowledge of the links of others.
Hosts choose relays among their neighbours, and notify them by link states beside announcements. Each host sends all
others a record that is passed on (`island.flood`): the hosts of which it is a relay, and those that only claim to be
its neighbours. From these, and from what is heard in reach, follow the distances (`island.links`): over relays alone
all of them are as short as over all links. Everything that changes is looked at together, a moment later
(`Survey.review`).

Relays are the few neighbours that together reach all nodes two hops away (multipoint relays, RFC 3626, 8.3). A choice
(`choose`) is kept as long as it covers all of them: where links come and go, a smaller set for the moment would make
records change all the time. Relays are in terms of four-byte prefixes of node ids, as in heard-lists.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from carrypost.gossip.draft import Draft
from carrypost.gossip.layer import Layer
from carrypost.gossip.transfers import signed
from carrypost.gossip.transfers.accounts import Budget
from carrypost.gossip.wire.frames import LinkRecord, LinkState
from carrypost.island.flood import JITTER_US, Flood, News
from carrypost.island.links import Entry, Routes, Table, distances, packed_prefixes
from carrypost.island.relaying import Relaying
from carrypost.island.ways import Ways
from carrypost.log.events import Reachable, Unreachable
from carrypost.model.times import NEVER

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence
    from random import Random

    from carrypost.gossip.acked.acked import Acked
    from carrypost.gossip.holdings.copies import Copy
    from carrypost.gossip.layer import Handler
    from carrypost.gossip.strategy.strategy import Strategy
    from carrypost.gossip.transfers.link import HostContext, Link
    from carrypost.gossip.wire.frames import Frame
    from carrypost.island.links import Graph
    from carrypost.log.events import Reason
    from carrypost.model.ids import NodeId


def two_hops(own: bytes, heard: Mapping[bytes, frozenset[bytes]]) -> dict[bytes, set[bytes]]:
    """Return the nodes two hops away, with the neighbours that reach each; `heard`: of each neighbour its own."""
    found: dict[bytes, set[bytes]] = {}
    for neighbour, others in heard.items():
        for each in others:
            if each != own and each not in heard:
                found.setdefault(each, set()).add(neighbour)
    return found


def choose(own: bytes, heard: Mapping[bytes, frozenset[bytes]], kept: Collection[bytes] = ()) -> frozenset[bytes]:
    """Return neighbours that reach every node two hops away: those kept from before, if these still do.

    Otherwise a greedy choice adds as few as it needs, and superfluous ones are removed.
    """
    reached_by = two_hops(own, heard)
    chosen = {each for each in kept if each in heard}
    missing = {node for node, by in reached_by.items() if chosen.isdisjoint(by)}
    if not missing:
        return frozenset(chosen)
    for node in missing:
        if len(by := reached_by[node]) == 1:
            chosen |= by
    missing = {node for node in missing if chosen.isdisjoint(reached_by[node])}
    while missing:
        best = max(heard, key=lambda each: (len(missing & heard[each]), len(heard[each]), each))
        chosen.add(best)
        missing -= heard[best]
    return frozenset(chosen - _superfluous(chosen, heard, reached_by))


def _superfluous(
    chosen: set[bytes], heard: Mapping[bytes, frozenset[bytes]], reached_by: Mapping[bytes, set[bytes]]
) -> set[bytes]:
    """Return those of the chosen that can be removed one after another; the least useful are tried first."""
    left = set(chosen)
    for each in sorted(chosen, key=lambda relay: (len(heard[relay]), relay)):
        if all(by & left != {each} for by in reached_by.values()):
            left.discard(each)
    return chosen - left


_GATHER_US: Final = 200_000
"""Time after which records of others are looked at, together."""
_STATE_US: Final = 300_000
"""Time within which neighbours are informed of changed relays, unless an announcement does so sooner."""
_DIGEST_US: Final = 2_000_000
"""One in which only the digest changed goes so long after the last: where hosts move, it changes all the time, and
neighbours are seldom behind for long."""
_ALONE_US: Final = 1_000_000
"""Within this it goes even without an announcement, which may be seconds away: a host that a record did not reach finds
out only by another digest."""
_STATE_EVERY: Final = 4
"""Number of announcements after which one carries a link state, even if nothing changed."""
_AT_ONCE: Final = 3
"""Number of changes of its own record that a host sends at once."""
_GAP_US: Final = 700_000
"""But no sooner than this one after another: where links begin, they begin together."""
_DENY_US: Final = 400_000
"""Time after which a false claim is denied. If its author noticed at the same time, its record comes before that."""
_DENIED_MAX: Final = 32
"""Claims that a host denies; further ones it cannot."""


class Survey:
    """The links that one host reports and knows."""

    def __init__(self, context: HostContext, table: Table, rng: Random) -> None:
        self._node, self._prefix, self._links = context.node, context.prefix, context.links
        self._identity, self._outputs = context.identity, context.outputs
        self.table = table
        self.flood = Flood(context, table, rng)
        pace_s = context.settings.island_s_min
        self._pace = Budget(1 / pace_s, burst_s=_AT_ONCE * pace_s) if pace_s else None
        self._incarnation = 0
        """Number of this incarnation; 0: nothing may be sent yet."""
        self._relays: frozenset[bytes] = frozenset()
        self._announced = 0
        """Announcements since the last one with a link state."""
        self._told_us = -NEVER
        """Time of that one."""
        self._review_us = self._record_us = self._state_us = self._digest_us = self._forget_us = NEVER
        self._false_us: dict[bytes, int] = {}
        """Hosts that claim to be neighbours and are not, and since when."""
        self._reviewed = False
        """True after a review that `expire` has not reported yet."""

    def started(self, incarnation: int, now: int) -> None:
        """Say something of links, from now on."""
        self._incarnation = incarnation
        self.review(now)

    def met(self, link: Link, now: int) -> None:
        """Begin a contact."""
        self.flood.meet(link, now)
        if link.prefix in self.flood.sent_content[2]:
            self._state_us = min(self._state_us, self.flood.soon(now, _STATE_US))
        self._look_soon(now, JITTER_US)

    def parted(self, link: Link, now: int) -> None:
        """End a contact."""
        self.flood.part(link)
        self._look_soon(now, JITTER_US)

    def heard(self, link: Link, now: int) -> None:
        """Process the heard-list of a neighbour."""
        if link.peer in self.flood.peers:
            self._look_soon(now, JITTER_US)

    def companions(self, now: int, link: Link | None) -> Sequence[Frame]:
        """Return the link state for a newcomer; for all neighbours if it changed, and periodically."""
        if self._review_us != NEVER:
            self.review(now)
        self._set_state()
        if link is None:
            self._announced += 1
            news = self.flood.news
            due = self._announced >= _STATE_EVERY or news is News.LINKS or self._is_unheeded()
            if not (due or (news is News.DIGEST and now >= self._told_us + _DIGEST_US)):
                return ()
            self._announced, self._told_us, self._digest_us = 0, now, NEVER
            return (self.flood.state_to_broadcast(),)
        return (self.flood.state(),)

    def _is_unheeded(self) -> bool:
        """Return True if neither end says that a relay was chosen: it may have lost the link states with the choice."""
        own = self.table.get(self._node)
        return own is not None and not self._relays <= self.table.claimants | own.claimed

    def expire(self, now: int) -> bool:
        """Do what is due. Returns True if it was looked at what changed."""
        if min(self._review_us, self._record_us, self._forget_us) <= now:
            self.review(now)
        if self._state_us <= now:
            self._state_us = NEVER
            self._set_state()
            if self.flood.content[1:] != self.flood.sent_content[1:]:
                self._outputs.broadcast((self.flood.state_to_broadcast(),))
        if self._digest_us <= now:
            self._digest_us = NEVER
            if self.table.digest != self.flood.sent_content[0]:
                self._told_us = now
                self._outputs.broadcast((self.flood.state_to_broadcast(),))
        self.flood.expire(now)
        reviewed, self._reviewed = self._reviewed, False
        return reviewed

    @property
    def due_us(self) -> int:
        """Time at which `expire` has something to do."""
        if self._reviewed:
            return 0
        return min(
            self._review_us, self._record_us, self._state_us, self._digest_us, self._forget_us, self.flood.due_us
        )  # fmt: skip

    def _set_state(self) -> None:
        links = [link for link in self._links if link.broadcast and link.prefix and not link.usable]
        self.flood.set_state(self._relays, [link.prefix for link in links])

    def _look_soon(self, now: int, within_us: int) -> None:
        self._review_us = min(self._review_us, self.flood.soon(now, within_us))

    # --- what comes ----------------------------------------------------------------------------------------

    def receive_state(self, link: Link, frame: LinkState, now: int) -> None:
        """Take the link state of a neighbour; raises `RemoteError`."""
        if self.flood.receive_state(link, frame, now):
            self._look_soon(now, JITTER_US)

    def receive_record(self, link: Link, record: LinkRecord, now: int) -> Entry | None:
        """Take a record; returns it if it is new. Raises `RemoteError`."""
        entry = self.flood.receive_record(link, record, now)
        if entry is not None:
            soon = entry.node == self._node or entry.concerns
            self._look_soon(now, JITTER_US if soon else _GATHER_US)
        return entry

    # --- what follows --------------------------------------------------------------------------------------

    def review(self, now: int) -> None:
        """See to all that depends on neighbours and records: relays, and the own record."""
        self._review_us, self._reviewed = NEVER, True
        peers = self.flood.peers.values()
        heard = {peer.link.prefix: self.flood.neighbours_of(peer) for peer in peers if peer.digest is not None}
        self.table.meet({peer.link.node: heard.get(peer.link.prefix, frozenset()) for peer in peers}, now)
        if self.flood.lossless:
            self._relays = frozenset(heard)
        else:
            self._relays = choose(self._prefix, heard, self._relays)
            self._set_state()
            if packed_prefixes(self._relays) != self.flood.sent_content[1]:
                self._state_us = min(self._state_us, self.flood.soon(now, _STATE_US))
        self._record_us = NEVER
        if self._incarnation:
            self._renew_record(now)
        self._forget_us = self.table.expire(now)
        if self._digest_us == NEVER and not self.flood.lossless and self.table.digest != self.flood.sent_content[0]:
            soon_us = now + _ALONE_US // 2
            self._digest_us = max(self.flood.soon(soon_us, _ALONE_US // 2), self._told_us + _DIGEST_US)

    def _denied(self, false: Iterable[bytes], now: int) -> frozenset[bytes]:
        """Return the hosts whose claims have to be denied: those in reach had time to withdraw them."""
        self._false_us = {prefix: self._false_us.get(prefix, now) for prefix in sorted(false)[:_DENIED_MAX]}
        wait_us = 0 if self.flood.lossless else _DENY_US
        due = {prefix: since_us + wait_us for prefix, since_us in self._false_us.items()}
        self._record_us = min([due_us for due_us in due.values() if due_us > now], default=NEVER)
        return frozenset([prefix for prefix, due_us in due.items() if due_us <= now])

    def _renew_record(self, now: int) -> None:
        """Publish a new record of this host's links if they changed, as soon as the minimum interval allows."""
        peers = self.flood.peers.values()
        linked = {peer.link.prefix for peer in peers}
        claiming = self.table.claimants
        denied = self._denied(claiming - linked, now)
        own = self.table.get(self._node)
        claimed = frozenset() if own is None else own.claimed
        # An edge that the other end claims counts already.
        needed = {peer.link.prefix for peer in peers if peer.chose} - (claiming - claimed)
        chosen_by = needed | (claimed & self._relays)
        if own is not None:
            # Links that are true and of no use, and links that no host claims any more, leave with the next necessary
            # record.
            same = needed <= claimed <= linked and denied <= own.denied and own.denied.isdisjoint(linked)
            if same and self.flood.outrun < (own.incarnation, own.sequence):
                return
            if self._pace is not None and (now < own.since_us + _GAP_US or not self._pace.try_spend(1, now)):
                self._record_us = max(now + 1, own.since_us + _GAP_US, self._pace.above_us(1 / _AT_ONCE, now))
                return
        latest = max(self.flood.outrun, (0, 0) if own is None else (own.incarnation, own.sequence))
        incarnation = max(self._incarnation, latest[0])
        sequence = latest[1] + 1 if latest[0] == incarnation else 0
        record = LinkRecord(
            signed.author(self._identity), incarnation, sequence, packed_prefixes(chosen_by), packed_prefixes(denied)
        )
        self.flood.publish(Entry.of(self._node, signed.sign(self._identity, record), now))


class IslandOverview(NamedTuple):
    """The island of one host at one moment."""

    hosts: int
    """Hosts that can be reached."""
    records: int
    """Hosts whose links are known, this one included."""
    routes: int
    """Hosts that messages are exchanged with over relays."""
    relayed_bytes: int
    """Bytes that were passed on for others."""
    withheld: int
    """Messages that are sent straight to their recipients, and to no other node."""


_SURE_US: Final = 1_000_000
"""Time after which a change of a host's reachability is reported. A driver's word counts at once."""


class Island(Layer):
    """The part of the network that one host can reach."""

    def __init__(self, context: HostContext, strategy: Strategy[Any], acked: Acked, rng: Random) -> None:
        self._acked, self._holdings = acked, context.holdings
        self._node, self._outputs = context.node, context.outputs
        self.table = Table(context.node)
        self.survey = Survey(context, self.table, rng)
        self._graph: Graph = self.table
        """The table, or the driver's graph instead."""
        self._hops_max = context.settings.island_hops_max
        self.routes = Routes(context.node, self.table, self._hops_max)
        self.relaying = Relaying(context, self.routes)
        self.ways = Ways(context, strategy, self.routes, self.relaying)
        self._reach: tuple[int, Mapping[NodeId, int]] = -1, {}
        """Version of the driver's links, and the hosts in reach by them."""
        self._in_reach = context.links.in_reach
        """Hosts that were reported to be in reach."""
        self._unsure: dict[NodeId, int] = {}
        """Hosts for which the opposite is true now, and since when."""
        self._sure_us = NEVER
        """Time at which the first of these is certain."""

    @property
    def handlers(self) -> Mapping[type, Handler]:
        """Handlers of frames about links, and of relayed ones."""
        return {LinkState: self._receive_state, LinkRecord: self._receive_record, **self.relaying.handlers}

    def reach(self) -> Mapping[NodeId, int]:
        """Return the reachable hosts, with the number of hops to each."""
        if not self._has_graph:
            return self._within(self.table.distances(self._node))
        version, found = self._reach
        if version != self._graph.version:
            found = self._within(distances(self._graph, self._node))
            self._reach = self._graph.version, found
        return found

    def _within(self, found: Mapping[NodeId, int]) -> Mapping[NodeId, int]:
        return {node: hops for node, hops in found.items() if 0 < hops <= self._hops_max}

    def paths(self) -> dict[NodeId, tuple[NodeId, ...]]:
        """Return the path to each host that has one: the relays between, then that host."""
        now = self._holdings.now_us
        return {node: path for node in self.reach() if (path := self.routes.path(node, now)) is not None}

    def set_links(self, graph: Graph, now: int) -> None:
        """Use the links between hosts that a driver knows, from now on or again after a change."""
        if graph is not self._graph:
            self._graph, self._reach = graph, (-1, {})
            self.routes.set_graph(graph)
        self._changed(now)

    @property
    def _has_graph(self) -> bool:
        """True if the driver provides the links: then hosts do not exchange them."""
        return self._graph is not self.table

    # --- links ---------------------------------------------------------------------------------------------

    def started(self, incarnation: int, now: int) -> None:
        """Exchange records of links from now on."""
        self.survey.started(incarnation, now)
        self._look_ahead()

    def met(self, link: Link, now: int) -> None:
        """Begin a contact: what could not go over the link before may go now."""
        self.routes.use(self._node, link.node)
        if not self._has_graph:
            self.survey.met(link, now)
            self._look_ahead()

    def parted(self, link: Link, now: int) -> None:
        """End a contact."""
        self.ways.parted(link)
        if not self._has_graph:
            self.survey.parted(link, now)
            self._look_ahead()

    def heard(self, link: Link, now: int) -> None:
        """Handle a neighbour's new list of nodes that it hears."""
        if not self._has_graph:
            self.survey.heard(link, now)
            self._look_ahead()

    def companions(self, now: int, link: Link | None) -> Sequence[Frame]:
        """Return link states to send beside announcements."""
        found = () if self._has_graph else self.survey.companions(now, link)
        self._look_ahead()
        return found

    def _receive_state(self, link: Link, frame: LinkState, now: int) -> bool:
        due_us = self.due_us
        self.survey.receive_state(link, frame, now)
        self._look_ahead()
        return self.due_us < due_us

    def _receive_record(self, link: Link, record: LinkRecord, now: int) -> bool:
        due_us = self.due_us
        entry = self.survey.receive_record(link, record, now)
        if entry is not None and entry.restarted:
            self.ways.restarted(entry.node, now)
        self._look_ahead()
        return entry is not None or self.due_us < due_us

    def _changed(self, now: int) -> None:
        """Compare the island with its previous state."""
        self.routes.changed()
        contrary = self.reach().keys() ^ self._in_reach
        self._unsure = {node: self._unsure.get(node, now) for node in sorted(contrary)}
        self._report_reach(now)
        self.ways.changed(now)

    def _report_reach(self, now: int) -> None:
        """Report hosts that are in reach, or not any more, once that is certain."""
        since_us = now if self._has_graph else now - _SURE_US
        sure = [node for node, unsure_us in self._unsure.items() if unsure_us <= since_us]
        reach = self.reach() if sure else {}
        for node in sure:
            del self._unsure[node]
            hops = reach.get(node)
            if (hops is None) is (node not in self._in_reach):
                continue  # A record that came since then made it untrue again; `_changed` has yet to see it.
            if hops is None:
                self._in_reach.discard(node)
                self._outputs.emit(Unreachable(node))
                self.ways.unreachable(node, now)
            else:
                self._in_reach.add(node)
                self._outputs.emit(Reachable(node, hops))
                self.ways.reachable(node)
        self._sure_us = min(self._unsure.values(), default=NEVER) + _SURE_US

    # --- messages ------------------------------------------------------------------------------------------

    def overview(self) -> IslandOverview:
        """Return an overview."""
        relaying = self.relaying
        return IslandOverview(
            len(self.reach()), len(self.table), len(relaying), relaying.relayed_bytes, self.ways.withheld
        )

    def published(self, copies: Sequence[Copy]) -> None:
        """Choose the way of own messages."""
        self.ways.published(copies)

    def receive(self, copies: Sequence[Copy]) -> Sequence[Copy]:
        """Examine messages that arrived for this host and others."""
        self.ways.received(copies)
        return copies

    def left(self, copies: Sequence[Copy], reason: Reason | None) -> None:
        """Drop copies that left."""
        if reason is not None:
            self.ways.left(copies)
            self._look_ahead()

    def expire(self, now: int) -> None:
        """Do what is due."""
        if not self._has_graph and self.survey.due_us <= now and self.survey.expire(now):
            self._changed(now)
        if self._sure_us <= now:
            self._report_reach(now)
        if self.ways.due_us <= now:
            self.ways.expire(now)
        if self.relaying.due_us <= now:
            self.relaying.expire(now)
        self._look_ahead()

    def finish(self, now: int) -> Sequence[Draft]:
        """Send messages that go straight to recipients."""
        self.ways.finish(now)
        if self._holdings.reminders:
            self._acked.repeat(self._holdings.pop_reminders(), now)
        self._look_ahead()
        return ()

    def follow_up(self, now: int) -> Sequence[Draft]:
        """Send messages that layers published in this step and that no batch has to be written for."""
        self.ways.push_momentary(now)
        self._look_ahead()
        return ()

    def _look_ahead(self) -> None:
        survey_us = self.survey.due_us if self._graph is self.table else NEVER
        self.due_us = min(survey_us, self._sure_us, self.ways.due_us, self.relaying.due_us)
