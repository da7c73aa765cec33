"""The right of a consumer on the manager's own node to a message: stored in the entry itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from carrypost.messaging.queues.entries import EntryState
from carrypost.model import address

if TYPE_CHECKING:
    from carrypost.gossip.holdings.copies import Copy
    from carrypost.messaging.control import Terms
    from carrypost.messaging.queues.entries import QueueEntry
    from carrypost.messaging.queues.manager import Manager


class LocalTenure:
    """An entry that a consumer of the manager's own node has, in one round."""

    __slots__ = ("_manager", "_round", "entry")

    def __init__(self, manager: Manager, entry: QueueEntry) -> None:
        self._manager, self.entry = manager, entry
        self._round = entry.round

    @property
    def count(self) -> int:
        """The number of times that it was handed over."""
        return self.entry.count

    @property
    def handed(self) -> bool:
        """True if a program of this node may have seen it."""
        return self.entry.count > 0

    @property
    def lease_us(self) -> int:
        """Time until which it is assigned; 0: for good."""
        return self.entry.lease_us

    @property
    def place(self) -> int:
        """The place of its claim, if a consumer here was handed it."""
        return self.entry.claim_place if self.entry.count else 0

    @property
    def doubtful(self) -> bool:
        """True if it was handed over before a restart, and perhaps caused it."""
        return self.entry.doubtful

    def doubt(self) -> None:
        """Note that a program ended, perhaps because of it."""
        self.entry.doubtful = True

    @property
    def deferred_us(self) -> int:
        """Time until which a program deferred it; 0: it did not."""
        return self.entry.deferred_us

    @property
    def queue(self) -> str:
        """The address of its queue."""
        return address.queue(self.entry.queue, self.entry.receiver)

    @property
    def terms(self) -> Terms | None:
        """Terms of its message, if it has any."""
        return self.entry.terms

    @property
    def copy(self) -> Copy | None:
        """The copy of its message."""
        return self.entry.copy

    @property
    def stands(self) -> bool:
        """True while no other node has it."""
        return self.entry.round == self._round and self.entry.state is not EntryState.CLOSED

    def runs(self, now: int) -> bool:
        """Return True if it may be handed over: it was not reassigned."""
        entry = self.entry
        return self.stands and entry.state is EntryState.ASSIGNED and not 0 < entry.lease_us <= now

    def keep(self, count: int, place: int, deferred_us: int) -> None:
        """Note how often it was handed over, its place, and the time until which a program deferred it."""
        if self.stands:
            self.entry.count, self.entry.claim_place, self.entry.deferred_us = count, place, deferred_us
            self.entry.write()

    def done(self) -> None:
        """Close the entry, because its consumer acknowledged it."""
        self._manager.close(self.entry)

    def release(self, *, dead: bool, error: str = "") -> None:
        """Return the entry, because its consumer does not take it or gave up."""
        if self.stands:
            self._manager.requeue(self.entry, dead=dead, error=error)
