"""Topics that a node holds against sets: what each subscriber has to get, may get, and may not, in random schedules.

Nodes meet and part, subscribe and leave, publish, are killed between batches, and start again. What a holder knows of a
subscriber is certain only after all met: until then a publication may go either way. Nothing ever comes twice.
"""

from __future__ import annotations

import enum
import random
from itertools import combinations

import pytest
from tests.messaging.test_holder import news

from carrypost import testing

NODES = "hpst"
SUBSCRIBERS = {"s": None, "t": "urgency > 5", "p": None, "h": None}
"""Subscribers and their selectors: one publishes as well, and one is the holder itself."""
LONG_S = 86_400.0 * 20


class Expected(enum.Enum):
    """Return True if a subscriber gets a publication."""

    MUST = enum.auto()
    MAY = enum.auto()
    NEVER = enum.auto()


class Play:
    """One schedule, and the sets that judge it."""

    def __init__(self, net: testing.Network, seed: int) -> None:
        self.net, self.rng = net, random.Random(seed)
        self.dead: set[str] = set()
        self.linked: set[tuple[str, str]] = set()
        self.subscribed: set[str] = set()
        self.certain: dict[str, bool] = dict.fromkeys(SUBSCRIBERS, True)
        """False: since all met the last time, it subscribed or left."""
        self.open: dict[str, dict[str, Expected]] = {}
        """Publications since then, by id: what each subscriber gets of them."""
        self.got: dict[str, list[str]] = {name: [] for name in SUBSCRIBERS}
        self.sent = 0

    async def begin(self) -> None:
        async with self.net.context("h") as ctx:
            await ctx.declare_topic("news")
        await self.meet()

    # --- what happens --------------------------------------------------------------------------------------

    async def step(self) -> None:
        action = self.rng.choice(
            [self.publish, self.publish, self.publish, self.subscribe, self.leave, self.link, self.link, self.kill]
        )
        await action(self.rng.choice(NODES))
        await self.net.run(self.rng.choice((0.0, 0.02, 0.2, 5.0, 60.0)))

    async def publish(self, node: str) -> None:
        if node in self.dead:
            return
        urgency = self.rng.choice((1, 9))
        async with self.net.context(node) as ctx:
            body = "x" * self.rng.choice((1, 100, 20_000))
            sent = await ctx.send(news(ctx), body, properties={"urgency": urgency}, label=f"m{self.sent}")
        self.sent += 1
        assert sent.message_id is not None
        self.open[sent.message_id] = {
            name: Expected.NEVER if selector and urgency <= 5 else self.expected(name)
            for name, selector in SUBSCRIBERS.items()
        }

    def expected(self, name: str) -> Expected:
        if not self.certain[name]:
            return Expected.MAY
        return Expected.MUST if name in self.subscribed else Expected.NEVER

    async def subscribe(self, node: str) -> None:
        if node not in self.dead | self.subscribed:
            await self.read(node)
            self.subscribed.add(node)
            self.doubt(node)

    async def leave(self, node: str) -> None:
        if node in self.subscribed - self.dead:
            await self.read(node)
            async with self.net.context(node, client_id=node) as ctx:
                await ctx.unsubscribe("news")
            self.subscribed.discard(node)
            self.doubt(node)

    def doubt(self, node: str) -> None:
        self.certain[node] = False
        for each in self.open.values():
            each[node] = Expected.MAY

    async def link(self, node: str) -> None:
        other = self.rng.choice([each for each in NODES if each != node])
        pair = (min(node, other), max(node, other))
        if pair in self.linked:
            self.net.unlink(*pair)
            self.linked.discard(pair)
        else:
            self.net.link(*pair)
            self.linked.add(pair)

    async def kill(self, node: str) -> None:
        if node in self.dead:
            self.net.restart(node)
            self.dead.discard(node)
        else:
            self.net.kill(node)
            self.dead.add(node)

    async def read(self, node: str) -> None:
        """Let a node consume what waits for it."""
        async with self.net.context(node, client_id=node) as ctx:
            inbox = await ctx.create_durable_consumer(news(ctx), "news", SUBSCRIBERS[node])
            async for message in inbox.messages(timeout=1.0):
                self.got[node].append(str(message.jms_message_id))

    # --- judging -------------------------------------------------------------------------------------------

    async def meet(self) -> None:
        """Let all meet, and judge."""
        for node in sorted(self.dead):
            self.net.restart(node)
        self.dead.clear()
        for pair in combinations(sorted(NODES), 2):
            if pair not in self.linked:
                self.net.link(*pair)
                self.linked.add(pair)
        await self.net.run(200)
        for node in sorted(self.subscribed):
            await self.read(node)
        for node, got in self.got.items():
            assert len(got) == len(set(got)), f"{node} got something twice"
            for message, expected in self.open.items():
                if expected[node] is Expected.MUST:
                    assert message in got, f"{node} misses {message}"
                elif expected[node] is Expected.NEVER:
                    assert message not in got, f"{node} got {message}"
        self.open = {}
        self.certain = dict.fromkeys(SUBSCRIBERS, True)


async def played(seed: int, steps: int) -> int:
    async with testing.network(*NODES, seed=seed, disk_delay_s=0.03, loss=0.05) as net:
        play = Play(net, seed)
        await play.begin()
        for _ in range(4):
            for _ in range(steps):
                await play.step()
            await play.meet()
        return sum(map(len, play.got.values()))


@pytest.mark.parametrize("seed", range(4))
def test_every_subscriber_gets_what_its_set_says(seed: int) -> None:
    assert testing.run(lambda: played(seed, 15), limit_s=LONG_S) > 0


@pytest.mark.soak
def test_every_subscriber_gets_what_its_set_says_in_many_schedules() -> None:
    for seed in range(100, 400):
        testing.run(lambda: played(seed, 30), limit_s=LONG_S)  # noqa: B023 - it is over before the next one
