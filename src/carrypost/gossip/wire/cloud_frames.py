"""Frames of acknowledgements and links, which everybody passes on, and of sessions of the strategy `anti-entropy`.

A recipient signs which messages it has (`AckRecord`); `gossip.acked` keeps such records and exchanges them. Lists of
them are compared by `AckList`, a little at a time, in four rounds.

In a session (`gossip.strategy.sessions`) one host lists all that it has, in parts (`Summary`), and the other answers
each part with what it lacks of it (`Missing`).

In an island (`carrypost.island`) a `Relay` carries a datagram to a host that is no neighbour, along a path that its
sender chose. Each host tells neighbours which of them are its relays, and a digest of what it knows (`LinkState`), and
tells everybody of its links (`LinkRecord`).
"""

from __future__ import annotations

from struct import iter_unpack
from typing import TYPE_CHECKING, Annotated

import msgspec

from carrypost.gossip.wire.fields import Count, Floor, MessageKey, Part, Parts
from carrypost.model.ids import PREFIX_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable

ACKED_IDS_MAX = 32
"""Messages that one record may name."""
ACK_PARTS = 64
"""A list is compared by so many parts, by the leading bits of fingerprints."""
PATH_BYTES_MAX = 65 * PREFIX_BYTES
"""Of the longest path that any setting allows."""
HEAD_BYTES = 8
"""Of the prefix of a host and the stamp of what it says."""
FINGERPRINT_BYTES = 8
"""Of the fingerprint of a record or a message, and of an XOR over several."""


class AckRecord(msgspec.Struct, frozen=True, array_like=True, tag=12):
    """The record that its author, one of their recipients, has these messages."""

    author: Annotated[bytes, msgspec.Meta(min_length=1, max_length=64)]
    """Public key of the author; where security is off, its name in UTF-8."""
    until_us: Count
    """Time at which the record ends: after the deadlines of the messages, or a day."""
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
    """Fingerprints that are listed, or wanted."""


class Summary(msgspec.Struct, frozen=True, array_like=True, tag=14):
    """One part of the list of what its sender has, and need not get."""

    session: Count
    """Number of the session among those of the sender."""
    part: Part
    parts: Parts
    floor: Floor
    """Rank below which the sender takes nothing."""
    fingerprints: bytes = b""
    """Fingerprints of messages, ascending, the highest byte first. A part is about all fingerprints from its first to
    its last. It begins with the one with which the part before it ends; the first part is about all before it as well,
    the last about all behind it."""


class Missing(msgspec.Struct, frozen=True, array_like=True, tag=15):
    """The answer to one part of a `Summary`: what its sender lacks of it."""

    session: Count
    """Number of the session."""
    part: Part
    fingerprints: bytes = b""
    """Some of those in the part, in the same form."""
    floor: Floor = 0
    """Rank below which the sender takes nothing."""


class Relay(msgspec.Struct, frozen=True, array_like=True, tag=18):
    """A datagram on its way along a path, or back along it the news that it could not go on."""

    path: Annotated[bytes, msgspec.Meta(min_length=2 * PREFIX_BYTES, max_length=PATH_BYTES_MAX)]
    """Prefixes of the hosts on the path, none twice: its source, relays, its target."""
    position: Annotated[int, msgspec.Meta(ge=1, le=PATH_BYTES_MAX // PREFIX_BYTES)]
    """Place on the path of the host that it is sent to, from 0 for the source."""
    broken: Annotated[bytes, msgspec.Meta(max_length=2 * PREFIX_BYTES)] = b""
    """Prefixes of the two ends of a link that is gone. With a body: the path leads round it, and is not changed again.
    Without one: what was sent along the path was dropped there. Empty: no link was found gone."""
    body: bytes = b""
    """A datagram, which is for the target alone: offers, requests, acknowledgements, and what carries messages."""


def hops(path: bytes) -> list[bytes]:
    """Return the prefixes of the hosts on the path of a `Relay`."""
    return cut(path, PREFIX_BYTES)


class LinkState(msgspec.Struct, frozen=True, array_like=True, tag=16):
    """Relays of its sender, and a digest of what it knows of links. Prefixes are packed, 4 bytes each, ascending."""

    digest: Annotated[bytes, msgspec.Meta(min_length=FINGERPRINT_BYTES, max_length=FINGERPRINT_BYTES)]
    """The XOR over the fingerprints of the records of all hosts that it can reach, its own included."""
    relays: bytes = b""
    """Prefixes of the neighbours that are its relays."""
    heads: bytes = b""
    """Prefix and stamp, 4 bytes each, of the records that it has, by prefix. A list is about all hosts from its first
    prefix to its last; where one has the stamp 0, there is no record. Empty: nothing is listed."""
    wanted: bytes = b""
    """Prefixes of hosts whose records it wants. Four zero bytes: whatever it lacks, by its digest."""
    one_way: bytes = b""
    """Prefixes in its heard-list of those that do not hear it."""


class LinkRecord(msgspec.Struct, frozen=True, array_like=True, tag=17):
    """The links of one host, told to everybody by itself. The highest boot counts, and in it the highest sequence."""

    author: Annotated[bytes, msgspec.Meta(min_length=1, max_length=64)]
    """Public key of the author; where security is off, its name in UTF-8."""
    boot: Count
    """Number of its life."""
    sequence: Count
    """Number of the record in that life."""
    chosen_by: bytes = b""
    """Prefixes of the neighbours whose relay it is, 4 bytes each, ascending."""
    denied: bytes = b""
    """Prefixes of hosts that claim to be its neighbours, and are not, in the same form."""
    signature: Annotated[bytes, msgspec.Meta(max_length=64)] = b""
    """Of all that stands before it; empty where security is off."""


def cut(data: bytes, size: int) -> list[bytes]:
    """Return packed parts of so many bytes."""
    return [data[at : at + size] for at in range(0, len(data), size)]


def packed(numbers: Iterable[int]) -> bytes:
    """Return numbers of 64 bits as bytes."""
    return b"".join([each.to_bytes(FINGERPRINT_BYTES, "big") for each in numbers])


def unpacked(data: bytes) -> list[int]:
    """Return the numbers in these bytes."""
    return [number for (number,) in iter_unpack(">Q", data)]
