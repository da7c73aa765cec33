"""Snapshots of seats: unpacking reverses packing; bounds that are exceeded and contradictions are refused."""

from __future__ import annotations

import random
from contextlib import suppress

import msgspec
import pytest

from carrypost.config import Limits
from carrypost.errors import RemoteError
from carrypost.gossip.wire.pieces import Blank
from carrypost.overlay.modulators.modulator import Modulator
from carrypost.overlay.relocation import Snapshot, bytes_max, digest, packed, unpacked

LIMITS = Limits(clients_max=4, runs_max=6, modulator_state_bytes_max=100)
FULL = Snapshot(
    3, 17, {"p": 9, "q": 4, "r": 0}, b"state", digest(Modulator.named("selector", text="TRUE")),
    (("p", 7, 9), ("q", 3, 4)), (("q", 4, 6), ("s", 0, 1), ("q", 8, 9)),
)  # fmt: skip


@pytest.mark.parametrize("snapshot", [FULL, Snapshot(1, 0, {}), Snapshot(1, 0, {}, repeats=(("p", 2, 3),))])
def test_a_snapshot_is_read_as_it_was_packed(snapshot: Snapshot) -> None:
    assert unpacked(packed(snapshot), LIMITS, signed=False) == snapshot


def wire(**changed: object) -> bytes:
    """Return a snapshot as it travels, with some fields changed."""
    fields = {
        "epoch": 1, "number": 2, "producers": ("p", "q"), "cursors": ((0, 5), (1, 1)), "runs": ((0, 4, 5),),
        "repeats": ((0, 5, 6),), "modulator": b"12345678", "state": b"", "discarded": 3, "lacks": ((1, 4),),
        "since_us": 7,
    }  # fmt: skip
    return msgspec.msgpack.encode(list((fields | changed).values()))


BAD: dict[str, bytes | Blank] = {
    "epoch": wire(epoch=-1),
    "number": wire(number=2**60),
    "no list": b"\xc0",
    "cut": wire()[:-3],
    "more": wire() + b"\x00",
    "a field more": wire(one=1),
    "a nameless producer": wire(producers=("p", "")),
    "a producer twice": wire(producers=("p", "p")),
    "a cursor of nobody": wire(cursors=((0, 5), (2, 1))),
    "lacking events of nobody": wire(lacks=((2, 1),)),
    "lacking events of one producer twice": wire(lacks=((1, 1), (1, 2))),
    "a run of nobody": wire(runs=((2, 4, 5),)),
    "repeats of nobody": wire(repeats=((2, 5, 6),)),
    "two cursors": wire(cursors=((0, 5), (0, 5))),
    "a run that ends before it begins": wire(runs=((0, 5, 4),)),
    "empty repeats": wire(repeats=((0, 5, 5),)),
    "a run that falls": wire(runs=((0, 4, 5), (0, 3, 4))),
    "a run beyond its cursor": wire(runs=((0, 4, 6),)),
    "a run without a cursor": wire(cursors=((1, 1),)),
    "repeats before the cursor": wire(repeats=((0, 4, 6),)),
    "repeats that fall": wire(repeats=((0, 6, 7), (0, 5, 6))),
    "producers": wire(producers=tuple("pqrst")),
    "runs": wire(repeats=tuple((0, 5 + at, 6 + at) for at in range(6))),
    "state": wire(state=bytes(101)),
    "digest": wire(modulator=bytes(9)),
    "length": bytes(bytes_max(LIMITS) + 1),
    "blank": Blank(10),
}


def test_the_fields_that_are_changed_are_right_as_they_are() -> None:
    assert unpacked(wire(), LIMITS, signed=False) == Snapshot(
        1, 2, {"p": 5, "q": 1}, b"", b"12345678", (("p", 4, 5),), (("p", 5, 6),), 3, {"q": 4}, 7
    )


@pytest.mark.parametrize("name", BAD)
def test_bad_payloads_are_refused(name: str) -> None:
    with pytest.raises(RemoteError) as refused:
        unpacked(BAD[name], LIMITS, signed=False)
    assert refused.value.reason == "snapshot"


def test_damaged_payloads_are_refused_or_read_within_the_bounds() -> None:
    chance, good = random.Random(1), packed(FULL)
    for _ in range(3_000):
        damaged = bytearray(good)
        for _ in range(chance.randint(1, 4)):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        with suppress(RemoteError):
            found = unpacked(bytes(damaged[: chance.randint(1, len(damaged))]), LIMITS, signed=False)
            assert len(found.cursors) <= LIMITS.clients_max
            assert len(found.runs) + len(found.repeats) <= LIMITS.runs_max


def test_the_largest_snapshot_is_read() -> None:
    largest = Snapshot(
        2**53, 2**53, {f"{at}".rjust(256, "n"): 2**53 - 8 for at in range(4)}, bytes(100), bytes(8),
        repeats=[("3".rjust(256, "n"), 2**53 - 7 + at, 2**53 - 6 + at) for at in range(6)],
    )  # fmt: skip
    assert len(packed(largest)) <= bytes_max(LIMITS)
    assert unpacked(packed(largest), LIMITS, signed=False).state == bytes(100)


def test_digests_tell_modulators_apart() -> None:
    named = Modulator.named
    found = {digest(None), digest(named("selector", text="a = 1")), digest(named("selector", text="a = 2"))}
    assert len(found) == 3
    assert digest(named("box", area=[1, 2, 3, 4])) == digest(named("box", area=[1, 2, 3, 4]))
