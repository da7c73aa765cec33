"""Whole runs of the campus and of limited links: means over seeds beside what the papers say."""

from __future__ import annotations

from functools import cache
from statistics import fmean
from typing import NamedTuple

import numpy as np
import pytest

from carrypost import emu
from carrypost.emu.verify.invariants import check
from carrypost.lab.campaign.reproduce import RECIPES, scenario_file
from carrypost.lab.metrics import families, tables

pytestmark = pytest.mark.soak
SEEDS = range(1, 21)
MINUTE_S = 60.0


class Outcome(NamedTuple):
    """Fate of the messages of a run."""

    soon: float
    """Share of deliveries in less than 20 min."""
    hour: float
    quantiles_s: tuple[float, float, float]
    lost: float
    far: float
    """Number of phones with at least half of their receptions over several hops."""


def outcome(queue: str, seed: int) -> Outcome:
    wanted = [families.DELIVERY_CDF, families.CLASSES, families.HOPS]
    record = emu.run(scenario_file("campus"), seed, overrides={"workload.0.queue": queue}).table
    found = {name: table.to_pydict() for name, table in tables("r/s/1", record, wanted).items()}
    cdf, classes, hops = (found[each.name] for each in wanted)
    x_s, y = np.array(cdf["value_ms"]) / 1_000, np.array(cdf["share"])
    first, second, third = (float(x_s[np.searchsorted(y, part)]) for part in (0.5, 0.8, 0.9))
    return Outcome(
        float(y[x_s < 20 * MINUTE_S].max()), float(y[x_s < 60 * MINUTE_S].max()), (first, second, third),
        1 - sum(classes["delivered"]) / sum(classes["recipients"]),
        sum(2 * direct <= received for direct, received in zip(hops["direct"], hops["received"], strict=True)),
    )  # fmt: skip


@cache
def means(queue: str) -> Outcome:
    every = [outcome(queue, seed) for seed in SEEDS]
    first, second, third = (fmean(each.quantiles_s[place] for each in every) for place in range(3))
    return Outcome(
        fmean(each.soon for each in every), fmean(each.hour for each in every), (first, second, third),
        fmean(each.lost for each in every), fmean(each.far for each in every),
    )  # fmt: skip


def test_messages_to_a_topic_take_as_long_as_in_the_paper() -> None:
    found = means("none")
    assert 0.73 <= found.soon <= 0.85
    assert found.hour > 0.85
    assert found.lost < 0.05
    assert found.far >= 6


def test_messages_to_a_queue_take_longer_where_a_third_phone_manages_it() -> None:
    topic, third, recipient = (means(queue) for queue in ("none", "third", "recipient"))
    assert all(slow > fast for slow, fast in zip(third.quantiles_s, topic.quantiles_s, strict=True))
    assert 25 * MINUTE_S <= third.quantiles_s[1] <= 60 * MINUTE_S
    assert abs(recipient.quantiles_s[1] - topic.quantiles_s[1]) <= 10 * MINUTE_S


class Waiting(NamedTuple):
    """Waiting in a run on limited or unlimited links."""

    received: int
    ratio: float
    mean_s: float
    stdev_s: float


def waiting(name: str, settings: str, seed: int, duration_s: float | None = None) -> Waiting:
    recipe = RECIPES[name]
    (chosen,) = (each for each in recipe.settings if each.name == settings)
    shorter = {} if duration_s is None else {"duration_s": duration_s}
    record = emu.run(scenario_file(recipe.scenario), seed, overrides={**chosen.changes, **shorter}).table
    assert check(record, bound=False) == []
    found = tables("r/s/1", record, [families.PROCESSING, families.DELAY_SPREAD])
    (counts,) = found["processing"].to_pylist()
    (latency,) = (each for each in found["delays"].to_pylist() if each["metric"] == families.LTCY)
    return Waiting(counts["rcvd"], counts["codlvratio"], latency["avg_s"], latency["stdev_s"])


def test_buses_on_limited_links_receive_as_much_and_wait() -> None:
    limited = [waiting("bus", "none-limited", seed) for seed in range(1, 6)]
    plain = [waiting("bus", "none", seed) for seed in range(1, 6)]
    assert 8 <= fmean(each.mean_s for each in limited) <= 20
    assert 40 <= fmean(each.stdev_s for each in limited) <= 100
    received, before = (fmean(each.received for each in runs) for runs in (limited, plain))
    assert received == pytest.approx(before, rel=0.01)


def test_walkers_on_limited_links_leave_while_messages_wait() -> None:
    found = [waiting("ostermalm", "20min-limited", seed, 1_800) for seed in range(1, 6)]
    assert 0.94 <= fmean(each.ratio for each in found) <= 0.98
    assert 5 <= fmean(each.mean_s for each in found) <= 25
