"""OpenWire clients of a node in virtual time: their commands in, commands out; and transcripts of Java's client."""

from __future__ import annotations

import asyncio
import itertools
import struct
import zlib
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeVar

import msgspec

from carrypost import testing
from carrypost.daemon.client import Copies, Options
from carrypost.daemon.openwire import codec, server
from carrypost.daemon.openwire import commands as wire
from carrypost.daemon.openwire.codec import OpenWireError
from carrypost.daemon.openwire.mapping import Copy, received
from carrypost.daemon.openwire.receiving import Shared
from carrypost.daemon.openwire.server import Client
from carrypost.model.properties import ValueType

TRANSCRIPTS = Path(__file__).parents[1] / "openwire_transcripts"
C = TypeVar("C", bound=wire.Structure)


class Node:
    """A node that OpenWire clients share."""

    def __init__(self, net: testing.Network, name: str) -> None:
        self.net, self.provider, self.shared = net, net.provider(name), Shared(())
        self.copies: Copies[int, Copy] = Copies(
            self.provider, lambda sent, body, version: Copy(received(sent, body, self.shared.labels), version)
        )


class Wire:
    """A client of a node, and the bytes between them."""

    _ids: ClassVar[Iterator[int]] = itertools.count(1)

    def __init__(self, node: Node, *, version: int = 12, **options: Any) -> None:  # noqa: ANN401 - as `Options` has them
        self.node, self.version = node, version
        self.client = Client(node.provider, self, Options(**options), node.copies, node.shared)
        self.commands: list[wire.Structure] = []
        self.ended = False
        self.name = f"ID:test-{next(self._ids)}"
        self._numbers, self._messages = itertools.count(1), itertools.count(1)
        self.reads = asyncio.Event()
        """Cleared: the client reads nothing."""
        self.reads.set()

    # --- an output -----------------------------------------------------------------------------------------

    def admit(self) -> str:
        return ""

    def write(self, data: bytes) -> None:
        assert int.from_bytes(data[:4], "big") == len(data) - 4
        self.commands.append(codec.decode(data[4:], self.client.decoder.version))

    @property
    def is_full(self) -> bool:
        return not self.reads.is_set()

    async def drained(self) -> None:
        await self.reads.wait()

    def end(self) -> None:
        self.ended = True

    # --- a client ------------------------------------------------------------------------------------------

    async def feed(self, data: bytes) -> None:
        """Send bytes."""
        decoder = self.client.decoder
        decoder.feed(data)
        try:
            while (command := decoder.next()) is not None:
                await self.client.carry_out(command)
        except OpenWireError as error:
            self.client.fail(error)

    async def say(self, command: wire.Structure) -> None:
        """Send a command."""
        await self.feed(codec.encode(command, self.version))

    async def ask(self, asked: type[C], **fields: Any) -> wire.Response:  # noqa: ANN401 - as the class has them
        """Send a command, and return the response."""
        number = next(self._numbers)
        await self.say(asked(**fields, command=number, answered=True))
        return await self.take(wire.Response, lambda each: each.to == number)

    async def connect(self, **fields: Any) -> None:  # noqa: ANN401 - of `ConnectionInfo`
        """Connect."""
        options = codec.map_bytes({"MaxInactivityDuration": (ValueType.LONG, 20_000)})
        await self.say(wire.WireFormatInfo(version=self.version, options=options))
        assert (await self.take(wire.WireFormatInfo)).version == self.version
        await self.take(wire.BrokerInfo)
        done = await self.ask(wire.ConnectionInfo, connection=wire.ConnectionId(self.name), **fields)
        assert type(done) is wire.Response, done

    async def consume(self, number: int, to: wire.Destination, prefetch: int = 10, **fields: Any) -> wire.Response:  # noqa: ANN401 - likewise
        """Open a consumer."""
        return await self.ask(
            wire.ConsumerInfo, consumer=self.consumer(number), destination=to, prefetch=prefetch, **fields
        )

    def consumer(self, number: int) -> wire.ConsumerId:
        return wire.ConsumerId(self.name, 1, number)

    def text(self, to: wire.Destination, text: str, **fields: Any) -> wire.TextMessage:  # noqa: ANN401 - likewise
        """Return a message to send."""
        id_ = wire.MessageId(None, wire.ProducerId(self.name, 1, 1), next(self._messages))
        return wire.TextMessage(
            producer=id_.producer, destination=to, id=id_, content=codec.long_text_bytes(text), **fields
        )

    async def send(self, to: wire.Destination, text: str, **fields: Any) -> wire.Response:  # noqa: ANN401 - likewise
        """Send a message, and return the response."""
        message = self.text(to, text, **fields)
        message.command, message.answered = next(self._numbers), True
        await self.say(message)
        return await self.take(wire.Response, lambda each: each.to == message.command)

    async def acknowledge(self, found: wire.MessageDispatch, kind: int = 2, **fields: Any) -> None:  # noqa: ANN401 - likewise
        """Acknowledge a message."""
        assert found.message is not None
        ack = wire.MessageAck(consumer=found.consumer, kind=kind, last=found.message.id, count=1, **fields)
        await self.say(ack)

    async def take(self, kind: type[C], which: Callable[[Any], bool] = lambda _: True) -> C:
        """Return the next command of a class, which has to come."""
        for _ in range(600):
            for at, each in enumerate(self.commands):
                if isinstance(each, kind) and which(each):
                    del self.commands[at]
                    return each
            await self.node.net.run(0.1)
        raise AssertionError(f"no {kind.__name__} came, but {self.commands}")

    async def message(self) -> tuple[str, wire.MessageDispatch]:
        """Return the next text, and how it came."""
        found = await self.take(wire.MessageDispatch)
        assert found.message is not None
        return codec.long_text(found.message.content) or "", found

    async def error(self, name: str, match: str) -> None:
        """Check that the connection ends with an error."""
        found = await self.take(wire.ConnectionError_)
        assert found.error is not None
        assert found.error[0] == f"javax.jms.{name}"
        assert match in found.error[1]
        assert self.ended
        assert self.client.closed


