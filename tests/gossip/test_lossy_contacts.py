"""Contacts over links that lose, repeat and reorder: everything comes, and soon."""

from __future__ import annotations

import random
from statistics import median

import pytest

from carrypost import testing

SIZES = (*[0, 10, 1_000, 3_000] * 3, 20_000)
MESSAGES = 2 * len(SIZES)


def exchange_s(seed: int, *, loss: float = 0.2, delay_s: float = 0.005) -> float:
    """Let two nodes meet that have messages for each other. Returns after how long both have all of them."""
    with testing.network(seed=seed, loss=loss, duplicate=0.1, delay_s=delay_s) as net:
        chance = random.Random(seed)
        for node in "ab":
            net.add(node, security="signed", mtu_bytes=1_200)
            net.subscribe(node, "news")
        net.advance(1)
        for node in "ab":
            for size in SIZES:
                net.publish(node, "news", chance.randbytes(size))
        net.advance(1)
        net.link("a", "b")
        met_s = net.now
        while any(len(net.deliveries(node)) < MESSAGES for node in "ab"):
            net.advance(0.25)
            assert net.now - met_s < 120
        return net.now - met_s


@pytest.mark.parametrize("seed", [33, 82, 92, 157])
def test_contacts_that_once_took_long_are_short(seed: int) -> None:
    """Check losses of a descriptor again and again, of reviews of both sides, and of a request."""
    assert exchange_s(seed) < 12


@pytest.mark.parametrize("first", [0, *(pytest.param(first, marks=pytest.mark.soak) for first in range(24, 960, 24))])
def test_most_contacts_with_losses_are_short(first: int) -> None:
    took_s = sorted(exchange_s(seed) for seed in range(first, first + 24))
    assert median(took_s) <= 3.5
    assert took_s[20] <= 8
    assert took_s[-1] < 30


@pytest.mark.parametrize("delay_s", [1.0, 4.0])
def test_answers_that_take_long_are_waited_for(delay_s: float) -> None:
    assert exchange_s(1, loss=0, delay_s=delay_s) < 20 * delay_s
