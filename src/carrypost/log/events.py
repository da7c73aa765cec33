"""The events that the core reports to a driver.

Events are values, emitted once, in order of happening; those of one kind that happen together come as one burst, so
that a recorder can append them by columns. An event that depends on a batch is held back until that is durable.
"""

from __future__ import annotations

import enum
from typing import Annotated

import msgspec

from carrypost.model.descriptor import Descriptor
from carrypost.model.ids import MessageId, NodeId


class Reason(enum.StrEnum):
    """Reason for which a copy left the cache or was not admitted. Every drop has one and is counted under it."""

    EXPIRED = "expired"
    """The deadline of the message has passed."""
    EVICTED = "evicted"
    """Another message needed the room."""
    NO_ROOM = "no-room"
    """There is no room for the message, or for a further piece of it."""
    SHARE = "share"
    """The author, or the neighbour that sent the message, has more than its share of a full cache. The message is not
    admitted."""
    PAYLOAD_GONE = "payload-gone"
    """The store no longer has the payload."""
    UNREADABLE = "unreadable"
    """The payload does not expand to what the author declared."""
    WITHDRAWN = "withdrawn"
    """The application withdrew the message."""
    PENDING = "pending"
    """The message would have to wait for its predecessors, and too many messages wait already; or there are too many
    order groups; or its queue is full."""
    PURGED = "purged"
    """All recipients of the message have it, so carriers need it no more."""
    INCOMPLETE = "incomplete"
    """The contact ended, or the host crashed, before the message was whole, and `keep_partials` is false."""
    FORWARDED = "forwarded"
    """A neighbour has the message now, and this host keeps no copy of what it hands over."""
    DEAD_LETTER = "dead-letter"
    """No program could consume the message, and the queue of its dead letters is full."""
    UNREACHABLE = "unreachable"
    """The message is for connected recipients only, and the last one without a copy is not connected, or does not
    answer."""


class SendState(enum.IntEnum):
    """The progress of a message that was sent, as its sender knows it. It only rises."""

    DRAFTED = 0
    """The message waits for the commit of its transaction."""
    STORED = 1
    """The message is on this node."""
    CARRIED = 2
    """A neighbour has it, too."""
    EXPIRED = 3
    """The lifetime is over, and nothing was heard of a delivery."""
    FAILED = 4
    """The message was refused, or nothing was heard of it in time."""
    DELIVERED = 5
    """The receiver has the message."""

    def __str__(self) -> str:
        return self.name


class Reception(msgspec.Struct, frozen=True, gc=False):
    """A whole message is here for the first time."""

    descriptor: Descriptor
    hops: int
    """1: straight from the author."""
    age_ms: int


class Received(msgspec.Struct, frozen=True):
    """Messages that became whole in one exchange step with one neighbour. Never the host's own."""

    peer: NodeId
    receptions: tuple[Reception, ...]
    path: tuple[NodeId, ...] = ()
    """The relays between, if `peer` is no neighbour."""


class Passed(msgspec.Struct, frozen=True):
    """A neighbour acknowledged whole messages that this host sent to it. Emitted only after `Host.trace`."""

    peer: NodeId
    descriptors: tuple[Descriptor, ...]


class Delivery(msgspec.Struct, frozen=True, gc=False):
    """One message for the local application."""

    descriptor: Descriptor
    subscriptions: tuple[int, ...]
    """None: only messaging has a claim to it, and hands it over by itself (`Handed`); or it only joins others."""
    redelivered: bool
    hops: int = 0
    """0: published here; 1: straight from the author."""
    known: bool = False
    """True if the claim of messaging was reported as a delivery before, so that a record counts no other one."""
    confirmed: bool = False
    """True if all that asked for the message are confirmed by their deliveries: it is reported once, and never
    again."""
    predecessors_lost: int = 0
    """Causal order: number of messages that it depends on directly and that expired before they were delivered
    here."""

    @property
    def message(self) -> MessageId:
        """Id to confirm."""
        return self.descriptor.id


class Delivered(msgspec.Struct, frozen=True):
    """Messages for the local application, each once; to be answered by `confirm`, unless they are confirmed already.

    Their payload is in the store.
    """

    deliveries: tuple[Delivery, ...]


