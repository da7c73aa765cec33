"""Dead letters: messages with which programs failed too often are kept apart, to be examined and received."""

from __future__ import annotations

import logging

import pytest
from tests.support.jms_scenes import AT_ONCE, NEWS, SOON_S, got, scene, texts

from carrypost import (
    Context,
    IllegalArgumentException,
    InvalidDestinationException,
    JMSException,
    ListenerException,
    Message,
    Queue,
    SessionMode,
    Topic,
    testing,
)
from carrypost.model.address import has_wildcard
from carrypost.naming import InitialContext

INDIVIDUAL = SessionMode.INDIVIDUAL_ACKNOWLEDGE
BOX, DEAD, DEAD_MAIL = Queue("box@a"), Queue("DLQ.box@a"), Queue("DLQ.topic/news@a")
on_both_nodes = pytest.mark.parametrize("node", ["a", "b"])


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "carrypost.jms")


class Failing:
    """A listener that fails with every message, and what that leads to."""

    def __init__(self) -> None:
        self.got: list[tuple[str | None, int]] = []
        self.told: list[JMSException] = []

    def on_message(self, message: Message) -> None:
        self.got.append((message.get_body(str), message.get_int_property("JMSXDeliveryCount")))
        raise ValueError(message)

    def on_exception(self, error: JMSException) -> None:
        self.told.append(error)


async def browsed(context: Context, queue: Queue) -> list[str | None]:
    return [each.get_body(str) async for each in context.create_browser(queue).messages(timeout=SOON_S)]


@on_both_nodes
@scene("a", "b")
async def test_what_listeners_of_a_queue_fail_with_is_moved_at_its_manager(net: testing.Network, node: str) -> None:
    failing = Failing()
    async with net.context("a") as here, net.context(node) as there:
        there.set_exception_listener(failing.on_exception)
        await here.declare_queue("box")
        inbox = await there.create_consumer(BOX)
        inbox.set_message_listener(failing)
        await here.create_producer().send(BOX, "x")
        await net.run(SOON_S)
        assert failing.got == [("x", count) for count in range(1, 7)]
        assert [type(each) for each in failing.told] == [ListenerException]
        assert there.given_up == 1
        assert await browsed(here, DEAD) == ["x"]
        assert await browsed(here, BOX) == []
        inbox.set_message_listener(None)
        assert await inbox.receive(timeout=5) is None
        async with here.create_consumer(DEAD) as dead:
            letter = await got(dead)
            assert (letter.get_body(str), letter.jms_destination, letter.jms_redelivered) == ("x", BOX, True)
        assert await browsed(here, DEAD) == []


@scene("a", "b")
async def test_dead_letters_are_received_by_other_nodes_and_expire_as_they_would_have(net: testing.Network) -> None:
    async with net.context("a") as here, net.context("b") as there:
        here.set_exception_listener(lambda _: None)
        await here.declare_queue("box")
        async with here.create_consumer(BOX) as inbox:
            inbox.set_message_listener(Failing())
            for text, life_s in (("short", 100), ("long", 1000)):
                await here.create_producer().send(BOX, text, time_to_live=life_s)
            await net.run(50)
        assert await browsed(there, DEAD) == ["short", "long"]
        await net.run(100)
        assert await browsed(here, DEAD) == ["long"]
        assert await texts(await there.create_consumer(DEAD)) == ["long"]
        assert await browsed(here, DEAD) == []


@pytest.mark.parametrize("name", ["shop.orders", "shop.*", ">", "a/b@c(d)", "x" * 240])
@scene("a", messaging={"tries": 1})
async def test_the_queue_of_dead_letters_is_named_as_the_program_names_the_topic(
    net: testing.Network, name: str
) -> None:
    async with net.context("a") as context:
        context.set_exception_listener(lambda _: None)
        (await context.create_consumer(Topic(name))).set_message_listener(Failing())
        topic = Topic("shop.orders") if has_wildcard(name) else Topic(name)
        await context.create_producer().send(topic, "x")
        await net.run(5)
        letters = f"DLQ.topic/{name}"[: 256 - len("queue/a/")]
        assert await browsed(context, Queue(f"{letters}@a")) == ["x"]


