"""The receiving side of a client: messages from the node wait here until the client reads, in order.

They wait within the credit of the client's consumers. All that is acknowledged in one turn of the loop is one unit of
work.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sized
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from carrypost.daemon.subscription import Subscription
from carrypost.errors import CarrypostError, JMSException
from carrypost.jms.provider import Perform
from carrypost.log.journal import Durability
from carrypost.messaging.commands import Late
from carrypost.messaging.program_commands import CloseSession, Recover, Release

if TYPE_CHECKING:
    from carrypost.daemon.connection import Output
    from carrypost.daemon.copies import Copies
    from carrypost.jms.provider import Provider
    from carrypost.log.events import Handed

_log = logging.getLogger("carrypost.daemon")
S = TypeVar("S", bound=Subscription)
V = TypeVar("V")
B = TypeVar("B", bound=Sized)


class Receiving(ABC, Generic[S, V, B]):
    """The consumers of one client, and what the node hands to them."""

    def __init__(
        self, provider: Provider, output: Output, copies: Copies[V, B], fail: Callable[[CarrypostError], None]
    ) -> None:
        self._provider, self._output, self._copies, self._fail = provider, output, copies, fail
        self._by_consumer: dict[int, S] = {}
        self._waiting: deque[tuple[S, Handed, bytes | None]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._acknowledged: dict[S, list[Handed]] = {}
        """Messages that were acknowledged in this turn of the loop."""

    def __iter__(self) -> Iterator[S]:
        return iter(self._by_consumer.values())

    def has(self, subscription: S) -> bool:
        """Return True unless the subscription has ended."""
        return self._by_consumer.get(subscription.consumer) is subscription

    async def end(self, subscription: S, unread: Collection[int]) -> None:
        """Close a consumer; the client did not see the messages with the numbers `unread`."""
        self.settle()
        del self._by_consumer[subscription.consumer]
        self._waiting = deque(each for each in self._waiting if each[0] is not subscription)
        await self._provider.execute(CloseSession(subscription.session, list(unread)))

    def close(self) -> list[int]:
        """Write nothing more; return the numbers of messages that the client did not see."""
        self.settle()
        if self._task is not None:
            self._task.cancel()
        self._waiting.clear()
        unread = [number for each in self for number in self.unread_of(each)]
        self._by_consumer.clear()
        return unread

    def unread_of(self, subscription: S) -> Collection[int]:
        """Return the numbers of messages of a subscription that the client did not see."""
        return subscription.unread

    # --- messages for the client ---------------------------------------------------------------------------

    def deliver(self, handed: Handed, body: bytes | None) -> None:
        """Let a message be written when the client has read what came before."""
        subscription = self._by_consumer.get(handed.consumer)
        if subscription is None:
            return
        subscription.hand(handed)
        self._waiting.append((subscription, handed, body))
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._deliver())

    async def _deliver(self) -> None:
        """Write waiting messages, as fast as the client reads."""
        try:
            while self._waiting:
                await self._offer(*self._waiting.popleft())
                if self._output.is_full:
                    await self._output.drained()
        except CarrypostError as error:
            self._fail(error)
        except Exception:  # noqa: BLE001 - A client that gets nothing more, and no error, would wait for ever.
            _log.exception("a message could not be written to a client; ending its connection")
            self._fail(JMSException("the node failed to write a message: please report this, with the node's log"))

    async def _offer(self, subscription: S, handed: Handed, body: bytes | None) -> None:
        if 0 < handed.lease_us <= self._provider.now_us():
            # Its lease ended while it waited: its manager gives it to another consumer.
            await self.give_back(subscription, handed)
            return
        copy = await self._copies.rest(handed, body, self.version)
        if copy is None or not subscription.holds(handed.number):
            subscription.release(self._provider, [handed])  # It expired, or its subscription ended.
        else:
            await self.write(subscription, handed, copy)

    @property
    @abstractmethod
    def version(self) -> V:
        """The client's version of the protocol."""

    @abstractmethod
    async def write(self, subscription: S, handed: Handed, copy: B) -> None:
        """Write a message."""

    async def give_back(self, subscription: S, handed: Handed, *, released: bool = False) -> None:
        """Let a message come again that the client was not sent; if `released`, to any consumer of its queue."""
        session, numbers = subscription.session, (handed.number,)
        with suppress(JMSException):  # The subscription has ended.
            if released:
                await self._provider.execute(Release(session, numbers))
            else:
                await self._provider.execute(Recover(session, numbers, numbers))
        subscription.release(self._provider, [handed])

    # --- acknowledgements ----------------------------------------------------------------------------------

    def acknowledge(self, subscription: S, handed: Collection[Handed]) -> None:
        """Acknowledge messages, in one unit of work with all others of this turn of the loop."""
        if not self._acknowledged:
            asyncio.get_running_loop().call_soon(self.settle)
        self._acknowledged.setdefault(subscription, []).extend(subscription.withdraw(handed))

    def settle(self, durability: Durability = Durability.NORMAL) -> asyncio.Future[Any] | None:
        """Perform the acknowledgements so far, and return what is set when they are durable; None if there are none."""
        if not self._acknowledged:
            return None
        acknowledged, self._acknowledged = self._acknowledged, {}
        acks = tuple(each.ack(handed, late=Late.ACCEPT) for each, handed in acknowledged.items())
        try:
            done = self._provider.perform(Perform(next(iter(acknowledged)).session, (), acks, durability)).done
        except CarrypostError as error:
            self._fail(error)
            return None
        done.add_done_callback(self._settled)
        for subscription, handed in acknowledged.items():
            subscription.make_room(self._provider, handed)
        return done

    def _settled(self, done: asyncio.Future[None]) -> None:
        error = None if done.cancelled() else done.exception()
        if isinstance(error, CarrypostError):  # What comes again, comes with the next connection.
            self._fail(error)
