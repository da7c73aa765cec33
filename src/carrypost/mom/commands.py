"""Requests of programs to messaging, as values."""

from __future__ import annotations

import enum

import msgspec

from carrypost.gossip.layer import Draft
from carrypost.journal import Durability
from carrypost.model.descriptor import Descriptor, Ordering
from carrypost.model.ids import MessageId, NodeId
from carrypost.model.pattern import Entry


class Subscribe(msgspec.Struct, frozen=True, tag="subscribe"):
    """The request of a consumer of topics."""

    entry: Entry
    """Destinations, other attributes and selector."""
    ordering: Ordering = Ordering.NONE
    """Ordering that the topic was opened with. With an order all of it is requested, and the rest of the entry is
    applied at the claim."""
    name: str = ""
    """Of a durable or a shared subscription."""
    durable: bool = False
    """True if it exists, and collects, while there is no consumer."""
    shared: bool = False
    """Several consumers may have it; each message goes to one of them."""
    no_local: bool = False
    """Leave out what its own connection sent; a durable one, what anybody with its client id did."""
    modulator: bytes = b""
    """Modulator that the home broker of a channel's consumer runs, as the overlay writes it; empty: none."""
    relocation: str = ""
    """Protocol by which the seat of a channel's consumer moves to another broker; empty: the strict one."""


class Redelivery(enum.StrEnum):
    """The treatment of a message that a receiver has and does not acknowledge."""

    NEVER = "never"
    """The message stays with that receiver's node: no other node ever gets it."""
    AFTER_LEASE = "after_lease"
    """The message goes to another receiver when its lease is over, flagged: it may be consumed twice."""


class Declare(msgspec.Struct, frozen=True):
    """A queue that this node is to manage."""

    name: str
    redelivery: Redelivery = Redelivery.NEVER
    lease_us: int = 0
    """Time that a receiver has for a message, from its assignment on; counts with `AFTER_LEASE` alone."""
    policy: str = "fair"
    """Name of the function that chooses among those that ask for a message (`mom.policies`)."""
    connection: int = 0
    """The connection that a temporary queue ends with, and that alone may receive from it; 0: it stays."""
    receivers: tuple[NodeId, ...] | None = None
    """The nodes that may receive from it, and look into it, beside this one; None: anyone."""


class Receive(msgspec.Struct, frozen=True, tag="receive"):
    """The request of a consumer of a queue."""

    destination: str
    selector: str | None = None


class Browsing(msgspec.Struct, frozen=True):
    """The messages that wait in a queue, as far as they are known when a program asks."""

    number: int
    """By which the rest is told (`events.Browsed`)."""
    taken_us: int = 0
    """Time at which the manager took the snapshot; 0 if it was not heard yet."""
    descriptors: tuple[Descriptor, ...] | None = None
    """All that waits, in the order in which it would be given out, at the manager; None: it comes by events."""


class OpenRequest(msgspec.Struct, frozen=True):
    """A request whose reply a program waits for."""

    correlation: str
    deadline_us: int


class Followed(msgspec.Struct, frozen=True):
    """A message of this node that is followed: how far it has come is told by `events.Receipt`."""

    message: MessageId
    destination: str
    deadline_us: int | None
    listed: bool = False
    """True if it lists its recipients."""


class Ack(msgspec.Struct, frozen=True, gc=False):
    """Messages that a session is done with, by the numbers under which they were handed over."""

    session: int
    numbers: tuple[int, ...] = ()
    """Each for itself."""
    through: int = 0
    """And all that were handed to the session up to this number."""


class Work(msgspec.Struct, frozen=True, gc=False):
    """A request that is carried out whole or not at all: one batch, answered by `Done` or `Undone`."""

    number: int
    """By which it is answered; the caller's own."""
    sends: tuple[Draft | int, ...] = ()
    """Messages, or the numbers of drafts that the host has."""
    acks: tuple[Ack, ...] = ()
    durability: Durability = Durability.NORMAL
    session: int = 0
    """The session whose drafts may be sent; 0: those of any."""
