"""OpenWire clients at the sockets of real nodes: access, and broken clients beside others."""

from __future__ import annotations

import asyncio
import random
import stat
from pathlib import Path

import pytest
from tests.support.java_programs import port_of, serving
from tests.support.jms_scenes import scene as virtual_scene
from tests.support.nodes import scene
from tests.support.openwire_wire import TRANSCRIPTS, Node, Raw, Wire, transcript

from carrypost import testing
from carrypost.daemon.openwire import commands as wire

NEWS = wire.TopicName("news")


@scene
async def test_who_has_the_password_of_the_nodes_folder_is_let_in_and_others_get_one_error(tmp_path: Path) -> None:
    async with serving(tmp_path, openwire={"open": False}) as (server, _):
        file = tmp_path / "openwire.token"
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert server.address.startswith("127.0.0.1:")
        wrong = await Raw.reach(port_of(server), "ID:wrong")
        with pytest.raises(AssertionError, match="JMSSecurityException"):
            await wrong.connect(password="wrong")  # noqa: S106 - no secret
        wrong.close()
        right = await Raw.reach(port_of(server), "ID:right")
        await right.connect(password=file.read_text().strip())
        await right.ask(right.text(NEWS, "x", 1))
        assert server.status()["clients"] == 1
        right.close()
        await asyncio.sleep(0)


@scene
async def test_browsers_and_broken_clients_end_alone(tmp_path: Path) -> None:
    async with serving(tmp_path) as (server, _):
        good = await Raw.reach(port_of(server), "ID:good")
        await good.connect()
        for data in (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x7f\xff\xff\xff", bytes(100), b"CONNECT\n\n\0"):
            reader, writer = await asyncio.open_connection("127.0.0.1", port_of(server))
            writer.write(data)
            async with asyncio.timeout(30):
                assert await reader.read() == b""
            writer.close()
        await good.ask(good.text(NEWS, "x", 1))
        good.close()
        await asyncio.sleep(0)


@pytest.mark.parametrize("name", sorted(each.stem for each in TRANSCRIPTS.glob("*.bin")))
def test_sessions_with_changed_bytes_end_in_one_error_and_the_next_client_is_served(name: str) -> None:
    chance = random.Random(name)
    frames = [each.data for each in transcript(name) if each.is_clients and len(each.data) < 2_000]

    @virtual_scene("a")
    async def played(net: testing.Network) -> None:
        node = Node(net, "a")
        for _ in range(6):
            client = Wire(node)
            for frame in frames:
                data = bytearray(frame)
                if len(data) > 9 and chance.random() < 0.2:
                    data[chance.randrange(4, len(data))] ^= 1 << chance.randrange(8)
                await client.feed(bytes(data))
                await net.run(0.01)
            assert sum(isinstance(each, wire.ConnectionError_) for each in client.commands) < len(frames)
            await client.client.close()
        good = Wire(node)
        await good.connect()
        assert type(await good.send(NEWS, "x")) is wire.Response

    played()
