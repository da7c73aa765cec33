"""The ends of commands: signals, exit codes, and failures, which are said on stderr; without typer and rich.

A node does not load these two, so what its process needs, such as lines that break where a terminal ends, is here.

Signals are Ctrl-C (SIGINT), SIGTERM, and SIGHUP, which comes when the terminal is closed. While a command only loads
its libraries it has nothing to clean up, and a signal ends it at once, as the system does by default. Python would
raise `KeyboardInterrupt` instead, which shows as a traceback wherever nobody catches it, and which callbacks of the
import system swallow. A command that has begun something says so by `orderly`; a node has its own way
(`carrypost.cli.serve`). Signals that are ignored from the start, as `nohup` makes SIGHUP, stay ignored.

Exit codes of failures follow one rule for every command. What was typed wrong ends with a sentence on stderr and exit
code 2: an option, a value, a path that leads nowhere or to the wrong kind of thing, a mistake in a file that people
write. A node that is not there, or there already, and time that ran out have codes of their own. Everything else ends
with 1: what the machine refuses, what is damaged (`carrypost.log.files` tells these apart). Only unexpected errors show
a traceback.
"""

from __future__ import annotations

import enum
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from carrypost.errors import CarrypostError, LocalError, NoNodeError, ResourceAllocationException, RunningError
from carrypost.printing import INDENT, paragraph

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
def handling(handlers: Mapping[signal.Signals, Callable[..., object]]) -> Iterator[None]:
    """Handle signals so while the block lasts; only in the main thread, since Python delivers signals to no other."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def orderly() -> Iterator[None]:
    """While the block lasts signals are exceptions, so that what was begun is cleaned up.

    Ctrl-C is a `KeyboardInterrupt`, which some commands take as "show what you have"; the others end the process, as
    `SystemExit` with their code. The first of them counts: what cleans up is not disturbed by the next.
    """
    numbers = heeded()

    def end(number: int, _frame: object) -> None:
        for each in numbers:
            signal.signal(each, signal.SIG_IGN)
        sys.exit(exit_code(number))

    with handling({each: signal.default_int_handler if each == signal.SIGINT else end for each in numbers}):
        yield


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
    with handling(dict.fromkeys(heeded(), ending.heed)):
        yield ending


class Exit(enum.IntEnum):
    """Exit codes."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    """Usage or configuration."""
    TIMEOUT = 3
    NO_NODE = 4
    RUNNING = 5
    """Already running."""


_CODES: dict[type[Exception], Exit] = {
    TimeoutError: Exit.TIMEOUT,
    ResourceAllocationException: Exit.FAILED,  # A full disk is not a mistake of the user.
    LocalError: Exit.USAGE,
    NoNodeError: Exit.NO_NODE,
    RunningError: Exit.RUNNING,
}


def report(error: CarrypostError | TimeoutError) -> Exit:
    """Say on stderr what went wrong; returns the code that the command ends with."""
    print(f"carrypost: {paragraph(str(error))}", file=sys.stderr)  # noqa: T201 - the one place that reports failures
    causes = error, error.__cause__  # What the JMS API raises has the node's own error behind it.
    return next((code for kind, code in _CODES.items() for each in causes if isinstance(each, kind)), Exit.FAILED)


def check_texts(texts: Iterable[str]) -> None:
    """Raise `LocalError` for bytes that are not UTF-8: records, JSON and logs cannot represent them."""
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError:
            shown = ascii(text.encode(errors="surrogateescape"))[1:]
            raise LocalError(f"the argument {shown} is not UTF-8 text; if it names a file, rename the file") from None


def wrapped(text: str, indent: str = INDENT) -> str:
    """Return a line for stdout; on a terminal that is narrower, as several lines, all but the first indented."""
    if not sys.stdout.isatty():
        return text
    import shutil  # noqa: PLC0415 - commands load this module before signals end them
    import textwrap  # noqa: PLC0415

    columns = shutil.get_terminal_size().columns
    return textwrap.fill(text, columns, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
