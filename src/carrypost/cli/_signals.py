"""Handling of signals by commands: Ctrl-C (SIGINT), SIGTERM, and SIGHUP, which comes when the terminal is closed.

While a command only loads its libraries it has nothing to clean up, and a signal ends it at once, as the system does
by default. Python would raise `KeyboardInterrupt` instead, which shows as a traceback wherever nobody catches it, and
which callbacks of the import system swallow. A command that has begun something says so by `orderly`; a node has its
own way (`carrypost.cli.serve`). Signals that are ignored from the start, as `nohup` makes SIGHUP, stay ignored.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio

# Windows has no SIGHUP.
ENDING = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
"""Signals that ask a process to end."""
_ENDED_BY = 128


def exit_code(number: int) -> int:
    """Return the exit code of a process ended by this signal: 130 for Ctrl-C, 143 for SIGTERM, 129 for SIGHUP."""
    return _ENDED_BY + number


INTERRUPTED = exit_code(signal.SIGINT)


def heeded() -> list[signal.Signals]:
    """Return the signals that end this process, without those that its parent set to be ignored."""
    return [number for number in ENDING if signal.getsignal(number) is not signal.SIG_IGN]


def end_at_once() -> None:
    """Let signals end this process at once from now on, silently, including one that was held back."""
    for number in heeded():
        signal.signal(number, signal.SIG_DFL)
    release()


def hold() -> None:
    """Keep signals back, also from the program that this process becomes by `exec`, until `release`."""
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)


def release() -> None:
    """Let signals through, those first that were held back."""
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)


@contextmanager
def orderly() -> Iterator[None]:
    """While the block lasts signals are exceptions, so that what was begun is cleaned up.

    Ctrl-C is a `KeyboardInterrupt`, which some commands take as "show what you have"; the others end the process, as
    `SystemExit` with their code. The first of them counts: what cleans up is not disturbed by the next.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # Python delivers signals to the main thread only.
        return
    before = {number: signal.getsignal(number) for number in heeded()}

    def end(number: int, _frame: object) -> None:
        for each in before:
            signal.signal(each, signal.SIG_IGN)
        sys.exit(exit_code(number))

    for number in before:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Ending:
    """Signals that ask a task to end: the first one cancels it, as long as it may be cut short."""

    def __init__(self, task: asyncio.Task[Any]) -> None:
        self._task = task
        self._cuts = True
        self.came: list[int] = []
        """Signals that came."""

    def heed(self, number: int, _frame: object) -> None:
        """Take a signal."""
        self.came.append(number)
        # Not as a callback of the loop, which would know of the signal only after the next wait.
        with suppress(RuntimeError):  # The loop is closed.
            self._task.get_loop().call_soon_threadsafe(self._cut)

    def _cut(self) -> None:
        if self._cuts:
            self._cuts = False
            self._task.cancel()

    def spare(self) -> None:
        """Let the task finish from now on: it only cleans up."""
        self._cuts = False


@contextmanager
def cancelling(task: asyncio.Task[Any]) -> Iterator[Ending]:
    """While the block lasts signals cancel a task, which cleans up and is not disturbed by further ones."""
    ending = Ending(task)
    if threading.current_thread() is not threading.main_thread():
        yield ending  # Python delivers signals to the main thread only.
        return
    before = {number: signal.signal(number, ending.heed) for number in heeded()}
    try:
        yield ending
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
