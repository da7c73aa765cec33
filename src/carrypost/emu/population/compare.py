"""Population mode beside faithful mode, on the same scenario and seed: how far off it is, and what it saves.

Delays are those from publication to reception. The distance of their distributions is that of Kolmogorov and Smirnov:
the largest difference between the shares of receptions that came within any time. Processor time is that of the runs
alone; what both modes do before (moving nodes, finding contacts) is not counted. Short runs are repeated, and the least
time counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np

from carrypost.arrays import Floats, Ints
from carrypost.emu.engine.world import Progress
from carrypost.emu.population.delays import Delays
from carrypost.emu.records.copies import TDELAY, Copies
from carrypost.emu.records.files import Records
from carrypost.emu.records.log import log_of
from carrypost.emu.runs import prepare
from carrypost.emu.scenario.scenario import Scenario
from carrypost.model.times import MICROSECONDS

FAITHFUL, IDEAL, POPULATION, COUNTED = "faithful", "ideal", "population", "population, no rows"
_REPEATS = 3
Watch = Callable[[str, Progress], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModeFigures:
    """One run of the table; distances and differences are to the faithful run of the same seed."""

    mode: str
    seed: int | str
    receptions: int
    delay_mean_s: float
    hops_mean: float
    ks: float | None
    """Distance of the distributions of delays; None where rows are not kept."""
    cpu_s: float

    def beside(self, faithful: ModeFigures) -> dict[str, object]:
        """Return the figures, and by how much they differ from those of a faithful run."""
        ratio = {
            f"{name}_off": getattr(self, name) / getattr(faithful, name) - 1 if getattr(faithful, name) else None
            for name in ("receptions", "delay_mean_s", "hops_mean")
        }
        return {**asdict(self), **ratio, "cpu_share": self.cpu_s / faithful.cpu_s}


def compared(
    path: Path, seed: int | str, delays: Path, changes: Mapping[str, object], *, ideal: bool = False,
    watch: Watch = lambda _, __: None,
) -> Iterator[ModeFigures]:  # fmt: skip
    """Yield the figures of a scenario in each mode, faithful first."""
    usual = {**changes, "population.delays": str(delays.absolute())}
    modes: dict[str, dict[str, object]] = {
        POPULATION: {"mode": "population"},
        COUNTED: {"mode": "population", "population.rows": "none"},
    }
    scenarios = {name: Scenario.load(path, {**usual, **mode}) for name, mode in modes.items()}
    Delays.of(scenarios[POPULATION])  # What is refused is refused before anything long.
    others = [FAITHFUL, IDEAL] if ideal else [FAITHFUL]
    scenarios = {name: Scenario.load(path, {**changes, "mode": name}) for name in others} | scenarios
    reference: Floats | None = None
    counted: ModeFigures | None = None
    for name, scenario in scenarios.items():
        repeats = _REPEATS if scenario.of_population else 1
        record, cpu_s = _timed(scenario, seed, repeats, partial(watch, name))
        if name == COUNTED and counted is not None:
            yield ModeFigures(**asdict(counted) | {"mode": COUNTED, "ks": None, "cpu_s": cpu_s})
            continue
        delay_s, hops = _received(record)
        reference = delay_s if reference is None else reference
        counted = ModeFigures(
            mode=name, seed=seed, receptions=len(hops), delay_mean_s=_mean(delay_s), hops_mean=_mean(hops),
            ks=distance(reference, delay_s), cpu_s=cpu_s,
        )  # fmt: skip
        yield counted


def distance(one: Floats, other: Floats) -> float:
    """Return the distance of Kolmogorov and Smirnov between two samples; 1 if one of them is empty."""
    if not len(one) or not len(other):
        return float(len(one) != len(other))
    values = np.concatenate([one, other])
    mine, yours = (np.searchsorted(np.sort(each), values, side="right") / len(each) for each in (one, other))
    return float(np.abs(mine - yours).max())


def _timed(
    scenario: Scenario, seed: int | str, repeats: int, watch: Callable[[Progress], None]
) -> tuple[Records, float]:
    found: list[tuple[float, Records]] = []
    for _ in range(repeats):
        prepared = prepare(scenario, seed)
        begun_s = time.process_time()
        record = prepared.run(watch=watch)
        found.append((time.process_time() - begun_s, record))
    return found[-1][1], min(cpu_s for cpu_s, _ in found)


def _received(record: Records) -> tuple[Floats, Ints]:
    """Return the delays of receptions in seconds, and their hops."""
    copies = Copies.of(log_of(record.table))
    known, delay_us = copies.delays[TDELAY]
    return delay_us[known] / MICROSECONDS, copies.hops[known]


def _mean(values: Floats | Ints) -> float:
    return float(values.mean()) if len(values) else 0.0
