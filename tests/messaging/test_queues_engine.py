"""Queues on hosts, in virtual time: the receivers of messages, and the fate of the others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

import pytest
from tests.support.programs import Program, declare

from carrypost import testing
from carrypost.errors import (
    IllegalStateException,
    InvalidDestinationException,
    JMSException,
    ResourceAllocationException,
)
from carrypost.gossip.draft import Draft
from carrypost.log.events import Assigned, Browsed, ClaimLost, Dropped, Event, Receipt, SendState
from carrypost.log.journal import MOM
from carrypost.messaging.commands import (
    Ack,
    Browse,
    Connect,
    Consume,
    Declare,
    DeclareQueue,
    Disconnect,
    EndQueue,
    Late,
    OpenSession,
    Receive,
    Redelivery,
    Release,
    UnitOfWork,
)
from carrypost.messaging.policies import register

LEASE_US = 60_000_000
_numbers = count(1_000_000)


@contextmanager
def network(*names: str, linked: bool = True, seed: int = 1, **settings: object) -> Iterator[testing.Network]:
    """Nodes with messaging awake, each in reach of the first."""
    with testing.network(*names, seed=seed, **settings) as net:  # type: ignore[arg-type]
        net.open_messaging()
        for other in names[1:] if linked else ():
            net.link(names[0], other)
        net.advance(10)
        yield net


def now_us(net: testing.Network) -> int:
    return round(net.now * 1_000_000)


def send(net: testing.Network, node: str, queue: str, *texts: str, **options: object) -> None:
    for text in texts:
        net.publish(node, queue, text.encode(), **options)  # type: ignore[arg-type]


def rows(net: testing.Network, node: str) -> set[str]:
    """Return the families of rows that a node's messaging has, but for which queues it asked."""
    stored = net._driver(node).store.state()  # noqa: SLF001 - what a restart would find
    return {name[:1].decode() for (kind, name, _), _ in stored if kind == MOM} - {"M"}


def here(net: testing.Network, node: str) -> int:
    """Return the number of messages of queues on a node."""
    copies = net.host(node)._holdings.cache.copies  # noqa: SLF001 - what it carries, for whomever
    return sum(copy is not None and copy.here and copy.descriptor.destination.startswith("queue/") for copy in copies)


def test_a_consumer_of_the_managers_node_gets_what_is_there_and_what_comes() -> None:
    with network("m") as net:
        queue = declare(net, "m", "jobs")
        send(net, "m", queue, "one", "two")
        program = Program(net, "m", queue)
        net.advance(1)
        send(net, "m", queue, "three")
        net.advance(1)
        assert program.texts == ["one", "two", "three"]
        assert here(net, "m") == 0


def test_the_higher_priority_comes_first_then_what_was_sent_earlier() -> None:
    with network("m", "s") as net:
        queue = declare(net, "m", "jobs")
        send(net, "m", queue, "low", priority=1)
        net.advance(1)
        send(net, "s", queue, "high", priority=8)
        net.advance(1)
        send(net, "m", queue, "usual 1")
        net.advance(1)
        send(net, "s", queue, "usual 2")
        net.advance(5)
        program = Program(net, "m", queue, prefetch=1)
        net.advance(5)
        assert program.texts == ["high", "usual 1", "usual 2", "low"]


def test_consumers_here_and_elsewhere_get_their_turns_and_what_their_selectors_ask_for() -> None:
    with network("m", "r", "s") as net:
        queue = declare(net, "m", "jobs")
        here, there = Program(net, "m", queue), Program(net, "r", queue)
        red = Program(net, "s", queue, "colour = 'red'")
        net.advance(5)
        for number in range(20):
            send(net, "s", queue, f"{number}")
        send(net, "m", queue, "red", attributes={"colour": "red"})
        net.advance(30)
        assert sorted(map(len, (here.got, there.got, red.got))) in ([0, 10, 11], [1, 10, 10])
        assert set(red.texts) <= {"red"}
        everything = here.texts + there.texts + red.texts
        assert sorted(everything) == sorted([*map(str, range(20)), "red"])


