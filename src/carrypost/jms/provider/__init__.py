"""The provider: the interface below every API for programs to one node's messaging, with values.

A `Provider` may be in the same process as its node (`jms.provider.local`) or attached to it. So its commands, those of
`messaging.commands`, and their answers are values that can be encoded. Nothing is shared, and notifications to
a program are calls of the methods of `Program`. Every error is a `JMSException`: `translated` makes one of an error of
the core.
"""

from __future__ import annotations

import asyncio
from typing import ClassVar, NamedTuple, Protocol, TypeVar

from carrypost.config import Limits
from carrypost.config.settings import Messaging
from carrypost.errors import (
    CarrypostError,
    InvalidSelectorException,
    JMSException,
    MessageFormatException,
    PatternError,
    PayloadError,
    ResourceAllocationException,
    StateError,
)
from carrypost.gossip.draft import Draft
from carrypost.log.events import Browsed, ClaimLost, GivenUp, Handed, OverlayTold, Receipt, Unserved
from carrypost.log.journal import Durability
from carrypost.messaging.commands import Ack, Command, Credit, GoOn
from carrypost.model.descriptor import Descriptor
from carrypost.model.ids import NodeId

R = TypeVar("R")
NODE_LOST = "NODE_LOST"
"""The `error_code` of calls that the node was to answer when it ended, and of messages that it handed over before."""
NODE_ENDED = "NODE_ENDED"
"""The `error_code` of everything after the end of a node to which there is no way back."""


def is_lost(error: BaseException | None) -> bool:
    """Return True if the node ended before it answered, or is gone."""
    return isinstance(error, JMSException) and error.error_code in {NODE_LOST, NODE_ENDED}


ConsumerNews = GivenUp | Unserved | OverlayTold
"""News of one consumer: a message was handed over to it too often, and is a dead letter; it gets nothing further; or
how things stand with it, as a consumer of a channel."""
News = ConsumerNews | Browsed | Receipt | ClaimLost
"""Events that programs are informed of. Further news are a part of the messages in a queue that it browses; the
progress of a message that its connection sent, or asked for by `Follow`; and a message that a durable subscription of
its client id will not get."""


class Program(Protocol):
    """A connected program."""

    def deliver(self, handed: Handed, body: bytes | None = None) -> None:
        """Take a message for one of its consumers, within that one's credit; without a `body`, `payload` has it."""

    def note(self, news: News) -> None:
        """Take note of an event that concerns it."""

    def node_ended(self, reason: str) -> None:
        """Note that the node is gone, with everything that was open on it."""

    def interrupted(self, reason: str, through: int) -> bool:  # noqa: ARG002 - for programs that wait
        """Note that the node is gone for a while; return True to wait for its return.

        All messages up to the number `through` are void, and come again. Only a provider that reconnects calls this,
        and `resumed`. A program that does not wait connects anew by itself.
        """
        self.node_ended(reason)
        return False

    def resumed(self) -> None:
        """Note that the node is back, with all connections, sessions and consumers. No consumer has credit yet."""
        return


class NodeInfo(NamedTuple):
    """The node, as far as programs have to know it."""

    node: NodeId
    limits: Limits
    settings: Messaging
    lifetime_s_max: float | None
    """The longest time to live of a message that it sends; None: there is no limit."""


class Perform(Command[tuple[Descriptor, ...]], frozen=True, tag="perform"):
    """A unit of work that is asked for. One without a session only acknowledges, for whichever sessions."""

    session: int
    sends: tuple[Draft | int, ...]
    acks: tuple[Ack, ...]
    durability: Durability = Durability.NORMAL
    early: bool = False
    """The caller waits for `Performed.sent` alone, also if it is to be durable at once; else that may end together with
    `done`."""


class Performed(NamedTuple):
    """A unit of work that the node has begun. Both end with a `JMSException` where it could not be done."""

    sent: asyncio.Future[tuple[Descriptor, ...]]
    """Descriptors of its messages, once the node has them."""
    done: asyncio.Future[None]
    """Future that is set when it is durable."""


class Provider(Protocol):
    """The messaging of one node."""

    reconnects: ClassVar[bool] = False
    """True if it outlives the node: then messages that were not acknowledged come again to the same program."""

    @property
    def node_info(self) -> NodeInfo:
        """The node, and its limits and settings."""

    @property
    def outlives_programs(self) -> bool:
        """True if the node goes on when the program is killed: the program then announces what it gets."""
        return True

    def now_us(self) -> int:
        """Return the date on the node, in microseconds since 1970."""

    async def room(self) -> None:
        """Wait while too much waits for the node's disk."""

    async def connect(self, client: str, program: Program) -> int:
        """Connect a program, with its client id or an empty text; returns the connection's number."""

    async def execute(self, command: Command[R]) -> R:
        """Carry out a command, and return its answer, once what is to be durable is."""

    def tell(self, command: Credit | GoOn) -> None:
        """Carry out a command that has no answer. Ignored if what it is about is gone."""

    def perform(self, asked: Perform) -> Performed:
        """Begin a unit of work of a session, whose connection gets the receipts of what it sends.

        Raises, or lets `sent` fail, where something is wrong with it: then nothing was done.
        """

    async def payload(self, descriptor: Descriptor) -> bytes | None:
        """Return the body of a message that was handed over; None if it is gone."""


class Source(Protocol):
    """Source from which a connection gets its provider."""

    async def acquire(self) -> Provider:
        """Return the provider, opened if it is not open."""

    async def release(self) -> None:
        """Note that this connection does not need the provider any more."""

    def unhandled(self, error: JMSException) -> None:
        """Note a problem that no exception listener handles."""


_TRANSLATIONS: tuple[tuple[type[CarrypostError], type[JMSException]], ...] = (
    (PayloadError, MessageFormatException),
    (PatternError, InvalidSelectorException),
    (StateError, ResourceAllocationException),
    (CarrypostError, JMSException),
)


def translated(error: CarrypostError) -> JMSException:
    """Return an error of the core as the one of JMS that it is."""
    if isinstance(error, JMSException):
        return error
    kind = next(kind for known, kind in _TRANSLATIONS if isinstance(error, known))
    made = kind(str(error))
    made.__cause__ = error
    return made
