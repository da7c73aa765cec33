"""The tables of a broker (OVERLAY §3.3): its knowledge of other brokers and of its clients.

BIT, broker information: `Brokers`. BTT, broker topology: `TopologyTable`. BRT, broker routes, follows from both
(`overlay.broker_routes`). BNT, broker neighbours, is a value that `overlay.topology` replaces with every look. These
have a bound (`limits.overlay_brokers_max`). In full tables brokers that can be reached displace those that cannot, so
that made-up brokers do not keep out real ones. CIT, client information: `Clients`, bounded by `limits.clients_max`.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

import msgspec

from carrypost.model.ids import NodeId, node_prefix
from carrypost.model.times import NEVER
from carrypost.overlay.entries import Versioned, is_later
from carrypost.overlay.items import Attach, Role

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator

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
    """The BIT: nodes that announced themselves as brokers, this one not included."""

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
