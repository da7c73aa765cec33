"""The classes of the asyncio API for programs that block: the same names, ``with`` and ``for``.

Each stands for an object of that API (`_inner`), which belongs to the thread of the loop (`sync.blocking_calls`). The
directory (`carrypost.naming`) is among them.
"""

# ruff: noqa: SLF001 - parts of the same API

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar, overload

from carrypost import naming
from carrypost.errors import IllegalArgumentException
from carrypost.jms import consumer, context, producer, requestor, sent
from carrypost.jms.destinations import Destination
from carrypost.jms.durations import Duration, in_seconds, seconds
from carrypost.jms.intake import BATCH_MAX, Batch
from carrypost.jms.messages.message import check_individual
from carrypost.log.events import SendState
from carrypost.model.ids import NodeId
from carrypost.sync.blocking_calls import (
    Blocking,
    Closing,
    Itself,
    Lasting,
    Listener,
    Message,
    MessageListener,
    as_message,
    as_queue,
    as_topic,
    blocking,
    documented,
    each,
    entered,
    hopping,
    loop,
    passing,
    plain,
    post,
    reading,
    threaded,
)

if TYPE_CHECKING:
    from types import TracebackType

    from carrypost.jms.listener_calls import ExceptionListener
    from carrypost.jms.sent import CompletionListener
    from carrypost.model.descriptor import Descriptor


T = TypeVar("T")
D = TypeVar("D")


@documented(sent.Sent)
class Sent(Blocking[sent.Sent]):
    @property
    def descriptor(self) -> Descriptor | None:
        """The descriptor; None while the message waits for a commit, and if it was found by its id."""
        return self._inner.descriptor

    state = reading(sent.Sent.state)
    message_id = reading(sent.Sent.message_id)
    expiration = reading(sent.Sent.expiration)
    is_tracked = reading(sent.Sent.is_tracked)
    sealed = reading(sent.Sent.sealed)
    delivered = blocking(sent.Sent.delivered)
    handed_over = blocking(sent.Sent.handed_over)
    carried = blocking(sent.Sent.carried)

    @documented(sent.Sent.acknowledgements)
    def acknowledgements(self) -> Iterator[NodeId]:
        return each(self._inner.acknowledgements())

    @documented(sent.Sent.states)
    def states(self) -> Iterator[SendState]:
        return each(self._inner.states())


@documented(requestor.Request)
class Request(Blocking[requestor.Request]):
    correlation_id = reading(requestor.Request.correlation_id)
    deadline = reading(requestor.Request.deadline)
    reply = blocking(requestor.Request.reply, as_message)

    @property
    def sent(self) -> Sent | None:
        """The progress of the request itself; None if it was sent by an earlier life of the program."""
        return None if self._inner.sent is None else Sent(self._inner.sent)


_send = blocking(producer.Producer.send, Sent, eager=True)


@documented(producer.Producer)
class Producer(Itself, producer.Producer):
    send = _send  # type: ignore[assignment]  # it blocks

    @documented(producer.Producer.set_async)
    def set_async(self, listener: CompletionListener | None) -> Self:
        return super().set_async(plain(listener))


@documented(context.ContextCircles)
class Circles(Blocking[context.ContextCircles]):
    found = blocking(context.ContextCircles.found)
    invite = blocking(context.ContextCircles.invite)
    join = blocking(context.ContextCircles.join)
    remove = blocking(context.ContextCircles.remove)
    rotate = blocking(context.ContextCircles.rotate)
    leave = blocking(context.ContextCircles.leave)
    export = blocking(context.ContextCircles.export)
    show = blocking(context.ContextCircles.show)
    members = blocking(context.ContextCircles.members)


@documented(consumer.Job)
class Job(Blocking[consumer.Job]):
    def __init__(self, inner: consumer.Job) -> None:
        super().__init__(inner)
        self._block = entered(inner)

    def __enter__(self) -> Message:
        return as_message(self._block.__enter__())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        return self._block.__exit__(kind, error, traceback)


