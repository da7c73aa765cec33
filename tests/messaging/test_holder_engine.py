"""The holder by itself: at each batch that is lost or a life ends with, with many subscribers, and with strangers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import msgspec
import pytest
from tests.support.one_node import OneNode, S

from carrypost import testing
from carrypost.gossip.draft import Draft
from carrypost.log.events import Published
from carrypost.log.journal import PIECE, PieceOf
from carrypost.messaging import control
from carrypost.messaging.commands import Connect, Consume, DeclareTopic, OpenSession
from carrypost.messaging.held_topics import Holder
from carrypost.model import address
from carrypost.model.descriptor import Descriptor
from carrypost.model.headers import Headers
from carrypost.model.ids import NodeId

NEWS, NOTICE = "holder/h/news", "notice/h/news"
LONG_US = 10**15


class HolderNode(OneNode):
    """A node that holds `news`, and receives control messages from the test."""

    def __init__(self, **settings: object) -> None:
        super().__init__("h", **settings)
        self.host.messaging.execute(DeclareTopic("news"), self.now, self.next_number())
        self.write()

    @property
    def holder(self) -> Holder:
        messaging = self.host.messaging._messaging  # noqa: SLF001 - what other nodes do by control messages
        assert messaging is not None
        return messaging.queues.holder

    def enrol(self, *nodes: str, number: int = 1, deadline_us: int = LONG_US, selector: str = "") -> None:
        with self.host.step(self.now):
            for node in nodes:
                item = control.Enrol("news", number, True, deadline_us, selector)
                self.holder.enrolled.enrol(item, NodeId(node), self.now)
        self.write()

    def leave(self, node: str, number: int, until_us: int = LONG_US) -> None:
        with self.host.step(self.now):
            self.holder.enrolled.leave(control.Leave("news", number), NodeId(node), until_us, self.now)
        self.write()

    def subscribers(self) -> set[str]:
        return {node for topic in self.holder.enrolled for node, row in topic.subscribers.items() if not row.left}

    def notified(self) -> Counter[tuple[str, str]]:
        """Return ids and subscribers of the notifications in the store."""
        found: Counter[tuple[str, str]] = Counter()
        for (kind, _, _), value in self.disk.items():
            if kind == "message" and value.descriptor.destination == NOTICE:  # type: ignore[union-attr]
                descriptor: Descriptor = value.descriptor  # type: ignore[union-attr]
                found.update((descriptor.original.id_text, node) for node in descriptor.listed)
        return found

    def write_one(self) -> None:
        batch = self.batches[0]
        for key, value in batch.puts.items():
            if isinstance(value, PieceOf):
                batch.puts[key] = self.disk[PIECE, value.message, key[2]]
        super().write_one()

    def refused(self) -> dict[str, int]:
        return dict(self.host.overview().refused)


def published(node: OneNode) -> list[Descriptor]:
    return [each.descriptor for each in node.events if isinstance(each, Published)]


# --- crashes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batches", range(4))
def test_each_subscriber_is_notified_once_whichever_batch_is_the_last(batches: int) -> None:
    """The publication is stored, and so are its notifications and their acknowledgement, each with a batch."""
    node = HolderNode(limits={"recipients_max": 2})
    node.enrol("a", "b", "c")
    message = node.publish(NEWS, b"hello")
    node.collect()
    for _ in range(batches):
        if node.batches:
            node.write_one()
    node.crash()
    told = published(node)
    stored = any(name == message for _, name, _ in node.disk)
    node.pass_time(30)
    if not stored and not node.notified():  # Then its publisher was not told that it was sent, either.
        assert batches == 0
        return
    assert node.notified() == {(told[0].id_text, each): 1 for each in "abc"}
    assert not any(name == message for kind, name, _ in node.disk if kind in ("message", PIECE))


def without_room() -> HolderNode:
    """A node with a publication that is stored, while the notification finds no room until a minute has passed."""
    node = HolderNode(cache_messages_max=4)
    node.enrol("a")
    for _ in range(3):
        node.work(Draft("own", b"x", persistent=True, priority=9, lifetime_us=60 * S))
    node.publish(NEWS, b"hello")
    node.write()
    assert node.notified() == {}
    return node


def test_notifications_that_found_no_room_are_published_later() -> None:
    node = without_room()
    node.pass_time(70)
    assert sum(node.notified().values()) == 1
    assert not any(value.descriptor.destination == NEWS for key, value in node.disk.items() if key[0] == "message")  # type: ignore[union-attr]


def test_a_publication_outlives_the_batch_of_its_notification_that_is_lost() -> None:
    node = without_room()
    while not node.batches:
        node.now = node.host.next_deadline() or 0
        node.host.tick(node.now)
        node.collect()
        while node.batches and not any(
            key[0] == "message" and value.descriptor.destination == NOTICE  # type: ignore[union-attr]
            for key, value in node.batches[0].puts.items()
        ):
            node.write_one()
    with node.host.step(node.now):
        pass  # Nothing may be acknowledged meanwhile.
    node.crash()
    node.pass_time(30)
    assert sum(node.notified().values()) == 1


# --- subscribers -----------------------------------------------------------------------------------------------------


def test_many_subscribers_are_told_by_several_messages_with_one_payload() -> None:
    node = HolderNode()
    names = [f"n{number:03}" for number in range(300)]
    node.enrol(*names)
    node.publish(NEWS, b"hello")
    node.write()
    lists = [each.listed for each in published(node) if each.destination == NOTICE]
    assert [len(each) for each in lists] == [128, 128, 44]
    assert sorted(name for each in lists for name in each) == names
    assert {value for (kind, _, _), value in node.disk.items() if kind == PIECE} == {b"hello"}


def test_long_names_are_told_by_as_many_messages_as_it_takes() -> None:
    node = HolderNode()
    node.enrol(*[f"{number:064}" for number in range(100)])
    node.publish(NEWS, b"hello")
    node.write()
    lists = [each.listed for each in published(node) if each.destination == NOTICE]
    assert sum(map(len, lists)) == 100
    assert len(lists) == 2


def test_the_highest_number_counts_over_restarts() -> None:
    node = HolderNode()
    node.enrol("a", number=5)
    node.leave("a", 4)
    node.leave("b", 7)
    node.crash()
    node.enrol("b", number=6)
    assert node.subscribers() == {"a"}
    node.enrol("b", number=8)
    node.leave("a", 6)
    node.crash()
    assert node.subscribers() == {"b"}
    node.enrol("b", number=8, deadline_us=1)
    assert node.subscribers() == {"b"}


def test_who_left_is_forgotten_with_its_last_word_and_leases_end() -> None:
    node = HolderNode()
    node.leave("a", 9, until_us=60 * S)
    node.enrol("a", number=8)
    node.enrol("b", deadline_us=60 * S)
    assert node.subscribers() == {"b"}
    node.pass_time(61)
    assert node.subscribers() == set()
    node.enrol("a", number=8)
    assert node.subscribers() == {"a"}
    assert sum(name[:1] == b"H" for kind, name, _ in node.disk if kind == "mom") == 1


def test_subscribers_have_a_bound_and_those_that_left_give_way() -> None:
    node = HolderNode(limits={"holder_subscribers_max": 3})
    node.leave("x", 1)
    node.enrol("a", "b", "c", "d")
    assert node.subscribers() == {"a", "b", "c"}
    assert node.refused() == {"enrolments": 1}
    node.enrol("a", number=2, selector="urgency > 1")
    assert node.refused() == {"enrolments": 1}


def test_a_node_that_says_too_much_is_heard_no_more_for_a_while() -> None:
    node = HolderNode()
    for number in range(1, 3_000):
        node.enrol("a", number=number)
    assert node.refused()["enrolments"] > 1_000


def test_words_that_mean_nothing_here_are_counted() -> None:
    node = HolderNode()
    node.enrol("a", selector="urgency >")
    with node.host.step(node.now):
        node.holder.enrolled.enrol(control.Enrol("other", 1, True, LONG_US), NodeId("a"), node.now)
        node.holder.enrolled.leave(control.Leave("other", 1), NodeId("a"), LONG_US, node.now)
    assert node.refused() == {"selector": 1, "topic": 2}
    assert node.subscribers() == set()


# --- strangers -------------------------------------------------------------------------------------------------------


class Strangers:
    """A holder, a subscriber and another node, all in reach of each other, which sign their messages."""

    def __init__(self, net: testing.Network) -> None:
        self.net = net
        net.open_messaging()
        for one, other in (("h", "s"), ("h", "evil"), ("s", "evil")):
            net.link(one, other)
        net.advance(10)
        self.h, self.s = net.host("h").node, net.host("s").node
        self.destination = address.holder("news", self.h)
        self.now = round(net.now * 1e6)
        messaging = net.host("h").messaging
        messaging.execute(DeclareTopic("news"), self.now, 1)
        session = net.host("s").messaging
        from carrypost.messaging.commands import Subscribe  # noqa: PLC0415
        from carrypost.model.pattern import entry  # noqa: PLC0415

        asked = Subscribe(entry(address.exactly(self.destination)), name="news", durable=True)
        opened = session.execute(OpenSession(session.execute(Connect("s"), self.now)), self.now)
        session.execute(Consume(opened, asked), self.now, 1)
        net.advance(10)

    def publish(self, author: str, destination: str, payload: bytes = b"x", **options: object) -> Descriptor:
        now = round(self.net.now * 1e6)
        host = self.net.host(author)
        recipients = options.pop("recipients", None)
        message = host.publish(destination, payload, now=now, recipients=recipients, **options)  # type: ignore[arg-type]
        copy = host._holdings.cache.get(message)  # noqa: SLF001 - as it is signed
        assert copy is not None
        self.net.advance(10)
        return copy.descriptor

    def claims(self) -> int:
        overview = self.net.host("s").messaging.overview()
        assert overview is not None
        return overview.claims

    def refused(self, reason: str) -> int:
        return self.net.host("s").overview().refused.get(reason, 0)


FORGED: dict[str, tuple[Callable[[Strangers], object], str]] = {
    "by another author": (
        lambda on: on.publish(
            "evil", address.notice_of(on.destination), recipients=(on.s,),
            headers=Headers(origin=on.publish("evil", on.destination).wire),
        ),
        "notification",
    ),
    "of another payload": (
        lambda on: on.publish(
            "h", address.notice_of(on.destination), b"y", recipients=(on.s,),
            headers=Headers(origin=on.publish("evil", address.holder("gone", on.h)).wire),
        ),
        "origin",
    ),
    "with a forged origin": (
        lambda on: on.publish(
            "h", address.notice_of(on.destination), recipients=(on.s,),
            headers=Headers(origin=msgspec.structs.replace(on.publish("evil", on.destination)).wire),
        ),
        "origin",
    ),
    "of another topic": (
        lambda on: on.publish(
            "h", address.notice_of(on.destination), recipients=(on.s,),
            headers=Headers(origin=on.publish("evil", address.holder("gone", on.h)).wire),
        ),
        "notification",
    ),
    "of nothing": (
        lambda on: on.publish("h", address.notice_of(on.destination), recipients=(on.s,)),
        "origin",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FORGED)
def test_a_notification_that_is_not_the_holders_or_does_not_fit_does_nothing(name: str) -> None:
    with testing.network("h", "s", "evil", seed=1, security="signed") as net:
        on = Strangers(net)
        on.publish("evil", on.destination)
        before = on.claims()
        assert before == 1
        forge, reason = FORGED[name]
        forge(on)
        honest = name in ("by another author", "with a forged origin")  # They published once more.
        assert (on.claims(), on.refused(reason)) == (before + honest, 1)


def test_nobody_leaves_or_enrols_for_another_node() -> None:
    with testing.network("h", "s", "evil", seed=1, security="signed") as net:
        on = Strangers(net)
        said = msgspec.msgpack.encode([control.Leave("news", 2**40), control.Enrol("news", 2**41, True, 1)])
        on.publish("evil", address.control(on.h), b"", headers=Headers(control=said))
        on.publish("evil", on.destination)
        assert on.claims() == 1
