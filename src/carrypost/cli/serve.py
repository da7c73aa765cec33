"""Runs a node until it is told to end; by itself the program of a process that does nothing else (`cli._order`)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from pathlib import Path

import msgspec

from carrypost.cli._exit import Exit, told
from carrypost.cli._order import Order
from carrypost.cli._settings import settings_of
from carrypost.errors import CarrypostError
from carrypost.node.carrying import Carrying
from carrypost.node.control import Control
from carrypost.node.runtime import Node, collect_seldom
from carrypost.node.settings import NodeSettings


def run(order: Order) -> None:
    """Run a node until a signal or somebody at the control socket ends it."""
    logging.basicConfig(
        level=logging.INFO if order.verbose else logging.WARNING,
        stream=sys.stderr,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        datefmt="%H:%M:%S",
    )
    config, data = (None if text is None else Path(text) for text in (order.config, order.data))
    asyncio.run(_run(settings_of(config, data, order.changes), json=order.json))


async def _run(settings: NodeSettings, *, json: bool) -> None:
    loop, stopping = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(NotImplementedError):  # Windows: Ctrl-C raises KeyboardInterrupt instead
            loop.add_signal_handler(number, stopping.set)
    async with Node(settings) as node:
        collect_seldom()
        control = Control(node, stopping)
        await control.open()
        try:
            _tell_ready(node, json=json)
            await stopping.wait()
        finally:
            await control.close()


def _tell_ready(node: Node, *, json: bool) -> None:
    carrying = Carrying.of(node.settings.core)
    ready = {
        "event": "ready",
        "node": node.host.node,
        "pid": os.getpid(),
        "control": str(node.settings.control),
        "addresses": node.udp.addresses,
        "carries": carrying,
    }
    lines = (
        [msgspec.json.encode(ready).decode()]
        if json
        else [
            f"node {node.host.node} is running in {node.home.folder}; Ctrl-C ends it",
            f"it is reached at {', '.join(node.udp.addresses) or 'no address yet'}",
            *(f"it {name} {sentence}" for name, sentence in carrying.sentences()),
            "carrypost status, peers and doctor tell more, from another terminal",
        ]
    )
    print(*lines, sep="\n", flush=True)  # noqa: T201 - to whoever started it


def _main() -> int:
    order = msgspec.json.decode(sys.argv[1], type=Order)
    try:
        run(order)
    except CarrypostError as error:
        return told(error)
    except KeyboardInterrupt:
        pass
    return Exit.DONE


if __name__ == "__main__":
    sys.exit(_main())
