"""Speaks to a node on this machine through its control socket."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

from carrypost import errors
from carrypost.errors import CarrypostError, LocalError, NoNodeError, StateError
from carrypost.node.control import calls

_CONNECT_S = 5.0
"""A node that is busy still lets a program in within this."""


class Client:
    """A program's connection to a node; an asynchronous context manager."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: Path) -> None:
        self._reader = reader
        self._writer = writer
        self._path = path
        self._number = 0
        self._open: dict[int, asyncio.Future[Any]] = {}
        self._ended: CarrypostError | None = None
        self._listener = asyncio.get_running_loop().create_task(self._listen())

    @classmethod
    async def connect(cls, path: Path) -> Client:
        """Reach the node at a control socket; raises `NoNodeError`."""
        try:
            async with asyncio.timeout(_CONNECT_S):
                reader, writer = await asyncio.open_unix_connection(path)
        except PermissionError:
            raise NoNodeError(f"the node at {path} belongs to another user") from None
        except (OSError, TimeoutError, NotImplementedError, AttributeError):
            raise NoNodeError(
                f"no node answers at {path}; start one with: carrypost node (a program's own has no socket)"
            ) from None
        return cls(reader, writer, path)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Hang up; whoever waits for an answer is told."""
        self._end(StateError("the connection to the node is closed"))
        self._listener.cancel()
        self._writer.close()
        with contextlib.suppress(ConnectionError, asyncio.CancelledError):
            await self._listener
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()

    # --- calls ---------------------------------------------------------------------------------------------

    async def status(self) -> dict[str, Any]:
        """The state of the node, as `carrypost status` shows it."""
        return dict(await self._call(calls.Status(number=self._next())))

    async def peers(self) -> list[dict[str, Any]]:
        """The nodes in reach, as `carrypost peers` shows them."""
        return list(await self._call(calls.Peers(number=self._next())))

    async def gate(self, hear: Iterable[str] | None) -> None:
        """Set the gate: the addresses whose datagrams the node takes from now on; None: everybody's."""
        await self._call(calls.Gate(number=self._next(), hear=None if hear is None else list(hear)))

    async def stop(self) -> None:
        """End the node; returns when it has hung up."""
        with contextlib.suppress(NoNodeError):
            await self._call(calls.Stop(number=self._next()))
        await asyncio.wait({self._listener})

    # --- joints --------------------------------------------------------------------------------------------

    def _next(self) -> int:
        self._number += 1
        return self._number

    async def _call(self, call: calls.AnyCall) -> Any:  # noqa: ANN401 - each call knows what it gets
        if self._ended is not None:
            raise self._ended
        try:
            body = calls.packed(call)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise LocalError(f"this cannot be told to a node: {error}") from None
        future = self._open[call.number] = asyncio.get_running_loop().create_future()
        try:
            self._writer.write(body)
            await self._writer.drain()
            return await future
        except ConnectionError:
            raise self._why() from None
        finally:
            self._open.pop(call.number, None)
            if future.done() and not future.cancelled():
                future.exception()  # It counts as seen, also if writing failed before it was looked at.

    async def _listen(self) -> None:
        try:
            while True:
                self._take(await calls.read_reply(self._reader))
        except (EOFError, ConnectionError):
            self._end(self._why())
        except CarrypostError as error:
            self._end(error)

    def _why(self) -> CarrypostError:
        return self._ended or NoNodeError(f"the node at {self._path} ended")

    def _end(self, error: CarrypostError) -> None:
        """Fail every open call, and all that follow, with an error; the first one counts."""
        if self._ended is None:
            self._ended = error
        for future in self._open.values():
            if not future.done():
                future.set_exception(self._ended)

    def _take(self, reply: calls.AnyReply) -> None:
        if isinstance(reply, calls.RefusalReply) and reply.number == calls.UNKNOWN:
            self._end(_error(reply))
            self._writer.close()
            return
        future = self._open.get(reply.number)
        if future is None or future.done():
            return
        if isinstance(reply, calls.AnswerReply):
            future.set_result(reply.value)
        else:
            future.set_exception(_error(reply))


def _error(refusal: calls.RefusalReply) -> CarrypostError:
    """What the node raised; its own errors about peers are none of the caller's."""
    kind = getattr(errors, refusal.error, None)
    if isinstance(kind, type) and issubclass(kind, CarrypostError) and not issubclass(kind, errors.RemoteError):
        return kind(refusal.text)
    return CarrypostError(refusal.text)
