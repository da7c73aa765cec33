"""A provider that outlives its node: it attaches again when the node is back, and restores what its programs had open.

Calls that were not begun wait for the node. Calls that the node was to answer when it ended raise, unless they can be
made again without harm. `jms.provider.open_objects` has everything that is open, and translates the numbers of the
node.
"""

# What must hold. Messages that the old node handed over are void. The programs drop them
# (`Program.interrupted`) before anything new can come, and the new node hands them over again.
#
# All consumers of all programs are open again before one of them has credit (`Program.resumed`). A
# live subscription claims what no program of the node has acknowledged, so otherwise an early one
# could acknowledge what a late one still lacks.
#
# While the node is away, closing is a matter of this module alone: the object is forgotten, and not
# restored. What is closed while it is being restored is closed on the new node as well.

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from typing import Any, ClassVar, Protocol, TypeVar

import msgspec

from carrypost.errors import CarrypostError, IllegalStateException, JMSException, NoNodeError
from carrypost.jms.provider import (
    NODE_ENDED,
    NODE_LOST,
    ConsumerNews,
    News,
    NodeInfo,
    Perform,
    Performed,
    Program,
    Provider,
    is_lost,
)
from carrypost.jms.provider.open_objects import Opened, OpenedConnection, OpenedConsumer, OpenedSession, OpenObjects
from carrypost.log.events import Handed
from carrypost.messaging import commands as do
from carrypost.messaging.commands import Command, Subscribe
from carrypost.model.descriptor import Descriptor

_log = logging.getLogger("carrypost.jms")
R = TypeVar("R")
FIRST_S, LONGEST_S = 0.1, 5.0
"""Pause after the first attempt that failed, and the longest one; each is twice as long as the one before."""
_REPEATED = frozenset({
    do.Browse, do.Consume, do.DeclareQueue, do.DeclareTopic, do.Discover, do.Entries, do.Follow, do.Lookup,
    do.OpenRequests, do.OpenSession, do.ReceiveCounts, do.RememberRequest,
})  # fmt: skip
"""Commands that are given again if the node ended before it answered: to give them twice has the effect of one."""

_CLOSERS: Mapping[type[Opened], Callable[[int], Command[None]]] = {
    OpenedConnection: do.Disconnect, OpenedSession: do.CloseSession, OpenedConsumer: do.CloseConsumer,
}  # fmt: skip


class Attachment(Provider, Protocol):
    """A provider that may end before its programs do."""

    @property
    def is_over(self) -> bool:
        """True if the node is gone, or the connection to it is closed."""

    def end(self, reason: str) -> None:
        """Inform everything that waits that the node is gone."""

    async def close(self) -> None:
        """Leave the node."""


