"""Queues as programs use them: consumers without prefetch, browsers, requests and names, when things go wrong."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.jms_scenes import NEWS, SOON_S, got, node_id, scene, texts

from carrypost import (
    Context,
    DeliveryMode,
    IllegalStateException,
    InvalidDestinationException,
    JMSException,
    Message,
    Queue,
    ResourceAllocationException,
    SessionMode,
    TextMessage,
    Topic,
    testing,
)
from carrypost.messaging.control import BROWSES_MAX
from carrypost.naming import InitialContext

pytestmark = pytest.mark.attached("credit, requests and browsings cross the socket in both directions")

CLIENT, TRANSACTED = SessionMode.CLIENT_ACKNOWLEDGE, SessionMode.SESSION_TRANSACTED
BOX = Queue("box@" + node_id("a"))
on_both_nodes = pytest.mark.parametrize("node", ["a", "b"])


async def send(context: Context, *bodies: str, to: Queue | Topic = BOX) -> None:
    for body in bodies:
        await context.create_producer().send(to, body)


def counted(message: Message) -> tuple[str | None, int]:
    return message.get_body(str), message.get_int_property("JMSXDeliveryCount")


# -------------------------------------------------------------------------------------------------- consumers


@on_both_nodes
@scene("a", "b")
async def test_a_receive_that_is_cancelled_takes_nothing(net: testing.Network, node: str) -> None:
    async with net.context("a") as here, net.context(node) as there:
        await here.declare_queue("box")
        for prefetch in (0, 100):
            async with there.create_consumer(BOX, prefetch=prefetch) as inbox:
                waiting = asyncio.create_task(inbox.receive())
                await net.run(5)
                waiting.cancel()
                await send(here, "x")
                await net.run(SOON_S)
                assert counted(await got(inbox)) == ("x", 1)
                assert await inbox.receive(timeout=5) is None


@pytest.mark.parametrize("prefetch", [0, 1])
@scene("a", disk_delay_s=0.1)
async def test_one_message_at_most_is_in_doubt_after_a_crash(net: testing.Network, prefetch: int) -> None:
    async with net.context("a") as context:
        await context.declare_queue("box")
        await send(context, *map(str, range(5)))
        inbox = await context.create_consumer(BOX, prefetch=prefetch)
        assert [await inbox.receive_body(str, timeout=5) for _ in range(3)] == ["0", "1", "2"]
        net.kill("a")
    net.restart("a")
    async with net.context("a") as context:
        inbox = await context.create_consumer(BOX)
        assert [counted(each) async for each in inbox.messages(timeout=5)] == [("2", 2), ("3", 1), ("4", 1)]


@scene("a")
async def test_without_prefetch_nothing_is_fetched_for_a_connection_that_is_stopped(net: testing.Network) -> None:
    async with net.context("a") as idle, net.context("a") as other:
        await idle.declare_queue("box")
        inbox = await idle.create_consumer(BOX, prefetch=0)
        heard: list[str | None] = []
        async with idle.create_context() as listening:
            (await listening.create_consumer(BOX, prefetch=0)).set_message_listener(
                lambda message: heard.append(message.get_body(str))
            )
            await send(other, "before")
            await net.run(5)
            await idle.stop()
            await net.run(1)
            assert heard == ["before"]
            waiting = asyncio.create_task(inbox.receive(timeout=20))
            await net.run(1)
            await send(other, "x", "y", "z")
            async with other.create_consumer(BOX) as ready:
                assert await texts(ready, quiet_s=5) == ["y", "z"], "the listener had asked for one"
            await idle.start()
            await send(other, "to one of them")
            message = await waiting
        assert message is not None
        assert sorted([*map(str, heard), str(message.get_body(str))]) == ["before", "to one of them", "x"]


@on_both_nodes
@scene("a", "b")
async def test_a_decorated_listener_has_the_messages_of_a_queue(net: testing.Network, node: str) -> None:
    async with net.context("a") as here, net.context(node) as there:
        await here.declare_queue("box")
        heard: list[str | None] = []

        @there.listener(BOX)
        async def on_mail(message: TextMessage) -> None:
            await asyncio.sleep(1)
            heard.append(message.text)

        await there.start()
        await send(here, "x", "y")
        await net.run(SOON_S)
        assert heard == ["x", "y"]


@on_both_nodes
@scene("a", "b")
async def test_what_is_recovered_comes_again_in_its_order_without_prefetch_too(net: testing.Network, node: str) -> None:
    async with net.context("a") as here, net.context(node, CLIENT) as there:
        await here.declare_queue("box")
        await send(here, "x", "y", "z")
        for prefetch in (100, 0):
            async with there.create_consumer(BOX, prefetch=prefetch) as inbox:
                assert [(await got(inbox)).get_body(str) for _ in range(2)] == ["x", "y"]
                await there.recover()
                again = [await got(inbox) for _ in range(2)]
                assert [(each.get_body(str), each.jms_redelivered) for each in again] == [("x", True), ("y", True)]
                await there.recover()
            await net.run(SOON_S)


@scene("a", limits={"queue_messages_max": 2})
async def test_a_queue_that_is_full_says_so_and_takes_more_when_it_has_room(net: testing.Network) -> None:
    async with net.context("a") as context:
        await context.declare_queue("box")
        async with context.create_consumer(BOX, "FALSE"):  # Nobody takes anything.
            await send(context, "x", "y")
            with pytest.raises(ResourceAllocationException, match="has 2 messages of 2 bytes, and no room for more"):
                await send(context, "z")
        async with context.create_consumer(BOX) as inbox:
            assert await texts(inbox, quiet_s=5) == ["x", "y"]
            await send(context, "z")
            assert await texts(inbox, quiet_s=5) == ["z"]


# --------------------------------------------------------------------------------------------------- browsers


@scene("a", "b")
async def test_a_browser_that_waits_ends_with_its_context_and_with_its_node(net: testing.Network) -> None:
    net.unlink("a", "b")
    for end in ("close", "kill"):
        context = await net.context("b")
        browser = context.create_browser(BOX)
        waiting = asyncio.ensure_future(anext(aiter(browser)))
        await net.run(5)
        if end == "close":
            await context.close()
        else:
            net.kill("b")
        with pytest.raises(IllegalStateException, match=r"closed|was killed"):
            await waiting
        with pytest.raises(IllegalStateException, match=r"closed|was killed"):
            await anext(aiter(browser))


@scene("a", "b")
async def test_what_a_browser_sees_is_not_acknowledged_and_looks_do_not_mix(net: testing.Network) -> None:
    async with net.context("a") as here, net.context("b") as there:
        for name in ("box", "other"):
            await here.declare_queue(name)
            await send(here, f"in {name}", to=Queue(f"{name}@{node_id('a')}"))
        queues = [Queue(f"{name}@{node_id('a')}") for name in ("box", "other")]
        looks = [there.create_browser(each).messages(timeout=SOON_S) for each in queues]
        seen = await asyncio.gather(*(anext(look) for look in looks))
        assert [each.get_body(str) for each in seen] == ["in box", "in other"]
        assert all(each.properties.get("JMSXDeliveryCount") is None for each in seen)
        await seen[0].acknowledge()
        assert [[each async for each in look] for look in looks] == [[], []]
        assert await texts(await here.create_consumer(BOX)) == ["in box"]


@on_both_nodes
@scene("a", "b", limits={"descriptor_bytes_max": 48 * 1024, "descriptor_buffer_bytes_max": 1024 * 1024})
async def test_a_browser_shows_messages_whose_properties_do_not_fit_into_one_frame(
    net: testing.Network, node: str
) -> None:
    properties = {f"p{number}": "x" * 1_000 for number in range(40)}
    async with net.context("a", TRANSACTED) as here, net.context(node) as there:
        await here.declare_queue("box")
        for number in range(40):
            await here.send(BOX, str(number), properties=properties)
        await here.commit()
        for _ in range(2):  # Elsewhere they arrive one after the other at first, and then all of them are there.
            seen = [each.get_body(str) async for each in there.create_browser(BOX).messages(timeout=SOON_S)]
            assert seen == [str(number) for number in range(40)]
        await there.send(NEWS, "the program is still attached")


@scene(
    "a",
    limits={
        "descriptor_bytes_max": 1024 * 1024,
        "descriptor_buffer_bytes_max": 1024 * 1024,
        "attribute_bytes_max": 64 * 1024,
    },
)
async def test_the_largest_descriptor_of_all_reaches_a_program_with_others_before_it(net: testing.Network) -> None:
    async with net.context("a", TRANSACTED) as sender, net.context("a") as context:
        inbox = await context.create_consumer(NEWS)
        for count, nbytes in ((1, 65_000), (16, 65_500)):
            await sender.send(NEWS, str(count), properties={f"p{number}": "x" * nbytes for number in range(count)})
        await sender.commit()
        assert await texts(inbox) == ["1", "16"]


@scene("a", "b")
async def test_a_browser_that_is_never_answered_ends_after_an_hour_or_when_too_many_wait(net: testing.Network) -> None:
    net.unlink("a", "b")
    async with net.context("b") as there:
        browser = there.create_browser(BOX)
        assert [each async for each in browser] == []
        assert browser.age is None
        assert net.now == pytest.approx(3600, abs=1)
        waiting = asyncio.ensure_future(anext(aiter(browser)))
        await net.run(5)
        for _ in range(BROWSES_MAX):
            _ = [each async for each in there.create_browser(BOX).messages(timeout=1)]
        with pytest.raises(StopAsyncIteration):
            await waiting
        assert net.now < 3700


# --------------------------------------------------------------------------------------------------- requests


@scene("a", "b")
async def test_a_wait_for_a_reply_may_be_cancelled_and_begun_again(net: testing.Network) -> None:
    async with net.context("a") as here, net.context("b") as there:
        await here.declare_queue("box")
        asked = await there.request(BOX, "?", time_to_live=600)
        waiting = asyncio.create_task(asked.reply())
        await net.run(5)
        with pytest.raises(IllegalStateException, match="another task waits for this reply"):
            await asked.reply()
        waiting.cancel()
        await net.run(5)
        await here.reply(await got(await here.create_consumer(BOX)), "!")
        assert (await asked.reply(timeout=SOON_S)).get_body(str) == "!"


@scene("a")
async def test_who_waits_for_a_reply_is_told_when_the_context_closes(net: testing.Network) -> None:
    context = await net.context("a")
    asked = await context.request(Queue("box@" + node_id("b")), "?", time_to_live=600)
    waiting = asyncio.create_task(asked.reply())
    await net.run(5)
    await context.close()
    for wait in (waiting, asked.reply()):
        with pytest.raises(IllegalStateException, match="open the request there"):
            await wait


@scene("a")
async def test_a_request_that_was_not_sent_is_not_open(net: testing.Network) -> None:
    async with net.context("a") as context:
        with pytest.raises(InvalidDestinationException, match="declare it first"):
            await context.request(BOX, "?", time_to_live=600, correlation_id="x")
        await context.declare_queue("box")
        await context.request(BOX, "?", time_to_live=600, correlation_id="x")
        net.fill_disk("a")
        with pytest.raises(JMSException, match="the disk is full"):
            await context.request(BOX, "?", time_to_live=600, correlation_id="y")
        net.fill_disk("a", full=False)
        with pytest.raises(IllegalStateException, match="no request 'y' is open here"):
            await context.open_request("y")


@scene("a", "b")
async def test_a_listener_replies_in_its_transaction_and_requests_are_made_outside(net: testing.Network) -> None:
    async with net.context("a", TRANSACTED) as service, net.context("b") as there:
        await service.declare_queue("box")
        inbox = await service.create_consumer(BOX)
        asked = await there.request(BOX, "?", time_to_live=600)
        for commits in (False, True):
            await service.reply(await got(inbox), f"{commits}")
            await net.run(SOON_S)
            await (service.commit if commits else service.rollback)()
        assert (await asked.reply(timeout=SOON_S)).get_body(str) == "True"
        with pytest.raises(IllegalStateException, match="sends requests only with the commit"):
            await service.request(BOX, "?", time_to_live=600)


@scene("a", "b")
async def test_whoever_replies_first_to_a_topic_is_heard_and_a_reply_that_is_too_late_is_not_sent(
    net: testing.Network,
) -> None:
    async with net.context("a") as here, net.context("b") as there:
        inboxes = [await here.create_consumer(NEWS) for _ in range(2)]
        await net.run(5)
        asked = await there.request(NEWS, "who is there?", time_to_live=100)
        questions = [await got(inbox) for inbox in inboxes]
        await here.reply(questions[0], "first")
        assert (await asked.reply(timeout=SOON_S)).get_body(str) == "first"
        late = await here.reply(questions[1], "second")
        with pytest.raises(JMSException, match="the message failed: nobody waits for this reply"):
            await late.delivered(timeout=SOON_S)
        assert [each async for each in there.create_browser(Queue("$replies@b"))] == []
        await net.run(100)
        with pytest.raises(IllegalStateException, match="the request has expired"):
            await here.reply(questions[0], "late")


# ------------------------------------------------------------------------------------------------------ names


@scene("a", "b")
async def test_a_short_name_is_looked_up_when_it_is_used_first(net: testing.Network) -> None:
    async with net.context("a") as here, net.context("b") as there:
        short = there.create_queue("box")
        with pytest.raises(InvalidDestinationException, match="there is no queue 'box' on this node"):
            await there.create_consumer(short)
        await here.declare_queue("box")
        await net.run(SOON_S)
        assert (short.queue_name, repr(short)) == ("box", "NamedQueue('box')")
        assert short == here.create_queue("box") != BOX
        async with there.create_consumer(short) as inbox:
            assert inbox.destination == BOX
            message = there.create_text_message("x")
            await there.create_producer().set_delivery_mode(DeliveryMode.NON_PERSISTENT).send(short, message)
            assert message.jms_destination == BOX
            assert (await got(inbox)).jms_destination == BOX
        assert short.queue_name == "box@" + node_id("a")
        assert [each async for each in here.create_browser(short)] == []
        assert len({short, here.create_queue("box"), BOX}) == 2


@scene("a", "b", "c")
async def test_a_short_name_of_several_queues_tells_who_they_are(net: testing.Network) -> None:
    async with net.context("a") as here, net.context("b") as there, net.context("c") as beyond:
        for context in (here, there):
            await context.declare_queue("box")
        await net.run(SOON_S)
        with pytest.raises(InvalidDestinationException, match=r"box@a.*box@b"):
            await beyond.create_producer().send(beyond.create_queue("box"), "x")
        mine = here.create_queue("box")
        async with here.create_consumer(mine):  # One's own wins.
            assert mine.queue_name == "box@" + node_id("a")


@scene("a", "b")
async def test_a_queue_that_is_not_advertised_is_found_by_its_full_name_and_at_home(net: testing.Network) -> None:
    async with net.context("a") as here, net.context("b") as there:
        await here.declare_queue("box", advertise=False)
        await net.run(SOON_S)
        with pytest.raises(InvalidDestinationException, match="there is no queue 'box'"):
            await there.create_producer().send(there.create_queue("box"), "x")
        await send(there, "x")
        assert await texts(await here.create_consumer(here.create_queue("box"))) == ["x"]


@scene("a")
async def test_a_queue_that_cannot_be_declared_leaves_no_name(net: testing.Network) -> None:
    async with net.context("a") as context:
        names = InitialContext(context)
        with pytest.raises(JMSException, match="no policy"):
            await context.declare_queue("box", policy="none")
        assert await names.list() == []
        await context.declare_queue("box")
        assert await names.lookup("box") == BOX
        with pytest.raises(JMSException, match="other options"):
            await context.declare_queue("box", redelivery="after_lease")
        assert await names.lookup("box") == BOX
        await names.unbind("box")
        with pytest.raises(InvalidDestinationException, match="declare it first"):
            await send(context, "x")
