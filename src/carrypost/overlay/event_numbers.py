"""Numbers of this node's events, dense for each channel, across crashes and full disks (`overlay.producer`).

The row of a channel has the number of the last event, and marks of earlier ones (`overlay.event_times`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from carrypost.overlay.event_times import EventTime, thinned

if TYPE_CHECKING:
    from carrypost.model.descriptor import Descriptor
    from carrypost.overlay.rows import RevertingRows

NUMBERS = b"P"
"""First byte of the names of rows, by channel."""
_NUMBER_BYTES = 8
_THIN_EVERY = 16
"""Events after which marks are thinned."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[EventTime]).decode


def event_of(descriptor: Descriptor) -> int:
    """Return the number of an event; 0 if the message is not an event."""
    return 0 if descriptor.headers is None else descriptor.headers.event


class EventNumbers:
    """The number of the last event of this node to each channel."""

    def __init__(self, rows: RevertingRows) -> None:
        self._rows = rows
        self._last: dict[str, int] = {}
        self._times: dict[str, list[EventTime]] = {}

    def restore(self, name: bytes, row: bytes) -> None:
        """Restore a number after a restart."""
        self._rows.restore(name, row)
        self.reverted(name)

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

    def reverted(self, name: bytes) -> None:
        """Go back to what is on disk: numbers that were lost are given again."""
        channel = name[len(NUMBERS) :].decode()
        row = self._rows.written(name) or b""
        self._last[channel] = self.written(channel)
        self._times[channel] = _decode(row[_NUMBER_BYTES:]) if row[_NUMBER_BYTES:] else []


def packed(number: int) -> bytes:
    """Return a number as it is stored."""
    return number.to_bytes(_NUMBER_BYTES, "big")
