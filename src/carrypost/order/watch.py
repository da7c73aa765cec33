"""The watch: each waiting message is filed under one missing predecessor, and found again by it.

A predecessor is named by its source and its tag. It is resolved once it, or a later message of its source, is
delivered, or once it is dead by the deadline that its successor names.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING

from carrypost.model.times import NEVER

if TYPE_CHECKING:
    from carrypost.model.descriptor import Barrier, Descriptor
    from carrypost.model.ids import NodeId

Reminder = tuple[int, "NodeId", int]
"""A time, and the source and the tag of the predecessor to examine then."""
_SLACK = 64
"""Number of stale entries, beyond the others, at which stale ones are swept out."""


class WaitingMessage:
    """A message that was received and waits for a predecessor, or for its date."""

    __slots__ = ("at", "descriptor", "early", "predecessors")

    def __init__(self, descriptor: Descriptor, predecessors: Barrier, at: int, *, early: bool = False) -> None:
        self.descriptor = descriptor
        self.predecessors = predecessors
        self.at = at
        """Index of the predecessor that it is filed under; those before are delivered or expired, for good."""
        self.early = early
        """True if its date is too far ahead. It is then filed under itself, with the time at which it is not."""


class Watch:
    """Waiting messages, by the predecessor that they wait for."""

    __slots__ = ("_due", "_filed", "_new", "_size", "_tagged", "due_us", "tags")

    def __init__(self) -> None:
        self._filed: dict[tuple[NodeId, int], dict[WaitingMessage, None]] = {}
        self._size = 0
        """Number of messages that are filed."""
        self.tags: dict[NodeId, list[int]] = {}
        """Heaps of the tags under which something is, or was, filed, by source."""
        self._tagged = 0
        """Number of tags under which they are filed."""
        self._due: list[Reminder] = []
        """Heap of reminders by the deadlines that successors name; some are stale."""
        self._new: list[Reminder] = []
        """Reminders that are not sorted in: most messages do not wait that long."""
        self.due_us = NEVER
        """Not after the earliest of those deadlines."""

    def file(self, waiting: WaitingMessage) -> None:
        """File a message under the predecessor that it waits for."""
        source, tag, deadline_us = waiting.predecessors[waiting.at]
        key = (source, tag)
        self._size += 1
        others = self._filed.get(key)
        if others is None:
            self._filed[key] = {waiting: None}
            tags = self.tags.get(source)
            if tags is None:
                self.tags[source] = [tag]
            else:
                heappush(tags, tag)
            self._tagged += 1
            if self._tagged > 2 * self._size + _SLACK:
                self._sweep()
        else:
            first = next(iter(others))
            others[waiting] = None
            if first.predecessors[first.at][2] == deadline_us:
                return  # All name the same deadline of a message, unless an author lies.
        if deadline_us < NEVER:
            self.remind(deadline_us, source, tag)

    def remind(self, t_us: int, source: NodeId, tag: int) -> None:
        """Examine what is filed under this predecessor again at that time."""
        self._new.append((t_us, source, tag))
        if t_us < self.due_us:
            self.due_us = t_us
        if len(self._new) + len(self._due) > 2 * self._size + _SLACK:
            self._sweep()

    def leave(self, waiting: WaitingMessage) -> None:
        """Remove a message that waits no more, whatever became of its predecessor."""
        source, tag, _ = waiting.predecessors[waiting.at]
        filed = self._filed[source, tag]
        del filed[waiting]
        if not filed:
            del self._filed[source, tag]
        self._size -= 1

    def delivered(self, source: NodeId, tag: int) -> list[WaitingMessage]:
        """Remove and return what waits for this message or an earlier one of its source, which is in `tags`."""
        tags = self.tags[source]
        found: list[WaitingMessage] = []
        while tags and tags[0] <= tag:
            found += self._filed.pop((source, heappop(tags)), ())
            self._tagged -= 1
        if not tags:
            del self.tags[source]
        self._size -= len(found)
        return found

    def dead(self, clock_us: int) -> list[WaitingMessage]:
        """Remove and return what waits for messages that are dead by now."""
        due, filed = self._due, self._filed
        for each in self._new:
            if each[1:] in filed:
                heappush(due, each)
        self._new.clear()
        found: list[WaitingMessage] = []
        while due and (due[0][0] <= clock_us or due[0][1:] not in filed):
            found += filed.pop(heappop(due)[1:], ())
        self._size -= len(found)
        self.due_us = due[0][0] if due else NEVER
        return found

    def _sweep(self) -> None:
        """Drop stale entries, if they are the majority.

        Otherwise an author that names messages that do not exist, or a new deadline for them each time, would fill the
        memory.
        """
        waiting = {(each.predecessors[each.at][2], *key) for key, some in self._filed.items() for each in some}
        soon = [each for each in self._due + self._new if not each[0] and each[1:] in self._filed]
        self._due, self._new = sorted(waiting.union(soon)), []  # A list in order is a heap.
        self.tags = {}
        for source, tag in sorted(self._filed):
            self.tags.setdefault(source, []).append(tag)
        self._tagged = len(self._filed)
