"""The flood: records of links pass from host to host, once each, and missed ones are repaired."""

# The problem. Every host of an island should know every link within a second, without more bytes
# than OLSR sends, over links that lose a tenth of all datagrams. Plain flooding sends each record
# once per host: 100 copies among 100 hosts. Periodic repetition, which OLSR uses against loss,
# costs the same when nothing changes.
#
# The way chosen. As in OLSR, each host chooses relays among its neighbours (`choose`), and a record
# is passed on only by hosts that the sender chose. It is sent once. Loss is repaired instead of
# anticipated: neighbours send each other a digest of all they know, and where two differ for longer
# than a record is on its way, they compare. In still networks nothing but the digest travels: 1.4
# bytes a second, where OLSR sends 48 (docs/benchmarks.md).
#
#     digest differs    ask for "whatever I lack": the other side computes it (`Table.lacking`)
#     still differs     one side lists what it has (heads); the other sends and requests the rest
#
# What must hold.
# 1. A record is passed on at most once by each host, at a random moment within 50 ms, together with
#    others that wait. When each left by itself, moving hosts sent 10,717 datagrams instead of
#    6,146.
# 2. A host that has the record from two sides need not pass it on to neighbours that those sides
#    reach.
# 3. The signature is checked last, and only a signed record counts against its author's pace:
#    otherwise a stranger could silence a host by sending forgeries in its name.
# 4. A neighbour whose digest never agrees, by fault or on purpose, is compared ever less often, and
#    lists are sent within 20 heads a second for all neighbours together.

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Final

from carrypost.errors import LimitError, RemoteError
from carrypost.gossip.transfers import signed
from carrypost.gossip.transfers.accounts import LOOKS, RECORDS_PER_S, SIGNATURE, Budget
from carrypost.gossip.transfers.link import Link
from carrypost.gossip.wire.frames import FINGERPRINT_BYTES, HEAD_BYTES, LinkRecord, LinkState, cut
from carrypost.island.links import WHATEVER, Entry, Table, packed_prefixes, prefixes
from carrypost.model.ids import PREFIX_BYTES, NodeId, node_prefix
from carrypost.model.times import NEVER

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from random import Random

    from carrypost.gossip.transfers.link import HostContext

JITTER_US: Final = 50_000
"""Longest delay before a record is passed on."""
_STATE_REPEATS: Final = 1
"""Number of further announcements that repeat a changed link state: a lost one would be missed for long."""
_PATIENCE_US: Final = 300_000
"""Time for which digests may differ while a record is on its way. The host with the larger id waits twice as long."""
_BEHIND_US: Final = 3_000_000
"""Age up to which changes that a neighbour's digest lacks mean that it is only behind, and will ask for them."""
_REPAIR_US: Final = 2_000_000
"""Time after a comparison in which a neighbour's records may be new to all hosts behind this one."""
_DOUBLINGS: Final = 5
"""Number of times that the interval doubles, from 1 s, after comparisons that led to nothing."""
_ASK_US: Final = 500_000
"""Delay before lists are compared, after a neighbour was asked for everything that is lacking here."""
_STATE: Final = 4
"""Work for a link state that is not like the last one (`gossip.transfers.accounts`)."""
_SEARCH: Final = 200
"""Work for computing what a neighbour lacks by its digest."""
_SECOND_US: Final = 1_000_000
_HEADS_PER_S: Final = 20.0
"""Number of heads that are sent in a second, to all neighbours."""
_HEADS_BURST_S: Final = 60.0
_PACE_US: Final = 100_000
"""Time for neighbours to check signatures, after which waiting records are considered again."""
_FRAME_BYTES: Final = 64
"""Overhead of a datagram and a frame around heads, beside relays, in bytes."""


class News(Enum):
    """Kind of news that a link state has for neighbours."""

    NONE = 0
    DIGEST = 1
    """Another digest."""
    LINKS = 2
    """Other relays, or other hosts that do not hear this one."""


@dataclass(eq=False, slots=True)
class Peer:
    """One neighbour, as the island knows it."""

    link: Link
    met_us: int
    """Time at which the contact began."""
    digest: int | None = None
    """The digest that it sent last; None: none yet, so it may have no island."""
    last_state: LinkState | None = None
    """The last link state, unless that contained lists or requests."""
    chose: bool = False
    """True if it made this host its relay."""
    one_way: frozenset[bytes] = frozenset()
    """Prefixes of nodes that it hears, and that do not hear it."""
    compare_us: int = NEVER
    """Time at which it is sent a list of what this host has, if the digests still differ."""
    tries: int = 0
    """Comparisons in a row that led to nothing."""
    quiet_us: int = 0
    """Nothing is compared before this time."""
    repaired_us: int = -NEVER
    """Time of the last comparison."""
    owed: dict[NodeId, None] = field(default_factory=dict)
    """Hosts whose records it has still to get."""


