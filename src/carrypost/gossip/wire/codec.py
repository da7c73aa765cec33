"""Frames to datagrams and back, where alone frames are bytes, and payloads between frames and the driver's store.

A datagram is the magic ``CP``, a version byte and a msgpack array of frames; each frame is an array that starts with
its kind's number. (JOMS-12 §III.A has the exchange; the bytes are ours.) Frames keep their order, and none spans two
datagrams: larger things are frames of several parts.

The invariant: `wire_size(frame)` is exactly the number of bytes that `encode` makes of it, so an emulation that never
encodes anything counts what a real node would send.

`decode` accepts any bytes from any sender and never raises. Stage one cuts the array into frames without reading them;
stage two decodes each by its kind and checks it (`gossip.wire.checks`), so that one bad frame does not take the others
with it. Refused frames are counted under their `Refusal`. Whatever lengths a peer declares, memory is allocated only
for bytes that are there.

The host keeps no payloads: its frames name them. The driver inserts them into outgoing frames (`fill_payloads`), and
assembles them for programs (`assemble_payload`). Both drivers do it here, each with its own function to read a piece.
Frames whose payload is gone from the store are dropped, and reported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec

from carrypost.config import Limits
from carrypost.errors import DecodeError, LimitError, LocalError, RemoteError, StoreError
from carrypost.gossip.wire import frames as f
from carrypost.gossip.wire.checks import CHECKS, Check, Refusal
from carrypost.gossip.wire.frames import Data, Decoded, Frame, OpenParcel, OpenRelay, StoredData, WireFrame
from carrypost.gossip.wire.pieces import unpack
from carrypost.model import descriptor as descriptors
from carrypost.model.descriptor import Descriptor, PayloadCodec
from carrypost.model.ids import MessageId
from carrypost.security import packets
from carrypost.security.sealing import open_payload

MAGIC: Final = b"CP"
VERSION: Final = 1
FRAMES_MAX: Final = 512
"""Number of frames packed into one datagram; the default of `Limits.frames_max`."""

_PREAMBLE: Final = MAGIC + bytes((VERSION,))
_OVERHEAD_SHORT: Final = len(_PREAMBLE) + 1
_OVERHEAD_LONG: Final = len(_PREAMBLE) + 3
# What msgpack calls fixarray, array 16 and 32, positive fixint, uint 8 to 64.
_SHORT_ARRAY: Final = 0x90
_SHORT_ARRAY_MAX: Final = 15
_ARRAY_WIDTHS: Final = {0xDC: 2, 0xDD: 4}
_SHORT_NUMBER_MAX: Final = 0x7F
_NUMBER_WIDTHS: Final = {0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8}
# bin 8 to 32.
_SHORT_BINARY: Final = 0xC4
_BINARY_WIDTHS: Final = {_SHORT_BINARY: 1, 0xC5: 2, 0xC6: 4}


def encode(frame: Frame) -> bytes:
    """Return the bytes of one frame."""
    wire_form = _WIRE_FORMS.get(type(frame))
    return _encode(frame if wire_form is None else wire_form(frame))


def wire_size(frame: Frame) -> int:
    """Return the number of bytes that `encode` makes of the frame, without making blank or stored bodies."""
    size = _SIZES.get(type(frame))
    return len(_encode(frame)) if size is None else size(frame)


def wire_sizes(frames: Sequence[Frame]) -> list[int]:
    """Return the `wire_size` of each frame."""
    if len(frames) == 1:  # As most are sent.
        return [wire_size(frames[0])]
    return [len(_encode(frame)) if (size := _SIZES.get(type(frame))) is None else size(frame) for frame in frames]


def datagram_overhead(frames: int) -> int:
    """Return the bytes of a datagram with this many frames that are not the frames' own."""
    return _OVERHEAD_SHORT if frames <= _SHORT_ARRAY_MAX else _OVERHEAD_LONG


