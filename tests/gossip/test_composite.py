"""A layer of parts: each part has its timer and its rows, and takes part in nothing else."""

from __future__ import annotations

import random
from collections.abc import Sequence

import msgspec
import pytest

from carrypost.application.ledger import Agenda, Ledger, Marks, Table
from carrypost.config import Settings
from carrypost.gossip.draft import Draft
from carrypost.gossip.holdings.copies import Copy
from carrypost.gossip.layer import Composite, Part, Steps, Stored
from carrypost.gossip.transfers.link import HostContext
from carrypost.host import Host
from carrypost.log.events import Published, Reason
from carrypost.log.journal import Key, Value
from carrypost.model.ids import MessageId
from carrypost.model.times import NEVER
from carrypost.security.identity import Identity

S = 1_000_000
SETTINGS = Settings.emulated()


class NoteRow(msgspec.Struct, frozen=True, array_like=True):
    until_us: int


class Notes(Part):
    """Notes that are kept until some time, with a row each."""

    due_us: int = NEVER

    def __init__(self, ledger: Ledger, calls: list[str]) -> None:
        self._table = Table(ledger, b"N", NoteRow)
        self.until_us: dict[str, int] = {}
        self._calls = calls

    def add(self, note: str, until_us: int) -> None:
        self.until_us[note] = until_us
        self._table.put(note.encode(), NoteRow(until_us))
        self.due_us = min(self.due_us, until_us)

    def expire(self, now: int) -> None:
        self._calls.append("notes expire")
        for note in [each for each, until_us in self.until_us.items() if until_us <= now]:
            del self.until_us[note]
            self._table.delete(note.encode())
        self.due_us = min(self.until_us.values(), default=NEVER)

    def restore(self, stored: Stored, now: int) -> None:  # noqa: ARG002 - `expire` handles what fell due since
        self._calls.append("notes restored")
        self.until_us = {name.decode(): row.until_us for name, row in self._table.read(stored)}
        self.due_us = min(self.until_us.values(), default=NEVER)


class Witness(Part):
    """A part that marks own messages as long as they are here, and has no timer."""

    def __init__(self, ledger: Ledger, calls: list[str]) -> None:
        self.marked, self._calls = Marks(ledger, b"W"), calls

    def published(self, copies: Sequence[Copy]) -> None:
        for copy in copies:
            self.marked.add(copy.id)

    def left(self, copies: Sequence[Copy], reason: Reason) -> None:
        self._calls.append(f"left {reason}")
        for copy in copies:
            self.marked.discard(copy.id)

    def restore(self, stored: Stored, now: int) -> None:  # noqa: ARG002 - marks have no time
        self._calls.append("witness restored")
        self.marked.read(stored, lambda _: True)


class Alarms(Part):
    """A part whose times are in an agenda, and that has a message published for each."""

    def __init__(self) -> None:
        self.agenda: Agenda[str] = Agenda(lambda *_: True)
        self.timers = (self.agenda,)
        self._rung: list[str] = []

    def expire(self, now: int) -> None:
        self._rung += self.agenda.pop_due(now)
        self.due_us = 0

    def drafts(self, now: int) -> Sequence[Draft]:  # noqa: ARG002 - all leave at once
        rung, self._rung, self.due_us = self._rung, [], NEVER
        return [Draft(each, b"") for each in rung]


class Desk(Composite):
    kind = "desk"

    def __init__(self, context: HostContext) -> None:
        self.ledger, self.calls = Ledger(context.outputs.journal, self.kind), list[str]()
        self.notes, self.witness = Notes(self.ledger, self.calls), Witness(self.ledger, self.calls)
        self.alarms = Alarms()
        self.compose(context.holdings, (self.witness, self.notes, self.alarms))

    def commands(self, steps: Steps) -> Writing:
        return Writing(self, steps)


class Writing:
    def __init__(self, desk: Desk, steps: Steps) -> None:
        self.desk, self._step = desk, steps.step

    def note(self, text: str, until_us: int, now: int) -> None:
        with self._step(now):
            self.desk.notes.add(text, until_us)


