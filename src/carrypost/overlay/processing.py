"""Processing: the results of one event after the other, by the modulator of a consumer (OVERLAY §2.1).

A seat without a modulator passes on every event. One with a modulator passes on what that returns: the event itself,
results instead of it, or nothing. A result covers all events since the result before it, as runs; of several results of
one event the last one has the runs. Events without a result are covered by a result without content (`Covers.empty`),
before there are too many runs, and if no other result comes for a while. A checkpoint is such a result whose payload is
a snapshot of the seat.

A seat that was adopted first repeats the events of which the consumer has results, since its checkpoint, without
results.

Everything is a function of the row of the seat and the event. `step` returns the next row, with cursors, runs and the
modulator's state, beside the results. The seat replaces its row when all of these are published. If they cannot be, the
same event is processed again, from the state in the row.
"""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from carrypost.gossip.draft import Draft
from carrypost.model import ids
from carrypost.model.descriptor_values import Selectable
from carrypost.model.headers import RUNS_MAX, Covers, Headers
from carrypost.overlay.items import event_of
from carrypost.overlay.modulators.modulator import Instance, Meter, Modulator
from carrypost.overlay.modulators.registry import FUEL_PER_US, Event, Result
from carrypost.overlay.relocation import Run, Snapshot, digest, extended, packed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from carrypost.application.ledger import KnownRows
    from carrypost.config import Limits
    from carrypost.gossip.holdings.copies import Copy
    from carrypost.gossip.wire.pieces import Blank
    from carrypost.model.descriptor import Descriptor
    from carrypost.model.ids import NodeId
    from carrypost.model.properties import AttributeValue
    from carrypost.overlay.items import Attach
    from carrypost.overlay.modulators.registry import Program


class SeatRow(msgspec.Struct, array_like=True):
    """A seat as it is stored."""

    epoch: int
    number: int
    """Number of its last result."""
    cursors: dict[str, int]
    """Number of the last event that it processed, by producer; the cursor that moved last is the last one."""
    state: bytes = b""
    """State of the modulator after these events."""
    runs: list[Run] = []
    """Events since the last result, in the order of processing: producer, number before the first, and of the last."""
    faults: int = 0
    """Number of events in `runs` that the modulator failed with."""
    busy_us: int = 0
    """Execution time of the modulator for the events in `runs`."""
    begun: bool = False
    """True if a checkpoint informed the consumer of the modulator's first state."""
    repeats: list[Run] = []
    """Events that the consumer has results of, and that are processed without results first, in this order."""
    discarded: int = 0
    """Number of results of the events in `runs` that the modulator refused to keep."""
    lacks: dict[str, int] = {}
    """By producer: number of events to repeat that no node has any more, until the consumer is informed."""
    since_us: int = 0
    """Time from which on events of producers without a cursor count; 0: since the consumer subscribed. Cursors of
    producers that were last heard of before it were forgotten."""


class Outcome(NamedTuple):
    """Outcome of one event."""

    row: SeatRow
    """The seat after it."""
    drafts: list[Draft]
    """Results that are to be published."""
    fault: str = ""
    """Fault of the modulator, for people; empty if there was none."""
    waits: bool = False
    """True if the modulator wants to keep results whose consumer cannot be reached: the event has to wait."""


