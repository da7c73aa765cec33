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
# continues where its results end.
#
# What must hold.
# 1. The row of a seat is replaced only when all results of an event are published (`_advance`). If some
#    find no room, the event is processed again before anything else (`Seat.unfinished`): the others
#    may be on their way, and other results with their numbers would be taken for them.
# 2. Events leave a lane when that row is written, not before: the message that brought them is
#    acknowledged in the batch of the row, or later.
# 3. One step processes at most `_STEP_EVENTS_MAX` events. A seat with ten thousand waiting events
#    would otherwise keep the broker from answering its neighbours, and they would time it out.
# 4. Clients' own code is charged to its client by the time that it takes, and only one payload is
#    read for it at a time (`_run_programs`): a slow modulator delays its own results alone.
#
# Events come to a seat by its lanes, and missing ones are asked for (`overlay.lanes`).
#
# Faults of seats. A seat works on data of other nodes. An error in this work that no check foresaw
# must not end the step of its broker, which serves others: the step would fail again after each
# restart. So all work of a seat passes through `_run`. A seat that raises is closed, counted and
# reported, and its consumer is informed, which has another broker adopt the seat.

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import msgspec

from carrypost.errors import LocalError
from carrypost.gossip.draft import Draft
from carrypost.log.events import PayloadWanted
from carrypost.model import address
from carrypost.model.ids import NodeId
from carrypost.model.times import NEVER
from carrypost.overlay.events import ModulatorFault, SeatFailed
from carrypost.overlay.items import CURSORS_MAX, DETAIL_MAX, event_of
from carrypost.overlay.lanes import Checkpoints, Flow, Gaps, Leaving, Seat, WaitingEvents, date_of, known_lanes, name_of
from carrypost.overlay.modulators.modules import Modules
from carrypost.overlay.processing import STEP_US, ComputeBudget, Outcome, Processing, SeatRow, SeatRows, adopted, fresh
from carrypost.overlay.relocation import Snapshot, digest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from types import TracebackType

    from carrypost.application.ledger import KnownRows
    from carrypost.gossip.holdings.copies import Copy
    from carrypost.gossip.transfers.link import HostContext
    from carrypost.gossip.wire.pieces import Blank
    from carrypost.model.descriptor import Descriptor
    from carrypost.model.headers import Covers
    from carrypost.model.ids import MessageId
    from carrypost.overlay.items import Outbox, Sent
    from carrypost.overlay.legs import Legs
    from carrypost.overlay.load import Load
    from carrypost.overlay.modulators.modulator import Instance, Meter
    from carrypost.overlay.relocation import Variant
    from carrypost.overlay.tables import Client
    from carrypost.overlay.topology import Topology

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


P = ParamSpec("P")
T = TypeVar("T")


