"""A broker inside a program that sends legs, for tests in other network namespaces.

The first argument is its file of settings. Orders come as lines of JSON on standard input, and each is answered by one:
``{"send": NODE, "size": BYTES}`` sends a message along the overlay, ``{}`` does nothing; answers have the node's id and
its view of the overlay.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

import msgspec

from carrypost.model.ids import NodeId
from carrypost.node.runtime import Node
from carrypost.node.settings import load


def say(node: Node) -> None:
    answer = {"node": node.host.node, "overlay": msgspec.to_builtins(node.host.overlay.view())}
    print(json.dumps(answer), flush=True)  # noqa: T201 - this is how it answers


async def obey(node: Node) -> None:
    orders = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    while line := await orders.readline():
        order = json.loads(line)
        if "send" in order:
            host, driver = node.host, node.driver
            message = host.publish("topic/weather", os.urandom(order["size"]), lifetime_us=10**9, now=driver.now)
            host.overlay.send(message, [NodeId(order["send"])], driver.now, channel="weather")
            driver.drain()
        say(node)


async def main() -> None:
    async with Node(load(Path(sys.argv[1]))) as node:
        say(node)
        await obey(node)


asyncio.run(main())
