"""The part of a context that opens, uses and closes its sessions, and creates destinations and messages.

Objects are opened by being awaited, or entered by ``async with`` (`Openable`). Destinations and messages are created by
plain calls, which ask no node.
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Awaitable, Callable, Generator, Mapping
from typing import TYPE_CHECKING, Any, Generic, Literal, NoReturn, Self, TypeVar

from carrypost.errors import IllegalArgumentException, IllegalStateException, JMSException
from carrypost.java_names import JavaNamed
from carrypost.jms.consumer import Consumer
from carrypost.jms.consumer_options import ConsumerOptions, asked
from carrypost.jms.destinations import Queue, Topic, named, queue_of, topic_of
from carrypost.jms.durations import Duration, seconds
from carrypost.jms.messages import BytesMessage, MapMessage, Message, ObjectMessage, StreamMessage, TextMessage
from carrypost.jms.modes import SessionMode, acknowledge_mode, session_mode
from carrypost.jms.requestor import Requestor, Responder
from carrypost.jms.session import CONSUMER_CLOSED
from carrypost.model.descriptor import Ordering

if TYPE_CHECKING:
    from carrypost.jms.connection import Connection
    from carrypost.jms.session import Session
    from carrypost.jms.transactions import Transaction


T = TypeVar("T")


class Openable(Generic[T]):
    """Something that is opened when it is awaited, or entered by ``async with``; leaving that closes it."""

    def __init__(self, open_: Callable[[], Awaitable[T]], what: str, shown: str = "consumer = await ctx") -> None:
        self._open, self._what, self._shown = open_, what, shown
        self._opened: Any = None
        self._asked = False

    def __await__(self) -> Generator[Any, None, T]:
        self._asked = True
        return self._open().__await__()

    async def __aenter__(self) -> T:
        self._asked = True
        self._opened = await self._open()
        return self._opened  # type: ignore[no-any-return]

    async def __aexit__(self, *_: object) -> None:
        await self._opened.close()

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        raise self._misused()

    def __aiter__(self) -> NoReturn:
        raise self._misused()

    def _misused(self) -> IllegalStateException:
        self._asked = True  # Reported now, so `__del__` does not warn.
        return IllegalStateException(f"{self._what} must be awaited first: `{self._shown}.{self._what}(…)`")

    def __del__(self) -> None:
        if not self._asked:
            made = self._shown.partition(" ")[0]
            warnings.warn(
                f"{self._what} was never awaited, so there is no {made}: await it", RuntimeWarning, 2, source=self
            )


L = TypeVar("L")
_UNOPENED = "not open yet: enter it with `async with`, or await it"
_OPEN = "open"
_CLOSED = "closed: create another"


class ContextSessions(JavaNamed):
    """A context as far as its sessions are concerned.

    These are its own, those of decorated functions and of consumers with a mode of their own, and that of its requests.
    """

    _own: Session | None = None
    _state = _UNOPENED

    def __init__(self, connection: Connection, mode: SessionMode = SessionMode.AUTO_ACKNOWLEDGE) -> None:
        self._mode = session_mode(mode)
        self._auto_start = True
        """True if the first consumer starts the connection."""
        self._requestor = Requestor(connection)
        self._connection = connection
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

    def __repr__(self) -> str:
        return f"<Context {self._mode.name}, {self._state.partition(':')[0]}>"

    def __del__(self) -> None:
        if self._is_open:
            warning = f"{self!r} was not closed: use `async with`, or await ctx.close()"
            warnings.warn(warning, ResourceWarning, 2, source=self)

    async def __aenter__(self) -> Self:
        return await self._open()

    async def __aexit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, asyncio.CancelledError | KeyboardInterrupt):
            self._cut_off()  # As by Ctrl-C: what listeners are doing is cancelled as well.
        await self.close()

    def __await__(self) -> Generator[Any, None, Self]:
        return self._open().__await__()

    @property
    def _is_open(self) -> bool:
        """True from its opening until it is closed, or the node has ended."""
        return self._state == _OPEN and self._own is not None and not self._own.ended

    async def _open(self) -> Self:
        """Open the context's own session."""
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
        self._own, self._state = session, _OPEN
        return self

    # --- using them ----------------------------------------------------------------------------------------

    def _opened(self) -> Session:
        """Return the context's own session; raises `IllegalStateException` unless it is open."""
        if self._own is None:
            raise IllegalStateException(f"this context is {self._state}")
        self._own.units.check()
        return self._own

    def _use(self) -> Session:
        """Return the context's own session, and note that the connection is in use."""
        session = self._opened()
        self._connection.used = True
        return session

    async def _ready(self) -> Session:
        """Return the context's own session, in use, once the outcome of cancelled calls is known."""
        session = self._use()
        await session.units.ready()
        return session

    def _transaction(self) -> Transaction:
        """Return the transaction of the context; raises `IllegalStateException` if its mode has none."""
        found = self._opened().transaction
        if found is None:
            raise IllegalStateException(
                f"a context of the mode {self._mode.name} has no transactions: create it with "
                "SessionMode.SESSION_TRANSACTED"
            )
        return found

    @property
    def _all(self) -> list[Session]:
        """All sessions except that of requests, which has no listeners."""
        return [*([] if self._own is None else [self._own]), *self._others]

    def _check_not_closed(self) -> None:
        """Raise `IllegalStateException` if the context is closed; listeners use it while it is being closed."""
        if self._state == _CLOSED and (self._closing is None or self._closing.done()):
            raise IllegalStateException(f"this context is {_CLOSED}")

    def _check_not_listening(self, what: str) -> None:
        """Raise if a listener of the context calls: it would wait for itself."""
        for session in self._all:
            session.check_not_listening(what)

    def _start_by_itself(self) -> None:
        """Start the connection for the first consumer, unless that is left to the program."""
        if self._auto_start:
            self._connection.start()

    def _opening(self, call: str, destination: object, name: str | None = None, **options: Any) -> Openable[Consumer]:  # noqa: ANN401 - those of `ConsumerOptions`
        """Return a consumer that is opened later, in the context's own session unless it has a mode of its own.

        `call` is what the program called, and `name` that of a subscription.
        """
        needs_name = options.get("durable") or options.get("shared")
        subscription = named(name, "the name of a subscription") if needs_name else ""
        wanted = ConsumerOptions(destination=destination, name=subscription, **options)
        own, mode = self._opened(), self._own_mode(wanted)
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
        if self._mode is SessionMode.SESSION_TRANSACTED:
            raise IllegalStateException(
                "the messages of a transacted context are acknowledged by its commit: leave acknowledge out, or create "
                "the consumer in another context (ctx.create_context())"
            )
        return acknowledge_mode(wanted.acknowledge)

    async def _consume(
        self, session: Session, wanted: ConsumerOptions, release: Callable[[Session], Awaitable[None]] | None = None
    ) -> Consumer:
        consumer = Consumer(session, await session.consume(wanted), release)
        self._start_by_itself()
        return consumer

    async def _consume_apart(self, mode: SessionMode, wanted: ConsumerOptions) -> Consumer:
        """Open a consumer in a session of its own."""
        session = await self._connection.open_session(mode)
        if self._state == _CLOSED:  # Meanwhile.
            await self._connection.close_session(session)
            raise IllegalStateException(f"this context is {_CLOSED}")
        self._others[session] = None
        for each in self._all:
            each.acknowledgement.flush()  # A new subscription has what nobody acknowledged, as in `Session.consume`.
        try:
            return await self._consume(session, wanted, self._release)
        except BaseException:
            await self._release(session)
            raise

    async def _release(self, session: Session) -> None:
        """Close the session of a consumer that is closed, unless the context is being closed with all of them."""
        if self._state == _CLOSED or session not in self._others:
            return
        closing = self._others[session]
        if closing is None:
            closing = asyncio.ensure_future(self._connection.close_session(session, CONSUMER_CLOSED))
            closing.add_done_callback(lambda _: self._others.pop(session, None))
            self._others[session] = closing
        await asyncio.shield(closing)  # A caller that is cancelled meanwhile leaves nothing half closed.

    def _listening(self, wanted: ConsumerOptions, *, responds: bool = False) -> Callable[[L], L]:
        """Return a decorator: the function gets the messages of a consumer, in a session of its own.

        `start` waits until that is open, or raises why it is not. What a function that `responds` returns is the reply.
        """
        self._opened()
        asked(wanted)  # Its mistakes are raised here, where the program can see them.

        def decorate(function: L) -> L:
            if not callable(function):
                raise IllegalArgumentException(
                    f"the decorator must be applied to a function, not to {function!r}"[:200]
                )
            self._use()
            task = asyncio.get_running_loop().create_task(self._listen(wanted, function, responds=responds))
            self._standing.add(task)
            task.add_done_callback(self._standing.discard)
            return function

        return decorate

    async def _listen(self, wanted: ConsumerOptions, function: Callable[[Any], object], *, responds: bool) -> None:
        try:
            session = await self._connection.open_session(SessionMode.SESSION_TRANSACTED if responds else self._mode)
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
        """Start delivery to all contexts of the connection; wait until its listeners are ready, or raise why not."""
        self._opened()
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

    # --- the end -------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Close the context, and the connection if this was its last context. Idempotent.

        Listeners finish the message that they have, however long that takes: `drain` has a timeout, and leaving the
        ``async with`` block by cancellation, as Ctrl-C does, interrupts them. A pending `receive` returns None.
        Unacknowledged messages are returned: durable subscriptions have them again, flagged. Sends that were begun are
        finished.
        """
        if self._own is None:
            self._state = _CLOSED
            return
        self._check_not_listening("close its own context")
        if self._closing is None:
            self._state = _CLOSED
            self._closing = asyncio.ensure_future(self._close(self._own))
        await asyncio.shield(self._closing)  # A caller that is cancelled meanwhile leaves nothing half closed.
        await self._connection.drained()

    async def _close(self, own: Session) -> None:
        await self._stand()
        for session, closing in list(self._others.items()):
            await (closing or self._connection.close_session(session))
        await self._requestor.close()
        await self._connection.close_session(own)

    async def drain(self, timeout: Duration | None = None) -> None:
        """Close the context without leaving work undone; after `timeout`, in any case.

        Nothing more is handed out. Listeners finish what they have, it is acknowledged, and all sends are durable. When
        the time is over listeners are cancelled, and their messages come again.
        """
        limit_s = None if timeout is None else seconds(timeout, "a timeout")
        self._opened()
        self._check_not_listening("drain its own context")
        try:
            async with asyncio.timeout(limit_s):
                await self._stand()
                await asyncio.gather(*(session.drain() for session in self._all))
        except (TimeoutError, asyncio.CancelledError) as over:
            self._cut_off()
            if not isinstance(over, TimeoutError):
                raise
        finally:
            await self.close()

    def _cut_off(self) -> None:
        """Stop waiting for listeners; their messages come again."""
        for session in self._all:
            session.cut_off()


M = TypeVar("M", bound=Message)


class ValueFactory(ContextSessions):
    """The part of a context that creates values; until the context is closed."""

    def create_topic(
        self,
        name: str,
        *,
        ordering: Ordering | str = Ordering.NONE,
        model: Literal["epidemic", "holder", "channel"] = "epidemic",
        circle: str | None = None,
    ) -> Topic:
        """Return the topic of this name, which need not be declared. ``a.b.*`` and ``a.>`` are patterns for consumers.

        `ordering`: "none", "causal" or "delta-causal"; all users of the topic must choose the same. Raises
        `InvalidDestinationException` for wildcards of other systems, such as ``a/#``, for a space or control character,
        and for an empty level, as in ``a.``.

        `model`: "holder" for a topic that a node holds (`declare_topic`), by its full name, ``news@NODE``; "channel"
        for an event channel of the overlay, whose events brokers forward. Both raise `IllegalArgumentException` with an
        ordering.

        `circle`: a topic of the circle that this node calls so. Its messages are sealed for all members; carriers do
        not even see the name. Raises `IllegalArgumentException` with a `model`.
        """
        self._check_not_closed()
        return topic_of(name, ordering, model, circle)

    def create_queue(self, name: str) -> Queue:
        """Return the queue of this name: in full, ``Alan@NODE``, or short, to be looked up here at its first use.

        This does not create a queue on a node: use `declare_queue`.
        """
        self._check_not_closed()
        return queue_of(name)

    def create_message(self) -> Message:
        """Return a message without a body."""
        return self._new(Message)

    def create_text_message(self, text: str | None = None) -> TextMessage:
        """Return a message with a text."""
        return self._new(TextMessage, text)

    def create_bytes_message(self, data: bytes = b"") -> BytesMessage:
        """Return a message with bytes."""
        return self._new(BytesMessage, data)

    def create_map_message(self, entries: Mapping[str, Any] | None = None) -> MapMessage:
        """Return a message with names and values."""
        return self._new(MapMessage, entries or {})

    def create_stream_message(self) -> StreamMessage:
        """Return a message with values one after the other."""
        return self._new(StreamMessage)

    def create_object_message(self, value: object = None) -> ObjectMessage:
        """Return a message with an object of a registered class."""
        return self._new(ObjectMessage, value)

    def _new(self, kind: type[M], *given: Any) -> M:  # noqa: ANN401 - each has its own
        """Return a message of this class, or of the one that blocking programs have instead."""
        self._check_not_closed()
        return self._connection.callers.kinds.get(kind, kind)(*given)  # type: ignore[no-any-return]  # a subclass
