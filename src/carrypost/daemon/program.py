"""A client of a protocol as a program of the node, less what differs between protocols.

Commands are processed one after the other, without waiting for durability: a command is confirmed when its work is
durable. The client has one connection at the node, a session for its sends and one for each consumer. Nothing here
depends on sockets: bytes are given to an `Output`.
"""

from __future__ import annotations

import asyncio
import hmac
from abc import abstractmethod
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from carrypost.daemon.receiving import Receiving
from carrypost.daemon.subscription import Subscription
from carrypost.daemon.transactions import Transactions
from carrypost.errors import CarrypostError, JMSException, JMSSecurityException, ResourceAllocationException
from carrypost.jms.provider import Perform, Program
from carrypost.jms.reports import unserved
from carrypost.log.events import Unserved
from carrypost.log.journal import Durability
from carrypost.messaging.program_commands import Disconnect, OpenSession

if TYPE_CHECKING:
    from carrypost.daemon.connection import Output
    from carrypost.gossip.draft import Draft
    from carrypost.jms.provider import News, Performed, Provider
    from carrypost.log.events import Handed
    from carrypost.messaging.commands import Ack

C = TypeVar("C")
S = TypeVar("S", bound=Subscription)


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
