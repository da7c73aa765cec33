"""Transfers through the island that are cut, or lose a host, at any moment: each message arrives exactly once.

The line is a, b, c, d; a sends to d. Next to c is e, which is on no path and carries for all nodes. Lost links come
back after a while; then d hears only e, and no host knows of the link. Messages that did not arrive through the island
must then arrive from hand to hand.
"""

from __future__ import annotations

import pytest
from tests.support.islands import Islands

SIZES = {1_000: 24, 100_000: 700, 2_500_000: 12_000}
"""Instants of a whole transfer, about, by the size of the message."""


def islands(**options: object) -> Islands:
    usual: dict[str, object] = {
        "altruistic": True, "rate_bytes_per_s": 500_000, "disk_delay_s": 0.002, "announce_s_max": 2.0, "acked_s": 1.0,
        "island_patience_s": 2.0,
    }  # fmt: skip
    return Islands("abcde", **usual | options)


def play(size: int, at: int, harm: str, *, told: bool = True) -> None:
    """Send a message; at an instant of its transfer, cause some harm; then check that it arrives."""
    with islands(seed=at) as stage:
        net = stage.net
        stage.link("ab", "bc", "cd", "ce")
        net.subscribe("d", "news")
        net.advance(6)
        assert stage.copies() == {}
        message = net.publish("a", "news", bytes(range(256)) * (size // 256), recipients=["d"])
        passed = stage.instants(at)
        stored = message in stage.stored
        if passed == at:
            assert set(stage.copies()) <= {"a", "d"}
        stage.told = told
        if harm.startswith("kill"):
            stage.kill(harm[-1])
        else:
            stage.unlink(harm[-2:])
        net.advance(8)
        if harm.startswith("kill"):
            stage.restart(harm[-1])
        elif harm == "cut bc":
            stage.link("bc")
        net.advance(8)
        if net.linked("c", "d"):
            stage.unlink("cd")
        net.link("e", "d")
        net.advance(60)
        lost = harm == "kill a" and not stored and not stage.delivered("d")
        assert lost or stage.delivered("d") == {message: 1}, (at, passed)
        assert stage.island("a").ways.withheld == 0


HARMS = ("cut bc", "cut cd", "kill b", "kill c", "kill a", "kill d")


@pytest.mark.soak
@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.parametrize("at", range(0, 24, 4))
def test_a_small_message_arrives_once(harm: str, at: int) -> None:
    play(1_000, at, harm)


@pytest.mark.parametrize("harm", HARMS)
def test_a_message_in_fragments_arrives_once(harm: str) -> None:
    play(100_000, 31 * (HARMS.index(harm) + 1), harm)


@pytest.mark.soak
@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.parametrize(("size", "step"), [(1_000, 1), (100_000, 1), (2_500_000, 997)])
def test_whenever_harm_is_done_a_message_arrives_once(size: int, step: int, harm: str, told: bool) -> None:
    for at in range(0, SIZES[size], step):
        play(size, at, harm, told=told)
