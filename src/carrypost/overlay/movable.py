"""Seats that open and move: how they begin, stop, leave, are expected and go on (OVERLAY §2.4, steps 5 to 8).

A seat that moves away processes the last events that its producers' homes sent to it alone, and then works no more. A
copy of it stays until the new one works. A seat that is expected keeps the events that come, and processes none before
it has its state. That comes from the broker which had the seat, or, if this one is lost, from the consumer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from carrypost.errors import LocalError
from carrypost.model.ids import NodeId
from carrypost.model.times import NEVER
from carrypost.overlay.flow import Flow
from carrypost.overlay.items import CURSORS_MAX
from carrypost.overlay.lanes import name_of
from carrypost.overlay.processing import Processing, SeatRow, adopted, fresh
from carrypost.overlay.seats import Seats
from carrypost.overlay.snapshot import Snapshot, digest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from carrypost.overlay.lanes import Seat
    from carrypost.overlay.modulator import Instance
    from carrypost.overlay.relocation import Variant
    from carrypost.overlay.tables import Client
    from carrypost.overlay.topology import Topology


class MovableSeats(Seats):
    """The seats of one broker, those that come and those that leave included."""

    def prepare(self, client: Client, now: int) -> Processing | None:
        """Return the modulator of a consumer, made; None if it has to wait for its module, or for its turn.

        Raises `LocalError` if it does not run here.
        """
        seat, modulator = self.find(client), client.item.modulator
        if seat is not None and seat.processing.modulator == modulator and not seat.processing.is_absent:
            return seat.processing
        if modulator is None or not modulator.digest:
            return Processing(modulator, self._limits, b"", meter=self._meter, speed=self._speed)
        self._check_memory(seat)
        program = self.modules.program(modulator, client.node, now, self._modules_used)
        if program is None or self._budget.due_us(client.node) > now:
            return None
        with self._budget.charged(client.node, None, now):
            return Processing(modulator, self._limits, b"", program, self._meter, speed=self._speed)

    def _check_memory(self, seat: Seat | None) -> None:
        """Raise `LocalError` unless one more module may run, instead of that of a seat if it has one."""
        at_work = sum(each.processing.is_program for each in self if each is not seat)
        most = max(self._limits.modules_memory_bytes_max // self._limits.modulator_memory_bytes_max, 1)
        if at_work >= most:
            raise LocalError(f"this broker runs modules for {at_work} seats already (limits.modules_memory_bytes_max)")

    def absent(self, client: Client) -> Processing:
        """Return the modulator of a restored consumer whose module has to come again. Its seat keeps events until then.

        Modules do not outlive the process.
        """
        return Processing(client.item.modulator, self._limits, b"")

    def lacks_module(self, client: Client) -> bool:
        """Return True if the seat of a consumer waits for its module."""
        seat = self.find(client)
        return seat is not None and seat.processing.is_absent

    def _modules_used(self) -> set[bytes]:
        """Return the digests of the modules at work."""
        used = (seat.processing.modulator for seat in self._seats.values())
        return {each.digest for each in used if each is not None}

    def open(self, client: Client, processing: Processing) -> None:
        """Open the seat of a consumer with the result of `prepare`, or let it continue where the consumer says."""
        name, item = name_of(client), client.item
        seat = self.find(client)
        is_new = seat is None
        if seat is None:
            stored = self._rows.written(name)
            row = stored or fresh(item)
            # Later requests do not repeat the cursors, so that a restart would lose them.
            if stored is None and row.epoch and row.cursors:
                self._rows.put(name, row)
            seat = self._add(client, row, processing)
        self._run(seat, self._resume, seat, client, processing, is_new=is_new)

    def _resume(self, seat: Seat, client: Client, processing: Processing, *, is_new: bool) -> None:
        """Let a seat continue as its consumer says."""
        item = client.item
        if is_new:
            processing.restore(seat.row.state)
            self._gaps.expect(seat)
        seat.client = client
        if seat.processing.is_absent and item.modulator == seat.processing.modulator:
            seat.processing = processing
            processing.restore(seat.row.state)
        changed = item.modulator != seat.processing.modulator
        if seat.awaits_state:
            seat.processing = processing
            return
        if item.epoch > seat.row.epoch or (item.epoch == seat.row.epoch and item.number > seat.row.number):
            # The consumer was elsewhere meanwhile, did not get some results, or this broker's disk lost some rows.
            seat.row = seat.begin = fresh(item)
            changed = True
        if changed:
            self._begin(seat, msgspec.structs.replace(seat.row, state=b"", begun=False, repeats=[]), processing)
            self._gaps.expect(seat)

    def _begin(self, seat: Seat, row: SeatRow, processing: Processing) -> None:
        """Continue a seat from a row, with another state than before."""
        seat.row, seat.leaving, seat.reading = row, None, None
        seat.processing, seat.flow = processing, Flow()
        processing.restore(row.state)
        seat.checkpoints.begin(self._holdings.now_us, runs=len(row.repeats))
        self._rows.put(name_of(seat.client), row)

    def expect(self, client: Client, processing: Processing) -> None:
        """Keep events for a seat that moves here; it replaces any seat of the same consumer."""
        self.close(client)
        self._add(client, SeatRow(0, 0, {}), processing)

    def last_events(self, client: Client) -> tuple[tuple[NodeId, int], ...] | None:
        """Return the last events that came for other seats of the channel that an expected seat is of.

        All later ones are kept for that seat. Returns None if there are no such seats, so that no events come yet.
        """
        seats = self._of_channels[client.item.channel]
        others = [each for name, each in seats.items() if name != name_of(client) and not each.awaits_state]
        last: dict[NodeId, int] = {}
        for seat in others:
            for producer, cursor in seat.row.cursors.items():
                lane = seat.lanes.get(NodeId(producer))
                came = max([cursor, *(() if lane is None else lane.events)])
                last[NodeId(producer)] = max(came, last.get(NodeId(producer), 0))
        return tuple(last.items()) if others and len(last) <= CURSORS_MAX else None

    def load(self, client: Client, snapshot: Snapshot, epoch: int, variant: Variant) -> None:
        """Resume an expected seat from the state that came."""
        if (seat := self.find(client)) is not None:
            self._run(seat, self._load, seat, snapshot, epoch, variant)

    def _load(self, seat: Seat, snapshot: Snapshot, epoch: int, variant: Variant) -> None:
        client = seat.client
        known = snapshot.modulator == digest(client.item.modulator)
        state = snapshot.state if known and variant.state else b""
        row = SeatRow(
            epoch, snapshot.number, dict(snapshot.cursors), state, list(snapshot.runs), begun=bool(state),
            discarded=snapshot.discarded, since_us=snapshot.since_us,
        )  # fmt: skip
        seat.row = seat.begin = row
        seat.processing.restore(state)
        seat.mute_us = self._holdings.now_us + self._mute_us if row.runs else NEVER
        seat.skips = set() if variant.detours else set(map(NodeId, row.cursors))
        for producer, lane in seat.lanes.items():
            later = [number for number in lane.events if number > row.cursors.get(producer, 0)]
            if later:
                self._gaps.skip_to(seat, producer, min(later))
            elif producer not in row.cursors and 1 in lane.events:
                seat.row.cursors[producer] = 0
            self._gaps.room.release_upto(lane, seat.row.cursors.get(producer, 0))
            lane.since_us = NEVER
            self._gaps.look(seat, producer)
        self.write(client)

    def adopt(self, client: Client, snapshot: Snapshot) -> None:
        """Give a consumer the seat that a snapshot is of, unless it has it: after the number in the snapshot."""
        seat = self.at(client)
        if seat.awaits_state:
            self._run(seat, self._adopt, seat, snapshot)

    def _adopt(self, seat: Seat, snapshot: Snapshot) -> None:
        self._begin(seat, adopted(seat.client.item, snapshot), seat.processing)
        self._gaps.expect(seat)

    def lacks_state(self, client: Client) -> bool:
        """Return True if a consumer has results of a seat that is not here, or not as far: its lease was over.

        Without a modulator its cursors are state enough. It leaves them out if it believes that this broker has them.
        """
        item, seat = client.item, self.find(client)
        if item.adopts or (item.modulator is None and item.cursors):
            return False
        behind = seat is None or item.number > seat.row.number
        outdated = item.modulator is None and seat is not None and item.epoch > seat.row.epoch
        return item.number > 0 and (behind or outdated)

    @property
    def instances(self) -> list[Instance]:
        """Modulators that run for seats here."""
        return [each.processing.instance for each in self if each.processing.instance is not None]

    def cut_off(self, topology: Topology) -> set[bytes]:
        """Return the names of seats of channels whose producers cannot all be reached."""
        channels = [each for each, seats in self._of_channels.items() if seats and topology.lacks_producers(each)]
        return {name for each in channels for name in self._of_channels[each]}

    def write(self, client: Client) -> None:
        """Write a seat to the store."""
        if (seat := self.find(client)) is not None:
            self._rows.put(name_of(client), seat.row)

    def stop_at(self, client: Client, last: Mapping[NodeId, int] | None) -> None:
        """Process events of each producer up to a number, and none of others; None: process all again."""
        if (seat := self.find(client)) is not None:
            seat.stops = last

    def is_suspended(self, client: Client) -> bool:
        """Return True if a seat moved away, and a copy is kept."""
        seat = self.find(client)
        return seat is not None and seat.suspended

    def suspend(self, client: Client) -> None:
        """Keep a seat that moved away as it is."""
        if (seat := self.find(client)) is None:
            return
        seat.suspended, seat.reading, seat.leaving = True, None, None
        del self._of_channels[client.item.channel][name_of(client)]
        self._gaps.clear(seat)
        seat.lanes = {}

    def resume(self, client: Client) -> None:
        """Resume a seat that was not sent after all."""
        if (seat := self.find(client)) is not None:
            seat.suspended, seat.stops = False, None
            self._of_channels.setdefault(client.item.channel, {})[name_of(client)] = seat
