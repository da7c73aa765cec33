"""Which tests run beside which: every file of tests is in one lane, by what it uses.

`laboratory` is what needs Spark, which starts once for all of it. `realtime` is what speaks to real nodes or over real
sockets: it mostly waits, and wants a processor at once when it does not. `virtual` is everything else: it has its own
time, and keeps a processor busy. Nobody lists files: one that imports the means of real nodes, itself or by way of
modules that tests share, is in the lane of those.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
LANES: Final[tuple[str, ...]] = ("realtime", "virtual", "laboratory")
SPARK: Final = "spark"
"""The fixture that starts it."""
_REAL: Final = frozenset({"socket", "tests.benches", "tests.loopback", "tests.nodes", "tools.netns"})


def lane_of(file: Path) -> str:
    """The lane of one file of tests."""
    if "lab" in file.stem.split("_") or SPARK in _names(file):
        return "laboratory"
    return "realtime" if _is_real(file) else "virtual"


def files(lane: str) -> list[str]:
    """The files of tests in a lane, as they are given to pytest."""
    found = sorted((ROOT / "tests").rglob("test_*.py"))
    return [str(file.relative_to(ROOT)) for file in found if lane_of(file) == lane]


@functools.cache
def _is_real(file: Path) -> bool:
    imported = set(_imports(file))
    return bool(imported & _REAL) or any(_is_real(shared) for shared in map(_shared, imported) if shared is not None)


def _shared(module: str) -> Path | None:
    """The file of a module that tests share; None for those of the package and of others."""
    file = ROOT.joinpath(*module.split(".")).with_suffix(".py")
    return file if module.startswith(("tests.", "tools.")) and file.is_file() else None


def _imports(file: Path) -> Iterator[str]:
    for node in ast.walk(_tree(file)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _names(file: Path) -> Iterator[str]:
    """Parameters and strings: how tests ask for a fixture."""
    for node in ast.walk(_tree(file)):
        if isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


@functools.cache
def _tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))
