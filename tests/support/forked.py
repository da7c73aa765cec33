"""Commands in a fork of this process, which start at once because their modules are loaded."""

from __future__ import annotations

import importlib
import logging
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import NoReturn

from carrypost.cli import _exit, _process
from carrypost.cli.app import run

_BECOME = _process.become
"""Tests replace it in their own process."""


def forked(arguments: Sequence[str], before: Callable[[], None] | None = None) -> tuple[int, str, str]:
    """Give a command there; returns its exit code, stdout and stderr. `before` is called there first."""
    importlib.import_module("carrypost.cli.serve")
    pipes = os.pipe(), os.pipe()
    pid = os.fork()
    if not pid:
        child(arguments, [writing for _, writing in pipes], before)
    said = []
    for reading, writing in pipes:
        os.close(writing)
        with os.fdopen(reading) as file:
            said.append(file.read())
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), said[0], said[1]


class Running:
    """A command that runs on beside the test, in a copy of this process."""

    def __init__(self, arguments: Sequence[str], stdin: int | None = None) -> None:
        def begin() -> None:
            _exit.end_at_once()
            if stdin is not None:
                os.dup2(stdin, 0)
                sys.stdin = open(0, closefd=False)  # noqa: SIM115 - ends with the process

        importlib.import_module("carrypost.cli.serve")
        (out, write_out), (err, write_err) = os.pipe(), os.pipe()
        self.pid = os.fork()
        if not self.pid:
            child(arguments, [write_out, write_err], begin)
        os.close(write_out)
        os.close(write_err)
        self.out, self._err = os.fdopen(out), os.fdopen(err)
        self._code: int | None = None

    def end(self, number: int = signal.SIGTERM) -> tuple[int, str, str]:
        """End it by a signal; return the exit code and the rest of its output."""
        if self._code is None:
            os.kill(self.pid, number)
        return self.ended()

    def ended(self) -> tuple[int, str, str]:
        """Wait for its end; return the exit code and the output that was not read."""
        if self._code is not None:
            return self._code, "", ""
        with self.out, self._err:
            said = self.out.read(), self._err.read()
        self._code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self._code, *said


def child(arguments: Sequence[str], out: Sequence[int], before: Callable[[], None] | None) -> NoReturn:
    """Give a command in a process that was just forked, with these for stdout and stderr, and end the process."""
    code = 70
    try:
        for number, writing in enumerate(out, 1):
            os.dup2(writing, number)
        sys.stdout, sys.stderr = (open(number, "w", closefd=False) for number in (1, 2))  # noqa: SIM115 - end with it
        logging.root.handlers.clear()  # Those of pytest.
        if before is not None:
            before()
        code = command(arguments)
    except BaseException:  # noqa: BLE001 - nothing of the test may go on here
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def command(arguments: Sequence[str]) -> int:
    """Give a command in a copy of this process; return the exit code."""
    _process.become = _BECOME
    os.execv = _refuse  # The copy goes on, where a command would become a fresh interpreter.
    return run(arguments)


def _refuse(*_: object) -> NoReturn:
    raise OSError
