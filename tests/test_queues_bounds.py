"""The bounds of queues: what one node's queues hold, in all, for each queue and for each author."""

from __future__ import annotations

import gc

import pytest
from tests.programs import Program, declare
from tests.test_queues_engine import network, send

from carrypost.gossip.layer import Draft
from carrypost.model.headers import Headers
from carrypost.mom.commands import Redelivery, Work
from carrypost.mom.entries import QueueEntry

HOUR_US = 3_600_000_000


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
        net.host("m").perform(Work(1, (draft,) * 50), round(net.now * 1e6))
        net.advance(120)
        assert entries_in_memory() - before <= 2
