"""`carrypost node`, with programs of the API in its process that do what a test tells them at a socket of their own.

Beside the control socket, which it serves as every node does, is one with the ending `.api`. Each connection there is a
program with a context (`Seat`). `tests.nodes.Program` makes the calls; they and answers are pickled, each behind its
length.
"""

from __future__ import annotations

import asyncio
import contextlib
import pickle
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tests.node_programs import Programs

from carrypost import Consumer, Context, DeliveryMode, Message, Topic
from carrypost.cli import _process, serve
from carrypost.errors import CarrypostError
from carrypost.model.descriptor import Ordering
from carrypost.node.control.control import Control
from carrypost.node.runtime import Node

LENGTH_BYTES = 4


class Received(NamedTuple):
    """A message as a program received it."""

    id: str
    body: bytes
    source: str
    """Id of the node that sent it."""
    hops: int
    redelivered: bool
    label: str
    properties: Mapping[str, object]


def framed(value: object) -> bytes:
    """A call or an answer as it goes over the socket."""
    body = pickle.dumps(value)
    return len(body).to_bytes(LENGTH_BYTES, "big") + body


async def read(reader: asyncio.StreamReader) -> Any:  # noqa: ANN401 - whatever the other side said
    """The next call or answer; raises `EOFError` at the end."""
    length = int.from_bytes(await reader.readexactly(LENGTH_BYTES), "big")
    return pickle.loads(await reader.readexactly(length))  # noqa: S301 - the other side is our own


class Seat:
    """One program: a context that acknowledges each message for itself, and what it is told to do."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._consumer: Consumer | None = None
        self._received: dict[str, Message] = {}

    async def send(
        self,
        topic: str,
        body: bytes,
        *,
        persistent: bool = False,
        priority: int = 4,
        properties: Mapping[str, bool | float | str] | None = None,
        label: str | None = None,
        ordering: Ordering = Ordering.NONE,
    ) -> str | None:
        mode = DeliveryMode.PERSISTENT if persistent else DeliveryMode.NON_PERSISTENT
        sent = await self._ctx.send(
            Topic(topic, ordering), body, delivery_mode=mode, priority=priority, properties=properties, label=label
        )
        return sent.message_id

    async def subscribe(self, topic: str, *, durable: bool = False, ordering: Ordering = Ordering.NONE) -> None:
        wanted = Topic(topic, ordering)
        if durable:
            self._consumer = await self._ctx.create_durable_consumer(wanted, topic)
        else:
            self._consumer = await self._ctx.create_consumer(wanted)

    async def receive(self, timeout_s: float | None) -> Received | None:
        assert self._consumer is not None
        message = await self._consumer.receive(timeout=timeout_s)
        if message is None:
            return None
        descriptor = message.descriptor
        assert descriptor is not None
        found = Received(
            descriptor.id_text, message.get_body(bytes) or b"", descriptor.node,
            message.get_int_property("JMS_carrypost_Hops"), message.jms_redelivered, descriptor.label,
            {name: value for name, value in message.properties.items() if not name.startswith("JMS")},
        )  # fmt: skip
        self._received[found.id] = message
        return found

    async def acknowledge(self, *ids: str) -> None:
        for message in ids:
            await self._received.pop(message).acknowledge()


class ControlAndPrograms(Control):
    """The control socket of a node, and beside it that of the test's programs."""

    def __init__(self, node: Node, stopping: asyncio.Event | None = None) -> None:
        super().__init__(node, stopping)
        self._programs_path = api_path(node.settings.control)
        self._test_programs = Programs(node)
        self._listening: asyncio.Server | None = None

    async def open(self) -> None:
        await super().open()
        self._programs_path.unlink(missing_ok=True)
        self._listening = await asyncio.start_unix_server(self._seat, path=self._programs_path)

    async def close(self) -> None:
        if self._listening is not None:
            self._listening.close()
        self._test_programs.provider.end("the node has ended")
        await super().close()

    async def _seat(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(EOFError, ConnectionError, asyncio.CancelledError):
            client_id = await read(reader)
            async with self._test_programs.context(client_id) as ctx, asyncio.TaskGroup() as tasks:
                seat = Seat(ctx)
                with contextlib.suppress(EOFError, ConnectionError):
                    while True:
                        call = await read(reader)
                        tasks.create_task(_answer(seat, writer, *call))
                raise asyncio.CancelledError
        writer.close()


async def _answer(  # noqa: PLR0917 - as the call has them
    seat: Seat, writer: asyncio.StreamWriter, number: int, name: str, args: tuple[Any, ...], keywords: dict[str, Any]
) -> None:
    try:
        answer = await getattr(seat, name)(*args, **keywords)
    except (CarrypostError, AssertionError) as error:
        answer = error
    if not writer.is_closing():
        writer.write(framed((number, answer)))


def api_path(control: Path) -> Path:
    """Where the test's programs listen, beside the control socket of their node."""
    return control.with_suffix(".api")


def main() -> None:
    """Run the node that the first argument describes, as `carrypost node` would, and its programs."""
    vars(serve)["Control"] = ControlAndPrograms
    sys.exit(_process.main())
