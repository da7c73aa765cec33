"""Topics that a node holds: the recipients of publications, while subscribers are away, join and leave."""

from __future__ import annotations

from itertools import combinations

import pytest
from tests.support.jms_scenes import SOON_S, got, scene, texts

from carrypost import (
    Context,
    IllegalArgumentException,
    InvalidDestinationException,
    JMSException,
    Topic,
    testing,
)
from carrypost.naming import InitialContext

pytestmark = pytest.mark.attached("topics that nodes hold are declared, used and told of through the socket")
DAY_S = 86_400.0


def news(ctx: Context, holder: str = "h") -> Topic:
    return ctx.create_topic(f"news@{holder}", model="holder")


async def held(net: testing.Network, node: str = "h") -> None:
    """Let a node hold the topic `news`."""
    async with net.context(node) as ctx:
        await ctx.declare_topic("news")


async def subscribe(net: testing.Network, node: str, selector: str | None = None, *, holder: str = "h") -> None:
    """Let a node subscribe, and close its program again; the holder hears of it."""
    async with net.context(node, client_id=node) as ctx:
        await ctx.create_durable_consumer(news(ctx, holder), "news", selector)


async def read(net: testing.Network, node: str, *, holder: str = "h") -> list[str]:
    """Return what waits for the durable subscription of a node."""
    async with net.context(node, client_id=node) as ctx:
        return await texts(await ctx.create_durable_consumer(news(ctx, holder), "news"))


async def publish(net: testing.Network, node: str, *bodies: str, **options: object) -> None:
    async with net.context(node) as ctx:
        for body in bodies:
            await ctx.send(news(ctx), body, **options)  # type: ignore[arg-type]


def kept(net: testing.Network, node: str) -> list[str]:
    """Return the destinations of what a node has."""
    holdings = net.host(node)._holdings  # noqa: SLF001 - nobody else knows
    return [copy.descriptor.destination for copy in holdings.known_copies() if copy.here]


@scene("h", "p", "s", "t")
async def test_subscribers_get_what_is_published_and_see_the_publishers_message(net: testing.Network) -> None:
    await held(net)
    await subscribe(net, "s")
    await subscribe(net, "t")
    await net.run(30)
    async with net.context("p") as p, net.context("s", client_id="s") as s:
        inbox = await s.create_durable_consumer(news(s), "news")
        sent = await p.send("holder/news@h", "hello", properties={"urgency": 5}, jms_correlation_id="c", priority=7)
        message = await got(inbox)
        assert (message.get_body(str), message.jms_message_id, message.jms_priority) == ("hello", sent.message_id, 7)
        assert message.jms_destination == news(s)
        assert message.get_int_property("urgency") == 5
        assert message.get_string_property("JMS_carrypost_Author") == "p"
        assert message.jms_correlation_id == "c"
    assert await read(net, "t") == ["hello"]
    assert await read(net, "t") == []


@scene("h", "p", "s", security="signed")
async def test_signed_subscribers_get_large_messages(net: testing.Network) -> None:
    holder = net.host("h").node
    await held(net)
    await subscribe(net, "s", holder=holder)
    await net.run(30)
    async with net.context("p") as ctx:
        await ctx.send(news(ctx, holder), "x" * 50_000)
        await net.run(60)
    assert await read(net, "s", holder=holder) == ["x" * 50_000]


@scene("h", "p", "s")
async def test_the_publication_leaves_everybody_once_its_notification_is_stored(net: testing.Network) -> None:
    await held(net)
    await subscribe(net, "s")
    await net.run(30)
    await publish(net, "p", "hello")
    await net.run(60)
    assert not any("holder/h/news" in kept(net, name) for name in "hps")
    assert kept(net, "h").count("notice/h/news") == 1
    assert await read(net, "s") == ["hello"]
    await net.run(60)
    assert not any("notice/h/news" in kept(net, name) for name in "hps")


