"""Checkpoints and adoption: when a home is lost, another broker goes on with the state that the modulator had."""

from __future__ import annotations

import msgspec
import pytest
import tests.support.modulators  # noqa: F401 - registers every-nth
from tests.overlay.test_overlay_bounds import refused, say
from tests.support.channels import LINKS, OVERLAY, Storm, World
from tests.support.examples import soaked
from tests.support.histories import HISTORY, Histories

from carrypost.cli.node import _overlay
from carrypost.log.events import Event, Published
from carrypost.model.headers import Headers
from carrypost.overlay.events import Homed, HomeRefused
from carrypost.overlay.items import ITEMS, Attach, Role, Sent
from carrypost.overlay.modulators.modulator import Modulator
from carrypost.overlay.relocation import Snapshot, digest, packed

DISK_S = 0.2
"""Seconds that a batch takes to be on disk, where nodes crash between batches."""


def emit_in_turn(world: World, events: int) -> None:
    """Let two producers emit events in turn, to consumers without a modulator."""
    for number in range(events):
        world.emit("pq"[number % 2])
        world.net.advance(1)


def flow(world: Histories, events: int, pause_s: float = 1.0, **options: float) -> None:
    """Let two producers emit events in turn."""
    for number in range(events):
        world.emit("pq"[number % 2], **options)
        world.net.advance(pause_s)


@pytest.mark.parametrize("security", ["off", "signed"])
def test_another_home_goes_on_with_the_state_of_the_one_that_is_lost(security: str) -> None:
    world = Histories("ABpqy", security=security)
    with world.net as net:
        world.begin("AB pA qA pB qB yA yB", "y")
        (home,) = net.overlay("y").homes.values()
        flow(world, 20)
        net.kill(home)
        flow(world, 10, 3)
        world.settle()
        assert world.wrong() == []
        assert world.lost == []
        ((destination, _),) = world.since.items()
        assert len(world.histories(destination)[-1]) >= 29
        assert [each[2] for each in net.overlay("BA"[home == "B"]).seats] == [3], "two epochs later"


def test_a_home_that_returns_is_not_heeded_and_adopts_the_seat_again_when_the_other_is_lost() -> None:
    world = Histories("ABpqy")
    with world.net as net:
        world.begin("AB pA qA pB qB yA yB", "y")
        for lost in "AB":
            flow(world, 7)
            net.kill(lost)
            flow(world, 7, 3)
            net.restart(lost)
            net.advance(5)
        flow(world, 4)
        world.settle()
        assert world.wrong() == []
        assert world.lost == []
        assert len(net.overlay("A").seats) + len(net.overlay("B").seats) == 1


def test_a_seat_that_comes_gets_events_that_wait_for_another_one_with_much_work() -> None:
    world = World("ABpxy")
    with world.net as net:
        world.begin("AB pA xA yB")
        net.consume("x", "flood", Modulator.named("synthetic", cost_us=5_000_000))
        world.consume("y")
        net.advance(5)
        for _ in range(20):
            world.emit("p")
            net.advance(1)
        net.kill("B")
        net.link("y", "A")
        for _ in range(20):
            world.emit("p")
            net.advance(1)
        net.advance(10)
        assert world.seen("results/y/1") == {"p": list(range(1, 41))}
        assert len(net.deliveries("x")) < 20, "A has not acknowledged later events"
        assert world.lost == []


def test_events_that_wait_for_another_seat_are_not_for_a_consumer_that_subscribes_later() -> None:
    world = World("Apxz")
    with world.net as net:
        world.begin("pA xA zA")
        net.consume("x", "flood", Modulator.named("synthetic", cost_us=5_000_000))
        net.advance(5)
        for _ in range(5):
            world.emit("p")
            net.advance(0.5)
        world.consume("z")
        net.advance(10)
        world.emit("p")
        net.advance(10)
        assert world.seen("results/z/1") == {"p": [6]}


