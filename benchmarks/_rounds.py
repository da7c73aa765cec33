"""Benchmarks that measure rounds on new nodes, with goals: their command line, folders and tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from benchmarks._processes import Row, say, scratch

from benchmarks import _report


@dataclass
class Rounds:
    """Amount that is measured, and the folder for it."""

    folder: Path
    messages: int
    repeats: int
    _nodes: int = 0

    def next_folder(self) -> Path:
        """Return the folder of a new node."""
        self._nodes += 1
        return self.folder / str(self._nodes)


B = TypeVar("B", bound=Rounds)
Tables = Mapping[str, tuple[str, Callable[[B], Sequence[Row]]]]
"""Titles of tables, and what measures their rows, by name; each row says by `met` if its goal is."""


def at_most(times: float, goal: float) -> dict[str, object]:
    """Return the end of a row whose ratio has an upper bound."""
    return {"times": times, "goal": goal, "met": times <= goal}


def judge(kind: type[B], tables: Tables[B], about: tuple[str, str], argv: Sequence[str], *, few: int, many: int) -> int:
    """Measure and print tables; return 1 if goals are to be met and are missed.

    `about`: name and documentation of the benchmark. `few`, `many`: messages of a round, with `--quick` and without.
    """
    parser = _report.parser(about[0], about[1].split("\n\n", maxsplit=1)[0], f"--repeats 3 --only {next(iter(tables))}")
    parser.add_argument("--quick", action="store_true", help=f"{few} messages, once, in a few seconds")
    parser.add_argument("--messages", type=_report.positive, default=many, metavar="N", help="messages of a round")
    parser.add_argument("--repeats", type=_report.positive, default=5, metavar="N", help="rounds of each kind")
    parser.add_argument("--only", nargs="+", choices=tables, default=list(tables), metavar="NAME", help="these tables")
    parser.add_argument("--strict", action="store_true", help="exit with 1 if a goal is missed")
    given = parser.parse_args(argv)
    met = True
    with scratch() as folder:
        bench = kind(folder, *((few, 1) if given.quick else (given.messages, given.repeats)))
        for name in given.only:
            title, rows_of = tables[name]
            say(name)
            rows = rows_of(bench)
            _report.show(f"{name}: {title}", rows, json=given.json)
            met = met and all(row["met"] for row in rows)
    return 1 if given.strict and not met else 0
