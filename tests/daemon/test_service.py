"""A node as a service: its log, settings that SIGHUP reads again, and notifications of the service manager."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pexpect
import pytest
from tests.support.loopback import apart
from tests.support.nodes import PATIENCE_S, scene, toml

from carrypost import ConnectionFactory
from carrypost.attach.client import Client
from carrypost.attach.served_node import ServedNode
from carrypost.cli.app import run
from carrypost.config import Limits
from carrypost.daemon.service import Service
from carrypost.daemon.stomp.server import TOKEN_FILE, Server
from carrypost.node import diagnosis
from carrypost.node.settings import NodeSettings, load, parse

COMMAND = [sys.executable, "-c", "from carrypost.cli import main; main()"]


class File:
    """The settings file of a node, which its owner changes."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "node.toml"
        self._given: dict[str, Any] = {"udp": {**apart(), "interfaces": ["lo"]}, "node": {"data": "data"}}
        self.write()

    def write(self, **tables: dict[str, object]) -> None:
        for name, values in tables.items():
            self._given[name] = {**self._given.get(name, {}), **values}
        self.path.write_text(toml(self._given))

    def load(self) -> NodeSettings:
        return load(self.path)


@pytest.fixture
def file(tmp_path: Path) -> Iterator[File]:
    level = logging.getLogger().level
    yield File(tmp_path)
    logging.getLogger().setLevel(level)


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "carrypost.service")
    return caplog


def taken(said: pytest.LogCaptureFixture) -> list[str]:
    """Return what the service said since the last call."""
    found = [each.getMessage() for each in said.records if each.name == "carrypost.service"]
    said.clear()
    return found


def free_port() -> int:
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        return int(made.getsockname()[1])


@scene
async def test_settings_that_can_change_at_once_do_and_the_others_are_named(
    file: File, said: pytest.LogCaptureFixture
) -> None:
    file.write(stomp={"port": free_port()})
    served = await ServedNode.start(file.load())
    node = served.node
    service = Service(node, [found for found in [await Server.serve(served)] if found], file.load)
    service.reload()
    assert taken(said) == ["the settings were reloaded"]
    file.write(
        udp={"hear": ["127.0.0.1:4000"], "peers": ["127.0.0.1:4001"], "poll_s": 1.0},
        node={"log": "debug"}, stomp={"declare": False},
    )  # fmt: skip
    (node.folder.folder / TOKEN_FILE).write_text("another-passcode\n")
    service.reload()
    assert taken(said) == [
        "node.log is now debug",
        "udp.hear is now ['127.0.0.1:4000']",
        "udp.peers is now ['127.0.0.1:4001']",
        "the passcode of STOMP clients was changed, for new connections",
        "needs a restart: udp.poll_s, stomp.declare",
        "the settings were reloaded",
    ]
    assert logging.getLogger().level == logging.DEBUG
    assert node.udp.intake.gate == frozenset({"127.0.0.1:4000"})
    service.reload()  # What is in effect is no change, and the rest is still not in effect.
    assert taken(said) == ["needs a restart: udp.poll_s, stomp.declare", "the settings were reloaded"]
    await served.stop()


@scene
async def test_static_peers_are_reached_and_left_as_the_settings_say(
    file: File, said: pytest.LogCaptureFixture
) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
        peer.bind(("127.0.0.1", 0))
        peer.setblocking(False)
        address = f"127.0.0.1:{peer.getsockname()[1]}"
        served = await ServedNode.start(file.load())
        service = Service(served.node, [], file.load)
        file.write(udp={"peers": [address]})
        service.reload()
        assert taken(said)[0] == f"udp.peers is now {[address]}"
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(PATIENCE_S):
            assert await loop.sock_recv(peer, 2_000)
        file.write(udp={"peers": []})
        service.reload()
        assert served.node.udp.intake.statics == {}
        await served.stop()


@scene
async def test_with_faulty_settings_everything_stays_as_it_is(file: File, said: pytest.LogCaptureFixture) -> None:
    file.write(udp={"hear": ["127.0.0.1:4000"]}, stomp={"port": free_port()})
    served = await ServedNode.start(file.load())
    service = Service(served.node, [found for found in [await Server.serve(served)] if found], file.load)
    before = file.path.read_text()
    for fault, told in (
        ("[udp]\nhear = 5", "udp.hear must be"),
        ("nonsense", "cannot be read as TOML"),
        ('[udp]\nhear = []\npeers = ["nowhere"]', "udp.peers: "),
    ):
        file.path.write_text(fault)
        service.reload()
        (sentence,) = taken(said)
        assert sentence.startswith("the settings were not changed: ")
        assert told in sentence
        assert served.node.udp.intake.gate == frozenset({"127.0.0.1:4000"})
    file.path.unlink()
    service.reload()
    assert "cannot read the settings file" in taken(said)[0]
    file.path.write_text(before)
    token = served.node.folder.folder / TOKEN_FILE
    token.write_bytes(b"\xff\xfe")
    service.reload()
    assert taken(said)[0].startswith("the passcode of STOMP clients was not changed: ")
    await served.stop()


