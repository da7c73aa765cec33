"""Messages sent straight through the island between real nodes, signed, with losses: five in a line and in a ring.

Links are cut and nodes are killed while messages are on their way. Each message arrives once at its recipient, straight
or from hand to hand, and is acknowledged. Without harm, relays keep no copy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from tests.node.test_addressed_processes import LINE, LOSS, Author, Line
from tests.support.nodes import Nodes, scene, until
from tools.netns import Net
from tools.radio_hub import Radio, Rule

from tools import netns

pytestmark = pytest.mark.skipif(bool(netns.available()), reason=f"no network namespaces: {netns.available()}")

PATIENCE_S = 5.0


@pytest.fixture
def net() -> Iterator[Net]:
    with Net() as made:
        yield made


async def hosts(nodes: Nodes, name: str, count: int) -> bool:
    """Return True if a node knows that this many others can be reached."""
    found = (await nodes[name].client.status())["island"]
    return bool(found["hosts"] == count)


async def play(net: Net, folder: Path, pairs: Sequence[tuple[str, str]], harms: Sequence[str], messages: int) -> None:
    """Send from one end to the other, and cause harm each time a few more messages have arrived."""
    net.add(*LINE)
    radio = Radio(net, *LINE)
    for pair in pairs:
        radio.link(*pair, Rule(heard=True, loss=LOSS))
    settings = {"altruistic": True, "acked_s": 0.3, "announce_s_max": 1.0, "island_patience_s": PATIENCE_S}
    async with Nodes(folder, net, **settings) as nodes:
        line = Line(nodes)
        ids = await line.start()

        async def relayed() -> bool:
            """Return True once a relay has passed on half a message without keeping it."""
            return any([(await nodes[name].client.status())["island"]["relayed_bytes"] > 10_000 for name in "be"])

        await until(lambda: hosts(nodes, "a", 4), 60)
        line.send(Author([[ids["d"]]] * messages, size=20_000))
        for number, harm in enumerate(harms, 1):

            async def came(wanted: int = number * messages // (len(harms) + 1)) -> bool:
                return len(line.readers["d"].done) >= wanted

            await until(came, 90)
            if number == 1:
                await until(relayed, 90)
            if len(harm) == 1:
                await line.kill(harm)
            else:
                radio.unlink(harm[0], harm[1])
                await asyncio.sleep(2 * PATIENCE_S)
                radio.link(harm[0], harm[1], Rule(heard=True, loss=LOSS))
        await line.settle()
        author = line.author
        assert author.sent.keys() <= line.readers["d"].got.keys() <= author.recipients.keys()
        assert not any(line.readers[name].got for name in "bce")
        await line.end()


RING = [*pairwise(LINE), (LINE[-1], LINE[0])]


@scene
async def test_along_a_line_messages_come_once_though_it_is_cut_and_a_relay_killed(net: Net, tmp_path: Path) -> None:
    await play(net, tmp_path, [*pairwise(LINE)], ["b", "cd"], 12)


@pytest.mark.soak
@scene
async def test_round_a_ring_messages_come_once_though_it_is_cut(net: Net, tmp_path: Path) -> None:
    await play(net, tmp_path, RING, ["ed"], 8)


@pytest.mark.soak
@pytest.mark.parametrize("pairs", [[*pairwise(LINE)], RING], ids=["line", "ring"])
@scene
async def test_whatever_is_cut_and_killed_messages_come_once(
    net: Net, tmp_path: Path, pairs: list[tuple[str, str]]
) -> None:
    await play(net, tmp_path, pairs, ["bc", "c", "d", "a", "cd", "b", "d", "ab"], 90)
