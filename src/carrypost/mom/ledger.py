"""The rows that messaging keeps.

A row goes into the journal when it changes, so that it is in the same batch as whatever it belongs with. Of every batch
that was not answered its values are remembered: those of a lost one are written again later, as far as nothing newer
was said of the same row since.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from carrypost.journal import MOM
from carrypost.model.times import NEVER

if TYPE_CHECKING:
    from carrypost.journal import Journal

_RETRY_US = 1_000_000


class Ledger:
    """Rows by name; the first byte of a name is its family."""

    __slots__ = ("_journal", "_lost", "_now", "_open", "due_us")

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._now: dict[bytes, bytes | None] = {}
        """What the next batch has."""
        self._open: dict[int, dict[bytes, bytes | None]] = {}
        """What those have that were not answered."""
        self._lost: dict[bytes, bytes | None] = {}
        """What has to be written again."""
        self.due_us = NEVER

    def put(self, name: bytes, value: bytes) -> None:
        """Keep a row."""
        self._now[name] = value
        self._lost.pop(name, None)
        self._journal.put((MOM, name, 0), value)

    def delete(self, name: bytes) -> None:
        """Forget a row."""
        self._now[name] = None
        self._lost.pop(name, None)
        self._journal.delete((MOM, name, 0))

    def batched(self, serial: int) -> None:
        """What changed since the last call is in the batch of this number."""
        if self._now:
            self._open[serial] = self._now
            self._now = {}

    def durable(self, serial: int) -> None:
        """A batch is on disk."""
        self._open.pop(serial, None)

    def lost(self, serial: int, now: int) -> None:
        """A batch could not be written."""
        lost = self._open.pop(serial, None)
        if not lost:
            return
        newer = [self._now, *(rows for number, rows in self._open.items() if number > serial)]
        self._lost |= {name: value for name, value in lost.items() if not any(name in rows for rows in newer)}
        self.due_us = now + _RETRY_US

    def write_again(self) -> None:
        """Put what was lost into the next batch."""
        lost, self._lost, self.due_us = self._lost, {}, NEVER
        for name, value in lost.items():
            if value is None:
                self.delete(name)
            else:
                self.put(name, value)
