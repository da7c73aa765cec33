"""Rows of the checklist in the classic API; `test_classic_rows` and `test_sync_classic_rows` run them."""

# ruff: noqa: ANN401 - objects of either API

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from tests.support.classic_world import (
    AUTO,
    CLIENT,
    DUPS_OK,
    NON_PERSISTENT,
    PERSISTENT,
    TRANSACTED,
    WITHIN_MS,
    Scene,
    World,
    fresh,
    raised,
)

from carrypost import (
    DeliveryTimeoutException,
    IllegalArgumentException,
    IllegalStateException,
    InvalidClientIDException,
    InvalidDestinationException,
    InvalidSelectorException,
    JMSException,
    JMSSecurityException,
    MessageNotWriteableException,
    Queue,
    SendState,
    TextMessage,
    Topic,
)
from carrypost.classic import Session
from carrypost.naming import NameNotFoundException

ATTACHED = frozenset({*range(57, 62), *range(63, 73), *range(74, 86), 87, *range(90, 95), 100, 102})
"""Rows that are also run attached: there acknowledgements, credit and closing cross a socket."""


# ------------------------------------------------------------------------------------ header fields and properties


async def test_row_1_a_message_has_the_destination_of_its_send(world: World) -> None:
    scene = await Scene.open(world)
    queue, session = await scene.queue(), await scene.session()
    message = session.create_text_message("x")
    message.set_jms_destination(scene.topic())
    await session.create_producer(queue).send(message)
    assert message.jms_destination == queue
    assert (await scene.got(await session.create_consumer(queue))).jms_destination == queue


async def test_row_2_the_delivery_mode_is_the_producers_or_the_sends(world: World) -> None:
    scene = await Scene.open(world)
    queue, session = await scene.queue(), await scene.session()
    producer, message = session.create_producer(queue), session.create_message()
    message.set_jms_delivery_mode(NON_PERSISTENT)
    await producer.send(message)
    assert message.jms_delivery_mode is PERSISTENT
    await producer.send(message, NON_PERSISTENT, 4, 0)
    assert message.jms_delivery_mode is NON_PERSISTENT
    producer.set_delivery_mode(NON_PERSISTENT)
    await producer.send(message)
    assert (producer.delivery_mode, message.jms_delivery_mode) == (NON_PERSISTENT, NON_PERSISTENT)


async def test_row_3_every_message_has_an_id_although_a_program_does_without(world: World) -> None:
    scene = await Scene.open(world)
    queue, session = await scene.queue(), await scene.session()
    producer = session.create_producer(queue)
    assert not producer.disable_message_id
    producer.set_disable_message_id(True)
    assert producer.disable_message_id
    first, second = session.create_message(), session.create_message()
    await producer.send(first)
    await producer.send(second)
    assert first.jms_message_id.startswith("ID:")
    assert first.jms_message_id != second.jms_message_id
    assert (await scene.got(await session.create_consumer(queue))).jms_message_id == first.jms_message_id


async def test_row_4_a_message_has_its_time_although_a_program_does_without(world: World) -> None:
    scene = await Scene.open(world)
    session = await scene.session()
    producer, message = session.create_producer(scene.topic()), session.create_message()
    producer.set_disable_message_timestamp(True)
    await world.pause(0.01)
    assert producer.disable_message_timestamp is True
    await producer.send(message)
    assert message.jms_timestamp > 0


@pytest.mark.parametrize("value", ["42", b"\x00\xff", "ID:x"])
async def test_row_5_a_correlation_id_is_text_or_bytes(world: World, value: str | bytes) -> None:
    scene = await Scene.open(world)
    queue, session = await scene.queue(), await scene.session()
    message = session.create_message()
    message.set_jms_correlation_id(value)
    await session.create_producer(queue).send(message)
    assert (await scene.got(await session.create_consumer(queue))).jms_correlation_id == value


async def test_row_6_a_reply_goes_to_where_the_request_says(world: World) -> None:
    scene = await Scene.open(world)
    queue, session, other = await scene.queue(), await scene.session(), await scene.session()
    back = await session.create_temporary_queue()
    request = session.create_text_message("?")
    request.set_jms_reply_to(back)
    await session.create_producer(queue).send(request)
    question = await scene.got(await other.create_consumer(queue))
    await other.create_producer(None).send(question.jms_reply_to, other.create_text_message("!"))
    assert (await scene.got(await session.create_consumer(back))).text == "!"


async def test_row_7_a_redelivered_message_is_flagged(world: World) -> None:
    scene = await Scene.open(world)
    queue, session = await scene.queue(), await scene.session(CLIENT)
    inbox = await session.create_consumer(queue)
    await scene.send(queue, "x")
    assert (await scene.got(inbox)).jms_redelivered is False
    await session.recover()
    assert (await scene.got(inbox)).jms_redelivered is True


async def test_row_8_a_type_arrives_and_is_selected(world: World) -> None:
    scene = await Scene.open(world)
    queue, session = await scene.queue(), await scene.session()
    message = session.create_text_message("x")
    message.set_jms_type("order")
    await session.create_producer(queue).send(message)
    assert await (await session.create_consumer(queue, "JMSType = 'bill'")).receive_no_wait() is None
    assert (await scene.got(await session.create_consumer(queue, "JMSType = 'order'"))).jms_type == "order"


@pytest.mark.parametrize("given", [60_000, timedelta(minutes=1)])
async def test_row_9_a_lifetime_is_given_in_milliseconds(world: World, given: Any) -> None:
    scene = await Scene.open(world)
    session = await scene.session()
    producer, message = session.create_producer(scene.topic()), session.create_message()
    producer.set_time_to_live(given)
    assert producer.time_to_live == 60_000
    await producer.send(message)
    assert message.jms_expiration == message.jms_timestamp + 60_000
    await producer.send(message, PERSISTENT, 4, 120_000)
    assert message.jms_expiration == message.jms_timestamp + 120_000
    producer.set_time_to_live(0)
    await producer.send(message)
    assert message.jms_expiration == 0 or message.jms_expiration > message.jms_timestamp + 120_000


