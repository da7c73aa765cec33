"""Rows 15 to 25 of the checklist: properties, as programs on both sides see them."""

from __future__ import annotations

import pytest
from tests.support.jms_scenes import NEWS, got, pair, scene

from carrypost import (
    IllegalArgumentException,
    MessageFormatException,
    MessageNotWriteableException,
    NullValueException,
    NumberFormatException,
    SessionMode,
    TextMessage,
    testing,
)

ROWS = range(15, 26)


@scene("a", "b")
async def test_row_15_names_are_identifiers_and_others_are_refused(net: testing.Network) -> None:
    async with pair(net) as both:
        producer = both.here.create_producer()
        for name in ("language", "_x", "$cash", "größe", "JMSXGroupID"):
            producer.set_property(name, "yes")
        for name in ("", "NOT", "like", "a b", "1x", "a.b", "JMSXDeliveryCount", "JMSfoo"):
            with pytest.raises(IllegalArgumentException) as refused:
                producer.set_property(name, "no")
            assert isinstance(refused.value, ValueError)
        for copy in await both.sent("x", producer):
            assert {name for name, value in copy.properties.items() if value == "yes"} == {
                "language", "_x", "$cash", "größe", "JMSXGroupID",
            }  # fmt: skip


@scene("a", "b")
async def test_row_16_every_type_arrives_as_it_was_set_or_inferred(net: testing.Network) -> None:
    message = TextMessage("x")
    typed = {"boolean": True, "byte": 1, "short": 2, "int": 3, "long": 4, "float": 0.5, "double": 0.25, "string": "s"}
    for kind, value in typed.items():
        getattr(message, f"set_{kind}_property")(f"a_{kind}", value)
    inferred = {"boolean": False, "int": 2**31 - 1, "long": 2**31, "double": 1.5, "string": "t"}
    message.properties.update({f"b_{kind}": value for kind, value in inferred.items()})
    async with pair(net) as both:
        for copy in await both.sent(message):
            for name, value in {"a": typed, "b": inferred}.items():
                for kind, each in value.items():
                    assert copy.properties[f"{name}_{kind}"] == each
                    assert copy.properties.type_of(f"{name}_{kind}").name.lower() == kind


@scene("a", "b")
async def test_row_17_properties_are_read_only_on_receipt_until_they_are_cleared(net: testing.Network) -> None:
    message = TextMessage("x")
    message.properties["a"] = 1
    async with pair(net) as both:
        for copy in await both.sent(message):
            with pytest.raises(MessageNotWriteableException, match=r"clear_properties\(\) first"):
                copy.properties["a"] = 2
            with pytest.raises(MessageNotWriteableException):
                copy.set_int_property("b", 2)
            copy.clear_properties()
            copy.properties["a"] = 2
            assert dict(copy.properties) == {"a": 2}


@scene("a", "b")
async def test_row_18_a_property_is_read_as_the_types_that_its_own_converts_to(net: testing.Network) -> None:
    message = TextMessage("x")
    message.set_short_property("n", 7)
    message.set_string_property("text", "seven")
    async with pair(net) as both:
        for copy in await both.sent(message):
            assert (copy.get_int_property("n"), copy.get_long_property("n"), copy.get_string_property("n")) == (
                7,
                7,
                "7",
            )
            with pytest.raises(MessageFormatException, match="is of type short"):
                copy.get_byte_property("n")
            with pytest.raises(NumberFormatException):
                copy.get_int_property("text")
            with pytest.raises(NullValueException):
                copy.get_double_property("missing")


@scene("a", "b")
async def test_row_19_an_object_property_is_of_the_eight_types_or_null(net: testing.Network) -> None:
    message = TextMessage("x")
    for value in (b"bytes", [1], object()):
        with pytest.raises(MessageFormatException):
            message.set_object_property("a", value)  # type: ignore[arg-type]  # it is refused
    message.set_object_property("a", 5)
    message.set_object_property("nothing", None)
    async with pair(net) as both:
        for copy in await both.sent(message):
            assert [copy.get_object_property(name) for name in ("a", "nothing", "missing")] == [5, None, None]


