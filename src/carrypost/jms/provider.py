"""The provider: the interface below every API for programs to one node's messaging, with values.

A `Provider` may be in the same process as its node (`jms.local`) or attached to it. So commands and answers are values
that can be encoded, nothing is shared, and notifications to a program are calls of the methods of `Program`. Every
error is a `JMSException`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import ClassVar, NamedTuple, Protocol

from carrypost.config import Limits
from carrypost.config.settings import Messaging
from carrypost.errors import JMSException
from carrypost.events import Browsed, ClaimLost, GivenUp, Handed, OverlayTold, Receipt, Unserved
from carrypost.gossip.layer import Draft
from carrypost.journal import Durability
from carrypost.model.address import Kind
from carrypost.model.descriptor import Descriptor
from carrypost.model.ids import MessageId, NodeId
from carrypost.mom.commands import Ack, Browsing, Declare, Followed, OpenRequest, Receive, Subscribe
from carrypost.mom.discovery import Discovered
from carrypost.mom.names.namespace import Bind, Binding
from carrypost.mom.placement import PlaceAnswered

NODE_LOST = "NODE_LOST"
"""The `error_code` of calls that the node was to answer when it ended, and of messages that it handed over before."""
NODE_ENDED = "NODE_ENDED"
"""The `error_code` of everything after the end of a node to which there is no way back."""


def is_lost(error: BaseException | None) -> bool:
    """Return True if the node ended before it answered, or is gone."""
    return isinstance(error, JMSException) and error.error_code in {NODE_LOST, NODE_ENDED}


class Program(Protocol):
    """A connected program."""

    def deliver(self, handed: Handed, body: bytes | None = None) -> None:
        """Take a message for one of its consumers, within that one's credit; without a `body`, `payload` has it."""

    def gave_up(self, event: GivenUp) -> None:
        """Note that a message for one of its consumers was handed over too often, and is a dead letter."""

    def browsed(self, part: Browsed) -> None:
        """Receive a part of the messages in a queue that it browses."""

    def receipt(self, receipt: Receipt) -> None:
        """Note how far a message has come that this connection sent, or asked for by `followed`."""

    def lost(self, lost: ClaimLost) -> None:
        """Report that a durable subscription of its client id will not get a message."""

    def unserved(self, event: Unserved) -> None:
        """Report that one of its consumers gets nothing further."""

    def overlaid(self, event: OverlayTold) -> None:
        """Take how things stand with one of its consumers of channels."""

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


