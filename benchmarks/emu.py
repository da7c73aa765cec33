"""The emulator: CPU time of whole runs, receptions per CPU second, peak memory, share of the flood bound.

Each case runs in a program of its own, in faithful mode and without order. CPU time begins when everything is imported;
it includes reading the scenario, finding contacts, and writing the record as Parquet. The flood bound over the same
contacts is reckoned in the same program: how often its time goes into that of the run is a figure that can be compared
between machines. Cases:

    city_bus, ostermalm            the shipped scenarios; ostermalm with lifetimes of 20 minutes
    neutral-bus and so on          workloads given as files, as other simulators were measured on: `--workloads DIR`
                                   has folders bus, ostermalm, rwp-100, rwp-500, rwp-1000, each with contacts.csv
                                   (start,end,a,b), messages.csv (t,id,src,dst,size,ttl) and nodes.csv (node,start,end)
    waypoint-100 to waypoint-5000  random waypoint for 600 s, a message every 5 s from one of the nodes

With `--steps` it also shows what each kind of step of the hosts takes per reception. With `--against FILE` runs are
compared with those of another commit, whose output with `--json` is in that file.

Run: carrypost bench emu [--only CASE...] [--workloads DIR] [--seed N] [--repeats N] [--quick] [--steps]
                         [--against FILE] [--json]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks._processes import BenchmarkError, Row, say, scratch, start

from benchmarks import _report, _scenes
from carrypost.model.descriptor import Ordering

MEGABYTE: Final = 1_000_000
PATIENCE_S: Final = 3 * 3_600.0
_AREAS: Final = {"build_s": "build s", "run_s": "run s", "record_s": "record s"}

Found = Mapping[str, Any]
"""The measurement of a program, see benchmarks/_emulation.py."""
Cases = Mapping[str, Found]


@dataclass(frozen=True, slots=True)
class Goal:
    """A figure of one case, and its bound."""

    case: str
    what: str
    value: float
    figure: Callable[[Found], float]
    least: bool = False
    """True if it should be at least the value; otherwise at most."""
    by: str = ""
    """Divided by the same figure of this case."""

    def measured(self, found: Cases) -> float | None:
        """Return the figure; None: its cases were not measured."""
        if self.case not in found or (self.by and self.by not in found):
            return None
        mine = self.figure(found[self.case])
        return mine / self.figure(found[self.by]) if self.by else mine


def rate(found: Found) -> float:
    """Receptions per CPU second."""
    return float(found["receptions"] / found["cpu_s"])


def _megabytes(found: Found) -> float:
    return float(found["peak_bytes"] / MEGABYTE)


def cpu_s(found: Found) -> float:
    """Return the CPU time of the whole run."""
    return float(found["cpu_s"])


GOALS: Final = (
    Goal("city_bus", "CPU s", 4, cpu_s),
    Goal("neutral-bus", "CPU s", 4, cpu_s),
    Goal("ostermalm", "peak MB", 600, _megabytes),
    Goal("neutral-ostermalm", "peak MB", 600, _megabytes),
    Goal("waypoint-1000", "CPU s", 6, cpu_s),
    Goal("waypoint-5000", "CPU s by that of waypoint-1000", 6, cpu_s, by="waypoint-1000"),
)

RATIOS: Final = (("CPU s", "CPU a reception", 0.70, False), ("MB sent", "MB sent", 1.00, False),
                 ("receptions", "receptions", 1.00, True))  # fmt: skip
"""Of `neutral-ostermalm`, by the figures before fresh messages were pushed; True: at least, otherwise at most."""


def measure(case: str, options: argparse.Namespace) -> Found:
    """Run a case several times, each in its own program; return the result of median CPU time."""
    found: list[Found] = []
    for number in range(options.repeats):
        say(f"{case}, {number + 1} of {options.repeats}")
        found.append(once(case, options, steps=options.steps))
    return middle(found)


def once(case: str, options: argparse.Namespace, ordering: Ordering = Ordering.NONE, *, steps: bool = False) -> Found:
    """Run a case in a program of its own; `steps`: with clocks around the steps of hosts."""
    with scratch() as folder:
        scene = _scenes.scene(case, folder, options.workloads, options.seed, quick=options.quick, ordering=ordering)
        order = {
            "scenario": str(scene.scenario),
            "overrides": dict(scene.overrides),
            "seed": options.seed,
            "out": str(folder / "records.parquet"),
            "steps": steps,
        }
        with start(case, ["_emulation.py", json.dumps(order)]) as program:
            return program.answer(PATIENCE_S)


def middle(found: Sequence[Found]) -> Found:
    """Return the one of median CPU time."""
    return sorted(found, key=cpu_s)[(len(found) - 1) // 2]


def run_row(case: str, found: Found) -> Row:
    """Return the cost of a run, and its receptions."""
    return {
        "case": case,
        "nodes": found["nodes"],
        "contacts": found["contacts"],
        "messages": found["messages"],
        "receptions": found["receptions"],
        "CPU s": cpu_s(found),
        "CPU µs a reception": found["cpu_s"] / max(1, found["receptions"]) * 1e6,
        "MB sent": found["sent_bytes"] / MEGABYTE,
        "receptions/CPU s": rate(found),
        "peak MB": _megabytes(found),
        "share of bound %": found["receptions"] / found["bound"] * 100 if found["bound"] else None,
        "bound CPU ms": found["bound_s"] * 1e3,
        "times bound": found["cpu_s"] / found["bound_s"],
    }


def area_row(case: str, found: Found) -> Row:
    """Return its CPU time by area."""
    return {
        "case": case,
        **{name: found[area] for area, name in _AREAS.items()},
        **{f"{name.removesuffix(' s')} %": found[area] / found["cpu_s"] * 100 for area, name in _AREAS.items()},
        "rows": found["rows"],
        "record MB": found["record_bytes"] / MEGABYTE,
        "imports s, not counted": found["start_s"],
    }


def goal_rows(found: Cases, *, quick: bool) -> list[Row]:
    """Goals of the cases that were measured; whether they are met shows in whole runs only."""
    rows: list[Row] = []
    for goal in GOALS:
        measured = goal.measured(found)
        if measured is not None:
            met = measured >= goal.value if goal.least else measured <= goal.value
            rows.append(
                {
                    "case": goal.case,
                    "what": goal.what,
                    "measured": measured,
                    "goal": f"{'at least' if goal.least else 'at most'} {goal.value:,}",
                    "met": None if quick else met,
                }
            )
    return rows


def ratio_rows(runs: Sequence[Found], before: Path) -> list[Row]:
    """Figures of the cases that were measured by those of an earlier run, as far as its output has them."""
    try:
        lines = [json.loads(line) for line in before.read_text(encoding="utf-8").splitlines()]
        old = {line["case"]: line for line in lines if line["table"] == "Runs"}
        rows: list[Row] = []
        for run in [each for each in runs if each["case"] in old]:
            was = old[run["case"]]
            for column, what, goal, least in [each for each in RATIOS if was.get(each[0])]:
                ratio = run[column] / was[column]
                if what == "CPU a reception":
                    ratio *= was["receptions"] / run["receptions"]
                row: dict[str, Any] = {"case": run["case"], "what": what, "ratio": ratio, "goal": None, "met": None}
                if run["case"] == "neutral-ostermalm":
                    row["goal"] = f"{'at least' if least else 'at most'} {goal:.2f}"
                    row["met"] = ratio >= goal if least else ratio <= goal
                rows.append(row)
    except (OSError, ValueError, KeyError, TypeError, ZeroDivisionError) as error:
        raise BenchmarkError(f"{before} must be an output of carrypost bench emu --json: {error!r}") from None
    return rows


def _chosen(options: argparse.Namespace) -> list[str]:
    """Return the cases to measure; says which are left out, and why."""
    found = []
    for case in options.only or _scenes.CASES:
        if why := _scenes.missing(case, options.workloads):
            say(why)
        else:
            found.append(case)
    return found


def _options(argv: Sequence[str]) -> argparse.Namespace:
    parser = _report.parser("emu", str(__doc__).split("\n\n", maxsplit=1)[0], "--only city_bus waypoint-1000 --seed 2")
    parser.add_argument(
        "--only", nargs="+", choices=_scenes.CASES, metavar="CASE", help=f"these cases: {', '.join(_scenes.CASES)}"
    )
    parser.add_argument(
        "--workloads", type=Path, metavar="DIR", help="folders with contacts.csv, messages.csv, nodes.csv for neutral-…"
    )
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="where chance comes from (default 1)")
    parser.add_argument(
        "--repeats", type=_report.positive, default=1, metavar="N", help="the median of so many (default 1)"
    )
    parser.add_argument("--steps", action="store_true", help="what each kind of step takes; clocks add a tenth or so")
    parser.add_argument("--against", type=Path, metavar="FILE", help="compare with what another commit said by --json")
    parser.add_argument("--quick", action="store_true", help="a short part of each case; says little about speed")
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> int:
    """Print the tables."""
    options = _options(argv)
    found: dict[str, Found] = {}
    try:
        for case in _chosen(options):
            found[case] = measure(case, options)
        runs = [run_row(case, each) for case, each in found.items()]
        ratios = ratio_rows(runs, options.against) if options.against else []
    except BenchmarkError as error:
        say(f"carrypost bench emu: {error}")
        return 1
    if not found:
        say("carrypost bench emu: no case is left to measure")
        return 1
    show = partial(_report.show, json=options.json)
    part = ", a short part of each case" if options.quick else ""
    show(
        f"Runs: faithful, seed {options.seed}{part}; CPU time from the scenario's file to the record's, imports apart",
        runs,
    )
    if options.steps:
        title = "Steps: CPU time per reception, by what hosts are given, with all that follows from it"
        show(title, [{"case": case, **row} for case, each in found.items() for row in each["steps"]])
    show(
        "Areas: where CPU time goes; build reads files, moves nodes and finds contacts, record writes rows",
        [area_row(case, each) for case, each in found.items()],
    )
    show("Goals: of whole runs" + part, goal_rows(found, quick=options.quick))
    if options.against:
        show(f"Ratios: to the runs in {options.against.name}", ratios)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
