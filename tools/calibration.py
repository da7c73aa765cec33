"""Shipped scenarios beside the statistics that were published of the originals.

    python tools/calibration.py ostermalm              Table IV of the causal broadcast paper
    python tools/calibration.py city_bus               its Table I
    python tools/calibration.py ostermalm --bound      and receptions: the paper's, and what a flood could reach

Movement is drawn for several seeds and put through the same search for contacts as in a run. Counts and means are held,
within 10 %, as the mean over seeds 1 to 10 (`tests/mobility/test_mobility_models.py`); extremes and deviations are
only shown.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean, pstdev

from carrypost.emu.inputs import read_inputs
from carrypost.emu.scenario import Scenario
from carrypost.emu.verify.bound import flood_us
from carrypost.model.times import MICROSECONDS
from carrypost.traces.contacts import Contact, Presence, clipped

SCENARIOS = Path(__file__).resolve().parents[1] / "scenarios"
SEEDS = range(1, 11)
TOLERANCE = 0.10
HELD = ("nodes", "activity mean", "contacts", "contact mean", "broadcasts")
"""Counts and means, which calibration keeps; the maximum at one time is an extreme value, and is not compared."""

PUBLISHED: dict[str, dict[str, float]] = {
    "city_bus": {
        "nodes": 60, "at once, at most": 56,
        "activity min": 26 * 60, "activity max": 50_880, "activity mean": 39_480, "activity sd": 12_360,
        "contacts": 8_892, "contact min": 1, "contact max": 249, "contact mean": 84, "contact sd": 65,
        "broadcasts": 2_004,
    },
    "ostermalm": {
        "nodes": 2_092, "at once, at most": 57,
        "activity min": 7.8, "activity max": 1_936, "activity mean": 325, "activity sd": 249,
        "contacts": 14_807, "contact min": 0.6, "contact max": 492, "contact mean": 45, "contact sd": 39,
        "broadcasts": 10_557,
    },
}  # fmt: skip
"""Tables I and IV, in seconds, and the numbers of broadcasts from the text (§VI-A, §VI-B)."""
RECEIVED: dict[str, dict[float | None, int]] = {
    "city_bus": {None: 106_580, 7_200: 98_610, 3_600: 94_329, 2_400: 85_301, 1_200: 50_365, 600: 21_571},
    "ostermalm": {1_200: 1_475_328, 900: 1_192_205, 600: 884_810, 300: 539_652},
}
"""Tables II and V: receptions by the lifetime of messages in seconds, of a protocol; so a flood may reach more."""


def statistics(scenario: Scenario, seed: int | str) -> dict[str, float]:
    """Return the figures of Tables I and IV for a scenario, with this seed's movement."""
    presences, contacts = _who_and_whom(scenario, seed)
    lives_s = [(leave_us - join_us) / MICROSECONDS for _, join_us, leave_us in presences]
    lengths_s = [(contact.end_us - contact.start_us) / MICROSECONDS for contact in contacts]
    return {
        "nodes": len({node for node, _, _ in presences}),
        "at once, at most": _most_at_once(presences),
        **_described("activity", lives_s),
        "contacts": len(contacts),
        **_described("contact", lengths_s),
        "broadcasts": len(_broadcasts_us(scenario, presences)),
    }


def bounds(scenario: Scenario, seed: int | str, lifetimes_s: Iterable[float | None]) -> dict[float | None, int]:
    """Receptions that a flood reaches, by the lifetime of messages."""
    presences, contacts = _who_and_whom(scenario, seed)
    sent = _broadcasts_us(scenario, presences)
    found: dict[float | None, int] = {}
    for life_s in lifetimes_s:
        life_us = None if life_s is None else round(life_s * MICROSECONDS)
        messages = [(f"{node} {t_us}", node, t_us, None if life_us is None else t_us + life_us) for node, t_us in sent]
        found[life_s] = len(flood_us([each[:4] for each in contacts], messages, presences))
    return found


