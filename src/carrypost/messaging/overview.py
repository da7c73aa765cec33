"""Overviews of messaging on one node, as values."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from carrypost.model.ids import NodeId

NAMES_TOLD = 10
"""Number of names of one kind that are shown."""


class MessagingOverview(NamedTuple):
    """The state of messaging, for people."""

    subscriptions: int
    durable: int
    consumers: int
    claims: int
    pinned: int
    """Number of copies pinned for claims."""
    lost: int
    """Claims whose copies left before they were acknowledged or dead."""
    queues: int = 0
    """Number of queues that this node manages."""
    entries: int = 0
    """Messages in those queues, assigned ones included."""
    receiving: int = 0
    """Number of consumers of queues, here and elsewhere."""
    unattended: tuple[str, ...] = ()
    """Queues of this node in which messages wait without a receiver; not all, if there are many."""
    lapsing: tuple[tuple[str, int], ...] = ()
    """Unused durable subscriptions and the ends of their leases; the first of them."""
    circles: tuple[tuple[str, int, str], ...] = ()
    """Circles: name, number of listed members, and what is wrong: "key" (the secret of the present epoch is missing),
    "removed" (this node was), "overdue" (no charter came for long), or nothing."""


# --- everything, for pages and `carrypost status --messaging` --------------------------------------------------------

# All times are dates in microseconds, None where there is none. Of each kind at most `SHOWN_MAX` are listed.

SHOWN_MAX = 1_000
NODES_SHOWN = 20
"""Number of nodes that are listed of one send."""


class DemandView(msgspec.Struct, frozen=True):
    """An open demand at a queue: a consumer here or elsewhere."""

    node: NodeId
    credit: int
    """Number of messages that it takes in all."""
    taken: int
    """Number of these that were assigned to it."""
    silent: bool
    """True if a lease of its ended in silence: nothing is assigned to it until it is heard of again."""
    selector: str


class AssignedView(msgspec.Struct, frozen=True):
    """Messages of a queue that are assigned to another node."""

    node: NodeId
    messages: int
    lease_us: int | None
    """End of the first of their leases; None: they are assigned for good."""


class QueueView(msgspec.Struct, frozen=True):
    """One queue of this node."""

    name: str
    """The queue as programs write it."""
    waiting: int
    """Messages that no program has, also those that came back from a consumer here."""
    delayed: int
    """Messages whose delivery time has not come, or that a program deferred."""
    handed: int
    """Messages that a consumer here has and did not acknowledge yet."""
    assigned: tuple[AssignedView, ...]
    bytes: int
    messages_max: int
    bytes_max: int
    demands: tuple[DemandView, ...]
    oldest_us: int | None
    """Time at which the message was sent that has been in the queue for longest."""
    redelivery: str
    lease_us: int
    letters_of: str
    """The destination whose dead letters it has; empty if it is another queue."""
    temporary: bool


class HeldTopicView(msgspec.Struct, frozen=True):
    """A topic that this node holds."""

    name: str
    subscribers: int
    nodes: tuple[tuple[NodeId, int | None, str], ...]
    """Subscribers: node, end of the subscription, and selector; the first of them."""


class SubscriptionView(msgspec.Struct, frozen=True):
    """A subscription of this node."""

    name: str
    client: str
    selector: str
    durable: bool
    shared: bool
    waiting: int
    handed: int
    consumers: int
    lease_us: int | None
    """Time at which it ends if it is not used."""


class SendView(msgspec.Struct, frozen=True):
    """A message of this node that is followed until its delivery."""

    message: str
    label: str
    destination: str
    sent_us: int
    expires_us: int | None
    state: str
    handed_over: bool
    """True if the manager of its queue has it."""
    reason: str
    left: int
    """Number of recipients without an acknowledgement, if it lists any."""
    left_nodes: tuple[NodeId, ...]
    acknowledged: int
    acknowledged_nodes: tuple[NodeId, ...]


class EntryView(msgspec.Struct, frozen=True):
    """A message in a queue of this node."""

    queue: str
    state: str
    """waiting, delayed, handed or assigned."""
    receiver: NodeId
    """Node that it is assigned to; empty: none."""
    assigned_us: int | None
    lease_us: int | None
    tries: int
    """Number of times that it may have been handed over."""
    error: str
    """The last error, if it is a dead letter."""
    consumers: int
    """Demands at its queue, without those of silent nodes."""
    silent: tuple[NodeId, ...]
    """Nodes that let leases end in silence."""


class MessagingView(msgspec.Struct, frozen=True):
    """All of messaging on one node."""

    now_us: int
    counts: dict[str, int]
    """Number of each kind, also beyond those that are listed."""
    queues: tuple[QueueView, ...]
    held: tuple[HeldTopicView, ...]
    subscriptions: tuple[SubscriptionView, ...]
    sends: tuple[SendView, ...]
    """The newest is first."""
