"""The benchmark of population mode runs, and its figures can be true. Speed is not tested."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.populations import calibration

from benchmarks import population
from carrypost.emu import Scenario


@pytest.fixture
def delays(tmp_path: Path) -> Path:
    return calibration(tmp_path / "delays.json", Scenario.load(population.OSTERMALM))


def test_windows_have_the_rows_of_one_piece(delays: Path) -> None:
    whole, windows = population.window_rows(delays, 600, 1)
    assert (whole["run"], windows["run"]) == ("one piece", "8 windows")
    assert whole["rows"] == windows["rows"]
    assert whole["of one piece"] == 1
    assert isinstance(windows["CPU s"], float)


def test_a_large_run_is_weighed_by_the_contact(delays: Path) -> None:
    few, many = population.scale_rows(delays, 300, 300.0, 1)
    assert (few["messages"], many["messages"]) == (256, 4_096)
    assert few["contacts"] == many["contacts"]
    assert few["to find, µs a contact"] == many["to find, µs a contact"]
    assert 8 * int(str(few["receptions"])) < int(str(many["receptions"]))


def test_modes_are_compared_and_limits_are_weighed(delays: Path) -> None:
    modes = [row["mode"] for row in population.beside_rows(delays, 120.0, 1)]
    assert modes == ["faithful", "ideal", "population", "population, no rows"]
    free, limited = population.limit_rows(120.0, 1)
    assert free["off %"] == 0
    assert limited["bytes per s"] == population.RATE
