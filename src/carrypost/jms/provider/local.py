"""A provider in the same process as its node: over a host and its driver.

Commands are steps of the host, and its errors become those of JMS. The host is drained once in a turn of the event
loop, so that messages sent by several tasks at the same time are one batch, and one wait for the disk. If nothing waits
for the disk, as with NON_PERSISTENT messages and automatic acknowledgements, it is drained after a turn without further
steps, or after 2 ms: draining it for each message of one sender costs a quarter of all that a message costs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from functools import cached_property
from typing import Any, ClassVar, TypeVar

from carrypost.errors import CarrypostError, IllegalStateException, NameNotFoundException
from carrypost.host import Host
from carrypost.host.driving import ProgramDriver
from carrypost.jms.provider import (
    NODE_ENDED,
    NODE_LOST,
    ConsumerNews,
    NodeInfo,
    Perform,
    Performed,
    Program,
    Provider,
    translated,
)
from carrypost.log.events import (
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
    Unserved,
)
from carrypost.log.journal import Durability
from carrypost.messaging import commands as do
from carrypost.messaging.namespace import Binding
from carrypost.messaging.sessions import Sessions
from carrypost.model.descriptor import Descriptor
from carrypost.model.ids import MessageId

R = TypeVar("R")
_PATIENCE_S = 0.002
_FULL = Durability.FULL
_FOLLOWED_MAX = 131_072
"""Number of messages whose receipts are awaited: twice what messaging itself tracks; the rest wait for a carrier."""


class LocalProvider(Provider):
    """The messaging of a host in this process. The driver of the host passes its events to `handle_event`."""

    outlives_programs = False

    def __init__(self, driver: ProgramDriver) -> None:
        self._driver = driver
        self._loop = asyncio.get_running_loop()
        self._programs: dict[int, Program] = {}
        """By connection."""
        self._clients: dict[int, str] = {}
        """The client ids of connections; empty where there is none."""
        self._browsings: dict[int, int] = {}
        """Connections of open browsings."""
        self._followers: dict[MessageId, tuple[int, ...]] = {}
        """The connections that get the receipts of a message, until the last one; the oldest message first."""
        self._unanswered: dict[int, asyncio.Future[Any]] = {}
        self._awaited: dict[asyncio.Future[None], str] = {}
        """Names that lookups wait for."""
        self._number = 0
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

    @cached_property
    def _sessions(self) -> Sessions:
        return self._host().messaging.sessions

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
            HostLost: self._on_host_lost, Done: self._on_answered, Handed: self._on_handed, Receipt: self._on_receipt,
            GivenUp: self._on_consumer_news, Unserved: self._on_consumer_news, OverlayTold: self._on_consumer_news,
            ClaimLost: self._on_lost, Browsed: self._on_browsed, Advertised: self._on_advertised,
            do.PlaceAnswered: self._on_answered, do.Discovered: self._on_answered,
        }  # fmt: skip

    def _on_answered(self, event: Done | do.PlaceAnswered | do.Discovered) -> None:
        answer = self._unanswered.pop(event.number, None)
        if answer is not None and not answer.done():
            answer.set_result(None if isinstance(event, Done) else event)

    def _on_handed(self, handed: Handed) -> None:
        program = self._program_of(handed.consumer)
        if program is not None:  # A consumer that closed meanwhile gave back unreported messages.
            program.deliver(handed)

    def _on_consumer_news(self, news: ConsumerNews) -> None:
        program = self._program_of(news.consumer)
        if program is not None:
            program.note(news)

    def _program_of(self, consumer: int) -> Program | None:
        return self._programs.get(self._sessions.connection_of(consumer=consumer))

    def _on_receipt(self, receipt: Receipt) -> None:
        for connection in self._followers.get(receipt.message, ()):
            if (program := self._programs.get(connection)) is not None:
                program.note(receipt)
        if receipt.last:
            self._followers.pop(receipt.message, None)

    def _follow(self, session: int, message: MessageId) -> None:
        connection, known = self._sessions.connection_of(session=session), self._followers.get(message, ())
        if not connection or connection in known:
            return
        self._followers[message] = (*(each for each in known if each in self._programs), connection)
        if len(self._followers) > _FOLLOWED_MAX:
            del self._followers[next(iter(self._followers))]

    def _on_lost(self, lost: ClaimLost) -> None:
        for connection, client in self._clients.items():
            if lost.durable and client == lost.client:
                self._programs[connection].note(lost)

    def _on_browsed(self, part: Browsed) -> None:
        connection = self._browsings.get(part.number, 0)
        if part.complete:
            self._browsings.pop(part.number, None)
        if (program := self._programs.get(connection)) is not None:
            program.note(part)

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
        unanswered, self._unanswered = self._unanswered, {}
        for answer in unanswered.values():
            if not answer.done():
                answer.set_exception(error)
                answer.exception()  # A caller that does not wait for it is informed otherwise.
        for waiting in self._awaited:
            if not waiting.done():
                waiting.set_result(None)
        programs, self._programs = list(self._programs.values()), {}
        self._clients.clear()
        self._browsings.clear()
        self._followers.clear()
        for program in programs:
            program.node_ended(reason)

    # --- commands ------------------------------------------------------------------------------------------

    async def connect(self, client: str, program: Program) -> int:
        """Connect a program."""
        number = self._give(do.Connect(client))
        self._programs[number], self._clients[number] = program, client
        return number

    async def execute(self, command: do.Command[R]) -> R:
        """Carry out a command; return its answer when what it did is durable."""
        carry_out = self._special.get(type(command))
        if carry_out is not None:
            return await carry_out(self, command)  # type: ignore[no-any-return]  # as the class of the command says
        if not command.numbered:
            return self._give(command)
        number = self._next()
        found = self._give(command, number)
        event: Any = await asyncio.shield(self._answer(number))
        return found if event is None else event

    def _give(self, command: do.Command[R], number: int = 0) -> R:
        """Give the host a command."""
        return self._step(lambda host, now: host.messaging.execute(command, now, number), patient=command.patient)

    def _step(self, act: Callable[[Host, int], R], *, patient: bool | None) -> R:
        """Let the host make a step, and drain it soon; `patient`: no caller waits for that; None: it is not needed."""
        try:
            made = act(self._host(), self._driver.now)
        except CarrypostError as error:
            refusal = translated(error)
            raise refusal from refusal.__cause__
        if patient is not None:
            self._drain_soon(patient=patient)
        return made

    def tell(self, command: do.Credit | do.GoOn) -> None:
        """Carry out a command that has no answer, unless its consumer or its session is gone."""
        with suppress(IllegalStateException):
            self._give(command)

    async def _disconnect(self, asked: do.Disconnect) -> None:
        self._give(asked)
        del self._programs[asked.connection], self._clients[asked.connection]
        self._browsings = {number: of for number, of in self._browsings.items() if of != asked.connection}

    async def _consume(self, asked: do.Consume) -> int:
        number = self._next()
        consumer = self._give(asked, number)
        try:
            await asyncio.shield(self._answer(number))
        except asyncio.CancelledError:  # The program never got the consumer.
            with suppress(IllegalStateException):  # It closed with its session.
                self._give(do.CloseConsumer(consumer))
            raise
        return consumer

    async def _announce(self, _: do.Announce) -> None:
        """Do nothing: the counts on disk have all messages that were handed over."""

    async def _browse(self, asked: do.Browse) -> do.Browsing:
        found = self._give(asked)
        if found.descriptors is None:
            self._browsings[found.number] = self._sessions.connection_of(session=asked.session)
        return found

    async def _followed(self, asked: do.Follow) -> do.Followed | None:
        found = self._give(asked)
        if found is not None:
            self._follow(asked.session, asked.message)
        return found

    async def _draft(self, asked: do.KeepDraft) -> tuple[int, Descriptor | None]:
        return self._step(lambda host, now: host.draft(asked.session, asked.draft, now), patient=None)

    async def _discover(self, asked: do.Discover) -> do.Discovered:
        number = self._next()
        self._step(
            lambda host, now: host.messaging.discover(number, host.reach(), now + asked.timeout_us, now), patient=False
        )
        found: do.Discovered = await asyncio.shield(self._answer(number))
        return found

    async def _lookup(self, asked: do.Lookup) -> Binding:
        ends_s = self._loop.time() + asked.timeout_s
        while True:
            try:
                return self._give(asked)
            except NameNotFoundException:
                left_s = ends_s - self._loop.time()
                if left_s <= 0:
                    raise
            await self._advertised(asked.name, left_s)

    async def _advertised(self, name: str, timeout_s: float) -> None:
        """Wait until a destination is advertised under this name, at most for `timeout_s`."""
        waiting = self._loop.create_future()
        self._awaited[waiting] = name
        try:
            await asyncio.wait([waiting], timeout=timeout_s)
        finally:
            del self._awaited[waiting]

    _special: ClassVar[Mapping[type[do.Command[Any]], Callable[[LocalProvider, Any], Coroutine[Any, Any, Any]]]] = {
        do.Disconnect: _disconnect, do.Consume: _consume, do.Announce: _announce, do.Browse: _browse,
        do.Follow: _followed, do.KeepDraft: _draft, do.Discover: _discover, do.Lookup: _lookup,
    }  # fmt: skip
    """Commands of which something is noted here, or which do not end with their step."""

    # --- units of work -------------------------------------------------------------------------------------

    def room(self) -> Coroutine[Any, Any, None]:
        """Wait while too much waits for the disk."""
        return self._driver.room()

    def perform(self, asked: Perform) -> Performed:
        """Carry out a unit of work."""
        number, durability = self._next(), asked.durability
        unit = do.UnitOfWork(number, asked.sends, asked.acks, durability, asked.session)
        made = self._step(lambda host, now: host.perform(unit, now), patient=durability is not _FULL)
        for descriptor in made:
            self._follow(asked.session, descriptor.id)
        sent: asyncio.Future[tuple[Descriptor, ...]] = self._loop.create_future()
        sent.set_result(made)
        return Performed(sent, self._answer(number))

    async def payload(self, descriptor: Descriptor) -> bytes | None:
        """Return the body of a message."""
        self._host()
        return self._driver.payload(descriptor)

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