@documented(consumer.Consumer)
class Consumer(Closing[consumer.Consumer]):
    destination = reading(consumer.Consumer.destination)
    message_selector = reading(consumer.Consumer.message_selector)
    no_local = reading(consumer.Consumer.no_local)
    closed = reading(consumer.Consumer.closed)
    message_listener = reading(consumer.Consumer.message_listener)
    overlay = reading(consumer.Consumer.overlay)
    set_modulator = blocking(consumer.Consumer.set_modulator)
    close = blocking(consumer.Consumer.close)

    @in_seconds(1, "timeout", least=1_000)
    @documented(consumer.Consumer.receive)
    def receive(self, timeout: Duration | None = None) -> Message | None:
        return self._receive(timeout, None)

    @documented(consumer.Consumer.receive_no_wait)
    def receive_no_wait(self) -> Message | None:
        return self._receive(0, None)

    @overload
    def receive_body(self, kind: type[T], timeout: Duration | None = None) -> T | None: ...
    @overload
    def receive_body(self, kind: type[T], timeout: Duration | None = None, *, default: D) -> T | D: ...
    @in_seconds(2, "timeout", least=1_000)
    @documented(consumer.Consumer.receive_body)
    def receive_body(self, kind: type[T], timeout: Duration | None = None, *, default: D | None = None) -> T | D | None:
        message = self._receive(timeout, kind)
        return default if message is None else message.get_body(kind)

    @documented(consumer.Consumer.messages)
    def messages(self, timeout: Duration | None = None) -> Iterator[Message]:
        while not self.closed and (batch := self._read_ahead(timeout, None, BATCH_MAX)) is not None:
            try:
                while (message := batch.pop()) is not None:
                    yield message  # type: ignore[misc]  # its connection makes it so
            except BaseException:
                post(batch.close)
                raise

    def __iter__(self) -> Iterator[Message]:
        return self.messages()

    @documented(consumer.Consumer.processing)
    def processing(self, timeout: Duration | None = None) -> Iterator[Job]:
        check_individual(self._inner._session, "processing()")
        return (Job(consumer.Job(message)) for message in self.messages(timeout))

    def _receive(self, timeout: Duration | None, kind: type | None) -> Message | None:
        while (batch := self._read_ahead(timeout, kind, 1)) is not None:
            message = batch.pop()
            if message is not None:
                return message  # type: ignore[return-value]  # likewise
        return None

    def _read_ahead(self, timeout: Duration | None, kind: type | None, count: int) -> Batch | None:
        """Wait for messages, which stay in the intake until they are taken: so Ctrl-C loses none."""
        limit_s = None if timeout is None else seconds(timeout, "a timeout")
        found = loop()

        async def read() -> Batch | None:
            batch = await self._inner._intake.read_ahead(limit_s, kind, count)
            if batch is not None:
                found.batches.append(batch)
            return batch

        return found.run(read, lambda batch: None if batch is None else batch.close())

    @documented(consumer.Consumer.set_message_listener)
    def set_message_listener(self, listener: Listener | MessageListener | None) -> None:
        plain(listener)

        async def listen() -> None:
            self._inner.set_message_listener(listener)  # type: ignore[arg-type]  # messages have their class by then

        loop().run(listen)


@documented(consumer.QueueBrowser)
class QueueBrowser(Closing[consumer.QueueBrowser]):
    queue = reading(consumer.QueueBrowser.queue)
    message_selector = reading(consumer.QueueBrowser.message_selector)
    taken_at = reading(consumer.QueueBrowser.taken_at)
    close = blocking(consumer.QueueBrowser.close)

    @property
    def age(self) -> float | None:
        """The age of the snapshot in seconds; None: there is none yet."""

        async def read() -> float | None:
            return self._inner.age  # The clock of the node belongs to the loop.

        return loop().run(read)

    @documented(consumer.QueueBrowser.messages)
    def messages(self, timeout: Duration | None = None) -> Iterator[Message]:
        return (as_message(message) for message in each(self._inner.messages(timeout)))

    def __iter__(self) -> Iterator[Message]:
        return self.messages()


def _close(opened: Consumer | Context) -> object:
    """Close an object that no caller got, because its call was interrupted."""
    return opened._inner.close()


