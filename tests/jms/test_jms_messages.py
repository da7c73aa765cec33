"""Messages of JMS: header fields, properties and what all bodies have in common, row by row of the checklist."""

from __future__ import annotations

import asyncio
import enum
import inspect
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from tests.support.jms_air import NEWS, RECEIVED_US, SENT_US, described, handed, over_the_air

import carrypost
from carrypost import (
    BytesMessage,
    DeliveryMode,
    Destination,
    IllegalArgumentException,
    InvalidDestinationException,
    MapMessage,
    Message,
    MessageFormatException,
    MessageNotWriteableException,
    ObjectMessage,
    Queue,
    SessionMode,
    StreamMessage,
    TextMessage,
    Topic,
)
from carrypost.config import Limits
from carrypost.jms.mapping import Sending, from_handed, stamp, to_draft
from carrypost.jms.messages.headers_and_properties import Header, Properties
from carrypost.log.events import Handed
from carrypost.model.descriptor import Ordering
from carrypost.model.headers import Headers
from carrypost.model.ids import NodeId
from carrypost.model.properties import Property, ValueType
from carrypost.security.identity import Identity


@carrypost.register(name="tests.Order")
@dataclass
class Order:
    number: int
    lines: list[str]


MESSAGES: dict[type[Message], Any] = {
    Message: Message, TextMessage: lambda: TextMessage("hello"), BytesMessage: lambda: BytesMessage(b"\0\xff"),
    MapMessage: lambda: MapMessage({"a": 1, "b": None}), StreamMessage: lambda: StreamMessage([1, "two", None]),
    ObjectMessage: lambda: ObjectMessage(Order(1, ["tea"])),
}  # fmt: skip
every_type = pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.__name__)


def body_of(message: Message) -> object:
    (name,) = message.__match_args__ or (None,)
    return None if name is None else getattr(message, name)


# --------------------------------------------------------------------------------------------- header fields


@pytest.mark.parametrize("to", [Topic("news.sport"), Queue("Alan@attic%2Fleft"), Destination("plain")])
def test_row_1_the_destination_is_that_of_the_send_and_equal_at_the_receiver(to: Destination) -> None:
    message = TextMessage("hello")
    message.jms_destination = Topic("elsewhere")
    draft = to_draft(message, to)
    assert draft.destination == to.address
    stamp(message, described(draft), to)
    found = over_the_air(message, to)
    assert message.jms_destination == found.jms_destination == to
    assert type(found.jms_destination) is type(to)
    assert repr(found.jms_destination) == repr(to)


def test_row_1_the_order_of_a_topic_travels_and_topics_are_equal_by_name() -> None:
    forum = Topic("forum", ordering="delta-causal")
    draft = to_draft(Message(), forum)
    assert draft.ordering is Ordering.DELTA_CAUSAL
    found = over_the_air(Message(), forum).jms_destination
    assert found == forum == Topic("forum") != Queue("forum@n")
    assert isinstance(found, Topic)
    assert found.ordering is Ordering.DELTA_CAUSAL
    assert len({forum, Topic("forum"), Destination("topic/forum")}) == 1


@pytest.mark.parametrize("mode", DeliveryMode)
def test_row_2_the_delivery_mode_is_the_producers(mode: DeliveryMode) -> None:
    message = Message()
    assert message.jms_delivery_mode is DeliveryMode.PERSISTENT
    message.jms_delivery_mode = DeliveryMode.NON_PERSISTENT
    assert to_draft(message, NEWS).persistent
    sending = Sending(delivery_mode=mode)
    assert over_the_air(message, sending=sending).jms_delivery_mode is mode


def test_row_3_the_id_is_given_by_sending_and_begins_with_its_prefix() -> None:
    message = Message()
    assert message.jms_message_id is None
    descriptor = described(to_draft(message, NEWS))
    stamp(message, descriptor, NEWS)
    assert message.jms_message_id == handed(descriptor, b"").jms_message_id == "ID:alan:1:7"


def test_row_4_the_timestamp_is_that_of_the_send() -> None:
    assert Message().jms_timestamp == 0
    assert over_the_air(Message()).jms_timestamp == SENT_US // 1000
    ordered = described(to_draft(Message(), NEWS))
    ahead = msgspec.structs.replace(ordered, headers=Headers(sent_us=SENT_US - 5_000))
    assert handed(ahead, b"").jms_timestamp == SENT_US // 1000 - 5


