"""What the store gives back, and what it could not take.

`restore` makes a host of an earlier life's batches: copies, seen ids, hash lists and the incarnation, which is raised.
`lost` undoes what a batch that could not be written had promised: a send fails, a received copy is dropped, and what
was only a note (a confirmation, a deletion, the incarnation) is written again later. It also teaches the host that the
disk has less room than its cache was to have: for a while what is only carried has to do with a little less than what
is there; the least privileged goes, and so later sends find room.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from carrypost import journal as keys
from carrypost.events import Confirmed, Delivered, Dropped, Event, Failed, Reason, Stored
from carrypost.gossip.slots import bits
from carrypost.journal import Durability, Key, StoredMessage, Value
from carrypost.model.descriptor import Descriptor
from carrypost.model.times import NEVER

if TYPE_CHECKING:
    from collections.abc import Iterable

    from carrypost.gossip.desk import Desk
    from carrypost.local.deliveries import Deliveries
    from carrypost.model.ids import MessageId

_RETRY_US = 1_000_000
_PAUSE_US = 5_000_000
"""After a failed write nothing new is asked for, for so long."""
_RELIEF_US = 60_000_000
"""After the last failed write what is only carried has less room than it had, for so long."""


class Recovery:
    """The host's side of crashes and failing disks."""

    def __init__(self, desk: Desk, deliveries: Deliveries) -> None:
        self._desk = desk
        self._deliveries = deliveries
        self._confirmations: list[MessageId] = []
        self._undelivered: list[MessageId] = []
        self._incarnation: int | None = None
        self._confine_us = 0
        """The room for what is carried is not made smaller again before this."""
        self.relief_us = NEVER
        """When what is carried gets its room back."""
        self.notes_us = NEVER
        """When what was not written is to be written again."""

    def restore(self, state: Iterable[tuple[Key, Value]], now: int) -> int:
        """Take in what the batches of an earlier life add up to, less payloads. Returns its incarnation."""
        messages: list[StoredMessage] = []
        hashes: dict[bytes, bytes] = {}
        seen: dict[bytes, Descriptor] = {}
        incarnation = 0
        for key, value in state:
            kind, name, _ = key
            if kind == keys.MESSAGE and isinstance(value, StoredMessage):
                messages.append(value)
            elif kind == keys.HASHES and isinstance(value, bytes):
                hashes[name] = value
            elif kind == keys.SEEN and isinstance(value, Descriptor):
                seen[name] = value
            elif key == keys.INCARNATION and isinstance(value, int):
                incarnation = value
        for stored in messages:
            self._restore_copy(stored, hashes.get(stored.descriptor.id, b""), seen, now)
        for message, descriptor in seen.items():
            self._restore_seen(descriptor, message, now)
        return incarnation

    def _restore_copy(self, stored: StoredMessage, hashes: bytes, seen: dict[bytes, Descriptor], now: int) -> None:
        desk, descriptor = self._desk, stored.descriptor
        size = sum(descriptor.piece_length(piece) for piece in bits(stored.held)) + (0 if stored.own else len(hashes))
        copy = desk.cache.admit(
            descriptor, nbytes=size, privilege=desk.rank(descriptor),
            interesting=stored.interesting, own=stored.own, giver=stored.giver, hops=stored.hops,
            age_ms=stored.age_ms, held=stored.held, now=now,
        )  # fmt: skip
        if isinstance(copy, Reason):
            # Who had which share of the cache is not known yet: what does not fit any more does not fit.
            reason = copy if copy is Reason.EXPIRED else Reason.NO_ROOM
            desk.forget(descriptor, stored.held)
            desk.dropped[reason] += 1
            desk.events.append(Dropped((descriptor,), reason))
            return
        copy.received_us = stored.received_us
        desk.book.enter(copy)
        if copy.whole:
            desk.book.settle(copy)
        if hashes:
            desk.hashes[copy.slot] = hashes
        confirmed = seen.pop(descriptor.id, None) is not None
        self._deliveries.restored(copy, delivered=stored.delivered, confirmed=confirmed)

    def _restore_seen(self, descriptor: Descriptor, message: bytes, now: int) -> None:
        desk = self._desk
        if not descriptor.alive(now):
            desk.journal.delete((keys.SEEN, message, 0))
            return
        memory = desk.cache.remember(descriptor)
        desk.book.enter(memory)
        desk.book.settle(memory)
        self._deliveries.restored(memory, delivered=True, confirmed=True)

    def lost(self, serial: int, reason: str, now: int, taken_back: Iterable[Descriptor] = ()) -> None:
        """A batch could not be written. `taken_back`: what groups had delivered by it or since, own messages too."""
        answered = self._desk.journal.lost(serial)
        if answered is None:
            return
        gone: dict[bytes, None] = {}
        for key in answered.puts:
            kind, name, _ = key
            if key in answered.again:
                self._undeliver(name)
            elif kind in (keys.MESSAGE, keys.PIECE, keys.HASHES):
                gone[name] = None
            elif key == keys.INCARNATION:
                self._incarnation = now
        self._take_back(taken_back, gone)
        self._give_back(answered.held, gone, reason)
        lost = frozenset(answered.puts)
        for name in gone:
            self._fail(name, reason, written=(keys.MESSAGE, name, 0) not in lost)
        if gone:
            self._confine(now)
        self.notes_us = now + _RETRY_US

    def _take_back(self, taken_back: Iterable[Descriptor], gone: dict[bytes, None]) -> None:
        """What depends on something that was lost is not delivered, or sent, either: own messages fail."""
        for each in taken_back:
            if each.author == self._desk.identity.author:
                self._desk.journal.fail(each.id)
                gone[each.id] = None
            elif each.id not in gone and each.id not in self._undelivered:
                self._undeliver(each.id)

    def _confine(self, now: int) -> None:
        """Once per pause, as long as writes fail: batches that were lost together say the same thing."""
        desk = self._desk
        if now >= self._confine_us:
            self._confine_us = now + _PAUSE_US
            desk.cache.confine(desk.cache.bytes * 9 // 10)
        desk.store_failed_until_us = now + _PAUSE_US
        self.relief_us = now + _RELIEF_US

    def _give_back(self, held: tuple[Event, ...], gone: dict[bytes, None], reason: str) -> None:
        """What was to be told once the batch is durable: later, otherwise, or not at all.

        An event that is not named here says that something was done, and it was not: whoever held it is told of the
        loss, and decides what to say instead.
        """
        for event in held:
            if isinstance(event, Confirmed):
                self._confirmations.extend(event.messages)
            elif isinstance(event, Delivered):
                self._redeliver(event, gone)
            elif isinstance(event, Failed):
                self._desk.journal.hold(event)
            elif not isinstance(event, Stored):
                continue
            elif (copy := self._desk.cache.get(event.message)) is None or not copy.here:
                self._desk.events.append(Failed(event.message, reason))  # It expired meanwhile.
            elif event.message not in gone:
                self._desk.journal.hold(event)  # Its own batch was written: it waited for this one, which was older.

    def _redeliver(self, event: Delivered, gone: dict[bytes, None]) -> None:
        """Deliveries whose copies are on disk already (they came with an earlier batch) stand."""
        kept = tuple(
            delivery for delivery in event.deliveries
            if delivery.message not in gone and delivery.message not in self._undelivered
        )  # fmt: skip
        if kept:
            self._desk.journal.hold(Delivered(kept))

    def _undeliver(self, name: bytes) -> None:
        """That it was delivered could not be noted: so it is not, until it can."""
        copy = self._desk.cache.get(name)  # type: ignore[arg-type]  # a key's name is this message's id
        if copy is not None and copy.here:
            self._deliveries.forget(copy)
            self._desk.cache.unpin(copy)
            self._desk.delivered &= ~(1 << copy.slot)
            copy.finished = copy.own
            self._undelivered.append(copy.id)

    def _fail(self, name: bytes, reason: str, *, written: bool) -> None:
        """It is not here. `written`: its own batch was, or may be, so that is told once it is deleted for good."""
        desk = self._desk
        copy = desk.cache.get(name)  # type: ignore[arg-type]  # a key's name is this message's id
        if copy is None or not copy.here:
            return
        if copy.own and not written:
            desk.events.append(Failed(copy.id, reason))
        self._deliveries.forget(copy)
        desk.cache.unpin(copy)
        desk.delivered &= ~(1 << copy.slot)
        desk.discard(copy, Reason.STORE)
        if copy.own and written:
            desk.journal.hold(Failed(copy.id, reason))

    def tick(self, now: int) -> None:
        """Write again what was only a note; see whether there is room again."""
        if now >= self.relief_us:
            self.relief_us = NEVER
            self._desk.cache.relieve()
        if now >= self.notes_us:
            self.notes_us = NEVER
            self._write_notes()

    def _write_notes(self) -> None:
        journal = self._desk.journal
        journal.delete_again()
        confirmations, self._confirmations = self._confirmations, []
        if confirmations:
            self._deliveries.confirm_again(confirmations)
        undelivered, self._undelivered = self._undelivered, []
        for message in undelivered:
            copy = self._desk.cache.get(message)
            if copy is not None and copy.whole and self._deliveries.deliver(copy):
                self._desk.keep(copy, again=True)
        if self._incarnation is not None:
            self._incarnation = None
            journal.put(keys.INCARNATION, self._desk.incarnation, Durability.FULL)
