"""Many subscriptions: the cost of selectors for a matcher, and of one more subscription for a host with many messages.

*Matching*: 1,000 subscriptions to whole destinations, and the same with a selector on 15 % of them; descriptors never
seen before go to both in turn. *Subscribing*: a host that holds 5,000 messages makes subscriptions one by one, each in
a separate step with everything that a driver does after it, a millisecond of virtual time after the last. Meanwhile the
profile is announced, at most five times a second, and matched against everything. Twice as many must take about twice
as long: `growth` is the time of all divided by that of the first half, and would be four if the cost of each rose with
all before it.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from carrypost.config import Limits, Settings
from carrypost.gossip.interest.matcher import Matcher
from carrypost.gossip.wire.pieces import Blank
from carrypost.host import Host
from carrypost.model.descriptor import AttributeValue, Descriptor, PayloadCodec
from carrypost.model.pattern import Entry, entry
from carrypost.security.identity import Identity

SPEED_GOAL: Final = 1 / 3
GROWTH_GOAL: Final = 2.5
SUBSCRIPTIONS: Final = 1_000
TOPICS: Final = 2_000
GUARDED: Final = 3
"""Number of subscriptions out of twenty that have a selector."""
SAMPLES: Final = 20_000
HELD: Final = 5_000
MADE: Final = 600
ROOMS: Final = 1_000
_STEP_US: Final = 1_000


@dataclass(frozen=True, slots=True)
class Matching:
    """Descriptors a CPU second."""

    asked: str
    plain_per_s: float
    selected_per_s: float

    @property
    def share(self) -> float:
        """Speed with selectors, by that without."""
        return self.selected_per_s / self.plain_per_s

    @property
    def met(self) -> bool:
        """True if enough of the speed is left."""
        return self.share >= SPEED_GOAL


def profile(*, selectors: bool) -> list[Entry]:
    """1,000 subscriptions, some of them with a selector of two conditions, no two alike."""
    rng = random.Random(1)
    made = []
    for number in range(SUBSCRIPTIONS):
        text = f"price > {number} AND language IN ('English', 'French')"
        topic = f"topic{rng.randrange(TOPICS)}"
        made.append(entry(topic, text if selectors and number % 20 < GUARDED else None))
    return made


def _descriptors(topics: range, rng: random.Random) -> list[Descriptor]:
    found = []
    for number in range(SAMPLES):
        attributes: dict[str, AttributeValue] = {"language": rng.choice(["English", "Breton"]), "price": number % 1_500}
        made = Descriptor(
            author="bench", incarnation=0, sequence=number, created_us=0, deadline_us=None,
            destination=f"topic{rng.choice(topics)}", size=0, length=0, codec=PayloadCodec.PLAIN, root=b"",
            fragment_bytes=1024, attributes=attributes,
        )  # fmt: skip
        found.append(made)
    return found


def matching(repeats: int) -> list[Matching]:
    """Medians, each with the other in turn: is anything matched, and which subscriptions are."""
    plain, selected = (Matcher(profile(selectors=each), Limits()) for each in (False, True))
    rng = random.Random(2)
    found = _descriptors(range(TOPICS), rng)
    assert 0 < sum(map(selected.matches, found)) < sum(map(plain.matches, found)) < SAMPLES
    figures = []
    for asked, calls in (
        ("whether any matches", (plain.matches, selected.matches)),
        ("which match", (plain.which_of, selected.which_of)),
    ):
        rates = [[_rate(call, found) for call in calls] for _ in range(repeats)]
        figures.append(Matching(asked, *map(statistics.median, zip(*rates, strict=True))))
    return figures


def _rate(call: Callable[[Descriptor], object], found: list[Descriptor]) -> float:
    begun_s = time.process_time()
    for descriptor in found:
        call(descriptor)
    return len(found) / (time.process_time() - begun_s)


# --- subscribing ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Subscribing:
    """CPU time of all subscriptions, and of the first half."""

    kind: str
    half_ms: float
    all_ms: float

    @property
    def growth(self) -> float:
        """Two, where every subscription costs the same."""
        return self.all_ms / self.half_ms

    @property
    def met(self) -> bool:
        """True if it is linear."""
        return self.growth <= GROWTH_GOAL


KINDS: Final[dict[str, Callable[[int], tuple[str, str | None]]]] = {
    "a destination each": lambda number: (f"room/{number}", None),
    "a prefix each": lambda number: (f"room/{number}.*", None),
    "a destination and a selector each": lambda number: (f"room/{number}", f"price > {number}"),
    "one destination, a selector each": lambda number: ("room/1", f"price > {number}"),
}


def subscribing(repeats: int) -> Iterator[Subscribing]:
    """Medians."""
    for kind, make in KINDS.items():
        found = [_subscribe_all(make) for _ in range(repeats)]
        yield Subscribing(kind, *map(statistics.median, zip(*found, strict=True)))


def _subscribe_all(make: Callable[[int], tuple[str, str | None]]) -> tuple[float, float]:
    host, now = Host(Identity.plain("bench"), Settings.emulated(), random.Random(1)), _STEP_US
    host.start(now)
    _drain(host, now)
    for number in range(HELD):
        host.publish(f"room/{number % ROOMS}", Blank(1), now=now, attributes={"price": number})
    _drain(host, now)
    begun_s, half_s = time.process_time(), 0.0
    for number in range(MADE):
        now += _STEP_US
        if (due := host.next_deadline()) is not None and due <= now:
            host.tick(now)
        pattern, selector = make(number)
        host.subscribe(pattern, selector, now=now)
        _drain(host, now)
        if number + 1 == MADE // 2:
            half_s = time.process_time() - begun_s
    return half_s * 1e3, (time.process_time() - begun_s) * 1e3


def _drain(host: Host, now: int) -> None:
    while host.busy:
        if (batch := host.changes()) is not None:
            host.durable(batch.serial, now)
        host.outgoing()
        host.events()
