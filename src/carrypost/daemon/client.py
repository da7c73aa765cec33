"""A client of a protocol as a program of its node: its requests and transactions, its consumers, and their messages.

Commands are processed one after the other, without waiting for durability: a command is confirmed when its work is
durable. The client has one connection at the node, a session for its sends and one for each consumer. Nothing here
depends on sockets: bytes are given to an `Output`.

A consumer is a session of the node (`Subscription`): it has what the node handed it, and what the client has not
acknowledged. The node hands over as much as the client may have unacknowledged: what the client is done with makes
room. Messages wait in order, within the credit of the client's consumers (`Receiving`). All that is acknowledged in one
turn of the loop is one unit of work. A message is mapped and encoded once for all clients of a node that get it at
about the same time (`Copies`). The last 1 MiB is kept.

A transaction is what the client asked for between begin and commit, in memory and bounded. Queues of clients are
temporary ones, and those that a consumer declares by using them. What differs between protocols is elsewhere.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sized
from contextlib import suppress
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, Protocol, TypeVar

import msgspec

from carrypost.errors import (
    CarrypostError,
    IllegalArgumentException,
    InvalidDestinationException,
    JMSException,
    JMSSecurityException,
    ResourceAllocationException,
)
from carrypost.jms.declarations import ANYONE, declare, declared
from carrypost.jms.destinations import TEMPORARY, Destination, NamedQueue, Queue, resolved
from carrypost.jms.listener_calls import unserved
from carrypost.jms.provider import Perform, Program
from carrypost.log.events import Unserved
from carrypost.log.journal import Durability
from carrypost.messaging import commands as do
from carrypost.model import address

if TYPE_CHECKING:
    from collections.abc import Iterable

    from carrypost.gossip.draft import Draft
    from carrypost.jms.mapping import Sending
    from carrypost.jms.provider import News, Performed, Provider
    from carrypost.log.events import Handed
    from carrypost.model.descriptor import Descriptor
    from carrypost.model.ids import MessageId


V = TypeVar("V")
B = TypeVar("B", bound=Sized)
_BYTES_MAX = 1024 * 1024


class Output(Protocol):
    """The connection to a client, which takes the bytes for it."""

    def admit(self) -> str:
        """Count the client, whose first command is valid; return why it cannot be served, or an empty text."""

    def write(self, data: bytes) -> None:
        """Write bytes, in order."""

    @property
    def is_full(self) -> bool:
        """True while the client does not read what was written."""

    async def drained(self) -> None:
        """Wait while the client does not read."""

    def end(self) -> None:
        """Close the connection, once everything is written."""


class Copies(Generic[V, B]):
    """Messages that clients of one node got lately, by message and version of the protocol."""

    def __init__(self, provider: Provider, encode: Callable[[Descriptor, bytes, V], B]) -> None:
        self._provider, self._encode = provider, encode
        self._kept: dict[tuple[MessageId, V], B] = {}
        self._bytes = 0

    async def rest(self, handed: Handed, body: bytes | None, version: V) -> B | None:
        """Return a message's bytes; None if the message is gone. Without a `body` the provider has it."""
        descriptor = handed.descriptor
        kept = self._kept.get((descriptor.id, version))
        if kept is not None:
            return kept
        if body is None:
            body = await self._provider.payload(descriptor)
        return None if body is None else self._keep(descriptor, body, version)

    def _keep(self, descriptor: Descriptor, body: bytes, version: V) -> B:
        made = self._encode(descriptor.original, body, version)
        if len(made) <= _BYTES_MAX and (descriptor.id, version) not in self._kept:
            self._kept[descriptor.id, version] = made
            self._bytes += len(made)
            while self._bytes > _BYTES_MAX:
                self._bytes -= len(self._kept.pop(next(iter(self._kept))))
        return made


