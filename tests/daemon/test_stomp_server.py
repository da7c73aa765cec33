"""The port for STOMP clients: authentication, heart-beats, clients that do not read, bad bytes, the end of a node."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import stat
import struct
import threading
from collections import deque
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.examples import examples
from tests.support.nodes import scene, until
from tests.support.stomp_clients import Raw, serving, settings

from carrypost.attach.served_node import ServedNode
from carrypost.daemon import server as daemon_server
from carrypost.daemon.server import UNCONNECTED_MAX
from carrypost.daemon.stomp.server import Server
from carrypost.errors import ConfigError, NodeError
from carrypost.jms.provider import Perform, Performed
from carrypost.node.settings import parse


async def clients(server: Server, count: int) -> None:
    """Wait until the node has this many clients."""

    async def there() -> bool:
        return server.status()["clients"] == count

    await until(there)


async def echoes(server: Server, more: str = "") -> None:
    """Check that a new client is served."""
    client = await Raw.connect(server.address, more)
    client.write("SUBSCRIBE\nid:1\ndestination:/topic/echo\nreceipt:s\n\n^")
    assert (await client.take("RECEIPT")).headers == {"receipt-id": "s"}
    client.write("SEND\ndestination:/topic/echo\n\nhello^")
    assert (await client.take("MESSAGE")).body == b"hello"
    client.write("DISCONNECT\nreceipt:d\n\n^")
    assert (await client.take("RECEIPT")).headers == {"receipt-id": "d"}
    await client.gone()


# --- who is let in ---------------------------------------------------------------------------------------------


@scene
async def test_who_has_the_passcode_of_the_nodes_folder_is_let_in_until_it_is_changed(tmp_path: Path) -> None:
    async with serving(tmp_path, {"open": False}) as (server, _):
        file = tmp_path / "stomp.token"
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        first = file.read_text().strip()
        assert len(first) >= 32
        await echoes(server, f"passcode:{first}\n")
        for more in ("", "passcode:wrong\n", "passcode:\u00e9\n"):
            stranger = await Raw.reach(server.address)
            stranger.write(f"CONNECT\naccept-version:1.2\n{more}\n^")
            await stranger.error("the passcode is not the one in stomp.token")
        file.write_text("changed\n")
        server.reload()
        await echoes(server, "passcode:changed\n")
        file.write_text("\n")
        with pytest.raises(NodeError, match="has no token"):
            server.reload()
        await echoes(server, "passcode:changed\n")
    async with serving(tmp_path / "open") as (server, _):
        assert not (tmp_path / "open" / "stomp.token").exists()
        await echoes(server)


@scene
async def test_no_more_clients_are_served_than_the_settings_allow(tmp_path: Path) -> None:
    async with serving(tmp_path, {"connections_max": 2}) as (server, _):
        first, _second = await Raw.connect(server.address), await Raw.connect(server.address)
        third = await Raw.reach(server.address)
        third.write("CONNECT\naccept-version:1.2\n\n^")
        await third.error("the node has all 2 clients that stomp.connections_max allows")
        first.close()
        await clients(server, 1)
        await echoes(server)


def open_sockets(server: Server) -> int:
    """Return the number of sockets that the server has open, besides the one that it listens on."""
    port = int(server.address.rpartition(":")[2])
    found = psutil.Process().net_connections("tcp")
    return sum(each.laddr.port == port and each.status != psutil.CONN_LISTEN for each in found)


@scene
async def test_silent_and_refused_sockets_take_no_place_of_a_client_and_few_stay_open(tmp_path: Path) -> None:
    async with serving(tmp_path, {"connections_max": 2}) as (server, _):
        silent = [await Raw.reach(server.address) for _ in range(UNCONNECTED_MAX + 20)]
        for each in silent[:20]:
            await each.gone()
        first, second = await Raw.connect(server.address), await Raw.connect(server.address)
        assert server.status()["clients"] == 2
        refused = [await Raw.reach(server.address) for _ in range(UNCONNECTED_MAX + 20)]
        for each in refused:
            each.write("CONNECT\naccept-version:1.2\n\n^")
        await refused[-1].take("ERROR")  # They do not hang up, as a client should.

        async def few() -> bool:
            return open_sockets(server) <= UNCONNECTED_MAX + 2

        await until(few)
        for client in (first, second):
            client.write("SEND\ndestination:/topic/a\nreceipt:1\n\n^")
            await client.take("RECEIPT")


@scene
async def test_a_client_that_is_gone_before_its_connect_is_read_takes_no_place(tmp_path: Path) -> None:
    async with serving(tmp_path) as (server, _):
        host, _, port = server.address.rpartition(":")
        for _ in range(20):
            with socket.create_connection((host, int(port))) as made:
                made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # Closed by a reset.
                made.sendall(b"CONNECT\naccept-version:1.2\n\n\0")
        await echoes(server)  # It was accepted after them.
        await clients(server, 0)


@scene
async def test_clients_connect_while_another_program_opens_sockets_without_end(tmp_path: Path) -> None:
    async with serving(tmp_path, {"connections_max": 2}) as (server, _):
        host, _, port = server.address.rpartition(":")
        stopped, held = threading.Event(), deque[socket.socket]()

        def flood() -> None:
            while not stopped.wait(0.02):
                held.extend(socket.create_connection((host, int(port))) for _ in range(UNCONNECTED_MAX))
                while len(held) > 3 * UNCONNECTED_MAX:
                    held.popleft().close()

        flooding = asyncio.get_running_loop().run_in_executor(None, flood)

        async def many() -> bool:
            return len(held) > 2 * UNCONNECTED_MAX

        await until(many)
        for _ in range(3):
            await echoes(server)
        assert not flooding.done()
        stopped.set()
        await flooding
        for each in held:
            each.close()
        await echoes(server)  # All that came before it was accepted, so that the node ends in peace.


@scene
async def test_who_does_not_connect_in_time_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon_server, "CONNECT_S", 0.05)
    async with serving(tmp_path) as (server, _):
        silent, begun = await Raw.reach(server.address), await Raw.reach(server.address)
        begun.write("CONNECT\nhost:")
        await silent.error("no CONNECT arrived within")
        await begun.error("no CONNECT arrived within")
        await clients(server, 0)


@scene
async def test_a_port_that_is_taken_and_messaging_that_is_off_are_told(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(NodeError, match=r"127\.0\.0\.1:\d+: Address already in use; choose another stomp\.port"):
            async with serving(tmp_path, {"port": other.getsockname()[1]}):
                pass
    with pytest.raises(ConfigError, match=r"messaging\.enabled = true, or stomp\.port = 0"):
        async with serving(tmp_path, messaging={"enabled": False}):
            pass
    served = await ServedNode.start(settings(tmp_path, {"port": 0}), stopping=asyncio.Event())
    assert await Server.serve(served) is None
    await served.stop()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.7", "example.org", ""])  # noqa: S104 - refused
def test_it_listens_on_loopback_alone(host: str) -> None:
    with pytest.raises(ConfigError, match=r"stomp\.host must be an address of the loopback interface"):
        parse("", {}, {"stomp.host": host})
    for fine in ("127.0.0.1", "127.3.2.1", "::1", "localhost"):
        assert parse("", {}, {"stomp.host": fine}).stomp.host == fine


# --- heart-beats -----------------------------------------------------------------------------------------------


@scene
async def test_beats_are_written_and_a_client_that_promised_some_and_is_silent_is_cut_off(tmp_path: Path) -> None:
    async with serving(tmp_path, {"heart_beat_s": 0.1}) as (server, _):
        quiet = await Raw.connect(server.address, "heart-beat:0,50\n")
        silent = await Raw.connect(server.address, "heart-beat:50,0\n")
        lively = await Raw.connect(server.address, "heart-beat:100,0\n")
        for _ in range(6):
            lively.write("\n")
            assert await quiet.reader.readexactly(1) == b"\n"
        await silent.error("nothing was received for 0.2 s, not even a heart-beat")
        lively.write("SEND\ndestination:/topic/a\nreceipt:1\n\n^")
        await lively.take("RECEIPT")


# --- reading and writing ---------------------------------------------------------------------------------------


@scene
async def test_a_client_that_says_nothing_more_is_answered_and_then_left(tmp_path: Path) -> None:
    async with serving(tmp_path) as (server, _):
        client = await Raw.reach(server.address)
        client.write("CONNECT\naccept-version:1.2\n\n^")
        client.write("SEND\ndestination:/topic/a\nreceipt:1\n\n^" * 50)
        client.writer.write_eof()
        await client.take("CONNECTED")
        for _ in range(50):
            await client.take("RECEIPT")
        await client.gone()
        await clients(server, 0)


@scene
async def test_what_a_client_did_not_acknowledge_comes_again_when_it_is_gone(tmp_path: Path) -> None:
    async with serving(tmp_path) as (server, _):
        client = await Raw.connect(server.address)
        client.write("SUBSCRIBE\nid:1\ndestination:/queue/q\nack:client-individual\n\n^")
        for number in range(3):
            client.write(f"SEND\ndestination:/queue/q\n\n{number}^")
        first, _, _ = [await client.take("MESSAGE") for _ in range(3)]
        client.write(f"ACK\nid:{first.headers['ack']}\nreceipt:1\n\n^")
        await client.take("RECEIPT")
        client.writer.transport.abort()
        other = await Raw.connect(server.address)
        other.write("SUBSCRIBE\nid:1\ndestination:/queue/q\n\n^")
        again = [await other.take("MESSAGE") for _ in range(2)]
        assert [(frame.body, frame.headers["redelivered"]) for frame in again] == [(b"1", "true"), (b"2", "true")]


@scene
async def test_a_client_that_does_not_read_delays_nobody_and_gets_all_when_it_reads(tmp_path: Path) -> None:
    body, count = "x" * 4_000, 200
    async with serving(tmp_path) as (server, _):
        slow = await Raw.connect(server.address, read_bytes=4_096)
        quick, author = await Raw.connect(server.address), await Raw.connect(server.address)
        for client in (slow, quick):
            client.write("SUBSCRIBE\nid:1\ndestination:/topic/t\nreceipt:s\n\n^")
            await client.take("RECEIPT")
        for number in range(count):
            author.write(f"SEND\ndestination:/topic/t\nnumber:{number}\n\n{body}^")
        for number in range(count):
            assert (await quick.take("MESSAGE")).headers["number"] == str(number)
        stopped = [each for each in server.connections if each.is_full]
        assert len(stopped) == 1
        for number in range(count):
            assert (await slow.take("MESSAGE")).headers["number"] == str(number)
        await echoes(server)


@scene
async def test_a_client_that_reads_no_receipts_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon_server, "SLOW_S", 0.0)
    async with serving(tmp_path) as (server, _):
        client = await Raw.connect(server.address, read_bytes=4_096)
        frame = f"BEGIN\ntransaction:t\n\n^ABORT\ntransaction:t\nreceipt:{'r' * 5_000}\n\n^"
        written = 0

        async def stopped() -> bool:
            nonlocal written
            if client.writer.transport.get_write_buffer_size() < 100_000:
                client.write(frame * 10)
                written += 10
            return server.status()["slow"] == 1 and client.writer.transport.get_write_buffer_size() >= 100_000

        await until(stopped)
        for _ in range(written):
            await client.take("RECEIPT")
        await echoes(server)


@scene
async def test_a_body_over_the_limit_is_refused_unread(tmp_path: Path) -> None:
    async with serving(tmp_path, limits={"message_bytes_max": 10_000}) as (server, _):
        client = await Raw.connect(server.address)
        client.write("SEND\ndestination:/topic/a\nreceipt:1\ncontent-length:1000000000\n\n")
        for _ in range(100):
            client.write(b"x" * 10_000)
        found = await client.error("a body of 1,000,000,000 bytes; at most 10,000 are accepted")
        assert found.headers["receipt-id"] == "1"
        await echoes(server)


@scene
async def test_clients_of_a_node_that_ends_are_told(tmp_path: Path) -> None:
    async with serving(tmp_path) as (server, served):
        client = await Raw.connect(server.address)
        client.write("SEND\ndestination:/topic/a\npersistent:true\nreceipt:1\n\n^")
        await client.take("RECEIPT")
        ending = asyncio.create_task(served.stop())
        await client.error("the node has ended")
        await ending
        with pytest.raises(OSError, match=r"refused|Connect"):
            await Raw.reach(server.address)


@scene
async def test_what_was_begun_before_a_node_ends_is_confirmed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(tmp_path) as (server, served):
        provider, begun = server.provider, asyncio.Event()
        perform = provider.perform

        def noted(asked: Perform) -> Performed:
            begun.set()
            return perform(asked)

        monkeypatch.setattr(provider, "perform", noted)
        client = await Raw.connect(server.address)
        client.write("SEND\ndestination:/topic/a\npersistent:true\nreceipt:1\n\n^")
        await begun.wait()
        await served.stop()
        assert [frame.command for frame in await client.rest()] == ["RECEIPT", "ERROR"]


# --- bad bytes -------------------------------------------------------------------------------------------------

LEGAL = (
    b"CONNECT\naccept-version:1.1,1.2\nheart-beat:0,0\n\n\0",
    b"SUBSCRIBE\nid:1\ndestination:/queue/q\nack:client\nselector:a > 1\n\n\0",
    b"SEND\ndestination:/queue/q\na:2\ncarrypost-types:a=int\nreceipt:1\ncontent-length:3\n\na\0b\0",
    b"BEGIN\ntransaction:t\n\n\0SEND\ndestination:/topic/x.y\ntransaction:t\n\nhi\0COMMIT\ntransaction:t\n\n\0",
    b"UNSUBSCRIBE\nid:1\n\n\0\n\nDISCONNECT\nreceipt:2\n\n\0",
)


@st.composite
def faulty(draw: st.DrawFn) -> bytes:
    """Draw bytes: any, or valid frames with a few bytes changed."""
    if draw(st.booleans()):
        return LEGAL[0] * draw(st.integers(0, 1)) + draw(st.binary(max_size=200))
    frames = bytearray(b"".join(LEGAL))
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.integers(0, len(frames) - 1))
        frames[at : at + draw(st.integers(0, 3))] = draw(st.binary(max_size=3))
    return bytes(frames)


@examples(10)
@given(st.lists(st.tuples(faulty(), st.integers(0, 2**32)), min_size=1, max_size=8))
def test_any_bytes_cut_anywhere_are_frames_or_one_error_and_the_next_client_is_served(
    tmp_path_factory: pytest.TempPathFactory, tries: list[tuple[bytes, int]]
) -> None:
    async def play() -> None:
        async with serving(tmp_path_factory.mktemp("node")) as (server, _):
            for data, seed in tries:
                client = await Raw.reach(server.address)
                chance, at = random.Random(seed), 0
                with contextlib.suppress(ConnectionError):
                    while at < len(data):
                        size = chance.randint(1, 60)
                        client.write(data[at : at + size])
                        await client.writer.drain()
                        await asyncio.sleep(0)
                        at += size
                    client.writer.write_eof()
                commands = [frame.command for frame in await client.rest()]
                assert "ERROR" not in commands[:-1]
                client.close()
            await echoes(server)

    asyncio.run(play())
