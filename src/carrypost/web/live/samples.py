"""Samples of a running node over time: one connection, and one round of questions a second while pages ask.

However many pages look at a node, it is asked once a second, when one of them asks, and they share the answers. When
none has asked for four seconds, the connection is closed, so a node with no page open is as without pages. A node that
ends, hangs or is started again is found out by the same round; its last answers stay, and are marked as old.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import msgspec

from carrypost.attach.client import Client
from carrypost.errors import CarrypostError, LocalError, NoNodeError
from carrypost.node.doctor.diagnosis import of_disk, of_node
from carrypost.node.settings import NodeSettings

PERIOD_S = 1.0
HISTORY = 300
"""Samples of the history: five minutes."""
_LINGER_S = 4.0
_PATIENCE_S = 2.0
"""Time within which a node answers a round; a page must say within three seconds that it does not."""
_COUNTERS = ("sent_bytes", "received_bytes", "sent", "received")


class Samples:
    """One node, as pages see it."""

    def __init__(self, settings: NodeSettings) -> None:
        self.settings = settings
        self.id = hashlib.sha256(str(settings.data.absolute()).encode()).hexdigest()[:10]
        self.serial = 0
        """Number of the last sample."""
        self.last: dict[str, Any] = {}
        """The last answers."""
        self.state, self.reason = "gone", ""
        self.history: deque[tuple[int, list[float]]] = deque(maxlen=HISTORY)
        self._client: Client | None = None
        self._task: asyncio.Task[None] | None = None
        self._wanted, self._fresh = asyncio.Event(), asyncio.Event()
        """Set while a page waits for a round; set for a second after one."""

    @property
    def is_awake(self) -> bool:
        """True while it asks the node."""
        return self._task is not None

    async def sample(self, after: int) -> dict[str, Any]:
        """Return the last sample; of what a page has, by the number of its last one, only the state is repeated."""
        await self._awake()
        found = {"serial": self.serial, "state": self.state, "reason": self.reason, "t": time.time()}
        if after == self.serial:
            return found
        history = [values for number, values in self.history if number > after or after > self.serial]
        return {**found, **self.last, "history": history}

    async def ask(self, what: str, *given: str | int, **named: object) -> Any:  # noqa: ANN401 - what the node says
        """Return what the node answers to a plain call; raises `CarrypostError`."""
        await self._awake()
        if self._client is None:
            raise NoNodeError(self.reason or f"no node runs in {self.settings.data}")
        return await getattr(self._client, what)(*given, **named)

    async def close(self) -> None:
        """End the rounds."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _awake(self) -> None:
        """Return after a round that began within the last second: if need be, this question begins one."""
        while self._task is None or not self._fresh.is_set():
            if self._task is None:
                self._fresh.clear()
                self._task = asyncio.create_task(self._watch())
            self._wanted.set()
            await self._fresh.wait()

    async def _watch(self) -> None:
        """Ask the node whenever a page wants to know, once a second at most; end when none does for a while."""
        try:
            with suppress(TimeoutError):
                while True:
                    async with asyncio.timeout(_LINGER_S):
                        await self._wanted.wait()
                    begun_s = time.monotonic()
                    await self._look()
                    self._wanted.clear()
                    self._fresh.set()
                    await asyncio.sleep(max(0.0, begun_s + PERIOD_S - time.monotonic()))
                    self._fresh.clear()
        finally:
            self._task = None
            self._fresh.set()  # A question that came too late for this task begins another.
            await self._leave()

    async def _look(self) -> None:
        try:
            async with asyncio.timeout(_PATIENCE_S):
                if self._client is None:
                    self._client = await Client.connect(self.settings.control)
                self.last = await self._answers(self._client)
        except (CarrypostError, TimeoutError) as error:
            self.state = "gone"
            self.reason = str(error) or f"the node at {self.settings.control} does not answer"
            await self._leave()
            self.serial += 1
        else:
            self.note()

    def note(self) -> None:
        """Note the last answers as one more sample."""
        self.state, self.reason = "up", ""
        self.serial += 1
        self.history.append((self.serial, _point(self.last["status"])))

    async def _leave(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            with suppress(CarrypostError, TimeoutError):
                async with asyncio.timeout(_PATIENCE_S):
                    await client.close()

    async def _answers(self, client: Client) -> dict[str, Any]:
        status, peers = await client.status(), await client.peers()
        lacks, messaging = "", {"messaging": None, "channels": None}
        try:
            messaging = await client.messaging()
        except NoNodeError:
            raise
        except CarrypostError as error:  # An earlier version: the other panels work.
            lacks = str(error)
        store = status["store"]
        findings = [
            *of_disk(self.settings.data, store["free_bytes"], store["failure"]),
            *of_node(status, self.settings.core.limits),
        ]
        return {
            "status": status, "peers": peers, "messaging": messaging, "lacks": lacks,
            "findings": msgspec.to_builtins(findings),
        }  # fmt: skip


def _point(status: Mapping[str, Any]) -> list[float]:
    """Return the numbers of one instant: time, traffic, messages and bytes in the cache, dropped and refused.

    The time is that of a clock which nobody sets: rates follow from it.
    """
    counters, cache = status["udp"]["counters"], status["cache"]
    totals = [sum(status[name].values()) for name in ("dropped", "refused")]
    return [
        round(time.monotonic(), 3),
        *(counters[name] for name in _COUNTERS),
        cache["messages"],
        cache["bytes"],
        *totals,
    ]


class Nodes:
    """The nodes that pages show."""

    def __init__(self, nodes: Mapping[str, NodeSettings]) -> None:
        """Begin with nodes by their folders."""
        self.all = {made.id: made for made in map(Samples, nodes.values())}

    def find(self, name: str) -> Samples:
        """Return a node by its id; raises `LocalError`."""
        if name not in self.all:
            raise LocalError(f"there is no node {name[:40]!r} here; the start page has those that there are")
        return self.all[name]
