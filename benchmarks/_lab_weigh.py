"""Time and memory of a piece of work: of this process and all its descendants, including the JVM and its workers.

The CPU time of an ended process is counted by the process that waited for it, which is in the tree; so the sum over the
tree includes ended processes, and never decreases. Memory is PSS (shared memory counts once). A separate program
samples it while the work goes on. That program disturbs little and is not counted, but may miss a short peak. A tree
may hold much memory before the work begins, such as an idle JVM: `before_bytes` has it. Work without Spark is better
measured by `weigh_apart`, in its own program.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import resource
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Final, Generic, Self, TypeVar

import psutil
from benchmarks._processes import BenchmarkError

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_ROOT: Final = Path(__file__).resolve().parent.parent
_PAUSE_S: Final = 0.05
_LOOK_S: Final = 0.1
_PAUSE_SHARE: Final = 20
"""Ratio of pauses to measurements: measuring a large JVM takes a while, and holds it up."""


@dataclass(frozen=True, slots=True)
class Weighed(Generic[T_co]):
    """The cost of a piece of work, and its result."""

    wall_s: float
    cpu_s: float
    peak_bytes: int
    """The most memory that was seen meanwhile."""
    before_bytes: int
    """Memory at the beginning; part of the peak."""
    result: T_co

    @property
    def more_bytes(self) -> int:
        """The most memory above that at the beginning."""
        return self.peak_bytes - self.before_bytes


def weigh(run: Callable[[], T], *, tree: bool = True) -> Weighed[T]:
    """Run it and measure it; not `tree`: only this process, without its children."""
    with _Scales(tree=tree) as scales:
        began_s = time.perf_counter()
        result = run()
        wall_s = time.perf_counter() - began_s
    return Weighed(wall_s, scales.cpu_s, scales.peak_bytes, scales.before_bytes, result)


def weigh_apart(run: Callable[..., T], *args: object) -> Weighed[T]:
    """Weigh `run(*args)` in a new program: `run` is a function of a module; arguments and result can be pickled.

    Time is counted from the import of that module; memory includes Python and all imported modules.
    """
    with _program("serve()") as program:
        try:
            said, _ = program.communicate(pickle.dumps((run.__module__, run.__name__, args)))
        except BaseException:
            program.kill()  # Nobody waits for it any more.
            raise
    if program.returncode:
        raise BenchmarkError(f"{run.__module__}.{run.__name__} ended with exit code {program.returncode}")
    found: Weighed[T] = pickle.loads(said)  # noqa: S301 - from our own program
    return found


def weigh_command(command: Sequence[str]) -> Weighed[int]:
    """Weigh a command in its own program, with its exit code; memory is the maximum of one of its Python processes.

    Executors and their workers have no parent any more when they end, so all processes are sampled meanwhile.
    """
    began_s = time.perf_counter()
    cpu_s: dict[tuple[int, float], float] = {}
    peak_bytes = 0
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, env=_environment()) as program:  # noqa: S603 - our own
        root = psutil.Process(program.pid)
        while program.poll() is None:
            for each in (root, *_below(root)):
                with contextlib.suppress(psutil.Error):
                    times = each.cpu_times()
                    cpu_s[each.pid, each.create_time()] = times.user + times.system
                    if "python" in each.name():
                        peak_bytes = max(peak_bytes, _pss_bytes(each.pid))
            time.sleep(_LOOK_S)
    wall_s = time.perf_counter() - began_s
    return Weighed(wall_s, sum(cpu_s.values()), peak_bytes, 0, program.returncode)


def serve() -> None:
    """The program of `weigh_apart`: does what standard input says, and answers on standard output."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it without a word; whoever started it has some.
    answers = os.dup(1)
    os.dup2(2, 1)  # What the work itself prints is no answer.
    module, name, args = pickle.loads(sys.stdin.buffer.read())  # noqa: S301 - from our own program
    run = getattr(import_module(module), name)
    found = weigh(lambda: run(*args))
    with os.fdopen(answers, "wb") as out:
        pickle.dump(found, out)


def watch(pid: int, *, tree: bool) -> None:
    """Measure in a program of its own: report memory at the beginning, and the most until standard input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # It ends when it is told to.
    root = psutil.Process(pid)
    first_bytes = peak_bytes = _memory_bytes(root, tree=tree)
    print(first_bytes, flush=True)
    pause_s = _PAUSE_S
    while not select.select([sys.stdin], [], [], pause_s)[0]:
        began_s = time.perf_counter()
        peak_bytes = max(peak_bytes, _memory_bytes(root, tree=tree))
        pause_s = max(_PAUSE_S, _PAUSE_SHARE * (time.perf_counter() - began_s))
    print(max(peak_bytes, _memory_bytes(root, tree=tree)), flush=True)


class _Scales:
    """Weighs while the block lasts."""

    def __init__(self, *, tree: bool) -> None:
        self._tree = tree
        self._this = psutil.Process()
        self.cpu_s = 0.0
        self.before_bytes = 0
        self.peak_bytes = 0

    def __enter__(self) -> Self:
        self._watcher = _program(f"watch({self._this.pid}, tree={self._tree})")
        assert self._watcher.stdout is not None
        self.before_bytes = int(self._watcher.stdout.readline())
        self._began_s = self._cpu_s()
        return self

    def __exit__(self, *_: object) -> None:
        self.cpu_s = self._cpu_s() - self._began_s
        with self._watcher:
            said = self._watcher.communicate()[0]
        self.peak_bytes = int(said)

    def _cpu_s(self) -> float:
        found = time.process_time()
        if not self._tree:
            return found
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        found += usage.ru_utime + usage.ru_stime
        for process in _below(self._this, self._watcher.pid):
            with contextlib.suppress(psutil.Error):
                times = process.cpu_times()
                found += times.user + times.system + times.children_user + times.children_system
        return found


def _program(call: str) -> subprocess.Popen[bytes]:
    """Start a function of this module in a new Python, which finds the same modules."""
    return subprocess.Popen(  # noqa: S603 - our own program
        [sys.executable, "-c", f"from benchmarks import _lab_weigh; _lab_weigh.{call}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=_environment(),
    )


def _environment() -> dict[str, str]:
    paths = [str(_ROOT), *(path for path in sys.path if path)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def _below(root: psutil.Process, *but: int) -> Iterator[psutil.Process]:
    """Yield the tree below a process, parents first: a process that ends meanwhile is missed, not counted twice."""
    with contextlib.suppress(psutil.NoSuchProcess):
        yield from (each for each in root.children(recursive=True) if each.pid not in but)


def _memory_bytes(root: psutil.Process, *, tree: bool) -> int:
    below = _below(root, os.getpid()) if tree else ()
    return sum(_pss_bytes(process.pid) for process in (root, *below))


def _pss_bytes(pid: int) -> int:
    """Return the memory of a process, with its share of memory shared with others; 0 if it ended."""
    with contextlib.suppress(OSError):
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
    return 0
