"""Channels while the network falls apart and joins again: what comes, when, in which order, and with which state."""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path
from typing import ClassVar

import pytest
from tests.support.crashing import Story, crash_everywhere
from tests.support.examples import soaked
from tests.support.partitions import CONSUMERS, FIXED, Delivery, Oracle, emitted, given, homes, played, schedule
from tests.support.relocating import Relocating

ADAPTIVE = """update_s = 60
discovery_s = 30
orphan_s = 45
gap_s = 86400
event_lifetime_s = 86400
"""


@pytest.mark.parametrize("seed", [1267, *soaked([1, 5, *range(1_000, 1_267), *range(1_268, 1_300)])])
def test_exactly_what_floods_one_after_the_other_bring_is_delivered_at_the_same_instants(
    tmp_path: Path, seed: int
) -> None:
    """The island ends at direct neighbours here, so all else is carried; homes are fixed, and nothing is given up.

    With 1267, a leg is published as a contact begins anew, while an earlier one is not acknowledged yet.
    """
    drawn = schedule(seed)
    rows = played(tmp_path, drawn, settings="island_hops_max = 1", overlay=FIXED)
    found, sizes = given(rows)
    assert sorted(found) == Oracle(drawn).deliveries(emitted(rows), homes(rows), CONSUMERS)
    assert all(each == list(range(1, len(each) + 1)) for each in sizes.values())


@pytest.mark.parametrize("seed", [2, *soaked(range(2_000, 2_300))])
def test_with_the_island_and_homes_that_change_order_and_state_hold(tmp_path: Path, seed: int) -> None:
    drawn = schedule(seed)
    found, sizes = given(played(tmp_path, drawn, settings="", overlay=ADAPTIVE))
    assert found
    for consumer in CONSUMERS:
        assert torn([each for each in found if each.consumer == consumer], sizes.get(consumer, [])) == []


def torn(found: list[Delivery], sizes: list[int]) -> list[str]:
    """Return the repeated, missing and misplaced results of a consumer, and wrong states."""
    numbers: dict[str, list[int]] = {}
    for each in found:
        numbers.setdefault(each.producer, []).append(each.event)
    wrong = [f"{producer}: {each}" for producer, each in numbers.items() if each != list(range(1, len(each) + 1))]
    counted = list(accumulate(1 for _ in found))
    return wrong if sizes == counted else [*wrong, f"state: {sizes} for {counted}"]


# --- crashes -----------------------------------------------------------------------------------------------


class Parts(Story):
    """Parts that merge and split again: m carries messages without a path. A crashed node is back a little later."""

    roles: ClassVar[dict[str, str]] = {"producer": "p", "producer's home": "A", "consumer's home": "B", "consumer": "y"}
    producers, links = "p", "pA AB By"

    def __init__(self) -> None:
        super().__init__(Relocating("ABmpy", seed=5, disk_delay_s=0.05))

    def meet(self, *pair: str) -> None:
        """Let two nodes meet for a while."""
        self.net.link(*pair)
        self.emit(1)
        self.wait(3)
        self.restart()
        self.net.unlink(*pair)

    def play(self) -> None:
        for lost, meetings in (("AB", ["mA", "mB"]), ("By", ["AB", "mB", "my"]), ("pA", ["pm", "mA", "AB", "By"])):
            if self.net.linked(*lost):
                self.net.unlink(*lost)
            self.emit(2)
            for pair in meetings:
                self.meet(*pair)


@pytest.mark.parametrize("every", [97, pytest.param(1, marks=pytest.mark.soak)])
def test_a_crash_of_any_role_at_any_batch_loses_nothing(every: int) -> None:
    points, wrong = crash_everywhere(Parts, every)
    assert points > 100
    assert wrong == []
