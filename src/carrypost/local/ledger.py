"""Rows that a layer keeps in the store, and confirmations of messages, which holdings writes for it.

A row goes into the journal when it changes, so that it is in the same batch as whatever it belongs to. The values of
every unanswered batch are remembered: those of a lost one are written again later, unless the row has changed since.
Rows that are true only together with a message revert instead (`RevertingRows`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from carrypost.journal import SEEN
from carrypost.model.times import NEVER

if TYPE_CHECKING:
    from carrypost.gossip.holdings.copies import Copy
    from carrypost.journal import Journal, Key, Value
    from carrypost.model.descriptor import Descriptor

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


# --- rows that revert --------------------------------------------------------------------------------------

# Rows of the store that belong to messages: if their batch is lost, both are reverted.
#
# A number, a cursor or an accepted result is true only together with the message that the same
# batch has. So such a row is not written again when its batch could not be, as `Ledger` does:
# what is on disk counts again.


class RevertingRows:
    """Rows by name, and the messages that belong to them."""

    def __init__(self, journal: Journal, kind: str) -> None:
        self._journal, self._kind = journal, kind
        self._written: dict[bytes, bytes] = {}
        """Rows on disk."""
        self._open: dict[int, dict[bytes, bytes | None]] = {}
        """Rows of batches that were not answered, the one that is being made included."""
        self._messages: dict[int, list[Descriptor]] = {}
        """Messages that belong to these rows, by batch."""

    def restore(self, name: bytes, value: bytes) -> None:
        """Restore a row after a restart."""
        self._written[name] = value

    def written(self, name: bytes) -> bytes | None:
        """Return a row as it is on disk."""
        return self._written.get(name)

    def latest(self, name: bytes) -> bytes | None:
        """Return a row as it was put last, on disk or not."""
        serials = [serial for serial, rows in self._open.items() if name in rows]
        return self._open[max(serials)][name] if serials else self._written.get(name)

    def put(self, name: bytes, value: bytes, message: Descriptor | None = None) -> None:
        """Add a row, with the message that it belongs to, to the batch that is being made."""
        self._journal.put(self._key(name), value)
        serial = self._journal.serial
        self._open.setdefault(serial, {})[name] = value
        if message is not None:
            self._messages.setdefault(serial, []).append(message)

    def delete(self, name: bytes) -> None:
        """Forget a row."""
        self._journal.delete(self._key(name))
        self._open.setdefault(self._journal.serial, {})[name] = None

    def durable(self, serial: int) -> tuple[list[bytes], list[Descriptor]]:
        """Note that a batch is on disk. Returns the names of its rows, and its messages."""
        rows = self._open.pop(serial, {})
        for name, value in rows.items():
            if value is None:
                self._written.pop(name, None)
            else:
                self._written[name] = value
        return list(rows), self._messages.pop(serial, [])

    def lost(self, serial: int) -> tuple[list[bytes], list[Descriptor]]:
        """Go back to what is on disk: a batch could not be written, nor are later ones.

        Returns the names of the rows that changed since, less those that were deleted, and the messages with them.
        """
        names: dict[bytes, bytes | None] = {}
        messages: list[Descriptor] = []
        for each in sorted(number for number in self._open if number >= serial):
            names |= self._open.pop(each)
            messages += self._messages.pop(each, [])
        reverted = [name for name, value in names.items() if value is not None]
        for name in names.keys() - set(reverted):  # The journal deletes them again.
            self._written.pop(name, None)
        for name in reverted:
            if self._key(name) in self._journal.puts:
                if (value := self._written.get(name)) is None:
                    self._journal.delete(self._key(name))
                else:
                    self._journal.put(self._key(name), value)
        return reverted, messages

    def _key(self, name: bytes) -> Key:
        return self._kind, name, 0
