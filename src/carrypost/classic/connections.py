"""`Connection`: a program's connection to its node, as in JMS 1.1: born stopped, with sessions that it creates."""

# ruff: noqa: SLF001 - parts of the same API

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Generator
from typing import Any, ClassVar, Final, NoReturn, Self

from carrypost.classic.parts import wording
from carrypost.classic.sessions import Domain, QueueSession, Session, TopicSession, not_offered
from carrypost.errors import IllegalArgumentException, IllegalStateException
from carrypost.java_names import JavaNamed
from carrypost.jms import connection
from carrypost.jms.context import Context
from carrypost.jms.context_sessions import Openable
from carrypost.jms.destinations import named
from carrypost.jms.listener_calls import ExceptionListener
from carrypost.jms.messages.headers_and_properties import JMSX_NAMES
from carrypost.jms.modes import SessionMode, session_mode
from carrypost.version import __version__

_UNOPENED = "this connection is not open yet: enter it with `async with`, or await it"
_OPENING = "this connection is being opened"
_OPEN = ""
_CLOSED = "this connection is closed: create another with factory.create_connection()"


class ConnectionMetaData(JavaNamed):
    """Versions of JMS and of carrypost, and the names of JMSX properties that there are."""

    jms_major_version: Final = 1
    """The first number of the version of JMS whose classic API this is."""
    jms_minor_version: Final = 1
    """The second number of that version."""
    jms_version: Final = f"{jms_major_version}.{jms_minor_version}"
    """The version of JMS."""
    jms_provider_name: Final = "carrypost"
    """The name of this implementation."""
    provider_version: Final = __version__
    """The version of carrypost."""
    provider_major_version, provider_minor_version = map(int, __version__.split(".")[:2])
    """The first two numbers of that version."""
    jmsx_property_names: Final = JMSX_NAMES
    """The JMSX properties that messages may have."""


class Connection(JavaNamed):
    """A connection; made by `ConnectionFactory.create_connection`, to be opened by ``async with``, or by awaiting it.

    Nothing is delivered before `start`. Any task may use it, unlike its sessions.
    """

    _sessions_made: ClassVar[type[Session]] = Session

    def __init__(self, inner: connection.Connection) -> None:
        self._inner_connection = inner
        self._state = _UNOPENED
        self._sessions: dict[Session, None] = {}
        self._exception_listener: ExceptionListener | None = None
        self._closing: asyncio.Future[None] | None = None

    # --- opening and closing -------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        return await self._open()

    async def __aexit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, asyncio.CancelledError | KeyboardInterrupt):
            self._cut_off()  # As by Ctrl-C: what listeners are doing is cancelled as well.
        await self.close()

    def __await__(self) -> Generator[Any, None, Self]:
        return self._open().__await__()

    async def _open(self) -> Self:
        if self._state != _UNOPENED:
            raise IllegalStateException(self._state or "this connection is open already")
        self._state = _OPENING
        try:
            await self._inner_connection.hold()
        except BaseException:
            if self._state == _OPENING:
                self._state = _UNOPENED
            raise
        if self._state == _CLOSED:  # Meanwhile.
            await self._inner_connection.let_go()
            raise IllegalStateException(_CLOSED)
        self._state = _OPEN
        return self

    @property
    def _is_open(self) -> bool:
        """True from its opening until it is closed."""
        return self._state == _OPEN

    def _cut_off(self) -> None:
        """Stop waiting for listeners; their messages come again."""
        for session in self._sessions:
            session._context._cut_off()

    async def close(self) -> None:
        """Close the connection with all its sessions, from any task. Idempotent.

        Listeners finish the message that they have, and may use their sessions meanwhile. Every pending `receive`
        returns None. Transactions are rolled back, and unacknowledged messages are returned. Raises
        `IllegalStateException` in a listener of one of its sessions, which would wait for itself.
        """
        if self._state in (_UNOPENED, _OPENING):
            self._state = _CLOSED
            return
        for session in self._sessions:
            session._check_not_listening("close its own connection")
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close())
        await asyncio.shield(self._closing)  # A caller that is cancelled meanwhile leaves nothing half closed.
        await self._inner_connection.drained()

    async def _close(self) -> None:
        ends = [session._end(_CLOSED) for session in self._sessions]
        failures = [each for each in await asyncio.gather(*ends, return_exceptions=True) if each is not None]
        self._state = _CLOSED
        await self._inner_connection.let_go()
        if failures:
            raise failures[0]

    def __del__(self) -> None:
        if self._is_open:
            warnings.warn(
                f"{self!r} was not closed: use `async with`, or await connection.close()",
                ResourceWarning,
                2,
                source=self,
            )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._state.partition(':')[0].removeprefix('this connection is ') or 'open'}>"

    def _use(self) -> connection.Connection:
        if self._state:
            raise IllegalStateException(self._state)
        return self._inner_connection

    # --- what it is ----------------------------------------------------------------------------------------

    @property
    def client_id(self) -> str | None:
        """The client id; None if it has none."""
        return self._use().client_id or None

    async def set_client_id(self, client_id: str) -> None:
        """Set the client id, before any other call; or pass it to the factory.

        Raises `InvalidClientIDException` if another connection of this node has it.
        """
        await self._use().identify(named(client_id, "a client id"))

    @property
    def meta_data(self) -> ConnectionMetaData:
        """Versions, and the names of JMSX properties."""
        self._use()
        return ConnectionMetaData()

    @property
    def exception_listener(self) -> ExceptionListener | None:
        """The exception listener; None if none is set."""
        self._use()
        return self._exception_listener

    def set_exception_listener(self, listener: ExceptionListener | None) -> None:
        """Set the function that is called with problems that no call can raise; without one they are logged.

        `Context.set_exception_listener` lists them. That no other node is near is no problem.
        """
        inner = self._use()
        inner.reports.listen(listener)
        inner.used, self._exception_listener = True, listener

    # --- sessions and delivery -----------------------------------------------------------------------------

    def create_session(
        self,
        transacted: bool | SessionMode = False,
        acknowledge_mode: SessionMode | int = SessionMode.AUTO_ACKNOWLEDGE,
    ) -> Openable[Session]:
        """Return a session, to be awaited or entered by ``async with``.

        A transacted session has no acknowledgement mode. A mode alone, as JMS 2.0 has it, may be the only argument.
        """
        return self._opening(self._sessions_made, "create_session", transacted, acknowledge_mode)

    def _opening(
        self, kind: type[Session], call: str, transacted: bool | SessionMode, acknowledge_mode: SessionMode | int
    ) -> Openable[Any]:
        self._use()
        mode = _mode(transacted, acknowledge_mode)

        @wording
        async def opened() -> Session:
            self._check_lasting()
            context = Context(self._use(), mode)
            context.set_auto_start(False)
            session = kind(self, await context)
            self._inner_connection.used = True
            try:
                self._check_lasting()
            except IllegalStateException:  # Meanwhile.
                await session.close()
                raise
            self._sessions[session] = None
            return session

        return Openable(opened, call, "session = await connection")

    def _check_lasting(self) -> None:
        if self._closing is not None:
            raise IllegalStateException(_CLOSED)

    def _forget(self, session: Session) -> None:
        """Note that a session is closed."""
        self._sessions.pop(session, None)

    async def start(self) -> None:
        """Start the delivery of messages to all sessions. Idempotent."""
        self._use().start()

    async def stop(self) -> None:
        """Stop the delivery of messages until `start`; returns when no listener is being called. Idempotent.

        Timeouts of `receive` go on, and so does all sending and carrying.
        """
        inner = self._use()
        inner.used = True
        await inner.stop()

    # --- not offered ---------------------------------------------------------------------------------------

    def create_connection_consumer(self, *_: object) -> NoReturn:
        """Raise `JMSException`: application servers alone use these."""
        self._use()
        raise not_offered("connection consumers are")

    def create_durable_connection_consumer(self, *_: object) -> NoReturn:
        """Raise `JMSException`: application servers alone use these."""
        self._use()
        if self._sessions_made is QueueSession:
            raise IllegalStateException("a QueueConnection is for queues alone, and subscriptions are of topics")
        raise not_offered("durable connection consumers are")