def datagrams(frames: Iterable[Frame], mtu_bytes: int) -> list[bytes]:
    """Return the frames in order, in as few datagrams as possible; a frame above `mtu_bytes` goes alone."""
    bodies = [encode(frame) for frame in frames]
    return [
        b"".join((_datagram_head(stop - start), *bodies[start:stop]))
        for start, stop, _ in runs(map(len, bodies), mtu_bytes)
    ]


def decode(datagram: bytes, limits: Limits) -> Decoded:
    """Return the frames in the datagram, and the numbers of refused parts by reason. Never raises."""
    frames: list[Frame] = []
    refused: dict[str, int] = {}
    try:
        for raw in _cut(datagram, limits):
            try:
                frame, trailing = _frame(memoryview(raw), limits)
            except RemoteError as error:
                refused[error.reason] = refused.get(error.reason, 0) + 1
                continue
            frames.append(frame)
            if trailing:
                refused[Refusal.TRAILING] = refused.get(Refusal.TRAILING, 0) + 1
    except RemoteError as error:
        refused[error.reason] = 1
    return Decoded(frames, refused)


def relay_head(relay: f.Relay) -> bytes:
    """Return everything before the body of a datagram with this Relay alone."""
    return _RELAY[:-1] + _encode((relay.path, relay.position, relay.broken))[1:]


def head_of_relay(datagram: bytes) -> bytes:
    """Return the `relay_head` of a datagram that begins like one with a single Relay; empty if it does not.

    The Relay is not checked: it is sound if one with the same head is, and its body ends with it.
    """
    if len(datagram) == len(_RELAY) or not datagram.startswith(_RELAY):
        return b""
    end = len(_RELAY) + 1 + datagram[len(_RELAY)] + 3  # behind the path its position, and the head of `broken`
    return datagram[: end + datagram[end - 1]] if end <= len(datagram) else b""


def ends_with_body(datagram: bytes, at: int) -> bool:
    """Return True if all of a datagram from this place on is one msgpack binary that is not empty."""
    body = at + 1 + _BINARY_WIDTHS.get(datagram[at], 0)
    return 0 < int.from_bytes(datagram[at + 1 : body], "big") == len(datagram) - body


def _shortened(announce: f.Announce) -> f.Announce | msgspec.Raw:
    """Leave out the last fields, as far as they are empty."""
    fields, nbytes = _spare(announce)
    if not fields:
        return announce
    whole = _encode(announce)
    return msgspec.Raw(bytes((whole[0] - fields,)) + whole[1:-nbytes])


def _spare(announce: f.Announce) -> tuple[int, int]:
    """Return the number of empty fields at the end of an announcement, and their bytes."""
    if announce.proof:
        return 0, 0
    if announce.token:
        return 1, 2
    if announce.stamp:
        return 2, 4
    return (3, 6) if announce.datagram_bytes else (4, 7)


def _without_stored(ack: f.Ack) -> f.Ack | msgspec.Raw:
    """Leave out `stored` unless it is true."""
    if ack.stored:
        return ack
    whole = _encode(ack)
    return msgspec.Raw(bytes((whole[0] - 1,)) + whole[1:-1])


def _data_of_blank(blank: f.BlankData) -> f.Data:
    return f.Data(blank.handle, blank.serial, blank.index, blank.last, bytes(blank.length))


def _part_of_whole(whole: f.WholeDescriptor) -> f.DescriptorPart:
    wire = whole.descriptor.wire
    return f.DescriptorPart(whole.handle, whole.serial, whole.hops, whole.age_ms, 0, 1, wire)


def _parcel_of_open(parcel: f.OpenParcel) -> f.Parcel:
    descriptor, body = parcel.descriptor, parcel.body
    if body is None:
        if descriptor.codec is not PayloadCodec.BLANK and descriptor.length:
            raise LocalError(f"the payload of {descriptor.shown} must be read from the store before it is encoded")
        body = bytes(descriptor.length)
    return f.Parcel(parcel.handle, parcel.serial, parcel.hops, parcel.age_ms, parcel.last, descriptor.wire, body)


def _data_of_stored(stored: f.StoredData) -> f.Data:
    raise LocalError(f"fragment {stored.index} must be read from the store before it is encoded")