class Subscription:
    """An open consumer of a client."""

    def __init__(self, session: int, consumer: int, prefetch: int) -> None:
        self.session, self.consumer, self._prefetch = session, consumer, prefetch
        self._held: dict[int, Handed] = {}
        """Messages that were handed over and not acknowledged, by number; numbers rise."""
        self.unread: dict[int, None] = {}
        """Numbers of those that were not written to the client."""

    def begin(self, provider: Provider) -> None:
        """Let the node hand over as much as the client may have."""
        self.grant(provider, self._prefetch, provider.node_info.settings.prefetch_bytes)

    def grant(self, provider: Provider, messages: int, nbytes: int) -> None:
        """Let the node hand over this much more."""
        provider.tell(do.Credit(self.consumer, messages, nbytes))

    def hand(self, handed: Handed) -> None:
        """Note what the node hands over."""
        self._held[handed.number] = handed
        self.unread[handed.number] = None

    def holds(self, number: int) -> bool:
        """Return True if a message was not acknowledged, and is still the client's."""
        return number in self._held

    def through(self, number: int) -> list[Handed]:
        """Return the messages up to this number."""
        return list(takewhile(lambda each: each.number <= number, self._held.values()))

    def ack(self, handed: Iterable[Handed], *, late: do.Late = do.Late.REFUSE) -> do.Ack:
        """Return an acknowledgement of these messages."""
        return do.Ack(self.session, tuple(each.number for each in handed), late=late)

    def release(self, provider: Provider, handed: Iterable[Handed]) -> None:
        """Make room for more: the client is done with these."""
        self.make_room(provider, self.withdraw(handed))

    def withdraw(self, handed: Iterable[Handed]) -> list[Handed]:
        """Return those of these messages that the client still had; it has them no longer."""
        found = [each for each in handed if self._held.pop(each.number, None) is not None]
        for each in found:
            self.unread.pop(each.number, None)
        return found

    def make_room(self, provider: Provider, withdrawn: Collection[Handed]) -> None:
        """Let the node hand over as many messages as were withdrawn."""
        if withdrawn:
            self.grant(provider, len(withdrawn), sum(each.descriptor.length for each in withdrawn))


async def opened(provider: Provider, connection: int, wanted: do.Subscribe | do.Receive) -> tuple[int, int]:
    """Open a session of a connection, with one consumer; return both numbers."""
    session = await provider.execute(do.OpenSession(connection))
    try:
        return session, await provider.execute(do.Consume(session, wanted))
    except JMSException:
        await provider.execute(do.CloseSession(session))
        raise


def remote_prefetch(provider: Provider, wanted: do.Subscribe | do.Receive) -> int | None:
    """Return how many messages a consumer of another node's queue takes along; None for other consumers."""
    info = provider.node_info
    if not isinstance(wanted, do.Receive) or address.addressee(wanted.destination) == info.node:
        return None
    return max(info.settings.prefetch_remote, 1)


_log = logging.getLogger("carrypost.daemon")
S = TypeVar("S", bound=Subscription)


