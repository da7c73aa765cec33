"""Any bytes give frames or counted refusals, in bounded time and memory."""

from __future__ import annotations

import sys
import tracemalloc
from pathlib import Path
from types import FrameType

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from carrypost.config import Limits
from carrypost.gossip.wire import checks, codec
from carrypost.gossip.wire.frames import Decoded

LIMITS = Limits(datagram_bytes_max=65_507)
MTU_BYTES = 65_507
CORPUS = {
    path.stem: bytes.fromhex(path.read_text()) for path in sorted((Path(__file__).parents[1] / "golden").glob("*.hex"))
}

# Heads that declare far more than there is, things no frame has, and the start of a deep nest.
CLAIMS = {
    "array": b"\xdd\xff\xff\xff\xff",
    "map": b"\xdf\xff\xff\xff\xff",
    "binary": b"\xc6\xff\xff\xff\xff",
    "text": b"\xdb\xff\xff\xff\xff",
    "extension": b"\xc9\xff\xff\xff\xff\x01",
    "small extension": b"\xd4\x01\x00",
    "timestamp": b"\xc7\x0c\xff" + b"\xff" * 12,
    "never used": b"\xc1",
    "not a number": b"\xcb\x7f\xf8\x00\x00\x00\x00\x00\x00",
    "most negative": b"\xd3\x80\x00\x00\x00\x00\x00\x00\x00",
    "nest of arrays": b"\x91" * 3000,
    "nest of maps": b"\x81\xa1k" * 3000,
}


def check_harmless(datagram: bytes) -> Decoded:
    """Decode a datagram; accepted frames must be sound and mean the same when they are passed on."""
    decoded = codec.decode(datagram, LIMITS)
    assert len(decoded.frames) <= LIMITS.frames_max
    assert all(reason in set(checks.Refusal) and count > 0 for reason, count in decoded.refused.items())
    for frame in decoded.frames:
        encoded = codec.encode(frame)
        assert codec.wire_size(frame) == len(encoded)
        again = codec.decode(b"CP\x01\x91" + encoded, LIMITS)
        # Bytes, not frames, are compared: an attribute may be a float that does not even equal itself.
        assert [codec.encode(each) for each in again.frames] == [encoded]
        assert again.refused == {}
    return decoded