async def test_row_10_a_priority_is_the_producers_or_the_sends(world: World) -> None:
    scene = await Scene.open(world)
    session = await scene.session()
    producer, message = session.create_producer(scene.topic()), session.create_message()
    assert producer.priority == 4
    producer.set_priority(7)
    await producer.send(message)
    assert message.jms_priority == 7
    await producer.send(message, PERSISTENT, 9, 0)
    assert message.jms_priority == 9
    assert "0 to 9" in await raised(lambda: producer.set_priority(10), IllegalArgumentException)


async def test_row_11_a_delayed_message_is_not_seen_before_its_time(world: World) -> None:
    scene = await Scene.open(world)
    queue, session = await scene.queue(), await scene.session()
    producer, message = session.create_producer(queue), session.create_text_message("later")
    producer.set_delivery_delay(300)
    assert producer.delivery_delay == 300
    await producer.send(message)
    assert message.jms_delivery_time == message.jms_timestamp + 300
    inbox = await session.create_consumer(queue)
    assert await scene.texts(inbox) == []
    assert [each async for each in session.create_browser(queue).enumeration] == []
    assert (await scene.got(inbox)).text == "later"


async def test_row_12_fields_that_sending_sets_are_overwritten(world: World) -> None:
    scene = await Scene.open(world)
    session = await scene.session()
    message = session.create_message()
    message.set_jms_message_id("ID:mine")
    message.set_jms_timestamp(1)
    message.set_jms_priority(9)
    message.set_jms_expiration(2)
    message.set_jms_redelivered(True)
    message.set_jms_delivery_time(3)
    await world.pause(0.01)
    await session.create_producer(scene.topic()).send(message)
    assert message.jms_message_id != "ID:mine"
    assert message.jms_timestamp > 1
    assert message.jms_priority == 4
    assert message.jms_expiration != 2
    assert message.jms_redelivered is False
    assert message.jms_delivery_time == message.jms_timestamp


async def test_row_13_the_header_shows_the_values_with_which_a_message_was_sent(world: World) -> None:
    scene = await Scene.open(world)
    queue, session = await scene.queue(), await scene.session()
    message = session.create_message()
    await session.create_producer(queue).send(message, NON_PERSISTENT, 8, 90_000)
    got = await scene.got(await session.create_consumer(queue))
    for name in ("jms_delivery_mode", "jms_priority", "jms_expiration", "jms_timestamp"):
        assert getattr(got, name) == getattr(message, name)


async def test_row_17_a_received_message_is_read_only_until_it_is_cleared(world: World) -> None:
    scene = await Scene.open(world)
    queue, session = await scene.queue(), await scene.session()
    await scene.send(queue, "x", n=1)
    inbox = await session.create_consumer(queue)
    got = await scene.got(inbox)
    await raised(lambda: got.set_int_property("n", 2), MessageNotWriteableException)
    await raised(lambda: got.set_text("y"), MessageNotWriteableException)
    got.clear_properties()
    got.clear_body()
    got.set_int_property("n", 2)
    got.set_text("y")
    await session.create_producer(queue).send(got)
    again = await scene.got(inbox)
    assert (again.text, again.get_int_property("n")) == ("y", 2)


async def test_row_23_the_properties_of_groups_arrive(world: World) -> None:
    scene = await Scene.open(world)
    queue, session = await scene.queue(), await scene.session()
    message = session.create_message()
    message.set_string_property("JMSXGroupID", "g")
    message.set_int_property("JMSXGroupSeq", 3)
    await session.create_producer(queue).send(message)
    got = await scene.got(await session.create_consumer(queue))
    assert (got.get_string_property("JMSXGroupID"), got.get_int_property("JMSXGroupSeq")) == ("g", 3)
    assert got.get_long_property("JMSXRcvTimestamp") >= got.jms_timestamp


async def test_row_24_a_message_says_how_it_came(world: World) -> None:
    scene = await Scene.open(world)
    queue, session = await scene.queue(), await scene.session()
    await scene.send(queue, "x")
    assert (await scene.got(await session.create_consumer(queue))).get_int_property("JMS_carrypost_Hops") == 0


async def test_row_25_deliveries_are_counted(world: World) -> None:
    scene = await Scene.open(world)
    queue, session = await scene.queue(), await scene.session(TRANSACTED)
    inbox = await session.create_consumer(queue)
    await scene.send(queue, "x")
    counts = []
    for _ in range(3):
        counts.append((await scene.got(inbox)).get_int_property("JMSXDeliveryCount"))
        await session.rollback()
    assert counts == [1, 2, 3]


# ------------------------------------------------------------------------------------------------------- selectors


async def test_row_26_a_selector_is_checked_when_a_consumer_is_created(world: World) -> None:
    scene = await Scene.open(world)
    queue, session = await scene.queue(), await scene.session()
    await raised(lambda: session.create_consumer(queue, "x ="), InvalidSelectorException)
    await raised(lambda: session.create_browser(queue, "x ="), InvalidSelectorException)
    await raised(lambda: session.create_consumer(scene.topic(), "x = 'y' AND ( OR )"), InvalidSelectorException)
    await scene.send(queue, "x")
    for blank in (None, "", "  "):
        browser = session.create_browser(queue, blank)
        assert [each.text async for each in browser.enumeration] == ["x"]
    inbox = await session.create_consumer(queue, "n > 1")
    assert inbox.message_selector == "n > 1"


