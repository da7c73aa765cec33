"""Asynchronous sends: listeners that are called, one at a time and in order, when a message is stored or was not."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable
from typing import Protocol

from carrypost.errors import IllegalStateException, JMSException
from carrypost.jms.caller import Caller, is_called_by

_log = logging.getLogger("carrypost.jms")


class CompletionListener(Protocol):
    """A listener for the completion of sends. Both methods may be async."""

    def on_completion(self, message: object) -> Awaitable[None] | None:
        """Handle a message that is stored on this node."""

    def on_exception(self, message: object, exception: JMSException) -> Awaitable[None] | None:
        """Handle a message that was not sent."""


class Completions:
    """The sends of one session whose listeners were not called yet."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._waiting: deque[tuple[asyncio.Future[None], object, CompletionListener]] = deque()
        self._task: asyncio.Task[None] | None = None

    def follow(self, done: asyncio.Future[None], message: object, listener: CompletionListener) -> None:
        """Add a send."""
        self._waiting.append((done, message, listener))
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run(), name="carrypost completions")

    async def done(self) -> None:
        """Wait until all listeners were called."""
        if self._task is not None:
            await asyncio.wait({self._task})

    def abandon(self) -> None:
        """Cut off the running listener, and call no other."""
        self._waiting.clear()
        if self._task is not None:
            self._task.cancel()

    def check_not_inside(self, what: str) -> None:
        """Raise if this is called by a completion listener: it would wait for itself."""
        if is_called_by(self):
            raise IllegalStateException(f"a completion listener cannot {what}: it would wait for itself")

    async def _run(self) -> None:
        while self._waiting:
            done, message, listener = self._waiting.popleft()
            await asyncio.wait({done})
            error = done.exception()
            if error is None:
                failed, _ = await self._caller.called(self, listener.on_completion, message)
            else:
                failed, _ = await self._caller.called(self, listener.on_exception, message, error)
            if failed is not None:
                _log.error("a completion listener failed", exc_info=failed)