class Processing:
    """The modulator of one seat at work, or none."""

    def __init__(
        self, modulator: Modulator | None, limits: Limits, program: Program | None = None, meter: Meter | None = None,
        *, speed: float = 1.0,
    ) -> None:  # fmt: skip
        """Begin without a state; raises `LocalError` for a modulator that does not run here.

        `program`: of a module; without it nothing can be processed before the module comes.
        """
        self.modulator = modulator
        self.instance = None
        if modulator is not None and (program is not None or not modulator.digest):
            state_max = limits.modulator_state_bytes_max
            self.instance = Instance(modulator, limits, state_max, meter, program, speed=speed)
        self._broken: bytes | None = None
        """State that a program has to be started again with, after a fault or for another state."""
        self._is_new = True
        """True if the instance has no state, and processed nothing."""

    def restore(self, state: bytes) -> None:
        """Begin anew with a state: at once, or for a program when its turn comes (`repair`)."""
        if self.is_program:
            self._broken = None if self._is_new and not state else state
        elif self.instance is not None:
            self.instance.rebuild(state)

    @property
    def is_broken(self) -> bool:
        """True if a program has to be started again, because it failed, or has to have another state.

        A start is charged like an event: it, too, may take longer than its fuel suggests.
        """
        return self._broken is not None

    def repair(self) -> None:
        """Start a program again."""
        assert self.instance is not None
        self.instance.rebuild(self._broken or b"")
        self._broken, self._is_new = None, False

    @property
    def is_absent(self) -> bool:
        """True if a module has to come before anything can be processed."""
        return self.instance is None and self.modulator is not None

    @property
    def is_program(self) -> bool:
        """True if a client's own code runs."""
        return self.instance is not None and self.instance.program is not None

    @property
    def _busy_us(self) -> int:
        return 0 if self.instance is None else self.instance.busy_us

    @property
    def event_us(self) -> int:
        """Estimated time of the next event."""
        return 0 if self.instance is None else round(self.instance.event_us)

    @property
    def has_state(self) -> bool:
        """True if the modulator has a state that checkpoints have to bring."""
        return self.instance is not None and self.instance.has_state

    @property
    def has_keep(self) -> bool:
        """True if the modulator decides which results wait for a consumer that cannot be reached."""
        return self.instance is not None and self.instance.has_keep

    @property
    def reads_payload(self) -> bool:
        """True if the modulator needs the payloads of events."""
        return self.instance is not None and self.instance.registered.payload

    def step(
        self, row: SeatRow, copy: Copy, payload: bytes | Blank, to: str, date_us: int, *, age_us: int | None = None
    ) -> Outcome:
        """Process an event; `to`: the destination of results.

        `age_us`: the age of the event, if the consumer cannot be reached, and the modulator decides what waits.
        """
        if row.repeats:
            return Outcome(self._repeat(row, copy, payload), [])
        event = copy.descriptor.original
        number = event_of(event)
        busy_us = self._busy_us
        results, state, fault = self._run(event, payload, row.state)
        discarded = 0
        # The consumer is out of reach. Results of one event stay together: either the event waits
        # with all of them, or all are dropped, and counted as discarded.
        if results and age_us is not None:
            kept, fault = self._keeps(event, payload, results, age_us)
            if kept:
                return Outcome(row, [], fault, waits=True)
            discarded, results = len(results), ()
        runs = extended(row.runs, (event.node, number - 1, number))
        after = SeatRow(
            row.epoch, row.number, with_cursor(row.cursors, event.node, number), state, runs,
            row.faults + bool(fault), row.busy_us + self._busy_us - busy_us, row.begun,
            discarded=row.discarded + discarded, lacks=row.lacks, since_us=row.since_us,
        )  # fmt: skip
        lifetime_us = None if event.deadline_us is None else max(event.deadline_us - date_us, 1)
        drafts = []
        # `left` counts down to 0 for the last result, which is the one that names the events
        # covered. The consumer accepts all results of an event or none, so it has to know which one
        # is the last.
        for left, each in reversed(list(enumerate(reversed(results)))):
            after.number += 1
            covers = Covers(row.epoch, after.number) if left else _covers(after, signed=event.signed)
            drafts.append(self._told(_draft(to, each, covers, copy, lifetime_us)))
        if drafts:
            _next_result(after)
        # A result can name `RUNS_MAX` runs at most. So events that give no results are reported by
        # a result without content before there are too many.
        elif len(runs) >= RUNS_MAX:
            after, drafts, *_ = self.empty_result(after, to, lifetime_us, signed=event.signed)
        return Outcome(after, drafts, fault)

    def _keeps(
        self, event: Descriptor, payload: bytes | Blank, results: tuple[Result | None, ...], age_us: int
    ) -> tuple[bool, str]:
        """Return True if the modulator wants any result of an event to wait, as they stay together; and a fault."""
        assert self.instance is not None
        faults = self.instance.faults
        seen = Event(payload, MappingProxyType(event.attributes), Selectable(event))
        for each in results:
            waiting = seen if each is None else each
            if waiting.attributes is None:
                waiting = waiting._replace(attributes=seen.attributes)
            if self.instance.keep(waiting, age_us):
                return True, self.instance.fault if self.instance.faults > faults else ""
        return False, ""

    def _repeat(self, row: SeatRow, copy: Copy, payload: bytes | Blank) -> SeatRow:
        """Process an event whose results the consumer has. Returns the seat after it."""
        event = copy.descriptor.original
        _, state, _ = self._run(event, payload, row.state)
        cursors = with_cursor(row.cursors, event.node, event_of(event))
        return without_repeated(msgspec.structs.replace(row, cursors=cursors, state=state))

    def _run(
        self, event: Descriptor, payload: bytes | Blank, state: bytes
    ) -> tuple[tuple[Result | None, ...], bytes, str]:
        """Return the results of an event, None for the event itself, the state after it, and a fault."""
        if self.instance is None:
            return (None,), b"", ""
        seen = Event(payload, MappingProxyType(event.attributes), Selectable(event))
        self._is_new = False
        found = self.instance.process(seen)
        after = None if found is None else self.instance.save()
        if found is None or after is None:
            # A registered modulator is rebuilt at once. To start a client's program takes time that
            # is charged to the client, so that is left until its next event (`repair`).
            self.restore(state)
            return (), state, self.instance.fault
        return tuple(each if isinstance(each, Result) else None for each in found), after, ""

    def empty_result(self, row: SeatRow, to: str, lifetime_us: int | None, *, signed: bool) -> Outcome:
        """Return a result that has no content, and covers all events since the last one."""
        after = msgspec.structs.replace(row, number=row.number + 1)
        headers = Headers(covers=_covers(after, signed=signed, empty=True))
        _next_result(after)
        return Outcome(after, [self._told(Draft(to, b"", lifetime_us=lifetime_us, headers=headers, withheld=True))])

    def _told(self, draft: Draft) -> Draft:
        """Return a result with the last fault of the modulator, if that failed with events that the result covers."""
        headers = draft.headers
        if self.instance is None or headers is None or headers.covers is None or not headers.covers.faults:
            return draft
        return msgspec.structs.replace(draft, headers=msgspec.structs.replace(headers, fault=self.instance.fault))

    def checkpoint(self, row: SeatRow, to: str, lifetime_us: int | None, *, signed: bool) -> Outcome:
        """Return a result without content whose payload is a snapshot of the seat."""
        after, (draft,), *_ = self.empty_result(row, to, lifetime_us, signed=signed)
        after.begun, after.lacks = True, {}
        of = digest(self.modulator) if self.has_state else b""
        snapshot = Snapshot(
            after.epoch, after.number, after.cursors, after.state, of, lacks=row.lacks, since_us=row.since_us
        )
        return Outcome(after, [msgspec.structs.replace(draft, payload=packed(snapshot))])


