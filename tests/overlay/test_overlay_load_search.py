"""Walking consumers of brokers with much work, some of which crash: each event comes once and in order."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from tests.support.channels import OVERLAY

from carrypost.log.events import Event
from carrypost.overlay import events
from carrypost.overlay.modulators.modulator import Modulator
from carrypost.testing import network

BROKERS, CONSUMERS = "ABC", "stuvwxyz"
PERIODS = {"discovery_s": 2.0, "update_s": 3.0}
PHASE, QUIET_S = 20, 3
"""Events after which their rate changes, and their period while there are few; else there is one every second."""
WAITING = 7
"""Seed of a seat that comes to a broker where the events that it lacks wait for other seats.

`test_overlay_adoption` has that seat alone.
"""


class Walk:
    """Consumers that walk among three brokers which are just able to do their work, by a seed."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.crashes = seed % 2 == 1
        self.net = network(
            seed=seed, island=True, island_s_min=0.2, announce_s_max=2.0, loss=self.chance.choice([0.0, 0.1])
        )
        self.near: dict[str, str] = {}
        """By consumer: the broker that it is always linked to."""
        self.down = ""
        self.moves: Counter[str] = Counter()
        """Changes of homes by their reasons."""

    def begin(self) -> None:
        """Link brokers in a row, and each consumer to one of them; subscribe all."""
        net = self.net
        for name in BROKERS + "p" + CONSUMERS:
            net.add(name, overlay=OVERLAY | PERIODS | {"broker": name in BROKERS, "capacity": 1.0})
        for pair in ("AB", "BC", "pA"):
            net.link(*pair)
        for each in CONSUMERS:
            self.near[each] = self.chance.choice(BROKERS)
            net.link(each, self.near[each])
        net.watch(self._watch)
        net.advance(20)
        for each in CONSUMERS:
            net.consume(each, "flood", Modulator.named("synthetic", cost_us=self.chance.choice([250_000, 300_000])))
        net.advance(10)

    def _watch(self, _: float, __: str, event: Event) -> None:
        if isinstance(event, events.Homed):
            self.moves[event.reason] += 1

    def run(self, number: int) -> list[str]:
        """Emit events while everything changes; return the consumers that did not get all of them in order."""
        for at in range(number):
            self.net.emit("p", "flood", str(at).encode())
            # Brokers that do not crash settle for good: three, three and two seats are as many as they can work for,
            # so none moves any more, wherever consumers go. With fewer events they take seats of all that are near,
            # and have to give them away when there are more again.
            is_quiet = not self.crashes and at // PHASE % 2
            for _ in range(QUIET_S if is_quiet else 1):
                self._change()
                self.net.advance(1)
        if self.down:
            self.net.restart(self.down)
        self.net.advance(number * 2.5)
        emitted = [str(at).encode() for at in range(number)]
        return [each for each in CONSUMERS if [one.payload for one in self.net.deliveries(each)] != emitted]

    def _change(self) -> None:
        chance, net = self.chance, self.net
        if chance.random() < 0.4:
            who = chance.choice(CONSUMERS)
            new = chance.choice([each for each in BROKERS if each != self.near[who]])
            if not net.linked(who, new):
                net.link(who, new)
            net.unlink(who, self.near[who])
            self.near[who] = new
        if chance.random() < 0.2:
            who = chance.choice(CONSUMERS)
            for each in BROKERS.replace(self.near[who], ""):
                (net.unlink if net.linked(who, each) else net.link)(who, each)
        if self.crashes and chance.random() < 0.05:
            if self.down:
                net.restart(self.down)
                self.down = ""
            else:
                self.down = chance.choice(BROKERS)
                net.kill(self.down)


@pytest.mark.parametrize(
    ("number", "seed"),
    [(20, 1), *(pytest.param(120, each, marks=pytest.mark.soak) for each in (WAITING, *range(100, 200)))],
)
def test_events_come_once_while_brokers_share_the_work_and_crash(number: int, seed: int) -> None:
    walk = Walk(seed)
    with walk.net:
        walk.begin()
        assert walk.run(number) == []
        assert walk.moves["load"] > 2 < walk.moves["nearer"]
