"""Closed networks of real processes: in network namespaces, with a node beside them that has no code."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.support.loopback import apart
from tests.support.nodes import Nodes, scene
from tools.netns import Net

from carrypost import ConnectionFactory
from tools import netns

NAMES = ("a", "b", "c", "d", "e")
CLOSED = {"closed": "rescue"}


async def joins(folder: Path, code: str = "") -> str:
    """Found a circle on the node of a folder before it runs, or join one; return a code."""
    settings: dict[str, Any] = {"data": folder / "data", "udp": apart(), "node": {"control": str(folder / "control")}}
    async with ConnectionFactory(attach=False, **settings).create_context() as ctx:
        if code:
            return await ctx.circles.join(code)
        await ctx.circles.found("rescue")
        return await ctx.circles.invite("rescue")


@pytest.mark.soak
@pytest.mark.skipif(bool(netns.available()), reason=f"no network namespaces: {netns.available()}")
@scene
async def test_five_nodes_of_a_closed_network_answer_no_stranger(tmp_path: Path) -> None:
    code = ""
    for name in NAMES:
        (tmp_path / name).mkdir()
        said = await joins(tmp_path / name, code)
        code = code or said
    with Net() as net:
        net.add(*NAMES, "s")
        net.switch(*NAMES, "s")
        await beside_a_stranger(Nodes(tmp_path, net, altruistic=True))


async def beside_a_stranger(made: Nodes) -> None:
    async with made as nodes:
        members = await nodes.start(*NAMES, sealing=CLOSED)
        (stranger,) = await nodes.start("s")
        await stranger.program.subscribe("news")
        await members[1].program.subscribe("news")
        for one, other in pairwise(members):
            await one.meet(other)
        await members[4].program.send("news", b"bridge")
        assert (await members[1].receive()).body == b"bridge"
        with pytest.raises(TimeoutError):
            await stranger.program.receive(timeout_s=3.0)
        assert await stranger.client.peers() == []
        for each in members:
            status = await each.client.status()
            assert status["refused"]["packet"] > 3
            assert stranger.id not in await each.states()
        assert (await stranger.client.status())["refused"]["packet"] > 3


@scene
async def test_a_node_outside_of_its_closed_network_does_not_start(tmp_path: Path) -> None:
    async with Nodes(tmp_path, udp=apart(), sealing=CLOSED) as nodes:
        with pytest.raises(AssertionError, match="ended with exit code 1"):
            await nodes.start("a")
        assert "this node is in no circle 'rescue'" in nodes["a"].said
