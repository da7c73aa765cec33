"""The tables of a broker (OVERLAY §3.3): its knowledge of other brokers and of its clients.

BIT, broker information: `Brokers`. BTT, broker topology: `TopologyTable`. BRT, broker routes, follows from both
(`overlay.topology.Routes`). BNT, broker neighbours, is a value that `overlay.topology` replaces with every look. These
have a bound (`limits.overlay_brokers_max`). In full tables brokers that can be reached displace those that cannot, so
that made-up brokers do not keep out real ones. CIT, client information: `Clients`, bounded by `limits.clients_max`.
"""

from __future__ import annotations

import functools
import hashlib
import struct
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

import msgspec

from carrypost.model.ids import NodeId, node_prefix
from carrypost.model.times import NEVER
from carrypost.overlay import items

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping
    from collections.abc import Set as AbstractSet

    from carrypost.config import Settings
    from carrypost.gossip.outputs import Outputs

Row = TypeVar("Row", bound=items.Versioned)
_encode = msgspec.msgpack.Encoder().encode


class BrokerInfo(NamedTuple):
    """A row of the BIT."""

    node: NodeId
    prefix: bytes
    incarnation: int
    """Incarnation of the broker when it announced itself last."""
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
        if before is not None and (info.incarnation, info.until_us) < (before.incarnation, before.until_us):
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
    """The BTT: the latest entry, or the latest roster, of every broker, this one included.

    Each broker writes its own, alone, with versions that rise. It travels from broker to broker. A broker outbids what
    others say in its name.
    """

    def __init__(self, own: bytes, most: int) -> None:
        self._own, self._most = own, most
        self._entries: dict[bytes, Row] = {}
        self._own_version = 0
        self._changed: dict[bytes, set[NodeId]] = {}
        """Rows for neighbours, and the brokers that sent each and need not get it."""
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
        if before is not None and not items.is_later(entry.version, before.version):
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
        """Forget the entry of a broker; idempotent."""
        if (entry := self._entries.pop(prefix, None)) is not None:
            self.digest ^= entry.fingerprint
            self.version += 1
            self._changed.pop(prefix, None)

    def start(self, incarnation: int) -> None:
        """Begin the versions of this incarnation."""
        self._own_version = items.first_version(incarnation)

    def write(self, make: Callable[[int], Row], brokers: Brokers) -> None:
        """Write the own entry; `make` returns it with a version."""
        self._own_version = items.next_version(self._own_version)
        self.put(make(self._own_version), brokers)
        self._changed[self._own] = set()

    def outbid(self, entry: Row) -> bool:
        """Return True if the own entry has to be written again: this one is of an earlier incarnation, or forged."""
        own = self._entries.get(self._own)
        later = items.is_later(entry.version, self._own_version)
        if later:
            self._own_version = entry.version
        return later or (own is not None and entry.version == own.version and entry != own)

    def enter(self, entry: Row, author: NodeId, brokers: Brokers) -> str | None:
        """Enter what a broker sent about another one; return None if it is news, else why it is refused, or nothing."""
        if self.put(entry, brokers):
            self._changed[entry.prefix] = {author}
            return None
        known = self._entries.get(entry.prefix)
        if known is not None and known.version == entry.version and entry.prefix in self._changed:
            self._changed[entry.prefix].add(author)
        return "brokers" if known is None else "" if known.version == entry.version else "overlay-old"

    def changed_for(self, knowing: Collection[NodeId]) -> list[Row]:
        """Return what changed since it was sent, except what one of these brokers sent."""
        return [self._entries[prefix] for prefix, sent_by in self._changed.items() if sent_by.isdisjoint(knowing)]

    def mark_sent(self) -> None:
        """Note that all neighbours were informed."""
        self._changed = {}

    def later(self, known: Mapping[bytes, int]) -> list[Row]:
        """Return what a broker with these versions lacks."""
        return [each for each in self if each.prefix not in known or items.is_later(each.version, known[each.prefix])]


class Client(msgspec.Struct, frozen=True, array_like=True):
    """A row of the CIT: a client that took this broker as its home, or left it."""

    node: NodeId
    item: items.Attach
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
        return self.item.active and self.item.role is items.Role.CONSUMER

    @property
    def produces(self) -> bool:
        """True if the client is a producer."""
        return self.item.active and self.item.role is items.Role.PRODUCER

    @property
    def key(self) -> tuple[NodeId, items.Role, str, int]:
        """Key of the client: node, role, channel and subscription."""
        return self.node, self.item.role, self.item.channel, self.item.subscription

    @property
    def digest(self) -> bytes:
        """Bytes that identify the client in names of rows."""
        return _digest(self.key)


