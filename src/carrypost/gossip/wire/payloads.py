"""Payloads between frames and the driver's store: inserted into outgoing frames, and assembled for programs.

The host keeps no payloads: its frames name them, and the driver inserts them. Both drivers do it here, each with its
own function to read a piece. Frames whose payload is gone from the store are dropped, and reported.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from carrypost.config import Limits
from carrypost.errors import StoreError
from carrypost.gossip.wire.frames import Data, Frame, OpenParcel, OpenRelay, StoredData
from carrypost.gossip.wire.pieces import unpack
from carrypost.model.descriptor import Descriptor, PayloadCodec
from carrypost.model.ids import MessageId
from carrypost.security.sealing import open_payload

_BLANK = PayloadCodec.BLANK
Read = Callable[[MessageId, int], bytes | None]
"""A function that returns a piece of a message; None if it is gone."""


def fill_payloads(frames: Sequence[Frame], read: Read) -> tuple[Sequence[Frame], Sequence[MessageId]]:
    """Return the frames with their payloads, without those whose payload is gone; and the messages of the latter."""
    for frame in frames:
        # Of most frames nothing is to be filled in: that is seen by `type`, at a fifth of what `isinstance` takes.
        kind = type(frame)
        if (
            kind is StoredData
            or (type(frame) is OpenParcel and frame.body is None and frame.descriptor.codec is not _BLANK)
            or kind is OpenRelay
        ):
            break
    else:
        return frames, ()
    found: list[Frame] = []
    gone: dict[MessageId, None] = {}
    for frame in frames:
        full: Frame | None = frame
        message = MessageId(b"")
        if isinstance(frame, StoredData):
            full, message = _data(frame, read), frame.message
        elif isinstance(frame, OpenParcel) and frame.body is None and frame.descriptor.codec is not _BLANK:
            full, message = _parcel(frame, read), frame.descriptor.id
        elif isinstance(frame, OpenRelay):
            inner, missing = fill_payloads(frame.inner, read)
            gone.update(dict.fromkeys(missing))
            if not inner:
                continue
            full = msgspec.structs.replace(frame, inner=tuple(inner))
        if full is None:
            gone[message] = None
        else:
            found.append(full)
    return found, tuple(gone)


def assemble_payload(descriptor: Descriptor, read: Read, limits: Limits) -> bytes:
    """Return a whole payload as it was published.

    Raises `StoreError` if it is gone, `RemoteError` if it does not expand.
    """
    if descriptor.codec == PayloadCodec.BLANK or not descriptor.length:
        return unpack(descriptor, b"", limits)
    pieces: list[bytes] = []
    for piece in range(descriptor.pieces):
        body = read(descriptor.id, piece)
        if body is None:
            raise StoreError(f"piece {piece} of {descriptor.shown} is gone")
        pieces.append(body)
    sent, unsealed = b"".join(pieces), descriptor.unsealed
    return unpack(descriptor, sent if unsealed is None else open_payload(unsealed, sent), limits)


def _data(frame: StoredData, read: Read) -> Data | None:
    body = b""
    if frame.length:
        piece = read(frame.message, frame.piece)
        if piece is None or frame.offset + frame.length > len(piece):
            return None
        body = piece if frame.length == len(piece) else piece[frame.offset : frame.offset + frame.length]
    return Data(frame.handle, frame.serial, frame.index, frame.last, body)


def _parcel(frame: OpenParcel, read: Read) -> OpenParcel | None:
    descriptor = frame.descriptor
    body = read(descriptor.id, 0) if descriptor.length else b""
    if body is None or len(body) != descriptor.length:
        return None
    return OpenParcel(frame.handle, frame.serial, frame.hops, frame.age_ms, frame.last, descriptor, body)
