"""The receiving side of an OpenWire client: consumers and browsers, acknowledgements, and what all clients share.

A consumer has a credit. One with a prefetch gets messages as they come, within that; one without asks for each. A
client refuses to reply to a temporary destination that it was not told of, so those of others are announced before they
are needed.

The OpenWire clients of one node share what they need to know of stored messages, temporary destinations, and
connections (`Shared`).
"""

from __future__ import annotations

import asyncio
import re
import struct
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from carrypost.daemon import client
from carrypost.daemon.client import Receiving, opened, remote_prefetch
from carrypost.daemon.openwire import codec, mapping
from carrypost.daemon.openwire import commands as wire
from carrypost.daemon.openwire.codec import OpenWireError
from carrypost.daemon.openwire.commands import AckKind
from carrypost.daemon.openwire.mapping import Copy
from carrypost.errors import (
    CarrypostError,
    IllegalStateException,
    InvalidDestinationException,
    JMSException,
    ResourceAllocationException,
)
from carrypost.jms.consumer_options import ConsumerOptions, asked, queue_selector
from carrypost.jms.destinations import Destination, Topic, resolved
from carrypost.jms.session import Enumeration
from carrypost.log.journal import Durability
from carrypost.messaging import commands as do

if TYPE_CHECKING:
    from collections.abc import Collection

    from carrypost.daemon.client import ClientProgram, Copies, Output, Transaction
    from carrypost.jms.provider import Provider
    from carrypost.log.events import Browsed, Handed
    from carrypost.model.descriptor import Descriptor


T = TypeVar("T")
_KEPT_MAX = 10_000


class Latest(dict[str, T], Generic[T]):
    """A dictionary of the last few keys that were set."""

    def __setitem__(self, key: str, value: T) -> None:
        self.pop(key, None)
        super().__setitem__(key, value)
        if len(self) > _KEPT_MAX:
            del self[next(iter(self))]


class Shared:
    """State of all clients of a node. It outlives their connections, and is made anew from what the node holds."""

    def __init__(self, held: Iterable[tuple[str, str]]) -> None:
        self.labels = Latest[str]()
        """By the node's id of a message, its label, the id that its Java sender knows."""
        self._stored = Latest[tuple[int, asyncio.Future[None] | None]]()
        """By producer, the number of its last message, and what is set when that is stored; None: it is."""
        self.temporaries: dict[str, Destination] = {}
        """By the names that clients gave them."""
        self.clients: dict[str, ClientProgram[Any, Any]] = {}
        """By the ids of their connections."""
        for own, label in held:
            producer, _, number = label.rpartition(":")
            if producer.startswith("ID:") and number.isdigit():
                self.labels[own] = label
                last, _ = self._stored.get(producer, (0, None))
                self._stored[producer] = max(last, int(number)), None

    def resent(self, producer: str, number: int) -> asyncio.Future[None] | bool:
        """Return False for a message that was not sent before; else True, or a future that is set when it is stored.

        A client that lost its connection sends again what was not answered.
        """
        last, done = self._stored.get(producer, (0, None))
        if number > last or (done is not None and done.done() and (done.cancelled() or done.exception())):
            return False
        return True if done is None else done

    def note(self, producer: str, number: int, done: asyncio.Future[None]) -> None:
        """Note that a message is being stored."""
        self._stored[producer] = number, done

    def name(self, descriptors: Iterable[Descriptor]) -> None:
        """Note the labels of messages that are here."""
        for each in descriptors:
            if each.label:
                self.labels[each.id_text] = each.label


_HEAD = struct.pack(">bi?", wire.number_of(wire.MessageDispatch), 0, False)
_PLACE, _COUNT, _LENGTH = struct.Struct(">q"), struct.Struct(">i"), struct.Struct(">i")
UNKNOWN = -2
"""The number of the last message that programs got, where a client does not know it."""


