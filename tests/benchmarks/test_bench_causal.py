"""The benchmark of causal order runs, its figures can be true, and it notices wrong order. Speed is not tested."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks._histories import LONG_S, MIXED_S
from tests.support.benches import Bench, Tables

from benchmarks import _histories, _scenes
from carrypost.model.descriptor import Ordering

BENCH = Bench("causal")


@pytest.fixture(scope="module")
def layer(tmp_path_factory: pytest.TempPathFactory) -> Tables:
    return BENCH.tables(tmp_path_factory.mktemp("layer"), "--quick", "--only", "layer", "--repeats", "2", "--json")


def test_the_layer_is_measured_beside_the_codes_of_the_paper(layer: Tables) -> None:
    assert list(layer) == ["Deliveries", "Barriers", "Goals"]
    cases = [(row["pending"], row["arrival"]) for row in layer["Deliveries"]]
    assert cases == [(size, name) for size in (20, 100) for name in ("in order", "shuffled", "newest first")]
    for row in layer["Deliveries"]:
        assert 0 < row["best µs"] <= row["median µs"]
        assert 0 < row["literal, best µs"] <= row["literal, median µs"]
        assert row["just decoded, median µs"] > 0
        assert row["literal by ours"] == pytest.approx(row["literal, median µs"] / row["median µs"])
        assert row["literal, runs"] == 2
    (goal,) = layer["Goals"]
    assert goal["measured"] == max(row["median µs"] for row in layer["Deliveries"])
    assert goal["met"] is None


def test_barriers_are_shorter_than_those_of_the_paper_where_lifetimes_are_the_same(layer: Tables) -> None:
    found = {(row["messages"], row["lifetimes"], row["version"]): row for row in layer["Barriers"]}
    assert len(found) == len(layer["Barriers"]) == 6
    for messages in (21, 101):
        literal, ours = (found[messages, "the same", version] for version in ("literal", "ours"))
        assert 1 < ours["mean entries"] < literal["mean entries"] <= literal["most entries"] <= _histories.SOURCES
        assert (literal["delivered %"], ours["delivered %"]) == (100, 100)
    assert found[101, "15-300 s", "ours"]["delivered %"] == 100
    assert found[101, "15-300 s", "literal"]["delivered %"] < 100  # Tags go back with lifetimes.


@pytest.mark.soak
def test_a_run_in_order_is_measured_beside_one_without(tmp_path: Path) -> None:
    shown = BENCH.tables(tmp_path, "--quick", "--only", "runs")
    assert list(shown) == ["Runs", "Order", "Goals"]
    without, ordered = shown["Runs"]
    assert (without["order"], ordered["order"]) == ("none", "delta-causal")
    assert without["receptions"] > 1_000
    for row in (without, ordered):
        assert row["receptions/CPU s"] == pytest.approx(row["receptions"] / row["CPU s"])
        assert 0 < row["share of bound %"] <= 100
    assert without["messages"] == ordered["messages"]
    assert (without["co-delivery %"], without["mean entries"]) == (None, None)
    assert 50 < ordered["co-delivery %"] <= 100
    assert ordered["mean entries"] > 0
    (order,) = shown["Order"]
    assert order["CPU s more"] == pytest.approx(ordered["CPU s"] - without["CPU s"])
    assert order["µs per delivery"] == pytest.approx(order["CPU s more"] / ordered["deliveries"] * 1e6)
    assert [(row["goal"], row["measured"], row["met"]) for row in shown["Goals"]] == [
        (100_000, ordered["receptions/CPU s"], None),
        (165_000, ordered["receptions/CPU s"], None),
    ]


def test_a_history_is_the_same_for_the_same_seed_and_nothing_waits_but_for_the_first_message() -> None:
    made, again, other = (_histories.make(60, LONG_S, seed) for seed in (1, 1, 2))
    assert made.ours == again.ours != other.ours
    assert made.literal == again.literal
    assert [each.label for each in made.ours if not each.barrier] == ["m0"]
    assert [each.mid for each in made.literal if not each.cb] == ["m0"]


@pytest.mark.parametrize("lifetimes_s", [LONG_S, MIXED_S])
def test_both_versions_date_a_message_alike(lifetimes_s: tuple[int, int]) -> None:
    made = _histories.make(60, lifetimes_s, 1)
    assert [(each.author, each.deadline_us) for each in made.ours] == [(each.src, each.dln) for each in made.literal]


def test_a_host_that_delivers_in_wrong_order_or_not_everything_or_twice_is_noticed() -> None:
    names = [each.label for each in _histories.make(30, LONG_S, 1).ours]
    _histories.make(30, LONG_S, 1).check(names)
    with pytest.raises(AssertionError, match="inversion"):
        _histories.make(30, LONG_S, 1).check([*names[1:], names[0]])
    for wrong in (names[:-1], [*names, names[0]]):
        with pytest.raises(AssertionError, match="not delivered"):
            _histories.make(30, LONG_S, 1).check(wrong)


@pytest.mark.parametrize("name", ["in order", "shuffled", "newest first"])
def test_every_message_comes_once_and_the_first_one_last(name: str) -> None:
    order = _histories.arrivals(50, name, 1)
    assert (sorted(order), order[-1]) == (list(range(50)), 0)
    assert (order[:2] == [1, 2], order[:2] == [49, 48]) == (name == "in order", name == "newest first")


@pytest.mark.parametrize("case", ["city_bus", "ostermalm"])
def test_other_benchmarks_of_the_emulator_run_shipped_scenarios_without_order(case: str, tmp_path: Path) -> None:
    assert 'ordering = "' in (_scenes.SHIPPED / f"{case}.toml").read_text(encoding="utf-8")
    plain = _scenes.scene(case, tmp_path, None, 1, quick=False)
    ordered = _scenes.scene(case, tmp_path, None, 1, quick=False, ordering=Ordering.DELTA_CAUSAL)
    assert plain.overrides["workload.0.ordering"] == "none"
    assert ordered.overrides == {**plain.overrides, "workload.0.ordering": "delta-causal"}


@pytest.mark.parametrize("arguments", [("--only", "barriers"), ("--repeats", "0"), ("--seed", "x")])
def test_what_makes_no_sense_is_a_usage_error(arguments: tuple[str, ...]) -> None:
    outcome = BENCH.here(*arguments)
    assert (outcome.returncode, outcome.stdout) == (2, "")
    assert arguments[0] in outcome.stderr


def test_help_gives_an_example() -> None:
    outcome = BENCH.here("--help")
    assert outcome.returncode == 0
    assert "carrypost bench causal --" in " ".join(outcome.stdout.split("For example:")[1].split())
