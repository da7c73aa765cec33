"""Records of acknowledgements as bytes: what is signed, what is stored, and by which number one is known."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import msgspec

from carrypost.errors import ForgeryError
from carrypost.gossip.wire.cloud_frames import ACKED_IDS_MAX, FINGERPRINT_BYTES, AckRecord
from carrypost.model.ids import NodeId, node_id
from carrypost.security.identity import Domain, verify_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from carrypost.model.ids import MessageId
    from carrypost.security.identity import Identity

_KEY_BYTES = 32
_ROOM_BYTES = 160
"""Bytes that a record has beside its ids, and a datagram around it, at most."""
_ID_BYTES = 2
"""Bytes that an id takes beside itself."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(AckRecord).decode


def _signed(record: AckRecord) -> bytes:
    return _encode((record.author, record.until_us, record.messages))


def fingerprint(record: AckRecord) -> int:
    """Return the number by which lists know a record. The signature does not count: who signs twice says it once."""
    return int.from_bytes(hashlib.sha256(_signed(record)).digest()[:FINGERPRINT_BYTES], "big")


def made(identity: Identity, until_us: int, messages: Iterable[MessageId]) -> AckRecord:
    """Return the record by which this identity acknowledges messages."""
    author = identity.author
    plain = AckRecord(author.encode() if isinstance(author, str) else author, until_us, tuple(messages))
    return msgspec.structs.replace(plain, signature=identity.sign_bytes(Domain.ACK_RECORD, _signed(plain)))


def author_of(record: AckRecord, *, signed: bool) -> NodeId:
    """Return the node that a record says it is of; raises `ForgeryError` for what is no author at this security."""
    if bool(record.signature) is not signed or (signed and len(record.author) != _KEY_BYTES):
        raise ForgeryError("security-level")
    if signed:
        return node_id(record.author)
    try:
        return NodeId(record.author.decode())
    except UnicodeDecodeError:
        raise ForgeryError("security-level") from None


def verify(record: AckRecord) -> None:
    """Raise `ForgeryError` unless its author, a public key, signed the record."""
    verify_bytes(record.author, Domain.ACK_RECORD, _signed(record), record.signature)


def pages(messages: Iterable[MessageId], datagram_bytes: int) -> Iterator[list[MessageId]]:
    """Give the ids of one record after another: as many as it may name, and as fit into a datagram."""
    page: list[MessageId] = []
    room = 0
    for message in messages:
        size = len(message) + _ID_BYTES
        if size > room or len(page) == ACKED_IDS_MAX:
            if page:
                yield page
            page, room = [], max(datagram_bytes - _ROOM_BYTES, size)
        page.append(message)
        room -= size
    if page:
        yield page


def to_row(record: AckRecord) -> bytes:
    """Return what the store keeps of a record."""
    return _encode(record)


def from_row(row: bytes) -> AckRecord:
    """Return the record that the store kept."""
    return _decode(row)
