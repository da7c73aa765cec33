"""Rows of the store that belong to messages: if their batch is lost, both are reverted.

A number, a cursor or an accepted result is true only together with the message that the same batch has. So such a row
is not written again when its batch could not be, as `local.ledger` would: what is on disk counts again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from carrypost.journal import Journal, Key
    from carrypost.model.descriptor import Descriptor


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