def calls_made(datagram: bytes) -> int:
    """Count the calls, of Python and of C, that decoding takes: steps that do not depend on the machine."""
    calls = 0

    def count(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in {"call", "c_call"}

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        codec.decode(datagram, LIMITS)
    finally:
        sys.setprofile(before)
    return calls


def peak_bytes(datagram: bytes) -> int:
    """Return the peak memory of decoding, including what it returns."""
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        codec.decode(datagram, LIMITS)
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


@st.composite
def mutants(draw: st.DrawFn) -> bytes:
    """Real datagrams, damaged a little; mostly behind the preamble, where it hurts."""
    real = st.sampled_from(list(CORPUS.values()))
    data = bytearray(draw(real))
    for _ in range(draw(st.integers(1, 4))):
        least = draw(st.sampled_from([3, 3, 3, 0]))
        at = draw(st.integers(min(least, len(data)), len(data)))
        end = draw(st.integers(at, len(data)))
        match draw(st.integers(0, 6)):
            case 0:
                if at < len(data):
                    data[at] ^= 1 << draw(st.integers(0, 7))
            case 1:
                del data[at:]
            case 2:
                data[at:end] = draw(real)[end:]
            case 3:
                data[at:at] = data[at:end] * draw(st.integers(1, 40))
            case 4:
                data[at:end] = draw(st.sampled_from(list(CLAIMS.values())))
            case 5:
                data[at:at] = draw(st.sampled_from(list(CLAIMS.values())))
            case _:
                data[at:end] = draw(st.binary(max_size=12))
    return bytes(data)


@given(st.binary(max_size=200))
@example(b"")
def test_any_bytes_are_harmless(data: bytes) -> None:
    check_harmless(data)
    check_harmless(b"CP\x01" + data)
    check_harmless(b"CP\x01\x91" + data)


@given(st.integers(0, 12), st.binary(max_size=80))
def test_any_bytes_behind_the_head_of_a_frame_are_harmless(kind: int, data: bytes) -> None:
    for fields in range(1, 11):
        check_harmless(bytes((*b"CP\x01\x91", 0x90 | fields, kind)) + data)


@given(mutants())
def test_damaged_datagrams_are_harmless(data: bytes) -> None:
    check_harmless(data)


@given(mutants())
def test_damaged_datagrams_take_steps_and_memory_in_proportion_to_their_length(data: bytes) -> None:
    assert calls_made(data) <= 40 + 16 * len(data)
    assert peak_bytes(data) <= 32_768 + 128 * len(data)


@pytest.mark.parametrize("name", CORPUS)
def test_every_flipped_bit_and_every_truncation_is_harmless(name: str) -> None:
    real = CORPUS[name]
    for at in range(len(real)):
        for bit in range(8):
            flipped = bytearray(real)
            flipped[at] ^= 1 << bit
            check_harmless(bytes(flipped))
        assert codec.decode(real[:at], LIMITS).frames == []


@pytest.mark.parametrize("name", CORPUS)
def test_every_claim_at_every_place_is_harmless(name: str) -> None:
    real = CORPUS[name]
    for at in range(3, min(len(real), 120)):
        for claim in CLAIMS.values():
            check_harmless(real[:at] + claim)
            check_harmless(real[:at] + claim + real[at:])
            check_harmless(real[:at] + claim + real[at + 1 :])


PARCEL_WIRE = b"\xc4\x16\x00\x9f\xa1a\x01\x01\x01\xc0\xa1d\x01\x01\x00\xc4\x00\xcd\x04\x00\x04\xc2\xa0\x80"
FIELDS = {
    "datagram": b"",
    "frame": b"\x91",
    "announce, node": b"\x91\x97\x01",
    "announce, heard": b"\x91\x97\x01\xa1a\x01\x01\x01\xc4\x0812345678",
    "profile, body": b"\x91\x95\x02\xc4\x0812345678\x00\x01",
    "digest, buckets": b"\x91\x95\x04\xc4\x0812345678\x00",
    "digest, a bucket": b"\x91\x95\x04\xc4\x0812345678\x00\x91",
    "digest, fingerprints": b"\x91\x95\x04\xc4\x0812345678\x00\x91\x94\x00\x00",
    "digest, members": b"\x91\x95\x04\xc4\x0812345678\x00\x91\x94\x00\x00\x90",
    "offer, entries": b"\x91\x93\x05\x01",
    "offer, message": b"\x91\x93\x05\x01\x91\x95",
    "request, offers": b"\x91\x95\x06\xc4\x041234",
    "request, handles": b"\x91\x95\x06\xc4\x041234\x90",
    "request, parts": b"\x91\x95\x06\xc4\x041234\x90\x90",
    "descriptor, body": b"\x91\x98\x07\x01\x02\x03\x04\x00\x01",
    "hashes": b"\x91\x95\x08\x01\x02\x03",
    "data, body": b"\x91\x96\x09\x01\x02\x03\xc2",
    "parcel, wire": b"\x91\x98\x0b\x01\x02\x03\x04\xc2",
    "parcel, body": b"\x91\x98\x0b\x01\x02\x03\x04\xc2" + PARCEL_WIRE,
    "ack, bitmap": b"\x91\x93\x0a\x01",
    "unknown kind": b"\x91\x92\x7f",
    "trailing": b"\x91\x94\x0a\x01\xc4\x00",
}


@pytest.mark.parametrize("claim", ["array", "map", "binary", "text", "extension"])
@pytest.mark.parametrize("field", FIELDS)
def test_no_memory_is_allotted_for_what_is_only_declared(field: str, claim: str) -> None:
    hostile = b"CP\x01" + FIELDS[field] + CLAIMS[claim]
    assert codec.decode(hostile, LIMITS).frames == []
    assert peak_bytes(hostile) < 8_192
    assert calls_made(hostile) < 40


@pytest.mark.parametrize("claim", ["array", "map", "binary", "text", "extension"])
@pytest.mark.parametrize(
    "field", [b"", b"\x9f", b"\x9f\xa1a\x01\x01\x01\xc0\xa1d\x01\x01\x00\xc4\x00\xcd\x04\x00\x04\xc2\xa0"]
)
def test_no_memory_is_allotted_for_what_a_descriptor_declares(field: bytes, claim: str) -> None:
    body = b"\x00" + field + CLAIMS[claim]
    wire = b"\xc4" + bytes((len(body),)) + body
    part = b"CP\x01\x91\x98\x07\x01\x02\x03\x04\x00\x01" + wire
    parcel = b"CP\x01\x91\x98\x0b\x01\x02\x03\x04\xc2" + wire + b"\xc4\x01x"
    for hostile in (part, parcel):
        assert codec.decode(hostile, LIMITS) == Decoded([], {"descriptor": 1})
        assert peak_bytes(hostile) < 8_192


def test_a_parcel_that_is_only_declared_a_little_is_taken() -> None:
    """Check that the claims about its fields fail only for their own reason."""
    decoded = codec.decode(b"CP\x01" + FIELDS["parcel, body"] + b"\xc4\x01x", LIMITS)
    assert (len(decoded.frames), decoded.refused) == (1, {})


@pytest.mark.parametrize(
    ("start", "unit", "reason"),
    [
        (b"", b"\x91", "datagram"),
        (b"", b"\x81\xa1k", "datagram"),
        (b"\x92\x92\x7f", b"\x91", "datagram"),
        (b"\xdc\x02\x01", b"\xc0", "frames"),
        (b"\xdc\x02\x00", b"\xc0", "datagram"),
        (b"\x91\xdc\xff\xff\x7f", b"\xc0", "datagram"),
        (b"\x91\x95\x04\xc4\x0812345678\x00\xdc\x54\x00", b"\x92\x00\x00", "datagram"),
        (b"\x91\x93\x05\x01\xdc\x20\x00", b"\x94\xc4\x01i\x00\x00\x00", "datagram"),
    ],
)
def test_largest_datagram_full_of_one_thing_is_bounded(start: bytes, unit: bytes, reason: str) -> None:
    room = MTU_BYTES - 3 - len(start)
    hostile = b"CP\x01" + start + unit * (room // len(unit))
    assert codec.decode(hostile, LIMITS) == Decoded([], {reason: 1})
    assert peak_bytes(hostile) <= 32_768 + 2 * len(hostile)
    assert calls_made(hostile) < 40


@pytest.mark.parametrize(
    ("start", "unit", "most"),
    [
        (b"\x91\x94\x04\xc4\x0812345678\x00\xdc", b"\x92\x00\x00", 21_000),
        (b"\x91\x93\x05\x01\xdc", b"\x94\xc4\x01i\x00\x00\x00", 9_000),
        (b"\x91\x94\x06\xc4\x041234\x90\xdc", b"\xcf" + b"\xff" * 8, 7_000),
        (b"\x91\x97\x01\xa1a\x01\x01\x01\xc4\x0812345678\xdc", b"\xc4\x041234", 10_000),
    ],
)
def test_frame_far_above_its_limit_is_bounded(start: bytes, unit: bytes, most: int) -> None:
    hostile = b"CP\x01" + start + most.to_bytes(2, "big") + unit * most
    decoded = codec.decode(hostile, LIMITS)
    assert decoded.frames == []
    assert set(decoded.refused) <= {"limit", "frame"}
    assert peak_bytes(hostile) <= 64 * len(hostile)
    assert calls_made(hostile) <= 40 + 4 * most


@pytest.mark.parametrize(
    ("head", "tail"),
    [(b"\x98\x07\x01\x02\x03\x04\x00\x01", b""), (b"\x98\x0b\x01\x02\x03\x04\xc2", b"\xc4\x01x")],
)
def test_deepest_descriptor_is_bounded(head: bytes, tail: bytes) -> None:
    body = b"\x00\x9f" + b"\x91" * 8_000
    hostile = b"CP\x01\x91" + head + b"\xc5" + len(body).to_bytes(2, "big") + body + tail
    assert codec.decode(hostile, LIMITS) == Decoded([], {"descriptor": 1})
    assert peak_bytes(hostile) <= 128 * len(hostile)
