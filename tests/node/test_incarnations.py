"""Numbers that distinguish the lives of a node, also of one that lost its store."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.support.loopback import apart
from tests.support.nodes import PATIENCE_S, QUICK, scene

from carrypost import ConnectionFactory
from carrypost.attach.served_node import ServedNode
from carrypost.messaging import control
from carrypost.node.settings import NodeSettings, parse

NOW_MS = 1_800_000_000_000
LIVES = (1, 2, 2**20 - 1, NOW_MS, NOW_MS + 1, 2**42 - 1)


def test_numbers_rise_from_life_to_life_and_tell_which_it_was() -> None:
    numbers = [control.last_before(life) + place for life in LIVES for place in (1, 2, 100_000)]
    assert numbers == sorted(set(numbers))
    assert [control.incarnation_of(number) for number in numbers] == [life for life in LIVES for _ in range(3)]
    assert numbers[-1] <= control.NUMBER_MAX


@pytest.mark.parametrize("security", ["off", "signed"])
@scene
async def test_a_node_that_lost_its_store_receives_from_its_own_queues_and_those_of_others(
    tmp_path: Path, security: str
) -> None:
    udp = apart()

    def of(name: str) -> NodeSettings:
        place = {"data": str(tmp_path / name), "name": name}
        return parse("", {}, {**QUICK, "security": security, "udp": udp, "node": place})

    lost = await ServedNode.start(of("anna"))
    await lost.stop()
    for file in (tmp_path / "anna").glob("store.sqlite*"):
        file.unlink()
    nodes = [await ServedNode.start(of(name)) for name in ("anna", "bert")]
    contexts = [ConnectionFactory(f"unix:{of(name).control}").create_context() for name in ("anna", "bert")]
    async with contexts[0] as anna, contexts[1] as bert:
        for owner, text in ((anna, "own"), (bert, "other's")):
            queue = await owner.declare_queue(f"letters-{text}")
            await owner.send(queue, text)
            received = await (await anna.create_consumer(queue)).receive(timeout=PATIENCE_S)
            assert received is not None
            assert received.get_body(str) == text
    for node in nodes:
        await node.stop()
    shutil.rmtree(tmp_path / "anna")
