"""Searches with random losses of the node, in virtual time: nothing is lost, or doubled without a flag."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import cast

import pytest
from tests.support.jms_reconnecting import ReconnectingNetwork

from carrypost import (
    Consumer,
    Context,
    DeliveryMode,
    JMSException,
    Message,
    SessionMode,
    TransactionRolledBackException,
    testing,
)
from carrypost.jms.provider import NODE_LOST

SETTINGS = {"tries": 10_000, "redelivery_delay_s": 0.0}
LENGTH_S = 60.0
QUIET_S = 200.0
"""Time after the last loss, in which everything arrives; messages of before a loss come one at a time."""


def lost(error: JMSException) -> None:
    """Raise an error that is not the loss of the node."""
    if error.error_code != NODE_LOST:
        raise error


@dataclass
class Book:
    """The messages of one destination, as their programs know of them."""

    tried: set[str] = field(default_factory=set)
    confirmed: set[str] = field(default_factory=set)
    got: Counter[str] = field(default_factory=Counter)
    acknowledged: set[str] = field(default_factory=set)
    faults: list[str] = field(default_factory=list)

    def take(self, message: Message) -> str:
        """Note a message that a program got; returns its text."""
        text = message.get_body(str) or ""
        if self.got[text] and not message.jms_redelivered:
            self.faults.append(f"{text} came again without a flag")
        if text in self.acknowledged:
            self.faults.append(f"{text} came again after it was acknowledged")
        if text not in self.tried:
            self.faults.append(f"{text} was never sent")
        self.got[text] += 1
        return text

    def check(self) -> None:
        assert not self.faults, self.faults
        assert self.confirmed <= self.got.keys(), f"lost: {sorted(self.confirmed - self.got.keys())}"


class Search:
    """One run: senders, receivers of every kind, and losses, all by chance."""

    def __init__(self, net: ReconnectingNetwork, chance: random.Random) -> None:
        self.net, self.chance = net, chance
        self.ends = False

    async def rest(self, longest_s: float) -> None:
        await asyncio.sleep(self.chance.choice((0, 0.001, 0.01, 1)) * self.chance.random() * longest_s)

    async def send(self, ctx: Context, to: str, book: Book) -> None:
        number = 0
        while not self.ends:
            number += 1
            text = f"{to}-{number}"
            book.tried.add(text)
            mode = self.chance.choice((DeliveryMode.PERSISTENT, DeliveryMode.PERSISTENT, DeliveryMode.NON_PERSISTENT))
            try:
                await ctx.send(to, text, delivery_mode=mode)
                if mode is DeliveryMode.PERSISTENT:
                    book.confirmed.add(text)
            except JMSException as error:
                lost(error)
            await self.rest(4)

    async def receive(self, ctx: Context, inbox: Consumer, book: Book) -> None:
        """Receive, and acknowledge as the mode wants it; roll back or recover at times."""
        held: list[tuple[str, Message]] = []
        while True:
            message = await inbox.receive(timeout=self.chance.choice((0, 0.5, 5)))
            if message is not None:
                held.append((book.take(message), message))
            else:
                await self.rest(2)
            if not held or self.chance.random() < 0.5:
                continue
            await self.rest(2)
            try:
                await self.acknowledge(ctx, held, book)
            except TransactionRolledBackException:
                pass
            except JMSException as error:
                lost(error)
            held.clear()

    async def acknowledge(self, ctx: Context, held: list[tuple[str, Message]], book: Book) -> None:
        match ctx.session_mode:
            case SessionMode.CLIENT_ACKNOWLEDGE:
                if self.chance.random() < 0.2:
                    await ctx.recover()
                    return
                await ctx.acknowledge()
            case SessionMode.INDIVIDUAL_ACKNOWLEDGE:
                for text, message in held:
                    await message.acknowledge()
                    book.acknowledged.add(text)
            case SessionMode.SESSION_TRANSACTED:
                for text, _ in held:
                    await ctx.send("queue/out", text)
                if self.chance.random() < 0.2:
                    await ctx.rollback()
                    return
                await ctx.commit()
            case _:
                return  # Nobody knows when that is done.
        book.acknowledged.update(text for text, _ in held)

    def listen(self, inbox: Consumer, book: Book) -> None:
        async def heard(message: Message) -> None:
            book.take(message)
            await self.rest(4)

        inbox.set_message_listener(heard)

    async def lose(self) -> None:
        until_s = asyncio.get_running_loop().time() + LENGTH_S
        while asyncio.get_running_loop().time() < until_s:
            await self.rest(10)
            match self.chance.choice(("kill", "stop", "cut")):
                case "cut":
                    self.net.cut("a")
                case how:
                    getattr(self.net, how)("a")
                    await self.rest(10)
                    self.net.restart("a")
        self.ends = True


MODES = {
    "auto": SessionMode.AUTO_ACKNOWLEDGE,
    "dups": SessionMode.DUPS_OK_ACKNOWLEDGE,
    "client": SessionMode.CLIENT_ACKNOWLEDGE,
    "individual": SessionMode.INDIVIDUAL_ACKNOWLEDGE,
    "transacted": SessionMode.SESSION_TRANSACTED,
    "listener": SessionMode.AUTO_ACKNOWLEDGE,
}


@asynccontextmanager
async def program(search: Search, kind: str, how: str, book: Book) -> AsyncIterator[str]:
    """Open a program that receives from a destination of its own, which this yields."""
    name, chance = f"{kind}.{how}", search.chance
    async with search.net.context("a", MODES[how], client_id=name) as ctx:
        if kind == "queue":
            await ctx.declare_queue(name)
            inbox = await ctx.create_consumer(f"queue/{name}", prefetch=chance.choice((0, 1, 10, 100)))
        elif kind == "durable":
            inbox = await ctx.create_durable_consumer(f"topic/{name}", "all", prefetch=chance.choice((1, 10, 100)))
        else:
            inbox = await ctx.create_consumer(f"topic/{name}", prefetch=chance.choice((1, 10, 100)))
        if how == "listener":
            search.listen(inbox, book)
            yield f"{'queue' if kind == 'queue' else 'topic'}/{name}"
            return
        receiving = asyncio.create_task(search.receive(ctx, inbox, book))
        try:
            yield f"{'queue' if kind == 'queue' else 'topic'}/{name}"
        finally:
            receiving.cancel()
            results = await asyncio.gather(receiving, return_exceptions=True)
        assert isinstance(results[0], asyncio.CancelledError), results


def searched(seed: int) -> None:
    """Play a run of a seed: two programs of each kind, and random losses."""

    async def play() -> None:
        chance = random.Random(seed)
        async with testing.network(
            "a", seed=seed, disk_delay_s=chance.choice((0.0, 0.01, 0.3)), messaging=SETTINGS
        ) as plain:
            net = cast("ReconnectingNetwork", plain)
            search, books = Search(net, chance), list[Book]()
            moved = [(kind, chance.choice(list(MODES))) for kind in ("queue", "durable", "live")]
            async with net.context("a") as ctx:
                await ctx.declare_queue("out")
                await _play(search, ctx, moved, books)
                for book in books:
                    book.check()
                if any(how == "transacted" for _, how in moved):
                    out = Counter([each.get_body(str) or "" async for each in ctx.create_browser("queue/out")])
                    wanted = set[str]().union(
                        *(b.acknowledged for (_, how), b in zip(moved, books, strict=True) if how == "transacted")
                    )
                    assert wanted <= out.keys()
                    assert set(out.values()) <= {1}, [text for text, count in out.items() if count > 1]

    testing.run(play)


async def _play(search: Search, ctx: Context, moved: list[tuple[str, str]], books: list[Book]) -> None:
    if not moved:
        await search.lose()
        await asyncio.sleep(QUIET_S)
        return
    book = Book()
    books.append(book)
    async with program(search, *moved[0], book) as to:
        sending = asyncio.create_task(search.send(ctx, to, book))
        await _play(search, ctx, moved[1:], books)
        await sending


@pytest.fixture(autouse=True)
def _reconnecting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(testing, "Network", ReconnectingNetwork)


@pytest.mark.parametrize("seed", [1, 2])
def test_nothing_is_lost_or_doubled_without_a_flag(seed: int) -> None:
    searched(seed)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 600))
def test_nothing_is_lost_or_doubled_without_a_flag_in_many_runs(seed: int) -> None:
    searched(seed)
