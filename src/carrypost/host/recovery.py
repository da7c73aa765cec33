"""Recovery: restoring a host from the store, after a crash, or because a batch could not be written.

`restore` makes a host of its earlier batches: copies, seen ids, hash lists and the incarnation, which is raised.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from carrypost.gossip.slots import bits
from carrypost.gossip.wire.pieces import full_mask
from carrypost.log import journal as keys
from carrypost.log.events import Reason
from carrypost.log.journal import Key, StoredMessage, Value
from carrypost.model.descriptor import Descriptor
from carrypost.model.ids import MessageId

if TYPE_CHECKING:
    from collections.abc import Iterable

    from carrypost.application.deliveries import Deliveries
    from carrypost.gossip.transfers.host_context import HostContext


class Recovery:
    """The host's side of crashes and failing disks."""

    def __init__(self, context: HostContext, deliveries: Deliveries) -> None:
        self._author = context.identity.author
        self._holdings, self._cache = context.holdings, context.holdings.cache
        self._outputs, self._journal = context.outputs, context.outputs.journal
        self._deliveries = deliveries
        self._keep_partials = context.settings.keep_partials

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
            self._forget(stored, Reason.PURGED)
            return
        if not self._keep_partials and stored.held != full_mask(descriptor.pieces):
            self._forget(stored, Reason.INCOMPLETE)
            return
        size = sum(descriptor.piece_length(piece) for piece in bits(stored.held)) + (0 if stored.own else len(hashes))
        copy = self._holdings.admit(
            descriptor, nbytes=size, held=stored.held, interesting=stored.interesting, own=stored.own,
            giver=stored.giver, hops=stored.hops, age_ms=stored.age_ms, now=now,
        )  # fmt: skip
        if isinstance(copy, Reason):
            # The shares of the cache are not known yet, so a copy that does not fit is dropped for lack of room.
            self._forget(stored, copy if copy is Reason.EXPIRED else Reason.NO_ROOM)
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

    def _forget(self, stored: StoredMessage, reason: Reason) -> None:
        self._holdings.forget(stored.descriptor, stored.held)
        self._outputs.drop((stored.descriptor,), reason)

    def _restore_seen(self, descriptor: Descriptor, message: bytes, now: int) -> None:
        if not descriptor.alive(now):
            if not self._cache.outlived.keep(MessageId(message), descriptor.ends_us, now):
                self._journal.delete((keys.SEEN, message, 0))
            return
        memory = self._holdings.remember(descriptor, delivered=descriptor.author != self._author)
        self._deliveries.restored(memory, delivered=True, confirmed=True)
