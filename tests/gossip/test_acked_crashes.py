"""Acknowledgements over crashes and lost batches, at every moment from the confirmation to the broadcast.

Nothing is acknowledged that can be delivered again, and nothing that was confirmed stays unsaid.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.support.one_node import OneNode
from tests.support.programs import Program

from carrypost import testing
from carrypost.errors import LocalError
from carrypost.gossip.acked.known_acks import from_row
from carrypost.gossip.holdings.cache import CopyState
from carrypost.log.events import Acknowledged, Delivered, Event
from carrypost.log.journal import ACKED, MOM, Key
from carrypost.messaging import control
from carrypost.messaging.queues.entries import EntryRow, EntryState
from carrypost.model.address import EVERYBODY, queue
from carrypost.model.headers import Headers
from carrypost.model.ids import MessageId, NodeId

HOUR_US = 3_600_000_000

ROOM = 4
"""Messages that a host has room for."""
DISK_S = 0.05
"""Seconds that a batch takes to be on disk."""
MOMENTS = [0.0, 0.02, 0.049, 0.051, 0.07, 0.099, 0.101, 0.12, 0.149, 0.151, 0.3, 1.2]
"""Moments after the confirmation: before and after each batch that follows, and when lost ones are written again."""


class Story:
    """An author, a recipient that confirms messages on request, and the events of both."""

    def __init__(self, net: testing.Network) -> None:
        self.net = net
        self.heard: list[str] = []
        """Recipients that acknowledged, as the author hears it."""
        self.given: list[bool] = []
        """Deliveries at the recipient, and whether the author had heard of an acknowledgement by then."""
        net.watch(self._watch)
        net.subscribe("b", "news")
        net.link("a", "b")
        net.advance(5)
        self.message = net.publish("a", "news", b"x", persistent=True, recipients=["b"])
        net.advance(10)
        assert self.given == [False]

    def _watch(self, _: float, node: str, event: Event) -> None:
        if isinstance(event, Acknowledged) and node == "a":
            self.heard.append(event.recipient)
        elif isinstance(event, Delivered) and node == "b":
            self.given += [bool(self.heard)] * len(event.deliveries)

    def confirm(self) -> None:
        """Confirm what was delivered, in this life."""
        if found := self.net.deliveries("b"):
            self.net.confirm("b", found)

    def crash(self) -> None:
        self.net.kill("b")
        self.net.advance(1)
        self.net.restart("b")
        self.net.subscribe("b", "news")

    def evict(self) -> None:
        """Let both publish what takes all the room there is, as far as nothing keeps its own."""
        for node in "ab":
            for _ in range(ROOM):
                with suppress(LocalError):
                    self.net.publish(node, "other", b"y", persistent=True, priority=9, lifetime_s=30)

    def end(self) -> None:
        """Let everything be written and said: in the end the author has heard of it, once."""
        self.net.fill_disk("b", full=False)
        self.net.advance(20)
        self.confirm()
        self.net.advance(60)
        assert self.heard == ["b"]
        assert not any(self.given), "it was delivered again after it had been acknowledged"
        assert self.net.host("a").state_of(self.message) is CopyState.DONE
        assert self.net.host("b").state_of(self.message) is CopyState.DONE


@contextmanager
def story(acked_s: float = 0.0) -> Iterator[Story]:
    with testing.network(
        "a", "b", seed=1, confirm=False, disk_delay_s=DISK_S, acked_s=acked_s, cache_messages_max=ROOM
    ) as net:
        yield Story(net)


@pytest.mark.parametrize("again", [None, 0.03])
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_crash_at_any_moment(moment: float, again: float | None) -> None:
    with story() as told:
        told.confirm()
        told.net.advance(moment)
        told.crash()
        if again is not None:
            told.net.advance(again)
            told.crash()
        told.end()


@pytest.mark.parametrize("crash", [None, 0.1, 0.5, 1.3])
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_disk_that_is_full_from_any_moment_on(moment: float, crash: float | None) -> None:
    with story() as told:
        told.confirm()
        told.net.advance(moment)
        told.net.fill_disk("b")
        if crash is not None:
            told.net.advance(crash)
            told.crash()
        else:
            told.net.advance(5)
        told.end()


@pytest.mark.parametrize("moment", MOMENTS[::3])
def test_an_author_hears_of_what_it_has_a_copy_of_no_more(moment: float) -> None:
    with story() as told:
        told.confirm()
        told.net.advance(moment / 2)
        told.evict()
        told.net.advance(moment / 2)
        assert told.net.host("a").state_of(told.message) is CopyState.DONE
        told.crash()
        told.end()


@settings(max_examples=15, deadline=None)
@given(st.lists(st.sampled_from(["confirm", "crash", "full", "room", "apart", "near", "evict", "wait"]), max_size=12))
@example(["confirm", "apart"])
def test_anything_in_any_order(moves: list[str]) -> None:
    # With `acked_s = 0` nothing that was lost is told again before the next contact, and a short absence ends none.
    with story(acked_s=0.1) as told:
        net = told.net
        for number, move in enumerate(moves):
            if move == "confirm":
                told.confirm()
            elif move == "crash":
                told.crash()
            elif move in ("full", "room"):
                net.fill_disk("b", full=move == "full")
            elif move == "apart" and net.linked("a", "b"):
                net.unlink("a", "b")
            elif move == "near" and not net.linked("a", "b"):
                net.link("a", "b")
            elif move == "evict":
                told.evict()
            net.advance((0.03, 0.3, 2.0)[number % 3])
        if not net.linked("a", "b"):
            net.link("a", "b")
        told.end()


def test_a_commit_that_is_undone_is_not_acknowledged_and_the_next_one_is() -> None:
    heard: list[str] = []
    with testing.network("a", "b", seed=1, disk_delay_s=DISK_S) as net:
        net.watch(lambda _, node, event: heard.append(node) if isinstance(event, Acknowledged) else None)
        net.open_messaging()
        net.link("a", "b")
        program = Program(net, "b", "topic/news", acknowledges=False)
        net.advance(5)
        message: MessageId = net.publish("a", "topic/news", b"x", persistent=True, recipients=["b"])
        net.advance(10)
        net.fill_disk("b")
        program.acknowledge(program.numbers[0])
        net.advance(0.2)
        net.fill_disk("b", full=False)
        net.advance(30)
        if not heard:  # It was undone: the program has it, and may acknowledge it again.
            assert net.host("a").state_of(message) is CopyState.FINISHED
            program.acknowledge(program.numbers[-1])
            net.advance(30)
        assert heard == ["a"]
        assert net.host("a").state_of(message) is CopyState.DONE


def test_a_store_with_a_row_that_owes_a_notice_is_taken_over() -> None:
    node = OneNode()
    consumed = MessageId(b"author:1:1")
    row = EntryRow(1, EntryState.CLOSED, owed=8, author=NodeId("author"), until_us=HOUR_US)
    key: Key = (MOM, b"E" + (1).to_bytes(8, "big") + consumed, 0)
    node.disk[key] = msgspec.msgpack.encode(row)
    node.crash()
    node.pass_time(1)
    assert key not in node.disk
    (said,) = [value for (kind, name, _), value in node.disk.items() if kind == ACKED and name.startswith(b"R")]
    assert isinstance(said, bytes)
    assert from_row(said).messages == (consumed,)


def test_notices_of_earlier_versions_are_still_read() -> None:
    with testing.network("m", "c", seed=1) as net:
        net.open_messaging()
        net.link("m", "c")
        net.advance(5)
        message = net.publish("c", queue("jobs", net.host("m").node), b"x", lifetime_s=3_600)
        net.unlink("m", "c")
        net.advance(30)
        notice = Headers(control=msgspec.msgpack.encode([control.Purge(message)]))
        net.host("m").publish(EVERYBODY, b"", headers=notice, now=round(net.now * 1e6), lifetime_us=HOUR_US)
        net.link("m", "c")
        net.advance(30)
        assert net.host("c").state_of(message) is CopyState.DONE
        assert net.sent("m").frames["AckRecord"] == 0
