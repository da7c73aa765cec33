"""Messages by destination, so that a subscription finds its messages without reading all of them.

Whole destinations are looked up, and destinations that begin like a pattern are found by bisection: two thousand
subscriptions over twenty thousand messages read what they match, not forty million pairs. A pattern that begins with a
wildcard, or an entry that does not name the destination, still has to read everything.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from carrypost.model.pattern import DESTINATION, beginnings

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from carrypost.gossip.holdings.cache import Cache
    from carrypost.gossip.holdings.copies import Copy
    from carrypost.model.pattern import Entry

_STALE_SLACK = 1024


class Destinations:
    """Slots of a cache by the destinations of their messages."""

    __slots__ = ("_slots", "_sorted")

    def __init__(self) -> None:
        self._slots: dict[str, set[int]] = {}
        self._sorted: list[str] | None = None
        """All destinations, sorted when a prefix is first looked up."""

    def add(self, destination: str, slot: int) -> None:
        """Add a slot, unless it is there already."""
        slots = self._slots.get(destination)
        if slots is None:
            slots = self._slots[destination] = set()
            self._sorted = None
        slots.add(slot)

    def candidates(self, entries: Iterable[Entry]) -> set[int]:
        """Return the slots that one of the entries may match, and perhaps more."""
        found: set[int] = set()
        for destination in self._possible(entries):
            found |= self._slots[destination]
        return found

    def _possible(self, entries: Iterable[Entry]) -> Iterable[str]:
        slots, found, prefixes = self._slots, set[str](), set[str]()
        for entry in entries:
            pattern = dict(entry.patterns).get(DESTINATION)
            if pattern is None:
                return slots
            values, begins = beginnings(pattern)
            found.update(value for value in values if value in slots)
            prefixes |= begins
        for prefix in prefixes:
            found.update(self._beginning(prefix))
        return found

    def _beginning(self, prefix: str) -> Iterator[str]:
        if self._sorted is None:
            self._sorted = sorted(self._slots)
        names = self._sorted
        for at in range(bisect_left(names, prefix), len(names)):
            if not names[at].startswith(prefix):
                return
            yield names[at]


class CachedDestinations:
    """The messages of one cache, by destination.

    Arrivals and removals cost nothing: new messages are entered when a program subscribes, and a slot without a tenant,
    or with another one, is skipped until there are many of that kind.
    """

    __slots__ = ("_cache", "_entered", "_serial", "_slots")

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._slots = Destinations()
        self._entered = 0
        """Number of slots entered so far, doubled ones included."""
        self._serial = 0
        """Serial of the last copy entered."""

    def candidates(self, entries: Iterable[Entry]) -> list[Copy]:
        """Return the copies, here or remembered, that one of the entries may match, and perhaps more; by slot."""
        self._catch_up()
        copies = self._cache.copies
        slots = sorted(self._slots.candidates(entries))
        return [copy for slot in slots if slot < len(copies) and (copy := copies[slot]) is not None]

    def _catch_up(self) -> None:
        if self._entered > 2 * len(self._cache.tenants) + _STALE_SLACK:
            self._slots, self._entered, self._serial = Destinations(), 0, 0
        serial = self._serial
        for copy in self._cache.tenants.newer(serial):
            self._slots.add(copy.descriptor.destination, copy.slot)
            self._entered += 1
            self._serial = max(self._serial, copy.serial)
