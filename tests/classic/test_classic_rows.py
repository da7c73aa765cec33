"""Rows of the checklist in the classic API, in virtual time; some also attached to their node by a socket."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import wraps
from typing import Any

import pytest
from tests.support import classic_rows
from tests.support.classic_world import World

from carrypost import Context, classic, testing
from carrypost.classic import Connection, InitialContext


class VirtualWorld:
    """Connections to a node in memory, in virtual time."""

    def __init__(self, net: testing.Network, stack: AsyncExitStack) -> None:
        self._net, self._stack = net, stack

    async def connect(self, client_id: str | None = None, domain: Any = None) -> Connection:  # noqa: ANN401 - one of two
        return await self._stack.enter_async_context(self._net.connection("a", client_id, domain))

    def begin(self, work: Callable[[], Awaitable[Any]]) -> Callable[[], Awaitable[Any]]:
        task = asyncio.ensure_future(work())

        async def end() -> object:
            return await task

        return end

    async def until(self, true: Callable[[], bool]) -> None:
        async with asyncio.timeout(3_600):
            while not true():  # noqa: ASYNC110 - anything may become true
                await asyncio.sleep(0.01)

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def requestor(self, domain: str) -> type:
        return {"queue": classic.QueueRequestor, "topic": classic.TopicRequestor}[domain]

    def names(self, environment: dict[str, str]) -> InitialContext:
        return VirtualNames(self._net, environment)


class VirtualNames(InitialContext):
    """Names of a node in memory."""

    def __init__(self, net: testing.Network, environment: dict[str, str]) -> None:
        super().__init__(environment)
        self._net = net

    async def _open(self) -> Context:
        return await self._net.context("a")


def in_virtual_time(row: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Return the test of a row."""

    @wraps(row)
    def test(**given: object) -> None:
        async def play() -> None:
            network = testing.network("a", seed=1, messaging={"redelivery_delay_s": 0.0})
            async with network as net, AsyncExitStack() as stack:
                world: World = VirtualWorld(net, stack)
                await row(world, **given)

        testing.run(play)

    _, *others = inspect.signature(row).parameters.values()
    vars(test)["__signature__"] = inspect.Signature(others)
    return test


for name, function in vars(classic_rows).items():
    if found := re.match(r"test_row_(\d+)_", name):
        made = in_virtual_time(function)
        attached = pytest.mark.attached("acknowledgements, credit and closing cross the socket")
        globals()[name] = attached(made) if int(found[1]) in classic_rows.ATTACHED else made
