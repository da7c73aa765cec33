"""The sessions of one context, from the moment it is opened until all of them are closed."""

from __future__ import annotations

import asyncio
import warnings
from typing import TYPE_CHECKING, Any, TypeVar

from carrypost.errors import (
    IllegalArgumentException,
    IllegalStateException,
    JMSException,
    TransactionInProgressException,
)
from carrypost.jms.consumer import Consumer
from carrypost.jms.consumer_options import asked
from carrypost.jms.destinations import Queue, as_destination, resolved
from carrypost.jms.mapping import Sending
from carrypost.jms.modes import SessionMode, acknowledge_mode
from carrypost.jms.openable import Openable
from carrypost.jms.requestor import Requestor
from carrypost.jms.responder import Responder
from carrypost.jms.send_options import send_options
from carrypost.jms.session import CONSUMER_CLOSED

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from carrypost.jms.connection import Connection
    from carrypost.jms.consumer_options import ConsumerOptions
    from carrypost.jms.destinations import Destination
    from carrypost.jms.messages.properties import PropertyValue
    from carrypost.jms.producer import Body
    from carrypost.jms.requestor import Request
    from carrypost.jms.sent import Sent
    from carrypost.jms.session import Session
    from carrypost.jms.transactions import Transaction

L = TypeVar("L")
_UNOPENED = "not open yet: enter it with `async with`, or await it"
_OPEN = "open"
_CLOSED = "closed: create another"