class ReconnectingProvider(Provider):
    """The messaging of a node, over its restarts: at first `inner`, later what `attach` returns.

    `attach` raises `NoNodeError` if it does not reach the node. `limit_s` is the time for which that is tried, and may
    be infinite. `place` names the node in the log.
    """

    reconnects = True

    def __init__(
        self, inner: Attachment, attach: Callable[[], Awaitable[Attachment]], place: str, limit_s: float
    ) -> None:
        self._attach, self._place, self._limit_s = attach, place, limit_s
        self._inner: Attachment | None = inner
        """The provider in use; None while the node is away."""
        self._latest = inner
        """The last provider: in use, being restored, or lost."""
        self._ended = ""
        """Reason why there is no way back."""
        self._open = OpenObjects()
        self._waiting: dict[asyncio.Future[Any], tuple[Perform, Performed]] = {}
        """Units of work that wait for the node, by their future `sent`."""
        self._changed: asyncio.Future[None] | None = None
        """Future that is set when the node is back, or something was closed."""
        self._returning: asyncio.Task[None] | None = None
        self._pause_s = FIRST_S
        self._back_s = asyncio.get_running_loop().time()
        """Time at which the node was reached, by the event loop's clock."""

    @property
    def outlives_programs(self) -> bool:
        """True if the node is in another process."""
        return self._latest.outlives_programs

    @property
    def is_over(self) -> bool:
        """True if there is no way back to the node, or the node is gone and no program waits for it."""
        unnoticed = self._inner is not None and self._inner.is_over and not self._open.connections
        return unnoticed or bool(self._ended)

    def check_present(self) -> None:
        """Raise `NoNodeError` while the node is gone: a program that is not connected yet does not wait for it."""
        if self._inner is None:
            raise NoNodeError(f"no node answers at {self._place}; start one with: carrypost node")

    async def close(self) -> None:
        """Leave the node, or stop waiting for it."""
        self._ended = self._ended or "this program is no longer attached to the node: create a new context"
        if self._returning is not None:
            self._returning.cancel()
            await asyncio.wait({self._returning})
        await self._latest.close()
        self._wake()

    @property
    def node_info(self) -> NodeInfo:
        """The node, and its limits and settings, as they were when it was last reached."""
        return self._latest.node_info

    def now_us(self) -> int:
        """Return the date on the node."""
        return self._latest.now_us()

    # --- commands ------------------------------------------------------------------------------------------

    async def execute(self, command: Command[R]) -> R:
        """Carry out a command once the node is there, and wait for its answer."""
        carry_out = self._special.get(type(command), ReconnectingProvider._ask)
        return await carry_out(self, command)  # type: ignore[no-any-return]  # as the class of the command says

    async def _ask(self, command: Command[R]) -> R:
        while True:
            inner = await self._present(command)
            try:
                value = await inner.execute(self._open.real(command))
            except JMSException as error:
                if not is_lost(error):
                    raise
                if type(command) not in _REPEATED:
                    raise IllegalStateException(str(error), NODE_LOST) from error
                await self._hung_up(inner)
            else:
                if self._inner is inner or type(command) not in _REPEATED:
                    return value

    async def _hung_up(self, inner: Attachment) -> None:
        """Wait for the end of a node that did not answer because it ends: it hangs up at any moment."""
        if self._inner is inner and not inner.is_over:
            if self._open.connections:
                await self._news()
            else:  # No program would hear of it.
                inner.end("the node has ended")

    async def _present(self, command: Command[Any]) -> Attachment:
        """Wait for the node; raises `IllegalStateException` if what the command is about is closed meanwhile."""
        while True:
            self._check()
            if self._inner is not None and not self._inner.is_over:
                return self._inner
            if self._inner is not None:  # Nothing was open on the node that could have been informed.
                self.node_ended(self._inner, "the node has ended")
            self._open.real(command)
            await self._news()

    async def payload(self, descriptor: Descriptor) -> bytes | None:
        """Return the body of a message."""
        inner = self._inner
        if inner is None or inner.is_over:
            inner = await self._present(do.ReadPayload(descriptor.wire))
        return await inner.payload(descriptor)

    def _check(self) -> None:
        if self._ended:
            raise IllegalStateException(self._ended, NODE_ENDED)

    async def _news(self) -> None:
        if self._changed is None:
            self._changed = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._changed)

    def _wake(self) -> None:
        changed, self._changed = self._changed, None
        if changed is not None and not changed.done():
            changed.set_result(None)

    # --- what is opened and closed -------------------------------------------------------------------------

    async def connect(self, client: str, program: Program) -> int:
        """Connect a program."""
        while True:
            inner = await self._present(do.Connect(client))
            made = OpenedConnection(client, program)
            try:
                made.real = await inner.connect(client, _Seat(self, inner, made))
            except JMSException as error:
                if not is_lost(error):
                    raise
                await self._hung_up(inner)
            else:
                if self._inner is inner:
                    return self._open.add(made)

    async def _open_session(self, asked: do.OpenSession) -> int:
        real = await self._ask(asked)
        return self._open.add(OpenedSession(self._open.connection(asked.connection), real))

    async def _consume(self, asked: do.Consume) -> int:
        real = await self._ask(asked)
        return self._open.add(OpenedConsumer(self._open.session(asked.session), asked.asked, real))

    async def _modulate(self, asked: do.Modulate) -> None:
        await self._ask(asked)
        found = self._open.consumers.get(asked.consumer)
        if found is not None and isinstance(found.asked, Subscribe):
            found.asked = msgspec.structs.replace(found.asked, modulator=asked.modulator)

    async def _declare(self, asked: do.DeclareQueue) -> str:
        """Manage a queue; a temporary one is declared again with its connection."""
        destination = await self._ask(asked)
        if asked.asked.connection:
            self._open.connection(asked.asked.connection).temporaries[destination] = asked.asked
        return destination

    async def _end_queue(self, asked: do.EndQueue) -> None:
        await self._ask(asked)
        for connection in self._open.connections.values():
            connection.temporaries.pop(asked.destination, None)

    async def _close(self, asked: do.Disconnect | do.CloseSession | do.CloseConsumer) -> None:
        """Forget an object with everything in it, and close it on the node, unless the node is gone."""
        closed = self._open.closed_by(asked)
        if closed is None:
            return
        inner, real = self._inner, self._open.real(asked)
        self._forget(closed)
        if inner is not None:
            try:
                await inner.execute(real)
            except JMSException as error:
                if not is_lost(error):  # Else the node has closed it by ending.
                    raise

    def _forget(self, closed: Opened) -> None:
        """Forget an object, and fail everything in it that waits for the node."""
        self._open.remove(closed)
        for sent, (asked, performed) in list(self._waiting.items()):
            if asked.session not in self._open.sessions:
                del self._waiting[sent]
                _fail(performed, IllegalStateException("the context was closed while it waited for the node"))
        self._wake()

    # --- consumers -----------------------------------------------------------------------------------------

    def tell(self, command: do.Credit | do.GoOn) -> None:
        """Carry out a command that has no answer; a consumer that waits for its node gets all credit anew."""
        consumers, sessions = self._open.consumers, self._open.sessions
        is_open = command.consumer in consumers if isinstance(command, do.Credit) else command.session in sessions
        if is_open and self._inner is not None:
            self._inner.tell(self._open.real(command))

    async def _recover(self, asked: do.Recover) -> int:
        """Let come again what a session has not acknowledged; void messages do so in any case."""
        if asked.numbers is not None and all(number <= self._open.through for number in asked.numbers):
            return 0
        return await self._return(asked)

    async def _return(self, asked: do.Recover | do.Rollback) -> int:
        """Let messages come again; if the node ends meanwhile, they do."""
        inner, through = await self._present(asked), self._open.through
        try:
            return await inner.execute(self._open.real(asked)) + through
        except JMSException as error:
            if not is_lost(error) or self._ended:
                raise
            return self._open.highest

    async def _retry(self, asked: do.Retry) -> int:
        """Count a message once more; returns 0 for a void one, which the session does not have any more."""
        return 0 if asked.number <= self._open.through else await self._ask(asked)

    _special: ClassVar[Mapping[type[Command[Any]], Callable[[ReconnectingProvider, Any], Coroutine[Any, Any, Any]]]] = {
        do.OpenSession: _open_session, do.Consume: _consume, do.Modulate: _modulate, do.DeclareQueue: _declare,
        do.EndQueue: _end_queue, do.Disconnect: _close, do.CloseSession: _close, do.CloseConsumer: _close,
        do.Recover: _recover, do.Rollback: _return, do.Retry: _retry,
    }  # fmt: skip
    """Commands of which something is noted here, or that are carried out in another way if the node is lost."""

    # --- units of work -------------------------------------------------------------------------------------

    async def room(self) -> None:
        """Wait while too much waits for the node's disk."""
        if self._inner is not None:
            await self._inner.room()

    def perform(self, asked: Perform) -> Performed:
        """Begin a unit of work, or let it wait for the node."""
        self._check()
        if self._inner is not None:
            return self._inner.perform(self._open.real_unit(asked))
        self._open.real_unit(asked)
        loop = asyncio.get_running_loop()
        performed = Performed(loop.create_future(), loop.create_future())
        self._waiting[performed.sent] = asked, performed
        performed.sent.add_done_callback(self._cancelled)
        return performed

    def _cancelled(self, sent: asyncio.Future[tuple[Descriptor, ...]]) -> None:
        """Drop a unit of work whose caller was cancelled before it was begun."""
        if sent.cancelled() and sent in self._waiting:
            self._waiting.pop(sent)[1].done.cancel()

    def _begin_waiting(self, inner: Attachment) -> None:
        """Begin the units of work that waited."""
        waiting, self._waiting = list(self._waiting.values()), {}
        for asked, outer in waiting:
            try:
                performed = inner.perform(self._open.real_unit(asked))
            except JMSException as error:
                _fail(outer, error)
            else:
                _follow(performed.sent, outer.sent)
                _follow(performed.done, outer.done)

    # --- the node goes, and returns ------------------------------------------------------------------------

    def open_objects_of(self, inner: Attachment) -> OpenObjects | None:
        """Return the open objects for news of a node; None if that node is gone, and another one is there."""
        return self._open if inner is self._latest else None

    def node_ended(self, inner: Attachment, reason: str) -> None:
        """Note that a node is gone, and begin to try to reach it again."""
        if inner is not self._inner or self._ended:
            return  # It is known, or the node was being restored.
        self._inner = None
        self._open.interrupt()
        _log.warning("lost the connection to the node at %s (%s); trying to reach it again", self._place, reason)
        loop = asyncio.get_running_loop()
        self._returning = loop.create_task(self._return_to_node(reason), name="carrypost reconnect")
        for connection in list(self._open.connections.values()):
            if not connection.program.interrupted(reason, self._open.through):
                self._forget(connection)
        self._wake()

    async def _return_to_node(self, reason: str) -> None:
        """Return to the node, or give up."""
        try:
            await self._try_again(reason)
        except Exception as error:  # noqa: BLE001 - Programs must not wait for ever because of a mistake of ours.
            _log.exception("the node at %s cannot be reached again", self._place)
            self._give_up(f"the node is back, and cannot be used: {error!r}")

    async def _try_again(self, reason: str) -> None:
        """Try to reach the node until it is back, or the time is over."""
        loop = asyncio.get_running_loop()
        lost_s = loop.time()
        if lost_s - self._back_s > LONGEST_S:
            self._pause_s = FIRST_S
        else:  # A node that ends again and again is not asked more and more often.
            await self._rest(LONGEST_S)
        while not await self._tried():
            left_s = lost_s + self._limit_s - loop.time()
            if left_s <= 0:
                self._give_up(f"{reason}, and was not back within {self._limit_s:,g} s: create a new context")
            if self._ended:
                return
            await self._rest(left_s)
        _log.info("reached the node at %s again after %.1f s", self._place, loop.time() - lost_s)

    async def _rest(self, limit_s: float) -> None:
        """Wait before the next attempt, and longer before the one after that."""
        await asyncio.sleep(min(self._pause_s, limit_s))
        self._pause_s = min(2 * self._pause_s, LONGEST_S)

    async def _tried(self) -> bool:
        """Try to reach the node once, and to restore everything; return True if it is back."""
        try:
            inner = await self._attach()
        except NoNodeError:
            return False
        except CarrypostError as error:
            self._give_up(f"the node is back, and cannot be used: {error}")
            return False
        if inner.node_info.node != self.node_info.node:
            self._give_up(
                f"another node, {inner.node_info.node}, is now at {self._place}: this program was attached to "
                f"{self.node_info.node}. Create a new context to use the other one"
            )
            await inner.close()
            return False
        self._latest = inner
        self._open.interrupt()
        try:
            opened = list(self._open.connections.values())
            restored = [made for each in opened for made in await self._restore(inner, each)]
            await self._close_forgotten(inner, restored)
        except JMSException:
            await inner.close()
            return False
        if inner.is_over:
            return False
        self._inner, self._back_s = inner, asyncio.get_running_loop().time()
        for connection in list(self._open.connections.values()):
            connection.program.resumed()
        self._begin_waiting(inner)
        self._wake()
        return True

    async def _restore(self, inner: Attachment, connection: OpenedConnection) -> list[Opened]:
        """Open a connection again, and return it with everything in it; raises `JMSException` if the node is gone.

        A connection that the node refuses, or of which it refuses something, is closed, and its program informed.
        """
        opened, what, restored = self._open, "the connection", list[Opened]()
        try:
            connection.real = await inner.connect(connection.client, _Seat(self, inner, connection))
            restored.append(connection)
            for declared in list(connection.temporaries.values()):
                what = f"the temporary queue {declared.name}"
                await inner.execute(do.DeclareQueue(msgspec.structs.replace(declared, connection=connection.real)))
            for session in [each for each in opened.sessions.values() if each.connection is connection]:
                what = "a session"
                session.real = await inner.execute(do.OpenSession(connection.real))
                restored.append(session)
            for consumer in [each for each in opened.consumers.values() if each.session.connection is connection]:
                if opened.has(consumer):
                    what = consumer.shown
                    opened.reopened(consumer, await inner.execute(do.Consume(consumer.session.real, consumer.asked)))
                    restored.append(consumer)
        except JMSException as error:
            if inner.is_over or is_lost(error):
                raise
            if opened.has(connection):
                self._forget(connection)
                connection.program.node_ended(
                    f"the node is back, and {what} could not be opened again: {error}. Create a new context"
                )
        return restored

    async def _close_forgotten(self, inner: Attachment, restored: list[Opened]) -> None:
        """Close on the node what was closed here while it was being restored."""
        while forgotten := [each for each in restored if not self._open.has(each)]:
            restored = [each for each in restored if each not in forgotten]
            for each in forgotten:
                try:
                    await inner.execute(_CLOSERS[type(each)](each.real))
                except JMSException as error:  # It was closed with what it is part of, or the node is gone.
                    if is_lost(error):
                        raise

    def _give_up(self, reason: str) -> None:
        """End everything, because there is no way back."""
        _log.warning("%s", reason)
        self.end(reason)

    def end(self, reason: str) -> None:
        """Inform everything that waits that the node is gone for good."""
        self._ended = reason
        if self._inner is not None:
            self._inner.end(reason)
        if self._returning is not None and self._returning is not asyncio.current_task():
            self._returning.cancel()
        connections, self._open = list(self._open.connections.values()), OpenObjects()
        waiting, self._waiting = list(self._waiting.values()), {}
        for _, performed in waiting:
            _fail(performed, IllegalStateException(reason, NODE_ENDED))
        for connection in connections:
            connection.program.node_ended(reason)
        self._wake()