def test_a_policy_of_the_programs_own_decides() -> None:
    register("to the last node by name", lambda asking, _: max(asking, key=lambda each: each.node))
    with network("m", "r", "s") as net:
        queue = declare(net, "m", "jobs", policy="to the last node by name")
        programs = {name: Program(net, name, queue) for name in "mrs"}
        net.advance(5)
        send(net, "m", queue, "one", "two")
        net.advance(5)
        assert [programs[name].texts for name in "mrs"] == [[], [], ["one", "two"]]
        with pytest.raises(JMSException, match=r"no policy 'fare'; there are .*fair"):
            declare(net, "m", "others", policy="fare")


def test_a_queue_is_declared_again_with_the_same_options_only() -> None:
    with network("m") as net:
        queue = declare(net, "m", "jobs", redelivery=Redelivery.AFTER_LEASE, lease_us=LEASE_US)
        send(net, "m", queue, "kept")
        net.advance(1)
        net.kill("m")
        net.restart("m")
        net.advance(1)
        assert declare(net, "m", "jobs", redelivery=Redelivery.AFTER_LEASE, lease_us=LEASE_US) == queue
        with pytest.raises(JMSException, match='redelivery="after_lease", lease_s=60, policy="fair"'):
            declare(net, "m", "jobs")
        program = Program(net, "m", queue)
        net.advance(1)
        assert program.texts == ["kept"]


def test_what_nobody_saw_is_given_back_when_its_consumer_closes_and_goes_to_another_unflagged() -> None:
    with network("m", "r", "s") as net:
        queue = declare(net, "m", "jobs")
        first = Program(net, "r", queue, prefetch=3, acknowledges=False)
        net.advance(5)
        send(net, "m", queue, "one", "two", "three", "four")
        net.advance(5)
        assert first.texts == ["one", "two", "three"]
        first.messaging.execute(Disconnect(first.connection, (2, 3)), first.now)
        net.advance(5)
        second = Program(net, "s", queue)
        net.advance(10)
        assert [(each.text, each.count) for each in second.got] == [("two", 1), ("three", 1), ("four", 1)]


def test_what_a_program_saw_and_did_not_acknowledge_stays_with_its_node_and_comes_flagged() -> None:
    with network("m", "r", "s") as net:
        queue = declare(net, "m", "jobs")
        first = Program(net, "r", queue, acknowledges=False)
        net.advance(5)
        send(net, "m", queue, "one")
        net.advance(5)
        net.kill("r")
        net.restart("r")
        other = Program(net, "s", queue)
        net.advance(300)
        again = Program(net, "r", queue)
        net.advance(10)
        assert (first.texts, other.texts) == (["one"], [])
        assert [(each.text, each.count) for each in again.got] == [("one", 2)]


def test_after_a_restart_what_was_not_handed_out_is_given_back_when_nobody_asks_for_a_minute() -> None:
    with network("m", "r", "s") as net:
        queue = declare(net, "m", "jobs")
        Program(net, "r", queue, prefetch=2, acknowledges=False)
        net.advance(5)
        net.unlink("m", "r")
        send(net, "m", queue, "one", "two")  # They are assigned, and cannot be told.
        net.advance(5)
        net.kill("r")
        net.restart("r")
        net.link("m", "r")
        net.advance(30)
        other = Program(net, "s", queue)
        net.advance(20)
        assert other.texts == []
        net.advance(60)
        assert sorted(other.texts) == ["one", "two"]
        assert {each.count for each in other.got} == {1}


def test_with_a_lease_a_message_goes_to_another_flagged_and_not_sooner() -> None:
    with network("m", "r", "s") as net:
        queue = declare(net, "m", "jobs", redelivery=Redelivery.AFTER_LEASE, lease_us=LEASE_US)
        Program(net, "r", queue, acknowledges=False)
        net.advance(5)
        send(net, "m", queue, "one")
        net.advance(5)
        net.kill("r")
        other = Program(net, "s", queue)
        net.advance(50)
        assert other.texts == []
        net.advance(20)
        assert [(each.text, each.count) for each in other.got] == [("one", 2)]


