"""The graph of links between hosts: its shortest paths, records of links, and the hosts that are reached.

Hosts stand here as the four-byte prefixes of their ids, as in heard-lists. A host that shares its four bytes with
another is therefore on no path, and has none.

`Edges` is the graph, as hosts claim and deny links. An edge counts while one end claims it and the other does not deny
it. Edges of the own host are the links in use, whatever others say of them. A change looks only at the edges that it
names: where hosts move, records come many times a second, and almost all links are the same as before.

`Routes` has the paths, found by breadth-first search over the known links. Edges over which something could not pass
lately are avoided for a minute, or until they are gone: a reported link may be gone, or false.

Records make this graph. The heard-lists of neighbours count as their claims, so everything two hops away
is known at once. Records do not age. Those of hosts that cannot be reached are left out of the digest and of what is
exchanged, and are forgotten after a minute; so hosts that are gone vanish as soon as their neighbours deny them. Hosts
with the same digest have the same records of all that they reach.
"""

# Paths are computed at the source and written into each datagram. With routing tables at every
# relay two hosts with different views of the island could send a datagram in circles; a path that
# names no host twice cannot.
#
# The search is lazy. Links change many times a minute, and most hosts are never written to: after a
# change nothing is computed before a caller asks for a path, and then no further than to the host
# that is asked for (`_edge`).

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
from typing import TYPE_CHECKING, Final, Protocol

from carrypost.gossip.transfers.accounts import Budget
from carrypost.gossip.transfers.signed import fingerprint
from carrypost.gossip.wire.frames import FINGERPRINT_BYTES, HEAD_BYTES, LinkRecord, cut
from carrypost.model.ids import PREFIX_BYTES, NodeId, node_prefix
from carrypost.model.times import NEVER

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet


AVOIDED_US: Final = 60_000_000
"""Time for which an edge is avoided that did not carry something on."""
_AVOIDED_MAX: Final = 1_024
"""Number of edges that are avoided at one time; beyond it, the oldest is used again."""


class Graph(Protocol):
    """Links between hosts, as known to one host, or to its driver."""

    @property
    def version(self) -> int:
        """A number that grows with every change."""

    def neighbours_of(self, node: NodeId) -> Collection[NodeId]:
        """Return the hosts that a host exchanges frames with, both ways."""

    def names(self, origin: NodeId) -> Mapping[bytes, NodeId | None]:
        """Return all hosts that are connected with one, itself included, by their four bytes (`names`)."""


def distances(graph: Graph, origin: NodeId) -> dict[NodeId, int]:
    """Return the hops from a host to each other that is connected with it."""
    found = {origin: 0}
    edge, hops = [origin], 0
    while edge:
        hops += 1
        # Sorted, so that hosts with the same view choose the same paths, and runs of the emulator
        # can be repeated.
        edge = sorted(set().union(*map(graph.neighbours_of, edge)) - found.keys())
        found.update(dict.fromkeys(edge, hops))
    del found[origin]
    return found


def names(graph: Graph, origin: NodeId) -> Mapping[bytes, NodeId | None]:
    """Return all hosts that are connected with one, itself included, by their four bytes; None: several have these."""
    found: dict[bytes, NodeId | None] = {}
    for node in (origin, *distances(graph, origin)):
        prefix = node_prefix(node)
        found[prefix] = None if prefix in found else node
    return found


