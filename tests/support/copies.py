"""Programs in forks of this process, which start in a third of the CPU time because their modules are loaded.

A fork differs from a fresh interpreter only by its loaded modules and the memory in use. Tests that measure the memory
of a program, or examine its start, use a fresh interpreter.
"""

from __future__ import annotations

import faulthandler
import functools
import gc
import importlib
import logging
import os
import runpy
import signal
import subprocess
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import IO, Any, NoReturn

from tools.netns import Net

_SHARED = ("carrypost.cli.serve", "carrypost.attach.provider", "carrypost.jms.factory")
"""Modules that nodes and programs load when they start."""
_SILENT = (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning)
"""Warnings that an interpreter hides by default."""

Stream = int | IO[bytes] | None


def copy(
    program: Callable[[], int],
    *,
    net: Net | None = None,
    namespace: str = "",
    stdin: Stream = subprocess.DEVNULL,
    stdout: Stream = None,
    stderr: Stream = None,
    env: Mapping[str, str] | None = None,
    text: bool = False,
) -> subprocess.Popen[Any]:
    """Run a program to its exit code in a copy of this process, inside a namespace of the net if there is one."""
    for name in _SHARED:
        importlib.import_module(name)

    def become() -> NoReturn:
        _run(program, os.environ if env is None else env, None if net is None else net.entrance(namespace))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Other threads only read what programs say.
        process: subprocess.Popen[Any] = subprocess.Popen(
            [sys.executable], stdin=stdin, stdout=stdout, stderr=stderr, text=text, restore_signals=False,
            preexec_fn=become,  # noqa: PLW1509 - it never returns, so that nothing else is started
        )  # fmt: skip
    if net is not None:
        net.adopt(process)
    return process


def python(*command: object) -> Callable[[], int]:
    """Return the program that `python COMMAND` is: a file, or -c and a text, with arguments."""
    return functools.partial(_python, list(map(str, command)))


def _python(command: list[str]) -> int:
    if command[0] == "-c":
        sys.argv = ["-c", *command[2:]]
        exec(compile(command[1], "<string>", "exec"), {"__name__": "__main__"})  # noqa: S102 - a text of the test
    else:
        sys.argv = command
        runpy.run_path(command[0], run_name="__main__")
    return 0


def _run(program: Callable[[], int], env: Mapping[str, str], enter: Callable[[], None] | None) -> NoReturn:
    code = 1
    try:
        if enter is not None:
            enter()
        _forget(dict(env))
        code = program()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - nothing of the test may go on here
        traceback.print_exc()
    finally:
        with suppress(OSError, ValueError):  # Nobody may read it.
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _forget(env: dict[str, str]) -> None:
    """Forget the test and pytest: open files, objects, signals, warnings, logs, the environment."""
    gc.freeze()  # What the test left behind would close files of this program that have the numbers of its own.
    gc.set_threshold(700, 10, 10)
    faulthandler.disable()
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.closerange(3, max(map(int, os.listdir("/dev/fd"))) + 1)  # noqa: PTH208 - numbers, no paths
    sys.stdin, sys.stdout, sys.stderr = (open(number, mode, closefd=False) for number, mode in enumerate("rww"))  # noqa: SIM115 - end with it
    sys.unraisablehook, threading.excepthook = sys.__unraisablehook__, threading.__excepthook__
    logging.root.handlers.clear()
    logging.root.setLevel(logging.WARNING)
    warnings.showwarning = _show
    warnings.resetwarnings()
    for kind in _SILENT:
        warnings.simplefilter("ignore", kind)
    os.environ.clear()
    os.environ.update(env)


def _show(*args: Any, **_: object) -> None:  # noqa: ANN401 - as `warnings.showwarning` has them
    sys.stderr.write(warnings.formatwarning(*args[:4]))
