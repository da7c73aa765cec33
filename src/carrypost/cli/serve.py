"""Runs a node in this process until it is told to end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys

import typer

from carrypost.cli._output import line
from carrypost.node.control import Control
from carrypost.node.runtime import Node
from carrypost.node.settings import NodeSettings


def run(settings: NodeSettings, *, json: bool, verbose: bool) -> None:
    """Run a node until a signal or somebody at the control socket ends it."""
    logging.basicConfig(
        level=logging.INFO if verbose else logging.WARNING,
        stream=sys.stderr,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        datefmt="%H:%M:%S",
    )
    asyncio.run(_run(settings, json=json))


async def _run(settings: NodeSettings, *, json: bool) -> None:
    loop, stopping = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(NotImplementedError):  # Windows: Ctrl-C raises KeyboardInterrupt instead
            loop.add_signal_handler(number, stopping.set)
    async with Node(settings) as node:
        control = Control(node, stopping)
        await control.open()
        try:
            _tell_ready(node, json=json)
            await stopping.wait()
        finally:
            await control.close()


def _tell_ready(node: Node, *, json: bool) -> None:
    if json:
        line(
            {
                "event": "ready",
                "node": node.host.node,
                "pid": os.getpid(),
                "control": str(node.settings.control),
                "addresses": node.udp.addresses,
            }
        )
    else:
        typer.echo(f"node {node.host.node} is running in {node.home.folder}; Ctrl-C ends it")
        typer.echo(f"it is reached at {', '.join(node.udp.addresses) or 'no address yet'}")
        typer.echo("carrypost status, peers and doctor tell more, from another terminal")
