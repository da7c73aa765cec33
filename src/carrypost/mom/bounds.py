"""How much the queues of a node hold: what is beyond is turned away, and let come again when there is room."""

from __future__ import annotations

from typing import TYPE_CHECKING

from carrypost.errors import ResourceAllocationException
from carrypost.events import Reason
from carrypost.gossip.holdings.owners import QUEUES
from carrypost.gossip.wire.pieces import Blank

if TYPE_CHECKING:
    from collections.abc import Iterable

    from carrypost.gossip.holdings.copies import Copy
    from carrypost.gossip.layer import Draft
    from carrypost.gossip.transfers.ground import Ground
    from carrypost.mom.queue import Queue

_PLENTY = 9, 10
"""What was turned away is let come again when no more than this part of a queue's room is used."""


class Bounds:
    """The bounds of each queue, and who was turned away for them."""

    def __init__(self, ground: Ground) -> None:
        self._holdings = ground.holdings
        self._messages_max, self._bytes_max = ground.limits.queue_messages_max, ground.limits.queue_bytes_max
        self._turning_away: set[Queue] = set()

    def admits(self, queue: Queue, copy: Copy) -> bool:
        """Whether there is room for a message. What a program of this node sends was looked at before."""
        if copy.own or not queue.entries:
            return True
        return (
            len(queue.entries) < self._messages_max and queue.bytes + copy.descriptor.length <= self._bytes_max
        )  # fmt: skip

    def turn_away(self, queue: Queue, copy: Copy) -> None:
        """There is none: it comes again when there is, and those who carry it keep it until then."""
        self._turning_away.add(queue)
        self._holdings.discard(copy, Reason.PENDING, owner=QUEUES)

    def left(self, queue: Queue) -> None:
        """A queue has an entry less."""
        part, whole = _PLENTY
        if (
            queue in self._turning_away
            and len(queue.entries) * whole <= self._messages_max * part
            and queue.bytes * whole <= self._bytes_max * part
        ):
            self.ended(queue)
            self._holdings.cache.reopen(QUEUES)

    def ended(self, queue: Queue) -> None:
        """A queue is no more, or has room."""
        self._turning_away.discard(queue)

    def check(self, queue: Queue, drafts: Iterable[Draft]) -> None:
        """Raise unless all of these, which programs of this node are to send together, have room."""
        messages, nbytes = len(queue.entries), queue.bytes
        for draft in drafts:
            messages += 1
            nbytes += draft.payload.size if isinstance(draft.payload, Blank) else len(draft.payload)
        if messages > self._messages_max or (nbytes > self._bytes_max and messages > 1):
            bound = "messages" if messages > self._messages_max else "bytes"
            raise ResourceAllocationException(
                f"the queue {queue.asked.name!r} has {len(queue.entries):,} messages of {queue.bytes:,} bytes, and no "
                f"more fit (limits.queue_{bound}_max): let them be consumed first"
            )
