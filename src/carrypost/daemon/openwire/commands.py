"""Commands of OpenWire and the values in them: one table, the fields of each class in the order of the wire.

The annotation of a field is its form on the wire, and what a client may write there: numbers, truth values and texts,
and other structures, of the class that is named and of no other. No class can contain itself, so bytes cannot nest
deeply. Fields that only brokers use among themselves are read, and ignored.
"""

from __future__ import annotations

import enum
from typing import Annotated

import msgspec

Byte = Annotated[int, "b"]
Int = Annotated[int, "i"]
Long = Annotated[int, "q"]
Magic = Annotated[bytes, "8s"]
Failure = Annotated[tuple[str, str] | None, "throwable"]
"""A Java exception: the name of its class, and its message."""
NEWER: int = 10
"""Version from which fields annotated with this number exist; all others exist in each version that is spoken."""


class Structure(msgspec.Struct, gc=False, tag_field="number", tag=0):
    """A value with a type on the wire. The tag of its class is the number of that type; 0: it has none."""


def number_of(kind: type[Structure]) -> int:
    """Return the number of a type on the wire."""
    return int(kind.__struct_config__.tag or 0)


# --- names -----------------------------------------------------------------------------------------------------------


class Name(Structure):
    """The name of something: a text, and numbers. It is never changed: those that were read are shared."""


class Destination(Name):
    """A destination by its name."""

    name: str | None = None


class QueueName(Destination, tag=100):
    """A queue."""


class TopicName(Destination, tag=101):
    """A topic."""


class TemporaryQueueName(QueueName, tag=102):
    """A temporary queue."""


class TemporaryTopicName(TopicName, tag=103):
    """A temporary topic."""


class ConnectionId(Name, tag=120):
    """A connection."""

    value: str | None = None


class SessionId(Name, tag=121):
    """A session."""

    connection: str | None = None
    value: Long = 0


class ConsumerId(Name, tag=122):
    """A consumer."""

    connection: str | None = None
    session: Long = 0
    value: Long = 0

    @property
    def text(self) -> str:
        """The id as Java shows it."""
        return f"{self.connection}:{self.session}:{self.value}"


class ProducerId(Name, tag=123):
    """A producer."""

    connection: str | None = None
    value: Long = 0
    session: Long = 0

    @property
    def text(self) -> str:
        """The id as Java shows it."""
        return f"{self.connection}:{self.session}:{self.value}"


class BrokerId(Name, tag=124):
    """A broker."""

    value: str | None = None


class MessageId(Structure, tag=110):
    """A message."""

    text: Annotated[str | None, NEWER] = None
    """The id for people and programs, if it is not made of the fields below."""
    producer: ProducerId | None = None
    sequence: Long = 0
    place: Long = 0
    """Number that a broker gives to the message, and the client returns with an acknowledgement."""


class LocalTransactionId(Structure, tag=111):
    """A transaction of one connection."""

    value: Long = 0
    connection: ConnectionId | None = None

    @property
    def text(self) -> str:
        """The id as Java shows it."""
        return f"TX:{self.connection.value if self.connection else ''}:{self.value}"


class XATransactionId(Structure, tag=112):
    """A distributed transaction, which is refused."""

    form: Int = 0
    transaction: bytes | None = None
    branch: bytes | None = None


# --- the connection --------------------------------------------------------------------------------------------------


class WireFormatInfo(Structure, tag=1):
    """The first command of each side: its version, and its options as a map."""

    magic: Magic = b"ActiveMQ"
    version: Int = 0
    options: bytes | None = None


class Command(Structure):
    """A command, with its number."""

    command: Int = 0
    answered: bool = False
    """True if the sender waits for a response."""


class BrokerInfo(Command, tag=2):
    """The broker, which only it sends."""

    broker: BrokerId | None = None
    url: str | None = None
    peers: tuple[BrokerId, ...] | None = None
    name: str | None = None
    slave: bool = False
    master: bool = False
    tolerant: bool = False
    duplex: bool = False
    network: bool = False
    connection: Long = 0
    upload_url: str | None = None
    properties: str | None = None


class ConnectionInfo(Command, tag=3):
    """The client, with its credentials."""

    connection: ConnectionId | None = None
    client: str | None = None
    password: str | None = None
    user: str | None = None
    path: tuple[BrokerId, ...] | None = None
    bridge: bool = False
    manageable: bool = False
    master: bool = False
    tolerant: bool = False
    reconnects: bool = False
    """True if the same client was connected before, and lost its connection."""
    address: str | None = None


class ConnectionControl(Command, tag=18):
    """A request about a connection."""

    close: bool = False
    exit: bool = False
    tolerant: bool = False
    resume: bool = False
    suspend: bool = False
    brokers: str | None = None
    reconnect_to: str | None = None
    rebalance: bool = False
    token: bytes | None = None


class ConnectionError_(Command, tag=16):  # noqa: N801 - Python has a class of this name
    """An error that no command waits for."""

    error: Failure = None
    connection: ConnectionId | None = None


class KeepAliveInfo(Command, tag=10):
    """A heart-beat."""


class ShutdownInfo(Command, tag=11):
    """The end of a connection."""


class ControlCommand(Command, tag=14):
    """A command in text, which means nothing here."""

    text: str | None = None


class FlushCommand(Command, tag=15):
    """A request to answer everything before."""


class Response(Command, tag=30):
    """The answer to a command: it is done."""

    to: Int = 0


class ExceptionResponse(Response, tag=31):
    """The answer to a command that failed."""

    error: Failure = None


# --- sessions, producers, consumers ----------------------------------------------------------------------------------


