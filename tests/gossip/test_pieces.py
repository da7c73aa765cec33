"""Payloads as they travel: compression, pieces, hashes, bitmaps (N9)."""

from __future__ import annotations

import hashlib
import random

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from carrypost.config import Limits
from carrypost.errors import RemoteError
from carrypost.gossip.wire import pieces
from carrypost.gossip.wire.pieces import Blank, Packed
from carrypost.model.descriptor import PIECE_BYTES, Descriptor, PayloadCodec

LIMITS = Limits()
TEXT = b"".join(b"line %d\n" % number for number in range(1_000))


def descriptor_of(packed: Packed, **changes: int) -> Descriptor:
    sizes = {"size": packed.size, "length": packed.length} | changes
    return Descriptor("a", 1, 1, 0, None, "news", sizes["size"], sizes["length"], packed.codec, packed.root, 1_024)


def pack(payload: bytes | Blank, *, signed: bool = True, compress: bool = True) -> Packed:
    return pieces.pack(payload, signed=signed, compress=compress, limits=LIMITS)


@given(st.binary(max_size=500), st.integers(0, 200), st.booleans(), st.booleans())
def test_what_is_packed_comes_out_again(seed: bytes, times: int, signed: bool, compress: bool) -> None:
    payload = seed * times
    packed = pack(payload, signed=signed, compress=compress)
    sent = b"".join(packed.pieces)
    assert (packed.size, packed.length) == (len(payload), len(sent))
    assert packed.length <= packed.size
    assert pieces.unpack(descriptor_of(packed), sent, LIMITS) == payload


@pytest.mark.parametrize(
    ("size", "lengths"),
    [
        (0, [0]),
        (1, [1]),
        (PIECE_BYTES, [PIECE_BYTES]),
        (PIECE_BYTES + 1, [PIECE_BYTES, 1]),
        (3 * PIECE_BYTES, [PIECE_BYTES] * 3),
    ],
)
def test_a_payload_is_cut_into_pieces_as_its_descriptor_says(size: int, lengths: list[int]) -> None:
    packed = pack(random.Random(1).randbytes(size))
    descriptor = descriptor_of(packed)
    assert [len(piece) for piece in packed.pieces] == lengths
    assert descriptor.pieces == len(lengths)
    assert [descriptor.piece_length(number) for number in range(len(lengths))] == lengths
    assert all(descriptor.fragments_in(number) >= 1 for number in range(len(lengths)))


@pytest.mark.parametrize("fragment_bytes", [64, 1_000, 1_024, PIECE_BYTES, 65_000])
@pytest.mark.parametrize("size", [PIECE_BYTES + 1, 3 * PIECE_BYTES, 3 * PIECE_BYTES + 2_049])
def test_fragments_cover_each_piece_in_a_row_and_nothing_else(size: int, fragment_bytes: int) -> None:
    found = Descriptor("a", 1, 1, 0, None, "news", size, size, PayloadCodec.BLANK, b"", fragment_bytes)
    covered = dict.fromkeys(range(found.pieces + 1), 0)
    for index in range(found.fragments_per_piece * (found.pieces + 1)):
        piece, offset, length = found.fragment_at(index)
        if length > 0:
            assert offset == covered[piece]
            covered[piece] += length
    assert list(covered.values()) == [*map(found.piece_length, range(found.pieces)), 0]


def test_the_root_is_the_hash_over_the_hashes_of_the_pieces_as_sent() -> None:
    packed = pack(random.Random(1).randbytes(40_000))
    hashes = b"".join(hashlib.sha256(piece).digest() for piece in packed.pieces)
    assert packed.hashes == hashes
    assert packed.root == pieces.root_of(hashes) == hashlib.sha256(hashes).digest()
    assert pieces.hash_of(packed.pieces[0]) == hashes[:32]


def test_with_security_off_there_are_no_hashes() -> None:
    packed = pack(bytes(40_000), signed=False)
    assert (packed.hashes, packed.root) == (b"", b"")


@pytest.mark.parametrize(
    ("payload", "compress", "codec"),
    [
        (TEXT, True, PayloadCodec.ZSTD),
        (TEXT, False, PayloadCodec.PLAIN),
        (b"short", True, PayloadCodec.PLAIN),
        (random.Random(1).randbytes(5_000), True, PayloadCodec.PLAIN),
        (bytes(10_000_000), True, PayloadCodec.PLAIN),  # It would shrink beyond the ratio that receivers allow.
    ],
)
def test_a_payload_is_compressed_where_that_pays_and_everybody_would_take_it(
    payload: bytes, compress: bool, codec: PayloadCodec
) -> None:
    packed = pack(payload, compress=compress)
    assert packed.codec is codec
    pieces.check_ratio(descriptor_of(packed), LIMITS)


def test_a_blank_payload_is_counted_and_never_made() -> None:
    packed = pack(Blank(10**9), signed=False)
    assert (packed.codec, packed.size, packed.length, packed.pieces) == (PayloadCodec.BLANK, 10**9, 10**9, ())
    assert pieces.unpack(descriptor_of(packed, size=7, length=7), b"", LIMITS) == bytes(7)


def test_a_payload_that_expands_to_another_size_than_declared_is_refused() -> None:
    packed = pack(TEXT)
    sent = b"".join(packed.pieces)
    for size in (len(TEXT) - 1, len(TEXT) + 1):
        with pytest.raises(RemoteError) as caught:
            pieces.unpack(descriptor_of(packed, size=size), sent, LIMITS)
        assert caught.value.reason == "inflate"


def test_bytes_that_are_not_compressed_are_refused() -> None:
    packed = pack(TEXT)
    with pytest.raises(RemoteError):
        pieces.unpack(descriptor_of(packed), b"nonsense" * 3, LIMITS)
    with pytest.raises(RemoteError):
        pieces.unpack(descriptor_of(packed), b"".join(packed.pieces)[:-4], LIMITS)


def test_a_bomb_is_refused_before_it_is_expanded() -> None:
    bomb = zstandard.ZstdCompressor().compress(bytes(50_000_000))
    packed = Packed(PayloadCodec.ZSTD, 50_000_000, len(bomb), (bomb,), b"", b"")
    with pytest.raises(RemoteError) as caught:
        pieces.unpack(descriptor_of(packed), bomb, LIMITS)
    assert caught.value.reason == "inflate-ratio"
    with pytest.raises(RemoteError) as caught:
        pieces.unpack(descriptor_of(packed, size=1_000), bomb, LIMITS)
    assert caught.value.reason == "inflate"


def test_an_uncompressed_payload_with_two_sizes_is_refused() -> None:
    packed = pack(b"short")
    with pytest.raises(RemoteError):
        pieces.check_ratio(descriptor_of(packed, size=6), LIMITS)


@given(st.sets(st.integers(0, 2_000)))
def test_bitsets_travel_as_little_endian_bitmaps(numbers: set[int]) -> None:
    mask = sum(1 << number for number in numbers)
    bitmap = pieces.to_bitmap(mask)
    assert pieces.from_bitmap(bitmap) == mask
    assert {8 * at + bit for at, byte in enumerate(bitmap) for bit in range(8) if byte >> bit & 1} == numbers
    assert not bitmap.endswith(b"\0")


@pytest.mark.parametrize(("count", "mask"), [(0, 0), (1, 1), (3, 0b111), (64, 2**64 - 1)])
def test_a_full_mask_has_the_first_numbers(count: int, mask: int) -> None:
    assert pieces.full_mask(count) == mask
