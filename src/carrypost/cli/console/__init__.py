"""`carrypost console`: topics, queues and names by lines, as the JOMS console had them.

Lines come from a terminal or a script, and are carried out one after the other. On a terminal lines are edited,
completed and remembered where prompt_toolkit is installed; else they are plain. Ctrl-C ends what a line waits for, and
Ctrl-D the console. A script ends at its first mistake, and at its end waits for every subscription that has -count or
-for.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib.util
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from concurrent.futures import CancelledError
from typing import Any, Protocol, TypeVar

import typer

from carrypost.cli import _exit, _message_options, _output
from carrypost.cli._joining import Joined, explained
from carrypost.cli.console.words import PROMPT, Actions, Line, parse
from carrypost.errors import CarrypostError, IllegalStateException, LocalError
from carrypost.log.files import refused

T = TypeVar("T")
_HISTORY = "console.history"
_WELCOME = "help lists the commands, Ctrl-D leaves"
_PLAIN = f"{_WELCOME}; pip install 'carrypost[console]' adds line editing, completion and history"
_END = "exit"
_AHEAD_MAX = 1_000
"""Lines of a script that are read ahead."""
_PASTE_S = 0.05
"""Within this the next of several lines comes that were pasted: there is no prompt between them."""


class _Interrupted(Exception):  # noqa: N818 - no error
    """Ctrl-C while something was waited for."""


class Source(Protocol):
    """The source of lines."""

    async def line(self) -> str | None:
        """Return the next line, or several that were pasted; None at the end."""

    def say(self, text: str, *, head: str = "", fg: str | None = None) -> None:
        """Print a line, also while another one is typed."""


class Stdin:
    """Lines of stdin, read by a thread: files, pipes and terminals alike."""

    def __init__(self, prompt: str = "") -> None:
        self._prompt = prompt
        self._prompted = False
        self._lines: asyncio.Queue[str | OSError | None] = asyncio.Queue(_AHEAD_MAX)
        # A daemon, as nothing wakes it up while it reads; and without Python's buffer, whose lock it would hold.
        threading.Thread(target=self._read, args=(asyncio.get_running_loop(),), daemon=True).start()

    def _read(self, loop: asyncio.AbstractEventLoop) -> None:
        for each in _lines_of_stdin():
            if loop.is_closed():
                return
            with contextlib.suppress(CancelledError):  # The console ends.
                asyncio.run_coroutine_threadsafe(self._lines.put(each), loop).result()

    async def line(self) -> str | None:
        """Return the next line."""
        if self._prompt:
            with contextlib.suppress(TimeoutError):
                return self._whole(await asyncio.wait_for(self._lines.get(), _PASTE_S))
            self._ask()
        try:
            return self._whole(await self._lines.get())
        finally:
            self._prompted = False

    def _whole(self, came: str | OSError | None) -> str | None:
        if isinstance(came, OSError):
            raise refused("stdin cannot be read", came)
        return came

    def _ask(self) -> None:
        self._prompted = bool(self._prompt)
        typer.echo(self._prompt, nl=False)

    def say(self, text: str, *, head: str = "", fg: str | None = None) -> None:
        """Print a line in the place of the prompt, if that is there, and the prompt below it."""
        typer.echo("\r" * self._prompted + _output.styled(head, dim=True) + _output.styled(text, fg=fg))
        if self._prompted:
            self._ask()


def _lines_of_stdin() -> Iterator[str | OSError | None]:
    """Yield lines, why there are no more if that is a failure, and None at the end."""
    left = b""
    try:
        while part := os.read(0, 65_536):
            *whole, left = (left + part).split(b"\n")
            yield from (each.decode(errors="replace") for each in whole)
        if left:
            yield left.decode(errors="replace")
    except OSError as error:
        yield error
    yield None


class Console:
    """A console on a node."""

    def __init__(self, joined: Joined, source: Source, *, script: bool) -> None:
        self._joined, self._source, self._script = joined, source, script
        self._actions = Actions(joined, source.say)
        self._working: asyncio.Task[Any] | None = None
        """Task that Ctrl-C ends: of the line that is typed, or carried out."""
        self._number = 0
        """Of the line, in a script."""

    async def run(self) -> int:
        """Carry out lines until there are no more; returns the exit code."""
        loop = asyncio.get_running_loop()
        handlers = {} if self._script else {signal.SIGINT: lambda *_: loop.call_soon_threadsafe(self._end_work)}
        with _exit.handling(handlers):
            try:
                async for line in self._lines():
                    await self._perform(line)
                if self._script:
                    await self._guard(self._actions.finish())
            finally:
                await self._actions.close()
        return self._actions.exit_code if self._script else _exit.Exit.DONE

    async def _lines(self) -> AsyncIterator[Line]:
        """Yield lines until there are no more, or one says that it is the last."""
        while (text := await self._next()) is not None:
            for each in text.split("\n"):
                self._number += 1
                try:
                    line = parse(each)
                except LocalError as error:
                    await self._refuse(error)
                    continue
                if line is not None and line.word == _END:
                    return
                if line is not None:
                    yield line

    async def _next(self) -> str | None:
        while True:
            try:
                return await self._guard(self._source.line())
            except _Interrupted:
                typer.echo()
            except CarrypostError as error:  # A subscription failed meanwhile.
                await self._refuse(error)

    async def _perform(self, line: Line) -> None:
        try:
            await self._guard(self._actions.perform(line))
        except _Interrupted:
            typer.echo()
        except (CarrypostError, TimeoutError) as error:
            await self._refuse(error)

    async def _refuse(self, error: CarrypostError | TimeoutError) -> None:
        """Tell what is wrong; raise it where the console cannot go on."""
        if isinstance(error, IllegalStateException) and await self._joined.has_ended():
            raise error
        if self._script:
            where = f"line {self._number}: " if self._number else ""
            raise CarrypostError(f"{where}{explained(error)}") from explained(error)
        self._source.say(str(explained(error)), fg="red")

    async def _guard(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for something that Ctrl-C may end; raises `_Interrupted`, and what ended a subscription meanwhile."""
        task: asyncio.Task[T] = asyncio.get_running_loop().create_task(work)
        self._working = task
        failure = self._actions.failure
        ends: set[asyncio.Future[Any]] = {task, failure}
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._working = None
            if not task.done():
                task.cancel()
                await asyncio.wait({task})
        if failure.done():
            raise self._actions.failed()
        if task.cancelled():
            raise _Interrupted
        return task.result()

    def _end_work(self) -> None:
        """End what is being done, by Ctrl-C, and not the console."""
        if self._working is not None:
            self._working.cancel()


async def run(joined: Joined) -> int:
    """Run a console on stdin and stdout; returns the exit code."""
    if sys.stdin is None:
        raise LocalError("stdin is closed: the console reads commands from a terminal, a file or a pipe")
    script = not sys.stdin.isatty()
    if script or not sys.stdout.isatty():
        return await Console(joined, Stdin(), script=script).run()
    source: Source
    if importlib.util.find_spec("prompt_toolkit") is None:
        _output.say(_PLAIN)
        source = Stdin(PROMPT)
    else:
        from carrypost.cli.console.editor import Editor  # noqa: PLC0415 - an extra

        _output.say(f"{_WELCOME}, Tab completes")
        source = Editor(joined.settings.data / _HISTORY, functools.partial(_message_options.known, joined.ctx))
    return await Console(joined, source, script=False).run()
