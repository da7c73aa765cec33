"""Whole runs of the campus and of limited links: means over seeds beside what the papers say."""

from __future__ import annotations

from functools import cache
from statistics import fmean
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pytest

from carrypost import emu
from carrypost.arrays import Floats
from carrypost.emu.rows import log_of
from carrypost.emu.verify.bound import arrivals_us
from carrypost.emu.verify.facts import Facts
from carrypost.emu.verify.invariants import check
from carrypost.lab.campaign.reproduce import RECIPES, scenario_file
from carrypost.lab.metrics import families, tables
from carrypost.log.record import Kind

pytestmark = pytest.mark.soak
SEEDS = range(1, 21)
MINUTE_S = 60.0


class Outcome(NamedTuple):
    """Fate of the messages of a run."""

    x_s: Floats
    """Times of deliveries, from the publication on, and the share of deliveries until then."""
    y: Floats
    lost: float
    far: float
    """Number of phones with at least half of their receptions over several hops."""
    late_s: Floats
    """Delays of queue messages beyond those of two floods: to the phone that manages the queue, and from there."""


def outcome(queue: str, seed: int) -> Outcome:
    wanted = [families.DELIVERY_CDF, families.CLASSES, families.HOPS]
    record = emu.run(scenario_file("campus"), seed, overrides={"workload.0.queue": queue}).table
    found = {name: table.to_pydict() for name, table in tables("r/s/1", record, wanted).items()}
    cdf, classes, hops = (found[each.name] for each in wanted)
    return Outcome(
        np.array(cdf["value_ms"]) / 1_000, np.array(cdf["share"]),
        1 - sum(classes["delivered"]) / sum(classes["recipients"]),
        sum(2 * direct <= received for direct, received in zip(hops["direct"], hops["received"], strict=True)),
        beyond_two_floods_s(record) if queue == "third" else np.zeros(0),
    )  # fmt: skip


def beyond_two_floods_s(record: pa.Table) -> Floats:
    """Return how much later queue messages were delivered than two floods could bring them."""
    facts = Facts(log_of(record))
    log = facts.log

    def rows(kind: Kind) -> dict[str, int]:
        return {log.messages[log.message[row]]: row for row in log.of(kind).tolist()}

    published, assigned, delivered = (rows(kind) for kind in (Kind.PUBLISH, Kind.ASSIGN, Kind.DELIVER))
    manager = {each: log.nodes[log.node[row]] for each, row in assigned.items()}
    reader = {each: log.nodes[log.node[row]] for each, row in delivered.items()}
    sent = [(each, log.nodes[log.node[published[each]]], int(log.t_us[published[each]]), None) for each in reader]
    there = arrivals_us(facts.passable, sent, facts.presences)
    passed_on = [(each, manager[each], there[each, manager[each]], None) for each in reader]
    here = arrivals_us(facts.passable, passed_on, facts.presences)
    return np.array([log.t_us[delivered[each]] - here[each, node] for each, node in reader.items()]) / 1e6


class Means(NamedTuple):
    """Means over seeds: of curves, not of their quantiles, as in the figures of the page."""

    soon: float
    """Share of deliveries in less than 20 min."""
    hour: float
    quantiles_s: tuple[float, float, float]
    lost: float
    far: float


@cache
def outcomes(queue: str) -> list[Outcome]:
    return [outcome(queue, seed) for seed in SEEDS]


@cache
def means(queue: str) -> Means:
    every = outcomes(queue)
    grid_s = np.unique(np.concatenate([each.x_s for each in every]))
    curves = [np.append(0.0, each.y)[np.searchsorted(each.x_s, grid_s, side="right")] for each in every]
    curve = np.mean(curves, axis=0)
    first, second, third = (float(grid_s[np.searchsorted(curve, part)]) for part in (0.5, 0.8, 0.9))
    return Means(
        float(curve[grid_s < 20 * MINUTE_S].max()), float(curve[grid_s < 60 * MINUTE_S].max()), (first, second, third),
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


def test_queues_lose_no_time_beside_what_contacts_cost() -> None:
    for each in outcomes("third"):
        assert each.late_s.min() > -1e-6
        assert np.quantile(each.late_s, 0.95) < MINUTE_S


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
