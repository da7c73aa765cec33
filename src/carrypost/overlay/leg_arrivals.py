"""Arrivals: messages that came to this broker along the overlay, each of which is reported once.

The same message may come by several legs: a restarted broker passes on again what it had not acknowledged, and a leg
that was given up may have arrived nevertheless. So the broker at the end of a route remembers what it reported, in the
batch that the event waits for. A crash before that batch is durable makes the leg come again; after it, the message is
not reported again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from carrypost.events import LayerEvent
from carrypost.model.descriptor import Descriptor
from carrypost.model.ids import MessageId
from carrypost.model.times import NEVER

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from carrypost.events import Event
    from carrypost.journal import Journal

TOLD_MAX: Final = 4_096
"""Number of messages that are remembered, the latest. Legs of one message come within seconds of each other."""
_KIND: Final = "overlay"
FAMILY: Final = b"L"
"""First bytes of the names of rows; the id of the message follows. The value is the time at which that message ends."""
_TIME_BYTES: Final = 8


class LegArrived(LayerEvent, frozen=True):
    """A message that was passed on along the overlay is at this broker, the last one of its route."""

    descriptor: Descriptor
    """The message as its author published it."""
    channel: str
    """Name of its channel; empty if it is of none."""
    brokers: int
    """Brokers that it has passed, this one not included, as far as this one knows: 0 or 1."""


class LegArrivals:
    """The messages that one broker reported as arrived."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._reported: dict[MessageId, int] = {}
        """Messages that were reported, and the end of each, the latest last."""
        self._unreported: list[LegArrived] = []
        """Events that waited for batches which could not be written."""
        self.due_us = NEVER
        """Time at which unreported events are held again."""
        self.count = 0
        """Number of messages that arrived since the start."""

    def restore(self, rows: Iterable[tuple[bytes, bytes]]) -> None:
        """Restore the messages reported before a restart, by names of rows and their values."""
        found = [(int.from_bytes(row, "big"), MessageId(name[len(FAMILY) :])) for name, row in rows]
        self._reported = {message: until_us for until_us, message in sorted(found)}

    def report(self, event: LegArrived, now: int) -> None:
        """Report a message as soon as the record of it is durable, unless it was reported before."""
        message = event.descriptor.id
        if message in self._reported:
            return
        self._reported[message] = event.descriptor.ends_us
        self.count += 1
        self._hold(event)
        for oldest, until_us in list(self._reported.items()):
            if len(self._reported) <= TOLD_MAX and until_us > now:
                break
            del self._reported[oldest]
            self._journal.delete((_KIND, FAMILY + oldest, 0))

    def _hold(self, event: LegArrived) -> None:
        until = event.descriptor.ends_us.to_bytes(_TIME_BYTES, "big")
        self._journal.put((_KIND, FAMILY + event.descriptor.id, 0), until)
        self._journal.hold(event)

    def lost(self, held: Sequence[Event], again_us: int) -> None:
        """Take back events whose batch could not be written, to hold them again at this time."""
        if undone := [event for event in held if isinstance(event, LegArrived)]:
            self._unreported += undone
            self.due_us = again_us

    def expire(self, now: int) -> None:
        """Write again what could not be written."""
        if self.due_us <= now:
            self.due_us = NEVER
            unreported, self._unreported = self._unreported, []
            for event in unreported:
                self._hold(event)
