"""Outputs of one host: changes for the store, in batches, frames to send, events.

Every part of a host writes here and none reads: a driver takes all of it, changes first, then frames, then events.
Refusals are counted by reason and, if they name no message, reported together, because strangers decide how many there
are.

An event that depends on a change is held with the batch that carries the change (`Journal`), and released when the
driver answers `durable`. What the host itself does only then waits in the same way (`when_durable`). A batch that
cannot be written ends the host, and with it everything that waits.
"""

# Why events are held. A program that was handed a message, or notified that its message is stored,
# acts on it: it prints, pays, answers. If the node crashed now and came up without that row, the
# message would be delivered again as if for the first time, or be gone although the program was
# promised otherwise. Waiting for the disk at each change would be correct and slow, one `fdatasync`
# per message. So changes and the events that depend on them are collected during a step, written as
# one batch, and the events wait for its answer. The host itself never waits.
#
# What must hold: an event is released only after every batch before its own is durable, too.
# `durable` of a later batch therefore hands its events to an older open batch.

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Final

from carrypost.gossip.wire.frames import Frame, Transmission, coalesce
from carrypost.log.events import Delivered, Dropped, Expired, Handed, Passed, Reason, Received, Refused
from carrypost.log.journal import PIECE, Batch, Durability, PieceOf

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from carrypost.config import Limits
    from carrypost.log.events import Delivery, Event, Reception
    from carrypost.log.journal import Key, Value
    from carrypost.model.descriptor import Descriptor
    from carrypost.model.ids import MessageId, NodeId


_NORMAL: Final = Durability.NORMAL
_LATER_MAX: Final = 256
"""Number of deletions that wait for the next batch."""


class Retractable:
    """Deliveries by message, or a hand-over by its number, of which each can be withheld until a driver takes it."""

    __slots__ = ("_event", "_parts")

    def __init__(self, event: Delivered | Handed) -> None:
        self._event = event
        self._parts: dict[bytes | int, Delivery | Handed] | None = None
        """The parts that are left; None while nothing was asked of them, as mostly."""

    @property
    def parts(self) -> dict[bytes | int, Delivery | Handed]:
        """The parts that are left, by message or number."""
        if self._parts is None:
            event = self._event
            parts = (event,) if isinstance(event, Handed) else event.deliveries
            self._parts = {each.number if isinstance(each, Handed) else each.message: each for each in parts}
        return self._parts

    def event(self) -> Event | None:
        """Return what is left as an event; None if nothing is."""
        if self._parts is None:
            return self._event
        deliveries: list[Delivery] = []
        for part in self._parts.values():
            if isinstance(part, Handed):
                return part
            deliveries.append(part)
        return Delivered(tuple(deliveries)) if deliveries else None


