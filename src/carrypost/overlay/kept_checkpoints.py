"""Checkpoints that a consumer keeps of its seats, and the events that results covered since.

A subscription keeps the last checkpoint of its seat in a row of its own. It notes which events the results that it
accepted since covered, in their order (`Coverage.count`). Both together are the state of the seat after the last
result that was accepted, which a new home begins with (`adoption`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from carrypost.errors import DecodeError, RemoteError
from carrypost.events import LayerEvent, PayloadWanted
from carrypost.model.ids import NodeId
from carrypost.model.recipient_lists import nodes
from carrypost.model.times import TIME_US_MAX
from carrypost.overlay.snapshot import Snapshot, digest, extended, unpacked

if TYPE_CHECKING:
    from collections.abc import Mapping

    from carrypost.gossip.holdings.copies import Copy
    from carrypost.gossip.transfers.host_context import HostContext
    from carrypost.gossip.wire.pieces import Blank
    from carrypost.model.headers import Covers
    from carrypost.model.ids import MessageId
    from carrypost.overlay.rows import RevertingRows
    from carrypost.overlay.subscription import Subscription


class EventsLost(LayerEvent, frozen=True):
    """Events are missing before the result that follows.

    Either the consumer did not get them, or the state of its modulator lacks them: another broker adopted the seat, and
    no node had them any more, or they did not come within `gap_s`.
    """

    destination: str
    """Destination of the subscription's results."""
    producer: NodeId
    events: int


class KeptCheckpoints:
    """The last checkpoints of the subscriptions of one node."""

    def __init__(self, context: HostContext, rows: RevertingRows) -> None:
        self._rows, self._limits, self._outputs = rows, context.limits, context.outputs
        self._signed = context.identity.signed
        self._payloads: dict[MessageId, bytes | Blank] = {}
        """The checkpoint that was read last."""

    def has_read(self, copy: Copy) -> bool:
        """Return True if the payload of a checkpoint was read; otherwise request it."""
        if copy.id in self._payloads:
            return True
        self._outputs.emit(PayloadWanted(copy.descriptor))
        return False

    def read(self, copy: Copy, payload: bytes | Blank) -> None:
        """Process the payload of a checkpoint whose turn it is."""
        # One at a time: a checkpoint is read when it is its turn, and may be large.
        self._payloads = {copy.id: payload}

    def keep(self, found: Subscription, copy: Copy, covers: Covers) -> Mapping[str, int]:
        """Replace the checkpoint before, and the events since then, with one that was read.

        Returns how many events its state lacks of which there were results, by producer.
        """
        if (payload := self._payloads.pop(copy.id, None)) is None:
            return {}
        try:
            snapshot = unpacked(payload, self._limits, signed=self._signed)
            if (snapshot.epoch, snapshot.number) != (covers.epoch, covers.number) or snapshot.repeats or snapshot.runs:
                raise DecodeError("snapshot", "the snapshot is of another seat, or of another time")
        except RemoteError as error:
            self._outputs.refuse(error.reason, copy.descriptor.node, copy.descriptor.shown)
            return {}
        # The events before the checkpoint are in its state, and need not be repeated any more.
        found.row.keeps, found.row.repeats = bool(snapshot.modulator), []
        self._rows.put(found.checkpoint_name, payload if isinstance(payload, bytes) else b"")
        return snapshot.lacks

    def forget(self, found: Subscription) -> None:
        """Forget the checkpoint of a subscription that is closed."""
        if self._rows.latest(found.checkpoint_name) is not None:
            self._rows.delete(found.checkpoint_name)

    def adoption(self, found: Subscription) -> Snapshot:
        """Return the state that a new home of a subscription begins with."""
        row, kept = found.row, self._kept(found)
        if kept is None:
            return Snapshot(row.epoch, row.number, row.cursors)
        return Snapshot(
            row.epoch, row.number, kept.cursors, kept.state, kept.modulator, repeats=row.repeats,
            since_us=kept.since_us,
        )  # fmt: skip

    def needed_after(self, found: Subscription) -> Mapping[str, int]:
        """Return the last event of each producer that no home of a subscription will need any more."""
        kept = self._kept(found)
        return found.row.cursors if kept is None else kept.cursors

    def _kept(self, found: Subscription) -> Snapshot | None:
        """Return the last checkpoint of the present modulator; None if it has no state, or gave no results yet."""
        stored = self._rows.latest(found.checkpoint_name) if found.row.keeps else None
        try:
            kept = None if stored is None else unpacked(stored, self._limits, signed=self._signed)
        except RemoteError:  # The limits were other ones when it was stored.
            return None
        return kept if kept is not None and kept.modulator == digest(found.row.modulator) else None


def _sum(count: int, more: int) -> int:
    """Return a sum of numbers that a home reports, clamped: a home could report numbers whose sum cannot be stored."""
    return min(count + more, TIME_US_MAX)


class Coverage:
    """Events that the accepted results of one node cover, and those that are missing."""

    def __init__(self, context: HostContext) -> None:
        self._limits, self._outputs = context.limits, context.outputs
        self.missed = 0
        """Events that were missing, since the start."""

    def count(self, found: Subscription, covers: Covers) -> bool:
        """Advance the cursors by the events of a result. Returns False if the consumer has all of them already."""
        named, row = nodes(covers.producers), found.row
        new = not covers.runs
        for at, after, upto in covers.runs:
            cursor = row.cursors.setdefault(named[at], after)
            if upto > cursor:
                new = True
                row.cursors.pop(named[at], None)  # The last one that was heard of is the last to be forgotten.
                row.cursors[named[at]] = upto
                if row.keeps and upto > after:
                    row.repeats = extended(row.repeats, (named[at], max(after, cursor), upto))
                row.events = _sum(row.events, upto - max(after, cursor))
                if after > cursor:
                    self.lose(found, named[at], after - cursor)
        if new:
            row.faults = _sum(row.faults, covers.faults)
            row.busy_us = _sum(row.busy_us, covers.busy_us)
            row.discarded = _sum(row.discarded, covers.discarded)
        self._shorten(found)
        return new

    def lose(self, found: Subscription, producer: NodeId, events: int) -> None:
        """Report events to the program that are missing, or that the modulator's state lacks from now on."""
        found.row.lost = _sum(found.row.lost, events)
        self.missed += events
        self._outputs.emit(EventsLost(found.destination, producer, events))

    def _shorten(self, found: Subscription) -> None:
        """Enforce the bounds: a home could send results that name ever more producers, or events."""
        row = found.row
        while len(row.cursors) > self._limits.clients_max:
            del row.cursors[next(iter(row.cursors))]
            self._outputs.refuse("lanes", row.home or "")
        if len(row.repeats) > self._limits.runs_max:
            row.keeps, row.repeats = False, []
            self._outputs.refuse("repeats", row.home or "")