@scene("h", "p", "s")
async def test_a_subscriber_that_is_away_is_served_by_carriers(net: testing.Network) -> None:
    """Check with a holder that is off when the subscriber returns: another node has its notification."""
    await held(net)
    await subscribe(net, "s")
    await net.run(30)
    for other in "hp":
        net.unlink("s", other)
    await publish(net, "p", "one", "two")
    await net.run(60)
    net.kill("h")
    net.link("s", "p")
    assert await read(net, "s") == ["one", "two"]


LEASED = {"messaging": {"subscription_lease_s": 3 * DAY_S}, "announce_s_min": 600.0, "announce_s_max": 900.0}
"""Quiet nodes, so that days pass quickly."""


def test_leases_lapse_at_both_ends_unless_they_are_used() -> None:
    async def play() -> None:
        async with testing.network("h", "p", "s", seed=1, **LEASED) as net:  # type: ignore[arg-type]
            for a, b in combinations("hps", 2):
                net.link(a, b)
            await held(net)
            await subscribe(net, "s")
            await net.run(2 * DAY_S)
            assert await read(net, "s") == []
            await net.run(2 * DAY_S)
            await publish(net, "p", "in time")
            await net.run(DAY_S / 2)
            assert "notice/h/news" in kept(net, "s")
            await net.run(DAY_S)
            await publish(net, "p", "too late")
            await net.run(DAY_S)
            assert not any("notice/h/news" in kept(net, name) for name in "hps")
            assert await read(net, "s") == []

    testing.run(play, limit_s=30 * DAY_S)


def test_the_lease_of_a_consumer_that_is_open_does_not_lapse() -> None:
    async def play() -> None:
        async with testing.network("h", "p", "s", seed=1, **LEASED) as net:  # type: ignore[arg-type]
            for a, b in combinations("hps", 2):
                net.link(a, b)
            await held(net)
            async with net.context("s", client_id="s") as ctx:
                inbox = await ctx.create_durable_consumer(news(ctx), "news")
                await net.run(10 * DAY_S)
                await publish(net, "p", "hello")
                assert await texts(inbox, quiet_s=DAY_S) == ["hello"]

    testing.run(play, limit_s=30 * DAY_S)


@scene("h", "p", "s")
async def test_who_unsubscribed_gets_nothing_further(net: testing.Network) -> None:
    await held(net)
    await subscribe(net, "s")
    await net.run(30)
    async with net.context("s", client_id="s") as ctx:
        await ctx.unsubscribe("news")
    await net.run(30)
    await publish(net, "p", "hello")
    await net.run(60)
    assert not any("notice/h/news" in kept(net, name) for name in "hps")
    await subscribe(net, "s")
    await net.run(30)
    await publish(net, "p", "again")
    await net.run(30)
    assert await read(net, "s") == ["again"]


@scene("h", "s", "c")
async def test_a_word_that_is_overtaken_counts_no_more(net: testing.Network) -> None:
    """The carrier brings `Enrol` when the holder has heard of `Leave` already."""
    await held(net)
    for other in "sc":
        net.unlink("h", other)
    await subscribe(net, "s")
    await net.run(30)
    net.unlink("s", "c")
    async with net.context("s", client_id="s") as ctx:
        await ctx.unsubscribe("news")
    net.link("s", "h")
    await net.run(30)
    net.unlink("s", "h")
    net.link("h", "c")
    await net.run(30)
    async with net.context("h") as ctx:
        await ctx.send(news(ctx), "hello")
    await net.run(30)
    assert "notice/h/news" not in kept(net, "h")


@scene("h", "p", "s", "t", "u")
async def test_the_holder_evaluates_selectors(net: testing.Network) -> None:
    await held(net)
    await subscribe(net, "s", "urgency > 5")
    await subscribe(net, "t")
    async with net.context("u", client_id="u") as ctx:  # Two subscriptions of one node.
        high = await ctx.create_durable_consumer(news(ctx), "high", "urgency > 7")
        low = await ctx.create_durable_consumer(news(ctx), "low", "urgency < 3")
        await net.run(30)
        for urgency in (1, 4, 6, 9):
            await publish(net, "p", str(urgency), properties={"urgency": urgency})
        await net.run(30)
        listed = [copy.descriptor.listed for copy in net.host("h")._holdings.known_copies() if copy.descriptor.listed]  # noqa: SLF001
        assert sorted(listed) == [("s", "t"), ("s", "t", "u"), ("t",), ("t", "u")]
        assert (await texts(high), await texts(low)) == (["9"], ["1"])
    assert await read(net, "t") == ["1", "4", "6", "9"]


