"""The bounds of queues: what the queues of one node hold, in all, for each queue and for each author."""

from __future__ import annotations

import gc
from collections import Counter
from itertools import count

import pytest
from tests.gossip.test_addressed import Receptions
from tests.messaging.test_queues_engine import network, send
from tests.support.programs import Program, declare

from carrypost import testing
from carrypost.errors import ResourceAllocationException
from carrypost.gossip.draft import Draft
from carrypost.log.events import Event, Receipt, SendState
from carrypost.messaging.commands import EndQueue, Redelivery, UnitOfWork
from carrypost.messaging.queues.entries import QueueEntry
from carrypost.model.headers import Headers
from carrypost.model.ids import MessageId

HOUR_US = 3_600_000_000
_numbers = count(2_000_000)
SMALL = {"cache_messages_max": 40, "limits": {"queue_messages_max": 20, "share_queues": 0.5}}
"""All queues together have room for 20 messages, and an author for 5 once there are 10."""


def entries(net: testing.Network) -> int:
    overview = net.host("m").messaging.overview()
    assert overview is not None
    return overview.entries


def perform(net: testing.Network, node: str, *drafts: Draft) -> None:
    net.host(node).perform(UnitOfWork(next(_numbers), drafts), round(net.now * 1e6))


def test_one_author_fills_neither_the_cache_nor_the_queues_of_a_node() -> None:
    with network("s", "r") as net:
        net.add("m", **SMALL)  # type: ignore[arg-type]
        net.link("m", "s")
        net.link("m", "r")
        queues = [declare(net, "m", name) for name in ("one", "two")]
        for queue in queues:
            send(net, "s", queue, *map(str, range(30)))
        net.advance(30)
        assert entries(net) == 10
        send(net, "m", "topic/news", *map(str, range(15)), persistent=True)
        send(net, "m", queues[0], "mine", persistent=True)
        for queue in queues:
            send(net, "r", queue, "theirs", "too")
        net.advance(30)
        assert entries(net) == 15
        readers = [Program(net, "m", queue) for queue in queues]
        net.advance(300)
        got = [Counter(each.texts) for each in readers]
        assert got[1] == Counter([*map(str, range(30)), "theirs", "too"])
        assert got[0] == got[1] + Counter(["mine"])


def test_programs_of_the_node_have_all_of_its_queues_and_are_told_which_bound_they_met() -> None:
    with network("m", **SMALL) as net:  # type: ignore[arg-type]
        one, two = (declare(net, "m", name) for name in ("one", "two"))
        perform(net, "m", *[Draft(one, b"x")] * 12)
        with pytest.raises(
            ResourceAllocationException, match=r"queue 'one' has 12 messages .* \(limits.queue_messages_max"
        ):
            perform(net, "m", *[Draft(one, b"x")] * 9)
        with pytest.raises(
            ResourceAllocationException, match=r"queues of this node .* 12 messages .* \(limits.share_queues"
        ):
            perform(net, "m", *[Draft(one, b"x")] * 4, *[Draft(two, b"x")] * 5)
        perform(net, "m", *[Draft(one, b"x")] * 4, *[Draft(two, b"x")] * 4)
        net.advance(1)
        assert entries(net) == 20


@pytest.mark.parametrize("size", [1, 3_000])
def test_what_is_turned_away_comes_as_there_is_room_and_not_again_and_again(size: int) -> None:
    limits = {"queue_messages_max": 20, "queue_bytes_max": 40_000}
    with network("m", "s", "r", limits=limits) as net:
        came = Receptions(net)
        queue = declare(net, "m", "jobs")
        for author in ("s", "r"):
            for number in range(50):
                net.publish(author, queue, b"x" * size, label=f"{author}{number}")
        net.advance(30)
        program = Program(net, "m", queue, prefetch=1)
        net.advance(300)
        assert len(program.got) == 100
        assert max(Counter(came.at("m")).values()) <= 3, "it was turned away, invited, and admitted"
        assert len(came.at("m")) <= 210


def test_others_are_invited_when_those_that_were_do_not_come() -> None:
    with network("m", "s", "r", limits={"queue_messages_max": 10}) as net:
        queue = declare(net, "m", "jobs")
        send(net, "s", queue, *map(str, range(30)))
        net.advance(30)
        send(net, "r", queue, *(f"r{number}" for number in range(30)))
        net.advance(30)
        net.unlink("m", "s")
        program = Program(net, "m", queue)
        net.advance(600)
        assert {f"r{number}" for number in range(30)} <= set(program.texts)
        net.link("m", "s")
        net.advance(600)
        assert len(program.got) == 60


def test_the_senders_of_what_was_turned_away_hear_that_the_queue_ended() -> None:
    with network("m", "s", limits={"queue_messages_max": 10}) as net:
        failed: list[MessageId] = []

        def hear(_: float, node: str, event: Event) -> None:
            if node == "s" and isinstance(event, Receipt) and event.state is SendState.FAILED:
                failed.append(event.message)

        net.watch(hear)
        queue = declare(net, "m", "jobs")
        perform(net, "s", *[Draft(queue, b"x", persistent=True)] * 30)
        net.advance(30)
        net.host("m").messaging.execute(EndQueue(queue), round(net.now * 1e6), next(_numbers))
        net.advance(60)
        assert len(set(failed)) == 30


def entries_in_memory() -> int:
    gc.collect()
    return sum(isinstance(each, QueueEntry) for each in gc.get_objects())


@pytest.mark.parametrize("reader", ["m", "r"])
def test_what_was_consumed_long_before_its_lease_ends_is_forgotten(reader: str) -> None:
    with network("m", "r") as net:
        before = entries_in_memory()
        queue = declare(net, "m", "jobs", redelivery=Redelivery.AFTER_LEASE, lease_us=HOUR_US)
        program = Program(net, reader, queue)
        net.advance(5)
        for batch in range(4):
            send(net, "m", queue, *(f"{batch}.{each}" for each in range(50)))
            net.advance(5)
        net.advance(120)
        assert len(program.got) == 200
        assert entries_in_memory() - before <= 2


def test_what_expired_long_before_its_delivery_time_is_forgotten() -> None:
    with network("m") as net:
        before = entries_in_memory()
        queue = declare(net, "m", "jobs")
        due_us = round(net.now * 1e6) + HOUR_US
        draft = Draft(queue, b"x", lifetime_us=10_000_000, headers=Headers(delivery_time_us=due_us))
        net.host("m").perform(UnitOfWork(1, (draft,) * 50), round(net.now * 1e6))
        net.advance(120)
        assert entries_in_memory() - before <= 2