@pytest.mark.parametrize("given", ["map-1", "ID:alan:1:7", "", b"\0\xff", b"", None])
def test_row_5_the_correlation_is_text_or_bytes(given: str | bytes | None) -> None:
    message = Message()
    message.jms_correlation_id = given
    found = over_the_air(message).jms_correlation_id
    assert (found, type(found)) == (given, type(given))


@pytest.mark.parametrize("given", [None, Topic("answers"), Queue("Bea@b"), Destination("plain")])
def test_row_6_the_place_for_replies_is_a_full_address(given: Destination | None) -> None:
    message = Message()
    message.jms_reply_to = given
    found = over_the_air(message).jms_reply_to
    assert (found, type(found)) == (given, type(given))


def test_row_7_what_was_handed_over_before_is_redelivered() -> None:
    assert not over_the_air(Message()).jms_redelivered
    assert over_the_air(Message(), count=2).jms_redelivered


def test_row_8_the_type_is_any_text() -> None:
    message = Message()
    message.jms_type = "news/größe"
    assert over_the_air(message).jms_type == "news/größe"
    assert over_the_air(Message()).jms_type is None


def test_rows_9_and_13_the_expiration_is_what_the_network_goes_by() -> None:
    sending = Sending(lifetime_us=90_000_000)
    assert over_the_air(Message(), sending=sending).jms_expiration == SENT_US // 1000 + 90_000
    assert over_the_air(Message()).jms_expiration == 0
    clamped = msgspec.structs.replace(described(to_draft(Message(), NEWS, sending)), deadline_us=SENT_US + 1_000_000)
    message = Message()
    stamp(message, clamped, NEWS)  # A node's settings shortened it, and the sender sees that.
    assert message.jms_expiration == handed(clamped, b"").jms_expiration == SENT_US // 1000 + 1_000


def test_row_10_the_priority_is_the_producers() -> None:
    message = Message()
    assert message.jms_priority == 4
    message.jms_priority = 9
    assert to_draft(message, NEWS).priority == 4
    assert over_the_air(message, sending=Sending(priority=7)).jms_priority == 7


def test_row_11_the_delivery_time_is_that_of_the_send_unless_it_is_delayed() -> None:
    assert over_the_air(Message()).jms_delivery_time == SENT_US // 1000
    delayed = Sending(delay_us=5_000_000)
    assert over_the_air(Message(), sending=delayed).jms_delivery_time == SENT_US // 1000 + 5_000


PROVIDERS: dict[str, Any] = {
    "jms_message_id": "ID:mine", "jms_timestamp": 1, "jms_destination": Topic("x"),
    "jms_delivery_mode": DeliveryMode.NON_PERSISTENT, "jms_priority": 9, "jms_expiration": 2, "jms_delivery_time": 3,
    "jms_redelivered": True,
}  # fmt: skip


def test_row_12_sending_overwrites_what_a_program_gave_the_providers_fields() -> None:
    message, untouched = TextMessage("hello"), TextMessage("hello")
    for name, value in PROVIDERS.items():
        setattr(message, name, value)
        assert getattr(message, name) == value
    assert to_draft(message, NEWS) == to_draft(untouched, NEWS)
    stamp(message, described(to_draft(message, NEWS)), NEWS)
    stamp(untouched, described(to_draft(untouched, NEWS)), NEWS)
    for name, value in PROVIDERS.items():
        assert getattr(message, name) == getattr(untouched, name) != value


def test_row_12_header_fields_of_a_received_message_can_be_set() -> None:
    found = over_the_air(TextMessage("hello"))
    found.jms_correlation_id, found.jms_priority = "seen", 1
    assert (found.jms_correlation_id, found.jms_priority) == ("seen", 1)
    assert over_the_air(found).jms_correlation_id == "seen"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("jms_correlation_id", 5), ("jms_correlation_id", "x" * 1025), ("jms_correlation_id", b"x" * 1025),
        ("jms_correlation_id", "\ud800"), ("jms_type", b"x"), ("jms_type", "x" * 1025), ("jms_reply_to", "news/x"),
        ("jms_reply_to", Topic("x" * 251)), ("jms_priority", 10), ("jms_priority", -1), ("jms_priority", True),
        ("jms_delivery_mode", 3), ("jms_timestamp", 1.5), ("jms_redelivered", 1), ("jms_message_id", 7),
    ],
)  # fmt: skip
def test_a_header_field_refuses_what_it_has_no_room_for_and_stays_as_it_was(name: str, value: object) -> None:
    message = Message()
    before = getattr(message, name)
    with pytest.raises(IllegalArgumentException, match=name) as refused:
        setattr(message, name, value)
    assert isinstance(refused.value, ValueError)
    assert getattr(message, name) == before


