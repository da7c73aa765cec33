"""Several programs on one node: the messages that each gets, and how long these are kept for it."""

from __future__ import annotations

import pytest
from tests.support.jms_scenes import NEWS, got, scene, texts

from carrypost import Consumer, Context, DeliveryMode, InvalidSelectorException, JMSException, SessionMode, testing
from carrypost.messaging.overview import MessagingOverview


def opened(net: testing.Network, client_id: str | None = None) -> Context:
    return net.context("a", SessionMode.INDIVIDUAL_ACKNOWLEDGE, client_id=client_id)


async def inbox_of(ctx: Context) -> Consumer:
    return await ctx.create_durable_consumer(NEWS, "inbox")


def overview(net: testing.Network) -> MessagingOverview:
    found = net.host("a").messaging.overview()
    assert found is not None
    return found


@scene("a")
async def test_a_message_goes_once_to_everybody_who_asked_for_it(net: testing.Network) -> None:
    async with opened(net) as anna, opened(net) as bert, opened(net) as carl:
        consumers = [
            await anna.create_consumer("topic/news"),
            await bert.create_consumer("topic/news"),
            await bert.create_consumer("topic/>"),
            await carl.create_consumer("topic/sport"),
        ]
        await anna.send(NEWS, "x")
        assert [await texts(each) for each in consumers] == [["x"], ["x"], ["x"], []]


@scene("a")
async def test_a_message_is_owed_until_all_have_it(net: testing.Network) -> None:
    async with opened(net) as anna, opened(net) as bert:
        one, other = await anna.create_consumer(NEWS), await bert.create_consumer(NEWS)
        await anna.send(NEWS, "x")
        first = await got(one)
        for _ in range(2):  # The second time says nothing new.
            await first.acknowledge()
            assert overview(net).claims == 1
        second = await got(other)
        await second.acknowledge()
        assert overview(net).claims == 0
        await second.acknowledge()
        assert overview(net).claims == 0


@scene("a")
async def test_what_nobody_acknowledged_goes_to_the_next_one_and_says_so(net: testing.Network) -> None:
    async with opened(net, "anna") as anna:
        inbox = await inbox_of(anna)
        await anna.send(NEWS, "x")
        assert not (await got(inbox)).jms_redelivered
    async with opened(net, "anna") as bert, opened(net) as carl:
        unconcerned = await carl.create_consumer("topic/sport")
        again = await got(await inbox_of(bert))
        assert (again.get_body(str), again.jms_redelivered) == ("x", True)
        assert await texts(unconcerned) == []
        await again.acknowledge()
    async with opened(net, "anna") as last:
        assert await texts(await inbox_of(last)) == []


@scene("a")
async def test_it_goes_at_once_to_who_waits_in_the_meantime(net: testing.Network) -> None:
    async with opened(net) as bert:
        async with opened(net) as anna:
            first = await anna.create_shared_consumer(NEWS, "both")
            await anna.send(NEWS, "x")
            assert not (await got(first)).jms_redelivered
            second = await bert.create_shared_consumer(NEWS, "both")
            assert await texts(second) == []
        again = await got(second)
        assert (again.get_body(str), again.jms_redelivered) == ("x", True)


@scene("a")
async def test_what_one_has_and_another_left_is_owed_to_nobody(net: testing.Network) -> None:
    async with opened(net) as anna, opened(net) as carl:
        one = await anna.create_consumer(NEWS)
        async with opened(net) as bert, bert.create_consumer(NEWS):
            await anna.send(NEWS, "x")
            await (await got(one)).acknowledge()
            assert overview(net).claims == 1
        assert overview(net).claims == 0
        await carl.create_consumer("topic/sport")
        assert overview(net).claims == 0


@scene("a", disk_delay_s=1.0)
async def test_who_leaves_while_the_disk_writes_leaves_no_message_unheard(net: testing.Network) -> None:
    async with opened(net, "anna") as anna:
        await inbox_of(anna)
        await anna.send(NEWS, "x", delivery_mode=DeliveryMode.NON_PERSISTENT)
    async with opened(net, "anna") as bert:
        assert await texts(await inbox_of(bert)) == ["x"]


@scene("a")
async def test_a_closed_consumer_brings_nothing_more_but_what_came_can_be_acknowledged(net: testing.Network) -> None:
    async with opened(net, "anna") as anna:
        inbox = await inbox_of(anna)
        await anna.send(NEWS, "x")
        message = await got(inbox)
        await inbox.close()
        await anna.send(NEWS, "y")
        await message.acknowledge()
        assert await texts(await inbox_of(anna)) == ["y"]


@scene("a")
async def test_a_subscription_ends_only_by_whose_it_is(net: testing.Network) -> None:
    async with opened(net, "anna") as anna, opened(net, "bert") as bert:
        inbox = await inbox_of(anna)
        await inbox.close()
        with pytest.raises(JMSException, match="inbox"):
            await bert.unsubscribe("inbox")
        assert overview(net).subscriptions == 1
        await anna.unsubscribe("inbox")
        assert overview(net).subscriptions == 0


@scene("a")
async def test_a_wrong_pattern_changes_nothing(net: testing.Network) -> None:
    async with opened(net) as anna:
        with pytest.raises(InvalidSelectorException):
            await anna.create_consumer(NEWS, patterns={"language": "("})
        assert overview(net).subscriptions == 0


@scene("a")
async def test_what_expired_is_nobodys(net: testing.Network) -> None:
    async with opened(net, "anna") as anna:
        inbox = await inbox_of(anna)
        await anna.send(NEWS, "x", time_to_live=5)
        message = await got(inbox)
    await net.run(6)
    async with opened(net, "anna") as bert:
        assert await texts(await inbox_of(bert)) == []
        assert overview(net).claims == 0
    assert message.get_body(str) == "x"
