"""Random networks with a circle: who may read each message, and what others ever held or heard of it."""

from __future__ import annotations

import random
from collections import Counter

from tests.support.letters import SIGNED, on_air, stored

from carrypost import Consumer, Context, testing

NODES = tuple(f"n{at}" for at in range(8))
OWNER, EARLY, LATE, REMOVED, CARRIERS = "n0", ("n1", "n2"), "n3", "n4", ("n5", "n6")
"""`n7` is a stranger with messaging that subscribes to everything it can name."""
TOPIC = "circle/team/plans"


async def _inbox(context: Context) -> Consumer:
    return await context.create_shared_durable_consumer(f"{TOPIC}?order=causal", "all")


async def _restarted(net: testing.Network, node: str) -> Context:
    net.kill(node)
    await net.run(5)
    net.restart(node)
    return await net.context(node)


class CircleSearch:
    """One network: members publish under one epoch after another while nodes meet, lose datagrams and crash."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.must: dict[str, set[str]] = {}
        """Nodes that have to read each message, by its mark."""
        self.may: dict[str, set[str]] = {}
        """Nodes that may read it."""
        self.got: Counter[tuple[str, str]] = Counter()
        self.order: dict[str, list[str]] = {}
        """Marks in the order in which each node was handed them."""

    async def play(self, seed: int) -> None:
        """Play the network, and check it."""
        with on_air() as datagrams:
            async with testing.network(*NODES, seed=seed, loss=0.05, encoded=True, **SIGNED) as net:
                await self._play(net)
                for mark, must in self.must.items():
                    for node in NODES:
                        wanted = 1 if node in must else self.got[mark, node]
                        assert self.got[mark, node] == wanted <= 1, (mark, node, self.got[mark, node])
                    assert {node for node in NODES if self.got[mark, node]} <= self.may[mark], mark
                    for text in (f"body {mark}", f"property {mark}", f"label {mark}", "plans"):
                        for node in CARRIERS:
                            assert text.encode() not in stored(net, node), (text, node)
                        assert not any(text.encode() in each for each in datagrams), text
        for marks in self.order.values():  # One author, causal order.
            assert marks == sorted(marks)

    async def _play(self, net: testing.Network) -> None:
        contexts = {node: await net.context(node) for node in NODES}
        net.found(OWNER, "team")
        code = net.invite(OWNER, "team")
        inside = {OWNER, *EARLY, REMOVED}
        inboxes = {}
        for node in sorted(inside):
            if node != OWNER:
                net.join(node, code)
            inboxes[node] = await _inbox(contexts[node])
        self._mingle(net, every=True)
        await net.run(60)
        for step in range(4):
            for number in (2 * step, 2 * step + 1):
                await self._publish(contexts[OWNER], number, inside)
                self._mingle(net)
                await net.run(self.rng.randrange(5, 40))
            if step == 0:
                net.join(LATE, net.invite(OWNER, "team", fresh=True))
                inside = inside | {LATE}
                inboxes[LATE] = await _inbox(contexts[LATE])
                self._mingle(net, every=True)
                await net.run(60)
            elif step == 1:
                net.remove(OWNER, "team", REMOVED)
                inside = inside - {REMOVED}
            elif step == 2:
                net.rotate(OWNER, "team")
                crashed = self.rng.choice(EARLY)
                await inboxes[crashed].close()
                contexts[crashed] = await _restarted(net, crashed)
                inboxes[crashed] = await _inbox(contexts[crashed])
        await self._finish(net, inboxes)
        for context in contexts.values():
            await context.close()

    async def _finish(self, net: testing.Network, inboxes: dict[str, Consumer]) -> None:
        """Let everybody meet, and count what each consumer gets."""
        self._mingle(net, every=True)
        await net.run(300)
        for node, inbox in inboxes.items():
            while (message := await inbox.receive(timeout=1)) is not None:
                mark = (message.text or "").removeprefix("body ")
                assert (message.sealed, message.get_string_property("secret")) == ("team", f"property {mark}")
                self.got[mark, node] += 1
                self.order.setdefault(node, []).append(mark)

    async def _publish(self, owner: Context, number: int, inside: set[str]) -> None:
        mark = f"mark{number:02}"
        # A removed node reads nothing of later epochs, a late one nothing of earlier epochs.
        self.must[mark] = self.may[mark] = set(inside)
        await owner.send(
            f"{TOPIC}?order=causal", f"body {mark}", properties={"secret": f"property {mark}"}, label=f"label {mark}"
        )

    def _mingle(self, net: testing.Network, *, every: bool = False) -> None:
        for at, one in enumerate(NODES):
            for two in NODES[at + 1 :]:
                meet = NODES.index(two) == at + 1 if every else self.rng.random() < 0.2
                if meet is not net.linked(one, two):
                    (net.link if meet else net.unlink)(one, two)
