"""Records of acknowledgements: making them, dividing ids among them, and storing them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from carrypost.gossip.transfers import signed
from carrypost.gossip.wire.cloud_frames import ACKED_IDS_MAX, AckRecord

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from carrypost.model.ids import MessageId
    from carrypost.security.identity import Identity

_ROOM_BYTES = 160
"""Largest overhead of a record beside its ids, and of a datagram around it, in bytes."""
_ID_BYTES = 2
"""Overhead of an id, in bytes."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(AckRecord).decode


def signed_record(identity: Identity, until_us: int, messages: Iterable[MessageId]) -> AckRecord:
    """Return the record by which this identity acknowledges messages."""
    return signed.sign(identity, AckRecord(signed.author(identity), until_us, tuple(messages)))


def pages(messages: Iterable[MessageId], datagram_bytes: int) -> Iterator[list[MessageId]]:
    """Yield the ids of one record after another: as many as it may name, and as fit into a datagram."""
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
    """Return the row of a record."""
    return _encode(record)


def from_row(row: bytes) -> AckRecord:
    """Return the record of a row."""
    return _decode(row)