@scene("h", "s")
async def test_programs_of_the_holder_publish_and_subscribe_as_others_do(net: testing.Network) -> None:
    await held(net)
    await subscribe(net, "h")
    await subscribe(net, "s")
    await net.run(30)
    await publish(net, "h", "from the holder")
    await publish(net, "s", "from a subscriber")
    await net.run(30)
    net.kill("h")
    net.restart("h")
    await net.run(30)
    for node in "hs":
        assert await read(net, node) == ["from the holder", "from a subscriber"]
        await net.run(30)
        assert await read(net, node) == []
    assert not any(each.startswith(("holder", "notice")) for node in "hs" for each in kept(net, node))


@scene("h", "p", "s", "t")
async def test_a_publisher_that_asks_hears_of_each_subscriber(net: testing.Network) -> None:
    await held(net)
    for node in "hst":
        await subscribe(net, node)
    await net.run(30)
    async with net.context("p") as ctx:
        sent = await ctx.send(news(ctx), "hello", request_receipt=True, time_to_live=DAY_S)
        await sent.handed_over(SOON_S)
        assert sent.state.name == "CARRIED"
        for node in "hts":
            await read(net, node)
            await sent.delivered(SOON_S)
        await net.run(60)
        heard = []
        async for node in sent.acknowledgements():
            heard.append(node)
            if len(heard) == 3:
                break
        assert sorted(heard) == ["h", "s", "t"]
        unheard = await ctx.send(news(ctx, "s"), "nobody holds it", request_receipt=True)
        with pytest.raises(JMSException, match="there is no such topic"):
            await unheard.delivered(SOON_S)


@scene("h", "p", "s")
async def test_who_does_not_ask_hears_nothing(net: testing.Network) -> None:
    await held(net)
    async with net.context("p") as ctx:
        sent = await ctx.send(news(ctx), "hello")
        assert not sent.is_tracked
        await sent.carried(SOON_S)


@scene("h", "p", "s")
async def test_the_directory_tells_of_topics_that_nodes_hold(net: testing.Network) -> None:
    await held(net)
    async with net.context("s", client_id="s") as ctx:
        found = await InitialContext(ctx).lookup("news", timeout=SOON_S)
        assert found == news(ctx)
        await ctx.create_durable_consumer(news(ctx), "news")
    await net.run(30)
    await publish(net, "p", "hello")
    async with net.context("h") as ctx:
        await net.run(30)
        await ctx.end_topic("holder/news@h")
        with pytest.raises(InvalidDestinationException, match="this node holds no topic 'news@h'"):
            await ctx.end_topic(news(ctx))
        await ctx.send(news(ctx), "too late")
    assert await read(net, "s") == ["hello"]


@scene("h", "s")
async def test_misuse_says_what_to_do(net: testing.Network) -> None:
    async with net.context("h", client_id="h") as ctx:
        topic = await ctx.declare_topic("news")
        assert (topic, str(topic), topic.topic_name) == (news(ctx), "holder/news@h", "news@h")
        assert await ctx.declare_topic("news") == topic
        with pytest.raises(IllegalArgumentException, match="a topic that a node holds has no order: leave ordering="):
            ctx.create_topic("news@h", model="holder", ordering="causal")
        with pytest.raises(IllegalArgumentException, match='model must be "epidemic", "holder" or "channel", not'):
            ctx.create_topic("news", model="none")  # type: ignore[arg-type]
        with pytest.raises(InvalidDestinationException, match="must be NAME@NODE, not 'news'"):
            ctx.create_topic("news", model="holder")
        for name in ("news@h", "$news", "news.*"):
            with pytest.raises(InvalidDestinationException):
                await ctx.declare_topic(name)
        with pytest.raises(InvalidDestinationException, match="too long"):
            await ctx.declare_topic("n" * 300)
        with pytest.raises(InvalidDestinationException, match="made by declare_topic"):
            await ctx.end_topic("topic/news")
    async with net.context("s") as ctx:
        with pytest.raises(JMSException, match="set island = true, or use create_durable_consumer"):
            await ctx.create_consumer(topic)
        with pytest.raises(IllegalArgumentException, match="leave them out"):
            await ctx.send(topic, "x", recipients=["s"])


