"""Packed forms that brokers send each other: entries about themselves, their versions, and routes of legs.

An entry with six neighbours has 40 bytes. Entries are not signed by their authors, because a signature of 64 bytes
would make an entry 2.6 times as long. A broker that lies can make paths longer by entries, and by rosters have events
sent to brokers that do not need them. Rosters (`overlay.tables`) have versions of the same kind, and are packed in the
same way. The route of a leg lists the brokers that are still to be passed, by four bytes each.

What holds: of two versions of one broker at most one is the later, and no route passes a broker twice.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple, Protocol

from carrypost.model.ids import PREFIX_BYTES

_HEAD = struct.Struct(">4sIBB")
"""Head of an entry: prefix, version, load, number of neighbours."""
_LINK = struct.Struct(">4sB")
_STAMP = struct.Struct(">4sI")
"""A broker and the version of its entry."""
HOPS_MAX = 255
ENTRIES_BYTES_MAX = 5 * 1024
"""Bytes of packed entries in one item: 128 of six neighbours each. More go in several messages."""
STAMPS_BYTES_MAX = 65_536 * _STAMP.size
ROUTE_BROKERS_MAX = 32
"""Brokers of one route; honest paths are shorter by far."""
ROUTES_MAX = 64
"""Routes of one leg."""
ROUTES_BYTES_MAX = 4 * 1024
"""Bytes of the routes of one leg, whose descriptor also contains the descriptor that it passes on."""
_ROUTE_BYTES = 2
"""Bytes that precede each route in the encoded leg."""
DIGEST_BYTES = 8
_VERSIONS = 2**32


class Versioned(Protocol):
    """A value that each broker writes about itself, and others pass on: an entry, or a roster."""

    @property
    def prefix(self) -> bytes:
        """Four bytes that identify the broker (`node_prefix`)."""

    @property
    def version(self) -> int:
        """Version, which `is_later` compares with others of the same broker."""

    @property
    def fingerprint(self) -> int:
        """Contribution to a digest."""


class Entry(NamedTuple):
    """The neighbours of one broker, as it reports them itself."""

    prefix: bytes
    """Four bytes that identify the broker (`node_prefix`)."""
    version: int
    """Number by which `is_later` compares entries: the upper half is the broker's life, the lower half a sequence."""
    load: int
    """Load in percent of the capacity; 255 means 255 or more."""
    neighbours: tuple[tuple[bytes, int], ...]
    """Neighbours by their four bytes, with hops, ascending."""

    @property
    def fingerprint(self) -> int:
        """Contribution of this entry to a digest."""
        return hash_of(self.prefix, self.version)


def first_version(boot: int) -> int:
    """Return the first version of a broker's entries in one of its lives."""
    # The incarnation is in the upper half, so that a restarted broker, which does not store its
    # version, is later than all that it wrote before.
    return boot % 2**16 << 16


def next_version(version: int) -> int:
    """Return the version after this one."""
    return (version + 1) % _VERSIONS


def is_later(version: int, other: int) -> bool:
    """Return True if a version is later than another. They wrap around, so that none is the last (RFC 1982)."""
    # Of two versions exactly half the circle apart neither is the later, which is what the
    # invariant demands.
    return 0 < (version - other) % _VERSIONS < _VERSIONS // 2


def hash_of(prefix: bytes, version: int, kind: int = 1) -> int:
    """Return 64 bits that stand for an entry, or a row of another kind (splitmix64).

    Brokers that forge entries need no collisions to lie.
    """
    # A digest is an XOR of these values. Without mixing, changes of two brokers by the same amount
    # would cancel out, and go unnoticed.
    mixed = (int.from_bytes(prefix, "big") << 32 | version) + kind * 0x9E3779B97F4A7C15
    mixed = ((mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9) % 2**64
    mixed = ((mixed ^ mixed >> 27) * 0x94D049BB133111EB) % 2**64
    return mixed ^ mixed >> 31


def pack(entries: Iterable[Entry]) -> list[bytes]:
    """Return entries as they travel, cut into as many parts as items are needed for them."""
    parts = [bytearray()]
    for each in entries:
        links = b"".join(_LINK.pack(prefix, hops) for prefix, hops in each.neighbours)
        packed = _HEAD.pack(each.prefix, each.version, each.load, len(each.neighbours)) + links
        if len(parts[-1]) + len(packed) > ENTRIES_BYTES_MAX:
            parts.append(bytearray())
        parts[-1] += packed
    return [bytes(part) for part in parts]


def unpack(packed: bytes) -> list[Entry]:
    """Return the entries that were packed; raises `ValueError` for anything else."""
    found: list[Entry] = []
    at = 0
    while at < len(packed):
        if len(packed) - at < _HEAD.size:
            raise ValueError("an entry is cut short")
        prefix, version, load, count = _HEAD.unpack_from(packed, at)
        at += _HEAD.size
        end = at + count * _LINK.size
        if end > len(packed):
            raise ValueError("an entry is cut short")
        links = tuple(_LINK.iter_unpack(packed[at:end]))
        # A canonical form: one set of neighbours has one encoding, and no link is listed twice.
        names = [name for name, _ in links]
        if names != sorted(set(names)) or prefix in names or any(not hops for _, hops in links):
            raise ValueError("neighbours must be in order, listed once each, and at least one hop away")
        found.append(Entry(prefix, version, load, links))
        at = end
    return found


def pack_stamps(entries: Iterable[Versioned]) -> bytes:
    """Return brokers and versions of entries, or of rosters, as they travel."""
    return b"".join(_STAMP.pack(each.prefix, each.version) for each in entries)


def unpack_stamps(packed: bytes) -> dict[bytes, int]:
    """Return versions by broker; raises `ValueError` for bytes that `pack_stamps` cannot have made."""
    if len(packed) % _STAMP.size:
        raise ValueError("a version is cut short")
    return dict(_STAMP.iter_unpack(packed))


def pages(routes: Iterable[bytes]) -> list[tuple[bytes, ...]]:
    """Return routes cut into as many parts as legs are needed for them."""
    found: list[list[bytes]] = []
    room = 0
    for route in routes:
        room -= len(route) + _ROUTE_BYTES
        if room < 0 or len(found[-1]) == ROUTES_MAX:
            found.append([])
            room = ROUTES_BYTES_MAX - len(route) - _ROUTE_BYTES
        found[-1].append(route)
    return [tuple(page) for page in found]


def brokers_of(route: bytes, own: bytes) -> list[bytes]:
    """Return the brokers of a route, in order; raises `ValueError` for one that is cut short or comes back."""
    if len(route) % PREFIX_BYTES:
        raise ValueError("a route is cut short")
    found = [route[at : at + PREFIX_BYTES] for at in range(0, len(route), PREFIX_BYTES)]
    if len(set(found)) < len(found) or own in found:
        raise ValueError("a route passes a broker twice")
    return found
