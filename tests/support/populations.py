"""Scenarios of population mode, and files of delays for them."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from tests.support.schedules import Schedule, write

from carrypost.emu import Scenario, run
from carrypost.emu.population.delays import QUANTILES, Calibration, fingerprint
from carrypost.emu.verify.invariants import Violation, check

SCENARIOS = Path(__file__).parents[2] / "scenarios"
POPULATION = {"mode": "population", "workload.0.ordering": "none"}


def drawn(most_s: float, never: float = 0.0) -> tuple[float | None, ...]:
    """Return a table of even delays; this share of them has no end."""
    finite = round(QUANTILES * (1 - never))
    return (*(most_s * number / finite for number in range(finite)), *[None] * (QUANTILES - finite))


def calibration(path: Path, scenario: Scenario, where: str = "drawn", **changes: object) -> Path:
    """Write a file of delays for a scenario: neighbours find each other within 2 s, one in ten never does."""
    known: dict[str, object] = {
        "discovery_s": drawn(2.0, never=0.1), "published_s": drawn(0.5), "relayed_s": drawn(1.0),
        "awaited_s": drawn(3.0, never=0.1),
        "scenario": where, "seed": "1", "duration_s": 60.0, "version": "0",
        "contacts": 1_000, "censored": 100, "hops": 10, "size_max": 10_000, "fingerprint": fingerprint(scenario),
    }  # fmt: skip
    Calibration(**(known | changes)).write(path)  # type: ignore[arg-type] # mistakes are for the reader to find
    return path


def played(
    schedule: Schedule, folder: Path, *, delays: str = "zero", window_s: float | None = None, rows: str = "all"
) -> pa.Table:
    """Play a schedule in population mode; `delays`: "zero", or a file that is written here."""
    table = f'[population]\ndelays = "{delays}"\nwindow_s = {window_s or repr("none")}\nrows = "{rows}"'
    path = write(schedule, folder, mode="population", settings=table)
    scenario = Scenario.load(path)
    if delays != "zero":
        calibration(folder / delays, scenario)
    return run(scenario, 1).table


def events(table: pa.Table) -> list[dict[str, object]]:
    """Return all rows but the first, which names the window, and the counts at the end."""
    return [row for row in table.to_pylist() if row["kind"] not in {"run", "tally"}]


def violations(table: pa.Table) -> list[Violation]:
    """Return the rows that break a rule of records; population mode has no rows about the end of copies."""
    return [each for each in check(table) if each.rule != "every end has a reason"]


def tallies(table: pa.Table) -> dict[tuple[str, object], int]:
    """Counts at the end, by detail and by what a histogram is over."""
    rows = [row for row in table.to_pylist() if row["kind"] == "tally"]
    return {(row["detail"], row["hops"] or dict(row["attrs"] or ()).get("from_s")): row["size"] for row in rows}