@scene("a", "b")
async def test_row_20_properties_are_listed_and_header_fields_are_not(net: testing.Network) -> None:
    message = TextMessage("x")
    message.properties.update({"a": 1, "b": None})
    message.jms_type = "t"
    async with pair(net) as both:
        for copy in await both.sent(message):
            own = {name for name in copy.property_names if not name.startswith("JMS_carrypost_")}
            assert own == {"a", "b", "JMSXDeliveryCount", "JMSXRcvTimestamp"}
            assert set(copy.property_names) == set(copy.properties)


@scene("a", "b")
async def test_row_21_clearing_properties_leaves_the_body_and_only_this_copy_knows(net: testing.Network) -> None:
    message = TextMessage("x")
    message.properties["a"] = 1
    async with pair(net) as both:
        copies = await both.sent(message)
        copies.here.clear_properties()
        assert (copies.here.get_body(str), dict(copies.here.properties)) == ("x", {})
        assert copies.here_again.properties["a"] == 1
        with pytest.raises(MessageNotWriteableException):
            copies.here.text = "y"  # type: ignore[misc]  # its body is read-only still


@scene("a", "b")
async def test_row_22_a_missing_property_is_null(net: testing.Network) -> None:
    async with pair(net) as both:
        for copy in await both.sent("x"):
            assert not copy.property_exists("a")
            assert copy.get_object_property("a") is copy.get_string_property("a") is None
            assert copy.get_boolean_property("a") is False
            with pytest.raises(NumberFormatException, match="null"):
                copy.get_long_property("a")


@scene("a", "b")
async def test_row_23_groups_travel_and_this_node_says_when_a_message_came(net: testing.Network) -> None:
    message = TextMessage("x")
    message.properties.update({"JMSXGroupID": "g", "JMSXGroupSeq": 2})
    async with pair(net) as both:
        await net.run(5)
        copies = await both.sent(message)
        for copy in copies:
            assert (copy.properties["JMSXGroupID"], copy.properties["JMSXGroupSeq"]) == ("g", 2)
            assert 5_000 <= copy.get_long_property("JMSXRcvTimestamp") <= net.now * 1_000
            assert "JMSXUserID" not in copy.properties  # Nobody signed it.
        assert copies.there.get_long_property("JMSXRcvTimestamp") > copies.there.jms_timestamp


@scene("a", "b", security="signed")
async def test_row_23_the_user_is_who_signed(net: testing.Network) -> None:
    async with pair(net) as both:
        for copy in await both.sent("x"):
            assert copy.properties["JMSXUserID"] == both.here.node_id


@scene("a", "b", "c", altruistic=True)
async def test_row_24_how_a_message_came_is_told_by_properties_of_carrypost(net: testing.Network) -> None:
    net.unlink("a", "c")
    async with net.context("a") as here, net.context("c") as there:
        near, far = await here.create_consumer(NEWS), await there.create_consumer(NEWS)
        await here.create_producer().send(NEWS, "x")
        here_first, there_first = await got(near), await got(far)
        assert [each.get_int_property("JMS_carrypost_Hops") for each in (here_first, there_first)] == [0, 2]
        assert there_first.get_string_property("JMS_carrypost_Carrier") == "b"
        assert not here_first.property_exists("JMS_carrypost_Carrier"), "nobody carried it"
        with pytest.raises(IllegalArgumentException):
            here.create_producer().set_property("JMS_carrypost_Hops", 1)


@scene("a", "b")
async def test_row_25_the_count_of_deliveries_rises_with_each(net: testing.Network) -> None:
    async with net.context("a", SessionMode.CLIENT_ACKNOWLEDGE) as context:
        consumer = await context.create_consumer(NEWS)
        await context.create_producer().send(NEWS, "x")
        for count in range(1, 5):
            message = await got(consumer)
            assert message.get_int_property("JMSXDeliveryCount") == count
            assert message.jms_redelivered is (count > 1)
            await context.recover()
