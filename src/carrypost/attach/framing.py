"""Bytes to frames, and parts to values: the bookkeeping of a line, without a socket.

Both are bounded by the receiver, whatever the sender claims: a frame by `FRAME_BYTES_MAX`, values that come in parts by
`OPEN_MAX`, and their bytes together by what the receiver allows.
"""

from __future__ import annotations

from typing import Any

import msgspec

from carrypost.attach.calls import NOTHING, CallPart, ReplyPart
from carrypost.errors import LocalError

LENGTH_BYTES = 4
_PARTS = CallPart, ReplyPart
PART_BYTES = 64 * 1024
"""Size of a part: longer values are cut into parts."""
FRAME_BYTES_MAX = 1024 * 1024 + 4 * PART_BYTES
"""Length of a frame: one with the largest descriptor that settings allow, a MiB, and with messages of a part before it,
is accepted."""
ENVELOPE_BYTES = 4 * 1024 * 1024
"""Overhead that may surround a body in parts, in bytes."""
OPEN_MAX = 4
"""Number of values that may be announced and not complete. A `Line` announces the next one when the last is written."""


def framed(body: bytes) -> bytes:
    """Return the bytes of a frame behind their length."""
    return len(body).to_bytes(LENGTH_BYTES, "big") + body


class Frames:
    """Divides received bytes into frames."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Return the frames that are whole by now; raise `LocalError` for one that is too long."""
        rest, buffer = self._rest, data
        if rest:
            rest += data
            buffer = rest  # type: ignore[assignment]  # slices are made bytes below
        found, at, end = [], 0, len(buffer)
        while end - at >= LENGTH_BYTES:
            length = int.from_bytes(buffer[at : at + LENGTH_BYTES], "big")
            if length > FRAME_BYTES_MAX:
                raise LocalError(f"a frame of {length:,} bytes; at most {FRAME_BYTES_MAX:,} are accepted")
            if end - at - LENGTH_BYTES < length:
                break
            at += LENGTH_BYTES
            found.append(bytes(buffer[at : at + length]))
            at += length
        if at or buffer is data:
            self._rest = bytearray(buffer[at:])
        return found


class Parts:
    """Joins parts to frames: at most `OPEN_MAX` at a time, of at most `bytes_max` together."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self._open: dict[int, tuple[Any, bytearray]] = {}
        """By number, the frame that announced them, and what has come."""
        self._announced = 0

    def join(self, frame: Any) -> Any:  # noqa: ANN401 - any frame
        """Return a frame that is whole with this one, or None; raise `LocalError` for parts that fit nothing."""
        if isinstance(frame, _PARTS):
            return self._add(frame.number, frame.data)
        if not getattr(frame, "length", 0):
            return frame
        number, length = frame.number, frame.length
        if length < 0 or self._announced + length > self.bytes_max:
            raise LocalError(f"parts of {length:,} bytes are announced; at most {self.bytes_max:,} may be open")
        if number in self._open:
            raise LocalError(f"parts are announced twice under the number {number}")
        if len(self._open) >= OPEN_MAX:
            raise LocalError(f"parts of another value are announced; at most {OPEN_MAX} may be open")
        # A value in the announcement itself is dropped, since it does not count.
        self._open[number] = msgspec.structs.replace(frame, **{frame.long: NOTHING}), bytearray()
        self._announced += length
        return None

    def _add(self, number: int, data: bytes) -> Any:  # noqa: ANN401 - likewise
        found = self._open.get(number)
        if found is None:
            raise LocalError(f"a part came under the number {number}, under which none was announced")
        frame, joined = found
        joined += data
        if not data or len(joined) > frame.length:
            raise LocalError(f"the parts under the number {number} are not the {frame.length:,} bytes announced")
        if len(joined) < frame.length:
            return None
        del self._open[number]
        self._announced -= frame.length
        return msgspec.structs.replace(frame, **{frame.long: msgspec.Raw(bytes(joined)), "length": 0})
