"""Recovery: restoring a host from the store, and undoing batches that could not be written.

`restore` makes a host of its earlier batches: copies, seen ids, hash lists and the incarnation, which is raised. `lost`
undoes what a batch that could not be written had promised: a send fails, a received copy is dropped, and mere notes (a
confirmation, a deletion, the incarnation) are written again later.
"""

# The promise that makes this hard: no program ever sees a state that a crash or a full disk takes
# back. So events wait for batches, and a lost batch is undone in memory as if its step had not
# happened, except for what others did meanwhile.
#
# Three kinds of rows need three treatments.
#
# - New things (a copy, a piece, a send) are undone: they are not here, and the sender gets
#   `Failed`.
# - Changes of old things (a delivery of a stored copy) are undone until they can be written, and
#   then done again.
# - Notes (a confirmation, a deletion, a struck-off recipient, the incarnation) stay valid in memory
#   and are written again. Undoing a confirmation would deliver a message twice.

from __future__ import annotations

from typing import TYPE_CHECKING

from carrypost import journal as keys
from carrypost.events import Confirmed, Delivered, Event, Failed, Reason, Stored
from carrypost.gossip.layer import Layer, Layers
from carrypost.gossip.slots import bits
from carrypost.journal import Key, StoredMessage, Value
from carrypost.model.descriptor import Descriptor
from carrypost.model.ids import MessageId
from carrypost.model.times import NEVER

if TYPE_CHECKING:
    from collections.abc import Iterable

    from carrypost.gossip.transfers.host_context import HostContext
    from carrypost.gossip.transfers.removals import Removals
    from carrypost.local.deliveries import Deliveries
    from carrypost.local.publishing import Publisher

_RETRY_US = 1_000_000


