"""An example for those that have no record yet: forty walkers in a small town, emulated when it is opened."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from carrypost import emu
from carrypost.web.replay.source import Source, parquet

NAME = "forty walkers"
SCENARIO = """
name = "forty walkers"
duration_s = 600

[radio]
range_m = 60

[mobility]
model = "random-waypoint"
count = 40
side_m = 700
speed_min_m_per_s = 0.8
speed_max_m_per_s = 2.0
pause_min_s = 0
pause_max_s = 30

[[workload]]
kind = "broadcast"
first_s = 5
period_s = 400
lifetime_s = 400
size = 2000
"""
_SHARE = 0.9
"""Share of the emulation in the work of opening it."""


def emulated(folder: Path, tell: Callable[[float], None]) -> Source:
    """Return the example's run, whose record is kept in a folder."""
    record = folder / "walkers.parquet"
    scenario = emu.Scenario.parse(SCENARIO, folder)

    def watch(progress: object) -> None:
        tell(_SHARE * min(1.0, getattr(progress, "t_us", 0) / scenario.duration_us))

    emu.run(scenario, out=record, watch=watch)
    return parquet(record)[0]
