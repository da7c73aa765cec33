"""Control messages of queues: items, many of which travel in one message.

A control message has no payload: its content is `Headers.control`, a list of items. Its author, which signed it,
determines what it may ask for. Every item may come twice, late, or after a later one: it is still true then, or does
nothing. So rounds are named where a message may be assigned again, and credit is the total granted so far.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from carrypost.local.control import ItemKinds
from carrypost.model import address
from carrypost.model.descriptor import Ordering
from carrypost.model.headers import DESTINATION_MAX
from carrypost.model.ids import NodeId
from carrypost.model.times import TIME_US_MAX
from carrypost.mom.admission import RECEIVERS_MAX
from carrypost.mom.incarnations import NUMBER_MAX

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
"""A number that tells the life of its node (`mom.incarnations`)."""
_Destination = Annotated[str, msgspec.Meta(min_length=1, max_length=DESTINATION_MAX)]
_Node = Annotated[NodeId, msgspec.Meta(min_length=1, max_length=DESTINATION_MAX)]
_Reason = Annotated[str, msgspec.Meta(max_length=REASON_MAX)]
NAMES_MAX = 256
"""Names in one answer to a discovery: as many as a node may have."""
STRETCHES_MAX = 256
"""Numbers are told as stretches of them, so many at most. With the longest name they fit into a control message."""


class Ask(msgspec.Struct, frozen=True, array_like=True, tag="r", gc=False):
    """A receiver asks a queue for messages; a later one of the same number may grant more credit, and lasts longer."""

    queue: _Name
    number: _Number
    """The receiver's own. Those of a node's later lives are higher."""
    credit: _Count
    """Number of messages that it takes in all, since the demand began."""
    deadline_us: _Count
    """Until when it stands, unless it is renewed."""
    selector: _Selector = ""
    heard: _Count = 0
    """Number up to which it knows all its assignments."""


class Withdraw(msgspec.Struct, frozen=True, array_like=True, tag="w", gc=False):
    """A demand stands no more. What was assigned to it is not touched by that."""

    queue: _Name
    number: _Number
    """Of the demand."""


class Assign(msgspec.Struct, frozen=True, array_like=True, tag="a", gc=False):
    """A message of a queue belongs to a receiver now."""

    queue: _Name
    message: _Message
    demand: _Number
    """The number of the demand that it is assigned to."""
    round: _Count
    """Number of times that it was assigned, this time included: an answer names it."""
    count: _Count = 0
    """Number of times that it may have been handed over before."""
    lease_us: _Count = 0
    """Until when; 0: for good."""
    until_us: _Count = 0
    """The message's own deadline; 0: it has none."""
    again: bool = False
    """True if it was sent before, and not answered: a receiver that answered does so again."""
    number: _Count = 0
    """Place among the assignments of that demand, from 1; 0: unknown."""


class Gone(msgspec.Struct, frozen=True, array_like=True, tag="g", gc=False):
    """Assignments of a demand that ended without an answer: their messages expired, or their leases ended."""

    queue: _Name
    demand: _Number
    """The number of the demand."""
    numbers: Annotated[tuple[_Count, ...], msgspec.Meta(max_length=2 * STRETCHES_MAX)] = ()
    """Of the assignments: first and last of each stretch of them, in turn."""
    known: bool = False
    """True if this is the receiver's answer: it had heard of all of them."""


class Acknowledge(msgspec.Struct, frozen=True, array_like=True, tag="k", gc=False):
    """The receiver of a message is done with it."""

    message: _Message
    round: _Count
    """For which it is said."""


class Release(msgspec.Struct, frozen=True, array_like=True, tag="l", gc=False):
    """A receiver does not take a message that was assigned to it: nobody there saw it, or nobody can consume it."""

    message: _Message
    round: _Count
    """For which it is said."""
    count: _Count = 0
    """Number of times that it was handed over."""
    dead: bool = False
    """True if its programs failed with it too often."""


class Outcome(msgspec.Struct, frozen=True, array_like=True, tag="o", gc=False):
    """The outcome of a message, sent to its author."""

    message: _Message
    kind: Annotated[int, msgspec.Meta(ge=0, le=255)]
    """0: its manager has it; 1: it was consumed; 2: it failed. Others are a later version's."""
    reason: _Reason = ""
    """Why it failed."""