class _Seat(Program):
    """A connection to one node, whose news get the numbers that the program knows."""

    def __init__(self, provider: ReconnectingProvider, inner: Attachment, connection: OpenedConnection) -> None:
        self._provider, self._inner, self._connection = provider, inner, connection

    def deliver(self, handed: Handed, body: bytes | None = None) -> None:
        """Pass on a message."""
        opened = self._provider.open_objects_of(self._inner)
        if opened is None or (consumer := opened.consumer_at(handed.consumer)) is None:
            return
        number = opened.message(handed.number)
        if (consumer, number) != (handed.consumer, handed.number):
            handed = msgspec.structs.replace(handed, consumer=consumer, number=number)
        self._connection.program.deliver(handed, body)

    def note(self, news: News) -> None:
        """Pass on news, those of a consumer with the number that the program knows."""
        if isinstance(news, ConsumerNews):
            opened = self._provider.open_objects_of(self._inner)
            if opened is None or (consumer := opened.consumer_at(news.consumer)) is None:
                return
            news = msgspec.structs.replace(news, consumer=consumer)
        self._connection.program.note(news)

    def node_ended(self, reason: str) -> None:
        """Note that the node is gone."""
        self._provider.node_ended(self._inner, reason)


def _fail(futures: Iterable[asyncio.Future[Any]], error: JMSException) -> None:
    for future in futures:
        if not future.done():
            future.set_exception(error)
            future.exception()  # It counts as seen: its caller may be gone.


def _follow(inner: asyncio.Future[Any], outer: asyncio.Future[Any]) -> None:
    """Let a future end as another one does."""

    def end(_: object) -> None:
        if outer.done():
            return
        error = inner.exception()
        if error is not None:
            outer.set_exception(error)
            outer.exception()
        else:
            outer.set_result(inner.result())

    inner.add_done_callback(end)
