"""A real node in a program that executes orders: it publishes, subscribes, confirms, and reports arrivals of messages.

It does so as a driver of the host does (`_direct`) or, with the orders `deposit` and `receive`, by the Context API: to
a topic, or to a queue that it declares (`_worker_programs`).

Run by the benchmarks of this folder, with a settings file as its argument; with `--profile` after it, it also profiles
itself. Orders come as lines of JSON on standard input, and each is answered by one line. It ends with its input.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks._direct import Direct

from carrypost.log.events import Delivery, Event
from carrypost.node.runtime import Node, collect_seldom
from carrypost.node.settings import load

if TYPE_CHECKING:
    from benchmarks._areas import Areas

PROFILE = "--profile"
PROGRAMS = ("declare", "deposit", "receive")
"""Orders for programs of the Context API."""
PUBLISH_STEP = 32
"""Number of messages that are given to the node at once, before it may do something else."""
SENDING_BYTES = 1_000
"""More than this within a moment is more than announcements."""
_POLL_S = 0.005
_POLL_SLOW_S = 0.05
"""Interval of polling where asking is work that would be counted."""

Answer = dict[str, Any]
Order = dict[str, Any]


class Reader:
    """The application: reads every payload and confirms it; deliveries of one event are confirmed together."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._taken: list[Delivery] = []
        self._loop = asyncio.get_running_loop()
        self.direct = Direct(node, self._take)
        self.arrivals: list[tuple[float, int]] = []
        """Time at which a message came, and its length."""
        self.came = asyncio.Event()
        self.confirmed: asyncio.Future[None] | None = None

    def arrived(self, nbytes: int) -> None:
        """A message of this length came."""
        self.arrivals.append((time.monotonic(), nbytes))
        self.came.set()

    def _take(self, deliveries: Sequence[Delivery]) -> None:
        if not self._taken:
            self._loop.call_soon(self._read)
        self._taken += deliveries

    def _read(self) -> None:
        taken, self._taken = self._taken, []
        now_s = time.monotonic()
        for delivery in taken:
            payload = self._node.driver.payload(delivery.descriptor)
            assert payload is not None
            self.arrivals.append((now_s, len(payload)))
        self.confirmed = self.direct.confirm(taken)
        self.came.set()


