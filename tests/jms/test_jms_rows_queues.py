"""Rows 78 to 85 of the checklist, and those of others that queues have a part in: 6, 27, 46, 70, 72."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from functools import partial
from itertools import chain, combinations

import pytest
from tests.support.jms_scenes import SOON_S, got, node_id, scene, texts

from carrypost import (
    Consumer,
    Context,
    DeliveryTimeoutException,
    IllegalArgumentException,
    IllegalStateException,
    InvalidDestinationException,
    InvalidSelectorException,
    JMSException,
    Queue,
    SendState,
    SessionMode,
    StateError,
    Topic,
    testing,
)

pytestmark = pytest.mark.attached("credit, requests and browsings cross the socket in both directions")

ROWS = (6, 27, 46, 70, 72, *range(78, 86))
CLIENT, TRANSACTED = SessionMode.CLIENT_ACKNOWLEDGE, SessionMode.SESSION_TRANSACTED
BOX = Queue("box@" + node_id("a"))
"""The queue of node "a", once that has declared it."""
HOUR_S = 3_600.0


async def send(context: Context, *bodies: str, to: Queue | Topic = BOX, **properties: int) -> None:
    producer = context.create_producer()
    for name, value in properties.items():
        producer.set_property(name, value)
    for body in bodies:
        await producer.send(to, body)


async def flagged(consumer: Consumer, *, quiet_s: float = SOON_S) -> list[tuple[str | None, bool]]:
    return [(each.get_body(str), each.jms_redelivered) async for each in consumer.messages(timeout=quiet_s)]


def among(net: testing.Network, *pairs: str) -> None:
    """Of "a", "b" and "c", these are in reach of each other, and no others."""
    for a, b in combinations("abc", 2):
        with suppress(StateError):  # They are not.
            net.unlink(a, b)
        if a + b in pairs:
            net.link(a, b)


# ------------------------------------------------------------------------------------------- rows of others


@scene("a", "b")
async def test_row_6_a_queue_to_reply_to_is_usable_without_a_directory(net: testing.Network) -> None:
    async with net.context("a") as here, net.context("b") as there:
        await here.declare_queue("box")
        back = await there.create_temporary_queue()
        answers = await there.create_consumer(back)
        await there.create_producer().set_jms_reply_to(back).set_jms_correlation_id("7").send(BOX, "?")
        question = await got(await here.create_consumer(BOX))
        assert (question.jms_reply_to, question.jms_destination) == (back, BOX)
        assert isinstance(question.jms_reply_to, Queue)
        assert question.jms_reply_to.queue_name.endswith("@" + node_id("b"))
        await here.create_producer().send(question.jms_reply_to, "!")
        assert await texts(answers) == ["!"]
        with pytest.raises(IllegalArgumentException, match="full name, NAME@NODE"):
            question.jms_reply_to = here.create_queue("box")


@pytest.mark.parametrize("node", ["a", "b"])
@scene("a", "b")
async def test_row_27_what_a_selector_leaves_stays_in_the_queue(net: testing.Network, node: str) -> None:
    async with net.context("a") as here, net.context(node) as there:
        await here.declare_queue("box")
        async with there.create_consumer(BOX, "urgency > 3") as some:
            for urgency in (1, 5, 3, 4, 2):
                await send(here, str(urgency), urgency=urgency)
            assert sorted(await texts(some)) == ["4", "5"]
        async with there.create_consumer(BOX) as rest:
            assert await texts(rest) == ["1", "3", "2"]


@pytest.mark.parametrize("name", ["JMSXDeliveryCount", "JMSXRcvTimestamp", "JMSXUserID", "JMS_carrypost_Hops"])
@scene("a")
async def test_row_46_what_is_set_on_receipt_cannot_choose_from_a_queue(net: testing.Network, name: str) -> None:
    async with net.context("a") as context:
        await context.declare_queue("box")
        refused = partial(pytest.raises, InvalidSelectorException, match=f"{name} is set when a message is received")
        with refused() as told:
            await context.create_consumer(BOX, f"x = 1 OR {name} IS NOT NULL")
        assert told.value.position == 10
        with refused():
            context.create_browser(BOX, f"{name} IS NOT NULL")
        async with context.create_consumer(BOX, f"x = '{name}' AND JMSXGroupID = 'g'"):
            pass


@scene("a", "b")
async def test_row_70_what_was_acknowledged_never_comes_again(net: testing.Network) -> None:
    async with net.context("a") as here:
        await here.declare_queue("box")
        async with net.context("b", CLIENT) as there:
            inbox = await there.create_consumer(BOX)
            await send(here, "x")
            await (await got(inbox)).acknowledge()
            net.kill("b")
        net.kill("a")
    for node in ("a", "b"):
        net.restart(node)
    async with net.context("a") as here, net.context("b") as there:
        again = await there.create_consumer(BOX), await here.create_consumer(BOX)
        await send(here, "y")
        assert list(chain(*[await flagged(each) for each in again])) == [("y", False)]


@pytest.mark.parametrize("node", ["a", "b"])
@scene("a", "b")
async def test_row_72_a_transaction_consumes_and_sends_topics_and_queues_together(
    net: testing.Network, node: str
) -> None:
    async with net.context("a") as here, net.context(node, TRANSACTED) as tx:
        await here.declare_queue("box")
        await here.declare_queue("done")
        heard = await here.create_consumer(Topic("news"))
        done = await here.create_consumer(Queue("done@" + node_id("a")))
        inbox = await tx.create_consumer(BOX)
        await send(here, "x")
        for commits in (False, True):
            taken = await got(inbox)
            assert (taken.get_body(str), taken.jms_redelivered) == ("x", commits)
            await send(tx, "told", to=Topic("news"))
            await send(tx, "filed", to=Queue("done@" + node_id("a")))
            assert await done.receive(timeout=5) is None, "nothing is sent before the commit"
            await (tx.commit if commits else tx.rollback)()
        assert (await texts(heard), await texts(done)) == (["told"], ["filed"])
        assert await inbox.receive(timeout=5) is None
        await tx.rollback()
        assert await inbox.receive(timeout=5) is None


# --------------------------------------------------------------------------------- 78, 79: one receiver each


@scene("a", "b", "c")
async def test_row_78_each_message_goes_to_one_consumer_and_they_share_fairly(net: testing.Network) -> None:
    async with net.context("a") as here, net.context("b") as there, net.context("c") as beyond:
        assert (await here.declare_queue("box")).queue_name == "box@" + node_id("a")
        consumers = [await context.create_consumer(BOX) for context in (here, here, there, beyond)]
        await net.run(5)
        await send(there, *map(str, range(24)))
        shares = [await texts(each) for each in consumers]
        assert Counter(chain(*shares)) == Counter(map(str, range(24)))
        assert [len(share) for share in shares] == [4, 4, 8, 8], "nodes have turns, and consumers of a node in theirs"


@scene("a")
async def test_row_78_what_matters_more_goes_first_then_what_is_older(net: testing.Network) -> None:
    async with net.context("a") as context:
        await context.declare_queue("box")
        for priority in (4, 9, 0, 4, 9):
            await context.create_producer().set_priority(priority).send(BOX, f"{priority} at {net.now}")
            await net.run(1)
        consumer = await context.create_consumer(BOX)
        assert await texts(consumer) == ["9 at 1.0", "9 at 4.0", "4 at 0.0", "4 at 3.0", "0 at 2.0"]


@pytest.mark.parametrize("mode", [mode for mode in SessionMode if mode is not TRANSACTED])
@pytest.mark.parametrize("node", ["a", "b"])
@scene("a", "b")
async def test_row_79_what_was_not_acknowledged_stays_with_its_node(
    net: testing.Network, node: str, mode: SessionMode
) -> None:
    by_itself = mode in {SessionMode.AUTO_ACKNOWLEDGE, SessionMode.DUPS_OK_ACKNOWLEDGE}
    async with net.context("a") as here:
        await here.declare_queue("box")
        async with net.context(node, mode) as context:
            inbox = await context.create_consumer(BOX)
            await send(here, "x")
            assert (await got(inbox)).get_body(str) == "x"
        async with net.context("b" if node == "a" else "a") as other, other.create_consumer(BOX) as elsewhere:
            assert await flagged(elsewhere) == []
        async with net.context(node) as context, context.create_consumer(BOX) as inbox:
            assert await flagged(inbox) == ([] if by_itself else [("x", True)])


@scene("a", "b", "c")
async def test_row_79_after_a_lease_another_node_gets_it_flagged(net: testing.Network) -> None:
    async with net.context("a") as here, net.context("c") as beyond:
        await here.declare_queue("box", redelivery="after_lease", lease_s=HOUR_S)
        async with net.context("b", CLIENT) as there:
            inbox = await there.create_consumer(BOX)
            await send(here, "x")
            await got(inbox)
            net.kill("b")
        begun = net.now
        other = await beyond.create_consumer(BOX)
        taken = await other.receive(timeout=3 * HOUR_S)
        assert taken is not None
        assert (taken.get_body(str), taken.jms_redelivered) == ("x", True)
        assert HOUR_S - 60 <= net.now - begun <= HOUR_S + 60


@scene("a", "b", "c")
async def test_row_79_without_leases_nobody_else_ever_gets_it(net: testing.Network) -> None:
    async with net.context("a") as here, net.context("c") as beyond:
        await here.declare_queue("box")
        async with net.context("b", CLIENT) as there:
            inbox = await there.create_consumer(BOX)
            await send(here, "x")
            await got(inbox)
            net.kill("b")
        other = await beyond.create_consumer(BOX)
        assert await other.receive(timeout=5 * HOUR_S) is None
    net.restart("b")
    async with net.context("b") as there:
        assert await flagged(await there.create_consumer(BOX)) == [("x", True)]


# ---------------------------------------------------------------------------------------------- 80: receiving


@pytest.mark.parametrize("node", ["a", "b"])
@scene("a", "b")
async def test_row_80_receive_waits_and_receive_no_wait_takes_what_is_here(net: testing.Network, node: str) -> None:
    async with net.context("a") as here, net.context(node) as there:
        await here.declare_queue("box")
        inbox = await there.create_consumer(BOX)
        assert await inbox.receive_no_wait() is None
        assert await inbox.receive(timeout=7) is None
        assert net.now == 7
        waiting = asyncio.create_task(inbox.receive())
        await net.run(2 * HOUR_S)
        await send(here, "x", "y")
        taken = await asyncio.wait_for(waiting, SOON_S)
        assert taken is not None
        assert taken.get_body(str) == "x"
        await net.run(SOON_S)
        taken = await inbox.receive_no_wait()
        assert taken is not None
        assert taken.get_body(str) == "y"


@pytest.mark.parametrize("node", ["a", "b"])
@scene("a", "b")
async def test_row_80_without_prefetch_a_consumer_takes_only_what_its_program_waits_for(
    net: testing.Network, node: str
) -> None:
    async with net.context("a") as here, net.context(node) as there:
        await here.declare_queue("box")
        busy, ready = await there.create_consumer(BOX, prefetch=0), await here.create_consumer(BOX, prefetch=0)
        await send(here, *map(str, range(5)))
        first = await got(busy)
        assert await texts(ready) == ["1", "2", "3", "4"], "nothing waits at the busy one"
        await ready.close()
        assert first.get_body(str) == "0"
        waiting = asyncio.create_task(busy.receive(timeout=SOON_S))
        await net.run(5)
        await send(here, "5")
        taken = await waiting
        assert taken is not None
        assert taken.get_body(str) == "5"


@scene("a")
async def test_row_80_without_prefetch_receive_no_wait_sees_what_is_in_a_queue_of_this_node(
    net: testing.Network,
) -> None:
    async with net.context("a") as context:
        await context.declare_queue("box")
        inbox = await context.create_consumer(BOX, prefetch=0)
        assert await inbox.receive_no_wait() is None
        await send(context, "x", "y", "z" * 3_000_000, "after a large one")
        found = [await inbox.receive_no_wait() for _ in range(5)]
        assert [each and len(each.get_body(str) or "") for each in found] == [1, 1, 3_000_000, 17, None]


@scene("a", "b")
async def test_row_80_an_assignment_that_comes_too_late_waits_for_the_next_receive(net: testing.Network) -> None:
    async with net.context("a") as here, net.context("b") as there:
        await here.declare_queue("box")
        inbox = await there.create_consumer(BOX, prefetch=0)
        assert await inbox.receive(timeout=5) is None
        await send(here, "late")
        await net.run(SOON_S)
        async with here.create_consumer(BOX) as other:
            assert await other.receive(timeout=5) is None
            assert (await got(inbox)).get_body(str) == "late"
            assert await inbox.receive(timeout=5) is None
            await send(here, "late again")
            await net.run(SOON_S)
            await inbox.close()
            assert await flagged(other) == [("late again", False)], "nobody saw it, so it goes back"


@pytest.mark.parametrize("prefetch", [0, 1, 100])
@pytest.mark.parametrize("node", ["a", "b"])
@scene("a", "b")
async def test_row_80_listeners_and_iterations_take_messages_of_a_queue(
    net: testing.Network, node: str, prefetch: int
) -> None:
    async with net.context("a") as here, net.context(node) as there:
        await here.declare_queue("box")
        heard: list[str | None] = []
        async with there.create_consumer(BOX, prefetch=prefetch) as inbox:
            inbox.set_message_listener(lambda message: heard.append(message.get_body(str)))
            await send(here, "x", "y", "z")
            await net.run(SOON_S)
        assert heard == ["x", "y", "z"]
        async with there.create_context() as other, other.create_consumer(BOX, prefetch=prefetch) as inbox:
            await send(here, "1", "2", "3")
            assert await texts(inbox) == ["1", "2", "3"]


# ----------------------------------------------------------------------------------------------- 81: browsing


@scene("a")
async def test_row_81_a_browser_sees_what_waits_and_takes_nothing(net: testing.Network) -> None:
    async with net.context("a") as context:
        await context.declare_queue("box")
        await send(context, "x", "y", urgency=1)
        await send(context, "z", urgency=5)
        async with context.create_browser(BOX) as browser, context.create_browser(BOX, "urgency > 3") as some:
            assert (browser.queue, browser.message_selector, some.message_selector) == (BOX, None, "urgency > 3")
            assert (browser.age, browser.taken_at) == (None, None)
            await net.run(10)
            for _ in range(2):
                assert [each.get_body(str) async for each in browser] == ["x", "y", "z"]
            assert [each.get_body(str) async for each in some] == ["z"]
            await net.run(2)
            assert browser.age == 2
        with pytest.raises(IllegalStateException, match="this browser is closed"):
            _ = [each async for each in browser]
        assert await texts(await context.create_consumer(BOX)) == ["x", "y", "z"]
        assert [each async for each in context.create_browser(BOX)] == []


@pytest.mark.parametrize("node", ["a", "b"])
@scene("a", "b")
async def test_row_81_a_browser_sees_neither_what_is_delayed_nor_what_is_dead_nor_what_others_have(
    net: testing.Network, node: str
) -> None:
    async with net.context("a", CLIENT) as here, net.context(node) as there:
        await here.declare_queue("box")
        await here.create_producer().set_delivery_delay(100).send(BOX, "delayed")
        await here.create_producer().send(BOX, "dead", time_to_live=5)
        await here.create_producer().set_priority(9).send(BOX, "somebody has it")
        await got(await here.create_consumer(BOX, prefetch=1))
        await send(here, "waits")
        await net.run(20)
        browser = there.create_browser(BOX)
        assert [each.get_body(str) async for each in browser.messages(timeout=SOON_S)] == ["waits"]
        await net.run(100)
        assert [each.get_body(str) async for each in browser.messages(timeout=SOON_S)] == ["delayed", "waits"]


@scene("a", "b", "c")
async def test_row_81_a_browser_elsewhere_sees_a_snapshot_and_its_age(net: testing.Network) -> None:
    among(net, "ab", "bc")
    async with net.context("a") as here, net.context("c") as beyond:
        await here.declare_queue("box")
        await send(here, "x", "y")
        browser = beyond.create_browser(BOX)
        assert [each.get_body(str) async for each in browser.messages(timeout=SOON_S)] == ["x", "y"]
        assert browser.age is not None
        assert 0 < browser.age < 10
        await net.run(100)
        assert 100 < browser.age < 110
        among(net)
        assert [each async for each in browser.messages(timeout=SOON_S)] == []
        assert browser.age > 100, "nobody answered"
        among(net, "ab", "bc")
        assert await texts(await here.create_consumer(BOX)) == ["x", "y"]


# ---------------------------------------------------------------------------------------------- 82: temporary


@scene("a", "b")
async def test_row_82_a_temporary_destination_lives_with_its_connection_which_alone_consumes(
    net: testing.Network,
) -> None:
    async with net.context("b") as there:
        async with net.context("a") as here, here.create_context() as child:
            for made in (await here.create_temporary_queue(), await here.create_temporary_topic()):
                async with child.create_consumer(made) as own:
                    plain = Queue(made.queue_name) if isinstance(made, Queue) else Topic(made.topic_name)
                    for node in ("a", "b"):
                        async with net.context(node) as other:
                            for name in (made, plain):
                                with pytest.raises(
                                    InvalidDestinationException, match="only the connection that created"
                                ):
                                    await other.create_consumer(name)
                            await net.run(5)
                            await other.create_producer().send(plain, node)
                    assert sorted(await texts(own)) == ["a", "b"]
            left = made
        await there.create_producer().send(left, "nobody is there")
        await net.run(SOON_S)
        async with net.context("a") as other:
            with pytest.raises(InvalidDestinationException, match="is temporary"):
                await other.create_consumer(left)


@scene("a")
async def test_row_82_a_temporary_destination_is_deleted_when_nobody_consumes(net: testing.Network) -> None:
    async with net.context("a") as context:
        for made in (await context.create_temporary_queue(), await context.create_temporary_topic()):
            async with context.create_consumer(made):
                with pytest.raises(IllegalStateException, match="has a consumer: close the consumer before you delete"):
                    await made.delete()
            await made.delete()
            await made.delete()
            with pytest.raises(InvalidDestinationException, match="was deleted"):
                await context.create_producer().send(made, "x")
            with pytest.raises(InvalidDestinationException, match="only the connection that created it"):
                await context.create_consumer(made)


@scene("a")
async def test_row_82_temporary_destinations_are_gone_after_a_crash(net: testing.Network) -> None:
    async with net.context("a") as context:
        made = await context.create_temporary_queue()
        await context.create_producer().send(made, "x")
        net.kill("a")
    net.restart("a")
    async with net.context("a") as context:
        with pytest.raises(InvalidDestinationException, match="manages no queue"):
            await context.create_producer().send(Queue(made.queue_name), "y")


# --------------------------------------------------------------------------------- 83, 84: queues last


@scene("a", "b")
async def test_row_83_a_queue_is_found_again_with_what_waits_in_it(net: testing.Network) -> None:
    async with net.context("a") as context:
        box = await context.declare_queue("box", redelivery="after_lease", lease_s=60)
        assert await context.declare_queue("box", redelivery="after_lease", lease_s=60) == box
        await send(context, "x")
        with pytest.raises(JMSException, match="'box' exists with other options"):
            await context.declare_queue("box")
    net.kill("a")
    async with net.context("b") as there:
        await send(there, "while it was off")
    net.restart("a")
    await net.run(SOON_S)
    async with net.context("a") as context:
        assert await context.declare_queue("box", redelivery="after_lease", lease_s=60) == box
        assert await texts(await context.create_consumer(box)) == ["x", "while it was off"]


@scene("a")
async def test_row_83_a_queue_is_used_after_it_was_declared(net: testing.Network) -> None:
    async with net.context("a") as context:
        for use in (
            lambda: context.create_producer().send(BOX, "x"),
            lambda: context.create_consumer(BOX),
            lambda: anext(aiter(context.create_browser(BOX))),
        ):
            with pytest.raises(InvalidDestinationException, match="this node manages no queue 'box@a': declare it"):
                await use()


@scene("a", "b", "c")
async def test_row_84_a_queue_holds_while_nobody_is_there(net: testing.Network) -> None:
    """Anybody carries for queues, without altruism, while sender, manager and receiver never meet."""
    among(net)
    async with net.context("a") as here:
        await here.declare_queue("box")
        net.kill("a")
    async with net.context("c") as beyond:
        await send(beyond, "x")
        among(net, "bc")
        await net.run(SOON_S)
    net.kill("c")
    among(net, "ab")
    await net.run(HOUR_S)
    net.restart("a")
    await net.run(SOON_S)
    net.kill("b")
    async with net.context("a") as here:
        assert await texts(await here.create_consumer(BOX)) == ["x"]


# ------------------------------------------------------------------------------------- 85: request and reply


@scene("a", "b")
async def test_row_85_a_request_returns_a_handle_and_the_reply_is_found_by_its_correlation_id(
    net: testing.Network,
) -> None:
    async with net.context("a") as here, net.context("b") as there:
        await here.declare_queue("box")
        service = await here.create_consumer(BOX)
        first = await there.request(BOX, "first", time_to_live=HOUR_S)
        second = await there.request(BOX, "second", time_to_live=HOUR_S, correlation_id="it's mine")
        assert first.correlation_id not in ("", second.correlation_id)
        assert second.correlation_id == "it's mine"
        assert first.deadline == pytest.approx(HOUR_S, abs=1)
        for question in (await got(service), await got(service)):
            assert question.jms_expiration > 0
            answer = await here.reply(question, f"to {question.get_body(str)}")
            assert answer.expiration == pytest.approx(HOUR_S, abs=1)
        replies = await second.reply(timeout=SOON_S), await first.reply(timeout=SOON_S)
        assert [each.get_body(str) for each in replies] == ["to second", "to first"]
        assert await first.reply() is replies[1], "it is the same for ever"


@scene("a", "b")
async def test_row_85_a_request_has_an_end(net: testing.Network) -> None:
    async with net.context("a") as here, net.context("b") as there:
        await here.declare_queue("box")
        asked = await there.request(BOX, "?", time_to_live=100, correlation_id="x")
        for timeout, at in ((30, 30), (None, 100), (10, 100)):
            with pytest.raises(DeliveryTimeoutException, match="no reply to the request 'x'") as late:
                await asked.reply(timeout)
            assert net.now == at
            assert asked.sent is not None
            assert late.value.state is asked.sent.state
            assert late.value.state in (SendState.CARRIED, SendState.EXPIRED)
        with pytest.raises(IllegalStateException, match="no request 'x' is open here"):
            await there.open_request("x")
        with pytest.raises(TypeError):
            await there.request(BOX, "?")  # type: ignore[call-arg]  # for ever is too long
        with pytest.raises(IllegalArgumentException, match="greater than 0"):
            await there.request(BOX, "?", time_to_live=0)


@scene("a", "b")
async def test_row_85_a_request_survives_its_program_and_its_node(net: testing.Network) -> None:
    async with net.context("b") as there:
        asked = await there.request(BOX, "?", time_to_live=10 * HOUR_S, correlation_id="map-1")
        with pytest.raises(IllegalStateException, match="'map-1' is open on this node: choose another"):
            await there.request(BOX, "?", time_to_live=HOUR_S, correlation_id="map-1")
    with pytest.raises(IllegalStateException, match="closed"):
        await asked.reply()
    net.kill("b")
    async with net.context("a") as here:
        await here.declare_queue("box")
        net.restart("b")
        await here.reply(await got(await here.create_consumer(BOX)), "!")
        await net.run(SOON_S)
    net.kill("b")
    net.kill("a")
    await net.run(HOUR_S)
    net.restart("b")
    async with net.context("b") as there:
        again = await there.open_request("map-1")
        assert (again.correlation_id, again.deadline, again.sent) == ("map-1", asked.deadline, None)
        assert (await again.reply(timeout=5)).get_body(str) == "!"
        with pytest.raises(IllegalStateException, match="its reply was received"):
            await there.open_request("map-1")
    net.kill("b")
    net.restart("b")
    async with net.context("b") as there:
        with pytest.raises(IllegalStateException, match="its reply was received"):
            await there.open_request("map-1")