def test_row_99_what_the_producer_says_wins_over_the_message() -> None:
    message = TextMessage("hello")
    message.jms_correlation_id, message.jms_type, message.jms_reply_to = "own", "own", Topic("own")
    message.properties.update({"a": 1, "b": 1})
    mine = Properties()
    mine["b"] = "other"
    sending = Sending(correlation_id=b"its", type="its", reply_to=Topic("its"), properties=mine.travelling())
    found = over_the_air(message, sending=sending)
    assert (found.jms_correlation_id, found.jms_type, found.jms_reply_to) == (b"its", "its", Topic("its"))
    assert (found.get_object_property("a"), found.get_object_property("b")) == (1, "other")


def test_what_the_session_says_travels() -> None:
    headers = to_draft(Message(), NEWS, Sending(client="anna", connection=2, session=3, number=4, receipt=True)).headers
    assert headers is not None
    assert (headers.client, headers.connection, headers.session, headers.number) == ("anna", 2, 3, 4)
    assert headers.receipt


def test_a_topic_that_stands_for_many_is_none_to_send_to() -> None:
    with pytest.raises(InvalidDestinationException, match="must be sent to one"):
        to_draft(Message(), Topic("news.*"))
    assert to_draft(Message(), Topic("news*")).destination == "topic/news*"


@pytest.mark.parametrize("name", ["", None, 5])
def test_a_destination_has_a_name(name: str) -> None:
    for kind in (Topic, Destination):
        with pytest.raises(carrypost.JMSException):
            kind(name)
    with pytest.raises(InvalidDestinationException):
        Queue("Alan")


# ------------------------------------------------------------------------------------------------ properties


@pytest.mark.parametrize("name", ["a", "_", "$x", "größe", "a1", "JMSXGroupID", "andy", "名"])
def test_row_15_names_of_properties_are_identifiers(name: str) -> None:
    message = Message()
    message.properties[name] = "x"
    assert over_the_air(message).properties[name] == "x"


@pytest.mark.parametrize(
    "name",
    [
        "", None, 5, "1a", "a-b", "a b", "a.b", "null", "AND", "Between", "escape", "JMSPriority", "JMSXDeliveryCount",
        "JMSXUserID", "JMSXAppID", "JMS_carrypost_Hops", "JMS_other", "JMS", "\0a",
    ],
)  # fmt: skip
def test_row_15_what_is_no_name_of_a_property_is_refused(name: str) -> None:
    message = Message()
    with pytest.raises(ValueError, match="name of a property") as refused:
        message.set_int_property(name, 1)
    assert isinstance(refused.value, IllegalArgumentException)
    with pytest.raises(IllegalArgumentException):
        message.properties[name] = 1
    with pytest.raises(IllegalArgumentException):
        message.properties.update({"fine": 1, name: 1})
    assert dict(message.properties) == {}


TYPED: dict[str, Any] = {
    "boolean": True, "byte": -128, "short": 32767, "int": -(2**31), "long": 5, "float": 1.5, "double": 1.1,
    "string": "é",
}  # fmt: skip


def test_row_16_typed_setters_keep_the_type() -> None:
    message = Message()
    for name, value in TYPED.items():
        getattr(message, f"set_{name}_property")(f"a_{name}", value)
    found = over_the_air(message)
    assert dict(found.properties).items() >= {f"a_{name}": value for name, value in TYPED.items()}.items()
    assert [found.properties.type_of(f"a_{name}").name.lower() for name in TYPED] == list(TYPED)


class Colour(enum.IntEnum):
    RED = 1