class QueueConnection(Connection):
    """A connection for queues alone; made by `QueueConnectionFactory.create_queue_connection`."""

    _sessions_made = QueueSession

    def create_queue_session(
        self,
        transacted: bool | SessionMode = False,
        acknowledge_mode: SessionMode | int = SessionMode.AUTO_ACKNOWLEDGE,
    ) -> Openable[QueueSession]:
        """Return a session for queues, to be awaited or entered by ``async with``."""
        return self._opening(QueueSession, "create_queue_session", transacted, acknowledge_mode)


class TopicConnection(Connection):
    """A connection for topics alone; made by `TopicConnectionFactory.create_topic_connection`."""

    _sessions_made = TopicSession

    def create_topic_session(
        self,
        transacted: bool | SessionMode = False,
        acknowledge_mode: SessionMode | int = SessionMode.AUTO_ACKNOWLEDGE,
    ) -> Openable[TopicSession]:
        """Return a session for topics, to be awaited or entered by ``async with``."""
        return self._opening(TopicSession, "create_topic_session", transacted, acknowledge_mode)


CONNECTIONS: dict[Domain | None, type[Connection]] = {
    None: Connection,
    "queue": QueueConnection,
    "topic": TopicConnection,
}
"""By the kind of destinations that they are for."""


def connection_of(domain: object) -> type[Connection]:
    """Return the class of connections for this domain; callers are not all checked."""
    if domain not in CONNECTIONS:
        raise IllegalArgumentException(f'domain must be "queue", "topic" or None, not {domain!r}'[:200])
    return CONNECTIONS[domain]


def _mode(transacted: object, acknowledge_mode: object) -> SessionMode:
    """Return the mode of a session; the flag wins over it."""
    if isinstance(transacted, SessionMode):
        return transacted
    if not isinstance(transacted, bool):
        raise IllegalArgumentException(
            f"transacted must be True or False, or a mode such as Session.AUTO_ACKNOWLEDGE, not {transacted!r}"[:200]
        )
    if transacted:
        return SessionMode.SESSION_TRANSACTED
    mode = session_mode(acknowledge_mode)
    if mode is SessionMode.SESSION_TRANSACTED:
        raise IllegalArgumentException("a transacted session is created by create_session(True), not by a mode")
    return mode