# --- processes ---------------------------------------------------------------------------------------------


def environment(**more: str) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("CARRYPOST_")} | more


def test_a_service_is_ready_reloads_by_sighup_and_stops_and_its_manager_knows(file: File, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(PATIENCE_S)

        def heard() -> str:
            return manager.recv(4_096).decode().partition("\n")[0]

        with subprocess.Popen(  # noqa: S603 - our own command
            [*COMMAND, "node", "--config", str(file.path)], text=True, start_new_session=True,
            env=environment(NOTIFY_SOCKET=str(tmp_path / "notify")), stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        ) as process:  # fmt: skip
            try:
                assert heard() == "READY=1"
                file.write(udp={"hear": [], "poll_s": 1.0})
                process.send_signal(signal.SIGHUP)
                assert [heard(), heard()] == ["RELOADING=1", "READY=1"]
                process.terminate()
                assert heard() == "STOPPING=1"
                _, err = process.communicate(timeout=PATIENCE_S)
            finally:
                process.kill()
        assert process.returncode == 0
        assert [line.partition("carrypost.service: ")[2] for line in err.splitlines()] == [
            "udp.hear is now []", "needs a restart: udp.poll_s", "the settings were reloaded",
        ]  # fmt: skip


def test_a_node_at_a_terminal_ends_when_that_is_closed(file: File) -> None:
    node = pexpect.spawn(
        COMMAND[0], [*COMMAND[1:], "node", "--config", str(file.path)], env=environment(), timeout=PATIENCE_S
    )
    node.expect("is running in")
    node.kill(signal.SIGHUP)
    node.expect(pexpect.EOF)
    node.wait()
    assert (node.exitstatus, node.signalstatus) == (0, None)


def test_the_level_of_the_log_is_an_option_and_a_setting(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert parse("[node]\nlog = 'debug'").place.log == "debug"
    assert run(["node", "--data", str(tmp_path), "--log", "loud"]) == 2
    assert "node.log must be" in capsys.readouterr().err


# --- doctor ------------------------------------------------------------------------------------------------


@scene
async def test_the_doctor_tells_of_queues_without_receivers_and_of_leases_that_end_soon(tmp_path: Path) -> None:
    given = {"udp": apart(), "node": {"data": str(tmp_path)}, "messaging": {"subscription_lease_s": 3_600.0}}
    settings = parse("", {}, given)
    served = await ServedNode.start(settings)
    factory = ConnectionFactory(f"unix:{settings.control}", client_id="c")
    async with factory.create_context() as ctx, await Client.connect(settings.control) as client:
        queue = await ctx.declare_queue("Alan")
        await ctx.send(queue, "hello")
        reader = await ctx.create_durable_consumer(ctx.create_topic("news"), "mail")
        found = {each.means: each for each in diagnosis.of_node(await client.status(), Limits())}
        assert "without consumers: queue/Alan@" in found["queues"].detail
        assert "subscriptions" not in found
        await reader.close()
        receiver = await ctx.create_consumer(queue)
        found = {each.means: each for each in diagnosis.of_node(await client.status(), Limits())}
        assert "queues" not in found
        assert "topic/news (mail) in 1 h" in found["subscriptions"].detail
        await receiver.close()
    await served.stop()


def test_the_doctor_tells_of_stomp_clients_that_do_not_read() -> None:
    status = {
        "heard": 0, "places": 9, "waiting": 0, "refused": {}, "messaging": None, "clock_ahead_s": 0.0,
        "clock_set_back_s": 0.0,
        "services": {"stomp": {"address": "127.0.0.1:61613", "clients": 3, "slow": 2}},
    }  # fmt: skip
    (finding,) = diagnosis.of_node(status, Limits())
    assert (finding.means, finding.works) == ("STOMP", False)
    assert finding.detail.startswith("2 STOMP clients have not read")


# --- files for a Raspberry Pi ---------------------------------------------------------------------------------------

ROOT = Path(__file__).parents[2]
PI = ROOT / "examples" / "raspberry_pi"


def test_the_unit_for_systemd_is_that_of_the_documents_and_uses_the_settings_beside_it() -> None:
    unit = (PI / "carrypost.service").read_text()
    assert f"```ini\n{unit}```" in (ROOT / "docs" / "operations.md").read_text()
    guide = (ROOT / "docs" / "raspberry-pi.md").read_text()
    (started,) = [line.split() for line in unit.splitlines() if line.startswith("ExecStart=")]
    assert started[0] == "ExecStart=/usr/local/lib/carrypost/bin/carrypost"
    assert "python3 -m venv /usr/local/lib/carrypost\n" in guide
    assert started[started.index("--config") + 1] == "/etc/carrypost/node.toml"
    assert f"--data {started[started.index('--data') + 1]}" in guide
    settings = load(PI / "node.toml")
    assert (settings.core.altruistic, settings.core.skew_s_max) == (True, 86_400)
