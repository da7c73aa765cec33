"""Lies about relocations: forged, replayed and surplus items change nothing, and are counted by reason."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tests.support.channels import OVERLAY
from tests.support.relocating import Relocating

from carrypost.model.descriptor import decode
from carrypost.model.headers import Covers, Headers
from carrypost.model.ids import NodeId
from carrypost.overlay.items import (
    ITEMS,
    Attach,
    Attached,
    Detour,
    Detoured,
    Handoff,
    Item,
    Moving,
    Progress,
    Ready,
    Report,
    Role,
    Sent,
    State,
)
from carrypost.overlay.relocation import HandoffId, Snapshot, packed


class Scene:
    """Brokers A, B, C, D, producer p at A, consumer y at B; x is no broker. Names are node ids."""

    def __init__(self, world: Relocating, results: str) -> None:
        self.world, self.results, self.net = world, results, world.net

    def node(self, name: str) -> NodeId:
        return self.net.host(name).node

    def h(self, source: str, epoch: int = 1, counter: int = 1) -> HandoffId:
        return HandoffId(self.node(source), epoch, counter)

    def say(self, author: str, to: str, item: Item, *, payload: bytes = b"", origin: bytes = b"") -> None:
        headers = Headers(control=ITEMS.encode([item]), origin=origin)
        now = round(self.net.now * 1e6)
        self.net.host(author).publish(f"overlay/{self.node(to)}", payload, headers=headers, now=now)
        self.net.advance(2)

    def refused(self, node: str, reason: str = "overlay") -> int:
        return self.net.host(node).overview().refused.get(reason, 0)

    def attach_of(self, broker: str) -> bytes:
        """Return the message by which the consumer attached."""
        table = self.net.host(broker).overlay._overlay.clients.table  # noqa: SLF001
        (client,) = [each for each in table if each.seated]
        return client.origin

    def emit(self, count: int = 4) -> None:
        for _ in range(count):
            self.world.emit("p")
            self.net.advance(1)

    def move(self, source: str, to: str) -> None:
        assert self.world.migrate(source, "y", to)
        self.net.advance(5)

    def check(self, home: str, epoch: int) -> None:
        """Check that the consumer gets everything, and has this home."""
        self.emit()
        self.net.advance(5)
        assert self.world.wrong(self.results) == []
        assert self.world.lost == []
        assert self.net.overlay("y").homes == {"flood": home}
        assert [(name, each[2]) for name in "ABCD" for each in self.net.overlay(name).seats] == [(home, epoch)]


@contextmanager
def scene(**options: object) -> Iterator[Scene]:
    world = Relocating("ABCDpx", **options)
    with world.net as net:
        net.add("y", overlay=OVERLAY | {"homing": "static"})  # Nobody but the test moves the seat.
        world.begin("AB BC CD pA yB xB")
        found = Scene(world, world.chain("y"))
        net.advance(5)
        found.emit()
        yield found


def forgeries(scene: Scene, author: str) -> list[tuple[str, Item]]:
    """Return items about the seat at B, with their receivers."""
    h, y = scene.h(author), scene.node("y")
    return [
        ("y", Moving("flood", 1, 1, scene.node(author))),
        ("y", Attached(Role.CONSUMER, "flood", 1, epoch=2)),
        ("y", Attached(Role.CONSUMER, "flood", 1, "moved")),
        ("B", Ready(h)),
        ("B", Detoured(scene.h("B"), ((scene.node("p"), 2),))),
        ("B", State(h)),
        ("B", Detour(scene.h("B"), "flood", scene.node(author))),
        ("B", Report("flood", 1, ((scene.node("D"), 0),))),
        ("A", Detour(h, "flood", scene.node(author))),
        ("A", Detour(scene.h("B"), "flood", y)),
    ]


@pytest.mark.parametrize("author", ["x", "C"])
def test_what_others_say_about_a_seat_changes_nothing_and_is_counted(author: str) -> None:
    with scene(security="signed") as play:
        for to, item in forgeries(play, author):
            before = play.refused(to)
            play.say(author, to, item)
            assert play.refused(to) == before + 1, item
        play.check("B", 1)


def test_an_offer_counts_with_the_consumers_own_and_latest_word_only() -> None:
    with scene(security="signed") as play:
        play.say("C", "D", Handoff(play.h("C")))
        assert play.refused("D", "origin") == 1
        event = next(iter(play.net.deliveries("y"))).descriptor
        play.say("C", "D", Handoff(play.h("C")), origin=event.wire)
        assert play.refused("D", "origin") == 2, "it has a payload"
        play.say("x", "D", Handoff(play.h("x")), origin=play.attach_of("B"))
        play.say("C", "D", Handoff(play.h("B")), origin=play.attach_of("B"))
        assert play.refused("D") == 2
        play.say("C", "B", Handoff(play.h("C", 7)), origin=play.attach_of("B"))
        assert play.refused("B", "handoffs") == 1, "the seat works"
        play.check("B", 1)
        play.say("C", "D", Handoff(play.h("C", 7)), origin=play.attach_of("B"))
        assert len(play.net.overlay("D").seats) == 1, "a seat that is expected, and comes to nothing"
        snapshot = Snapshot(7, 99, {})
        play.say("C", "D", State(play.h("C", 7)), payload=b"junk")
        assert play.refused("D", "snapshot") == 1
        play.say("C", "D", State(play.h("C", 7)), payload=packed(snapshot))
        play.net.advance(20)
        play.emit()
        assert play.world.wrong(play.results) == [], "nobody named it, so its results do not count"
        assert play.net.overlay("y").homes == {"flood": "B"}
        play.net.advance(60)
        play.check("B", 1)


@pytest.mark.soak
def test_an_offer_whose_attach_ends_before_the_state_comes_changes_nothing() -> None:
    with scene() as play:
        attach = play.attach_of("B")
        ends_s = decode(attach).ends_us / 1e6
        play.net.advance(ends_s - play.net.now - 10)
        play.say("C", "D", Handoff(play.h("C", 7)), origin=attach)
        assert len(play.net.overlay("D").seats) == 1
        play.net.advance(ends_s - play.net.now + 1)
        play.say("C", "D", State(play.h("C", 7)), payload=packed(Snapshot(7, 99, {})))
        assert play.refused("D") == 1
        play.check("B", 1)


def test_producers_that_are_named_by_what_is_no_id_are_refused_when_an_item_is_read() -> None:
    with scene(security="signed") as play:
        play.say("C", "D", Handoff(play.h("C", 7)), origin=play.attach_of("B"))
        state = Snapshot(7, 99, {"nobody": 3}, runs=(("nobody", 2, 3),))
        play.say("C", "D", State(play.h("C", 7)), payload=packed(state))
        assert play.refused("D", "snapshot") == 1
        bad: list[Item] = [
            Sent("flood", (("nobody", 5),)),
            Attach(Role.CONSUMER, "flood", 3, epoch=1, since_us=1, cursors=(("nobody", 5),)),
            Progress("flood", (("nobody", 5),), 1),
            Progress("flood", (("nobody", 5),)),
            Report("flood", 1, (("nobody", 1),)),
            Report("flood", 1, ((play.node("A"), 1), ("nobody", 1))),
            Ready(play.h("B"), last=(("nobody", 5),)),
            Ready(HandoffId(NodeId("nobody"), 1, 1)),
            Detour(play.h("C"), "flood", "nobody"),
        ]
        before = play.refused("B")
        for item in bad:
            play.say("C", "B", item)
        assert play.refused("B") == before + len(bad)
        assert play.net.host("D").overlay.view().failed == play.net.host("B").overlay.view().failed == 0
        play.net.advance(60)
        play.check("B", 1)


def test_what_is_said_again_after_a_relocation_changes_nothing() -> None:
    with scene() as play:
        said: list[tuple[str, Item, bytes]] = []
        play.move("B", "C")
        h = HandoffId(NodeId("B"), 1, play.net.host("B").overlay._overlay.handoffs._counter)  # noqa: SLF001
        play.check("C", 2)
        attach = play.attach_of("C")
        said = [
            ("C", State(h), packed(Snapshot(1, 0, {}))),
            ("C", Detour(h, "flood", "B"), b""),
            ("C", Handoff(h), b""),
        ]
        for to, item, payload in said:
            play.say("B", to, item, payload=payload, origin=attach if isinstance(item, Handoff) else b"")
        play.say("y", "B", Attach(Role.CONSUMER, "flood", 1, active=False, epoch=2))
        play.say("C", "B", Ready(h))
        play.say("B", "y", Moving("flood", 1, 1, NodeId("D")))
        play.say("C", "y", Attached(Role.CONSUMER, "flood", 1, epoch=2))
        play.check("C", 2)
        play.move("C", "B")
        play.check("B", 3)


def test_detours_have_a_limit_for_each_source() -> None:
    with scene() as play:
        for counter in range(20):
            play.say("B", "A", Detour(play.h("B", 1, counter), "flood", NodeId("C")))
        assert play.refused("A") == 4, "a quarter of handoffs_max"
        play.say("B", "A", Detour(play.h("B", 1, 3), "flood", NodeId("C")))
        assert play.refused("A") == 4, "the same question gets the same answer"
        play.check("B", 1)
        play.net.advance(90)
        play.move("B", "C")
        play.check("C", 2)


def test_results_of_a_broker_that_nobody_named_wait_and_are_dropped() -> None:
    with scene() as play:
        for number in range(300):
            covers = Covers(2, 100 + number, ("p",), ((0, 1, 2),))
            now = round(play.net.now * 1e6)
            play.net.host("D").publish(play.results, b"lie", headers=Headers(covers=covers), now=now)
        play.net.advance(10)
        assert play.refused("y", "result") == 300 - 256
        play.check("B", 1)
        play.move("B", "C")
        assert play.refused("y", "result") == 300
        play.check("C", 2)