def with_cursor(cursors: Mapping[str, int], producer: str, number: int) -> dict[str, int]:
    """Return cursors with one of them moved, which is the last one then."""
    after = dict(cursors)
    after.pop(producer, None)
    after[producer] = number
    return after


def fresh(item: Attach) -> SeatRow:
    """Return a seat that begins after what the consumer has; one that has to be adopted is of no epoch until then."""
    return SeatRow(0 if item.adopts else item.epoch, item.number, dict(item.cursors))


def adopted(item: Attach, snapshot: Snapshot) -> SeatRow:
    """Return a seat that begins with a snapshot, without its state if that is of another modulator."""
    row = SeatRow(item.epoch, snapshot.number, dict(snapshot.cursors), since_us=snapshot.since_us)
    # A state means nothing to another modulator, or to another version of it.
    if snapshot.modulator and snapshot.modulator == digest(item.modulator):
        row.state, row.begun, row.repeats = snapshot.state, True, list(snapshot.repeats)
        # Events are not repeated in the order in which producers can be reached, so that each one has a cursor.
        for producer, after, _ in row.repeats:
            row.cursors.setdefault(producer, after)
    return without_repeated(row)


def without_repeated(row: SeatRow) -> SeatRow:
    """Return a seat without those repetitions that its cursors are past, or which the next one begins after."""
    cursors, repeats = row.cursors, row.repeats
    while repeats and repeats[0][2] <= cursors.get(repeats[0][0], 0):
        repeats = repeats[1:]
    if repeats and cursors.get(repeats[0][0], -1) < repeats[0][1]:
        cursors = {**cursors, repeats[0][0]: repeats[0][1]}
    return msgspec.structs.replace(row, cursors=cursors, repeats=repeats)


def _covers(row: SeatRow, *, signed: bool, empty: bool = False) -> Covers:
    names = list(dict.fromkeys(producer for producer, _, _ in row.runs))
    runs = tuple((names.index(producer), after, upto) for producer, after, upto in row.runs)
    nodes = tuple(ids.node_bytes(ids.NodeId(each)) if signed else each for each in names)
    return Covers(row.epoch, row.number, nodes, runs, row.discarded, empty, row.faults, row.busy_us)


def _next_result(row: SeatRow) -> None:
    """Begin to collect for the next result."""
    row.runs, row.faults, row.busy_us, row.discarded = [], 0, 0, 0


