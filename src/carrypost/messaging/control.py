"""Control messages of queues: items, many of which travel in one message.

A control message has no payload: its content is `Headers.control`, a list of items. Its author, which signed it,
determines what it may ask for. Every item may come twice, late, or after a later one: it is still true then, or does
nothing. So rounds are named where a message may be assigned again, and credit is the total granted so far.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec

from carrypost.application.control import ItemKinds
from carrypost.log.events import ERROR_MAX, DeadLetter
from carrypost.messaging.admission import RECEIVERS_MAX
from carrypost.messaging.incarnations import NUMBER_MAX
from carrypost.model import address
from carrypost.model.descriptor import Ordering
from carrypost.model.headers import CONTROL_BYTES_MAX, DESTINATION_MAX
from carrypost.model.ids import NodeId
from carrypost.model.times import TIME_US_MAX
from carrypost.security.hpke import KEY_BYTES

REASON_MAX = 256
"""Characters of a reason."""
_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
"""The name of a queue, without its node."""
_Selector = Annotated[str, msgspec.Meta(max_length=4096)]
"""Selector of the messages that are meant; empty: all."""
_Message = Annotated[bytes, msgspec.Meta(min_length=1, max_length=512)]
"""The id of a message."""
_Count = Annotated[int, msgspec.Meta(ge=0, le=TIME_US_MAX)]
_Number = Annotated[int, msgspec.Meta(ge=0, le=NUMBER_MAX)]
"""A number that includes the incarnation of its node (`messaging.incarnations`)."""
_Destination = Annotated[str, msgspec.Meta(min_length=1, max_length=DESTINATION_MAX)]
_Node = Annotated[NodeId, msgspec.Meta(min_length=1, max_length=DESTINATION_MAX)]
_Reason = Annotated[str, msgspec.Meta(max_length=REASON_MAX)]
_Key = Annotated[bytes, msgspec.Meta(max_length=KEY_BYTES)]
_Secrets = Annotated[bytes, msgspec.Meta(max_length=CONTROL_BYTES_MAX)]
NAMES_MAX = 256
"""Names in one answer to a discovery: as many as a node may have."""
STRETCHES_MAX = 256
"""Largest number of ranges in which numbers are sent. With the longest name they fit into a control message."""


class Ask(msgspec.Struct, frozen=True, array_like=True, tag="r", gc=False):
    """A receiver's demand for messages of a queue.

    A later `Ask` with the same number may grant more credit, and extends the demand.
    """

    queue: _Name
    number: _Number
    """Number of the demand, chosen by the receiver. Numbers of a node's later incarnations are higher."""
    credit: _Count
    """Total number of messages that the receiver accepts since the demand began."""
    deadline_us: _Count
    """Time at which it ends unless it is renewed."""
    selector: _Selector = ""
    heard: _Count = 0
    """Number up to which the receiver knows all its assignments."""
    key: _Key = b""
    """Public sealing key of the receiver, for the secrets of sealed messages. Left out where security is off."""
    left_out: ClassVar[int] = 1


class Withdraw(msgspec.Struct, frozen=True, array_like=True, tag="w", gc=False):
    """The end of a demand. Messages that are assigned to it stay assigned."""

    queue: _Name
    number: _Number
    """Number of the demand."""


