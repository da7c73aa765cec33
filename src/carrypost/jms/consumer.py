"""`Consumer`: takes the messages of one subscription, by `receive`, by ``async for``, or by a listener.

The node hands messages over ahead of the program, within the consumer's credit (`prefetch`). What waits here are their
descriptors: a body is read from the store when the program takes the message. So a consumer that does not read costs
ids, not bodies, and slows nobody. Without prefetch the node is asked for one message when the program wants one: then
what a queue has goes to whoever is ready for it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

import msgspec

from carrypost.errors import IllegalArgumentException, IllegalStateException, MessageFormatException
from carrypost.jms.durations import Duration, in_seconds, seconds
from carrypost.jms.passage import from_handed

if TYPE_CHECKING:
    from carrypost.events import Handed
    from carrypost.jms.acknowledging import Acknowledging
    from carrypost.jms.destinations import Destination
    from carrypost.jms.messages import Message
    from carrypost.jms.messages.message import Acknowledger
    from carrypost.jms.transactions import Transaction
    from carrypost.jms.works import SessionWorks

T = TypeVar("T")
_RENEWALS = 4
"""A consumer's credit is renewed so often for as much as it may have ahead: until the manager of a queue elsewhere
hears of it, the rest has to last."""


class MessageListener(Protocol):
    """A listener as an object."""

    def on_message(self, message: Message) -> Awaitable[None] | None:
        """Take a message. Raising means that it was not taken."""


Listener = Callable[["Message"], Awaitable[None] | None]


class ConsumerSession(Protocol):
    """What a consumer needs of its session."""

    @property
    def works(self) -> SessionWorks:
        """By which the node is asked."""

    @property
    def acknowledging(self) -> Acknowledging:
        """Which is told what its program has."""

    @property
    def acknowledger(self) -> Acknowledger:
        """To which messages refer."""

    @property
    def transaction(self) -> Transaction | None:
        """Its transaction, if it has them."""

    @property
    def delivers(self) -> bool:
        """Whether messages may be given to the program."""

    @property
    def ended(self) -> str:
        """Why the node is gone, if it is."""

    @property
    def listens(self) -> bool:
        """Whether it has listeners."""

    @property
    def receives(self) -> bool:
        """Whether a task waits in `receive`."""

    def wake_listeners(self) -> None:
        """There may be something for a listener."""

    def came_alone(self) -> None:
        """A message came that perhaps ended an earlier life."""

    def go_on(self) -> bool:
        """The program asks for more, and nothing is here: True if that is because something came alone."""

    def check_not_listening(self, what: str) -> None:
        """Raise if a listener calls."""

    def listeners_changed(self) -> None:
        """A listener came or went."""

    async def leave(self, consumer: Consumer) -> None:
        """Close a consumer."""


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What a consumer was opened for, as its program said it."""

    destination: Any
    selector: Any = None
    no_local: bool = False
    patterns: Mapping[str, str] | None = None
    prefetch: Any = None
    name: str = ""
    durable: bool = False
    shared: bool = False


