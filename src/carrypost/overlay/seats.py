"""Seats: the work of a broker for the consumers that chose it as their home (OVERLAY §2.2)."""

# A seat has a cursor for each producer, the number of the last event that it processed, and
# processes the events of each producer in the order of their numbers, one by one. Results have
# numbers of their own, dense for each subscription, and name the events that they cover
# (`Headers.covers`).
#
# The problem. A modulator is a function with a state, its broker may crash, its disk may be full,
# and its consumer may move the seat elsewhere at any moment. Each event must count exactly once in
# that state, or the consumer's results are wrong and no node notices.
#
# The way chosen. A result, the cursor and the number are in one batch. So after a crash a seat
# continues where its results end. If a batch is lost, the seat goes back to what is on disk, and
# processes the same events again, which it keeps until then: modulators are deterministic, so the
# same results come out.
#
# What must hold.
# 1. The row of a seat is replaced only when all results of an event are published (`_took`). Until
#    then the event can be processed again.
# 2. Events leave a lane only when the row that covers them is durable (`durable`).
# 3. One step processes at most `_STEP_EVENTS_MAX` events. A seat with ten thousand waiting events
#    would otherwise keep the broker from answering its neighbours, and they would time it out.
# 4. Clients' own code is charged to its client by the time that it takes, and only one payload is
#    read for it at a time (`_run_programs`): a slow modulator delays its own results alone.
#
# Events come to a seat by its lanes (`overlay.lanes`), and missing ones are asked for
# (`overlay.gaps`).

from __future__ import annotations

from typing import TYPE_CHECKING

from carrypost.events import PayloadWanted
from carrypost.gossip.layer import Draft
from carrypost.model import address
from carrypost.model.ids import NodeId
from carrypost.model.times import NEVER
from carrypost.overlay.checkpoints import Checkpoints
from carrypost.overlay.compute_budget import STEP_US, ComputeBudget
from carrypost.overlay.event_numbers import event_of
from carrypost.overlay.events import ModulatorFault
from carrypost.overlay.gaps import Gaps
from carrypost.overlay.lanes import Leaving, Seat, WaitingEvents, date_of, known_lanes, name_of
from carrypost.overlay.modules import Modules
from carrypost.overlay.processing import Processing, SeatRow, Step
from carrypost.overlay.seat_rows import SeatRows
from carrypost.overlay.seat_table import SeatTable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from carrypost.gossip.holdings.copies import Copy
    from carrypost.gossip.transfers.host_context import HostContext
    from carrypost.gossip.wire.pieces import Blank
    from carrypost.model.descriptor import Descriptor
    from carrypost.model.headers import Covers
    from carrypost.model.ids import MessageId
    from carrypost.overlay.items import Gone, Item, Sent, Start
    from carrypost.overlay.legs import Legs
    from carrypost.overlay.load import Load
    from carrypost.overlay.modulator import Meter
    from carrypost.overlay.rows import RevertingRows
    from carrypost.overlay.tables import Client

_STEP_EVENTS_MAX = 32
"""Number of events that are processed in one step, or one of each seat if these are more."""
_AGAIN_US = 5_000_000
"""Delay before a result that found no room is published again."""
_LOOK_US = 1_000_000
"""Interval at which a seat whose results wait looks for its consumer."""
_FAULT_US, _FAULT_US_MAX = 10_000, 1_000_000
"""Shortest and longest pause of a client's own code after a fault. It doubles with every further fault in a row."""
_AGING = 8
"""A modulator is asked again about a result when that is older by one part in this many of its age."""


