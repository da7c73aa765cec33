"""Lanes of tests: every file of tests is in one, depending on what it uses.

`laboratory` needs Spark, which starts once for all of its files. `browser` needs the system's Chromium
(`tests.support.browsers`). `realtime` uses real nodes or real sockets: it mostly waits, and needs a processor at once
when it does not. `virtual` is everything else: it has virtual time, and keeps a processor busy. There is no list of
files: a file that imports the means of real nodes, directly or through modules that tests share, is in their lane.

A lane is run in parts that take about the same time. `costs.json` has the times of files that take long;
`tools/check.py --record` writes it. A time that is out of date makes a part longer than the others, nothing worse.
"""

from __future__ import annotations

import ast
import functools
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
LANES: Final[tuple[str, ...]] = ("realtime", "virtual", "laboratory", "browser")
SPARK: Final = "spark"
"""The fixture that starts it."""
INSTALLED: Final = "installed"
"""A fixture that takes seconds to make: the files that use it are in one part."""
COSTS: Final = ROOT / "tools" / "costs.json"
USUAL_S: Final = 0.3
"""Time of a file that is not among the costs."""
_PART_S: Final[Mapping[str, float]] = {"realtime": 200.0, "virtual": 90.0, "laboratory": math.inf, "browser": math.inf}
"""Longest time of a part: a process takes 3 s to collect its tests, and a long part may be left over at the end.

Two parts of the lane `realtime` run at a time.
"""
BROWSERS: Final = "tests.support.browsers"
"""The module by which tests ask for a browser."""
_REAL: Final = frozenset({"socket", "tests.support.loopback", "tests.support.nodes", "tools.netns"})


def lane_of(file: Path) -> str:
    """Return the lane of one file of tests."""
    if "lab" in file.stem.split("_") or _asks_for(file, SPARK):
        return "laboratory"
    if BROWSERS in _contents(file).imports:
        return "browser"
    return "realtime" if _is_real(file) else "virtual"


def files(lane: str) -> list[str]:
    """Return the files of tests in a lane, as they are given to pytest."""
    found = sorted((ROOT / "tests").rglob("test_*.py"))
    return [str(file.relative_to(ROOT)) for file in found if lane_of(file) == lane]


def parts(lane: str, *, without: str = "") -> list[list[str]]:
    """Deal the files of a lane into parts that take about the same time; the dearest comes first in each."""
    costs = recorded()

    def cost_s(bundle: list[str]) -> float:
        return sum(costs.get(file, USUAL_S) for file in bundle)

    found = [file for file in files(lane) if file != without]
    together = [file for file in found if _asks_for(ROOT / file, INSTALLED)]
    bundles = [together, *([file] for file in found if file not in together)]
    dealt: list[list[str]] = [[] for _ in range(max(1, math.ceil(cost_s(found) / _PART_S[lane])))]
    for bundle in sorted(bundles, key=cost_s, reverse=True):
        min(dealt, key=cost_s).extend(bundle)
    return [part for part in dealt if part]


def recorded() -> dict[str, float]:
    """Read what files took when it was last recorded: seconds of the lane `realtime`, CPU seconds of the others."""
    found: dict[str, float] = json.loads(COSTS.read_text(encoding="utf-8")) if COSTS.exists() else {}
    return found


def _asks_for(file: Path, fixture: str) -> bool:
    return fixture in _contents(file).fixtures


@functools.cache
def _is_real(file: Path) -> bool:
    imported = _contents(file).imports
    return bool(imported & _REAL) or any(_is_real(shared) for shared in map(_shared, imported) if shared is not None)


def _shared(module: str) -> Path | None:
    """Return the file of a module that tests share; None for those of the package and of others."""
    file = ROOT.joinpath(*module.split(".")).with_suffix(".py")
    return file if module.startswith(("tests.", "tools.")) and file.is_file() else None


@dataclass(frozen=True)
class _Contents:
    """The contents of a file that decide on its lane."""

    imports: frozenset[str]
    fixtures: frozenset[str]
    """Names among `SPARK` and `INSTALLED` of parameters and texts, by which tests ask for fixtures."""


@functools.cache
def _contents(file: Path) -> _Contents:
    text = file.read_text(encoding="utf-8")
    tree = ast.parse(text)
    imports: set[str] = set()
    for node in _statements(tree):
        if isinstance(node, ast.Import):
            imports.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            imports.update((node.module, *(f"{node.module}.{alias.name}" for alias in node.names)))
    possible = {name for name in (SPARK, INSTALLED) if name in text}
    return _Contents(frozenset(imports), frozenset(possible & set(_names(tree)) if possible else ()))


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """Yield statements at any depth, without expressions, which would take most of the time."""
    for part in ("body", "orelse", "handlers", "finalbody"):
        for each in getattr(node, part, ()):
            yield each
            yield from _statements(each)


def _names(tree: ast.AST) -> Iterator[str]:
    """Yield the names of parameters, and texts."""
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