def test_a_seat_is_adopted_while_two_producers_are_away() -> None:
    """The checkpoint has neither of them, and the new home heard of the second one first."""
    world = Histories("ABpqyz")
    with world.net as net:
        world.begin("AB pA qB yA zB", "y")
        net.consume("z", "flood")
        net.advance(5)
        net.unlink("A", "B")
        for node in "ppqq":
            world.emit(node)
            net.advance(0.3)
        world.link("AB")
        net.advance(3)
        net.unlink("q", "B")
        net.kill("A")
        world.link("yB")
        net.advance(120)
        assert net.overlay("y").homes == {"flood": "B"}
        world.link("pB qB")
        flow(world, 4)
        world.settle()
        assert [each[1:] for each in world.lost if each[0] == "results/y/1"] == [("q", 2), ("p", 1)]
        assert world.histories("results/y/1")[-1] == ["p0", "q5", "p4", "p6", "q7"]


def test_a_static_consumer_waits_for_its_home() -> None:
    world = Histories("ABpqy")
    world.net.add("z", overlay=OVERLAY | {"homing": "static"})
    with world.net as net:
        world.begin("AB pA qA pB qB yA yB zA zB", "z")
        flow(world, 5, lifetime_s=3600)
        net.kill("A")
        flow(world, 5, 5, lifetime_s=3600)
        net.advance(700)  # A is not known as a broker any more.
        assert net.overlay("B").seats == []
        net.restart("A")
        net.advance(60)
        flow(world, 3)
        world.settle()
        assert net.overlay("z").homes == {"flood": "A"}
        assert world.wrong() == []


def test_a_seat_whose_lease_was_over_is_brought_back_with_its_state() -> None:
    world = Histories("Apqy")
    with world.net as net:
        world.begin("pA qA yA", "y")
        flow(world, 7)
        net.advance(10)
        net.unlink("y", "A")
        net.advance(1_300)
        assert net.overlay("A").seats == []
        net.link("y", "A")
        net.advance(400)
        flow(world, 6)
        world.settle()
        assert world.wrong() == []
        assert world.lost == []


def test_a_renewal_has_no_cursors_and_a_home_without_the_seat_gets_them_again() -> None:
    world = World("ABpqy")
    asked: list[Attach] = []

    def note(_: float, node: str, event: Event) -> None:
        if isinstance(event, Published) and node == "y":
            asked.extend(each for each in ITEMS.items_of(event.descriptor)[0] if isinstance(each, Attach))

    world.net.watch(note)
    with world.net as net:
        world.begin("AB pA qA pB qB yA yB", "y")
        emit_in_turn(world, 6)
        net.advance(300)
        assert asked[-1].number == 6
        assert asked[-1].cursors == ()
        net.kill("A")
        net.advance(20)
        assert dict(asked[-1].cursors) == {net.host("p").node: 3, net.host("q").node: 3}
        net.advance(300)
        assert asked[-1].cursors == ()
        net.kill("B")
        net.restart("B")
        (seat,) = net.host("B").overlay._overlay.seats  # noqa: SLF001
        assert len(seat.row.cursors) == 2, "though the last request had none"
        world.net.unlink("y", "B")
        net.advance(1_300)
        assert net.overlay("B").seats == []
        world.link("yB")
        net.advance(400)
        emit_in_turn(world, 6)
        net.advance(20)
        assert world.faults() == []
        assert world.lost == []


def test_the_state_of_a_changed_modulator_begins_anew_and_is_adopted() -> None:
    world = Histories("ABpqy")
    with world.net as net:
        world.begin("AB pA qA pB qB yA yB")
        destination = net.consume("y", "flood", Modulator.named("every-nth", n=3))
        world.since[destination] = "y", net.now
        net.advance(5)
        flow(world, 10)
        net.host("y").overlay.change(destination, HISTORY, round(net.now * 1e6))
        net.advance(3)
        before = world.emitted
        flow(world, 8)
        net.kill("A")
        flow(world, 8, 4)
        world.settle(60)
        results = world.histories(destination)
        expected = [f"{'pq'[number % 2]}{before + number}" for number in range(16)]
        assert results[-1] == expected
        assert [len(each) for each in results[-3:]] == [13, 14, 16]
        assert world.lost == []


def test_a_modulator_without_state_is_adopted_without_repeating_events() -> None:
    world = Histories("ABpqy")
    with world.net as net:
        world.begin("AB pA qA pB qB yA yB")
        net.consume("y", "flood", Modulator.named("selector", text="TRUE"))
        net.advance(5)
        flow(world, 20)
        (subscription,) = net.host("y").overlay._overlay.consumers  # noqa: SLF001
        assert subscription.row.repeats == []
        net.kill("A")
        flow(world, 10, 3)
        net.advance(30)
        found = {each.message: each for each in reversed(net.deliveries("y"))}
        names = [each.payload.decode() for each in reversed(found.values())]
        assert sorted(names, key=lambda name: int(name[1:])) == [f"{'pq'[at % 2]}{at}" for at in range(30)]


