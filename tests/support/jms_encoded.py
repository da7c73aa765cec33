"""A provider that encodes and decodes every value, as for a node's socket.

It shows that the interface between APIs and node does not depend on sharing one process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from carrypost import testing
from carrypost.attach.calls import Refusal
from carrypost.attach.values import (
    ANSWERS,
    MESSAGES,
    NEWS,
    decode_command,
    decode_node_info,
    encode_command,
    encode_node_info,
    pack_descriptor,
    unpack_descriptor,
)
from carrypost.errors import CarrypostError, JMSException
from carrypost.jms.provider import News, NodeInfo, Perform, Performed, Program, Provider
from carrypost.log.events import Handed
from carrypost.messaging.commands import Command, Connect, Credit, GoOn, ReadPayload
from carrypost.model.descriptor import Descriptor

R = TypeVar("R")


def raised(error: JMSException) -> CarrypostError:
    return Refusal.of(1, error).raised(JMSException)


class EncodedProgram(Program):
    """The far side of a connection."""

    def __init__(self, program: Program) -> None:
        self._program = program

    def deliver(self, handed: Handed, body: bytes | None = None) -> None:
        codec = NEWS[MESSAGES]
        for decoded in codec.decode(codec.encode(((handed, body),))):
            self._program.deliver(*decoded)

    def note(self, news: News) -> None:
        codec = NEWS[type(news).__name__]
        for decoded in codec.decode(codec.encode((news,))):
            self._program.note(decoded)

    def node_ended(self, reason: str) -> None:
        self._program.node_ended(reason)


class EncodedNetwork(testing.Network):
    """A network whose contexts use the encoded form of their provider."""

    def provider(self, node: str) -> Provider:
        return EncodedProvider.of(super().provider(node))


class EncodedProvider(Provider):
    """Another provider, behind its encoding."""

    def __init__(self, inner: Provider) -> None:
        self._inner = inner

    @classmethod
    def of(cls, inner: Provider) -> EncodedProvider:
        return cls(inner)

    @property
    def node_info(self) -> NodeInfo:
        found: NodeInfo = decode_node_info(encode_node_info(self._inner.node_info))
        return found

    def now_us(self) -> int:
        return self._inner.now_us()

    async def room(self) -> None:
        await self._inner.room()

    async def connect(self, client: str, program: Program) -> int:
        return await self._execute(Connect(client), lambda _: self._inner.connect(client, EncodedProgram(program)))

    async def execute(self, command: Command[R]) -> R:
        return await self._execute(command, self._inner.execute)

    async def _execute(self, command: Command[R], carry_out: Callable[[Command[R]], Awaitable[R]]) -> R:
        there = decode_command(encode_command(command))
        await asyncio.sleep(0)  # Commands reach the node in a later turn of the loop, in the order of their calls.
        try:
            value = await carry_out(there)
        except JMSException as error:
            raise raised(error) from None
        answers = ANSWERS[type(command)]
        found: R = answers.decode(answers.encode(value))
        return found

    async def payload(self, descriptor: Descriptor) -> bytes | None:
        wire = pack_descriptor(descriptor)
        return await self._execute(ReadPayload(wire), lambda _: self._inner.payload(unpack_descriptor(wire)))

    def tell(self, command: Credit | GoOn) -> None:
        there: Any = decode_command(encode_command(command))
        asyncio.get_running_loop().call_soon(self._inner.tell, there)

    def perform(self, asked: Perform) -> Performed:
        """Perform a work as over a socket: errors come with the answer, in a later turn of the loop."""
        loop = asyncio.get_running_loop()
        performed = Performed(loop.create_future(), loop.create_future())
        there = decode_command(encode_command(asked))
        loop.call_soon(self._perform, there, performed)
        return performed

    def _perform(self, there: Any, outer: Performed) -> None:  # noqa: ANN401 - a `Perform`, once decoded
        answers = ANSWERS[Perform]
        try:
            performed = self._inner.perform(there)
        except JMSException as error:
            for future in outer:
                _fail(future, error)
            return
        _follow(performed.sent, outer.sent, lambda made: answers.decode(answers.encode(made)))
        _follow(performed.done, outer.done, lambda _: None)


def _fail(future: asyncio.Future[Any], error: BaseException) -> None:
    if not future.done():
        future.set_exception(raised(error) if isinstance(error, JMSException) else error)
        future.exception()


def _follow(inner: asyncio.Future[Any], outer: asyncio.Future[Any], change: Callable[[Any], object]) -> None:
    def pass_on(ended: asyncio.Future[Any]) -> None:
        error = ended.exception()
        if error is not None:
            _fail(outer, error)
        elif not outer.done():
            outer.set_result(change(ended.result()))

    inner.add_done_callback(pass_on)
