"""Programs under measurement: started in a namespace or beside this one, controlled, measured, and always ended.

Orders are lines of JSON on a program's standard input; it answers each by one line. CPU time and memory are read from
outside, so that an idle program is not woken to be measured.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Final, NoReturn, Self

import psutil

from carrypost import ConnectionFactory
from tools import netns

FOLDER: Final = Path(__file__).resolve().parent
PATIENCE_S: Final = 60.0
CIRCLE: Final = "bench"
"""Name of the circle of closed networks."""
CLOSED_GOAL: Final = 1.06
"""CPU time in a closed network, beside an open one."""
_NICENESS: Final = -10
_READ_BYTES: Final = 1 << 20
_CPU_CLOCK: Final = 2
"""Linux's per-process clock that counts the time its threads ran."""

Row = Mapping[str, object]


class BenchmarkError(RuntimeError):
    """A program under measurement ended, or did not do what it should."""


def say(text: str) -> None:
    """Progress, apart from results."""
    print(text, file=sys.stderr, flush=True)


def cpu_s(pid: int) -> float:
    """Return the CPU seconds of a process so far, of all its threads, in user and kernel mode."""
    return time.clock_gettime(~pid << 3 | _CPU_CLOCK)


def memory_bytes(pid: int) -> tuple[int, int]:
    """Return the memory of a process, and the part of it that is its own and not a file's."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    fields = dict(line.split(":", 1) for line in status.splitlines())
    return int(fields["VmRSS"].split()[0]) * 1024, int(fields["RssAnon"].split()[0]) * 1024


class Worker:
    """A program that takes orders."""

    def __init__(self, name: str, process: subprocess.Popen[bytes]) -> None:
        self.name = name
        self.process = process
        self._heard = b""
        assert process.stdin is not None
        assert process.stdout is not None
        self._stdin, self._stdout = process.stdin, process.stdout
        os.set_blocking(self._stdout.fileno(), False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._stdout, selectors.EVENT_READ)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.process.kill()  # It may be busy with something that nobody waits for any more.
        self.end()

    @property
    def cpu_s(self) -> float:
        """CPU seconds so far."""
        return cpu_s(self.process.pid)

    def order(self, do: str, **fields: object) -> None:
        """Give an order."""
        self._stdin.write(json.dumps({"do": do, **fields}).encode() + b"\n")
        self._stdin.flush()

    def answer(self, patience_s: float = PATIENCE_S) -> dict[str, Any]:
        """Return the next answer."""
        deadline_s = time.monotonic() + patience_s
        while b"\n" not in self._heard:
            if not self._selector.select(max(0.0, deadline_s - time.monotonic())):
                raise BenchmarkError(f"{self.name} has not answered for {patience_s:g} s")
            read = os.read(self._stdout.fileno(), _READ_BYTES)
            if not read:
                raise BenchmarkError(f"{self.name} ended with exit code {self.process.wait()}")
            self._heard += read
        line, _, self._heard = self._heard.partition(b"\n")
        found: dict[str, Any] = json.loads(line)
        return found

    def ask(self, do: str, *, patience_s: float = PATIENCE_S, **fields: object) -> dict[str, Any]:
        """Give an order and wait for its answer."""
        self.order(do, **fields)
        return self.answer(patience_s)

    def end(self) -> None:
        """End the program, by closing its input or, if that does not help, by force; may be called twice."""
        self._selector.close()
        with contextlib.suppress(OSError):
            self._stdin.close()
        try:
            self.process.wait(PATIENCE_S / 6)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._stdout.close()


def start(name: str, arguments: Sequence[str], *, net: netns.Net | None = None, namespace: str = "") -> Worker:
    """Start a program of this folder; its first argument is its file. Its first answer means that it is ready.

    It finds the modules of this folder as `benchmarks.NAME`, not by their own names, because one of them, `queue`, has
    the name of a module of Python.
    """
    environment = {key: value for key, value in os.environ.items() if not key.startswith("CARRYPOST_")}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(FOLDER.parent), environment.get("PYTHONPATH"))))
    return Worker(name, launch([str(FOLDER / arguments[0]), *arguments[1:]], environment, net, namespace))


def launch(
    program: Sequence[str], environment: Mapping[str, str], net: netns.Net | None, namespace: str
) -> subprocess.Popen[bytes]:
    """Start a program and its arguments in a fresh interpreter; tests replace this by a copy of their own process."""
    command, pipe = [sys.executable, "-P", *program], subprocess.PIPE
    if net is not None:
        return net.popen(namespace, command, stdin=pipe, stdout=pipe, env=environment)
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, env=environment)  # noqa: S603 - our own program


def free_port() -> int:
    """Return a UDP port that is free, for the nodes of one benchmark."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def settings_file(folder: Path, **settings: object) -> Path:
    """Return a settings file in a new folder, which is the node's; tables are given as mappings."""
    folder.mkdir(parents=True)
    file = folder / "node.toml"
    file.write_text(_toml({**settings, "node": {"data": "data", "name": folder.name}}), encoding="utf-8")
    return file


