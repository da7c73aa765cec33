"""A provider in the same process as its node: over a host and its driver.

Commands are steps of the host. It is drained once in a turn of the event loop, so that messages sent by several tasks
at the same time are one batch, and one wait for the disk. If nothing waits for the disk, as with NON_PERSISTENT
messages and automatic acknowledgements, it is drained after a turn without further ones, or after 2 ms: draining it for
each message of one sender costs a quarter of all that a message costs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Mapping
from functools import cached_property, partial
from typing import Any, TypeVar

from carrypost.errors import IllegalStateException, JMSException, NameNotFoundException, ResourceAllocationException
from carrypost.events import (
    Advertised,
    Browsed,
    ClaimLost,
    Done,
    Event,
    GivenUp,
    Handed,
    HostLost,
    OverlayTold,
    Receipt,
    Undone,
    Unserved,
)
from carrypost.gossip.layer import Draft
from carrypost.host import Host
from carrypost.host.driving import ProgramDriver
from carrypost.jms.host_commands import HostCommand, translating
from carrypost.jms.provider import NODE_ENDED, NODE_LOST, NodeInfo, Perform, Performed, Program, Provider
from carrypost.journal import Durability
from carrypost.model.address import Kind
from carrypost.model.descriptor import Descriptor
from carrypost.model.ids import MessageId, NodeId
from carrypost.mom.commands import Browsing, Declare, Followed, OpenRequest, Receive, Subscribe, UnitOfWork
from carrypost.mom.discovery import Discovered
from carrypost.mom.names.namespace import Bind, Binding
from carrypost.mom.placement import PlaceAnswered
from carrypost.mom.programs import MessagingCommands

T = TypeVar("T")
_PATIENCE_S = 0.002
_FULL = Durability.FULL
_FOLLOWED_MAX = 131_072
"""Number of messages whose receipts are awaited: twice what messaging itself tracks; the rest wait for a carrier."""


class LocalProvider(Provider):
    """The messaging of a host in this process. The driver of the host passes its events to `handle_event`."""

    def __init__(self, driver: ProgramDriver) -> None:
        self._driver = driver
        self._loop = asyncio.get_running_loop()
        self._programs: dict[int, Program] = {}
        """By connection."""
        self._clients: dict[int, str] = {}
        """The client ids of connections; empty where there is none."""
        self._sessions: dict[int, int] = {}
        """Their connections."""
        self._consumers: dict[int, int] = {}
        """Their sessions."""
        self._browsings: dict[int, int] = {}
        """Sessions of open browsings."""
        self._followers: dict[MessageId, tuple[int, ...]] = {}
        """The connections that get the receipts of a message, until the last one; the oldest message first."""
        self._unanswered: dict[int, asyncio.Future[Any]] = {}
        self._awaited: dict[asyncio.Future[None], str] = {}
        """Names that lookups wait for."""
        self._number = 0
        self._commands = (
            HostCommand(partial(self._drain_soon, patient=False)),
            HostCommand(partial(self._drain_soon, patient=True)),
        )
        self._drains = False
        self._patient = True
        """True while nothing waits for the next drain."""
        self._patient_until_s = 0.0
        self._more = False
        """True if commands came in this turn."""
        self._ended = ""
        """Reason why there is no node any more."""

    @cached_property
    def node_info(self) -> NodeInfo:
        """The node, and its limits and settings."""
        settings = self._driver.settings
        return NodeInfo(self._host().node, settings.limits, settings.messaging, settings.lifetime_s_max)

    def now_us(self) -> int:
        """Return the date on the node."""
        return self._driver.date

    # --- events of the host --------------------------------------------------------------------------------

    def handle_event(self, event: Event) -> None:
        """Pass an event to its program."""
        pass_on = self.handlers.get(type(event))
        if pass_on is not None:
            pass_on(event)

    @cached_property
    def handlers(self) -> Mapping[type[Event], Callable[[Any], None]]:
        """The events that are for programs, and what passes each of them on."""
        return {
            HostLost: self._on_host_lost, Done: self._on_done, Undone: self._on_undone, Handed: self._on_handed,
            Receipt: self._on_receipt,
            GivenUp: partial(self._on_consumer_event, "gave_up"), ClaimLost: self._on_lost,
            Unserved: partial(self._on_consumer_event, "unserved"),
            OverlayTold: partial(self._on_consumer_event, "overlaid"), Browsed: self._on_browsed,
            Advertised: self._on_advertised, PlaceAnswered: self._on_answered, Discovered: self._on_answered,
        }  # fmt: skip

    def _on_done(self, done: Done) -> None:
        answer = self._unanswered.pop(done.number, None)
        if answer is not None and not answer.done():
            answer.set_result(None)

    def _on_answered(self, event: PlaceAnswered | Discovered) -> None:
        answer = self._unanswered.pop(event.number, None)
        if answer is not None and not answer.done():
            answer.set_result(event)

    def _on_undone(self, undone: Undone) -> None:
        error = f"the call had no effect, because it could not be stored: {undone.reason}"
        self._fail(undone.number, ResourceAllocationException(error))

    def _on_handed(self, handed: Handed) -> None:
        session = self._consumers.get(handed.consumer)
        if session is not None:  # A consumer that closed meanwhile gave back unreported messages.
            self._programs[self._sessions[session]].deliver(handed)

    def _on_consumer_event(self, news: str, event: GivenUp | Unserved | OverlayTold) -> None:
        session = self._consumers.get(event.consumer)
        if session is not None:
            getattr(self._programs[self._sessions[session]], news)(event)

    def _on_receipt(self, receipt: Receipt) -> None:
        for connection in self._followers.get(receipt.message, ()):
            if (program := self._programs.get(connection)) is not None:
                program.receipt(receipt)
        if receipt.last:
            self._followers.pop(receipt.message, None)

    def _follow(self, session: int, message: MessageId) -> None:
        connection, known = self._sessions.get(session), self._followers.get(message, ())
        if connection is None or connection in known:
            return
        self._followers[message] = (*(each for each in known if each in self._programs), connection)
        if len(self._followers) > _FOLLOWED_MAX:
            del self._followers[next(iter(self._followers))]

    def _on_lost(self, lost: ClaimLost) -> None:
        for connection, client in self._clients.items():
            if lost.durable and client == lost.client:
                self._programs[connection].lost(lost)

    def _on_browsed(self, part: Browsed) -> None:
        session = self._browsings.pop(part.number, None)
        if session is not None:
            if not part.complete:
                self._browsings[part.number] = session
            self._programs[self._sessions[session]].browsed(part)

    def _on_advertised(self, event: Advertised) -> None:
        for waiting, name in self._awaited.items():
            if not waiting.done() and (event.name == name or event.name.startswith(f"{name}/")):
                waiting.set_result(None)

    def _on_host_lost(self, lost: HostLost) -> None:
        self.end(f"the node could not store its last changes: {lost.reason}")

    @property
    def is_over(self) -> bool:
        """True if the host is gone."""
        return bool(self._ended)

    async def close(self) -> None:
        """Do nothing: it ends with its host."""

    def end(self, reason: str) -> None:
        """Inform everything that waits that the node is gone."""
        self._ended = reason
        error = IllegalStateException(reason, NODE_LOST)
        for number in list(self._unanswered):
            self._fail(number, error)
        for waiting in self._awaited:
            if not waiting.done():
                waiting.set_result(None)
        programs, self._programs = list(self._programs.values()), {}
        self._clients.clear()
        self._sessions.clear()
        self._consumers.clear()
        self._browsings.clear()
        self._followers.clear()
        for program in programs:
            program.node_ended(reason)

    def _fail(self, number: int, error: JMSException) -> None:
        answer = self._unanswered.pop(number, None)
        if answer is not None and not answer.done():
            answer.set_exception(error)
            answer.exception()  # A caller that does not wait for it is informed otherwise.

    # --- programs ------------------------------------------------------------------------------------------

    async def connect(self, client: str, program: Program) -> int:
        """Connect a program."""
        with self._command():
            number = self._messaging.connect(self._driver.now, client=client)
        self._programs[number], self._clients[number] = program, client
        return number

    async def disconnect(self, connection: int, unread: Collection[int]) -> None:
        """Close a connection with its sessions."""
        self._disconnect(connection, unread)

    async def abandon(self, connection: int, unread: Collection[int]) -> None:
        """Close the connection of a program that ended without closing it."""
        self._disconnect(connection, unread, crashed=True)

    def _disconnect(self, connection: int, unread: Collection[int], *, crashed: bool = False) -> None:
        with self._command():
            self._messaging.disconnect(connection, self._driver.now, unread=unread, crashed=crashed)
        del self._programs[connection], self._clients[connection]
        for session in [number for number, of in self._sessions.items() if of == connection]:
            self._forget(session)

    async def open_session(self, connection: int) -> int:
        """Return one more session."""
        with self._command():
            number = self._messaging.open_session(connection, self._driver.now)
        self._sessions[number] = connection
        return number

    async def close_session(self, session: int, unread: Collection[int]) -> None:
        """Close a session."""
        with self._command():
            self._messaging.close_session(session, self._driver.now, unread=unread)
        self._forget(session)

    def _forget(self, session: int) -> None:
        self._sessions.pop(session, None)
        self._consumers = {number: of for number, of in self._consumers.items() if of != session}
        self._browsings = {number: of for number, of in self._browsings.items() if of != session}

    async def recover(self, session: int, unread: Collection[int], numbers: Collection[int] | None) -> int:
        """Let what a session has not acknowledged come again."""
        with self._command():
            return self._messaging.recover(session, self._driver.now, unread=unread, numbers=numbers)

    # --- consumers -----------------------------------------------------------------------------------------

    async def consume(self, session: int, asked: Subscribe | Receive) -> int:
        """Open a consumer."""
        number = self._next()
        with self._command():
            consumer = self._messaging.consume(number, session, asked, self._driver.now)
        answer = self._answer(number)
        self._consumers[consumer] = session
        try:
            await asyncio.shield(answer)
        except JMSException:
            self._consumers.pop(consumer, None)  # The node undid it.
            raise
        except asyncio.CancelledError:  # The program never got the consumer.
            self._close_consumer(consumer, ())
            raise
        return consumer

    def credit(self, consumer: int, messages: int, nbytes: int) -> None:
        """Grant a consumer this much more credit."""
        if consumer in self._consumers:
            with self._command():
                self._messaging.credit(consumer, messages, nbytes, self._driver.now)

    @property
    def outlives_programs(self) -> bool:
        """False: a program that is killed takes the node with it."""
        return False

    async def announce(self, consumer: int, number: int, through: int) -> None:
        """Do nothing: the counts on disk have all messages that were handed over."""

    async def close_consumer(self, consumer: int, unread: Collection[int]) -> None:
        """Close a consumer."""
        self._close_consumer(consumer, unread)

    def _close_consumer(self, consumer: int, unread: Collection[int]) -> None:
        if self._consumers.pop(consumer, None) is not None:
            with self._command():
                self._messaging.close_consumer(consumer, self._driver.now, unread=unread)

    async def modulate(self, consumer: int, modulator: bytes) -> None:
        """Give a consumer of a channel another modulator."""
        await self._answered(lambda number, now: self._messaging.modulate(number, consumer, modulator, now))

    async def unsubscribe(self, client: str, name: str) -> None:
        """End a durable subscription."""
        await self._answered(lambda number, now: self._messaging.unsubscribe(number, client, name, now))

    async def payload(self, descriptor: Descriptor) -> bytes | None:
        """Return the body of a message."""
        self._host()
        return self._driver.payload(descriptor)

    async def give_up(self, session: int, numbers: Collection[int], error: str) -> str:
        """Make dead letters of messages."""
        return await self._answered(
            lambda number, now: self._messaging.release(number, session, numbers, now, dead=True, error=error)
        )

    async def defer(self, session: int, number: int, delay_us: int) -> None:
        """Let a message come again after a while."""
        await self._answered(lambda command, now: self._messaging.defer(command, session, number, now + delay_us, now))

    async def retry(self, session: int, number: int) -> int:
        """Count a message once more."""
        return await self._answered(lambda command, now: self._messaging.retry(command, session, number, now))

    def go_on(self, session: int) -> None:
        """Let a session receive more."""
        if session in self._sessions:
            with self._command():
                self._messaging.go_on(session, self._driver.now)

    # --- queues --------------------------------------------------------------------------------------------

    async def declare(self, asked: Declare) -> str:
        """Manage a queue."""
        return await self._answered(lambda number, now: self._messaging.declare(number, asked, now))

    async def end_queue(self, destination: str) -> None:
        """End a queue of this node."""
        await self._answered(lambda number, now: self._messaging.end_queue(number, destination, now))

    async def receive_counts(self, name: str) -> dict[NodeId, int]:
        """Return how much nodes consumed from the queues of a name."""
        with self._command(patient=True):
            return self._messaging.receive_counts(name, self._driver.now)

    async def ask_to_manage(self, asked: Declare, node: NodeId, timeout_us: int, advertise: bool) -> PlaceAnswered:
        """Ask another node to manage a queue."""
        number = self._next()
        with self._command():
            now = self._driver.now
            self._messaging.place(number, asked, node, now + timeout_us, now, advertise=advertise)
        answer: PlaceAnswered = await asyncio.shield(self._answer(number))
        return answer

    async def declare_topic(self, name: str) -> str:
        """Hold a topic."""
        return await self._answered(lambda number, now: self._messaging.declare_topic(number, name, now))

    async def end_topic(self, destination: str) -> None:
        """Hold a topic no more."""
        await self._answered(lambda number, now: self._messaging.end_topic(number, destination, now))

    async def browse(self, session: int, destination: str, selector: str | None) -> Browsing:
        """Return the messages that wait in a queue."""
        with self._command():
            found = self._messaging.browse(session, destination, selector, self._driver.now)
        if found.descriptors is None:
            self._browsings[found.number] = session
        return found

    async def remember_request(self, correlation: str, deadline_us: int) -> None:
        """Note that a request is about to be sent."""
        await self._answered(
            lambda number, now: self._messaging.remember_request(number, correlation, deadline_us, now)
        )

    async def forget_request(self, correlation: str) -> None:
        """Forget the note of a request."""
        await self._answered(lambda number, now: self._messaging.forget_request(number, correlation, now))

    async def open_requests(self) -> tuple[OpenRequest, ...]:
        """Return the requests that have no reply yet."""
        return self._messaging.open_requests()

    # --- units of work -------------------------------------------------------------------------------------

    def room(self) -> Coroutine[Any, Any, None]:
        """Wait while too much waits for the disk."""
        return self._driver.room()

    async def followed(self, session: int, message: MessageId) -> Followed | None:
        """Return a message of this node that is followed."""
        with self._command():
            found = self._messaging.followed(message, self._driver.now)
        if found is not None:
            self._follow(session, message)
        return found

    async def draft(self, session: int, draft: Draft) -> tuple[int, Descriptor | None]:
        """Keep a message for a unit of work."""
        with translating:
            return self._host().draft(session, draft, self._driver.now)

    async def rollback(self, session: int, unread: Collection[int]) -> int:
        """Forget drafts, and let messages come again."""
        with self._command():
            return self._messaging.rollback(session, self._driver.now, unread=unread)

    def perform(self, asked: Perform) -> Performed:
        """Carry out a unit of work."""
        number = self._next()
        session, sends, acks, durability, _ = asked
        with self._command(patient=durability is not _FULL):
            made = self._host().perform(UnitOfWork(number, sends, acks, durability, session), self._driver.now)
        for descriptor in made:
            self._follow(session, descriptor.id)
        sent: asyncio.Future[tuple[Descriptor, ...]] = self._loop.create_future()
        sent.set_result(made)
        return Performed(sent, self._answer(number))

    async def _answered(self, command: Callable[[int, int], T]) -> T:
        """Give the host a command, of a number and the time; returns when what it did is durable."""
        number = self._next()
        with self._command():
            found = command(number, self._driver.now)
        await asyncio.shield(self._answer(number))
        return found

    # --- names ---------------------------------------------------------------------------------------------

    async def bind(self, asked: Bind) -> None:
        """Let a name stand for a destination, or make a context."""
        await self._answered(lambda number, now: self._messaging.bind(number, asked, now))

    async def unbind(self, name: str, context: bool) -> None:
        """Let a name go, or a context."""
        await self._answered(lambda number, now: self._messaging.unbind(number, name, now, context=context))

    async def lookup(self, name: str, timeout_s: float, kind: Kind | None) -> Binding:
        """Return the binding of a name."""
        ends_s = self._loop.time() + timeout_s
        while True:
            try:
                with self._command(patient=True):
                    return self._messaging.lookup(name, self._driver.now, kind=kind)
            except NameNotFoundException:
                left_s = ends_s - self._loop.time()
                if left_s <= 0:
                    raise
            await self._advertised(name, left_s)

    async def _advertised(self, name: str, timeout_s: float) -> None:
        """Wait until a destination is advertised under this name, at most for `timeout_s`."""
        waiting = self._loop.create_future()
        self._awaited[waiting] = name
        try:
            await asyncio.wait([waiting], timeout=timeout_s)
        finally:
            del self._awaited[waiting]

    async def discover(self, timeout_us: int) -> Discovered:
        """Ask all nodes in reach for their names."""
        number = self._next()
        with self._command():
            host, now = self._host(), self._driver.now
            host.messaging.discover(number, host.reach(), now + timeout_us, now)
        found: Discovered = await asyncio.shield(self._answer(number))
        return found

    async def entries(self, context: str) -> list[Binding]:
        """Return the bindings in a context."""
        with self._command(patient=True):
            return self._messaging.entries(context, self._driver.now)

    def _next(self) -> int:
        self._number += 1
        return self._number

    def _answer(self, number: int) -> asyncio.Future[Any]:
        """Return a future for the answer to the command of this number. It is set after the host is drained."""
        answer = self._unanswered[number] = self._loop.create_future()
        return answer

    # --- the host ------------------------------------------------------------------------------------------

    def _host(self) -> Host:
        if self._ended:
            raise IllegalStateException(self._ended, NODE_ENDED)
        return self._driver.command()

    @property
    def _messaging(self) -> MessagingCommands:
        return self._host().messaging

    def _command(self, *, patient: bool = False) -> HostCommand:
        """Return a step of the host, after which it is drained; `patient`: no caller waits for that."""
        return self._commands[patient]

    def _drain_soon(self, *, patient: bool) -> None:
        """Drain the host in the next turn, after all commands of this one; or later, as long as all are patient."""
        self._more = True
        if not patient:
            self._patient = False
        if not self._drains:
            self._drains = True
            self._patient_until_s = self._loop.time() + _PATIENCE_S
            self._loop.call_soon(self._drain)

    def _drain(self) -> None:
        if self._more and self._patient and self._loop.time() < self._patient_until_s:
            self._more = False
            self._loop.call_soon(self._drain)
            return
        self._drains, self._patient = False, True
        if not self._ended:
            self._driver.drain()
