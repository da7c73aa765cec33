"""Population mode: how near it comes to faithful mode, what it saves, and what it costs at 100,000 nodes.

*Beside faithful*: `ostermalm` without order, calibrated on another seed: receptions, delays, hops and processor time.
*Limits*: the same in faithful mode at 20 kB/s, which population mode refuses: what it would not see.
*Scale*: random waypoint at the density of `ostermalm`, 256 and 4,096 messages that live for 20 minutes, counts only:
processor time for each contact, to find it and to pass messages over it, and the most memory that the process had.
*Windows*: `ostermalm` in one piece and in 8 windows, as tasks of a campaign: processor time of all tasks.

Run: carrypost bench population [--only beside|limits|scale|windows] [--nodes N] [--for SECONDS] [--quick] [--json]
"""

from __future__ import annotations

import dataclasses
import random
import resource
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Final

from benchmarks._processes import Row, say

from benchmarks import _report
from carrypost.cli.app import run as command
from carrypost.emu.population.calibration import COUNTED, POPULATION, calibrate, compared
from carrypost.emu.population.run import Model
from carrypost.emu.population.sweep import Messages, Plan, parts
from carrypost.emu.runs import run
from carrypost.emu.scenario import Scenario
from carrypost.emu.summary import Delays as _Delays
from carrypost.emu.summary import summarise
from carrypost.lab.campaign.folder import CampaignFolder

OSTERMALM: Final = Path(__file__).resolve().parents[1] / "scenarios" / "ostermalm.toml"
NO_ORDER: Final = {"workload.0.ordering": "none"}
GOALS: Final = {COUNTED: 1 / 300, POPULATION: 1 / 70}
"""Processor time by that of a faithful run, at most."""
GOAL_US: Final = {256: 10.0, 4_096: 20.0}
"""Processor time for each contact at 100,000 nodes, by messages, at most."""
WINDOWS: Final = 8
GOAL_WINDOWS: Final = 1.6
RATE: Final = 20_000
LIFETIME_S: Final = 1_200
CITY: Final = """
name = "city"
duration_s = {duration_s}
mode = "population"
[mobility]
model = "random-waypoint"
count = {nodes}
nodes_per_km2 = 244
speed_min_m_per_s = 0.6
speed_max_m_per_s = 2.0
[radio]
range_m = 50
[population]
delays = "delays.json"
rows = "none"
[[workload]]
kind = "script"
file = "publish.csv"
"""


def beside_rows(delays: Path, duration_s: float, seed: int) -> Iterator[Row]:
    """Yield rows of both modes, and of ideal mode, on one seed."""
    found = list(compared(OSTERMALM, seed, delays, {**NO_ORDER, "duration_s": duration_s}, ideal=True))
    for each in found:
        row = each.beside(found[0])
        yield {
            "mode": each.mode,
            "receptions": each.receptions,
            "off %": 100 * _number(row["receptions_off"]),
            "mean delay, s": each.delay_mean_s,
            "delay off %": 100 * _number(row["delay_mean_s_off"]),
            "hops off %": 100 * _number(row["hops_mean_off"]),
            "KS": each.ks,
            "CPU s": each.cpu_s,
            "of faithful": f"1/{found[0].cpu_s / each.cpu_s:,.0f}",
            "goal": f"1/{1 / GOALS[each.mode]:,.0f}" if each.mode in GOALS else None,
        }


def limit_rows(duration_s: float, seed: int) -> Iterator[Row]:
    """Faithful mode with and without a limit of rate."""
    found: list[tuple[int, _Delays]] = []
    for rate in ("none", RATE):
        changes = {**NO_ORDER, "duration_s": duration_s, "radio.rate_bytes_per_s": rate}
        summary = summarise(run(Scenario.load(OSTERMALM, changes), seed).table, bound=False)
        assert summary.delays is not None
        found.append((summary.received, summary.delays))
        yield {
            "bytes per s": rate,
            "receptions": summary.received,
            "off %": 100 * (summary.received / found[0][0] - 1),
            "mean delay, s": summary.delays.mean_s,
            "delay off %": 100 * (summary.delays.mean_s / found[0][1].mean_s - 1),
        }


