"""A user's shell, whose commands and nodes stay on loopback, in a folder of the test."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import pexpect
import pytest
from pexpect import fdpexpect
from tests.support.copies import copy
from tests.support.forked import Running, child, command, forked
from tests.support.loopback import apart

from carrypost.cli import _exit, _process
from carrypost.cli.app import run

COMMAND = [sys.executable, "-c", "from carrypost.cli import main; main()"]
PATIENCE_S = 30.0
_STYLE = re.compile(r"\x1b\[[0-9;]*m")


def _not_here(_order: object) -> None:
    raise AssertionError("a node would run in the process of the test")


class Shell:
    """A user's shell: an environment, a folder to be in, and the commands that are given there."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.data = folder / "share" / "carrypost"
        for name in [name for name in os.environ if name.startswith("CARRYPOST_")]:
            monkeypatch.delenv(name)
        settings = {"XDG_DATA_HOME": str(folder / "share"), "HOME": str(folder), "COLUMNS": "80", "TERM": "xterm"}
        # No test lets a node speak on anything but loopback.
        ours = {"UDP_INTERFACES": "lo", "UDP_PORT": apart()["port"], "ANNOUNCE_S_MIN": 0.2, "ANNOUNCE_S_MAX": 0.5}
        for name, value in (settings | {f"CARRYPOST_{name}": str(value) for name, value in ours.items()}).items():
            monkeypatch.setenv(name, value)
        monkeypatch.chdir(folder)
        monkeypatch.setattr(_process, "become", _not_here)
        self._nodes: list[subprocess.Popen[str]] = []
        self._copies: list[Running] = []

    def run(self, *arguments: str, apart: bool = False) -> tuple[int, str, str]:
        """Run a command to its end; return exit code, stdout and stderr. Unless `apart`, it runs in this process."""
        if not apart:
            with redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as err:
                code = run(arguments)
            return code, out.getvalue(), err.getvalue()
        return forked(arguments)

    def lines(self, *arguments: str) -> list[dict[str, Any]]:
        """Return what a command says to a program."""
        code, out, err = self.run(*arguments, "--json")
        assert (code, err) == (0, "")
        return [json.loads(line) for line in out.splitlines()]

    def refusal(self, *arguments: str, apart: bool = False) -> tuple[int, str]:
        """Run a command that must fail with one sentence; return the exit code and the sentence."""
        code, out, err = self.run(*arguments, apart=apart)
        assert out == ""
        assert err.startswith("carrypost: ")
        assert err.count("\n") == 1, err
        return code, err.removeprefix("carrypost: ").strip()

    def refused_nodes(self, *each: Sequence[str]) -> list[tuple[int, str]]:
        """Nodes that do not run, with such arguments."""
        return [self.refusal("node", *arguments, apart=True) for arguments in each]

    def terminal(self, *arguments: str) -> str:
        """Return what a command says to a person whose terminal has 80 columns, without styles."""
        ours, theirs = pty.openpty()
        with copy(partial(command, arguments), stdin=theirs, stdout=theirs, stderr=theirs) as process:
            os.close(theirs)
            shown = b""
            deadline_s = time.monotonic() + PATIENCE_S
            while time.monotonic() < deadline_s and select.select([ours], [], [], PATIENCE_S)[0]:
                try:
                    part = os.read(ours, 65_536)
                except OSError:  # Linux says so when the other side is closed.
                    break
                shown += part
            os.close(ours)
            assert process.wait(PATIENCE_S) == 0, shown
        text = _STYLE.sub("", shown.decode()).replace("\r\n", "\n")
        assert max(map(len, text.splitlines())) <= 80
        return text

    def node(self, *arguments: str, fresh: bool = False) -> tuple[subprocess.Popen[str], dict[str, Any]]:
        """Start a node, in a copy of this process or `fresh`; return it when it is ready, with its own description."""
        null, pipe = subprocess.DEVNULL, subprocess.PIPE
        process: subprocess.Popen[str] = (
            subprocess.Popen([*COMMAND, "node", *arguments], stdin=null, stdout=pipe, stderr=pipe, text=True)  # noqa: S603 - ours
            if fresh
            else copy(partial(command, ["node", *arguments]), stdout=pipe, stderr=pipe, text=True)
        )
        self._nodes.append(process)
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, process.communicate()[1]
        return process, json.loads(line)

    def copied_node(self, *arguments: str) -> Running:
        """Return a node that is ready, in a copy of this process, which starts in a third of the CPU time."""
        running = self.beside("node", *arguments)
        assert running.out.readline(), running.ended()
        return running

    def beside(self, *arguments: str, stdin: int | None = None) -> Running:
        """Start a command that runs on, in a copy of this process."""
        self._copies.append(Running(arguments, stdin))
        return self._copies[-1]

    def end(self, process: subprocess.Popen[str], number: int = signal.SIGTERM) -> tuple[int, str, str]:
        """End a node by a signal; return the exit code and its last output."""
        process.send_signal(number)
        out, err = process.communicate(timeout=PATIENCE_S)
        return process.returncode, out, err

    def clean_up(self) -> None:
        for each in self._copies:
            each.end(signal.SIGKILL)
        for process in self._nodes:
            process.kill()
            process.communicate()

    def contents(self) -> dict[str, bytes]:
        """Return all files of the default node, but those that hold no state."""
        files = [path for path in sorted(self.data.iterdir()) if path.is_file()]
        return {
            path.name: path.read_bytes()
            for path in files
            if path.stat().st_size and path.name not in {"lock", "store.sqlite-shm"}
        }


class Terminal:
    """A command on a terminal, as a person sees it; it runs in a copy of this process."""

    def __init__(self, *arguments: str, columns: int = 80, before: Callable[[], None] = lambda: None) -> None:
        def begin() -> None:
            sys.stdin = open(0, closefd=False)  # noqa: SIM115 - ends with the process
            os.environ |= {"PROMPT_TOOLKIT_NO_CPR": "1", "COLUMNS": str(columns)}  # Nobody answers where the cursor is.
            _exit.end_at_once()
            before()

        self.pid, self._screen = pty.fork()
        if not self.pid:
            child(arguments, [1, 2], begin)
        fcntl.ioctl(self._screen, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self._code: int | None = None
        self.process: Any = fdpexpect.fdspawn(self._screen, timeout=PATIENCE_S, encoding="utf-8")

    def type(self, text: str) -> None:
        """Type, or paste."""
        self.process.send(text)

    def see(self, line: str) -> None:
        """Wait until a line with exactly this text was shown, in any style."""
        style = r"(?:\x1b\[[0-9;?]*[A-Za-z])*"
        pattern = style.join(map(re.escape, line))
        self.process.expect(rf"(?:[\r\n]|\x1b\[[0-9;?]*[A-Za-z]){pattern}{style}\r")

    def ended(self) -> tuple[int, str]:
        """Wait for the end; return the exit code and the remaining output."""
        with suppress(OSError):  # Linux raises it at the end.
            self.process.expect(pexpect.EOF)
        self._code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        assert "Traceback" not in self.process.before
        return self._code, self.process.before

    def close(self) -> None:
        """End the process if it runs."""
        if self._code is None:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self._screen)