def _data_size(data: f.BlankData | f.StoredData) -> int:
    # To encode the few numbers is the fastest way to learn their size; 1: the kind.
    return len(_encode((data.handle, data.serial, data.index, data.last))) + 1 + _binary_size(data.length)


def _parcel_size(parcel: f.OpenParcel) -> int:
    descriptor, body = parcel.descriptor, parcel.body
    length = descriptor.length if body is None else len(body)
    # The numbers with an array's head of one byte; the head, the kind and `last` take 3.
    numbers = len(_encode((parcel.handle, parcel.serial, parcel.hops, parcel.age_ms))) - 1 + 3
    return numbers + _binary_size(descriptor.wire_bytes) + _binary_size(length)


def _whole_size(whole: f.WholeDescriptor) -> int:
    numbers = len(_encode((whole.handle, whole.serial, whole.hops, whole.age_ms)))
    return numbers + 3 + _binary_size(whole.descriptor.wire_bytes)  # 3: the kind, part 0, of 1


def _binary_size(length: int) -> int:
    """Return the bytes of a msgpack binary of that length."""
    return length + (2 if length < 1 << 8 else 3 if length < 1 << 16 else 5)


def _sealed(envelope: f.OpenRelay) -> f.Relay:
    bodies = [encode(frame) for frame in envelope.inner]
    return envelope.sealed(b"".join((_datagram_head(len(bodies)), *bodies)))


def _sealed_size(envelope: f.OpenRelay) -> int:
    inner = datagram_overhead(len(envelope.inner)) + sum(wire_sizes(envelope.inner))
    return len(_encode(envelope.sealed(b""))) - _binary_size(0) + _binary_size(inner)


def _datagram_head(frames: int) -> bytes:
    if frames <= _SHORT_ARRAY_MAX:
        return _PREAMBLE + bytes((_SHORT_ARRAY | frames,))
    return _PREAMBLE + b"\xdc" + frames.to_bytes(2, "big")


def runs(sizes: Iterable[int], mtu_bytes: int) -> Iterator[tuple[int, int, int]]:
    """Yield start, stop and datagram length of each run of frames that share a datagram."""
    start = stop = total = 0
    for size in sizes:
        count = stop - start
        overhead = _OVERHEAD_SHORT if count < _SHORT_ARRAY_MAX else _OVERHEAD_LONG
        if count and (total + size + overhead > mtu_bytes or count == FRAMES_MAX):
            yield start, stop, total + (_OVERHEAD_SHORT if count <= _SHORT_ARRAY_MAX else _OVERHEAD_LONG)
            start, total = stop, 0
        stop += 1
        total += size
    if stop > start:
        yield start, stop, total + datagram_overhead(stop - start)


def _cut(datagram: bytes, limits: Limits) -> list[msgspec.Raw]:
    """Stage one: return the frames unread; they refer to the datagram's bytes."""
    if len(datagram) > limits.datagram_bytes_max:
        raise LimitError(Refusal.OVERSIZE)
    if not datagram.startswith(_PREAMBLE):
        if datagram.startswith(packets.HEAD):
            raise DecodeError(Refusal.PACKET)
        raise DecodeError(Refusal.VERSION if datagram.startswith(MAGIC) else Refusal.MAGIC)
    if _array_head(datagram, len(_PREAMBLE))[0] > limits.frames_max:
        raise LimitError(Refusal.FRAMES)
    try:
        return _cutter(datagram[len(_PREAMBLE) :])  # for a kilobyte, a copy is cheaper than a view
    except (ValueError, RecursionError):
        raise DecodeError(Refusal.DATAGRAM) from None


