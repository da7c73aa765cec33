"""Every check of the repository, and how long each took.

They run side by side: the three lanes of tests (`tools.lanes`), and what is quick one after the other beside them. Each
says what it has to say when it is over; the table at the end has the last line of each. All of them run even when one
fails, so that one look shows everything; the exit code is 0 only if all passed.
Run by `make test`; arguments choose checks by name: `python tools/check.py types imports`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # As a script it knows its own folder only.

from tools import lanes  # noqa: E402 - needs the line above

SCRIPTS = Path(sysconfig.get_path("scripts"))
SIZES = "tests/test_sizes.py"
NICENESS: Mapping[str, int] = {"realtime": 0, "virtual": 2}
"""Who goes first where processors are few: what waits for real time must not be kept waiting by others, and what has
only one process should not be left over at the end. All others have the highest."""
_NICENESS_MAX = 4


@dataclass(frozen=True)
class Outcome:
    """What came of one check."""

    name: str
    code: int
    took_s: float
    last_line: str

    def row(self) -> str:
        """Its row in the table."""
        return f"{self.name:<12}{'failed' if self.code else 'passed':<8}{self.took_s:>8.1f}  {self.last_line}".rstrip()


def tool(name: str, *arguments: str) -> list[str]:
    """Command line of a tool that is installed beside this interpreter."""
    return [str(SCRIPTS / name), *arguments]


def typed_folders() -> list[str]:
    """The folders that mypy looks at; it refuses one without Python in it."""
    folders = ("src", "tests", "examples", "benchmarks", "tools")
    return [name for name in folders if any((ROOT / name).rglob("*.py"))]


TOOLS = {
    "lint": tool("ruff", "check"),
    "format": tool("ruff", "format", "--check"),
    "types": tool("mypy", *typed_folders()),
    "imports": tool("lint-imports"),
    "sizes": tool("pytest", "--quiet", SIZES),
}
NAMES = (*TOOLS, *lanes.LANES)


def command(name: str) -> list[str]:
    """What a check runs; a lane has all its tests but those that are a check of their own."""
    if name in TOOLS:
        return TOOLS[name]
    files = [file for file in lanes.files(name) if file != SIZES]
    return tool("pytest", "--quiet", "--hypothesis-profile=ci", "--durations=5", *files)


def environment() -> dict[str, str]:
    """Bytecode is kept: tests start programs by the hundred, and to compile the package is half of such a start."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def checked(names: Iterable[str]) -> list[Outcome]:
    """Run these checks one after the other."""
    return [_checked(name) for name in names]


def _checked(name: str) -> Outcome:
    executable, *arguments = argv = command(name)
    start_s = time.perf_counter()
    with subprocess.Popen(  # noqa: S603 - our own tools
        argv, cwd=ROOT, env=environment(), text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        os.setpriority(os.PRIO_PROCESS, process.pid, NICENESS.get(name, _NICENESS_MAX))
        said, _ = process.communicate()
    took_s = time.perf_counter() - start_s
    shown = arguments if name in TOOLS else [argument for argument in arguments if argument.startswith("-")]
    print(f"== {name}: {' '.join([Path(executable).name, *shown])}\n{said}", flush=True)
    return Outcome(name, process.returncode, took_s, said.rstrip().rpartition("\n")[2])


def main(names: list[str]) -> int:
    """Run the checks called `names`, or all."""
    if unknown := [name for name in names if name not in NAMES]:
        print(f"no check is called {unknown[0]!r}; there are: {', '.join(NAMES)}", file=sys.stderr)
        return 2
    # A shell that starts this in the background lets it ignore Ctrl-C; some tests press that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    chosen = names or NAMES
    sides = [[lane] for lane in lanes.LANES if lane in chosen]
    sides.append([name for name in chosen if name in TOOLS])
    started_s = time.perf_counter()
    with ThreadPoolExecutor(len(sides)) as pool:
        outcomes = sorted((each for side in pool.map(checked, sides) for each in side), key=_place)
    failed = any(each.code for each in outcomes)
    total = Outcome("all", int(failed), time.perf_counter() - started_s, "")
    print(f"{'check':<12}{'outcome':<8}{'seconds':>8}  last line")
    for each in (*outcomes, total):
        print(each.row())
    return int(failed)


def _place(outcome: Outcome) -> int:
    return NAMES.index(outcome.name)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
