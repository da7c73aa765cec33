"""Programs that `tools/check.py` runs: each is started at most once, measured, and ended together with its starter."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tools import meter

ROOT = Path(__file__).resolve().parents[1]
NICENESS = 4
"""Niceness of everything that computes: programs that wait for real time, and others on the machine, go first."""
PATIENCE_S = 10.0
"""Time that programs have to end by themselves, before each signal: Ctrl-C on a terminal reaches them, too."""


class Stopped(Exception):  # noqa: N818 - no mistake
    """The program was not started, for everything is being ended."""


@dataclass(frozen=True)
class Result:
    """The result of one program."""

    name: str
    part: str
    shown: str
    code: int
    began_s: float
    ended_s: float
    cpu_s: float
    said: str
    costs: list[meter.Cost] = field(default_factory=list)


@dataclass
class Job:
    """One program of a check: a tool, or pytest with some files of a lane."""

    name: str
    """Name of the check."""
    part: str
    """Name of this program's part."""
    argv: list[str]
    shown: str
    """Short form of the command line, which may be long."""
    costs: Path | None
    """File into which its tests write their costs."""
    eager: bool = False
    """True if it waits for real time, and so goes first."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Further variables of its environment."""
    waits: bool = True
    """True if it has not been started yet."""
    _process: subprocess.Popen[str] | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def runs(self) -> bool:
        """True if it has begun and is not over."""
        return self._process is not None and self._process.returncode is None

    def run(self) -> Result:
        """Run it to its end; its CPU time is that of all its processes."""
        with self._lock:
            if not self.waits:
                raise Stopped
            self.waits = False
            began_s = time.perf_counter()
            try:
                self._process = process = subprocess.Popen(  # noqa: S603 - our own tools
                    self.argv, cwd=ROOT, env={**environment(), **self.variables}, text=True, errors="replace",
                    stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                )  # fmt: skip
            except OSError as error:
                said = f"{self.argv[0]}: {error.strerror}\n"
                return Result(self.name, self.part, self.shown, 127, began_s, began_s, 0.0, said)
        if not self.eager:
            os.setpriority(os.PRIO_PROCESS, process.pid, NICENESS)
        assert process.stdout is not None
        with process.stdout:
            said = process.stdout.read()
        _, status, used = os.wait4(process.pid, 0)  # Its waiting itself would not tell of CPU time.
        process.returncode = os.waitstatus_to_exitcode(status)
        return Result(
            self.name, self.part, self.shown, process.returncode, began_s, time.perf_counter(),
            used.ru_utime + used.ru_stime, said, [] if self.costs is None else meter.read(self.costs),
        )  # fmt: skip

    def withhold(self) -> None:
        """Keep it from starting, if it has not."""
        with self._lock:
            self.waits = False

    def signal(self, number: int) -> None:
        """Tell it, if it runs."""
        if self._process is not None and self.runs:
            self._process.send_signal(number)


def end(jobs: Sequence[Job]) -> None:
    """End those that run, gently at first, and let no other begin."""
    for job in jobs:
        job.withhold()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        until_s = time.monotonic() + PATIENCE_S
        while any(job.runs for job in jobs) and time.monotonic() < until_s:
            time.sleep(0.05)
        for job in jobs:
            job.signal(number)


def environment() -> dict[str, str]:
    """Bytecode is kept: tests start programs by the hundred, and to compile the package is half of such a start."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
