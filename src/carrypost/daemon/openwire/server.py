"""OpenWire clients of a node: listens for them, if the settings say so, and carries out their commands.

Commands become calls of a `Provider`, and messages for a client dispatches. Commands are processed one after the other,
without waiting for durability: a response is written when its work is durable. A command that fails is answered by an
exception of JMS, and the connection goes on; bytes or commands that no client of this protocol sends end it. The client
has one connection at the node, a session for its sends and one for each consumer. Nothing in `Client` depends on
sockets: bytes are given to an `Output`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, ClassVar

from carrypost.daemon import client, server
from carrypost.daemon.client import ClientProgram, Copies, Options, Output
from carrypost.daemon.openwire import codec, mapping
from carrypost.daemon.openwire import commands as wire
from carrypost.daemon.openwire.codec import OpenWireError
from carrypost.daemon.openwire.commands import TransactionKind
from carrypost.daemon.openwire.mapping import Copy, received
from carrypost.daemon.openwire.receiving import TEMPORARY, UNKNOWN, Consumer, Consumers, Done, Shared
from carrypost.errors import (
    CarrypostError,
    IllegalStateException,
    InvalidDestinationException,
    JMSException,
    ResourceAllocationException,
    TransactionRolledBackException,
)
from carrypost.jms.destinations import Destination, Queue, Topic, resolved
from carrypost.jms.mapping import to_draft
from carrypost.jms.provider import is_lost
from carrypost.log.events import Browsed
from carrypost.messaging import commands as do
from carrypost.model.properties import ValueType
from carrypost.version import __version__

if TYPE_CHECKING:
    from carrypost.attach.served_node import ServedNode
    from carrypost.daemon.client import Transaction
    from carrypost.gossip.draft import Draft
    from carrypost.jms.provider import News, Performed, Provider
    from carrypost.model.descriptor import Descriptor


_SILENCE_MS = 30_000
WINDOWS_MAX = 1_000
"""Producers of a client that wait when they are far ahead."""
_OWN_SIZE = 1_024
"""Size that a client counts for a message besides its body and properties."""


class Client(ClientProgram[wire.Command, Consumer]):
    """A client, from its first command to the end of its connection; a `Program` to the node."""

    decoder: codec.Decoder

    def __init__(
        self, provider: Provider, output: Output, options: Options, copies: Copies[int, Copy], shared: Shared
    ) -> None:
        super().__init__(provider, output, options)
        self._shared = shared
        self.decoder = codec.Decoder(provider.node_info.limits.message_bytes_max)
        self._id = ""
        self._windows: dict[str, wire.ProducerInfo] = {}
        """Producers that wait for the node when they are far ahead."""
        self._temporaries: list[str] = []
        """The client's names of its own temporary destinations."""
        self._made = 0
        self.receiving = self._consumers = Consumers(
            provider, output, copies, self.fail, shared=shared, decoder=self.decoder
        )
        consumers = self._consumers
        self._handlers: dict[type[wire.Structure], Callable[[Any], Awaitable[Done]]] = {
            wire.ConnectionInfo: self._connect, wire.ShutdownInfo: self._shut_down, wire.RemoveInfo: self._remove,
            wire.ProducerInfo: self._produce, wire.DestinationInfo: self._make, wire.TransactionInfo: self._transact,
            wire.ConsumerInfo: consumers.consume, wire.MessagePull: consumers.pull,
            wire.ConsumerControl: consumers.control, wire.MessageAck: self._ack,
            wire.RemoveSubscriptionInfo: self._unsubscribe,
            **dict.fromkeys(
                (wire.SessionInfo, wire.KeepAliveInfo, wire.FlushCommand, wire.ConnectionControl, wire.ControlCommand),
                self._agree,
            ),
            **dict.fromkeys(
                (wire.Message, wire.BytesMessage, wire.MapMessage, wire.ObjectMessage, wire.StreamMessage,
                 wire.TextMessage), self._send,
            ),
        }  # fmt: skip

    # --- commands ------------------------------------------------------------------------------------------

    async def carry_out(self, command: wire.Structure) -> None:
        """Process a command; one that no client sends now ends the connection."""
        if self.closed:
            return
        try:
            if isinstance(command, wire.WireFormatInfo):
                self._agree_upon(command)
                return
            handler = self._handlers.get(type(command))
            if handler is None or not isinstance(command, wire.Command):
                raise OpenWireError(f"a {type(command).__name__} is nothing that clients send")
            if not self._connection and not isinstance(command, _BEFORE):
                raise OpenWireError(f"a {type(command).__name__} came before the ConnectionInfo")
            try:
                done = await handler(command)
            except OpenWireError:
                raise
            except CarrypostError as error:
                self._refuse(command, error)
            else:
                self._follow(command, done)
        except CarrypostError as error:
            self.fail(error)

    def fail(self, error: CarrypostError) -> None:
        """Send the client an error, and end the connection."""
        if self.closed:
            return
        if self.decoder.version:
            self._tell(wire.ConnectionError_(error=mapping.failure(error)))
        self._end()

    def beat(self) -> None:
        """Write a heart-beat."""
        self._tell(wire.KeepAliveInfo())

    def _tell(self, command: wire.Structure) -> None:
        if not self.closed:
            self._output.write(codec.encode(command, self.decoder.version))

    def _confirm(self, command: wire.Command) -> None:
        if command.answered:
            self._tell(wire.Response(to=command.command))
        if isinstance(command, wire.Message):
            self._acknowledge_sent(command)

    def _refuse(self, command: wire.Command, error: CarrypostError) -> None:
        if is_lost(error):
            self.fail(error)  # It may be stored. A client that connects again sends it again.
            return
        failure = mapping.failure(error)
        if command.answered:
            self._tell(wire.ExceptionResponse(to=command.command, error=failure))
        else:
            self._tell(wire.ConnectionError_(error=failure))
        if isinstance(command, wire.ConnectionInfo):
            self._end()

    async def _agree(self, _command: wire.Command) -> Done:
        """Answer, and do nothing: what it tells is not needed here."""

    # --- the connection ------------------------------------------------------------------------------------

    def _agree_upon(self, info: wire.WireFormatInfo) -> None:
        """Agree upon a version, and on none of the encodings that save bytes."""
        if info.version < codec.VERSION_MIN:
            raise OpenWireError(f"version {info.version} of OpenWire: the oldest that is spoken is {codec.VERSION_MIN}")
        theirs = codec.read_map(info.options).get("MaxInactivityDuration")
        silence_ms = min(_SILENCE_MS, int(theirs.value or 0)) if theirs is not None else 0
        self.beats_ms = silence_ms, silence_ms
        self.decoder.version = min(info.version, codec.VERSION_MAX)
        flags = "CacheEnabled", "TightEncodingEnabled", "SizePrefixDisabled", "StackTraceEnabled"
        options = dict.fromkeys(flags, (ValueType.BOOLEAN, False)) | {
            "MaxInactivityDuration": (ValueType.LONG, silence_ms),
            "ProviderName": (ValueType.STRING, "carrypost"), "ProviderVersion": (ValueType.STRING, __version__),
        }  # fmt: skip
        self._tell(wire.WireFormatInfo(version=self.decoder.version, options=codec.map_bytes(options)))
        node = self._provider.node_info.node
        self._tell(wire.BrokerInfo(broker=wire.BrokerId(node), name=f"carrypost-{node}"))

    async def _connect(self, info: wire.ConnectionInfo) -> Done:
        if info.connection is None or not info.connection.value:
            raise OpenWireError("a ConnectionInfo must come with the id of the connection")
        name = info.connection.value
        if self._connection:  # After an interruption `failover:` repeats what was not answered.
            if name != self._id:
                raise OpenWireError("a second ConnectionInfo must have the id of the first")
            return None
        self._admit(info.password or "", "the password is not the one in openwire.token")
        if (before := self._shared.clients.pop(name, None)) is not None:
            # The client lost that connection, which may not be known here.
            before.fail(JMSException("the client has connected again"))
            await before.close()
        # A client without an id makes one up, which is another one the next time.
        await self._join("" if info.client is None or info.client.startswith("ID:") else info.client)
        self._id, self.decoder.is_connected = name, True
        self._consumers.connect(self._connection, self._client_id, declares=self._options.declares)
        self._shared.clients[name] = self
        return None

    async def _shut_down(self, command: wire.ShutdownInfo) -> Done:
        await self.settled()
        self._follow(command, None)
        self._end()
        return None

    async def close(self) -> None:
        """End what the client has at the node."""
        if self._shared.clients.get(self._id) is self:
            del self._shared.clients[self._id]
        for name in self._temporaries:
            self._shared.temporaries.pop(name, None)
        await super().close()

    async def _remove(self, command: wire.RemoveInfo) -> Done:
        removed = command.object
        if isinstance(removed, wire.ConnectionId):
            await self.settled()
            self._consumers.delivered, self._orderly = command.delivered, command.delivered != UNKNOWN
        elif isinstance(removed, wire.ProducerId):
            self._windows.pop(removed.text, None)
        elif isinstance(removed, wire.ConsumerId | wire.SessionId):
            await self._consumers.remove(removed, command.delivered)
        return None

    # --- sending -------------------------------------------------------------------------------------------

    async def _produce(self, info: wire.ProducerInfo) -> Done:
        if info.producer is not None and info.window > 0:
            if len(self._windows) >= WINDOWS_MAX:
                raise ResourceAllocationException(f"a client has at most {WINDOWS_MAX} producers with a window")
            self._windows[info.producer.text] = info
        return None

    async def _send(self, message: wire.Message) -> Done:
        id_ = message.id
        if id_ is None or id_.producer is None:
            raise OpenWireError("a message needs an id")
        transaction = self._transaction(message.transaction)
        try:
            producer = id_.producer.text
            before = self._shared.resent(producer, id_.sequence)
            if before is not False:
                return None if before is True else asyncio.shield(before)
            draft = await self._draft(message)
            if draft is None:
                return None
            nbytes = len(message.content or b"") + len(message.properties or b"") + codec.HEAD_BYTES_MAX // 64
            if transaction is not None:
                transaction.send(draft, nbytes, self._provider.node_info.settings.draft_bytes_max)
                return None
        except OpenWireError:
            raise
        except CarrypostError as error:
            if transaction is None or message.answered:
                raise
            transaction.failure = transaction.failure or error
            return None
        await self._provider.room()
        performed = self._perform((draft,), (), durable=draft.persistent)
        self._shared.note(producer, id_.sequence, performed.done)
        if draft.persistent or performed.done.done():
            return performed.done
        self._follow(_UNANSWERED, performed.done)  # A full disk is reported, too.
        return performed.sent

    async def _draft(self, message: wire.Message) -> Draft | None:
        """Return what is to be sent; None for a message that has expired."""
        provider = self._provider
        to = await self._place(message.destination)
        reply_to = None if message.reply_to is None else await self._place(message.reply_to)
        found = mapping.sent(message, provider.now_us(), provider.node_info.limits.message_bytes_max)
        lifetime_us = found.sending.lifetime_us
        if lifetime_us is not None and lifetime_us <= 0:
            return None
        return to_draft(found.message, to, self._completed(found.sending, reply_to), provider.node_info.limits)

    def _perform(self, drafts: tuple[Draft, ...], acks: tuple[do.Ack, ...], *, durable: bool) -> Performed:
        performed = super()._perform(drafts, acks, durable=durable)
        if drafts:
            performed.sent.add_done_callback(self._name)
        return performed

    def _name(self, sent: asyncio.Future[tuple[Descriptor, ...]]) -> None:
        if not sent.cancelled() and sent.exception() is None:
            self._shared.name(sent.result())

    def _acknowledge_sent(self, message: wire.Message) -> None:
        """Tell a producer that waits when it is far ahead that a message is stored."""
        producer = message.producer
        if producer is not None and producer.text in self._windows:
            nbytes = _OWN_SIZE + len(message.content or b"") + len(message.properties or b"")
            self._tell(wire.ProducerAck(producer=producer, nbytes=nbytes))

    async def _place(self, meant: wire.Destination | None) -> Destination:
        """Return the destination that a client means; one that is temporary by the name that its client gave it."""
        found = self._temporary(meant)
        if found is None and isinstance(meant, TEMPORARY) and (meant.name or "").startswith("ID:"):
            raise InvalidDestinationException(f"the temporary destination {meant.name!r} was deleted"[:200])
        return await resolved(self._provider, mapping.destination(meant)) if found is None else found

    def _temporary(self, meant: wire.Destination | None) -> Destination | None:
        return None if meant is None else self._shared.temporaries.get(meant.name or "")

    async def _make(self, info: wire.DestinationInfo) -> Done:
        """Make or delete a temporary destination; others are made by using them."""
        meant, names = info.destination, self._shared.temporaries
        name = (meant and meant.name) or ""
        if not isinstance(meant, TEMPORARY):
            return None
        if info.operation == _DELETE:
            found = names.get(name) if name in self._temporaries else None
            if isinstance(found, Queue):
                await self._provider.execute(do.EndQueue(found.address))
            if found is not None:
                self._temporaries.remove(name)
                del names[name]
            return None
        if name in self._temporaries:  # Repeated by `failover:`.
            return None
        if name in names:
            raise IllegalStateException(f"there is a temporary destination {name!r} already"[:200])
        if len(self._temporaries) >= client.TEMPORARIES_MAX:
            raise ResourceAllocationException(f"a client has at most {client.TEMPORARIES_MAX} temporary destinations")
        self._made += 1
        provider = self._provider
        if isinstance(meant, wire.TemporaryQueueName):
            names[name] = await client.temporary_queue(provider, self._connection, self._made)
        else:
            own = client.temporary_name(provider, self._connection, self._made)
            names[name] = Topic(f"{own}.{provider.node_info.node}")
        self._temporaries.append(name)
        return None

    # --- transactions --------------------------------------------------------------------------------------

    def _transaction(self, given: wire.Structure | None) -> Transaction[Consumer] | None:
        return None if given is None else self._transactions.get(_named(given))

    async def _transact(self, info: wire.TransactionInfo) -> Done:
        name = _named(info.transaction)
        if info.kind == TransactionKind.BEGIN:
            if name not in self._transactions:  # Else it is repeated by `failover:`.
                self._transactions.begin(name)
            return None
        if info.kind == TransactionKind.ROLLBACK:
            self._transactions.end(name)
            return None
        if info.kind != TransactionKind.COMMIT:
            raise JMSException("transactions are committed in one phase: XA is not offered")
        return await self._commit(name)

    async def _commit(self, name: str) -> Done:
        transaction = self._transactions.end(name)
        acknowledged = [(each, list(handed.values())) for each, handed in transaction.acknowledged.items()]
        if transaction.failure is not None:
            raise TransactionRolledBackException(
                f"the transaction was rolled back, after an error: {transaction.failure}"
            )
        if not all(self._consumers.has(consumer) for consumer, _ in acknowledged):
            raise TransactionRolledBackException(
                "the transaction was rolled back: it acknowledges messages of a consumer that was closed"
            )
        await self._provider.room()
        acks = tuple(consumer.ack(handed) for consumer, handed in acknowledged)
        now_us = self._provider.now_us()
        alive = tuple(each for each in transaction.drafts if each.deadline_us is None or each.deadline_us > now_us)
        performed = self._perform(alive, acks, durable=True)
        for draft in transaction.drafts:
            producer, _, number = draft.label.rpartition(":")
            self._shared.note(producer, int(number), performed.done)

        def release(done: asyncio.Future[None]) -> None:
            if not done.cancelled() and done.exception() is None:
                for consumer, handed in acknowledged:
                    consumer.release(self._provider, handed)

        performed.done.add_done_callback(release)
        return performed.done

    async def _unsubscribe(self, info: wire.RemoveSubscriptionInfo) -> Done:
        await self._provider.execute(do.Unsubscribe(self._client_id, info.name or ""))
        return None

    async def _ack(self, ack: wire.MessageAck) -> Done:
        transaction = self._transaction(ack.transaction)
        try:
            return await self._consumers.handle(ack, transaction)
        except CarrypostError as error:
            if transaction is not None:  # The messages come again, so nothing of it must be done.
                transaction.failure = transaction.failure or error
            raise

    # --- events of the node --------------------------------------------------------------------------------

    def note(self, news: News) -> None:
        """Pass on parts of a browsed queue; end the connection if a consumer gets nothing further."""
        if isinstance(news, Browsed):
            self._consumers.add(news)
        else:
            super().note(news)


