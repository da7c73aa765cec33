"""Refusals of the codec and their names, and frames that it accepts in spite of everything."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from tests.support.frames import ALAN, DESCRIPTOR, EIGHT, FOUR, ID, RECEIVED

from carrypost.config import Limits
from carrypost.gossip.wire import codec
from carrypost.gossip.wire.frames import (
    Ack,
    Announce,
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
    Request,
    WholeDescriptor,
)

LIMITS = Limits(datagram_bytes_max=65_507)
MTU_BYTES = 65_507
LONG_DESCRIPTOR = msgspec.structs.replace(DESCRIPTOR, label="x" * 1500)
GOOD = Ack(5, b"\x01")


def datagram(*frames: object) -> bytes:
    """Return a datagram of frames and of things that are none."""
    parts = [codec.encode(each) if isinstance(each, Frame) else msgspec.msgpack.encode(each) for each in frames]
    return b"CP\x01" + msgspec.msgpack.encode([msgspec.Raw(part) for part in parts])


def fields(frame: Frame) -> list[object]:
    """Return the frame on the wire, as a list that may be tampered with."""
    return list(msgspec.msgpack.decode(codec.encode(frame)))


WHOLE_DATAGRAMS = [
    (b"", "magic"),
    (b"C", "magic"),
    (b"PC\x01\x90", "magic"),
    (b"CP", "version"),
    (b"CP\x02\x90", "packet"),
    (b"CP\x03\x90", "version"),
    (b"CP\x01", "datagram"),
    (b"CP\x01\xc0", "datagram"),
    (b"CP\x01\x80", "datagram"),
    (b"CP\x01\x91", "datagram"),
    (b"CP\x01\x90\x00", "datagram"),
    (b"CP\x01\xdc\x00", "datagram"),
    (b"CP\x01\x91" + b"\x91" * 60_000, "datagram"),
    (datagram(*[GOOD] * 513), "frames"),
    (b"CP\x01\xdd\xff\xff\xff\xff", "frames"),
    (b"CP\x01\x91" + bytes(65_507), "oversize"),
]


@pytest.mark.parametrize(("sent", "reason"), WHOLE_DATAGRAMS)
def test_datagram_is_refused_as_a_whole(sent: bytes, reason: str) -> None:
    assert codec.decode(sent, LIMITS) == Decoded([], {reason: 1})


NO_FRAMES: list[tuple[object, str]] = [
    (7, "frame"),
    ("text", "frame"),
    ({}, "frame"),
    ([], "frame"),
    ([None], "frame"),
    ([-1], "frame"),
    (["Ack", 5, b""], "frame"),
    (msgspec.msgpack.Ext(5, b"12345678"), "frame"),
    ([0], "kind"),
    ([100, 1, 2, 3], "kind"),
    ([127], "kind"),
    ([128], "kind"),
    ([2**64 - 1, "x"], "kind"),
    ([10], "frame"),
    ([10, 5], "frame"),
    ([10, -1, b""], "frame"),
    ([10, 2**63, b""], "frame"),
    ([10, "5", b""], "frame"),
    ([10, 5.0, b""], "frame"),
    ([10, 5, "text"], "frame"),
    ([9, 1, 2, 3, 1, b""], "frame"),
    ([3, b"1234567"], "frame"),
    ([3, b"123456789"], "frame"),
    ([2, EIGHT, 1, 1, b"x"], "frame"),
    ([2, EIGHT, 0, 0, b"x"], "frame"),
    ([2, EIGHT, 0, 2, b""], "frame"),
    ([7, 1, 2, 3, 4, 2, 2, b"x"], "frame"),
    ([1, "", 1, 1, 1, EIGHT], "frame"),
    ([1, "a:b", 1, 1, 1, EIGHT], "frame"),
    ([1, "a" * 65, 1, 1, 1, EIGHT], "frame"),
    ([1, "ä" * 33, 1, 1, 1, EIGHT], "frame"),
    ([1, "alan", 1, 1, 0, EIGHT], "frame"),
    ([1, "alan", 1, 1, 1, EIGHT, [b"123"]], "frame"),
    ([4, EIGHT, 256], "frame"),
    ([4, EIGHT, 0, [[65, 0]]], "frame"),
    ([4, EIGHT, 0, [[2, 4]]], "frame"),
    ([4, EIGHT, 0, [[0, 1]]], "frame"),
    ([4, EIGHT, 0, [], [-1]], "frame"),
    ([4, EIGHT, 0, [], [], 1, 1, 2, 2], "frame"),
    ([4, EIGHT, 0, [], [], -1], "frame"),
    ([5, 1, [[b"", 1, 1, 1]]], "frame"),
    ([5, 1, [[b"i" * 99, 1, 1, 1]]], "frame"),
    ([5, 1, [[ID, 1, 1, 256]]], "frame"),
    ([6, b"12345", []], "frame"),
    ([8, 1, 2, 3, b""], "frame"),
    ([8, 1, 2, 3, bytes(33)], "frame"),
    ([11], "frame"),
    ([11, 1, 2, 3, 4, True, DESCRIPTOR.wire], "frame"),
    ([11, 1, 2, 3, 4, 1, DESCRIPTOR.wire, b"nine byte"], "frame"),
    ([11, 1, 2, 3, 4, True, DESCRIPTOR.wire, "nine byte"], "frame"),
    ([11, 1, 2, 3, 4, True, "wire", b"nine byte"], "frame"),
    ([11, 1, 2, 3, 4, True, DESCRIPTOR.wire, None], "frame"),
    ([11, -1, 2, 3, 4, True, DESCRIPTOR.wire, b"nine byte"], "frame"),
    ([11, 1, 2**63, 3, 4, True, DESCRIPTOR.wire, b"nine byte"], "frame"),
    ([11, 1, 2, 2**53 + 1, 4, True, DESCRIPTOR.wire, b"nine byte"], "frame"),
    ([11, 1, 2, 3, -4, True, DESCRIPTOR.wire, b"nine byte"], "frame"),
    ([11, 1, 2, 3, 4, True, b"", b"nine byte"], "descriptor"),
    ([11, 1, 2, 3, 4, True, b"\x00", b"nine byte"], "descriptor"),
    ([11, 1, 2, 3, 4, True, b"\x00\x90", b"nine byte"], "descriptor"),
    ([11, 1, 2, 3, 4, True, DESCRIPTOR.wire[:-1], b"nine byte"], "descriptor"),
    ([11, 1, 2, 3, 4, True, b"\x40" + DESCRIPTOR.encoded, b"nine byte"], "descriptor"),
    ([7, 1, 2, 3, 4, 0, 1, b""], "descriptor"),
    ([7, 1, 2, 3, 4, 0, 1, b"\x00"], "descriptor"),
    ([7, 1, 2, 3, 4, 0, 1, b"\x00\x90"], "descriptor"),
    ([7, 1, 2, 3, 4, 0, 1, b"\x00" + b"\x91" * 5000], "descriptor"),
    ([7, 1, 2, 3, 4, 0, 1, b"\x40" + DESCRIPTOR.encoded], "descriptor"),
]


@pytest.mark.parametrize(("bad", "reason"), NO_FRAMES)
def test_one_bad_frame_does_not_lose_the_others(bad: object, reason: str) -> None:
    assert codec.decode(datagram(GOOD, bad, GOOD), LIMITS) == Decoded([GOOD, GOOD], {reason: 1})


def test_text_that_is_not_utf_8_is_refused() -> None:
    announce = codec.encode(Announce(ALAN, 1, 1, 1, EIGHT)).replace(b"alan", b"al\xffn")
    whole = codec.encode(WholeDescriptor(1, 2, 0, 0, DESCRIPTOR)).replace(b"news", b"n\xffws")
    sent = b"CP\x01\x93" + announce + whole + codec.encode(GOOD)
    assert codec.decode(sent, LIMITS) == Decoded([GOOD], {"frame": 1, "descriptor": 1})


AT_THE_LIMIT: list[tuple[str, Frame, Limits]] = [
    ("heard_max", Announce(ALAN, 1, 1, 1, EIGHT, (FOUR,) * 3), Limits(heard_max=3)),
    ("offer_entries_max", Offer(1, (OfferEntry(ID, 1, 1, 1),) * 3), Limits(offer_entries_max=3)),
    ("request_handles_max", Request(FOUR, (), (1, 2, 3)), Limits(request_handles_max=3)),
    ("request_handles_max", Request(FOUR, (1, 2, 3)), Limits(request_handles_max=3)),
    (
        "request_handles_max",
        Request(FOUR, (), (1, 2), (PieceRequest(1, b""),)),
        Limits(request_handles_max=3),
    ),
    ("digest_members_max", Digest(EIGHT, 0, (), tuple(range(70))), Limits(digest_members_max=70)),
    (
        "digest_members_max",
        Digest(EIGHT, 0, (Bucket(0, 0, tuple(range(66))), Bucket(1, 1, (), (1,))), (1,)),
        Limits(digest_members_max=72),
    ),
    ("profile_bytes_max", Profile(EIGHT, 0, 1, bytes(1024)), Limits(profile_bytes_max=1024)),
    ("profile_bytes_max", Profile(EIGHT, 0, 1024, b"x"), Limits(profile_bytes_max=1024)),
    (
        "descriptor_bytes_max",
        DescriptorPart(1, 2, 3, 4, 0, 2, bytes(1024)),
        Limits(descriptor_bytes_max=1024),
    ),
    ("descriptor_bytes_max", DescriptorPart(1, 2, 3, 4, 0, 1024, b"x"), Limits(descriptor_bytes_max=1024)),
    (
        "descriptor_bytes_max",
        OpenParcel(1, 2, 3, 4, True, LONG_DESCRIPTOR, b"nine byte"),
        Limits(descriptor_bytes_max=len(LONG_DESCRIPTOR.wire)),
    ),
    ("message_bytes_max", Data(1, 2, 1024, False, b""), Limits(message_bytes_max=65_536)),
]


@pytest.mark.parametrize(("name", "frame", "limits"), AT_THE_LIMIT)
def test_frame_at_a_limit_is_taken_and_above_it_is_not(name: str, frame: Frame, limits: Limits) -> None:
    sent = datagram(frame, GOOD)
    assert codec.decode(sent, limits) == Decoded([frame, GOOD], {})
    less = replace(limits, **{name: getattr(limits, name) - 1})
    assert codec.decode(sent, less) == Decoded([GOOD], {"limit": 1})


@pytest.mark.parametrize(
    ("taken_frame", "refused_frame"),
    [
        (Data(1, 2, 3, False, bytes(16_384)), Data(1, 2, 3, False, bytes(16_385))),
        (
            OpenParcel(1, 2, 3, 4, False, DESCRIPTOR, bytes(16_384)),
            OpenParcel(1, 2, 3, 4, False, DESCRIPTOR, bytes(16_385)),
        ),
        (Ack(1, bytes(8192)), Ack(1, bytes(8193))),
        (HashList(1, 2, 1022, bytes(64)), HashList(1, 2, 1023, bytes(64))),
        (Offer(1, (OfferEntry(ID, 1, 1, 1, bytes(128)),)), Offer(1, (OfferEntry(ID, 1, 1, 1, bytes(129)),))),
        (
            Request(FOUR, (), (), (PieceRequest(1, bytes(128)),)),
            Request(FOUR, (), (), (PieceRequest(1, bytes(129)),)),
        ),
    ],
)
def test_sizes_that_follow_from_the_largest_message_are_bounded(taken_frame: Frame, refused_frame: Frame) -> None:
    decoded = codec.decode(datagram(refused_frame, taken_frame), LIMITS)
    assert decoded == Decoded([taken_frame], {"limit": 1})


def test_limits_of_the_datagram_are_those_of_the_settings() -> None:
    limits = Limits(frames_max=2, datagram_bytes_max=576)
    assert codec.decode(datagram(GOOD, GOOD), limits).refused == {}
    assert codec.decode(datagram(GOOD, GOOD, GOOD), limits).refused == {"frames": 1}
    assert codec.decode(datagram(Data(1, 2, 3, False, bytes(576))), limits).refused == {"oversize": 1}


# ---------------------------------------------------------------------------- versions yet to come


@pytest.mark.parametrize("frame", RECEIVED, ids=lambda frame: type(frame).__name__)
@pytest.mark.parametrize("extra", [[None], [1, "two", [3, {}]], [0] * 300])
def test_trailing_fields_are_skipped_and_counted(frame: Frame, extra: list[object]) -> None:
    decoded = codec.decode(datagram(fields(frame) + extra, GOOD), LIMITS)
    assert decoded == Decoded([frame, GOOD], {"trailing": 1})


@pytest.mark.parametrize(
    ("longer", "frame"),
    [
        ([5, 1, [[ID, 2, 3, 4, b"", "new"]]], Offer(1, (OfferEntry(ID, 2, 3, 4),))),
        ([6, FOUR, [], [], [[1, b"\x01", "new"]]], Request(FOUR, (), (), (PieceRequest(1, b"\x01"),))),
        ([4, EIGHT, 0, [[0, 0, [1], None, "new"]], [], 0, 0, 0, 1], Digest(EIGHT, 0, (Bucket(0, 0, (1,)),))),
    ],
)
def test_trailing_fields_of_entries_are_skipped_and_counted(longer: list[object], frame: Frame) -> None:
    assert codec.decode(datagram(longer), LIMITS) == Decoded([frame], {"trailing": 1})


def test_fields_with_a_default_may_be_left_out() -> None:
    assert codec.decode(datagram([4, EIGHT, 1]), LIMITS) == Decoded([Digest(EIGHT, 1)], {})


@pytest.mark.parametrize("head", ["93 0a", "dc0003 0a", "dd00000003 0a", "93 cc0a", "dc0003 cd000a"])
def test_head_may_be_spelt_in_any_way_that_msgpack_knows(head: str) -> None:
    sent = b"CP\x01\x91" + bytes.fromhex(head) + codec.encode(GOOD)[2:]
    assert codec.decode(sent, LIMITS) == Decoded([GOOD], {})


# ------------------------------------------------------------------------------------- descriptors


@pytest.mark.parametrize("author", [7, None, [1], {}, True])
def test_author_is_a_key_or_a_name(author: object) -> None:
    descriptor = msgspec.structs.replace(DESCRIPTOR, author=author)
    (sent,) = codec.datagrams([WholeDescriptor(1, 2, 0, 0, descriptor)], MTU_BYTES)
    assert codec.decode(sent, LIMITS) == Decoded([], {"descriptor": 1})


@pytest.mark.parametrize("headers", [7, [], {1: 2}, {"n": -1}, {"x": bytes(6_145)}, {"p": {"missing": 2}}])
def test_headers_that_cannot_be_read_cost_the_descriptor_and_nothing_else(headers: object) -> None:
    for last, expected in ((headers, {"descriptor": 1}), ({"n": 1, "later": [headers]}, {})):
        encoded = msgspec.msgpack.encode([*msgspec.structs.astuple(DESCRIPTOR)[:-1], last])
        decoded = codec.decode(datagram([7, 1, 2, 0, 0, 0, 1, b"\x00" + encoded], GOOD), LIMITS)
        assert (decoded.frames[-1], decoded.refused) == (GOOD, expected)


def test_fields_that_a_newer_author_appended_are_carried_on() -> None:
    encoded = msgspec.msgpack.encode([*msgspec.structs.astuple(DESCRIPTOR), "new"])
    sent = datagram([7, 1, 2, 0, 0, 0, 1, b"\x00" + encoded])
    decoded = codec.decode(sent, LIMITS)
    assert decoded.refused == {}
    assert codec.datagrams(decoded.frames, MTU_BYTES) == [sent]
