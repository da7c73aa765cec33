"""Listeners, draining, recovery, and what happens when the disk or the node fails."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import pytest
from tests.support.jms_scenes import AT_ONCE, NEWS, SOON_S, got, scene, texts

from carrypost import (
    Consumer,
    Context,
    DeliveryMode,
    IllegalStateException,
    InvalidDestinationException,
    JMSException,
    ListenerException,
    Message,
    ResourceAllocationException,
    SessionMode,
    TextMessage,
    Topic,
    testing,
)
from carrypost.jms.provider.local import LocalProvider
from carrypost.messaging.commands import Retry
from carrypost.model.descriptor import Descriptor

AUTO, CLIENT = SessionMode.AUTO_ACKNOWLEDGE, SessionMode.CLIENT_ACKNOWLEDGE
DUPS_OK, INDIVIDUAL = SessionMode.DUPS_OK_ACKNOWLEDGE, SessionMode.INDIVIDUAL_ACKNOWLEDGE
every_mode = pytest.mark.parametrize("mode", [AUTO, CLIENT, DUPS_OK, INDIVIDUAL], ids=lambda mode: mode.name)
by_themselves = pytest.mark.parametrize("mode", [AUTO, DUPS_OK], ids=lambda mode: mode.name)


async def send(context: Context, *bodies: str) -> None:
    for body in bodies:
        await context.create_producer().send(NEWS, body)


def counted(message: Message) -> tuple[str | None, int]:
    return message.get_body(str), message.get_int_property("JMSXDeliveryCount")


def claims(net: testing.Network, node: str = "a") -> int:
    overview = net.host(node).messaging.overview()
    assert overview is not None
    return overview.claims


async def mailbox(context: Context) -> Consumer:
    return await context.create_durable_consumer(NEWS, "mail")


async def left_in_mailbox(net: testing.Network, *, down: bool = False) -> list[tuple[str | None, int]]:
    """Return the messages of the durable subscription after a crash, and how often each was handed over."""
    if not down:
        await net.run(1)
        net.kill("a")
    net.restart("a")
    async with net.context("a", client_id="me") as context:
        return [counted(message) async for message in (await mailbox(context)).messages(timeout=5)]


# ------------------------------------------------------------------------------------------------- listeners


class Listener:
    """A listener as an object, whose method is plain, async, or gives an awaitable."""

    def __init__(self, kind: str) -> None:
        self.kind, self.got = kind, list[str | None]()

    def on_message(self, message: Message) -> object:
        async def later() -> None:
            await asyncio.sleep(0.1)
            self.got.append(message.get_body(str))

        if self.kind == "plain":
            self.got.append(message.get_body(str))
            return None
        return later() if self.kind == "async" else asyncio.ensure_future(later())


@pytest.mark.parametrize("kind", ["plain", "async", "awaitable"])
@scene("a", "b")
async def test_a_listener_is_a_function_or_an_object_and_may_be_async(net: testing.Network, kind: str) -> None:
    async with net.context("a") as here, net.context("b") as there:
        listener = Listener(kind)
        for given in (listener, listener.on_message):
            async with there.create_consumer(NEWS) as consumer:
                consumer.set_message_listener(given)  # type: ignore[arg-type]  # what it returns is looked at
                assert consumer.message_listener == given
                await send(here, "x", "y")
                await net.run(SOON_S)
        assert sorted(map(str, listener.got)) == ["x", "x", "y", "y"]


@by_themselves
@scene("a", messaging={"tries": 3})
async def test_tries_before_a_crash_count(net: testing.Network, mode: SessionMode) -> None:
    """So that a message which ends its program each time comes to an end itself."""
    seen: list[int] = []
    async with net.context("a", mode, client_id="me") as context:
        await mailbox(context)
        await send(context, "poison")

    def fatal(message: Message) -> None:
        seen.append(message.get_int_property("JMSXDeliveryCount"))
        if len(seen) < 3:
            net.kill("a")
        raise RuntimeError("the program ends")

    for life in range(1, 4):
        async with net.context("a", mode, client_id="me") as context:
            context.set_exception_listener(lambda _: None)
            (await mailbox(context)).set_message_listener(fatal)
            await net.run(5)
            assert context.given_up == (life == 3)
        assert seen == list(range(1, life + 1))
        if life < 3:
            net.restart("a")
    assert claims(net) == 0


@by_themselves
@scene("a")
async def test_a_listener_that_is_mended_gets_the_message_at_its_next_try(
    net: testing.Network, mode: SessionMode
) -> None:
    async with net.context("a", mode) as context:
        seen: list[tuple[str | None, int]] = []
        bodies: list[str] = []

        async def mends(message: Message) -> None:
            seen.append(counted(message))
            assert isinstance(message, TextMessage)
            bodies.append(str(message.text))
            message.clear_body()
            message.text = "spoilt"
            if len(seen) < 3:
                await asyncio.sleep(1)
                raise ValueError

        (await context.create_consumer(NEWS)).set_message_listener(mends)
        await send(context, "x", "y")
        await net.run(10)
        assert seen == [("x", 1), ("x", 2), ("x", 3), ("y", 1)]
        assert bodies == ["x", "x", "x", "y"]
        assert (context.given_up, claims(net)) == (0, 0)


@pytest.mark.parametrize("mode", [AUTO, CLIENT], ids=lambda mode: mode.name)
@scene("a", messaging=AT_ONCE)
async def test_a_listener_in_which_something_was_cancelled_has_failed_and_others_go_on(
    net: testing.Network, mode: SessionMode
) -> None:
    async with net.context("a", mode) as context:
        seen: list[tuple[str | None, int]] = []

        async def waits(message: Message) -> None:
            seen.append(counted(message))
            if message.get_body(str) == "x":
                other = asyncio.ensure_future(asyncio.sleep(1))
                other.cancel()
                await other

        context.set_exception_listener(lambda _: None)
        (await context.create_consumer(NEWS)).set_message_listener(waits)
        await send(context, "x", "y")
        await net.run(10)
        tries = [("x", count) for count in range(1, 7)] if mode is AUTO else [("x", 1)]
        assert seen == [*tries, ("y", 1)]
        await context.stop()


@scene("a")
async def test_listeners_of_one_context_are_served_in_the_order_of_handing_over(net: testing.Network) -> None:
    async with net.context("a") as context:
        seen: list[str] = []

        def listener(name: str) -> Callable[[Message], None]:
            return lambda message: seen.append(f"{name}{message.get_body(str)}")

        for name in "xy":
            consumer = await context.create_consumer(Topic(name))
            consumer.set_message_listener(listener(name))
        producer = context.create_producer()
        for number in range(3):
            for name in "yx":
                await producer.send(Topic(name), str(number))
        await net.run(1)
        assert seen == ["y0", "x0", "y1", "x1", "y2", "x2"]


@scene("a", messaging=AT_ONCE)
async def test_a_decorated_listener_has_a_context_of_its_own_and_counts_with_its_maker(net: testing.Network) -> None:
    async with net.context("a") as context:
        reported: list[JMSException] = []
        context.set_exception_listener(reported.append)

        @context.listener(NEWS, "good")
        def hear(_: Message) -> None:
            raise RuntimeError

        @context.listener(context.create_queue("of.nobody"))
        def never(_: Message) -> None:
            raise AssertionError

        with pytest.raises(InvalidDestinationException, match="nobody"):
            await context.start()
        assert reported == []
        await context.create_producer().set_property("good", True).send(NEWS, "x")
        await send(context, "not for it")
        await net.run(1)
        assert context.given_up == 1
        assert [type(each) for each in reported] == [ListenerException]
        async with context.create_consumer(NEWS) as consumer:  # The maker may receive.
            assert await texts(consumer) == ["not for it"]
        assert callable(hear)
        assert callable(never)


@pytest.mark.attached("the node answers later")
@pytest.mark.parametrize("responds", [False, True], ids=["listener", "responder"])
@scene("a")
async def test_start_raises_what_a_decorated_listener_failed_with_once_and_the_others_listen(
    net: testing.Network, responds: bool
) -> None:
    async with net.context("a") as context:
        reported: list[JMSException] = []
        seen: list[str | None] = []
        context.set_exception_listener(reported.append)
        context.listener(NEWS)(lambda message: seen.append(message.get_body(str)))
        decorate = context.responder if responds else context.listener
        for name in ("queue/orders", "queue/bills"):
            decorate(name)(lambda message: seen.append(message.get_body(str)))
        with pytest.raises(InvalidDestinationException, match="orders"):
            await context.start()
        await net.run(1)
        assert ["bills" in str(each) for each in reported] == [True]
        await context.start()
        await context.declare_queue("orders")
        decorate("queue/orders")(lambda message: seen.append(message.get_body(str)))
        await context.start()
        await context.send("queue/orders", "an order")
        await send(context, "news")
        await net.run(1)
        assert sorted(map(str, seen)) == ["an order", "news"]
        # In a context that is started, nobody waits for it: it is reported, and raised if somebody does.
        decorate("queue/bills")(seen.append)
        await net.run(1)
        assert ["bills" in str(each) for each in reported] == [True, True]
        with pytest.raises(InvalidDestinationException, match="bills"):
            await context.start()
        assert len(reported) == 2


@pytest.mark.attached("a refusal comes as an answer")
@pytest.mark.parametrize("method", ["payload", "execute"])
@by_themselves
@scene("a", messaging={"redelivery_delay_s": 1.0})
async def test_a_message_that_the_node_fails_with_comes_again_and_other_listeners_are_called(
    net: testing.Network, monkeypatch: pytest.MonkeyPatch, mode: SessionMode, method: str
) -> None:
    failures = [ResourceAllocationException("no room"), RuntimeError("a mistake")]
    works = getattr(LocalProvider, method)

    async def fails(provider: LocalProvider, given: object) -> object:
        if failures and isinstance(given, Descriptor | Retry):
            raise failures.pop(0)
        return await works(provider, given)

    async with net.context("a", mode, client_id="me") as context, net.context("a") as sender:
        reported: list[JMSException] = []
        seen: list[str | None] = []
        context.set_exception_listener(reported.append)

        def hear(message: Message) -> None:
            seen.append(message.get_body(str))
            if failures:
                raise RuntimeError

        (await mailbox(context)).set_message_listener(hear)
        (await context.create_consumer(Topic("other"))).set_message_listener(lambda m: seen.append(m.get_body(str)))
        monkeypatch.setattr(LocalProvider, method, fails)
        await sender.send(NEWS, "x" * 100_000)  # So long that its body does not come along.
        await net.run(20)
        await sender.send("topic/other", "y")
        await net.run(1)
        assert [str(each) for each in reported if "mistake" not in str(each)] == ["no room"]
        assert seen[-2:] == ["x" * 100_000, "y"]
    assert await left_in_mailbox(net) == []


def test_what_nobody_listens_to_is_logged_and_fails_the_test_that_it_is_in(caplog: pytest.LogCaptureFixture) -> None:
    def fails(_: Message) -> None:
        raise RuntimeError("so it goes")

    async def scene() -> None:
        async with testing.network("a", seed=1, messaging=AT_ONCE) as net, net.context("a") as context:
            (await context.create_consumer(NEWS)).set_message_listener(fails)
            await send(context, "x")
            await net.run(1)

    with caplog.at_level(logging.WARNING, "carrypost.jms"):
        with pytest.raises(ExceptionGroup, match="listeners failed") as raised:
            testing.run(scene)
        (given_up,) = raised.value.exceptions
        assert isinstance(given_up.__cause__, RuntimeError)
        assert len([each for each in caplog.records if each.levelno == logging.WARNING]) == 6
        (error,) = [each for each in caplog.records if each.levelno == logging.ERROR]
        assert "the listener failed 6 times: it is now a dead letter in queue/DLQ." in error.getMessage()


@scene("a", messaging=AT_ONCE)
async def test_an_exception_listener_that_fails_hears_of_the_next_one(
    net: testing.Network, caplog: pytest.LogCaptureFixture
) -> None:
    async with net.context("a") as context:
        heard: list[JMSException] = []

        class Hears:
            def on_exception(self, error: JMSException) -> None:
                heard.append(error)
                raise RuntimeError

        context.set_exception_listener(Hears())  # type: ignore[arg-type]  # an object with `on_exception`

        def fails(_: Message) -> None:
            raise RuntimeError

        (await context.create_consumer(NEWS)).set_message_listener(fails)
        await send(context, "x", "y")
        await net.run(1)
        assert [type(each) for each in heard] == [ListenerException] * 2
        assert "an exception listener failed" in caplog.text


# -------------------------------------------------------------------------------------------------- draining


@by_themselves
@scene("a", disk_delay_s=0.5)
async def test_draining_finishes_what_was_handed_out_and_sent_and_leaves_the_rest(
    net: testing.Network, mode: SessionMode
) -> None:
    context = await net.context("a", mode, client_id="me")
    done: list[str | None] = []

    async def slow(message: Message) -> None:
        await asyncio.sleep(10)
        await context.create_producer().send(Topic("answers"), "done", delivery_mode=DeliveryMode.NON_PERSISTENT)
        done.append(message.get_body(str))

    (await mailbox(context)).set_message_listener(slow)
    await send(context, "x", "y")
    await asyncio.sleep(5)
    await context.drain()
    assert done == ["x"]
    with pytest.raises(IllegalStateException, match="this context is closed"):
        await context.drain()
    assert await left_in_mailbox(net) == [("y", 1)]
    async with net.context("a") as again, again.create_consumer(Topic("answers")) as answers:
        assert await texts(answers, quiet_s=1) == ["done"]


@pytest.mark.parametrize("kind", ["set", "decorated", "completion"])
@scene("a")
async def test_draining_with_a_timeout_closes_whatever_hangs(net: testing.Network, kind: str) -> None:
    context = await net.context("a", client_id="me")

    async def hangs(_: object) -> None:
        await asyncio.Event().wait()

    class Hangs:
        on_completion = staticmethod(hangs)
        on_exception = staticmethod(hangs)

    match kind:
        case "set":
            (await mailbox(context)).set_message_listener(hangs)
        case "decorated":
            async with await mailbox(context):
                pass
            context.listener(NEWS)(hangs)
            await context.start()
        case _:
            async with await mailbox(context):
                pass
            await context.create_producer().set_async(Hangs).send(Topic("other"), "x")  # type: ignore[arg-type]
    await send(context, "x")
    await asyncio.sleep(1)
    before = net.now
    await context.drain(timeout=30)
    assert net.now == before + 30
    assert await left_in_mailbox(net) == [("x", 2 if kind == "set" else 1)]


@scene("a")
async def test_draining_wakes_who_waits_and_hands_out_nothing_more(net: testing.Network) -> None:
    context = await net.context("a", client_id="me")
    mail = await mailbox(context)
    other = await context.create_consumer(Topic("other"))

    async def slow(_: Message) -> None:
        await asyncio.sleep(10)

    async with context.create_context() as beside:
        (await beside.create_consumer(NEWS)).set_message_listener(slow)
        waiting = asyncio.create_task(other.receive())
        draining = asyncio.create_task(context.drain())
        await send(beside, "x")
        await asyncio.gather(draining)
        assert await waiting is None
        with pytest.raises(IllegalStateException):
            await mail.receive()
    assert await left_in_mailbox(net) == [("x", 1)]


@scene("a")
async def test_draining_at_once_after_decorating_is_fine(net: testing.Network) -> None:
    context = await net.context("a")
    seen: list[Message] = []
    context.listener(NEWS)(seen.append)
    await context.drain()
    async with net.context("a") as other:
        await send(other, "x")
        await net.run(1)
    assert seen == []


# -------------------------------------------------------------------------------- modes, recovery and crashes


@scene("a")
async def test_individual_acknowledges_each_message_for_itself(net: testing.Network) -> None:
    async with net.context("a", INDIVIDUAL, client_id="me") as context:
        mail = await mailbox(context)
        await send(context, "a", "b", "c", "d")
        found = [await got(mail) for _ in range(4)]
        await found[2].acknowledge()
        await found[2].acknowledge()
        async with found[0].processing() as message:
            assert message is found[0]
        with pytest.raises(ZeroDivisionError):
            async with found[1].processing():
                raise ZeroDivisionError
        again = await got(mail)
        assert counted(again) == ("b", 2)
        async with again.processing():
            pass
        assert claims(net) == 1
        await context.recover()
        assert counted(await got(mail)) == ("d", 2)
    assert await left_in_mailbox(net) == [("d", 3)]


@scene("a")
async def test_individual_acknowledges_all_by_the_context(net: testing.Network) -> None:
    async with net.context("a", INDIVIDUAL) as context, context.create_consumer(NEWS) as consumer:
        await send(context, "a", "b", "c")
        for _ in range(2):
            await got(consumer)
        await context.acknowledge()
        await context.recover()
        assert counted(await got(consumer)) == ("c", 1)


@every_mode
@scene("a")
async def test_recover_within_a_listener_lets_its_message_come_again(net: testing.Network, mode: SessionMode) -> None:
    async with net.context("a", mode) as context:
        seen: list[tuple[str | None, int]] = []

        async def recovers(message: Message) -> None:
            seen.append(counted(message))
            if len(seen) == 2:
                await context.recover()

        (await context.create_consumer(NEWS)).set_message_listener(recovers)
        await send(context, "x", "y", "z")
        await net.run(5)
        if mode in (AUTO, DUPS_OK):
            assert seen == [("x", 1), ("y", 1), ("y", 2), ("z", 1)]
        else:
            assert seen == [("x", 1), ("y", 1), ("x", 2), ("y", 2), ("z", 1)]


@pytest.mark.parametrize("receive", ["receive", "listener"])
@scene("a", disk_delay_s=0.5)
async def test_with_a_prefetch_of_one_at_most_one_message_is_in_doubt_after_a_crash(
    net: testing.Network, receive: str
) -> None:
    done: list[str | None] = []
    async with net.context("a", client_id="me") as context, net.context("a") as sender:
        mail = await context.create_durable_consumer(NEWS, "mail", prefetch=1)
        await send(sender, *map(str, range(10)))
        if receive == "listener":
            mail.set_message_listener(lambda message: done.append(message.get_body(str)))
            await net.run(2.7)
        else:
            done += [(await got(mail)).get_body(str) for _ in range(4)]
        net.kill("a")
    assert 2 < len(done) < 6
    left = await left_in_mailbox(net, down=True)
    again = [text for text, _ in left if text in done]
    assert len(again) <= 1
    assert [text for text, count in left if count > 1] == again
    assert sorted({*done, *(text for text, _ in left)}, key=str) == [str(number) for number in range(10)]


@scene("a", disk_delay_s=0.5)
async def test_with_more_what_was_received_since_may_come_again_and_is_flagged(net: testing.Network) -> None:
    async with net.context("a", client_id="me") as context, net.context("a") as sender:
        mail = await mailbox(context)
        await send(sender, *map(str, range(10)))
        for _ in range(4):
            await got(mail)
        net.kill("a")
    assert await left_in_mailbox(net, down=True) == [(str(number), 2) for number in range(10)]


@scene("a", disk_delay_s=0.5)
async def test_a_send_that_the_disk_does_not_take_raises_and_nothing_is_there(net: testing.Network) -> None:
    async with net.context("a") as context:
        reported: list[JMSException] = []
        context.set_exception_listener(reported.append)
        net.fill_disk("a")
        producer = context.create_producer()
        message = context.create_text_message("never")
        with pytest.raises(ResourceAllocationException, match="the disk is full: it takes 0 bytes of messages, not 5"):
            await producer.send(NEWS, message)
        assert message.jms_message_id is None
        with pytest.raises(ResourceAllocationException, match="the disk is full"):
            await producer.send(NEWS, "never either", delivery_mode=DeliveryMode.NON_PERSISTENT)
        await net.run(1)
        assert reported == []
        net.fill_disk("a", full=False)
        await producer.send(NEWS, "now")
        assert await texts(await context.create_consumer(NEWS)) == ["now"]


@pytest.mark.parametrize("mode", [AUTO, CLIENT], ids=lambda mode: mode.name)
@scene("a", disk_delay_s=0.5)
async def test_a_full_disk_takes_acknowledgements(net: testing.Network, mode: SessionMode) -> None:
    async with net.context("a", mode, client_id="me") as context:
        mail = await mailbox(context)
        await send(context, "x", "y")
        await got(mail)
        net.fill_disk("a")
        await context.acknowledge()
        await net.run(20)
    assert await left_in_mailbox(net) == [("y", 1)]


@scene("a")
async def test_stop_and_start_lose_nothing_whatever_waits(net: testing.Network) -> None:
    async with net.context("a") as context:
        consumer = await context.create_consumer(NEWS, prefetch=2)
        found: list[str | None] = []

        async def iterate() -> None:
            nonlocal found
            async for message in consumer:
                found += [message.get_body(str)]

        task = asyncio.create_task(iterate())
        for number in range(20):
            await (context.stop() if number % 2 else context.start())
            await send(context, str(number))
            await asyncio.sleep(0)
        await context.start()
        await net.run(1)
        assert found == [str(number) for number in range(20)]
        await consumer.close()
        await task


@scene("a", messaging={"prefetch_bytes": 1_000})
async def test_a_message_longer_than_the_prefetch_comes_as_well(net: testing.Network) -> None:
    async with net.context("a") as context, context.create_consumer(NEWS) as consumer:
        for size in (5_000, 10, 900, 900, 10, 5_000):
            await context.create_producer().send(NEWS, bytes(size))
        sizes = [len((await got(consumer)).get_body(bytes) or b"") for _ in range(6)]
        assert sizes == [5_000, 10, 900, 900, 10, 5_000]


@scene("a", messaging={"prefetch": 2})
async def test_what_expires_while_it_waits_here_makes_room_for_the_next(net: testing.Network) -> None:
    async with net.context("a") as context, context.create_consumer(NEWS) as consumer:
        producer = context.create_producer()
        for number in range(5):
            await producer.send(NEWS, f"short {number}", time_to_live=10)
        await producer.send(NEWS, "long")
        await net.run(11)
        assert await texts(consumer) == ["long"]
