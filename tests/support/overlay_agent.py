"""A node inside a program that uses the overlay, for tests in other network namespaces.

The first argument is its file of settings. Orders come as lines of JSON on standard input, and each is answered by one:
``{"send": NODE, "size": BYTES}`` sends a message along the overlay, ``{"emit": COUNT, "each_s": SECONDS}`` begins to
emit events to a channel, ``{"consume": true}`` subscribes to it, ``{}`` does nothing. Answers have the node's id, the
homes of its clients, the number of events that were emitted, the error that ended this, and the numbers of those that
came: how many, the last, and any that was not the next one; also the longest turn of its loop since the last answer, in
seconds of processor time, and the most memory that it ever had; with ``"view": true`` in the order also its view of the
overlay.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import selectors
import sys
import time
from pathlib import Path

import msgspec

from carrypost.log.events import Delivered
from carrypost.model.ids import NodeId
from carrypost.node.runtime import Node
from carrypost.node.settings import load
from carrypost.overlay.events import EventsLost
from carrypost.overlay.items import Role

CHANNEL, EVENT_BYTES = "weather", 1_000


class Watch(selectors.DefaultSelector):
    """The selector of the loop; measures its turns, from one selection to the next."""

    def __init__(self) -> None:
        super().__init__()
        self.longest_s, self._began_s = 0.0, time.thread_time()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.longest_s = max(self.longest_s, time.thread_time() - self._began_s)
        found = super().select(timeout)
        self._began_s = time.thread_time()
        return found


class Agent:
    """The program."""

    def __init__(self, node: Node, watch: Watch) -> None:
        self._node, self._watch = node, watch
        self._emitting: asyncio.Task[None] | None = None
        self._emitted = self._count = self._last = self._lost = 0
        self._wrong: list[int] = []
        node.attach({Delivered: self._take, EventsLost: self._lose})

    def _take(self, event: Delivered) -> None:
        for each in event.deliveries:
            headers = each.descriptor.original.headers
            number = 0 if headers is None else headers.event
            if number != self._last + 1:
                self._wrong.append(number)
            self._count, self._last = self._count + 1, number

    def _lose(self, event: EventsLost) -> None:
        self._lost += event.events

    async def _emit(self, count: int, each_s: float) -> None:
        driver = self._node.driver
        for _ in range(count):
            await driver.room()
            self._node.host.overlay.emit(CHANNEL, os.urandom(EVENT_BYTES), driver.now)
            self._emitted += 1
            driver.drain()
            await asyncio.sleep(each_s)

    @property
    def _error(self) -> str:
        """The error that ended the emission of events; empty if none did."""
        if self._emitting is None or not self._emitting.done() or (error := self._emitting.exception()) is None:
            return ""
        return repr(error)

    def say(self, *, view: bool = False) -> None:
        host = self._node.host
        answer = {
            "node": host.node, "homes": [*host.overlay.homes(Role.CONSUMER).values()], "emitted": self._emitted,
            "error": self._error, "count": self._count, "last": self._last, "wrong": self._wrong, "lost": self._lost,
            "turn_s": self._watch.longest_s, "memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1_024,
            "overlay": msgspec.to_builtins(host.overlay.view()) if view else None,
        }  # fmt: skip
        self._watch.longest_s = 0.0
        print(json.dumps(answer), flush=True)  # noqa: T201 - this is how it answers

    def obey(self, order: dict[str, object]) -> None:
        host, driver = self._node.host, self._node.driver
        match order:
            case {"send": str(to), "size": int(size)}:
                message = host.publish("topic/weather", os.urandom(size), lifetime_us=10**9, now=driver.now)
                host.overlay.send(message, [NodeId(to)], driver.now, channel=CHANNEL)
            case {"emit": int(count), "each_s": float(each_s)}:
                self._emitting = asyncio.create_task(self._emit(count, each_s))
            case {"consume": True}:
                host.subscribe(host.overlay.consume(CHANNEL, driver.now), confirmed=True, now=driver.now)
            case _:
                pass
        driver.drain()


async def main(watch: Watch) -> None:
    orders = asyncio.StreamReader()
    async with Node(load(Path(sys.argv[1]))) as node:
        agent = Agent(node, watch)
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
        agent.say()
        while line := await orders.readline():
            order = json.loads(line)
            agent.obey(order)
            agent.say(view="view" in order)


watch = Watch()
with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(watch)) as runner:
    runner.run(main(watch))
