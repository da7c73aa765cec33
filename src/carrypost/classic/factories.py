"""Factories of connections for one domain, as JMS 1.0 had them. `ConnectionFactory` is that of `carrypost`."""

from __future__ import annotations

from typing import NoReturn

from carrypost.classic.connections import QueueConnection, TopicConnection
from carrypost.classic.sessions import not_offered
from carrypost.jms.factory import ConnectionFactory


class QueueConnectionFactory(ConnectionFactory):
    """Makes connections for queues alone; the parameters are those of `ConnectionFactory`."""

    def create_queue_connection(self, user: str | None = None, password: str | None = None) -> QueueConnection:
        """Return a connection for queues, to be opened by ``async with``, or by awaiting it."""
        return QueueConnection(self._connection(user, password))


class TopicConnectionFactory(ConnectionFactory):
    """Makes connections for topics alone; the parameters are those of `ConnectionFactory`."""

    def create_topic_connection(self, user: str | None = None, password: str | None = None) -> TopicConnection:
        """Return a connection for topics, to be opened by ``async with``, or by awaiting it."""
        return TopicConnection(self._connection(user, password))


class XAConnectionFactory:
    """A factory that is not offered: application servers alone use it. To make one raises `JMSException`."""

    def __init__(self, *_: object, **__: object) -> NoReturn:
        raise not_offered("connections for distributed transactions (XA) are")


XAQueueConnectionFactory = XATopicConnectionFactory = XAConnectionFactory
"""Likewise, for one domain."""
