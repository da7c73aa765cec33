"""Serves the metrics of a node over HTTP, to programs on this machine only.

One connection serves one request. The one invariant: whatever a client sends or does not read, no more than 8 KiB of
its request and one answer are kept, for five seconds at most, and metrics are made anew once a second at most.
Reading them changes nothing in the node.

A web page in a browser on this machine could reach the port by a name of its own that leads to 127.0.0.1. So a request
must name this machine as its host.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import urlsplit

from carrypost.errors import ConfigError, NodeError
from carrypost.log.files import reason

if TYPE_CHECKING:
    from collections.abc import Callable

    from carrypost.attach.served_node import ServedNode

HOST: Final = "127.0.0.1"
PATH: Final = "/metrics"
REQUEST_S: Final = 5.0
"""Time after which a connection is cut off."""
HEAD_BYTES_MAX: Final = 8 * 1024
CONNECTIONS_MAX: Final = 16
"""Connections at the same time. Beyond that the oldest is closed, so that silent ones cannot take all places."""
FRESH_S: Final = 1.0
"""Time for which metrics are served again as they are."""
_REST_BYTES_MAX = 64 * 1024
"""Bytes that a client may send after its request was answered, until it has read the answer."""
_HOSTS = frozenset({"127.0.0.1", "localhost", "::1"})
_METHODS = ("GET", "HEAD")
_PLAIN = "text/plain; charset=utf-8"
_log = logging.getLogger("carrypost.metrics")


class Answer(NamedTuple):
    """An answer to a request."""

    status: str
    body: bytes
    type: str = _PLAIN
    more: str = ""
    """Further headers, each with its end of line."""

    def encode(self, *, whole: bool = True) -> bytes:
        """Return the bytes of the answer; without its body unless it is `whole`."""
        head = (
            f"HTTP/1.1 {self.status}\r\nContent-Type: {self.type}\r\nContent-Length: {len(self.body)}\r\n"
            f"Connection: close\r\n{self.more}\r\n"
        )
        return head.encode() + (self.body if whole else b"")


async def serve(served: ServedNode) -> Server | None:
    """Serve the metrics of a node, if its settings say so; raises `ConfigError` or `NodeError`."""
    port = served.node.settings.metrics.port
    if not port:
        return None
    try:
        from carrypost.daemon import metric_families  # noqa: PLC0415 - needs an extra
    except ModuleNotFoundError:
        raise ConfigError(
            "metrics.port requires prometheus-client, which is not installed: pip install 'carrypost[metrics]' (in the "
            "source tree, '.[metrics]'), or set metrics.port = 0"
        ) from None
    server = Server(port, lambda: metric_families.exposition(served.status(quick=True)), metric_families.CONTENT_TYPE)
    await server.open()
    served.add("metrics", server)
    return server


class Server:
    """The HTTP server of one node's metrics, which `make` makes."""

    def __init__(self, port: int, make: Callable[[], bytes], content_type: str) -> None:
        self._port, self._make, self._type = port, make, content_type
        self._listening: asyncio.Server | None = None
        self._connections: dict[Connection, None] = {}
        """Open connections, oldest first."""
        self._metrics = b""
        self._made_s: float | None = None

    async def open(self) -> None:
        """Listen; raises `NodeError`."""
        try:
            loop = asyncio.get_running_loop()
            self._listening = await loop.create_server(lambda: Connection(self), HOST, self._port)
        except OSError as error:
            raise NodeError(
                f"cannot serve metrics at {HOST}:{self._port}: {reason(error)}; choose another metrics.port, or "
                "metrics.port = 0 for none"
            ) from None

    @property
    def url(self) -> str:
        """The address of the metrics."""
        return f"http://{HOST}:{self._port}{PATH}"

    def status(self) -> dict[str, object]:
        """Return the address of the metrics."""
        return {"url": self.url}

    def leave(self) -> None:
        """Accept no further connections."""
        if self._listening is not None:
            self._listening.close()

    async def close(self) -> None:
        """End all connections."""
        self.leave()
        for connection in list(self._connections):
            connection.cut_off()

    def add(self, connection: Connection) -> None:
        """Note a new connection; close the oldest if there are too many."""
        self._connections[connection] = None
        if len(self._connections) > CONNECTIONS_MAX:
            next(iter(self._connections)).cut_off()

    def remove(self, connection: Connection) -> None:
        """Forget a connection."""
        self._connections.pop(connection, None)

    def answer(self, head: str) -> bytes:
        """Return the answer to a request."""
        line, *headers = head.split("\n")
        parts = line.split()
        if len(parts) != 3 or not parts[2].startswith("HTTP/1."):  # noqa: PLR2004 - method, target and version
            return refusal("400 Bad Request", f"the request must begin with: GET {PATH} HTTP/1.1")
        method, target, _ = parts
        if method not in _METHODS:
            return refusal("405 Method Not Allowed", f"{PATH} can only be read: use GET", "Allow: GET, HEAD\r\n")
        if not _names_this_machine(headers):
            return refusal("421 Misdirected Request", f"metrics are served to this machine only: use {self.url}")
        if _path(target) != PATH:
            return refusal("404 Not Found", f"the metrics are at {self.url}")
        try:
            answer = Answer("200 OK", self._fresh(), self._type)
        except Exception:  # noqa: BLE001 - A mistake of ours in the metrics must not end the node.
            _log.exception("the metrics could not be made")
            return refusal("500 Internal Server Error", "the node failed: please report this, with the node's log")
        return answer.encode(whole=method != "HEAD")

    def _fresh(self) -> bytes:
        now_s = asyncio.get_running_loop().time()
        if self._made_s is None or now_s - self._made_s >= FRESH_S:
            self._metrics, self._made_s = self._make(), now_s
        return self._metrics


