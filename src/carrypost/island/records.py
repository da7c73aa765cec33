"""The links of hosts, as known to one host: a table of records, one per author, and the hosts reached by them.

Records make a graph (`island.edges`). The heard-lists of neighbours count as their claims, so everything two hops away
is known at once. Records do not age. Those of hosts that cannot be reached are left out of the digest and of what is
exchanged, and are forgotten after a minute; so hosts that are gone vanish as soon as their neighbours deny them. Hosts
with the same digest have the same records of all that they reach.
"""

# Why records do not age, as OLSR's do. Ageing needs repetition: every host would have to repeat its
# record before it expires, and in a still network that would be all traffic. Instead an edge counts
# only while neither end denies it. A host that leaves is denied by its neighbours within three
# silent periods, and so is unreachable, whatever its own last record claims.
#
# Why a digest by XOR. It can be updated by one operation per change, and the XOR of two digests is
# the XOR of the changes that one side lacks. With the latest changes at hand, which of them the
# other lacks is a system of linear equations over GF(2) (`lacking`): a lost record is found by its
# digest alone, without a list. Beyond 64 changes any 64-bit number has a solution, so no more are
# remembered.

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from carrypost.gossip.transfers.budget import Budget
from carrypost.gossip.transfers.signed import fingerprint
from carrypost.gossip.wire.cloud_frames import FINGERPRINT_BYTES, HEAD_BYTES, LinkRecord, cut
from carrypost.island.edges import Edges
from carrypost.island.routes import names
from carrypost.model.ids import PREFIX_BYTES, NodeId, node_prefix
from carrypost.model.times import NEVER

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet

_SEQUENCE_BITS, _STAMP_MASK = 20, 2**32 - 1
_FIRST, _LAST = bytes(PREFIX_BYTES), bytes([255] * PREFIX_BYTES)
WHATEVER = _FIRST
"""Among the prefixes of wanted records: everything that the sender lacks, by its digest."""
_ONE = (1).to_bytes(FINGERPRINT_BYTES, "little")
_FINGERPRINT_MASK = 2 ** (8 * FINGERPRINT_BYTES) - 1
_SUMS_MAX = 48
"""Number of changes of the digest that are remembered. More than 64 could add up to any digest."""
_AUTHOR_PER_S, _AUTHOR_BURST_S = 1.0, 10.0
"""Pace at which records of one author are accepted: by default a host sends three changes at once, then one in 5 s."""
FORGET_US = 60_000_000
"""Time for which a record of a host that cannot be reached is kept."""


@dataclass(eq=False, slots=True)
class Entry:
    """The links of one host, as it reported them."""

    node: NodeId
    incarnation: int
    """The incarnation of its author."""
    sequence: int
    fingerprint: int
    """64 bits that identify its contents."""
    claimed: frozenset[bytes]
    """Prefixes of the neighbours that it claims."""
    denied: frozenset[bytes]
    """Prefixes of hosts that claim to be its neighbours, and are not."""
    record: LinkRecord
    """The record in its wire form."""
    since_us: int
    """Time at which it arrived."""
    senders: set[str]
    """Link addresses of the neighbours that sent it."""
    prefix: bytes
    """Four bytes that identify its author."""
    pace: Budget
    """Pace of its author's records: beyond it, further ones are refused for a while."""
    restarted: bool = False
    """True if its author was restarted since its previous record."""
    concerns: bool = False
    """True if it, or its author's previous record, is about a link with this host."""
    passed: bool = False
    """True if this host has passed it on, or need not."""

    @classmethod
    def of(cls, node: NodeId, record: LinkRecord, now: int, sender: str = "", pace: Budget | None = None) -> Entry:
        """Return the entry of a record; `pace`: that of its author, if anything of it was known."""
        claimed, denied = prefixes(record.chosen_by), prefixes(record.denied)
        return cls(
            node, record.incarnation, record.sequence, fingerprint(record), claimed, denied, record, now, {sender},
            node_prefix(node), pace or Budget(_AUTHOR_PER_S, burst_s=_AUTHOR_BURST_S), passed=not sender,
        )  # fmt: skip

    @property
    def stamp(self) -> int:
        """32 bits that stand for the record in lists: 12 of the incarnation, 20 of the sequence.

        They are a hint. Numbers that are far apart, as any author may sign them, are in the wrong order by their
        stamps, and only `is_before` decides.
        """
        return (self.incarnation << _SEQUENCE_BITS) + self.sequence & _STAMP_MASK or 1

    def is_before(self, record: LinkRecord) -> bool:
        """Return True if another record of the same author replaces this one."""
        this, other = (self.incarnation, self.sequence), (record.incarnation, record.sequence)
        if this != other:
            return this < other
        return record != self.record and self.fingerprint < fingerprint(record)