@scene("a", messaging=AT_ONCE)
async def test_dead_letters_of_a_topic_are_in_a_queue_of_its_subscription(net: testing.Network) -> None:
    failing = Failing()
    async with net.context("a", client_id="me") as context:
        context.set_exception_listener(failing.on_exception)
        inbox = await context.create_durable_consumer(NEWS, "mail")
        inbox.set_message_listener(failing)
        await context.create_producer().send(NEWS, "x")
        await net.run(5)
        assert len(failing.got) == 6
        net.kill("a")
    net.restart("a")
    async with net.context("a", client_id="me") as context:
        assert await browsed(context, DEAD_MAIL) == ["x"]
        assert await texts(await context.create_durable_consumer(NEWS, "mail")) == []
        letter = await got(await context.create_consumer(DEAD_MAIL))
        assert (letter.get_body(str), letter.jms_destination) == ("x", NEWS)
        assert await browsed(context, DEAD_MAIL) == []


@on_both_nodes
@scene("a", "b", messaging={"tries": 3})
async def test_what_is_processed_in_vain_is_a_dead_letter_in_the_end(net: testing.Network, node: str) -> None:
    failing = Failing()
    async with net.context("a") as here, net.context(node, INDIVIDUAL) as there:
        there.set_exception_listener(failing.on_exception)
        await here.declare_queue("box")
        inbox = await there.create_consumer(BOX)
        await here.create_producer().send(BOX, "x")
        for count in (1, 2, 3):
            message = await got(inbox)
            assert message.get_int_property("JMSXDeliveryCount") == count
            with pytest.raises(KeyError):
                async with message.processing():
                    raise KeyError
        assert await inbox.receive(timeout=SOON_S) is None
        assert await browsed(here, DEAD) == ["x"]
        assert [type(each.__cause__) for each in failing.told] == [KeyError]


@scene("a", messaging={"tries": 2})
async def test_a_failure_that_the_program_caught_itself_does_not_fail_its_test(net: testing.Network) -> None:
    async with net.context("a", INDIVIDUAL) as context:  # Without an exception listener.
        box = await context.declare_queue("box")
        inbox = await context.create_consumer(box)
        await context.create_producer().send(box, "x")
        for _ in range(2):
            with pytest.raises(KeyError):
                async with (await got(inbox)).processing():
                    raise KeyError
        await net.run(5)
        assert context.given_up == 1


@scene("a", messaging=AT_ONCE)
async def test_a_dead_letter_that_a_program_fails_with_stays_with_it_until_it_ends(net: testing.Network) -> None:
    failing = Failing()
    async with net.context("a") as context:
        context.set_exception_listener(failing.on_exception)
        await context.declare_queue("box")
        async with context.create_context() as first:
            (await first.create_consumer(BOX)).set_message_listener(failing)
            await context.create_producer().send(BOX, "x")
            await net.run(5)
        async with context.create_context() as second:
            (await second.create_consumer(DEAD)).set_message_listener(failing)
            await net.run(3600)
            assert (len(failing.told), second.given_up) == (2, 1), "it does not come again and again"
        assert await texts(await context.create_consumer(DEAD)) == ["x"]


@scene("a")
async def test_a_dead_letter_is_written_on_a_full_disk(net: testing.Network) -> None:
    failing = Failing()
    async with net.context("a") as context:
        context.set_exception_listener(failing.on_exception)
        await context.declare_queue("box")

        def fail(message: Message) -> None:
            net.fill_disk("a")
            failing.on_message(message)

        (await context.create_consumer(BOX)).set_message_listener(fail)
        await context.create_producer().send(BOX, "x")
        await net.run(60)
        assert (len(failing.got), len(failing.told)) == (6, 1)
        net.kill("a")
    net.restart("a")
    async with net.context("a") as context:
        assert await browsed(context, DEAD) == ["x"]
        assert await browsed(context, BOX) == []


@scene("a", "b", messaging={"tries": 1})
async def test_dead_letters_can_be_waited_for_before_there_are_any(net: testing.Network) -> None:
    async with net.context("a", INDIVIDUAL) as here, net.context("b") as there:
        jobs = await here.declare_queue("jobs")
        near = await here.create_consumer(here.create_queue("DLQ.jobs"))
        assert [message async for message in here.create_browser(here.create_queue("DLQ.jobs"))] == []
        await near.close()
        far = await there.create_consumer(Queue("DLQ.jobs@a"))
        await here.create_producer().send(jobs, "bad")
        with pytest.raises(KeyError):
            async with (await got(await here.create_consumer(jobs))).processing():
                raise KeyError
        assert (await got(far)).get_body(str) == "bad"


