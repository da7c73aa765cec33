"""Delays that are measured in a faithful run, and population mode beside it."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from tests.populations import calibration

from carrypost.cli.app import run
from carrypost.emu import Scenario
from carrypost.emu.population.calibrate import calibrate, measured
from carrypost.emu.population.delays import read
from carrypost.emu.records.files import ARROW_SCHEMA
from carrypost.errors import ConfigError, LocalError

Columns = dict[str, object]
TOWN = """
name = "town"
duration_s = 240
[mobility]
model = "random-waypoint"
count = 24
side_m = 200
pause_max_s = 10
speed_min_m_per_s = 1.0
speed_max_m_per_s = 3.0
[radio]
range_m = 25
[[workload]]
kind = "broadcast"
period_s = 60
lifetime_s = 120
"""


def record_of(*contacts: tuple[str, str, float, float, float | None]) -> list[Columns]:
    """Rows of contacts: two nodes, start, end, and when both have found each other."""
    rows = [row_of("run", 0.0, "")]
    for a, b, start, end, found in contacts:
        rows.append(row_of("contact", start, a, peer=b, attrs=[("end", repr(end))]))
        for here, there in ((a, b), (b, a)):
            if found is None:
                continue
            rows.append(row_of("up", found, here, peer=there))
            rows.append(row_of("down", end + 0.1, here, peer=there))
    return rows


def table_of(rows: list[Columns]) -> pa.Table:
    return pa.Table.from_pylist(sorted(rows, key=lambda row: float(str(row["t"]))), ARROW_SCHEMA)


def row_of(kind: str, t: float, node: str, **columns: object) -> Columns:
    empty = dict.fromkeys(("peer", "message", "source", "hops", "size", "detail", "attrs"))
    return {"run": "drawn/default/1", "t": t, "kind": kind, "node": node, **empty, **columns}


def test_a_delay_is_until_both_sides_have_found_each_other_and_short_contacts_are_censored() -> None:
    scenario = Scenario.parse(TOWN)
    found = [("a", "b", 10.0 * n, 10.0 * n + 5, 10.0 * n + 2) for n in range(180)]
    missed = [("a", "b", 10.0 * n, 10.0 * n + 1, None) for n in range(180, 200)]
    made = measured(scenario, 3, table_of(record_of(*found, *missed)))
    assert (made.contacts, made.censored, made.seed, made.hop_s) == (200, 20, "3", 0.0)
    assert set(made.discovery_s) == {2.0}


def test_a_hop_is_measured_between_neighbours_that_had_found_each_other() -> None:
    scenario = Scenario.parse(TOWN)
    rows = record_of(*(("a", "b", 10.0 * n, 10.0 * n + 9, 10.0 * n + 1) for n in range(200)))
    for n, (after, took) in enumerate([(2.0, 0.5), (3.0, 0.1), (4.0, 0.3), (0.5, 0.7)]):  # The last was before.
        t = 10.0 * n + after
        rows.append(row_of("publish", t, "a", message=f"m{n}", source="a", size=70))
        rows.append(row_of("receive", t + took, "b", peer="a", message=f"m{n}", source="a", size=70, hops=1))
    made = measured(scenario, 1, table_of(rows))
    assert (made.hops, made.hop_s, made.size_max) == (3, 0.3, 70)


def test_too_few_contacts_and_what_is_not_modelled_are_refused_before_or_after_the_run(tmp_path: Path) -> None:
    path = tmp_path / "town.toml"
    path.write_text(TOWN)
    with pytest.raises(LocalError, match="200 are the least; calibrate a longer one"):
        calibrate(path, 1, 2.0, {})
    with pytest.raises(ConfigError, match="rate_bytes_per_s"):
        calibrate(path, 1, 1e6, {"radio.rate_bytes_per_s": 1_000})


def test_calibrated_on_one_seed_population_mode_comes_near_faithful_mode_on_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scenario, delays = tmp_path / "town.toml", tmp_path / "delays.json"
    scenario.write_text(TOWN)
    assert run(["emu", "calibrate", str(scenario), "--for", "240", "--seed", "9", "--out", str(delays)]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["contacts"] == read(delays).contacts > 200
    assert 0.1 < told["discovery_median_s"] < 3
    assert 0.001 <= told["hop_s"] < 0.2
    command = ["emu", "compare", str(scenario), "--delays", str(delays), "--seed", "1", "--for", "240", "--ideal"]
    assert run(command) == 0
    faithful, ideal, population, counted = map(json.loads, capsys.readouterr().out.splitlines())
    assert [each["mode"] for each in (faithful, ideal, population, counted)] == [
        "faithful", "ideal", "population", "population, no rows",
    ]  # fmt: skip
    # Wide, for two dozen nodes: in larger scenarios the differences are a tenth of that (docs/benchmarks.md).
    assert abs(population["receptions_off"]) < 0.03
    assert abs(population["delay_mean_s_off"]) < 0.1
    assert population["ks"] < 0.1
    assert faithful["ks"] == 0
    assert counted["receptions"] == population["receptions"]


def test_compare_refuses_delays_of_other_settings_before_it_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scenario = tmp_path / "town.toml"
    scenario.write_text(TOWN)
    delays = calibration(tmp_path / "delays.json", Scenario.load(scenario, {"radio.loss": 0.5}))
    assert run(["emu", "compare", str(scenario), "--delays", str(delays), "--for", "100000"]) == 2
    assert "calibrated with another" in capsys.readouterr().err