class Perform(NamedTuple):
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

    def now_us(self) -> int:
        """Return the date on the node, in microseconds since 1970."""

    # --- programs ------------------------------------------------------------------------------------------

    async def connect(self, client: str, program: Program) -> int:
        """Connect a program, with its client id or an empty text; returns the connection's number."""

    async def disconnect(self, connection: int, unread: Collection[int]) -> None:
        """Close a connection with its sessions. What is `unread` its program never saw."""

    async def abandon(self, connection: int, unread: Collection[int]) -> None:
        """Close the connection of a program that ended without closing it.

        What the program may have seen comes again one at a time, as after a crash of the node: it may be the cause.
        """

    async def open_session(self, connection: int) -> int:
        """Return one more session; returns its number."""

    async def close_session(self, session: int, unread: Collection[int]) -> None:
        """Close a session; what it did not acknowledge goes back."""

    async def recover(self, session: int, unread: Collection[int], numbers: Collection[int] | None) -> int:
        """Let what a session has not acknowledged come again: all of it, or these `numbers`.

        Returns the last number under which anything was handed over before that: what is on its way comes again, too.
        """

    # --- consumers -----------------------------------------------------------------------------------------

    async def consume(self, session: int, asked: Subscribe | Receive) -> int:
        """Open a consumer, which has no credit yet; returns its number once what is to be durable is."""

    def credit(self, consumer: int, messages: int, nbytes: int) -> None:
        """Grant a consumer this much more credit. Ignored for a consumer that is gone."""

    async def announce(self, consumer: int, number: int, through: int) -> None:
        """Note that the program is about to get a message of a consumer, and perhaps those behind it, up to `through`.

        Later ones the program has not seen, even if it is killed.
        """

    async def close_consumer(self, consumer: int, unread: Collection[int]) -> None:
        """Close a consumer."""

    async def modulate(self, consumer: int, modulator: bytes) -> None:
        """Give a consumer of a channel another modulator, as the overlay writes it, or none."""

    async def unsubscribe(self, client: str, name: str) -> None:
        """End a durable subscription."""

    async def payload(self, descriptor: Descriptor) -> bytes | None:
        """Return the body of a message that was handed over; None if it is gone."""

    async def give_up(self, session: int, numbers: Collection[int], error: str) -> str:
        """Make these messages of a session dead letters, with the error of the program. Returns when that is durable.

        Returns the address of the queue that the last one enters; an empty text if they are dead letters already.
        """

    async def defer(self, session: int, number: int, delay_us: int) -> None:
        """Redeliver the message that a session has under this number, after a delay; return when that is durable."""

    async def retry(self, session: int, number: int) -> int:
        """Count once more what a session has under this number, and tries again; returns when that is durable.

        Returns how often it was handed over with that, or 0 if the session does not have it any more.
        """

    def go_on(self, session: int) -> None:
        """Let a session receive more although it did not acknowledge a message that came alone.

        Ignored if it is gone.
        """

    # --- queues --------------------------------------------------------------------------------------------

    async def declare(self, asked: Declare) -> str:
        """Make this node the manager of a queue, or find the one that it manages; returns its destination."""

    async def end_queue(self, destination: str) -> None:
        """End a queue of this node, with all that waits in it and its names here; return once that is durable."""

    async def receive_counts(self, name: str) -> dict[NodeId, int]:
        """Return how many messages nodes consumed from the queues of a name, as far as the node knows."""

    async def ask_to_manage(self, asked: Declare, node: NodeId, timeout_us: int, advertise: bool) -> PlaceAnswered:
        """Ask another node to manage a queue; returns its answer, or that none came in time."""

    async def declare_topic(self, name: str) -> str:
        """Make this node the holder of a topic, or find the one that it holds; returns its destination."""

    async def end_topic(self, destination: str) -> None:
        """Hold a topic of this node no more; return once that is durable."""

    async def browse(self, session: int, destination: str, selector: str | None) -> Browsing:
        """Return the messages that wait in a queue. Those of another node's queue come by `Program.browsed`."""

    async def remember_request(self, correlation: str, deadline_us: int) -> None:
        """Note that a request is about to be sent."""

    async def forget_request(self, correlation: str) -> None:
        """Forget a request that has its reply, or was not sent."""

    async def open_requests(self) -> tuple[OpenRequest, ...]:
        """Return the requests of this node that have no reply yet."""

    # --- units of work -------------------------------------------------------------------------------------

    async def room(self) -> None:
        """Wait while too much waits for the node's disk."""

    async def followed(self, session: int, message: MessageId) -> Followed | None:
        """Return the state of a followed message of this node, or None; this connection then gets its receipts, too."""

    async def draft(self, session: int, draft: Draft) -> tuple[int, Descriptor | None]:
        """Keep a message for a unit of work; returns the draft's number, and its descriptor unless it has an order."""

    async def rollback(self, session: int, unread: Collection[int]) -> int:
        """Forget a session's drafts, and let come again what it has not acknowledged; returns as `recover`."""

    def perform(self, asked: Perform) -> Performed:
        """Begin a unit of work of a session, whose connection gets the receipts of what it sends.

        Raises, or lets `sent` fail, where something is wrong with it: then nothing was done.
        """

    # --- names ---------------------------------------------------------------------------------------------

    async def bind(self, asked: Bind) -> None:
        """Let a name stand for a destination, or make a context; returns once that is durable."""

    async def unbind(self, name: str, context: bool) -> None:
        """Let a name go, with the last name of a queue here the queue, or an empty context; return once durable."""

    async def lookup(self, name: str, timeout_s: float, kind: Kind | None) -> Binding:
        """Return the binding of a name; wait this long for an advertisement. `kind`: return nothing else."""

    async def discover(self, timeout_us: int) -> Discovered:
        """Ask all nodes that the node is connected with for their names; returns what they answered in time."""

    async def entries(self, context: str) -> list[Binding]:
        """Return the bindings in a context, by name; the root is an empty text."""


class Source(Protocol):
    """Source from which a connection gets its provider."""

    async def acquire(self) -> Provider:
        """Return the provider, opened if it is not open."""

    async def release(self) -> None:
        """Note that this connection does not need the provider any more."""

    def unhandled(self, error: JMSException) -> None:
        """Note a problem that no exception listener handles."""
