"""Every check of the repository, and the time that each took.

Tests run in parts of their lanes (`tools.lanes`). As many workers as there are processors share one queue: the quick
checks, the laboratory, the browser, the types, and the parts of the lane `virtual`, so that all are busy to the end.
The lane `realtime` mostly waits; its parts run beside the others, and go first on machines with few processors.
Progress is reported while checks run, and the output of each part when it is over. The table at the end has CPU
seconds, seconds and the last line of each check. All of them run even when one fails, so that one run shows
everything; the exit code is 0 only if all passed.

Run by `make test`; arguments choose checks by name: `python tools/check.py types imports`. With `--record` it notes how
long files of tests took, for the next run (`tools/costs.json`). Tests use the sources; with `--compiled`, what
`make compiled` made of them, and only the lanes `virtual` and `realtime` are run (`make test-compiled`).
"""

from __future__ import annotations

import os
import signal
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # As a script it knows its own folder only.

from tools.jobs import Job, Result, end  # noqa: E402
from tools.outcomes import Outcome, dearest, record, table  # noqa: E402

from carrypost.extensions import BUILD, PURE  # noqa: E402
from tools import chromium, document_programs, java_client, lanes, meter  # noqa: E402 - needs the line above

SCRIPTS = Path(sysconfig.get_path("scripts"))
SIZES = "tests/tools/test_sizes.py"
BESIDE = 2
"""Number of parts of the lane `realtime` that run at a time: they wait, mostly."""
TELL_S, LIVE_S = 30.0, 1.0
"""Intervals between reports of progress: in lines, and on a terminal."""


def tool(name: str, *arguments: str) -> list[str]:
    """Command line of a tool that is installed beside this interpreter."""
    return [str(SCRIPTS / name), *arguments]


def typed_folders() -> list[str]:
    """Return the folders that mypy checks; it refuses a folder without Python files."""
    folders = ("src", "tests", "examples", "benchmarks", "tools")
    return [name for name in folders if any((ROOT / name).rglob("*.py"))]


_CACHE = ("--cache-dir", os.devnull) if os.environ.get("CI") else ()
"""A checkout that is thrown away needs no cache, and to write one takes an eighth of the time."""
TOOLS = {
    "lint": tool("ruff", "check"),
    "format": tool("ruff", "format", "--check"),
    "types": tool("mypy", *_CACHE, *typed_folders()),
    "imports": tool("lint-imports"),
    "compiled": [sys.executable, "tools/compiled.py", "--check"],
    "sizes": tool("pytest", "--quiet", "-s", SIZES),  # It prints how many lines of code there are.
}
NAMES = (*TOOLS, *lanes.LANES)
RECORD, COMPILED = OPTIONS = ("--record", "--compiled")
_BOTH_WAYS = ("virtual", "realtime")
"""Lanes of tests that concern what is compiled."""
_WAITING = "realtime"
_ORDER = ("lint", "format", "imports", "sizes", "laboratory", "browser", "types", "compiled", "virtual")
"""Order of the queue: quick checks report early, and long ones that cannot be divided are not left to the end."""


def jobs(names: Sequence[str], folder: Path, *, compiled: bool = False) -> list[Job]:
    """Make the programs of these checks, in the order in which they are started; they measure into `folder`."""
    variables = {} if compiled else {PURE: "1"}  # Whatever was compiled here, sources are what is checked.
    found = []
    for name in sorted(names, key=lambda name: -1 if name == _WAITING else _ORDER.index(name)):
        if name in TOOLS:
            more = document_programs.write(folder / "documents") if name == "types" else []
            found.append(Job(name, name, [*TOOLS[name], *more], Path(TOOLS[name][0]).name, None, variables=variables))
            continue
        parts = lanes.parts(name, without=SIZES)
        for number, files in enumerate(parts, 1):
            part = f"{name} {number}/{len(parts)}" if len(parts) > 1 else name
            costs = folder / f"{name}-{number}"
            # As a module: then it knows this folder, where the plugins are.
            folders = sorted({str(Path(file).parent) for file in files})
            plugins = ["-p", "tools.meter", f"--meter={costs}", "-p", "tools.part", f"--part={','.join(files)}"]
            argv = [sys.executable, "-m", "pytest", "--quiet", "--hypothesis-profile=ci", *plugins, *folders]
            found.append(Job(name, part, argv, f"pytest, {len(files)} files", costs, name == _WAITING, variables))
    return found


