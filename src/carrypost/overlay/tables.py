"""The tables of a broker (OVERLAY §3.3): its knowledge of others, and the routes that follow from it.

BIT, broker information: `Brokers`. BTT, broker topology: `TopologyTable`. BRT, broker routes: `Routes`, which are built
anew when they are read and the topology changed. BNT, broker neighbours, is a value that `overlay.topology` replaces
with every look. These have a bound (`limits.overlay_brokers_max`). In full tables brokers that can be reached displace
those that cannot, so that made-up brokers do not keep out real ones. CIT, client information: `Clients`, bounded by
`limits.clients_max`.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

import msgspec

from carrypost.model.ids import NodeId, node_prefix
from carrypost.model.times import NEVER
from carrypost.overlay.entries import Entry, Versioned, is_later
from carrypost.overlay.items import Attach, Role

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Mapping

    from carrypost.overlay.vicinity import Vicinity

Row = TypeVar("Row", bound=Versioned)
_encode = msgspec.msgpack.Encoder().encode


class BrokerInfo(NamedTuple):
    """A row of the BIT."""

    node: NodeId
    prefix: bytes
    boot: int
    """Life of the broker in which it announced itself last."""
    capacity: int
    """Work that it can do, in thousandths of a processor."""
    until_us: int
    """Time until which it counts as a broker, unless it says so again."""
    roster: int = 0
    """Version of its roster, as it said last; 0: it has none."""
    hops: int = 0
    """Hops that its announcement took: its distance, where no path to it is known."""


class Brokers:
    """The BIT: nodes that said they are brokers, this one not included."""

    def __init__(self, own: NodeId, most: int) -> None:
        self._own, self._most = node_prefix(own), most
        self._rows: dict[NodeId, BrokerInfo] = {}
        self._by_prefix: dict[bytes, BrokerInfo] = {}
        self.version = 0
        """Counter that grows when a broker is added or removed."""
        self.due_us = NEVER
        """Time at which the first row ends."""

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, node: object) -> bool:
        return node in self._rows

    def __iter__(self) -> Iterator[BrokerInfo]:
        return iter(self._rows.values())

    def get(self, node: NodeId) -> BrokerInfo | None:
        """Return the row of a node; None if it is not known as a broker."""
        return self._rows.get(node)

    def at(self, prefix: bytes) -> BrokerInfo | None:
        """Return the broker that four bytes stand for."""
        return self._by_prefix.get(prefix)

    def put(self, info: BrokerInfo, reach: Container[NodeId]) -> bool:
        """Enter a broker, or its latest announcement; return False if there is no room, or a later one is known.

        A broker with the four bytes of another one has no place: their entries could not be distinguished.
        """
        before = self._by_prefix.get(info.prefix)
        if info.prefix == self._own or (before is not None and before.node != info.node):
            return False
        if before is None and len(self._rows) >= self._most and not self._make_room(info, reach):
            return False
        if before is not None and (info.boot, info.until_us) < (before.boot, before.until_us):
            return False
        self.version += before is None
        self._rows[info.node] = self._by_prefix[info.prefix] = info
        self.due_us = min(self.due_us, info.until_us)
        return True

    def _make_room(self, info: BrokerInfo, reach: Container[NodeId]) -> bool:
        """Remove the broker that cannot be reached and ends first, for one that can be."""
        absent = [each for each in self._rows.values() if each.node not in reach]
        if info.node not in reach or not absent:
            return False
        self._remove(min(absent, key=lambda each: (each.until_us, each.node)))
        return True

    def _remove(self, info: BrokerInfo) -> None:
        del self._rows[info.node], self._by_prefix[info.prefix]
        self.version += 1

    def expire(self, now: int) -> list[BrokerInfo]:
        """Remove and return the brokers whose time is over."""
        over = [each for each in self._rows.values() if each.until_us <= now]
        for each in over:
            self._remove(each)
        self.due_us = min((each.until_us for each in self._rows.values()), default=NEVER)
        return over


class TopologyTable(Generic[Row]):
    """The BTT: the latest entry, or the latest roster, of every broker, this one included."""

    def __init__(self, own: bytes, most: int) -> None:
        self._own, self._most = own, most
        self._entries: dict[bytes, Row] = {}
        self.version = 0
        """Counter that grows with every change."""
        self.digest = 0
        """XOR of the fingerprints of all entries."""

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Row]:
        return iter(self._entries.values())

    def get(self, prefix: bytes) -> Row | None:
        """Return the entry of a broker."""
        return self._entries.get(prefix)

    def put(self, entry: Row, brokers: Brokers) -> bool:
        """Enter a broker's entry or roster, if it is later than the one here. Returns True if it was entered.

        In a full table a broker that is known displaces an entry of one that is not.
        """
        before = self._entries.get(entry.prefix)
        if before is not None and not is_later(entry.version, before.version):
            return False
        if before is None and len(self._entries) >= self._most and entry.prefix != self._own:
            known = brokers.at(entry.prefix) is not None
            unknown = [each for each in self._entries if each != self._own and brokers.at(each) is None]
            if not known or not unknown:
                return False
            # The lowest one, so that runs can be repeated. Which of the unknown ones goes makes no
            # difference: none of them is on any path.
            self.remove(min(unknown))
        self.digest ^= entry.fingerprint ^ (0 if before is None else before.fingerprint)
        self._entries[entry.prefix] = entry
        self.version += 1
        return True

    def remove(self, prefix: bytes) -> None:
        """Forget the entry of a broker."""
        self.digest ^= self._entries.pop(prefix).fingerprint
        self.version += 1


class Way(NamedTuple):
    """A row of the BRT: the path to one broker."""

    hops: int
    """Hops between nodes along the path, as brokers report them."""
    path: tuple[bytes, ...]
    """Brokers from this one, exclusive, to that one, inclusive, by four bytes each."""


class Routes:
    """The BRT: to every broker the path over the fewest brokers, of those the one with the fewest hops."""

    def __init__(
        self, own: bytes, table: TopologyTable[Entry], brokers: Brokers, vicinity: Vicinity | None = None
    ) -> None:
        """Make the routes of a broker; without a vicinity, those of legs are the same as the BRT."""
        self._own, self._table, self._brokers, self._vicinity = own, table, brokers, vicinity
        self._built: dict[Vicinity | None, tuple[tuple[int, int, int], dict[bytes, Way]]] = {}
        """Ways of legs by the vicinity, and the BRT by None, with the versions of the tables that they are built from.
        """
        self._others: tuple[tuple[int, int], dict[bytes, Mapping[bytes, Way]]] = (-1, -1), {}
        """Versions of the tables, and the ways from known brokers that were asked for since."""

    def way(self, prefix: bytes) -> Way | None:
        """Return the way to a broker by the BTT alone."""
        return self._ways(None).get(prefix)

    def leg_way(self, prefix: bytes, *, but: bytes | None = None) -> Way | None:
        """Return the way of a leg that leaves now; `but`: one that does not begin with this neighbour.

        Links of other brokers are as they reported them, those of this broker as they are now.
        """
        vicinity = None if self._table.get(self._own) is None else self._vicinity
        # Ways around a neighbour are not kept: they are needed only when that neighbour is lost.
        if but is not None:
            return self._search(self._links(vicinity), self._own, but).get(prefix)
        return self._ways(vicinity).get(prefix)

    def _ways(self, vicinity: Vicinity | None) -> dict[bytes, Way]:
        built = (self._table.version, self._brokers.version, 0 if vicinity is None else vicinity.version)
        before, ways = self._built.get(vicinity, (None, {}))
        if built != before:
            ways = self._search(self._links(vicinity), self._own)
            self._built[vicinity] = built, ways
        return ways

    def ways(self, prefix: bytes) -> Mapping[bytes, Way]:
        """Return the ways from a broker along the overlay to all that it reaches, itself included."""
        built = (self._table.version, self._brokers.version)
        if self._others[0] != built:
            self._others = built, {}
        kept = self._others[1]
        if (found := kept.get(prefix)) is None:
            found = self._search(self._links(None), prefix) | {prefix: Way(0, ())}
            if prefix == self._own or self._brokers.at(prefix) is not None:
                kept[prefix] = found
        return found

    def distances(self, prefix: bytes) -> dict[bytes, int]:
        """Return the hops from a broker along the overlay to all that it reaches."""
        return {each: way.hops for each, way in self.ways(prefix).items()}

    def _search(
        self, links: Mapping[bytes, Mapping[bytes, int]], start: bytes, but: bytes | None = None
    ) -> dict[bytes, Way]:
        """Return the ways from a broker along links, not beginning with the neighbour `but`."""
        ways: dict[bytes, Way] = {}
        # Breadth first over brokers, not over hops. Every broker on a path makes and signs a
        # message of its own, which costs far more than one more hop of the network below. Hops,
        # then prefixes, break ties, so that two brokers with the same tables find the same paths.
        edge = {start: Way(0, ())}
        while edge:
            beyond: dict[bytes, Way] = {}
            for broker, way in edge.items():
                for other, hops in links.get(broker, {}).items():
                    if other in ways or other == start or (broker == start and other == but):
                        continue
                    found = Way(way.hops + hops, (*way.path, other))
                    if other not in beyond or found < beyond[other]:
                        beyond[other] = found
            ways |= beyond
            edge = beyond
        return ways

    def _links(self, vicinity: Vicinity | None) -> Mapping[bytes, Mapping[bytes, int]]:
        """Return the neighbours of every broker that is known. A link counts if either end lists it.

        With a vicinity, this broker has links to the nearest brokers, too, and its links have the hops of this moment.
        """
        # One end suffices, since the entry of the other may be old or lost. Both ends must have
        # announced themselves as brokers: announcements are signed and entries are not, so a liar
        # can add links, but no brokers.
        links: dict[bytes, dict[bytes, int]] = {}
        known = {each.prefix for each in self._brokers} | {self._own}
        for entry in self._table:
            for other, hops in entry.neighbours if entry.prefix in known else ():
                if other in known:
                    for here, there in ((entry.prefix, other), (other, entry.prefix)):
                        of = links.setdefault(here, {})
                        of[there] = min(of.get(there, hops), hops)
        if vicinity is not None:
            links[self._own] = vicinity.links(links.get(self._own, ()))
        return links


class Client(msgspec.Struct, frozen=True, array_like=True):
    """A row of the CIT: a client that took this broker as its home, or left it."""

    node: NodeId
    item: Attach
    """Latest `Attach` of the client."""
    order: tuple[int, int]
    """Order of that request among all messages of its node: incarnation and sequence."""
    until_us: int
    """End of the lease. A client that left is remembered as long, so that its earlier requests no longer count."""
    origin: bytes = b""
    """The message with that request, for a broker that the seat moves to; empty if it would not fit."""

    @property
    def active(self) -> bool:
        """False if the client left."""
        return self.item.active

    @property
    def seated(self) -> bool:
        """True if the client has a seat."""
        return self.item.active and self.item.role is Role.CONSUMER

    @property
    def key(self) -> tuple[NodeId, Role, str, int]:
        """Key of the client: node, role, channel and subscription."""
        return self.node, self.item.role, self.item.channel, self.item.subscription

    @property
    def digest(self) -> bytes:
        """Bytes that identify the client in names of rows."""
        return hashlib.blake2b(_encode(self.key), digest_size=16).digest()


class Clients:
    """The CIT: clients of this broker."""

    def __init__(self, most: int, seats_max: int) -> None:
        self._most, self._seats_max = most, seats_max
        self._rows: dict[tuple[NodeId, Role, str, int], Client] = {}
        self.due_us = NEVER
        """Time at which the first lease ends."""

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Client]:
        return iter(self._rows.values())

    def at(self, node: NodeId, role: Role, channel: str, subscription: int) -> Client | None:
        """Return a client by its key."""
        return self._rows.get((node, role, channel, subscription))

    def by_digest(self, digest: bytes) -> Client | None:
        """Return a client by its digest."""
        return next((each for each in self._rows.values() if each.digest == digest), None)

    def remove(self, client: Client) -> None:
        """Forget a client; idempotent."""
        self._rows.pop(client.key, None)

    def get(self, client: Client) -> Client | None:
        """Return the row of the same client."""
        return self._rows.get(client.key)

    def put(self, client: Client, reach: Container[NodeId]) -> tuple[bool, Client | None]:
        """Enter a client's latest request; return False if there is no room, and the row that was dropped for it."""
        displaced = None
        if rivals := self._rivals(client):
            displaced = _least(client, rivals, reach)
            if displaced is None:
                return False, None
            del self._rows[displaced.key]
        self._rows[client.key] = client
        self.due_us = min(self.due_us, client.until_us)
        return True, displaced

    def _rivals(self, client: Client) -> list[Client]:
        """Return the rows of which one has to be dropped; none if there is room."""
        before = self._rows.get(client.key)
        if client.seated and (before is None or not before.seated):
            seats = [each for each in self._rows.values() if each.seated]
            if len(seats) >= self._seats_max:
                return seats
        full = before is None and len(self._rows) >= self._most
        return list(self._rows.values()) if full else []

    def expire(self, now: int) -> list[Client]:
        """Remove and return the rows whose time is over."""
        over = [each for each in self._rows.values() if each.until_us <= now]
        for each in over:
            del self._rows[each.key]
        self.due_us = min((each.until_us for each in self._rows.values()), default=NEVER)
        return over


def _least(client: Client, rows: Iterable[Client], reach: Container[NodeId]) -> Client | None:
    """Return the row to drop: of a client that left, of one out of reach, or of the node with most rows.

    So neither made-up nodes nor a node with many clients keep others out.
    """
    if not client.active:
        return None
    rows = list(rows)
    counts: dict[NodeId, int] = {}
    for each in rows:
        counts[each.node] = counts.get(each.node, 0) + 1
    own = counts.get(client.node, 0)
    # An active client in reach gives its row only to a node that has at least two rows fewer. With
    # a difference of one, two nodes would displace each other's rows in turn.
    ranked = [
        (each.active, each.node in reach, -counts[each.node], each.until_us, each.key, each)
        for each in rows
        if not each.active
        or (each.node not in reach and client.node in reach)
        or counts[each.node] > own + 1
    ]  # fmt: skip
    return min(ranked)[-1] if ranked else None