def place_of(found: wire.MessageDispatch) -> int:
    """Return the number under which a message was handed over."""
    assert found.message is not None
    assert found.message.id is not None
    return found.message.id.place


# --- transcripts ---------------------------------------------------------------------------------------------------


class Line(NamedTuple):
    """A frame of a transcript."""

    connection: int
    is_clients: bool
    data: bytes


_LINES = msgspec.msgpack.Decoder(list[Line])


def transcript(name: str) -> list[Line]:
    """Return a transcript."""
    return _LINES.decode(zlib.decompress((TRANSCRIPTS / f"{name}.bin").read_bytes()))


@contextmanager
def recorded(name: str) -> Iterator[None]:
    """Write what clients of real nodes and these nodes say to each other, as a transcript."""
    lines: list[Line] = []
    numbers = itertools.count()
    make = server.Server.client

    def client(self: server.Server, output: Any) -> Client:  # noqa: ANN401 - an `Output`
        number, write, buffer = next(numbers), output.write, bytearray()

        def written(data: bytes) -> None:
            lines.append(Line(number, False, data))
            write(data)

        output.write = written
        made = make(self, output)
        feed = made.decoder.feed

        def fed(data: bytes) -> None:
            buffer.extend(data)
            while len(buffer) >= 4 and len(buffer) >= (end := 4 + struct.unpack_from(">i", buffer)[0]):
                lines.append(Line(number, True, bytes(buffer[:end])))
                del buffer[:end]
            feed(data)

        made.decoder.feed = fed  # type: ignore[method-assign]
        return made

    server.Server.client = client  # type: ignore[method-assign]
    try:
        yield
    finally:
        server.Server.client = make  # type: ignore[method-assign]
    TRANSCRIPTS.mkdir(exist_ok=True)
    (TRANSCRIPTS / f"{name}.bin").write_bytes(zlib.compress(msgspec.msgpack.encode(lines), 9))