class Journal:
    """Collector of changes in batches, which holds events until their batch is durable."""

    def __init__(self, released: list[Event | Retractable]) -> None:
        self.serial = 1
        """The serial of the next batch."""
        self.puts: dict[Key, Value] = {}
        """Puts of the next batch so far, beside `deletes`; written here only."""
        self.deletes: dict[Key, None] = {}
        self._later: dict[Key, None] = {}
        """Deletions for the next batch that is made for something else."""
        self._durability = _NORMAL
        self._refers = False
        self._held: list[Event | Retractable | partial[object]] = []
        self._open: dict[int, list[Event | Retractable | partial[object]]] = {}
        """Events and acts that wait for each batch without an answer."""
        self._retractable: dict[bytes | int, tuple[Retractable, ...]] = {}
        """Waiting deliveries of each message and hand-over of each number. Thousands of them wait for a slow disk, and
        each copy that leaves withholds its own without a search."""
        self._new: dict[Retractable, None] = {}
        """Waiting ones that are not among these yet. Most are released before anything may be withheld."""
        self.released = released
        """Receiver of released events, until `pop_released`."""

    def put(self, key: Key, value: Value, durability: Durability = Durability.NORMAL) -> None:
        """Store `value` under `key`."""
        if self.deletes:
            self.deletes.pop(key, None)
        if self._later:
            self._later.pop(key, None)
        self.puts[key] = value
        if durability > self._durability:
            self._durability = durability

    def put_piece_of(self, key: Key, message: MessageId, durability: Durability = Durability.NORMAL) -> None:
        """Store, under the key of a piece, the piece of that number of another message."""
        value = self.puts.get((PIECE, message, key[2]), PieceOf(message))
        self._refers = self._refers or isinstance(value, PieceOf)
        self.put(key, value, durability)

    def put_all(self, puts: Mapping[Key, Value], durability: Durability = Durability.NORMAL) -> None:
        """Store each of these values under its key."""
        if durability > self._durability:
            self._durability = durability
        for key in puts if self.deletes or self._later else ():
            self.deletes.pop(key, None)
            self._later.pop(key, None)
        self.puts.update(puts)

    def delete(self, key: Key) -> None:
        """Delete `key`."""
        self.puts.pop(key, None)
        self.deletes[key] = None

    def delete_later(self, key: Key) -> None:
        """Delete `key` with the next batch. None is made for it alone, unless many such keys wait.

        For rows whose return after a crash costs a repetition, and does no harm.
        """
        if key in self.puts or len(self._later) >= _LATER_MAX:
            self.delete(key)
        else:
            self._later[key] = None

    def hold(self, event: Event) -> None:
        """Release `event` once all changes so far are durable."""
        if isinstance(event, (Delivered, Handed)):
            waiting = Retractable(event)
            self._new[waiting] = None
            self._wait(waiting)
        else:
            self._wait(event)

    def when_durable(self, act: Callable[..., object], *given: object) -> None:
        """Do this once all changes so far are durable: at once if they are, else in a step of the host."""
        self._wait(partial(act, *given))

    def _wait(self, waiting: Event | Retractable | partial[object]) -> None:
        if self.puts or self.deletes:
            self._held.append(waiting)
        elif self._open:
            self._open[next(reversed(self._open))].append(waiting)
        else:
            self._release((waiting,))

    def _release(self, held: Iterable[Event | Retractable | partial[object]]) -> None:
        for each in held:
            if isinstance(each, partial):
                each()
            else:
                self.released.append(each)

    def pop_released(self) -> list[Event]:
        """Return the released events, once. None of them can be withheld any more."""
        released = self._settle(self.released)
        self.released.clear()
        return released

    def _settle(self, waiting: Iterable[Event | Retractable]) -> list[Event]:
        """Return what is left of waiting events."""
        events: list[Event] = []
        for each in waiting:
            if isinstance(each, Retractable):
                if each in self._new:
                    del self._new[each]
                else:
                    self._unlist(each)
                event = each.event()
                if event is not None:
                    events.append(event)
            else:
                events.append(each)
        return events

    def update(self, rows: Mapping[Key, Value | None]) -> None:
        """Store each of these values under its key; delete a key whose value is None."""
        for key, value in rows.items():
            if value is None:
                self.delete(key)
            else:
                self.put(key, value)

    def pop_batch(self) -> Batch | None:
        """Return the changes since the last call as one batch; None if there are none."""
        if not self.puts and not self.deletes:
            return None
        serial = self.serial
        batch = Batch(serial, self._durability, self.puts, (*self.deletes, *self._later), self._refers)
        self._open[serial] = self._held
        self.serial = serial + 1
        self.puts, self.deletes, self._later, self._held = {}, {}, {}, []
        self._durability, self._refers = _NORMAL, False
        return batch

    def durable(self, serial: int) -> None:
        """Release the events of a batch that is on disk; an unknown serial is ignored."""
        held = self._open.pop(serial, None)
        if held is None:
            return
        if self._open and next(iter(self._open)) < serial:
            # An older batch is still open: what waits here may depend on it too.
            older = max(number for number in self._open if number < serial)
            self._open[older].extend(held)
        else:
            self._release(held)

    def retract(self, message: MessageId) -> bool:
        """Withhold a delivery that was not handed over yet, because its copy is gone; return True if there was one."""
        return self._retract(message)

    def retract_handed(self, numbers: Collection[int]) -> set[int]:
        """Withhold hand-overs under these numbers that were not reported yet; return their numbers."""
        return {number for number in numbers if self._retract(number)}

    def _unlist(self, waiting: Retractable) -> None:
        for key in waiting.parts:
            if others := tuple([other for other in self._retractable.pop(key) if other is not waiting]):
                self._retractable[key] = others

    def _retract(self, key: bytes | int) -> bool:
        for waiting in self._new:
            for part in waiting.parts:
                self._retractable[part] = (*self._retractable.get(part, ()), waiting)
        self._new.clear()
        found = self._retractable.pop(key, ())
        for each in found:
            del each.parts[key]
        return bool(found)

    def demand(self, durability: Durability) -> None:
        """Require at least this durability of the batch that is being made."""
        self._durability = max(self._durability, durability)


