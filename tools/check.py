"""Every check of the repository, one after the other, and how long each took.

All of them run even when one fails, so that one look shows everything; the exit code is 0 only if all passed.
Run by `make test`; arguments choose checks by name: `python tools/check.py types imports`.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import time
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


CHECKS = {
    "lint": tool("ruff", "check"),
    "format": tool("ruff", "format", "--check"),
    "types": tool("mypy", *typed_folders()),
    "imports": tool("lint-imports"),
    "sizes": tool("pytest", "--quiet", SIZES),
    "tests": tool("pytest", "--quiet", "--hypothesis-profile=ci", f"--ignore={SIZES}", "--durations=5"),
}


def main(names: list[str]) -> int:
    """Run the checks called `names`, or all."""
    if unknown := [name for name in names if name not in CHECKS]:
        print(f"no check is called {unknown[0]!r}; there are: {', '.join(CHECKS)}", file=sys.stderr)
        return 2
    outcomes = []
    for name in names or CHECKS:
        executable, *arguments = CHECKS[name]
        print(f"== {name}:", Path(executable).name, *arguments, flush=True)
        start_s = time.perf_counter()
        code = subprocess.run(CHECKS[name], cwd=ROOT, check=False).returncode  # noqa: S603 - our own tools
        outcomes.append((name, code, time.perf_counter() - start_s))
    total_s = sum(took_s for _, _, took_s in outcomes)
    print(f"\n{'check':<10}{'outcome':<10}{'seconds':>8}")
    for name, code, took_s in outcomes:
        print(f"{name:<10}{'failed' if code else 'passed':<10}{took_s:>8.1f}")
    print(f"{'all':<10}{'failed' if any(code for _, code, _ in outcomes) else 'passed':<10}{total_s:>8.1f}")
    return int(any(code for _, code, _ in outcomes))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