class Flood:
    """Passes records on, and repairs losses."""

    def __init__(self, context: HostContext, table: Table, rng: Random) -> None:
        self._node, self._prefix, self._outputs = context.node, context.prefix, context.outputs
        self._signs, self._table, self._rng = context.identity.signed, table, rng
        self._nodes_max = context.limits.island_nodes_max
        self.lossless = not context.settings.beacons
        """True if a driver asserts contacts: nothing is lost, no host waits, and every neighbour is a relay."""
        self.peers: dict[str, Peer] = {}
        """Neighbours with a contact, by link address."""
        self._relays = self._one_way = b""
        """The content of link states, packed."""
        self.sent_content: tuple[int, bytes, bytes] = 0, b"", b""
        """The content that was last broadcast."""
        self._repeats = 0
        """Number of announcements that will repeat the same relays and links."""
        self._digest_repeats = 0
        self.outrun = 0, 0
        """Incarnation and sequence of the latest record by this host that others have, if that is an earlier one."""
        self._pace = Budget(RECORDS_PER_S)
        self._heads = Budget(_HEADS_PER_S, burst_s=_HEADS_BURST_S)
        self._passing: dict[NodeId, None] = {}
        """Hosts whose records are to be passed on."""
        self._pass_us = NEVER
        """Time at which that happens, to all of them together."""
        self.due_us = NEVER
        """Time at which `expire` has something to do."""

    def _look_ahead(self) -> None:
        times = [self._pass_us, *[each.compare_us for each in self.peers.values()]]
        if any(each.owed for each in self.peers.values()):
            times.append(self._pace.above_us(0.5, 0) if self._signs else 0)
        self.due_us = min(times)

    def soon(self, now: int, within_us: int) -> int:
        """Return a random moment within `within_us`; now if no datagram is ever lost."""
        return now if self.lossless else now + round(within_us * self._rng.random())

    def meet(self, link: Link, now: int) -> None:
        """Begin a contact."""
        self.peers[link.peer] = Peer(link, now)

    def part(self, link: Link) -> None:
        """End a contact."""
        self.peers.pop(link.peer, None)
        for entry in self._table:  # A host may come from ever new addresses, and send the same records again.
            entry.senders.discard(link.peer)
        self._look_ahead()

    def neighbours_of(self, peer: Peer) -> frozenset[bytes]:
        """Return the prefixes of a neighbour's neighbours; none if a driver asserts contacts."""
        return frozenset(peer.link.heard) - peer.one_way

    def set_state(self, relays: Iterable[bytes], one_way: Iterable[bytes]) -> None:
        """Set the content of link states: relays, and the nodes that are heard and do not hear this host."""
        self._relays, self._one_way = packed_prefixes(relays), packed_prefixes(one_way)

    @property
    def content(self) -> tuple[int, bytes, bytes]:
        """The content of link states: digest, relays, and nodes that do not hear this host."""
        return self._table.digest, self._relays, self._one_way

    def state(self, *, heads: bytes = b"", wanted: bytes = b"") -> LinkState:
        """Return a link state for neighbours."""
        digest, relays, one_way = self.content
        return LinkState(digest.to_bytes(FINGERPRINT_BYTES, "big"), relays, heads, wanted, one_way)

    @property
    def news(self) -> News:
        """Kind of news for neighbours, new or to be repeated."""
        if self._repeats or self.content[1:] != self.sent_content[1:]:
            return News.LINKS
        return News.DIGEST if self._digest_repeats or self.content != self.sent_content else News.NONE

    def state_to_broadcast(self) -> LinkState:
        """Return a link state that is broadcast now."""
        changed = [new != old for new, old in zip(self.content, self.sent_content, strict=True)]
        self.sent_content = self.content
        self._repeats = _STATE_REPEATS if any(changed[1:]) else max(0, self._repeats - 1)
        self._digest_repeats = _STATE_REPEATS if changed[0] else max(0, self._digest_repeats - 1)
        return self.state()

    def broadcast(self, records: Sequence[LinkRecord]) -> None:
        """Broadcast records. New relays have to know that they are: they pass the records on."""
        new = not self.lossless and not prefixes(self._relays) <= prefixes(self.sent_content[1])
        self._outputs.broadcast((self.state_to_broadcast(), *records) if new else records)

    # --- records -------------------------------------------------------------------------------------------

    def receive_record(self, link: Link, record: LinkRecord, now: int) -> Entry | None:
        """Process a record and return it if it is new; raises `RemoteError`.

        Cheap checks come first, the signature last.
        """
        peer = self.peers.get(link.peer)
        if peer is None:
            return None
        node = signed.author_of(record, signed=self._signs)
        known = self._table.get(node)
        going = None
        if known is None:
            going = self._find_room(node, link)
        elif not known.is_before(record):
            if record != known.record and node != self._node:
                if now < peer.repaired_us + _REPAIR_US:
                    self._owe(peer, (node,), now)  # Stamps misled it, or this host.
                    self._look_ahead()
                raise RemoteError("record-old")
            known.senders.add(link.peer)
            self._plan(known, peer, now)
            return None
        elif not (self.lossless or known.pace.try_spend(0, now)):
            raise LimitError("rate")
        if self._signs:
            signed.check(record, link)
            link.work.credit(SIGNATURE)
        if going is not None:
            self._table.remove(going)
        entry = Entry.of(node, record, now, link.peer, None if known is None else known.pace)
        entry.pace.spend(1, now)  # Only once its author is verified: otherwise one node could silence another.
        peer.tries = 0
        if node == self._node:  # An earlier incarnation said it, and its store was lost: this one has to be heard, too.
            self.outrun = record.incarnation, record.sequence
            return entry
        self._passing.pop(node, None)
        entry.restarted = known is not None and known.incarnation != entry.incarnation
        entry.concerns = self._prefix in entry.claimed or (known is not None and self._prefix in known.claimed)
        self._table.enter(entry)
        self._plan(entry, peer, now)
        return entry

    def _find_room(self, node: NodeId, link: Link) -> NodeId | None:
        """Return the host that has to make room for a new author, if one has to; raises `RemoteError` if none can.

        It is one that cannot be reached or, for a neighbour, the one farthest away.
        """
        # Paths name hosts by four bytes. Two hosts with the same four would make all paths over
        # them ambiguous, so the second one stays out.
        if self._table.holder(node_prefix(node)) not in (None, node):
            raise RemoteError("prefix")
        if len(self._table) < self._nodes_max:
            return None
        distances = self._table.distances(self._node)
        going = max(self._table, key=lambda each: (distances.get(each.node, self._nodes_max), each.since_us))
        if going.node in distances and (node != link.node or distances[going.node] <= 1):
            raise LimitError("island")
        return going.node

    def _plan(self, entry: Entry, peer: Peer, now: int) -> None:
        """Pass a record on soon, if that is up to this host."""
        due = peer.chose or self.lossless or now < peer.repaired_us + _REPAIR_US
        if due and not entry.passed and entry.node not in self._passing:
            if not self._passing:
                self._pass_us = self.soon(now, JITTER_US)
                self.due_us = min(self.due_us, self._pass_us)
            self._passing[entry.node] = None

    def _is_covered(self, entry: Entry) -> bool:
        """Return True if every neighbour that has an island got a record from those that sent it to this host."""
        left = {each.link.prefix for each in self.peers.values() if each.digest is not None} - {entry.prefix}
        for address in entry.senders:
            if (peer := self.peers.get(address)) is not None:
                left -= self.neighbours_of(peer) | {peer.link.prefix}
        return not left

    def _pass(self, now: int) -> None:
        """Pass on records that neighbours may lack, no faster than they check signatures."""
        self._pass_us, leaving = NEVER, list[LinkRecord]()
        for node in list(self._passing):
            entry = self._table.get(node)
            if entry is not None and not self._is_covered(entry):
                if not self._may_send(now):
                    self._pass_us = now + _PACE_US
                    break
                entry.passed = True
                leaving.append(entry.record)
            del self._passing[node]
        if leaving:
            self.broadcast(leaving)

    def publish(self, entry: Entry) -> None:
        """Broadcast this host's own record."""
        self._table.enter(entry)
        if self.peers:
            self.broadcast((entry.record,))

    # --- link states ---------------------------------------------------------------------------------------

    def receive_state(self, link: Link, frame: LinkState, now: int) -> bool:
        """Process a neighbour's link state; raises `RemoteError`. Returns True if its relays or links changed."""
        peer = self.peers.get(link.peer)
        if peer is None:
            return False
        if frame == peer.last_state and peer.digest == self._table.digest and peer.compare_us == NEVER:
            return False  # As most of them.
        lists = bool(frame.heads or frame.wanted)
        link.work.did(_STATE + (len(frame.relays) + len(frame.heads) + len(frame.wanted)) // PREFIX_BYTES)
        if lists and not link.answers.try_spend(1, now):
            raise LimitError("rate")
        peer.last_state = None if lists else frame
        before = peer.digest is None, peer.chose, peer.one_way
        peer.digest = int.from_bytes(frame.digest, "big")
        peer.chose = self.lossless or self._prefix in cut(frame.relays, PREFIX_BYTES)
        peer.one_way = prefixes(frame.one_way)
        if frame.heads:
            self._answer(peer, frame.heads, now)
        wanted = cut(frame.wanted, PREFIX_BYTES)
        found = [entry.node for each in wanted if (entry := self._table.at(each)) is not None]
        if WHATEVER in wanted:
            link.work.did(_SEARCH)
            found += sorted(self._table.lacking(peer.digest))
        self._owe(peer, found, now)
        peer.compare_us = NEVER
        if peer.digest == self._table.digest:
            peer.tries = 0
        elif not lists:
            self._compare_later(peer, now, first=before[0])
        self._look_ahead()
        return (False, peer.chose, peer.one_way) != before

    def _compare_later(self, peer: Peer, now: int, *, first: bool) -> None:
        """Plan a comparison with a neighbour: at the beginning of a contact, before anything else can have changed."""
        larger = self._node > peer.link.node
        if self.lossless:
            peer.compare_us = NEVER if larger else now
        else:
            wait_us = (JITTER_US if first else _PATIENCE_US) + _PATIENCE_US * larger
            peer.compare_us = max(now + wait_us, peer.quiet_us)

    def _compare(self, peer: Peer, now: int) -> None:
        """Send a neighbour a list of what this host has, unless they agree by now, or it is only behind.

        In a contact that has lasted a while only the digest is sent at first: usually it shows which records were lost.
        """
        peer.compare_us = NEVER
        if peer.digest is None or self._table.is_like(peer.digest, now - _BEHIND_US):
            return
        if not (self.lossless or peer.tries or now < peer.met_us + _BEHIND_US):
            peer.tries, peer.repaired_us = 1, now
            peer.quiet_us = peer.compare_us = now + _ASK_US
            peer.link.send((self.state(wanted=WHATEVER),))
            return
        room = (peer.link.datagram_bytes_max - _FRAME_BYTES - len(self._relays) - len(self._one_way)) // HEAD_BYTES
        lists = self._table.heads(max(2, room))
        if not self.lossless:
            if not self._heads.try_spend(len(self._table), now):
                peer.compare_us = now + _SECOND_US
                return
            peer.quiet_us = now + (_SECOND_US << peer.tries)
            peer.tries = min(peer.tries + 1, _DOUBLINGS)
            peer.compare_us = peer.quiet_us if peer.tries < _DOUBLINGS else NEVER
        peer.repaired_us = now
        for heads in lists:
            peer.link.send((self.state(heads=heads),))

    def _answer(self, peer: Peer, heads: bytes, now: int) -> None:
        """Send a neighbour what is missing in its list, and request what is missing here."""
        wanted, lacking = self._table.compare(heads)
        peer.link.work.did(len(self._table) // LOOKS)
        peer.repaired_us = now
        if wanted or not lacking:
            peer.link.send((self.state(wanted=b"".join(wanted)),))
        # What came a moment ago is on its way to the neighbour, too, unless they have just met.
        settled_us = now if self.lossless or now < peer.met_us + _SECOND_US else now - _PATIENCE_US
        self._owe(peer, [entry.node for entry in lacking if entry.since_us <= settled_us], now)

    def _owe(self, peer: Peer, nodes: Iterable[NodeId], now: int) -> None:
        peer.owed.update(dict.fromkeys(nodes))
        self._serve(peer, now)

    def _serve(self, peer: Peer, now: int) -> None:
        """Send a neighbour records, no faster than it checks signatures."""
        found: list[LinkRecord] = []
        while peer.owed and self._may_send(now):
            node = next(iter(peer.owed))
            del peer.owed[node]
            if (entry := self._table.get(node)) is not None:
                found.append(entry.record)
        if found:
            peer.link.send(found)

    def _may_send(self, now: int) -> bool:
        return not self._signs or self._pace.try_spend(1, now)

    # --- time ----------------------------------------------------------------------------------------------

    def expire(self, now: int) -> None:
        """Pass on, compare and send what is due."""
        if self._pass_us <= now:
            self._pass(now)
        for peer in self.peers.values():
            if peer.compare_us <= now:
                self._compare(peer, now)
            self._serve(peer, now)
        self._look_ahead()
