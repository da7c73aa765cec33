"""Faults of queues that searches found, each as the shortest story of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tests.support.programs import Program, declare

from carrypost import testing
from carrypost.errors import ResourceAllocationException
from carrypost.gossip.draft import Draft
from carrypost.log.events import Published
from carrypost.messaging.commands import Ack, CloseConsumer, Credit, Recover, Redelivery, UnitOfWork

LEASE_S = 60.0
LEASED = {"redelivery": Redelivery.AFTER_LEASE, "lease_us": round(LEASE_S * 1e6)}


@contextmanager
def network(*names: str, **options: object) -> Iterator[testing.Network]:
    """Nodes with messaging awake, all in reach of the first, which has a queue to declare."""
    with testing.network(*names, seed=1, **options) as net:  # type: ignore[arg-type]
        net.open_messaging()
        for name in names[1:]:
            net.link(names[0], name)
        net.advance(10)
        yield net


def restart(net: testing.Network, node: str) -> None:
    net.kill(node)
    net.restart(node)
    net.advance(10)


@pytest.mark.parametrize("reader", ["m", "r"])
def test_what_a_session_gives_back_after_its_lease_does_not_come_to_it_again(reader: str) -> None:
    """Check a message that belongs to another receiver by then."""
    with network("m", "r", "s") as net:
        queue = declare(net, "m", "jobs", **LEASED)
        slow = Program(net, reader, queue, prefetch=2, acknowledges=False)
        net.advance(5)
        net.publish("m", queue, b"one")
        net.advance(LEASE_S + 5)
        quick = Program(net, "s", queue, acknowledges=False)
        net.advance(5)
        slow.messaging.execute(Recover(slow.session), slow.now)
        net.advance(5)
        assert [each.count for each in quick.got] == [2]
        assert [each.count for each in slow.got] == [1]


@pytest.mark.parametrize("reader", ["m", "r"])
def test_a_lease_that_ends_while_nobody_consumes_ends_all_the_same(reader: str) -> None:
    """The session that had the message is closed, and the node waits for the next consumer."""
    with network("m", "r", "s") as net:
        queue = declare(net, "m", "jobs", **LEASED)
        first = Program(net, reader, queue, prefetch=1, acknowledges=False)
        net.advance(5)
        net.publish("m", queue, b"one")
        net.advance(5)
        first.close()
        net.advance(LEASE_S)
        other = Program(net, "s", queue, acknowledges=False)
        net.advance(5)
        second = Program(net, reader, queue, acknowledges=False)
        net.advance(5)
        assert (first.texts, other.texts, second.texts) == (["one"], ["one"], [])


@pytest.mark.parametrize("reader", ["m", "r"])
def test_a_lease_that_ended_while_its_receiver_was_off_is_over_at_its_start(reader: str) -> None:
    with network("m", "r", "s") as net:
        queue = declare(net, "m", "jobs", **LEASED)
        Program(net, reader, queue, acknowledges=False)
        net.advance(5)
        net.publish("m", queue, b"one")
        net.advance(5)
        net.kill(reader)
        net.advance(LEASE_S)
        net.restart(reader)
        other = Program(net, "s", queue, acknowledges=False)
        net.advance(10)
        again = Program(net, reader, queue, acknowledges=False)
        net.advance(5)
        assert (other.texts, again.texts) == (["one"], [])


def test_what_a_session_acknowledges_after_somebody_else_was_given_it_is_not_done_with() -> None:
    with network("m", "r") as net:
        queue = declare(net, "m", "jobs", **LEASED)
        slow = Program(net, "m", queue, prefetch=1, acknowledges=False)
        net.publish("m", queue, b"one")
        net.advance(LEASE_S + 1)
        second = Program(net, "m", queue, prefetch=1, acknowledges=False)
        net.advance(1)
        assert [each.count for each in second.got] == [2]
        slow.acknowledge(1)
        second.close()
        slow.close()
        net.advance(1)
        restart(net, "m")
        third = Program(net, "m", queue)
        net.advance(5)
        assert [each.count for each in third.got] == [3]


def test_a_receiver_that_acknowledged_too_late_is_done_with_what_it_is_given_again() -> None:
    """Else it would be given it again and again, and neither hand it out nor say anything."""
    with network("m", "r") as net:
        queue = declare(net, "m", "jobs", **LEASED)
        reader = Program(net, "r", queue, acknowledges=False)
        net.advance(5)
        net.publish("m", queue, b"one")
        net.advance(5)
        net.unlink("m", "r")
        reader.acknowledge(1)
        reader.messaging.execute(Credit(reader.consumer, 1, 100), reader.now)
        net.advance(LEASE_S)
        meanwhile = Program(net, "m", queue, prefetch=1, acknowledges=False)
        net.advance(1)
        assert meanwhile.texts == ["one"]
        meanwhile.close()
        net.link("m", "r")
        net.advance(2 * LEASE_S)
        assert reader.texts == ["one"]
        overview = net.host("m").messaging.overview()
        assert overview is not None
        assert overview.entries == 0


@pytest.mark.parametrize("options", [{}, LEASED], ids=["never", "after_lease"])
def test_what_came_back_to_the_manager_waits_for_others_after_a_restart_too(options: dict[str, object]) -> None:
    with network("m", "r", "s") as net:
        queue = declare(net, "m", "jobs", **options)
        reader = Program(net, "r", queue, prefetch=1, acknowledges=bool(options))
        net.advance(5)
        for text in (b"one", b"two"):
            net.publish("m", queue, text)
        net.advance(5)
        idle = Program(net, "r", queue, prefetch=0)
        net.advance(5)
        if options:
            reader.close()
            net.kill("r")
            net.publish("m", queue, b"three")
            net.advance(LEASE_S + 5)
        else:
            reader.messaging.execute(CloseConsumer(reader.consumer, [1]), reader.now)
            idle.close()
            net.advance(5)
        restart(net, "m")
        other = Program(net, "s", queue)
        net.advance(20)
        assert sorted(other.texts) == (["three"] if options else ["one", "two"])


@pytest.mark.parametrize("manager", ["m", "s"])
def test_nothing_of_a_commit_leaves_a_node_whose_disk_refuses_it(manager: str) -> None:
    with network("m", "s", "r", disk_delay_s=0.5) as net:
        queue = declare(net, manager, "jobs")
        net.advance(5)
        reader = Program(net, "r", queue)
        topic = Program(net, "r", "topic/news")
        net.advance(5)
        net.publish("s", queue, b"before")
        net.advance(5)
        net.fill_disk("s")
        drafts = Draft(queue, b"one"), Draft("topic/news", b"two")
        with pytest.raises(ResourceAllocationException):
            net.host("s").perform(UnitOfWork(7, drafts), round(net.now * 1e6))
        net.advance(20)
        net.fill_disk("s", full=False)
        net.advance(20)
        assert (reader.texts, topic.texts) == (["before"], [])


def test_a_commit_that_crashes_before_it_is_durable_sends_nothing_and_keeps_what_it_consumed() -> None:
    with network("m", "s", "r", disk_delay_s=0.5) as net:
        questions, answers = declare(net, "m", "questions"), declare(net, "r", "answers")
        worker = Program(net, "s", questions, acknowledges=False)
        net.advance(5)
        net.publish("m", questions, b"why?")
        net.advance(5)
        work = UnitOfWork(7, (Draft(answers, b"because"),), (Ack(worker.session, (1,)),))
        net.host("s").perform(work, worker.now)
        net.advance(0.4)
        restart(net, "s")
        reader, again = Program(net, "r", answers), Program(net, "s", questions)
        net.advance(20)
        assert reader.texts == []
        assert [(each.text, each.count) for each in again.got] == [("why?", 2)]


def test_what_is_given_to_a_receivers_earlier_life_is_given_back_once_and_no_more_follows() -> None:
    """Else each message would go there first, and wait for a minute until it is given back."""
    with network("m", "r", "s") as net:
        queue = declare(net, "m", "jobs")
        Program(net, "r", queue, prefetch=20)
        net.advance(10)
        net.kill("r")
        for number in range(3):
            net.publish("m", queue, f"{number}".encode())
        net.advance(10)
        net.restart("r")
        waiting = Program(net, "s", queue)
        net.advance(90)
        assert sorted(waiting.texts) == ["0", "1", "2"]
        for number in range(3, 6):
            net.publish("m", queue, f"{number}".encode())
        net.advance(10)
        assert sorted(waiting.texts) == ["0", "1", "2", "3", "4", "5"]


@pytest.mark.parametrize("node", ["m", "r"])
def test_a_consumer_that_was_given_what_expired_on_the_way_gets_the_next_message(node: str) -> None:
    with network("m", "r", "s") as net:
        queue = declare(net, "m", "jobs")
        program = Program(net, node, queue, prefetch=1)
        net.advance(10)
        if node == "r":
            net.unlink("m", "r")
        else:
            net.fill_disk("m")
        net.publish("s", queue, b"dead", lifetime_s=60)
        net.advance(70)
        net.fill_disk("m", full=False)
        net.publish("s", queue, b"alive")
        net.advance(10)
        if node == "r":
            net.link("m", "r")
        net.advance(300)
        assert program.texts == ["alive"]


@pytest.mark.parametrize("disk_delay_s", [0.0, 0.2])
def test_a_full_disk_neither_fills_the_air_nor_loses_what_a_consumer_asked_for(disk_delay_s: float) -> None:
    with network("m", "r", disk_delay_s=disk_delay_s) as net:
        queue = declare(net, "m", "jobs")
        net.publish("m", queue, b"one")
        net.advance(10)
        net.fill_disk("r")
        program = Program(net, "r", queue)
        said: list[float] = []
        net.watch(lambda t, node, event: said.append(t) if node == "r" and isinstance(event, Published) else None)
        net.advance(100)
        assert len(said) < 30
        net.fill_disk("r", full=False)
        net.advance(20)
        assert program.texts == ["one"]


def test_what_a_commit_consumed_just_before_a_crash_is_neither_kept_nor_carried_afterwards() -> None:
    """Check a crash between the durable consumption and the deletion of its copy."""
    with network("m", "s") as net:
        queue = declare(net, "m", "jobs")
        worker = Program(net, "m", queue, acknowledges=False)
        net.unlink("m", "s")
        net.publish("m", queue, b"consumed", lifetime_s=10_000)
        net.advance(10)
        work = UnitOfWork(7, (Draft("topic/news", b"sent", lifetime_us=1_000_000),), (Ack(worker.session, (1,)),))
        net.host("m").perform(work, worker.now)
        net.advance(0.01)
        net.link("m", "s")
        restart(net, "m")
        net.advance(100)
        assert [net.host(node).overview().messages for node in ("m", "s")] == [0, 0]
        assert Program(net, "m", queue).texts == []


@pytest.mark.parametrize("late", [False, True])
def test_a_plain_subscription_of_the_host_takes_nothing_from_a_consumer_of_a_queue(late: bool) -> None:
    """Check with a subscription that had the message, and confirmed it, before it was assigned to the consumer."""
    with network("m", "r") as net:
        net.subscribe("r", ".*")
        queue = declare(net, "m", "jobs")
        first = Program(net, "r", queue) if not late else None
        net.advance(10)
        net.publish("m", queue, b"one")
        net.advance(60)
        program = first or Program(net, "r", queue)
        net.advance(60)
        assert queue in [each.descriptor.destination for each in net.deliveries("r")]
        assert program.texts == ["one"]
        restart(net, "r")
        again = Program(net, "r", queue)
        net.advance(60)
        overview = net.host("m").messaging.overview()
        assert overview is not None
        assert (again.texts, overview.entries) == ([], 0)
