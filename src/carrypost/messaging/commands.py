"""Requests of programs to messaging, as values."""

from __future__ import annotations

import enum
from typing import Final

import msgspec

from carrypost.gossip.draft import Draft
from carrypost.log.journal import Durability
from carrypost.model.descriptor import Descriptor, Ordering
from carrypost.model.ids import MessageId, NodeId
from carrypost.model.pattern import Entry


class Subscribe(msgspec.Struct, frozen=True, tag="subscribe"):
    """The request of a consumer of topics."""

    entry: Entry
    """Destinations, other attributes and selector."""
    ordering: Ordering = Ordering.NONE
    """Ordering that the topic was opened with. With an order the whole topic is requested, and the rest of the entry is
    applied at the claim."""
    name: str = ""
    """Name of a durable or a shared subscription."""
    durable: bool = False
    """True if it exists, and collects, while there is no consumer."""
    shared: bool = False
    """True if several consumers may share it; each message goes to one of them."""
    no_local: bool = False
    """Leave out messages that its own connection sent; for a durable one, those of any connection with its client
    id."""
    modulator: bytes = b""
    """Modulator that the home broker of a channel's consumer runs, as encoded by the overlay; empty: none."""
    relocation: str = ""
    """Protocol by which the seat of a channel's consumer moves to another broker; empty: the strict one."""


class Redelivery(enum.StrEnum):
    """The treatment of a message that a receiver has and does not acknowledge."""

    NEVER = "never"
    """The message stays with that receiver's node: no other node ever gets it."""
    AFTER_LEASE = "after_lease"
    """The message goes to another receiver when its lease is over, flagged: it may be consumed twice."""


class Declare(msgspec.Struct, frozen=True):
    """A queue for this node to manage."""

    name: str
    redelivery: Redelivery = Redelivery.NEVER
    lease_us: int = 0
    """Time that a receiver has for a message, from its assignment on; used with `AFTER_LEASE` alone."""
    policy: str = "fair"
    """Name of the function that chooses among those that ask for a message (`messaging.policies`)."""
    connection: int = 0
    """The connection that a temporary queue ends with, and that alone may receive from it; 0: it is not temporary."""
    receivers: tuple[NodeId, ...] | None = None
    """The nodes that may receive from it, and browse it, beside this one; None: any."""
    tries: int = 0
    """Number of deliveries without an acknowledgement after which a message becomes a dead letter; 0: as the settings
    of the node that delivers it say."""
    sealed: bool = False
    """True if it takes sealed messages alone; others fail."""


class Receive(msgspec.Struct, frozen=True, tag="receive"):
    """The request of a consumer of a queue."""

    destination: str
    selector: str | None = None


class Browsing(msgspec.Struct, frozen=True):
    """The messages that wait in a queue, as far as they are known when a program asks."""

    number: int
    """Number under which the rest is reported (`events.Browsed`)."""
    taken_us: int = 0
    """Time at which the manager took the snapshot; 0 before its answer."""
    descriptors: tuple[Descriptor, ...] | None = None
    """All waiting messages in the order of assignment, at the manager; None: they come by events."""


REPLIES: Final = "$replies"
"""The queue for replies; a program that makes a request declares it."""


class OpenRequest(msgspec.Struct, frozen=True):
    """A request whose reply a program waits for."""

    correlation: str
    deadline_us: int


class Followed(msgspec.Struct, frozen=True):
    """A message of this node that is tracked: its progress is reported by `events.Receipt`."""

    message: MessageId
    destination: str
    deadline_us: int | None
    listed: bool = False
    """True if it lists its recipients."""


LEASE_OVER: Final = "LEASE_OVER"
"""The error code of a unit of work that is refused because leases are over."""


class Late(enum.StrEnum):
    """The treatment of an acknowledgement that comes after the lease of its message."""

    REFUSE = "refuse"
    """The unit of work is refused as a whole: another consumer may do the same work."""
    ACCEPT = "accept"
    """The acknowledgement counts unless the message was assigned to another consumer."""
    RETURN = "return"
    """The message goes back to its queue; the other acknowledgements count."""


class Ack(msgspec.Struct, frozen=True, gc=False):
    """Messages that a session is done with, by the numbers under which they were handed over."""

    session: int
    numbers: tuple[int, ...] = ()
    """Numbers to acknowledge one by one."""
    through: int = 0
    """Acknowledge everything that was handed to the session up to this number as well."""
    late: Late = Late.REFUSE


class UnitOfWork(msgspec.Struct, frozen=True, gc=False):
    """An atomic unit of work: one batch, answered by `Done`."""

    number: int
    """The caller's own number, by which it is answered."""
    sends: tuple[Draft | int, ...] = ()
    """Messages, or the numbers of drafts that the host has."""
    acks: tuple[Ack, ...] = ()
    durability: Durability = Durability.NORMAL
    session: int = 0
    """The session whose drafts may be sent; 0: drafts of any session."""