def prefixes(data: bytes) -> frozenset[bytes]:
    """Return the prefixes that are packed in these bytes."""
    return frozenset(cut(data, PREFIX_BYTES))


def packed_prefixes(found: Iterable[bytes]) -> bytes:
    """Return prefixes packed into bytes."""
    return b"".join(sorted(found))


def is_newer(stamp: int, other: int) -> bool:
    """Return True if a stamp was probably assigned after another one; stamps wrap around after 32 bits."""
    return 0 < (stamp - other & _STAMP_MASK) < 1 << 31


class Table:
    """The records that one host knows, its own included, and the hosts that it reaches by them."""

    def __init__(self, own: NodeId) -> None:
        self._own, self._prefix = own, node_prefix(own)
        self._entries: dict[NodeId, Entry] = {}
        self._by_prefix: dict[bytes, NodeId] = {self._prefix: own}
        """Nodes with a record, neighbours, and this host itself, by prefix."""
        self._heard: dict[NodeId, frozenset[bytes]] = {}
        """By neighbour: prefixes of the nodes that it claims as neighbours."""
        self._edges = Edges(self._prefix)
        self._distances: dict[NodeId, int] = {}
        self._digest = 0
        self._counted: dict[NodeId, int] = {}
        """Fingerprints of the records in the digest."""
        self._touched: set[NodeId] = set()
        """Nodes whose records changed since the digest was made."""
        self._changes: dict[int, tuple[int, NodeId]] = {}
        """Recent changes of the digest: the time, and the node whose record changed; the latest at the end."""
        self._lost_us: dict[NodeId, int] = {}
        """Nodes with a record that could not be reached at the last check, and since when."""
        self._now_us = 0
        self._made = -1
        """The version of the edges for which distances were computed."""

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries.values())

    def get(self, node: NodeId) -> Entry | None:
        """Return the record of a node."""
        return self._entries.get(node)

    def at(self, prefix: bytes) -> Entry | None:
        """Return the record of the node that has this prefix."""
        node = self._by_prefix.get(prefix)
        return None if node is None else self._entries.get(node)

    def holder(self, prefix: bytes) -> NodeId | None:
        """Return the node with a prefix."""
        return self._by_prefix.get(prefix)

    @property
    def version(self) -> int:
        """Number that grows with each change of a valid edge."""
        return self._edges.version

    @property
    def claimants(self) -> AbstractSet[bytes]:
        """Prefixes of the nodes whose records claim a link with this host."""
        return self._edges.claimants

    # --- what changes ----------------------------------------------------------------------------------------

    def enter(self, entry: Entry) -> None:
        """Replace the record of an author."""
        self._now_us = entry.since_us
        self._entries[entry.node] = entry
        self._touched.add(entry.node)
        self._lost_us.pop(entry.node, None)
        self._name(entry.node)
        self._edges.set_claims(entry.prefix, entry.claimed, entry.denied)

    def remove(self, node: NodeId) -> None:
        """Forget a record."""
        entry = self._entries.pop(node)
        self._touched.add(node)
        self._edges.set_claims(entry.prefix, frozenset(), frozenset())
        self._unname(node)

    def meet(self, heard: Mapping[NodeId, frozenset[bytes]], now: int) -> None:
        """Set the neighbours of this host, and the neighbours that each claims."""
        self._now_us = now
        if heard == self._heard:
            return
        before, self._heard = self._heard, dict(heard)
        for node in heard:
            self._name(node)
        named = {node_prefix(node): node for node in heard if self.holder(node_prefix(node)) == node}
        self._edges.set_heard({prefix: heard[node] for prefix, node in named.items()})
        for node in before.keys() - heard.keys():
            self._unname(node)

    def _name(self, node: NodeId) -> None:
        """Register a node by its prefix, unless another one has the same."""
        prefix = node_prefix(node)
        if self._by_prefix.setdefault(prefix, node) == node:
            self._edges.know(prefix)

    def _unname(self, node: NodeId) -> None:
        """Unregister a node that is no neighbour and has no record."""
        if node in self._heard or node in self._entries or node == self._own:
            return
        prefix = node_prefix(node)
        if self._by_prefix.get(prefix) == node:
            del self._by_prefix[prefix]
            self._edges.forget(prefix)
            if self._distances.pop(node, None) is not None:
                self._touched.add(node)

    def expire(self, now: int) -> int:
        """Forget records that could not be reached for long; return the time of the next check."""
        lost = self._entries.keys() - self.distances(self._own).keys()
        self._lost_us = {node: self._lost_us.get(node, now) for node in lost}
        for node in sorted(lost):
            if self._lost_us[node] + FORGET_US <= now:
                del self._lost_us[node]
                self.remove(node)
        return min([since_us + FORGET_US for since_us in self._lost_us.values()], default=NEVER)

    # --- the graph -------------------------------------------------------------------------------------------

    def neighbours_of(self, node: NodeId) -> Collection[NodeId]:
        """Return the other ends of the valid edges of a node."""
        return [self._by_prefix[each] for each in sorted(self._edges.of(node_prefix(node)))]

    def names(self, origin: NodeId) -> Mapping[bytes, NodeId | None]:
        """Return all nodes connected with one, itself included, by their four bytes (`routes.names`)."""
        return names(self, origin)

    def distances(self, origin: NodeId) -> dict[NodeId, int]:
        """Return the number of hops to every node that can be reached from one, itself included."""
        if origin != self._own:
            return self._search(origin)
        self._make()
        return self._distances

    @property
    def digest(self) -> int:
        """The XOR over the fingerprints of all records of what can be reached."""
        self._make()
        return self._digest

    def is_like(self, digest: int, since_us: int) -> bool:
        """Return True if a host with this digest knows everything that this host knows, or will ask for the rest.

        Recent changes come to hosts in any order, and not all count the same hosts as reached: digests may differ by
        any of the changes since `since_us` and of the records that do not count here (a sum over GF(2)), and by one
        record that counts. A host that lacks something sees a digest that differs by what it does not know.
        """
        if digest == self.digest:
            return True
        sums = [change for change, (at_us, _) in self._changes.items() if at_us >= since_us]
        sums += [entry.fingerprint for entry in self if entry.node not in self._distances]
        difference, *records = _reduced(
            [digest ^ self.digest, *[entry.fingerprint for entry in self]], sums[:_SUMS_MAX]
        )
        return not any(difference) or difference in records

    def lacking(self, digest: int) -> set[NodeId]:
        """Return the nodes whose latest records a host with this digest lacks; none if that cannot be determined.

        The digests differ by the sum of the changes that it lacks, if those are among the latest, and if it has no
        record that is newer than here.
        """
        basis: list[tuple[int, int]] = []
        nodes = [node for _, node in self._changes.values()]
        for number, change in enumerate(reversed(self._changes)):
            rest, made_of = _summed(change, 1 << number, basis)
            if rest:
                basis.append((rest, made_of))
        rest, made_of = _summed(digest ^ self.digest, 0, basis)
        return set() if rest else {node for at, node in enumerate(reversed(nodes)) if made_of >> at & 1}

    def reached(self) -> list[Entry]:
        """Return the records of hosts that can be reached, this one included."""
        self._make()
        distances = self._distances
        return [entry for entry in self._entries.values() if entry.node in distances]

    def heads(self, room: int) -> list[bytes]:
        """Return packed prefixes and stamps of reachable hosts, in lists of at most `room`, without gaps.

        The lists together cover all possible prefixes.
        """
        marks = {_FIRST: 0, _LAST: 0} | {entry.prefix: entry.stamp for entry in self.reached()}
        heads = [prefix + stamp.to_bytes(4, "big") for prefix, stamp in sorted(marks.items())]
        return [b"".join(heads[at : at + room]) for at in range(0, len(heads) - 1, room - 1)]

    def compare(self, heads: bytes) -> tuple[list[bytes], list[Entry]]:
        """Return the prefixes of newer records in a list, and the records that it lacks."""
        self._make()
        listed = {each[:PREFIX_BYTES]: int.from_bytes(each[PREFIX_BYTES:], "big") for each in cut(heads, HEAD_BYTES)}
        wanted = [
            prefix for prefix, stamp in listed.items()
            if stamp and ((entry := self.at(prefix)) is None or is_newer(stamp, entry.stamp))
        ]  # fmt: skip
        first, last = heads[:PREFIX_BYTES], heads[-HEAD_BYTES:][:PREFIX_BYTES]
        lacking = [
            entry for entry in self
            if first <= entry.prefix <= last
            # What cannot be reached from here counts there: it should know why.
            and (is_newer(entry.stamp, stamp) if (stamp := listed.get(entry.prefix)) else entry.node in self._distances)
        ]  # fmt: skip
        return wanted, lacking

    def _make(self) -> None:
        """Bring distances and digest up to date."""
        touched, self._touched = self._touched, set()
        if self._made != self._edges.version:
            self._made = self._edges.version
            if not self._hold(self._edges.pop_changed()):
                before, self._distances = self._distances, self._search(self._own)
                touched |= before.keys() ^ self._distances.keys()
        for node in sorted(touched):
            change = self._counted.pop(node, 0)
            if node in self._distances and (entry := self._entries.get(node)) is not None:
                self._counted[node] = entry.fingerprint
                change ^= entry.fingerprint
            if change:
                self._change(change, node)

    def _change(self, by: int, node: NodeId) -> None:
        self._digest ^= by
        self._changes.pop(by, None)
        self._changes[by] = self._now_us, node
        if len(self._changes) > _SUMS_MAX:
            del self._changes[next(iter(self._changes))]

    def _hold(self, changed: Iterable[bytes]) -> bool:
        """Return True if distances are unchanged although edges of these hosts changed, as is usual.

        Each host must have a neighbour that is one hop nearer and none that is nearer still, and a host out of reach no
        neighbour in reach.
        """
        distances, nodes, edges = self._distances, self._by_prefix, self._edges
        far = len(distances)
        for each in changed:
            nearest = min([distances.get(nodes[end], far) for end in edges.of(each)], default=far)
            if each != self._prefix and nearest + 1 != distances.get(nodes[each], far + 1):
                return False
        return bool(distances)

    def _search(self, origin: NodeId) -> dict[NodeId, int]:
        found = {node_prefix(origin)}
        border, hops = found, 0
        distances = {origin: 0}
        while border := set().union(*[self._edges.of(each) for each in border]) - found:
            hops += 1
            distances |= {self._by_prefix[each]: hops for each in sorted(border)}
            found |= border
        return distances


