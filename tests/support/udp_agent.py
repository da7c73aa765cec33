"""A program that is nothing but `Udp`, for tests in other network namespaces.

Settings come as JSON in the first argument, commands as lines of JSON on standard input; every line of the answer is
``{"received": [[peer, text], ...]}``, ``{"answer": ...}`` or ``{"log": text}``.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from typing import Any

from carrypost.errors import CarrypostError
from carrypost.node.settings import UdpSettings
from carrypost.node.udp.udp import Udp


def say(**what: object) -> None:
    print(json.dumps(what), flush=True)  # noqa: T201 - this is how it answers


class Says(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        say(log=record.getMessage())


async def obey(udp: Udp) -> None:
    commands = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    while line := await commands.readline():
        command = json.loads(line)
        if command["do"] == "send":
            datagrams = [text.encode() for text in command["datagrams"]]
            udp.send(datagrams, command["to"], announcing=command["announcing"])
            say(answer="sent")
        else:
            say(answer=udp.status())


async def main() -> None:
    told: dict[str, Any] = json.loads(sys.argv[1])
    given: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in told.items()}
    udp = Udp(UdpSettings(**given), lambda batch: say(received=[[peer, data.decode()] for peer, data in batch]))
    try:
        await udp.open()
    except CarrypostError as error:
        say(answer=f"{type(error).__name__}: {error}")
        return
    say(answer=udp.addresses)
    await obey(udp)
    await udp.close()


logging.getLogger("carrypost.udp").addHandler(Says(logging.INFO))
logging.getLogger("carrypost.udp").setLevel(logging.INFO)
asyncio.run(main())