class Seats(SeatTable):
    """The seats of one broker, at work."""

    def __init__(
        self, context: HostContext, legs: Legs, rows: RevertingRows, load: Load, meter: Meter | None = None
    ) -> None:
        super().__init__(context.outputs)
        self._rows, self.monitor, self._meter = SeatRows(rows), load, meter
        self.modules = Modules(context, legs)
        self._budget = ComputeBudget(context.limits, context.settings.overlay.capacity, meter)
        self._holdings = context.holdings
        self._node, self._in_reach = context.node, context.links.in_reach
        self._gaps = Gaps(context, legs)
        self._leaving: dict[tuple[str, int], Seat] = {}
        """Seats whose results were passed to the host to publish, by destination and number."""
        self._speed = context.settings.overlay.speed
        self._settings, self._limits, self._signed = context.settings, context.limits, context.identity.signed
        self._mute_us = round(context.settings.overlay.checkpoint_s * 1e6)
        self._event_us = round(context.settings.overlay.event_lifetime_s * 1e6)
        self._payloads: dict[MessageId, bytes | Blank] = {}
        """Payloads that were read in this step."""
        self._turn: tuple[Copy, int] | None = None
        """The event whose payload is being read for clients' own code, and the time at which it is requested again."""
        self._awaiting: list[tuple[Seat, int]] = []
        """Seats that wait for that payload, or for another one after it, and until when."""
        self._worked = 0
        """Number of events processed in this step."""

    # --- clients -------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to look for missing events: before that, the time is not known."""
        self._gaps.start()
        for seat in list(self._seats.values()):
            seat.next_us, seat.opened_us = 0, self._holdings.now_us
            self._run(seat, self._gaps.expect, seat)

    def _add(self, client: Client, row: SeatRow, processing: Processing) -> Seat:
        seat = Seat(client, row, processing, Checkpoints(self._settings, self._holdings.now_us))
        seat.opened_us = self._holdings.now_us
        others = self._of_channels.setdefault(client.item.channel, {})
        seat.lanes = known_lanes(others.values())  # Homes of producers do not report them again.
        self._seats[name_of(client)] = others[name_of(client)] = seat
        self.monitor.add(name_of(client), self._holdings.now_us)
        return seat

    def close(self, client: Client) -> None:
        """End the seat of a consumer that left."""
        name = name_of(client)
        if (seat := self._seats.pop(name, None)) is not None:
            others = self._of_channels.get(client.item.channel, {})
            if others.pop(name, None) is not None and not others:
                del self._of_channels[client.item.channel]
            self._gaps.clear(seat)
            self._rows.delete(name)
            self.monitor.remove(name)
            # Results of this step are published later, and must not bring its row back.
            self._leaving = {key: each for key, each in self._leaving.items() if each is not seat}

    # --- events --------------------------------------------------------------------------------------------

    def arrived(self, copy: Copy, channel: str) -> None:
        """Add an event to the lanes of all seats of its channel."""
        if not self._of_channels.get(channel):
            return
        event = copy.descriptor.original
        if not event_of(event) or address.channel_of(event.destination) != channel:
            self._outputs.refuse("event", copy.descriptor.node, copy.descriptor.shown)
            return
        for seat in self._of(channel):
            self._run(seat, self._enter, seat, copy)

    def _enter(self, seat: Seat, copy: Copy) -> None:
        if self._gaps.enter(seat, copy):
            self.monitor.arrived(name_of(seat.client), seat.processing.event_us, self._holdings.now_us)

    def handle_item(self, item: Start | Gone | Sent, author: NodeId, *, listed: int) -> None:
        """Process what producers, and homes of producers, report about events; `listed`: producers of such a home."""
        for seat in self._of(item.channel):
            self._run(seat, self._gaps.handle_item, seat, item, author, listed=listed)

    def left(self, copies: Sequence[Copy]) -> None:
        """Forget events that are gone: they are requested again."""
        self.modules.left(copies)
        gone = {copy.id for copy in copies if event_of(copy.descriptor.original)} if self._seats else set()
        if self._turn is not None and self._turn[0].id in gone:
            self._end_turn()
        for seat in list(self._seats.values()) if gone else ():
            self._run(seat, self._gaps.forget, seat, gone)

    def expire(self, now: int) -> None:
        """Look for missing events at other seats, and ask producers for them; skip those that are missing for long."""
        waiting = WaitingEvents(self._of_channels)
        for seat in [each for each in self._seats.values() if each.next_us <= now]:
            self._run(seat, self._expire, seat, waiting, now)

    def _expire(self, seat: Seat, waiting: WaitingEvents, now: int) -> None:
        seat.next_us = 0
        for copy in self._gaps.here(seat, waiting, now):
            self._enter(seat, copy)
        self._gaps.expire(seat, now)

    def pop_items(self) -> list[tuple[NodeId, Item]]:
        """Return the items for producers, once."""
        return self._gaps.pop_items() + self.modules.pop_items()

    # --- processing ----------------------------------------------------------------------------------------

    def work(self, now: int) -> list[Draft]:
        """Process one event of each seat that has one; return the results to publish."""
        self._worked = self._budget.spent_us = self._budget.own_us = 0
        return self._work(now)

    def work_on(self, now: int) -> list[Draft]:
        """Process one more event of each seat whose last result is published, unless the step had too many."""
        self._budget.published()
        return self._work(now) if 0 < self._worked < _STEP_EVENTS_MAX else []

    def _work(self, now: int) -> list[Draft]:
        self._leaving = {}
        drafts = []
        programs: list[tuple[Seat, Copy, bool]] = []
        for seat in [each for each in self._seats.values() if each.next_us <= now]:
            if seat.after_us <= now and not seat.is_idle:
                drafts += self._run(seat, self._work_for, seat, now, programs) or []
        drafts += self._run_programs(programs, now)
        self._payloads = {}
        return drafts

    def _work_for(self, seat: Seat, now: int, programs: list[tuple[Seat, Copy, bool]]) -> list[Draft]:
        """Process one event of a seat, or add it to those for clients' own code; return the results to publish."""
        if seat.awaits_state:
            return []
        seat.next_us = 0
        checkpoint = seat.checkpoint_us <= now
        heads = [] if checkpoint else seat.heads()
        if heads and seat.keep_us > now and self._asks(seat):
            seat.after_us = now + _LOOK_US
        elif heads:
            copy = seat.reading or self._next(seat, heads, now)
            if seat.after_us > now:
                return []
            self._worked += 1
            if seat.processing.is_program:
                programs.append((seat, copy, len(heads) > 1 or seat.has_next(copy)))
            elif not self._budget.is_over:
                return self._process(seat, copy, now)
        elif checkpoint or seat.mute_us <= now:
            result_of = seat.processing.checkpoint if checkpoint else seat.processing.mute
            step = result_of(seat.row, seat.destination, self._event_us, signed=self._signed)
            return self._leave(seat, step, now)
        return []

    def _next(self, seat: Seat, heads: Sequence[Copy], now: int) -> Copy:
        """Return the event that a seat processes next. It takes its time (`after_us`) where nothing measures that."""
        if any(each is seat.booked for each in heads):
            assert seat.booked is not None
            return seat.booked
        copy = min(heads, key=date_of)
        if self._meter is None and seat.processing.event_us:
            seat.booked, seat.after_us = copy, self.monitor.book(seat.processing.event_us, now)
        return copy

    def _run_programs(self, waiting: list[tuple[Seat, Copy, bool]], now: int) -> list[Draft]:
        """Let clients' own code process events, within the time of a step; True: the seat has another event, too.

        It runs in steps that bring a payload, and one payload is requested at a time. So the driver can do other things
        before the next one. A client waits for those that have used less time and have events to process.
        """
        made: list[Draft] = []
        budget, least_us = self._budget, NEVER
        for seat, copy, waits in sorted(waiting, key=lambda each: budget.rank(each[0].client.node)):
            used_us, due_us = budget.rank(seat.client.node)
            if due_us > now:
                seat.after_us = due_us
                continue
            # Within this much time clients count as equal. They process the same event in one step,
            # and its payload is read once.
            if used_us > least_us + STEP_US:
                continue
            budget.raise_least(min(used_us, least_us))
            if copy.id in self._payloads and budget.has_time:
                made += self._run(seat, self._run_program, seat, copy, now) or []
                if not waits:
                    continue
            elif self._turn is None or self._turn[1] <= now:
                self._end_turn()
                seat.reading, self._turn = copy, (copy, now + _AGAIN_US)
                self._outputs.emit(PayloadWanted(copy.descriptor))
            least_us = min(least_us, used_us)
        if self._turn is not None:  # Before the payload comes that is being read, a step can do nothing for these.
            for seat in [each for each, _, _ in waiting if each.after_us <= now]:
                seat.after_us = self._turn[1]
                self._awaiting.append((seat, seat.after_us))
        return made

    def _end_turn(self) -> None:
        self._turn, awaiting, self._awaiting = None, self._awaiting, []
        for seat, until_us in awaiting:
            if seat.after_us == until_us:  # Else it waits for something else by now.
                seat.after_us = seat.next_us = 0

    def _run_program(self, seat: Seat, copy: Copy, now: int) -> list[Draft]:
        """Let a client's own code process an event; start it again first if it failed before."""
        if seat.processing.is_broken:
            with self._budget.charged(seat.client.node, seat.processing.instance, now):
                seat.processing.repair()
        return self._process(seat, copy, now) if self._budget.has_time else []

    def _asks(self, seat: Seat) -> bool:
        """Return True if the modulator decides which results wait, because the consumer cannot be reached."""
        client = seat.client.node
        return seat.processing.has_keep and client != self._node and client not in self._in_reach

    def _process(self, seat: Seat, copy: Copy, now: int) -> list[Draft]:
        payload = self._payloads.get(copy.id) if seat.processing.reads_payload else b""
        if payload is None:
            seat.reading, seat.after_us = copy, now + _AGAIN_US
            self._outputs.emit(PayloadWanted(copy.descriptor))
            return []
        processing, event, leaving = seat.processing, copy.descriptor.original, seat.leaving
        if leaving is not None and leaving.numbers:  # There was no room for what came of it before.
            leaving.numbers.clear()
            processing.revert(seat.row)
            if processing.is_broken:
                return []
        age_us = max(self._holdings.date_us - event.created_us, 0) if self._asks(seat) else None
        author = seat.client.node if processing.is_program else None
        with self._budget.charged(author, processing.instance, now):
            step = processing.step(seat.row, copy, payload, seat.destination, self._holdings.date_us, age_us=age_us)
        seat.reading = None
        if step.fault:
            client = seat.client
            channel = client.item.channel
            self._outputs.emit(ModulatorFault(client.node, channel, event.node, event_of(event), step.fault))
        if step.waits:
            processing.revert(seat.row)
            seat.keep_us, seat.after_us = now + max((age_us or 0) // _AGING, _LOOK_US), now + _LOOK_US
            return []
        seat.keep_us = 0
        if leaving is None:
            seat.flow.got(copy.descriptor.length + event.wire_bytes)
        seat.lanes[event.node].sent_us = event.created_us
        seat.checkpoints.processed(event.node, event_of(event))
        drafts = self._leave(seat, step, now)
        if author is not None:
            self._budget.made(author, len(drafts))
            self._pause(seat, now, failed=bool(step.fault))
        return drafts

    @staticmethod
    def _pause(seat: Seat, now: int, *, failed: bool) -> None:
        """Let a client's own code pause after a fault.

        A module that fails with every event costs its broker a trap and a start each time, and is of no use to its
        client.
        """
        seat.pause_us = min(max(2 * seat.pause_us, _FAULT_US), _FAULT_US_MAX) if failed else 0
        if failed:
            seat.after_us = max(seat.after_us, now + seat.pause_us)

    def _leave(self, seat: Seat, step: Step, now: int) -> list[Draft]:
        """Publish results, and note the state of the seat after them. Without results it has that state at once."""
        if not step.drafts:
            seat.mute_us = min(seat.mute_us, now + self._mute_us) if step.row.runs else NEVER
            self._took(seat, step.row, None)
            return []
        seat.after_us = now + _AGAIN_US  # Unless they are published now.
        numbers = range(seat.row.number + 1, step.row.number + 1)
        seat.leaving = Leaving(step.row, set(numbers))
        self._leaving.update({(seat.destination, number): seat for number in numbers})
        return step.drafts

    def _took(self, seat: Seat, row: SeatRow, message: Descriptor | None) -> None:
        before, seat.row, seat.leaving, seat.after_us = seat.row, row, None, 0
        seat.next_us = 0
        self._rows.put(name_of(seat.client), row, message)
        for producer in seat.lanes:
            if row.cursors.get(producer) != before.cursors.get(producer):
                self._gaps.look(seat, producer)

    def payload_read(self, copy: Copy, payload: bytes | Blank) -> None:
        """Process the payload of an event that seats requested."""
        if self._turn is not None and self._turn[0] is copy:
            self._end_turn()
        for seat in self._seats.values():
            if seat.reading is copy:
                seat.next_us = seat.after_us = 0
                self._payloads[copy.id] = payload
        self.modules.payload_read(copy, payload)

    def published(self, copies: Sequence[Copy]) -> None:
        """Advance the cursors of seats whose results were admitted."""
        for copy in copies if self._leaving else ():
            headers = copy.descriptor.headers
            if headers is None or headers.covers is None:
                continue
            seat = self._leaving.pop((copy.descriptor.destination, headers.covers.number), None)
            if seat is not None:
                self._run(seat, self._published, seat, copy, headers.covers)

    def _published(self, seat: Seat, copy: Copy, covers: Covers) -> None:
        if (leaving := seat.leaving) is None:
            return
        leaving.numbers.discard(covers.number)
        nbytes = copy.descriptor.length + copy.descriptor.wire_bytes
        seat.checkpoints.sent(nbytes)
        if not covers.mute:
            seat.flow.sent(nbytes)
        if not leaving.numbers:
            seat.mute_us, seat.spoke_us = NEVER, self._holdings.now_us
            if covers.mute and copy.descriptor.size:
                seat.checkpoints.begin(self._holdings.now_us)
            self._took(seat, leaving.row, copy.descriptor)

    # --- batches -------------------------------------------------------------------------------------------

    def durable(self, names: Iterable[bytes]) -> None:
        """Release the events whose results are on disk."""
        for name in names:
            if (seat := self._named(name)) is None:
                continue
            for producer, cursor in self._rows.cursors(name).items():
                if (lane := seat.lanes.get(NodeId(producer))) is not None:
                    self._gaps.room.release_upto(lane, cursor)

    def reverted(self, names: Iterable[bytes]) -> None:
        """Go back to what is on disk."""
        for name in names:
            if (seat := self._named(name)) is not None:
                self._run(seat, self._revert, seat, self._rows.written(name) or seat.begin)

    def _revert(self, seat: Seat, row: SeatRow) -> None:
        seat.row = row
        seat.leaving, seat.after_us, seat.reading = None, self._holdings.now_us + _AGAIN_US, None
        seat.processing.revert(seat.row)
        for producer in seat.lanes:
            if producer not in seat.row.cursors and 1 in seat.lanes[producer].events:
                seat.row.cursors[producer] = 0
            self._gaps.look(seat, producer)