def _reduced(values: Iterable[int], sums: Sequence[int]) -> Sequence[bytes]:
    """Return fingerprints such that those are equal that differ by the XOR of some sums; those that are one are zero.

    This is Gaussian elimination with all fingerprints side by side in one number, so that one multiplication subtracts
    a sum from all of them: fingerprint by fingerprint it took a tenth of the time of a hundred hosts that move.
    """
    packed = b"".join([each.to_bytes(FINGERPRINT_BYTES, "little") for each in (*sums, *values)])
    lanes = int.from_bytes(packed, "little")
    ones = int.from_bytes(_ONE * (len(packed) // FINGERPRINT_BYTES), "little")
    for number in range(len(sums)):
        if each := lanes >> 8 * FINGERPRINT_BYTES * number & _FINGERPRINT_MASK:
            lanes ^= (lanes >> each.bit_length() - 1 & ones) * each
    return cut(lanes.to_bytes(len(packed), "little"), FINGERPRINT_BYTES)[len(sums) :]


def _summed(value: int, made_of: int, basis: Iterable[tuple[int, int]]) -> tuple[int, int]:
    """Return the least that is left of a value by XOR with some of these, and the XOR of the marks of all it took.

    Each of them was reduced by those before.
    """
    for each, marks in basis:
        if value ^ each < value:
            value, made_of = value ^ each, made_of ^ marks
    return value, made_of