class Word(enum.StrEnum):
    YES = "yes"


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (True, "BOOLEAN"), (2**31 - 1, "INT"), (2**31, "LONG"), (-(2**63), "LONG"), (0.5, "DOUBLE"), ("", "STRING"),
        (None, "NULL"), (Colour.RED, "INT"), (Word.YES, "STRING"),
    ],
)  # fmt: skip
def test_row_16_the_type_of_a_plain_value_is_inferred(value: int | str, kind: str) -> None:
    message = Message()
    message.properties["x"] = value
    found = over_the_air(message).properties
    assert (found["x"], found.type_of("x").name) == (value, kind)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("boolean", 1), ("boolean", "true"), ("byte", 128), ("byte", True), ("byte", 1.0), ("short", -32769),
        ("int", 2**31), ("long", 2**63), ("long", "5"), ("float", "1"), ("double", None), ("double", 10**400),
        ("string", 5), ("string", b"x"), ("int", None),
        pytest.param("long", 1 << 100_000, id="huge"),
    ],
)  # fmt: skip
def test_row_16_a_value_that_is_none_of_its_type_is_refused(kind: str, value: object) -> None:
    message = Message()
    with pytest.raises(MessageFormatException) as refused:
        getattr(message, f"set_{kind}_property")("x", value)
    assert len(str(refused.value)) < 200
    assert not message.property_exists("x")


def test_row_16_whole_numbers_can_be_set_as_others() -> None:
    message = Message()
    message.set_double_property("x", 3)
    assert type(over_the_air(message).get_double_property("x")) is float


def test_row_17_properties_are_read_only_on_receipt_until_they_are_cleared() -> None:
    message = Message()
    message.properties["x"] = 1
    found = over_the_air(message)
    with pytest.raises(MessageNotWriteableException, match="clear_properties"):
        found.properties["x"] = 2
    with pytest.raises(MessageNotWriteableException):
        found.set_string_property("y", "z")
    with pytest.raises(MessageNotWriteableException):
        found.properties.update({"y": 1})
    assert found.properties["x"] == 1
    found.clear_properties()
    found.properties["y"] = 2
    assert dict(found.properties) == {"y": 2}


@pytest.mark.parametrize("value", [b"x", [1], {}, object(), 1j, 2**63])
def test_row_19_an_object_property_is_of_the_eight_types_or_null(value: int) -> None:
    message = Message()
    with pytest.raises(MessageFormatException):
        message.set_object_property("x", value)
    message.set_object_property("x", None)
    assert message.get_object_property("x") is message.get_object_property("missing") is None


def test_row_20_all_properties_are_listed_and_no_header_fields() -> None:
    message = Message()
    message.jms_type = "t"
    message.properties.update({"a": 1, "b": None})
    assert message.property_names == ("a", "b")
    found = over_the_air(message).property_names
    assert set(found) - {"a", "b"} == {
        "JMSXDeliveryCount", "JMSXRcvTimestamp", "JMS_carrypost_Author", "JMS_carrypost_Hops"
    }  # fmt: skip
    assert all(found.count(name) == 1 for name in found)


def test_row_21_clearing_properties_leaves_body_and_header_fields() -> None:
    message = TextMessage("hello")
    message.jms_type = "t"
    message.properties["a"] = 1
    found = over_the_air(message)
    found.clear_properties()
    assert (found.text, found.jms_type, found.property_names) == ("hello", "t", ())
    assert not hasattr(Properties, "__delitem__")
    with pytest.raises(MessageNotWriteableException):
        found.text = "the body is still read-only"


def test_row_22_a_missing_property_is_null() -> None:
    message = Message()
    assert message.get_string_property("x") is message.get_object_property("x") is message.properties.get("x") is None
    with pytest.raises(KeyError):
        _ = message.properties["x"]
    with pytest.raises(KeyError):
        message.properties.type_of("x")


def test_row_23_groups_are_set_by_programs_with_their_types() -> None:
    message = Message()
    message.set_string_property("JMSXGroupID", "g")
    message.properties["JMSXGroupSeq"] = 3
    found = over_the_air(message)
    assert (found.get_string_property("JMSXGroupID"), found.get_int_property("JMSXGroupSeq")) == ("g", 3)
    with pytest.raises(MessageFormatException, match="JMSXGroupSeq is of type int, not String"):
        message.properties["JMSXGroupSeq"] = "3"
    with pytest.raises(MessageFormatException):
        message.set_int_property("JMSXGroupID", 1)