def _frame(view: memoryview, limits: Limits) -> tuple[Frame, bool]:
    """Stage two: return the frame in these bytes, and True if fields were skipped."""
    fields, tag = view[0] - _SHORT_ARRAY, view[1] if len(view) > 1 else _SHORT_NUMBER_MAX + 1
    if not 0 < fields <= _SHORT_ARRAY_MAX or tag > _SHORT_NUMBER_MAX:
        fields, tag = _long_head(view)
    kind = _KINDS.get(tag)
    if kind is None:
        raise DecodeError(Refusal.KIND)
    decoder, fields_known, check, nested = kind
    try:
        frame = decoder(view)
    except (ValueError, RecursionError):  # ValueError: msgspec's own, and text that is not UTF-8
        raise DecodeError(Refusal.FRAME) from None
    if check is not None:
        check(frame, limits)
    # Entries inside may have been appended to as well: then there are more bytes than were understood.
    trailing = fields > fields_known or (nested and len(view) > len(_encode(frame)))
    if isinstance(frame, f.DescriptorPart) and frame.parts == 1:
        return _whole(frame), trailing
    if isinstance(frame, f.Parcel):
        return _opened(frame), trailing
    return frame, trailing


def _whole(part: f.DescriptorPart) -> f.WholeDescriptor:
    # The content of a descriptor is checked where it is accepted (`Inspection`), where its id can
    # be remembered.
    descriptor = descriptors.decode(part.body)
    return f.WholeDescriptor(part.handle, part.serial, part.hops, part.age_ms, descriptor)


def _opened(parcel: f.Parcel) -> f.OpenParcel:
    descriptor = descriptors.decode(parcel.wire)
    return f.OpenParcel(parcel.handle, parcel.serial, parcel.hops, parcel.age_ms, parcel.last, descriptor, parcel.body)


def _array_head(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """Return the number of elements of the array at `at`, and the place of the first one; -1 if there is no array."""
    first = data[at] if at < len(data) else 0
    if _SHORT_ARRAY <= first <= _SHORT_ARRAY | _SHORT_ARRAY_MAX:
        return first & _SHORT_ARRAY_MAX, at + 1
    width = _ARRAY_WIDTHS.get(first)
    if width is None:
        return -1, at
    return int.from_bytes(data[at + 1 : at + 1 + width], "big"), at + 1 + width


def _long_head(view: memoryview) -> tuple[int, int]:
    """Return elements and kind of a frame whose head is not the two bytes that this version writes."""
    fields, at = _array_head(view, 0)
    if fields < 1:
        raise DecodeError(Refusal.FRAME)
    tag = view[at]
    if tag <= _SHORT_NUMBER_MAX:
        return fields, tag
    width = _NUMBER_WIDTHS.get(tag)
    if width is None:
        raise DecodeError(Refusal.FRAME)
    return fields, int.from_bytes(view[at + 1 : at + 1 + width], "big")


_encode = msgspec.msgpack.Encoder().encode
_RELAY: Final = _datagram_head(1) + _encode(f.Relay(b"", 0))[:3]
"""The first bytes, up to the length of the path, of every datagram with a single Relay."""
_cutter = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode
_WIRE_FORMS: dict[type, Callable[[Any], WireFrame | msgspec.Raw]] = {
    f.Ack: _without_stored,
    f.Announce: _shortened,
    f.BlankData: _data_of_blank,
    f.OpenParcel: _parcel_of_open,
    f.OpenRelay: _sealed,
    f.StoredData: _data_of_stored,
    f.WholeDescriptor: _part_of_whole,
}
_SIZES: dict[type, Callable[[Any], int]] = {
    f.Ack: lambda ack: len(_encode(ack)) - (not ack.stored),
    f.Announce: lambda announce: len(_encode(announce)) - _spare(announce)[1],
    f.BlankData: _data_size,
    f.OpenParcel: _parcel_size,
    f.OpenRelay: _sealed_size,
    f.StoredData: _data_size,
    f.WholeDescriptor: _whole_size,
}
_Kind = tuple[Callable[[memoryview], WireFrame], int, Check | None, bool]


def _kind(kind: type[WireFrame]) -> _Kind:
    decoder = msgspec.msgpack.Decoder(kind)
    return decoder.decode, 1 + len(kind.__struct_fields__), CHECKS.get(kind), bool(f.entries(kind))


_KINDS: dict[object, _Kind] = {kind.__struct_config__.tag: _kind(kind) for kind in f.WIRE_KINDS}
"""By number: decoder, elements of the array, check, and True if there are structures inside."""


_BLANK: Final = PayloadCodec.BLANK
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
