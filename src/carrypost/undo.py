"""The undo log: what each command changed, until the command is durable or was lost.

A command has a number of its caller's choice. It begins, notes under its number how each of its changes is undone, and
ends; then it waits for the batch that its changes are in. When that batch is durable the command commits and is
answered by `Done`. When the batch is lost a command with something to undo aborts: its changes are undone, the latest
first, and the answer is `Undone`. A command that noted nothing is not undone: what it wrote is written again, and
`Done` follows later.

Both happen inside a step of the host, so whatever they change is in the batch of that step.
"""
# Programs are notified that a command is done only when it is on disk, but nodes act on it at once:
# waiting for the disk before every further step would cost a disk's latency each. So memory is
# ahead of the disk, and when the disk is full memory has to go back.
#
# Why not a snapshot to go back to. Other commands have changed the same queues and claims
# meanwhile, some of them in batches that were written. So each command knows how to undo its own
# changes, and those are undone alone, the latest first. Changes that have to happen in any case,
# such as an acknowledgement outside of a transaction, are not undone but written again.
#
# What must hold: an undo function must work at any later time until its command is answered,
# whatever happened in between.

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import msgspec

from carrypost.errors import IllegalStateException, StateError
from carrypost.events import Done, Undone

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from carrypost.events import Event
    from carrypost.journal import Journal
    from carrypost.model.ids import MessageId

T = TypeVar("T")


class Command(msgspec.Struct, eq=False):
    """One command that was not answered yet."""

    number: int
    serial: int = 0
    """The batch that it waits for."""
    undoable: bool = False
    messages: tuple[MessageId, ...] = ()
    """Messages that it sent: if one of them is lost, all of them are, and the command with them."""
    aborts: list[Callable[[], object]] = []
    commits: list[Callable[[], object]] = []
    subjects: list[object] = []
    needs: list[int] = []
    """Commands that it is undone with."""


class UndoLog:
    """The commands of one host that were not answered yet, in the order in which they were carried out."""

    def __init__(self, journal: Journal, emit: Callable[[Event], None]) -> None:
        self._journal, self._emit = journal, emit
        self._current: Command | None = None
        self._open: dict[int, Command] = {}
        self._senders: dict[MessageId, int] = {}
        """The commands that sent messages which are not durable yet."""
        self._again: list[Done | Undone] = []
        """Answers that wait until what was lost is written again."""

    # --- carrying out --------------------------------------------------------------------------------------

    def begin(self, number: int) -> None:
        """Note what follows under this number; raises if a command of that number was not answered yet."""
        if number in self._open:
            raise IllegalStateException(f"the command number {number} is in use: choose another")
        self._current = Command(number)

    def note(
        self,
        abort: Callable[[], object] | None = None,
        commit: Callable[[], object] | None = None,
        *,
        subject: object = None,
        needs: int | None = None,
    ) -> None:
        """Make the current command undoable: `abort` undoes a change of it, and `commit` makes the change final.

        `subject` is found by `pending` until then. `needs`: the command is also undone if that one is.
        """
        command = self._command
        command.undoable = True
        if abort is not None:
            command.aborts.append(abort)
        if commit is not None:
            command.commits.append(commit)
        if subject is not None:
            command.subjects.append(subject)
        if needs is not None:
            command.needs.append(needs)

    def note_sent(self, messages: Iterable[MessageId]) -> None:
        """Make the current command undoable: it sent these, which the host takes back."""
        command = self._command
        command.undoable, command.messages = True, tuple(messages)

    @property
    def _command(self) -> Command:
        if self._current is None:
            raise StateError("changes can be noted only while a command is carried out")
        return self._current

    @property
    def number(self) -> int:
        """The number of the current command."""
        return self._command.number

    def end(self, *, done: bool) -> None:
        """End the current command: answer it once it is durable. Not `done`: it raised, and has changed nothing."""
        command, self._current = self._command, None
        if done:
            self._open[command.number] = command
            for message in command.messages:
                self._senders[message] = command.number
            command.serial = self._journal.hold(Done(command.number))

    def pending(self, kind: type[T]) -> Iterator[T]:
        """Give the subjects of a kind that commands noted which were not answered yet, the earliest first."""
        for command in self._open.values():
            for subject in command.subjects:
                if isinstance(subject, kind):
                    yield subject

    # --- answering -----------------------------------------------------------------------------------------

    def commit(self) -> None:
        """Commit the commands that are durable by now."""
        for number in self._journal.pop_answered():
            if number in self._open:
                for commit in self._close(number).commits:
                    commit()

    def _close(self, number: int) -> Command:
        command = self._open.pop(number)
        for message in command.messages:
            self._senders.pop(message, None)
        return command

    def lost(self, serial: int, held: Iterable[Event], gone: Collection[MessageId]) -> list[Command]:
        """Return the commands to `abort` because a batch was lost, and these messages with it, the latest first.

        None of them is answered by what waits for a batch. Of what was `held` with the lost one, the answers to other
        commands wait until its rows are written again.
        """
        # A message that failed for want of room takes its whole command with it: a transaction is
        # done as one or not at all.
        numbers = {self._senders[message] for message in gone if message in self._senders}
        for number, command in self._open.items():
            if command.undoable and (command.serial == serial or not numbers.isdisjoint(command.needs)):
                numbers.add(number)
        # The latest first, as for the changes of one command: a later one may build on what an
        # earlier one did.
        undone = [self._close(number) for number in reversed(list(self._open)) if number in numbers]
        for command in undone:
            self._journal.retract_done(command.number)
            for message in command.messages:
                self._journal.fail(message)
        for event in held:
            if isinstance(event, Undone) or (isinstance(event, Done) and event.number in self._open):
                self._again.append(event)
        return undone

    def abort(self, undone: Iterable[Command], serial: int, reason: str) -> None:
        """Undo these commands; their messages are gone already. One that was written is answered once it is not."""
        for command in undone:
            for abort in reversed(command.aborts):
                abort()
            answer = Undone(command.number, reason)
            # Its messages may be on disk, in a batch before the lost one: the answer waits until
            # their removal is there, too.
            if command.serial == serial or not command.messages:
                self._emit(answer)
            else:
                self._journal.hold(answer)

    def answer_again(self) -> None:
        """Answer what waited: what was lost, acknowledgements and deletions, is in the batch that is being made."""
        again, self._again = self._again, []
        for answer in again:
            self._journal.hold(answer)
