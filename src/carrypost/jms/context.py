"""`Context`: a program's way into messaging, as JMS 2.0 has it: a connection and one session of it.

What touches the node is awaited; messages, destinations and producers are made by plain calls. A context is opened by
``async with``, or by awaiting it, and closed by the end of that block or by `close`.
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncIterator, Callable, Generator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Self, TypeVar

from carrypost.errors import (
    IllegalArgumentException,
    IllegalStateException,
    JMSException,
    TransactionInProgressException,
)
from carrypost.jms.asking import asked
from carrypost.jms.connection import Connection, ExceptionListener
from carrypost.jms.consumer import Consumer, Wanted
from carrypost.jms.destinations import Destination, Queue, named
from carrypost.jms.durations import Duration, seconds
from carrypost.jms.making import Maker
from carrypost.jms.modes import SessionMode
from carrypost.jms.opening import Opening
from carrypost.jms.producer import Producer
from carrypost.jms.queueing import Queueing
from carrypost.jms.requests import Requests

if TYPE_CHECKING:
    from carrypost.jms.sent import Sent
    from carrypost.jms.session import Session
    from carrypost.jms.transactions import Transaction
    from carrypost.model.ids import NodeId

_UNOPENED = "not open yet: enter it by `async with`, or await it"
_CLOSED = "closed: create another"
L = TypeVar("L", bound=Callable[[Any], object])


class Context(Maker, Queueing):
    """A connection and a session; made by `ConnectionFactory.create_context`, or by another context."""

    def __init__(self, connection: Connection, mode: SessionMode = SessionMode.AUTO_ACKNOWLEDGE) -> None:
        self._session: Session | None = None
        self._state = _UNOPENED
        self._connection = connection
        self._mode = _checked(mode)
        self._auto_start = True
        self._in_block = False
        """A block of `transaction` is open."""
        self._children: list[Context] = []
        self._listeners: set[asyncio.Task[None]] = set()
        self._closing: asyncio.Future[None] | None = None
        self._requests = Requests(connection)

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
            raise IllegalStateException(f"this context is {self._state if self._state == _CLOSED else 'open already'}")
        self._state = "being opened"
        try:
            session = await self._connection.open_session(self._mode)
        except BaseException:
            if self._state != _CLOSED:
                self._state = _UNOPENED
            raise
        if self._state == _CLOSED:  # Meanwhile.
            await self._connection.close_session(session)
            raise IllegalStateException(f"this context is {_CLOSED}")
        self._session, self._state = session, "open"
        return self

    async def close(self) -> None:
        """Close it, and with the last context of its connection that one, too; twice is once.

        Listeners finish the message that they have, however long that takes: `drain` has a timeout, and leaving the
        ``async with`` block by cancellation, as Ctrl-C does, cuts them off. Who waits in `receive` gets None. What was
        not acknowledged goes back: durable subscriptions have it again, flagged. Sends that were begun are finished.
        """
        session = self._session
        if session is None:
            self._state = _CLOSED
            return
        self._check_not_listening("close the context")
        if self._closing is None:
            self._state = _CLOSED
            self._closing = asyncio.ensure_future(self._close(session))
        await asyncio.shield(self._closing)  # Who is cancelled meanwhile leaves nothing half closed.
        await self._connection.told()

    def _check_not_listening(self, what: str) -> None:
        """Raise if one of its listeners calls, or one that `listener` made: it would wait for itself."""
        for session in self._all_sessions():
            session.check_not_listening(what)

    def _all_sessions(self) -> list[Session]:
        """Its own, and those of the contexts that `listener` made."""
        found = (context._session for context in (self, *self._children))  # noqa: SLF001 - others of the same class
        return [session for session in found if session is not None]

    def _cut_off(self) -> None:
        """Wait for no listener any more; what they had comes again."""
        for session in self._all_sessions():
            session.cut_off()

    async def _listeners_stand(self) -> None:
        if self._listeners:
            await asyncio.wait(self._listeners)

    async def _close(self, session: Session) -> None:
        await self._end_listeners()
        try:
            await self._connection.close_session(session)
        except JMSException:
            if not session.ended:  # Else the node is gone, and with it what was to be closed.
                raise

    async def _end_listeners(self) -> None:
        await self._listeners_stand()
        for child in self._children:
            await child.close()
        await self._requests.close()

    async def drain(self, timeout: Duration | None = None) -> None:
        """Close it without leaving work undone; after `timeout`, whatever is undone.

        Nothing more is handed out. Listeners finish what they have, it is acknowledged, and all sends are durable. When
        the time is over listeners are cancelled, and what they had comes again.
        """
        limit_s = None if timeout is None else seconds(timeout, "a timeout")
        self._opened()
        self._check_not_listening("drain the context")
        try:
            async with asyncio.timeout(limit_s):
                await self._listeners_stand()
                await asyncio.gather(*(session.drain() for session in self._all_sessions()))
        except (TimeoutError, asyncio.CancelledError) as over:
            self._cut_off()
            if not isinstance(over, TimeoutError):
                raise
        finally:
            await self.close()

    def __del__(self) -> None:
        if self._state == "open" and self._session is not None and not self._session.ended:
            warnings.warn(
                f"{self!r} was not closed: use `async with`, or await ctx.close()", ResourceWarning, 2, source=self
            )

    def __repr__(self) -> str:
        return f"<Context {self._mode.name}, {self._state.partition(':')[0]}>"

    def _opened(self) -> Session:
        if self._session is None:
            raise IllegalStateException(f"this context is {self._state}")
        self._session.works.check()
        return self._session

    # --- what it is ----------------------------------------------------------------------------------------

    def _check_not_closed(self) -> None:
        if self._state == _CLOSED:
            raise IllegalStateException(f"this context is {_CLOSED}")

    @property
    def session_mode(self) -> SessionMode:
        """When what it receives counts as consumed."""
        self._check_not_closed()
        return self._mode

    @property
    def transacted(self) -> bool:
        """Whether it has transactions."""
        return self.session_mode is SessionMode.SESSION_TRANSACTED

    @property
    def client_id(self) -> str | None:
        """The client id of its connection; None if it has none."""
        self._check_not_closed()
        return self._connection.client_id or None

    async def set_client_id(self, client_id: str) -> None:
        """Give the connection its client id, before anything else is done; better, give it to the factory.

        Raises `InvalidClientIDException` if another connection of this node has it.
        """
        session = self._opened()
        self._session = await self._connection.rename(named(client_id, "a client id"), session)

    @property
    def node_id(self) -> NodeId:
        """The id of the node that it uses."""
        return self._opened().works.provider.place.node

    @property
    def given_up(self) -> int:
        """How many messages its listeners, those of `listener` included, failed with too often."""
        own = 0 if self._session is None else self._session.given_up
        return own + sum(child.given_up for child in self._children)

    # --- contexts and delivery -----------------------------------------------------------------------------

    def create_context(self, mode: SessionMode = SessionMode.AUTO_ACKNOWLEDGE) -> Context:
        """Another context on the same connection, with a session of its own."""
        self._opened()
        self._connection.used = True
        return Context(self._connection, mode)

    @property
    def auto_start(self) -> bool:
        """Whether the first consumer starts the connection."""
        self._check_not_closed()
        return self._auto_start

    def set_auto_start(self, auto_start: bool) -> None:
        """Let `start` alone start the connection, or, as by default, the first consumer as well."""
        self._check_not_closed()
        self._auto_start = auto_start

    def _start_by_itself(self) -> None:
        """Something is to be received: start the connection, unless the program does."""
        if self._auto_start:
            self._connection.start()

    async def start(self) -> None:
        """Let messages be delivered to all contexts of the connection, and wait until its listeners stand."""
        self._opened()
        self._connection.start()
        await self._listeners_stand()

    async def stop(self) -> None:
        """Deliver nothing to the contexts of this connection, until `start`. Returns when no listener is being called.

        Timeouts of `receive` go on, and so does all sending and carrying.
        """
        self._opened()
        await self._connection.stop()

    def set_exception_listener(self, listener: ExceptionListener | None) -> None:
        """Set the function that is called with problems that no call can raise; without one they are logged.

        Those are sends and acknowledgements that could not be stored after their call returned, messages that a
        listener failed with too often (`ListenerException`), messages that a durable subscription of this client id
        lost (`ResourceAllocationException`: the first, the second, the fourth, and so on), and the end of the node.
        That no other node is near is no problem.
        """
        self._opened()
        if listener is not None and not callable(listener := getattr(listener, "on_exception", listener)):
            raise IllegalArgumentException(
                f"an exception listener is a function, or has on_exception, not {listener!r}"
            )
        self._connection.listen(listener)

    # --- sending -------------------------------------------------------------------------------------------

    def create_producer(self) -> Producer:
        """What sends; cheap, and never closed."""
        session = self._opened()
        self._connection.used = True
        return Producer(session)

    async def sent(self, message_id: str) -> Sent:
        """Find a message again by its id, also in another life; raises `IllegalArgumentException` (`Session.sent`)."""
        return await self._opened().sent(message_id)

    # --- consumers -----------------------------------------------------------------------------------------

    def create_consumer(
        self,
        destination: Destination,
        selector: str | None = None,
        *,
        no_local: bool = False,
        patterns: Mapping[str, str] | None = None,
        prefetch: int | None = None,
    ) -> Opening[Consumer]:
        """A consumer of a topic or a queue, for as long as it is open. To be awaited, or entered by ``async with``.

        `selector`: only what fulfils it; the rest of a queue waits for others. `no_local`: not what this connection
        sends. `patterns`: only messages whose attributes match these regular expressions; both are for topics.
        `prefetch`: how many messages the node hands over ahead of the program; with 1, at most one is in doubt after a
        crash; with 0, of queues, the node asks for one only while `receive` waits, and leaves the rest to others.
        """
        wanted = Wanted(
            destination=destination, selector=selector, no_local=no_local, patterns=patterns, prefetch=prefetch
        )
        return self._consumer("create_consumer", wanted)

    def create_durable_consumer(
        self,
        topic: Destination,
        name: str,
        selector: str | None = None,
        *,
        no_local: bool = False,
        patterns: Mapping[str, str] | None = None,
        prefetch: int | None = None,
    ) -> Opening[Consumer]:
        """A consumer of a durable subscription, which collects messages while nobody consumes, until `unsubscribe`.

        It belongs to the connection's client id and has one consumer at a time. Opening it with another topic or
        selector makes it anew.
        """
        wanted = Wanted(
            destination=topic, selector=selector, no_local=no_local, patterns=patterns, prefetch=prefetch,
            name=named(name, "the name of a subscription"), durable=True,
        )  # fmt: skip
        return self._consumer("create_durable_consumer", wanted)

    def create_shared_consumer(
        self,
        topic: Destination,
        name: str,
        selector: str | None = None,
        *,
        patterns: Mapping[str, str] | None = None,
        prefetch: int | None = None,
    ) -> Opening[Consumer]:
        """One of several consumers of a subscription, on this node: each message goes to one of them."""
        wanted = Wanted(
            destination=topic, selector=selector, patterns=patterns, prefetch=prefetch,
            name=named(name, "the name of a subscription"), shared=True,
        )  # fmt: skip
        return self._consumer("create_shared_consumer", wanted)

    def create_shared_durable_consumer(
        self,
        topic: Destination,
        name: str,
        selector: str | None = None,
        *,
        patterns: Mapping[str, str] | None = None,
        prefetch: int | None = None,
    ) -> Opening[Consumer]:
        """One of several consumers of a durable subscription, on this node: each message goes to one of them."""
        wanted = Wanted(
            destination=topic, selector=selector, patterns=patterns, prefetch=prefetch,
            name=named(name, "the name of a subscription"), shared=True, durable=True,
        )  # fmt: skip
        return self._consumer("create_shared_durable_consumer", wanted)

    def _consumer(self, what: str, wanted: Wanted) -> Opening[Consumer]:
        session = self._opened()
        least = 0 if isinstance(wanted.destination, Queue) else 1
        if wanted.prefetch is not None and (type(wanted.prefetch) is not int or wanted.prefetch < least):
            raise IllegalArgumentException(
                f"prefetch is a whole number of messages, {least} or more: {wanted.prefetch!r}"
            )

        async def opened() -> Consumer:
            self._connection.used = True
            consumer = await session.consume(wanted)
            self._start_by_itself()
            return consumer

        return Opening(opened, what)

    async def unsubscribe(self, name: str) -> None:
        """End a durable subscription of this client id, with all that waits for it.

        Raises `InvalidDestinationException` if there is none of this name, `IllegalStateException` if it has a consumer
        or messages of it are not acknowledged.
        """
        session = self._opened()
        await session.works.ready()
        await session.works.provider.unsubscribe(self._connection.client_id, name)

    def listener(
        self, destination: Destination, selector: str | None = None, *, no_local: bool = False
    ) -> Callable[[L], L]:
        """Decorate a function, which gets the messages of a topic or a queue, in a context of its own.

        That one has the same mode. It stands when `start` returns. Several of them run side by side; each is called
        with one message at a time. Raises what `create_consumer` raises for a destination or a selector.
        """
        self._opened()

        wanted = Wanted(destination=destination, selector=selector, no_local=no_local)
        asked(wanted)  # What is wrong with it is told here, where the program can see it.

        def decorate(function: L) -> L:
            child = self.create_context(self._mode)
            self._children.append(child)
            task = asyncio.get_running_loop().create_task(self._listen(child, wanted, function))
            self._listeners.add(task)
            task.add_done_callback(self._listeners.discard)
            return function

        return decorate

    async def _listen(self, child: Context, wanted: Wanted, function: Callable[[Any], Any]) -> None:
        try:
            opened = await child
            opened.set_auto_start(self._auto_start)
            consumer = await opened._consumer("listener", wanted)  # noqa: SLF001 - another of the same class
            consumer.set_message_listener(function)
        except JMSException as error:
            self._connection.report(error)

    # --- acknowledging -------------------------------------------------------------------------------------

    async def acknowledge(self) -> None:
        """Acknowledge everything that this context received so far; returns when that is on disk.

        Where the mode acknowledges by itself there is nothing to do.
        """
        await self._opened().acknowledging.acknowledge_all()

    async def recover(self) -> None:
        """Let everything come again, flagged, that this context received and did not acknowledge."""
        await self._opened().recover()

    # --- transactions --------------------------------------------------------------------------------------

    async def commit(self) -> None:
        """End the transaction: what was received in it is consumed, what was sent is sent; the next one begins.

        All of it is on disk when this returns, or none of it happened: then `TransactionRolledBackException` is raised,
        and what was received comes again.
        """
        await self._transaction().commit()

    async def rollback(self) -> None:
        """End the transaction as if it had not been: nothing was sent, and what was received comes again, flagged."""
        await self._transaction().rollback()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        """Commit at the end of the block; roll back if it raises.

        A context has one transaction at a time: inside the block of another one this raises
        `TransactionInProgressException`.
        """
        transaction = self._transaction()
        if self._in_block:
            raise TransactionInProgressException(
                "a transaction of this context is in progress: leave its block first, or use another context "
                "(ctx.create_context(SessionMode.SESSION_TRANSACTED))"
            )
        self._in_block = True
        try:
            yield
        except BaseException:
            with suppress(JMSException):  # A context that is closed has rolled back.
                await asyncio.shield(asyncio.ensure_future(transaction.rollback()))
            raise
        finally:
            self._in_block = False
        await transaction.commit()

    def _transaction(self) -> Transaction:
        found = self._opened().transaction
        if found is None:
            raise IllegalStateException(
                f"a context of the mode {self._mode.name} has no transactions: create it with "
                "SessionMode.SESSION_TRANSACTED"
            )
        return found


JMSContext = Context
"""As JMS calls it."""


def _checked(mode: object) -> SessionMode:
    try:
        return SessionMode(mode)  # type: ignore[arg-type]  # whatever it is
    except ValueError:
        raise IllegalArgumentException(f"the mode of a context is one of SessionMode, not {mode!r}"[:200]) from None