def means(rows: Sequence[dict[str, float]]) -> dict[str, float]:
    """Return the mean of every statistic."""
    return {name: fmean(row[name] for row in rows) for name in rows[0]}


def _who_and_whom(scenario: Scenario, seed: int | str) -> tuple[list[tuple[str, int, int]], list[Contact]]:
    inputs = read_inputs(scenario, seed)
    end_us = scenario.duration_us
    presences = [
        (node, join_us, end_us if leave_us is None else min(leave_us, end_us))
        for node, join_us, leave_us in inputs.presences
        if join_us < end_us
    ]
    return presences, clipped(inputs.contacts, [Presence(*each) for each in presences], end_us)


def _most_at_once(presences: Sequence[tuple[str, int, int]]) -> int:
    there = most = 0
    # A leave sorts before a join of the same instant.
    for _, change in sorted(change for _, join_us, leave_us in presences for change in ((join_us, 1), (leave_us, -1))):
        there += change
        most = max(most, there)
    return most


def _described(name: str, values: Sequence[float]) -> dict[str, float]:
    return {
        f"{name} min": min(values),
        f"{name} max": max(values),
        f"{name} mean": fmean(values),
        f"{name} sd": pstdev(values),
    }


def _broadcasts_us(scenario: Scenario, presences: Sequence[tuple[str, int, int]]) -> list[tuple[str, int]]:
    return [
        (node, t_us)
        for workload in scenario.workloads
        if workload.kind == "broadcast"
        for node, join_us, leave_us in presences
        for t_us in range(
            join_us + round(workload.first_s * MICROSECONDS), leave_us, round(workload.period_s * MICROSECONDS)
        )
    ]


def _print_statistics(name: str, scenario: Scenario, seeds: Sequence[int]) -> None:
    rows = [statistics(scenario, seed) for seed in seeds]
    print(f"{name}, seeds {seeds[0]} to {seeds[-1]}; durations in seconds\n")
    print(f"{'':18}{'paper':>10}{'our mean':>11}{'off':>9}{'lowest':>10}{'highest':>10}")
    for figure, ours in means(rows).items():
        paper = PUBLISHED[name][figure]
        found = [row[figure] for row in rows]
        off = f"{100 * (ours / paper - 1):+.1f} %"
        held = f"  held within {TOLERANCE:.0%}" if figure in HELD else ""
        print(f"{figure:18}{paper:10,g}{ours:11,.1f}{off:>9}{min(found):10,.1f}{max(found):10,.1f}{held}")


def _print_bounds(name: str, scenario: Scenario, seeds: Sequence[int]) -> None:
    found = [bounds(scenario, seed, RECEIVED[name]) for seed in seeds]
    print(f"\n{'lifetime':18}{'received':>10}{'our bound':>11}{'off':>9}")
    for life_s, paper in RECEIVED[name].items():
        ours = fmean(row[life_s] for row in found)
        life = "none" if life_s is None else f"{life_s / 60:g} min"
        print(f"{life:18}{paper:10,}{ours:11,.0f}{f'{100 * (ours / paper - 1):+.1f} %':>9}")


def main() -> None:
    """Print the tables of one scenario."""
    parser = argparse.ArgumentParser(description="A shipped scenario beside what was published of the original.")
    parser.add_argument("scenario", choices=sorted(PUBLISHED))
    parser.add_argument("--seeds", type=int, default=len(SEEDS), help="how many, from 1 on")
    parser.add_argument("--bound", action="store_true", help="also receptions, beside the bound of a flood")
    options = parser.parse_args()
    scenario = Scenario.load(SCENARIOS / f"{options.scenario}.toml")
    seeds = range(1, options.seeds + 1)
    _print_statistics(options.scenario, scenario, seeds)
    if options.bound:
        _print_bounds(options.scenario, scenario, seeds)


if __name__ == "__main__":
    main()
