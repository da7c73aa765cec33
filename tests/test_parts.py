"""Things that come in several parts, in a bounded buffer."""

from __future__ import annotations

import random

import pytest

from carrypost.errors import LimitError
from carrypost.gossip.parts import OPEN_MAX, PARTS_MAX, Parts


def test_the_whole_comes_with_its_last_part_in_any_order() -> None:
    parts = Parts(10_000)
    for order in ((0, 1, 2), (2, 0, 1), (1, 2, 0)):
        got = [parts.add("b", "thing", part, 3, b"%d" % part * 5) for part in order]
        assert got == [None, None, b"000001111122222"]
        assert len(parts) == 0


def test_a_part_may_come_again() -> None:
    parts = Parts(10_000)
    for _ in range(3):
        assert parts.add("b", "thing", 0, 2, b"first") is None
    assert parts.add("b", "thing", 1, 2, b"last") == b"firstlast"


def test_owners_and_things_are_kept_apart() -> None:
    parts = Parts(10_000)
    parts.add("b", "thing", 0, 2, b"b0")
    parts.add("c", "thing", 0, 2, b"c0")
    parts.add("b", "other", 0, 2, b"o0")
    assert len(parts) == 3
    assert parts.add("c", "thing", 1, 2, b"c1") == b"c0c1"
    assert parts.add("b", "thing", 1, 2, b"b1") == b"b0b1"


@pytest.mark.parametrize(
    ("part", "count", "body"),
    [(2, 2, b"x"), (-1, 2, b"x"), (0, PARTS_MAX + 1, b"x"), (0, 2, b""), (0, 2, bytes(1_001)), (0, 0, b"x")],
)
def test_a_part_that_says_nothing_or_too_much_is_refused(part: int, count: int, body: bytes) -> None:
    parts = Parts(1_000)
    with pytest.raises(LimitError):
        parts.add("b", "thing", part, count, body)
    assert len(parts) == 0


def test_when_the_buffer_is_full_the_stalest_thing_is_forgotten() -> None:
    parts = Parts(1_000)
    for name in ("old", "older than it looks", "young"):
        parts.add("b", name, 0, 3, bytes(300))
    parts.add("b", "old", 1, 3, bytes(300))  # 1,200 bytes: what was not touched for longest goes.
    assert parts.add("b", "old", 2, 3, bytes(100)) == bytes(700)
    assert parts.add("b", "older than it looks", 1, 2, b"x") is None
    assert len(parts) == 2


def test_one_who_fills_the_buffer_stands_in_nobody_elses_way() -> None:
    parts = Parts(10_000)
    parts.add("honest", "thing", 0, 2, bytes(500))
    for number in range(1_000):
        parts.add("flooder", number, 0, 2, bytes(500))
    assert parts.add("honest", "thing", 1, 2, b"!") == bytes(500) + b"!"


def test_parts_of_one_byte_are_not_free_either() -> None:
    parts = Parts(1_000_000)
    for number in range(10 * OPEN_MAX):
        parts.add("flooder", number, 0, 2, b"x")
    assert len(parts) <= OPEN_MAX


def test_what_an_owner_left_is_forgotten() -> None:
    parts = Parts(10_000)
    parts.add("b", "thing", 0, 2, b"x")
    parts.leave("b")
    parts.leave("nobody")
    assert len(parts) == 0
    assert parts.add("b", "thing", 1, 2, b"y") is None


def test_the_buffer_never_holds_more_than_its_limit() -> None:
    parts, chance = Parts(2_000), random.Random(1)
    kept: dict[tuple[str, int], int] = {}
    for _ in range(5_000):
        owner, key, part = chance.choice("bcd"), chance.randrange(5), chance.randrange(4)
        parts.add(owner, key, part, 4, bytes(chance.randrange(1, 900)))
        kept[owner, key] = 1
    assert len(parts) <= 15
