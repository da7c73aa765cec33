"""Control messages of queues that are evicted from every cache are repeated, and nothing is assigned twice."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tests.support.programs import Program, declare

from carrypost import testing
from carrypost.gossip.holdings.cache import CopyState
from carrypost.log.events import Assigned, Dropped, Event, Published, Reason
from carrypost.log.journal import MOM
from carrypost.messaging.commands import Credit, Disconnect, Redelivery, Release

HOUR_S = 3_600.0
LIFE_S = 16 * HOUR_S
"""Lifetime of messages; the first reminder comes after a quarter of it."""
ROOM = 8
"""Size of every cache, in messages."""


class Scene:
    """A manager, two receivers, and a queue; all nodes have small caches."""

    def __init__(self, net: testing.Network, **options: object) -> None:
        self.net = net
        self._address = "control/" + net.host("r").node
        self.evicted: list[str] = []
        """Nodes that evicted a control message."""
        self.told = 0
        """Control messages to the first receiver."""
        self.assigned: list[str] = []
        """Receivers, as the manager chose them."""
        net.watch(self._take)
        net.open_messaging()
        self.meet()
        self.queue = declare(net, "m", "jobs", **options)
        net.advance(30)

    def _take(self, _: float, node: str, event: Event) -> None:
        if isinstance(event, Dropped) and event.reason is Reason.EVICTED:
            self.evicted += [node for each in event.descriptors if each.destination.startswith("control/")]
        elif isinstance(event, Published) and event.descriptor.destination == self._address:
            self.told += 1
        elif isinstance(event, Assigned):
            self.assigned.append(self.net.name(event.receiver))

    def meet(self, for_s: float = 60.0) -> None:
        for name in ("r", "s"):
            self.net.link("m", name)
        self.net.advance(for_s)

    def part(self) -> None:
        for name in ("r", "s"):
            self.net.unlink("m", name)

    def send(self, *texts: str) -> None:
        for text in texts:
            self.net.publish("m", self.queue, text.encode(), lifetime_s=LIFE_S, persistent=True)
        self.net.advance(5)

    def press(self, node: str) -> None:
        """Publish so many newer messages of the same privilege that all control messages of a node are evicted."""
        before, began = len(self.evicted), self.net.now
        while self._said(node):
            assert self.net.now < began + 5, "there is no end of them"
            self.net.advance(0.1)
            self.net.publish(node, "topic/noise", b"x", priority=9, persistent=True, lifetime_s=60)
        assert set(self.evicted[before:]) == {node}, "a control message was to be evicted"
        self.net.advance(60)

    def _said(self, node: str) -> bool:
        """Return True if a node has a control message."""
        copies = self.net.host(node)._holdings.cache.copies  # noqa: SLF001 - what it carries, for whomever
        control = [each for each in copies if each and each.descriptor.destination.startswith("control/")]
        return any(each.here for each in control)

    def assign_in_vain(self) -> Program:
        """Let a consumer of r ask, m assign it a message after they have parted, and all nodes evict the assignment."""
        reader = Program(self.net, "r", self.queue)
        self.net.advance(30)
        self.part()
        self.send("one")
        self.press("m")
        return reader

    def restart(self, *nodes: str) -> None:
        for node in nodes:
            self.net.kill(node)
        self.net.advance(10)
        for node in nodes:
            self.net.restart(node)
        self.net.advance(10)

    def entries(self) -> int:
        overview = self.net.host("m").messaging.overview()
        assert overview is not None
        return overview.entries

    def rows(self, node: str) -> set[str]:
        """Return the families of rows that a node's messaging has, but for which queues it asked."""
        stored = self.net._driver(node).store.state()  # noqa: SLF001 - what a restart would find
        return {name[:1].decode() for (kind, name, _), _ in stored if kind == MOM} - {"M"}


@contextmanager
def scene(
    disk_delay_s: float = 0.0, security: str = "off", lease_s: float = 0.0, *, confirm: bool = True
) -> Iterator[Scene]:
    settings = {"announce_s_min": 5.0, "announce_s_max": 20.0, "cache_messages_max": ROOM, "security": security}
    settings["limits"] = {"share_queues": 0.5}  # So the queue has room for four messages.
    network = testing.network("m", "r", "s", seed=1, disk_delay_s=disk_delay_s, confirm=confirm, **settings)  # type: ignore[arg-type]
    with network as net:
        options = {"redelivery": Redelivery.AFTER_LEASE, "lease_us": round(lease_s * 1e6)} if lease_s else {}
        yield Scene(net, **options)


RESTARTS = pytest.mark.parametrize("restarted", ["", "m", "r", "mr"])