class Consumer(client.Subscription):
    """An open consumer."""

    def __init__(self, info: wire.ConsumerInfo, session: int, consumer: int, prefetch: int, version: int) -> None:
        super().__init__(session, consumer, prefetch)
        self.info, self.prefetch = info, prefetch
        self._head = _HEAD + codec.nested(info.consumer or wire.ConsumerId(), version)
        given = info.destination
        own = isinstance(given, wire.QueueName | wire.TemporaryTopicName)
        self._destination = codec.nested(given, version) if own and given is not None else b""
        """The destination as the client names it; empty for topics, of which there may be many."""
        self._delivered: set[int] = set()
        """Numbers of messages that a program has, and that made room before they are acknowledged."""
        self.pulls = self._pulled = False
        """Flags: the client waits for one message; the node may hand one over."""
        self.timer: asyncio.TimerHandle | None = None

    def dispatch(self, copy: Copy, handed: Handed) -> bytes:
        """Return a message as bytes."""
        to = self._destination or copy.destination
        data = b"".join((
            self._head, to, copy.begin, to, copy.middle, _PLACE.pack(handed.number), copy.end,
            _COUNT.pack(handed.count - 1),
        ))  # fmt: skip
        return _LENGTH.pack(len(data)) + data

    # --- credit --------------------------------------------------------------------------------------------

    def pull(self, provider: Provider) -> None:
        """Let the node hand over one message, if the client has no credit of its own."""
        self.pulls = True
        if not self._pulled:
            self._pulled = True
            self.grant(provider, 1, 0)

    def stop_pulling(self) -> None:
        """Note that the client waits no longer."""
        self.pulls = False
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def came(self) -> bool:
        """Note a message that was handed over; return False if the client does not wait for one."""
        if self.prefetch:
            return True
        self._pulled, waited = False, self.pulls
        self.stop_pulling()
        return waited

    def widen(self, provider: Provider, prefetch: int) -> None:
        """Let the client have more messages than before."""
        if prefetch > self.prefetch:
            self.grant(provider, prefetch - self.prefetch, 0)
            self.prefetch = prefetch

    def deliver(self, provider: Provider, number: int) -> None:
        """Make room for as many messages as a program has, up to this number."""
        fresh = [each for each in self.through(number) if each.number not in self._delivered]
        self.make_room(provider, fresh)
        self._delivered.update(each.number for each in fresh)

    def make_room(self, provider: Provider, withdrawn: Collection[Handed]) -> None:
        """Let the node hand over as many messages as were withdrawn, unless they made room before."""
        fresh = [each for each in withdrawn if each.number not in self._delivered]
        self._delivered.difference_update(each.number for each in withdrawn)
        if fresh:
            self.grant(provider, len(fresh) if self.prefetch else 0, sum(each.descriptor.length for each in fresh))

    # --- acknowledgements ----------------------------------------------------------------------------------

    def meant(self, ack: wire.MessageAck) -> list[Handed]:
        """Return the messages that an acknowledgement covers; raises `IllegalStateException` if it has not the last."""
        last = self._named(ack.last)
        if ack.kind == AckKind.INDIVIDUAL and ack.count <= 1:
            return [self._held[last]]
        if ack.kind in (AckKind.STANDARD, AckKind.DELIVERED, AckKind.REDELIVERED):
            first = 0
        else:
            first = last if ack.first is None or ack.count <= 1 else self._named(ack.first)
        return [each for each in self.through(last) if each.number >= first]

    def _named(self, given: wire.MessageId | None) -> int:
        place, producer = (0, None) if given is None else (given.place, given.producer)
        held = self._held.get(place)
        # Numbers begin anew with each life of a node, so the message is compared, too.
        if held is None or producer is None or producer.connection != held.descriptor.original.id_text:
            raise IllegalStateException(
                "there is no such message to acknowledge: it was acknowledged, is being redelivered, expired, or "
                "belongs to another consumer"
            )
        return place

    def unread_after(self, delivered: int) -> list[int]:
        """Return the numbers of messages that no program saw, if it got all up to `delivered`."""
        if delivered == UNKNOWN:
            return list(self.unread)
        return [number for number in self._held if number > delivered and number not in self._delivered]


CONSUMERS_MAX = 1_000
"""Consumers that one client may have, browsers and those of advisory messages included."""
TEMPORARY = (wire.TemporaryQueueName, wire.TemporaryTopicName)
Done = asyncio.Future[Any] | None
_PREFETCH_MAX = 32_766
_NOW_S, _BROWSE_S = 0.05, 10.0
"""Time in which a message that is there is handed over, and in which the next part of a browsed queue must come."""
_ANNOUNCED_MAX = 1_000
_CORRELATION = re.compile(r"JMSCorrelationID\s*=\s*'(ID:[^']+)'")


