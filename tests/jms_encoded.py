"""A provider that encodes and decodes every value on its way, as one on a socket would.

So nothing that only works inside one process gets into the seam between APIs and node. Errors go through their name and
text, descriptors through their wire form.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import Any, TypeVar

import msgspec

from carrypost import errors, testing
from carrypost.config import Limits
from carrypost.config.settings import Messaging
from carrypost.errors import JMSException
from carrypost.events import Browsed, ClaimLost, GivenUp, Handed, Reason, Receipt
from carrypost.gossip.layer import Draft
from carrypost.jms.provider import Performed, Place, Program, Provider
from carrypost.journal import Durability
from carrypost.model import descriptor as descriptors
from carrypost.model.address import Kind
from carrypost.model.descriptor import Descriptor
from carrypost.model.ids import MessageId, NodeId
from carrypost.mom.commands import Ack, Browsing, Declare, Followed, OpenRequest, Receive, Subscribe
from carrypost.mom.names.namespace import Bind, Binding

T = TypeVar("T")


def through(kind: type[T], value: object) -> T:
    """The value as it comes out on the other side."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(value), type=kind)


def described(value: Descriptor) -> Descriptor:
    return descriptors.decode(through(bytes, value.wire))


def raised(error: JMSException) -> JMSException:
    name, text, code = through(tuple[str, str, str | None], (type(error).__name__, str(error), error.error_code))
    made: JMSException = getattr(errors, name)(text)
    made.error_code = code
    return made


async def answered(call: Callable[..., Awaitable[T]], *given: object) -> T:
    await asyncio.sleep(
        0
    )  # Commands reach the node in a later turn of the loop, in the order in which they were given.
    try:
        return await call(*given)
    except JMSException as error:
        raise raised(error) from None


class EncodedProgram:
    """The far side of a connection."""

    def __init__(self, program: Program) -> None:
        self._program = program

    def take(self, handed: Handed) -> None:
        flat = (handed.consumer, handed.number, handed.count, handed.hops, handed.lease_us)
        consumer, number, count, hops, lease_us = through(tuple[int, int, int, int, int], flat)
        flags = through(tuple[bool, bool, bool], (handed.unordered, handed.out_of_order, handed.alone))
        giver = through(NodeId | None, handed.giver)  # type: ignore[arg-type]  # a form of types, as others
        descriptor = described(handed.descriptor)
        self._program.take(Handed(consumer, number, descriptor, count, hops, *flags, lease_us, giver))

    def gave_up(self, event: GivenUp) -> None:
        consumer, count = through(tuple[int, int], (event.consumer, event.count))
        self._program.gave_up(GivenUp(consumer, described(event.descriptor), count))

    def browsed(self, part: Browsed) -> None:
        number, taken_us, complete = through(tuple[int, int, bool], (part.number, part.taken_us, part.complete))
        self._program.browsed(Browsed(number, tuple(map(described, part.descriptors)), taken_us, complete))

    def receipt(self, receipt: Receipt) -> None:
        self._program.receipt(through(Receipt, receipt))

    def lost(self, lost: ClaimLost) -> None:
        flat = (lost.subscription, lost.reason, lost.client, lost.durable)
        subscription, reason, client, durable = through(tuple[str, Reason, str, bool], flat)
        self._program.lost(ClaimLost(subscription, described(lost.descriptor), reason, client, durable))

    def node_ended(self, reason: str) -> None:
        self._program.node_ended(through(str, reason))


class EncodedNetwork(testing.Network):
    """A network whose contexts stand on the encoded form of their provider."""

    def provider(self, node: str) -> Provider:
        return EncodedProvider(super().provider(node))


