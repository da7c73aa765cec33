"""Rows of seats: cursors and numbers in one row, and the state of the modulator in others, written if they changed.

A state may have 256 KiB, and an event usually changes little of it. To write all of it with every event would make the
disk the limit. So a state is stored in parts of 4 KiB. The parts that an event changed are in the same batch as the
cursors and the results: after a crash all of them are of the same event.

A shorter state leaves empty parts. They are deleted with the seat only, since a lost deletion is not reverted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from carrypost.overlay.processing import SeatRow

if TYPE_CHECKING:
    from collections.abc import Iterator

    from carrypost.model.descriptor import Descriptor
    from carrypost.overlay.rows import RevertingRows

PARTS = b"T"
"""First byte of the names of rows that have parts of states."""
PART_BYTES = 4096
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(SeatRow).decode


class SeatRows:
    """The rows of one broker's seats, by the names of seats (`lanes.name_of`)."""

    def __init__(self, rows: RevertingRows) -> None:
        self._rows = rows

    def put(self, name: bytes, row: SeatRow, message: Descriptor | None = None) -> None:
        """Add a seat to the batch that is being made, with the message that it belongs to."""
        self._rows.put(name, _encode(msgspec.structs.replace(row, state=b"")), message)
        for number, part in enumerate(_names(name)):
            before = self._rows.latest(part)
            after = row.state[number * PART_BYTES : (number + 1) * PART_BYTES]
            if before is None and not after:
                break
            if before != after:
                self._rows.put(part, after)

    def written(self, name: bytes) -> SeatRow | None:
        """Return a seat as it is on disk."""
        stored = self._rows.written(name)
        if stored is None:
            return None
        parts = []
        for part in _names(name):
            if not (found := self._rows.written(part)):
                break
            parts.append(found)
        return msgspec.structs.replace(_decode(stored), state=b"".join(parts))

    def cursors(self, name: bytes) -> dict[str, int]:
        """Return the cursors of a seat as they are on disk."""
        stored = self._rows.written(name)
        return {} if stored is None else _decode(stored).cursors

    def delete(self, name: bytes) -> None:
        """Forget a seat."""
        self._rows.delete(name)
        for part in _names(name):
            if self._rows.latest(part) is None:
                break
            self._rows.delete(part)


def _names(name: bytes) -> Iterator[bytes]:
    """Return the names of the parts of a state."""
    number = 0
    while True:
        yield PARTS + name[1:] + number.to_bytes(4, "big")
        number += 1
