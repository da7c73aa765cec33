"""The journal: changes that the host wants stored, in batches, and what waits for them: events, and acts of the host.

One batch is one transaction of the driver's store; batches are applied in the order of their serials and each key
occurs once per batch. An event that depends on a change is held with the batch that carries the change, and released
when the driver answers `durable`. What the host itself does only then waits in the same way (`when_durable`). A batch
that cannot be written ends the host, and with it everything that waits.
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

import enum
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial

import msgspec

from carrypost.log.events import Delivered, Delivery, Event, Handed
from carrypost.model.descriptor import Descriptor
from carrypost.model.ids import MessageId, NodeId

Key = tuple[str, bytes, int]
"""(kind, message id or name, piece number or 0)."""

MESSAGE = "message"
PIECE = "piece"
HASHES = "hashes"
SEEN = "seen"
STRUCK = "struck"
ORDER = "order"
MOM = "mom"
ACKED = "acked"
SEALING = "sealing"
LAYERS: set[str] = {MOM, ACKED, STRUCK, SEALING}
"""Kinds of rows that the store does not interpret: names and values are their owner's. The owner is a layer, whose kind
is registered when the first layer of its class joins a host; struck-off recipients belong to the core."""
META = "meta"
CORE = frozenset({MESSAGE, PIECE, HASHES, SEEN, STRUCK, META})
"""Kinds of rows that belong to no layer."""
INCARNATION: Key = (META, b"incarnation", 0)
DATE: Key = (META, b"date", 0)
"""The latest date that is known to have passed, to the minute."""


class StoredMessage(msgspec.Struct, frozen=True, gc=False):
    """The stored state of one copy, less its payload."""

    descriptor: Descriptor
    held: int
    """Bitset of the pieces that are in the store."""
    hops: int
    age_ms: int
    received_us: int
    giver: NodeId | None
    own: bool
    interesting: bool
    delivered: bool
    """Delivered to the application; without a `seen` key, not confirmed yet."""
    claimed: bool = False
    """Claimed by a subscription of messaging; without a `seen` key, not acknowledged yet."""
    predecessors_lost: int = 0
    """Causal order: number of messages that it names and that died undelivered here."""


class PieceOf(msgspec.Struct, frozen=True, gc=False):
    """A piece that equals another message's piece of that number, which the store had before this batch.

    The store copies it without passing it to the host.
    """

    message: MessageId


Value = StoredMessage | Descriptor | PieceOf | bytes | int
"""Values of a message, a seen id, a piece, a hash list, an uninterpreted row, or the incarnation."""


class Durability(enum.IntEnum):
    """The level of safety that a batch must reach before its events may be released."""

    NORMAL = 0
    """Survives the process."""
    FULL = 1
    """Survives the loss of power."""


_NORMAL = Durability.NORMAL
_LATER_MAX = 256
"""Number of deletions that wait for the next batch."""


class Batch(msgspec.Struct, frozen=True):
    """One store transaction."""

    serial: int
    durability: Durability
    puts: dict[Key, Value]
    deletes: tuple[Key, ...]
    refers: bool = False
    """True if any of the puts is a `PieceOf`. Its source may be among the deletes."""


class Retractable:
    """Deliveries by message, or a hand-over by its number, of which each can be withheld until a driver takes it."""

    __slots__ = ("parts",)

    def __init__(self, event: Delivered | Handed) -> None:
        self.parts: dict[bytes | int, Delivery | Handed] = (
            {event.number: event} if isinstance(event, Handed) else {each.message: each for each in event.deliveries}
        )

    def event(self) -> Event | None:
        """Return what is left as an event; None if nothing is."""
        deliveries: list[Delivery] = []
        for part in self.parts.values():
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
        if isinstance(event, Delivered | Handed):
            waiting = Retractable(event)
            for key in waiting.parts:
                self._retractable[key] = (*self._retractable.get(key, ()), waiting)
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
                for key in each.parts:
                    others = tuple([other for other in self._retractable.pop(key) if other is not each])
                    if others:
                        self._retractable[key] = others
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

    def _retract(self, key: bytes | int) -> bool:
        found = self._retractable.pop(key, ())
        for each in found:
            del each.parts[key]
        return bool(found)

    def demand(self, durability: Durability) -> None:
        """Require at least this durability of the batch that is being made."""
        self._durability = max(self._durability, durability)