class Routes:
    """Shortest paths from one host to all others. Computed again only after a change."""

    def __init__(self, own: NodeId, graph: Graph, hops_max: int) -> None:
        self._own, self._graph, self._hops_max = own, graph, hops_max
        self._avoided: dict[frozenset[NodeId], int] = {}
        """Avoided edges, the oldest first, and the time until which each is."""
        self._version = -1
        """Version of the graph in which paths were last searched."""
        self._until_us = 0
        """Time until which the paths found are valid: an edge is no longer avoided then."""
        self._before: dict[NodeId, NodeId] = {}
        """Predecessor of each host on the path to it."""
        self._names: Mapping[bytes, NodeId | None] = {}
        """Hosts by their four bytes; None where several have the same."""
        self._names_version = -1
        """Version of the graph in which they were looked up."""
        self._edge: list[NodeId] = []
        """Hosts at which the search continues, if a host beyond them is asked for."""
        self._hops = 0
        """Number of hops to these."""

    def path(self, node: NodeId, now: int) -> tuple[NodeId, ...] | None:
        """Return the relays between this host and another, then that one; None if there is no path."""
        self._refresh(now)
        while node not in self._before and self._edge:
            self._widen()
        if node == self._own or node not in self._before:
            return None
        found = [node]
        while (before := self._before[found[-1]]) != self._own:
            found.append(before)
        return tuple(reversed(found))

    def hops(self, node: NodeId, now: int) -> int:
        """Return the length of the path to a host; 0 if there is none."""
        return len(self.path(node, now) or ())

    def distances(self, node: NodeId) -> dict[NodeId, int]:
        """Return the hops from another host to those that it can reach, as far as is known here."""
        return distances(self._graph, node)

    def named(self, prefix: bytes) -> NodeId | None:
        """Return the host of the island with these four bytes; None if there is none, or more than one."""
        return self._by_prefix().get(prefix)

    def _by_prefix(self) -> Mapping[bytes, NodeId | None]:
        if self._names_version != self._graph.version:
            self._names, self._names_version = self._graph.names(self._own), self._graph.version
        return self._names

    def avoid(self, one: NodeId, other: NodeId, now: int) -> None:
        """Avoid the edge between two hosts, if there is one, for a minute."""
        edge = frozenset((one, other))
        if edge in self._avoided or other not in self._graph.neighbours_of(one):
            return
        self._avoided[edge] = now + AVOIDED_US
        if len(self._avoided) > _AVOIDED_MAX:
            # Edges are avoided on the word of others (`broken`), so their number is limited: memory
            # must not grow with claims.
            del self._avoided[next(iter(self._avoided))]
        self._until_us = 0

    def use(self, one: NodeId, other: NodeId) -> None:
        """Use the edge between two hosts again."""
        if self._avoided.pop(frozenset((one, other)), None) is not None:
            self._until_us = 0

    def changed(self) -> None:
        """Stop avoiding edges that are gone from the graph: one that comes back is another link."""
        for edge in list(self._avoided):
            one, other = edge
            if other not in self._graph.neighbours_of(one):
                self.use(one, other)

    def set_graph(self, graph: Graph) -> None:
        """Search for paths in another graph from now on."""
        self._graph = graph
        self._version = self._names_version = -1

    def _refresh(self, now: int) -> None:
        if self._version != self._graph.version or self._until_us <= now:
            self._avoided = {edge: until_us for edge, until_us in self._avoided.items() if until_us > now}
            self._until_us = min(self._avoided.values(), default=NEVER)
            self._version = self._graph.version
            self._before, self._edge, self._hops = {self._own: self._own}, [self._own], 0

    def _widen(self) -> None:
        """Search one hop further. Neighbours are visited in order, so that equal graphs give equal paths."""
        avoided, before, graph = self._avoided, self._before, self._graph
        named = self._by_prefix()
        unclear = None in named.values()
        beyond: list[NodeId] = []
        for node in self._edge if self._hops < self._hops_max else ():
            for other in sorted(set(graph.neighbours_of(node)) - before.keys()):
                if avoided and frozenset((node, other)) in avoided:
                    continue
                # With four bytes for two hosts a relay could not know which one is meant.
                if unclear and named.get(node_prefix(other)) is None:
                    continue
                before[other] = node
                beyond.append(other)
        self._edge, self._hops = beyond, self._hops + 1


_NOBODY: frozenset[bytes] = frozenset()


