"""Calls, answers, news and errors as bytes: values survive encoding, and other objects are refused with an error."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.jms_encoded import EncodedProvider

from carrypost import errors, testing
from carrypost.attach.calls import Refusal
from carrypost.attach.calls import encode as encode_frame
from carrypost.attach.values import ANSWERS, COMMANDS, MESSAGES, NEWS, decode_command, encode_command
from carrypost.errors import (
    DeliveryTimeoutException,
    IllegalArgumentException,
    IllegalStateException,
    InvalidDestinationException,
    InvalidSelectorException,
    JMSException,
    LocalError,
)
from carrypost.gossip.draft import Draft
from carrypost.jms.provider import News, Perform
from carrypost.log.events import Browsed, Handed, OverlayState, OverlayTold, Receipt, SendState
from carrypost.log.journal import Durability
from carrypost.messaging import commands
from carrypost.messaging.commands import (
    Ack,
    Command,
    Consume,
    Durable,
    Follow,
    KeepDraft,
    Modulate,
    Near,
    Noted,
    OpenSession,
    Question,
    Receive,
    Subscribe,
)
from carrypost.model.ids import NodeId
from carrypost.model.pattern import Entry


class Recorder:
    """A program that records all reports to it."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - any method of a program
        return lambda *args: self.told.append((name, *args))


def test_every_command_has_a_tag_and_an_answer_and_all_news_have_names() -> None:
    kinds = {each for each in vars(commands).values() if isinstance(each, type) and issubclass(each, Command)}
    assert kinds - set(COMMANDS.values()) == {Command, Near, Question, Durable, Noted}
    assert set(ANSWERS) == set(COMMANDS.values())
    assert set(NEWS) == {each.__name__ for each in get_args(News)} | {MESSAGES}


CHANNEL = Entry((("destination", "channel/x"),))


@pytest.mark.parametrize(
    "asked",
    [
        Subscribe(Entry((("destination", "topic/x"),)), durable=True),
        Subscribe(CHANNEL, modulator=b"\x93\xa3box\x01\x80", relocation="light"),
        Receive("queue/x@n"),
    ],
)
def test_what_a_consumer_asks_for_says_what_it_is(asked: Subscribe | Receive) -> None:
    assert decode_command(encode_command(Consume(3, asked))) == Consume(3, asked)


def test_modulators_and_what_becomes_of_them_go_both_ways() -> None:
    codec = NEWS["OverlayTold"]
    assert decode_command(encode_command(Modulate(3, b"\x93"))) == Modulate(3, b"\x93")
    told = OverlayTold(3, OverlayState()), OverlayTold(4, OverlayState(NodeId("B"), 2, 3, 40, 5, 600, "seats"))
    assert codec.decode(codec.encode(told)) == told


@pytest.mark.parametrize("modulator", [b"\xc1", b"\x90", b"\x93\xa0\x01\xc4\x00", b"\x91" * 2_000])
def test_bytes_that_are_no_modulator_are_refused(modulator: bytes) -> None:
    async def scene() -> None:
        async with testing.network("a", seed=1, island=True, overlay={"enabled": True}) as net:
            provider = net.provider("a")
            session = await provider.execute(OpenSession(await provider.connect("", Recorder())))
            with pytest.raises(IllegalArgumentException, match="invalid modulator"):
                await provider.execute(Consume(session, Subscribe(CHANNEL, modulator=modulator)))
            consumer = await provider.execute(Consume(session, Subscribe(CHANNEL)))
            with pytest.raises(IllegalArgumentException, match="invalid modulator"):
                await provider.execute(Modulate(consumer, modulator))
            with pytest.raises(IllegalArgumentException, match="relocation must be"):
                await provider.execute(Consume(session, Subscribe(CHANNEL, relocation="x")))
            with pytest.raises(InvalidDestinationException, match="one channel"):
                await provider.execute(Consume(session, Subscribe(Entry((("destination", "channel/.*"),)))))
            assert len(net.host("a").overlay._overlay.consumers._open) == 1  # noqa: SLF001 - nobody else knows

    testing.run(scene)


decode_refusal = msgspec.msgpack.Decoder(Refusal).decode


def all_errors() -> list[type[JMSException]]:
    kinds = {each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, JMSException)}
    return sorted(kinds, key=lambda each: each.__name__)


@pytest.mark.parametrize("kind", all_errors())
def test_an_error_keeps_its_class_its_text_and_its_code(kind: type[JMSException]) -> None:
    made = kind("it was closed")
    made.error_code = "CODE"
    again = decode_refusal(encode_frame(Refusal.of(1, made))).raised(JMSException)
    assert isinstance(again, JMSException)
    assert (type(again), str(again), again.error_code) == (kind, "it was closed", "CODE")


