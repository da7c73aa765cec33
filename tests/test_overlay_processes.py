"""Brokers as real nodes in namespaces, signed: paths follow when links move and a broker is killed, and legs arrive."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.nodes import QUICK, Nodes, scene, toml, until
from tools import netns
from tools.netns import Net
from tools.radio_hub import Radio

pytestmark = pytest.mark.skipif(bool(netns.available()), reason=f"no network namespaces: {netns.available()}")

SETTINGS: dict[str, object] = {
    "island": True,
    "island_patience_s": 2.0,
    "overlay": {"enabled": True, "broker": True, "neighbours_max": 2, "update_s": 1.0},
}
SIZE = 100_000


class Sender:
    """The broker that sends, in a program of its own."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self.id = self._answer()["node"]

    def ask(self, **order: object) -> dict[str, Any]:
        """Give an order; returns the view of the overlay after it."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        self._process.stdin.flush()
        found = self._answer()["overlay"]
        assert isinstance(found, dict)
        return found

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        found = json.loads(self._process.stdout.readline())
        assert isinstance(found, dict)
        return found


@contextmanager
def sender(net: Net, folder: Path, name: str) -> Iterator[Sender]:
    folder.mkdir()
    file = folder / "node.toml"
    file.write_text(toml({**QUICK, **SETTINGS, "node": {"data": "data", "name": name}}), encoding="utf-8")
    program = [sys.executable, str(Path(__file__).with_name("overlay_agent.py")), str(file)]
    with net.popen(name, program, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            yield Sender(process)
        finally:
            process.kill()


@scene
async def test_paths_follow_links_that_move_and_a_broker_that_is_killed(tmp_path: Path) -> None:
    """A square of a, b, d and c: two paths lead from a to d."""
    with Net() as net:
        net.add(*"abcd")
        radio = Radio(net, *"abcd")
        for pair in ("ab", "ac", "bd", "cd"):
            radio.link(*pair)
        with sender(net, tmp_path / "a", "a") as a:
            async with Nodes(tmp_path, net, **SETTINGS) as nodes:
                names = {node.id: node.name for node in await nodes.start(*"bcd")} | {a.id: "a"}
                ids = {name: node for node, name in names.items()}

                async def view(name: str) -> dict[str, Any]:
                    found = a.ask() if name == "a" else (await nodes[name].client.status())["overlay"]
                    assert isinstance(found, dict)
                    return found

                async def path(one: str, other: str) -> Sequence[str]:
                    found = (await view(one))["paths"].get(ids[other], ())
                    return [names[each] for each in found]

                async def arrived(count: int) -> bool:
                    return bool((await view("d"))["arrived"] == count)

                async def is_known() -> bool:
                    views = [await view(name) for name in "abcd"]
                    known = all([*each["neighbours"].values()] == [1, 1] and len(each["paths"]) == 3 for each in views)
                    return known and len(await path("a", "d")) == 3

                await until(is_known)
                _, first, _ = await path("a", "d")
                other = "c" if first == "b" else "b"
                a.ask(send=ids["d"], size=SIZE)
                await until(lambda: arrived(1))
                assert sum([(await view(name))["legs"] for name in "bc"]) == 1

                radio.unlink("a", first)
                radio.unlink(first, "d")

                async def avoids() -> bool:
                    found = await path("a", "d")
                    return bool(found) and first not in found and not await path("a", first)

                await until(avoids)
                assert await path("d", "a")
                a.ask(send=ids["d"], size=SIZE)
                await until(lambda: arrived(2))

                radio.link("a", first)
                radio.link(first, "d")
                await nodes[other].kill()

                async def is_forgotten() -> bool:
                    alive = ("a", first, "d")
                    lost = [name for name in alive if await path(name, other)]
                    found = [await path(one, another) for one in alive for another in alive if one != another]
                    return not lost and all(each and other not in each for each in found)

                await until(is_forgotten)
                a.ask(send=ids["d"], size=SIZE)
                await until(lambda: arrived(3))
