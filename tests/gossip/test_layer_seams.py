"""Seams for layers that work on messages: numbers of events, given when they are sent, and payloads of the store."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from tests.support.hostile import message

from carrypost.config import Settings
from carrypost.emu.engine import driver as emulated
from carrypost.errors import DecodeError, MessageFormatException, PayloadError
from carrypost.gossip.draft import Draft
from carrypost.gossip.holdings.copies import Copy
from carrypost.gossip.layer import Layer
from carrypost.gossip.transfers.link import HostContext
from carrypost.gossip.wire.pieces import Blank
from carrypost.host import Host
from carrypost.log.events import Delivered, PayloadWanted
from carrypost.messaging.commands import UnitOfWork
from carrypost.model.descriptor import decode
from carrypost.model.headers import Covers, Headers
from carrypost.security.identity import Identity
from carrypost.testing import network


class Counting(Layer):
    """Numbers the events of each channel."""

    def __init__(self, _: HostContext) -> None:
        self.last: dict[str, int] = {}

    def last_event(self, destination: str) -> int | None:
        return self.last.get(destination, 0)

    def published(self, copies: Sequence[Copy]) -> None:
        for copy in copies:
            if copy.descriptor.headers is not None and copy.descriptor.headers.event:
                self.last[copy.descriptor.destination] = copy.descriptor.headers.event


def counted(*layers: type[Layer]) -> Host:
    host = Host(Identity.plain("a"), Settings.emulated(), random.Random(1), layers=layers)
    host.start(0)
    settle(host)
    return host


def settle(host: Host) -> None:
    while (batch := host.changes()) is not None:
        host.durable(batch.serial, 0)


def event_of(headers: Headers | None) -> int:
    return 0 if headers is None else headers.event


def test_events_of_a_work_are_numbered_without_gaps_when_they_are_sent() -> None:
    host = counted(Counting)
    first, draft = host.draft(0, Draft("channel/x", b""), 0), Draft("channel/x", b"")
    assert first[1] is None, "its number comes with the work"
    sent = host.perform(UnitOfWork(1, (draft, Draft("channel/y", b""), first[0], Draft("topic/z", b""))), 0)
    assert [event_of(each.headers) for each in sent] == [1, 1, 2, 0]
    settle(host)
    with pytest.raises(PayloadError):
        host.perform(UnitOfWork(2, (draft, Draft("channel/x", b"", priority=12))), 0)
    (last,) = host.perform(UnitOfWork(3, (draft,)), 0)
    assert event_of(last.headers) == 3, "what raises takes no number"


def test_without_a_layer_that_numbers_them_events_have_no_number() -> None:
    (sent,) = counted().perform(UnitOfWork(1, (Draft("channel/x", b""),)), 0)
    assert event_of(sent.headers) == 0


def test_a_number_of_an_event_is_not_the_programs_and_its_descriptor_fits_into_an_origin() -> None:
    host = counted(Counting)
    with pytest.raises(PayloadError, match="numbered when they are sent"):
        host.publish("channel/x", b"", headers=Headers(event=3), now=0)
    with pytest.raises(MessageFormatException, match="put them into the body"):
        host.publish("channel/x", b"", attributes={f"a{n}": "x" * 900 for n in range(3)}, now=0)


@pytest.mark.parametrize(
    ("covers", "fault"),
    [
        (Covers(1, 1, ("a", "a")), "listed twice"),
        (Covers(1, 1, ("a", b"b")), "all as text or all as bytes"),
        (Covers(1, 1, ("",)), "all as text or all as bytes"),
        (Covers(1, 1, (bytes(15),)), "all as text or all as bytes"),
        (Covers(1, 1, ("a",), ((1, 0, 1),)), "of no producer"),
        (Covers(1, 1, ("a",), ((0, 4, 3),)), "ends before it begins"),
        (Covers(1, 1, ("a",), ((0, 4, 5),) * 129), "covers"),
    ],
)
def test_a_result_that_covers_nothing_readable_is_refused(covers: Covers, fault: str) -> None:
    with pytest.raises(PayloadError, match=fault):
        counted().publish("results/b/1", b"", headers=Headers(covers=covers), now=0)


@pytest.mark.parametrize(("signed", "producer"), [(True, "nobody"), (False, bytes(16))])
def test_a_result_names_producers_in_the_way_of_its_author(signed: bool, producer: str | bytes) -> None:
    covers = Covers(1, 1, (producer,), ((0, 0, 1),))
    identity = Identity.derived(1, "a") if signed else Identity.plain("a")
    result = message(identity, b"", headers=Headers(covers=covers)).descriptor
    with pytest.raises(DecodeError, match="named in another way than the author"):
        decode(result.wire)


@pytest.mark.parametrize(
    ("signed", "destination", "headers", "fault"),
    [
        (False, "channel/x", Headers(event=1, home=bytes(16)), "named in another way than the author"),
        (True, "channel/x", Headers(event=1, home="b"), "named in another way than the author"),
        (False, "channel/x", Headers(home="b"), "only an event"),
        (False, "channel/x", Headers(event=1, home="b", recipients=("c",)), "only an event"),
        (False, "topic/x", Headers(event=1, home="b"), "only a message to a channel"),
    ],
)
def test_only_an_event_has_a_home(signed: bool, destination: str, headers: Headers, fault: str) -> None:
    identity = Identity.derived(1, "a") if signed else Identity.plain("a")
    found = message(identity, b"", destination=destination, headers=headers).descriptor
    with pytest.raises(DecodeError, match=fault):
        decode(found.wire)


def test_programs_do_not_choose_the_home_of_an_event() -> None:
    with pytest.raises(PayloadError, match="only an event"):
        counted(Counting).publish("channel/x", b"", headers=Headers(home="b"), now=0)


def test_a_result_says_what_it_covers() -> None:
    covers = Covers(2, 7, ("a", "b"), ((0, 3, 5), (1, 0, 1), (0, 5, 6)), discarded=1)
    told: list[Delivered] = []
    with network("a", "b", altruistic=True) as net:
        net.watch(lambda *told_of: told.append(told_of[2]) if isinstance(told_of[2], Delivered) else None)
        net.link("a", "b")
        net.subscribe("b", "results/b/1")
        net.host("a").publish("results/b/1", b"", headers=Headers(covers=covers), now=0)
        net.advance(10)
    (headers,) = [each.descriptor.headers for event in told for each in event.deliveries]
    assert headers is not None
    assert headers.covers == covers


@pytest.mark.parametrize("payload", [b"", b"hello" * 9_000, Blank(70_000)])
def test_a_layer_reads_payloads_by_its_driver(payload: bytes | Blank, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[bytes | Blank] = []

    class Reading(Layer):
        """Wants every payload."""

        def __init__(self, context: HostContext) -> None:
            self._outputs = context.outputs

        def receive(self, copies: Sequence[Copy]) -> Sequence[Copy]:
            for copy in copies:
                self._outputs.emit(PayloadWanted(copy.descriptor))
            return copies

        def payload_read(self, copy: Copy, payload: bytes | Blank) -> None:
            assert copy.descriptor.destination == "news"
            read.append(payload)

    monkeypatch.setattr(emulated, "Host", lambda *args, **named: Host(*args, layers=[Reading], **named))
    with network("a", "b") as net:
        net.link("a", "b")
        net.subscribe("b", "news")
        net.publish("a", "news", payload)
        net.advance(20)
    assert read == [payload, payload]