async def test_row_27_unselected_messages_stay_in_a_queue_and_never_enter_a_subscription(world: World) -> None:
    scene = await Scene.open(world)
    queue, topic, session = await scene.queue(), scene.topic(), await scene.session()
    some, listed = await session.create_consumer(queue, "n > 1"), await session.create_consumer(topic, "n > 1")
    for number in range(4):
        await scene.send(queue, str(number), n=number)
        await scene.send(topic, str(number), n=number)
    assert await scene.texts(some) == ["2", "3"]
    assert await scene.texts(listed) == ["2", "3"]
    await some.close()
    assert await scene.texts(await session.create_consumer(queue)) == ["0", "1"]


async def test_row_46_a_selector_does_not_name_what_is_set_on_receipt(world: World) -> None:
    scene = await Scene.open(world)
    queue, session = await scene.queue(), await scene.session()
    for to in (queue, scene.topic()):
        await raised(partial(session.create_consumer, to, "JMSXDeliveryCount > 1"), InvalidSelectorException)


# ---------------------------------------------------------------------------------------------------------- bodies


async def test_row_47_the_five_types_of_messages_arrive(world: World) -> None:
    scene = await Scene.open(world)
    queue, session = await scene.queue(), await scene.session()
    made = [
        session.create_message(), session.create_text_message("t"), session.create_bytes_message(b"b"),
        session.create_map_message({"m": 1}), session.create_stream_message(), session.create_object_message(),
    ]  # fmt: skip
    made[4].write_string("s")
    for each in made:
        await session.create_producer(queue).send(each)
    inbox = await session.create_consumer(queue)
    for each in made:
        assert (await scene.got(inbox)).body_type == each.body_type


async def test_row_52_a_message_may_be_changed_and_sent_again(world: World) -> None:
    scene = await Scene.open(world)
    queue, session = await scene.queue(), await scene.session()
    message, producer = session.create_text_message("first"), session.create_producer(queue)
    await producer.send(message)
    message.set_text("second")
    await producer.send(message)
    assert await scene.texts(await session.create_consumer(queue)) == ["first", "second"]


async def test_row_53_a_redelivery_is_as_it_was_sent(world: World) -> None:
    scene = await Scene.open(world)
    queue, session = await scene.queue(), await scene.session(CLIENT)
    inbox = await session.create_consumer(queue)
    await scene.send(queue, "x", n=1)
    got = await scene.got(inbox)
    got.clear_properties()
    got.clear_body()
    got.set_text("changed")
    await session.recover()
    again = await scene.got(inbox)
    assert (again.text, again.get_int_property("n")) == ("x", 1)


# ----------------------------------------------------------------------------------------------------- connections


async def test_row_57_a_connection_creates_sessions_and_takes_no_password(world: World) -> None:
    connection = await world.connect()
    session = await connection.create_session()
    assert (session.transacted, session.acknowledge_mode) == (False, Session.AUTO_ACKNOWLEDGE)
    names = world.names({})
    factory = await names.lookup("ConnectionFactory")
    assert "no users" in await raised(lambda: factory.create_connection("scott", "tiger"), JMSSecurityException)
    await names.close()


async def test_row_58_a_client_id_is_set_first_and_once_and_belongs_to_one_connection(world: World) -> None:
    name = fresh("client")
    first, second = await world.connect(), await world.connect()
    assert not first.client_id
    await first.set_client_id(name)
    assert first.client_id == name
    assert "already" in await raised(lambda: first.set_client_id("other"), IllegalStateException)
    await raised(lambda: second.set_client_id(name), InvalidClientIDException)
    await first.close()
    await second.set_client_id(name)
    for use in ("create_session", "start", "stop"):
        late = await world.connect()
        await getattr(late, use)()
        assert "before any other call" in await raised(
            partial(late.set_client_id, fresh("client")), IllegalStateException
        )


async def test_row_59_a_connection_is_born_stopped_and_start_and_stop_are_idempotent(world: World) -> None:
    scene = await Scene.open(world)
    connection = await world.connect()
    session, queue = await connection.create_session(), await scene.queue()
    inbox = await session.create_consumer(queue)
    await session.create_producer(queue).send(session.create_text_message("x"))
    assert await inbox.receive(50) is None
    await connection.start()
    await connection.start()
    assert (await scene.got(inbox)).text == "x"
    await connection.stop()
    await connection.stop()
    await scene.send(queue, "y")
    assert await inbox.receive(50) is None
    await connection.start()
    assert (await scene.got(inbox)).text == "y"


async def test_row_59_stop_waits_for_the_listener_that_is_being_called(world: World) -> None:
    scene = await Scene.open(world)
    queue, session = await scene.queue(), await scene.session()
    seen: list[str] = []

    def slow(message: Any) -> None:
        seen.append(message.text)

    (await session.create_consumer(queue)).set_message_listener(slow)
    await scene.send(queue, "a", "b", "c")
    await world.until(lambda: bool(seen))
    await scene.connection.stop()
    before = len(seen)
    await scene.send(queue, "d")
    await world.pause(0.02)
    assert len(seen) == before
    await scene.connection.start()
    await world.until(lambda: len(seen) == 4)


async def test_row_60_close_ends_receives_rolls_back_and_is_idempotent(world: World) -> None:
    scene = await Scene.open(world)
    queue = await scene.queue()
    connection = await world.connect()
    session, other = await connection.create_session(True), await connection.create_session(False, CLIENT)
    await connection.start()
    await scene.send(queue, "x")
    inbox = await session.create_consumer(queue)
    got = await scene.got(inbox)
    await session.create_producer(queue).send(session.create_text_message("never"))
    waits = await other.create_consumer(scene.topic())
    end = world.begin(waits.receive)
    await world.until(lambda: _is_receiving(waits))
    await connection.close()
    await connection.close()
    assert await end() is None
    assert "connection is closed" in await raised(connection.start, IllegalStateException)
    assert "connection is closed" in await raised(session.commit, IllegalStateException)
    await raised(got.acknowledge, IllegalStateException)
    again = await scene.got(await (await scene.session()).create_consumer(queue))
    assert (again.text, again.jms_redelivered) == ("x", True)
    assert await scene.texts(await (await scene.session()).create_consumer(queue)) == []


