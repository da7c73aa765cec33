"""ActiveMQ's client for Java in this process, and nodes that serve it."""

from __future__ import annotations

import asyncio
import functools
import importlib
import json
import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.copies import copy
from tests.support.loopback import apart
from tests.support.nodes import PATIENCE_S, QUICK, node_main
from tests.support.stomp_clients import free_port
from tools.java_client import archives

from carrypost.attach.served_node import ServedNode
from carrypost.cli._settings import NodeCommand
from carrypost.daemon.openwire.server import Server
from carrypost.node.settings import parse

WAIT_MS = 20_000


@functools.cache
def java() -> Any:  # noqa: ANN401 - a package of Java's classes
    """Return JPype with ActiveMQ's client, in one Java machine for all tests of this process."""
    jpype: Any = importlib.import_module("jpype")
    options = ("-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
    jpype.startJVM(*options, classpath=[str(each) for each in archives()], convertStrings=True)
    return jpype


def factory(port: int, options: str = "", url: str = "tcp://127.0.0.1:{port}{options}", password: str = "") -> Any:  # noqa: ANN401 - Java's
    """Return a factory of connections to a node."""
    kind = java().JClass("org.apache.activemq.ActiveMQConnectionFactory")
    return kind("me", password, url.format(port=port, options=options))


@contextmanager
def connected(port: int, options: str = "", client: str = "", **more: Any) -> Iterator[Any]:  # noqa: ANN401 - Java's
    """Open a started connection."""
    connection = factory(port, options, **more).createConnection()
    try:
        if client:
            connection.setClientID(client)
        connection.start()
        yield connection
    finally:
        connection.close()


def raises(name: str, match: str = "") -> Any:  # noqa: ANN401 - of pytest
    """Expect a Java exception of a class of `javax.jms`."""
    return pytest.raises(java().JClass(f"javax.jms.{name}"), match=match or None)


@asynccontextmanager
async def serving(folder: Path, port: int = 0, **more: Any) -> AsyncIterator[tuple[Server, ServedNode]]:  # noqa: ANN401 - settings
    """Run a node in this process that serves OpenWire clients, and that no other node hears."""
    openwire = {"port": port or free_port(), "open": True, **more.pop("openwire", {})}
    settings = parse("", {}, {**QUICK, "udp": apart(), "node": {"data": str(folder)}, "openwire": openwire, **more})
    served = await ServedNode.start(settings, stopping=asyncio.Event())
    try:
        server = await Server.serve(served)
        assert server is not None
        yield server, served
    finally:
        await served.stop()


@contextmanager
def process(folder: Path, port: int) -> Iterator[Any]:
    """Run a node in a process of its own, which is killed at the end."""
    given: dict[str, dict[str, Any]] = {"udp": apart(), "openwire": {"port": port, "open": True}}
    changes = tuple(
        f"{table}.{key}={json.dumps(value)}" for table, keys in given.items() for key, value in keys.items()
    )
    order = NodeCommand(config=None, data=str(folder), changes=changes, json=True, verbose=False)
    program = partial(node_main, msgspec.json.encode(order).decode())
    environment = {key: value for key, value in os.environ.items() if not key.startswith("CARRYPOST_")}
    with (
        (folder / "stderr").open("ab+") as said,
        copy(program, stdout=subprocess.PIPE, stderr=said, env=environment) as running,
    ):
        try:
            assert running.stdout is not None
            ready = json.loads(running.stdout.readline() or "{}")
            assert ready.get("openwire") == f"127.0.0.1:{port}", (folder / "stderr").read_text()
            yield running
        finally:
            running.kill()
            running.wait(PATIENCE_S)
    assert "Traceback" not in (folder / "stderr").read_text()


def port_of(server: Server) -> int:
    """Return the port of a server."""
    return int(server.address.rpartition(":")[2])
