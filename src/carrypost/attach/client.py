"""Client of a node on this machine, through its socket."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar, Self

import msgspec

from carrypost.attach import calls
from carrypost.attach.line import Line
from carrypost.errors import CarrypostError, LocalError, NoNodeError, StateError
from carrypost.node.settings import start_command_at

_CREDENTIALS = struct.Struct("iII")
"""Process, user and group of the other end of a socket."""
_CONNECT_S = 5.0
"""Time within which a busy node still accepts a connection."""


class Caller(Line):
    """A program's end of a connection: sends a greeting, makes calls under numbers, and gets answers."""

    raises: ClassVar[type[CarrypostError]] = CarrypostError
    """Base of all errors of calls."""
    versions: ClassVar[list[int]] = calls.VERSIONS_OF_PLAIN_CALLS
    """Versions that it speaks."""

    def __init__(self, path: Path, start: str = "") -> None:
        super().__init__(calls.decode_reply, calls.CallPart)
        self.path = path
        self._start = start
        self._number = 0
        self._open: dict[int, asyncio.Future[Any]] = {}
        self.ended: CarrypostError | None = None
        """Error that every call raises from now on, if the connection is over."""
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the connection is over."""

    async def greet(self) -> calls.Welcome:
        """Reach the node and greet it; raises `NoNodeError`, or what the node says instead of a welcome."""
        try:
            async with asyncio.timeout(_CONNECT_S):
                transport, _ = await asyncio.get_running_loop().create_unix_connection(lambda: self, str(self.path))
                _check_listener(transport, self.path)
                program = f"{Path(sys.argv[0]).name} ({os.getpid()})"
                welcome: calls.Welcome = await self.expect(0, calls.Hello(self.versions, program))
                return welcome
        except PermissionError:
            raise NoNodeError(f"the node at {self.path} belongs to another user") from None
        except (OSError, TimeoutError, NotImplementedError, AttributeError):
            self.cut_off()
            start = self._start or start_command_at(self.path)
            raise NoNodeError(f"no node answers at {self.path}; start one with: {start}") from None
        except (NoNodeError, asyncio.CancelledError):
            self.cut_off()
            raise

    def next(self) -> int:
        """Return the number of the next call."""
        self._number += 1
        return self._number

    def expect(self, number: int, frame: calls.AnyCall) -> asyncio.Future[Any]:
        """Send a frame under a number; return a future for the answer."""
        future = asyncio.get_running_loop().create_future()
        if self.ended is not None:
            future.set_exception(self.ended)
            return future
        self.write(frame)
        self._open[number] = future
        return future

    async def answered(self, patience_s: float) -> None:
        """Wait until every awaited call is answered, at most for `patience_s`."""
        if waiting := [future for future in self._open.values() if not future.done()]:
            await asyncio.wait(waiting, timeout=patience_s)

    def receive(self, frame: calls.AnyReply) -> None:
        """Pass an answer to the call that waits for it."""
        if isinstance(frame, calls.Answer):
            self.answer(frame.number, frame.value)
        elif isinstance(frame, calls.Welcome):
            self.answer(0, frame)
        elif isinstance(frame, calls.Refusal) and frame.number == calls.UNKNOWN:
            self.end(frame.raised())
        elif isinstance(frame, calls.Refusal):
            self.fail(frame.number, frame.raised(self.raises))
        elif isinstance(frame, calls.Ended):
            self.end(NoNodeError(f"the node at {self.path} ended: {frame.reason}"))

    def answer(self, number: int, value: Any) -> None:  # noqa: ANN401 - each call knows what it gets
        """End a call with its value."""
        future = self._open.pop(number, None)
        if future is not None and not future.done():
            future.set_result(value)

    def fail(self, number: int, error: CarrypostError) -> None:
        """End a call with an error."""
        future = self._open.pop(number, None)
        if future is not None and not future.done():
            future.set_exception(error)
            future.exception()  # It counts as seen: its caller may be gone.

    def wrong(self, error: LocalError) -> None:
        """Handle a frame that this program does not understand."""
        self.end(error)

    def lost(self) -> None:
        """Handle the end of the connection."""
        self.end(NoNodeError(f"the node at {self.path} ended"))
        if not self.over.done():
            self.over.set_result(None)

    def end(self, error: CarrypostError) -> None:
        """Disconnect, and fail every call with an error, also later ones; the first error counts."""
        self.ended = self.ended or error
        for number in list(self._open):
            self.fail(number, self.ended)
        self.hang_up()


class Client:
    """Plain calls to a node; an asynchronous context manager."""

    def __init__(self, caller: Caller, welcome: calls.Welcome) -> None:
        self._caller, self._welcome = caller, welcome

    @classmethod
    async def connect(cls, path: Path, start: str = "") -> Client:
        """Reach the node at a socket; raises `NoNodeError`, which advises `start` as the command that starts it."""
        caller = Caller(path, start)
        return cls(caller, await caller.greet())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Disconnect; pending calls fail."""
        self._caller.end(StateError("the connection to the node is closed"))
        await asyncio.shield(self._caller.over)

    async def status(self) -> dict[str, Any]:
        """Return the state of the node, as `carrypost status` shows it."""
        return dict(await self._ask(calls.Status(self._caller.next())))

    async def peers(self) -> list[dict[str, Any]]:
        """Return the nodes in reach, as `carrypost peers` shows them."""
        return list(await self._ask(calls.Peers(self._caller.next())))

    async def gate(self, hear: Iterable[str] | None) -> None:
        """Set the gate: the addresses whose datagrams the node accepts from now on; None: all."""
        await self._ask(calls.Gate(self._caller.next(), None if hear is None else list(hear)))

    async def cache(self, **chosen: Any) -> list[dict[str, Any]]:  # noqa: ANN401 - fields of `calls.Cache`
        """Return what the node holds, as `carrypost cache` shows it; with `purge`, what was thrown away or spared."""
        found: list[dict[str, Any]] = []
        while page := await self.cache_page(found[-1]["serial"] if found else 0, **chosen):
            found += page
        return found

    async def cache_page(self, after: int, **chosen: Any) -> list[dict[str, Any]]:  # noqa: ANN401 - likewise
        """Return the next page of the same, after the copy of this serial."""
        return list(await self._ask(calls.Cache(self._caller.next(), after, **chosen)))

    async def trace(self, message: str) -> dict[str, Any]:
        """Return what the node knows of a message: its `rows`, what is `held` of it, and whether history is kept."""
        return dict(await self._ask(calls.Trace(self._caller.next(), message)))

    async def messaging(self) -> dict[str, Any]:
        """Return `messaging`, None if it is off, and `channels`, None if the overlay is off.

        Raises `StateError` for a node that runs an earlier version, without this call.
        """
        if self._welcome.version < calls.VERSION:
            raise StateError(
                f"the node at {self._caller.path} runs carrypost {self._welcome.carrypost}, which does not list its "
                "queues and sends: restart it with this version"
            )
        return dict(await self._ask(calls.Messaging(self._caller.next())))

    async def stop(self) -> None:
        """End the node; returns when it has hung up."""
        with contextlib.suppress(NoNodeError):
            await self._ask(calls.Stop(self._caller.next()))
        await asyncio.shield(self._caller.over)

    async def _ask(self, call: calls.PlainCall) -> Any:  # noqa: ANN401 - each call knows what it gets
        try:
            return msgspec.msgpack.decode(await self._caller.expect(call.number, call))
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise LocalError(f"the call cannot be encoded for the node: {error}") from None


def _check_listener(transport: asyncio.Transport, path: Path) -> None:
    """Raise `NoNodeError` for a socket at which a stranger may listen.

    Anyone can make one in /tmp, where the socket of a folder with a long path is. The user that listens must be this
    one, root, or the owner of the socket's folder: root may use the nodes of other users.
    """
    if _listener(transport, path) not in {os.geteuid(), 0, path.parent.stat().st_uid}:
        raise NoNodeError(
            f"the socket {path} belongs to another user, and was not used: remove it, or choose another path in "
            "[node] control"
        )


def _listener(transport: asyncio.Transport, path: Path) -> int:
    """Return the user at the other end, as the kernel knows it; where it does not tell, the owner of the path.

    Whoever listens in a folder of its own can replace the path after the connection is made.
    """
    if not hasattr(socket, "SO_PEERCRED"):
        return path.lstat().st_uid
    connected: socket.socket = transport.get_extra_info("socket")
    credentials = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    user: int = _CREDENTIALS.unpack(credentials)[1]
    return user
