"""Commands that were carried out and wait for the batch that their changes are in.

A command has a number of its caller's choice. It begins, may note what is to be done once its changes are durable, and
ends. When its batch is durable it is answered by `Done`. If the batch cannot be written, the host ends, and with it
everything that the command changed: programs learn of that as of a crash.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from carrypost.errors import IllegalStateException, StateError
from carrypost.events import Done

if TYPE_CHECKING:
    from collections.abc import Callable

    from carrypost.journal import Journal


class Answers:
    """The commands of one host that were not answered yet."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._current: tuple[int, list[Callable[[], object]]] | None = None
        """The number of the command that is being carried out, and what follows once it is durable."""
        self._open: dict[int, list[Callable[[], object]]] = {}
        """The same of commands that wait for their batches."""

    def begin(self, number: int) -> None:
        """Begin a command; raises if one of that number was not answered yet."""
        if number in self._open:
            raise IllegalStateException(f"the command number {number} is in use: choose another")
        self._current = number, []

    def when_durable(self, act: Callable[[], object]) -> None:
        """Do this once the current command is durable, in a step of the host."""
        self._command[1].append(act)

    @property
    def _command(self) -> tuple[int, list[Callable[[], object]]]:
        if self._current is None:
            raise StateError("this can be noted only while a command is carried out")
        return self._current

    def end(self, *, done: bool) -> None:
        """End the current command: answer it once it is durable. Not `done`: it raised, and has changed nothing."""
        (number, acts), self._current = self._command, None
        if done:
            self._open[number] = acts
            self._journal.hold(Done(number))

    def commit(self) -> None:
        """Do what follows from the commands that are durable by now."""
        for number in self._journal.pop_answered():
            for act in self._open.pop(number, ()):
                act()
