"""carrypost for programs that block: the classes of the asyncio API, with ``with`` and ``for``.

::

    from carrypost.sync import ConnectionFactory

    with ConnectionFactory().create_context() as ctx:
        ctx.send("topic/village.roads", "The bridge is closed.")
        for message in ctx.create_consumer("topic/village.roads"):
            print(message.get_body(str))

All calls may be made by any thread. They run in one thread of this process (`sync.blocking_calls`), and listeners in a
thread for each context. What has no call that waits is the same for both: modes, destinations and exceptions are those
of `carrypost`.
"""

from carrypost.sync.blocking_calls import (
    BytesMessage,
    MapMessage,
    Message,
    ObjectMessage,
    StreamMessage,
    TemporaryQueue,
    TemporaryTopic,
    TextMessage,
)
from carrypost.sync.classic import ConnectionFactory
from carrypost.sync.contexts import (
    Binding,
    Consumer,
    Context,
    InitialContext,
    JMSConsumer,
    JMSContext,
    JMSProducer,
    Job,
    NamingContext,
    Producer,
    QueueBrowser,
    Request,
    Sent,
)

__all__ = [
    "Binding",
    "BytesMessage",
    "ConnectionFactory",
    "Consumer",
    "Context",
    "InitialContext",
    "JMSConsumer",
    "JMSContext",
    "JMSProducer",
    "Job",
    "MapMessage",
    "Message",
    "NamingContext",
    "ObjectMessage",
    "Producer",
    "QueueBrowser",
    "Request",
    "Sent",
    "StreamMessage",
    "TemporaryQueue",
    "TemporaryTopic",
    "TextMessage",
]
