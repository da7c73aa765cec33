"""Calls of programs to their node, and the programs that its answers wake."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.one_node import OneNode

from carrypost.errors import IllegalStateException, JMSException
from carrypost.gossip.draft import Draft
from carrypost.host import Host
from carrypost.host.driving import ProgramDriver
from carrypost.jms.acknowledgement import SessionUnitsOfWork
from carrypost.jms.provider import Perform
from carrypost.jms.provider.local import LocalProvider
from carrypost.log.journal import Durability
from carrypost.messaging.commands import UnitOfWork
from carrypost.model.descriptor import Descriptor, Ordering
from carrypost.testing import run

DRAFT = Draft("topic/news", b"")


class CountingDrive(ProgramDriver):
    """Drives one host and counts how often it is drained. Its disk answers then, unless it is `slow`."""

    def __init__(self) -> None:
        self.node = OneNode()
        super().__init__(self.node.settings)
        self.drains = 0
        self.slow = False
        self.provider = LocalProvider(self)

    def command(self) -> Host:
        return self.node.host

    @property
    def now(self) -> int:
        return self.node.now

    def drain(self) -> None:
        self.drains += 1
        if not self.slow:
            self.node.write()
        for event in self.node.events:
            self.provider.handle_event(event)
        self.node.events = []

    def stored(self, descriptor: Descriptor) -> bytes:
        return bytes(descriptor.size)

    async def room(self) -> None:
        pass

    def _never(self, *_: object, **__: object) -> None:
        raise AssertionError("the node drains itself")

    _write = _transmit = _report = _arm = _never


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def test_what_somebody_waits_for_is_drained_in_the_next_turn_with_all_that_came_in_this_one() -> None:
    async def scene() -> None:
        drive = CountingDrive()
        for durability in (Durability.NORMAL, Durability.FULL, Durability.NORMAL):
            drive.provider.perform(Perform(0, (DRAFT,), (), durability))
        assert drive.drains == 0
        await turns(1)
        assert drive.drains == 1

    run(scene)


def test_what_nobody_waits_for_is_drained_after_a_turn_that_brings_no_more() -> None:
    async def scene() -> None:
        drive = CountingDrive()
        done = []
        for _ in range(20):
            done.append(drive.provider.perform(Perform(0, (DRAFT,), ())).done)
            await turns(1)
        assert drive.drains == 0
        await turns(2)
        assert drive.drains == 1
        assert all(each.done() for each in done)

    run(scene)


def test_what_nobody_waits_for_waits_two_milliseconds_at_most() -> None:
    async def scene() -> None:
        loop, now_s = asyncio.get_running_loop(), 0.0
        loop.time = lambda: now_s  # type: ignore[method-assign]  # each turn takes half a millisecond
        drive = CountingDrive()
        for _ in range(50):
            drive.provider.perform(Perform(0, (DRAFT,), ()))
            await turns(1)
            now_s += 0.0005
        assert 50 / 6 <= drive.drains <= 50 / 4

    asyncio.run(scene())


def test_what_is_wrong_with_a_command_is_told_as_an_error_of_jms_and_leaves_nothing_open() -> None:
    async def scene() -> None:
        drive = CountingDrive()
        with pytest.raises(JMSException, match="priority"):
            drive.provider.perform(Perform(0, (Draft("topic/news", b"", priority=10),), (), Durability.FULL))
        drive.provider.end("the node has ended")
        await turns(3)
        assert drive.drains == 0

    run(scene)


class Works(SessionUnitsOfWork):
    """The units of work of a session that keeps its reports."""

    def __init__(self) -> None:
        self.drive = CountingDrive()
        self.reported: list[JMSException] = []
        super().__init__(self.drive.provider, 1, self.reported.append)


def test_who_is_cancelled_leaves_the_answer_to_the_next_call() -> None:
    async def scene() -> None:
        works = Works()
        works.drive.slow = True
        done = works.perform((DRAFT,), Durability.FULL).done
        waits = asyncio.ensure_future(works.outcome(done))
        await turns(3)
        waits.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waits
        goes_on = asyncio.ensure_future(works.ready())
        await turns(3)
        assert not goes_on.done()
        works.drive.slow = False
        works.drive.drain()
        await goes_on
        await works.outcome(done)
        assert not works.reported

    run(scene)


def test_the_messages_of_one_work_are_numbered_one_after_the_other_whatever_their_order() -> None:
    node = OneNode()
    causal = Draft("causal", b"", ordering=Ordering.CAUSAL)
    number, _ = node.host.draft(0, DRAFT, node.now)
    sent = node.host.perform(UnitOfWork(1, (DRAFT, causal, number, causal, DRAFT)), node.now)
    first = sent[2].sequence
    assert [each.sequence - first for each in sent] == [1, 2, 0, 3, 4]
    assert [[each.sequence for each in one.barrier] for one in sent] == [[], [], [], [first + 2], []]
    assert len({each.id for each in sent}) == 5


def test_a_failure_is_raised_to_who_waits_and_reported_where_nobody_does_each_once() -> None:
    async def scene() -> None:
        works = Works()
        awaited, left, abandoned = (works.perform((DRAFT,), Durability.NORMAL).done for _ in range(3))
        works.leave(left)
        waits = asyncio.ensure_future(works.outcome(awaited))
        cancelled = asyncio.ensure_future(works.outcome(abandoned))
        await turns(1)
        cancelled.cancel()
        works.drive.provider.end("the disk failed")
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        with pytest.raises(IllegalStateException, match="the disk failed"):
            await waits
        await works.ready()
        assert ["the disk failed" in str(each) for each in works.reported] == [True, True]
        await works.all_done()

    run(scene)
