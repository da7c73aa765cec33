"""Headers of a message that patterns and selectors see, and those that its properties hide."""

from __future__ import annotations

import msgspec
import pytest

from carrypost import Selector, testing
from carrypost.model import ids
from carrypost.model.address import control, queue, topic
from carrypost.model.descriptor import AttributeValue, Descriptor, PayloadCodec
from carrypost.model.descriptor_values import PATTERN_FIELDS, SELECTOR_FIELDS, Selectable
from carrypost.model.headers import Headers
from carrypost.model.ids import MessageId, NodeId
from carrypost.model.pattern import text_of
from carrypost.model.selector.tree import HEADERS
from carrypost.security.identity import Identity

NODE = NodeId("13725fc77d")
AUTHOR = Identity.derived(1, "a")
DATE_US = 1_318_877_643_999_999
PLAIN = Descriptor(
    "alan", 1, 7, DATE_US, DATE_US + 2_764_800_000_000, topic("ChatRoom1"), 0, 0, PayloadCodec.PLAIN, b"", 1024,
    persistent=True,
    headers=Headers(
        operation="request", reply_to=queue("host_1", NodeId("86f8f700dad0")), correlation="a-1", type="chat",
    ),
)  # fmt: skip
SIGNED = msgspec.structs.replace(PLAIN, author=AUTHOR.author, destination=queue("Alan", NODE), persistent=False)
BARE = Descriptor("alan", 1, 7, DATE_US, None, "news", 0, 0, PayloadCodec.PLAIN, b"", 1024)

# --- patterns ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "plain", "signed", "bare"),
    [
        ("id", "ID:alan:1:7", "ID:" + ids.base32(SIGNED.id), "ID:alan:1:7"),
        ("destination_id", "ChatRoom1", "Alan@13725fc77d", None),
        ("destination_type", "topic", "queue", None),
        ("operation_type", "request", "request", None),
        ("date", "2011-10-17T18:54:03Z", "2011-10-17T18:54:03Z", "2011-10-17T18:54:03Z"),
        ("deadline", "2011-11-18T18:54:03Z", "2011-11-18T18:54:03Z", None),
        ("delivery_mode", "PERSISTENT", "NON_PERSISTENT", "NON_PERSISTENT"),
        ("priority", "4", "4", "4"),
        ("src", "alan", AUTHOR.node, "alan"),
        ("reply_id", "host_1@86f8f700dad0", "host_1@86f8f700dad0", None),
    ],
)
def test_a_pattern_may_name_the_header_fields_of_the_papers(
    name: str, plain: str | None, signed: str | None, bare: str | None
) -> None:
    assert [text_of(each, name) for each in (PLAIN, SIGNED, BARE)] == [plain, signed, bare]


@pytest.mark.parametrize("name", [*PATTERN_FIELDS, "JMSType", "headers", "correlation"])
def test_a_property_hides_the_header_field_of_its_name(name: str) -> None:
    for sent in (PLAIN, SIGNED, BARE):
        assert text_of(msgspec.structs.replace(sent, attributes={name: False}), name) == "false"


def test_a_null_property_hides_the_header_field_of_its_name() -> None:
    assert text_of(msgspec.structs.replace(PLAIN, headers=Headers(property_types={"src": 0})), "src") is None


@pytest.mark.parametrize("destination", [control(NODE), "control/all", "directory/x/y", "news", "topic/", "queue/x"])
def test_what_is_no_topic_and_no_queue_has_neither_type_nor_id(destination: str) -> None:
    sent = msgspec.structs.replace(PLAIN, destination=destination)
    assert (text_of(sent, "destination_type"), text_of(sent, "destination_id")) == (None, None)


def test_where_to_reply_is_shown_as_it_is_if_it_is_no_topic_or_queue() -> None:
    assert text_of(msgspec.structs.replace(PLAIN, headers=Headers(reply_to="news")), "reply_id") == "news"