class Terms(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Facts that a receiver has to know of a message beside its assignment."""

    tries: _Count = 0
    """Number of deliveries after which the message becomes a dead letter; 0: as the receiver's settings say."""
    letter: DeadLetter | None = None
    """History of the message, if it is a dead letter."""


class Assign(msgspec.Struct, frozen=True, array_like=True, tag="a", gc=False):
    """The assignment of a queue's message to a receiver."""

    queue: _Name
    message: _Message
    demand: _Number
    """Number of the demand that the message is assigned to."""
    round: _Count
    """Number of times that the message was assigned, including this one. An answer names it."""
    count: _Count = 0
    """Number of times that the message may have been delivered before."""
    lease_us: _Count = 0
    """Time at which the assignment ends; 0: it does not end."""
    until_us: _Count = 0
    """Deadline of the message; 0: none."""
    again: bool = False
    """True if the assignment was sent before and not answered. A receiver that had answered it answers again."""
    number: _Count = 0
    """Number among the assignments of that demand, from 1; 0: unknown."""
    terms: Terms | None = None
    """Terms of the message, if it has any. Left out otherwise, if nothing follows."""
    secret: _Secrets = b""
    """Secret of a sealed message, wrapped for the receiver. Left out for other messages."""
    left_out: ClassVar[int] = 2


class Gone(msgspec.Struct, frozen=True, array_like=True, tag="g", gc=False):
    """Assignments of a demand that ended without an answer: their messages expired, or their leases ended."""

    queue: _Name
    demand: _Number
    """Number of the demand."""
    numbers: Annotated[tuple[_Count, ...], msgspec.Meta(max_length=2 * STRETCHES_MAX)] = ()
    """Numbers of the assignments, as ranges: first and last of each in turn."""
    known: bool = False
    """True in the receiver's answer that it knew all of them."""


class Acknowledge(msgspec.Struct, frozen=True, array_like=True, tag="k", gc=False):
    """Acknowledgement by the receiver of a message."""

    message: _Message
    round: _Count
    """Round that it answers."""


class Release(msgspec.Struct, frozen=True, array_like=True, tag="l", gc=False):
    """Return of an assigned message by its receiver: no program there saw it, or none can consume it."""

    message: _Message
    round: _Count
    """Round that it answers."""
    count: _Count = 0
    """Number of times that the message was delivered."""
    dead: bool = False
    """True if programs there failed with the message too often."""
    error: Annotated[str, msgspec.Meta(max_length=ERROR_MAX)] = ""
    """The last error, if the message is dead. Left out if it is empty."""
    left_out: ClassVar[int] = 1


class Outcome(msgspec.Struct, frozen=True, array_like=True, tag="o", gc=False):
    """The outcome of a message, sent to its author."""

    message: _Message
    kind: Annotated[int, msgspec.Meta(ge=0, le=255)]
    """0: its manager has it; 1: it was consumed; 2: it failed. Other values are for later versions."""
    reason: _Reason = ""
    """Reason of the failure."""


HANDED_OVER, DELIVERED, FAILED = range(3)


class Purge(msgspec.Struct, frozen=True, array_like=True, tag="p", gc=False):
    """Notice that a message to one of the author's own destinations has arrived, so that copies are useless.

    Earlier versions sent it to all nodes; it is still understood.
    """

    message: _Message


class Browse(msgspec.Struct, frozen=True, array_like=True, tag="b", gc=False):
    """Request of a node to see the messages that wait in a queue."""

    queue: _Name
    number: _Count
    """Number that the answer repeats."""
    selector: _Selector = ""
    key: _Key = b""
    """Public sealing key of the node that asks. Left out where security is off."""
    left_out: ClassVar[int] = 1


class Snapshot(msgspec.Struct, frozen=True, array_like=True, tag="s", gc=False):
    """A part of the answer to `Browse`: ids of the waiting messages, in order."""

    queue: _Name
    number: _Count
    """Number of the question."""
    taken_us: _Count
    """Time at which the manager took the snapshot, by its clock."""
    first: _Count
    """Index of the first entry of this part."""
    total: _Count
    """Number of entries in all parts."""
    messages: tuple[_Message, ...] = ()
    """Ids of the messages."""
    secrets: _Secrets = b""
    """Secrets of these messages, 32 bytes for each, wrapped together for the node that asked; zeros for a message that
    is not sealed. Left out if none is."""
    left_out: ClassVar[int] = 1


class Place(msgspec.Struct, frozen=True, array_like=True, tag="n", gc=False):
    """Request of a node that another node manage a queue."""

    queue: _Name
    number: _Count
    """Number that the answer repeats. Numbers of a node's later incarnations are higher."""
    until_us: _Count
    """Time until which the answer is awaited."""
    lease_us: _Count = 0
    """Time that a receiver has for a message before others may get it; 0: unlimited."""
    policy: _Name = "fair"
    """Name of the policy by which messages are handed out."""
    receivers: Annotated[tuple[_Node, ...], msgspec.Meta(max_length=RECEIVERS_MAX)] | None = None
    """Nodes that may receive from the queue besides its manager; nil: any node."""
    advertised: bool = True
    """False if the manager must not advertise the queue."""
    tries: _Count = 0
    """Number of deliveries after which a message becomes a dead letter; 0, which is left out: as settings say."""
    sealed: bool = False
    """True if the queue takes sealed messages alone. Left out otherwise."""
    left_out: ClassVar[int] = 2


class Placed(msgspec.Struct, frozen=True, array_like=True, tag="y", gc=False):
    """The answer to `Place`: the author manages the queue, or declines to."""

    number: _Count
    """Number of the question."""
    accepted: bool
    """True if the author manages the queue."""
    reason: _Reason = ""
    """Reason for declining."""


class Enrol(msgspec.Struct, frozen=True, array_like=True, tag="e", gc=False):
    """Subscription of a node to a topic, at its holder.

    Of all `Enrol` and `Leave` items of a node for one topic, the highest number counts.
    """

    topic: _Name
    """Name of the topic, without the holder's node."""
    number: _Number
    """Number chosen by the subscriber; it increases, also from one incarnation to the next."""
    durable: bool
    """False: the subscriber is served while there is a path to it, and dropped when there is none."""
    deadline_us: _Count
    """Time at which it ends unless it is renewed."""
    selector: _Selector = ""


class Leave(msgspec.Struct, frozen=True, array_like=True, tag="q", gc=False):
    """The end of a node's subscription to a topic."""

    topic: _Name
    """Name of the topic, without the holder's node."""
    number: _Number
    """Number higher than that of the last `Enrol`."""


class Discover(msgspec.Struct, frozen=True, array_like=True, tag="d", gc=False):
    """Request of a node to another, connected one for its names of topics and queues."""

    number: _Count
    """Number that the answer repeats. Numbers of a node's later incarnations are higher."""
    until_us: _Count
    """Time until which the answer is awaited."""


NameEntry = tuple[_Name, _Destination, Ordering]
"""A name, its destination, and the ordering with which the topic is opened."""


class Found(msgspec.Struct, frozen=True, array_like=True, tag="f", gc=False):
    """A part of the answer to `Discover`: names that the author advertises."""

    number: _Count
    """Number of the question."""
    first: _Count
    """Index of the first entry of this part."""
    total: _Count
    """Number of entries in all parts."""
    names: Annotated[tuple[NameEntry, ...], msgspec.Meta(max_length=NAMES_MAX)] = ()
    """Array for each name: the name, its destination, and the ordering of a topic."""


KINDS = (
    Ask, Withdraw, Assign, Gone, Acknowledge, Release, Outcome, Purge, Browse, Snapshot, Place, Placed, Enrol, Leave,
    Discover, Found,
)  # fmt: skip
Item = (
    Ask | Withdraw | Assign | Gone | Acknowledge | Release | Outcome | Purge | Browse | Snapshot | Place | Placed
    | Enrol | Leave | Discover | Found
)  # fmt: skip

_DATES: dict[type, tuple[str, ...]] = {
    Ask: ("deadline_us",), Assign: ("lease_us", "until_us"), Place: ("until_us",), Enrol: ("deadline_us",),
    Discover: ("until_us",),
}  # fmt: skip
"""Times in items. A node has them in its own time (`Holdings.own_time`), and sends them as dates."""
CONTROL = ItemKinds[Item](Item, address.control, lesser=(Outcome, Snapshot), dates=_DATES)
is_readable = CONTROL.is_readable
control_draft, items_of = CONTROL.draft, CONTROL.items_of
