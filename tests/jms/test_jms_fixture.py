"""The fixture by which programs that use carrypost test themselves, as pytest finds it."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from carrypost import StateError, testing


def test_a_scene_runs_on_the_nodes_that_it_names(carrypost_network: Any) -> None:  # noqa: ANN401 - as programs have it
    async def scene(net: testing.Network) -> str | None:
        net.link("a", "b")
        async with net.context("a") as here, net.context("b") as there:
            inbox = await there.create_consumer(there.create_topic("news"))
            await here.create_producer().send(here.create_topic("news"), "hello")
            return await inbox.receive_body(str, timeout=60)

    assert carrypost_network(scene, "a", "b", seed=1) == "hello"


def test_a_scene_has_a_limit(carrypost_network: Any) -> None:  # noqa: ANN401 - likewise
    async def scene(net: testing.Network) -> None:
        await net.run(100)

    with pytest.raises(testing.TimeLimitError, match="not finished after 10 virtual seconds"):
        carrypost_network(scene, "a", limit_s=10)


def test_real_input_and_output_inside_a_scene_says_so(carrypost_network: Any) -> None:  # noqa: ANN401 - likewise
    async def scene(_: testing.Network) -> None:
        await asyncio.get_running_loop().create_datagram_endpoint(asyncio.DatagramProtocol, family=socket.AF_INET)

    with pytest.raises(StateError, match="real I/O, which waits in real time"):
        carrypost_network(scene, "a")


def test_a_context_outside_virtual_time_says_so() -> None:
    with testing.network("a") as net:
        with pytest.raises(StateError, match=r"testing\.run"):
            _ = net.context("a")

        async def scene() -> None:
            with pytest.raises(StateError, match=r"testing\.run"):
                _ = net.context("a")

        asyncio.run(scene())
