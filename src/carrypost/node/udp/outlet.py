"""Sending without waiting: datagrams that a socket does not accept at once wait in a bounded queue, or are dropped.

Datagrams may be lost anyway, so nothing here is an error to the caller; everything is counted.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections import Counter, deque
from collections.abc import Sequence

from carrypost.node.udp.channels import Target

QUEUE_BYTES_MAX = 1 << 20
_PAUSE_S = 0.003
"""Delay before the next attempt if the system cannot signal when there is room again."""
_PATIENCE_S = 0.5
"""Time after which an interface that accepts nothing must not keep the others waiting."""
_COUNTED = ("received", "received_bytes", "sent", "sent_bytes", "echoes", "duplicates", "gated", "send_queue_dropped")
_ONE_ONLY = frozenset({errno.EMSGSIZE})
"""Errors that say nothing about the next datagram to the same target."""


class UdpTraffic:
    """Counters of datagrams sent, received and dropped, by reason."""

    def __init__(self) -> None:
        self.counters = dict.fromkeys(_COUNTED, 0)
        self.errors: Counter[str] = Counter()
        """Errors, by the system's names for them."""

    def failed(self, error: OSError) -> str:
        """Count an error; returns the system's name for it."""
        name = errno.errorcode.get(error.errno or 0, type(error).__name__)
        self.errors[name] += 1
        return name


class Outlet:
    """The sending side of one socket."""

    def __init__(self, sending: socket.socket, traffic: UdpTraffic, loop: asyncio.AbstractEventLoop) -> None:
        self._socket = sending
        self._traffic = traffic
        self._loop = loop
        self._queue: deque[tuple[bytes, Target]] = deque()
        self._queue_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._writing = False
        self._refused_s: float | None = None
        """Time since which the interface of the first in the queue accepts nothing."""
        self._multicast_by = ""

    def send(self, datagrams: Sequence[bytes], target: Target) -> str:
        """Send datagrams, or queue them; return the system's name of an error, or an empty text."""
        failure = ""
        for position, datagram in enumerate(datagrams):
            if self._queue:
                self._wait_with(datagrams[position:], target)
                break
            error = self._transmit(datagram, target)
            if error is None:
                continue
            if error.errno in {errno.EAGAIN, errno.EWOULDBLOCK, errno.ENOBUFS}:
                self._wait_with(datagrams[position:], target)
                self._wait(error)
                break
            failure = self._traffic.failed(error)
            if error.errno not in _ONE_ONLY:
                break
        return failure

    def close(self) -> None:
        """Drop what is queued."""
        self._queue.clear()
        self._queue_bytes = 0
        self._rest()

    def _transmit(self, datagram: bytes, target: Target) -> OSError | None:
        try:
            if target.control is not None:
                self._socket.sendmsg((datagram,), target.control, 0, target.address)
            else:
                if target.multicast_by and target.multicast_by != self._multicast_by:
                    address = socket.inet_aton(target.multicast_by)
                    self._socket.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, address)
                    self._multicast_by = target.multicast_by
                self._socket.sendto(datagram, target.address)
        except OSError as error:
            return error
        counters = self._traffic.counters
        counters["sent"] += 1
        counters["sent_bytes"] += len(datagram)
        return None

    # --- the queue -----------------------------------------------------------------------------------------

    def _wait_with(self, datagrams: Sequence[bytes], target: Target) -> None:
        for datagram in datagrams:
            if self._queue_bytes + len(datagram) > QUEUE_BYTES_MAX:
                self._traffic.counters["send_queue_dropped"] += 1
                continue
            self._queue.append((datagram, target))
            self._queue_bytes += len(datagram)

    def _wait(self, error: OSError) -> None:
        """Continue when there is room: the loop signals it, unless the interface's own queue is full."""
        if error.errno != errno.ENOBUFS and self._timer is None:
            try:
                self._loop.add_writer(self._socket, self._flush)
            except NotImplementedError:
                pass
            else:
                self._writing = True
                return
        self._rest()
        self._timer = self._loop.call_later(_PAUSE_S, self._flush)

    def _rest(self) -> None:
        if self._writing:
            self._loop.remove_writer(self._socket)
            self._writing = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _flush(self) -> None:
        self._timer = None
        while self._queue:
            datagram, target = self._queue[0]
            error = self._transmit(datagram, target)
            if error is not None and error.errno in {errno.EAGAIN, errno.EWOULDBLOCK, errno.ENOBUFS}:
                if error.errno == errno.ENOBUFS and self._tired():
                    self._give_up(target)
                    continue
                if error.errno == errno.ENOBUFS or not self._writing:
                    self._wait(error)
                return
            self._refused_s = None
            if error is not None:
                self._traffic.failed(error)
            self._queue.popleft()
            self._queue_bytes -= len(datagram)
        self._refused_s = None
        self._rest()

    def _tired(self) -> bool:
        """Return True if the first datagram in the queue has waited long enough for its interface."""
        now_s = self._loop.time()
        if self._refused_s is None:
            self._refused_s = now_s
        return now_s - self._refused_s >= _PATIENCE_S

    def _give_up(self, target: Target) -> None:
        """Drop what waits for this target."""
        kept = [each for each in self._queue if each[1] != target]
        self._traffic.counters["send_queue_dropped"] += len(self._queue) - len(kept)
        self._queue = deque(kept)
        self._queue_bytes = sum(len(datagram) for datagram, _ in kept)
