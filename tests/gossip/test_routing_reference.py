"""Routing on The ONE's default scenario: its own figures without contention, and a model of direct delivery.

The dear runs are for `make soak`: each is a whole day of 126 hosts.
"""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pytest

from carrypost import emu
from carrypost.emu.inputs import read_inputs
from carrypost.emu.scenario import Scenario
from carrypost.lab.campaign.reproduce import RECIPES, scenario_file
from carrypost.lab.metrics import tables
from carrypost.lab.metrics.families import ONE

DATA = os.environ.get("CARRYPOST_DATA", "")
REPORT = Path(DATA) / "one_default" / "fast_DirectDeliveryRouter_DeliveredMessagesReport.txt"
END_US = 43_200_100_000
LATE_S = 0.25
"""The ONE looks at contacts and messages every 0.1 s, and sends one message at a time."""


class Figures(NamedTuple):
    """Messages delivered and relayed, the tolerance of both, and mean hops."""

    delivered: int
    relayed: int | None
    tolerance: float
    hops: float | None = None


FIGURES = {
    "direct": Figures(841, 841, 0.0, 1.0),
    "spray-and-wait": Figures(1_370, 8_542, 0.01, 2.13),
    "first-contact": Figures(731, 67_372, 0.03),
    "prophet": Figures(1_413, 170_710, 0.03),
    "anti-entropy": Figures(1_436, None, 0.0),  # Acknowledgements purge copies, which The ONE does not have.
}


def played(strategy: str, seconds: float, load: str = "uncontended", **settings: bool) -> pa.Table:
    """Return the record of a run."""
    (chosen,) = [each for each in RECIPES["baselines"].settings if each.name == f"{strategy}-{load}"]
    changes = {**chosen.changes, **{f"settings.{name}": value for name, value in settings.items()}}
    return emu.run(scenario_file("helsinki"), 1, overrides={**changes, "duration_s": seconds}).table


def delivered(table: pa.Table) -> dict[str, float]:
    """Return the messages that arrived, and when."""
    columns = (table[name].to_pylist() for name in ("kind", "message", "t"))
    return {message: t for kind, message, t in zip(*columns, strict=True) if kind == "deliver"}


def handed_over() -> dict[str, float]:
    """Return when each author first is in contact with the recipient while its message lives: a model without hosts."""
    inputs = read_inputs(Scenario.load(scenario_file("helsinki")), 1)
    spans = defaultdict(list)
    for each in inputs.contacts:
        spans[frozenset((each.a, each.b))].append((each.start_us, each.end_us))
    found = {}
    (script,) = inputs.scripts.values()
    for message in script:
        (recipient,) = message.recipients
        ends_us = min(END_US, message.t_us + (message.lifetime_us or END_US))
        met = [
            max(start_us, message.t_us)
            for start_us, end_us in spans[frozenset((message.node, recipient))]
            if end_us > message.t_us
        ]
        if met and min(met) < ends_us:
            found[message.message] = min(met) / 1e6
    return found


@pytest.mark.soak
def test_direct_delivery_takes_each_message_to_its_recipient_when_a_model_does() -> None:
    expected = {message: t for message, t in handed_over().items() if t < 3_600}
    assert len(expected) > 10
    assert delivered(played("direct", 3_600)) == pytest.approx(expected, abs=LATE_S)


@pytest.mark.skipif(not DATA, reason="CARRYPOST_DATA names no folder with the reports of The ONE")
def test_the_model_of_direct_delivery_delivers_what_the_one_does() -> None:
    if not REPORT.exists():
        pytest.skip("CARRYPOST_DATA has no reports of The ONE")
    rows = [line.split() for line in REPORT.read_text().splitlines() if not line.startswith("#")]
    reported = {name: float(t) for t, name, *_ in rows}
    found = handed_over()
    assert len(found) == FIGURES["direct"].delivered
    assert found == pytest.approx(reported, abs=LATE_S)


@pytest.mark.soak
@pytest.mark.parametrize("strategy", ["direct", "epidemic", "prophet", "spray-and-wait"])
def test_hosts_that_keep_half_received_messages_deliver_no_fewer(strategy: str) -> None:
    kept, dropped = (len(delivered(played(strategy, 3_600, "contended", keep_partials=keep))) for keep in (True, False))
    assert kept >= dropped > 0


@pytest.mark.soak
@pytest.mark.parametrize("strategy", FIGURES)
def test_a_day_has_the_figures_of_the_one(strategy: str) -> None:
    table = played(strategy, END_US / 1e6)
    (row,) = tables("r", table, [ONE])["one"].to_pylist()
    figures = FIGURES[strategy]
    assert row["delivered"] == pytest.approx(figures.delivered, rel=figures.tolerance)
    if figures.relayed is not None:
        assert row["relayed"] == pytest.approx(figures.relayed, rel=figures.tolerance)
    if figures.hops is not None:
        assert row["hopcount_avg"] == pytest.approx(figures.hops, abs=0.02)
    if strategy == "direct":
        assert delivered(table) == pytest.approx(handed_over(), abs=LATE_S)