def workers() -> int:
    """Return the number of programs that share the queue: one for each processor that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def begun(todo: list[Job]) -> Iterator[list[Future[Result]]]:
    """Run them while the block lasts; if it is left early, those that run are ended and the rest never begins."""
    with ThreadPoolExecutor(BESIDE) as apart, ThreadPoolExecutor(workers()) as queue:
        try:
            yield [(apart if job.eager else queue).submit(job.run) for job in todo]
        except BaseException:
            end(todo)
            raise


class Progress:
    """The progress of the checks, reported now and then."""

    def __init__(self, todo: list[Job]) -> None:
        self._todo = todo
        self._began_s = self._told_s = time.perf_counter()
        self._live = sys.stdout.isatty()

    @property
    def period_s(self) -> float:
        """Time to wait until there may be something to report."""
        return LIVE_S if self._live else TELL_S

    def line(self) -> str:
        """Return one line: elapsed time, finished tests, running checks, and the number that wait."""
        tests = sum(len(meter.read(job.costs)) for job in self._todo if job.costs is not None)
        running = ", ".join(job.part for job in self._todo if job.runs) or "nothing"
        waiting = sum(job.waits for job in self._todo)
        return f"{time.perf_counter() - self._began_s:.0f} s, {tests:,} tests done; running: {running}; {waiting} wait"

    def tell(self) -> None:
        """Report the progress, if it is time to."""
        now_s = time.perf_counter()
        if now_s - self._told_s >= self.period_s * 0.9:
            self._told_s = now_s
            print(
                f"\r{self.line()[:100]}\x1b[K" if self._live else self.line(),
                end="" if self._live else "\n",
                flush=True,
            )

    def said(self, result: Result) -> None:
        """Show what a program said, now that it is over."""
        erase = "\r\x1b[K" if self._live else ""
        print(f"{erase}== {result.part}: {result.shown}\n{result.said}", flush=True)


def run(names: Sequence[str], folder: Path, *, compiled: bool = False) -> list[Result]:
    """Run these checks; report the progress, and the output of each when it is over."""
    todo = jobs(names, folder, compiled=compiled)
    progress = Progress(todo)
    results: list[Result] = []
    with begun(todo) as futures:
        left = set(futures)
        while left:
            done, left = wait(left, progress.period_s, "FIRST_COMPLETED")
            for each in done:
                results.append(each.result())
                progress.said(results[-1])
            progress.tell()
    return results


def main(arguments: list[str]) -> int:
    """Run the checks called so, or all."""
    names = [name for name in arguments if name not in OPTIONS]
    if unknown := [name for name in names if name not in NAMES]:
        print(f"no check is called {unknown[0]!r}; there are: {', '.join(NAMES)}", file=sys.stderr)
        return 2
    # A shell that starts this in the background lets it ignore Ctrl-C; some tests press that. Whoever ends it otherwise
    # does not want its programs left over either.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    if COMPILED in arguments and BUILD == "pure":
        print("nothing is compiled here, or it is out of date: make compiled", file=sys.stderr)
        return 2
    started_s = time.perf_counter()
    chosen = names or (_BOTH_WAYS if COMPILED in arguments else NAMES)
    missing = [
        chromium.prepare() if "browser" in chosen else None,
        java_client.prepare() if _WAITING in chosen else None,
    ]
    with tempfile.TemporaryDirectory(prefix="carrypost-checks-") as name:
        try:
            results = run(chosen, Path(name), compiled=COMPILED in arguments)
        except KeyboardInterrupt:
            print("\ninterrupted", file=sys.stderr)
            return 130
        costs = [cost for result in results for cost in result.costs]
    for each in filter(None, missing):
        print(each)
    outcomes = [Outcome.of(name, found) for name in NAMES if (found := [each for each in results if each.name == name])]
    print(dearest(costs))
    print(table(outcomes, time.perf_counter() - started_s))
    if RECORD in arguments:
        record(costs, _WAITING)
    return int(any(outcome.code for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
