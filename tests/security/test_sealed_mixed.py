"""Sealed messages between new nodes that meet only an old one: a process of the last version that knew no seals."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.support.loopback import apart
from tests.support.nodes import FreshNodes, Node, scene, until

from carrypost import ConnectionFactory, Context
from carrypost.attach.client import Client

REPOSITORY = Path(__file__).parents[2]
FIRST = "src/carrypost/security/sealing.py"
"""The file that came with the first version that knew seals."""


def git(*arguments: str) -> bytes:
    """Return what git says of this repository; empty if there is none."""
    found = shutil.which("git")
    if found is None:
        return b""
    return subprocess.run(  # noqa: S603 - our own words
        [found, "-C", str(REPOSITORY), *arguments], capture_output=True, check=False
    ).stdout


def older(folder: Path) -> Path:
    """Put the source of the version before seals into a folder."""
    added = git("log", "--diff-filter=A", "--format=%H", "--", FIRST).decode().split()
    archive = git("archive", f"{added[-1]}~1", "src/carrypost") if added else b""
    if not archive:
        pytest.skip("the history of this repository is not here")
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(folder, filter="data")
    assert not (folder / FIRST).exists()
    return folder / "src"


class OldNode(Node):
    """A node of another version: it is asked, and no program of this version is attached to it."""

    async def connect(self) -> None:
        ready = await until(self._ready)
        self.id, self.control = ready["node"], ready["control"]
        self._client = await Client.connect(Path(self.control))


class MixedNodes(FreshNodes):
    """Nodes of which the one called "old" runs the source in another folder."""

    def __init__(self, folder: Path, source: Path, **settings: Any) -> None:  # noqa: ANN401 - as its class
        super().__init__(folder, **settings)
        self._source = source

    def _launch(self, name: str, settings: Mapping[str, object]) -> Node:
        node = super()._launch(name, settings)
        if name == "old":
            node = self._nodes[name] = OldNode(name, node.folder, node.process)
        return node

    def _process(self, name: str, order: str, options: Any) -> subprocess.Popen[bytes]:  # noqa: ANN401 - as its class
        if name == "old":
            options = options | {"env": {**os.environ, "PYTHONPATH": str(self._source)}}
        return super()._process(name, order, options)


def attached(node: Node) -> Context:
    """Return a context of a program that is attached to a node."""
    return ConnectionFactory(f"unix:{node.control}", client_id="reader", reconnect=False).create_context()


async def carried(node: Node) -> int:
    """Return the number of messages that a node has."""
    count: int = (await node.client.status())["cache"]["messages"]
    return count


@pytest.mark.soak
@scene
async def test_an_old_carrier_passes_sealed_messages_on_unchanged(tmp_path: Path) -> None:
    async with MixedNodes(tmp_path, older(tmp_path / "older"), udp=apart(), altruistic=True) as nodes:
        a, b = await nodes.start("a", "b")
        async with attached(a) as here, attached(b) as there:
            await here.circles.found("rescue")
            await there.circles.join(await here.circles.invite("rescue"))
            plans = there.create_topic("plans", circle="rescue")
            await (await there.create_durable_consumer(plans, "plans")).close()
            box = f"queue/{(await there.declare_queue('box', sealed=True)).queue_name}"
            await here.add_card(await there.card())
            await a.meet(b)
        await b.end()
        (old,) = await nodes.start("old")
        assert "closed" not in await old.client.status()  # It is the older version.
        await a.meet(old)
        before = await carried(old)
        async with attached(a) as here:
            sent = [
                await here.send("circle/rescue/plans", "North bridge at six", properties={"urgency": 5}),
                await here.send(box, "a letter", sealed=True),
            ]
            assert [each.sealed for each in sent] == ["rescue", "letter"]

        async def arrived() -> bool:
            return await carried(old) >= before + len(sent)

        await until(arrived)
        await a.end()
        (b,) = await nodes.start("b")
        await b.meet(old)
        async with attached(b) as there:
            inbox = await there.create_durable_consumer(there.create_topic("plans", circle="rescue"), "plans")
            plan, letter = await inbox.receive(timeout=30), await (await there.create_consumer(box)).receive(timeout=30)
        assert plan is not None
        assert letter is not None
        assert (plan.text, plan.sealed, plan.get_int_property("urgency")) == ("North bridge at six", "rescue", 5)
        assert (letter.text, letter.sealed) == ("a letter", "letter")
        assert [plan.jms_message_id, letter.jms_message_id] == [str(each.message_id) for each in sent]