def test_row_23_what_this_node_knows_of_a_message_are_properties_on_receipt() -> None:
    found = over_the_air(Message())
    assert found.get_long_property("JMSXRcvTimestamp") == RECEIVED_US // 1000
    assert not found.property_exists("JMSXUserID")  # Nobody signed it.
    assert found.get_string_property("JMS_carrypost_Author") == "alan"


def test_row_23_the_user_is_who_signed_the_message() -> None:
    identity = Identity.generate()
    descriptor = msgspec.structs.replace(described(to_draft(Message(), NEWS)), author=identity.author)
    found = handed(identity.sign(descriptor), b"")
    assert found.get_string_property("JMSXUserID") == identity.node == found.properties["JMS_carrypost_Author"]


def test_row_24_how_a_message_came_is_told_by_properties_of_carrypost() -> None:
    descriptor = described(to_draft(Message(), NEWS, Sending(receipt=True)))
    found = from_handed(
        Handed(1, 1, descriptor, 1, 5, unordered=True, out_of_order=True, giver=NodeId("bus"), predecessors_lost=3),
        b"",
        RECEIVED_US,
    )
    told = {name: value for name, value in found.properties.items() if name.startswith("JMS_carrypost_")}
    assert told == {
        "JMS_carrypost_Author": "alan", "JMS_carrypost_Hops": 5, "JMS_carrypost_OutOfOrder": True,
        "JMS_carrypost_Unordered": True, "JMS_carrypost_PredecessorsLost": 3,
        "JMS_carrypost_Receipt": True, "JMS_carrypost_Carrier": "bus",
    }  # fmt: skip


def test_row_24_nobody_else_says_what_this_node_says() -> None:
    forged = {"JMSXDeliveryCount": 9, "JMSXUserID": "root", "JMS_carrypost_OutOfOrder": True, "JMS_carrypost_x": 1}
    descriptor = described(to_draft(Message(), NEWS))
    found = handed(msgspec.structs.replace(descriptor, attributes=forged | {"mine": 1}), b"")
    assert found.get_int_property("JMSXDeliveryCount") == 1
    assert set(found.property_names) == {
        "mine", "JMSXDeliveryCount", "JMSXRcvTimestamp", "JMS_carrypost_Author", "JMS_carrypost_Hops"
    }  # fmt: skip
    assert to_draft(found, NEWS).attributes == {"mine": 1}  # Nor does it travel when the message is sent on.


@pytest.mark.parametrize("count", [1, 2, 5])
def test_row_25_the_count_of_deliveries_says_whether_it_is_one_more(count: int) -> None:
    found = over_the_air(Message(), count=count)
    assert found.get_int_property("JMSXDeliveryCount") == count
    assert found.jms_redelivered is (count > 1)


def test_properties_beyond_the_limits_of_a_message_are_refused_by_name() -> None:
    message = Message()
    message.properties["x"] = "x" * 1025
    with pytest.raises(MessageFormatException, match="1025 bytes; 1024 are allowed"):
        to_draft(message, NEWS)
    message.clear_properties()
    message.properties.update({f"a{number}": 1 for number in range(65)})
    with pytest.raises(MessageFormatException, match="at most 64 properties, not 65"):
        to_draft(message, NEWS)


def test_a_strangers_property_that_no_type_has_room_for_spoils_only_looking_at_properties() -> None:
    descriptor = msgspec.structs.replace(described(to_draft(TextMessage("x"), NEWS)), attributes={"big": 2**64 - 1})
    found = handed(descriptor, b"still here")
    assert isinstance(found, TextMessage)
    assert (found.text, found.jms_message_id) == ("still here", "ID:alan:1:7")
    with pytest.raises(MessageFormatException, match="64 bits"):
        found.get_int_property("big")


# ----------------------------------------------------------------------------------------------------- bodies


@every_type
def test_row_47_the_type_of_a_body_is_preserved(kind: type[Message]) -> None:
    message = MESSAGES[kind]()
    found = over_the_air(message)
    assert type(found) is kind
    assert body_of(found) == body_of(message)


