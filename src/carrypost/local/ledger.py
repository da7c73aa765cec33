"""Rows that a layer keeps in the store, and confirmations of messages, which holdings writes for it.

A row goes into the journal when it changes, so that it is in the same batch as whatever it belongs to. Of rows that are
true only together with a message it is also known what is on disk (`MessageRows`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from carrypost.journal import SEEN

if TYPE_CHECKING:
    from carrypost.gossip.holdings.copies import Copy
    from carrypost.journal import Journal, Key
    from carrypost.model.descriptor import Descriptor


class Ledger:
    """Rows by name; the first byte of a name is its family."""

    def __init__(self, journal: Journal, kind: str) -> None:
        self._journal, self._kind = journal, kind

    def put(self, name: bytes, value: bytes) -> None:
        """Write a row."""
        self._journal.put((self._kind, name, 0), value)

    def delete(self, name: bytes) -> None:
        """Delete a row."""
        self._journal.delete((self._kind, name, 0))

    def confirmed(self, copy: Copy) -> None:
        """Record the acknowledgement of a message in the next batch."""
        self._journal.put((SEEN, copy.id, 0), copy.descriptor)


# --- rows of messages --------------------------------------------------------------------------------------

# A number, a cursor or an accepted result is true only together with the message that the same
# batch has. What others learn of it is what is on disk.


class MessageRows:
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

    def _key(self, name: bytes) -> Key:
        return self._kind, name, 0
