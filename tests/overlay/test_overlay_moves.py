"""Relocation on hosts: seats follow their consumers with their state, and lose, repeat and reorder nothing."""

from __future__ import annotations

import pytest
from tests.support.channels import OVERLAY
from tests.support.relocating import Relocating

from carrypost.overlay.relocation import VARIANTS


@pytest.mark.parametrize("security", ["off", "signed"])
def test_a_seat_follows_its_consumer_with_its_state(security: str) -> None:
    world = Relocating("ABCpqy", security=security)
    with world.net as net:
        world.begin("AB BC AC pA qA yB")
        results = world.chain("y")
        net.advance(5)
        for at in range(60):
            world.emit("pq"[at % 2])
            net.advance(0.5)
            if at == 18:
                net.link("y", "C")
                net.unlink("y", "B")
        net.advance(5)
        assert world.wrong(results) == []
        assert world.lost == []
        assert world.homed == [("B", "first"), ("A", "first"), ("A", "first"), ("C", "nearer")]
        (move,) = world.relocated
        assert (net.name(move.consumer), move.channel, net.name(move.broker)) == ("y", "flood", "C")
        assert move.state_bytes > 8
        assert 0 < move.pause_us < 1_000_000
        assert {name: [each[2] for each in net.overlay(name).seats] for name in "ABC"} == {"A": [], "B": [], "C": [2]}
        assert net.overlay("y").homes == {"flood": "C"}


def test_a_seat_moves_to_a_broker_with_another_seat_of_the_channel_without_a_word_to_homes_of_producers() -> None:
    world = Relocating("ABCDpqyz")
    with world.net as net:
        world.begin("AB BC AC CD pA qD yB zC")
        results = world.chain("y")
        world.chain("z")
        net.advance(5)
        for at in range(60):
            world.emit("pq"[at % 2])
            net.advance(0.05)
            if at in {20, 40}:
                (here,) = [name for name in "BC" if len(net.overlay(name).seats) > (name == "C")]
                assert world.migrate(here, "y", "CB"[at == 40])
        net.advance(10)
        assert [net.name(each.broker) for each in world.relocated] == ["C", "B"]
        assert world.wrong(results) == []
        assert world.lost == []
        detours = [host.overlay._overlay.handoffs._detours for host in map(net.host, "ABCD")]  # noqa: SLF001
        assert {each.to for of in detours for each in of._answers.values()} == {net.host("B").node}  # noqa: SLF001


def test_a_static_consumer_keeps_its_home() -> None:
    world = Relocating("ABCpy")
    with world.net as net:
        net.add("z", overlay=OVERLAY | {"homing": "static"})
        world.begin("AB BC AC pA zB")
        world.chain("z")
        net.advance(5)
        net.link("z", "C")
        net.unlink("z", "B")
        net.advance(30)
        assert net.overlay("z").homes == {"flood": "B"}
        assert world.relocated == []


@pytest.mark.soak
@pytest.mark.parametrize("variant", VARIANTS)
def test_each_variant_gives_up_what_it_says_and_no_more(variant: str) -> None:
    world = Relocating("ABCDpqy")
    with world.net as net:
        world.begin("AB BC AC CD pA qD yB")
        results = world.chain("y", variant)
        net.advance(5)
        for at in range(50):
            world.emit("p")
            world.emit("q")
            net.advance(0.1)
            if at % 16 == 8:
                (here,) = world.seats()
                assert world.migrate(here, "y", "ABCD"["ABCD".index(here) - 1])
        net.advance(10)
        assert len(world.relocated) > 3
        assert bool(world.lost) is not VARIANTS[variant].detours
        wrong = world.wrong(results)
        assert any("wrong state" in each for each in wrong) is not VARIANTS[variant].state
        assert not any("repeated" in each or "order" in each for each in wrong)
        if VARIANTS[variant].state:
            assert wrong == []


def test_a_home_of_producers_that_does_not_answer_does_not_keep_seats_from_moving() -> None:
    world = Relocating("ABCDpqy")
    with world.net as net:
        world.begin("AB BC AC AD pA qD yB")
        results = world.chain("y")
        net.advance(5)
        net.host("D").overlay._overlay.handoffs._detours._most = 0  # noqa: SLF001 - so it answers no `Detour`
        for at in range(90):
            world.emit("pq"[at % 2])
            net.advance(0.5)
            if at == 20:
                net.link("y", "C")
                net.unlink("y", "B")
        net.advance(20)
        assert [net.name(each.broker) for each in world.relocated] == ["C"]
        assert world.wrong(results) == []
        assert world.lost == []
