"""Listeners of one session: called one at a time, in one task, in the order in which messages were handed over."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

import msgspec

from carrypost.errors import IllegalStateException, ListenerException
from carrypost.jms.calling import called, is_called_by
from carrypost.jms.pausing import pause_s

if TYPE_CHECKING:
    from collections.abc import Mapping

    from carrypost.events import Handed
    from carrypost.jms.acknowledging import Acknowledging
    from carrypost.jms.consumer import Consumer, Listener
    from carrypost.jms.messages import Message
    from carrypost.jms.works import SessionWorks

_log = logging.getLogger("carrypost.jms")


class ListeningSession(Protocol):
    """What listeners need of their session."""

    @property
    def works(self) -> SessionWorks:
        """By which the node is asked."""

    @property
    def acknowledging(self) -> Acknowledging:
        """Which is told what listeners are done with."""

    @property
    def consumers(self) -> Mapping[int, Consumer]:
        """Those that may have listeners."""

    @property
    def delivers(self) -> bool:
        """Whether messages may be given to the program."""

    def go_on(self) -> bool:
        """Listeners have nothing to do: True if that is because something came alone."""

    async def give_up(self, number: int, error: ListenerException) -> None:
        """A listener failed with a message too often."""


class Listening:
    """The task in which the listeners of a session are called."""

    def __init__(self, session: ListeningSession) -> None:
        self._session = session
        self._news = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._ends = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._run(), name="carrypost listeners")

    def wake(self) -> None:
        """Something changed."""
        self._news.set()

    def check_not_inside(self, what: str) -> None:
        """Raise if this is called by a listener: it would wait for itself."""
        if is_called_by(self):
            raise IllegalStateException(f"a listener cannot {what} of its own context: it would wait for itself")

    async def idle(self) -> None:
        """Wait until no listener is being called."""
        await self._idle.wait()

    async def close(self) -> None:
        """Let the one that is being called end, and call none any more."""
        self._ends.set()
        self._news.set()
        await asyncio.wait({self._task})

    def abandon(self) -> None:
        """What a listener is doing is cut off: the node is gone, or nobody waits any more."""
        self._ends.set()
        self._task.cancel()

    async def _run(self) -> None:
        while not self._ends.is_set():
            consumer = self._next()
            if consumer is None:
                self._news.clear()
                if self._session.delivers:
                    self._session.go_on()
                await self._news.wait()
                continue
            self._idle.clear()
            try:
                await self._serve(consumer, consumer.waiting[0])
            except Exception:  # noqa: BLE001 - What listeners raise is dealt with below: this is a fault of ours.
                _log.exception("the listeners of a context are not called any more")
                return
            finally:
                self._idle.set()

    def _next(self) -> Consumer | None:
        """Whose message is next."""
        if not self._session.delivers:
            return None
        waiting = [each for each in self._session.consumers.values() if each.listener is not None and each.waiting]
        return min(waiting, key=lambda each: each.waiting[0].number, default=None)

    async def _serve(self, consumer: Consumer, handed: Handed) -> None:
        message = await consumer.read(handed)
        listener = consumer.listener
        if listener is None or not consumer.waiting or consumer.waiting[0] is not handed:
            return  # Things changed meanwhile.
        consumer.waiting.popleft()
        if message is None:
            consumer.was_taken(handed)
        elif self._session.acknowledging.retries:
            if await self._tried(consumer, listener, handed, message):
                self._session.acknowledging.consumed(handed)
            consumer.was_taken(handed)
        else:
            self._session.acknowledging.consumed(handed)
            consumer.was_taken(handed)
            await self._called(listener, message)

    async def _tried(self, consumer: Consumer, listener: Listener, handed: Handed, message: Message) -> bool:
        """Call the listener until it does not raise; True if the message is consumed, False if it is given up.

        How often it was handed over before, in earlier lives as well, counts: a message that ends its program each time
        comes to an end itself. So each further try is counted, and that is durable, before it begins.
        """
        works = self._session.works
        tries = works.provider.place.settings.tries
        while True:
            error = await self._called(listener, message)
            if error is None:
                return True
            if handed.count >= tries:
                await self._session.give_up(handed.number, given_up(message, handed.count, error))
                return False
            if await self._pause(handed.count):
                return False
            count = await works.provider.retry(works.session, handed.number)
            handed = msgspec.structs.replace(handed, count=count)
            again = await consumer.read(handed) if count else None
            if again is None:
                return False  # It expired.
            message = again

    async def _pause(self, failures: int) -> bool:
        """Wait before the next try; return True if there is none, as listeners are called no more."""
        first_s = self._session.works.provider.place.settings.redelivery_delay_s
        with suppress(TimeoutError):
            async with asyncio.timeout(pause_s(first_s, failures)):
                await self._ends.wait()
        return self._ends.is_set()

    async def _called(self, listener: Listener, message: Message) -> BaseException | None:
        """Call a listener; return what it raised."""
        error = await called(self, listener, message)
        if error is not None:
            _log.warning("a listener failed with %r: %r", message, error, exc_info=error)
        return error


def given_up(message: Message, count: int, cause: BaseException) -> ListenerException:
    """What is told when a program failed with a message too often."""
    made = ListenerException(f"the listener failed {count} times, and does not get this again: {message!r}", message)
    made.__cause__ = cause
    return made