class Confirmed(msgspec.Struct, frozen=True):
    """The report that confirmations are durable: the messages will never be delivered again."""

    messages: tuple[MessageId, ...]


class Published(msgspec.Struct, frozen=True):
    """A message of this host is in its cache.

    Emitted at once, before its consequences; `Stored` or `Failed` follows.
    """

    descriptor: Descriptor


class Stored(msgspec.Struct, frozen=True):
    """A send is complete: the message is in the store (PERSISTENT: safe from the loss of power)."""

    message: MessageId


class HostLost(msgspec.Struct, frozen=True):
    """The store could not write a batch: the host is over, and its driver restores another one from the store."""

    reason: str


class Dropped(msgspec.Struct, frozen=True):
    """Copies leave the cache. Given before the removal is durable; the descriptors are still whole."""

    descriptors: tuple[Descriptor, ...]
    reason: Reason


class Expired(msgspec.Struct, frozen=True):
    """Messages that were received and will never be delivered: they died while they waited for their predecessors.

    For a copy that leaves for that reason this is emitted instead of `Dropped`.
    """

    descriptors: tuple[Descriptor, ...]


class Refused(msgspec.Struct, frozen=True):
    """A refusal of something that a peer sent: `count` times, for `reason`; with the `message`, if it is known."""

    reason: str
    peer: str
    count: int = 1
    message: str | None = None


ERROR_MAX = 256
"""Characters of the error of a dead letter."""


class DeadLetter(msgspec.Struct, frozen=True, array_like=True):
    """The history of a message that is a dead letter."""

    source: Annotated[str, msgspec.Meta(max_length=512)]
    """The queue or topic that it comes from, as programs write it."""
    tries: Annotated[int, msgspec.Meta(ge=0, le=2**53)]
    """Number of times that it was delivered there."""
    error: Annotated[str, msgspec.Meta(max_length=ERROR_MAX)]
    """The last error of a program that failed with it; what is known otherwise."""


class Handed(msgspec.Struct, frozen=True):
    """A message for one consumer of messaging, within its credit. Its payload is in the store."""

    consumer: int
    number: int
    """By which it is acknowledged, or given back; rises with everything that this host hands over."""
    descriptor: Descriptor
    count: int
    """Number of times that it was handed over for this subscription, this time included."""
    hops: int = 0
    unordered: bool = False
    """True if it has no place in the order that the topic was opened with."""
    out_of_order: bool = False
    """True if it came after a message that the same session sent later to the same destination."""
    alone: bool = False
    """An earlier life had it, and perhaps ended because of it: its session is handed nothing else before it is
    acknowledged, or given back, or the session goes on."""
    lease_us: int = 0
    """Time at which the queue may assign it to another receiver; 0: never."""
    giver: NodeId | None = None
    """The neighbour that gave it to this host; None if it was published here."""
    events_lost: int = 0
    """Events of its channel that are missing before it."""
    predecessors_lost: int = 0
    """Causal order: number of messages that it depends on directly and that expired before they were delivered
    here."""
    tries: int = 0
    """Number of deliveries after which it becomes a dead letter, if its queue says so; 0: as the settings say."""
    letter: DeadLetter | None = None
    """History of the message, if it is a dead letter."""

    @property
    def message(self) -> MessageId:
        """The message's id."""
        return self.descriptor.id


class GivenUp(msgspec.Struct, frozen=True):
    """A message for a consumer was handed over too often before: it is a dead letter instead."""

    consumer: int
    descriptor: Descriptor
    count: int
    """Number of times that it was handed over for this subscription."""


class ClaimLost(msgspec.Struct, frozen=True):
    """A subscription of messaging will not get a message that it was owed: the copy is gone before its time."""

    subscription: str
    """Name of the subscription; of a live one, the destination."""
    descriptor: Descriptor
    reason: Reason
    client: str = ""
    """The client id that the subscription belongs to."""
    durable: bool = False


class Unserved(msgspec.Struct, frozen=True):
    """A consumer whose subscription is not durable gets nothing further: its holder cannot be reached any more."""

    consumer: int
    destination: str
    """Of publications to the topic."""


class Done(msgspec.Struct, frozen=True):
    """A work, or a command of messaging, is durable."""

    number: int


