"""Frames of routing: tickets of `spray-and-wait`, and the tables of encounters of `prophet`.

Hosts with another strategy skip both kinds. Such a host counts as having one ticket of each message, and no table.
"""

from __future__ import annotations

from struct import Struct, pack, unpack
from typing import Annotated

import msgspec

from carrypost.gossip.wire.fields import Part, Parts, Serial

CERTAIN = 1 << 15
"""The probability 1 in a table; the smallest one is 1."""
KEY_BYTES = 8
"""Of the name of a node in a table: the first bytes of SHA-256 over its id."""
_ENTRY = Struct(f">{KEY_BYTES}sH")
ENTRY_BYTES = _ENTRY.size
LEVEL_BYTES = ENTRY_BYTES - KEY_BYTES


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
