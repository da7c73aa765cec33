"""Times of some of a producer's events, by which it counts those sent since a time although they are gone.

A producer marks each event with its number and time, in the row that has its number. The newest marks stay. Of older
events ever fewer marks stay: between two of them are at most half as many events as follow, so that their number grows
as the logarithm of the events. If marks leave open which event was the first one since a time, the earliest possible
counts: a consumer may then be notified of more events than it lost, never of fewer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_NEWEST = 16
"""Number of newest events that all keep their marks."""
_SHARE = 2
"""Between two marks lie at most one event per this many later ones, the newest not counted."""


class EventTime(NamedTuple):
    """Number and time of an event."""

    number: int
    created_us: int


def thinned(marks: Sequence[EventTime]) -> list[EventTime]:
    """Return ascending marks without those that lie closer together than their age requires."""
    kept: list[EventTime] = []
    for mark in marks:
        after = marks[-1].number - mark.number - _NEWEST
        while len(kept) > 1 and _SHARE * (mark.number - kept[-2].number) <= after:
            kept.pop()
        kept.append(mark)
    return kept


def before(marks: Iterable[EventTime], since_us: int, last: int) -> int:
    """Return the number of the last event before a time, or a lower one; `last`: the number of the last event of all.

    Events older than all marks count as before that time.
    """
    known = sorted(mark for mark in marks if mark.number <= last)
    first = min((mark.number for mark in known if mark.created_us >= since_us), default=last + 1)
    least = known[0].number - 1 if known else last
    return max([mark.number for mark in known if mark.number < first], default=least)
