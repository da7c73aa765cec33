"""A store in memory that behaves like a disk.

A batch is readable as soon as it is taken and durable once it is committed; batches are committed in the order in which
they were taken. A crash loses those that were not. The meaning of values is the host's business: of the keys only
"piece" is known here, because payloads are read from the store and do not come back at a restart.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from mypy_extensions import mypyc_attr

from carrypost.config import Limits
from carrypost.errors import StateError
from carrypost.gossip.wire.payloads import assemble_payload
from carrypost.log.journal import PIECE, Batch, Key, PieceOf, Value
from carrypost.model.descriptor import Descriptor
from carrypost.model.ids import MessageId


@mypyc_attr(allow_interpreted_subclasses=True)
class MemoryStore:
    """The contents of one node's emulated disk, and the batches on the way there."""

    __slots__ = ("_disk", "_accepted")

    def __init__(self) -> None:
        self._disk: dict[Key, Value] = {}
        self._accepted: dict[int, Batch] = {}

    def __len__(self) -> int:
        return len(self._disk)

    @property
    def unanswered(self) -> tuple[int, ...]:
        """Serials of the batches that are not durable yet, oldest first."""
        return tuple(self._accepted)

    def accept(self, batch: Batch) -> None:
        """Make a batch readable."""
        self._accepted[batch.serial] = self._resolved(batch)

    def commit(self, serial: int) -> None:
        """Make a batch durable."""
        oldest = next(iter(self._accepted), None)
        if serial != oldest:
            raise StateError(f"batches must be committed in order: {oldest} is next, not {serial}")
        self._apply(self._accepted.pop(serial))

    def write(self, batch: Batch) -> None:
        """Take and commit a batch in one."""
        if self._accepted:
            self.accept(batch)
            self.commit(batch.serial)
        else:
            self._apply(self._resolved(batch))

    def _resolved(self, batch: Batch) -> Batch:
        """Return the batch with the pieces of other messages that it refers to; a piece that is gone is left out."""
        if not batch.refers:
            return batch
        found = {
            key: self.get((PIECE, value.message, key[2])) if isinstance(value, PieceOf) else value
            for key, value in batch.puts.items()
        }
        puts = {key: value for key, value in found.items() if value is not None}
        return msgspec.structs.replace(batch, puts=puts, refers=False)

    def _apply(self, batch: Batch) -> None:
        disk = self._disk
        for key in batch.deletes:
            disk.pop(key, None)
        disk.update(batch.puts)

    def refuse(self, serial: int) -> None:
        """Drop a batch that could not be written."""
        if self._accepted.pop(serial, None) is None:
            raise StateError(f"no batch {serial} is on its way to the disk")

    def crash(self) -> None:
        """Lose all batches that are not durable."""
        self._accepted.clear()

    def get(self, key: Key) -> Value | None:
        """Return the value that was last put under `key`; None if there is none."""
        for batch in reversed(self._accepted.values()):
            if key in batch.puts:
                return batch.puts[key]
            if key in batch.deletes:
                return None
        return self._disk.get(key)

    def piece(self, message: MessageId, piece: int) -> bytes | None:
        """Return a piece of a payload; None if it is gone."""
        body = self.get((PIECE, message, piece))
        return body if isinstance(body, bytes) else None

    def payload(self, descriptor: Descriptor, limits: Limits) -> bytes:
        """Return a whole payload as it was published; raises as `assemble_payload` does."""
        return assemble_payload(descriptor, self.piece, limits)

    def state(self) -> Iterator[tuple[Key, Value]]:
        """Yield everything durable except payloads, in a fixed order, to restore a host from."""
        for key in sorted(self._disk):
            if key[0] != PIECE:
                yield key, self._disk[key]
