"""`Consumer`, `Job` and `QueueBrowser`: they receive, process and look at the messages of a subscription or queue.

A consumer receives by `receive`, by ``async for``, or by a listener. A job is a message that is processed in a block,
whose failure ends neither its program nor the loop around it.

A browser shows the messages that wait in a queue, and takes none. At the node that manages the queue it shows the queue
itself. Elsewhere it asks that node for a snapshot, and shows its messages as far as they arrive, with the snapshot's
age.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar, overload

from carrypost.errors import IllegalArgumentException, IllegalStateException, JMSException
from carrypost.java_names import JavaNamed
from carrypost.jms.durations import Duration, in_seconds, seconds
from carrypost.jms.mapping import from_browsed
from carrypost.jms.messages import Message
from carrypost.jms.messages.message import check_individual
from carrypost.model.times import MICROSECONDS

if TYPE_CHECKING:
    from carrypost.jms.destinations import Destination, Queue
    from carrypost.jms.intake import Intake, Listener
    from carrypost.jms.session import Session
    from carrypost.log.events import OverlayState
    from carrypost.model.descriptor import Descriptor
    from carrypost.overlay.modulators.modulator import Modulator


_log = logging.getLogger("carrypost.jms")


class Job(JavaNamed):
    """A message and the block that processes it, entered by ``async with``; made by `Consumer.processing`.

    It may be entered in another task, so that several jobs are processed at the same time.
    """

    def __init__(self, message: Message) -> None:
        self._message = message
        self._block: AbstractAsyncContextManager[Message] | None = None

    async def __aenter__(self) -> Message:
        if self._block is not None:
            raise IllegalStateException("this job was entered before: a message that failed comes again as another job")
        self._block = Message.processing(self._message)
        return await self._block.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        assert self._block is not None
        try:
            await self._block.__aexit__(kind, error, traceback)
        except JMSException as failed:  # It could not be acknowledged, for example because its lease is over.
            error = failed
        if not isinstance(error, Exception):
            return False
        _log.warning("a program failed with %r: %r", self._message, error, exc_info=error)
        return True

    def __repr__(self) -> str:
        return f"<Job of {self._message!r}>"

    def __del__(self) -> None:
        if self._block is None:
            warnings.warn(
                f"{self!r} was never entered, so its message is not acknowledged: write `async with job as message:`, "
                "or `with job as message:` in a blocking program",
                RuntimeWarning,
                2,
                source=self,
            )


T = TypeVar("T")
D = TypeVar("D")


class MessageListener(Protocol):
    """A listener as an object."""

    def on_message(self, message: Message) -> Awaitable[None] | None:
        """Handle a message. Raising an exception means that it was not consumed."""


class Consumer(JavaNamed):
    """One consumer; opened by the `create_…consumer` methods of a context, and closed by `close` or ``async with``."""

    def __init__(
        self, session: Session, intake: Intake, release: Callable[[Session], Awaitable[None]] | None = None
    ) -> None:
        self._session, self._intake = session, intake
        self._release = release
        """Closes the session, if it closes with the consumer."""
        self._listener: object = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def destination(self) -> Destination:
        """The destination that it consumes from."""
        return self._intake.wanted.destination  # type: ignore[no-any-return]  # it was checked when it was opened

    @property
    def message_selector(self) -> str | None:
        """The selector of its messages; None if there is none."""
        return self._intake.wanted.selector  # type: ignore[no-any-return]  # likewise

    @property
    def no_local(self) -> bool:
        """True if it leaves out messages that its own connection sent."""
        return self._intake.wanted.no_local

    @property
    def overlay(self) -> OverlayState:
        """The state of a consumer of a channel: its home broker, and what that did; at most 1 s old.

        Raises `IllegalStateException` if it is closed, or consumes from no channel.
        """
        return self._session.overlay(self._intake)

    async def set_modulator(self, modulator: Modulator | None) -> None:
        """Give a consumer of a channel another modulator, or none; returns when that is on disk.

        The home broker replaces it between two events, and its state begins empty. Raises `IllegalStateException` if
        the consumer has a selector, or consumes from no channel.
        """
        await self._session.modulate(self._intake, modulator)

    @property
    def closed(self) -> bool:
        """True if the consumer is closed: by the program, with its context, or because the node is gone."""
        return bool(self._intake.closed)

    # --- receiving -----------------------------------------------------------------------------------------

    @in_seconds(1, "timeout", least=1_000)
    async def receive(self, timeout: Duration | None = None) -> Message | None:
        """Return the next message, waiting for it at most for `timeout`; 0: only a message that is here.

        Returns None when the time is over, or the consumer is closed meanwhile. A cancelled call takes nothing.
        """
        return await self._receive(timeout, None)

    async def receive_no_wait(self) -> Message | None:
        """Return the next message if one is here already, else None."""
        return await self._receive(0, None)

    @overload
    def receive_body(self, kind: type[T], timeout: Duration | None = None) -> Coroutine[Any, Any, T | None]: ...
    @overload
    def receive_body(
        self, kind: type[T], timeout: Duration | None = None, *, default: D
    ) -> Coroutine[Any, Any, T | D]: ...
    @in_seconds(2, "timeout", least=1_000)
    async def receive_body(
        self, kind: type[T], timeout: Duration | None = None, *, default: D | None = None
    ) -> T | D | None:
        """Return the body of the next message: str, bytes, dict, or a registered class; `default` on a timeout.

        Raises `MessageFormatException` if the body is not of this `kind`, or there is none. Then the message stays
        here; but if acknowledging is left to the program, or to a commit, it counts as received.
        """
        message = await self._receive(timeout, kind)
        return default if message is None else message.get_body(kind)

    async def messages(self, timeout: Duration | None = None) -> AsyncIterator[Message]:
        """Iterate over messages, until none comes for `timeout`, or the consumer is closed."""
        self._intake.check_receiving()
        while not self.closed and (message := await self._receive(timeout, None)) is not None:
            yield message

    def __aiter__(self) -> AsyncIterator[Message]:
        return self.messages()

    def processing(self, timeout: Duration | None = None) -> AsyncIterator[Job]:
        """Iterate over messages as jobs, whose failures do not end the loop; `timeout` as with `messages`.

        ::

            async for job in consumer.processing():
                async with job as message:
                    print(message.text)

        A message is acknowledged when its block ends. If the block raises an exception, that is logged, the message
        comes again after a while, and the loop goes on with others. After `messaging.tries` failures the message
        becomes a dead letter.

        Raises `IllegalStateException` unless messages are acknowledged one by one: ``acknowledge="individual"``.
        """
        check_individual(self._session, "processing()")
        return (Job(message) async for message in self.messages(timeout))

    def _receive(self, timeout: Duration | None, kind: type | None) -> Coroutine[Any, Any, Message | None]:
        return self._intake.receive(None if timeout is None else seconds(timeout, "a timeout"), kind)

    # --- listening -----------------------------------------------------------------------------------------

    @property
    def message_listener(self) -> object:
        """The listener; None if none is set."""
        return self._listener

    def set_message_listener(self, listener: Listener | MessageListener | None) -> None:
        """Set a function, an async function or an object with `on_message` that gets every message; None removes it.

        All listeners of a context are called one at a time, in one task. A listener that raises gets the message again,
        up to `messaging.tries` times; if acknowledging is left to the program, or to a commit, it gets the next one.
        """
        self._session.units.check()
        if self._intake.closed:
            raise IllegalStateException(self._intake.closed)
        if self._session.inbox.receives:
            raise IllegalStateException(
                "a task receives in this context: create another context for listeners (ctx.create_context())"
            )
        found = getattr(listener, "on_message", listener)
        if found is not None and not callable(found):
            raise IllegalArgumentException(f"a listener must be a function or have on_message, not {listener!r}"[:200])
        self._listener = listener
        self._intake.listen(found)
        self._session.listeners_changed()

    # --- the end -------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Close the consumer: a pending `receive` returns None, and unread messages are returned. Idempotent.

        Messages that its program got and did not acknowledge stay with the context. A consumer with an acknowledgement
        mode of its own returns them.
        """
        if not self.closed:
            self._session.check_not_listening("close a consumer of its own context")
            if self._release is None:
                await self._session.leave(self._intake)
            else:
                await self._release(self._session)

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{len(self._intake.waiting)} waiting"
        return f"<Consumer of {self.destination!r}, {state}>"


