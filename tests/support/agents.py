"""Programs with contexts in processes of their own, which report every promise on a line, and are killed.

They are copies of this process (`tests.support.copies`), or `fresh` interpreters.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from tests.support.copies import copy, python
from tests.support.nodes import PATIENCE_S
from tools.netns import Net


class Agent:
    """A process, and its output."""

    def __init__(self, program: Path, net: Net | None, name: str, *arguments: object, fresh: bool = False) -> None:
        self.lines: list[list[str]] = []
        self.killed = False
        pipe = subprocess.PIPE
        self.process: subprocess.Popen[bytes] = (
            subprocess.Popen([sys.executable, program, *map(str, arguments)], stdout=pipe, stderr=pipe)  # noqa: S603 - ours
            if fresh
            else copy(python(program, *arguments), net=net, namespace=name, stdout=pipe, stderr=pipe)
        )
        self._reading = threading.Thread(target=self._read)
        self._reading.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.endswith(b"\n"):  # The last one may have been cut.
                self.lines.append(line.decode().split())

    def said(self, word: str) -> list[list[str]]:
        return [rest for first, *rest in self.lines if first == word]

    def wait(self, condition: Callable[[], bool], patience_s: float = PATIENCE_S) -> None:
        deadline_s = time.monotonic() + patience_s
        while not condition():
            assert self.process.poll() is None, (self.lines[-5:], self.kill())
            assert time.monotonic() < deadline_s, self.lines[-5:]
            time.sleep(0.01)

    def kill(self) -> str:
        """End it; return its output for people."""
        self.killed = True
        self.process.kill()
        self.process.wait()
        self._reading.join()
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        with self.process.stdout, self.process.stderr as said:
            return said.read().decode()
