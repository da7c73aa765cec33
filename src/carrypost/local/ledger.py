"""Rows that a layer keeps in the store, and confirmations of messages, which holdings writes for it.

A row goes into the journal when it changes, so that it is in the same batch as whatever it belongs to. The values of
every unanswered batch are remembered: those of a lost one are written again later, unless the row has changed since.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from carrypost.journal import SEEN
from carrypost.model.times import NEVER

if TYPE_CHECKING:
    from carrypost.gossip.holdings.copies import Copy
    from carrypost.journal import Journal, Key, Value

RETRY_US = 1_000_000


class Ledger:
    """Rows by name; the first byte of a name is its family."""

    def __init__(self, journal: Journal, kind: str) -> None:
        self._journal, self._kind = journal, kind
        self._now: dict[Key, Value | None] = {}
        """Changes for the next batch."""
        self._open: dict[int, dict[Key, Value | None]] = {}
        """Changes of unanswered batches."""
        self._lost: dict[Key, Value | None] = {}
        """Changes that have to be written again."""
        self.due_us = NEVER

    def put(self, name: bytes, value: bytes) -> None:
        """Write a row."""
        self._put((self._kind, name, 0), value)

    def delete(self, name: bytes) -> None:
        """Delete a row."""
        self._delete((self._kind, name, 0))

    def confirmed(self, copy: Copy) -> None:
        """Record the acknowledgement of a message in the next batch, and write it again if that is lost."""
        self._put((SEEN, copy.id, 0), copy.descriptor)

    def confirmed_again(self, copy: Copy) -> None:
        """Record a further acknowledgement of a message, in case the batch of the first is lost and this one is not."""
        key = (SEEN, copy.id, 0)
        if key in self._lost or any(key in rows for rows in self._open.values()):
            self._put(key, copy.descriptor)

    def unconfirmed(self, copy: Copy) -> None:
        """Withdraw the acknowledgement of a message: do not write it, nor write it again if its batch is lost."""
        for rows in (self._now, self._lost, *self._open.values()):
            rows.pop((SEEN, copy.id, 0), None)

    def _put(self, key: Key, value: Value) -> None:
        self._now[key] = value
        self._lost.pop(key, None)
        self._journal.put(key, value)

    def _delete(self, key: Key) -> None:
        self._now[key] = None
        self._lost.pop(key, None)
        self._journal.delete(key)

    def batched(self, serial: int) -> None:
        """Assign the changes since the last call to the batch of this number."""
        if self._now:
            self._open[serial] = self._now
            self._now = {}

    def durable(self, serial: int) -> None:
        """Forget a batch that is on disk."""
        self._open.pop(serial, None)

    def lost(self, serial: int, now: int) -> None:
        """Keep the changes of a batch that could not be written for the next try, even if it had no rows."""
        lost = self._open.pop(serial, {})
        newer = [self._now, *(rows for number, rows in self._open.items() if number > serial)]
        self._lost |= {key: value for key, value in lost.items() if not any(key in rows for rows in newer)}
        self.due_us = now + RETRY_US

    def write_again(self) -> None:
        """Put lost changes into the next batch."""
        lost, self._lost, self.due_us = self._lost, {}, NEVER
        for key, value in lost.items():
            if value is None:
                self._delete(key)
            else:
                self._put(key, value)
