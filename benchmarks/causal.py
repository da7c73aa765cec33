"""Causal order: CPU time per delivery with many pending, entries of barriers, and whole runs with and without order.

*Deliveries*: one order group at one host, no network. 50 sources, each of which has heard of all but the last few
messages, published a history in Δ-causal order. All of it comes to a host, one message after the other, and the one
that all depend on comes last: the others wait, then all are delivered. Beside it, on the same history, run the codes of
the paper to the letter (tests/support/literal_causal.py). Both must deliver everything, in causal order.

*Barriers*: entries that messages carry, in either version, with equal and with different lifetimes.

*Runs*: the scenario ostermalm with lifetimes of 20 minutes, faithful, without order and in Δ-causal order, in turn.

Run: carrypost bench causal [--only layer|runs] [--seed N] [--repeats N] [--quick] [--json]
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Final

from benchmarks._histories import LONG_S, MIXED_S, SOURCES, Made
from benchmarks._processes import BenchmarkError, Row, say

from benchmarks import _histories, _report, emu
from carrypost.model.descriptor import Ordering

PENDING: Final = (100, 1_000, 10_000)
PENDING_QUICK: Final = (20, 100)
ARRIVALS: Final = ("in order", "shuffled", "newest first")
REPEATS: Final = 5
LITERAL_ONCE: Final = 10_000
"""Number of pending messages from which on the codes of the paper, which take a millisecond for each, run only once."""
CASE: Final = "ostermalm"
ORDERINGS: Final = (Ordering.NONE, Ordering.DELTA_CAUSAL)
GOAL_US: Final = 10
GOAL_PER_S: Final = 100_000
AIM_PER_S: Final = 165_000

Runs = Mapping[Ordering, emu.Found]


# --- the layer alone ---------------------------------------------------------------------------------------


def delivery_row(made: Made, arrival: str, repeats: int, seed: int) -> Row:
    """Return the cost of a delivery if messages come in this order, in either version."""
    pending = len(made.ours) - 1
    order = _histories.arrivals(len(made.ours), arrival, seed)
    ours = [_histories.ours_us(made, order) for _ in range(repeats)]
    fresh = [_histories.ours_us(made, order, fresh=True) for _ in range(repeats)]
    literal = [_histories.literal_us(made, order) for _ in range(1 if pending >= LITERAL_ONCE else repeats)]
    return {
        "pending": pending,
        "arrival": arrival,
        "best µs": min(ours),
        "median µs": statistics.median(ours),
        "just decoded, median µs": statistics.median(fresh),
        "literal, best µs": min(literal),
        "literal, median µs": statistics.median(literal),
        "literal, runs": len(literal),
        "literal by ours": statistics.median(literal) / statistics.median(ours),
    }


def barrier_rows(made: Made, lifetimes_s: tuple[int, int]) -> Iterator[Row]:
    """Entries of the messages of a history, in either version."""
    versions = {
        "literal": ([len(each.cb) for each in made.literal], made.literal_delivered),
        "ours": ([len(each.barrier) for each in made.ours], made.ours_delivered),
    }
    for version, (entries, delivered) in versions.items():
        yield {
            "messages": len(entries),
            "lifetimes": "the same" if lifetimes_s == LONG_S else "{}-{} s".format(*lifetimes_s),
            "version": version,
            "mean entries": statistics.fmean(entries),
            "most entries": max(entries),
            "delivered %": delivered / made.received * 100,
        }


def layer(options: argparse.Namespace) -> tuple[list[Row], list[Row]]:
    """Deliveries and barriers, on the same histories; barriers also where lifetimes vary."""
    deliveries: list[Row] = []
    barriers: list[Row] = []
    sizes = PENDING_QUICK if options.quick else PENDING
    for pending in sizes:
        say(f"{pending:,} pending: making the history")
        made = _histories.make(pending, LONG_S, options.seed)
        barriers += barrier_rows(made, LONG_S)
        for arrival in ARRIVALS:
            say(f"{pending:,} pending, {arrival}")
            deliveries.append(delivery_row(made, arrival, options.repeats or REPEATS, options.seed))
    say(f"{sizes[-1]:,} messages with lifetimes that vary")
    barriers += barrier_rows(_histories.make(sizes[-1], MIXED_S, options.seed), MIXED_S)
    return deliveries, barriers


# --- whole runs --------------------------------------------------------------------------------------------


def runs(options: argparse.Namespace) -> Runs:
    """Run the scenario with and without order, in turn, so that disturbances by the machine affect both."""
    found: dict[Ordering, list[emu.Found]] = {ordering: [] for ordering in ORDERINGS}
    repeats = options.repeats or 1
    for number in range(repeats):
        for ordering, each in found.items():
            say(f"{CASE}, order {ordering.text}, {number + 1} of {repeats}")
            each.append(emu.once(CASE, options, ordering))
    return {ordering: emu.middle(each) for ordering, each in found.items()}


def run_rows(found: Runs) -> list[Row]:
    """Return the costs of the runs, and their receptions."""
    return [
        {
            "order": ordering.text,
            "messages": each["messages"],
            "receptions": each["receptions"],
            "deliveries": each["deliveries"],
            "CPU s": emu.cpu_s(each),
            "receptions/CPU s": emu.rate(each),
            "peak MB": each["peak_bytes"] / emu.MEGABYTE,
            "co-delivery %": None if each["co_delivery_ratio"] is None else each["co_delivery_ratio"] * 100,
            "mean entries": each["barrier_entries"],
            "share of bound %": each["receptions"] / each["bound"] * 100 if each["bound"] else None,
            "times bound": each["cpu_s"] / each["bound_s"],
        }
        for ordering, each in found.items()
    ]


def cost_row(found: Runs) -> Row:
    """Return the cost of order in a run. Two runs are subtracted, so that a disturbance of either shows in full."""
    without, ordered = (found[ordering] for ordering in ORDERINGS)
    more_s = ordered["cpu_s"] - without["cpu_s"]
    return {
        "CPU s more": more_s,
        "more %": more_s / without["cpu_s"] * 100,
        "µs per delivery": more_s / ordered["deliveries"] * 1e6 if ordered["deliveries"] else None,
        "record s more": ordered["record_s"] - without["record_s"],
    }


# --- the command -------------------------------------------------------------------------------------------


def goal_rows(deliveries: Sequence[Row], found: Runs, *, quick: bool) -> list[Row]:
    """Return whether goals are met; only whole measurements show that."""
    rows: list[Row] = []
    if deliveries:
        slowest = max(float(str(row["median µs"])) for row in deliveries)
        rows.append(_goal("slowest median µs per delivery", slowest, GOAL_US, met=slowest <= GOAL_US))
    if found:
        rate = emu.rate(found[Ordering.DELTA_CAUSAL])
        for name, goal in (("", GOAL_PER_S), (", aim", AIM_PER_S)):
            rows.append(_goal(f"receptions/CPU s in order{name}", rate, goal, met=rate >= goal))
    return [{**row, "met": None} for row in rows] if quick else rows


def _goal(what: str, measured: float, goal: int, *, met: bool) -> Row:
    return {"what": what, "measured": measured, "goal": goal, "met": met}


def _options(argv: Sequence[str]) -> argparse.Namespace:
    parser = _report.parser("causal", str(__doc__).split("\n\n", maxsplit=1)[0], "--only layer --repeats 3 --json")
    parser.add_argument("--only", choices=("layer", "runs"), help="the order group alone, or whole runs alone")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="where chance comes from (default 1)")
    parser.add_argument(
        "--repeats",
        type=_report.positive,
        metavar="N",
        help=f"so many times (default {REPEATS} for the layer, 1 for runs)",
    )
    parser.add_argument("--quick", action="store_true", help="small histories, the first ten minutes of the runs")
    parser.set_defaults(workloads=None)
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> int:
    """Print the tables."""
    options = _options(argv)
    show = partial(_report.show, json=options.json)
    deliveries: list[Row] = []
    found: Runs = {}
    if options.only != "runs":
        deliveries, barriers = layer(options)
        show(
            f"Deliveries: CPU µs each, Δ-causal, {SOURCES} sources, all wait for the message that comes last",
            deliveries,
        )
        show("Barriers: entries per message; delivered: of what sources received, while the history was made", barriers)
    if options.only != "layer":
        try:
            found = runs(options)
        except BenchmarkError as error:
            say(f"carrypost bench causal: {error}")
            return 1
        part = ", a short part" if options.quick else ""
        show(f"Runs: {CASE}, lifetimes of 20 minutes, faithful, seed {options.seed}{part}", run_rows(found))
        show("Order: what Δ-causal order adds to that run" + part, [cost_row(found)])
    show("Goals: of whole measurements", goal_rows(deliveries, found, quick=options.quick))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
