"""A STOMP client on a plain socket: it knows frames, and nothing of carrypost. Libraries do the same, and more."""

from __future__ import annotations

import socket
from contextlib import suppress


class StompClient:
    """One connection, with one subscription."""

    def __init__(self, port: int, timeout_s: float) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout_s)
        self._incoming = self._socket.makefile("rb")
        self._messages: list[str] = []

    def connect(self, passcode: str) -> None:
        """Be let in by the node."""
        self._ask("CONNECTED", "CONNECT", {"accept-version": "1.2", "host": "localhost", "passcode": passcode})

    def subscribe(self, destination: str) -> None:
        """Subscribe to what others send to a destination; return when nothing is missed any more."""
        self._ask("RECEIPT", "SUBSCRIBE", {"id": "0", "destination": destination, "no-local": "true", "receipt": "1"})

    def send(self, destination: str, text: str) -> None:
        """Send a text; return when the node has it on its disk."""
        self._ask("RECEIPT", "SEND", {"destination": destination, "persistent": "true", "receipt": "2"}, text)

    def receive(self) -> str:
        """Return the next text."""
        return self._messages.pop(0) if self._messages else self._read("MESSAGE")

    def close(self) -> None:
        """Hang up, also on a thread that waits."""
        with suppress(OSError):  # The node may have hung up first.
            self._socket.shutdown(socket.SHUT_RDWR)
        self._incoming.close()
        self._socket.close()

    def _ask(self, answer: str, command: str, headers: dict[str, str], body: str = "") -> None:
        head = "\n".join([command, *(f"{name}:{value}" for name, value in headers.items())])
        self._socket.sendall(f"{head}\n\n{body}\0".encode())
        self._read(answer)

    def _read(self, wanted: str) -> str:
        """Return the body of the next frame of a kind; keep messages that come before it."""
        while True:
            lines: list[str] = []
            while (line := self._incoming.readline()) != b"\n" or not lines:  # Empty ones before it are heart-beats.
                if not line:
                    raise ConnectionError("the node closed the connection")
                lines += [line.decode().rstrip("\n")] if line != b"\n" else []
            command, headers = lines[0], dict(line.split(":", 1) for line in lines[1:])
            body = self._incoming.read(int(headers.get("content-length", 0)) + 1)[:-1].decode()
            if command == wanted:
                return body
            if command != "MESSAGE":
                raise ConnectionError(f"expected {wanted}, received {command} {headers.get('message', '')}")
            self._messages.append(body)
