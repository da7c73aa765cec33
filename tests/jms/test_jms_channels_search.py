"""Channel topics in storms: transactions, crashes, full disks and failing links, chosen at random by a seed.

Producers commit events in transactions, and a durable consumer receives them in transactions. Each event of a commit
that returned is consumed once, in the order of its producer, or counted as lost. Of a commit that raised, either all
events arrive or none.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress

import pytest
from tests.support.examples import soaked

from carrypost import Consumer, Context, JMSException, SessionMode, testing
from carrypost.jms.destinations import ChannelTopic

FLOOD = ChannelTopic("flood")
OVERLAY = {"enabled": True, "update_s": 4.0, "discovery_s": 2.0, "orphan_s": 8.0, "gap_s": 40.0}
NODES, LINKS = "ABpqc", ("AB", "pA", "qB", "cB", "cA")
TRANSACTED = SessionMode.SESSION_TRANSACTED


class Storm:
    """Programs on five nodes, and the messages that they saw."""

    def __init__(self, net: testing.Network, seed: int) -> None:
        self.net, self.chance = net, random.Random(seed)
        self.contexts: dict[str, Context] = {}
        self.inbox: Consumer | None = None
        self.down: set[str] = set()
        self.count = 0
        self.commits: list[tuple[list[str], bool]] = []
        """Bodies that were sent together, and whether the commit returned."""
        self.open: list[str] = []
        """Bodies that the consumer received and did not commit."""
        self.done: list[str] = []
        self.doubtful: set[str] = set()
        """Bodies of the consumer's commits that raised."""
        self.lost: dict[str, int] = {}
        """Events that are missing, by the body of the message that said so: it may come again."""

    async def context(self, node: str) -> Context | None:
        """Return the program on a node, started again if that is to be."""
        if node in self.down:
            return None
        if node not in self.contexts:
            with suppress(JMSException):
                self.contexts[node] = await self.net.context(node, TRANSACTED, client_id=node)
        return self.contexts.get(node)

    async def emit(self, node: str) -> None:
        ctx = await self.context(node)
        if ctx is None:
            return
        bodies = []
        for _ in range(self.chance.randint(1, 3)):
            self.count += 1
            bodies.append(f"{node}{self.count:04}")
        rolled_back, returned = self.chance.random() < 0.2, False
        with suppress(JMSException, TimeoutError):
            async with asyncio.timeout(30):
                for body in bodies:
                    await ctx.send(FLOOD, body)
                await (ctx.rollback() if rolled_back else ctx.commit())
                returned = True
        if not (rolled_back and returned):
            self.commits.append((bodies, returned))

    async def consume(self, *, until_quiet: bool = False) -> None:
        ctx = await self.context("c")
        if ctx is None:
            return
        with suppress(JMSException, TimeoutError):
            async with asyncio.timeout(30 if not until_quiet else 200):
                if self.inbox is None:
                    self.inbox = await ctx.create_durable_consumer(FLOOD, "inbox")
                most = self.chance.randint(1, 5)
                while until_quiet or len(self.open) < most:
                    message = await self.inbox.receive(timeout=20 if until_quiet else 0.2)
                    if message is None:
                        break
                    self.saw(message.get_body(str) or "", again=message.jms_redelivered)
                    if message.property_exists("JMS_carrypost_EventsLost"):
                        self.lost[self.open[-1]] = message.get_long_property("JMS_carrypost_EventsLost")
                if not until_quiet and self.chance.random() < 0.3:
                    await ctx.rollback()
                    self.open = []
                    return
        taken, self.open = self.open, []
        try:
            async with asyncio.timeout(30):
                await ctx.commit()
        except (JMSException, TimeoutError):
            self.doubtful |= {*taken}
        else:
            self.done += taken

    def saw(self, body: str, *, again: bool) -> None:
        assert body not in self.done, f"{body} was consumed before"
        assert again or body not in self.doubtful, f"{body} came again without a flag"
        self.open.append(body)

    async def crash(self, node: str) -> None:
        if node in self.down:
            self.net.restart(node)
            self.down.discard(node)
            return
        self.net.kill(node)
        self.down.add(node)
        if (ctx := self.contexts.pop(node, None)) is not None:
            with suppress(JMSException):
                await ctx.close()
        if node == "c":
            self.inbox = None
            self.doubtful |= {*self.open}
            self.open = []

    async def move(self) -> None:
        chance, roll = self.chance, self.chance.random()
        if roll < 0.35:
            await self.emit(chance.choice("pq"))
        elif roll < 0.6:
            await self.consume()
        elif roll < 0.75:
            pair = chance.choice(LINKS)
            (self.net.unlink if self.net.linked(*pair) else self.net.link)(*pair)
        elif roll < 0.83:
            await self.crash(chance.choice(NODES))
        elif roll < 0.88:
            self.net.fill_disk(chance.choice(NODES), full=chance.random() < 0.5)
        await self.net.run(chance.choice([0.01, 0.1, 0.5, 2.0]))

    async def heal(self) -> None:
        for node in sorted(self.down):
            await self.crash(node)
        for node in NODES:
            self.net.fill_disk(node, full=False)
        for pair in LINKS:
            if not self.net.linked(*pair):
                self.net.link(*pair)
        await self.net.run(60)

    def check(self) -> None:
        """Compare consumed messages with committed ones."""
        assert len(self.done) == len({*self.done})
        missing = 0
        for producer in "pq":
            seen = [body for body in self.done if body[0] == producer]
            assert seen == sorted(seen)
        for bodies, returned in self.commits:
            got = [body in self.done or body in self.doubtful for body in bodies]
            missing += got.count(False) if returned else 0
        assert missing <= sum(self.lost.values()), (missing, self.lost)


async def play(seed: int, moves: int) -> None:
    chance = random.Random(seed)
    options = {"loss": chance.choice([0.0, 0.1, 0.2]), "disk_delay_s": chance.choice([0.0, 0.05, 0.3])}
    async with testing.network(seed=seed, island=True, island_s_min=0.2, announce_s_max=2.0, **options) as net:  # type: ignore[arg-type]
        for node in NODES:
            net.add(node, overlay=OVERLAY | {"broker": node.isupper()})
        for pair in LINKS:
            net.link(*pair)
        await net.run(10)
        storm = Storm(net, seed)
        await storm.consume()
        await net.run(5)
        for _ in range(moves):
            await storm.move()
        await storm.heal()
        for _ in range(3):
            await storm.consume(until_quiet=True)
            await net.run(60)
        storm.check()
        for ctx in storm.contexts.values():
            await ctx.close()


@pytest.mark.parametrize("seed", [1, *soaked(range(2, 200))])
def test_events_are_consumed_once_in_order_or_counted_as_lost(seed: int) -> None:
    testing.run(lambda: play(seed, 60))
