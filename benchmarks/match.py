"""Content matching: descriptors a second of CPU time against 1,000 subscriptions.

85 % of the subscriptions name one destination, 15 % are patterns, every second one asks for a language as
well. Every descriptor has an attribute value that was never seen before, so no memory of earlier answers
helps. Three loads: ``language``: destinations come again, languages never; ``both``: neither comes again;
``re2``: likewise, and the 15 % are patterns that no lookup answers. The baselines run in the same process
on the same load, on few samples: patterns of the `re` module compiled once and scanned, and `re.fullmatch`
each time, whose cache thrashes beyond 512 patterns.

Run: carrypost bench match [--repeats N] [--quick] [--strict] [--json]
"""

from __future__ import annotations

import random
import re
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks import _report
from carrypost.config import Limits
from carrypost.gossip.interest.matcher import Matcher
from carrypost.model.descriptor import Descriptor, PayloadCodec
from carrypost.model.pattern import Entry, entry

GOAL_PER_S = 100_000
SUBSCRIPTIONS = 1_000
TOPICS = 2_000
SAMPLES = {"carrypost": 20_000, "re, compiled once": 100, "re.fullmatch each time": 4}
LOADS = ("language", "both", "re2")
QUICK = 20
"""Divisor of all sizes in the small version."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the table."""

    load: str
    method: str
    samples: int
    best_per_s: float
    median_per_s: float
    matched: float
    """Share of descriptors that matched."""


def subscriptions(load: str, rng: random.Random, count: int = SUBSCRIPTIONS) -> list[Entry]:
    """Return the profile: 85 % exact, 15 % patterns, half of each with a language alternation."""
    made = []
    for number in range(count):
        topic = f"topic{10_000 + rng.randrange(TOPICS)}"
        if number % 20 < 3:
            topic = f"topic[0-9]*{number}/.*" if load == "re2" else f"{topic[:-1]}.*"
        languages = "|".join(rng.sample(["English", "French", "German", "Chinese", "Breton"], 3))
        made.append(entry({"destination": topic} | ({"language": languages} if number % 2 else {})))
    return made


def descriptors(load: str, count: int, start: int, rng: random.Random) -> list[Descriptor]:
    """`count` descriptors with languages and, unless the load is `language`, destinations of their own."""
    made = []
    for number in range(start, start + count):
        topic = f"topic{10_000 + rng.randrange(TOPICS)}" + ("" if load == "language" else f"/{number}")
        made.append(
            Descriptor(
                author="bench", incarnation=0, sequence=number, created_us=0, deadline_us=None,
                destination=topic, size=0, length=0, codec=PayloadCodec.PLAIN, root=b"", fragment_bytes=1024,
                attributes={"language": f"English-{number}", "price": number},
            )
        )  # fmt: skip
    return made


def _scanned(entries: Sequence[Entry]) -> Callable[[Descriptor], bool]:
    compiled = [[(name, re.compile(pattern)) for name, pattern in one.patterns] for one in entries]

    def matches(descriptor: Descriptor) -> bool:
        values = {"destination": descriptor.destination} | descriptor.attributes
        return any(all(pattern.fullmatch(str(values[name])) for name, pattern in one) for one in compiled)

    return matches


def _each_time(entries: Sequence[Entry]) -> Callable[[Descriptor], bool]:
    def matches(descriptor: Descriptor) -> bool:
        values = {"destination": descriptor.destination} | descriptor.attributes
        return any(all(re.fullmatch(text, str(values[name])) for name, text in one.patterns) for one in entries)

    return matches


def measure(repeats: int = 5, seed: int = 1, *, part: int = 1) -> list[Figure]:
    """Measure every method on every load; raises `AssertionError` if they disagree on what matches."""
    figures = []
    for load in LOADS:
        rng = random.Random(seed)
        entries = subscriptions(load, rng, SUBSCRIPTIONS // part)
        methods: dict[str, Callable[[Descriptor], bool]] = {
            "carrypost": Matcher(entries, Limits()).matches,
            "re, compiled once": _scanned(entries),
            "re.fullmatch each time": _each_time(entries),
        }
        check = descriptors(load, 50, 0, rng)
        assert [methods["carrypost"](one) for one in check] == [methods["re, compiled once"](one) for one in check]
        start = len(check)
        for method, matches in methods.items():
            count = max(1, SAMPLES[method] // part)
            rates, matched = [], 0
            for _ in range(repeats):
                load_now = descriptors(load, count, start, rng)
                start += count
                begun = time.process_time()
                for descriptor in load_now:
                    matched += matches(descriptor)
                rates.append(count / (time.process_time() - begun))
            figures.append(Figure(load, method, count, max(rates), statistics.median(rates), matched / count / repeats))
    return figures


def tables(repeats: int, *, json: bool | None, quick: bool = False) -> bool:
    """Measure and show; whether the goal is met."""
    part = QUICK if quick else 1
    figures = measure(repeats, part=part)
    rows = [
        {
            "load": one.load,
            "method": one.method,
            "samples": one.samples,
            "best/s": one.best_per_s,
            "median/s": one.median_per_s,
            "matched %": 100 * one.matched,
        }
        for one in figures
    ]
    against = f"{SUBSCRIPTIONS // part:,} subscriptions"
    _report.show(f"Matching: descriptors per CPU second against {against}", rows, json=json)
    slowest = min(one.median_per_s for one in figures if one.method == "carrypost")
    met = slowest >= GOAL_PER_S
    goal = {"goal/s": GOAL_PER_S, "slowest median/s": slowest, "met": met}
    _report.show("Goal: matching, the slowest load of carrypost", [goal], json=json)
    return met


def main(argv: Sequence[str]) -> int:
    """Print the tables; 1 if the goal is to be met and is missed."""
    parser = _report.parser("match", __doc__.split("\n\n")[0], "--repeats 3 --json")
    parser.add_argument(
        "--repeats", type=_report.positive, default=5, metavar="N", help="measure so many times (default 5)"
    )
    parser.add_argument("--quick", action="store_true", help="a small version, in a second")
    parser.add_argument("--strict", action="store_true", help="exit with 1 if the goal is missed")
    options = parser.parse_args(argv)
    met = tables(options.repeats, json=options.json, quick=options.quick)
    return 1 if options.strict and not met else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
