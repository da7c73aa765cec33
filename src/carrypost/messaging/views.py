"""Makes the views of messaging for people: its queues, held topics, subscriptions and sends at one moment.

This reads what the parts of messaging own, and changes nothing: it is no step of the host. Its cost grows with the
number of queues and sends, not with that of waiting messages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from carrypost.messaging.dead_letters import source_of
from carrypost.messaging.overview import (
    NODES_SHOWN,
    SHOWN_MAX,
    AssignedView,
    DemandView,
    EntryView,
    HeldTopicView,
    MessagingView,
    QueueView,
    SendView,
    SubscriptionView,
)
from carrypost.messaging.queues.entries import EntryState
from carrypost.messaging.state import ClaimState
from carrypost.model import address, ids
from carrypost.model.ids import MessageId, NodeId
from carrypost.model.times import NEVER

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from carrypost.gossip.holdings.holdings import Holdings
    from carrypost.messaging.claims import Claims
    from carrypost.messaging.held_topics import HeldTopic
    from carrypost.messaging.queues.entries import QueueEntry
    from carrypost.messaging.queues.queue import Queue
    from carrypost.messaging.queues.queues import Queues
    from carrypost.messaging.receipts import Receipts, Send
    from carrypost.messaging.session import Sessions
    from carrypost.messaging.state import Subscription
    from carrypost.messaging.topic import Topics


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
        asked, (room, messages_max, bytes_max) = queue.asked, self._on.queues.manager.room(queue)
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