@pytest.mark.parametrize("headers", [None, Headers(), Headers(body_type=0), Headers(body_type=77)])
def test_row_47_a_body_of_which_no_known_type_is_said_is_bytes(headers: Headers | None) -> None:
    descriptor = msgspec.structs.replace(described(to_draft(Message(), NEWS)), headers=headers)
    found = handed(descriptor, b"\0any")
    assert isinstance(found, BytesMessage)
    assert found.data == b"\0any"


@every_type
def test_row_50_clearing_a_body_makes_it_empty_and_writable_and_keeps_properties(kind: type[Message]) -> None:
    message = MESSAGES[kind]()
    message.properties["a"], message.jms_type = 1, "t"
    for each in (message, over_the_air(message)):
        each.clear_body()
        assert body_of(each) == body_of(kind())
        assert (each.get_int_property("a"), each.jms_type) == (1, "t")
        assert over_the_air(each).payload == kind().payload
        rewrite(each)
        assert body_of(over_the_air(each)) == body_of(each) != body_of(kind()) or kind is Message


def rewrite(message: Message) -> None:
    match message:
        case TextMessage():
            message.text = "new"
        case BytesMessage():
            message.write_bytes(b"new")
        case MapMessage():
            message["new"] = 1
        case StreamMessage():
            message.write_string("new")
        case ObjectMessage():
            message.set_object(Order(2, []))


@every_type
def test_rows_17_and_49_a_received_body_is_read_only(kind: type[Message]) -> None:
    found = over_the_air(MESSAGES[kind]())
    before = found.payload
    if kind is not Message:
        with pytest.raises(MessageNotWriteableException, match="clear_body"):
            rewrite(found)
    assert found.payload == before


def test_row_51_what_goes_in_and_comes_out_is_copied() -> None:
    buffer = bytearray(b"abc")
    entries, stream, data, order = MapMessage(), StreamMessage(), BytesMessage(buffer), Order(1, ["tea"])
    entries.set_bytes("x", buffer)
    stream.write_bytes(memoryview(buffer))
    message = ObjectMessage(order)
    correlated = Message()
    correlated.jms_correlation_id = buffer  # type: ignore[assignment]  # what is like bytes will do
    buffer[:] = b"xyz"
    order.lines.append("milk")
    assert entries.get_bytes("x") == data.data == correlated.jms_correlation_id == b"abc"
    assert stream.values == [b"abc"]
    assert message.get_object() == Order(1, ["tea"])
    entries.entries["more"] = 1
    stream.values.append(5)
    got = message.get_object()
    assert isinstance(got, Order)
    got.lines.clear()
    assert entries.map_names == ("x",)
    assert stream.values == [b"abc"]
    assert message.get_object() == Order(1, ["tea"])


@every_type
def test_row_52_what_was_sent_does_not_change_with_the_message(kind: type[Message]) -> None:
    message = MESSAGES[kind]()
    message.properties["a"] = 1
    draft = to_draft(message, NEWS)
    before = msgspec.msgpack.encode(draft)
    message.clear_body()
    rewrite(message)
    message.properties["a"], message.jms_type = 2, "t"
    assert msgspec.msgpack.encode(draft) == before
    again = to_draft(message, NEWS)  # The same message is sent again, as it is now.
    assert again.attributes == {"a": 2}
    assert again.payload != draft.payload or kind is Message


@every_type
def test_row_53_a_redelivery_knows_nothing_of_what_a_consumer_did(kind: type[Message]) -> None:
    draft = to_draft(MESSAGES[kind](), NEWS)
    descriptor, payload = described(draft), draft.payload
    assert isinstance(payload, bytes)
    first = handed(descriptor, payload)
    first.clear_body()
    first.clear_properties()
    rewrite(first)
    first.properties["a"], first.jms_type = 1, "t"
    second = handed(descriptor, payload, count=2)
    assert body_of(second) == body_of(MESSAGES[kind]())
    assert (second.jms_type, second.property_exists("a")) == (None, False)