def _is_receiving(consumer: Any) -> bool:
    inner = getattr(consumer, "_inner", consumer)
    return bool(getattr(inner, "_inner", inner)._inner_consumer._intake.receiving)  # noqa: SLF001 - nothing public says it


async def test_row_61_a_listener_does_not_close_or_stop_what_waits_for_it(world: World) -> None:
    scene = await Scene.open(world)
    queue, session = await scene.queue(), await scene.session()
    inbox = await session.create_consumer(queue)
    told: list[str] = []
    inbox.set_message_listener(ending_listener((session, scene.connection), told))
    await scene.send(queue, "x")
    await world.until(lambda: len(told) == 3)
    assert all("listener" in text for text in told), told


def ending_listener(objects: tuple[Any, Any], told: list[str]) -> Any:
    """Return a listener that tries to close its session and its connection, and to stop the connection."""
    session, connection = objects
    calls = (session.close, connection.close, connection.stop)
    if hasattr(session, "blocking"):

        def listen(_: object) -> None:
            for call in calls:
                try:
                    call.blocking()
                except IllegalStateException as error:
                    told.append(str(error))

        return listen

    async def listen_awaited(_: object) -> None:
        told.extend([await raised(call, IllegalStateException) for call in calls])

    return listen_awaited


async def test_row_62_metadata_has_versions_and_names(world: World) -> None:
    data = (await world.connect()).meta_data
    assert (data.jms_version, data.jms_major_version, data.jms_minor_version) == ("1.1", 1, 1)
    assert data.jms_provider_name == "carrypost"
    version = f"{data.provider_major_version}.{data.provider_minor_version}."
    assert data.provider_version.startswith(version)
    assert {"JMSXGroupID", "JMSXGroupSeq", "JMSXDeliveryCount"} <= set(data.jmsx_property_names)


async def test_row_63_an_exception_listener_gets_what_no_call_can_raise(world: World) -> None:
    scene = await Scene.open(world)
    queue, session = await scene.queue(), await scene.session()
    heard: list[JMSException] = []
    assert not scene.connection.exception_listener
    scene.connection.set_exception_listener(heard.append)
    assert scene.connection.exception_listener == heard.append

    def failing(_: object) -> None:
        raise ValueError("no")

    (await session.create_consumer(queue)).set_message_listener(failing)
    await scene.send(queue, "x")
    await world.until(lambda: bool(heard))
    assert isinstance(heard[0].__cause__, ValueError)


async def test_row_64_a_session_receives_by_one_call_at_a_time(world: World) -> None:
    scene = await Scene.open(world)
    session = await scene.session()
    first, second = await session.create_consumer(scene.topic()), await session.create_consumer(scene.topic())
    end = world.begin(first.receive)
    await world.until(lambda: _is_receiving(first))
    assert "another call receives" in await raised(lambda: second.receive(10), IllegalStateException)
    assert "another call receives" in await raised(second.receive_no_wait, IllegalStateException)
    await first.close()
    assert await end() is None
    assert await second.receive_no_wait() is None


# -------------------------------------------------------------------------------------------------------- sessions


async def test_row_65_the_transacted_flag_wins_over_the_mode(world: World) -> None:
    connection = await world.connect()
    for given, mode in (
        ((True, AUTO), TRANSACTED), ((True, 0), TRANSACTED), ((False, CLIENT), CLIENT), ((False, 3), DUPS_OK),
        ((CLIENT,), CLIENT), ((TRANSACTED,), TRANSACTED),
    ):  # fmt: skip
        session = await connection.create_session(*given)
        assert (session.acknowledge_mode, session.transacted) == (mode, mode is TRANSACTED)
        await session.close()
    for wrong in ((False, 0), (False, 77), (False, "AUTO"), (1, AUTO), (None, AUTO)):
        await raised(partial(connection.create_session, *wrong), IllegalArgumentException)


@pytest.mark.parametrize("listening", [False, True])
async def test_row_66_auto_acknowledges_what_was_received_and_what_a_listener_returned_from(
    world: World, listening: bool
) -> None:
    scene = await Scene.open(world)
    queue, session = await scene.queue(), await scene.session(AUTO)
    inbox, seen = await session.create_consumer(queue), list[str]()
    await scene.send(queue, "x")
    if listening:
        inbox.set_message_listener(lambda message: seen.append(message.text))
        await world.until(lambda: bool(seen))
    else:
        await scene.got(inbox)
    await session.close()
    assert await scene.texts(await (await scene.session()).create_consumer(queue)) == []


async def test_row_67_acknowledging_one_acknowledges_all_that_the_session_got(world: World) -> None:
    scene = await Scene.open(world)
    queue, session = await scene.queue(), await scene.session(CLIENT)
    inbox = await session.create_consumer(queue)
    await scene.send(queue, "a", "b", "c")
    await scene.got(inbox)
    await (await scene.got(inbox)).acknowledge()
    await scene.got(inbox)
    await session.close()
    assert await scene.texts(await (await scene.session()).create_consumer(queue)) == ["c"]


async def test_row_68_dups_ok_acknowledges_by_itself(world: World) -> None:
    scene = await Scene.open(world)
    queue, session = await scene.queue(), await scene.session(DUPS_OK)
    await scene.send(queue, "a", "b")
    assert await scene.texts(await session.create_consumer(queue)) == ["a", "b"]
    await session.close()
    assert await scene.texts(await (await scene.session()).create_consumer(queue)) == []