class Replay:
    """Clients that say what they said in a transcript; the node must answer the same."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._wires: dict[int, Wire] = {}
        self._expected: dict[int, Counter[str]] = defaultdict(Counter)
        self._dispatched: dict[tuple[int, str], list[wire.MessageDispatch]] = defaultdict(list)
        """By connection and consumer, the recorded dispatches."""

    async def play(self, lines: list[Line]) -> int:
        """Play a transcript; return the number of answers."""
        for line in lines:
            found = self._wires.get(line.connection) or self._wires.setdefault(line.connection, Wire(self._node))
            if not line.is_clients:
                self._expect(line)
                await self._until(found, self._expected[line.connection])
                continue
            found.client.decoder.feed(line.data)
            command = found.client.decoder.next()
            assert command is not None
            self._translate(command, line.connection)
            await found.client.carry_out(command)
            if found.ended:
                await found.client.close()
        return sum(sum(each.values()) for each in self._expected.values())

    def _expect(self, line: Line) -> None:
        said = codec.decode(line.data[4:], 12)
        if isinstance(said, wire.MessageDispatch) and said.consumer is not None:
            self._dispatched[line.connection, said.consumer.text].append(said)
        if not isinstance(said, wire.KeepAliveInfo):
            self._expected[line.connection][_kind(said)] += 1

    async def _until(self, found: Wire, expected: Counter[str]) -> None:
        kinds = Counter[str]()
        for _ in range(400):
            kinds = Counter(map(_kind, found.commands))
            if kinds >= expected:
                return
            await self._node.net.run(0.05)
        raise AssertionError(f"of {expected} only {kinds} came")

    def _pairs(self) -> Iterator[tuple[int, wire.Message, wire.Message]]:
        """Yield connections, and each message of the transcript with that of this run."""
        for (connection, consumer), recorded in self._dispatched.items():
            came = [each for each in self._wires[connection].commands if _kind(each) == consumer]
            for one, other in zip(recorded, came, strict=False):
                assert isinstance(other, wire.MessageDispatch)
                if one.message is not None and other.message is not None:
                    yield connection, one.message, other.message

    def _translate(self, command: wire.Structure, connection: int) -> None:
        """Put names, numbers and dates of this run into a recorded command."""
        pairs = list(self._pairs())
        places = {
            one.id.place: other.id for at, one, other in pairs if at == connection and one.id and other.id
        }  # fmt: skip
        if isinstance(command, wire.MessageAck):
            command.first = places.get(command.first.place) if command.first else None
            command.last = places.get(command.last.place) if command.last else None
        elif isinstance(command, wire.RemoveInfo) and command.delivered in places:
            command.delivered = places[command.delivered].place
        elif isinstance(command, wire.Message):
            if command.expiration:
                command.expiration = self._node.provider.now_us() // 1_000 + 100_000
            for _, one, other in pairs:  # A reply goes to a temporary destination of this run.
                if one.reply_to and command.destination and one.reply_to.name == command.destination.name:
                    command.destination = other.reply_to


def _kind(said: wire.Structure) -> str:
    """Return the consumer of a message, or the class of anything else."""
    return said.consumer.text if isinstance(said, wire.MessageDispatch) and said.consumer else type(said).__name__


# --- sockets -------------------------------------------------------------------------------------------------------


class Raw:
    """A client of a few lines at the socket of a node."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, name: str) -> None:
        self._reader, self._writer, self.name = reader, writer, name
        self._numbers, self._came = itertools.count(1), list[wire.MessageDispatch]()

    @classmethod
    async def reach(cls, port: int, name: str) -> Raw:
        """Open a socket, and say nothing."""
        return cls(*await asyncio.open_connection("127.0.0.1", port), name)

    async def say(self, command: wire.Structure) -> None:
        """Send a command."""
        self._writer.write(codec.encode(command, 12))
        await self._writer.drain()

    async def next(self) -> wire.Structure:
        """Return the next command."""
        async with asyncio.timeout(60):
            length = int.from_bytes(await self._reader.readexactly(4), "big")
            return codec.decode(await self._reader.readexactly(length), 12)

    async def ask(self, command: wire.Command) -> wire.Response:
        """Send a command, and return the response; what comes before is kept."""
        command.command, command.answered = command.command or next(self._numbers), True
        await self.say(command)
        while not isinstance(found := await self.next(), wire.Response) or found.to != command.command:
            if isinstance(found, wire.MessageDispatch):
                self._came.append(found)
        assert type(found) is wire.Response, found
        return found

    async def connect(self, **fields: Any) -> None:  # noqa: ANN401 - of `ConnectionInfo`
        """Connect."""
        await self.say(wire.WireFormatInfo(version=12))
        await self.ask(wire.ConnectionInfo(connection=wire.ConnectionId(self.name), **fields))

    async def declare(self, queue: wire.Destination) -> None:
        """Declare a queue by consuming from it."""
        id_ = wire.ConsumerId(self.name, 9, 9)
        await self.ask(wire.ConsumerInfo(consumer=id_, destination=queue))
        await self.ask(wire.RemoveInfo(object=id_, delivered=-1))

    def text(self, to: wire.Destination, text: str, number: int) -> wire.TextMessage:
        """Return a message to send, whose number rises."""
        id_ = wire.MessageId(None, wire.ProducerId(self.name, 1, 1), number)
        return wire.TextMessage(
            command=number, answered=True, destination=to, id=id_, persistent=True, content=codec.long_text_bytes(text)
        )

    async def receive(self, queue: wire.Destination, count: int, *, acknowledge: bool = False) -> AsyncIterator[str]:
        """Yield texts; with `acknowledge` after each is acknowledged durably."""
        consumer = wire.ConsumerId(self.name, 1, 1)
        await self.ask(wire.ConsumerInfo(consumer=consumer, destination=queue, prefetch=100))
        for _ in range(count):
            found = await self.dispatched()
            assert found.message is not None
            if acknowledge:
                await self.ask(wire.MessageAck(consumer=consumer, kind=2, last=found.message.id, count=1))
            yield codec.long_text(found.message.content) or ""

    async def dispatched(self) -> wire.MessageDispatch:
        """Return the next message."""
        found = self._came.pop(0) if self._came else await self.next()
        assert isinstance(found, wire.MessageDispatch), found
        return found

    async def quiet(self, queue: wire.Destination) -> bool:
        """Return True if a browser finds nothing in a queue, and nothing more came."""
        id_ = wire.ConsumerId(self.name, 1, 2)
        await self.ask(wire.ConsumerInfo(consumer=id_, destination=queue, browser=True))
        found = await self.next()
        return not self._came and isinstance(found, wire.MessageDispatch) and found.message is None

    def close(self) -> None:
        """Hang up."""
        self._writer.transport.abort()