# --- faults of seats ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", ["heads", "gap", "processing"])
def test_a_seat_that_raises_ends_no_step_and_another_broker_adopts_it(part: str) -> None:
    """The parts fail when the next event is looked for, when one arrives, and when one is processed."""
    world = Histories("ABpqyz")
    world.failed, homed = [], list[Homed]()

    def fail(*_: object) -> None:
        raise RuntimeError("no rain")

    with world.net as net:
        world.begin("AB pA qA pB qB yA yB zA", "yz")
        flow(world, 5)
        consumer = net.host("y").node
        seats = net.host("A").overlay._overlay.seats  # noqa: SLF001
        (seat,) = [each for each in seats if each.client.node == consumer]
        setattr(seat, part, fail)
        net.watch(lambda *seen: homed.append(seen[2]) if isinstance(seen[2], Homed) else None)
        flow(world, 4, 2)
        world.settle()
        assert world.wrong() == []
        assert world.lost == []
        assert [(each.broker, each.reason) for each in homed[:1]] == [("B", "orphan")]
        assert [(node, each.consumer, each.channel) for node, each in world.failed] == [("A", consumer, "flood")]
        view = net.host("A").overlay.view()
        assert (view.failed, refused(world, "A", "seat")) == (1, 1)
        assert view.last_fault == world.failed[0][1].fault


def test_the_consumer_and_people_are_told_why_a_seat_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    world = Histories("Apy")
    world.failed, told = [], list[HomeRefused]()
    world.net.watch(lambda *seen: told.append(seen[2]) if isinstance(seen[2], HomeRefused) else None)

    def fail() -> None:
        raise RuntimeError("no rain")

    with world.net as net:
        world.begin("pA yA", "y")
        world.emit("p")
        net.advance(2)
        (seat,) = net.host("A").overlay._overlay.seats  # noqa: SLF001
        monkeypatch.setattr(seat, "heads", fail)
        world.emit("p")
        net.advance(10)
        assert net.overlay("A").seats == []
        ((reason, detail),) = [(each.reason, each.detail) for each in told]
        assert (reason, detail.partition(" (")[0]) == ("fault", "RuntimeError: no rain")
        shown = _overlay(msgspec.to_builtins(net.host("A").overlay.view()))
        assert f"; 1 seat closed after an error, the last: {detail}" in shown
        net.advance(120)
        assert len(net.overlay("A").seats) == 1, "after a minute it may try again"
        for _ in range(2):
            world.emit("p")
            net.advance(2)
        world.settle()
        assert world.wrong() == []
        assert world.lost == []


def test_a_client_cannot_stop_a_broker_by_the_events_that_its_seat_has_to_repeat() -> None:
    world = Histories("Apqyx")
    with world.net as net:
        world.begin("pA qA yA xA", "y")
        bring(world, "x", b"\xff")
        say(world, "x", "A", Sent("flood", (("x", 5),)))
        bring(world, "x", packed(Snapshot(3, 2, {}, b"", digest(HISTORY), repeats=(("m", 0, 2), ("x", 0, 2)))))
        net.kill("x")
        net.advance(100)
        flow(world, 4)
        world.settle()
        assert world.wrong() == []


# --- crashes -----------------------------------------------------------------------------------------------


