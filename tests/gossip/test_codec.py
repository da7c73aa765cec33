"""The codec: exact bytes, exact sizes, and how frames share datagrams."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.air import datagram_sizes
from tests.support.frames import DESCRIPTOR, EXACT, ID

from carrypost.config import Limits
from carrypost.errors import LocalError
from carrypost.gossip.wire import checks, codec
from carrypost.gossip.wire.frames import (
    WIRE_KINDS,
    Ack,
    Announce,
    BlankData,
    Bucket,
    Data,
    Decoded,
    DescriptorPart,
    Digest,
    Frame,
    HashList,
    Offer,
    OfferEntry,
    OpenParcel,
    PieceRequest,
    Profile,
    ProfileRequest,
    Request,
    StoredData,
    WholeDescriptor,
    kind,
)
from carrypost.model.descriptor import AttributeValue, Descriptor, PayloadCodec
from carrypost.model.ids import MessageId, NodeId

LIMITS = Limits(datagram_bytes_max=65_507)
MTU_BYTES = 65_507
GOOD = Ack(5, b"\x01")


def resolved(frame: Frame) -> Frame:
    """Return the frame that the driver encodes."""
    if isinstance(frame, StoredData):
        return Data(frame.handle, frame.serial, frame.index, frame.last, b"x" * frame.length)
    if isinstance(frame, OpenParcel) and frame.body is None and frame.descriptor.codec is not PayloadCodec.BLANK:
        return msgspec.structs.replace(frame, body=b"x" * frame.descriptor.length)
    return frame


def taken(frame: Frame) -> Frame:
    """Return the frame that the receiver sees."""
    frame = resolved(frame)
    if isinstance(frame, BlankData):
        return Data(frame.handle, frame.serial, frame.index, frame.last, bytes(frame.length))
    if isinstance(frame, OpenParcel) and frame.body is None:
        return msgspec.structs.replace(frame, body=bytes(frame.descriptor.length))
    return frame


# -------------------------------------------------------------------------------------- strategies

EDGES = [edge + step for edge in (0, 2**7, 2**8, 2**16, 2**32) for step in (-1, 0, 1) if edge + step >= 0]


def numbers(most: int, least: int = 0) -> st.SearchStrategy[int]:
    """Numbers of every encoded length."""
    edges = [edge for edge in (*EDGES, most) if least <= edge <= most]
    return st.sampled_from(edges) | st.integers(least, most)


LONG, COUNT, FINGERPRINT = numbers(2**63 - 1), numbers(2**53), numbers(2**64 - 1)
INDEX = numbers(LIMITS.message_bytes_max // 64)
LENGTH = numbers(16 * 1024)
ANY_LENGTH = numbers(LIMITS.message_bytes_max)
BODY = st.binary(max_size=300) | LENGTH.map(lambda length: b"b" * length)
BYTES_8, BYTES_4 = st.binary(min_size=8, max_size=8), st.binary(min_size=4, max_size=4)
NAMES = st.text(st.characters(exclude_characters=":", exclude_categories=["Cs"]), min_size=1, max_size=16)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
MESSAGE_IDS = st.binary(min_size=16, max_size=16).map(MessageId)
VALUES: st.SearchStrategy[AttributeValue] = (
    st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | TEXT
)
BITMAP = st.binary(max_size=128)


def many(of: st.SearchStrategy[int]) -> st.SearchStrategy[tuple[int, ...]]:
    return st.lists(of, max_size=20).map(tuple)


@st.composite
def descriptors(draw: st.DrawFn, lengths: st.SearchStrategy[int] = ANY_LENGTH) -> Descriptor:
    signed = draw(st.booleans())
    descriptor = Descriptor(
        draw(st.binary(min_size=32, max_size=32)) if signed else draw(NAMES),
        draw(COUNT), draw(COUNT), draw(COUNT), draw(st.none() | COUNT),
        draw(TEXT), draw(COUNT), draw(lengths), draw(st.sampled_from(PayloadCodec)),
        draw(st.sampled_from([b"", bytes(32)])), draw(st.integers(64, 16_384)), draw(st.integers(0, 9)),
        draw(st.booleans()), draw(TEXT), draw(st.dictionaries(TEXT, VALUES, max_size=8)),
    )  # fmt: skip
    return descriptor.with_signature(bytes(range(64))) if signed else descriptor


@st.composite
def parts(draw: st.DrawFn) -> tuple[int, int]:
    count = draw(st.integers(2, 8_000))
    return draw(st.integers(0, count - 1)), count


@st.composite
def buckets(draw: st.DrawFn) -> Bucket:
    depth = draw(st.integers(0, 64))
    members = draw(st.none() | many(FINGERPRINT))
    return Bucket(depth, draw(st.integers(0, 2**depth - 1)), draw(many(FINGERPRINT)), members)


@st.composite
def parcels(draw: st.DrawFn) -> OpenParcel:
    """Draw a parcel with its payload, or as it is before the driver has read the payload."""
    descriptor = draw(descriptors(LENGTH))
    body = draw(st.none() | st.just(b"b" * descriptor.length))
    return OpenParcel(draw(LONG), draw(LONG), draw(COUNT), draw(COUNT), draw(st.booleans()), descriptor, body)


OFFERS = st.builds(OfferEntry, MESSAGE_IDS, LONG, COUNT, st.integers(0, 255), BITMAP)
FRAMES: st.SearchStrategy[Frame] = st.one_of(
    st.builds(
        Announce, NAMES.map(NodeId), COUNT, COUNT, numbers(2**31, 1), BYTES_8,
        st.lists(BYTES_4, max_size=200).map(tuple),
    ),
    st.builds(lambda digest, body: Profile(digest, 0, 1, body), BYTES_8, BODY),
    st.builds(lambda digest, of, body: Profile(digest, of[0], of[1], body + b"."), BYTES_8, parts(), BODY),
    st.builds(ProfileRequest, BYTES_8),
    st.builds(
        lambda *values: Digest(*values[:-1], *values[-1]),
        BYTES_8, st.integers(0, 255), st.lists(buckets(), max_size=5).map(tuple), many(FINGERPRINT),
        COUNT, COUNT, parts(),
    ),
    st.builds(Offer, LONG, st.lists(OFFERS, max_size=20).map(tuple)),
    st.builds(
        Request, BYTES_4, many(LONG), many(LONG),
        st.lists(st.builds(PieceRequest, LONG, BITMAP), max_size=5).map(tuple),
    ),
    st.builds(
        lambda handle, serial, of, body: DescriptorPart(handle, serial, 1, 2, of[0], of[1], body + b"."),
        LONG, LONG, parts(), st.binary(max_size=1000),
    ),
    st.builds(HashList, LONG, LONG, st.integers(0, 900), st.integers(1, 100).map(lambda n: bytes(32 * n))),
    st.builds(Data, LONG, LONG, INDEX, st.booleans(), BODY),
    st.builds(Ack, LONG, BODY.map(lambda body: body[: checks.ACK_BITMAP_BYTES_MAX])),
    st.builds(WholeDescriptor, LONG, LONG, COUNT, COUNT, descriptors()),
    st.builds(
        StoredData, LONG, LONG, INDEX, st.booleans(), MESSAGE_IDS, st.just(0), st.just(0), LENGTH
    ),
    st.builds(BlankData, LONG, LONG, INDEX, st.booleans(), LENGTH),
    parcels(),
)  # fmt: skip


# ------------------------------------------------------------------------------------- exact bytes


@pytest.mark.parametrize(("frame", "wire"), EXACT)
def test_frame_has_exactly_these_bytes(frame: Frame, wire: str) -> None:
    assert codec.encode(frame).hex(" ") == bytes.fromhex(wire).hex(" ")


@pytest.mark.parametrize(("frame", "wire"), EXACT)
def test_exactly_these_bytes_are_the_frame(frame: Frame, wire: str) -> None:
    decoded = codec.decode(b"CP\x01\x91" + bytes.fromhex(wire), LIMITS)
    assert decoded == Decoded([taken(frame)], {})


def test_every_kind_is_told_with_its_exact_bytes() -> None:
    assert {kind(frame) for frame, _ in EXACT} == {each.__name__ for each in WIRE_KINDS}


def test_stored_data_is_not_encoded_before_it_is_read() -> None:
    stored = StoredData(1, 2, 3, False, ID, 0, 0, 9)
    with pytest.raises(LocalError, match="read from the store"):
        codec.encode(stored)
    assert codec.wire_size(stored) == len(codec.encode(resolved(stored)))


def test_a_parcel_is_not_encoded_before_it_is_filled() -> None:
    sealed = OpenParcel(1, 2, 3, 4, False, DESCRIPTOR)
    with pytest.raises(LocalError, match="read from the store"):
        codec.encode(sealed)
    assert codec.wire_size(sealed) == len(codec.encode(resolved(sealed)))


@given(FRAMES)
def test_wire_size_is_the_encoded_length(frame: Frame) -> None:
    assert codec.wire_size(frame) == len(codec.encode(resolved(frame)))


def test_blank_body_is_not_made_to_learn_its_size() -> None:
    length = 10**15  # more than any machine could make
    assert codec.wire_size(BlankData(1, 2, 3, False, length)) == 6 + 5 + length


def test_blank_parcel_is_not_made_to_learn_its_size() -> None:
    length = 10**15
    blank = msgspec.structs.replace(DESCRIPTOR, size=length, length=length, codec=PayloadCodec.BLANK)
    size = codec.wire_size(OpenParcel(1, 2, 3, 4, False, blank))
    assert size == 7 + 2 + len(blank.wire) + 5 + length


@given(FRAMES)
def test_frame_comes_back_as_it_was(frame: Frame) -> None:
    (sent,) = codec.datagrams([resolved(frame)], MTU_BYTES)
    decoded = codec.decode(sent, LIMITS)
    assert decoded == Decoded([taken(frame)], {})
    assert codec.datagrams(decoded.frames, MTU_BYTES) == [sent]


# ----------------------------------------------------------------------------------------- packing

SOME_FRAMES = st.lists(FRAMES.map(resolved), max_size=8) | st.lists(
    st.builds(Ack, LONG, st.binary(max_size=4)), max_size=80
)


@given(SOME_FRAMES, st.integers(20, 3000))
def test_datagrams_keep_order_and_mtu(frames: list[Frame], mtu_bytes: int) -> None:
    sent = codec.datagrams(frames, mtu_bytes)
    decoded = [codec.decode(each, LIMITS) for each in sent]
    assert [frame for each in decoded for frame in each.frames] == [taken(frame) for frame in frames]
    assert all(each.refused == {} for each in decoded)
    for one, each in zip(sent, decoded, strict=True):
        assert len(one) <= mtu_bytes or len(each.frames) == 1


@given(SOME_FRAMES, st.integers(20, 3000))
def test_next_frame_would_not_have_fitted(frames: list[Frame], mtu_bytes: int) -> None:
    sent = codec.datagrams(frames, mtu_bytes)
    counts = [len(codec.decode(each, LIMITS).frames) for each in sent]
    start = 0
    for count in counts[:-1]:
        crowd = frames[start : start + count + 1]
        assert sum(map(codec.wire_size, crowd)) + codec.datagram_overhead(len(crowd)) > mtu_bytes
        start += count


@given(st.lists(FRAMES, max_size=8), st.integers(20, 3000))
def test_datagram_sizes_are_the_real_lengths(frames: list[Frame], mtu_bytes: int) -> None:
    real = codec.datagrams(map(resolved, frames), mtu_bytes)
    assert datagram_sizes(frames, mtu_bytes) == [len(each) for each in real]


@pytest.mark.parametrize("count", [1, 15, 16, 512])
def test_overhead_is_what_is_not_frames(count: int) -> None:
    (sent,) = codec.datagrams([GOOD] * count, MTU_BYTES)
    assert len(sent) == codec.datagram_overhead(count) + count * codec.wire_size(GOOD)


def test_sixteenth_frame_pays_for_the_longer_array_head() -> None:
    fifteen = 15 * codec.wire_size(GOOD) + codec.datagram_overhead(15)
    sixteen = 16 * codec.wire_size(GOOD) + codec.datagram_overhead(16)
    assert datagram_sizes([GOOD] * 16, sixteen - 1) == [fifteen, 4 + codec.wire_size(GOOD)]
    assert datagram_sizes([GOOD] * 16, sixteen) == [sixteen]


def test_no_datagram_has_more_frames_than_a_receiver_allows() -> None:
    counts = [len(codec.decode(each, LIMITS).frames) for each in codec.datagrams([GOOD] * 1300, MTU_BYTES)]
    assert counts == [512, 512, 276]


def test_nothing_to_send_is_no_datagram() -> None:
    assert codec.datagrams([], 1200) == []
    assert datagram_sizes([], 1200) == []