def _toml(settings: Mapping[str, object]) -> str:
    keys = [f"{key} = {json.dumps(value)}" for key, value in settings.items() if not isinstance(value, Mapping)]
    tables = [f"\n[{key}]\n{_toml(value)}" for key, value in settings.items() if isinstance(value, Mapping)]
    return "\n".join(keys) + "\n" + "".join(tables)


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """Yield a folder that is removed in the end, even if this program is terminated.

    Meanwhile this program and its children have a higher priority, as far as that is allowed, so that others disturb
    less.
    """
    before = signal.signal(signal.SIGTERM, _told_to_end)
    niceness = os.getpriority(os.PRIO_PROCESS, 0)
    try:
        _prefer(_NICENESS)
        with contextlib.ExitStack() as ending:
            with _signals_later():  # Otherwise one may come when the folder is there, and nobody knows of it.
                made = tempfile.TemporaryDirectory(prefix="carrypost-bench-", ignore_cleanup_errors=True)
                folder = ending.enter_context(made)
            others = set(psutil.Process().children())
            try:
                yield Path(folder)
            except (KeyboardInterrupt, SystemExit):
                # A signal may come while a program is being started, before anything here knows of it.
                for child in set(psutil.Process().children(recursive=True)) - others:
                    with contextlib.suppress(psutil.NoSuchProcess):
                        child.kill()
                        child.wait()
                raise
    finally:
        _prefer(niceness)
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _signals_later() -> Iterator[None]:
    """Let signals that would end this program wait until the block is over."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _prefer(niceness: int) -> None:
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, niceness)
    with contextlib.suppress(OSError):  # Where sessions are scheduled against each other.
        Path("/proc/self/autogroup").write_text(str(niceness), encoding="ascii")


def _told_to_end(number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


def without_namespaces(name: str) -> str:
    """Why a benchmark that needs namespaces cannot run here; empty: it can."""
    if reason := netns.available():
        return f"carrypost bench {name} needs network namespaces, as root or as a user who may make them: {reason}"
    return ""


def member(file: Path, code: str) -> str:
    """Make the node of these settings a member of `CIRCLE`, before it runs; without a code it founds that.

    Returns the code for the next one.
    """

    async def join() -> str:
        async with ConnectionFactory(str(file), attach=False).create_context() as ctx:
            if code:
                await ctx.circles.join(code)
                return code
            await ctx.circles.found(CIRCLE)
            return await ctx.circles.invite(CIRCLE)

    return asyncio.run(join())


def interface_counters(net: netns.Net, end: netns.End) -> dict[str, int]:
    """Return the traffic of an interface so far."""
    names = ("tx_bytes", "tx_packets", "rx_bytes", "rx_packets")
    found = net.run(end.namespace, "cat", *(f"/sys/class/net/{end.interface}/statistics/{name}" for name in names))
    return dict(zip(names, map(int, found.split()), strict=True))