def _draft(to: str, result: Result | None, covers: Covers, copy: Copy, lifetime_us: int | None) -> Draft:
    event = copy.descriptor.original
    if result is None:
        return Draft(
            to, b"", lifetime_us=lifetime_us, persistent=event.persistent, priority=event.priority,
            headers=Headers(covers=covers, origin=event.wire), withheld=True, payload_of=copy.id,
        )  # fmt: skip
    attributes = event.attributes if result.attributes is None else result.attributes
    return Draft(
        to, result.payload, attributes, lifetime_us=lifetime_us, persistent=event.persistent, priority=event.priority,
        headers=_headers(event, attributes, covers), withheld=True,
    )  # fmt: skip


def _headers(event: Descriptor, attributes: Mapping[str, AttributeValue], covers: Covers) -> Headers:
    """Return the headers of a result: those of the event that say what it is, and where to reply.

    Programs read the payload as the same type of body, and properties with the same types as far as they are the same.
    """
    of = event.headers
    if of is None:
        return Headers(covers=covers)
    before = event.attributes
    # A declared type that does not fit its value would make receivers refuse the whole result.
    same = {name for name in of.property_types if _is_same(attributes.get(name), before.get(name))}
    return Headers(
        covers=covers, body_type=of.body_type, correlation=of.correlation, correlation_bytes=of.correlation_bytes,
        reply_to=of.reply_to, type=of.type, delivery_time_us=of.delivery_time_us,
        property_types={name: kind for name, kind in of.property_types.items() if name in same},
    )  # fmt: skip


def _is_same(value: AttributeValue | None, before: AttributeValue | None) -> bool:
    return type(value) is type(before) and value == before


# --- seat rows ---------------------------------------------------------------------------------------------

# Rows of seats: cursors and numbers in one row, and the state of the modulator in others, written
# if they changed.
#
# A state may have 256 KiB, and an event usually changes little of it. To write all of it with every
# event would make the disk the limit. So a state is stored in parts of 4 KiB. The parts that an
# event changed are in the same batch as the cursors and the results: after a crash all of them are
# of the same event.
#
# A shorter state leaves empty parts. They are deleted with the seat only, since a lost deletion is
# not reverted.


PARTS = b"T"
"""First byte of the names of rows that have parts of states."""
PART_BYTES = 4096
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(SeatRow).decode


class SeatRows:
    """The rows of one broker's seats, by the names of seats (`lanes.name_of`)."""

    def __init__(self, rows: KnownRows) -> None:
        self._rows = rows

    def put(self, name: bytes, row: SeatRow) -> None:
        """Add a seat to the batch that is being made."""
        self._rows.put(name, _encode(msgspec.structs.replace(row, state=b"")))
        for number, part in enumerate(_names(name)):
            before = self._rows.get(part)
            after = row.state[number * PART_BYTES : (number + 1) * PART_BYTES]
            if before is None and not after:
                break
            if before != after:
                self._rows.put(part, after)

    def get(self, name: bytes) -> SeatRow | None:
        """Return a seat as it was stored last."""
        stored = self._rows.get(name)
        if stored is None:
            return None
        parts = []
        for part in _names(name):
            if not (found := self._rows.get(part)):
                break
            parts.append(found)
        return msgspec.structs.replace(_decode(stored), state=b"".join(parts))

    def delete(self, name: bytes) -> None:
        """Forget a seat."""
        self._rows.delete(name)
        for part in _names(name):
            if self._rows.get(part) is None:
                break
            self._rows.delete(part)


def _names(name: bytes) -> Iterator[bytes]:
    """Return the names of the parts of a state."""
    number = 0
    while True:
        yield PARTS + name[1:] + number.to_bytes(4, "big")
        number += 1


# --- compute budget ----------------------------------------------------------------------------------------

# The compute budget: the share of a broker's time that clients' own code may use (OVERLAY §5 leaves
# it open).""" The attack. Fuel bounds the instructions of one event, but instructions differ by two
# orders of magnitude in time: 40 ns for the dearest. A module that stays within its fuel can still
# keep a broker busy for 40 ms per event.
#
# So the time that modules take is charged to their clients: measured on nodes, by fuel in
# emulation, where the same run has to give the same results on every machine. A client in debt
# waits, and a step begins no other event when it has worked for `STEP_US`. The pace delays results,
# and never changes them: what a modulator computes must not depend on how busy its broker was.
#
# Debts are not enough. They bound the time of modules, but an event also costs the broker a step,
# and each result a signature and its transmission: sixteen results took ten times as long as the
# module that made them. And debts are paid off by the clock, also where other processes leave the
# broker half a processor. Ten hostile clients halved the rate of an honest one at 100 events/s.
#
# So events are processed in the order of start-time fair queueing (Goyal, Vin, Cheng, 1996), by the
# time that clients have used, publication of their results included. A client that needs little is
# served before all that used more, however busy the broker is. A client that had nothing to do
# continues with the least time of those that wait: it cannot save up time.

