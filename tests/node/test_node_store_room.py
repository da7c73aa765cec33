"""The room that a store reports: messages within it never fill the disk, and consuming always finds room beyond it."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from tests.support.store_disk import Disk, described, kept, message, opened
from tests.support.waiting import eventually

from carrypost.log.journal import Key, Value
from carrypost.model.headers import Headers

SIZE = 60_000
_chance = random.Random(1)


@pytest.fixture
def small(small_disk: Callable[[int], Path]) -> Path:
    """A store on a disk of 8 MiB."""
    return small_disk(8 << 20) / "store.db"


def payload(size: int = SIZE) -> bytes:
    return _chance.randbytes(size)


def fill(disk: Disk, first: int) -> int:
    """Put messages from this number on, as many as there is room for; return the number of the next one."""
    for number in range(first, first + 1_000):
        if disk.store.room_bytes < SIZE:
            return number
        assert disk.outcome(message(number, payload())) is None
    raise AssertionError("the disk is never full")


def take_all(path: Path) -> None:
    """Let another program use all free room."""
    with path.with_name("other").open("ab", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(4_096)) == 4_096:
            pass


def control(number: int, *, own: bool = True, interesting: bool = False) -> dict[Key, Value]:
    """Something that queues say to another node: all of it is in the descriptor."""
    descriptor = msgspec.structs.replace(
        described(number, length=0), destination="control/other", headers=Headers(control=bytes(100))
    )
    stored = msgspec.structs.replace(kept(descriptor), own=own, interesting=interesting)
    return {("message", descriptor.id, 0): stored, ("piece", descriptor.id, 0): b""}


def handed_over(*numbers: int) -> dict[Key, Value]:
    """Notes of messages that are handed over."""
    notes: dict[Key, Value] = {}
    for number in numbers:
        descriptor = described(number)
        notes["message", descriptor.id, 0] = kept(descriptor, delivered=True)
        notes["mom", b"entry" + descriptor.id, 0] = bytes(60)
    return notes


def acknowledged(number: int) -> tuple[dict[Key, Value], tuple[Key, ...]]:
    descriptor = described(number)
    return {("seen", descriptor.id, 0): descriptor}, (*message(number, b""), ("mom", b"entry" + descriptor.id, 0))


def consume(disk: Disk, first: int, end: int) -> None:
    """Hand over and acknowledge messages, as a queue does: some notes are written with control messages."""
    for number in range(first, end):
        said = control(10_000 + number) if number % 5 == 0 else {}
        assert disk.outcome(handed_over(*range(number, min(number + 5, end))) | said) is None, number
        puts, deletes = acknowledged(number)
        assert disk.outcome(puts | control(20_000 + number), *deletes) is None, number


def test_a_full_store_is_consumed_and_then_takes_as_much_as_before_again_and_again(small: Path) -> None:
    first, taken = 1, []
    for _ in range(3):
        with opened(small) as disk:
            end = fill(disk, first)
        with opened(small) as disk:
            consume(disk, first, end)
        taken.append(end - first)
        first = end
    assert min(taken) >= max(taken) - 2


def test_a_full_store_is_consumed_though_others_take_whatever_the_reserve_gives_up(small: Path) -> None:
    with opened(small) as disk:
        end = fill(disk, 1)
    for first in range(1, end, 10):
        take_all(small)
        with opened(small) as disk:
            consume(disk, first, min(first + 10, end))


def test_once_the_store_is_consumed_it_is_not_full_any_more_though_the_disk_has_no_more_room(small: Path) -> None:
    with opened(small) as disk:
        end = fill(disk, 1)
        take_all(small)
        assert disk.store.room_bytes <= 0
        consume(disk, 1, end)
        eventually(lambda: disk.store.room_bytes > SIZE)
        assert disk.outcome(message(end, payload())) is None
