"""The receiving side of a client: its consumers, and messages from the node, which wait here until the client reads.

A consumer is a session of the node (`Subscription`): it has what the node handed it, and what the client has not
acknowledged. The node hands over as much as the client may have unacknowledged: what the client is done with makes
room.

Messages wait in order, within the credit of the client's consumers (`Receiving`). All that is acknowledged in one turn
of the loop is one unit of work. A message is mapped and encoded once for all clients of a node that get it at about the
same time (`Copies`). The last 1 MiB is kept. What differs between protocols is elsewhere.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sized
from contextlib import suppress
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from carrypost.errors import CarrypostError, JMSException
from carrypost.jms.provider import Perform
from carrypost.log.journal import Durability
from carrypost.messaging.commands import Ack, Late, Receive, Subscribe
from carrypost.messaging.program_commands import CloseSession, Consume, Credit, OpenSession, Recover, Release
from carrypost.model import address

if TYPE_CHECKING:
    from collections.abc import Iterable

    from carrypost.jms.provider import Provider
    from carrypost.log.events import Handed
    from carrypost.model.descriptor import Descriptor
    from carrypost.model.ids import MessageId


V = TypeVar("V")
B = TypeVar("B", bound=Sized)
_BYTES_MAX = 1024 * 1024


class Output(Protocol):
    """The connection to a client, which takes the bytes for it."""

    def admit(self) -> str:
        """Count the client, whose first command is valid; return why it cannot be served, or an empty text."""

    def write(self, data: bytes) -> None:
        """Write bytes, in order."""

    @property
    def is_full(self) -> bool:
        """True while the client does not read what was written."""

    async def drained(self) -> None:
        """Wait while the client does not read."""

    def end(self) -> None:
        """Close the connection, once everything is written."""


class Copies(Generic[V, B]):
    """Messages that clients of one node got lately, by message and version of the protocol."""

    def __init__(self, provider: Provider, encode: Callable[[Descriptor, bytes, V], B]) -> None:
        self._provider, self._encode = provider, encode
        self._kept: dict[tuple[MessageId, V], B] = {}
        self._bytes = 0

    async def rest(self, handed: Handed, body: bytes | None, version: V) -> B | None:
        """Return a message's bytes; None if the message is gone. Without a `body` the provider has it."""
        descriptor = handed.descriptor
        kept = self._kept.get((descriptor.id, version))
        if kept is not None:
            return kept
        if body is None:
            body = await self._provider.payload(descriptor)
        return None if body is None else self._keep(descriptor, body, version)

    def _keep(self, descriptor: Descriptor, body: bytes, version: V) -> B:
        made = self._encode(descriptor.original, body, version)
        if len(made) <= _BYTES_MAX and (descriptor.id, version) not in self._kept:
            self._kept[descriptor.id, version] = made
            self._bytes += len(made)
            while self._bytes > _BYTES_MAX:
                self._bytes -= len(self._kept.pop(next(iter(self._kept))))
        return made


class Subscription:
    """An open consumer of a client."""

    def __init__(self, session: int, consumer: int, prefetch: int) -> None:
        self.session, self.consumer, self._prefetch = session, consumer, prefetch
        self._held: dict[int, Handed] = {}
        """Messages that were handed over and not acknowledged, by number; numbers rise."""
        self.unread: dict[int, None] = {}
        """Numbers of those that were not written to the client."""

    def begin(self, provider: Provider) -> None:
        """Let the node hand over as much as the client may have."""
        self.grant(provider, self._prefetch, provider.node_info.settings.prefetch_bytes)

    def grant(self, provider: Provider, messages: int, nbytes: int) -> None:
        """Let the node hand over this much more."""
        provider.tell(Credit(self.consumer, messages, nbytes))

    def hand(self, handed: Handed) -> None:
        """Note what the node hands over."""
        self._held[handed.number] = handed
        self.unread[handed.number] = None

    def holds(self, number: int) -> bool:
        """Return True if a message was not acknowledged, and is still the client's."""
        return number in self._held

    def through(self, number: int) -> list[Handed]:
        """Return the messages up to this number."""
        return list(takewhile(lambda each: each.number <= number, self._held.values()))

    def ack(self, handed: Iterable[Handed], *, late: Late = Late.REFUSE) -> Ack:
        """Return an acknowledgement of these messages."""
        return Ack(self.session, tuple(each.number for each in handed), late=late)

    def release(self, provider: Provider, handed: Iterable[Handed]) -> None:
        """Make room for more: the client is done with these."""
        self.make_room(provider, self.withdraw(handed))

    def withdraw(self, handed: Iterable[Handed]) -> list[Handed]:
        """Return those of these messages that the client still had; it has them no longer."""
        found = [each for each in handed if self._held.pop(each.number, None) is not None]
        for each in found:
            self.unread.pop(each.number, None)
        return found

    def make_room(self, provider: Provider, withdrawn: Collection[Handed]) -> None:
        """Let the node hand over as many messages as were withdrawn."""
        if withdrawn:
            self.grant(provider, len(withdrawn), sum(each.descriptor.length for each in withdrawn))


async def opened(provider: Provider, connection: int, wanted: Subscribe | Receive) -> tuple[int, int]:
    """Open a session of a connection, with one consumer; return both numbers."""
    session = await provider.execute(OpenSession(connection))
    try:
        return session, await provider.execute(Consume(session, wanted))
    except JMSException:
        await provider.execute(CloseSession(session))
        raise


def remote_prefetch(provider: Provider, wanted: Subscribe | Receive) -> int | None:
    """Return how many messages a consumer of another node's queue takes along; None for other consumers."""
    info = provider.node_info
    if not isinstance(wanted, Receive) or address.addressee(wanted.destination) == info.node:
        return None
    return max(info.settings.prefetch_remote, 1)


_log = logging.getLogger("carrypost.daemon")
S = TypeVar("S", bound=Subscription)


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
