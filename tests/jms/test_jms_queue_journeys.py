"""Queues between nodes that hardly ever meet: whole journeys, as programs see them."""

from __future__ import annotations

from contextlib import suppress

from tests.support.jms_scenes import node_id, scene

from carrypost import Queue, SendState, Sent, SessionMode, StateError, testing

BOX = Queue("box@" + node_id("home"))
HOUR_S = 3_600.0
MEETING_S = 60.0


async def meet(net: testing.Network, *pair: str) -> None:
    """Two nodes are in reach of each other for a while; then hours pass."""
    net.link(*pair)
    await net.run(MEETING_S)
    net.unlink(*pair)
    await net.run(HOUR_S)


def state(sent: Sent) -> SendState:
    return sent.state


def part_all(net: testing.Network, *names: str) -> None:
    for a in names:
        for b in names:
            with suppress(StateError):
                net.unlink(a, b)


@scene("home", "bus", "sender", "receiver")
async def test_messages_requests_and_acknowledgements_travel_while_the_manager_is_off(net: testing.Network) -> None:
    part_all(net, "home", "bus", "sender", "receiver")
    async with net.context("home") as home:
        await home.declare_queue("box")
    net.kill("home")
    async with (
        net.context("sender") as there,
        net.context("receiver", SessionMode.CLIENT_ACKNOWLEDGE) as here,
    ):
        sent = await there.create_producer().send(BOX, "x")
        inbox = await here.create_consumer(BOX)
        await meet(net, "sender", "bus")
        await meet(net, "receiver", "bus")
        net.restart("home")
        await meet(net, "home", "bus")
        net.kill("home")
        assert await inbox.receive_no_wait() is None, "nobody has told it yet that this is for it"
        await meet(net, "receiver", "bus")
        message = await inbox.receive_no_wait()
        assert message is not None
        assert (message.get_body(str), message.jms_redelivered) == ("x", False)
        await message.acknowledge()
        await meet(net, "receiver", "bus")
        assert state(sent) is SendState.CARRIED
        net.restart("home")
        await meet(net, "home", "bus")
        async with net.context("home") as home:
            assert [each async for each in home.create_browser(BOX)] == []
        await meet(net, "sender", "bus")
        assert state(sent) is SendState.DELIVERED
        assert await inbox.receive(timeout=5) is None
