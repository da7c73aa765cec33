"""Frames of the acknowledgements that recipients give, which everybody passes on.

A recipient signs which messages it has (`AckRecord`); `gossip.acked` keeps such records and exchanges them. Lists of
them are compared by `AckList`, a little at a time, in four rounds.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from carrypost.gossip.wire.fields import Count, MessageKey

ACKED_IDS_MAX = 32
"""Messages that one record may name."""
ACK_PARTS = 64
"""A list is compared by so many parts, by the leading bits of fingerprints."""
FINGERPRINT_BYTES = 8
"""Of the fingerprint of a record, and of an XOR over several."""


class AckRecord(msgspec.Struct, frozen=True, array_like=True, tag=12):
    """Its author, who is one of their recipients, has these messages."""

    author: Annotated[bytes, msgspec.Meta(min_length=1, max_length=64)]
    """Its public key; where security is off, its name in UTF-8."""
    until_us: Count
    """When it ends: after the deadlines of the messages, or a day."""
    messages: Annotated[tuple[MessageKey, ...], msgspec.Meta(min_length=1, max_length=ACKED_IDS_MAX)]
    """Ids of the messages, each once."""
    signature: Annotated[bytes, msgspec.Meta(max_length=64)] = b""
    """Of all that stands before it; empty where security is off."""


class AckList(msgspec.Struct, frozen=True, array_like=True, tag=13):
    """One step of comparing lists of `AckRecord`s. Numbers of 64 bits are packed, the highest byte first."""

    round: Annotated[int, msgspec.Meta(ge=0, le=3)]
    """0: the XOR over all; 1: that over each part; 2: the fingerprints in some parts; 3: those that are wanted."""
    xors: bytes = b""
    """One XOR in round 0, 64 in round 1; in round 2 a bitset of the parts that are listed."""
    fingerprints: bytes = b""
    """What is listed, or wanted."""
