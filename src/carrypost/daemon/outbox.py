"""Messages from the node that wait until their client reads, in order."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Generic, TypeVar

from carrypost.daemon.subscription import Subscription
from carrypost.errors import CarrypostError, JMSException
from carrypost.mom.program_commands import Recover

if TYPE_CHECKING:
    from carrypost.daemon.connection import Output
    from carrypost.events import Handed
    from carrypost.jms.provider import Provider

_log = logging.getLogger("carrypost.daemon")
S = TypeVar("S", bound=Subscription)


class Outbox(Generic[S]):
    """The messages for one client. They wait here within the credit of its subscriptions."""

    def __init__(
        self,
        output: Output,
        write: Callable[[S, Handed, bytes | None], Awaitable[None]],
        written: Callable[[], None],
        fail: Callable[[CarrypostError], None],
    ) -> None:
        self._output, self._write, self._written, self._fail = output, write, written, fail
        self._waiting: deque[tuple[S, Handed, bytes | None]] = deque()
        self._task: asyncio.Task[None] | None = None

    def add(self, subscription: S, handed: Handed, body: bytes | None) -> None:
        """Let a message be written when the client has read what came before."""
        subscription.hand(handed)
        self._waiting.append((subscription, handed, body))
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._deliver())

    def forget(self, subscription: S) -> None:
        """Drop what waits for a subscription that ends."""
        self._waiting = deque(each for each in self._waiting if each[0] is not subscription)

    def close(self) -> None:
        """Write nothing more."""
        if self._task is not None:
            self._task.cancel()
        self._waiting.clear()

    async def _deliver(self) -> None:
        """Write waiting messages, as fast as the client reads."""
        try:
            while self._waiting:
                await self._write(*self._waiting.popleft())
                if self._output.is_full:
                    self._written()
                    await self._output.drained()
            self._written()
        except CarrypostError as error:
            self._fail(error)
        except Exception:  # noqa: BLE001 - A client that gets nothing more, and no error, would wait for ever.
            _log.exception("a message could not be written to a client; ending its connection")
            self._fail(JMSException("the node failed to write a message: please report this, with the node's log"))


async def is_late(provider: Provider, subscription: Subscription, handed: Handed) -> bool:
    """Return True if the lease of a message ended while it waited: its manager gives it to another consumer."""
    if not 0 < handed.lease_us <= provider.now_us():
        return False
    number = handed.number
    with suppress(JMSException):  # Its subscription has ended.
        await provider.execute(Recover(subscription.session, (number,), (number,)))
    subscription.release(provider, [handed])
    return True
