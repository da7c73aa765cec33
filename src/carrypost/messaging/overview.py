"""Overviews and views of messaging for people: its queues, held topics, subscriptions and sends at one moment.

The values come first. `Views` makes those that show everything: it reads what the parts of messaging own, and changes
nothing, so it is no step of the host. Its cost grows with the number of queues and sends, not with that of waiting
messages. `Messaging.overview` makes the short one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from carrypost.messaging.claim_and_claimant import ClaimState
from carrypost.messaging.namespace import source_of
from carrypost.messaging.queues.entries import EntryState
from carrypost.model import address, ids
from carrypost.model.ids import MessageId, NodeId
from carrypost.model.times import NEVER

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from carrypost.gossip.holdings.holdings import Holdings
    from carrypost.messaging.claim_and_claimant import Subscription
    from carrypost.messaging.claims import Claims
    from carrypost.messaging.held_topics import HeldTopic
    from carrypost.messaging.queues.entries import QueueEntry
    from carrypost.messaging.queues.queue import Queue
    from carrypost.messaging.queues.queues import Queues
    from carrypost.messaging.receipts import Receipts, Send
    from carrypost.messaging.sessions import Sessions
    from carrypost.messaging.subscriptions import Topics


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


# Pages ask once a second, mostly for the same names: to make them anew is half of the work.
_written: Callable[[str], str] = lru_cache(4 * SHOWN_MAX)(address.written)
_shown: Callable[[MessageId], str] = lru_cache(4 * SHOWN_MAX)(ids.shown)


class Viewed(NamedTuple):
    """The parts of messaging that views show."""

    queues: Queues
    topics: Topics
    receipts: Receipts
    sessions: Sessions
    claims: Claims


class Views:
    """The views of messaging on one host at one moment."""

    def __init__(self, parts: Viewed, holdings: Holdings, node: NodeId) -> None:
        self._on, self._node = parts, node
        self._date_of, self._now = holdings.date_of, holdings.now_us

    def everything(self) -> MessagingView:
        """Return everything, at most `SHOWN_MAX` of each kind."""
        on = self._on
        queues, held = list(on.queues.manager.declared), list(on.queues.holder.enrolled)
        subscriptions = list(on.topics)
        handed_by_queue, handed = self._handed()
        return MessagingView(
            now_us=self._date_of(self._now),
            counts={
                "queues": len(queues), "held": len(held), "subscriptions": len(subscriptions),
                "sends": len(on.receipts),
            },
            queues=tuple(self._queue(each, handed_by_queue[each.destination]) for each in queues[:SHOWN_MAX]),
            held=tuple(map(self._held, held[:SHOWN_MAX])),
            subscriptions=tuple(self._subscription(each, handed[each.number]) for each in subscriptions[:SHOWN_MAX]),
            sends=tuple(self._send(*each) for each in islice(on.receipts.newest(), SHOWN_MAX)),
        )  # fmt: skip

    def sends_named(self, names: Collection[str]) -> list[SendView]:
        """Return the followed sends with one of these names as their id or label."""
        found = self._on.receipts.newest()
        return [self._send(*each) for each in found if each[1].label in names or _shown(each[0]) in names]

    def entries_of(self, message: MessageId) -> list[EntryView]:
        """Return the entries that queues of this node have of a message."""
        manager = self._on.queues.manager
        found = [(manager.declared.numbered(each.queue_number), each) for each in manager.entries_of(message)]
        return [self._entry(queue, entry) for queue, entry in found if queue is not None]

    # --- queues --------------------------------------------------------------------------------------------

    def _handed(self) -> tuple[Counter[str], Counter[int]]:
        """Return the number of messages that programs here have, by queue and by subscription."""
        queues: Counter[str] = Counter()
        claimants: Counter[int] = Counter()
        for session in self._on.sessions:
            for claim in session.handed.values():
                claimants[claim.claimant.number] += 1
                if claim.tenure is not None and claim.tenure.runs(self._now):
                    queues[claim.tenure.queue] += 1
        return queues, claimants

    def _queue(self, queue: Queue, handed: int) -> QueueView:
        asked, (room, messages_max, bytes_max) = queue.asked, self._on.queues.manager.bounds.room_of(queue)
        held = dict(queue.held())
        here = held.pop(self._node, 0)
        deferred = self._deferred(queue) if here > handed else 0
        back = max(0, here - handed - deferred)
        waiting = len(queue.waiting) + back
        elsewhere = sum(held.values())
        return QueueView(
            name=_written(queue.destination),
            waiting=waiting,
            delayed=len(queue.entries) - waiting - handed - elsewhere,
            handed=handed,
            assigned=self._assigned(queue, held),
            bytes=room.bytes,
            messages_max=messages_max,
            bytes_max=bytes_max,
            demands=tuple(
                DemandView(each.node, each.credit, each.taken, each.silent, each.group.selector)
                for each in islice(queue, SHOWN_MAX)
            ),
            oldest_us=next((each.descriptor.created_us for each in queue.entries.values()), None),
            redelivery=str(asked.redelivery),
            lease_us=asked.lease_us,
            letters_of=source_of(asked.name),
            temporary=bool(asked.connection),
        )

    def _deferred(self, queue: Queue) -> int:
        """Return the number of messages that programs of this node deferred."""
        return sum(
            each.state is EntryState.ASSIGNED and each.receiver == self._node and each.deferred_us > self._now
            for each in queue.entries.values()
        )

    def _assigned(self, queue: Queue, held: Mapping[NodeId, int]) -> tuple[AssignedView, ...]:
        ends: dict[NodeId, int] = {}
        for each in queue.entries.values() if held and queue.asked.lease_us else ():
            if each.state is EntryState.ASSIGNED and each.lease_us:
                ends[each.receiver] = min(ends.get(each.receiver, NEVER), each.lease_us)
        return tuple(
            AssignedView(node, count, self._date(ends.get(node, NEVER)))
            for node, count in sorted(held.items())
            if count
        )

    def _entry(self, queue: Queue, entry: QueueEntry) -> EntryView:
        state = "waiting"
        if entry.state is EntryState.ASSIGNED and entry.receiver != self._node:
            state = "assigned"
        elif any(claim.state is ClaimState.HANDED for claim in self._on.claims.of(entry.message) if claim.tenure):
            state = "handed"
        elif max(entry.due_us, entry.deferred_us) > self._now:
            state = "delayed"
        assigned = state == "assigned"
        return EntryView(
            queue=_written(queue.destination),
            state=state,
            receiver=entry.receiver if state in {"assigned", "handed"} else NodeId(""),
            assigned_us=self._date(entry.assigned_us) if assigned else None,
            lease_us=self._date(entry.lease_us) if assigned and entry.lease_us else None,
            tries=entry.count,
            error="" if entry.letter is None else entry.letter.error,
            consumers=sum(not each.silent for each in queue),
            silent=tuple(sorted({each.node for each in queue if each.silent})),
        )

    # --- the others ----------------------------------------------------------------------------------------

    def _held(self, topic: HeldTopic) -> HeldTopicView:
        open_ = [(node, row) for node, row in topic.subscribers.items() if not row.left]
        nodes = [(node, self._date(row.deadline_us), row.selector) for node, row in open_[:SHOWN_MAX]]
        return HeldTopicView(_written(topic.destination), len(open_), tuple(nodes))

    def _subscription(self, found: Subscription, handed: int) -> SubscriptionView:
        asked = found.asked
        return SubscriptionView(
            name=found.written,
            client=found.client,
            selector=asked.entry.selector or "",
            durable=found.durable,
            shared=asked.shared,
            waiting=len(found.backlog),
            handed=handed,
            consumers=len(found.consumers),
            lease_us=None if found.consumers else self._date(found.lease_us),
        )

    def _send(self, message: MessageId, send: Send) -> SendView:
        return SendView(
            message=_shown(message),
            label=send.label,
            destination=_written(send.destination),
            sent_us=self._date_of(send.sent_us),
            expires_us=send.deadline_us,
            state=str(send.state),
            handed_over=send.handed_over,
            reason=send.reason,
            left=len(send.left),
            left_nodes=send.left[:NODES_SHOWN],
            acknowledged=len(send.acknowledged),
            acknowledged_nodes=send.acknowledged[:NODES_SHOWN],
        )

    def _date(self, own_us: int) -> int | None:
        return None if own_us >= NEVER else self._date_of(own_us)