class Office:
    """A host with a desk, and its store."""

    def __init__(self) -> None:
        self.now, self.store = 0, dict[Key, Value]()
        self.begin()

    def begin(self) -> None:
        """Start the host, or start it again from its store."""
        self.host = Host(Identity.plain("a"), SETTINGS, random.Random(1), layers=(Desk,))
        self.host.restore(self.store.items(), self.now)
        self.writing = self.host.commands(Writing)
        self.write()

    def write(self) -> None:
        while (batch := self.host.changes()) is not None:
            self.store |= batch.puts
            for key in batch.deletes:
                self.store.pop(key, None)
            self.host.durable(batch.serial, self.now)

    def rows(self) -> set[bytes]:
        return {name for kind, name, _ in self.store if kind == "desk"}


def test_a_part_with_a_timer_and_a_row_needs_no_other_code() -> None:
    office = Office()
    office.writing.note("later", 20 * S, office.now)
    office.writing.note("soon", 10 * S, office.now)
    office.write()
    assert office.rows() == {b"Nlater", b"Nsoon"}
    desk = office.writing.desk
    assert desk.due_us == 10 * S, "when the first of all parts is due"
    office.now = 10 * S
    office.host.tick(office.now)
    office.write()
    assert (set(desk.notes.until_us), office.rows(), desk.due_us) == ({"later"}, {b"Nlater"}, 20 * S)
    office.now = 19 * S
    office.begin()
    desk = office.writing.desk
    assert (set(desk.notes.until_us), desk.due_us) == ({"later"}, 20 * S)
    assert desk.calls == ["witness restored", "notes restored"], "in the order of the parts"
    office.now = 20 * S
    office.host.tick(office.now)
    office.write()
    assert (desk.notes.until_us, office.rows()) == ({}, set())


def test_what_a_part_publishes_leaves_with_the_step_in_which_its_agenda_was_due() -> None:
    office = Office()
    desk = office.writing.desk
    desk.alarms.agenda.add("bell", 10 * S)
    office.writing.note("later", 20 * S, office.now)
    assert desk.due_us == 10 * S
    office.host.events()
    for office.now in (9 * S, 10 * S, 11 * S):
        office.host.tick(office.now)
        published = [each.descriptor.destination for each in office.host.events() if isinstance(each, Published)]
        assert published == ["bell"] * (office.now == 10 * S)
    assert desk.due_us == 20 * S


def test_only_parts_that_are_due_are_called() -> None:
    office = Office()
    office.writing.note("soon", 10 * S, office.now)
    desk = office.writing.desk
    desk.calls.clear()
    office.now = 9 * S  # The computed part is due, and the notes are not.
    office.host.tick(office.now)
    assert desk.calls == []
    office.host.tick(10 * S)
    assert desk.calls == ["notes expire"]


def test_a_part_is_called_for_what_it_overrides() -> None:
    office = Office()
    message = office.host.publish("news", b"", now=office.now)
    desk = office.writing.desk
    assert message in desk.witness.marked
    office.write()
    assert office.rows() == {b"W" + message}
    office.host.discard(message, Reason.WITHDRAWN, office.now)
    office.write()
    assert desk.calls[-1] == f"left {Reason.WITHDRAWN}"
    assert (message in desk.witness.marked, office.rows()) == (False, set())


def test_a_family_of_rows_has_one_owner() -> None:
    ledger = Office().writing.desk.ledger
    with pytest.raises(AssertionError, match="have an owner"):
        Marks(ledger, b"N")


def test_marks_that_do_not_apply_any_more_are_deleted_at_a_restart() -> None:
    office = Office()
    marks, ended, kept = Marks(office.writing.desk.ledger, b"X"), MessageId(b"1"), MessageId(b"2")
    for each in (ended, kept):
        office.store["desk", b"X" + each, 0] = b""
    marks.read({b"X": [(ended, b""), (kept, b"")]}, {kept}.__contains__)
    office.write()
    assert (ended in marks, kept in marks, office.rows()) == (False, True, {b"X2"})