def play(victim: str, batch: int, seed: int) -> tuple[Histories, int]:
    """Lose a home while events flow, let it return, and crash a node with its batch of this number since then.

    Returns the number of batches that it had.
    """
    world = Histories("ABpqy", disk_delay_s=DISK_S, loss=0.1, seed=seed)
    net = world.net
    with net:
        world.begin("AB pA qA pB qB yA yB", "y")
        flow(world, 9)
        net.kill("A")
        world.down.add("A")
        first = serial = _serial(world, victim) if victim != "A" else 0
        for at in range(400):
            if at % 10 == 0:
                world.emit("pq"[at // 10 % 2])
            if at == 250:
                net.restart("A")
                world.down.discard("A")
            net.advance(0.1)
            if victim not in world.down:
                first, before, serial = first or _serial(world, victim), serial, _serial(world, victim)
                if before < first + batch <= serial:
                    net.kill(victim)
                    net.advance(1)
                    net.restart(victim)
                    batch = -1
                    serial = 0
        net.advance(20)
        flow(world, 4)
        world.settle()
        return world, serial - first


def _serial(world: Histories, node: str) -> int:
    return world.net.host(node)._outputs.journal.serial  # noqa: SLF001


CRASHES = [(victim, batch) for victim in "yBA" for batch in range(1, 60)]


@pytest.mark.parametrize("crash", [("B", 12), *soaked(CRASHES)])
def test_a_node_may_crash_with_every_batch_of_an_adoption(crash: tuple[str, int]) -> None:
    world, _ = play(*crash, seed=crash[1])
    assert world.wrong() == []


@pytest.mark.parametrize("seed", [1, *soaked(range(2, 204))])
def test_states_are_those_of_a_sequential_run_whatever_fails(seed: int) -> None:
    storm = Storm(seed, Histories)
    world = storm.world
    with world.net:
        world.begin(LINKS, "yz")
        storm.pass_over(60, "pqpq")
        world.settle()
        assert world.wrong() == []


# --- bad input ---------------------------------------------------------------------------------------------


ATTACH = Attach(Role.CONSUMER, "flood", 1, epoch=3, number=2, since_us=1, modulator=HISTORY, adopts=True)


def bring(world: World, author: str, payload: bytes, attach: Attach = ATTACH) -> None:
    """Send A the request of a consumer, with a payload."""
    headers, now = Headers(control=ITEMS.encode([attach])), round(world.net.now * 1e6)
    world.net.host(author).publish(f"overlay/{world.net.host('A').node}", payload, headers=headers, now=now)
    world.net.advance(2)


def test_a_state_that_is_not_announced_or_does_not_come_changes_nothing_and_is_counted() -> None:
    world = Histories("ABpqyx", security="signed")
    with world.net as net:
        world.begin("AB pA qA pB qB yA yB xA", "y")
        flow(world, 6)
        before = net.overlay("A").seats
        say(world, "x", "A", ATTACH)
        bring(world, "y", packed(Snapshot(3, 2, {})), msgspec.structs.replace(ATTACH, adopts=False))
        assert refused(world, "A", "overlay") == 2
        assert net.overlay("A").seats == before
        bring(world, "x", packed(Snapshot(3, 2, {})))
        assert [each for each in net.overlay("A").seats if each[0] != "x"] == before, "it is of another consumer"
        flow(world, 3)
        net.advance(10)
        assert world.wrong() == []


def test_states_that_cannot_be_read_are_refused_and_the_seat_waits() -> None:
    world = Histories("ABpqyx")
    with world.net as net:
        world.begin("AB pA qA pB qB yA yB xA", "y")
        for payload in (b"\xff", packed(Snapshot(2, 2, {})), packed(Snapshot(3, 2, {"p": 1}, runs=(("p", 0, 1),)))):
            bring(world, "x", payload)
        assert (refused(world, "A", "snapshot"), refused(world, "A", "overlay")) == (1, 2)
        flow(world, 6)
        net.advance(10)
        assert world.wrong() == [], "others work"
        assert [each[2:] for each in net.overlay("A").seats if each[0] == "x"] == [(0, 2)]


def test_events_that_nobody_has_any_more_when_a_seat_is_adopted_are_told_to_be_lost() -> None:
    world = Histories("ABpqy")
    with world.net as net:
        world.begin("AB pA qA pB qB yA yB")
        results = net.consume("y", "flood", Modulator.named("every-nth", n=1))
        net.advance(5)
        (home,) = net.overlay("y").homes.values()
        for number in range(18):
            net.emit("pq"[number % 2], "flood", b"e", lifetime_s=6)
            net.advance(0.5)
        net.kill(home)
        net.advance(60)
        net.emit("p", "flood", b"e")
        net.advance(10)
        counts = [int(each.payload) for each in net.deliveries("y") if each.payload != b"e"]
        assert counts[:18] == list(range(1, 19))
        (last,) = counts[18:]
        lacking = 19 - last
        assert 0 < lacking < 18
        told = {producer: events for to, producer, events in world.lost if to == results}
        assert sum(told.values()) == lacking
        assert abs(told["p"] - told["q"]) <= 1
        assert net.host("y").overlay.view().lost == lacking