class SessionInfo(Command, tag=4):
    """A session that is opened."""

    session: SessionId | None = None


class ConsumerInfo(Command, tag=5):
    """A consumer that is opened."""

    consumer: ConsumerId | None = None
    browser: bool = False
    destination: Destination | None = None
    prefetch: Int = 0
    pending_max: Int = 0
    asynchronous: bool = False
    selector: str | None = None
    client: Annotated[str | None, NEWER] = None
    subscription: str | None = None
    """Name of a durable subscription."""
    no_local: bool = False
    exclusive: bool = False
    retroactive: bool = False
    priority: Byte = 0
    path: tuple[BrokerId, ...] | None = None
    predicate: None = None
    network: bool = False
    optimized: bool = False
    no_ranges: bool = False
    network_path: tuple[ConsumerId, ...] | None = None


class ConsumerControl(Command, tag=17):
    """A change of a consumer."""

    destination: Destination | None = None
    close: bool = False
    consumer: ConsumerId | None = None
    prefetch: Int = 0
    flush: bool = False
    start: bool = False
    stop: bool = False


class ProducerInfo(Command, tag=6):
    """A producer that is opened."""

    producer: ProducerId | None = None
    destination: Destination | None = None
    path: tuple[BrokerId, ...] | None = None
    asynchronous: bool = False
    window: Int = 0
    """Bytes that the client sends before it waits for a `ProducerAck`; 0: it never does."""


class ProducerAck(Command, tag=19):
    """The report that a message of a producer is stored."""

    producer: ProducerId | None = None
    nbytes: Int = 0


class DestinationInfo(Command, tag=8):
    """A temporary destination that is made or removed."""

    connection: ConnectionId | None = None
    destination: Destination | None = None
    operation: Byte = 0
    timeout: Long = 0
    path: tuple[BrokerId, ...] | None = None


class RemoveInfo(Command, tag=12):
    """The end of something that was opened."""

    object: ConnectionId | SessionId | ConsumerId | ProducerId | None = None
    delivered: Long = 0
    """The last `MessageId.place` that a program got."""


class RemoveSubscriptionInfo(Command, tag=9):
    """The end of a durable subscription."""

    connection: ConnectionId | None = None
    name: str | None = None
    client: str | None = None


class TransactionKind(enum.IntEnum):
    """Requests about a transaction."""

    BEGIN = 0
    PREPARE = 1
    COMMIT = 2
    COMMIT_PREPARED = 3
    ROLLBACK = 4
    RECOVER = 5
    FORGET = 6
    END = 7


class TransactionInfo(Command, tag=7):
    """The begin or the end of a transaction."""

    connection: ConnectionId | None = None
    transaction: LocalTransactionId | XATransactionId | None = None
    kind: Byte = 0


# --- messages --------------------------------------------------------------------------------------------------------


class AckKind(enum.IntEnum):
    """Kinds of acknowledgements."""

    DELIVERED = 0
    """A program got the messages, and has not acknowledged them."""
    POISON = 1
    """Programs failed too often with the messages."""
    STANDARD = 2
    """All messages up to the last one are consumed."""
    REDELIVERED = 3
    """A program gets the messages again."""
    INDIVIDUAL = 4
    UNMATCHED = 5
    EXPIRED = 6


class MessageAck(Command, tag=22):
    """Messages that a client got."""

    destination: Destination | None = None
    transaction: LocalTransactionId | XATransactionId | None = None
    consumer: ConsumerId | None = None
    kind: Byte = 0
    first: MessageId | None = None
    last: MessageId | None = None
    count: Int = 0
    cause: Failure = None


class MessagePull(Command, tag=20):
    """A request for one message."""

    consumer: ConsumerId | None = None
    destination: Destination | None = None
    timeout: Long = 0
    """Milliseconds; 0: without an end, below 0: only a message that is there."""
    correlation: str | None = None
    message: MessageId | None = None


class Message(Command, tag=23):
    """A message without a body; those with a body have the same fields."""

    producer: ProducerId | None = None
    destination: Destination | None = None
    transaction: LocalTransactionId | XATransactionId | None = None
    original: Destination | None = None
    id: MessageId | None = None
    original_transaction: LocalTransactionId | XATransactionId | None = None
    group: str | None = None
    group_sequence: Int = 0
    correlation: str | None = None
    persistent: bool = False
    expiration: Long = 0
    """Milliseconds since 1970; 0: the node decides."""
    priority: Byte = 4
    reply_to: Destination | None = None
    timestamp: Long = 0
    type: str | None = None
    content: bytes | None = None
    properties: bytes | None = None
    about: DestinationInfo | None = None
    """The content of an advisory message."""
    target: ConsumerId | None = None
    compressed: bool = False
    redelivered: Int = 0
    path: tuple[BrokerId, ...] | None = None
    arrival: Long = 0
    user: str | None = None
    bridged: bool = False
    droppable: bool = False
    cluster: tuple[BrokerId, ...] | None = None
    came: Long = 0
    left: Long = 0
    first_of_group: Annotated[bool, NEWER] = False


class BytesMessage(Message, tag=24):
    """Bytes."""


class MapMessage(Message, tag=25):
    """A map of typed values."""


class ObjectMessage(Message, tag=26):
    """An object of Java, serialized."""


class StreamMessage(Message, tag=27):
    """Typed values in order."""


class TextMessage(Message, tag=28):
    """A text."""


class MessageDispatch(Command, tag=21):
    """A message for a consumer; without one, the answer that there is none."""

    consumer: ConsumerId | None = None
    destination: Destination | None = None
    message: Message | None = None
    redelivered: Int = 0
    """Number of earlier deliveries."""
