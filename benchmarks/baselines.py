"""CPU time and control bytes of routing strategies on The ONE's default scenario, beside The ONE's CPU time.

Without contention the first 3 h are run, with messages of 1 kB, since sizes have no effect there; with contention 12 h.
The ONE's CPU seconds are those of the table in its comparison, taken on another machine: ratios are shown, and are not
judged. With `--one FOLDER` it runs here, and they are: the folder has The ONE, compiled, with its `one.sh` and default
settings. Control bytes are those of all frames that carry no message, of 3 h without contention.

A run with contention takes minutes. `--only` runs some of them, so that a program that is killed loses no more.

Run: carrypost bench baselines [--only RUN...] [--one FOLDER] [--repeat N] [--quick] [--strict] [--json]
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from benchmarks._processes import say

from benchmarks import _report
from carrypost import emu
from carrypost.gossip.wire.frames import CARRYING, kind_of
from carrypost.lab.campaign.reproduce import RECIPES

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
ROUTERS = {
    "anti-entropy": "EpidemicRouter", "epidemic": "EpidemicRouter", "direct": "DirectDeliveryRouter",
    "first-contact": "FirstContactRouter", "prophet": "ProphetRouter", "spray-and-wait": "SprayAndWaitRouter",
}  # fmt: skip
UNCONTENDED = (
    "btInterface.transmitSpeed = 1G", "highspeedInterface.transmitSpeed = 1G",
    *(f"{group}.bufferSize = 5G" for group in ("Group", "Group4", "Group5", "Group6")),
)  # fmt: skip
"""Settings of The ONE that leave out contention."""
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


def run_the_one(folder: Path, strategy: str, load: str, hours: float) -> float:
    """Run The ONE on its default scenario; return its CPU seconds, those of the start of Java included."""
    say(f"{strategy}, {load}, {hours:g} h: The ONE")
    with tempfile.TemporaryDirectory() as scratch:
        settings = Path(scratch) / "settings.txt"
        lines = [
            f"Group.router = {ROUTERS[strategy]}", f"Scenario.endTime = {hours * 3_600:g}",
            f"Report.reportDir = {scratch}/", *(UNCONTENDED if load == "uncontended" else ()),
        ]  # fmt: skip
        settings.write_text("\n".join(lines) + "\n", encoding="utf-8")
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [str(folder.resolve() / "one.sh"), "-b", "1", str(settings)]
        subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)  # noqa: S603 - as the caller asked
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def costs(
    repeat: int, hours: Mapping[str, float], only: Collection[str], one: Path | None
) -> Iterator[dict[str, object]]:
    """Rows of the table of CPU time: medians. `one`: the folder of The ONE, if it is to run here."""
    for (strategy, load), one_s in ONE_CPU_S.items():
        if load in hours and (load in only or f"{strategy}-{load}" in only):
            cpu_s = statistics.median(run(strategy, load, hours[load])[0] for _ in range(repeat))
            theirs_s = one_s if hours[load] == HOURS[load] else None
            if one is not None:
                theirs_s = statistics.median(run_the_one(one, strategy, load, hours[load]) for _ in range(repeat))
            ratio = None if theirs_s is None else cpu_s / theirs_s
            yield {
                "strategy": strategy, "load": load, "hours": hours[load], "CPU s": cpu_s, "The ONE, CPU s": theirs_s,
                "ratio": ratio, "goal": RATIO_MAX[load],
                "met": None if one is None or ratio is None else ratio <= RATIO_MAX[load],
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
    parser.add_argument("--strict", action="store_true", help="exit with 1 if a goal that is judged is missed")
    parser.add_argument("--one", type=Path, metavar="FOLDER", help="run The ONE, too, which is compiled in this folder")
    parser.add_argument("--only", nargs="+", choices=RUNS, metavar="RUN", help=f"some of these: {', '.join(RUNS)}")
    given = parser.parse_args(argv)
    hours, only = {"uncontended": 0.25} if given.quick else HOURS, given.only or RUNS
    if given.one is not None and not (given.one / "one.sh").is_file():
        parser.error(f"there is no one.sh in {given.one}: --one takes the folder of The ONE")
    if rows := list(costs(1 if given.quick else given.repeat, hours, only, given.one)):
        where = "another machine" if given.one is None else "this machine"
        _report.show(f"CPU: of a run, beside The ONE's on {where}", rows, json=given.json)
    bytes_ = control(hours["uncontended"]) if CONTROL in only else []
    if bytes_:
        _report.show("Control: bytes of frames that carry no message", bytes_, json=given.json)
    if not rows and not bytes_:
        parser.error("--quick runs nothing with contention; leave it out, or choose other runs")
    return int(given.strict and any(row["met"] is False for row in [*rows, *bytes_]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