STEP_US = 5_000
"""Time after which a step begins no other event of a module. An event may take 30 ms (`modulators.wasm`), also after
one that took little; together they must not keep a node from anything else for 50 ms."""
_OWN_STEP_US = 20_000
"""Time after which a step begins no other event of a registered modulator."""
_BURST_US = 100_000
"""Debt that a client may have and still work, in time that it takes to pay it off."""


class ComputeBudget:
    """The debts of clients whose modules run at one broker, and the time that each has used."""

    def __init__(self, limits: Limits, capacity: float, meter: Meter | None = None) -> None:
        self._meter = meter
        self.spent_us = self.own_us = 0
        """Time that clients' own code took in this step, and registered modulators."""
        self._share, self._capacity = limits.fuel_per_s / FUEL_PER_US / 1e6, capacity
        self._clients_max = limits.clients_max
        self._paid_us: dict[NodeId, int] = {}
        """Time at which a client has no debt any more."""
        self._used_us: dict[NodeId, int] = {}
        """Time that clients have used; those that are missing have used `_least_us`."""
        self._least_us = 0
        """Time that counts as used by a client that has used less: it had nothing to do meanwhile."""
        self._results: Counter[NodeId] = Counter()
        """Results of this step that are not published yet, by client."""
        self._results_us = 0
        """CPU time at which their publication began."""

    def due_us(self, client: NodeId) -> int:
        """Return the time at which a client may work."""
        return self._paid_us.get(client, 0) - _BURST_US

    def rank(self, client: NodeId) -> tuple[int, int]:
        """Return the time that a client has used, and `due_us`. Clients of the lowest rank come first."""
        return self._used(client), self.due_us(client)

    def _used(self, client: NodeId) -> int:
        return max(self._used_us.get(client, 0), self._least_us)

    def raise_least(self, used_us: int) -> None:
        """Note the least time that any client has used which has events to process."""
        self._least_us = max(self._least_us, used_us)

    @property
    def has_time(self) -> bool:
        """True if this step may begin another event of a module, however long that event takes."""
        return self.spent_us <= STEP_US

    @property
    def is_over(self) -> bool:
        """True if registered modulators took so much time that this step begins no other event of theirs."""
        return self.own_us >= _OWN_STEP_US

    @contextmanager
    def charged(self, client: NodeId | None, instance: Instance | None, now: int) -> Iterator[None]:
        """Count the time that a modulator takes, declared if nothing measures it; charge a client for its own code."""
        before_us = self._busy_us(instance)
        try:
            yield
        finally:
            took_us = self._busy_us(instance) - before_us
            if client is None:
                self.own_us += took_us
            else:
                self.spent_us += took_us
                self.charge(client, took_us, now)

    def _busy_us(self, instance: Instance | None) -> int:
        if self._meter is not None:
            return self._meter()
        return 0 if instance is None else instance.busy_us

    def charge(self, client: NodeId, busy_us: int, now: int) -> None:
        """Charge a client for work. All clients in debt share the capacity of the broker."""
        if busy_us <= 0:
            return
        self._use(client, busy_us)
        if len(self._paid_us) >= self._clients_max:
            self._paid_us = {node: until_us for node, until_us in self._paid_us.items() if until_us > now}
        at_work = sum(until_us > now for node, until_us in self._paid_us.items() if node != client) + 1
        share = min(self._share, self._capacity / at_work)
        self._paid_us[client] = max(now, self._paid_us.get(client, 0)) + round(busy_us / share)

    def _use(self, client: NodeId, busy_us: int) -> None:
        if client not in self._used_us and len(self._used_us) >= self._clients_max:
            self._used_us = {node: used_us for node, used_us in self._used_us.items() if used_us > self._least_us}
            if len(self._used_us) >= self._clients_max:  # Clients of earlier seats, perhaps made up for this.
                self._used_us.clear()
        self._used_us[client] = self._used(client) + busy_us

    def made(self, client: NodeId, results: int) -> None:
        """Note results of a client's code, which the host publishes next."""
        if results:
            self._results[client] += results
            self._results_us = self._busy_us(None)

    def published(self) -> None:
        """Count the time since `made` as used by the clients whose results were published, by their number."""
        if self._results:
            each_us = (self._busy_us(None) - self._results_us) / self._results.total()
            for client, results in self._results.items():
                self._use(client, round(results * each_us))
            self._results.clear()