@pytest.mark.parametrize("time_us", [0, 2**53])
def test_every_date_that_a_message_can_have_is_shown(time_us: int) -> None:
    assert text_of(msgspec.structs.replace(PLAIN, created_us=time_us), "date") in (
        "1970-01-01T00:00:00Z",
        "2255-06-05T23:47:34Z",
    )


def test_messages_are_subscribed_to_by_the_papers_names_and_nothing_else_is_taken() -> None:
    with testing.network("a", "b") as net:
        net.subscribe("b", {"destination_type": "topic", "src": "a", "language": "English"})
        net.subscribe("b", {"destination_id": "Alan@b", "operation_type": "request"})
        for destination, language in ((topic("x"), "English"), (topic("x"), "French"), ("x", "English")):
            net.publish("a", destination, attributes={"language": language}, label=f"{destination} {language}")
        net.publish("a", topic("x"), attributes={"language": "English", "src": "elsewhere"})
        host = net.host("a")
        host.publish(queue("Alan", NodeId("b")), b"", now=0, label="request", headers=Headers(operation="request"))
        host.publish(queue("Alan", NodeId("b")), b"", now=0, label="message")
        net.link("a", "b")
        net.advance(30)
        assert sorted(each.descriptor.label for each in net.deliveries("b")) == ["request", "topic/x English"]
        assert net.host("b").copies == 2


# --- selectors ---------------------------------------------------------------------------------------------


def test_every_header_field_that_selectors_may_name_is_there() -> None:
    assert SELECTOR_FIELDS.keys() == HEADERS.keys()


@pytest.mark.parametrize(
    ("text", "plain", "bare"),
    [
        ("JMSDeliveryMode = 'PERSISTENT'", True, False),
        ("JMSPriority BETWEEN 4 AND 9", True, True),
        ("JMSMessageID = 'ID:alan:1:7'", True, True),
        ("JMSTimestamp = 1318877643999", True, True),
        ("JMSCorrelationID = 'a-1'", True, None),
        ("JMSType LIKE 'ch%'", True, None),
        ("JMSType IS NULL", False, True),
        ("price > 3 AND JMSPriority = 4", True, True),
        ("missing = 3", None, None),
    ],
)
def test_a_selector_sees_header_fields_beside_properties(text: str, plain: bool | None, bare: bool | None) -> None:
    attributes: dict[str, AttributeValue] = {"price": 5, "JMSPriority": 9, "JMSType": "forged"}
    seen = [Selectable(msgspec.structs.replace(each, attributes=attributes)) for each in (PLAIN, BARE)]
    assert [Selector(text).evaluate(each) for each in seen] == [plain, bare]


def test_what_selectors_see_can_be_listed() -> None:
    seen = Selectable(msgspec.structs.replace(PLAIN, attributes={"price": 5, "JMSPriority": 9}))
    assert {name: seen[name] for name in seen} == {
        "JMSDeliveryMode": "PERSISTENT", "JMSPriority": 4, "JMSMessageID": "ID:alan:1:7",
        "JMSTimestamp": 1_318_877_643_999, "JMSCorrelationID": "a-1", "JMSType": "chat", "price": 5,
    }  # fmt: skip
    assert len(seen) == 7
    assert "missing" not in seen


def test_the_time_of_sending_is_the_timestamp_where_it_is_said() -> None:
    sent = msgspec.structs.replace(PLAIN, headers=Headers(sent_us=5_999))
    assert Selector("JMSTimestamp = 5").matches(Selectable(sent))


def test_a_correlation_of_bytes_is_null_to_selectors() -> None:
    sent = msgspec.structs.replace(PLAIN, headers=Headers(correlation_bytes=b"x"))
    assert Selector("JMSCorrelationID IS NULL").matches(Selectable(sent))


# --- ids ---------------------------------------------------------------------------------------------------


def test_a_hash_that_looks_like_a_plain_id_is_shown_as_a_hash() -> None:
    assert ids.shown(MessageId(b"\xff" * 12 + b":1:2")) == "ID:7777777777777777777tumj2gi"
    assert ids.shown(MessageId("älan:1:2".encode())) == "älan:1:2"
