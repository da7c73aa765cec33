"""JMS 1.1 as Java programmers know it, for programs that block: the classes of `carrypost.classic`.

::

    from carrypost.sync.classic import InitialContext, Session

    jndi = InitialContext("jndi.properties")
    with jndi.lookup("ConnectionFactory").create_connection() as connection:
        session = connection.create_session(False, Session.AUTO_ACKNOWLEDGE)
        session.create_producer(jndi.lookup("orders")).send(session.create_text_message("tea"))
        connection.start()
        print(session.create_consumer(jndi.lookup("queue/orders")).receive(1000).text)  # milliseconds, as in Java
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import ClassVar, Self

from carrypost.classic import factories, jndi
from carrypost.classic.connections import ConnectionMetaData
from carrypost.classic.factories import XAConnectionFactory, XAQueueConnectionFactory, XATopicConnectionFactory
from carrypost.jms import factory
from carrypost.jms.context import Context
from carrypost.sync.classic_parts import (
    Connection,
    Enumeration,
    MessageConsumer,
    MessageProducer,
    QueueBrowser,
    QueueConnection,
    QueueReceiver,
    QueueRequestor,
    QueueSender,
    QueueSession,
    Session,
    TopicConnection,
    TopicPublisher,
    TopicRequestor,
    TopicSession,
    TopicSubscriber,
    close,
)
from carrypost.sync.factory import ConnectionFactory
from carrypost.sync.methods import blocking, documented, reading
from carrypost.sync.naming import NamingContext, bound
from carrypost.sync.process import loop, running

__all__ = [
    "Connection", "ConnectionFactory", "ConnectionMetaData", "Enumeration", "InitialContext", "MessageConsumer",
    "MessageProducer", "QueueBrowser", "QueueConnection", "QueueConnectionFactory", "QueueReceiver",
    "QueueRequestor", "QueueSender", "QueueSession", "Session", "TopicConnection", "TopicConnectionFactory",
    "TopicPublisher", "TopicRequestor", "TopicSession", "TopicSubscriber", "XAConnectionFactory",
    "XAQueueConnectionFactory", "XATopicConnectionFactory",
]  # fmt: skip


@documented(factories.QueueConnectionFactory)
class QueueConnectionFactory(ConnectionFactory):
    @documented(factories.QueueConnectionFactory.create_queue_connection)
    def create_queue_connection(self, user: str | None = None, password: str | None = None) -> QueueConnection:
        return loop().run(lambda: self._opened(QueueConnection, user, password), close)


@documented(factories.TopicConnectionFactory)
class TopicConnectionFactory(ConnectionFactory):
    @documented(factories.TopicConnectionFactory.create_topic_connection)
    def create_topic_connection(self, user: str | None = None, password: str | None = None) -> TopicConnection:
        return loop().run(lambda: self._opened(TopicConnection, user, password), close)


class _Names(jndi.InitialContext):
    """The names of a program that blocks: the factories are others."""

    _factories: ClassVar[Mapping[str, type[factory.ConnectionFactory]]] = {
        "ConnectionFactory": ConnectionFactory,
        "QueueConnectionFactory": QueueConnectionFactory,
        "TopicConnectionFactory": TopicConnectionFactory,
    }

    async def _open(self) -> Context:
        opened = await super()._open()
        running().add(opened)
        return opened


@documented(jndi.InitialContext)
class InitialContext(NamingContext):
    def __init__(self, environment: Mapping[str, str] | str | os.PathLike[str] | None = None) -> None:
        self._names = _Names(environment)
        super().__init__(self._names)

    environment = reading(jndi.InitialContext.environment)
    close = blocking(jndi.InitialContext.close)

    lookup = blocking(jndi.InitialContext.lookup, bound)  # type: ignore[arg-type]  # factories, too, and milliseconds

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
