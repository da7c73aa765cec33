"""Rosters: the channels that each broker has clients of, known to all brokers.

A roster has, for each channel, the number of producers at a broker, and a flag that says if it has seats of consumers.
Like an entry of the topology it is written by its broker alone, has a version, travels as hearsay, and is outbid by its
broker if another node forges one. Unlike entries, rosters are passed on at once, since events wait for them. Lost ones
are found by the digest that entries and rosters share. Moreover each broker announces the version of its roster,
signed. A broker that lacks it after `update_s` asks the other one for it.
"""

from __future__ import annotations

import hashlib
import struct
from typing import TYPE_CHECKING, NamedTuple

from carrypost.model.times import NEVER
from carrypost.overlay.entries import ENTRIES_BYTES_MAX, first_version, hash_of, is_later, next_version
from carrypost.overlay.tables import TopologyTable

if TYPE_CHECKING:
    from collections.abc import Collection, Container, Iterable, Mapping
    from collections.abc import Set as AbstractSet

    from carrypost.gossip.outputs import Outputs
    from carrypost.model.ids import NodeId
    from carrypost.overlay.tables import BrokerInfo, Brokers

_HEAD = struct.Struct(">4sIH")
"""Head of a roster: prefix, version, number of channels."""
_HASH_BYTES = 8
_CHANNEL = struct.Struct(f">{_HASH_BYTES}sHH")
"""Packed channel: hash of its name, producers, seats."""
_COUNT_MAX = 2**16 - 1
CHANNELS_MAX = (ENTRIES_BYTES_MAX - _HEAD.size) // _CHANNEL.size
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
        return hash_of(self.prefix, self.version, _KIND)

    @property
    def seated(self) -> AbstractSet[bytes]:
        """Channels that the broker has seats of, by hash."""
        return {name for name, served in self.channels.items() if served.seats}


def channel_hash(channel: str) -> bytes:
    """Return the bytes that stand for a channel in rosters."""
    return hashlib.blake2b(channel.encode(), digest_size=_HASH_BYTES).digest()


def pack(rosters: Iterable[Roster]) -> list[bytes]:
    """Return rosters as they travel, cut into as many parts as items are needed for them."""
    parts: list[bytearray] = []
    for each in rosters:
        rows = b"".join(
            _CHANNEL.pack(name, min(served.producers, _COUNT_MAX), min(served.seats, _COUNT_MAX))
            for name, served in each.channels.items()
        )
        packed = _HEAD.pack(each.prefix, each.version, len(each.channels)) + rows
        if not parts or len(parts[-1]) + len(packed) > ENTRIES_BYTES_MAX:
            parts.append(bytearray())
        parts[-1] += packed
    return [bytes(part) for part in parts]


def unpack(packed: bytes) -> list[Roster]:
    """Return the rosters that were packed; raises `ValueError` for anything else."""
    found: list[Roster] = []
    at = 0
    while at < len(packed):
        if len(packed) - at < _HEAD.size:
            raise ValueError("a roster is cut short")
        prefix, version, count = _HEAD.unpack_from(packed, at)
        at += _HEAD.size
        end = at + count * _CHANNEL.size
        if end > len(packed):
            raise ValueError("a roster is cut short")
        rows = [(name, Served(producers, seats)) for name, producers, seats in _CHANNEL.iter_unpack(packed[at:end])]
        names = [name for name, _ in rows]
        if names != sorted(set(names)) or not all(any(served) for _, served in rows):
            raise ValueError("channels must be in order, listed once each, and have clients")
        found.append(Roster(prefix, version, dict(rows)))
        at = end
    return found


