"""Dates and barriers for messages that are published together, assigned before the first of them is published.

A message depends on those before it. So each stamped message is published in an *outlook*: a group with the clock and
the barrier of the real one, and nothing else. The real groups change only when the messages are published; if one of
them cannot be stamped, nothing has changed.

A message names a limited number of predecessors. If there are more, messages without content are published before it.
Each of them joins some predecessors: it names them and lives as long as they do, so that it replaces them. Few are
left: predecessors that live longer than the messages that follow would be named by each of these.

A joining message is a source of its own (`Descriptor.source`). Otherwise a host that delivers it would ignore earlier
messages of its author, which precede it and which it need not name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from carrypost.application.publishing import Stamp
from carrypost.order.causal import Group

if TYPE_CHECKING:
    from collections.abc import Callable

    from carrypost.model.descriptor import Descriptor, Ordering, Predecessor

_FEW_PART = 8
"""Predecessors are joined until at most one in this many of the limit is left."""


class Stamping:
    """Stamper of the messages of one unit of work, in the order in which they will be published."""

    __slots__ = ("_entries_max", "_joining", "_now", "_opened", "_outlooks", "_signs")

    def __init__(self, opened: Callable[[str, Ordering], Group], now: int, *, signed: bool, entries_max: int) -> None:
        self._opened, self._now, self._signs, self._entries_max = opened, now, signed, entries_max
        self._outlooks: dict[tuple[str, Ordering], Group] = {}
        self._joining = False
        """True after a message that joins predecessors, until few are left."""

    def stamp(self, destination: str, ordering: Ordering) -> Stamp:
        """Return the date and the barrier of the next message, or of one that has to join predecessors before it.

        Raises `OrderError` if there is no room for its group.
        """
        if not ordering:
            return Stamp(self._now)
        group = self._outlooks.get((destination, ordering)) or self._opened(destination, ordering)
        barrier = group.barrier(self._now, signed=self._signs)
        most = max(2, self._entries_max // _FEW_PART) if self._joining else self._entries_max
        self._joining = len(barrier) > most
        if not self._joining:
            return Stamp(group.stamp(self._now), barrier)
        # Those that die at about the same time are joined, so that nobody waits for the joining
        # message much longer than for them.
        joined = sorted(barrier, key=_end_us)[: self._entries_max]
        return Stamp(group.stamp(self._now), tuple(joined), until_us=_end_us(joined[-1]))

    def add(self, descriptor: Descriptor) -> None:
        """Make the following messages depend on one that was stamped."""
        if not descriptor.ordering:
            return
        key = (descriptor.destination, descriptor.ordering)
        outlook = self._outlooks.get(key)
        if outlook is None:
            group = self._opened(*key)
            outlook = self._outlooks[key] = Group(group.destination, group.ordering, group.me)
            clock_us, newest_us, barrier = group.head
            outlook.load(clock_us, newest_us, tuple(barrier))
        outlook.published(descriptor, self._now)


def _end_us(predecessor: Predecessor) -> int:
    return predecessor.tag_and_end[1]
