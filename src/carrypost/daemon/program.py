"""A client of a protocol as a program of the node, with its transactions and queues, whatever the protocol.

Commands are processed one after the other, without waiting for durability: a command is confirmed when its work is
durable. The client has one connection at the node, a session for its sends and one for each consumer. Nothing here
depends on sockets: bytes are given to an `Output`.

A transaction is what the client asked for between begin and commit, in memory and bounded. Queues of clients are
temporary ones, and those that a consumer declares by using them.
"""

from __future__ import annotations

import asyncio
import hmac
from abc import abstractmethod
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

from carrypost.daemon.receiving import Receiving, Subscription
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
from carrypost.messaging.commands import Declare
from carrypost.messaging.program_commands import DeclareQueue, Disconnect, OpenSession

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from carrypost.daemon.receiving import Output
    from carrypost.gossip.draft import Draft
    from carrypost.jms.provider import News, Performed, Provider
    from carrypost.log.events import Handed
    from carrypost.messaging.commands import Ack


S = TypeVar("S", bound=Subscription)
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
    await provider.execute(DeclareQueue(Declare(name, connection=connection)))
    return Queue(f"{name}@{provider.node_info.node}")


def temporary_name(provider: Provider, connection: int, number: int) -> str:
    """Return a name that no other incarnation of the node gives, and no other connection."""
    if number > TEMPORARIES_MAX:
        raise ResourceAllocationException(f"a client has at most {TEMPORARIES_MAX} temporary destinations")
    return f"{TEMPORARY}{provider.now_us():x}-{connection}-{number}"


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
        self._session = await self._provider.execute(OpenSession(self._connection))

    @abstractmethod
    def fail(self, error: CarrypostError) -> None:
        """Send the client an error, and end the connection."""

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
                await self._provider.execute(Disconnect(connection, unread, crashed=not self._orderly))

    # --- requests ------------------------------------------------------------------------------------------

    def _perform(self, drafts: tuple[Draft, ...], acks: tuple[Ack, ...], *, durable: bool) -> Performed:
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
