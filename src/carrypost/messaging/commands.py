"""Commands of programs to their node, as tagged values: one class each, with the type of its answer.

A command passes unchanged from the objects of a program to the part of messaging that does it (`messaging.messaging`),
over a node's socket as well: there, all of them are one tagged union. Each field is a value that can be encoded. The
values in commands and answers come first: subscriptions, queues, units of work.
"""

from __future__ import annotations

import enum
from collections.abc import Collection
from typing import ClassVar, Final, Generic, TypeVar

import msgspec

from carrypost.application.circle_state import CircleView
from carrypost.gossip.draft import Draft
from carrypost.log.events import LayerEvent
from carrypost.log.journal import Durability
from carrypost.messaging.namespace import Bind, Binding
from carrypost.model.address import Kind
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


class PlaceAnswered(LayerEvent, frozen=True):
    """The answer of a node that was asked to manage a queue, or the report that none came in time."""

    number: int
    """Number of the command that asked."""
    accepted: bool = False
    reason: str | None = None
    """The reason why the node declines; None if it accepted, or did not answer."""


class Discovered(LayerEvent, frozen=True):
    """The end of a discovery: all nodes answered, or its time is over."""

    number: int
    """Number of the command that began it."""
    names: tuple[Binding, ...] = ()
    """Names of this node and of all that answered, in full: ``NAME@NODE``."""
    silent: tuple[NodeId, ...] = ()
    """The nodes that were asked and did not answer."""


# --- commands ---------------------------------------------------------------------------------------------------------

R = TypeVar("R")
Numbers = Collection[int]
"""Numbers under which messages were handed over. A field `unread` has those that the program never saw."""


class Command(msgspec.Struct, Generic[R], frozen=True, array_like=True, gc=False):
    """A command, whose answer is of the type R."""

    links: ClassVar[bool] = False
    """True if it may concern neighbours at once."""
    numbered: ClassVar[bool] = False
    """True if it has a number, by which an event answers it."""
    durable: ClassVar[bool] = False
    """True if it changes durable state: that event is `Done`."""
    patient: ClassVar[bool] = False
    """True if it changes nothing, so that nothing waits for the disk."""


class Near(Command[R], frozen=True):
    """A command that may concern neighbours at once."""

    links: ClassVar[bool] = True


class Question(Command[R], frozen=True):
    """A command that changes nothing."""

    patient: ClassVar[bool] = True


class Durable(Near[R], frozen=True):
    """A command that changes durable state."""

    numbered: ClassVar[bool] = True
    durable: ClassVar[bool] = True


class Noted(Durable[R], frozen=True):
    """A command that changes durable state, and concerns no neighbours."""

    links: ClassVar[bool] = False


# --- programs ------------------------------------------------------------------------------------------------


class Connect(Command[int], frozen=True, tag="connect"):
    """Open a program's connection, with its client id if it has one; return its number."""

    client: str = ""


class Disconnect(Near[None], frozen=True, tag="disconnect"):
    """Close a connection with its sessions, and return unacknowledged messages."""

    connection: int
    unread: Numbers = ()
    crashed: bool = False
    """True if the program ended without closing: the messages that it saw come again one at a time, as after a crash of
    the node, since one of them may be the cause."""


class OpenSession(Command[int], frozen=True, tag="open_session"):
    """Open a session of a connection; return its number."""

    connection: int


class CloseSession(Near[None], frozen=True, tag="close_session"):
    """Close a session and its consumers; drop its drafts, and return what it did not acknowledge."""

    session: int
    unread: Numbers = ()


class Recover(Command[int], frozen=True, tag="recover"):
    """Have everything redelivered that a session has not acknowledged, or only these `numbers`.

    The answer is the last number under which anything was handed over before: what is on its way comes again, too.
    """

    session: int
    unread: Numbers = ()
    numbers: Numbers | None = None


class Rollback(Command[int], frozen=True, tag="rollback"):
    """Drop a session's drafts, and return what it has not acknowledged; the answer is as that of `Recover`."""

    session: int
    unread: Numbers = ()


class KeepDraft(Command[tuple[int, Descriptor | None]], frozen=True, tag="draft"):
    """Keep a message for a unit of work; return the draft's number, and its descriptor unless it has an order."""

    session: int
    draft: Draft


class Follow(Command[Followed | None], frozen=True, tag="followed"):
    """Return the state of a tracked message of this node, or None; `Receipt` reports its progress."""

    session: int
    message: MessageId


# --- consumers -----------------------------------------------------------------------------------------------


class Consume(Durable[int], frozen=True, tag="consume"):
    """Open a consumer of a new subscription, or of an existing one, or of a queue; return its number."""

    session: int
    asked: Subscribe | Receive


class Credit(Command[None], frozen=True, tag="credit"):
    """Raise the credit of a consumer by messages and bytes. Not answered; ignored for a consumer that is gone."""

    consumer: int
    messages: int
    nbytes: int


class GoOn(Command[None], frozen=True, tag="go_on"):
    """Hand a session more, although it did not acknowledge the message that came alone. Not answered."""

    session: int


class Announce(Command[None], frozen=True, tag="announce"):
    """Note that a program is about to get a message of a consumer, and perhaps those behind it, up to `through`.

    Later ones the program has not seen, even if it is killed.
    """

    consumer: int
    number: int
    through: int


class CloseConsumer(Near[None], frozen=True, tag="close_consumer"):
    """Close a consumer. What its program saw stays with the session; what is `unread` is returned."""

    consumer: int
    unread: Numbers = ()


class Modulate(Durable[None], frozen=True, tag="modulate"):
    """Give a consumer of a channel another modulator, as encoded by the overlay; empty: none."""

    consumer: int
    modulator: bytes


