"""Messages of JMS through a host: sent as works, handed over to consumers, redelivered and sent on."""

from __future__ import annotations

import pytest
from tests.support.one_node import OneNode, S

from carrypost import (
    BytesMessage,
    DeliveryMode,
    MapMessage,
    Message,
    MessageFormatException,
    StreamMessage,
    TextMessage,
    Topic,
)
from carrypost.errors import PayloadError
from carrypost.gossip.draft import Draft
from carrypost.jms.mapping import Sending, from_handed, stamp, to_draft
from carrypost.log.events import Done, Handed
from carrypost.log.journal import PIECE

NEWS = Topic("news")


@pytest.fixture
def node() -> OneNode:
    return OneNode()


def received(node: OneNode, handed: Handed) -> Message:
    pieces = [node.disk[PIECE, handed.message, number] for number in range(handed.descriptor.pieces)]
    return from_handed(handed, b"".join(bytes(piece) for piece in pieces), node.now)  # type: ignore[arg-type]


def full(message: Message) -> Message:
    message.jms_type, message.jms_correlation_id, message.jms_reply_to = "kind", b"\0\1", Topic("answers")
    message.set_byte_property("level", 3)
    message.set_string_property("nothing", None)
    return message


@pytest.mark.parametrize(
    "message",
    [TextMessage("x" * 40_000), BytesMessage(b"\0\xff"), MapMessage({"a": 1}), StreamMessage(["a", None]), Message()],
    ids=lambda message: type(message).__name__,
)
def test_rows_7_25_47_and_53_a_message_comes_as_it_was_sent_also_after_a_crash(node: OneNode, message: Message) -> None:
    asked = {"name": "mail", "durable": True}
    node.credit(node.consume(node.session("anna"), "topic/news", "level = 3", **asked))
    node.work(to_draft(full(message), NEWS, Sending(lifetime_us=60 * S, priority=7)))
    node.write()
    (first,) = [received(node, each) for each in node.handed()]
    node.crash()
    node.credit(node.consume(node.session("anna"), "topic/news", "level = 3", **asked))
    node.write()
    (second,) = [received(node, each) for each in node.handed()]
    for found in (first, second):
        assert type(found) is type(message)
        assert found.payload == message.payload
        assert (found.jms_destination, found.jms_priority, found.jms_expiration) == (NEWS, 7, 60_000)
        assert (found.jms_type, found.jms_correlation_id, found.jms_reply_to) == ("kind", b"\0\1", Topic("answers"))
        assert (found.get_byte_property("level"), found.get_object_property("nothing")) == (3, None)
    assert (first.jms_redelivered, second.jms_redelivered) == (False, True)
    assert [found.get_int_property("JMSXDeliveryCount") for found in (first, second)] == [1, 2]


def test_rows_1_to_12_the_sender_sees_what_was_sent(node: OneNode) -> None:
    consumer = node.consumer("topic/news")
    message = TextMessage("hello")
    session = node.session()
    draft = to_draft(message, NEWS, Sending(delivery_mode=DeliveryMode.NON_PERSISTENT, session=session, number=1))
    assert Done(node.work(draft)) not in node.answers()
    node.write()
    (handed,) = node.handed(consumer)
    stamp(message, handed.descriptor, NEWS)
    found = received(node, handed)
    for name in ("message_id", "timestamp", "destination", "delivery_mode", "priority", "expiration", "delivery_time"):
        assert getattr(message, f"jms_{name}") == getattr(found, f"jms_{name}")
    assert (message.jms_message_id or "").startswith("ID:")
    assert message.jms_delivery_mode is DeliveryMode.NON_PERSISTENT


def test_row_11_a_delayed_message_is_not_seen_before(node: OneNode) -> None:
    consumer = node.consumer("topic/news")
    node.work(to_draft(TextMessage("later"), NEWS, Sending(delay_us=10 * S)))
    node.write()
    node.pass_time(9)
    assert not node.handed(consumer)
    node.pass_time(2)
    (handed,) = node.handed(consumer)
    assert received(node, handed).jms_delivery_time == 10_000


@pytest.mark.parametrize(("delay_us", "text"), [(-5, "must not be negative"), (1.5, "whole microseconds, not float")])
def test_a_delay_that_is_none_is_refused(node: OneNode, delay_us: float, text: str) -> None:
    with pytest.raises(PayloadError, match=text):
        node.work(Draft(NEWS.address, b"", delay_us=delay_us))  # type: ignore[arg-type]


def test_row_52_a_message_is_sent_many_times_each_as_it_is_then(node: OneNode) -> None:
    consumer = node.consumer("topic/news")
    message = MapMessage()
    for number in range(3):
        message["n"] = number
        node.work(to_draft(message, NEWS))
    message["n"] = 99
    node.write()
    found = [received(node, each) for each in node.handed(consumer)]
    assert [each.get_body(dict) for each in found] == [{"n": 0}, {"n": 1}, {"n": 2}]
    assert len({each.jms_message_id for each in found}) == 3


def test_header_fields_and_properties_that_have_no_room_together_are_refused_by_the_host(node: OneNode) -> None:
    message = Message()
    message.properties.update({f"a{number}": "x" * 1000 for number in range(9)})
    with pytest.raises(MessageFormatException, match="descriptor has more than 8192 bytes"):
        node.work(to_draft(message, NEWS))
