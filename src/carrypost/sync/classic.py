"""JMS 1.1 as Java programmers know it, for programs that block: the classes of `carrypost.classic`, and factories.

::

    from carrypost.sync.classic import InitialContext, Session

    jndi = InitialContext("jndi.properties")
    with jndi.lookup("ConnectionFactory").create_connection() as connection:
        session = connection.create_session(False, Session.AUTO_ACKNOWLEDGE)
        session.create_producer(jndi.lookup("orders")).send(session.create_text_message("tea"))
        connection.start()
        print(session.create_consumer(jndi.lookup("queue/orders")).receive(1000).text)  # milliseconds, as in Java

The connection factory also makes the contexts of `carrypost.sync`.
"""

# ruff: noqa: SLF001 - parts of the same API

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from carrypost import naming
from carrypost.classic import connections, jndi, parts, sessions
from carrypost.classic.connections import ConnectionMetaData
from carrypost.classic.jndi import XAConnectionFactory, XAQueueConnectionFactory, XATopicConnectionFactory
from carrypost.classic.parts import Milliseconds, reworded
from carrypost.errors import JMSException
from carrypost.jms import context, factory
from carrypost.jms.modes import SessionMode
from carrypost.sync.blocking_calls import (
    Blocking,
    Closing,
    Lasting,
    Listener,
    MessageListener,
    Worker,
    as_message,
    as_queue,
    as_topic,
    blocking,
    documented,
    each,
    hopping,
    loop,
    passing,
    plain,
    reading,
    running,
)
from carrypost.sync.contexts import Consumer, Context, NamingContext, Sent, bound

if TYPE_CHECKING:
    from carrypost.jms.listener_calls import ExceptionListener
    from carrypost.sync.blocking_calls import Message


def close(opened: Blocking[Any]) -> object:
    """Close an object that no caller got, because its call was interrupted."""
    return opened._inner.close()


# --- producers, consumers and browsers ---------------------------------------------------------------------------


@documented(parts.MessageProducer)
class MessageProducer(Closing[parts.MessageProducer]):
    destination = reading(parts.MessageProducer.destination)
    send = blocking(parts.MessageProducer.send, Sent, eager=True)
    delivery_mode = reading(parts.MessageProducer.delivery_mode)
    set_delivery_mode = passing(parts.MessageProducer.set_delivery_mode)
    priority = reading(parts.MessageProducer.priority)
    set_priority = passing(parts.MessageProducer.set_priority)
    time_to_live = reading(parts.MessageProducer.time_to_live)
    set_time_to_live = passing(parts.MessageProducer.set_time_to_live)
    delivery_delay = reading(parts.MessageProducer.delivery_delay)
    set_delivery_delay = passing(parts.MessageProducer.set_delivery_delay)
    disable_message_id = reading(parts.MessageProducer.disable_message_id)
    set_disable_message_id = passing(parts.MessageProducer.set_disable_message_id)
    disable_message_timestamp = reading(parts.MessageProducer.disable_message_timestamp)
    set_disable_message_timestamp = passing(parts.MessageProducer.set_disable_message_timestamp)
    close = blocking(parts.MessageProducer.close)


@documented(parts.QueueSender)
class QueueSender(MessageProducer):
    queue = reading(parts.QueueSender.queue)


@documented(parts.TopicPublisher)
class TopicPublisher(MessageProducer):
    topic = reading(parts.TopicPublisher.topic)
    publish = blocking(parts.TopicPublisher.publish, Sent, eager=True)


@documented(parts.MessageConsumer)
class MessageConsumer(Closing[parts.MessageConsumer]):
    def __init__(self, inner: parts.MessageConsumer) -> None:
        super().__init__(inner)
        self._consumer = Consumer(inner._inner_consumer)

    message_selector = reading(parts.MessageConsumer.message_selector)
    message_listener = reading(parts.MessageConsumer.message_listener)
    close = blocking(parts.MessageConsumer.close)

    @documented(parts.MessageConsumer.receive)
    def receive(self, timeout: Milliseconds | None = None) -> Message | None:
        return self._receive(self._inner._limit_s(timeout))

    @documented(parts.MessageConsumer.receive_no_wait)
    def receive_no_wait(self) -> Message | None:
        return self._receive(0.0)

    def _receive(self, limit_s: float | None) -> Message | None:
        receiving = self._inner._begin_receiving()
        try:
            return self._consumer._receive(limit_s, None)
        except JMSException as error:
            raise reworded(error) from error.__cause__
        finally:
            receiving.release()

    @documented(parts.MessageConsumer.set_message_listener)
    def set_message_listener(self, listener: Listener | MessageListener | None) -> None:
        plain(listener)

        async def listen() -> None:
            self._inner.set_message_listener(listener)  # type: ignore[arg-type]  # messages have their class by then

        loop().run(listen)


@documented(parts.QueueReceiver)
class QueueReceiver(MessageConsumer):
    queue = reading(parts.QueueReceiver.queue)