class Recovery:
    """The host's side of crashes and failing disks."""

    def __init__(
        self, context: HostContext, layers: Layers, departures: Removals, deliveries: Deliveries, publisher: Publisher
    ) -> None:
        self._author = context.identity.author
        self._holdings, self._cache, self._interests = context.holdings, context.holdings.cache, context.interests
        self._outputs, self._journal, self._undo = context.outputs, context.outputs.journal, context.outputs.undo
        self._layers = layers
        self._removals = departures
        self._deliveries = deliveries
        self._publisher = publisher
        self._confirmations: list[MessageId] = []
        self._undelivered: dict[MessageId, None] = {}
        self._struck: list[MessageId] = []
        """Messages whose recipients were struck off by a lost batch."""
        self._failed: list[Failed] = []
        """Failures to report once their rows are deleted."""
        self._incarnation = False
        """True if the incarnation has to be written again."""
        self.due_us = NEVER
        """Time at which notes that were lost are written again."""

    def restore(self, state: Iterable[tuple[Key, Value]], now: int) -> int:
        """Restore the state of the earlier batches, without payloads; return its incarnation."""
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
            elif kind == keys.STRUCK and isinstance(value, bytes):
                self._holdings.recipients.restore(MessageId(name), value, now)
            elif key == keys.INCARNATION and isinstance(value, int):
                incarnation = value
            elif key == keys.DATE and isinstance(value, int):
                self._cache.outlived.clock_stepped(now - value)
        for stored in messages:
            self._restore_copy(stored, hashes.get(stored.descriptor.id, b""), seen, now)
        for message, descriptor in seen.items():
            self._restore_seen(descriptor, message, now)
        return incarnation

    def _restore_copy(self, stored: StoredMessage, hashes: bytes, seen: dict[bytes, Descriptor], now: int) -> None:
        descriptor = stored.descriptor
        over = self._holdings.recipients.is_over(descriptor, now)
        if over and not stored.claimed:
            # Its copy was to be deleted with the last recipient, and that was not written.
            self._holdings.forget(descriptor, stored.held)
            self._outputs.drop((descriptor,), Reason.PURGED)
            return
        size = sum(descriptor.piece_length(piece) for piece in bits(stored.held)) + (0 if stored.own else len(hashes))
        copy = self._holdings.admit(
            descriptor, nbytes=size, held=stored.held, interesting=stored.interesting, own=stored.own,
            giver=stored.giver, hops=stored.hops, age_ms=stored.age_ms, now=now,
        )  # fmt: skip
        if isinstance(copy, Reason):
            # The shares of the cache are not known yet, so a copy that does not fit is dropped for lack of room.
            reason = copy if copy is Reason.EXPIRED else Reason.NO_ROOM
            self._holdings.forget(descriptor, stored.held)
            self._outputs.drop((descriptor,), reason)
            return
        self._cache.backdate(copy, stored.received_us)
        copy.predecessors_lost = stored.predecessors_lost
        if hashes:
            self._holdings.keep_hashes(copy, hashes)
        confirmed = seen.pop(descriptor.id, None) is not None
        if stored.claimed:
            self._holdings.mark_claimed(copy)
        if over:
            self._holdings.linger(copy)
        self._deliveries.restored(copy, delivered=stored.delivered, confirmed=confirmed)

    def _restore_seen(self, descriptor: Descriptor, message: bytes, now: int) -> None:
        if not descriptor.alive(now):
            if not self._cache.outlived.keep(MessageId(message), descriptor.ends_us, now):
                self._journal.delete((keys.SEEN, message, 0))
            return
        memory = self._holdings.remember(descriptor, delivered=descriptor.author != self._author)
        self._deliveries.restored(memory, delivered=True, confirmed=True)

    def lost(self, serial: int, reason: str, now: int) -> None:
        """Undo a batch that could not be written."""
        answered = self._journal.lost(serial)
        if answered is None:
            return
        # Deliveries that confirmed themselves were confirmed by this very batch. That has to be
        # taken back before layers look at what was delivered.
        for event in answered.held:
            if isinstance(event, Delivered):
                self._deliveries.undo_confirmation(event)
        rolled_back = [each for layer in self._layers.having(Layer.lost) for each in layer.lost(serial, answered.held)]
        gone: dict[MessageId, None] = {}
        for key in answered.puts:
            kind, name, _ = key
            if key in answered.again:
                self._undeliver(MessageId(name))
            elif kind in (keys.MESSAGE, keys.PIECE, keys.HASHES):
                gone[MessageId(name)] = None
            elif key == keys.INCARNATION:
                self._incarnation = True
        self._struck += [MessageId(name) for kind, name, _ in answered.puts if kind == keys.STRUCK]
        self._roll_back(rolled_back, gone)
        undone = self._undo.lost(serial, answered.held, gone)
        unreported = dict.fromkeys(message for command in undone for message in command.messages)
        gone |= unreported
        self._give_back(answered.held, gone, reason)
        lost = frozenset(answered.puts)
        # A message whose own row was in an earlier batch is on disk. It may be reported as failed
        # only once its deletion is durable, or a crash would bring it back.
        for message in gone:
            written = (keys.MESSAGE, message, 0) not in lost
            self._fail(message, reason, written=written, reported=message not in unreported)
        self._undo.abort(undone, serial, reason)
        self.due_us = now + _RETRY_US

    def _roll_back(self, rolled_back: Iterable[Descriptor], gone: dict[MessageId, None]) -> None:
        """Undo deliveries and sends that depend on something that was lost: own messages fail."""
        for each in rolled_back:
            if each.author == self._author:
                self._journal.fail(each.id)
                gone[each.id] = None
            elif each.id not in gone and each.id not in self._undelivered:
                self._undeliver(each.id)

    def _give_back(self, held: tuple[Event, ...], gone: dict[MessageId, None], reason: str) -> None:
        """Decide about events that waited for a lost batch: they are reported later, differently, or not at all.

        An event that is not named here reports something done that was not: the layer that held it is informed of the
        loss, and decides what to report instead.
        """
        for event in held:
            if isinstance(event, Confirmed):
                self._confirmations.extend(event.messages)
            elif isinstance(event, Delivered):
                self._redeliver(event, gone)
            elif isinstance(event, Failed):
                self._failed.append(event)
            elif not isinstance(event, Stored):
                continue
            elif (copy := self._cache.get(event.message)) is None or not copy.here:
                self._outputs.emit(Failed(event.message, reason))  # It expired meanwhile.
            elif event.message not in gone:
                self._journal.hold(event)  # Its own batch was written: it waited for this one, which was older.

    def _redeliver(self, event: Delivered, gone: dict[MessageId, None]) -> None:
        """Keep deliveries whose copies are on disk already, because they came with an earlier batch."""
        kept = tuple(
            delivery for delivery in event.deliveries
            if delivery.message not in gone and delivery.message not in self._undelivered
        )  # fmt: skip
        if kept:
            self._deliveries.redo_confirmation(Delivered(kept))
            self._journal.hold(Delivered(kept))

    def _undeliver(self, message: MessageId) -> None:
        """Undo a delivery that could not be recorded, until it can be."""
        copy = self._cache.get(message)
        if copy is not None and copy.here:
            self._deliveries.undo(copy)
            self._undelivered[copy.id] = None

    def _fail(self, message: MessageId, reason: str, *, written: bool, reported: bool) -> None:
        """Report a message that is not here as failed.

        `written`: its own batch was, or may be, written, so the failure is reported once it is deleted for good. Not
        `reported`: the unit of work that it is a part of is reported instead.
        """
        copy = self._cache.get(message)
        if copy is None or not copy.here:
            return
        if copy.own and reported and not written:
            self._outputs.emit(Failed(copy.id, reason))
        self._deliveries.undo(copy)
        self._holdings.discard(copy, Reason.STORE)
        self._removals.sweep()
        if copy.own and reported and written:
            self._journal.hold(Failed(copy.id, reason))

    def tick(self) -> None:
        """Write lost notes again."""
        self.due_us = NEVER
        self._journal.delete_again()
        confirmations, self._confirmations = self._confirmations, []
        if confirmations:
            self._deliveries.confirm_again(confirmations)
        struck, self._struck = self._struck, []
        self._holdings.recipients.keep_again(struck)
        undelivered, self._undelivered = self._undelivered, {}
        known = [copy for message in undelivered if (copy := self._cache.get(message)) is not None]
        wanted = [copy for copy in known if copy.whole and self._interests.wants(copy.descriptor)]
        self._holdings.keep(self._layers.receive(wanted), again=True)
        failed, self._failed = self._failed, []
        for event in failed:
            self._journal.hold(event)
        self._undo.answer_again()
        if self._incarnation:
            self._incarnation = False
            self._publisher.write_incarnation()
