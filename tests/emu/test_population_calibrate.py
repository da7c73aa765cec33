"""Delays that are measured in a faithful run, and population mode beside it."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pyarrow as pa
import pytest
from tests.support.populations import calibration

from carrypost.cli.app import run
from carrypost.emu import Scenario
from carrypost.emu.population.calibration import calibrate, measured
from carrypost.emu.population.delays import QUANTILES, read
from carrypost.emu.records import ARROW_SCHEMA
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


def passed(message: str, t: float, *path: tuple[str, float]) -> list[Columns]:
    """Return rows of a message that lives for 9 s: one node publishes it, each other gets it from the one before."""
    author = path[0][0]
    said = {"message": message, "source": author, "size": 70}
    rows = [row_of("publish", t, author, attrs=[("deadline", repr(t + 9))], **said)]
    for hops, ((giver, _), (taker, after)) in enumerate(itertools.pairwise(path), 1):
        rows.append(row_of("receive", t + after, taker, peer=giver, hops=hops, **said))
    return rows


def table_of(rows: list[Columns]) -> pa.Table:
    return pa.Table.from_pylist(sorted(rows, key=lambda row: float(str(row["t"]))), ARROW_SCHEMA)


def row_of(kind: str, t: float, node: str, **columns: object) -> Columns:
    empty = dict.fromkeys(("peer", "message", "source", "hops", "size", "detail", "attrs"))
    return {"run": "drawn/default/1", "t": t, "kind": kind, "node": node, **empty, **columns}


def test_discovery_is_until_what_a_node_had_is_with_the_other_and_short_contacts_are_censored() -> None:
    found = [("a", "b", 10.0 * n, 10.0 * n + 5, 10.0 * n + 1) for n in range(180)]
    missed = [("a", "b", 10.0 * n, 10.0 * n + 1, None) for n in range(180, 200)]
    rows = record_of(*found, *missed)
    for n in range(180):
        rows += passed(f"m{n}", 10.0 * n - 1, ("a", 0.0), ("b", 1.0 + (2.0 if n % 2 else 3.0)))  # Had before.
        rows += passed(f"n{n}", 10.0 * n + 3.5, ("a", 0.0), ("b", 0.001))  # A hop: gained after it.
    rows += [row for n in range(180, 200) for row in passed(f"m{n}", 10.0 * n - 1, ("a", 0.0))]
    made = measured(Scenario.parse(TOWN), 3, table_of(rows))
    assert (made.contacts, made.censored, made.seed, made.hops, made.size_max) == (200, 20, "3", 180, 70)
    assert set(made.discovery_s) == {2.0, 3.0}
    assert made.discovery_s.count(2.0) == pytest.approx(QUANTILES / 2, abs=2)
    assert set(made.published_s) == set(made.relayed_s) == set(made.awaited_s) == {0.001}


def test_a_transfer_that_a_contact_cuts_off_lengthens_the_delays() -> None:
    rows = record_of(*(("a", "b", 10.0 * n, 10.0 * n + 5, 10.0 * n + 1) for n in range(200)))
    for n in range(200):
        there = [("a", 0.0), ("b", 3.0)] if n % 4 else [("a", 0.0)]
        rows += passed(f"m{n}", 10.0 * n - 1, *there)
        rows += passed(f"n{n}", 10.0 * n + 3, *there[:1], ("b", 0.5))
    made = measured(Scenario.parse(TOWN), 1, table_of(rows))
    assert made.discovery_s.count(2.0) == pytest.approx(QUANTILES * 3 / 4, abs=QUANTILES / 10)
    assert made.discovery_s[-1] is None


def test_hops_that_the_giver_makes_as_well_are_measured_apart() -> None:
    rows = record_of(
        *((*pair, 10.0 * n, 10.0 * n + 9, 10.0 * n + 1) for n in range(200)
          for pair in (("a", "b"), ("b", "c"), ("a", "c"), ("c", "d"), ("e", "f")))
    )  # fmt: skip
    for n in range(200):
        rows += passed(f"s{n}", 10.0 * n - 1, ("e", 0.0), ("f", 3.0))
        # To b at once; c, which hears a as well, gets it late and from b; d does not hear b.
        rows += passed(f"m{n}", 10.0 * n + 4, ("a", 0.0), ("b", 0.1), ("c", 1.1), ("d", 1.2))
    made = measured(Scenario.parse(TOWN), 1, table_of(rows))
    # From a to c nothing came within the 1.1 s until b was faster.
    assert made.awaited_s[QUANTILES // 2] == 1.0
    assert made.relayed_s[QUANTILES // 2] == made.published_s[10] == 0.1


def test_too_few_contacts_and_what_is_not_modelled_are_refused_before_or_after_the_run(tmp_path: Path) -> None:
    path = tmp_path / "town.toml"
    path.write_text(TOWN)
    with pytest.raises(LocalError, match=r"200 contacts, .* are required: calibrate a longer run"):
        calibrate(path, 1, 2.0, {})
    with pytest.raises(LocalError, match=r"0 contacts, .* are required"):
        measured(Scenario.parse(TOWN), 1, table_of(record_of()))
    with pytest.raises(LocalError, match=r"200 contacts, .* 0 messages .* are required"):
        measured(Scenario.parse(TOWN), 1, table_of(record_of(*(("a", "b", n, n + 0.5, n + 0.1) for n in range(200)))))
    with pytest.raises(ConfigError, match="rate_bytes_per_s"):
        calibrate(path, 1, 1e6, {"radio.rate_bytes_per_s": 1_000})


@pytest.mark.soak
def test_calibrated_on_one_seed_population_mode_comes_near_faithful_mode_on_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scenario, delays = tmp_path / "town.toml", tmp_path / "delays.json"
    scenario.write_text(TOWN)
    assert run(["emu", "calibrate", str(scenario), "--for", "240", "--seed", "9", "--out", str(delays), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["contacts"] == read(delays).contacts > 200
    assert 0.1 < told["discovery_median_s"] < 3
    assert 0.001 <= told["published_median_s"] < 0.2
    command = ["emu", "compare", str(scenario), "--delays", str(delays), "--seed", "1", "--for", "240", "--ideal"]
    assert run([*command, "--json"]) == 0
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