def scale_rows(delays: Path, nodes: int, duration_s: float, seed: int) -> Iterator[Row]:
    """Yield the processor time of one large run, by purpose; all have the same contacts, which are found once."""
    folder, most = delays.parent, max(GOAL_US)
    (folder / "publish.csv").write_text(_script(nodes, most, duration_s, seed))
    scenario = Scenario.parse(CITY.format(nodes=nodes, duration_s=duration_s), folder)
    begun_s = time.process_time()
    model = Model.of(scenario, seed)
    plan = model.planned(scenario)
    find_s, contacts = time.process_time() - begun_s, len(plan.contacts)
    for messages in GOAL_US:
        begun_s = time.process_time()
        receptions = _received(model, _thinned(plan, most // messages))
        took_s = time.process_time() - begun_s
        yield {
            "nodes": nodes,
            "virtual s": duration_s,
            "messages": messages,
            "contacts": contacts,
            "receptions": receptions,
            "to find, µs a contact": find_s / contacts * 1e6,
            "to pass on, µs a contact": took_s / contacts * 1e6,
            "goal": GOAL_US[messages],
            "CPU s": find_s + took_s,
            "most memory, MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1_024,
        }


def window_rows(delays: Path, duration_s: float, seed: int) -> Iterator[Row]:
    """Yield the processor time of a run in one piece and in windows, as a campaign does it."""
    folder = delays.parent
    (folder / "scenario.toml").write_text(OSTERMALM.read_text())
    window_s = duration_s / WINDOWS
    common = f'"mode" = "population", "workload.0.ordering" = "none", "duration_s" = {duration_s}'
    common += ', "population.delays" = "delays.json"'
    (folder / "campaign.toml").write_text(
        f'scenarios = ["scenario.toml"]\nseeds = [{seed}]\n'
        f'[[settings]]\nname = "one piece"\nset = {{{common}}}\n'
        f'[[settings]]\nname = "{WINDOWS} windows"\nset = {{{common}, "population.window_s" = {window_s}}}\n'
    )
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        for out in ("warm", "results"):  # The first has to load what both need.
            command(["lab", "campaign", str(folder / "campaign.toml"), "--out", str(folder / out), "--engine", "local"])
    states = {state.settings: state for state in CampaignFolder(folder / "results").states_there().values()}
    whole = states["one piece"].cpu_s or 0.0
    for name, state in sorted(states.items(), reverse=True):
        cpu_s = state.cpu_s or 0.0
        yield {"run": name, "rows": state.rows, "CPU s": cpu_s, "of one piece": cpu_s / whole, "goal": GOAL_WINDOWS}


def _received(model: Model, plan: Plan) -> int:
    return sum(model.play(plan, part)[1].counts["receive"] for part in parts(plan, model.window_us))


def _thinned(plan: Plan, step: int) -> Plan:
    """Return the same run, with one message out of this many."""
    fields = dataclasses.fields(plan.messages)
    kept = {each.name: getattr(plan.messages, each.name)[::step] for each in fields}
    return dataclasses.replace(plan, messages=Messages(**kept))


def _script(nodes: int, messages: int, duration_s: float, seed: int) -> str:
    chance = random.Random(seed)
    lines = (
        f"{duration_s * number / messages:.6f},n{chance.randint(1, nodes):04},m{number},1000,{LIFETIME_S}"
        for number in range(messages)
    )
    return "\n".join(["t,node,message,size,lifetime", *lines]) + "\n"


def _number(value: object) -> float:
    return value if isinstance(value, float) else 0.0


def main(argv: Sequence[str]) -> int:
    """Run the benchmark."""
    parser = _report.parser("population", (__doc__ or "").partition("\n\n")[0], "--only scale --nodes 10000 --for 600")
    parser.add_argument("--only", choices=("beside", "limits", "scale", "windows"), help="only this part")
    parser.add_argument("--nodes", type=_report.positive, default=100_000, help="of the large run")
    parser.add_argument("--for", type=_report.positive, default=3_600, dest="duration_s", help="seconds of each run")
    parser.add_argument("--seed", type=_report.positive, default=1, help="of the runs; the next one calibrates")
    parser.add_argument("--quick", action="store_true", help="small sizes: only to see that it works")
    given = parser.parse_args(argv)
    duration_s, nodes, calibrated_s = (600, 500, 500) if given.quick else (given.duration_s, given.nodes, 1_800)
    with tempfile.TemporaryDirectory(prefix="carrypost-") as name:
        delays = Path(name, "delays.json")
        if given.only != "limits":
            say(f"calibrating: {calibrated_s} s of {OSTERMALM.stem}, faithful")
            calibrate(OSTERMALM, given.seed + 1, calibrated_s, NO_ORDER).write(delays)
        made: dict[str, tuple[str, Callable[[], Iterator[Row]]]] = {
            "beside": ("beside faithful: ostermalm without order", lambda: beside_rows(delays, duration_s, given.seed)),
            "limits": ("limits: faithful", lambda: limit_rows(duration_s / 3, given.seed)),
            "scale": ("scale: random waypoint", lambda: scale_rows(delays, nodes, duration_s, given.seed)),
            "windows": ("windows: ostermalm", lambda: window_rows(delays, duration_s, given.seed)),
        }
        for part, (title, rows) in made.items():
            if given.only in {None, part}:
                say(f"{part} …")
                _report.show(title, list(rows()), json=given.json)
    return 0
