"""A program's connection to its node: the client id, and what all its contexts share.

It opens with its first context and closes with its last.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Protocol

from carrypost.errors import IllegalStateException, JMSException
from carrypost.jms.calling import called
from carrypost.jms.session import Session
from carrypost.jms.temporary import Temporaries

if TYPE_CHECKING:
    from carrypost.events import Browsed, Handed, Receipt
    from carrypost.jms.consumer import Consumer
    from carrypost.jms.modes import SessionMode
    from carrypost.jms.provider import Provider

ExceptionListener = Callable[[JMSException], Awaitable[None] | None]
_log = logging.getLogger("carrypost.jms")


class Source(Protocol):
    """Where a connection gets its provider from."""

    async def acquire(self) -> Provider:
        """The provider, opened if it is not open."""

    async def release(self) -> None:
        """It is not needed any more by this connection."""

    def unheard(self, error: JMSException) -> None:
        """There is a problem, and no exception listener to be told of it."""


class Connection:
    """One connection, to which a provider tells what happens."""

    def __init__(self, source: Source, client_id: str) -> None:
        self._source = source
        self.client_id = client_id
        self.number = 0
        self.started = False
        self.used = False
        """Whether anything was done by it: then its client id stays."""
        self.consumers: dict[int, Consumer] = {}
        self.temporaries = Temporaries(self)
        self._provider: Provider | None = None
        self._sessions: dict[int, Session] = {}
        self._opening = asyncio.Lock()
        self._listener: ExceptionListener | None = None
        self._reports: deque[JMSException] = deque()
        self._reporting: asyncio.Task[None] | None = None

    @property
    def provider(self) -> Provider:
        """The provider; raises `IllegalStateException` unless it is open."""
        if self._provider is None:
            raise IllegalStateException("this connection is not open: enter the context by `async with`, or await it")
        return self._provider

    # --- sessions ------------------------------------------------------------------------------------------

    async def open_session(self, mode: SessionMode) -> Session:
        """One more session; the first one opens the connection."""
        async with self._opening:
            if self._provider is None:
                provider = await self._source.acquire()
                try:
                    self.number = await provider.connect(self.client_id, self)
                except BaseException:
                    await self._source.release()
                    raise
                self._provider = provider
            try:
                number = await self._provider.open_session(self.number)
            except BaseException:
                await self._leave()
                raise
            session = self._sessions[number] = Session(self, number, mode)
            return session

    async def close_session(self, session: Session) -> None:
        """Close a session; the last one closes the connection."""
        try:
            await session.close()
        finally:
            async with self._opening:
                self._sessions.pop(session.number, None)
                await self._leave()

    async def _leave(self) -> None:
        if self._sessions or self._provider is None:
            return
        provider, self._provider = self._provider, None
        self.started = False
        self.temporaries.end_all()
        try:
            if self.number:
                await provider.disconnect(self.number, ())
        except JMSException:
            if self.number:  # Else the node is gone, and with it the connection.
                raise
        finally:
            self.number = 0
            await self._source.release()

    async def rename(self, client_id: str, session: Session) -> Session:
        """Give the connection its client id, before anything was done by it; returns the session in its new form."""
        if self.client_id:
            raise IllegalStateException(f"this connection has the client id {self.client_id!r} already")
        if self.used or len(self._sessions) > 1:
            raise IllegalStateException(
                "the client id comes first: set it before anything else, or give it to the connection factory"
            )
        async with self._opening:
            provider, before = self.provider, self.number
            self.number = await provider.connect(client_id, self)
            self.client_id = client_id
            await provider.disconnect(before, ())
            number = await provider.open_session(self.number)
            self._sessions = {number: Session(self, number, session.mode)}
            return self._sessions[number]

    # --- delivering ----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Let messages be delivered."""
        self.started = self.used = True
        for session in self._sessions.values():
            session.wake()

    async def stop(self) -> None:
        """Deliver nothing until it is started again; returns when no listener is being called."""
        for session in self._sessions.values():
            session.check_not_listening("stop the connection")
        self.started = False
        for session in list(self._sessions.values()):
            await session.listeners_idle()

    def take(self, handed: Handed) -> None:
        """A message for one of the consumers."""
        consumer = self.consumers.get(handed.consumer)
        if consumer is not None:
            consumer.hand(handed)

    def browsed(self, part: Browsed) -> None:
        """A part of what waits in a queue that one of the sessions looks into."""
        for session in self._sessions.values():
            session.browsed(part)

    def receipt(self, receipt: Receipt) -> None:
        """How far a message has come, which may be one of its own."""
        for session in self._sessions.values():
            session.sends.take(receipt)

    def node_ended(self, reason: str) -> None:
        """The node is gone, and all that was open on it."""
        self.number = 0
        for session in list(self._sessions.values()):
            session.node_ended(reason)

    # --- what nobody else can be told ----------------------------------------------------------------------

    def listen(self, listener: ExceptionListener | None) -> None:
        """Who is told of problems that have no other place to go."""
        self._listener = listener

    def report(self, error: JMSException) -> None:
        """Tell the exception listener, or the log; of one error that several works failed with, once."""
        if error in self._reports:
            return
        self._reports.append(error)
        if self._reporting is None or self._reporting.done():
            self._reporting = asyncio.get_running_loop().create_task(self._run(), name="carrypost exceptions")

    async def told(self) -> None:
        """If the connection is closed, wait until all of it was told; who is just being told does not wait."""
        if self._provider is None and self._reporting is not None and asyncio.current_task() is not self._reporting:
            await asyncio.wait({self._reporting})

    async def _run(self) -> None:
        while self._reports:
            error = self._reports.popleft()
            if self._listener is None:
                # An answer of the node that says why has no traceback, and none is needed.
                _log.error("%s", error, exc_info=error if error.__traceback__ is not None else None)
                self._source.unheard(error)
                continue
            failed = await called(self._listener, error)
            if failed is not None:
                _log.error("an exception listener failed", exc_info=failed)
