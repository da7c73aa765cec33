"""The log of producers: events are freed when checkpoints of all consumers are past them, and none is lost by that."""

from __future__ import annotations

import pytest
import tests.support.modulators  # noqa: F401 - registers every-nth
from tests.overlay.test_overlay_bounds import refused, say
from tests.support.channels import OVERLAY
from tests.support.histories import Histories

from carrypost.overlay.items import Progress
from carrypost.overlay.modulators.modulator import Modulator

DAY = 86_400.0


def pinned(world: Histories, node: str) -> int:
    """Return the number of events that a producer keeps for brokers that lack some."""
    return len(world.net.host(node).overlay._overlay.producer._pinned)  # noqa: SLF001


@pytest.mark.soak
def test_the_log_does_not_grow_over_an_hour_of_events() -> None:
    world = Histories("Apy")
    with world.net as net:
        world.begin("pA yA")
        destination = net.consume("y", "flood", Modulator.named("every-nth", n=3))
        net.advance(5)
        most = []
        for _ in range(120):
            world.emit("p", lifetime_s=DAY)
            net.advance(30)
            most.append(pinned(world, "p"))
        assert max(most) < 50, "of 120"
        assert max(most[60:]) <= max(most[:60]) + 1
        results = [each for each in net.deliveries("y") if each.descriptor.destination == destination]
        assert len({each.message for each in results}) == 80
        assert world.lost == []


def test_a_consumer_that_is_away_holds_up_the_log_and_loses_nothing() -> None:
    world = Histories("ABpyz", cache_messages_max=300)
    with world.net as net:
        world.begin("AB pA yB zB", "yz")
        net.unlink("z", "B")
        for _ in range(40):
            world.emit("p", lifetime_s=DAY)
            net.advance(2)
        assert pinned(world, "p") == 40
        net.link("z", "B")
        net.advance(50)
        for _ in range(30):
            world.emit("p", lifetime_s=DAY)
            net.advance(2)
        assert pinned(world, "p") < 50, "of 70"
        net.kill("B")  # The new home repeats what the consumers accepted since their checkpoints.
        world.link("yA zA")
        for _ in range(4):
            world.emit("p")
            net.advance(5)
        world.settle()
        assert world.wrong() == []
        assert world.lost == []


def test_forged_progress_frees_nothing_and_is_counted() -> None:
    world = Histories("ABpyx", security="signed")
    with world.net as net:
        world.begin("AB pA yB xA", "y")
        for _ in range(5):
            world.emit("p", lifetime_s=DAY)
            net.advance(1)
        net.advance(OVERLAY["gap_s"] + 5)
        ids = {name: net.host(name).node for name in "px"}
        say(world, "x", "B", Progress("flood", ((ids["p"], 5),), 1))
        assert refused(world, "B", "overlay") == 1, "x has no seat there"
        say(world, "x", "p", Progress("flood", ((ids["p"], 5),)))
        assert refused(world, "p", "overlay") == 1, "x is no broker"
        say(world, "B", "p", Progress("flood", ((ids["p"], 5),)))
        assert refused(world, "p", "overlay") == 2, "B is not the home of p"
        say(world, "x", "A", Progress("flood", ((ids["p"], 5),)))
        assert pinned(world, "p") == 5
