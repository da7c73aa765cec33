"""Every check of the repository, and how long each took.

The tests of the laboratory, most of which wait for Spark, and everything that is quick run beside the other tests; each
says what it has to say when it is over. All of them run even when one fails, so that one look shows everything; the
exit code is 0 only if all passed.
Run by `make test`; arguments choose checks by name: `python tools/check.py types imports`.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = Path(sysconfig.get_path("scripts"))
SIZES = "tests/test_sizes.py"


def tool(name: str, *arguments: str) -> list[str]:
    """Command line of a tool that is installed beside this interpreter."""
    return [str(SCRIPTS / name), *arguments]


def typed_folders() -> list[str]:
    """The folders that mypy looks at; it refuses one without Python in it."""
    folders = ("src", "tests", "examples", "benchmarks", "tools")
    return [name for name in folders if any((ROOT / name).rglob("*.py"))]


_TESTS = ("--quiet", "--hypothesis-profile=ci", "--durations=5")
_LAB = [
    *sorted(str(file.relative_to(ROOT)) for file in (ROOT / "tests").glob("test_*.py") if "_lab" in file.stem),
    "tests/test_documents.py",  # Has an example that asks Spark.
]

CHECKS = {
    "lint": tool("ruff", "check"),
    "format": tool("ruff", "format", "--check"),
    "types": tool("mypy", *typed_folders()),
    "imports": tool("lint-imports"),
    "sizes": tool("pytest", "--quiet", SIZES),
    "lab": tool("pytest", *_TESTS, *_LAB),
    "tests": tool("pytest", *_TESTS, *(f"--ignore={file}" for file in (SIZES, *_LAB))),
}
LONGEST = "tests"
"""Runs by itself, and tells as it goes; the others run one after the other beside it."""


def _checked(name: str, *, aside: bool) -> tuple[str, int, float]:
    """Run one check; its name, exit code and how long it took. One that is `aside` speaks when it is over."""
    executable, *arguments = CHECKS[name]
    title = " ".join([f"== {name}:", Path(executable).name, *arguments])
    if not aside:
        print(title, flush=True)
    start_s = time.perf_counter()
    done = subprocess.run(  # noqa: S603 - our own tools
        CHECKS[name], cwd=ROOT, check=False, text=True,
        stdout=subprocess.PIPE if aside else None, stderr=subprocess.STDOUT if aside else None,
    )  # fmt: skip
    if aside:
        print(f"{title}\n{done.stdout}", flush=True)
    return name, done.returncode, time.perf_counter() - start_s


def main(names: list[str]) -> int:
    """Run the checks called `names`, or all."""
    if unknown := [name for name in names if name not in CHECKS]:
        print(f"no check is called {unknown[0]!r}; there are: {', '.join(CHECKS)}", file=sys.stderr)
        return 2
    chosen = names or list(CHECKS)
    started_s = time.perf_counter()
    with ThreadPoolExecutor(1) as beside:
        waiting = [beside.submit(_checked, name, aside=True) for name in chosen if name != LONGEST]
        outcomes = [_checked(name, aside=False) for name in chosen if name == LONGEST]
        outcomes = [each.result() for each in waiting] + outcomes
    total_s = time.perf_counter() - started_s
    print(f"\n{'check':<10}{'outcome':<10}{'seconds':>8}")
    for name, code, took_s in outcomes:
        print(f"{name:<10}{'failed' if code else 'passed':<10}{took_s:>8.1f}")
    print(f"{'all':<10}{'failed' if any(code for _, code, _ in outcomes) else 'passed':<10}{total_s:>8.1f}")
    return int(any(code for _, code, _ in outcomes))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