JMSConsumer = Consumer
"""As JMS calls it."""


class QueueBrowser(JavaNamed):
    """A view of the messages that wait in a queue; made by `Context.create_browser`. Every iteration looks anew."""

    def __init__(self, session: Session, queue: Queue, selector: str | None) -> None:
        self._session, self._queue, self._selector = session, queue, selector
        self._taken_us = 0
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def queue(self) -> Queue:
        """The queue that it browses."""
        return self._queue

    @property
    def message_selector(self) -> str | None:
        """The selector that its messages fulfil; None if there is none."""
        return self._selector

    @property
    def taken_at(self) -> float | None:
        """The time of the manager's last snapshot, in seconds since 1970 by its clock; None: there is none yet."""
        return self._taken_us / MICROSECONDS or None

    @property
    def age(self) -> float | None:
        """The age of the snapshot in seconds; None: there is none yet."""
        passed_us = self._session.units.provider.now_us() - self._taken_us
        return max(0, passed_us) / MICROSECONDS if self._taken_us else None

    def __aiter__(self) -> AsyncIterator[Message]:
        return self.messages()

    async def messages(self, timeout: Duration | None = None) -> AsyncIterator[Message]:
        """Iterate over the waiting messages, in the order of assignment; ends if nothing more comes for `timeout`.

        On the manager's node all of them are here. Elsewhere an iteration without a timeout waits for the manager's
        answer, and for the messages, but not longer than the node does: an hour, and ten seconds for each message.
        """
        limit_s = None if timeout is None else seconds(timeout, "a timeout")
        self._check()
        await self._session.units.ready()
        enumeration = await self._session.enumerate(self._queue, self._selector)
        try:
            while True:
                self._taken_us = enumeration.taken_us or self._taken_us
                while enumeration.waiting:
                    message = await self._read(enumeration.waiting.popleft())
                    if message is not None:
                        yield message
                        self._check()
                if enumeration.complete or not await enumeration.more(limit_s):
                    return
                if enumeration.ended:
                    raise IllegalStateException(enumeration.ended)
        finally:
            self._session.forget_enumeration(enumeration)

    def _check(self) -> None:
        self._session.units.check()
        if self._closed:
            raise IllegalStateException("this browser is closed: create another")

    async def _read(self, descriptor: Descriptor) -> Message | None:
        """Return the message; None if it is gone meanwhile, or dead."""
        provider = self._session.units.provider
        payload = await provider.payload(descriptor) if descriptor.alive(provider.now_us()) else None
        return None if payload is None else from_browsed(descriptor, payload, self._session.caller.kinds)

    async def close(self) -> None:
        """Close the browser. Idempotent."""
        self._closed = True

    def __repr__(self) -> str:
        return f"<QueueBrowser of {self._queue!r}{', closed' if self._closed else ''}>"