@scene("a")
async def test_dead_letters_of_a_topic_can_be_waited_for_before_there_are_any(net: testing.Network) -> None:
    async with net.context("a") as context, net.context("a") as other:
        context.set_exception_listener(lambda _: None)
        letters = await other.create_consumer(other.create_queue("DLQ.topic/news"))

        def fail(message: object) -> None:
            raise ValueError(message)

        (await context.create_consumer(NEWS)).set_message_listener(fail)
        await context.create_producer().send(NEWS, "bad")
        assert (await got(letters)).get_body(str) == "bad"


@scene("a", "b")
async def test_names_of_dead_letters_are_those_of_this_node_whatever_others_advertise(net: testing.Network) -> None:
    async with net.context("a") as here, net.context("b") as there:
        await here.declare_queue("jobs")
        await InitialContext(there).bind("DLQ.jobs", await there.declare_queue("trap"))
        await net.run(SOON_S)
        assert await InitialContext(here).lookup("DLQ.jobs") == Queue("DLQ.jobs@a")
        with pytest.raises(InvalidDestinationException):
            await here.create_consumer(here.create_queue("DLQ.nothing"))


@pytest.mark.parametrize("reader", ["a", "b"])
@on_both_nodes
@scene("a", "b", messaging=AT_ONCE)
async def test_a_dead_letter_says_where_it_comes_from_how_often_it_was_tried_and_what_was_raised(
    net: testing.Network, node: str, reader: str
) -> None:
    failing = Failing()
    async with net.context("a") as here, net.context(node) as there, net.context(reader) as other:
        there.set_exception_listener(failing.on_exception)
        await here.declare_queue("box", tries=2)
        (await there.create_consumer(BOX)).set_message_listener(failing)
        await here.send(BOX, "x")
        await net.run(SOON_S)
        assert failing.got == [("x", 1), ("x", 2)]
        assert "the listener failed 2 times: it is now a dead letter in queue/DLQ.box@a" in str(failing.told[0])
        letter = await got(await other.create_consumer(DEAD))
        assert letter.get_string_property("JMS_carrypost_DeadSource") == "queue/box@a"
        assert letter.get_int_property("JMS_carrypost_DeadTries") == 2
        error = letter.get_string_property("JMS_carrypost_DeadError") or ""
        assert error.startswith("ValueError: ")
        assert "(test_jms_dead_letters.py, line " in error


@scene("a", messaging=AT_ONCE)
async def test_a_job_that_fails_too_often_is_no_failure_of_a_listener(net: testing.Network) -> None:
    told: list[JMSException] = []
    async with net.context("a", INDIVIDUAL) as ctx:
        ctx.set_exception_listener(told.append)
        await ctx.declare_queue("box", tries=1)
        await ctx.send(BOX, "x")
        message = await got(await ctx.create_consumer(BOX))
        with pytest.raises(KeyError):
            async with message.processing():
                raise KeyError("soup")
        await net.run(1)
        assert "processing it failed 1 times: it is now a dead letter in queue/DLQ.box@a" in str(told[0])
        letter = await got(await ctx.create_consumer(DEAD))
        assert (letter.get_string_property("JMS_carrypost_DeadError") or "").startswith("KeyError: 'soup' (")


@scene("a", messaging=AT_ONCE)
async def test_the_history_of_a_dead_letter_survives_a_restart_and_names_the_topic(net: testing.Network) -> None:
    async with net.context("a", INDIVIDUAL) as ctx:
        inbox = await ctx.create_shared_durable_consumer(Topic("news.*"), "mail")
        await ctx.send("topic/news.sport", "x")
        for _ in range(6):
            await got(inbox)
            await ctx.recover()
        assert await inbox.receive(timeout=1) is None
    net.kill("a")
    net.restart("a")
    async with net.context("a") as ctx:
        letter = await got(await ctx.create_consumer("queue/DLQ.topic/news.*@a"))
        assert letter.get_string_property("JMS_carrypost_DeadSource") == "topic/news.*"
        assert letter.get_int_property("JMS_carrypost_DeadTries") == 6
        error = letter.get_string_property("JMS_carrypost_DeadError")
        assert error == "delivered 6 times and never acknowledged"


@pytest.mark.parametrize("tries", [0, -1, 2.0, True, "3", 10_001])
@scene("a")
async def test_a_number_of_tries_that_is_none_is_refused(net: testing.Network, tries: object) -> None:
    async with net.context("a") as ctx:
        with pytest.raises(IllegalArgumentException, match="tries must be a whole number from 1 to 10,000"):
            await ctx.declare_queue("box", tries=tries)  # type: ignore[arg-type]