_BEFORE = (wire.ConnectionControl, wire.ConnectionInfo, wire.KeepAliveInfo, wire.ShutdownInfo)
"""Commands of a client that is not connected. `failover:` begins each connection with a ConnectionControl."""
_DELETE = 1
_UNANSWERED = wire.Command()


def _named(given: wire.Structure | None) -> str:
    """Return the name of a transaction; raises for one that is distributed."""
    if not isinstance(given, wire.LocalTransactionId):
        raise JMSException("transactions are local to a connection: XA is not offered")
    return given.text


class Server(server.Server):
    """The OpenWire clients of one node."""

    name: ClassVar[str] = "OpenWire"
    table: ClassVar[str] = "openwire"
    first: ClassVar[str] = "WireFormatInfo"
    command: ClassVar[str] = "command"

    def __init__(self, served: ServedNode) -> None:
        super().__init__(served)
        held = served.node.host.holding()
        self._shared = Shared(
            (f"ID:{each.message.removeprefix('ID:')}", each.label) for each in held if each.role == "own" and each.label
        )
        self._copies = Copies(self.provider, self._copy)

    def _copy(self, sent: Descriptor, payload: bytes, version: int) -> Copy:
        return Copy(received(sent, payload, self._shared.labels), version)

    def client(self, output: Output) -> Client:
        """Return a new client."""
        return Client(self.provider, output, self.options, self._copies, self._shared)