class Consumers(Receiving[Consumer, int, Copy]):
    """Consumers and browsers of one client."""

    def __init__(
        self,
        provider: Provider,
        output: Output,
        copies: Copies[int, Copy],
        fail: Callable[[CarrypostError], None],
        *,
        shared: Shared,
        decoder: codec.Decoder,
    ) -> None:
        super().__init__(provider, output, copies, fail)
        self._shared, self._decoder = shared, decoder
        self._connection, self._client_id, self._declares = 0, "", False
        self._consumers: dict[str, Consumer] = {}
        self._browsers: dict[str, asyncio.Task[None]] = {}
        self._browsing: dict[int, Enumeration] = {}
        self._advisories: dict[str, wire.ConsumerInfo] = {}
        self._announced: dict[str, None] = {}
        """Temporary destinations of others that the client knows."""
        self.delivered = UNKNOWN
        """The last message that a program of the client got, as its end tells."""

    @property
    def version(self) -> int:
        """The client's version of OpenWire."""
        return self._decoder.version

    def connect(self, connection: int, client: str, *, declares: bool) -> None:
        """Begin, as a connection of the node."""
        self._connection, self._client_id, self._declares = connection, client, declares

    def close(self) -> list[int]:
        """End; the node closes the sessions with the connection."""
        for task in self._browsers.values():
            task.cancel()
        for consumer in self:
            consumer.stop_pulling()
        unread = super().close()
        self._connection = 0
        return unread

    def unread_of(self, subscription: Consumer) -> list[int]:
        """Return the numbers of messages of a consumer that no program saw."""
        return subscription.unread_after(self.delivered)

    def _tell(self, command: wire.Structure) -> None:
        if self._connection:
            self._output.write(codec.encode(command, self.version))

    # --- consumers -----------------------------------------------------------------------------------------

    async def consume(self, info: wire.ConsumerInfo) -> Done:
        """Open a consumer or a browser."""
        id_, meant = info.consumer, info.destination
        if id_ is None:
            raise OpenWireError("a consumer needs an id")
        if id_.text in self._consumers or id_.text in self._browsers:  # Repeated by `failover:`.
            return None
        if len(self._consumers) + len(self._browsers) + len(self._advisories) >= CONSUMERS_MAX:
            raise ResourceAllocationException(f"a client has at most {CONSUMERS_MAX} consumers")
        if meant is not None and (meant.name or "").startswith(mapping.ADVISORY):
            self._advisories[id_.text] = info
            return None
        if info.browser:
            await self._browse(id_.text, info)
            return None
        name = info.subscription or ""
        if name and not self._client_id:
            raise IllegalStateException("a durable subscription requires a client id: call setClientID")
        found = await self._meant(meant)
        options = ConsumerOptions(
            destination=found, selector=self._selector(info.selector), name=name, durable=bool(name),
            no_local=info.no_local and isinstance(found, Topic),
        )  # fmt: skip
        wanted = asked(options)
        session, number = await opened(self._provider, self._connection, wanted)
        most = remote_prefetch(self._provider, wanted) or _PREFETCH_MAX
        made = Consumer(info, session, number, min(max(info.prefetch, 0), most), self.version)
        self._consumers[id_.text] = self._by_consumer[number] = made
        made.begin(self._provider)
        return None

    async def _meant(self, meant: wire.Destination | None) -> Destination:
        """Return the destination of a consumer: an unknown queue is declared here, if that is allowed."""
        found = self._shared.temporaries.get((meant and meant.name) or "")
        if found is not None:
            return found
        if isinstance(meant, TEMPORARY):
            raise InvalidDestinationException("only the connection that made a temporary destination consumes from it")
        return await client.consumed(self._provider, mapping.destination(meant), declares=self._declares)

    def _selector(self, text: str | None) -> str | None:
        """Return a selector that finds replies to messages of Java programs, too, if they name the node's id."""

        def both(found: re.Match[str]) -> str:
            own = [own for own, label in self._shared.labels.items() if label == found[1]]
            return f"({found[0]} OR JMSCorrelationID = '{own[-1]}')" if own else found[0]

        return text if text is None else _CORRELATION.sub(both, text)

    async def remove(self, removed: wire.ConsumerId | wire.SessionId, delivered: int) -> None:
        """Close a consumer, or all of a session, whose programs got messages up to `delivered`."""
        if isinstance(removed, wire.ConsumerId):
            await self._close(removed.text, delivered)
            return
        of_session = f"{removed.connection}:{removed.value}:"
        for name in [each for each in (*self._consumers, *self._browsers) if each.startswith(of_session)]:
            await self._close(name, delivered)

    async def _close(self, name: str, delivered: int) -> None:
        self._advisories.pop(name, None)
        if (task := self._browsers.pop(name, None)) is not None:
            task.cancel()
        consumer = self._consumers.pop(name, None)
        if consumer is not None:
            consumer.stop_pulling()
            await self.end(consumer, consumer.unread_after(delivered))

    async def control(self, control: wire.ConsumerControl) -> Done:
        """Raise a prefetch: a client that connected again begins with 0, and raises it when it is ready."""
        consumer = self._consumers.get(control.consumer.text if control.consumer else "")
        if consumer is not None:
            consumer.widen(self._provider, min(control.prefetch, _PREFETCH_MAX))
        return None

    async def pull(self, asked: wire.MessagePull) -> Done:
        """Let a consumer without a prefetch have one message, or be told in time that there is none."""
        consumer = self._consumers.get(asked.consumer.text if asked.consumer else "")
        if consumer is None:
            raise IllegalStateException("the consumer is closed")
        consumer.stop_pulling()
        consumer.pull(self._provider)
        if asked.timeout:
            wait_s = asked.timeout / 1_000 if asked.timeout > 0 else _NOW_S
            consumer.timer = asyncio.get_running_loop().call_later(wait_s, self._nothing_came, consumer)
        return None

    def _nothing_came(self, consumer: Consumer) -> None:
        consumer.stop_pulling()
        info = consumer.info
        self._tell(wire.MessageDispatch(consumer=info.consumer, destination=info.destination))

    # --- browsers ------------------------------------------------------------------------------------------

    async def _browse(self, name: str, info: wire.ConsumerInfo) -> None:
        queue = await resolved(self._provider, mapping.destination(info.destination))
        selector = queue_selector(self._selector(info.selector))
        session = await self._provider.execute(do.OpenSession(self._connection))
        try:
            found = await self._provider.execute(do.Browse(session, queue.address, selector))
        except JMSException:
            await self._provider.execute(do.CloseSession(session))
            raise
        shown = self._browsing[found.number] = Enumeration(found)
        self._browsers[name] = asyncio.get_running_loop().create_task(self._show(info, session, shown))

    async def _show(self, info: wire.ConsumerInfo, session: int, shown: Enumeration) -> None:
        """Write the messages of a queue as they arrive, and at last that there are no more."""
        try:
            while True:
                while shown.waiting:
                    await self._show_one(info, shown.waiting.popleft())
                if shown.complete or not await shown.more(_BROWSE_S) or shown.ended:
                    break
            self._tell(wire.MessageDispatch(consumer=info.consumer, destination=info.destination))
        finally:
            self._browsing.pop(shown.number, None)
            with suppress(JMSException):  # The connection has ended.
                await self._provider.execute(do.CloseSession(session))

    async def _show_one(self, info: wire.ConsumerInfo, descriptor: Descriptor) -> None:
        alive = descriptor.alive(self._provider.now_us())
        payload = await self._provider.payload(descriptor) if alive else None
        if payload is not None:
            message = mapping.received(descriptor.original, payload, self._shared.labels)
            message.destination = info.destination
            self._announce(descriptor.original)
            self._tell(wire.MessageDispatch(consumer=info.consumer, destination=info.destination, message=message))
            await self._output.drained()

    def add(self, part: Browsed) -> None:
        """Add a part of a queue that is browsed."""
        if (shown := self._browsing.get(part.number)) is not None:
            shown.add(part)

    # --- acknowledging -------------------------------------------------------------------------------------

    async def handle(self, ack: wire.MessageAck, transaction: Transaction[Consumer] | None) -> Done:
        """Do what a client says of messages that it got."""
        name = ack.consumer.text if ack.consumer else ""
        if name in self._advisories or name in self._browsers:
            return None
        consumer = self._consumers.get(name)
        if consumer is None:
            raise IllegalStateException("the consumer is closed: its messages come again")
        handed = consumer.meant(ack)
        if ack.kind == AckKind.DELIVERED:
            consumer.deliver(self._provider, handed[-1].number)
        elif ack.kind == AckKind.REDELIVERED:
            for each in handed:
                await self._provider.execute(do.Retry(consumer.session, each.number))
        elif ack.kind == AckKind.POISON:
            numbers, cause = [each.number for each in handed], ack.cause[1] if ack.cause else "redelivered too often"
            await self._provider.execute(do.Release(consumer.session, numbers, dead=True, error=cause))
            consumer.release(self._provider, handed)
        elif transaction is not None:
            transaction.acknowledge(consumer, handed)
        else:
            self.acknowledge(consumer, handed)
            if ack.answered:
                return self.settle(Durability.FULL)
        return None

    # --- dispatching ---------------------------------------------------------------------------------------

    async def write(self, subscription: Consumer, handed: Handed, copy: Copy) -> None:
        """Write a message; one for which its consumer waits no longer goes back to its queue."""
        if subscription.came():
            subscription.unread.pop(handed.number, None)
            self._announce(handed.descriptor.original)
            self._output.write(subscription.dispatch(copy, handed))
        else:
            of_queue = isinstance(subscription.info.destination, wire.QueueName)
            await self.give_back(subscription, handed, released=of_queue)

    def _announce(self, sent: Descriptor) -> None:
        """Tell the client that the temporary destination is there to which a message wants its reply."""
        text = sent.headers.reply_to if sent.headers is not None else None
        if text is None or text in self._announced or not self._advisories:
            return
        found = mapping.named(text)
        if isinstance(found, TEMPORARY):
            self._announced[text] = None
            if len(self._announced) > _ANNOUNCED_MAX:
                del self._announced[next(iter(self._announced))]
            about = wire.DestinationInfo(connection=wire.ConnectionId(sent.node), destination=found)
            for info in self._advisories.values():
                news = wire.Message(destination=info.destination, id=mapping.message_id(sent), about=about)
                self._tell(wire.MessageDispatch(consumer=info.consumer, destination=info.destination, message=news))