async def test_row_69_recover_restarts_at_the_first_unacknowledged_message(world: World) -> None:
    scene = await Scene.open(world)
    queue, session = await scene.queue(), await scene.session(CLIENT)
    inbox = await session.create_consumer(queue)
    await scene.send(queue, "a", "b", "c")
    await (await scene.got(inbox)).acknowledge()
    assert await scene.texts(inbox) == ["b", "c"]
    await session.recover()
    again = [await scene.got(inbox), await scene.got(inbox)]
    assert [(each.text, each.jms_redelivered) for each in again] == [("b", True), ("c", True)]
    transacted = await scene.session(TRANSACTED)
    assert "this session is transacted" in await raised(transacted.recover, IllegalStateException)


async def test_row_70_an_acknowledged_message_never_comes_again(world: World) -> None:
    scene = await Scene.open(world)
    queue, session = await scene.queue(), await scene.session(CLIENT)
    inbox = await session.create_consumer(queue)
    await scene.send(queue, "x")
    await (await scene.got(inbox)).acknowledge()
    await session.recover()
    assert await scene.texts(inbox) == []
    await session.close()
    assert await scene.texts(await (await scene.session()).create_consumer(queue)) == []


async def test_row_71_a_message_is_sent_once(world: World) -> None:
    scene = await Scene.open(world)
    queue, session = await scene.queue(), await scene.session()
    (message,) = await scene.send(queue, "x")
    first = message.jms_message_id
    await session.create_producer(queue).send(message)
    inbox = await session.create_consumer(queue)
    ids = [(await scene.got(inbox)).jms_message_id for _ in range(2)]
    assert ids == [first, message.jms_message_id]
    assert ids[0] != ids[1]
    assert await scene.texts(inbox) == []


async def test_row_72_a_transaction_consumes_and_sends_together(world: World) -> None:
    scene = await Scene.open(world)
    inward, outward, session = await scene.queue(), await scene.queue(), await scene.session(TRANSACTED)
    inbox, producer = await session.create_consumer(inward), session.create_producer(outward)
    outbox = await (await scene.session()).create_consumer(outward)
    await scene.send(inward, "x")
    for end in (session.rollback, session.commit):
        assert (await scene.got(inbox)).text == "x"
        await producer.send(session.create_text_message("done"))
        assert await scene.texts(outbox) == []
        await end()
    assert await scene.texts(outbox) == ["done"]
    assert await scene.texts(inbox) == []
    plain = await scene.session()
    for call in (plain.commit, plain.rollback):
        text = await raised(call, IllegalStateException)
        assert text == "a session of the mode AUTO_ACKNOWLEDGE has no transactions: create it with create_session(True)"


async def test_row_73_parts_for_application_servers_are_not_offered(world: World) -> None:
    connection = await world.connect()
    session = await connection.create_session()
    assert session.message_listener is None
    for call in (
        lambda: connection.create_connection_consumer(Topic("x"), None, None, 1),
        lambda: connection.create_durable_connection_consumer(Topic("x"), "name", None, None, 1),
        lambda: session.set_message_listener(print), session.run,
    ):  # fmt: skip
        assert "not offered" in await raised(call, JMSException)


async def test_row_74_a_session_is_heard_in_the_order_of_its_sends(world: World) -> None:
    scene = await Scene.open(world)
    queue, topic, session = await scene.queue(), scene.topic(), await scene.session()
    subscriber, sent = await session.create_consumer(topic), [str(number) for number in range(12)]
    await scene.send(queue, *sent)
    await scene.send(topic, *sent)
    assert await scene.texts(subscriber) == sent
    assert await scene.texts(await session.create_consumer(queue)) == sent


async def test_row_75_listeners_of_a_session_are_called_one_at_a_time(world: World) -> None:
    scene = await Scene.open(world)
    session, running, most = await scene.session(), list[int](), list[int]()
    queues = [await scene.queue(), await scene.queue()]

    def listen(_: object) -> None:
        running.append(1)
        most.append(len(running))
        running.pop()

    for queue in queues:
        (await session.create_consumer(queue)).set_message_listener(listen)
        await scene.send(queue, "a", "b", "c")
    await world.until(lambda: len(most) == 6)
    assert set(most) == {1}


async def test_row_76_a_session_has_listeners_or_receives(world: World) -> None:
    scene = await Scene.open(world)
    session = await scene.session()
    first, second = await session.create_consumer(scene.topic()), await session.create_consumer(scene.topic())
    first.set_message_listener(lambda _: None)
    text = await raised(lambda: second.receive(10), IllegalStateException)
    assert text == "this session has listeners: receive in another session (connection.create_session())"
    first.set_message_listener(None)
    assert first.message_listener is None
    end = world.begin(second.receive)
    await world.until(lambda: _is_receiving(second))
    await raised(lambda: first.set_message_listener(lambda _: None), IllegalStateException)
    await second.close()
    await end()


@pytest.mark.parametrize("mode", [CLIENT, TRANSACTED])
async def test_row_77_a_queue_keeps_what_a_closed_session_did_not_acknowledge(world: World, mode: Any) -> None:
    scene = await Scene.open(world)
    queue, session = await scene.queue(), await scene.session(mode)
    await scene.send(queue, "x")
    await scene.got(await session.create_consumer(queue))
    await session.close()
    again = await scene.got(await (await scene.session()).create_consumer(queue))
    assert (again.text, again.jms_redelivered) == ("x", True)


# ---------------------------------------------------------------------------------------------------------- queues