def test_an_acknowledgement_after_the_lease_counts_if_nobody_else_has_the_message() -> None:
    with network("m", "r") as net:
        queue = declare(net, "m", "jobs", redelivery=Redelivery.AFTER_LEASE, lease_us=LEASE_US)
        late = Program(net, "r", queue, acknowledges=False, prefetch=1)
        net.advance(5)
        send(net, "m", queue, "one")
        net.advance(100)
        late.acknowledge(1)
        net.advance(5)
        other = Program(net, "m", queue)
        net.advance(5)
        assert (late.texts, other.texts) == (["one"], [])


@pytest.mark.parametrize("node", ["m", "r"])
def test_a_unit_of_work_after_a_lease_is_refused_whole_unless_late_messages_are_returned(node: str) -> None:
    with network("m", "r") as net:
        queue = declare(net, "m", "jobs", redelivery=Redelivery.AFTER_LEASE, lease_us=LEASE_US)
        slow = Program(net, node, queue, acknowledges=False, prefetch=2)
        net.advance(5)
        send(net, "m", queue, "old")
        net.advance(55)
        send(net, "m", queue, "new")
        net.advance(10)
        assert slow.texts == ["old", "new"]
        answers = Program(net, node, "topic/answers")
        work = UnitOfWork(next(_numbers), (Draft("topic/answers", b"answer"),), (Ack(slow.session, (1, 2)),))
        with pytest.raises(IllegalStateException, match="the leases of 1 of 2 messages are over") as refused:
            net.host(node).perform(work, slow.now)
        assert refused.value.error_code == "LEASE_OVER"
        slow.acknowledge(1, 2, late=Late.RETURN)
        net.advance(5)
        other = Program(net, "m", queue)
        net.advance(100)
        assert (answers.texts, other.texts) == ([], ["old"])


def test_dead_letters_wait_at_the_manager_and_can_be_received() -> None:
    with network("m", "r") as net:
        queue = declare(net, "m", "jobs")
        program = Program(net, "r", queue, acknowledges=False)
        local = Program(net, "m", "topic/news", acknowledges=False, client="me", name="mail", durable=True)
        net.advance(5)
        send(net, "m", queue, "a letter", persistent=True)
        send(net, "m", "topic/news", "a word")
        net.advance(5)
        program.messaging.execute(Release(program.session, (1,), dead=True), program.now, next(_numbers))
        local.messaging.execute(Release(local.session, (1,), dead=True), local.now, next(_numbers))
        net.advance(5)
        net.kill("m")
        net.restart("m")
        net.advance(5)
        dead = Program(net, "r", "queue/m/DLQ.jobs"), Program(net, "m", "queue/m/DLQ.topic/news")
        net.advance(20)
        assert [each.texts for each in dead] == [["a letter"], ["a word"]]
        assert net.host("m").messaging.overview().claims == 0  # type: ignore[union-attr]


def test_dead_letters_of_several_patterns_are_apart_and_those_of_one_are_together() -> None:
    with network("m") as net:
        asked = {"client": "me", "durable": True, "acknowledges": False}
        patterns = {"one": "topic/news", "two": "topic/.*", "three": "topic/news"}
        programs = [
            Program(net, "m", pattern, name=name, **asked | {"client": name})  # type: ignore[arg-type]
            for name, pattern in patterns.items()
        ]
        send(net, "m", "topic/news", "a word")
        net.advance(1)
        for program in programs:
            program.messaging.execute(Release(program.session, program.numbers, dead=True), program.now, next(_numbers))
        net.advance(1)
        dead = [Program(net, "m", f"queue/m/DLQ.topic/{name}") for name in ("news", ">")]
        net.advance(1)
        assert [each.texts for each in dead] == [["a word"], ["a word"]]
        assert rows(net, "m") == {"S", "Q"}