def refusal(status: str, sentence: str, more: str = "") -> bytes:
    """Return an answer that says what is wrong."""
    return Answer(status, f"{sentence}\n".encode(), more=more).encode()


def _names_this_machine(headers: list[str]) -> bool:
    """Return True unless the request names another host."""
    for header in headers:
        name, _, value = header.partition(":")
        if name.strip().lower() == "host":
            try:
                return urlsplit(f"//{value.strip()}").hostname in _HOSTS
            except ValueError:
                return False
    return True


def _path(target: str) -> str:
    try:
        return urlsplit(target).path
    except ValueError:
        return ""


class Connection(asyncio.Protocol):
    """The connection of one client, for one request."""

    _transport: asyncio.Transport

    def __init__(self, server: Server) -> None:
        self._server = server
        self._head = bytearray()
        self._rest_bytes: int | None = None
        """Bytes that came after the answer; None before it."""
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for a request, and for the client to read its answer, but not for long."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._timer = asyncio.get_running_loop().call_later(REQUEST_S, transport.abort)
        self._server.add(self)

    def connection_lost(self, _error: Exception | None) -> None:
        """Forget the client."""
        if self._timer is not None:
            self._timer.cancel()
        self._server.remove(self)

    def cut_off(self) -> None:
        """Close at once."""
        self._server.remove(self)
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """Answer a request that is whole, or too long."""
        if self._rest_bytes is not None:
            # A client does not see its answer if the bytes that it still sends are refused.
            self._rest_bytes += len(data)
            if self._rest_bytes > _REST_BYTES_MAX:
                self._transport.abort()
            return
        self._head += data
        text = self._head[:HEAD_BYTES_MAX].decode("latin-1").replace("\r\n", "\n")
        head, end, _ = text.partition("\n\n")
        if end:
            self._answer(self._server.answer(head))
        elif len(self._head) > HEAD_BYTES_MAX:
            sentence = f"the request must not be longer than {HEAD_BYTES_MAX:,} bytes"
            self._answer(refusal("431 Request Header Fields Too Large", sentence))

    def _answer(self, answer: bytes) -> None:
        self._rest_bytes = 0
        self._head.clear()
        self._transport.write(answer)
        self._transport.write_eof()
