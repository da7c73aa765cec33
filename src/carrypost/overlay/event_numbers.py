"""Numbers of this node's events, dense for each channel, across crashes and full disks."""

# The row of a channel has the number of the last event, and marks: numbers and times of some
# events, by which a producer counts those sent since a time although they are gone. The newest
# marks stay. Of older events ever fewer marks stay: between two of them are at most half as many
# events as follow, so that their number grows as the logarithm of the events. If marks leave open
# which event was the first one since a time, the earliest possible counts: a consumer may then be
# notified of more events than it lost, never of fewer.

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from carrypost.overlay.items import event_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from carrypost.local.ledger import MessageRows
    from carrypost.model.descriptor import Descriptor

NUMBERS = b"P"
"""First byte of the names of rows, by channel."""
_NUMBER_BYTES = 8
_THIN_EVERY = 16
"""Events after which marks are thinned."""
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


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[EventTime]).decode


class EventNumbers:
    """The number of the last event of this node to each channel."""

    def __init__(self, rows: MessageRows) -> None:
        self._rows = rows
        self._last: dict[str, int] = {}
        self._times: dict[str, list[EventTime]] = {}

    def restore(self, name: bytes, row: bytes) -> None:
        """Restore a number after a restart."""
        self._rows.restore(name, row)
        self._read(name)

    @property
    def total(self) -> int:
        """Number of all events so far."""
        return sum(self._last.values())

    def last(self, channel: str) -> int:
        """Return the number of the last event to a channel; 0 if there is none."""
        return self._last.get(channel, 0)

    def written(self, channel: str) -> int:
        """Return the number of the last event to a channel that is on disk; 0 if there is none."""
        return int.from_bytes((self._rows.written(NUMBERS + channel.encode()) or b"")[:_NUMBER_BYTES], "big")

    def times(self, channel: str) -> list[EventTime]:
        """Return the times of some events to a channel, with those that are not on disk yet."""
        return self._times.get(channel, [])

    def published(self, channel: str, descriptor: Descriptor) -> None:
        """Note the number of an event that was admitted."""
        number = self._last[channel] = event_of(descriptor)
        marks = self._times.setdefault(channel, [])
        marks.append(EventTime(number, descriptor.created_us))
        if not number % _THIN_EVERY:
            marks = self._times[channel] = thinned(marks)
        self._rows.put(NUMBERS + channel.encode(), packed(number) + _encode(marks), descriptor)

    def _read(self, name: bytes) -> None:
        """Restore the numbers of a channel."""
        channel = name[len(NUMBERS) :].decode()
        row = self._rows.written(name) or b""
        self._last[channel] = self.written(channel)
        self._times[channel] = _decode(row[_NUMBER_BYTES:]) if row[_NUMBER_BYTES:] else []


def packed(number: int) -> bytes:
    """Return a number as it is stored."""
    return number.to_bytes(_NUMBER_BYTES, "big")