@functools.lru_cache(1_024)
def _digest(key: tuple[NodeId, items.Role, str, int]) -> bytes:
    return hashlib.blake2b(_encode(key), digest_size=16).digest()


class Clients:
    """The CIT: clients of this broker."""

    def __init__(self, most: int, seats_max: int) -> None:
        self._most, self._seats_max = most, seats_max
        self._rows: dict[tuple[NodeId, items.Role, str, int], Client] = {}
        self.due_us = NEVER
        """Time at which the first lease ends."""

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Client]:
        return iter(self._rows.values())

    def at(self, node: NodeId, role: items.Role, channel: str, subscription: int) -> Client | None:
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


# --- rosters -----------------------------------------------------------------------------------------------

# Rosters: the channels that each broker has clients of, known to all brokers.
#
# A roster has, for each channel, the number of producers at a broker, and a flag that says if it
# has seats of consumers. Like an entry of the topology it is written by its broker alone, has a
# version, travels as hearsay, and is outbid by its broker if another node forges one. Unlike
# entries, rosters do not wait for a look, since events wait for them. Lost ones are found by the
# digest that entries and rosters share. Moreover each broker announces the version of its roster,
# signed. A broker that lacks it after `update_s` asks the other one for it.


_HEAD = struct.Struct(">4sIH")
"""Head of a roster: prefix, version, number of channels."""
_HASH_BYTES = 8
_CHANNEL = struct.Struct(f">{_HASH_BYTES}sHH")
"""Packed channel: hash of its name, producers, seats."""
_COUNT_MAX = 2**16 - 1
CHANNELS_MAX = (items.ENTRIES_BYTES_MAX - _HEAD.size) // _CHANNEL.size
"""Channels of a roster that fits into one item."""
_KIND = 2
"""Distinguishes rosters from entries in a digest."""


class Served(NamedTuple):
    """Clients of a channel that a broker works for."""

    producers: int = 0
    seats: int = 0
    """1 if there are any."""


class Roster(NamedTuple):
    """Channels that one broker has clients of, as it reported itself."""

    prefix: bytes
    """Four bytes that stand for the broker."""
    version: int
    channels: Mapping[bytes, Served]
    """By hash of the channel's name (`channel_hash`), ascending."""

    @property
    def fingerprint(self) -> int:
        """Contribution of this roster to a digest."""
        return items.hash_of(self.prefix, self.version, _KIND)

    @property
    def seated(self) -> AbstractSet[bytes]:
        """Channels that the broker has seats of, by hash."""
        return {name for name, served in self.channels.items() if served.seats}


@functools.lru_cache(1_024)
def channel_hash(channel: str) -> bytes:
    """Return the bytes that stand for a channel in rosters."""
    return hashlib.blake2b(channel.encode(), digest_size=_HASH_BYTES).digest()


def pack_rosters(rosters: Iterable[Roster]) -> list[bytes]:
    """Return rosters as they travel, cut into as many parts as items are needed for them."""
    return items.paged(
        _HEAD.pack(each.prefix, each.version, len(each.channels))
        + b"".join(_CHANNEL.pack(name, *(min(count, _COUNT_MAX) for count in of)) for name, of in each.channels.items())
        for each in rosters
    )


def unpack_rosters(packed: bytes) -> list[Roster]:
    """Return the rosters that were packed; raises `ValueError` for anything else."""
    found = [
        Roster(prefix, version, {name: Served(*counts) for name, *counts in channels})
        for (prefix, version), channels in items.unpaged(packed, _HEAD, _CHANNEL)
    ]
    if not all(any(served) for each in found for served in each.channels.values()):
        raise ValueError("the channels of a roster must have clients")
    return found


