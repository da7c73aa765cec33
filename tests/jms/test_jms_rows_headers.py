"""Rows 1 to 14 of the checklist: header fields, as programs on both sides see them."""

from __future__ import annotations

import pytest
from tests.support.jms_scenes import NEWS, got, pair, scene, texts

from carrypost import DeliveryMode, Queue, TextMessage, Topic, testing

ROWS = range(1, 15)


@scene("a", "b")
async def test_row_1_the_destination_is_that_of_the_send_and_equal_at_the_receiver(net: testing.Network) -> None:
    async with pair(net) as both:
        message = TextMessage("x")
        message.jms_destination = Topic("elsewhere")
        for copy in await both.sent(message):
            assert copy.jms_destination == message.jms_destination == NEWS
            assert isinstance(copy.jms_destination, Topic)


@scene("a", "b")
async def test_row_2_the_delivery_mode_is_the_producers_or_the_sends_and_never_the_messages(
    net: testing.Network,
) -> None:
    async with pair(net) as both:
        message = TextMessage("x")
        message.jms_delivery_mode = DeliveryMode.NON_PERSISTENT
        assert {each.jms_delivery_mode for each in await both.sent(message)} == {DeliveryMode.PERSISTENT}
        producer = both.here.create_producer().set_delivery_mode(DeliveryMode.NON_PERSISTENT)
        assert {each.jms_delivery_mode for each in await both.sent("y", producer)} == {DeliveryMode.NON_PERSISTENT}
        await producer.send(NEWS, message, delivery_mode=DeliveryMode.PERSISTENT)
        assert message.jms_delivery_mode is DeliveryMode.PERSISTENT


@scene("a", "b")
async def test_row_3_every_message_has_an_id_that_is_the_same_everywhere(net: testing.Network) -> None:
    async with pair(net) as both:
        producer = both.here.create_producer().set_disable_message_id(True)
        message = TextMessage("x")
        copies = [*await both.sent(message, producer), *await both.sent("y", producer)]
        first, second = {each.jms_message_id for each in copies[:4]}, {each.jms_message_id for each in copies[4:]}
        assert first == {message.jms_message_id}
        assert len(second) == 1
        assert not first & second
        assert all(str(each.jms_message_id).startswith("ID:") for each in copies)


@scene("a", "b", disk_delay_s=0.5)
async def test_row_4_the_timestamp_lies_between_the_call_and_the_return_of_send(net: testing.Network) -> None:
    async with pair(net) as both:
        await net.run(1.5)
        message = TextMessage("x")
        before = net.now
        await both.here.create_producer().set_disable_message_timestamp(True).send(NEWS, message)
        assert 1_500 == before * 1_000 <= message.jms_timestamp <= net.now * 1_000 == 2_000


@pytest.mark.parametrize("correlation", ["ID:a:1:1", "order 5", b"\x00\xff", None])
@scene("a", "b")
async def test_row_5_the_correlation_is_text_or_bytes(net: testing.Network, correlation: str | bytes | None) -> None:
    async with pair(net) as both:
        message = TextMessage("x")
        message.jms_correlation_id = correlation
        assert [each.jms_correlation_id for each in await both.sent(message)] == [correlation] * 4


@scene("a", "b")
async def test_row_6_who_gets_a_place_for_replies_can_send_there(net: testing.Network) -> None:
    async with pair(net) as both, both.here.create_consumer(Topic("answers")) as answers:
        message = TextMessage("what?")
        message.jms_reply_to = Topic("answers")
        copies = await both.sent(message)
        to = copies.there.jms_reply_to
        assert to is not None
        await both.there.create_producer().send(to, "that")
        assert (await got(answers)).get_body(str) == "that"
        message.jms_reply_to = Queue("Alan@a")
        assert {each.jms_reply_to for each in await both.sent(message)} == {Queue("Alan@a")}


@scene("a", "b")
async def test_row_7_what_comes_again_is_flagged(net: testing.Network) -> None:
    async with pair(net) as both:
        assert [each.jms_redelivered for each in await both.sent("x")] == [False, False, True, True]


@scene("a", "b")
async def test_row_8_the_type_is_any_text_and_can_be_selected(net: testing.Network) -> None:
    async with pair(net) as both:
        car, bike = TextMessage("x"), TextMessage("y")
        car.jms_type, bike.jms_type = "car", "bicycle ü"
        assert [each.jms_type for each in await both.sent(bike)] == ["bicycle ü"] * 4
        assert await both.selected("JMSType = 'car'", [car, bike]) == [car]


