"""CPU time and control bytes of routing strategies on The ONE's default scenario, beside The ONE's CPU time.

Without contention the first 3 h are run, with messages of 1 kB, since sizes have no effect there; with contention 12 h.
The ONE's CPU seconds are those of the table in its comparison, taken on another machine: ratios are shown, and are not
judged. Control bytes are those of all frames that carry no message, of 3 h without contention.

A run with contention takes minutes. `--only` runs some of them, so that a program that is killed loses no more.

Run: carrypost bench baselines [--only RUN...] [--repeat N] [--quick] [--strict] [--json]
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from benchmarks import _report
from benchmarks._processes import say

from carrypost import emu
from carrypost.gossip.wire.frames import CARRYING, kind_of
from carrypost.lab.campaign.recipes import RECIPES

SCENARIO = Path(__file__).resolve().parents[1] / "scenarios" / "helsinki.toml"
HOURS = {"uncontended": 3.0, "contended": 12.0}
ONE_CPU_S: Mapping[tuple[str, str], float] = {
    ("anti-entropy", "uncontended"): 50, ("prophet", "uncontended"): 27, ("direct", "contended"): 55,
    ("spray-and-wait", "contended"): 56, ("first-contact", "contended"): 56, ("prophet", "contended"): 67,
    ("epidemic", "contended"): 64,
}  # fmt: skip
RATIO_MAX = {"uncontended": 1.0, "contended": 3.0}
CONTROL_MAX = 2.0
"""Control bytes of PRoPHET, by those of spray-and-wait."""
CONTROL = "control"
RUNS = [*dict.fromkeys(["-".join(case) for case in ONE_CPU_S] + [load for _, load in ONE_CPU_S]), CONTROL]
"""Words for `--only`: single runs, all with the same load, the control bytes."""
_CARRYING = [*map(kind_of, CARRYING)]


def run(strategy: str, load: str, hours: float) -> tuple[float, int]:
    """Run a strategy; return CPU seconds and control bytes."""
    say(f"{strategy}, {load}, {hours:g} h")
    (chosen,) = [each for each in RECIPES["baselines"].settings if each.name == f"{strategy}-{load}"]
    began_s = time.process_time()
    table = emu.run(SCENARIO, 1, overrides={**chosen.changes, "duration_s": hours * 3_600}).table
    cpu_s = time.process_time() - began_s
    sent = table.filter(pc.equal(table["kind"], "traffic"))
    carrying = pc.is_in(sent["detail"].cast("string"), pa.array(_CARRYING))
    return cpu_s, int(pc.sum(sent["size"].filter(pc.invert(carrying))).as_py() or 0)


def costs(repeat: int, hours: Mapping[str, float], only: Collection[str]) -> Iterator[dict[str, object]]:
    """Rows of the table of CPU time: medians."""
    for (strategy, load), one_s in ONE_CPU_S.items():
        if load in hours and (load in only or f"{strategy}-{load}" in only):
            cpu_s = statistics.median(run(strategy, load, hours[load])[0] for _ in range(repeat))
            whole = hours[load] == HOURS[load]
            yield {
                "strategy": strategy, "load": load, "hours": hours[load], "CPU s": cpu_s,
                "The ONE, CPU s": one_s if whole else None, "ratio": cpu_s / one_s if whole else None,
                "goal": RATIO_MAX[load],
            }  # fmt: skip


def control(hours: float) -> list[dict[str, object]]:
    """Return the row of the table of control bytes."""
    prophet, spray = (run(strategy, "uncontended", hours)[1] for strategy in ("prophet", "spray-and-wait"))
    return [{
        "hours": hours, "prophet": prophet, "spray-and-wait": spray, "times": prophet / spray, "goal": CONTROL_MAX,
        "met": prophet <= CONTROL_MAX * spray,
    }]  # fmt: skip


def main(argv: Sequence[str]) -> int:
    """Print the tables; 1 if the goals are to be met and are missed."""
    parser = _report.parser("baselines", str(__doc__).split("\n\n", maxsplit=1)[0], "--quick")
    parser.add_argument("--quick", action="store_true", help="a quarter of an hour without contention, once")
    parser.add_argument("--repeat", type=_report.positive, default=3, help="runs of which medians are shown (3)")
    parser.add_argument("--strict", action="store_true", help="exit with 1 if prophet sends too many control bytes")
    parser.add_argument("--only", nargs="+", choices=RUNS, metavar="RUN", help=f"some of these: {', '.join(RUNS)}")
    given = parser.parse_args(argv)
    hours, only = {"uncontended": 0.25} if given.quick else HOURS, given.only or RUNS
    if rows := list(costs(1 if given.quick else given.repeat, hours, only)):
        _report.show("CPU: of a run, beside The ONE's on another machine", rows, json=given.json)
    bytes_ = control(hours["uncontended"]) if CONTROL in only else []
    if bytes_:
        _report.show("Control: bytes of frames that carry no message", bytes_, json=given.json)
    if not rows and not bytes_:
        parser.error("--quick runs nothing with contention; leave it out, or choose other runs")
    return int(given.strict and not all(row["met"] for row in bytes_))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