@RESTARTS
def test_an_assignment_that_was_evicted_everywhere_comes_to_its_receiver_all_the_same(restarted: str) -> None:
    with scene() as here:
        reader = here.assign_in_vain()
        here.restart(*restarted)
        if "r" in restarted:
            reader = Program(here.net, "r", here.queue)
        here.meet()
        assert reader.texts == [], "nobody knows of it but the manager"
        here.net.advance(LIFE_S / 4 + 120)
        assert [(each.text, each.count) for each in reader.got] == [("one", 1)]
        assert (here.entries(), here.rows("r"), here.assigned) == (0, set(), ["r"])


@RESTARTS
@pytest.mark.parametrize("closed", [False, True])
def test_an_acknowledgement_that_was_evicted_everywhere_is_said_again(restarted: str, closed: bool) -> None:
    """Check a copy that is gone where it was consumed: only the note of it is left, and no consumer is there."""
    with scene() as here:
        reader = Program(here.net, "r", here.queue, acknowledges=False)
        here.send("one")
        here.net.advance(30)
        here.part()
        reader.acknowledge(1)
        if closed:
            reader.close()
        here.net.advance(5)
        here.press("r")
        here.restart(*restarted)
        here.meet()
        again = Program(here.net, "r", here.queue) if "r" in restarted else None
        assert here.entries() == 1, "the manager did not hear of it"
        here.net.advance(LIFE_S / 4 + 120)
        assert (here.entries(), here.rows("r")) == (0, set())
        other = Program(here.net, "s", here.queue)
        here.net.advance(60)
        assert (reader.texts, other.texts, again.texts if again else []) == (["one"], [], [])


@RESTARTS
def test_what_was_given_back_and_evicted_everywhere_goes_to_another_receiver(restarted: str) -> None:
    """Check a closed consumer, whose node has no reason to be heard of any more."""
    with scene() as here:
        reader = Program(here.net, "r", here.queue, acknowledges=False)
        here.send("one")
        here.net.advance(30)
        here.part()
        reader.messaging.execute(Disconnect(reader.connection, (1,)), reader.now)
        here.net.advance(5)
        here.press("r")
        here.restart(*restarted)
        here.meet()
        other = Program(here.net, "s", here.queue)
        here.net.advance(60)
        assert other.texts == [], "the manager did not hear of it"
        here.net.advance(LIFE_S / 4 + 120)
        assert [(each.text, each.count) for each in other.got] == [("one", 1)]
        assert here.entries() == 0


def test_a_dead_letter_whose_release_was_evicted_everywhere_is_one_all_the_same() -> None:
    with scene() as here:
        reader = Program(here.net, "r", here.queue, acknowledges=False)
        here.send("one")
        here.net.advance(30)
        here.part()
        reader.messaging.execute(Release(reader.session, (1,), dead=True), reader.now, 1_000_000)
        here.net.advance(5)
        here.press("r")
        here.meet()
        here.net.advance(LIFE_S / 4 + 120)
        dead = Program(here.net, "s", "queue/m/DLQ.jobs")
        here.net.advance(60)
        assert dead.texts == ["one"]


def test_a_reminder_that_is_evicted_as_well_is_followed_by_another() -> None:
    with scene() as here:
        reader = here.assign_in_vain()
        here.net.advance(LIFE_S / 4)
        here.press("m")
        here.meet()
        assert reader.texts == []
        here.net.advance(LIFE_S / 4 + 120)
        assert reader.texts == ["one"]


def test_a_request_that_was_evicted_with_an_acknowledgement_is_said_again_with_it() -> None:
    """Else its consumer would wait until it is renewed, which takes half a day."""
    with scene() as here:
        reader = Program(here.net, "r", here.queue, prefetch=1, acknowledges=False)
        here.send("one", "two")
        here.net.advance(30)
        here.part()
        reader.acknowledge(1)
        reader.messaging.execute(Credit(reader.consumer, 1, 100), reader.now)
        here.net.advance(5)
        here.press("r")
        here.meet()
        here.net.advance(LIFE_S / 4 + 120)
        assert reader.texts == ["one", "two"]


@pytest.mark.parametrize("lease_s", [0.0, LIFE_S])
def test_who_holds_what_it_was_given_for_long_is_given_no_more_by_being_reminded(lease_s: float) -> None:
    with scene(lease_s=lease_s) as here:
        slow = Program(here.net, "r", here.queue, prefetch=2, acknowledges=False)
        here.net.advance(30)
        here.send("one", "two", "three", "four")
        before = here.told
        here.net.advance(LIFE_S / 2 + 120)
        assert here.told - before == 2, "it was reminded twice"
        assert (slow.texts, here.assigned) == (["one", "two"], ["r", "r"])
        slow.acknowledge(*slow.numbers)
        here.net.advance(60)
        assert here.entries() == 2


