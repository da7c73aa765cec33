"""Reading datagrams in batches.

asyncio's own datagram endpoints read one datagram per turn of the loop into a buffer of 256 KiB and lose most of a
burst. Here the loop only signals that a socket is readable; then up to `BATCH` datagrams are read at once, about as
fast as a dedicated thread would. Loops that cannot watch sockets get an endpoint on the same socket.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

from carrypost.node.udp.addresses import SocketAddress

BATCH = 128
"""Number of datagrams that are read before other sockets have their turn."""
Raw = list[tuple[bytes, SocketAddress]]
"""Datagrams and where they came from."""
Deliver = Callable[[Raw], None]
Failed = Callable[[OSError], object]


async def read(made: socket.socket, nbytes: int, deliver: Deliver, failed: Failed) -> Callable[[], None]:
    """Pass on all datagrams that arrive from now on, each cut off after `nbytes` bytes.

    Returns a function that ends that and closes the socket.
    """
    loop = asyncio.get_running_loop()
    try:
        loop.add_reader(made, drain, made, nbytes, deliver, failed)
    except NotImplementedError:
        transport, _ = await loop.create_datagram_endpoint(lambda: _Collector(loop, deliver, failed), sock=made)
        return transport.close

    def close() -> None:
        loop.remove_reader(made)
        made.close()

    return close


def drain(made: socket.socket, nbytes: int, deliver: Deliver, failed: Failed) -> None:
    """Read what is there now, up to a batch."""
    receive, raw = made.recvfrom, []
    try:
        for _ in range(BATCH):
            raw.append(receive(nbytes))  # noqa: PERF401 - what was read before an error is kept
    except (BlockingIOError, InterruptedError):
        pass
    except OSError as error:
        failed(error)
    if raw:
        deliver(raw)


class _Collector(asyncio.DatagramProtocol):
    """Collects what comes in one turn of the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, deliver: Deliver, failed: Failed) -> None:
        self._loop = loop
        self._deliver = deliver
        self._failed = failed
        self._raw: Raw = []

    def datagram_received(self, data: bytes, addr: SocketAddress) -> None:
        if not self._raw:
            self._loop.call_soon(self._hand_over)
        self._raw.append((data, addr))

    def error_received(self, exc: Exception) -> None:
        if isinstance(exc, OSError):
            self._failed(exc)

    def _hand_over(self) -> None:
        raw, self._raw = self._raw, []
        self._deliver(raw)