async def test_row_78_each_message_of_a_queue_goes_to_one_consumer(world: World) -> None:
    scene = await Scene.open(world)
    queue = await scene.queue()
    inboxes = [await (await scene.session()).create_consumer(queue) for _ in range(2)]
    sent = [str(number) for number in range(10)]
    await scene.send(queue, *sent)
    assert sorted([*await scene.texts(inboxes[0]), *await scene.texts(inboxes[1])]) == sorted(sent)


async def test_row_80_receive_waits_for_ever_for_a_time_or_not_at_all(world: World) -> None:
    scene = await Scene.open(world)
    queue, session = await scene.queue(), await scene.session()
    inbox = await session.create_consumer(queue)
    assert await inbox.receive_no_wait() is None
    assert await inbox.receive(20) is None
    assert await inbox.receive(timedelta(milliseconds=20)) is None
    for endless in ((), (0,), (None,), (timedelta(0),)):
        end = world.begin(partial(inbox.receive, *endless))
        await world.until(lambda: _is_receiving(inbox))
        await scene.send(queue, "x")
        assert (await end()).text == "x"


async def test_row_81_a_browser_shows_what_waits_and_takes_nothing(world: World) -> None:
    scene = await Scene.open(world)
    queue, session = await scene.queue(), await scene.session()
    await scene.send(queue, "a", n=1)
    await scene.send(queue, "b", n=2)
    browser = session.create_browser(queue, "n > 0")
    assert (browser.queue, browser.message_selector) == (queue, "n > 0")
    assert [each.text async for each in browser.enumeration] == ["a", "b"]
    found, enumeration = [], browser.enumeration
    while await enumeration.has_more_elements():
        found.append((await enumeration.next_element()).text)
    assert found == ["a", "b"]
    assert "no more messages" in await raised(enumeration.next_element, IllegalStateException)
    await browser.close()
    assert await scene.texts(await session.create_consumer(queue)) == ["a", "b"]


async def test_row_82_a_temporary_destination_lives_with_its_connection_which_alone_consumes(world: World) -> None:
    scene = await Scene.open(world)
    connection = await world.connect()
    session, other = await connection.create_session(), await scene.session()
    queue, topic = await session.create_temporary_queue(), await session.create_temporary_topic()
    for each in (queue, topic):
        assert "temporary" in await raised(partial(other.create_consumer, each), InvalidDestinationException)
    inbox = await session.create_consumer(queue)
    assert "has a consumer" in await raised(queue.delete, IllegalStateException)
    await inbox.close()
    await queue.delete()
    assert "deleted" in await raised(
        lambda: session.create_producer(queue).send(session.create_message()), InvalidDestinationException
    )
    await connection.close()


async def test_row_83_a_queue_is_declared_before_it_is_used(world: World) -> None:
    scene = await Scene.open(world)
    session, name = await scene.session(), fresh("queue")
    queue = session.create_queue(name)
    text = await raised(
        lambda: session.create_producer(queue).send(session.create_message()), InvalidDestinationException
    )
    assert f"session.declare_queue({name!r})" in text
    declared = await session.declare_queue(name)
    await scene.send(declared, "x", session=session)
    assert await session.declare_queue(name) == declared
    assert await scene.texts(await session.create_consumer(session.create_queue(name))) == ["x"]


async def test_row_84_a_queue_holds_messages_while_there_are_no_consumers(world: World) -> None:
    scene = await Scene.open(world)
    queue = await scene.queue()
    connection = await world.connect()
    await scene.send(queue, "x", session=await connection.create_session())
    await connection.close()
    assert await scene.texts(await (await scene.session()).create_consumer(queue)) == ["x"]


@pytest.mark.parametrize("domain", ["queue", "topic"])
async def test_row_85_a_requestor_returns_a_reply_and_has_a_deadline(world: World, domain: str) -> None:
    scene = await Scene.open(world)
    to = await scene.queue() if domain == "queue" else scene.topic()
    session, server = await scene.session(), await scene.session()
    requestor = world.requestor(domain)(session, to)
    await raised(lambda: requestor.request(session.create_text_message("late"), 30), DeliveryTimeoutException)
    questions = await server.create_consumer(to)

    async def serve() -> None:
        question = await scene.got(questions)
        reply = server.create_text_message(f"{question.text}!")
        await server.create_producer(None).send(question.jms_reply_to, reply)

    end = world.begin(serve)
    reply = await requestor.request(session.create_text_message("hello"), WITHIN_MS)
    assert reply.text == "hello!"
    await end()
    await requestor.close()
    assert "session is closed" in await raised(session.create_message, IllegalStateException)


@pytest.mark.parametrize("correlated", [False, True])
async def test_row_85_further_replies_are_not_taken_for_that_of_the_next_request(
    world: World, correlated: bool
) -> None:
    scene = await Scene.open(world)
    topic, session, server = scene.topic(), await scene.session(), await scene.session()
    requestor, questions = world.requestor("topic")(session, topic), await server.create_consumer(topic)

    async def answer(question: Any, text: str) -> None:
        reply = server.create_text_message(text)
        if correlated:
            reply.set_jms_correlation_id(question.jms_message_id)
        await server.create_producer(None).send(question.jms_reply_to, reply)

    async def serve() -> None:
        first = await scene.got(questions)
        await answer(first, "first")
        if not correlated:
            await answer(first, "again")
        second = await scene.got(questions)
        if correlated:
            await answer(first, "late")
        await answer(second, "second")

    end = world.begin(serve)
    assert (await requestor.request(session.create_text_message("1"), WITHIN_MS)).text == "first"
    if not correlated:
        await world.pause(0.5)
    assert (await requestor.request(session.create_text_message("2"), WITHIN_MS)).text == "second"
    await end()