@pytest.mark.parametrize("restarted", [False, True])
def test_a_dead_letter_that_finds_no_room_is_dropped_and_failed(restarted: bool) -> None:
    with network("m", "s", "r", limits={"queue_messages_max": 2}) as net:
        told: list[tuple[str, str]] = []

        def hear(_: float, node: str, event: Event) -> None:
            if isinstance(event, Receipt) and event.state is SendState.FAILED:
                told.append((node, event.reason))

        net.watch(hear)
        queue = declare(net, "m", "jobs")
        program = Program(net, "r", queue, acknowledges=False)
        net.advance(5)
        for number, author in enumerate(("s", "m", "s", "m"), 1):
            net.host(author).perform(UnitOfWork(next(_numbers), (Draft(queue, b"x", persistent=True),)), now_us(net))
            net.advance(10)
            program.messaging.execute(Release(program.session, (number,), dead=True), program.now, next(_numbers))
            net.advance(10)
        full = "nobody could consume it, and the queue of its dead letters is full"
        kept = "nobody could consume it: it is a dead letter"
        assert told == [("s", kept), ("m", kept), ("s", full), ("m", full)]
        assert net.host("m").overview().dropped["dead-letter"] == 2
        if restarted:
            net.kill("m")
            net.restart("m")
            net.advance(10)
        again, dead = Program(net, "m", queue), Program(net, "m", "queue/m/DLQ.jobs", acknowledges=False)
        net.advance(10)
        assert (len(again.got), len(dead.got), here(net, "m")) == (0, 2, 2)


def test_a_dead_letter_of_a_topic_that_finds_no_room_is_counted_as_lost() -> None:
    with network("m", limits={"queue_messages_max": 2}) as net:
        lost: list[str] = []
        net.watch(lambda _, __, event: lost.append(event.reason) if isinstance(event, ClaimLost) else None)
        program = Program(net, "m", "topic/news", acknowledges=False, client="me", name="mail", durable=True)
        send(net, "m", "topic/news", "one", "two", "three")
        net.advance(1)
        program.messaging.execute(Release(program.session, (1, 2, 3), dead=True), program.now, next(_numbers))
        net.advance(1)
        assert lost == ["dead-letter"]
        dead = Program(net, "m", "queue/m/DLQ.topic/news")
        net.advance(1)
        assert dead.texts == ["one", "two"]


def test_dead_letters_of_a_topic_share_a_queue_that_is_there_under_that_name_with_other_options() -> None:
    """A queue may be called as a topic's destination is, and name its receivers; its dead letters have them, too."""
    with network("m") as net:
        queue = declare(net, "m", "topic/news", receivers=("m",))
        programs = [Program(net, "m", place, acknowledges=False) for place in (queue, "topic/news")]
        for place in (queue, "topic/news"):
            send(net, "m", place, place)
        net.advance(1)
        for program in programs:
            program.messaging.execute(Release(program.session, program.numbers, dead=True), program.now, next(_numbers))
            net.advance(1)
        dead = Program(net, "m", "queue/m/DLQ.topic/news")
        net.advance(1)
        assert dead.texts == [queue, "topic/news"]


def test_a_queue_beyond_its_bounds_declines_newcomers_and_asks_for_them_when_there_is_room() -> None:
    with network("m", "s", limits={"queue_messages_max": 10, "share_author": 1.0}) as net:
        queue = declare(net, "m", "jobs")
        send(net, "s", queue, *map(str, range(30)))
        net.advance(20)
        assert here(net, "m") <= 10
        with pytest.raises(ResourceAllocationException, match="queue_messages_max"):
            _perform(net, "m", queue)
        program = Program(net, "m", queue, prefetch=1)
        net.advance(300)
        assert sorted(program.texts, key=int) == [str(each) for each in range(30)]


def _perform(net: testing.Network, node: str, queue: str) -> None:
    net.host(node).perform(UnitOfWork(next(_numbers), (Draft(queue, b"one more"),)), now_us(net))


def test_what_is_for_a_queue_that_is_not_there_is_dropped() -> None:
    with network("m", "s") as net:
        dropped: list[tuple[str, str]] = []

        def watch(_: float, node: str, event: Event) -> None:
            if isinstance(event, Dropped):
                dropped.extend((node, str(event.reason)) for _ in event.descriptors)

        net.watch(watch)
        send(net, "s", "queue/m/nothing", "lost", persistent=True)
        net.advance(10)
        assert ("m", "purged") in dropped
        with pytest.raises(InvalidDestinationException, match="manages no queue"):
            _perform(net, "m", "queue/m/nothing")
        with pytest.raises(InvalidDestinationException, match="manages no queue"):
            Program(net, "m", "queue/m/nothing")