class Outputs:
    """The out-trays of one host."""

    __slots__ = (
        "_expired", "_named", "_received", "_refusals_max", "dropped", "events", "gathered", "journal", "outgoing",
        "refusals", "refused", "emit", "tracing",
    )  # fmt: skip

    def __init__(self, limits: Limits) -> None:
        self.events: list[Event | Retractable] = []
        self.emit = self.events.append
        """Emit an event at once; one that depends on a change is held in the journal instead."""
        self.journal = Journal(self.events)
        self.outgoing: list[Transmission] = []
        self.gathered = False
        """True if `report` has anything to report."""
        self.tracing = False
        """True if `passed` has to be called."""
        self._received: dict[tuple[NodeId, tuple[NodeId, ...]], list[Reception]] = {}
        """Arrivals not reported yet, by the host that sent them and the relays between."""
        self._expired: list[Descriptor] = []
        """Messages not reported yet that were received and will never be delivered."""
        self.refused: Counter[str] = Counter()
        """Number of refusals, by reason."""
        self.dropped: Counter[str] = Counter()
        """Number of copies that left or were not admitted, by reason."""
        self.refusals: Counter[tuple[str, str]] = Counter()
        """Refusals not reported yet, by reason and peer."""
        self._refusals_max = limits.refusals_max
        self._named = 0
        """Number of refusals among the events that name a message."""

    def send(self, frames: Sequence[Frame], to: str) -> None:
        """Transmit these frames to a link address. Called by links alone."""
        self.outgoing.append(Transmission(tuple(frames), to))

    def broadcast(self, frames: Sequence[Frame]) -> None:
        """Transmit these frames to all nodes in range."""
        self.outgoing.append(Transmission(tuple(frames), None))

    def receive(self, peer: NodeId, path: tuple[NodeId, ...], receptions: Sequence[Reception]) -> None:
        """Report messages that became whole with the next `report`, together with others of the same host and path.

        `path`: the relays between.
        """
        self._received.setdefault((peer, path), []).extend(receptions)
        self.gathered = True

    def trace(self) -> None:
        """Report from now on which neighbour has which message."""
        self.tracing = True

    def passed(self, peer: NodeId, descriptors: Sequence[Descriptor]) -> None:
        """Report that a neighbour acknowledged whole messages."""
        self.emit(Passed(peer, tuple(descriptors)))

    def expire(self, descriptors: Sequence[Descriptor]) -> None:
        """Report messages that will never be delivered with the next `report`, after their reception."""
        self._expired += descriptors
        self.gathered = True

    def report(self) -> None:
        """Report what was collected: at the end of a step, and before copies are dropped for new messages."""
        self.gathered = False
        for (peer, path), receptions in self._received.items():
            self.emit(Received(peer, tuple(receptions), path))
        self._received = {}
        if self._expired:
            self.emit(Expired(tuple(self._expired)))
            self._expired = []

    def drop(self, descriptors: Sequence[Descriptor], reason: Reason, *, undelivered: bool = False) -> None:
        """Count and report copies that leave or were not admitted; `undelivered`: they expired while waiting."""
        self.dropped[reason] += len(descriptors)
        self.emit(Expired(tuple(descriptors)) if undelivered else Dropped(tuple(descriptors), reason))

    def refuse(self, reason: str, peer: str, message: str | None = None, *, count: int = 1) -> None:
        """Count a refusal, or several of a kind. Refusals that name no message are reported together."""
        self.refused[reason] += count
        if message is not None and self._named < self._refusals_max:
            self._named += 1
            self.emit(Refused(reason, peer, count, message))
            return
        # Strangers can choose any addresses. Beyond a maximum of them, refusals are counted without the address.
        self.refusals[reason, peer if len(self.refusals) < self._refusals_max else ""] += count

    def pop_outgoing(self) -> list[Transmission]:
        """Return everything to send, once."""
        outgoing, self.outgoing = self.outgoing, []
        return outgoing if len(outgoing) == 1 else coalesce(outgoing)

    def pop_events(self) -> list[Event]:
        """Return all events, once."""
        if self.refusals:
            self.events.extend([Refused(reason, peer, count) for (reason, peer), count in self.refusals.items()])
            self.refusals.clear()
        self._named = 0
        return self.journal.pop_released()