async def test_row_85_a_request_that_cannot_receive_its_reply_is_not_sent(world: World) -> None:
    scene = await Scene.open(world)
    queue, session = await scene.queue(), await scene.session()
    (await session.create_consumer(scene.topic())).set_message_listener(print)
    requestor = world.requestor("queue")(session, queue)
    text = await raised(lambda: requestor.request(session.create_text_message("x"), WITHIN_MS), IllegalStateException)
    assert "has listeners" in text
    assert [each async for each in (await scene.session()).create_browser(queue).enumeration] == []


# ----------------------------------------------------------------------------------------------------- reliability


async def test_row_86_the_sender_of_a_persistent_message_hears_of_its_delivery(world: World) -> None:
    scene = await Scene.open(world)
    queue, session = await scene.queue(), await scene.session()
    sent = await session.create_producer(queue).send(session.create_text_message("x"))
    assert sent.state is SendState.STORED
    await scene.got(await (await scene.session()).create_consumer(queue))
    await world.until(lambda: sent.state is SendState.DELIVERED)


async def test_row_87_a_non_persistent_message_is_delivered(world: World) -> None:
    scene = await Scene.open(world)
    queue, session = await scene.queue(), await scene.session()
    producer = session.create_producer(queue)
    producer.set_delivery_mode(NON_PERSISTENT)
    await producer.send(session.create_text_message("x"))
    got = await scene.got(await session.create_consumer(queue))
    assert (got.text, got.jms_delivery_mode) == ("x", NON_PERSISTENT)


# ---------------------------------------------------------------------------------------------------------- topics


async def test_row_90_a_subscription_lasts_while_its_consumer_is_open(world: World) -> None:
    scene = await Scene.open(world)
    topic, session = scene.topic(), await scene.session()
    inbox = await session.create_consumer(topic)
    await scene.send(topic, "x")
    assert await scene.texts(inbox) == ["x"]
    await inbox.close()
    await scene.send(topic, "y")
    await scene.settle()


async def test_row_91_a_durable_subscriber_gets_what_came_while_it_was_closed(world: World) -> None:
    scene = await Scene.open(world, client_id=fresh("client"))
    topic, session = scene.topic(), await scene.session()
    inbox = await session.create_durable_subscriber(topic, "inbox", "n > 1", True)
    assert (inbox.topic, inbox.message_selector, inbox.no_local) == (topic, "n > 1", True)
    other = await scene.session()
    await raised(lambda: other.create_durable_subscriber(topic, "inbox", "n > 1", True), JMSException)
    await inbox.close()
    await scene.send(topic, "x", n=2)
    await scene.send(topic, "y", n=1)
    inbox = await session.create_durable_consumer(topic, "inbox", "n > 1", True)
    assert await scene.texts(inbox) == ["x"]
    nameless = await (await world.connect()).create_session()
    await raised(lambda: nameless.create_durable_subscriber(topic, "inbox"), IllegalStateException)


@pytest.mark.parametrize("create", ["create_shared_consumer", "create_shared_durable_consumer"])
async def test_row_92_consumers_share_a_subscription(world: World, create: str) -> None:
    scene = await Scene.open(world, client_id=fresh("client"))
    topic = scene.topic()
    inboxes = [await getattr(await scene.session(), create)(topic, "shared") for _ in range(2)]
    sent = [str(number) for number in range(10)]
    await scene.send(topic, *sent)
    assert sorted([*await scene.texts(inboxes[0]), *await scene.texts(inboxes[1])]) == sorted(sent)


async def test_row_93_unsubscribe_ends_a_subscription_that_is_not_in_use(world: World) -> None:
    scene = await Scene.open(world, client_id=fresh("client"))
    topic, session = scene.topic(), await scene.session()
    inbox = await session.create_durable_subscriber(topic, "inbox")
    await raised(lambda: session.unsubscribe("inbox"), IllegalStateException)
    await inbox.close()
    await session.unsubscribe("inbox")
    await raised(lambda: session.unsubscribe("inbox"), InvalidDestinationException)


async def test_row_94_no_local_leaves_out_messages_of_its_own_connection(world: World) -> None:
    scene = await Scene.open(world)
    topic, session = scene.topic(), await scene.session()
    inbox = await session.create_consumer(topic, None, True)
    await scene.send(topic, "own", session=session)
    await scene.send(topic, "other")
    assert await scene.texts(inbox) == ["other"]


async def test_row_95_a_subscription_has_a_name_of_128_characters(world: World) -> None:
    scene = await Scene.open(world, client_id=fresh("client"))
    session, name = await scene.session(), "a_B.9-" + "x" * 122
    await (await session.create_durable_subscriber(scene.topic(), name)).close()
    await session.unsubscribe(name)
    await raised(lambda: session.create_durable_subscriber(scene.topic(), ""), IllegalArgumentException)


async def test_row_96_a_topic_of_the_same_name_is_the_same_topic(world: World) -> None:
    scene = await Scene.open(world)
    name, session, other = fresh("topic"), await scene.session(), await scene.session()
    inbox = await session.create_consumer(session.create_topic(name))
    await scene.send(other.create_topic(name), "x", session=other)
    assert await scene.texts(inbox) == ["x"]


async def test_row_97_names_have_levels_and_wildcards(world: World) -> None:
    scene = await Scene.open(world)
    name, session = fresh("topic"), await scene.session()
    inbox = await session.create_consumer(session.create_topic(f"{name}.*"))
    await scene.send(session.create_topic(f"{name}.a"), "x")
    assert await scene.texts(inbox) == ["x"]
    await raised(
        lambda: session.create_producer(session.create_topic(f"{name}.*")).send(session.create_message()),
        InvalidDestinationException,
    )


# --------------------------------------------------------------------------------------------------------- sending


class Completions:
    """A completion listener that keeps what it is told."""

    def __init__(self) -> None:
        self.done: list[str | None] = []
        self.failed: list[Exception] = []

    def on_completion(self, message: Any) -> None:
        self.done.append(message.text)

    def on_exception(self, _: object, error: Exception) -> None:
        self.failed.append(error)