class EncodedProvider(Provider):
    """Another provider, behind its encoding."""

    def __init__(self, inner: Provider) -> None:
        self._inner = inner

    @property
    def place(self) -> Place:
        place = self._inner.place
        return Place(
            NodeId(through(str, place.node)), through(Limits, place.limits), through(Messaging, place.settings)
        )

    def now_us(self) -> int:
        return through(int, self._inner.now_us())

    async def connect(self, client: str, program: Program) -> int:
        return through(int, await answered(self._inner.connect, through(str, client), EncodedProgram(program)))

    async def disconnect(self, connection: int, unread: Collection[int]) -> None:
        await answered(self._inner.disconnect, through(int, connection), _numbers(unread))

    async def open_session(self, connection: int) -> int:
        return through(int, await answered(self._inner.open_session, through(int, connection)))

    async def close_session(self, session: int, unread: Collection[int]) -> None:
        await answered(self._inner.close_session, through(int, session), _numbers(unread))

    async def recover(self, session: int, unread: Collection[int], numbers: Collection[int] | None) -> int:
        some = None if numbers is None else _numbers(numbers)
        return through(int, await answered(self._inner.recover, through(int, session), _numbers(unread), some))

    async def consume(self, session: int, asked: Subscribe | Receive) -> int:
        return through(int, await answered(self._inner.consume, through(int, session), through(type(asked), asked)))

    def credit(self, consumer: int, messages: int, nbytes: int) -> None:
        there = through(int, consumer), through(int, messages), through(int, nbytes)
        asyncio.get_running_loop().call_soon(self._inner.credit, *there)

    async def close_consumer(self, consumer: int, unread: Collection[int]) -> None:
        await answered(self._inner.close_consumer, through(int, consumer), _numbers(unread))

    async def unsubscribe(self, client: str, name: str) -> None:
        await answered(self._inner.unsubscribe, through(str, client), through(str, name))

    async def payload(self, descriptor: Descriptor) -> bytes | None:
        return through(bytes | None, await answered(self._inner.payload, described(descriptor)))  # type: ignore[arg-type]

    async def give_up(self, session: int, numbers: Collection[int]) -> None:
        await answered(self._inner.give_up, through(int, session), _numbers(numbers))

    async def defer(self, session: int, number: int, delay_us: int) -> None:
        await answered(self._inner.defer, through(int, session), through(int, number), through(int, delay_us))

    async def retry(self, session: int, number: int) -> int:
        return through(int, await answered(self._inner.retry, through(int, session), through(int, number)))

    def go_on(self, session: int) -> None:
        asyncio.get_running_loop().call_soon(self._inner.go_on, through(int, session))

    async def declare(self, asked: Declare) -> str:
        return through(str, await answered(self._inner.declare, through(Declare, asked)))

    async def end_queue(self, destination: str) -> None:
        await answered(self._inner.end_queue, through(str, destination))

    async def browse(self, session: int, destination: str, selector: str | None) -> Browsing:
        there = through(int, session), through(str, destination), None if selector is None else through(str, selector)
        found = await answered(self._inner.browse, *there)
        number, taken_us = through(tuple[int, int], (found.number, found.taken_us))
        descriptors = found.descriptors
        return Browsing(number, taken_us, None if descriptors is None else tuple(map(described, descriptors)))

    async def remember_request(self, correlation: str, deadline_us: int) -> None:
        await answered(self._inner.remember_request, through(str, correlation), through(int, deadline_us))

    async def forget_request(self, correlation: str) -> None:
        await answered(self._inner.forget_request, through(str, correlation))

    async def open_requests(self) -> tuple[OpenRequest, ...]:
        return through(tuple[OpenRequest, ...], await answered(self._inner.open_requests))

    async def room(self) -> None:
        await self._inner.room()

    async def followed(self, message: MessageId) -> Followed | None:
        return through(Followed | None, await answered(self._inner.followed, through(bytes, message)))  # type: ignore[arg-type]

    async def draft(self, session: int, draft: Draft) -> tuple[int, Descriptor | None]:
        number, made = await answered(self._inner.draft, through(int, session), through(Draft, draft))
        return through(int, number), None if made is None else described(made)

    async def rollback(self, session: int, unread: Collection[int]) -> int:
        return through(int, await answered(self._inner.rollback, through(int, session), _numbers(unread)))

    def perform(self, sends: tuple[Draft | int, ...], acks: tuple[Ack, ...], durability: Durability) -> Performed:
        """As on a socket: what is wrong comes with the answer, in a later turn of the loop."""
        loop = asyncio.get_running_loop()
        sent: asyncio.Future[tuple[Descriptor, ...]] = loop.create_future()
        done: asyncio.Future[None] = loop.create_future()
        there = through(tuple[Draft | int, ...], sends), through(tuple[Ack, ...], acks), Durability(int(durability))
        loop.call_soon(self._perform, there, sent, done)
        return Performed(sent, done)

    async def bind(self, asked: Bind) -> None:
        await answered(self._inner.bind, through(Bind, asked))

    async def unbind(self, name: str, context: bool) -> None:
        await answered(self._inner.unbind, through(str, name), through(bool, context))

    async def lookup(self, name: str, timeout_s: float, kind: Kind | None) -> Binding:
        there = through(str, name), through(float, timeout_s), None if kind is None else through(Kind, kind)
        return through(Binding, await answered(self._inner.lookup, *there))

    async def entries(self, context: str) -> list[Binding]:
        return through(list[Binding], await answered(self._inner.entries, through(str, context)))

    def _perform(
        self, there: tuple[Any, ...], sent: asyncio.Future[tuple[Descriptor, ...]], done: asyncio.Future[None]
    ) -> None:
        try:
            performed = self._inner.perform(*there)
        except JMSException as error:
            for future in (sent, done):
                _fail(future, error)
            return
        _follow(performed.sent, sent, lambda made: tuple(map(described, made)))
        _follow(performed.done, done, lambda _: None)


def _numbers(numbers: Collection[int]) -> list[int]:
    return through(list[int], list(numbers))


def _fail(future: asyncio.Future[Any], error: BaseException) -> None:
    if not future.done():
        future.set_exception(raised(error) if isinstance(error, JMSException) else error)
        future.exception()


def _follow(inner: asyncio.Future[T], outer: asyncio.Future[Any], change: Callable[[T], object]) -> None:
    def pass_on(ended: asyncio.Future[T]) -> None:
        error = ended.exception()
        if error is not None:
            _fail(outer, error)
        elif not outer.done():
            outer.set_result(change(ended.result()))

    inner.add_done_callback(pass_on)
