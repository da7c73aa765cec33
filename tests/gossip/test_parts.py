"""`gossip.transfers.inbox`: things that come in parts, from honest senders and others."""

from __future__ import annotations

import pytest

from carrypost.errors import LimitError
from carrypost.gossip.transfers.inbox import OPEN_MAX, PARTS_MAX, Parts


def test_parts_in_any_order_make_the_whole() -> None:
    parts = Parts(1_000)
    assert parts.add("a", "thing", 2, 3, b"c") is None
    assert parts.add("a", "thing", 0, 3, b"a") is None
    assert parts.add("a", "thing", 0, 3, b"A") is None
    assert parts.add("a", "thing", 1, 3, b"b") == b"Abc"
    assert len(parts) == 0


def test_the_parts_of_different_owners_and_things_do_not_mix() -> None:
    parts = Parts(1_000)
    for owner, key in (("a", 1), ("a", 2), ("b", 1)):
        assert parts.add(owner, key, 0, 2, owner.encode()) is None
    assert parts.add("b", 1, 1, 2, b"!") == b"b!"
    assert len(parts) == 2


@pytest.mark.parametrize(
    ("part", "count", "body"), [(1, 1, b"x"), (0, PARTS_MAX + 1, b"x"), (0, 2, b""), (0, 2, bytes(9))]
)
def test_a_part_that_says_nothing_or_too_much_is_refused(part: int, count: int, body: bytes) -> None:
    with pytest.raises(LimitError):
        Parts(8).add("a", "thing", part, count, body)


def test_parts_of_two_things_under_one_name_are_refused() -> None:
    parts = Parts(1_000)
    assert parts.add("a", "thing", 2, 3, b"long") is None
    with pytest.raises(LimitError, match="part 2 of 2"):
        parts.add("a", "thing", 0, 2, b"short")
    assert len(parts) == 0
    assert parts.add("a", "thing", 0, 1, b"other") == b"other"


@pytest.mark.parametrize("body", [b"x", bytes(100)])
def test_who_fills_the_buffer_loses_what_it_began_and_nobody_else_does(body: bytes) -> None:
    parts = Parts(10_000)
    parts.add("honest", "thing", 0, 2, b"first ")
    for number in range(10_000):
        parts.add("mallory", number, number % 5, 7, body)
        assert len(parts) <= min(OPEN_MAX, 10_000 // len(body)) + 1
    assert parts.add("honest", "thing", 1, 2, b"second") == b"first second"


def test_what_an_owner_began_is_forgotten_when_it_leaves() -> None:
    parts = Parts(1_000)
    parts.add("a", "thing", 0, 2, b"old ")
    parts.leave("a")
    parts.leave("nobody")
    assert parts.add("a", "thing", 1, 2, b"new") is None
    assert len(parts) == 1
