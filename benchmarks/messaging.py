"""Messaging: what selectors cost, beside Python itself and without them; what claims and acknowledgements cost.

Run: carrypost bench messaging [--repeats N] [--strict] [--json]
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from benchmarks import _claims, _report, _selectors, _subscriptions


def selectors(repeats: int, *, json: bool | None) -> bool:
    """Measure and show; whether the goals are met."""
    figures = _selectors.measure(repeats)
    rows = [
        {
            "work": one.work,
            "selector µs": one.selector_us,
            "Python µs": one.python_us,
            "times": one.times,
            "goal": one.goal,
            "met": one.met,
        }
        for one in figures
    ]
    _report.show("Selectors: six conditions beside Python, CPU time", rows, json=json)
    return all(one.met for one in figures)


def matching(repeats: int, *, json: bool | None) -> bool:
    """Measure and show; whether the goal is met."""
    figures = _subscriptions.matching(repeats)
    rows = [
        {
            "asked": one.asked,
            "without/s": one.plain_per_s,
            "with/s": one.selected_per_s,
            "share": one.share,
            "goal": _subscriptions.SPEED_GOAL,
            "met": one.met,
        }
        for one in figures
    ]
    title = f"Matching: descriptors per CPU second against {_subscriptions.SUBSCRIPTIONS:,} subscriptions"
    _report.show(f"{title}, 15 % of them with selectors, and without", rows, json=json)
    return all(one.met for one in figures)


def subscribing(repeats: int, *, json: bool | None) -> bool:
    """Measure and show; whether the goal is met."""
    figures = list(_subscriptions.subscribing(repeats))
    rows = [
        {
            "subscriptions": one.kind,
            "half, CPU ms": one.half_ms,
            "all, CPU ms": one.all_ms,
            "growth": one.growth,
            "goal": _subscriptions.GROWTH_GOAL,
            "met": one.met,
        }
        for one in figures
    ]
    title = f"Subscribing: {_subscriptions.MADE} subscriptions one by one at {_subscriptions.HELD:,} copies"
    _report.show(f"{title}, all by half", rows, json=json)
    return all(one.met for one in figures)


def claims(repeats: int, *, json: bool | None, waiting: int = _claims.CLAIMS) -> bool:
    """Measure and show; whether the goal is met."""
    one = _claims.waiting(waiting)
    rows = [{"claims": one.claims, "bytes each": one.bytes_each, "goal": _claims.BYTES_GOAL, "met": one.met}]
    _report.show("Claims that wait: memory, copies and descriptors not counted", rows, json=json)
    taken = [
        {"subscription": each.subscription, "µs": each.messaging_us, "host's own µs": each.host_us, "times": each.times}
        for each in _claims.taking(repeats)
    ]
    title = f"Taking: {_claims.TAKEN:,} messages, each acknowledged by itself"
    _report.show(f"{title}, beside the host's own deliver and confirm, CPU time of a message", taken, json=json)
    return one.met


def main(argv: Sequence[str]) -> int:
    """Print the tables; 1 if the goals are to be met and are missed."""
    parser = _report.parser("messaging", __doc__.split("\n\n")[0], "--repeats 3 --json")
    parser.add_argument(
        "--repeats", type=_report.positive, default=9, metavar="N", help="measure so many times (default 9)"
    )
    parser.add_argument(
        "--claims",
        type=_report.positive,
        default=_claims.CLAIMS,
        metavar="N",
        help="let so many wait (default 100,000)",
    )
    parser.add_argument("--strict", action="store_true", help="exit with 1 if a goal is missed")
    options = parser.parse_args(argv)
    met = [part(options.repeats, json=options.json) for part in (selectors, matching, subscribing)]
    met.append(claims(options.repeats, json=options.json, waiting=options.claims))
    return 1 if options.strict and not all(met) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
