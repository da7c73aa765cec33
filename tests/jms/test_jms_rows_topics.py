"""Rows 87 to 97 of the checklist: how much messages matter, and subscriptions to topics."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from tests.support.jms_scenes import NEWS, SOON_S, got, pair, scene, texts

from carrypost import (
    Context,
    DeliveryMode,
    IllegalStateException,
    InvalidDestinationException,
    JMSException,
    ResourceAllocationException,
    SessionMode,
    Topic,
    testing,
)
from carrypost.model.descriptor import Descriptor

ROWS = (87, 88, *range(90, 96), 97)
CLIENT = SessionMode.CLIENT_ACKNOWLEDGE
PERSISTENT, NON_PERSISTENT = DeliveryMode.PERSISTENT, DeliveryMode.NON_PERSISTENT


async def send(context: Context, *bodies: str, to: Topic = NEWS) -> None:
    for body in bodies:
        await context.create_producer().send(to, body)


@scene("a", "b", disk_delay_s=0.5)
async def test_row_87_non_persistent_messages_may_be_lost_in_a_crash_and_do_not_wait_for_the_disk(
    net: testing.Network,
) -> None:
    net.unlink("a", "b")
    async with net.context("a") as here:
        producer = here.create_producer()
        await producer.send(NEWS, "kept")
        assert net.now == 0.5
        await producer.send(NEWS, "lost", delivery_mode=NON_PERSISTENT)
        assert net.now == 0.5
        net.kill("a")
    net.restart("a")
    net.link("a", "b")
    async with net.context("b") as there:
        assert await texts(await there.create_consumer(NEWS)) == ["kept"]


@scene("a", cache_messages_max=10)
async def test_row_87_non_persistent_messages_give_way_first(net: testing.Network) -> None:
    async with net.context("a") as context:
        producer = context.create_producer()
        for mode in (NON_PERSISTENT, PERSISTENT):
            for number in range(10):
                await producer.send(NEWS, f"{mode.name} {number}", delivery_mode=mode)
        with pytest.raises(ResourceAllocationException, match="the cache has no room"):
            await producer.send(NEWS, "none of those gives way to this", delivery_mode=NON_PERSISTENT)
        assert await texts(await context.create_consumer(NEWS)) == [f"PERSISTENT {number}" for number in range(10)]


def by_length(descriptor: Descriptor) -> int:
    return descriptor.length


@scene("a", "b", privilege=by_length, cache_messages_max=5)
async def test_row_88_a_programs_own_rule_says_which_messages_matter_more(net: testing.Network) -> None:
    net.unlink("a", "b")
    async with pair(net, SessionMode.AUTO_ACKNOWLEDGE) as both:
        far = await both.there.create_consumer(NEWS)
        for length in (3, 9, 1, 7, 5, 8, 2, 6, 4):
            with suppress(ResourceAllocationException):  # Those that are there matter more.
                await send(both.here, "x" * length)
        net.link("a", "b")
        assert [len(text) for text in await texts(far)] == [9, 8, 7, 6, 5]


@scene("a", "b")
async def test_row_90_a_live_subscription_lasts_while_a_consumer_is_open(net: testing.Network) -> None:
    async with pair(net, SessionMode.AUTO_ACKNOWLEDGE) as both:
        await send(both.here, "older, and still here")
        async with both.here.create_consumer(NEWS) as near, both.there.create_consumer(NEWS) as far:
            await send(both.here, "while both are open")
            for consumer in (near, far):
                assert sorted(await texts(consumer)) == ["older, and still here", "while both are open"]
        await net.run(10)  # An interest outlives its consumer a little.
        net.unlink("a", "b")
        await send(both.here, "while nobody is")
        net.link("a", "b")
        await net.run(SOON_S)
        assert net.host("b").copies == 2
        async with both.here.create_consumer(NEWS) as near:
            assert await texts(near) == ["while nobody is"]  # What was acknowledged does not come to a new one.


@scene("a", messaging={"non_durable": "as_durable"})
async def test_row_90_a_node_may_keep_all_subscriptions(net: testing.Network) -> None:
    async with net.context("a") as context:
        async with context.create_consumer(NEWS):
            pass
        await send(context, "while nobody is there")
        net.kill("a")
    net.restart("a")
    async with net.context("a") as context, context.create_consumer(NEWS) as consumer:
        assert await texts(consumer) == ["while nobody is there"]


@scene("a", messaging={"non_durable": "reject"})
async def test_row_90_a_node_may_refuse_live_subscriptions(net: testing.Network) -> None:
    async with net.context("a", client_id="me") as context:
        with pytest.raises(JMSException, match="give the subscription a name and make it durable"):
            await context.create_consumer(NEWS)
        async with context.create_durable_consumer(NEWS, "mail"):
            pass


@scene("a", "b")
async def test_row_91_a_durable_subscription_collects_while_nobody_consumes(net: testing.Network) -> None:
    async with net.context("a") as here:
        async with net.context("b", client_id="me") as there, there.create_durable_consumer(NEWS, "mail"):
            pass
        await send(here, "one")
        await net.run(SOON_S)
        net.kill("b")
        net.restart("b")
        await send(here, "two")
        await net.run(SOON_S)
        async with net.context("b", client_id="me") as there, there.create_durable_consumer(NEWS, "mail") as mail:
            assert await texts(mail) == ["one", "two"]


@scene("a")
async def test_row_91_it_needs_a_client_id_and_has_one_consumer(net: testing.Network) -> None:
    async with net.context("a") as context:
        with pytest.raises(IllegalStateException, match="requires a client id: give one to the connection factory"):
            await context.create_durable_consumer(NEWS, "mail")
    async with net.context("a", client_id="me") as context, context.create_durable_consumer(NEWS, "mail"):
        with pytest.raises(JMSException, match="has a consumer: close it first"):
            await context.create_durable_consumer(NEWS, "mail")


@pytest.mark.parametrize(
    "changed",
    [{"selector": "a = 2"}, {"topic": Topic("other")}, {"no_local": True}, {"patterns": {"a": "x"}}],
    ids=lambda changed: next(iter(changed)),
)
@scene("a")
async def test_row_91_another_topic_selector_or_no_local_makes_it_anew(
    net: testing.Network, changed: dict[str, object]
) -> None:
    asked: dict[str, object] = {"topic": NEWS, "name": "mail", "selector": "a = 1"}
    async with net.context("a", client_id="me") as context:
        async with context.create_durable_consumer(**asked):  # type: ignore[arg-type]  # as they are
            pass
        await context.create_producer().set_property("a", 1).send(NEWS, "x")
        async with context.create_durable_consumer(**asked | changed) as mail:  # type: ignore[arg-type]  # likewise
            assert await texts(mail, quiet_s=5) == []
        async with context.create_durable_consumer(**asked):  # type: ignore[arg-type]  # likewise
            pass
        overview = net.host("a").messaging.overview()
        assert overview is not None
        assert overview.durable == 1


@pytest.mark.parametrize("durable", [False, True])
@scene("a", "b")
async def test_row_92_each_message_goes_to_one_consumer_of_a_shared_subscription(
    net: testing.Network, durable: bool
) -> None:
    async with net.context("a") as here:
        programs = [await net.context("b") for _ in range(3)]
        kind = Context.create_shared_durable_consumer if durable else Context.create_shared_consumer
        crew = [await kind(each, NEWS, "crew", prefetch=2) for each in programs]
        await send(here, *map(str, range(30)))
        got_by = await asyncio.gather(*(texts(each) for each in crew))
        assert sorted(int(text) for some in got_by for text in some) == list(range(30))
        assert all(got_by)
        for program in programs:
            await program.close()
        await net.run(10)  # An interest outlives its consumers a little.
        await send(here, "later")
        await net.run(SOON_S)
        net.unlink("a", "b")
        async with net.context("b") as again:
            assert await texts(await kind(again, NEWS, "crew")) == (["later"] if durable else [])


@scene("a")
async def test_row_92_a_name_is_shared_or_not_and_is_of_one_topic_while_in_use(net: testing.Network) -> None:
    async with net.context("a", client_id="me") as context:
        async with context.create_shared_durable_consumer(NEWS, "crew"):
            with pytest.raises(JMSException, match="choose another name"):
                await context.create_durable_consumer(NEWS, "crew")
            for changed in ({"topic": Topic("other")}, {"selector": "a = 1"}):
                asked = {"topic": NEWS, "name": "crew"} | changed
                with pytest.raises(JMSException):
                    await context.create_shared_durable_consumer(**asked)  # type: ignore[arg-type]  # as they are
        async with context.create_shared_consumer(NEWS, "crew"):  # Durable ones have names of their own.
            pass


@scene("a")
async def test_row_93_a_subscription_ends_by_unsubscribe_unless_it_is_in_use_or_unknown(net: testing.Network) -> None:
    async with net.context("a", CLIENT, client_id="me") as context:
        mail = await context.create_durable_consumer(NEWS, "mail")
        with pytest.raises(IllegalStateException, match="has a consumer: close it before you unsubscribe"):
            await context.unsubscribe("mail")
        await send(context, "x")
        await got(mail)
        await mail.close()
        with pytest.raises(IllegalStateException, match="not acknowledged yet: acknowledge them, commit or recover"):
            await context.unsubscribe("mail")
        await context.acknowledge()
        await send(context, "y")
        await context.unsubscribe("mail")
        for name in ("mail", "never"):
            with pytest.raises(InvalidDestinationException, match=f"no durable subscription '{name}' of client 'me'"):
                await context.unsubscribe(name)
        overview = net.host("a").messaging.overview()
        assert overview is not None
        assert (overview.durable, overview.claims) == (0, 0)
        net.kill("a")
    net.restart("a")
    async with net.context("a", client_id="me") as context:
        with pytest.raises(InvalidDestinationException):
            await context.unsubscribe("mail")


@scene("a", "b")
async def test_row_94_no_local_leaves_out_what_its_own_connection_sends(net: testing.Network) -> None:
    async with net.context("a") as here, net.context("a") as beside, net.context("b") as there:
        consumer = await here.create_consumer(NEWS, no_local=True)
        assert consumer.no_local
        session = await here.create_context()
        for context, text in ((here, "mine"), (session, "mine, too"), (beside, "another's"), (there, "from afar")):
            await send(context, text)
        assert sorted(await texts(consumer)) == ["another's", "from afar"]
        await session.close()


@scene("a")
async def test_row_94_no_local_of_a_durable_one_leaves_out_what_its_client_id_sends(net: testing.Network) -> None:
    async with (
        net.context("a", client_id="me") as context,
        context.create_durable_consumer(NEWS, "mail", no_local=True),
    ):
        pass
    async with net.context("a", client_id="me") as context, net.context("a", client_id="you") as other:
        await send(context, "mine, by another connection")
        await send(other, "yours")
        async with context.create_durable_consumer(NEWS, "mail", no_local=True) as mail:
            assert await texts(mail) == ["yours"]


@scene("a")
async def test_row_95_names_of_subscriptions_have_128_letters_digits_and_a_few_more(net: testing.Network) -> None:
    async with net.context("a", client_id="me") as context:
        for name in ("a", "my_mail.2-x", "n" * 128, "größe"):
            async with context.create_durable_consumer(NEWS, name):
                pass
            await context.unsubscribe(name)
        for name in ("a b", "n" * 129, "a/b", "ü!"):
            with pytest.raises(JMSException, match="must have 1 to 128 letters, digits or characters of"):
                await context.create_durable_consumer(NEWS, name)


@scene("a", "b")
async def test_row_97_names_have_levels_and_consumers_may_ask_for_many(net: testing.Network) -> None:
    async with pair(net) as both:
        names = ("sport", "sport.tennis", "sport.tennis.news", "sport.chess")
        asked = {
            "sport.*": ["sport.chess", "sport.tennis"],
            "sport.>": ["sport.chess", "sport.tennis", "sport.tennis.news"],
            "*.tennis.*": ["sport.tennis.news"],
            "sport": ["sport"],
        }
        consumers = {pattern: await both.there.create_consumer(Topic(pattern)) for pattern in asked}
        for name in names:
            await send(both.here, name, to=Topic(name))
        for pattern, wanted in asked.items():
            assert sorted(await texts(consumers[pattern])) == wanted, pattern
        with pytest.raises(
            InvalidDestinationException, match="contains wildcards: a message must be sent to one topic"
        ):
            await send(both.here, "x", to=Topic("sport.*"))


@scene("a", "b")
async def test_row_97_patterns_of_other_attributes_are_regular_expressions(net: testing.Network) -> None:
    async with pair(net) as both:
        far = await both.there.create_consumer(NEWS, "size > 3", patterns={"language": "Eng.*|Fr.*"})
        producer = both.here.create_producer()
        for language, size in (("English", 5), ("French", 2), ("German", 5), ("French", 9)):
            await (
                producer.set_property("language", language).set_property("size", size).send(NEWS, f"{language} {size}")
            )
        assert sorted(await texts(far)) == ["English 5", "French 9"]