@pytest.mark.soak
def test_a_receiver_that_is_gone_for_good_costs_a_few_words_only() -> None:
    with scene() as here:
        Program(here.net, "r", here.queue)
        here.net.advance(30)
        here.net.kill("r")
        here.net.publish("m", here.queue, b"one")
        said: list[float] = []

        def hear(seconds: float, node: str, event: Event) -> None:
            ended = isinstance(event, Dropped) and event.reason is Reason.EXPIRED and node == "m"
            if ended and any(each.destination == "control/r" for each in event.descriptors):  # type: ignore[union-attr]
                said.append(seconds)

        here.net.watch(hear)
        here.net.suspend("s")
        here.net.advance(14 * 24 * HOUR_S)
        assert [round(seconds / HOUR_S) for seconds in said] == [12, 24, 48, 96, 192]


@pytest.mark.parametrize("disk_delay_s", [0.0, 0.2])
def test_what_was_acknowledged_while_the_disk_was_full_is_remembered_after_a_restart(disk_delay_s: float) -> None:
    """The note that it was consumed is written again, else it would be handed out again when the manager reminds."""
    with scene(disk_delay_s=disk_delay_s) as here:
        reader = Program(here.net, "r", here.queue, acknowledges=False)
        here.send("one")
        here.net.advance(30)
        here.part()
        here.net.fill_disk("r")
        reader.acknowledge(1)
        here.net.advance(3)
        here.net.fill_disk("r", full=False)
        here.net.advance(30)
        here.press("r")
        here.restart("r")
        again = Program(here.net, "r", here.queue)
        here.meet()
        here.net.advance(LIFE_S / 4 + 120)
        assert (reader.texts, again.texts, here.entries()) == (["one"], [], 0)


@pytest.mark.parametrize("security", ["off", "signed"])
@pytest.mark.parametrize("restarted", [False, True])
def test_an_author_that_evicted_its_message_gets_it_when_it_is_the_receiver(restarted: bool, security: str) -> None:
    """Check that an author accepts its evicted message again only if it is to be consumed there."""
    with scene(security=security) as here:
        one = here.net.publish("r", here.queue, b"one", lifetime_s=LIFE_S)
        here.net.advance(30)
        for _ in range(ROOM):
            here.net.advance(0.1)
            here.net.publish("r", "topic/noise", b"x", priority=9, persistent=True, lifetime_s=60)
        assert here.net.host("r").state_of(one) is CopyState.DONE
        here.net.advance(60)
        if restarted:
            here.restart("r")
        reader = Program(here.net, "r", here.queue)
        here.net.advance(600)
        assert (reader.texts, here.entries(), here.rows("r")) == (["one"], 0, set())


@pytest.mark.parametrize("restarted", ["", "r"])
def test_what_was_consumed_is_not_handed_out_again_where_a_plain_subscription_did_not_confirm_it(
    restarted: str,
) -> None:
    with scene(confirm=False) as here:
        here.net.subscribe("r", "queue/.*")
        reader = Program(here.net, "r", here.queue, acknowledges=False)
        here.send("one")
        here.net.advance(30)
        assert [each.descriptor.destination for each in here.net.deliveries("r")] == [here.queue]
        here.part()
        reader.acknowledge(*reader.numbers)
        here.net.advance(5)
        here.press("r")
        here.restart(*restarted)
        again = Program(here.net, "r", here.queue)
        here.meet()
        here.net.advance(LIFE_S / 4 + 120)
        assert (reader.texts, again.texts, here.entries()) == (["one"], [], 0)


def test_an_acknowledgement_that_is_said_again_after_a_lost_batch_leaves_no_row() -> None:
    with scene(disk_delay_s=0.2) as here:
        reader = Program(here.net, "r", here.queue, acknowledges=False)
        here.send("one")
        here.net.advance(30)
        reader.acknowledge(1)
        here.net.advance(0.3)  # That it was consumed is durable; that it was said is not.
        here.net.fail_disk("r")
        assert here.rows("r") == {"A"}
        here.net.advance(30)
        assert (here.entries(), here.rows("r")) == (0, set())


def test_who_forgot_for_which_request_it_was_given_a_message_takes_it_all_the_same() -> None:
    """Let a program open other consumers meanwhile, one after the other."""
    with scene() as here:
        reader = here.assign_in_vain()
        reader.close()
        for _ in range(3):
            Program(here.net, "r", here.queue, prefetch=0).close()
        here.meet()
        other = Program(here.net, "s", here.queue)
        here.net.advance(LIFE_S / 4 + 120)
        assert other.texts == ["one"]
