"""Frames of acknowledgements and links, which all hosts pass on, and of sessions of the strategy `anti-entropy`.

A recipient signs which messages it has (`AckRecord`); `gossip.acked` keeps such records and exchanges them. Lists of
them are compared by `AckList`, a little at a time, in four rounds.

In a session (`gossip.strategy.sessions`) one host lists all that it has, in parts (`Summary`), and the other answers
each part with what it lacks of it (`Missing`).

In an island (`carrypost.island`) a `Relay` carries a datagram to a host that is no neighbour, along a path that its
sender chose. Each host sends its neighbours the list of its relays and a digest of what it knows (`LinkState`), and
sends all hosts the list of its links (`LinkRecord`).
"""

from __future__ import annotations

from struct import pack, unpack
from typing import TYPE_CHECKING, Annotated

import msgspec

from carrypost.gossip.wire.fields import Count, Floor, MessageKey, Part, Parts
from carrypost.model.ids import PREFIX_BYTES

if TYPE_CHECKING:
    from collections.abc import Collection

ACKED_IDS_MAX = 32
"""Messages that one record may name."""
ACK_PARTS = 64
"""Parts by which a list is compared, by the leading bits of fingerprints."""
PATH_BYTES_MAX = 65 * PREFIX_BYTES
"""Of the longest path that any setting allows."""
HEAD_BYTES = 8
"""Of the prefix of a host and the stamp of what it says."""
FINGERPRINT_BYTES = 8
"""Of the fingerprint of a record or a message, and of an XOR over several."""


class AckRecord(msgspec.Struct, frozen=True, array_like=True, tag=12):
    """Record by which its author, a recipient of these messages, acknowledges that it has them."""

    author: Annotated[bytes, msgspec.Meta(min_length=1, max_length=64)]
    """Public key of the author; where security is off, its name in UTF-8."""
    until_us: Count
    """Time at which the record expires: after the deadlines of the messages, or after a day."""
    messages: Annotated[tuple[MessageKey, ...], msgspec.Meta(min_length=1, max_length=ACKED_IDS_MAX)]
    """Ids of the messages, each once."""
    signature: Annotated[bytes, msgspec.Meta(max_length=64)] = b""
    """Signature of all fields before it; empty where security is off."""


class AckList(msgspec.Struct, frozen=True, array_like=True, tag=13):
    """One step of comparing lists of `AckRecord`s. Numbers of 64 bits are packed, big-endian."""

    round: Annotated[int, msgspec.Meta(ge=0, le=3)]
    """0: the XOR over all; 1: the XOR over each part; 2: the fingerprints in some parts; 3: wanted fingerprints."""
    xors: bytes = b""
    """One XOR in round 0, 64 in round 1; in round 2 a bitset of the parts that are listed."""
    fingerprints: bytes = b""
    """Fingerprints that are listed, or wanted."""


class Summary(msgspec.Struct, frozen=True, array_like=True, tag=14):
    """One part of the list of messages that its sender has and does not need."""

    session: Count
    """Number of the session among the sender's sessions."""
    part: Part
    parts: Parts
    floor: Floor
    """Rank below which the sender accepts no message."""
    fingerprints: bytes = b""
    """Fingerprints of messages, ascending, big-endian. A part covers all fingerprints from its first to its last. It
    begins with the last fingerprint of the part before it. The first part also covers all before it, the last part all
    after it."""


class Missing(msgspec.Struct, frozen=True, array_like=True, tag=15):
    """The answer to one part of a `Summary`: the messages in it that its sender lacks."""

    session: Count
    """Number of the session."""
    part: Part
    fingerprints: bytes = b""
    """Fingerprints from that part, in the same form."""
    floor: Floor = 0
    """Rank below which the sender accepts no message."""


class Relay(msgspec.Struct, frozen=True, array_like=True, tag=18):
    """A datagram that is forwarded along a path, or the report to its source that it could not be forwarded."""

    path: Annotated[bytes, msgspec.Meta(min_length=2 * PREFIX_BYTES, max_length=PATH_BYTES_MAX)]
    """Prefixes of the hosts on the path, none twice: the source, the relays, the target."""
    position: Annotated[int, msgspec.Meta(ge=1, le=PATH_BYTES_MAX // PREFIX_BYTES)]
    """Index on the path of the host that the frame is sent to; the source is 0."""
    broken: Annotated[bytes, msgspec.Meta(max_length=2 * PREFIX_BYTES)] = b""
    """Prefixes of the two ends of a missing link. With a body: the path avoids the link, and is not changed again.
    Without a body: the datagram was dropped there. Empty: no link was missing."""
    body: bytes = b""
    """Datagram for the target only: offers, requests, acknowledgements, and frames that carry messages."""


def hops(path: bytes) -> list[bytes]:
    """Return the prefixes of the hosts on the path of a `Relay`."""
    return cut(path, PREFIX_BYTES)


class LinkState(msgspec.Struct, frozen=True, array_like=True, tag=16):
    """The sender's relays, and a digest of the links that it knows. Prefixes are packed, 4 bytes each, ascending."""

    digest: Annotated[bytes, msgspec.Meta(min_length=FINGERPRINT_BYTES, max_length=FINGERPRINT_BYTES)]
    """XOR over the fingerprints of the records of all hosts that the sender can reach, including its own."""
    relays: bytes = b""
    """Prefixes of the neighbours that are the sender's relays."""
    heads: bytes = b""
    """Prefix and stamp, 4 bytes each, of the records that the sender has, by prefix. A list covers all hosts from its
    first prefix to its last; the stamp 0 means that there is no record. Empty: nothing is listed."""
    wanted: bytes = b""
    """Prefixes of hosts whose records the sender wants. Four zero bytes: all that it lacks, according to its digest."""
    one_way: bytes = b""
    """Prefixes in the sender's heard-list of nodes that do not hear it."""


class LinkRecord(msgspec.Struct, frozen=True, array_like=True, tag=17):
    """The links of one host, sent to all hosts. The highest incarnation counts, then the highest sequence."""

    author: Annotated[bytes, msgspec.Meta(min_length=1, max_length=64)]
    """Public key of the author; where security is off, its name in UTF-8."""
    incarnation: Count
    """Number of the author's incarnation."""
    sequence: Count
    """Number of the record in that incarnation."""
    chosen_by: bytes = b""
    """Prefixes of the neighbours that chose the author as a relay, 4 bytes each, ascending."""
    denied: bytes = b""
    """Prefixes of hosts that wrongly claim to be the author's neighbours, in the same form."""
    signature: Annotated[bytes, msgspec.Meta(max_length=64)] = b""
    """Signature of all fields before it; empty where security is off."""


def cut(data: bytes, size: int) -> list[bytes]:
    """Return packed parts of `size` bytes."""
    return [data[at : at + size] for at in range(0, len(data), size)]


def packed(numbers: Collection[int]) -> bytes:
    """Return numbers of 64 bits as bytes."""
    return pack(f">{len(numbers)}Q", *numbers)


def unpacked(data: bytes) -> list[int]:
    """Return the numbers in these bytes."""
    return list(unpack(f">{len(data) // FINGERPRINT_BYTES}Q", data))
