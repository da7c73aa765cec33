"""Assignments to other nodes without an answer: reminders of those that last, and gaps of those that ended.

The receiver of an assignment is reminded while its message lives. If the assignment ends without an answer, its
receiver is informed of the gap, as it may never have heard of it.
"""

# Reminders. A control message may be lost for good: every node that has it may evict it, even the
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
#
# Gaps. A receiver grants credit, and each assignment uses some of it; both are totals, so that items
# may come twice, late, and in any order. A lost `Assign` breaks the balance. While its message
# lives, a reminder repairs it. When the message expires, or its lease ends, the manager cannot
# distinguish two cases. If the receiver had heard of the assignment, it has
# asked for another message by itself, or a program had this one. If it had not, that credit is
# lost, and a consumer that takes one message at a time gets nothing any more.
#
# The way chosen. A demand's assignments are numbered from 1, and its receiver records the numbers
# that it has heard of (`HeardNumbers`). When an assignment ends without an answer, the manager sends its
# number (`control.Gone`), even if the assignment itself had not been sent yet. A receiver to which
# that number is new grants one more, by its demand, which also contains the number up to which it
# knows all of them. A receiver that knew the number answers just that: this is no sign of life of a
# program that let its lease end. The manager forgets numbers that are known; the rest it repeats
# like reminders, after a quarter of the time that the demand has left, then after twice as long.
#
# What must hold of gaps.
# 1. Only the receiver raises its credit, and once for each number, whichever item brings it first.
#    A `Gone` that comes twice or late does nothing.
# 2. A `Gone` that overtakes its `Assign` leaves a message that is dead already. A receiver whose
#    clock is behind may still hand it out, and has one more than it asked for. That is the worst
#    case.
# 3. The manager keeps the numbers in the row of the demand. A receiver that crashes ends its
#    demands, and their numbers with them.
# 4. A manager that lies about numbers gets no farther than the credit that it was granted, and is
#    granted more only for its own queue. A receiver that lies gets what it could have asked for, or
#    loses credit.

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING

from carrypost.application.control_outbox import Subject
from carrypost.gossip.layer import Part
from carrypost.messaging import control
from carrypost.messaging.control import STRETCHES_MAX
from carrypost.messaging.queues.entries import ASSIGN, REMIND, EntryNotice, EntryState
from carrypost.model.times import NEVER

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from carrypost.application.control_outbox import ControlOutbox
    from carrypost.messaging.context import MessagingContext
    from carrypost.messaging.control import Item
    from carrypost.messaging.queues.declared_queues import DeclaredQueues
    from carrypost.messaging.queues.entries import QueueEntry
    from carrypost.messaging.queues.queue import Demand


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


_GAPS_PAUSE_US = 60_000_000
"""Delay before numbers are sent that were added while others wait for an answer."""


class Ranges:
    """A set of numbers, as ranges from a first to a last one, in order.

    There are at most `STRETCHES_MAX` ranges; beyond that the lowest are forgotten, with the credit that they stand for.
    """

    __slots__ = ("_all",)

    def __init__(self, flat: Sequence[int] = ()) -> None:
        self._all = list(zip(flat[::2], flat[1::2], strict=False))

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(self._all)

    def __bool__(self) -> bool:
        return bool(self._all)

    @property
    def flat(self) -> tuple[int, ...]:
        """First and last of each range, alternating."""
        return tuple(each for stretch in self._all for each in stretch)

    @property
    def first(self) -> int:
        """The lowest number; there must be one."""
        return self._all[0][0]

    def add(self, first: int, last: int) -> None:
        """Add a range of numbers."""
        apart = []
        for each in self._all:
            if each[1] < first - 1 or each[0] > last + 1:
                apart.append(each)
            else:
                first, last = min(first, each[0]), max(last, each[1])
        self._all = sorted([*apart, (first, last)])[-STRETCHES_MAX:]

    def remove(self, first: int, last: int) -> int:
        """Remove the numbers of a range; return how many there were."""
        left: list[tuple[int, int]] = []
        removed = 0
        for begin, end in self._all:
            common = min(end, last) - max(begin, first) + 1
            if common <= 0:
                left.append((begin, end))
                continue
            removed += common
            if begin < first:
                left.append((begin, first - 1))
            if end > last:
                left.append((last + 1, end))
        self._all = left[-STRETCHES_MAX:]
        return removed