class Receiving(ABC, Generic[S, V, B]):
    """The consumers of one client, and what the node hands to them."""

    def __init__(
        self, provider: Provider, output: Output, copies: Copies[V, B], fail: Callable[[CarrypostError], None]
    ) -> None:
        self._provider, self._output, self._copies, self._fail = provider, output, copies, fail
        self._by_consumer: dict[int, S] = {}
        self._waiting: deque[tuple[S, Handed, bytes | None]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._acknowledged: dict[S, list[Handed]] = {}
        """Messages that were acknowledged in this turn of the loop."""

    def __iter__(self) -> Iterator[S]:
        return iter(self._by_consumer.values())

    def has(self, subscription: S) -> bool:
        """Return True unless the subscription has ended."""
        return self._by_consumer.get(subscription.consumer) is subscription

    async def end(self, subscription: S, unread: Collection[int]) -> None:
        """Close a consumer; the client did not see the messages with the numbers `unread`."""
        self.settle()
        del self._by_consumer[subscription.consumer]
        self._waiting = deque(each for each in self._waiting if each[0] is not subscription)
        await self._provider.execute(do.CloseSession(subscription.session, list(unread)))

    def close(self) -> list[int]:
        """Write nothing more; return the numbers of messages that the client did not see."""
        self.settle()
        if self._task is not None:
            self._task.cancel()
        self._waiting.clear()
        unread = [number for each in self for number in self.unread_of(each)]
        self._by_consumer.clear()
        return unread

    def unread_of(self, subscription: S) -> Collection[int]:
        """Return the numbers of messages of a subscription that the client did not see."""
        return subscription.unread

    # --- messages for the client ---------------------------------------------------------------------------

    def deliver(self, handed: Handed, body: bytes | None) -> None:
        """Let a message be written when the client has read what came before."""
        subscription = self._by_consumer.get(handed.consumer)
        if subscription is None:
            return
        subscription.hand(handed)
        self._waiting.append((subscription, handed, body))
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._deliver())

    async def _deliver(self) -> None:
        """Write waiting messages, as fast as the client reads."""
        try:
            while self._waiting:
                await self._offer(*self._waiting.popleft())
                if self._output.is_full:
                    await self._output.drained()
        except CarrypostError as error:
            self._fail(error)
        except Exception:  # noqa: BLE001 - A client that gets nothing more, and no error, would wait for ever.
            _log.exception("a message could not be written to a client; ending its connection")
            self._fail(JMSException("the node failed to write a message: please report this, with the node's log"))

    async def _offer(self, subscription: S, handed: Handed, body: bytes | None) -> None:
        if 0 < handed.lease_us <= self._provider.now_us():
            # Its lease ended while it waited: its manager gives it to another consumer.
            await self.give_back(subscription, handed)
            return
        copy = await self._copies.rest(handed, body, self.version)
        if copy is None or not subscription.holds(handed.number):
            subscription.release(self._provider, [handed])  # It expired, or its subscription ended.
        else:
            await self.write(subscription, handed, copy)

    @property
    @abstractmethod
    def version(self) -> V:
        """The client's version of the protocol."""

    @abstractmethod
    async def write(self, subscription: S, handed: Handed, copy: B) -> None:
        """Write a message."""

    async def give_back(self, subscription: S, handed: Handed, *, released: bool = False) -> None:
        """Let a message come again that the client was not sent; if `released`, to any consumer of its queue."""
        session, numbers = subscription.session, (handed.number,)
        with suppress(JMSException):  # The subscription has ended.
            if released:
                await self._provider.execute(do.Release(session, numbers))
            else:
                await self._provider.execute(do.Recover(session, numbers, numbers))
        subscription.release(self._provider, [handed])

    # --- acknowledgements ----------------------------------------------------------------------------------

    def acknowledge(self, subscription: S, handed: Collection[Handed]) -> None:
        """Acknowledge messages, in one unit of work with all others of this turn of the loop."""
        if not self._acknowledged:
            asyncio.get_running_loop().call_soon(self.settle)
        self._acknowledged.setdefault(subscription, []).extend(subscription.withdraw(handed))

    def settle(self, durability: Durability = Durability.NORMAL) -> asyncio.Future[Any] | None:
        """Perform the acknowledgements so far, and return what is set when they are durable; None if there are none."""
        if not self._acknowledged:
            return None
        acknowledged, self._acknowledged = self._acknowledged, {}
        acks = tuple(each.ack(handed, late=do.Late.ACCEPT) for each, handed in acknowledged.items())
        try:
            done = self._provider.perform(Perform(next(iter(acknowledged)).session, (), acks, durability)).done
        except CarrypostError as error:
            self._fail(error)
            return None
        done.add_done_callback(self._settled)
        for subscription, handed in acknowledged.items():
            subscription.make_room(self._provider, handed)
        return done

    def _settled(self, done: asyncio.Future[None]) -> None:
        error = None if done.cancelled() else done.exception()
        if isinstance(error, CarrypostError):  # What comes again, comes with the next connection.
            self._fail(error)


TRANSACTIONS_MAX: Final = 16
"""Transactions that one client may have open."""
MESSAGES_MAX: Final = 10_000
"""Messages that one transaction may send, and messages that it may acknowledge or refuse."""


