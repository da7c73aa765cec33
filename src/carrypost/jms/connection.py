"""A program's connection to its node: the client id, and what all its contexts share.

It opens with its first context and closes with its last. A connection that is held, as that of `carrypost.classic`,
opens and closes by itself, with or without sessions.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

from carrypost.errors import IllegalStateException, JMSException, ResourceAllocationException
from carrypost.jms.declarations import Temporaries
from carrypost.jms.listener_calls import Caller, Reports, unserved
from carrypost.jms.provider import NODE_ENDED, NODE_LOST
from carrypost.jms.session import CONTEXT_CLOSED, OpenConnection, Session
from carrypost.log.events import ClaimLost, OverlayTold, Unserved
from carrypost.messaging.commands import Disconnect, OpenSession

if TYPE_CHECKING:
    from carrypost.jms.intake import Intake
    from carrypost.jms.modes import SessionMode
    from carrypost.jms.provider import News, Provider, Source
    from carrypost.log.events import Handed, OverlayState


class Connection:
    """One connection, which a provider informs of events.

    `callers` is the class of the objects that call its program's functions.
    """

    def __init__(self, source: Source, client_id: str, callers: type[Caller] = Caller) -> None:
        self.client_id = client_id
        self.used = False
        """True if it was used: then its client id cannot be changed."""
        self.reports = Reports(source, callers())
        self._source, self.callers = source, callers
        self._intakes: dict[int, Intake] = {}
        self._overlays: dict[int, OverlayState] = {}
        self._temporaries = Temporaries(self._intakes, callers.kinds)
        self._open: OpenConnection | None = None
        self._started = self._held = False
        self._node_has_ended = False
        """True if the node has ended, and with it the connection."""
        self._sessions: dict[int, Session] = {}
        self._opening = asyncio.Lock()
        self._losses: Counter[str] = Counter()
        """Number of messages that durable subscriptions of its client id lost, by subscription."""

    @property
    def opened(self) -> OpenConnection:
        """The connection as sessions see it; raises `IllegalStateException` unless it is open."""
        if self._open is None:
            raise IllegalStateException("this connection is not open: enter the context with `async with`, or await it")
        return self._open

    # --- sessions ------------------------------------------------------------------------------------------

    async def open_session(self, mode: SessionMode) -> Session:
        """Open one more session; the first one opens the connection."""
        async with self._opening:
            await self._ensure_open()
            try:
                return await self._add_session(mode)
            except BaseException:
                await self._leave()
                raise

    async def _ensure_open(self) -> None:
        if self._open is None:
            provider = await self._source.acquire()
            try:
                await self._connect(provider, self.client_id)
            except BaseException:
                await self._source.release()
                raise

    async def hold(self) -> None:
        """Open the connection without a session, and keep it open until `let_go`."""
        async with self._opening:
            await self._ensure_open()
            self._held = True

    async def let_go(self) -> None:
        """Close the connection as soon as it has no sessions. Idempotent."""
        async with self._opening:
            self._held = False
            await self._leave()

    async def _connect(self, provider: Provider, client_id: str) -> None:
        number = await provider.connect(client_id, self)
        self._open = OpenConnection(
            provider, number, client_id, self.reports, self._intakes, self._overlays, self._temporaries, self.callers
        )

    async def _add_session(self, mode: SessionMode) -> Session:
        number = await self.opened.provider.execute(OpenSession(self.opened.number))
        session = self._sessions[number] = Session(self.opened, number, mode)
        if self._started:
            session.inbox.start()
        return session

    async def close_session(self, session: Session, reason: str = CONTEXT_CLOSED) -> None:
        """Close a session; the last one closes the connection. `reason`: what later calls on the session raise."""
        try:
            await session.close(reason)
        except JMSException:
            if not session.ended:  # Else the node is gone, and with it what was to be closed.
                raise
        finally:
            async with self._opening:
                self._sessions.pop(session.number, None)
                await self._leave()

    async def _leave(self) -> None:
        opened = self._open
        if self._sessions or self._held or opened is None:
            return
        self._open, self._started = None, False
        self._temporaries.end_all()
        try:
            if not self._node_has_ended:
                await opened.provider.execute(Disconnect(opened.number))
        except JMSException:
            if not self._node_has_ended:  # Else the node ended meanwhile.
                raise
        finally:
            self._node_has_ended = False
            await self._source.release()

    async def rename(self, client_id: str, session: Session) -> Session:
        """Set the client id, before anything was done by the connection; return the session in its new form."""
        self._check_unnamed(unused=not self.used and len(self._sessions) <= 1)
        async with self._opening:
            await self._reconnect(client_id)
            made = await self._add_session(session.mode)
            self._sessions = {made.number: made}
            return made

    async def identify(self, client_id: str) -> None:
        """Set the client id of a connection that is held and has no session, before anything was done by it."""
        async with self._opening:
            self._check_unnamed(unused=not self.used and not self._sessions)
            await self._reconnect(client_id)

    def _check_unnamed(self, *, unused: bool) -> None:
        if self.client_id:
            raise IllegalStateException(f"this connection has the client id {self.client_id!r} already")
        if not unused:
            raise IllegalStateException(
                "the client id must be set before any other call: set it first, or give it to the connection factory"
            )

    async def _reconnect(self, client_id: str) -> None:
        before = self.opened
        await self._connect(before.provider, client_id)
        self.client_id = client_id
        await before.provider.execute(Disconnect(before.number))

    # --- delivering ----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the delivery of messages."""
        self._started = self.used = True
        for session in self._sessions.values():
            session.inbox.start()

    async def stop(self) -> None:
        """Stop the delivery of messages until `start`; returns when no listener is being called."""
        for session in self._sessions.values():
            session.check_not_listening("stop its own connection")
        self._started = False
        for session in self._sessions.values():
            session.inbox.stop()
        for session in list(self._sessions.values()):
            await session.listening.idle()

    def deliver(self, handed: Handed, body: bytes | None = None) -> None:
        """Pass a message on to its consumer."""
        intake = self._intakes.get(handed.consumer)
        if intake is not None:
            intake.hand(handed, body)

    def note(self, news: News) -> None:
        """Take note of an event that concerns the program."""
        match news:
            case ClaimLost():
                self._lost(news)
            case Unserved():
                self.reports.report(unserved(news))
            case OverlayTold():  # Its consumer may not be known here yet.
                self._overlays[news.consumer] = news.state
            case _:
                for session in self._sessions.values():
                    session.note(news)

    def node_ended(self, reason: str) -> None:
        """End all that was open on the node, which is gone."""
        self._node_has_ended = True
        for session in list(self._sessions.values()):
            session.node_ended(reason)
        if self.reports.listener is not None:  # Else the next call that needs the node raises it.
            self.reports.report(JMSException(reason, NODE_ENDED))

    def interrupted(self, reason: str, through: int) -> bool:
        """Keep everything for the return of the node, except the messages that it handed over."""
        self._overlays.clear()
        for session in list(self._sessions.values()):
            session.interrupted(reason, through)
        if self.reports.listener is not None:  # Else the log has it.
            self.reports.report(JMSException(f"{reason}; trying to reach it again", NODE_LOST))
        return True

    def resumed(self) -> None:
        """Go on, as the node is back."""
        for session in list(self._sessions.values()):
            session.resumed()

    def _lost(self, lost: ClaimLost) -> None:
        """Report lost messages, the less often the more there are: there may have been no consumer for weeks."""
        count = self._losses[lost.subscription] = self._losses[lost.subscription] + 1
        if self.reports.listener is not None and count.bit_count() == 1:  # Else the node's log has it.
            self.reports.report(
                ResourceAllocationException(
                    f"the durable subscription {lost.subscription!r} lost the message {lost.descriptor.shown} "
                    f"({lost.reason.value}), {count} so far: consume more often, or give the node a larger cache"
                )
            )

    async def drained(self) -> None:
        """Wait until all problems of a closed connection were reported."""
        if self._open is None:
            await self.reports.drained()
