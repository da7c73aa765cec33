"""One end of a connection at a node's socket: makes frames of bytes and values of parts, and reads and writes them.

Output is written once in a turn of the event loop, so that answers to what was read are written as soon as all of it is
processed. Values longer than 64 KiB go in parts, one a turn, with other frames between them. While the other side does
not read, output waits here: a producer of much output checks `is_full`, and waits for `drained`.

Input is bounded by the receiver, whatever the sender claims: a frame by `FRAME_BYTES_MAX`, values that come in parts by
`OPEN_MAX`, and their bytes together by what the receiver allows. This bookkeeping needs no socket.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

from carrypost.attach import calls
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


_HIGH_BYTES, _LOW_BYTES = 4 * PART_BYTES, PART_BYTES
"""Bytes that the transport keeps before this end stops writing, and at which it goes on."""
UNWRITTEN_BYTES_MAX = 1024 * 1024
"""Number of unread bytes at which nothing more is read from a program."""
_LINGER_S = 5.0
"""Time after which a program that was sent an error, and goes on, is disconnected."""


class Line(asyncio.Protocol):
    """One end; a subclass takes the frames."""

    def __init__(self, decode: Callable[[bytes], Any], part: type[calls.CallPart | calls.ReplyPart]) -> None:
        self._decode, self._part = decode, part
        self._frames, self.parts = Frames(), Parts(ENVELOPE_BYTES)
        self._transport: asyncio.Transport | None = None
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._long: deque[tuple[int, bytes, memoryview]] = deque()
        """Values that go in parts: number, announcement, and rest. The announcement is empty once it is written."""
        self._flushing = self._paused = self._discards = False
        self.wrote_s = 0.0
        """Time of the last write, by the event loop's clock."""
        self._reads = True
        self._bodies: deque[bytes] = deque()
        """Frames that were read before this end stopped reading."""
        self._drained: asyncio.Future[None] | None = None
        self.is_open = False

    # --- for subclasses ------------------------------------------------------------------------------------

    def receive(self, frame: Any) -> None:  # noqa: ANN401 - what `decode` returns
        """Take a frame; raise `LocalError` to end the connection."""
        raise NotImplementedError

    def wrong(self, error: LocalError) -> None:
        """Handle a frame that cannot be understood."""
        raise NotImplementedError

    def lost(self) -> None:
        """Note that the connection is over."""
        raise NotImplementedError

    def resumed(self) -> None:
        """Continue after output that had waited was written."""

    # --- saying --------------------------------------------------------------------------------------------

    def write(self, frame: calls.AnyFrame, *, soon: bool = True) -> None:
        """Write a frame, with all others of this turn of the loop, or, unless `soon`, with the next that is written.

        One that is too long goes in parts.
        """
        if not self.is_open:
            return
        body = calls.encode(frame)
        if len(body) > PART_BYTES and frame.long:
            value = bytes(getattr(frame, frame.long))
            body = calls.encode(msgspec.structs.replace(frame, **{frame.long: calls.NOTHING, "length": len(value)}))
            self._long.append((frame.number, body, memoryview(value)))  # type: ignore[union-attr]  # what is long has one
            if soon:
                self._flush_soon()
        else:
            self._write(body, soon=soon)

    def _write(self, body: bytes, *, soon: bool = True) -> None:
        self._out.append(framed(body))
        self._out_bytes += len(body)
        if soon:
            self._flush_soon()

    def _flush_soon(self) -> None:
        if not self._flushing and not self._paused:
            self._flushing = True
            asyncio.get_running_loop().call_soon(self.flush)

    def flush(self) -> None:
        """Write the output of this turn, because nothing more follows."""
        self._flushing = False
        if self._transport is None or self._paused:
            return
        if self._long:
            self._say_part()
        if self._out:
            out, self._out, self._out_bytes = self._out, [], 0
            self._transport.write(out[0] if len(out) == 1 else b"".join(out))
            self.wrote_s = asyncio.get_running_loop().time()
        if self._long:
            self._flush_soon()
        if not self._paused:
            self._wake()

    def _wake(self) -> None:
        drained, self._drained = self._drained, None
        if drained is not None:
            drained.set_result(None)

    def _say_part(self) -> None:
        # Announced as late as this, any number of long values may wait: the other side bounds what is open.
        number, announcement, rest = self._long.popleft()
        if announcement:
            self._write(announcement)
        if len(rest) > PART_BYTES:
            self._long.appendleft((number, b"", rest[PART_BYTES:]))
        self._write(calls.encode(self._part(number, bytes(rest[:PART_BYTES]))))

    @property
    def unwritten_bytes(self) -> int:
        """Bytes that were said and not read by the other side, as far as they are not with the system."""
        return self._out_bytes + (0 if self._transport is None else self._transport.get_write_buffer_size())

    @property
    def is_full(self) -> bool:
        """True if a producer of much output should wait for `drained`."""
        return self._paused or self._out_bytes >= PART_BYTES

    async def drained(self, *, parts: bool = False) -> None:
        """Wait until there is room for more, with `parts` until none is left, or the connection is over."""
        while self.is_open and (self.is_full or (parts and self._long)):
            if self._drained is None:
                self._drained = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._drained)

    # --- reading -------------------------------------------------------------------------------------------

    def read(self, on: bool) -> None:
        """Continue reading, or leave incoming bytes with the system."""
        if on == self._reads or self._transport is None or self._transport.is_closing():
            return
        self._reads = on
        if on:
            self._transport.resume_reading()
            asyncio.get_running_loop().call_soon(self._receive_all)
        else:
            self._transport.pause_reading()

    def data_received(self, data: bytes) -> None:
        """Take all frames that are whole, as long as this end reads."""
        if self._discards:
            return
        try:
            self._bodies.extend(self._frames.feed(data))
        except LocalError as error:
            self.wrong(error)
            return
        self._flushing = True
        self._receive_all()
        self.flush()

    def _receive_all(self) -> None:
        try:
            while self._bodies and self._reads and not self._discards:
                frame = self.parts.join(self._decode(self._bodies.popleft()))
                if frame is not None:
                    self.receive(frame)
        except LocalError as error:
            self.wrong(error)

    # --- life ----------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        assert isinstance(transport, asyncio.Transport)
        self._transport, self.is_open = transport, True
        transport.set_write_buffer_limits(high=_HIGH_BYTES, low=_LOW_BYTES)

    def pause_writing(self) -> None:
        """Keep output, because the other side does not read."""
        self._paused = True

    def resume_writing(self) -> None:
        """Write what was said meanwhile."""
        self._paused = False
        self._flush_soon()
        self.resumed()

    def eof_received(self) -> None:
        """Handle the end of input: write the output, then close."""
        self.flush()

    def connection_lost(self, _error: Exception | None) -> None:
        """End."""
        self.is_open, self._paused = False, False
        self._out, self._out_bytes = [], 0
        self._long.clear()
        self._wake()
        self.lost()

    def cut_off(self) -> None:
        """Close at once, dropping output."""
        if self._transport is not None:
            self._transport.abort()

    def hang_up(self, last: calls.AnyFrame | None = None, *, linger: bool = False) -> None:
        """Close, after a last frame. `linger`: wait for the end of what the other side sends, so that it reads this."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        self._long.clear()
        if last is not None:
            self.write(last)
        self.is_open = False
        if self._paused:  # It does not listen.
            transport.abort()
            return
        self.flush()
        if linger:
            self._discards = True
            transport.write_eof()
            self.read(True)
            asyncio.get_running_loop().call_later(_LINGER_S, transport.abort)
        else:
            transport.close()
