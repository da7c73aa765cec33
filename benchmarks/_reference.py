"""The best that a chain could do: a program that only relays whole messages over UDP.

It knows its next hop, keeps messages in memory, signs, verifies and stores nothing, and does not discover nodes: the
reference application of JOMS-15 §3.2. Messages are cut into datagrams as long as carrypost's. Each hop has a window of
datagrams, acknowledged cumulatively; after a timeout everything is sent again from the first missing one. The window is
smaller than the queue in front of a link, so nothing is lost there.

Run by benchmarks/chain.py: orders come as lines of JSON on standard input, and each is answered by one line.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import struct
import sys
import time
from collections import deque
from collections.abc import Iterator
from typing import Final

DATAGRAM_BYTES: Final = 1_200
WINDOW: Final = 80
_HEADER: Final = struct.Struct("!IIHH")
"""Serial on this hop, message, fragment, how many fragments the message has. An acknowledgement has a serial only."""
_ACK: Final = struct.Struct("!I")
_BODY_BYTES: Final = DATAGRAM_BYTES - _HEADER.size
_ACK_EVERY: Final = 16
_RESEND_S: Final = 0.25
_BUFFER_BYTES: Final = 4 << 20
_SO_RCVBUFFORCE: Final = 33

Address = tuple[str, int]


class Sender:
    """Messages on their way to the next hop."""

    def __init__(self, endpoint: socket.socket, to: Address) -> None:
        self._endpoint = endpoint
        self._to = to
        self._fragments: Iterator[tuple[int, int, int, bytes]] = iter(())
        self._messages: deque[tuple[int, bytes]] = deque()
        self._flying: deque[bytes] = deque()
        """Datagrams that are not acknowledged, the oldest first; its serial is `_base`."""
        self._base = 0
        self._next = 0
        """Serial of the next datagram to send: a repeated one, or a new one."""
        self.resend_s = float("inf")
        self.blocked = False

    def add(self, message: int, body: bytes) -> None:
        """Queue a message."""
        self._messages.append((message, body))

    def acknowledged(self, serial: int) -> None:
        """All before this serial are there."""
        while self._base < serial and self._flying:
            self._flying.popleft()
            self._base += 1
        self._next = max(self._next, self._base)
        self.resend_s = time.monotonic() + _RESEND_S if self._flying else float("inf")

    def pump(self) -> None:
        """Send what the window and the socket take."""
        if time.monotonic() >= self.resend_s:
            self._next = self._base
            self.resend_s = time.monotonic() + _RESEND_S
        self.blocked = False
        while self._next - self._base < WINDOW:
            if self._next - self._base == len(self._flying) and not self._cut():
                return
            try:
                self._endpoint.sendto(self._flying[self._next - self._base], self._to)
            except BlockingIOError:
                self.blocked = True
                return
            self._next += 1
            if self.resend_s == float("inf"):
                self.resend_s = time.monotonic() + _RESEND_S

    def _cut(self) -> bool:
        """Send one more datagram, if anything is left to send; return False otherwise."""
        found = next(self._fragments, None)
        while found is None:
            if not self._messages:
                return False
            self._fragments = _fragments(*self._messages.popleft())
            found = next(self._fragments, None)
        message, number, count, body = found
        self._flying.append(_HEADER.pack(self._next, message, number, count) + body)
        return True


def _fragments(message: int, body: bytes) -> Iterator[tuple[int, int, int, bytes]]:
    count = -(-len(body) // _BODY_BYTES)
    for number in range(count):
        yield message, number, count, body[number * _BODY_BYTES : (number + 1) * _BODY_BYTES]


class Relay:
    """One program of the chain: takes messages from behind, and hands them on or keeps count of them."""

    def __init__(self, port: int, toward: Address | None) -> None:
        self.endpoint = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.endpoint.setblocking(False)
        try:
            self.endpoint.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER_BYTES)
        except OSError:
            self.endpoint.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
        self.endpoint.bind(("", port))
        self.sender = None if toward is None else Sender(self.endpoint, toward)
        self.arrivals: list[tuple[float, int]] = []
        """Time at which a message was whole, and its length."""
        self.awaited = 0
        self._expected = 0
        self._unreported = 0
        self._parts: list[bytes] = []

    def readable(self) -> None:
        """Read the datagrams that arrived, and acknowledge them."""
        origin: Address | None = None
        while True:
            try:
                datagram, source = self.endpoint.recvfrom(DATAGRAM_BYTES)
            except BlockingIOError:
                break
            if len(datagram) == _ACK.size:
                assert self.sender is not None
                self.sender.acknowledged(_ACK.unpack(datagram)[0])
                continue
            origin = source
            self._take(datagram)
            if self._unreported >= _ACK_EVERY:
                self._report(source)
        if origin is not None and self._unreported:
            self._report(origin)

    def _report(self, to: Address) -> None:
        self._unreported = 0
        with contextlib.suppress(BlockingIOError):  # The next one says the same and more.
            self.endpoint.sendto(_ACK.pack(self._expected), to)

    def _take(self, datagram: bytes) -> None:
        self._unreported += 1
        serial, message, number, count = _HEADER.unpack_from(datagram)
        if serial != self._expected:
            return
        self._expected += 1
        self._parts.append(datagram[_HEADER.size :])
        if number + 1 == count:
            body, self._parts = b"".join(self._parts), []
            if self.sender is not None:
                self.sender.add(message, body)
            else:
                self.arrivals.append((time.monotonic(), len(body)))


class Program:
    """The relay and the orders that it gets."""

    def __init__(self, relay: Relay) -> None:
        self.relay = relay
        self._selector = selectors.DefaultSelector()
        self._selector.register(relay.endpoint, selectors.EVENT_READ)
        self._selector.register(sys.stdin, selectors.EVENT_READ)
        os.set_blocking(sys.stdin.fileno(), False)
        self._heard = b""

    def run(self) -> None:
        """Work until standard input ends."""
        relay, sender = self.relay, self.relay.sender
        while True:
            pause_s = None if sender is None else max(0.0, sender.resend_s - time.monotonic())
            timeout_s = None if pause_s == float("inf") else pause_s
            for key, _ in self._selector.select(timeout_s):
                if key.fileobj is not relay.endpoint:
                    if not self._orders():
                        return
                else:
                    relay.readable()
            if sender is not None:
                blocked = sender.blocked
                sender.pump()
                if blocked != sender.blocked:
                    events = selectors.EVENT_READ | (selectors.EVENT_WRITE if sender.blocked else 0)
                    self._selector.modify(relay.endpoint, events)
            elif relay.awaited and len(relay.arrivals) >= relay.awaited:
                relay.awaited = 0
                _say({"arrivals": relay.arrivals})
                relay.arrivals = []

    def _orders(self) -> bool:
        read = os.read(sys.stdin.fileno(), 65_536)
        *lines, self._heard = (self._heard + read).split(b"\n")
        for line in lines:
            self._obey(json.loads(line))
        return bool(read)

    def _obey(self, order: dict[str, int | str]) -> None:
        relay = self.relay
        if order["do"] == "await":
            relay.awaited = int(order["count"])  # Answered when they are there.
        elif order["do"] == "send":
            assert relay.sender is not None
            bodies = [os.urandom(int(order["size"])) for _ in range(int(order["count"]))]
            began_s = time.monotonic()
            for number, body in enumerate(bodies):
                relay.sender.add(number, body)
            _say({"began_s": began_s})


def _say(answer: dict[str, object]) -> None:
    print(json.dumps(answer), flush=True)


def main() -> None:
    """Run with PORT, and the ADDRESS of the next hop unless this is the last one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the business of whoever gives the orders.
    port, *toward = sys.argv[1:]
    relay = Relay(int(port), (toward[0], int(port)) if toward else None)
    _say({"ready": True})
    Program(relay).run()


if __name__ == "__main__":
    main()
