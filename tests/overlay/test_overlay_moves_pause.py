"""The pause of a relocation: the delay of the slowest event beside the same run without one, in one-way delays."""

from __future__ import annotations

import pytest
from tests.support.channels import OVERLAY
from tests.support.examples import soaked
from tests.support.relocating import Relocating

DELAY_S = 0.2


def delays(seed: int, loss: float, *, moves: bool) -> list[float]:
    """Return the delays of the events of one producer, while its consumer's seat moves from B to C."""
    world = Relocating("ABCp", seed=seed, loss=loss, delay_s=DELAY_S)
    with world.net as net:
        net.add("y", overlay=OVERLAY | {"homing": "static"})
        world.link("AB AC BC pA yB yC")
        net.advance(30)
        net.consume("y", "flood")
        net.advance(15)
        sent: list[float] = []
        for at in range(50):
            if moves and at == 15:
                assert world.migrate("B", "y", "C")
            sent.append(net.now)
            net.emit("p", "flood", attributes={"at": at})
            net.advance(0.25)
        net.advance(30)
        assert len(world.relocated) == moves
        found: dict[object, float] = {}
        for each in net.deliveries("y"):
            found.setdefault(each.descriptor.original.attributes["at"], each.time)
        return [found[at] - t for at, t in enumerate(sent)]


def test_without_loss_the_worst_event_waits_three_delays_longer_at_most() -> None:
    moving, staying = (delays(1, 0.0, moves=moves) for moves in (True, False))
    extra = max(one - other for one, other in zip(moving, staying, strict=True)) / DELAY_S
    assert 0 < extra <= 3


@pytest.mark.parametrize("seeds", [range(1, 2), *soaked([range(1, 41)])])
def test_with_losses_19_of_20_worst_events_wait_15_delays_longer_at_most(seeds: range) -> None:
    extras = sorted(
        (max(delays(seed, 0.1, moves=True)) - max(delays(seed, 0.1, moves=False))) / DELAY_S for seed in seeds
    )
    assert extras[int(0.95 * (len(extras) - 1))] <= 15