class Rosters:
    """Rosters of all brokers, and the changes to pass on."""

    def __init__(self, own: bytes, brokers: Brokers, outputs: Outputs, *, brokers_max: int, channels_max: int) -> None:
        self._own, self._brokers, self._outputs = own, brokers, outputs
        self._channels_max = min(channels_max, CHANNELS_MAX)
        self.table = TopologyTable[Roster](own, brokers_max)
        self.news: set[bytes] = set()
        """Brokers that may have new seats, until others are informed of last events (`clients.LastEvents`)."""
        self.has_new_seats = False
        """True if a roster shows seats that it did not before, until neighbours are informed."""
        self._wanted: dict[NodeId, int] = {}
        """Brokers that announced a later roster than is here, and the time at which they are asked for it."""
        self.due_us = NEVER
        """Time at which `asking` has something."""
        self._strange: set[bytes] = set()
        """Brokers whose rosters are here, and that had not announced themselves when strangers were dropped."""

    @property
    def version(self) -> int:
        """Version of this broker's own roster; 0: it has none."""
        own = self.table.get(self._own)
        return 0 if own is None else own.version

    @property
    def seated(self) -> AbstractSet[bytes]:
        """Channels that this broker has seats of, by hash."""
        own = self.table.get(self._own)
        return frozenset() if own is None else own.seated

    def serving(self, channel: str) -> dict[bytes, Served]:
        """Return the brokers that have clients of a channel, by four bytes each."""
        name = channel_hash(channel)
        return {each.prefix: each.channels[name] for each in self.table if name in each.channels}

    def has_room(self, channel: str) -> bool:
        """Return True if the own roster has the channel, or may have it."""
        own = self.table.get(self._own)
        return own is None or len(own.channels) < self._channels_max or channel_hash(channel) in own.channels

    def write(self, channels: Mapping[str, Served]) -> bool:
        """Write the own roster; return True if its contents changed."""
        rows = {channel_hash(channel): served for channel, served in channels.items()}
        own = self.table.get(self._own)
        if rows == ({} if own is None else own.channels):
            return False
        self._put(dict(sorted(rows.items())))
        return True

    def _put(self, channels: Mapping[bytes, Served]) -> None:
        before = self.table.get(self._own)
        self.table.write(lambda version: Roster(self._own, version, channels), self._brokers)
        self._note(self.table.get(self._own), before)

    def _note(self, roster: Roster | None, before: Roster | None) -> None:
        """Note a roster that was entered; `before`: the one that was here."""
        if roster is None:
            return
        has_new = not roster.seated <= (frozenset() if before is None else before.seated)
        self.has_new_seats = self.has_new_seats or has_new
        # Seats may also have come and gone in versions that were not seen here.
        if has_new or before is None or roster.version != items.next_version(before.version):
            self.news.add(roster.prefix)

    # --- hearing -------------------------------------------------------------------------------------------

    def enter(self, roster: Roster, author: NodeId) -> bool:
        """Process a roster that a broker sent, its own or another's; return True if neighbours have to be informed."""
        known = self.table.get(roster.prefix)
        if roster.prefix == self._own:
            if not self.table.outbid(roster) and known is not None:
                return False
            self._put({} if known is None else known.channels)
            return True
        # Bounded here, too: the broker that wrote it may have a higher limit, or obey none.
        too_long = len(roster.channels) > self._channels_max
        refusal = "brokers" if too_long else self.table.enter(roster, author, self._brokers)
        if refusal:
            self._outputs.refuse("rosters" if refusal == "brokers" else refusal, author)
        elif refusal is None:
            self._note(roster, known)
        return refusal is None

    def announced(self, info: BrokerInfo, ask_us: int) -> None:
        """Note the version that a broker announced. If it does not come by itself, the broker is asked for it."""
        known = self.table.get(info.prefix)
        if info.roster and (known is None or items.is_later(info.roster, known.version)):
            self.due_us = min(self.due_us, self._wanted.setdefault(info.node, ask_us))

    def asking(self, now: int, reach: Container[NodeId], again_us: int) -> list[NodeId]:
        """Return the brokers to ask for their rosters now. Those out of reach are asked later."""
        found = []
        for node in [node for node, due_us in self._wanted.items() if due_us <= now]:
            del self._wanted[node]
            if (info := self._brokers.get(node)) is not None:
                self.announced(info, again_us)
                if node in self._wanted and node in reach:
                    found.append(node)
        self.due_us = min(self._wanted.values(), default=NEVER)
        return found

    def drop_strangers(self) -> None:
        """Drop the rosters of brokers that had not announced themselves here at the last call either."""
        strange = {each.prefix for each in self.table if each.prefix != self._own} - {
            each.prefix for each in self._brokers
        }
        # At the second call only. A roster often arrives before the announcement of its broker, as
        # it is passed on at once.
        for prefix in sorted(strange & self._strange):
            self.table.remove(prefix)
        self._strange = strange


# --- leases ------------------------------------------------------------------------------------------------

# Leases: how long a client is attached to its home, and how long a broker that announced itself is
# known.


_SHORTEST_S = 600.0
REPEATS = 10
"""Number of messages of one sender and purpose that may be under way: one is repeated after this part of the lease."""


def lease_us(settings: Settings) -> int:
    """Return the lease of this node's clients, and the lifetime of its announcements: those of events, or 600 s.

    A seat that ended before its events, or a broker that was forgotten before them, would stop a channel in a
    partition, although carriers bring the events. Both are renewed after half of this time.
    """
    life_s = max(_SHORTEST_S, settings.overlay.event_lifetime_s)
    if settings.lifetime_s_max is not None:
        life_s = min(life_s, settings.lifetime_s_max)
    return round(life_s * 1e6)