@pytest.mark.parametrize(
    ("message", "kind", "body"),
    [
        (TextMessage("hello"), str, "hello"), (TextMessage("hello"), object, "hello"),
        (BytesMessage(b"abc"), bytes, b"abc"), (BytesMessage(b"abc"), object, b"abc"),
        (MapMessage({"a": 1}), dict, {"a": 1}), (MapMessage({"a": 1}), object, {"a": 1}),
        (ObjectMessage(Order(1, [])), Order, Order(1, [])), (ObjectMessage(Order(1, [])), object, Order(1, [])),
        (Message(), str, None), (Message(), dict, None), (TextMessage(), int, None), (ObjectMessage(), bytes, None),
    ],
)  # fmt: skip
def test_row_54_a_body_is_given_as_its_type_or_a_wider_one(message: Message, kind: type, body: object) -> None:
    for each in (message, over_the_air(message)):
        assert each.is_body_assignable_to(kind)
        assert each.get_body(kind) == body


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        (TextMessage("hello"), bytes), (BytesMessage(b"abc"), str), (MapMessage({"a": 1}), list),
        (ObjectMessage(Order(1, [])), str), (StreamMessage([1]), object), (StreamMessage([1]), list),
    ],
)  # fmt: skip
def test_rows_54_and_101_a_body_is_not_given_as_another_type_and_the_message_stays_as_it_is(
    message: Message, kind: type
) -> None:
    found = over_the_air(message)
    for _ in range(2):
        assert not found.is_body_assignable_to(kind)
        with pytest.raises(MessageFormatException):
            found.get_body(kind)
    assert body_of(found) == body_of(message)
    assert found.payload == message.payload


def test_row_54_a_type_is_a_class() -> None:
    with pytest.raises(IllegalArgumentException, match="must be a class"):
        TextMessage("x").get_body(list[int])


def test_row_54_bytes_that_are_being_written_are_reset_first() -> None:
    message = BytesMessage(b"ab")
    message.write_byte(1)
    assert message.get_body(bytes) == b"ab\x01"
    assert message.read_bytes() == b"ab\x01"


# ---------------------------------------------------------------------------------------------------- foreign


class Foreign:
    """A message of another provider."""

    def __init__(self, **body: object) -> None:
        self.properties = {"a": 1, "JMSXGroupID": "g", "JMSXDeliveryCount": 3, "JMS_other_x": 1}
        self.jms_correlation_id, self.jms_type = "c", "t"
        self.jms_reply_to: object = Topic("answers")
        vars(self).update(body)


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ({}, Message), ({"text": "hello"}, TextMessage), ({"data": b"x"}, BytesMessage),
        ({"entries": {"a": 1}}, MapMessage), ({"values": [1, None]}, StreamMessage),
        ({"object": Order(1, [])}, ObjectMessage),
    ],
)  # fmt: skip
def test_row_56_a_message_of_another_implementation_is_sent(body: dict[str, object], kind: type[Message]) -> None:
    foreign = Foreign(**body)
    draft = to_draft(foreign, NEWS)
    assert draft.attributes == {"a": 1, "JMSXGroupID": "g"}
    assert isinstance(draft.payload, bytes)
    found = handed(described(draft), draft.payload)
    assert type(found) is kind
    assert body_of(found) == next(iter(body.values()), None)
    assert (found.jms_correlation_id, found.jms_type, found.jms_reply_to) == ("c", "t", Topic("answers"))
    stamp(foreign, described(draft), NEWS)
    assert vars(foreign)["jms_message_id"] == found.jms_message_id
    assert vars(foreign)["jms_destination"] == NEWS
    assert vars(foreign)["jms_timestamp"] == found.jms_timestamp


def test_row_56_a_destination_of_another_implementation_is_understood() -> None:
    class TheirQueue:
        queue_name = "Alan@n"

    class TheirTopic:
        topic_name = "x"

    foreign = Foreign(text="x")
    for theirs, ours in ((TheirQueue(), Queue("Alan@n")), (TheirTopic(), Topic("x"))):
        foreign.jms_reply_to = theirs
        headers = to_draft(foreign, NEWS).headers
        assert headers is not None
        assert headers.reply_to == ours.address
    foreign.jms_reply_to = "x"
    with pytest.raises(IllegalArgumentException):
        to_draft(foreign, NEWS)


def test_row_56_what_is_no_message_is_refused() -> None:
    for given in ("text", {"a": 1}, object()):
        with pytest.raises(MessageFormatException, match="cannot be sent as a message"):
            to_draft(given, NEWS)
    with pytest.raises(MessageFormatException, match="one body"):
        to_draft(Foreign(text="x", data=b"x"), NEWS)


# ------------------------------------------------------------------------------------------------------ Python