class HeardNumbers:
    """The numbers of one demand's assignments that its receiver has heard of."""

    __slots__ = ("_highest", "_missing")

    def __init__(self) -> None:
        self._highest = 0
        self._missing = Ranges()
        """Lower numbers that were not heard of."""

    @property
    def through(self) -> int:
        """The number up to which all are known."""
        return self._missing.first - 1 if self._missing else self._highest

    def note(self, first: int, last: int) -> int:
        """Record that these numbers were heard of; return how many of them are new."""
        new = self._missing.remove(first, last)
        if last > self._highest:
            if first > self._highest + 1:
                self._missing.add(self._highest + 1, first - 1)
            new += last - max(self._highest, first - 1)
            self._highest = last
        return new


class Gap(Subject):
    """The numbers of one demand's assignments that ended without an answer, and that its receiver may not know."""

    __slots__ = ("_queue", "_sent", "began_us", "numbers", "reminders", "demand")

    def __init__(self, queue: str, demand: Demand, began_us: int, numbers: Sequence[int] = ()) -> None:
        self._queue, self.demand = queue, demand
        self.began_us, self.reminders = began_us, 0
        """Time at which the first of them was sent, and the number of repetitions since."""
        self.numbers = Ranges(numbers)
        self._sent = True
        """True if the post has no item of it."""

    @property
    def due_us(self) -> int:
        """Time at which they have to be sent again."""
        return due_us(self.began_us, self.demand.deadline_us - self.began_us, self.reminders)

    def send(self, outbox: ControlOutbox, *, after_us: int = 0) -> None:
        """Send the numbers to the receiver, unless that is about to happen."""
        if self._sent:
            self._sent = False
            outbox.add(self.demand.node, self, after_us=after_us, until_us=min(self.due_us, self.demand.deadline_us))

    def item(self) -> Item | None:
        """Return the item to send; None if the receiver knows by now."""
        self._sent = True
        return control.Gone(self._queue, self.demand.number, self.numbers.flat) if self.numbers else None


class Gaps(Part):
    """The gaps of all demands at one manager."""

    def __init__(self, outbox: ControlOutbox) -> None:
        self._outbox = outbox
        self._all: dict[Demand, Gap] = {}

    def numbers(self, demand: Demand) -> tuple[int, ...]:
        """Return the numbers for the row of a demand."""
        gap = self._all.get(demand)
        return () if gap is None else gap.numbers.flat

    def add(self, queue: str, demand: Demand, number: int, now: int) -> bool:
        """Record an assignment that ended without an answer; return False if its receiver is known to have heard of it.

        An assignment without a number was made by an earlier version.
        """
        if not number or number <= demand.heard:
            return False
        gap = self._all.get(demand)
        known = gap is not None
        if gap is None:
            gap = self._all[demand] = Gap(queue, demand, now)
        gap.numbers.add(number, number)
        gap.send(self._outbox, after_us=now + _GAPS_PAUSE_US if known else 0)
        self.due_us = min(self.due_us, gap.due_us)
        return True

    def resume(self, queue: str, demand: Demand, numbers: Sequence[int], now: int) -> None:
        """Restore the numbers from the row of a demand."""
        if numbers:
            gap = self._all[demand] = Gap(queue, demand, now, numbers)
            gap.send(self._outbox)
            self.due_us = min(self.due_us, gap.due_us)

    def forget_known(self, demand: Demand, numbers: Sequence[int]) -> None:
        """Forget ranges of numbers that a receiver knows."""
        if (gap := self._all.get(demand)) is not None:
            for first, last in Ranges(numbers):
                gap.numbers.remove(first, last)
            if not gap.numbers:
                self.forget(demand)

    def forget(self, demand: Demand) -> None:
        """Forget the numbers of a demand that ended."""
        gap = self._all.pop(demand, None)
        if gap is not None:
            gap.numbers = Ranges()

    def expire(self, now: int) -> None:
        """Repeat numbers to receivers, as far as that is due."""
        for gap in self._all.values():
            if gap.due_us <= now:
                while gap.due_us <= now:
                    gap.reminders += 1
                gap.send(self._outbox)
        self.due_us = min((gap.due_us for gap in self._all.values()), default=NEVER)