@documented(parts.TopicSubscriber)
class TopicSubscriber(MessageConsumer):
    topic = reading(parts.TopicSubscriber.topic)
    no_local = reading(parts.TopicSubscriber.no_local)


@documented(parts.Enumeration)
class Enumeration(Blocking[parts.Enumeration]):
    has_more_elements = blocking(parts.Enumeration.has_more_elements)
    next_element = blocking(parts.Enumeration.next_element, as_message)

    def __iter__(self) -> Iterator[Message]:
        return (as_message(message) for message in each(self._inner))


@documented(parts.QueueBrowser)
class QueueBrowser(Closing[parts.QueueBrowser]):
    queue = reading(parts.QueueBrowser.queue)
    message_selector = reading(parts.QueueBrowser.message_selector)
    close = blocking(parts.QueueBrowser.close)

    @property
    def enumeration(self) -> Enumeration:
        """The messages, from the first one: every access looks anew."""
        return Enumeration(self._inner.enumeration)


# --- sessions ----------------------------------------------------------------------------------------------------


@documented(sessions.Session)
class Session(Closing[sessions.Session]):
    SESSION_TRANSACTED = sessions.Session.SESSION_TRANSACTED
    AUTO_ACKNOWLEDGE = sessions.Session.AUTO_ACKNOWLEDGE
    CLIENT_ACKNOWLEDGE = sessions.Session.CLIENT_ACKNOWLEDGE
    DUPS_OK_ACKNOWLEDGE = sessions.Session.DUPS_OK_ACKNOWLEDGE
    INDIVIDUAL_ACKNOWLEDGE = sessions.Session.INDIVIDUAL_ACKNOWLEDGE

    transacted = reading(sessions.Session.transacted)
    acknowledge_mode = reading(sessions.Session.acknowledge_mode)
    close = blocking(sessions.Session.close)
    commit = blocking(sessions.Session.commit)
    rollback = blocking(sessions.Session.rollback)
    recover = blocking(sessions.Session.recover)
    create_producer = hopping(sessions.Session.create_producer, MessageProducer)
    create_consumer = blocking(sessions.Session.create_consumer, MessageConsumer, close)
    create_durable_subscriber = blocking(sessions.Session.create_durable_subscriber, TopicSubscriber, close)
    create_durable_consumer = blocking(sessions.Session.create_durable_consumer, MessageConsumer, close)
    create_shared_consumer = blocking(sessions.Session.create_shared_consumer, MessageConsumer, close)
    create_shared_durable_consumer = blocking(sessions.Session.create_shared_durable_consumer, MessageConsumer, close)
    unsubscribe = blocking(sessions.Session.unsubscribe)
    create_browser = hopping(sessions.Session.create_browser, QueueBrowser)
    create_queue = passing(sessions.Session.create_queue)
    create_topic = passing(sessions.Session.create_topic)
    create_temporary_queue = blocking(sessions.Session.create_temporary_queue, as_queue)
    create_temporary_topic = blocking(sessions.Session.create_temporary_topic, as_topic)
    declare_queue = blocking(sessions.Session.declare_queue)
    create_message = passing(sessions.Session.create_message)
    create_text_message = passing(sessions.Session.create_text_message)
    create_bytes_message = passing(sessions.Session.create_bytes_message)
    create_map_message = passing(sessions.Session.create_map_message)
    create_stream_message = passing(sessions.Session.create_stream_message)
    create_object_message = passing(sessions.Session.create_object_message)
    message_listener = reading(sessions.Session.message_listener)
    set_message_listener = passing(sessions.Session.set_message_listener)
    run = passing(sessions.Session.run)


@documented(sessions.QueueSession)
class QueueSession(Session):
    create_sender = hopping(sessions.QueueSession.create_sender, QueueSender)
    create_receiver = blocking(sessions.QueueSession.create_receiver, QueueReceiver, close)


@documented(sessions.TopicSession)
class TopicSession(Session):
    create_publisher = hopping(sessions.TopicSession.create_publisher, TopicPublisher)
    create_subscriber = blocking(sessions.TopicSession.create_subscriber, TopicSubscriber, close)


_KINDS: dict[type[sessions.Session], type[Session]] = {
    sessions.Session: Session,
    sessions.QueueSession: QueueSession,
    sessions.TopicSession: TopicSession,
}


# --- connections -------------------------------------------------------------------------------------------------


@documented(connections.Connection)
class Connection(Lasting[connections.Connection]):
    _awaited: ClassVar[type[connections.Connection]] = connections.Connection
    _closed_by = "connection.close()"
    client_id = reading(connections.Connection.client_id)
    set_client_id = blocking(connections.Connection.set_client_id)
    meta_data = reading(connections.Connection.meta_data)
    exception_listener = reading(connections.Connection.exception_listener)
    create_session = blocking(connections.Connection.create_session, lambda made: _KINDS[type(made)](made), close)
    start = blocking(connections.Connection.start)
    stop = blocking(connections.Connection.stop)
    close = blocking(connections.Connection.close)
    create_connection_consumer = passing(connections.Connection.create_connection_consumer)
    create_durable_connection_consumer = passing(connections.Connection.create_durable_connection_consumer)

    @documented(connections.Connection.set_exception_listener)
    def set_exception_listener(self, listener: ExceptionListener | None) -> None:
        self._inner.set_exception_listener(plain(listener))


