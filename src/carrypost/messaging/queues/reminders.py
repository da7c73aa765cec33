"""Assignments to other nodes without an answer: their receivers are reminded."""

# The problem. A control message may be lost for good: every node that has it may evict it, even the
# one that made it. Whatever it contained, an assignment, an acknowledgement, or a release, the
# manager sees the same: it assigned a message, and hears nothing. So it repeats the assignment. A
# receiver that did not know of it takes the message, one that has it keeps it, and one that
# answered before answers again.
#
# When. The manager's own clock decides, not a sign of life of the receiver: a receiver that gave a
# message back, or acknowledged it, has often closed its consumer with it, and has no reason to be
# heard of any more. The first reminder comes after a quarter of the time that the message, or its
# lease, has left, so that there is time for a second one, and after six hours at the latest; each
# next one when twice as much time has passed. Each lives until the next one. So, however long the
# way to a receiver is, one of them lasts for it, no more than one is on its way at a time, and a
# receiver that is gone for good costs a few messages in all.

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING

from carrypost.gossip.composite import Part
from carrypost.messaging.queues.entries import ASSIGN, REMIND, EntryNotice, EntryState
from carrypost.model.times import NEVER

if TYPE_CHECKING:
    from carrypost.messaging.context import MessagingContext
    from carrypost.messaging.queues.declared_queues import DeclaredQueues
    from carrypost.messaging.queues.entries import QueueEntry

_PART = 4
"""Part of the remaining time after which the first reminder comes."""
_FIRST_US_MIN, _FIRST_US_MAX = 60_000_000, 21_600_000_000
"""Bounds of that time. A minute is longer than items take where they travel at once; a program may well work on a
message for six hours."""
_PAUSE_US = 60_000_000
"""Shortest interval between two searches of all entries."""
_AT_ONCE = 1_024
"""Largest number of reminders each time, the longest overdue first."""


class Reminders(Part):
    """The repetitions to the receivers of one node's queues."""

    def __init__(self, context: MessagingContext, queues: DeclaredQueues) -> None:
        self._node, self._outbox, self._queues = context.node, context.outbox, queues
        self._keyring = context.keyring

    def expect(self, entry: QueueEntry) -> None:
        """Expect an answer to an entry that was assigned to another node, in this incarnation or an earlier one."""
        self.due_us = min(self.due_us, _entry_due_us(entry))
        if entry.owed & REMIND:
            self._send(entry)

    def expire(self, now: int) -> None:
        """Remind receivers of unanswered assignments, as far as that is due."""
        expected = [
            (_entry_due_us(entry), entry) for queue in self._queues for entry in queue.entries.values()
            if entry.state is EntryState.ASSIGNED and entry.receiver != self._node
        ]  # fmt: skip
        # What has still to be said, perhaps as there is no room for it, need not be said twice.
        due = [each for each in expected if each[0] <= now and not each[1].owed & (ASSIGN | REMIND)]
        for _, entry in sorted(due, key=itemgetter(0))[:_AT_ONCE]:
            while _entry_due_us(entry) <= now:
                entry.reminders += 1
            entry.owed |= REMIND
            entry.write()
            self._send(entry)
        self.due_us = max(min((_entry_due_us(entry) for _, entry in expected), default=NEVER), now + _PAUSE_US)

    def _send(self, entry: QueueEntry) -> None:
        notice = EntryNotice(entry, REMIND, entry.receiver, self._keyring)
        self._outbox.add(entry.receiver, notice, until_us=min(_entry_due_us(entry), entry.until_us))


def due_us(began_us: int, left_us: int, reminders: int) -> int:
    """Return the time of the next reminder of something that was sent at `began_us` and lasted `left_us` then."""
    first_us = min(max(left_us // _PART, _FIRST_US_MIN), _FIRST_US_MAX)
    return began_us + (first_us << reminders)


def _entry_due_us(entry: QueueEntry) -> int:
    left_us = min(entry.until_us, entry.lease_us or NEVER) - entry.assigned_us
    return due_us(entry.assigned_us, left_us, entry.reminders)