@documented(context.Context)
class Context(Lasting[context.Context]):
    _closed_by = "ctx.close()"
    close = blocking(context.Context.close)
    drain = blocking(context.Context.drain)

    # --- what it is ----------------------------------------------------------------------------------------

    session_mode = reading(context.Context.session_mode)
    transacted = reading(context.Context.transacted)
    client_id = reading(context.Context.client_id)
    set_client_id = blocking(context.Context.set_client_id)
    node_id = reading(context.Context.node_id)
    given_up = reading(context.Context.given_up)

    # --- contexts and delivery -----------------------------------------------------------------------------

    create_context = blocking(context.Context.create_context, lambda made: Context(made), _close)  # noqa: PLW0108 - no class yet
    auto_start = reading(context.Context.auto_start)
    set_auto_start = passing(context.Context.set_auto_start)
    start = blocking(context.Context.start)
    stop = blocking(context.Context.stop)

    @documented(context.Context.set_exception_listener)
    def set_exception_listener(self, listener: ExceptionListener | None) -> None:
        self._inner.set_exception_listener(plain(listener))

    # --- sending -------------------------------------------------------------------------------------------

    send = blocking(context.Context.send, Sent, eager=True)
    create_producer = hopping(context.Context.create_producer, lambda made: Producer(made._session))
    sent = blocking(context.Context.sent, Sent)

    # --- consumers -----------------------------------------------------------------------------------------

    create_consumer = blocking(context.Context.create_consumer, Consumer, _close)
    create_durable_consumer = blocking(context.Context.create_durable_consumer, Consumer, _close)
    create_shared_consumer = blocking(context.Context.create_shared_consumer, Consumer, _close)
    create_shared_durable_consumer = blocking(context.Context.create_shared_durable_consumer, Consumer, _close)
    unsubscribe = blocking(context.Context.unsubscribe)
    listener = hopping(context.Context.listener, threaded)
    responder = hopping(context.Context.responder, threaded)

    # --- queues --------------------------------------------------------------------------------------------

    declare_queue = blocking(context.Context.declare_queue)
    end_queue = blocking(context.Context.end_queue)

    @property
    def circles(self) -> Circles:
        """The circles of the node: found, join, invite, remove."""
        return Circles(self._inner.circles)

    card = blocking(context.Context.card)
    add_card = blocking(context.Context.add_card)
    declare_topic = blocking(context.Context.declare_topic)
    end_topic = blocking(context.Context.end_topic)
    create_temporary_queue = blocking(context.Context.create_temporary_queue, as_queue)
    create_temporary_topic = blocking(context.Context.create_temporary_topic, as_topic)
    create_browser = hopping(context.Context.create_browser, QueueBrowser)

    # --- requests ------------------------------------------------------------------------------------------

    request = blocking(context.Context.request, Request)
    ask = blocking(context.Context.ask, as_message)
    open_request = blocking(context.Context.open_request, Request)
    reply = blocking(context.Context.reply, Sent)

    # --- acknowledging and transactions --------------------------------------------------------------------

    acknowledge = blocking(context.Context.acknowledge)
    recover = blocking(context.Context.recover)
    commit = blocking(context.Context.commit)
    rollback = blocking(context.Context.rollback)

    @documented(context.Context.transaction)
    def transaction(self) -> AbstractContextManager[None]:
        return entered(self._inner.transaction())

    # --- making messages and destinations ------------------------------------------------------------------

    create_topic = passing(context.Context.create_topic)
    create_queue = passing(context.Context.create_queue)
    create_message = passing(context.Context.create_message)
    create_text_message = passing(context.Context.create_text_message)
    create_bytes_message = passing(context.Context.create_bytes_message)
    create_map_message = passing(context.Context.create_map_message)
    create_stream_message = passing(context.Context.create_stream_message)
    create_object_message = passing(context.Context.create_object_message)


JMSContext, JMSConsumer, JMSProducer = Context, Consumer, Producer
"""As JMS calls them."""


class Binding(NamedTuple):
    """A name in a context, and what it stands for there."""

    name: str
    bound: Destination | NamingContext


def bound(found: Any) -> Any:  # noqa: ANN401 - whatever is bound
    """Return what was found, as a program that blocks uses it."""
    return NamingContext(found) if isinstance(found, naming.NamingContext) else found


@documented(naming.NamingContext)
class NamingContext(Blocking[naming.NamingContext]):
    name = reading(naming.NamingContext.name)
    bind = blocking(naming.NamingContext.bind)
    rebind = blocking(naming.NamingContext.rebind)
    unbind = blocking(naming.NamingContext.unbind)
    lookup = blocking(naming.NamingContext.lookup, bound)
    list = blocking(naming.NamingContext.list)
    list_bindings = blocking(
        naming.NamingContext.list_bindings, lambda found: [Binding(name, bound(each)) for name, each in found]
    )
    create_subcontext = blocking(naming.NamingContext.create_subcontext, lambda made: NamingContext(made))  # noqa: PLW0108 - no class yet
    destroy_subcontext = blocking(naming.NamingContext.destroy_subcontext)


@documented(naming.InitialContext)
class InitialContext(NamingContext):
    def __init__(self, context: Context) -> None:
        if not isinstance(context, Context):
            raise IllegalArgumentException(
                (
                    "InitialContext requires a context of carrypost.sync, made by its ConnectionFactory, not "
                    f"{context!r}"
                )[:200]
            )
        super().__init__(naming.InitialContext(context._inner))

    discover = blocking(naming.InitialContext.discover)
