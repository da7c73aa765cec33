"""Frames and parts as they are cut and joined, without a socket."""

from __future__ import annotations

import random
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from carrypost.attach import calls
from carrypost.attach.line import FRAME_BYTES_MAX, OPEN_MAX, Frames, Parts, framed
from carrypost.errors import LocalError


@given(st.lists(st.binary(max_size=300), max_size=8), st.integers(0, 2**32))
def test_frames_come_out_as_they_went_in_wherever_they_are_cut(bodies: list[bytes], seed: int) -> None:
    chance, frames = random.Random(seed), Frames()
    stream, found = b"".join(map(framed, bodies)), list[bytes]()
    while stream:
        cut = chance.choice((1, 3, chance.randrange(1, len(stream) + 1)))
        found += frames.feed(stream[:cut])
        stream = stream[cut:]
    assert found == bodies


@pytest.mark.parametrize("length", [FRAME_BYTES_MAX + 1, 2**31, 2**32 - 1])
def test_a_frame_that_is_too_long_is_refused_before_any_of_it_came(length: int) -> None:
    frames = Frames()
    assert frames.feed(framed(b"first") + b"\0\0") == [b"first"]
    with pytest.raises(LocalError, match=f"a frame of {length:,} bytes; at most 1,310,720 are accepted"):
        Frames().feed(length.to_bytes(4, "big"))
    assert frames.feed(b"\0\1x") == [b"x"]


def announced(number: int, length: int) -> calls.Call:
    return calls.Call(number, length=length)


def test_parts_are_joined_by_their_numbers_with_others_between_them() -> None:
    parts = Parts(100)
    small = calls.Call(3, Raw(b"\x90"))
    steps: list[tuple[Any, Any]] = [
        (announced(1, 5), None), (calls.CallPart(1, b"ab"), None), (small, small), (announced(2, 2), None),
        (calls.CallPart(1, b"cd"), None), (calls.CallPart(2, b"xy"), (2, b"xy")),
        (calls.CallPart(1, b"e"), (1, b"abcde")),
    ]  # fmt: skip
    for frame, expected in steps:
        found = parts.join(frame)
        if isinstance(expected, tuple):
            assert (found.number, bytes(found.command), found.length) == (*expected, 0)
        else:
            assert found is expected
    assert parts.join(announced(1, 100)) is None, "what is complete does not count any more"


@pytest.mark.parametrize(
    ("frames", "told"),
    [
        ([calls.CallPart(1, b"x")], "under the number 1, under which none was announced"),
        ([announced(1, 101)], "parts of 101 bytes are announced; at most 100 may be open"),
        ([announced(1, 2**63)], "at most 100 may be open"),
        ([announced(1, -1)], "at most 100 may be open"),
        ([announced(1, 60), announced(2, 41)], "parts of 41 bytes are announced; at most 100 may be open"),
        ([announced(1, 4), announced(1, 4)], "announced twice under the number 1"),
        ([announced(1, 4), calls.CallPart(1, b"12345")], "are not the 4 bytes announced"),
        ([announced(1, 4), calls.CallPart(1, b"")], "are not the 4 bytes announced"),
        ([announced(1, 1), calls.CallPart(1, b"1"), calls.CallPart(1, b"1")], "none was announced"),
    ],
)
def test_parts_that_fit_nothing_are_told(frames: list[Any], told: str) -> None:
    parts = Parts(100)
    for frame in frames[:-1]:
        parts.join(frame)
    with pytest.raises(LocalError, match=told):
        parts.join(frames[-1])


def test_announcements_alone_fill_no_memory() -> None:
    parts, long = Parts(10**9), Raw(bytes(100_000))
    tracemalloc.start()
    try:
        for number in range(OPEN_MAX):
            assert parts.join(calls.Call(number, Raw(bytes(long)), length=1)) is None
        kept_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept_bytes < 10_000
    with pytest.raises(LocalError, match=f"at most {OPEN_MAX} may be open"):
        parts.join(announced(OPEN_MAX, 1))
    assert bytes(parts.join(calls.CallPart(0, b"x")).command) == b"x"
    assert parts.join(announced(OPEN_MAX, 1)) is None


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc1",
        b"\x92\x01\x02",
        b"\x81\xa2do",
        b"\x81\xa1\xff\x01",
        b"\x81\xa2do\xa1\xff",
        b"\x91" * 5_000 + b"\x90",
    ],
    ids=[
        "nothing",
        "no type",
        "no map",
        "cut",
        "a key that is no UTF-8",
        "a tag that is no UTF-8",
        "nested 5,000 deep",
    ],
)
def test_a_body_that_cannot_be_decoded_is_refused(body: bytes) -> None:
    for decode in (calls.decode_call, calls.decode_reply):
        with pytest.raises(LocalError, match="the control socket received a malformed frame"):
            decode(body)