ISLAND = {"island": True, "island_s_min": 0.5}


@scene("p", "t", **ISLAND)
async def test_a_subscriber_that_is_not_durable_is_served_while_there_is_a_path(net: testing.Network) -> None:
    """The holder is behind a relay; the subscriber walks off, comes back, and subscribes again."""
    for node, near in (("h", "p"), ("r", "h"), ("s", "r")):
        net.add(node)
        net.link(node, near)
    await held(net)
    await net.run(30)
    async with net.context("s") as ctx:
        told: list[str] = []
        ctx.set_exception_listener(lambda error: told.append(str(error)))
        inbox = await ctx.create_consumer(news(ctx), "urgency > 5")
        await net.run(5)
        await publish(net, "p", "one", properties={"urgency": 9})
        await publish(net, "p", "calm", properties={"urgency": 1})
        assert await texts(inbox) == ["one"]
        assert told == []
        net.unlink("s", "r")
        await net.run(60)
        assert [each.partition(":")[0] for each in told] == ["the consumer of holder/news@h receives no more messages"]
        await publish(net, "p", "missed", properties={"urgency": 9})
        await net.run(30)
        assert not any("notice/h/news" in kept(net, node) for node in "hrps")
        net.link("s", "r")
        await net.run(60)
        await publish(net, "p", "missed as well", properties={"urgency": 9})
        assert await texts(inbox) == []
        await inbox.close()
        inbox = await ctx.create_consumer(news(ctx))
        await net.run(5)
        await publish(net, "p", "two")
        assert await texts(inbox) == ["two"]
        assert not any("notice/h/news" in kept(net, node) for node in "rp")
        await inbox.close()
        await net.run(10)
        net.unlink("s", "r")
        await net.run(30)
        with pytest.raises(JMSException, match="there is no path to 'h', which holds the topic"):
            await ctx.create_consumer(news(ctx))
        assert len(told) == 1  # Nobody had a consumer any more.


@pytest.mark.parametrize(("away_s", "found"), [(0, ["hello"]), (5, ["hello"]), (40, [])])
@scene("h", "s", **ISLAND)
async def test_a_holder_that_starts_again_goes_on_with_those_who_did_not_miss_it(
    net: testing.Network, away_s: float, found: list[str]
) -> None:
    await held(net)
    await net.run(30)
    async with net.context("s") as ctx:
        told: list[JMSException] = []
        ctx.set_exception_listener(told.append)
        inbox = await ctx.create_consumer(news(ctx))
        await net.run(5)
        net.kill("h")
        await net.run(away_s)
        net.restart("h")
        await net.run(20)
        await publish(net, "h", "hello")
        assert await texts(inbox) == found
        assert len(told) == (not found)
    net.kill("s")
    await net.run(60)
    await publish(net, "h", "nobody")
    await net.run(30)
    assert "notice/h/news" not in kept(net, "h")


@scene("h", "s", messaging={"non_durable": "connected"}, **ISLAND)
async def test_nodes_may_have_subscriptions_that_are_not_durable_at_holders_alone(net: testing.Network) -> None:
    await held(net)
    await net.run(30)
    async with net.context("s") as ctx:
        with pytest.raises(JMSException, match="and this topic has no holder"):
            await ctx.create_consumer(ctx.create_topic("news"))
        inbox = await ctx.create_consumer(news(ctx))
        await net.run(5)
        await publish(net, "h", "hello")
        assert await texts(inbox) == ["hello"]