def test_an_error_keeps_its_state_and_its_position_and_an_unknown_one_is_a_jms_exception() -> None:
    late = Refusal.of(1, DeliveryTimeoutException("late", state=SendState.CARRIED)).raised(JMSException)
    assert isinstance(late, DeliveryTimeoutException)
    assert late.state == SendState.CARRIED
    wrong = Refusal.of(1, InvalidSelectorException("wrong", position=7)).raised(JMSException)
    assert isinstance(wrong, InvalidSelectorException)
    assert wrong.position == 7
    for name in ("OfALaterVersion", "CarrypostError", "annotations", "SystemExit"):
        assert type(Refusal(1, name, "new").raised(JMSException)) is JMSException


@given(st.sampled_from(sorted(COMMANDS)), st.binary(max_size=64))
def test_bytes_that_are_no_command_and_no_answer_are_an_error(name: str, data: bytes) -> None:
    tagged = msgspec.msgpack.encode([name, msgspec.Raw(data)])
    for decode, encoded in ((decode_command, data), (decode_command, tagged), (ANSWERS[COMMANDS[name]].decode, data)):
        with suppress(LocalError, JMSException):  # Anything else would be raised.
            decode(encoded)


def test_a_command_of_a_later_version_is_named() -> None:
    with pytest.raises(JMSException, match=r"'fly'.*: use the same version of carrypost"):
        decode_command(msgspec.msgpack.encode(["fly", 1]))


def test_descriptors_inside_of_values_keep_their_signature() -> None:
    async def scene() -> None:
        async with testing.network("a", seed=1, security="signed") as net:
            provider = net.provider("a")
            session = await provider.execute(OpenSession(await provider.connect("", Recorder())))
            work = provider.perform(Perform(session, (Draft("topic/x", b"y", persistent=True),), (), Durability.FULL))
            (made,) = await work.sent
            await work.done
            handed = Handed(1, 2, made, 3, lease_us=5, giver=made.node, events_lost=7), b"y"
            browsed = Browsed(1, (made, made), 5, complete=True)
            for name, value in ((MESSAGES, handed), ("Browsed", browsed)):
                first, again = NEWS[name].decode(NEWS[name].encode((value, value)))
                assert first == again == value
                found = again[0].descriptor if name == MESSAGES else again.descriptors[1]
                assert (found.signature, found.wire, found.id) == (made.signature, made.wire, made.id)

    testing.run(scene)


@pytest.mark.parametrize("encoded", [False, True])
def test_a_receipt_reaches_the_connection_that_sent_or_asked_and_no_other(encoded: bool) -> None:
    async def scene() -> None:
        async with testing.network("a", "b", seed=1) as net:
            net.link("a", "b")
            provider = EncodedProvider.of(net.provider("a")) if encoded else net.provider("a")
            sender, asker, other = Recorder(), Recorder(), Recorder()
            sessions = [
                await provider.execute(OpenSession(await provider.connect("", each))) for each in (sender, asker, other)
            ]
            async with net.context("b") as there:
                box = await there.declare_queue("box")
                inbox = await there.create_consumer(box)
                work = provider.perform(
                    Perform(sessions[0], (Draft(box.address, b"y", persistent=True),), (), Durability.FULL)
                )
                (made,) = await work.sent
                assert await provider.execute(Follow(sessions[1], made.id)) is not None
                await inbox.receive(timeout=60)
                await net.run(60)
                states = [[each.state for _, each in program.told] for program in (sender, asker, other)]
                assert states[0][-1] == states[1][-1] == SendState.DELIVERED
                assert states[2] == []
                assert await provider.execute(Follow(sessions[2], made.id)) is not None
                await net.run(1)
                ((name, receipt),) = other.told
                assert (name, type(receipt), receipt.message) == ("note", Receipt, made.id)

    testing.run(scene)


def test_drafts_of_another_session_are_refused_and_stay_there() -> None:
    async def scene() -> None:
        async with testing.network("a", seed=1) as net:
            provider = net.provider("a")
            connection = await provider.connect("", Recorder())
            mine, others = [await provider.execute(OpenSession(connection)) for _ in range(2)]
            number, _ = await provider.execute(KeepDraft(others, Draft("topic/x", b"y")))
            with pytest.raises(IllegalStateException, match="there is no draft"):
                provider.perform(Perform(mine, (number,), (Ack(mine),), Durability.FULL))
            (made,) = await provider.perform(Perform(others, (number,), (), Durability.FULL)).sent
            assert made.destination == "topic/x"

    testing.run(scene)