class Consumer:
    """One consumer; opened by the `create_…consumer` methods of a context, and closed by `close` or ``async with``."""

    def __init__(self, session: ConsumerSession, number: int, wanted: Wanted) -> None:
        settings = session.works.provider.place.settings
        self._session = session
        self._number = number
        self._wanted = wanted
        self._prefetch = settings.prefetch if wanted.prefetch is None else wanted.prefetch
        self._prefetch_bytes = self._fetch_bytes = settings.prefetch_bytes
        self._fetching = False
        """Without prefetch: one was asked for, and has not come."""
        self._in_doubt: asyncio.Future[None] | None = None
        """The acknowledgement of what was taken last, if the next one has to wait for it."""
        self._waiting: deque[Handed] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._receiving = False
        self._closed = ""
        self._listener: Listener | None = None
        self._listener_given: object = None
        self._taken = self._taken_bytes = 0
        """Since credit was given last."""
        if self._prefetch:
            self._credit(self._prefetch, self._prefetch_bytes)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def destination(self) -> Destination:
        """What it consumes."""
        return self._wanted.destination  # type: ignore[no-any-return]  # it was checked when it was opened

    @property
    def message_selector(self) -> str | None:
        """The selector that its messages fulfil; None if there is none."""
        return self._wanted.selector  # type: ignore[no-any-return]  # likewise

    @property
    def no_local(self) -> bool:
        """Whether it leaves out what its own connection sent."""
        return self._wanted.no_local

    @property
    def closed(self) -> bool:
        """Whether it is closed, by itself, with its context, or because the node is gone."""
        return bool(self._closed)

    # --- receiving -----------------------------------------------------------------------------------------

    @in_seconds(1, "timeout", least=1_000)
    async def receive(self, timeout: Duration | None = None) -> Message | None:
        """The next message. Waits for it, but not longer than `timeout`; 0: takes what is here.

        None when the time is over, or the consumer is closed meanwhile. A call that is cancelled takes nothing.
        """
        return await self._receive(timeout, None)

    async def receive_no_wait(self) -> Message | None:
        """The next message if one is here already, else None."""
        return await self._receive(0, None)

    @in_seconds(2, "timeout", least=1_000)
    async def receive_body(self, kind: type[T], timeout: Duration | None = None) -> T | None:
        """The body of the next message: str, bytes, dict, or a registered class; None when the time is over.

        Raises `MessageFormatException` if the body is no `kind`, or there is none. Then the message waits here as
        before; but where acknowledging is left to the program, or to a commit, it counts as received.
        """
        message = await self._receive(timeout, kind)
        return None if message is None else message.get_body(kind)

    async def messages(self, timeout: Duration | None = None) -> AsyncIterator[Message]:
        """Message after message, until none comes for `timeout`, or the consumer is closed."""
        self._check_receiving()
        while not self.closed and (message := await self._receive(timeout, None)) is not None:
            yield message

    def __aiter__(self) -> AsyncIterator[Message]:
        return self.messages()

    async def _receive(self, timeout: Duration | None, kind: type | None) -> Message | None:
        limit_s = None if timeout is None else seconds(timeout, "a timeout")
        self._check_receiving()
        self._receiving = True
        try:
            await self._ready()
            until = None if limit_s is None else asyncio.get_running_loop().time() + limit_s
            while not self._closed:
                if not self._prefetch and not self._waiting:
                    await self._fetch(at_once=limit_s == 0)
                if self._waiting and self._session.delivers:
                    message = await self._take(kind)
                    if message is not None:
                        return message
                elif not self._waiting and self._session.go_on():
                    if limit_s == 0:
                        await self._session.works.settled()
                elif limit_s == 0:
                    await asyncio.sleep(0)  # Who asks again and again lets others go on.
                    return None
                elif not await self._news(until):
                    return None
            if self._session.ended:
                raise IllegalStateException(self._session.ended)
            return None
        finally:
            self._receiving = False

    def _check_receiving(self) -> None:
        if self._closed:
            raise IllegalStateException(self._closed)
        if self._session.listens:
            raise IllegalStateException(
                "this context has listeners, which get its messages one at a time: receive in a context of its own "
                "(ctx.create_context())"
            )
        if self._receiving:
            raise IllegalStateException("another task receives from this consumer: give each task its own")

    async def _ready(self) -> None:
        """Wait for the outcome of calls that were cancelled, then see whether messages may be received."""
        session = self._session
        await session.works.ready()
        if session.transaction is not None:
            session.transaction.check_idle()
        session.acknowledging.check()

    async def _news(self, until: float | None) -> bool:
        """Wait until something changed; False when the time is over."""
        waiter = self._waiter = asyncio.get_running_loop().create_future()
        try:
            if until is None:
                await waiter
            else:
                async with asyncio.timeout_at(until):
                    await waiter
        except TimeoutError:
            return False
        finally:
            self._waiter = None
        return True

    async def _take(self, kind: type | None) -> Message | None:
        """The first one that waits, which the program has from now on; None if it is gone or dead."""
        session = self._session
        handed = self._waiting[0]
        message = await self.read(handed)
        if not self._waiting or self._waiting[0] is not handed:
            return None  # Closed or recovered meanwhile.
        wrong = message is not None and kind is not None and not _has_body(message, kind)
        if wrong and session.acknowledging.retries:
            raise _misfit(message, kind)
        self._waiting.popleft()
        if message is None:
            self._replenish(handed)
            return None
        session.acknowledging.consumed(handed)
        self.was_taken(handed)
        if wrong:
            raise _misfit(message, kind)
        return message

    async def _fetch(self, *, at_once: bool) -> None:
        """Without prefetch: ask the node for a message; `at_once`: and wait until it has given what is there.

        Not before what was taken is acknowledged, and that is durable: no more than one message is in doubt.
        """
        if self._in_doubt is not None:
            await asyncio.wait({self._in_doubt})
        self._ask_for_one()
        if at_once:
            await self._session.works.settled()

    def _ask_for_one(self) -> None:
        """One that was asked for is not asked for again: it may come any time, or waits here already."""
        if not self._fetching and not self._waiting and self._session.delivers:
            self._fetching = True
            self._credit(1, self._fetch_bytes)

    # --- listening -----------------------------------------------------------------------------------------

    @property
    def message_listener(self) -> object:
        """What was set as listener; None if nothing was."""
        return self._listener_given

    def set_message_listener(self, listener: Listener | MessageListener | None) -> None:
        """Let a function, an async function or an object with `on_message` have every message; None: no more.

        All listeners of a context are called one at a time, in one task. One that raises gets the message again, up to
        `messaging.tries` times; where acknowledging is left to the program, or to a commit, it gets the next one.
        """
        self._session.works.check()
        if self._closed:
            raise IllegalStateException(self._closed)
        if self._session.receives:
            raise IllegalStateException("a task of this context receives: listeners need a context of their own")
        found = getattr(listener, "on_message", listener)
        if found is not None and not callable(found):
            raise IllegalArgumentException(f"a listener is a function, or has on_message, not {listener!r}"[:200])
        self._listener, self._listener_given = found, listener
        self._session.listeners_changed()

    @property
    def listener(self) -> Listener | None:
        """The function that gets every message."""
        return self._listener

    @property
    def is_receiving(self) -> bool:
        """Whether a task waits in `receive`."""
        return self._receiving

    # --- for its session -----------------------------------------------------------------------------------

    @property
    def number(self) -> int:
        """By which the node knows it."""
        return self._number

    @property
    def waiting(self) -> deque[Handed]:
        """What was handed over and not taken."""
        return self._waiting

    def hand(self, handed: Handed) -> None:
        """One more message."""
        self._waiting.append(handed)
        self._fetching = False
        if handed.alone:
            self._session.came_alone()
        if self._listener is None:
            self.wake()
        else:
            self._session.wake_listeners()

    def wake(self) -> None:
        """Something changed: who waits looks again."""
        if self._listener is not None and not self._prefetch and not self._waiting:
            self._ask_for_one()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def read(self, handed: Handed) -> Message | None:
        """The message that was handed over; None if it is gone, or dead by now, or its lease is over."""
        works = self._session.works
        provider = works.provider
        now_us = provider.now_us()
        if 0 < handed.lease_us <= now_us:
            await provider.recover(works.session, (), (handed.number,))
            return None
        payload = await provider.payload(handed.descriptor) if handed.descriptor.alive(now_us) else None
        return None if payload is None else from_handed(handed, payload, now_us, self._session.acknowledger)

    def was_taken(self, handed: Handed) -> None:
        """The program has one; the node may hand over another.

        With a prefetch of one, or without, it may do so only when the acknowledgement is durable: then no more than one
        message is in doubt after a crash.
        """
        if self._prefetch > 1:
            self._replenish(handed)
            return
        done = self._in_doubt = self._session.acknowledging.flush()
        if done is None:
            self._replenish(handed)
        else:
            done.add_done_callback(lambda _: self._replenish(handed))

    def take_back(self) -> list[int]:
        """What waits here goes back to the node: its numbers, which the caller tells it at once.

        As much may be handed over instead, but only after that: else what comes later would be handed over first.
        """
        taken, self._waiting = self._waiting, deque()
        for handed in taken:
            asyncio.get_running_loop().call_soon(self._replenish, handed)
        return [each.number for each in taken]

    def drop_through(self, number: int) -> None:
        """What waits here under numbers up to this one comes again, and as much more may be handed over."""
        while self._waiting and self._waiting[0].number <= number:
            self._replenish(self._waiting.popleft())

    def _replenish(self, handed: Handed) -> None:
        if not self._prefetch:
            self._fetch_bytes = handed.descriptor.length
            if self._listener is not None:
                self._ask_for_one()
            return
        self._taken += 1
        self._taken_bytes += handed.descriptor.length
        if self._taken * _RENEWALS >= self._prefetch or self._taken_bytes * _RENEWALS >= self._prefetch_bytes:
            self._credit(self._taken, self._taken_bytes)
            self._taken = self._taken_bytes = 0

    def _credit(self, messages: int, nbytes: int) -> None:
        if not self._closed:
            self._session.works.provider.credit(self._number, messages, nbytes)

    # --- the end -------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Close it: who waits in `receive` gets None, and iterations end. What was not taken goes back; twice is once.

        What its program got and did not acknowledge stays with the context.
        """
        if not self._closed:
            self._session.check_not_listening("close a consumer")
            await self._session.leave(self)

    def end(self, reason: str = "this consumer is closed: create another") -> None:
        """It is closed."""
        self._closed = self._closed or reason
        self._waiting.clear()
        self.wake()

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{len(self._waiting)} waiting"
        return f"<Consumer of {self.destination!r}, {state}>"


JMSConsumer = Consumer
"""As JMS calls it."""


def _has_body(message: Message, kind: type) -> bool:
    return message.body_type != 1 and message.is_body_assignable_to(kind)


def _misfit(message: Message | None, kind: type | None) -> MessageFormatException:
    name = getattr(kind, "__name__", kind)
    return MessageFormatException(
        f"the next message has no body that is a {name}, receive() gives all of it: {message!r}"
    )