class ContextSessions:
    """The context's own session, those of decorated functions and of consumers with a mode of their own, and one more.

    The last one is that of its requests.
    """

    def __init__(self, connection: Connection, mode: SessionMode) -> None:
        self.mode = mode
        self.state = _UNOPENED
        self.auto_start = True
        """True if the first consumer starts the connection."""
        self.requestor = Requestor(connection)
        self._connection = connection
        self._own: Session | None = None
        self._others: dict[Session, asyncio.Future[None] | None] = {}
        """The sessions of decorated functions, and of consumers with a mode of their own; with its end, if it is being
        closed."""
        self._standing: set[asyncio.Task[None]] = set()
        """Tasks that open those."""
        self._failures: list[JMSException] = []
        """Reasons why some of them could not be opened, until `start` raises them."""
        self._starting = 0
        """Calls of `start` that wait for them."""
        self._closing: asyncio.Future[None] | None = None

    def __str__(self) -> str:
        return f"{self.mode.name}, {self.state.partition(':')[0]}"

    def __del__(self) -> None:
        if self.is_open:
            warnings.warn(
                f"<Context {self}> was not closed: use `async with`, or await ctx.close()",
                ResourceWarning,
                2,
                source=self,
            )

    @property
    def is_open(self) -> bool:
        """True from its opening until it is closed, or the node has ended."""
        return self.state == _OPEN and self._own is not None and not self._own.ended

    async def open(self) -> None:
        """Open the context's own session."""
        if self.state != _UNOPENED:
            raise IllegalStateException(f"this context is {self.state if self.state == _CLOSED else 'open already'}")
        self.state = "being opened"
        try:
            session = await self._connection.open_session(self.mode)
        except BaseException:
            if self.state != _CLOSED:
                self.state = _UNOPENED
            raise
        if self.state == _CLOSED:  # Meanwhile.
            await self._connection.close_session(session)
            raise IllegalStateException(f"this context is {_CLOSED}")
        self._own, self.state = session, _OPEN

    async def rename(self, client_id: str) -> None:
        """Give the connection its client id, and so the context another session."""
        self._own = await self._connection.rename(client_id, self.opened())

    # --- using them ----------------------------------------------------------------------------------------

    def opened(self) -> Session:
        """Return the context's own session; raises `IllegalStateException` unless it is open."""
        if self._own is None:
            raise IllegalStateException(f"this context is {self.state}")
        self._own.units.check()
        return self._own

    def use(self) -> Session:
        """Return the context's own session, and note that the connection is in use."""
        session = self.opened()
        self._connection.used = True
        return session

    async def ready(self) -> Session:
        """Return the context's own session, in use, once the outcome of cancelled calls is known."""
        session = self.use()
        await session.units.ready()
        return session

    def transaction(self) -> Transaction:
        """Return the transaction of the context; raises `IllegalStateException` if its mode has none."""
        found = self.opened().transaction
        if found is None:
            raise IllegalStateException(
                f"a context of the mode {self.mode.name} has no transactions: create it with "
                "SessionMode.SESSION_TRANSACTED"
            )
        return found

    @property
    def all(self) -> list[Session]:
        """All sessions except that of requests, which has no listeners."""
        return [*([] if self._own is None else [self._own]), *self._others]

    def check_not_closed(self) -> None:
        """Raise `IllegalStateException` if the context is closed."""
        if self.state == _CLOSED:
            raise IllegalStateException(f"this context is {_CLOSED}")

    def check_not_listening(self, what: str) -> None:
        """Raise if a listener of the context calls: it would wait for itself."""
        for session in self.all:
            session.check_not_listening(what)

    def start_by_itself(self) -> None:
        """Start the connection for the first consumer, unless that is left to the program."""
        if self.auto_start:
            self._connection.start()

    def opening(self, wanted: ConsumerOptions, call: str) -> Openable[Consumer]:
        """Return a consumer that is opened later, in the context's own session unless it has a mode of its own.

        `call` is what the program called.
        """
        own, mode = self.opened(), self._own_mode(wanted)
        least = 0 if isinstance(wanted.destination, Queue) else 1
        if wanted.prefetch is not None and (type(wanted.prefetch) is not int or wanted.prefetch < least):
            raise IllegalArgumentException(
                f"prefetch must be a whole number of messages, {least} or more, not {wanted.prefetch!r}"
            )

        async def opened() -> Consumer:
            self._connection.used = True
            return await (self._consume(own, wanted) if mode is None else self._consume_apart(mode, wanted))

        return Openable(opened, call)

    def _own_mode(self, wanted: ConsumerOptions) -> SessionMode | None:
        """Return the mode that a consumer is to have for itself; None: that of the context."""
        if wanted.acknowledge is None:
            return None
        if self.mode is SessionMode.SESSION_TRANSACTED:
            raise IllegalStateException(
                "the messages of a transacted context are acknowledged by its commit: leave acknowledge out, or create "
                "the consumer in another context (ctx.create_context())"
            )
        return acknowledge_mode(wanted.acknowledge)

    async def _consume(
        self, session: Session, wanted: ConsumerOptions, owner: ContextSessions | None = None
    ) -> Consumer:
        consumer = Consumer(session, await session.consume(wanted), owner)
        self.start_by_itself()
        return consumer

    async def _consume_apart(self, mode: SessionMode, wanted: ConsumerOptions) -> Consumer:
        """Open a consumer in a session of its own."""
        session = await self._connection.open_session(mode)
        if self.state == _CLOSED:  # Meanwhile.
            await self._connection.close_session(session)
            raise IllegalStateException(f"this context is {_CLOSED}")
        self._others[session] = None
        for each in self.all:
            each.acknowledgement.flush()  # A new subscription has what nobody acknowledged, as in `Session.consume`.
        try:
            return await self._consume(session, wanted, self)
        except BaseException:
            await self.release(session)
            raise

    async def release(self, session: Session) -> None:
        """Close the session of a consumer that is closed, unless the context is being closed with all of them."""
        if self.state == _CLOSED or session not in self._others:
            return
        closing = self._others[session]
        if closing is None:
            closing = asyncio.ensure_future(self._connection.close_session(session, CONSUMER_CLOSED))
            closing.add_done_callback(lambda _: self._others.pop(session, None))
            self._others[session] = closing
        await asyncio.shield(closing)  # A caller that is cancelled meanwhile leaves nothing half closed.

    def listening(self, wanted: ConsumerOptions, *, responds: bool = False) -> Callable[[L], L]:
        """Return a decorator: the function gets the messages of a consumer, in a session of its own.

        `start` waits until that is open, or raises why it is not. What a function that `responds` returns is the reply.
        """
        self.opened()
        asked(wanted)  # Its mistakes are raised here, where the program can see them.

        def decorate(function: L) -> L:
            if not callable(function):
                raise IllegalArgumentException(
                    f"the decorator must be applied to a function, not to {function!r}"[:200]
                )
            self.use()
            task = asyncio.get_running_loop().create_task(self._listen(wanted, function, responds=responds))
            self._standing.add(task)
            task.add_done_callback(self._standing.discard)
            return function

        return decorate

    async def _listen(self, wanted: ConsumerOptions, function: Callable[[Any], object], *, responds: bool) -> None:
        try:
            session = await self._connection.open_session(SessionMode.SESSION_TRANSACTED if responds else self.mode)
            self._others[session] = None
            listener: Any = function
            if responds and session.transaction is not None:
                listener = Responder(session, session.transaction, function)
            try:
                (await self._consume(session, wanted)).set_message_listener(listener)
            except JMSException:
                del self._others[session]
                await self._connection.close_session(session)
                raise
        except JMSException as error:
            self._failures.append(error)
            if not self._starting:
                # The program may have called `start` before, or may never call it.
                self._connection.reports.report(error, seen=True)

    async def start(self) -> None:
        """Start the delivery of messages, and wait for decorated functions; raise why one of them gets none."""
        self.opened()
        self._connection.start()
        self._starting += 1
        try:
            await self._stand()
        finally:
            self._starting -= 1
        if self._failures:
            first, *others = self._failures
            self._failures = []
            for error in others:
                self._connection.reports.report(error, seen=True)
            raise first

    async def _stand(self) -> None:
        """Wait until the sessions of decorated functions are open, or could not be opened."""
        if self._standing:
            await asyncio.wait(self._standing)

    # --- sending -------------------------------------------------------------------------------------------

    async def send(
        self, to: Destination | str, body: Body, *, jms_reply_to: Destination | str | None, **given: object
    ) -> Sent:
        """Send a message in the context's own session. `jms_reply_to` may have a short name, which is found here."""
        session = self.use()
        to_reply = await resolved(session.units.provider, as_destination(jms_reply_to))
        return await session.send(to, body, send_options(Sending(), jms_reply_to=to_reply, **given))

    async def request(
        self,
        to: Destination | str,
        body: Body,
        life_s: float,
        *,
        correlation_id: str | None = None,
        properties: Mapping[str, PropertyValue | None] | None = None,
    ) -> Request:
        """Send a request, whose reply is awaited later."""
        if self.opened().transaction is not None:
            raise TransactionInProgressException(
                "a transacted context sends requests only with the commit: make requests in a context of another "
                "mode (ctx.create_context())"
            )
        await self.ready()
        made = await self.requestor.send(to, body, life_s, correlation_id=correlation_id, properties=properties)
        self.start_by_itself()
        return made

    # --- the end -------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Close all sessions. Idempotent."""
        if self._own is None:
            self.state = _CLOSED
            return
        self.check_not_listening("close its own context")
        if self._closing is None:
            self.state = _CLOSED
            self._closing = asyncio.ensure_future(self._close(self._own))
        await asyncio.shield(self._closing)  # A caller that is cancelled meanwhile leaves nothing half closed.
        await self._connection.drained()

    async def _close(self, own: Session) -> None:
        await self._stand()
        for session, closing in list(self._others.items()):
            await (closing or self._connection.close_session(session))
        await self.requestor.close()
        await self._connection.close_session(own)

    async def drain(self, limit_s: float | None) -> None:
        """Close all sessions once their work is done, or when the time is over."""
        self.opened()
        self.check_not_listening("drain its own context")
        try:
            async with asyncio.timeout(limit_s):
                await self._stand()
                await asyncio.gather(*(session.drain() for session in self.all))
        except (TimeoutError, asyncio.CancelledError) as over:
            self.cut_off()
            if not isinstance(over, TimeoutError):
                raise
        finally:
            await self.close()

    def cut_off(self) -> None:
        """Stop waiting for listeners; their messages come again."""
        for session in self.all:
            session.cut_off()