TIMEOUT = "timeout"
"""Why a message failed of whose delivery nothing was heard for as long as its sender would wait."""


class Receipt(msgspec.Struct, frozen=True):
    """The progress of a message that a program of this node sent with a request for receipts."""

    message: MessageId
    state: SendState
    handed_over: bool = False
    """The manager of its queue has it."""
    reason: str = ""
    """Why it failed."""
    label: str = ""
    """Name that the program gave it, if any."""
    rose: bool = True
    """True if the state is new. Otherwise the hand-over is, or this is the last receipt, or a program asked."""
    last: bool = False
    """Nothing more will be heard of it."""
    acknowledged: tuple[NodeId, ...] = ()
    """The recipients that have it, in the order in which that was heard, if it lists its recipients."""


class Acknowledged(msgspec.Struct, frozen=True):
    """A recipient has a persistent message that this host sent: emitted once for each."""

    message: MessageId
    recipient: NodeId
    left: tuple[NodeId, ...]
    """The recipients that did not say so yet."""
    label: str = ""
    """Label that its user gave it, if any."""


class Assigned(msgspec.Struct, frozen=True):
    """A queue of this node gave a message to a receiver, here or elsewhere."""

    descriptor: Descriptor
    receiver: NodeId


class Browsed(msgspec.Struct, frozen=True):
    """A part of what waits in the queue of another node, in the order in which it would be given out."""

    number: int
    """Of the browsing (`commands.Browsing`)."""
    descriptors: tuple[Descriptor, ...]
    """Descriptors that have arrived and were not reported before. Their payloads are in the store."""
    taken_us: int
    """Time at which the manager took the snapshot, by its clock."""
    complete: bool
    """Nothing more follows."""


class Advertised(msgspec.Struct, frozen=True):
    """A name can be looked up here that could not before, or has another destination: bound here, or by others."""

    name: str
    destination: str
    """Empty: a context."""


class NeighbourUp(msgspec.Struct, frozen=True):
    """A link that works in both directions."""

    node: NodeId


class NeighbourDown(msgspec.Struct, frozen=True):
    """Such a link ended."""

    node: NodeId


class OneWay(msgspec.Struct, frozen=True):
    """A node is heard that does not hear this one: detected, not used."""

    node: NodeId


class Reachable(msgspec.Struct, frozen=True):
    """A host can be reached, and has been for a second."""

    node: NodeId
    hops: int


class Unreachable(msgspec.Struct, frozen=True):
    """A host cannot be reached any more, and could not for a second."""

    node: NodeId


class LayerEvent(msgspec.Struct, frozen=True):
    """Base of the events that layers bring: one that a host has by `Host(layers=)` may emit events of its own."""


class OverlayState(msgspec.Struct, frozen=True):
    """A subscription to a channel, as its consumer knows it."""

    home: NodeId | None = None
    """Broker that works for it; None while there is none."""
    hops: int | None = None
    """Hops to that broker; None if it cannot be reached."""
    epoch: int = 0
    """Number of its seats so far."""
    events: int = 0
    """Events that its results covered."""
    faults: int = 0
    """Number of these that the modulator failed with."""
    busy_us: int = 0
    """Execution time of the modulator for these."""
    refusal: str = ""
    """Reason why the broker that was asked last refused to be its home; empty if it did not."""
    detail: str = ""
    """More of it, for people: what is wrong with the modulator."""
    discarded: int = 0
    """Results that the modulator refused to keep while this consumer could not be reached."""
    fault: str = ""
    """The last error of the modulator, and the line that raised it; empty if it never failed."""


class OverlayTold(LayerEvent, frozen=True):
    """A consumer of a channel has another home, or results of more events."""

    consumer: int
    state: OverlayState


class PayloadWanted(LayerEvent, frozen=True):
    """A layer wants the payload of a message that is here: the driver reads it, and calls `Host.payload_read`."""

    descriptor: Descriptor


Event = (
    Received | Passed | Delivered | Confirmed | Published | Stored | HostLost | Dropped | Expired | Refused
    | Handed
    | GivenUp | ClaimLost | Unserved | Done | Receipt | Acknowledged | Assigned | Browsed | Advertised
    | NeighbourUp
    | NeighbourDown | OneWay | Reachable | Unreachable | LayerEvent
)  # fmt: skip
