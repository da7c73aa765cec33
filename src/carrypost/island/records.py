"""The links of hosts, as one host was told of them: a table of records, one per author, and the graph they make.

An edge counts while one end claims it and the other does not deny it. Own edges are the links in use, whatever others
say of them. What neighbours say they hear counts as claimed by them, so everything two hops away is known at once.

Nothing grows old. What cannot be reached is left out of the digest and of what is exchanged, and it is forgotten after
a minute; so hosts that are gone vanish as soon as their neighbours deny them. Hosts with the same digest have the same
records of all that they reach.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from carrypost.gossip.transfers.signed import fingerprint
from carrypost.gossip.wire.cloud_frames import HEAD_BYTES, LinkRecord, cut
from carrypost.model.ids import PREFIX_BYTES, NodeId, node_prefix
from carrypost.model.times import NEVER

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

_SEQUENCE_BITS, _STAMP_MASK = 20, 2**32 - 1
_FIRST, _LAST = bytes(PREFIX_BYTES), bytes([255] * PREFIX_BYTES)
_SUMS_MAX = 48
"""Changes of the digest that are remembered. Of more than 64 any digest could be made."""
FORGET_US = 60_000_000
"""A record of a host that cannot be reached is kept for so long."""


class Entry(msgspec.Struct, eq=False):
    """The links of one host, in its own words."""

    node: NodeId
    boot: int
    """The number of its life."""
    sequence: int
    fingerprint: int
    """64 bits that stand for all that it says."""
    claimed: frozenset[bytes]
    """Prefixes of the neighbours that it says it has."""
    denied: frozenset[bytes]
    """Prefixes of those that claim to be its neighbours, and are not."""
    record: LinkRecord
    """As it is passed on."""
    since_us: int
    """Time at which it came."""
    senders: set[str]
    """Link addresses of the neighbours that sent it."""
    rebooted: bool = False
    """True if its author was restarted after it told the record before."""
    concerns: bool = False
    """True if it says, or its author said before, something of a link with this host."""
    passed: bool = False
    """True if this host has passed it on, or need not."""
    lost_us: int = NEVER
    """Time at which it could not be reached any more."""

    @classmethod
    def of(cls, node: NodeId, record: LinkRecord, now: int, sender: str = "") -> Entry:
        """Return the entry of a record."""
        claimed, denied = prefixes(record.chosen_by), prefixes(record.denied)
        return cls(
            node, record.boot, record.sequence, fingerprint(record), claimed, denied, record, now, {sender},
            passed=not sender,
        )  # fmt: skip

    @property
    def prefix(self) -> bytes:
        """Four bytes that stand for its author."""
        return node_prefix(self.node)

    @property
    def stamp(self) -> int:
        """32 bits that tell older from newer: of the life 12, of the number in it 20."""
        return (self.boot << _SEQUENCE_BITS) + self.sequence & _STAMP_MASK or 1

    @property
    def rank(self) -> tuple[int, int, int]:
        """Place among the records of its author: the highest counts."""
        return self.boot, self.sequence, self.fingerprint


def prefixes(data: bytes) -> frozenset[bytes]:
    """Return the prefixes that are packed in these bytes."""
    return frozenset(cut(data, PREFIX_BYTES))


def packed_prefixes(found: Iterable[bytes]) -> bytes:
    """Return prefixes as bytes."""
    return b"".join(sorted(found))


def is_newer(stamp: int, other: int) -> bool:
    """Return True if a stamp was given after another one; they begin anew after 32 bits."""
    return 0 < (stamp - other & _STAMP_MASK) < 1 << 31


class Table:
    """The records that one host knows, its own included, and the graph that they make."""

    def __init__(self, own: NodeId) -> None:
        self._own, self._prefix = own, node_prefix(own)
        self._entries: dict[NodeId, Entry] = {}
        self._by_prefix: dict[bytes, NodeId] = {self._prefix: own}
        """Nodes with a record, neighbours, and this host itself."""
        self._heard: dict[NodeId, frozenset[bytes]] = {}
        """By neighbour: prefixes of the nodes that it says are its neighbours."""
        self.version = 0
        """Grows with each change of an edge that counts."""
        self._edges: dict[bytes, set[bytes]] = {}
        self._distances: dict[NodeId, int] = {}
        self._digest = 0
        self._counted: dict[NodeId, int] = {}
        """Fingerprints of the records in the digest."""
        self._changes: dict[int, int] = {}
        """By what the digest was changed lately, and when; the latest at the end."""
        self._now_us = 0
        self._made = -1
        """The version of which edges, distances and digest are kept."""

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
        """Return the node that is known by a prefix."""
        return self._by_prefix.get(prefix)

    def boot_of(self, node: NodeId) -> int | None:
        """Return the number of the life in which a node last told of its links."""
        entry = self._entries.get(node)
        return None if entry is None else entry.boot

    # --- what changes ----------------------------------------------------------------------------------------

    def enter(self, entry: Entry) -> None:
        """Keep a record, instead of the one that its author had."""
        self._now_us = entry.since_us
        self._entries[entry.node] = entry
        self._by_prefix[node_prefix(entry.node)] = entry.node
        self.version += 1

    def remove(self, node: NodeId) -> None:
        """Forget a record."""
        del self._entries[node]
        if node not in self._heard and node != self._own:
            del self._by_prefix[node_prefix(node)]
        self.version += 1

    def meet(self, heard: Mapping[NodeId, frozenset[bytes]], now: int) -> None:
        """Set the neighbours of this host, and whom each says it has."""
        self._now_us = now
        if heard == self._heard:
            return
        for node in self._heard.keys() - heard.keys() - self._entries.keys():
            del self._by_prefix[node_prefix(node)]
        self._heard = dict(heard)
        for node in heard:
            self._by_prefix.setdefault(node_prefix(node), node)
        self.version += 1

    def expire(self, now: int) -> int:
        """Forget what could not be reached for long. Returns the time at which there is more of it."""
        reached = self.distances(self._own)
        due_us = NEVER
        for entry in list(self._entries.values()):
            if entry.node in reached:
                entry.lost_us = NEVER
                continue
            entry.lost_us = min(entry.lost_us, now)
            if entry.lost_us + FORGET_US <= now:
                self.remove(entry.node)
            else:
                due_us = min(due_us, entry.lost_us + FORGET_US)
        return due_us

    # --- the graph -------------------------------------------------------------------------------------------

    def neighbours_of(self, node: NodeId) -> Collection[NodeId]:
        """Return the other ends of the edges of a node that count."""
        self._make()
        return [self._by_prefix[each] for each in sorted(self._edges.get(node_prefix(node), ()))]

    def distances(self, origin: NodeId) -> dict[NodeId, int]:
        """Return the hops to every node that can be reached from one, itself included."""
        self._make()
        if origin == self._own or node_prefix(origin) not in self._edges:
            return self._distances if origin == self._own else {origin: 0}
        return self._search(node_prefix(origin))

    @property
    def digest(self) -> int:
        """The XOR over the fingerprints of all records of what can be reached."""
        self._make()
        return self._digest

    def is_like(self, digest: int, since_us: int) -> bool:
        """Return True if somebody who has this digest knows all that this host knows, or will ask for the rest.

        Changes since that time come to hosts in any order, and not all count the same hosts as reached: digests may
        differ by some of the changes and of the records that do not count here, whichever (a sum over GF(2)), and by
        one record that counts. Who lacks something sees a digest that differs by what it does not know.
        """
        if digest == self.digest:
            return True
        sums = [change for change, at_us in self._changes.items() if at_us >= since_us]
        sums += [entry.fingerprint for entry in self if entry.node not in self._distances]
        basis: list[int] = []
        for each in sums[:_SUMS_MAX]:
            if rest := _reduced(each, basis):
                basis.append(rest)
        difference = _reduced(digest ^ self.digest, basis)
        return not difference or any(_reduced(entry.fingerprint, basis) == difference for entry in self)

    def reached(self) -> list[Entry]:
        """Return the records of what can be reached, this host included."""
        self._make()
        distances = self._distances
        return [entry for entry in self._entries.values() if entry.node in distances]

    def heads(self, room: int) -> list[bytes]:
        """Return prefixes and stamps of what can be reached, packed, in lists of so many; each begins where one ended.

        The lists together are about all prefixes there can be.
        """
        marks = {_FIRST: 0, _LAST: 0} | {entry.prefix: entry.stamp for entry in self.reached()}
        heads = [prefix + stamp.to_bytes(4, "big") for prefix, stamp in sorted(marks.items())]
        return [b"".join(heads[at : at + room]) for at in range(0, len(heads) - 1, room - 1)]

    def compare(self, heads: bytes) -> tuple[list[bytes], list[Entry]]:
        """Return the prefixes of newer records that somebody lists, and the records that it lacks."""
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
        if self._made != self.version:
            self._made = self.version
            self._edges = self._graph()
            self._distances = self._search(self._prefix)
            counted = {entry.node: entry.fingerprint for entry in self.reached()}
            for node in sorted({node for node, _ in counted.items() ^ self._counted.items()}):
                self._change(self._counted.get(node, 0) ^ counted.get(node, 0))
            self._counted = counted

    def _change(self, by: int) -> None:
        self._digest ^= by
        self._changes.pop(by, None)
        self._changes[by] = self._now_us
        if len(self._changes) > _SUMS_MAX:
            del self._changes[next(iter(self._changes))]

    def _graph(self) -> dict[bytes, set[bytes]]:
        """Return the edges that count, by prefix: sets are compared as a whole, as there are thousands of claims."""
        known, linked = self._by_prefix.keys(), {node_prefix(node) for node in self._heard}
        edges: dict[bytes, set[bytes]] = {prefix: set() for prefix in known}
        claims = [(node_prefix(node), heard) for node, heard in self._heard.items()]
        for one, claimed in (*[(entry.prefix, entry.claimed) for entry in self], *claims):
            ends = claimed & known
            edges[one] |= ends
            for other in ends:
                edges[other].add(one)
        for entry in self:
            for other in entry.denied & known:
                edges[entry.prefix].discard(other)
                edges[other].discard(entry.prefix)
        for other in edges[self._prefix] - linked:
            edges[other].discard(self._prefix)
        for other in linked:
            edges[other].add(self._prefix)
        edges[self._prefix] = linked
        return edges

    def _search(self, origin: bytes) -> dict[NodeId, int]:
        found, border, hops = {origin}, {origin}, 0
        distances: dict[NodeId, int] = {}
        while border:
            distances |= {self._by_prefix[each]: hops for each in border}
            border = set().union(*[self._edges[each] for each in border]) - found
            found |= border
            hops += 1
        return distances


def _reduced(value: int, basis: Iterable[int]) -> int:
    """Return the least that is left of a value by XOR with some of these, each of which was reduced by those before."""
    for each in basis:
        value = min(value, value ^ each)
    return value