HANDED_OVER, DELIVERED, FAILED = range(3)


class Purge(msgspec.Struct, frozen=True, array_like=True, tag="p", gc=False):
    """Notice that a message to one of the author's own destinations has arrived, so that copies are useless.

    Earlier versions sent it to everybody; it is still understood.
    """

    message: _Message


class Browse(msgspec.Struct, frozen=True, array_like=True, tag="b", gc=False):
    """Request of a node to see the messages that wait in a queue."""

    queue: _Name
    number: _Count
    """By which the answer is known."""
    selector: _Selector = ""


class Snapshot(msgspec.Struct, frozen=True, array_like=True, tag="s", gc=False):
    """A part of the answer: ids of what waits, in order."""

    queue: _Name
    number: _Count
    """Of the question."""
    taken_us: _Count
    """Time at which the manager took the snapshot, by its clock."""
    first: _Count
    """The place of the first of these."""
    total: _Count
    """Number of them in all parts."""
    messages: tuple[_Message, ...] = ()
    """Their ids."""


class Place(msgspec.Struct, frozen=True, array_like=True, tag="n", gc=False):
    """A node asks another one to manage a queue."""

    queue: _Name
    number: _Count
    """By which the answer is known. Those of a node's later lives are higher."""
    until_us: _Count
    """Time until which the answer is awaited."""
    lease_us: _Count = 0
    """Time that a receiver has for a message before others may get it; 0: nobody else ever does."""
    policy: _Name = "fair"
    """Name of the policy by which messages are handed out."""
    receivers: Annotated[tuple[_Node, ...], msgspec.Meta(max_length=RECEIVERS_MAX)] | None = None
    """Nodes that may receive from it beside its manager; None: anyone."""
    advertised: bool = True
    """False: the manager tells nobody of it."""


class Placed(msgspec.Struct, frozen=True, array_like=True, tag="y", gc=False):
    """The answer: the author manages the queue, or declines to."""

    number: _Count
    """Of the question."""
    accepted: bool
    reason: _Reason = ""
    """The reason why it declines."""


class Enrol(msgspec.Struct, frozen=True, array_like=True, tag="e", gc=False):
    """A node subscribes to a topic, at its holder; of all that it says of one topic the highest number counts."""

    topic: _Name
    """Name of the topic, without the holder's node."""
    number: _Number
    """The subscriber's own, which rises, over its lives, too."""
    durable: bool
    """False: it is served while there is a path to it, and dropped when there is none."""
    deadline_us: _Count
    """Until when it stands, unless it is renewed."""
    selector: _Selector = ""


class Leave(msgspec.Struct, frozen=True, array_like=True, tag="q", gc=False):
    """A node does not subscribe to a topic any more."""

    topic: _Name
    number: _Number
    """Higher than that of its last `Enrol`."""


class Discover(msgspec.Struct, frozen=True, array_like=True, tag="d", gc=False):
    """A node asks another one, with which it is connected, for its names of topics and queues."""

    number: _Count
    """By which the answer is known. Those of a node's later lives are higher."""
    until_us: _Count
    """Time until which the answer is awaited."""


Told = tuple[_Name, _Destination, Ordering]
"""A name, what it stands for, and how the topic is opened."""


class Found(msgspec.Struct, frozen=True, array_like=True, tag="f", gc=False):
    """A part of the answer: names that the author advertises."""

    number: _Count
    """Of the question."""
    first: _Count
    """The place of the first of these."""
    total: _Count
    """Number of them in all parts."""
    names: Annotated[tuple[Told, ...], msgspec.Meta(max_length=NAMES_MAX)] = ()
    """Each an array: the name, the destination that it stands for, and the ordering of a topic."""


KINDS = (
    Ask, Withdraw, Assign, Gone, Acknowledge, Release, Outcome, Purge, Browse, Snapshot, Place, Placed, Enrol, Leave,
    Discover, Found,
)  # fmt: skip
Item = (
    Ask | Withdraw | Assign | Gone | Acknowledge | Release | Outcome | Purge | Browse | Snapshot | Place | Placed
    | Enrol | Leave | Discover | Found
)  # fmt: skip

CONTROL = ItemKinds[Item](Item, address.control, lesser=(Outcome, Snapshot))
is_readable = CONTROL.is_readable
control_draft, items_of = CONTROL.draft, CONTROL.items_of
