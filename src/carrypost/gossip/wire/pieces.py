"""Payloads in their wire form: compressed once, cut into pieces, vouched for by a hash list.

A payload is compressed at publication and nowhere else, digests cover the compressed bytes, and only the consumer
expands it, never beyond the size that the signed descriptor declares. The root of a descriptor is the SHA-256 over the
SHA-256 of each piece, so that a carrier can check every piece before it stores or relays it. Sets of fragments and
pieces are bitsets; on the wire they are little-endian bitmaps.
"""

from __future__ import annotations

import hashlib
from typing import Final

import msgspec
import zstandard

from carrypost.config import Limits
from carrypost.errors import ForgeryError, LimitError
from carrypost.model.descriptor import PIECE_BYTES, Descriptor, PayloadCodec
from carrypost.model.ids import MessageId
from carrypost.security.sealing import Sealing, seal_payload

HASH_BYTES: Final = 32
COMPRESS_BYTES_MIN: Final = 128
"""Below this a zstd frame gains nothing."""
INFLATE_RATIO_MAX: Final = 100
"""Largest ratio of the size of a payload to its length as sent."""
_GAIN_MIN: Final = 0.95
_WINDOW_BYTES_MAX: Final = 32 * 1024 * 1024


class Blank(msgspec.Struct, frozen=True):
    """A payload of incompressible bytes that exist only as a number. Emulation only, security off."""

    size: int


class Packed(msgspec.Struct, frozen=True):
    """A payload ready to travel."""

    codec: PayloadCodec
    size: int
    length: int
    pieces: tuple[bytes, ...]
    hashes: bytes
    """Concatenated SHA-256 of the pieces; empty where security is off."""
    root: bytes
    source: MessageId | None = None
    """A message with the same pieces, which are in the store, and not here."""
    seal: Sealing | None = None
    """The seal of a payload that is encrypted."""


def pack(
    payload: bytes | Blank, *, signed: bool, compress: bool, limits: Limits, seal: Sealing | None = None
) -> Packed:
    """Compress, cut and hash a payload; with a seal, encrypt it between."""
    if isinstance(payload, Blank):
        return Packed(PayloadCodec.BLANK, payload.size, payload.size, (), b"", b"")
    codec, size, sent = PayloadCodec.PLAIN, len(payload), payload
    if compress and size >= COMPRESS_BYTES_MIN:
        squeezed = zstandard.ZstdCompressor(write_checksum=False).compress(payload)
        # What shrinks beyond the allowed ratio goes plain: every receiver would take it for a bomb.
        if len(squeezed) < size * _GAIN_MIN and size <= _inflated_max(len(squeezed), limits):
            codec, sent = PayloadCodec.ZSTD, squeezed
    if seal is not None:
        sent = seal_payload(seal, codec, size, sent)
        codec, size = PayloadCodec.PLAIN, len(sent)
    small = len(sent) <= PIECE_BYTES
    pieces = (sent,) if small else tuple(sent[at : at + PIECE_BYTES] for at in range(0, len(sent), PIECE_BYTES))
    hashes = b"".join(hashlib.sha256(piece).digest() for piece in pieces) if signed else b""
    root = root_of(hashes) if signed else b""
    return Packed(codec, size, len(sent), pieces, hashes, root, seal=seal)


def unpack(descriptor: Descriptor, sent: bytes, limits: Limits) -> bytes:
    """Return the payload as published, from the bytes as sent; raises `RemoteError` if it expands beyond bounds."""
    if descriptor.codec == PayloadCodec.BLANK:
        return bytes(descriptor.size)
    if descriptor.codec == PayloadCodec.PLAIN:
        return sent
    check_ratio(descriptor, limits)
    try:
        # The library allots what the frame's own header claims, so the claim is checked first.
        if zstandard.frame_content_size(sent) != descriptor.size:
            raise ForgeryError("inflate", "the payload does not have the declared size")
        return zstandard.ZstdDecompressor(max_window_size=_WINDOW_BYTES_MAX).decompress(sent)
    except zstandard.ZstdError as error:
        raise ForgeryError("inflate", str(error)) from None


def check_ratio(descriptor: Descriptor, limits: Limits) -> None:
    """Raise unless the payload of a descriptor expands within what is allowed."""
    if descriptor.codec == PayloadCodec.ZSTD:
        if descriptor.size > _inflated_max(descriptor.length, limits):
            raise LimitError("inflate-ratio", f"{descriptor.length} bytes would become {descriptor.size}")
    elif descriptor.size != descriptor.length:
        raise LimitError("inflate-ratio", "an uncompressed payload with two sizes")


def _inflated_max(length: int, limits: Limits) -> int:
    return min(limits.message_bytes_max, length * INFLATE_RATIO_MAX)


def root_of(hashes: bytes) -> bytes:
    """Return the digest root over a list of piece hashes."""
    return hashlib.sha256(hashes).digest()


def hash_of(piece: bytes) -> bytes:
    """Return the hash of one piece."""
    return hashlib.sha256(piece).digest()


def full_mask(count: int) -> int:
    """Return the bitset of the first `count` numbers."""
    return (1 << count) - 1


def to_bitmap(mask: int) -> bytes:
    """Return a bitset as little-endian bytes."""
    return mask.to_bytes((mask.bit_length() + 7) // 8, "little")


def from_bitmap(bitmap: bytes) -> int:
    """Return the bitset in little-endian bytes."""
    return int.from_bytes(bitmap, "little")
