"""JMS 1.1 as Java programmers know it: connections, sessions, producers and consumers, and JNDI.

::

    from carrypost.classic import InitialContext, Session

    jndi = InitialContext("jndi.properties")
    factory = await jndi.lookup("ConnectionFactory")
    async with factory.create_connection() as connection:
        session = await connection.create_session(False, Session.AUTO_ACKNOWLEDGE)
        orders = await jndi.lookup("orders")
        await session.create_producer(orders).send(session.create_text_message("tea"))
        await connection.start()
        message = await (await session.create_consumer(orders)).receive(1000)  # milliseconds, as in Java

Names follow from those of Java by one rule: camelCase becomes snake_case, and getters become attributes. Calls that
involve the node are awaited; in `carrypost.sync.classic` they block. Messages, destinations, modes and exceptions are
those of `carrypost`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from carrypost.classic.connections import Connection, ConnectionMetaData, QueueConnection, TopicConnection
    from carrypost.classic.jndi import (
        InitialContext,
        QueueConnectionFactory,
        TopicConnectionFactory,
        XAConnectionFactory,
        XAQueueConnectionFactory,
        XATopicConnectionFactory,
    )
    from carrypost.classic.parts import (
        Enumeration,
        MessageConsumer,
        MessageProducer,
        QueueBrowser,
        QueueReceiver,
        QueueSender,
        TopicPublisher,
        TopicSubscriber,
    )
    from carrypost.classic.sessions import QueueRequestor, QueueSession, Session, TopicRequestor, TopicSession
    from carrypost.jms.factory import ConnectionFactory

__all__ = [
    "Connection", "ConnectionFactory", "ConnectionMetaData", "Enumeration", "InitialContext", "MessageConsumer",
    "MessageProducer", "QueueBrowser", "QueueConnection", "QueueConnectionFactory", "QueueReceiver",
    "QueueRequestor", "QueueSender", "QueueSession", "Session", "TopicConnection", "TopicConnectionFactory",
    "TopicPublisher", "TopicRequestor", "TopicSession", "TopicSubscriber", "XAConnectionFactory",
    "XAQueueConnectionFactory", "XATopicConnectionFactory",
]  # fmt: skip

_HOMES = {
    "jms.factory": ("ConnectionFactory",),
    "classic.connections": ("Connection", "ConnectionMetaData", "QueueConnection", "TopicConnection"),
    "classic.parts": (
        "Enumeration", "MessageConsumer", "MessageProducer", "QueueBrowser", "QueueReceiver", "QueueSender",
        "TopicPublisher", "TopicSubscriber",
    ),
    "classic.sessions": ("QueueRequestor", "QueueSession", "Session", "TopicRequestor", "TopicSession"),
}  # fmt: skip
"""Public names that are not in `classic.jndi`, by module. The one connection factory imports `classic.connections`, so
that an `import` statement would lead back to it."""

if not TYPE_CHECKING:  # Else every name would be one to type checkers.

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        home = next((module for module, names in _HOMES.items() if name in names), "classic.jndi")
        found = getattr(importlib.import_module(f"carrypost.{home}"), name)
        globals()[name] = found  # The next access finds it at once.
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