@scene("a", "b", lifetime_s_default=3_600.0, lifetime_s_max=7_200.0)
async def test_row_9_messages_end_and_without_a_lifetime_they_have_the_nodes(net: testing.Network) -> None:
    async with pair(net) as both:
        message = TextMessage("x")
        producer = both.here.create_producer()
        for life_s, shown_ms in ((0, 3_600_000), (5, 5_000), (7_200, 7_200_000)):
            copies = await both.sent(message, producer.set_time_to_live(seconds=life_s))
            assert {each.jms_expiration - each.jms_timestamp for each in copies} == {shown_ms}
            assert message.jms_expiration == copies.there.jms_expiration
        late = await both.there.create_consumer(NEWS)
        sent = await producer.send(NEWS, "dead before it is read", time_to_live=30)
        assert sent.expiration == pytest.approx(net.now + 30)
        await net.run(31)
        assert await texts(late) == []


@scene("a", "b")
async def test_row_10_the_priority_is_0_to_9_by_the_producer_or_the_send(net: testing.Network) -> None:
    async with pair(net) as both:
        message = TextMessage("x")
        message.jms_priority = 9
        assert {each.jms_priority for each in await both.sent(message)} == {4}
        assert {
            each.jms_priority for each in await both.sent(message, both.here.create_producer().set_priority(7))
        } == {7}
        await both.here.create_producer().send(NEWS, message, priority=0)
        assert message.jms_priority == 0


@scene("a", "b")
async def test_row_11_a_delayed_message_travels_and_is_seen_nowhere_before_its_time(net: testing.Network) -> None:
    async with pair(net) as both:
        near, far = await both.here.create_consumer(NEWS), await both.there.create_consumer(NEWS)
        message = TextMessage("later")
        await both.here.create_producer().set_delivery_delay(minutes=10).send(NEWS, message)
        due_s = net.now + 600
        await net.run(60)
        assert net.host("b").copies == 1
        net.unlink("a", "b")
        assert await far.receive(timeout=539) is None
        for consumer in (near, far):
            found = await got(consumer)
            assert due_s <= net.now < due_s + 1
            assert found.jms_delivery_time == message.jms_delivery_time == round(due_s * 1000)


@scene("a", "b")
async def test_row_12_sending_overwrites_what_a_program_gave_the_providers_fields(net: testing.Network) -> None:
    async with pair(net) as both:
        message = TextMessage("x")
        message.jms_message_id, message.jms_timestamp, message.jms_expiration = "ID:mine", 5, 6
        message.jms_delivery_time, message.jms_redelivered = 7, True
        for copy in await both.sent(message):
            assert copy.jms_message_id == message.jms_message_id != "ID:mine"
            assert (copy.jms_timestamp, copy.jms_expiration, copy.jms_delivery_time) == (0, 0, 0)
        assert message.jms_redelivered is False


@scene("a", "b", lifetime_s_max=100.0)
async def test_row_13_what_the_node_overrides_the_header_shows(net: testing.Network) -> None:
    async with pair(net) as both:
        message = TextMessage("x")
        copies = await both.sent(message, both.here.create_producer().set_time_to_live(0))
        assert {each.jms_expiration - each.jms_timestamp for each in (message, *copies)} == {100_000}


@scene("a", "b", skew_s_max=60.0, lifetime_s_max=3_600.0, lifetime_s_default=3_600.0)
async def test_row_14_dates_from_the_future_are_bounded_and_a_deadline_holds_by_the_receivers_clock(
    net: testing.Network,
) -> None:
    async with pair(net) as both:
        far = await both.there.create_consumer(NEWS)
        driver = net._driver("a")  # noqa: SLF001 - clocks go wrong in emulations, and no program sets them
        producer = both.here.create_producer().set_time_to_live(1_000)
        driver.step_clock(50_000_000)
        await producer.send(NEWS, "fast")
        found = await got(far)
        assert net.now + 40 < found.jms_timestamp / 1_000 < net.now + 50
        driver.step_clock(50_000_000)
        await producer.send(NEWS, "from a future that nobody believes")
        assert await far.receive(timeout=30) is None
        net.unlink("a", "b")
        await net.run(1_100 - net.now)
        assert net.host("b").copies == 0
        assert net.host("a").copies == 0
