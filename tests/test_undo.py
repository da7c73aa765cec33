"""The undo log alone: commands, their noted changes, and the answers of the disk."""

from __future__ import annotations

from functools import partial

import pytest

from carrypost.errors import IllegalStateException, StateError
from carrypost.events import Done, Event, Undone
from carrypost.journal import Journal, Retractable
from carrypost.undo import UndoLog


class Desk:
    """A layer that writes a row for each command, and records how commands end."""

    def __init__(self) -> None:
        self.events: list[Event | Retractable] = []
        self.journal = Journal(self.events)
        self.log = UndoLog(self.journal, self.events.append)
        self.done: list[str] = []

    def command(self, number: int, *changes: str, needs: int | None = None) -> None:
        self.log.begin(number)
        for change in changes:
            abort, commit = partial(self.done.append, f"-{change}"), partial(self.done.append, f"+{change}")
            self.log.note(abort, commit, subject=change, needs=needs)
        self.journal.put(("mom", b"%d" % number, 0), b"")
        self.log.end(done=True)

    def batch(self) -> int:
        batch = self.journal.pop_batch()
        assert batch is not None
        return batch.serial

    def durable(self, serial: int) -> None:
        self.journal.durable(serial)
        self.log.commit()

    def lose(self, serial: int) -> None:
        answered = self.journal.lost(serial)
        assert answered is not None
        self.log.abort(self.log.lost(serial, answered.held, ()), serial, "full")


def test_what_a_command_noted_becomes_final_when_its_batch_is_durable() -> None:
    desk = Desk()
    desk.command(1, "a", "b")
    serial = desk.batch()
    assert list(desk.log.pending(str)) == ["a", "b"]
    desk.durable(serial)
    assert desk.done == ["+a", "+b"]
    assert desk.events == [Done(1)]
    assert list(desk.log.pending(str)) == []


def test_lost_commands_are_undone_the_latest_change_first() -> None:
    desk = Desk()
    desk.command(1, "a", "b")
    desk.command(2, "c")
    desk.lose(desk.batch())
    assert desk.done == ["-c", "-b", "-a"]
    assert desk.events == [Undone(2, "full"), Undone(1, "full")]


def test_a_command_that_noted_nothing_is_answered_once_its_rows_are_written_again() -> None:
    desk = Desk()
    desk.command(1)
    desk.lose(desk.batch())
    assert desk.events == []
    desk.journal.put(("mom", b"again", 0), b"")
    desk.log.answer_again()
    desk.durable(desk.batch())
    assert desk.events == [Done(1)]


def test_a_command_is_undone_with_one_that_it_needs_also_from_a_later_batch() -> None:
    desk = Desk()
    desk.command(1, "a")
    first = desk.batch()
    desk.command(2, "b", needs=1)
    desk.command(3, "c")
    second = desk.batch()
    desk.lose(first)
    assert desk.done == ["-b", "-a"]
    desk.durable(second)
    assert desk.events == [Undone(2, "full"), Undone(1, "full"), Done(3)]


def test_a_number_is_free_again_once_it_was_answered() -> None:
    desk = Desk()
    desk.command(1)
    with pytest.raises(IllegalStateException, match="number 1 is in use"):
        desk.command(1)
    desk.durable(desk.batch())
    desk.command(1)


def test_a_command_that_raised_leaves_nothing_and_changes_outside_of_commands_are_not_noted() -> None:
    desk = Desk()
    desk.log.begin(1)
    desk.log.note(subject="a")
    desk.log.end(done=False)
    assert list(desk.log.pending(str)) == []
    assert desk.events == []
    with pytest.raises(StateError, match="only while a command is carried out"):
        desk.log.note()
