"""Commands in a copy of this process, which has loaded all that they need: they begin at once, and end it."""

from __future__ import annotations

import importlib
import logging
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import NoReturn

from carrypost.cli import _launch
from carrypost.cli.app import run

_BECOME = _launch.become
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
        _launch.become = _BECOME
        os.execv = _refuse  # The copy goes on, where a command would become a fresh interpreter.
        code = run(arguments)
    except BaseException:  # noqa: BLE001 - nothing of the test may go on here
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _refuse(*_: object) -> NoReturn:
    raise OSError
