"""Queues that name their receivers: no other node gets a message, or can browse one."""

from __future__ import annotations

import logging

import pytest
from tests.support.jms_scenes import SOON_S, got, node_id, scene

from carrypost import JMSException, JMSSecurityException, Message, Queue, testing
from carrypost.naming import InitialContext

BOX, DEAD = Queue("box@" + node_id("a")), Queue("DLQ.box@" + node_id("a"))


def refused(net: testing.Network, reason: str = "receiver", node: str = "a") -> int:
    return net.host(node).overview().refused.get(reason, 0)


@scene("a", "b", "c")
async def test_a_queue_gives_messages_to_the_nodes_that_it_names_and_to_its_own(net: testing.Network) -> None:
    net.unlink("b", "c")
    async with net.context("a") as here, net.context("b") as there, net.context("c") as stranger:
        await here.declare_queue("box", receivers=["b", "a", "b"], advertise=False)
        early = await stranger.create_consumer(BOX)  # It heard nothing of the queue but its full name.
        inbox = await there.create_consumer(BOX, "k = 1")
        await net.run(SOON_S)
        for number in range(3):
            await stranger.create_producer().set_property("k", number % 2).send(BOX, f"{number}")
        assert (await got(inbox)).get_body(str) == "1"
        await net.run(SOON_S)
        assert await early.receive_no_wait() is None
        assert [each async for each in stranger.create_browser(BOX).messages(timeout=SOON_S)] == []
        assert refused(net) >= 2, "a request and a look"
        own = await here.create_consumer(BOX)
        assert [(await got(own)).get_body(str) for _ in range(2)] == ["0", "2"]


@scene("a", "b", "c")
async def test_a_node_that_heard_whom_a_queue_is_for_is_told_at_once(net: testing.Network) -> None:
    async with net.context("a") as here, net.context("b") as there, net.context("c") as stranger:
        await here.declare_queue("box", receivers=[node_id("b")])
        await InitialContext(here).bind("letters", BOX)
        await net.run(SOON_S)
        await there.create_consumer(stranger.create_queue("box"))
        for name in ("box", "letters", "box@" + node_id("a")):
            with pytest.raises(
                JMSSecurityException, match=r"this node, 'c', is not among the receivers of the queue 'box@a'"
            ):
                await stranger.create_consumer(stranger.create_queue(name))
            with pytest.raises(JMSSecurityException):
                _ = [each async for each in stranger.create_browser(stranger.create_queue(name))]
        await stranger.create_producer().send(BOX, "anybody may send")
        assert refused(net) == 0


@scene("a", "b")
async def test_who_may_receive_outlives_the_node_and_is_part_of_what_was_declared(net: testing.Network) -> None:
    async with net.context("a") as here:
        await here.declare_queue("box", receivers=[])
    net.kill("a")
    net.restart("a")
    async with net.context("a") as here, net.context("b") as there:
        await here.declare_queue("box", receivers=[node_id("a")])  # The same: its own node always may.
        with pytest.raises(JMSException, match=r"with other options .*receivers=\[\]"):
            await here.declare_queue("box")
        with pytest.raises(JMSException, match="with other options"):
            await here.declare_queue("box", receivers=[node_id("b")])
        await net.run(SOON_S)
        with pytest.raises(JMSSecurityException):
            await there.create_consumer(BOX)


@scene("a", "b")
async def test_dead_letters_are_for_those_that_the_queue_is_for(
    net: testing.Network, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "carrypost.jms")

    def fail(message: Message) -> None:
        raise ValueError(message)

    async with net.context("a") as here, net.context("b") as stranger:
        here.set_exception_listener(lambda _: None)
        await here.declare_queue("box", receivers=[])
        inbox = await here.create_consumer(BOX)
        inbox.set_message_listener(fail)
        await here.create_producer().send(BOX, "x")
        await net.run(SOON_S)
        assert await (await stranger.create_consumer(DEAD)).receive(timeout=SOON_S) is None
        assert refused(net) == 1
        inbox.set_message_listener(None)
        assert (await got(await here.create_consumer(DEAD))).get_body(str) == "x"


@scene("a", "b")
async def test_nobody_else_receives_replies(net: testing.Network) -> None:
    async with net.context("a") as here, net.context("b") as there:
        await there.declare_queue("questions")
        asked = await here.request(Queue("questions@" + node_id("b")), "?", time_to_live=600)
        thief = await there.create_consumer(Queue("$replies@" + node_id("a")))
        question = await got(await there.create_consumer(Queue("questions@" + node_id("b"))))
        await net.run(SOON_S)
        await there.reply(question, "!")
        assert await thief.receive(timeout=SOON_S) is None
        assert (await asked.reply(timeout=SOON_S)).get_body(str) == "!"
        assert refused(net) == 1
