"""Dates and barriers for messages that are published together, assigned before the first of them is published.

A message depends on those before it. So each stamped message is published in an *outlook*: a group with the clock and
the barrier of the real one, and nothing else. The real groups change only when the messages are published; if one of
them cannot be stamped, nothing has changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from carrypost.errors import OrderError
from carrypost.local.publishing import Stamp
from carrypost.order.causal import Group

if TYPE_CHECKING:
    from collections.abc import Callable

    from carrypost.model.descriptor import Descriptor, Ordering


class Stamping:
    """Stamper of the messages of one unit of work, in the order in which they will be published."""

    __slots__ = ("_entries_max", "_now", "_opened", "_outlooks", "_signed")

    def __init__(self, opened: Callable[[str, Ordering], Group], now: int, *, signed: bool, entries_max: int) -> None:
        self._opened, self._now, self._signed, self._entries_max = opened, now, signed, entries_max
        self._outlooks: dict[tuple[str, Ordering], Group] = {}

    def stamp(self, destination: str, ordering: Ordering) -> Stamp:
        """Return the date and the barrier of the next message; raise `OrderError` if it cannot have any."""
        if not ordering:
            return Stamp(self._now)
        group = self._outlooks.get((destination, ordering)) or self._opened(destination, ordering)
        barrier = group.barrier(self._now, signed=self._signed)
        if len(barrier) > self._entries_max:
            raise OrderError(
                f"the message would depend on {len(barrier):,} others directly, more than {self._entries_max:,} "
                "(limits.barrier_entries_max); try again later"
            )
        return Stamp(group.stamp(self._now), barrier)

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
