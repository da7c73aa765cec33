"""Live pages beside five real nodes in a line of network namespaces: gates, crashes, restarts, sleep, a full disk."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.node.test_node_full_disk import fill
from tests.support.live_pages import Pages, served
from tests.support.nodes import Node, Nodes, scene, until
from tools.netns import Net

from carrypost.node.settings import load
from tools import netns

pytestmark = pytest.mark.skipif(bool(netns.available()), reason=f"no network namespaces: {netns.available()}")
LINE = "abcde"
SOON_S = 3.0
"""Time within which a page must say that a node is gone."""


@pytest.fixture
def net() -> Iterator[Net]:
    with Net() as made:
        yield made


@asynccontextmanager
async def pages(*nodes: Node) -> AsyncIterator[dict[str, Pages]]:
    """Serve the pages of nodes by one server; return what asks about each."""
    async with served([load(node.folder / "node.toml", {}, {}) for node in nodes]) as shown:
        ids = list(shown.live.all)
        yield {node.name: shown.about(each) for node, each in zip(nodes, ids, strict=True)}


async def becomes(page: Pages, is_it: Callable[[Mapping[str, Any]], bool], patience_s: float = 20.0) -> dict[str, Any]:
    """Return the first sample of which something holds."""

    async def found() -> dict[str, Any] | None:
        sample: dict[str, Any] = await page.node("sample")
        return sample if is_it(sample) else None

    return await until(found, patience_s)


def states(sample: Mapping[str, Any]) -> dict[str, str]:
    return {each["node"]: each["state"] for each in sample["peers"]}


@scene
async def test_pages_of_five_nodes_say_what_their_nodes_say(tmp_path: Path, net: Net) -> None:
    net.add(*LINE)
    for pair in pairwise(LINE):
        net.cable(*pair)
    settings = {"island": True, "altruistic": True, "trace": {"enabled": True}}
    async with Nodes(tmp_path, net, **settings) as nodes:
        a, b, c, d, e = await nodes.start(*LINE)
        for one, other in pairwise((a, b, c, d, e)):
            await one.meet(other)
        await e.program.subscribe("roads")
        async with pages(a, b, c, d, e) as page:
            sample = await becomes(page["a"], lambda sample: len(sample["peers"]) == 4)
            assert states(sample) == {b.id: "linked", c.id: "relayed", d.id: "relayed", e.id: "relayed"}
            assert [each["hops"] for each in sample["peers"] if each["state"] == "relayed"] == [2, 3, 4]
            assert states(sample) == await a.states()
            order = {"to": "topic/roads", "base64": "Y2xvc2Vk", "label": "bridge", "request_receipt": True}
            sent = await page["a"].node("send", {**order, "delivery_mode": "PERSISTENT"})
            assert sent["neighbours"] == 1
            message = await e.receive()
            assert message.body == b"closed"

            async def delivered() -> bool:
                return str((await page["a"].node("verdict?message=bridge"))["verdict"]) == "delivered"

            await until(delivered)
            kinds = {name: await _kinds(each, sent["message"]) for name, each in page.items()}
            assert kinds["a"][0] == "publish"
            assert all(kinds[name][0] == "receive" for name in "bcde")
            for node in (a, e):
                shown, said = await page[node.name].node("sample"), await node.client.status()
                for name in ("node", "pid", "incarnation", "neighbours", "carries", "store"):
                    there, here = said[name], shown["status"][name]
                    if name == "store":
                        there, here = there["failure"], here["failure"]
                    assert here == there, name

            await b.client.gate([])  # b hears nobody: a and c hear it, and it does not hear them.
            await becomes(page["a"], lambda sample: states(sample).get(b.id) in {"one-way", "heard"})
            await page["a"].node("send", {"to": "topic/roads", "body": "x", "label": "deaf"})
            assert (await page["a"].node("verdict?message=deaf"))["verdict"] == "one-way"
            await b.client.gate(None)
            await a.meet(b)

            before = (await page["c"].node("sample"))["status"]["pid"]
            await c.kill()
            gone = await becomes(page["c"], lambda sample: sample["state"] == "gone", SOON_S + 2)
            assert gone["status"]["pid"] == before, "the last numbers stay"
            (c,) = await nodes.start("c", **settings)
            back = await becomes(page["c"], lambda sample: sample["state"] == "up")
            assert (back["status"]["pid"], back["status"]["incarnation"]) == (c.process.pid, 2)

            d.suspend()
            asleep = await becomes(page["d"], lambda sample: sample["state"] == "gone", SOON_S + 3)
            assert "does not answer" in asleep["reason"]
            d.resume()
            await becomes(page["d"], lambda sample: sample["state"] == "up")


async def _kinds(page: Pages, message: str) -> list[str]:
    return [each["kind"] for each in (await page.node(f"trace?message={message}"))["rows"]]


@scene
async def test_a_full_disk_is_told(tmp_path: Path, small_disk: Callable[[int], Path]) -> None:
    disk = small_disk(8 * 1024 * 1024)
    async with Nodes(tmp_path, udp={"interfaces": ["lo"]}, node={"data": str(disk / "data")}) as nodes:
        (node,) = await nodes.start("full")
        async with pages(node) as shown:
            page = shown["full"]
            file = fill(disk)
            body = "x" * 100_000
            refused = ""
            for _ in range(100):
                answer = await page.ask(f"/api/nodes/{page.id}/send", {"to": "topic/mine", "body": body, "priority": 4})
                if answer.status == 400:
                    refused = answer.json["error"]
                    break
                body = body[1:] + str(asyncio.get_running_loop().time())
            assert "the disk is full" in refused
            found = await becomes(page, lambda sample: bool(sample["findings"]))
            assert found["findings"][0]["means"] == "disk"
            file.unlink()
            await becomes(page, lambda sample: sample["status"]["store"]["free_bytes"] > 1_000_000)
