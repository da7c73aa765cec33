"""`message.release(delay=)`: a program gives a message back, and it comes again when its time has come."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any

import pytest
from tests.support.jms_encoded import EncodedNetwork
from tests.support.jms_scenes import SOON_S, got, scene, texts

from carrypost import (
    Consumer,
    Context,
    IllegalArgumentException,
    IllegalStateException,
    ListenerException,
    Message,
    SessionMode,
    TextMessage,
    testing,
)

INDIVIDUAL = SessionMode.INDIVIDUAL_ACKNOWLEDGE
Scene = Callable[[testing.Network], Coroutine[Any, Any, None]]
Play = Callable[..., None]
Open = Callable[[Context], Coroutine[Any, Any, Consumer]]


async def of_own_queue(ctx: Context) -> Consumer:
    await ctx.declare_queue("box")
    return await ctx.create_consumer("queue/box")


async def of_far_queue(ctx: Context) -> Consumer:
    return await ctx.create_consumer("queue/far@b")


async def of_durable_subscription(ctx: Context) -> Consumer:
    return await ctx.create_durable_consumer("topic/news", "inbox")


async def of_live_subscription(ctx: Context) -> Consumer:
    return await ctx.create_consumer("topic/news")


LASTING: dict[Open, str] = {
    of_own_queue: "queue/box@a",
    of_far_queue: "queue/far@b",
    of_durable_subscription: "topic/news",
}
ALL = LASTING | {of_live_subscription: "topic/news"}


@pytest.fixture(params=["direct", "encoded"])
def play(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Play:
    """Runs a scene; once more with everything encoded that programs and node say to each other."""
    if request.param == "encoded":
        monkeypatch.setattr(testing, "Network", EncodedNetwork)

    def run(scene: Scene, **options: object) -> None:
        async def entered() -> None:
            async with testing.network("a", "b", seed=1, **options) as net, net.context("b") as far:  # type: ignore[arg-type]
                net.link("a", "b")
                await far.declare_queue("far")
                await scene(net)

        testing.run(entered)

    return run


def text_of(message: Message) -> str:
    return message.get_body(str) or ""


@pytest.mark.parametrize("opened", ALL)
def test_a_released_message_comes_again_after_its_delay_while_others_go_on(play: Play, opened: Open) -> None:
    async def scene(net: testing.Network) -> None:
        async with net.context("a", INDIVIDUAL, client_id="me") as ctx:
            inbox = await opened(ctx)
            await ctx.send(ALL[opened], "first")
            first = await got(inbox)
            begun_s = net.now
            await first.release(delay=5)
            await first.release(delay=500)  # It is not the program's any more.
            await first.acknowledge()
            await ctx.send(ALL[opened], "second")
            second = await got(inbox)
            assert (text_of(second), second.jms_redelivered) == ("second", False)
            again = await got(inbox)
            assert net.now - begun_s == pytest.approx(5, abs=0.5)
            assert (text_of(again), again.jms_redelivered) == ("first", True)
            assert again.get_int_property("JMSXDeliveryCount") == 2
            await again.release(timedelta(0))
            at_once = await got(inbox)
            assert net.now - begun_s == pytest.approx(5, abs=0.5)
            assert at_once.get_int_property("JMSXDeliveryCount") == 3
            await at_once.acknowledge()
            await second.acknowledge()
            assert await inbox.receive(timeout=SOON_S) is None

    play(scene)


@pytest.mark.parametrize("opened", LASTING)
@pytest.mark.parametrize("killed_after_s", [0.0, 2.0])
def test_the_delay_holds_over_a_restart(play: Play, opened: Open, killed_after_s: float) -> None:
    async def scene(net: testing.Network) -> None:
        ctx = await net.context("a", INDIVIDUAL, client_id="me")
        inbox = await opened(ctx)
        await ctx.send(ALL[opened], "x")
        begun_s = net.now
        await (await got(inbox)).release(delay=300)
        await net.run(killed_after_s)
        net.kill("a")
        await net.run(10)
        net.restart("a")
        async with net.context("a", INDIVIDUAL, client_id="me") as ctx:
            inbox = await opened(ctx)
            assert await inbox.receive(timeout=200) is None
            again = await inbox.receive(timeout=200)
            assert again is not None
            assert net.now - begun_s == pytest.approx(300, abs=20)  # The message came at some time after `begun_s`.
            assert again.jms_redelivered
            await again.acknowledge()
        async with net.context("a", INDIVIDUAL, client_id="me") as ctx:
            assert await (await opened(ctx)).receive(timeout=SOON_S) is None

    play(scene)


@pytest.mark.parametrize("opened", LASTING)
@pytest.mark.parametrize("before", [True, False], ids=["consumer first", "release first"])
def test_the_delay_holds_when_its_consumer_closes(play: Play, opened: Open, before: bool) -> None:
    async def scene(net: testing.Network) -> None:
        async with net.context("a", INDIVIDUAL, client_id="me") as ctx:
            inbox = await opened(ctx)
            await ctx.send(ALL[opened], "x")
            message = await got(inbox)
            begun_s = net.now
            if before:
                await inbox.close()
                await message.release(delay=30)
            else:
                await message.release(delay=30)
                await inbox.close()
            async with ctx.create_context() as other:
                again = await got(await opened(other))
                assert net.now - begun_s == pytest.approx(30, abs=0.5)
                assert again.jms_redelivered

    play(scene)


def test_a_released_message_goes_to_another_consumer_that_is_open(play: Play) -> None:
    async def scene(net: testing.Network) -> None:
        async with net.context("a", INDIVIDUAL) as ctx, net.context("a", INDIVIDUAL) as other:
            first = await of_own_queue(ctx)
            await ctx.send("queue/box", "x")
            message = await got(first)
            second = await of_own_queue(other)
            await message.release(delay=10)
            await ctx.close()
            begun_s = net.now
            assert text_of(await got(second)) == "x"
            assert net.now - begun_s == pytest.approx(10, abs=0.5)

    play(scene)


@pytest.mark.parametrize("opened", ALL)
def test_a_message_that_is_released_too_often_is_a_dead_letter(play: Play, opened: Open) -> None:
    async def scene(net: testing.Network) -> None:
        async with net.context("a", INDIVIDUAL, client_id="me") as ctx:
            told: list[object] = []
            ctx.set_exception_listener(told.append)
            inbox = await opened(ctx)
            await ctx.send(ALL[opened], "x")
            for _ in range(3):
                await (await got(inbox)).release(delay=1)
            assert await inbox.receive(timeout=SOON_S) is None
            assert [type(each) for each in told] == [ListenerException]

    play(scene, messaging={"tries": 3})


@pytest.mark.parametrize("opened", ALL)
def test_a_released_message_may_expire_meanwhile(play: Play, opened: Open) -> None:
    async def scene(net: testing.Network) -> None:
        async with net.context("a", INDIVIDUAL, client_id="me") as ctx:
            inbox = await opened(ctx)
            await ctx.send(ALL[opened], "x", time_to_live=30)
            await (await got(inbox)).release(delay=60)
            assert await inbox.receive(timeout=120) is None
            await ctx.send(ALL[opened], "y")
            assert await texts(inbox) == ["y"]

    play(scene)


def test_a_lease_ends_while_a_message_waits(play: Play) -> None:
    async def scene(net: testing.Network) -> None:
        async with net.context("b") as far, net.context("a", INDIVIDUAL) as ctx:
            for name, declares in (("near", ctx), ("away", far)):
                await declares.declare_queue(name, redelivery="after_lease", lease_s=20)
                address = f"queue/{name}@{'a' if declares is ctx else 'b'}"
                async with ctx.create_consumer(address, prefetch=1) as inbox:
                    await ctx.send(address, "x")
                    await (await got(inbox)).release(delay=3_000)
                    again = await got(inbox)  # Its manager gives it to whoever asks.
                    assert again.jms_redelivered
                    await again.acknowledge()

    play(scene)


def test_a_full_disk_takes_a_release(play: Play) -> None:
    async def scene(net: testing.Network) -> None:
        async with net.context("a", INDIVIDUAL) as ctx:
            inbox = await of_own_queue(ctx)
            await ctx.send("queue/box", "x")
            message = await got(inbox)
            net.fill_disk("a")
            await message.release(delay=60)
            assert await inbox.receive(timeout=20) is None
            assert text_of(await got(inbox)) == "x"

    play(scene)


def test_a_release_that_is_cancelled_is_done(play: Play) -> None:
    async def scene(net: testing.Network) -> None:
        async with net.context("a", INDIVIDUAL) as ctx:
            inbox = await of_own_queue(ctx)
            await ctx.send("queue/box", "x")
            waiting = asyncio.create_task((await got(inbox)).release(delay=30))
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            begun_s = net.now
            again = await got(inbox)
            assert again.get_int_property("JMSXDeliveryCount") == 2
            assert net.now - begun_s == pytest.approx(30, abs=1)

    play(scene)


@scene("a")
async def test_release_inside_processing_is_no_failure(net: testing.Network) -> None:
    async with net.context("a", INDIVIDUAL) as ctx:
        inbox = await of_own_queue(ctx)
        await ctx.send("queue/box", "x")
        async with (await got(inbox)).processing() as message:
            await message.release(delay=10)
        begun_s = net.now
        assert (await got(inbox)).jms_redelivered
        assert net.now - begun_s == pytest.approx(10, abs=0.5)


@pytest.mark.parametrize("mode", [mode for mode in SessionMode if mode is not INDIVIDUAL])
@scene("a")
async def test_other_modes_release_nothing(net: testing.Network, mode: SessionMode) -> None:
    async with net.context("a", mode) as ctx, net.context("a") as sender:
        inbox = await of_own_queue(ctx)
        await sender.send("queue/box", "x")
        message = await got(inbox)
        with pytest.raises(IllegalStateException, match=r"release\(\) requires a consumer .*INDIVIDUAL_ACKNOWLEDGE"):
            await message.release()


@scene("a")
async def test_what_is_wrong_with_a_release_is_told(net: testing.Network) -> None:
    with pytest.raises(IllegalStateException, match="INDIVIDUAL_ACKNOWLEDGE"):
        await TextMessage("never sent").release()
    async with net.context("a", INDIVIDUAL) as ctx:
        inbox = await of_own_queue(ctx)
        await ctx.send("queue/box", "x")
        message = await got(inbox)
        for delay in (-1, "5", None, True, float("nan")):
            with pytest.raises(IllegalArgumentException, match="delay must be a number of seconds"):
                await message.release(delay)  # type: ignore[arg-type]
        await message.acknowledge()
        assert await inbox.receive(timeout=SOON_S) is None
    with pytest.raises(IllegalStateException, match="this context is closed"):
        await message.release()


@pytest.mark.parametrize("opened", LASTING)
@pytest.mark.parametrize("seed", range(2))
def test_whatever_happens_a_released_message_comes_once_more_and_not_too_early(
    play: Play, opened: Open, seed: int
) -> None:
    """Consumers close, programs and nodes end, and messages are released and acknowledged at random."""
    chance = random.Random(seed)

    async def scene(net: testing.Network) -> None:
        due_s: dict[str, float] = {}
        consumed: list[str] = []

        async def take(inbox: Consumer) -> None:
            while (message := await inbox.receive(timeout=chance.choice([0, 1, 10]))) is not None:
                text = text_of(message)
                assert text not in consumed
                assert net.now >= due_s.get(text, 0.0) - 0.001
                if chance.random() < 0.4:
                    delay_s = chance.choice([0, 0.5, 5, 40])
                    due_s[text] = net.now + delay_s
                    await message.release(delay_s)
                else:
                    await message.acknowledge()
                    consumed.append(text)

        for life in range(10):
            ctx = await net.context("a", INDIVIDUAL, client_id="me")
            async with await opened(ctx) as inbox:
                for number in range(3 if life < 8 else 0):
                    await ctx.send(ALL[opened], f"{life}.{number}")
                await take(inbox)
            end = chance.choice(["close", "kill", "go on"])
            if end == "go on":
                await take(await opened(ctx))
            if end == "kill":
                net.kill("a")
                await net.run(chance.choice([0, 7]))
                net.restart("a")
            else:
                await ctx.close()
        async with net.context("a", client_id="me") as ctx:
            consumed += await texts(await opened(ctx), quiet_s=120)
        assert sorted(consumed) == sorted(f"{life}.{number}" for life in range(8) for number in range(3))

    play(scene, messaging={"tries": 1_000})