def test_messages_can_be_matched() -> None:
    def seen(message: Message) -> object:
        found: object = None
        match message:
            case TextMessage(str(text)):
                found = text
            case BytesMessage(data):
                found = data
            case MapMessage({"a": int(number)}):
                found = number
            case StreamMessage([first, *_]):
                found = first
            case ObjectMessage(Order(number=number)):
                found = number
            case Message(jms_type="ping"):
                found = "pong"
        return found

    ping = Message()
    ping.jms_type = "ping"
    expected: list[object] = ["hello", b"\0\xff", 1, 1, 1, "pong", None]
    messages = [MESSAGES[kind]() for kind in list(MESSAGES)[1:]] + [ping, Message()]
    assert [seen(over_the_air(message)) for message in messages] == expected


def test_a_message_shows_what_it_is_whatever_is_in_it() -> None:
    found = over_the_air(TextMessage("hello"))
    assert repr(TextMessage("hello")) == "TextMessage(text='hello')"
    assert repr(found) == "TextMessage(text='hello', jms_message_id='ID:alan:1:7')"
    assert len(repr(MapMessage({f"a{number}": "x" * 1000 for number in range(1000)}))) < 400
    for kind in list(MESSAGES)[1:]:
        descriptor = described(to_draft(MESSAGES[kind](), NEWS))
        assert repr(handed(descriptor, b"\xff\xfe")).startswith(kind.__name__)


@every_type
def test_every_message_has_a_text_which_is_none_unless_it_is_a_text_message(kind: type[Message]) -> None:
    """A program that prints what strangers send need not know its type."""
    message = MESSAGES[kind]()
    assert message.text == over_the_air(message).text == ("hello" if kind is TextMessage else None)
    if kind is not TextMessage:
        with pytest.raises(AttributeError):
            message.text = "hello"


def test_every_message_is_true() -> None:
    assert all(kind() for kind in MESSAGES)  # `if message := await consumer.receive(timeout=1)` is how people write it.


def test_a_received_message_is_acknowledged_by_its_session_and_another_by_nobody() -> None:
    class Session:
        mode = SessionMode.CLIENT_ACKNOWLEDGE

        def __init__(self) -> None:
            self.done: list[int] = []

        async def acknowledge(self, number: int) -> None:
            self.done.append(number)

        async def release(self, number: int, delay_us: int) -> None:
            raise AssertionError(number, delay_us)

        async def failed(self, number: int, message: Message, error: BaseException, tries: int) -> None:
            raise AssertionError(number, message, error, tries)

    session = Session()
    message = from_handed(Handed(1, 17, described(to_draft(Message(), NEWS)), 1), b"", RECEIVED_US, session)

    async def scene() -> None:
        await message.acknowledge()
        await Message().acknowledge()

    asyncio.run(scene())
    assert session.done == [17]


def test_a_body_beyond_the_limit_names_it() -> None:
    with pytest.raises(MessageFormatException, match=r"11 bytes, more than the 10 of limits\.message_bytes_max"):
        to_draft(BytesMessage(b"x" * 11), NEWS, limits=Limits(message_bytes_max=10))
    assert to_draft(BytesMessage(b"x" * 10), NEWS, limits=Limits(message_bytes_max=10)).payload == b"x" * 10


def test_every_public_name_of_messages_is_documented_and_typed() -> None:
    for kind in (*MESSAGES, Properties, Destination, Topic, Queue, DeliveryMode, carrypost.register):
        assert inspect.getdoc(kind)
        for name, member in inspect.getmembers_static(kind):
            found = getattr(member, "fget", None) or getattr(member, "__func__", member)
            if name.startswith("_") or isinstance(found, Header) or not inspect.isfunction(found):
                continue
            assert inspect.getdoc(found), f"{kind}.{name}"
            if found.__module__.startswith("carrypost"):
                assert "return" in inspect.get_annotations(found), f"{kind}.{name}"


def test_types_of_properties_given_by_the_node_are_those_of_the_specification() -> None:
    found = over_the_air(Message()).properties
    assert found.type_of("JMSXDeliveryCount") is ValueType.INT
    assert found.type_of("JMSXRcvTimestamp") is ValueType.LONG
    assert Property(ValueType.STRING, NodeId("alan")).value == found["JMS_carrypost_Author"]
