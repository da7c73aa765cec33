"""Programs that take longer than their leases: acknowledging then fails, because the message was reassigned."""

from __future__ import annotations

import pytest
from tests.support.jms_scenes import SOON_S, got, scene, texts

from carrypost import (
    IllegalStateException,
    JMSException,
    Message,
    Queue,
    SendState,
    SessionMode,
    TransactionRolledBackException,
    testing,
)

AUTO, CLIENT = SessionMode.AUTO_ACKNOWLEDGE, SessionMode.CLIENT_ACKNOWLEDGE
INDIVIDUAL, TRANSACTED = SessionMode.INDIVIDUAL_ACKNOWLEDGE, SessionMode.SESSION_TRANSACTED
BOX, OUT = Queue("box@a"), Queue("out@a")
LEASE_S = 100
on_both_nodes = pytest.mark.parametrize("node", ["a", "b"])
"""Node "a" manages the queue."""


async def declare(net: testing.Network, *bodies: str) -> None:
    async with net.context("a") as here:
        await here.declare_queue("box", redelivery="after_lease", lease_s=LEASE_S)
        await here.declare_queue("out")
        for body in bodies:
            await here.create_producer().send(BOX, body)


@on_both_nodes
@pytest.mark.parametrize("elsewhere", [False, True])
@pytest.mark.parametrize("mode", [CLIENT, INDIVIDUAL], ids=lambda mode: mode.name)
@scene("a", "b", "c")
async def test_what_is_acknowledged_after_its_lease_is_refused(
    net: testing.Network, node: str, mode: SessionMode, elsewhere: bool
) -> None:
    await declare(net, "x")
    async with net.context(node, mode) as slow, net.context("c") as other:
        inbox = await slow.create_consumer(BOX)
        message = await got(inbox)
        await net.run(LEASE_S)
        if elsewhere:
            assert await texts(await other.create_consumer(BOX)) == ["x"]
        with pytest.raises(IllegalStateException, match=r"the lease of the message is over.*lease_s"):
            await message.acknowledge()
        if not elsewhere:
            again = await got(inbox)
            assert (again.text, again.jms_redelivered) == ("x", True)


@on_both_nodes
@pytest.mark.parametrize("mode", [AUTO, CLIENT, TRANSACTED], ids=lambda mode: mode.name)
@scene("a", "b", "c")
async def test_a_consumer_that_was_late_once_gets_further_messages(
    net: testing.Network, node: str, mode: SessionMode
) -> None:
    await declare(net, "x")
    async with net.context("a") as here, net.context(node, mode) as slow, net.context("c") as other:
        inbox = await slow.create_consumer(BOX)
        if mode is AUTO:
            inbox.set_message_listener(lambda _: net.run(LEASE_S + 5))
            await net.run(LEASE_S + SOON_S)
            inbox.set_message_listener(None)
        else:
            await got(inbox)
            await net.run(LEASE_S)
            assert await texts(await other.create_consumer(BOX)) == ["x"]
            with pytest.raises(JMSException, match="lease of the message is over"):
                await (slow.commit() if mode is TRANSACTED else slow.acknowledge())
            await other.close()
        await here.send(BOX, "y")
        assert (await got(inbox)).text == "y"


@on_both_nodes
@scene("a", "b", "c")
async def test_a_commit_after_a_lease_is_rolled_back(net: testing.Network, node: str) -> None:
    await declare(net, "x")
    async with net.context(node, TRANSACTED) as slow, net.context("c") as other:
        inbox = await slow.create_consumer(BOX)
        await got(inbox)
        sent = await slow.create_producer().send(OUT, "y")
        await net.run(LEASE_S)
        assert await texts(await other.create_consumer(BOX)) == ["x"]
        with pytest.raises(TransactionRolledBackException, match="the lease of the message is over"):
            await slow.commit()
        assert sent.state is SendState.FAILED
        out = await other.create_consumer(OUT)
        assert await texts(out) == []
        assert await inbox.receive(timeout=SOON_S) is None
        await slow.create_producer().send(OUT, "z")
        await slow.commit()
        assert await texts(out) == ["z"]


@on_both_nodes
@scene("a", "b", "c")
async def test_of_several_messages_those_are_acknowledged_whose_leases_run(net: testing.Network, node: str) -> None:
    await declare(net, "old")
    async with net.context(node, CLIENT) as slow, net.context("a") as here, net.context("c") as other:
        inbox = await slow.create_consumer(BOX)
        await got(inbox)
        await net.run(LEASE_S - 10)
        await here.create_producer().send(BOX, "new")
        await got(inbox)
        await net.run(20)
        with pytest.raises(IllegalStateException, match="the leases of 1 of 2 messages are over"):
            await slow.acknowledge()
        await slow.acknowledge()
        await net.run(LEASE_S)
        assert await texts(await other.create_consumer(BOX)) == ["old"]


@on_both_nodes
@scene("a", "b", "c")
async def test_what_a_listener_was_too_slow_with_is_reported(net: testing.Network, node: str) -> None:
    await declare(net, "x", "y")
    told: list[JMSException] = []
    heard: list[str | None] = []
    async with net.context(node) as slow, net.context("c") as other:
        slow.set_exception_listener(told.append)

        async def listen(message: Message) -> None:
            heard.append(message.get_body(str))
            await net.run(LEASE_S + 5)

        (await slow.create_consumer(BOX)).set_message_listener(listen)
        await net.run(SOON_S)
        assert sorted(await texts(await other.create_consumer(BOX), quiet_s=3 * LEASE_S)) == ["x", "y"]
        assert heard == ["x"], "the lease of what waited here was over before its program had it"
        assert [type(each) for each in told] == [IllegalStateException]


@on_both_nodes
@scene("a", "b", "c")
async def test_a_clock_that_was_ahead_for_a_moment_neither_ends_nor_prolongs_leases(
    net: testing.Network, node: str
) -> None:
    await declare(net)
    driver = net._driver(node)  # noqa: SLF001 - clocks go wrong in emulations, and no program sets them
    driver.step_clock(3_600_000_000)
    await net.run(10)
    driver.step_clock(-3_600_000_000)
    async with net.context("b", CLIENT) as slow, net.context("a") as here, net.context("c") as other:
        inbox = await slow.create_consumer(BOX)
        producer = here.create_producer().set_time_to_live(600)
        await producer.send(BOX, "in time")
        await net.run(LEASE_S / 2)
        in_time = await got(inbox)
        assert abs(in_time.jms_timestamp / 1_000 - net.now) < LEASE_S
        await in_time.acknowledge()
        await producer.set_delivery_delay(30).send(BOX, "late")
        assert await inbox.receive(timeout=25) is None
        late = await got(inbox)
        await net.run(LEASE_S)
        with pytest.raises(IllegalStateException, match="the lease of the message is over"):
            await late.acknowledge()
        await inbox.close()
        assert await texts(await other.create_consumer(BOX)) == ["late"]


@on_both_nodes
@scene("a", "b", "c")
async def test_a_closed_consumer_leaves_no_trace_of_messages_that_others_acknowledged(
    net: testing.Network, node: str
) -> None:
    await declare(net, "x", "y")
    async with net.context(node, CLIENT) as slow, net.context("c") as other:
        inbox = await slow.create_consumer(BOX, prefetch=2)
        await net.run(LEASE_S + SOON_S)
        assert await texts(await other.create_consumer(BOX)) == ["x", "y"]
        await inbox.close()
        sessions = net.host(node).messaging._awake.sessions._sessions.values()  # noqa: SLF001 - nothing shows them
        assert [(each.handed, each.overtaken) for each in sessions] == [({}, {})]
