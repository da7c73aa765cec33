"""Programs that name the nodes a message is for."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from tests.support.jms_scenes import NEWS, SOON_S, scene, texts

from carrypost import Context, DeliveryMode, IllegalArgumentException, SessionMode, testing

pytestmark = pytest.mark.attached("recipients cross the socket in drafts, and errors come back")
Wrong: Any = object()


async def heard(net: testing.Network, send: Callable[[Context], Coroutine[Any, Any, object]]) -> dict[str, list[str]]:
    """Return what consumers on each node get of what a context on `a` sends."""
    async with net.context("a") as a, net.context("b") as b, net.context("c") as c:
        inboxes = {name: await ctx.create_consumer(NEWS) for name, ctx in (("a", a), ("b", b), ("c", c))}
        await net.run(10)
        await send(a)
        return {name: await texts(inbox, quiet_s=SOON_S) for name, inbox in inboxes.items()}


@scene("a", "b", "c")
async def test_consumers_on_the_nodes_that_are_named_alone_get_it(net: testing.Network) -> None:
    async def send(ctx: Context) -> None:
        await ctx.send(NEWS, "b", recipients=["b"])
        await ctx.create_producer().send(NEWS, "c", recipients=("c", "c"))
        producer = ctx.create_producer().set_delivery_mode(DeliveryMode.NON_PERSISTENT)
        await producer.send(NEWS, "both", recipients={"b", "c"})
        await producer.send(NEWS, "all")

    found = await heard(net, send)
    assert {name: sorted(each) for name, each in found.items()} == {
        "a": ["all"], "b": ["all", "b", "both"], "c": ["all", "both", "c"],
    }  # fmt: skip


@scene("a", "b", "c")
async def test_transactions_keep_the_recipients_of_what_they_send(net: testing.Network) -> None:
    async def send(_: Context) -> None:
        async with net.context("a", mode=SessionMode.SESSION_TRANSACTED) as tx:
            await tx.send(NEWS, "undone", recipients=["c"])
            await tx.rollback()
            await tx.send(NEWS, "b", recipients=["b"])
            await tx.send(NEWS, "all")
            await tx.commit()

    assert await heard(net, send) == {"a": ["all"], "b": ["b", "all"], "c": ["all"]}


@scene("a", "b")
async def test_a_durable_subscription_that_is_made_later_gets_what_came_before(net: testing.Network) -> None:
    async with net.context("a") as ctx:
        await ctx.send(NEWS, "early", recipients=["b"])
        await net.run(30)
    net.unlink("a", "b")
    net.kill("b")
    net.restart("b")
    async with net.context("b", client_id="b") as ctx:
        assert await texts(await ctx.create_durable_consumer(NEWS, "news")) == ["early"]


@scene("a", "b", security="signed")
async def test_signed_nodes_are_named_by_their_ids(net: testing.Network) -> None:
    async with net.context("a") as a, net.context("b") as b:
        inbox = await b.create_consumer(NEWS)
        await a.send(NEWS, "hello", recipients=[net.host("b").node])
        assert await texts(inbox) == ["hello"]
        with pytest.raises(IllegalArgumentException, match="26 lower-case letters and digits, not 'b'"):
            await a.send(NEWS, "hello", recipients=["b"])


MISUSES: dict[str, tuple[Callable[[Context], Coroutine[Any, Any, object]], str]] = {
    "no list": (lambda ctx: ctx.send(NEWS, "x", recipients="b"), "recipients must be a list of node ids, not 'b'"),
    "no texts": (lambda ctx: ctx.send(NEWS, "x", recipients=[Wrong]), "a node id, as text"),
    "nobody": (lambda ctx: ctx.create_producer().send(NEWS, "x", recipients=[]), "leave the list out to send to all"),
    "this node": (lambda ctx: ctx.send(NEWS, "x", recipients=["a", "b"]), "leave this node, 'a', out"),
    "too many": (lambda ctx: ctx.send(NEWS, "x", recipients=["b", "c", "d"]), "limits.recipients_max"),
    "a queue": (lambda ctx: ctx.send("queue/jobs@b", "x", recipients=["b"]), "send to a topic"),
    "an order": (
        lambda ctx: ctx.send(ctx.create_topic("forum", ordering="causal"), "x", recipients=["b"]),
        "without an ordering",
    ),
}


@pytest.mark.parametrize("mode", [SessionMode.AUTO_ACKNOWLEDGE, SessionMode.SESSION_TRANSACTED])
@pytest.mark.parametrize("name", MISUSES)
@scene("a", "b", limits={"recipients_max": 2})
async def test_misuse_raises_says_what_to_do_and_sends_nothing(
    net: testing.Network, name: str, mode: SessionMode
) -> None:
    misuse, text = MISUSES[name]
    async with net.context("a", mode=mode) as ctx:
        with pytest.raises(IllegalArgumentException, match=text):
            await misuse(ctx)
        if mode is SessionMode.SESSION_TRANSACTED:
            await ctx.rollback()
    assert net.host("a").copies == 0
