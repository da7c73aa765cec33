"""Numbers of this node's events, dense for each channel, across crashes and full disks (`overlay.producer`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from carrypost.model.descriptor import Descriptor
    from carrypost.overlay.rows import RevertingRows

NUMBERS = b"P"
"""First byte of the names of rows, by channel."""
_NUMBER_BYTES = 8


def event_of(descriptor: Descriptor) -> int:
    """Return the number of an event; 0 if it is none."""
    return 0 if descriptor.headers is None else descriptor.headers.event


class Numbers:
    """The number of the last event of this node to each channel."""

    def __init__(self, rows: RevertingRows) -> None:
        self._rows = rows
        self._last: dict[str, int] = {}

    def restore(self, name: bytes, row: bytes) -> None:
        """Take in a number of an earlier life."""
        self._rows.restore(name, row)
        self._last[name[len(NUMBERS) :].decode()] = int.from_bytes(row, "big")

    @property
    def total(self) -> int:
        """Number of all events so far."""
        return sum(self._last.values())

    def last(self, channel: str) -> int:
        """Return the number of the last event to a channel; 0 if there is none."""
        return self._last.get(channel, 0)

    def written(self, channel: str) -> int:
        """Return the number of the last event to a channel that is on disk; 0 if there is none."""
        return int.from_bytes(self._rows.written(NUMBERS + channel.encode()) or b"", "big")

    def published(self, channel: str, descriptor: Descriptor) -> None:
        """Note the number of an event that was admitted."""
        self._last[channel] = event_of(descriptor)
        self._rows.put(NUMBERS + channel.encode(), packed(self._last[channel]), descriptor)

    def reverted(self, name: bytes) -> None:
        """Give numbers again that were lost."""
        channel = name[len(NUMBERS) :].decode()
        self._last[channel] = self.written(channel)


def packed(number: int) -> bytes:
    """Return a number as it is stored."""
    return number.to_bytes(_NUMBER_BYTES, "big")
