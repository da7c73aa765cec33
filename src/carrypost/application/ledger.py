"""Rows that a layer keeps in the store, and confirmations of messages, which holdings writes for it.

A row goes into the journal when it changes, so that it is in the same batch as whatever it belongs to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from carrypost.log.journal import SEEN

if TYPE_CHECKING:
    from carrypost.gossip.holdings.copies import Copy
    from carrypost.log.journal import Journal


class Ledger:
    """Rows by name; the first byte of a name is its family."""

    def __init__(self, journal: Journal, kind: str) -> None:
        self._journal, self._kind = journal, kind
        self._families: set[bytes] = set()

    def own(self, family: bytes) -> bytes:
        """Return a family of rows for its owner: no other part may have it."""
        assert family not in self._families, f"the rows {family!r} have an owner"
        self._families.add(family)
        return family

    def put(self, name: bytes, value: bytes) -> None:
        """Write a row."""
        self._journal.put((self._kind, name, 0), value)

    def delete(self, name: bytes) -> None:
        """Delete a row."""
        self._journal.delete((self._kind, name, 0))

    def confirmed(self, copy: Copy) -> None:
        """Record the acknowledgement of a message in the next batch."""
        self._journal.put((SEEN, copy.id, 0), copy.descriptor)


class KnownRows(Ledger):
    """Rows whose latest values are known here."""

    def __init__(self, journal: Journal, kind: str) -> None:
        super().__init__(journal, kind)
        self._latest: dict[bytes, bytes] = {}

    def restore(self, name: bytes, value: bytes) -> None:
        """Restore a row after a restart."""
        self._latest[name] = value

    def get(self, name: bytes) -> bytes | None:
        """Return a row as it was written last, on disk or not; None if there is none."""
        return self._latest.get(name)

    def put(self, name: bytes, value: bytes) -> None:
        """Write a row."""
        super().put(name, value)
        self._latest[name] = value

    def delete(self, name: bytes) -> None:
        """Delete a row."""
        super().delete(name)
        self._latest.pop(name, None)