class Seats:
    """The seats of one broker, those that come and those that leave included."""

    def __init__(
        self, context: HostContext, legs: Legs, rows: KnownRows, load: Load,
        *, outbox: Outbox, meter: Meter | None = None,
    ) -> None:  # fmt: skip
        self._outputs = context.outputs
        self._seats: dict[bytes, Seat] = {}
        """Seats by the name of the row."""
        self._of_channels: dict[str, dict[bytes, Seat]] = {}
        self.failures: list[tuple[Client, str]] = []
        """Clients of seats that failed, and the errors, for people, until they are informed."""
        self.failed = 0
        """Number of seats that failed, in this incarnation."""
        self.last_fault = ""
        """Error of the last seat that failed, for people; empty if none did."""
        self._rows, self.monitor, self._meter = SeatRows(rows), load, meter
        self.modules = Modules(context, legs, outbox)
        self._budget = ComputeBudget(context.limits, context.settings.overlay.capacity, meter)
        self._holdings = context.holdings
        self._node, self._in_reach = context.node, context.links.in_reach
        self._gaps = Gaps(context, legs, outbox)
        self._leaving: dict[tuple[str, int], Seat] = {}
        """Seats whose results were passed to the host to publish, by destination and number."""
        self._speed = context.settings.overlay.speed
        self._settings, self._limits, self._signed = context.settings, context.limits, context.identity.signed
        self._cover_us = round(context.settings.overlay.checkpoint_s * 1e6)
        self._event_us = round(context.settings.overlay.event_lifetime_s * 1e6)
        self._payloads: dict[MessageId, bytes | Blank] = {}
        """Payloads that were read in this step."""
        self._turn: tuple[Copy, int] | None = None
        """The event whose payload is being read for clients' own code, and the time at which it is requested again."""
        self._awaiting: list[tuple[Seat, int]] = []
        """Seats that wait for that payload, or for another one after it, and until when."""
        self._worked = 0
        """Number of events processed in this step."""

    def __len__(self) -> int:
        return len(self._seats)

    def __iter__(self) -> Iterator[Seat]:
        return iter(self._seats.values())

    def at(self, client: Client) -> Seat | None:
        """Return the seat of a consumer, which the caller does not change."""
        return self._seats.get(name_of(client))

    def find(self, client: Client) -> Seat | None:
        """Return the seat of a consumer, which the caller may change."""
        if (seat := self.at(client)) is not None:
            seat.next_us = 0
        return seat

    def _of(self, channel: str) -> Iterable[Seat]:
        """Return the seats of a channel, all of which the caller may change."""
        seats = list(self._of_channels.get(channel, {}).values())
        for seat in seats:
            seat.next_us = 0
        return seats

    @property
    def due_us(self) -> int:
        """Time at which there is something to do for a seat, or for the consumer of one that failed."""
        # Asked after every step. A cached time per seat makes it one comparison for the many that
        # have nothing to do.
        if not self._seats:
            return 0 if self.failures else NEVER
        due_us = NEVER
        for seat in list(self._seats.values()):
            if not seat.next_us:
                self._run(seat, seat.look_ahead)
            if seat.next_us < due_us:
                due_us = seat.next_us
        return 0 if self.failures else due_us

    # --- faults --------------------------------------------------------------------------------------------

    def _run(self, seat: Seat, act: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T | None:
        """Do a part of a seat's work; return its result, or None if the seat raised, and was closed for it."""
        try:
            return act(*arguments, **options)
        except Exception as error:  # noqa: BLE001 - One seat must not end the step of all others.
            client, item = seat.client, seat.client.item
            fault = _described(error)
            self.failures.append((client, fault))
            self.failed, self.last_fault = self.failed + 1, fault
            self._outputs.refuse("seat", client.node)
            self._outputs.emit(SeatFailed(client.node, item.channel, item.subscription, fault))
            self.close(client)
            return None

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
        self._seats[seat.name] = others[seat.name] = seat
        self.monitor.add(seat.name, self._holdings.now_us)
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
        if self._gaps.enter(seat, copy) and (event_us := seat.processing.event_us):
            self.monitor.arrived(seat.name, event_us, self._holdings.now_us)

    def handle_item(self, item: Sent, author: NodeId, *, listed: int) -> None:
        """Process what producers, and homes of producers, report about events; `listed`: producers of such a home."""
        for seat in self._of(item.channel):
            self._run(seat, self._gaps.handle_item, seat, item, author, listed=listed)

    def left(self, copies: Sequence[Copy]) -> None:
        """Forget events that are gone: they are requested again."""
        self.modules.left(copies)
        held = self._gaps.room.held
        gone = {copy.id for copy in copies if copy.id in held} if held else set()
        if self._turn is not None and self._turn[0] in copies:
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
        for copy in self._gaps.held_by_others(seat, waiting, now):
            self._enter(seat, copy)
        self._gaps.expire(seat, now)

    # --- processing ----------------------------------------------------------------------------------------

    def work(self, now: int) -> list[Draft]:
        """Process one event of each seat that has one; return the results to publish."""
        self._worked = self._budget.spent_us = self._budget.own_us = 0
        return self._work(now) if self._seats else []

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
        if programs:
            drafts += self._run_programs(programs, now)
        self._payloads = {}
        return drafts

    def _work_for(self, seat: Seat, now: int, programs: list[tuple[Seat, Copy, bool]]) -> list[Draft]:
        """Process one event of a seat, or add it to those for clients' own code; return the results to publish."""
        if seat.awaits_state:
            return []
        seat.next_us = 0
        if seat.unfinished is not None:  # The modulator is past that event.
            seat.processing.restore(seat.row.state)
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
        elif checkpoint or (seat.cover_us <= now and seat.unfinished is None):
            result_of = seat.processing.checkpoint if checkpoint else seat.processing.empty_result
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
        return seat.processing.has_keep and seat.client.node not in {self._node, *self._in_reach}

    def _process(self, seat: Seat, copy: Copy, now: int) -> list[Draft]:
        payload = self._payloads.get(copy.id) if seat.processing.reads_payload else b""
        if payload is None:
            seat.reading, seat.after_us = copy, now + _AGAIN_US
            self._outputs.emit(PayloadWanted(copy.descriptor))
            return []
        processing, event = seat.processing, copy.descriptor.original
        age_us = max(self._holdings.date_us - event.created_us, 0) if self._asks(seat) else None
        author = seat.client.node if processing.is_program else None
        with self._budget.charged(author, processing.instance, now):
            step = processing.step(seat.row, copy, payload, seat.destination, self._holdings.date_us, age_us=age_us)
        seat.reading = None
        if step.fault:
            to = seat.client.node, seat.client.item.channel
            self._outputs.emit(ModulatorFault(*to, event.node, event_of(event), step.fault))
        if step.waits:
            processing.restore(seat.row.state)
            seat.keep_us, seat.after_us = now + max((age_us or 0) // _AGING, _LOOK_US), now + _LOOK_US
            return []
        seat.keep_us = 0
        if seat.leaving is None:
            seat.flow.got(copy.descriptor.length + event.wire_bytes)
        seat.lanes[event.node].sent_us = event.created_us
        seat.checkpoints.processed(event.node, event_of(event))
        drafts = self._leave(seat, step, now, event)
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

    def _leave(self, seat: Seat, step: Outcome, now: int, event: Descriptor | None = None) -> list[Draft]:
        """Publish results, and note the state of the seat after them. Without results it has that state at once."""
        if not step.drafts:
            seat.cover_us = min(seat.cover_us, now + self._cover_us) if step.row.runs else NEVER
            self._advance(seat, step.row)
            return []
        seat.after_us = now + _AGAIN_US  # Unless they are published now.
        numbers = range(seat.row.number + 1, step.row.number + 1)
        seat.leaving = Leaving(step.row, set(numbers), event)
        self._leaving.update({(seat.destination, number): seat for number in numbers})
        return step.drafts

    def _advance(self, seat: Seat, row: SeatRow) -> None:
        before, seat.row, seat.leaving, seat.after_us = seat.row, row, None, 0
        seat.next_us = 0
        self._rows.put(seat.name, row)
        for producer, lane in seat.lanes.items():
            cursor = row.cursors.get(producer)
            if cursor is not None and cursor != before.cursors.get(producer):
                self._gaps.room.release_upto(lane, cursor)
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
        if not covers.empty:
            seat.flow.sent(nbytes)
        if not leaving.numbers:
            seat.cover_us, seat.spoke_us = NEVER, self._holdings.now_us
            if covers.empty and copy.descriptor.size:
                seat.checkpoints.begin(self._holdings.now_us)
            self._advance(seat, leaving.row)

    # --- openings and moves --------------------------------------------------------------------------------

    def prepare(self, client: Client, now: int) -> Processing | None:
        """Return the modulator of a consumer, made; None if it has to wait for its module, or for its turn.

        Raises `LocalError` if it does not run here.
        """
        seat, modulator = self.find(client), client.item.modulator
        if seat is not None and seat.processing.modulator == modulator and not seat.processing.is_absent:
            return seat.processing
        if modulator is None or not modulator.digest:
            return Processing(modulator, self._limits, meter=self._meter, speed=self._speed)
        self._check_memory(seat)
        program = self.modules.program(modulator, client.node, now, self._modules_used)
        if program is None or self._budget.due_us(client.node) > now:
            return None
        with self._budget.charged(client.node, None, now):
            return Processing(modulator, self._limits, program, self._meter, speed=self._speed)

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
        return Processing(client.item.modulator, self._limits)

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
        if (seat := self.find(client)) is None:
            seat = self._add(client, fresh(client.item), processing)
            self._run(seat, self._restore, seat)
        if self.find(client) is seat:
            self._run(seat, self._resume, seat, client, processing)

    def _restore(self, seat: Seat) -> None:
        """Let a seat continue with what is on disk."""
        if (stored := self._rows.get(seat.name)) is not None:
            seat.row = stored
        elif seat.row.epoch and seat.row.cursors:
            # Later requests do not repeat the cursors, so that a restart would lose them.
            self._rows.put(seat.name, seat.row)
        seat.processing.restore(seat.row.state)
        self._gaps.expect(seat)

    def _resume(self, seat: Seat, client: Client, processing: Processing) -> None:
        """Let a seat continue as its consumer says."""
        item = client.item
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
            seat.row = fresh(item)
            changed = True
        if changed:
            self._begin(seat, msgspec.structs.replace(seat.row, state=b"", begun=False, repeats=[]), processing)

    def _begin(self, seat: Seat, row: SeatRow, processing: Processing) -> None:
        """Continue a seat from a row, with another state than before."""
        seat.row, seat.leaving, seat.reading = row, None, None
        seat.processing, seat.flow = processing, Flow()
        processing.restore(row.state)
        seat.checkpoints.begin(self._holdings.now_us, runs=len(row.repeats))
        self._rows.put(seat.name, row)
        self._gaps.expect(seat)

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
        seat.row = row
        seat.processing.restore(state)
        seat.cover_us = self._holdings.now_us + self._cover_us if row.runs else NEVER
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
        if (seat := self.find(client)) is not None and seat.awaits_state:
            self._run(seat, self._adopt, seat, snapshot)

    def _adopt(self, seat: Seat, snapshot: Snapshot) -> None:
        self._begin(seat, adopted(seat.client.item, snapshot), seat.processing)

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
        return {
            name
            for channel, seats in self._of_channels.items()
            if seats and not all(map(topology.can_reach, topology.producing(channel)))
            for name in seats
        }

    def write(self, client: Client) -> None:
        """Write a seat to the store."""
        if (seat := self.find(client)) is not None:
            self._rows.put(seat.name, seat.row)

    def suspend(self, client: Client) -> None:
        """Keep a seat that moved away as it is."""
        if (seat := self.find(client)) is None:
            return
        seat.suspended, seat.reading, seat.leaving = True, None, None
        del self._of_channels[client.item.channel][seat.name]
        self._gaps.clear(seat)
        seat.lanes = {}


def _described(error: Exception) -> str:
    """Return an error and its place in the code, for people."""
    place: TracebackType | None = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    where = "" if place is None else f" ({place.tb_frame.f_code.co_qualname}, line {place.tb_lineno})"
    return f"{type(error).__name__}: {error}"[: DETAIL_MAX - len(where)] + where