class Unsubscribe(Durable[None], frozen=True, tag="unsubscribe"):
    """End a durable subscription for good, with everything that waits for it."""

    client: str
    name: str


class ReadPayload(Command[bytes | None], frozen=True, tag="payload"):
    """Return the body of a message that was handed over; None if it is gone."""

    wire: bytes
    """Descriptor of the message, as values of the socket have it."""


class MakeCard(Durable[str], frozen=True, tag="card"):
    """Return the card of this node, with its sealing key."""


class FoundCircle(Durable[NodeId], frozen=True, tag="found_circle"):
    """Found a circle; return its id."""

    name: str


class InviteToCircle(Durable[str], frozen=True, tag="invite_to_circle"):
    """Return the code of an invitation to a circle of this node."""

    circle: str
    card: str | None = None
    """Card of the one node that it is for; None: any."""
    days: float = 30.0
    fresh: bool = False
    """Begin an epoch first, so that the newcomer reads nothing older."""


class JoinCircle(Durable[str], frozen=True, tag="join_circle"):
    """Join the circle of a code; return its name here."""

    code: str
    root: str = ""
    """Root of the circle, which makes this node an owner; empty: a member."""


class RemoveFromCircle(Durable[None], frozen=True, tag="remove_from_circle"):
    """Remove a node from a circle."""

    circle: str
    node: NodeId


class RotateCircle(Durable[None], frozen=True, tag="rotate_circle"):
    """Begin a new epoch of a circle."""

    circle: str


class LeaveCircle(Durable[None], frozen=True, tag="leave_circle"):
    """Leave a circle, and delete its secrets here."""

    circle: str


class ExportCircle(Question[str], frozen=True, tag="export_circle"):
    """Return the seed of the root of a circle."""

    circle: str


class ShowCircles(Question[tuple[CircleView, ...]], frozen=True, tag="show_circles"):
    """Return the circles of this node."""


class AddCard(Durable[NodeId], frozen=True, tag="add_card"):
    """Learn the sealing key of another node from its card; return the node."""

    card: str


class Release(Durable[str], frozen=True, tag="release"):
    """Release messages that a session does not take any more; `dead`: make dead letters of them, with this error.

    The answer is the address of the queue that the last dead letter enters, or an empty text.
    """

    session: int
    numbers: Numbers
    dead: bool = False
    error: str = ""


class Defer(Durable[None], frozen=True, tag="defer"):
    """Return the message that a session has under this number, to come again only after a delay."""

    session: int
    number: int
    delay_us: int


class Retry(Noted[int], frozen=True, tag="retry"):
    """Count another try of the message that a session has under this number.

    The answer is the number of tries, or 0 if the session does not have it any more.
    """

    session: int
    number: int


# --- queues and topics ---------------------------------------------------------------------------------------


class DeclareQueue(Durable[str], frozen=True, tag="declare"):
    """Declare a queue that this node manages, unless it does already; return its destination."""

    asked: Declare


class EndQueue(Durable[None], frozen=True, tag="end_queue"):
    """End a queue of this node, with its names here: senders of messages in it are informed that these failed."""

    destination: str


class DeclareTopic(Durable[str], frozen=True, tag="declare_topic"):
    """Hold a topic on this node, unless it does already; return its destination."""

    name: str


class EndTopic(Durable[None], frozen=True, tag="end_topic"):
    """Stop holding a topic of this node, and unbind its names here."""

    destination: str


class Browse(Near[Browsing], frozen=True, tag="browse"):
    """Return the messages that wait in a queue: at once if this node is its manager, else by `Browsed`."""

    session: int
    destination: str
    selector: str | None = None


class ReceiveCounts(Question[dict[NodeId, int]], frozen=True, tag="receive_counts"):
    """Return the number of messages that nodes consumed from the queues of a name, as far as this node knows."""

    name: str


class AskToManage(Near[PlaceAnswered], frozen=True, tag="ask_to_manage"):
    """Ask another node to manage a queue; the answer is its own, or that none came in time."""

    numbered: ClassVar[bool] = True
    asked: Declare
    node: NodeId
    timeout_us: int
    advertise: bool = True


class RememberRequest(Noted[None], frozen=True, tag="remember_request"):
    """Remember a request that a program is about to send, and whose reply it awaits until a deadline, a date."""

    correlation: str
    deadline_us: int


class ForgetRequest(Noted[None], frozen=True, tag="forget_request"):
    """Forget a request that has its reply, or was never sent."""

    correlation: str


class OpenRequests(Question[tuple[OpenRequest, ...]], frozen=True, tag="open_requests"):
    """Return the requests of this node that have no reply yet."""


# --- names ---------------------------------------------------------------------------------------------------


class BindName(Durable[None], frozen=True, tag="bind"):
    """Bind a name to a destination, or make a context."""

    asked: Bind


class Unbind(Durable[None], frozen=True, tag="unbind"):
    """Unbind a name, and end a queue of this node with its last name; `context`: remove an empty context."""

    name: str
    context: bool = False


class Lookup(Question[Binding], frozen=True, tag="lookup"):
    """Return the binding of a name, `kind`: only of this kind; wait this long for an advertisement."""

    name: str
    kind: Kind | None = None
    timeout_s: float = 0.0


class Discover(Near[Discovered], frozen=True, tag="discover"):
    """Ask all nodes that this one is connected with for their names; the answer is what they said in time."""

    timeout_us: int


class Entries(Question[list[Binding]], frozen=True, tag="entries"):
    """Return the bindings in a context, by name; the root is an empty text."""

    context: str
