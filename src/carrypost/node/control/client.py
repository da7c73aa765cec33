"""Speaks to a node on this machine through its control socket."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self

from carrypost import errors
from carrypost.errors import CarrypostError, LocalError, NoNodeError, StateError
from carrypost.model.descriptor import Ordering
from carrypost.node.control import calls

_CONNECT_S = 5.0
"""A node that is busy still lets a program in within this."""
Delivery = calls.DeliveryReply
"""A message that the node hands to this program."""


class Client:
    """A program's connection to a node; an asynchronous context manager."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: Path) -> None:
        self._reader = reader
        self._writer = writer
        self._path = path
        self._number = 0
        self._open: dict[int, asyncio.Future[Any]] = {}
        self._deliveries: deque[Delivery] = deque()
        self._news = asyncio.Event()
        """A delivery came, or the connection ended."""
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
        """Hang up; subscriptions end, and what was not confirmed is kept for the next program."""
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

    async def publish(
        self,
        destination: str,
        payload: bytes = b"",
        *,
        attributes: Mapping[str, calls.AttributeValue] | None = None,
        lifetime_s: float | None = None,
        label: str = "",
        persistent: bool = False,
        priority: int = 4,
        ordering: Ordering = Ordering.NONE,
    ) -> str:
        """Send; returns the message's id once it is stored, raises `SendError` if it cannot be."""
        call = calls.Publish(
            number=self._next(), destination=destination, payload=payload, attributes=dict(attributes or {}),
            lifetime_s=lifetime_s, label=label, persistent=persistent, priority=priority, ordering=ordering.text,
        )  # fmt: skip
        return str(await self._call(call))

    async def subscribe(
        self, pattern: str | Mapping[str, str], selector: str | None = None, *, ordered: bool = False
    ) -> int:
        """Subscribe to what matches, also of what is here and no program has; returns the subscription's number.

        `ordered`: the destination's messages have an order. All of them are taken, and delivered in it.
        """
        wanted = pattern if isinstance(pattern, str) else dict(pattern)
        call = calls.Subscribe(number=self._next(), pattern=wanted, selector=selector, ordered=ordered)
        return int(await self._call(call))

    async def unsubscribe(self, subscription: int) -> None:
        """End a subscription."""
        await self._call(calls.Unsubscribe(number=self._next(), subscription=subscription))

    async def next_delivery(self, timeout_s: float | None = None) -> Delivery:
        """The next message for this program; raises `TimeoutError`, and `NoNodeError` when the node is gone."""
        try:
            async with asyncio.timeout(timeout_s):
                while not self._deliveries:
                    if self._ended is not None:
                        raise self._ended
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise TimeoutError(f"no message within {timeout_s:g} s") from None
        return self._deliveries.popleft()

    async def confirm(self, *deliveries: Delivery | str) -> None:
        """Confirm that this program has these messages; returns once that is durable."""
        messages = [each if isinstance(each, str) else each.message for each in deliveries]
        await self._call(calls.Confirm(number=self._next(), messages=messages))

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
        self._news.set()

    def _take(self, reply: calls.AnyReply) -> None:
        if isinstance(reply, calls.DeliveryReply):
            self._deliveries.append(reply)
            self._news.set()
            return
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
