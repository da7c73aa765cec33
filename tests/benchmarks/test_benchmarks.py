"""The benchmarks run, show every table, and their figures can be true. How fast they are is not tested."""

from __future__ import annotations

import json
import subprocess
from collections import defaultdict
from itertools import product

import pytest
from tests.support.benches import Bench, Tables


def tables(outcome: subprocess.CompletedProcess[str]) -> Tables:
    assert (outcome.returncode, outcome.stderr) == (0, "")
    found: Tables = defaultdict(list)
    for line in outcome.stdout.splitlines():
        row = json.loads(line)
        found[row.pop("table")].append(row)
    return dict(found)


@pytest.fixture(scope="module")
def core() -> Tables:
    return tables(Bench("core").here("--quick", "--json"))


@pytest.fixture(scope="module")
def match() -> Tables:
    return tables(Bench("match").here("--quick", "--repeats", "1"))  # Into a pipe, so it is JSON without being asked.


@pytest.fixture(scope="module")
def messaging() -> Tables:
    return tables(Bench("messaging").run("--repeats", "1", "--claims", "500"))


@pytest.mark.soak
def test_selectors_have_a_figure_for_parsing_and_for_evaluation_beside_python(messaging: Tables) -> None:
    assert list(messaging) == ["Selectors", "Matching", "Subscribing", "Claims that wait", "Taking"]
    assert [row["work"] for row in messaging["Selectors"]] == ["parse", "evaluate, selected", "evaluate, not selected"]
    for row in messaging["Selectors"]:
        assert row["selector µs"] > row["Python µs"] > 0
        assert row["times"] == pytest.approx(row["selector µs"] / row["Python µs"])
        assert row["met"] is (row["times"] <= row["goal"])


@pytest.mark.soak
def test_subscriptions_with_selectors_are_measured_beside_those_without(messaging: Tables) -> None:
    for row in messaging["Matching"]:
        assert row["without/s"] > row["with/s"] > 0
        assert row["share"] == pytest.approx(row["with/s"] / row["without/s"])
        assert row["met"] is (row["share"] >= row["goal"])
    assert len(messaging["Subscribing"]) == 4
    for row in messaging["Subscribing"]:
        assert row["all, CPU ms"] > row["half, CPU ms"] > 0
        assert row["growth"] == pytest.approx(row["all, CPU ms"] / row["half, CPU ms"])
        assert row["met"] is (row["growth"] <= row["goal"])


def test_every_table_is_there_and_has_the_same_columns_in_every_row(core: Tables, match: Tables) -> None:
    assert list(core) == ["Exchange", "Receiving", "Contacts", "Cliques", "Matching", "Goal"]
    assert list(match) == ["Matching", "Goal"]
    for rows in (*core.values(), *match.values()):
        assert all(row.keys() == rows[0].keys() for row in rows)


def test_receiving_takes_time_for_each_security_size_and_way_to_come(core: Tables) -> None:
    cases = [(row["security"], row["bytes"], row["come"]) for row in core["Receiving"]]
    assert cases == list(product(("off", "signed"), (200, 1_000), ("burst", "alone")))
    assert all(row["median µs a message"] > 0 for row in core["Receiving"])


def test_an_exchange_takes_time_and_more_than_the_least_possible(core: Tables) -> None:
    assert [(row["security"], row["payload"]) for row in core["Exchange"]] == [
        ("off", "blank"),
        ("off", "bytes"),
        ("signed", "bytes"),
    ]
    for row in core["Exchange"]:
        assert row["messages"] > 0
        assert row["median µs a message"] > 0
        assert row["messages/CPU s"] == pytest.approx(1e6 / row["median µs a message"])
        assert row["times floor"] == pytest.approx(row["median µs a message"] / row["floor µs"])


def test_a_contact_in_which_nothing_is_new_moves_no_data_and_costs_less_than_one_with_ten_new(core: Tables) -> None:
    costs = {(row["both hold"], row["new"]): row for row in core["Contacts"]}
    assert set(costs) == {(held, new) for held in (0, 200) for new in (0, 1, 10, 100)}
    for held in (0, 200):
        nothing, ten = costs[held, 0], costs[held, 10]
        assert nothing["data bytes"] == 0 < ten["data bytes"]
        for column in ("datagrams", "with announcements", "control bytes"):
            assert nothing[column] < ten[column]
    assert all(row["datagrams"] <= row["with announcements"] for row in core["Contacts"])


def test_everybody_in_a_clique_gets_every_message_and_data_is_shared(core: Tables) -> None:
    assert [(row["hosts"], row["receptions"]) for row in core["Cliques"]] == [(2, 50), (5, 200)]
    pair, five = core["Cliques"]
    assert pair["data bytes per reception"] > 1_000 > five["data bytes per reception"] > 1_000 / 4
    assert all(row["CPU µs per reception"] > 0 for row in core["Cliques"])
    assert all(row["control bytes per reception"] > 0 for row in core["Cliques"])


@pytest.mark.parametrize("name", ["core", "match"])
def test_matching_has_a_rate_for_every_method_and_load(name: str, request: pytest.FixtureRequest) -> None:
    shown: Tables = request.getfixturevalue(name)
    assert len({(row["load"], row["method"]) for row in shown["Matching"]}) == len(shown["Matching"]) == 9
    for row in shown["Matching"]:
        assert row["best/s"] >= row["median/s"] > 0
        assert 0 <= row["matched %"] <= 100
    (goal,) = shown["Goal"]
    assert goal["met"] is (goal["slowest median/s"] >= goal["goal/s"])


@pytest.mark.parametrize("name", ["core", "match", "messaging"])
def test_help_gives_an_example(name: str) -> None:
    outcome = Bench(name).here("--help")
    assert outcome.returncode == 0
    assert f"carrypost bench {name} --" in " ".join(outcome.stdout.split("For example:")[1].split())


def test_a_number_of_repeats_that_makes_no_sense_is_a_usage_error() -> None:
    outcome = Bench("match").here("--repeats", "0")
    assert (outcome.returncode, outcome.stdout) == (2, "")
    assert "--repeats" in outcome.stderr