class Worker:
    """The node and its orders."""

    def __init__(self, node: Node, areas: Areas | None) -> None:
        self._node = node
        self._reader = Reader(node)
        self._areas = areas
        self._handlers: dict[type[Event], Callable[[Any], None]] = self._reader.direct.handlers
        node.attach(self._handlers)
        self._does: dict[str, Callable[[Order], Awaitable[Answer]]] = {
            "publish": self._publish,
            "subscribe": self._subscribe,
            "await": self._await,
            "held": self._held,
            "linked": self._linked,
            "reached": self._reached,
            "gate": self._gate,
            "sending": self._sending,
            "profile": self._profile,
            "areas": self._shares,
            "status": self._status,
        }

    async def obey(self, order: Order) -> Answer:
        """Do it; what to answer."""
        if order["do"] in PROGRAMS and order["do"] not in self._does:
            self._start_programs()
        return await self._does[order["do"]](order)

    def _start_programs(self) -> None:
        """Take orders for the Context API as well, which a node without such programs need not have in memory."""
        from benchmarks._worker_programs import Programs  # noqa: PLC0415

        programs = Programs(self._node, self._reader.arrived)
        self._handlers |= programs.handlers
        self._does |= {name: getattr(programs, name) for name in PROGRAMS}

    async def _publish(self, order: Order) -> Answer:
        """Messages of random bytes; answered when all are stored."""
        size, count = order["size"], order["count"]
        bodies = [os.urandom(size) for _ in range(count)]
        began_s, cpu_s = time.monotonic(), time.process_time()
        waiting = []
        for number, body in enumerate(bodies):
            waiting.append(
                self._reader.direct.publish(order["destination"], body, recipients=order.get("recipients", ()))
            )
            if number % PUBLISH_STEP == PUBLISH_STEP - 1:
                await asyncio.sleep(0)
        await asyncio.gather(*waiting)
        return {"began_s": began_s, "stored_s": time.monotonic(), "cpu_s": time.process_time() - cpu_s}

    async def _subscribe(self, order: Order) -> Answer:
        self._reader.direct.subscribe(order["pattern"])
        return {}

    async def _await(self, order: Order) -> Answer:
        """Wait until this many deliveries since the last call are confirmed."""
        reader = self._reader
        while len(reader.arrivals) < order["count"]:
            reader.came.clear()
            await reader.came.wait()
        if reader.confirmed is not None:
            await reader.confirmed
        arrivals, reader.arrivals = reader.arrivals, []
        return {"arrivals": arrivals}

    async def _held(self, order: Order) -> Answer:
        """Wait until this many messages are in the cache, and on disk."""
        node = self._node
        while node.host.overview().messages < order["count"] or node.store.unanswered_bytes:  # noqa: ASYNC110
            await asyncio.sleep(_POLL_SLOW_S)
        return {"held_s": time.monotonic()}

    async def _linked(self, order: Order) -> Answer:
        """Wait for this many neighbours with which messages can be exchanged."""
        while self._neighbours() != order["count"]:  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(_POLL_S)
        return {"linked_s": time.monotonic()}

    async def _reached(self, order: Order) -> Answer:
        """Wait until this many hosts can be reached, over any number of hops."""
        while len(self._node.host.reach()) != order["count"]:  # noqa: ASYNC110 - there may be no event any more
            await asyncio.sleep(_POLL_S)
        return {"reached_s": time.monotonic()}

    def _neighbours(self) -> int:
        return sum(each.state == "linked" for each in self._node.host.overview().neighbours)

    async def _gate(self, order: Order) -> Answer:
        hear = order["hear"]
        self._node.udp.intake.gate = None if hear is None else frozenset(hear)
        return {"gated_s": time.monotonic()}

    async def _sending(self, _order: Order) -> Answer:
        """Wait until it sends more than announcements."""
        before = self._sent_bytes()
        while (after := self._sent_bytes()) - before < SENDING_BYTES:
            before = after
            await asyncio.sleep(_POLL_S)
        return {"began_s": time.monotonic()}

    def _sent_bytes(self) -> int:
        counters = self._node.udp.status()["counters"]
        assert isinstance(counters, dict)
        return int(counters["sent_bytes"])

    async def _profile(self, _order: Order) -> Answer:
        """Count where the time goes from here on."""
        assert self._areas is not None
        self._areas.reset()
        return {}

    async def _shares(self, _order: Order) -> Answer:
        assert self._areas is not None
        return dict(self._areas.spent_s())

    async def _status(self, _order: Order) -> Answer:
        seen = self._node.host.overview()
        return {
            "node": self._node.host.node,
            "unread": self._node.driver.unread,
            "messages": seen.messages,
            "datagram_bytes": seen.datagram_bytes,
            "neighbours": [[each.address, each.state] for each in seen.neighbours],
            "refused": dict(seen.refused),
            "dropped": dict(seen.dropped),
            "store": self._node.store.status(),
            "udp": self._node.udp.status(),
            "addresses": self._node.udp.addresses,
        }


def _read_orders(loop: asyncio.AbstractEventLoop, orders: asyncio.Queue[Order | None]) -> None:
    for line in sys.stdin:
        loop.call_soon_threadsafe(orders.put_nowait, json.loads(line))
    loop.call_soon_threadsafe(orders.put_nowait, None)


def _say(answer: Answer) -> None:
    print(json.dumps(answer), flush=True)


def _areas() -> Areas:
    from benchmarks._areas import Areas  # noqa: PLC0415 - only where it is asked for

    return Areas()


async def _run(file: Path, areas: Areas | None) -> None:
    orders: asyncio.Queue[Order | None] = asyncio.Queue()
    threading.Thread(target=_read_orders, args=(asyncio.get_running_loop(), orders), daemon=True).start()
    async with Node(load(file)) as node:
        collect_seldom()  # as `carrypost node` does
        worker = Worker(node, areas)
        _say({"ready": True, "addresses": node.udp.addresses})
        while (order := await orders.get()) is not None:
            _say(await worker.obey(order))


def main() -> None:
    """Run a node with the settings of a file."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the business of whoever gives the orders.
    asyncio.run(_run(Path(sys.argv[1]), _areas() if PROFILE in sys.argv else None))


if __name__ == "__main__":
    main()
