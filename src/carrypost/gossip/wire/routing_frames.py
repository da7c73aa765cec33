"""Frames of routing: tickets of `spray-and-wait`; tables of encounters, and lists of messages, of `prophet`.

Hosts with another strategy skip these kinds. Such a host counts as having one ticket of each message, and no table.
"""

from __future__ import annotations

from struct import Struct, pack, unpack
from typing import TYPE_CHECKING, Annotated

import msgspec

from carrypost.gossip.slots import bits, mask_of
from carrypost.gossip.wire.fields import Count, Part, Parts, Serial

if TYPE_CHECKING:
    from collections.abc import Sequence

CERTAIN = 1 << 15
"""The probability 1 in a table; the smallest one is 1."""
KEY_BYTES = 8
"""Of the name of a node in a table: the first bytes of SHA-256 over its id."""
_ENTRY = Struct(f">{KEY_BYTES}sH")
ENTRY_BYTES = _ENTRY.size
LEVEL_BYTES = ENTRY_BYTES - KEY_BYTES
LISTED_MAX = 1_024
"""Messages in one list."""
LOW_BITS = 10
"""Bits of a short hash beyond those that number the list: two different messages look equal once in 1,024 lists."""


class Tickets(msgspec.Struct, frozen=True, array_like=True, tag=19):
    """The tickets that go with the messages of an offer: the neighbour may pass each message on to so many hosts."""

    serial: Serial
    """Serial of the offer, which was sent before."""
    copies: tuple[Annotated[int, msgspec.Meta(ge=0, le=2**16)], ...]
    """Tickets for each of its entries, in the same order."""


class Encounters(msgspec.Struct, frozen=True, array_like=True, tag=20):
    """One part of the table of the nodes that the sender is likely to meet again."""

    part: Part
    parts: Parts
    entries: bytes = b""
    """For each node 8 bytes of SHA-256 over its id, ascending, and a probability in units of 2^-15, as 2 bytes. With
    `names` the probabilities alone."""
    names: bytes = b""
    """The first 8 bytes of SHA-256 over the names, for a neighbour that knows the same nodes."""


class Listing(msgspec.Struct, frozen=True, array_like=True, tag=21):
    """The messages that the sender knows, as short hashes under a key that is used once."""

    run: Count
    """Number of the comparison among those that the sender began."""
    key: Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
    """Key of the hashes: those are the leading bits, 10 more than the number of messages has, of the lower 64 bits of
    fingerprint * (key * 2^32 + 2654435769)."""
    count: Annotated[int, msgspec.Meta(ge=0, le=LISTED_MAX)]
    """Number of messages."""
    hashes: bytes = b""
    """Hashes, ascending, as a little-endian number: the lower 10 bits of each, then a bitset with one bit for each, at
    its number in the list plus its upper bits."""


class Held(msgspec.Struct, frozen=True, array_like=True, tag=22):
    """The answer to a `Listing`: the messages on it that its sender knows, too."""

    run: Count
    """Number of the comparison."""
    held: bytes = b""
    """Little-endian; bit i stands for message i of the list."""


class NamesRequest(msgspec.Struct, frozen=True, array_like=True, tag=23):
    """Request for the names of a table that came without them."""

    names: Annotated[bytes, msgspec.Meta(min_length=KEY_BYTES, max_length=KEY_BYTES)]
    """As in that table."""
    count: Annotated[int, msgspec.Meta(ge=1, le=LISTED_MAX)]
    """Number of nodes that the sender knows, itself among them."""
    hashes: bytes
    """Leading bits of their names in tables, 10 more than the number of nodes has, in the form of a `Listing`."""


class Names(msgspec.Struct, frozen=True, array_like=True, tag=24):
    """The answer to a `NamesRequest`."""

    names: Annotated[bytes, msgspec.Meta(min_length=KEY_BYTES, max_length=KEY_BYTES)]
    """As in the request."""
    held: bytes = b""
    """Little-endian; bit i stands for node i of the request: it is in the table."""
    others: bytes = b""
    """Names of all other nodes in the table, 8 bytes each, ascending."""


def listing_bytes(count: int) -> int:
    """Return the length of the hashes of this many messages."""
    return (LOW_BITS * count + count + (1 << count.bit_length()) + 7) // 8


def packed_hashes(hashes: Sequence[int]) -> bytes:
    """Return ascending short hashes as bytes."""
    low = (1 << LOW_BITS) - 1
    lower = sum((each & low) << LOW_BITS * number for number, each in enumerate(hashes))
    upper = mask_of([(each >> LOW_BITS) + number for number, each in enumerate(hashes)])
    return (lower | upper << LOW_BITS * len(hashes)).to_bytes(listing_bytes(len(hashes)), "little")


def unpacked_hashes(data: bytes, count: int) -> list[int] | None:
    """Return the short hashes in these bytes; None if they are not as many, or not in order."""
    number, low = int.from_bytes(data, "little"), (1 << LOW_BITS) - 1
    uppers = [each - place for place, each in enumerate(bits(number >> LOW_BITS * count))]
    if len(uppers) != count or any(each >> count.bit_length() for each in uppers[-1:]):
        return None
    found = [upper << LOW_BITS | number >> LOW_BITS * place & low for place, upper in enumerate(uppers)]
    return found if found == sorted(found) else None


def packed_entries(entries: list[tuple[bytes, int]]) -> bytes:
    """Return the entries of a table as bytes."""
    return b"".join([_ENTRY.pack(*each) for each in entries])


def packed_levels(levels: list[int]) -> bytes:
    """Return probabilities without the names of their nodes as bytes."""
    return pack(f">{len(levels)}H", *levels)


def unpacked_levels(data: bytes) -> tuple[int, ...]:
    """Return the probabilities in these bytes."""
    return unpack(f">{len(data) // LEVEL_BYTES}H", data)


def unpacked_entries(data: bytes) -> list[tuple[bytes, int]]:
    """Return the entries in these bytes."""
    return list(_ENTRY.iter_unpack(data))