class Transaction(Generic[S]):
    """One transaction; a message is acknowledged or refused once, however often its client says so."""

    def __init__(self) -> None:
        self.drafts: list[Draft] = []
        self._sent_bytes = 0
        self.acknowledged: dict[S, dict[int, Handed]] = {}
        """By number, as each subscription was handed them."""
        self.refused: dict[S, dict[int, Handed]] = {}
        """Refused messages, likewise."""
        self.dead: set[int] = set()
        """Numbers of refused messages that must not come again."""
        self._settled = 0
        """Number of messages that are acknowledged or refused."""
        self.failure: CarrypostError | None = None
        """An error that the client was not told of; the transaction cannot be committed."""

    def send(self, draft: Draft, nbytes: int, bytes_max: int) -> None:
        """Add a message of this size, headers included, if there is room."""
        self._sent_bytes += nbytes
        if self._sent_bytes > bytes_max:
            raise ResourceAllocationException(
                f"a transaction has at most {bytes_max:,} bytes (messaging.draft_bytes_max)"
            )
        if len(self.drafts) >= MESSAGES_MAX:
            raise ResourceAllocationException(f"a transaction sends at most {MESSAGES_MAX:,} messages")
        self.drafts.append(draft)

    def acknowledge(self, subscription: S, handed: Iterable[Handed]) -> None:
        """Add acknowledged messages."""
        self._settle(self.acknowledged.setdefault(subscription, {}), handed)

    def refuse(self, subscription: S, handed: Collection[Handed], *, dead: bool) -> None:
        """Add refused messages; `dead`: they must not come again."""
        self._settle(self.refused.setdefault(subscription, {}), handed)
        if dead:
            self.dead.update(each.number for each in handed)

    def _settle(self, settled: dict[int, Handed], handed: Iterable[Handed]) -> None:
        before = len(settled)
        settled.update((each.number, each) for each in handed)
        self._settled += len(settled) - before
        if self._settled > MESSAGES_MAX:
            raise ResourceAllocationException(
                f"a transaction acknowledges or refuses at most {MESSAGES_MAX:,} messages: commit more often"
            )


class Transactions(Generic[S]):
    """The open ones of one client, by the names that it gave them."""

    def __init__(self) -> None:
        self._open: dict[str, Transaction[S]] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._open

    def begin(self, name: str) -> None:
        """Open one more."""
        if name in self._open:
            raise IllegalArgumentException(f"the transaction {name!r} has begun already"[:200])
        if len(self._open) >= TRANSACTIONS_MAX:
            raise ResourceAllocationException(f"a client has at most {TRANSACTIONS_MAX} transactions open")
        self._open[name] = Transaction()

    def get(self, name: str | None) -> Transaction[S] | None:
        """Return the transaction of this name; None for no name."""
        return None if name is None else self._named(name)

    def end(self, name: str) -> Transaction[S]:
        """Remove the one that is committed or rolled back, and return it."""
        found = self._named(name)
        del self._open[name]
        return found

    def _named(self, name: str) -> Transaction[S]:
        found = self._open.get(name)
        if found is None:
            raise IllegalArgumentException(f"there is no transaction {name!r}: begin it first"[:200])
        return found


TEMPORARIES_MAX = 100
"""Temporary destinations that one client may have."""


async def consumed(provider: Provider, meant: Destination, *, declares: bool) -> Destination:
    """Return the destination of a consumer: an unknown queue is declared here, if that is allowed."""
    try:
        return await resolved(provider, meant)
    except InvalidDestinationException:
        if not (isinstance(meant, NamedQueue) and declares):
            raise
        asked = declared(provider.node_info.node, meant.queue_name, "never", None, "fair", receivers=ANYONE)
        return await declare(provider, asked, advertise=True)


async def temporary_queue(provider: Provider, connection: int, number: int) -> Queue:
    """Return a new queue that ends with a connection, of this number among those of the connection."""
    name = temporary_name(provider, connection, number)
    await provider.execute(do.DeclareQueue(do.Declare(name, connection=connection)))
    return Queue(f"{name}@{provider.node_info.node}")


def temporary_name(provider: Provider, connection: int, number: int) -> str:
    """Return a name that no other incarnation of the node gives, and no other connection."""
    if number > TEMPORARIES_MAX:
        raise ResourceAllocationException(f"a client has at most {TEMPORARIES_MAX} temporary destinations")
    return f"{TEMPORARY}{provider.now_us():x}-{connection}-{number}"


class Decoder(Protocol):
    """The bytes of a client as commands."""

    def feed(self, data: bytes) -> None:
        """Take bytes."""

    def next(self) -> Any:  # noqa: ANN401 - a command of the protocol
        """Return the next command; None if more bytes are needed. Raises a `CarrypostError` for invalid bytes."""


C = TypeVar("C")


class Options(NamedTuple):
    """Settings that hold for all clients of a node."""

    token: str | None = None
    """The passcode that a client needs; None: none."""
    declares: bool = True
    """True if a consumer of an unknown queue declares it on this node."""
    heart_beat_ms: int = 10_000


