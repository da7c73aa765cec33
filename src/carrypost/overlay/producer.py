"""Producers: the numbers of this node's events (`Headers.event`), dense for each channel across crashes and full disks.

An event gets its number when it is sent. The batch that stores the event has the number, too, so after a crash both are
known or neither is. If the batch is lost, the event fails, and so do those of the same node that were sent since; their
numbers are given again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from carrypost.model.address import is_channel

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from carrypost.gossip.holdings.copies import Copy
    from carrypost.journal import Journal, Key
    from carrypost.model.descriptor import Descriptor

FAMILY = b"P"
"""First byte of the names of rows."""
_NUMBER_BYTES = 8


class Numbers:
    """The number of the last event of this node to each channel."""

    def __init__(self, journal: Journal, kind: str) -> None:
        self._journal, self._kind = journal, kind
        self._last: dict[str, int] = {}
        """By destination."""
        self._open: dict[int, list[Descriptor]] = {}
        """Events that are not durable, by the number of their batch."""

    def restore(self, rows: Iterable[tuple[bytes, bytes]]) -> None:
        """Take in the numbers of an earlier life."""
        for name, row in rows:
            self._last[name[len(FAMILY) :].decode()] = int.from_bytes(row, "big")

    def last(self, destination: str) -> int:
        """Return the number of the last event to a channel; 0 if there is none."""
        return self._last.get(destination, 0)

    def published(self, copies: Sequence[Copy]) -> None:
        """Note the numbers of events that were admitted."""
        for copy in copies:
            descriptor = copy.descriptor
            if is_channel(descriptor.destination) and descriptor.headers is not None and descriptor.headers.event:
                self._open.setdefault(self._journal.serial, []).append(descriptor)
                self._put(descriptor.destination, descriptor.headers.event)

    def durable(self, serial: int) -> None:
        """Note that a batch is on disk."""
        self._open.pop(serial, None)

    def lost(self, serial: int) -> list[Descriptor]:
        """Take back the numbers of a batch that could not be written, and of later ones. Returns their events."""
        gone = [each for number in sorted(self._open) if number >= serial for each in self._open.pop(number)]
        for each in reversed(gone):
            assert each.headers is not None  # Only numbered ones are noted.
            self._last[each.destination] = each.headers.event - 1
            if self._key(each.destination) in self._journal.puts:
                self._put(each.destination, each.headers.event - 1)
        return gone

    def _put(self, destination: str, number: int) -> None:
        self._last[destination] = number
        self._journal.put(self._key(destination), number.to_bytes(_NUMBER_BYTES, "big"))

    def _key(self, destination: str) -> Key:
        return self._kind, FAMILY + destination.encode(), 0