async def test_row_100_a_completion_listener_is_called_in_order_when_messages_are_stored(world: World) -> None:
    scene = await Scene.open(world)
    queue, session, listener = await scene.queue(), await scene.session(), Completions()
    bound, free = session.create_producer(queue), session.create_producer(None)
    await bound.send(session.create_text_message("a"), listener)
    await bound.send(session.create_text_message("b"), NON_PERSISTENT, 5, 60_000, listener)
    await free.send(queue, session.create_text_message("c"), listener)
    await free.send(queue, session.create_text_message("d"), PERSISTENT, 5, 60_000, listener)
    await session.close()
    assert (listener.done, listener.failed) == (["a", "b", "c", "d"], [])


async def test_row_102_a_listener_that_raises_gets_the_message_again_or_the_next_one(world: World) -> None:
    scene = await Scene.open(world)
    queue, session = await scene.queue(), await scene.session()
    scene.connection.set_exception_listener(lambda _: None)
    seen: list[tuple[str, bool]] = []

    def failing(message: Any) -> None:
        seen.append((message.text, message.jms_redelivered))
        if len(seen) < 3:
            raise ValueError("no")

    (await session.create_consumer(queue)).set_message_listener(failing)
    await scene.send(queue, "x")
    await world.until(lambda: len(seen) == 3)
    assert seen == [("x", False), ("x", True), ("x", True)]


async def test_row_103_calls_of_the_other_domain_raise(world: World) -> None:
    queues, topics = await world.connect(None, "queue"), await world.connect(None, "topic")
    queueing, publishing = (
        await queues.create_queue_session(False, AUTO),
        await topics.create_topic_session(False, AUTO),
    )
    queue = await queueing.declare_queue(fresh("queue"))
    topic = publishing.create_topic(fresh("topic"))
    for call in (
        lambda: queueing.create_topic("x"), lambda: queueing.create_durable_subscriber(topic, "x"),
        queueing.create_temporary_topic, lambda: queueing.unsubscribe("x"),
        lambda: queueing.create_durable_consumer(topic, "x"), lambda: queueing.create_shared_consumer(topic, "x"),
        lambda: queueing.create_shared_durable_consumer(topic, "x"),
        lambda: publishing.create_queue("x"), lambda: publishing.create_browser(queue),
        publishing.create_temporary_queue, lambda: publishing.declare_queue("x"),
        lambda: queues.create_durable_connection_consumer(topic, "x", None, None, 1),
        lambda: world.requestor("topic")(queueing, topic), lambda: world.requestor("queue")(publishing, queue),
    ):  # fmt: skip
        assert "alone" in await raised(call, IllegalStateException)
    for call in (
        lambda: queueing.create_consumer(topic), lambda: queueing.create_producer(topic),
        lambda: queueing.create_sender(topic), lambda: queueing.create_receiver(topic),
        lambda: publishing.create_publisher(queue), lambda: publishing.create_subscriber(queue),
        lambda: queueing.create_sender(None).send(topic, TextMessage("x")),
        lambda: queueing.create_producer(None).send("topic/x", TextMessage("x")),
        lambda: publishing.create_publisher(None).publish(queue, TextMessage("x")),
    ):  # fmt: skip
        assert "alone" in await raised(call, InvalidDestinationException)
    assert isinstance(await raised(lambda: queues.create_session(False, 77), JMSException), str)


async def test_row_103_the_classes_of_one_domain_send_and_receive(world: World) -> None:
    queues, topics = await world.connect(None, "queue"), await world.connect(None, "topic")
    session, news = await queues.create_queue_session(), await topics.create_session()
    queue, topic = await session.declare_queue(fresh("queue")), news.create_topic(fresh("topic"))
    sender, publisher = session.create_sender(queue), news.create_publisher(topic)
    receiver, subscriber = (
        await session.create_receiver(queue, "n = 1"),
        await news.create_subscriber(topic, None, False),
    )
    assert (sender.queue, receiver.queue, publisher.topic, subscriber.topic) == (queue, queue, topic, topic)
    assert (subscriber.no_local, receiver.message_selector) == (False, "n = 1")
    await queues.start()
    await topics.start()
    message = session.create_text_message("x")
    message.set_int_property("n", 1)
    await sender.send(message)
    await publisher.publish(message)
    await news.create_publisher(None).publish(topic, message)
    assert (await receiver.receive(WITHIN_MS)).text == "x"
    assert [(await subscriber.receive(WITHIN_MS)).text for _ in range(2)] == ["x", "x"]


async def test_row_104_names_of_a_file_and_of_the_directory_are_looked_up(world: World) -> None:
    scene = await Scene.open(world)
    name = fresh("orders")
    names = world.names({"queue.here": name, "queue.there": "box@NODE", "topic.news": "village.news"})
    assert await names.lookup("news") == Topic("village.news")
    assert await names.lookup("there") == Queue("box@NODE")
    queue = await names.lookup("here")
    assert await names.lookup("here") == await names.lookup(name) == await names.lookup(f"queue/{name}") == queue
    await scene.send(queue, "tea")
    session = await scene.session()
    assert await scene.texts(await session.create_consumer(session.create_queue(name))) == ["tea"]
    await raised(lambda: names.lookup("nobody"), NameNotFoundException)
    await raised(lambda: names.lookup("queue/nobody"), NameNotFoundException)
    assert "did you mean ConnectionFactory?" in await raised(
        lambda: names.lookup("jms/ConnectionFactory"), NameNotFoundException
    )
    await names.bind(fresh("name"), queue)
    await names.close()
    assert "closed" in await raised(lambda: names.lookup("here"), IllegalStateException)