class ClientProgram(Program, Generic[C, S]):
    """A client whose commands are `C` and whose consumers are `S`, from its first command to the end."""

    receiving: Receiving[S, Any, Any]
    decoder: Decoder

    def __init__(self, provider: Provider, output: Output, options: Options) -> None:
        self._provider, self._output, self._options = provider, output, options
        self.closed = False
        """True if the connection is to end: nothing more is read or written."""
        self.beats_ms = 0, 0
        """Times after which something has to be written, and has to have come; 0: never."""
        self._connection = self._session = self._sent = 0
        self._client_id = ""
        self._orderly = False
        """True once the client has said that it ends."""
        self._transactions = Transactions[S]()
        self._unfinished: dict[asyncio.Future[Any], None] = {}
        """Requests of the client that are not durable yet."""

    # --- the connection ------------------------------------------------------------------------------------

    def _admit(self, passcode: str, wrong: str) -> None:
        """Count the client; raises for a wrong passcode, with the text `wrong`, or if there are too many."""
        token = self._options.token
        if token is not None and not hmac.compare_digest(passcode.encode(), token.encode()):
            raise JMSSecurityException(f"{wrong}, in the folder of the node")
        if refusal := self._output.admit():
            raise ResourceAllocationException(refusal)

    async def _join(self, client_id: str) -> None:
        """Connect the client to the node."""
        self._client_id = client_id
        self._connection = await self._provider.connect(client_id, self)
        self._session = await self._provider.execute(do.OpenSession(self._connection))

    @abstractmethod
    async def carry_out(self, command: C) -> None:
        """Process a command; a fault ends the connection."""

    @abstractmethod
    def fail(self, error: CarrypostError) -> None:
        """Send the client an error, and end the connection."""

    @abstractmethod
    def beat(self) -> None:
        """Write a heart-beat."""

    def _end(self) -> None:
        self.closed = True
        self._output.end()

    async def close(self) -> None:
        """End what the client has at the node. Unless it said so, messages that it saw come again one at a time."""
        self.closed = True
        unread = self.receiving.close()
        connection, self._connection = self._connection, 0
        if connection:
            with suppress(JMSException):  # The node is gone.
                await self._provider.execute(do.Disconnect(connection, unread, crashed=not self._orderly))

    # --- requests ------------------------------------------------------------------------------------------

    def _completed(self, options: Sending, reply_to: Destination | None) -> Sending:
        """Return the options of the next message, with its place among those that the client sends."""
        self._sent += 1
        return msgspec.structs.replace(
            options, client=self._client_id or None, connection=self._connection, session=self._session,
            number=self._sent, reply_to=reply_to,
        )  # fmt: skip

    def _perform(self, drafts: tuple[Draft, ...], acks: tuple[do.Ack, ...], *, durable: bool) -> Performed:
        durability = Durability.FULL if durable else Durability.NORMAL
        return self._provider.perform(Perform(self._session, drafts, acks, durability))

    def _follow(self, command: C, done: asyncio.Future[Any] | None) -> None:
        """Confirm a command once what it asked for is done."""
        if done is None or done.done():
            self._ended(command, done)
        else:
            self._unfinished[done] = None
            done.add_done_callback(lambda ended: self._ended(command, ended))

    def _ended(self, command: C, done: asyncio.Future[Any] | None) -> None:
        if done is not None:
            self._unfinished.pop(done, None)
            if done.cancelled():
                return
            error = done.exception()
            if error is not None:
                assert isinstance(error, CarrypostError), error
                self._refuse(command, error)
                return
        self._confirm(command)

    @abstractmethod
    def _confirm(self, command: C) -> None:
        """Tell the client that a command is done, if it wants to know."""

    @abstractmethod
    def _refuse(self, command: C, error: CarrypostError) -> None:
        """Tell the client that a command failed."""

    async def settled(self) -> None:
        """Wait until everything that the client asked for is durable, and confirmed."""
        while self._unfinished:
            await asyncio.wait(list(self._unfinished))

    # --- events of the node --------------------------------------------------------------------------------

    def deliver(self, handed: Handed, body: bytes | None = None) -> None:
        """Write a message from the node, when the client has read what came before."""
        if not self.closed:
            self.receiving.deliver(handed, body)

    def note(self, news: News) -> None:
        """End the connection if a consumer gets nothing further: with another one, a client consumes again.

        Protocols cannot express other news. Their confirmations mean that the node has something.
        """
        if isinstance(news, Unserved):
            self.fail(unserved(news))

    def node_ended(self, reason: str) -> None:
        """End the connection, after the confirmations of what was done before."""
        self._connection = 0
        asyncio.get_running_loop().call_soon(self.fail, JMSException(reason))