class Edges:
    """The edges that count between known hosts."""

    def __init__(self, own: bytes) -> None:
        self._own = own
        self._ends: dict[bytes, set[bytes]] = {own: set()}
        """By known host: the other ends of its edges."""
        self._claims: dict[bytes, tuple[frozenset[bytes], frozenset[bytes]]] = {}
        """By host: the neighbours that it claims in its record, and those that it denies."""
        self._heard: dict[bytes, frozenset[bytes]] = {}
        """By neighbour of this host: those that it says it hears, and is heard by."""
        self.claimants: set[bytes] = set()
        """Hosts whose records claim a link with this host."""
        self.version = 0
        """Number that grows with each change of an edge that counts."""
        self._changed: set[bytes] = set()
        """Known hosts with such a change since `pop_changed`."""

    def of(self, host: bytes) -> AbstractSet[bytes]:
        """Return the other ends of the edges of a host."""
        return self._ends.get(host, _NOBODY)

    def pop_changed(self) -> set[bytes]:
        """Return the hosts whose edges changed since this was asked last."""
        changed, self._changed = self._changed, set()
        return changed

    def know(self, host: bytes) -> None:
        """Let the edges of a host count from now on, as far as any host claims them."""
        if host not in self._ends:
            self._ends[host] = set()
            claiming = [each for each, (claimed, _) in self._claims.items() if host in claimed]
            hearing = [each for each, heard in self._heard.items() if host in heard]
            self._update(host, {*claiming, *hearing, *self._claimed(host)})

    def forget(self, host: bytes) -> None:
        """Let no edge of a host count, and forget its record."""
        self._claims.pop(host, None)
        self.claimants.discard(host)
        ends = self._ends.pop(host)
        for other in ends:
            self._ends[other].discard(host)
            self.version += 1
        self._changed = (self._changed | ends) - {host}

    def set_claims(self, host: bytes, claimed: frozenset[bytes], denied: frozenset[bytes]) -> None:
        """Replace what a known host says in its record."""
        before = self._claims.get(host, (_NOBODY, _NOBODY))
        self._claims[host] = claimed, denied
        (set.add if self._own in claimed else set.discard)(self.claimants, host)
        self._update(host, (before[0] ^ claimed) | (before[1] ^ denied))

    def set_heard(self, heard: Mapping[bytes, frozenset[bytes]]) -> None:
        """Replace the neighbours of this host, which are known, and those that each of them has."""
        before, self._heard = self._heard, dict(heard)
        self._update(self._own, before.keys() ^ heard.keys())
        for host in before.keys() | heard.keys():
            if (change := before.get(host, _NOBODY) ^ heard.get(host, _NOBODY)) and host in self._ends:
                self._update(host, change)

    def _claimed(self, host: bytes) -> frozenset[bytes]:
        return self._claims.get(host, (_NOBODY, _NOBODY))[0] | self._heard.get(host, _NOBODY)

    def _denied(self, host: bytes) -> frozenset[bytes]:
        return self._claims.get(host, (_NOBODY, _NOBODY))[1]

    def _counts(self, one: bytes, other: bytes) -> bool:
        if self._own in (one, other):
            return (other if one == self._own else one) in self._heard
        if other in self._denied(one) or one in self._denied(other):
            return False
        return other in self._claimed(one) or one in self._claimed(other)

    def _update(self, host: bytes, others: Iterable[bytes]) -> None:
        """Update the edges between a known host and hosts about which claims changed."""
        ends = self._ends[host]
        for other in others:
            if other in self._ends and other != host and (other in ends) is not self._counts(host, other):
                change = set.discard if other in ends else set.add
                change(ends, other)
                change(self._ends[other], host)
                self._changed |= {host, other}
                self.version += 1


_SEQUENCE_BITS, _STAMP_MASK = 20, 2**32 - 1
_FIRST, _LAST = bytes(PREFIX_BYTES), bytes([255] * PREFIX_BYTES)
WHATEVER: Final = _FIRST
"""Among the prefixes of wanted records: everything that the sender lacks, by its digest."""
_ONE: Final = (1).to_bytes(FINGERPRINT_BYTES, "little")
_FINGERPRINT_MASK: Final = 2 ** (8 * FINGERPRINT_BYTES) - 1
_SUMS_MAX: Final = 48
"""Number of changes of the digest that are remembered. More than 64 could add up to any digest."""
_AUTHOR_PER_S, _AUTHOR_BURST_S = 1.0, 10.0
"""Pace at which records of one author are accepted: by default a host sends three changes at once, then one in 5 s."""
FORGET_US: Final = 60_000_000
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
        """Return all nodes connected with one, itself included, by their four bytes (`names`)."""
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