def test_a_queue_with_consumers_here_is_not_ended_and_one_without_is() -> None:
    with network("m", "s") as net:
        queue = declare(net, "m", "jobs")
        send(net, "s", queue, "one")
        net.advance(5)
        program = Program(net, "m", queue, acknowledges=False)
        net.advance(1)
        messaging = net.host("m").messaging
        with pytest.raises(IllegalStateException, match="close them first"):
            messaging.execute(EndQueue(queue), now_us(net), next(_numbers))
        program.close()
        messaging.execute(EndQueue(queue), now_us(net), next(_numbers))
        net.advance(10)
        assert rows(net, "m") == set()
        assert here(net, "m") == 0


def test_looking_into_a_queue_takes_nothing_out_of_it() -> None:
    with network("m", "r") as net:
        queue = declare(net, "m", "jobs")
        seen: list[Browsed] = []
        net.watch(lambda _, node, event: seen.append(event) if isinstance(event, Browsed) and node == "r" else None)
        send(net, "m", queue, "one", "two", attributes={"size": 1})
        send(net, "m", queue, "three", attributes={"size": 3})
        net.advance(1)
        assert len(_browse(net, "m", queue, None)) == 3
        assert len(_browse(net, "m", queue, "size > 2")) == 1
        assert _browse(net, "r", queue, "size < 2") == ()
        net.advance(5)
        found = [each for part in seen for each in part.descriptors]
        assert [net.payload("r", each) for each in found] == [b"one", b"two"]
        assert seen[-1].complete
        assert 0 < seen[-1].taken_us <= now_us(net)
        program = Program(net, "m", queue)
        net.advance(1)
        assert program.texts == ["one", "two", "three"]


def _browse(net: testing.Network, node: str, queue: str, selector: str | None) -> tuple[object, ...]:
    messaging = net.host(node).messaging
    connection = messaging.execute(Connect(), now_us(net))
    session = messaging.execute(OpenSession(connection), now_us(net))
    return messaging.execute(Browse(session, queue, selector), now_us(net)).descriptors or ()


def test_a_temporary_queue_is_its_connections_own_and_ends_with_it() -> None:
    with network("m", "s") as net:
        program = Program(net, "m", "topic/x")
        asked = Declare("temp", connection=program.connection)
        queue = program.messaging.execute(DeclareQueue(asked), program.now, next(_numbers))
        with pytest.raises(InvalidDestinationException, match="another connection"):
            Program(net, "m", queue)
        program.messaging.execute(Consume(program.session, Receive(queue)), program.now, next(_numbers))
        send(net, "s", queue, "late")
        net.advance(5)
        program.close()
        net.advance(5)
        with pytest.raises(InvalidDestinationException, match="manages no queue"):
            Program(net, "m", queue)
        assert here(net, "m") == 0


def test_every_assignment_is_told_once() -> None:
    with network("m", "r") as net:
        told: list[tuple[str, str]] = []
        net.watch(lambda _, node, event: told.append((node, event.receiver)) if isinstance(event, Assigned) else None)
        queue = declare(net, "m", "jobs")
        Program(net, "r", queue)
        net.advance(5)
        send(net, "m", queue, "one", "two")
        net.advance(10)
        assert told == [("m", "r"), ("m", "r")]
        assert net.deliveries("m") == []
        assert rows(net, "r") == set()
        assert rows(net, "m") == {"Q", "R"}


def test_what_a_receiver_gave_back_waits_for_anybody_also_after_the_manager_restarts() -> None:
    with network("m", "r") as net:
        queue = declare(net, "m", "jobs")
        program = Program(net, "r", queue, prefetch=1, acknowledges=False)
        net.advance(5)
        net.suspend("r")  # It will have been assigned, and not come.
        send(net, "m", queue, "one")
        net.advance(1)
        net.resume("r")
        program.close()
        net.advance(30)
        net.kill("m")
        net.restart("m")
        net.advance(1)
        here = Program(net, "m", queue)
        net.advance(1)
        assert (program.texts, here.texts) == ([], ["one"])