@documented(connections.QueueConnection)
class QueueConnection(Connection):
    _awaited = connections.QueueConnection
    create_queue_session = blocking(connections.QueueConnection.create_queue_session, QueueSession, close)


@documented(connections.TopicConnection)
class TopicConnection(Connection):
    _awaited = connections.TopicConnection
    create_topic_session = blocking(connections.TopicConnection.create_topic_session, TopicSession, close)


# --- requestors --------------------------------------------------------------------------------------------------


@documented(sessions.QueueRequestor)
class QueueRequestor(Closing[sessions.QueueRequestor]):
    def __init__(self, session: Session, queue: object) -> None:
        super().__init__(sessions.QueueRequestor(getattr(session, "_inner", session), queue))  # type: ignore[arg-type]  # checked there

    request = blocking(sessions.QueueRequestor.request, as_message)
    close = blocking(sessions.QueueRequestor.close)


@documented(sessions.TopicRequestor)
class TopicRequestor(Closing[sessions.TopicRequestor]):
    def __init__(self, session: Session, topic: object) -> None:
        super().__init__(sessions.TopicRequestor(getattr(session, "_inner", session), topic))  # type: ignore[arg-type]  # checked there

    request = blocking(sessions.TopicRequestor.request, as_message)
    close = blocking(sessions.TopicRequestor.close)


C = TypeVar("C", bound=Connection)


@documented(factory.ConnectionFactory)
class ConnectionFactory(factory.ConnectionFactory):
    _callers = Worker

    @documented(factory.ConnectionFactory.create_context)
    def create_context(  # type: ignore[override]  # it blocks
        self,
        mode: SessionMode = SessionMode.AUTO_ACKNOWLEDGE,
        *,
        user: str | None = None,
        password: str | None = None,
    ) -> Context:
        made = super().create_context(mode, user=user, password=password)

        async def opened() -> Context:
            return Context(await made)

        return loop().run(opened, close)

    @documented(factory.ConnectionFactory.create_connection)
    def create_connection(self, user: str | None = None, password: str | None = None) -> Connection:  # type: ignore[override]  # likewise
        return loop().run(lambda: self._opened(Connection, user, password), close)

    async def _opened(self, kind: type[C], user: str | None, password: str | None) -> C:
        """Open a connection of this class."""
        return kind(await kind._awaited(self._connection(user, password)))


__all__ = [
    "Connection", "ConnectionFactory", "ConnectionMetaData", "Enumeration", "InitialContext", "MessageConsumer",
    "MessageProducer", "QueueBrowser", "QueueConnection", "QueueConnectionFactory", "QueueReceiver",
    "QueueRequestor", "QueueSender", "QueueSession", "Session", "TopicConnection", "TopicConnectionFactory",
    "TopicPublisher", "TopicRequestor", "TopicSession", "TopicSubscriber", "XAConnectionFactory",
    "XAQueueConnectionFactory", "XATopicConnectionFactory",
]  # fmt: skip


@documented(jndi.QueueConnectionFactory)
class QueueConnectionFactory(ConnectionFactory):
    @documented(jndi.QueueConnectionFactory.create_queue_connection)
    def create_queue_connection(self, user: str | None = None, password: str | None = None) -> QueueConnection:
        return loop().run(lambda: self._opened(QueueConnection, user, password), close)


@documented(jndi.TopicConnectionFactory)
class TopicConnectionFactory(ConnectionFactory):
    @documented(jndi.TopicConnectionFactory.create_topic_connection)
    def create_topic_connection(self, user: str | None = None, password: str | None = None) -> TopicConnection:
        return loop().run(lambda: self._opened(TopicConnection, user, password), close)


class _Names(jndi.InitialContext):
    """The names of a program that blocks: the factories are others."""

    _factories: ClassVar[Mapping[str, type[factory.ConnectionFactory]]] = {
        "ConnectionFactory": ConnectionFactory,
        "QueueConnectionFactory": QueueConnectionFactory,
        "TopicConnectionFactory": TopicConnectionFactory,
    }

    async def _open(self) -> context.Context:
        opened = await super()._open()
        running().add(opened)
        return opened


@documented(jndi.InitialContext)
class InitialContext(NamingContext, Closing[naming.NamingContext]):
    def __init__(self, environment: Mapping[str, str] | str | os.PathLike[str] | None = None) -> None:
        self._names = _Names(environment)
        super().__init__(self._names)

    environment = reading(jndi.InitialContext.environment)
    close = blocking(jndi.InitialContext.close)
    lookup = blocking(jndi.InitialContext.lookup, bound)  # type: ignore[arg-type]  # factories, too, and milliseconds
