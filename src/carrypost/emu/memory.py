"""A store in memory that behaves like a disk.

A batch is readable as soon as it is taken and durable once it is committed; batches are committed in the
order in which they were taken. A crash loses those that were not. What the values mean is the host's
business: of the keys only "piece" is known here, because payloads are read from the store and do not come
back at a restart.
"""

from __future__ import annotations

from collections.abc import Iterator

from carrypost.config import Limits
from carrypost.errors import StateError, StoreError
from carrypost.gossip.journal import PIECE, Batch, Key, Value
from carrypost.gossip.pieces import unpack
from carrypost.model.descriptor import Descriptor, PayloadCodec
from carrypost.model.ids import MessageId


class MemoryStore:
    """What one node has on its emulated disk, and what is on the way there."""

    __slots__ = ("_disk", "_taken")

    def __init__(self) -> None:
        self._disk: dict[Key, Value] = {}
        self._taken: dict[int, Batch] = {}

    def __len__(self) -> int:
        return len(self._disk)

    @property
    def unanswered(self) -> tuple[int, ...]:
        """Serials of the batches that are not durable yet, oldest first."""
        return tuple(self._taken)

    def take(self, batch: Batch) -> None:
        """From now on the batch is readable."""
        self._taken[batch.serial] = batch

    def commit(self, serial: int) -> None:
        """From now on the batch survives a crash."""
        oldest = next(iter(self._taken), None)
        if serial != oldest:
            raise StateError(f"batches are committed in order: {oldest} is next, not {serial}")
        batch = self._taken.pop(serial)
        disk = self._disk
        for key in batch.deletes:
            disk.pop(key, None)
        disk.update(batch.puts)

    def refuse(self, serial: int) -> None:
        """The batch could not be written: it was never there."""
        if self._taken.pop(serial, None) is None:
            raise StateError(f"no batch {serial} is on its way to the disk")

    def crash(self) -> None:
        """Lose whatever is not durable."""
        self._taken.clear()

    def get(self, key: Key) -> Value | None:
        """The value that was last put under `key`; None if there is none."""
        for batch in reversed(self._taken.values()):
            if key in batch.puts:
                return batch.puts[key]
            if key in batch.deletes:
                return None
        return self._disk.get(key)

    def read(self, message: MessageId, piece: int, offset: int, length: int) -> bytes | None:
        """`length` bytes of a piece from `offset` on; None if they are gone."""
        if not length:
            return b""
        body = self.get((PIECE, message, piece))
        if not isinstance(body, bytes) or offset + length > len(body):
            return None
        return body[offset : offset + length]

    def payload(self, descriptor: Descriptor, limits: Limits) -> bytes:
        """A whole payload as it was published."""
        if descriptor.codec == PayloadCodec.BLANK or not descriptor.length:
            return unpack(descriptor, b"", limits)
        found: list[bytes] = []
        for piece in range(descriptor.pieces):
            body = self.get((PIECE, descriptor.id, piece))
            if not isinstance(body, bytes):
                raise StoreError(f"piece {piece} of {descriptor.shown} is gone")
            found.append(body)
        return unpack(descriptor, b"".join(found), limits)

    def state(self) -> Iterator[tuple[Key, Value]]:
        """Everything durable but payloads, in a fixed order: what a host is restored from."""
        for key in sorted(self._disk):
            if key[0] != PIECE:
                yield key, self._disk[key]
