"""Letters: messages to queues and to listed recipients that only their readers can read."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import pytest
from tests.support.letters import SIGNED, Letters, next_text, stored

from carrypost import (
    Context,
    DeliveryMode,
    IllegalArgumentException,
    JMSException,
    JMSSecurityException,
    Sent,
    testing,
)
from carrypost.log.journal import SEALING, StoredMessage
from carrypost.naming import InitialContext

DAY_S = 86_400.0


def network(*names: str, **settings: object) -> testing.Network:
    """Return a network whose nodes sign."""
    return testing.network(*names, **SIGNED | settings)


def play(scene: Callable[[], Coroutine[Any, Any, None]], limit_s: float = DAY_S) -> None:
    """Run a scene in virtual time."""
    testing.run(scene, limit_s=limit_s)


@pytest.mark.parametrize("seed", range(4))
def test_nobody_but_readers_ever_holds_or_hears_a_letter_in_plain_text(seed: int) -> None:
    play(lambda: Letters(seed).play(seed))


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 1_100))
def test_nobody_else_reads_in_many_networks(seed: int) -> None:
    play(lambda: Letters(seed).play(seed))


def test_the_search_for_plain_text_finds_what_was_sent_in_plain_text() -> None:
    async def scene() -> None:
        async with network("a", "b") as net:
            a, b = await net.context("a"), await net.context("b")
            box = await b.declare_queue("Alan")
            await a.send(f"queue/{box.queue_name}", "in clear", sealed=False)
            await net.run(30)
            assert b"in clear" in stored(net, "a")

    play(scene)


async def _linked(net: testing.Network, *names: str) -> list[Context]:
    for one, two in pairwise(names):
        net.link(one, two)
    contexts = [await net.context(each) for each in names]
    await net.run(30)
    return contexts


async def _box(net: testing.Network, ctx: Context, *, sealed: bool = False, tries: int | None = None) -> str:
    box = await ctx.declare_queue("Alan", sealed=sealed, tries=tries)
    await net.run(30)
    return f"queue/{box.queue_name}"


@asynccontextmanager
async def post(*names: str) -> AsyncIterator[tuple[testing.Network, str, list[Context]]]:
    """Open a line of nodes, of which the second has a queue; yield the network, the queue and the contexts."""
    async with network(*names) as net:
        contexts = await _linked(net, *names)
        yield net, await _box(net, contexts[1]), contexts


def test_letters_are_sealed_by_default_once_the_key_is_known() -> None:
    async def scene() -> None:
        async with network("a", "b") as net:
            a, b = [await net.context(each) for each in "ab"]
            box = f"queue/{(await b.declare_queue('Alan')).queue_name}"
            assert (await a.send(box, "before they met")).sealed is None
            with pytest.raises(JMSSecurityException, match="is known here"):
                await a.send(box, "x", sealed=True)
            net.link("a", "b")
            await net.run(60)
            sent = await a.send(box, "after", properties={"colour": "red"}, delivery_delay=5)
            assert sent.sealed == "letter"
            assert (await a.send(box, "plain", sealed=False)).sealed is None
            await net.run(30)
            inbox = await b.create_consumer(box)
            got = {each.text: each for each in [await inbox.receive(timeout=60) for _ in range(3)] if each is not None}
            assert {text: each.sealed for text, each in got.items()} == {
                "before they met": None, "after": "letter", "plain": None,
            }  # fmt: skip
            assert got["after"].get_string_property("colour") == "red"
            assert got["after"].jms_delivery_time == got["after"].jms_timestamp + 5_000
            assert got["after"].jms_message_id == sent.message_id

    play(scene)


@pytest.mark.parametrize(("letters", "known", "sealed"), [("never", True, None), ("always", True, "letter")])
def test_the_setting_decides_where_programs_do_not(letters: str, known: bool, sealed: str | None) -> None:
    async def scene() -> None:
        async with network("a", "b", sealing={"letters": letters}) as net:
            a, b = await _linked(net, "a", "b")
            assert known
            assert (await a.send(await _box(net, b), "x")).sealed == sealed

    play(scene)


def test_always_refuses_to_send_to_a_node_without_a_known_key() -> None:
    async def scene() -> None:
        async with network("a", "b", sealing={"letters": "always"}) as net:
            a, b = [await net.context(each) for each in "ab"]
            box = f"queue/{(await b.declare_queue('Alan')).queue_name}"
            with pytest.raises(JMSSecurityException, match="no sealing key"):
                await a.send(box, "x")
            with pytest.raises(JMSSecurityException, match="no sealing key"):
                await a.send("topic/x", "x", recipients=[b.node_id])
            assert (await a.send("topic/x", "for all")).sealed is None

    play(scene)


def test_a_list_with_a_recipient_without_a_key_is_refused_rather_than_sent_in_plain_text() -> None:
    async def scene() -> None:
        async with network("a", "b", "c") as net:
            a, b = await _linked(net, "a", "b")
            c = await net.context("c")
            with pytest.raises(JMSSecurityException, match="keys of other recipients are"):
                await a.send("topic/x", "x", recipients=[b.node_id, c.node_id])
            assert (await a.send("topic/x", "x", recipients=[c.node_id])).sealed is None
            assert (await a.send("topic/x", "x", recipients=[b.node_id])).sealed == "letter"

    play(scene)


def test_the_author_of_a_letter_knows_its_label_after_a_restart_and_nobody_who_carries_it_does() -> None:
    async def scene() -> None:
        async with post("a", "b", "c") as (net, box, (a, b, _)):
            net.unlink("a", "b")
            assert (await a.send(box, "x", label="ID:me:1:1:1:1", time_to_live=300)).sealed == "letter"
            net.kill("a")
            net.restart("a")
            assert b"L" in {name[:1] for (kind, name, _), _ in net._driver("a").store.state() if kind == SEALING}  # noqa: SLF001
            (held,) = net.host("a").holding(names=["ID:me:1:1:1:1"])
            assert (held.label, held.role) == ("ID:me:1:1:1:1", "own")
            net.link("a", "c")
            await net.run(60)
            assert b"ID:me:1:1:1:1" not in stored(net, "c")
            message = await (await b.create_consumer(box)).receive(timeout=60)
            assert message is not None
            await net.run(300)
            assert list(net.host("a").holding(names=["ID:me:1:1:1:1"])) == []
            assert b"L" not in {name[:1] for (kind, name, _), _ in net._driver("a").store.state() if kind == SEALING}  # noqa: SLF001

    play(scene)


def test_a_node_whose_key_is_out_of_date_is_sent_nothing_in_plain_text_by_mistake() -> None:
    async def scene() -> None:
        async with network("a", "b", announce_s_min=3600.0, announce_s_max=3600.0) as net:
            a, b = [await net.context(each) for each in "ab"]
            box = f"queue/{(await b.declare_queue('Alan')).queue_name}"
            net.link("a", "b")
            await net.run(3 * 3600)
            net.unlink("a", "b")
            assert (await a.send(box, "x")).sealed == "letter"
            await net.run(31 * DAY_S)
            with pytest.raises(JMSSecurityException, match="out of date"):
                await a.send(box, "x")
            assert (await a.send(box, "x", sealed=False)).sealed is None

    play(scene, 40 * DAY_S)


def test_what_cannot_be_sealed_is_refused_in_its_own_words() -> None:
    async def scene() -> None:
        async with network("a", "b") as net:
            a, b = await _linked(net, "a", "b")
            with pytest.raises(IllegalArgumentException, match="only messages to a queue, or to listed recipients"):
                await a.send("topic/news", "x", sealed=True)
            with pytest.raises(IllegalArgumentException, match="sealed"):
                await a.send(await _box(net, b), "x", sealed="yes")  # type: ignore[arg-type]  # a mistake
        async with testing.network("p", "q") as net:
            p, q = [await net.context(each) for each in "pq"]
            with pytest.raises(JMSSecurityException, match='security = "signed"'):
                await p.send(await _box(net, q), "x", sealed=True)
            with pytest.raises(JMSSecurityException, match='security = "signed"'):
                await p.declare_queue("Bob", sealed=True)
            with pytest.raises(JMSSecurityException, match='security = "signed"'):
                await p.card()

    play(scene)


def test_a_queue_for_sealed_messages_fails_others_and_informs_their_senders() -> None:
    async def scene() -> None:
        async with network("a", "b") as net:
            a, b = await _linked(net, "a", "b")
            box = await _box(net, b, sealed=True)
            plain = await a.send(box, "x", sealed=False)
            with pytest.raises(JMSException, match="the queue takes sealed messages alone"):
                await plain.delivered(timeout=300)
            letter = await a.send(box, "y")
            await (await b.create_consumer(box)).receive(timeout=60)
            await letter.delivered(timeout=300)
            with pytest.raises(JMSException, match="sealed=True"):
                await b.declare_queue("Alan")

    play(scene)


def test_a_request_is_answered_by_a_sealed_reply() -> None:
    async def scene() -> None:
        async with post("a", "b", "c") as (net, box, (a, b, _)):
            replies: list[Sent] = []

            async def serve() -> None:
                inbox = await b.create_consumer(box)
                message = await inbox.receive(timeout=60)
                assert message is not None
                to = message.jms_reply_to
                assert to is not None
                replies.append(await b.send(to, "answer", jms_correlation_id=message.jms_correlation_id))

            import asyncio  # noqa: PLC0415 - one test alone has two tasks

            task = asyncio.create_task(serve())
            request = await a.request(box, "question", time_to_live=120)
            reply = await request.reply(timeout=120)
            await task
            assert (reply.text, reply.sealed, replies[0].sealed) == ("answer", "letter", "letter")
            for text in (b"question", b"answer"):
                assert text not in stored(net, "c")

    play(scene)


def test_other_receivers_and_browsers_of_a_queue_read_its_messages_with_their_selectors() -> None:
    async def scene() -> None:
        async with post("a", "b", "c") as (net, box, (a, b, c)):
            blue = await c.create_consumer(box, "colour = 'blue'")
            for colour in ("red", "blue", "red"):
                assert (await a.send(box, colour, properties={"colour": colour})).sealed
            got = await blue.receive(timeout=120)
            assert got is not None
            assert (got.text, got.sealed) == ("blue", "letter")
            assert await blue.receive(timeout=30) is None
            await net.run(30)
            for ctx, selector in ((b, None), (c, None), (c, "colour = 'red'")):
                seen = [each.text async for each in ctx.create_browser(box, selector)]
                assert seen == ["red", "red"], ctx
            assert [each.text async for each in c.create_browser(box, "colour = 'blue'")] == []

    play(scene)


def test_letters_survive_crashes_of_the_manager_and_of_a_receiver() -> None:
    async def scene() -> None:
        async with post("a", "b", "c") as (net, box, (a, *_, c)):
            await c.create_consumer(box)
            await net.run(20)
            await a.send(box, "assigned")
            await net.run(20)  # It is at c, unread.
            net.kill("c")
            net.restart("c")
            await net.run(5)
            reader = await net.context("c")
            again = await (await reader.create_consumer(box)).receive(timeout=120)
            assert again is not None
            assert (again.text, again.sealed) == ("assigned", "letter")
            await reader.close()
            await a.send(box, "waiting")
            await net.run(20)
            net.kill("b")
            net.restart("b")
            await net.run(5)
            manager = await net.context("b")
            kept = await (await manager.create_consumer(box)).receive(timeout=120)
            assert kept is not None
            assert (kept.text, kept.sealed) == ("waiting", "letter")

    play(scene)


def test_dead_letters_and_large_bodies_are_read_as_others() -> None:
    async def scene() -> None:
        async with network("a", "b") as net:
            a, b = await _linked(net, "a", "b")
            box = await _box(net, b, tries=1)
            body = bytes(range(256)) * 400
            await a.send(box, body)
            await net.run(60)
            inbox = await b.create_consumer(box)
            b.set_exception_listener(lambda _: None)
            inbox.set_message_listener(_fails)
            await net.run(60)
            await inbox.close()
            dead = await (await b.create_consumer("queue/DLQ.Alan")).receive(timeout=60)
            assert dead is not None
            assert (dead.payload, dead.sealed) == (body, "letter")

    play(scene)


def _fails(_: object) -> None:
    raise ValueError("this listener fails")


def test_a_letter_to_this_nodes_own_queue_is_sealed_without_a_key_exchange_and_read_after_a_restart() -> None:
    async def scene() -> None:
        async with network("a") as net:
            a = await net.context("a")
            box = await _box(net, a)
            sent = await a.send(box, "to myself", delivery_mode=DeliveryMode.PERSISTENT)
            assert sent.sealed == "letter"
            assert b"to myself" not in stored(net, "a")
            net.kill("a")
            net.restart("a")
            await net.run(5)
            a = await net.context("a")
            got = await (await a.create_consumer(box)).receive(timeout=5)
            assert got is not None
            assert got.text == "to myself"

    play(scene)


def test_recipients_are_sealed_for_up_to_64_and_the_author_may_not_be_among_them() -> None:
    async def scene() -> None:
        async with network("a", "b", "c") as net:
            a, b, c = await _linked(net, "a", "b", "c")
            inboxes = [await each.create_consumer("topic/news", "urgent") for each in (b, c)]
            await net.run(10)
            sent = await a.send("topic/news", "for b", recipients=[b.node_id], properties={"urgent": True})
            assert sent.sealed == "letter"
            got = await inboxes[0].receive(timeout=30)
            assert got is not None
            assert got.text == "for b"
            assert await inboxes[1].receive(timeout=30) is None
            await sent.delivered(timeout=60)

    play(scene)


def test_a_card_lets_others_seal_before_they_met() -> None:
    async def scene() -> None:
        async with network("a", "b") as net:
            a, b = [await net.context(each) for each in "ab"]
            box = f"queue/{(await b.declare_queue('Alan')).queue_name}"
            assert await a.add_card(await b.card()) == b.node_id
            sent = await a.send(box, "first", sealed=True)
            assert sent.sealed == "letter"
            net.kill("a")
            net.restart("a")
            await net.run(1)
            a = await net.context("a")
            assert (await a.send(box, "second", sealed=True)).sealed == "letter"
            with pytest.raises(IllegalArgumentException, match="this node's own"):
                await a.add_card(await a.card())
            net.link("a", "b")
            inbox = await b.create_consumer(box)
            assert [await next_text(inbox) for _ in range(2)] == ["first", "second"]

    play(scene)


def test_nodes_of_a_test_exchange_cards() -> None:
    async def scene() -> None:
        async with network("a", "b") as net:
            a, b = [await net.context(each) for each in "ab"]
            assert net.add_card("a", net.card("b")) == b.node_id
            box = f"queue/{(await b.declare_queue('Alan')).queue_name}"
            assert (await a.send(box, "first", sealed=True)).sealed == "letter"

    play(scene)


def test_programs_cannot_bind_the_name_of_a_key() -> None:
    async def scene() -> None:
        async with network("a") as net:
            a = await net.context("a")
            with pytest.raises(JMSException, match="reserved for entries of nodes"):
                await InitialContext(a).bind("$key", "topic/x")

    play(scene)


def test_keys_die_so_that_a_stolen_store_opens_nothing_old() -> None:
    async def scene() -> None:
        quiet = {"announce_s_min": 3600.0, "announce_s_max": 3600.0}
        async with network("a", "b", lifetime_s_max=3600.0, lifetime_s_default=3600.0, **quiet) as net:
            a = await net.context("a")
            box = await _box(net, a)
            await a.send(box, "old")
            store = net._driver("a").store  # noqa: SLF001 - this is the thief

            def keys() -> set[bytes]:
                return {key[1] for key, _ in store.state() if key[0] == SEALING}

            first = keys()
            assert len(first) == 1
            for _ in range(3):
                await net.run(7 * DAY_S)
                assert len(keys()) <= 2
            # A key is used for a week and two lifetimes: of an hour each here, of 30 days by default.
            await net.run(3 * 3600)
            assert not first & keys()
            assert len(keys()) == 1
            published = [
                key
                for key, value in store.state()
                if isinstance(value, StoredMessage) and b"$key" in value.descriptor.wire
            ]
            assert len(published) == 1

    play(scene, 30 * DAY_S)


def test_nothing_secret_is_shown() -> None:
    async def scene() -> None:
        async with network("a", "b") as net:
            a, b = await _linked(net, "a", "b")
            sent = await a.send(await _box(net, b), "the secret body", properties={"key": "the secret property"})
            got = await (await b.create_consumer(await _box(net, b))).receive(timeout=30)
            assert got is not None
            privates = [
                bytes(value) for node in "ab" for key, value in net._driver(node).store.state() if key[0] == SEALING  # noqa: SLF001
                if isinstance(value, bytes)
            ]  # fmt: skip
            assert privates
            shown = repr((sent, got, got.descriptor, [net.host(node).overview() for node in "ab"]))
            shown += repr([getattr(net.host(node), "_host_context") for node in "ab"])  # noqa: B009
            for secret in privates:
                assert secret[5:37].hex() not in shown
                assert repr(secret[5:37])[2:-1] not in shown

    play(scene)