class Rosters:
    """Rosters of all brokers, and the changes to pass on."""

    def __init__(self, own: bytes, brokers: Brokers, outputs: Outputs, *, brokers_max: int, channels_max: int) -> None:
        self._own, self._brokers, self._outputs = own, brokers, outputs
        self._channels_max = min(channels_max, CHANNELS_MAX)
        self.table = TopologyTable[Roster](own, brokers_max)
        self._version = 0
        self._changed: dict[bytes, set[NodeId]] = {}
        """Rosters for neighbours, and the brokers that sent each and need not get it."""
        self._news: set[bytes] = set()
        """Brokers that may have new seats since the last `pop_news`."""
        self._wanted: dict[NodeId, int] = {}
        """Brokers that announced a later roster than is here, and the time at which they are asked for it."""
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

    @property
    def due_us(self) -> int:
        """Time at which `asking` has something."""
        return min(self._wanted.values(), default=NEVER)

    def start(self, incarnation: int) -> None:
        """Begin the versions of this incarnation."""
        self._version = first_version(incarnation)

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
        self._version = next_version(self._version)
        roster, before = Roster(self._own, self._version, channels), self.table.get(self._own)
        self.table.put(roster, self._brokers)
        self._note(roster, before, set())

    def _note(self, roster: Roster, before: Roster | None, sent_by: set[NodeId]) -> None:
        """Note a roster that was entered for neighbours; `before`: the one that was here."""
        self._changed[roster.prefix] = sent_by
        # Seats may also have come and gone in versions that were not seen here.
        if (
            before is None
            or roster.version != next_version(before.version)
            or not roster.seated <= before.seated
        ):  # fmt: skip
            self._news.add(roster.prefix)

    def pop_news(self) -> set[bytes]:
        """Return the brokers that may have new seats since the last call."""
        news, self._news = self._news, set()
        return news

    # --- sending -------------------------------------------------------------------------------------------

    def changed_for(self, knowing: Collection[NodeId]) -> list[Roster]:
        """Return the rosters that changed since they were sent, except those that one of these brokers sent."""
        found = [self.table.get(prefix) for prefix, sent_by in self._changed.items() if sent_by.isdisjoint(knowing)]
        return [each for each in found if each is not None]

    def mark_sent(self) -> None:
        """Note that all neighbours were informed."""
        self._changed = {}

    def later(self, known: Mapping[bytes, int]) -> list[Roster]:
        """Return the rosters that a broker with these versions lacks."""
        return [
            each for each in self.table
            if each.prefix not in known or is_later(each.version, known[each.prefix])
        ]  # fmt: skip

    # --- hearing -------------------------------------------------------------------------------------------

    def enter(self, roster: Roster, author: NodeId) -> bool:
        """Process a roster that a broker sent, its own or another's; return True if neighbours have to be informed."""
        known = self.table.get(roster.prefix)
        if roster.prefix == self._own:
            forged = known is not None and roster.version == known.version and roster != known
            if known is not None and not forged and not is_later(roster.version, self._version):
                return False
            if is_later(roster.version, self._version):
                self._version = roster.version  # It is of an earlier life, or a lie: outbid it.
            self._put({} if known is None else known.channels)
            return True
        # Bounded here, too: the broker that wrote it may have a higher limit, or obey none.
        if len(roster.channels) > self._channels_max:
            self._outputs.refuse("rosters", author)
            return False
        if self.table.put(roster, self._brokers):
            self._note(roster, known, {author})
            return True
        if known is None:
            self._outputs.refuse("rosters", author)
        elif known.version == roster.version and roster.prefix in self._changed:
            self._changed[roster.prefix].add(author)
        elif known.version != roster.version:
            self._outputs.refuse("overlay-old", author)
        return False

    def announced(self, info: BrokerInfo, ask_us: int) -> None:
        """Note the version that a broker announced. If it does not come by itself, the broker is asked for it."""
        known = self.table.get(info.prefix)
        if info.roster and (known is None or is_later(info.roster, known.version)):
            self._wanted.setdefault(info.node, ask_us)

    def asking(self, now: int, reach: Container[NodeId], again_us: int) -> list[NodeId]:
        """Return the brokers to ask for their rosters now. Those out of reach are asked later."""
        found = []
        for node in [node for node, due_us in self._wanted.items() if due_us <= now]:
            del self._wanted[node]
            if (info := self._brokers.get(node)) is not None:
                self.announced(info, again_us)
                if node in self._wanted and node in reach:
                    found.append(node)
        return found

    def forget(self, prefix: bytes) -> None:
        """Drop the roster of a broker that is gone."""
        if self.table.get(prefix) is not None:
            self.table.remove(prefix)
            self._changed.pop(prefix, None)

    def drop_strangers(self) -> None:
        """Drop the rosters of brokers that had not announced themselves here at the last call either."""
        strange = {each.prefix for each in self.table if each.prefix != self._own} - {
            each.prefix for each in self._brokers
        }
        # At the second call only. A roster often arrives before the announcement of its broker, as
        # it is passed on at once.
        for prefix in sorted(strange & self._strange):
            self.forget(prefix)
        self._strange = strange
