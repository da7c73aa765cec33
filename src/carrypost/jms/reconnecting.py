"""A provider that outlives its node: it attaches again when the node is back, and restores what its programs had open.

Programs hold numbers of connections, sessions, consumers and messages, which a restarted node does not know. So they
get numbers of this provider, which translates them. It stores how each object was opened. Calls that were not begun
wait for the node. Calls that the node was to answer when it ended raise, unless they can be made again without harm.
"""
# What must hold. A message that the old node handed over is void: its number is at most `_through`,
# and no call for it reaches the new node, where another message may have the same number. The
# programs drop such messages (`Program.interrupted`) before anything new can come, and the new node
# hands them over again.
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
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import msgspec

from carrypost.errors import CarrypostError, IllegalStateException, JMSException, NoNodeError
from carrypost.events import Browsed, ClaimLost, GivenUp, Handed, OverlayTold, Receipt, Unserved
from carrypost.gossip.layer import Draft
from carrypost.jms.provider import NODE_ENDED, NODE_LOST, NodeInfo, Perform, Performed, Program, Provider, is_lost
from carrypost.jms.values import CALLS, Call, RemoteProvider
from carrypost.model.descriptor import Descriptor
from carrypost.mom.commands import Ack, Declare, Receive, Subscribe

_log = logging.getLogger("carrypost.jms")
E = TypeVar("E", GivenUp, OverlayTold, Unserved)
FIRST_S, LONGEST_S = 0.1, 5.0
"""Pause after the first attempt that failed, and the longest one; each is twice as long as the one before."""
_REPEATED = frozenset({
    "browse", "consume", "declare", "declare_topic", "discover", "entries", "followed", "lookup",
    "open_requests", "open_session", "receive_counts", "remember_request",
})  # fmt: skip
"""Calls that are made again if the node ended before it answered: to make them twice has the effect of one."""
_STALE = (
    "the message was received before the connection to the node was lost, and cannot be acknowledged: it comes again, "
    "flagged as redelivered"
)


class Attachment(Provider, Protocol):
    """A provider that may end before its programs do."""

    @property
    def is_over(self) -> bool:
        """True if the node is gone, or the connection to it is closed."""

    async def close(self) -> None:
        """Leave the node."""


@dataclass(slots=True, eq=False)
class _Connection:
    """A connection of a program: its number here, and on the node."""

    number: int
    real: int
    client: str
    program: Program
    temporaries: dict[str, Declare] = field(default_factory=dict)
    """The temporary queues of the connection, by destination."""


@dataclass(slots=True, eq=False)
class _Session:
    """A session."""

    number: int
    real: int
    connection: _Connection


@dataclass(slots=True, eq=False)
class _Consumer:
    """A consumer, and the request that opened it."""

    number: int
    real: int
    session: _Session
    asked: Subscribe | Receive


_Opened = _Connection | _Session | _Consumer


class ReconnectingProvider(RemoteProvider):
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
        self._connections: dict[int, _Connection] = {}
        self._sessions: dict[int, _Session] = {}
        self._consumers: dict[int, _Consumer] = {}
        self._by_real: dict[int, int] = {}
        """Numbers of consumers, by those on the node."""
        self._number = 0
        """The highest number of a connection, session or consumer."""
        self._through = 0
        """Messages up to this number are void. Those of the present node have its own numbers, plus this one."""
        self._highest = 0
        """The highest number of a message."""
        self._waiting: dict[asyncio.Future[Any], tuple[Perform, Performed]] = {}
        """Units of work that wait for the node, by their future `sent`."""
        self._changed: asyncio.Future[None] | None = None
        """Future that is set when the node is back, or something was closed."""
        self._returning: asyncio.Task[None] | None = None
        self._pause_s = FIRST_S
        self._back_s = asyncio.get_running_loop().time()
        """Time at which the node was reached, by the event loop's clock."""

    @classmethod
    def of(
        cls, inner: Attachment, attach: Callable[[], Awaitable[Attachment]], place: str, limit_s: float
    ) -> ReconnectingProvider:
        """Return a provider that reconnects."""
        return cls(inner, attach, place, limit_s)

    @property
    def is_over(self) -> bool:
        """True if there is no way back to the node, or the node is gone and no program waits for it."""
        unnoticed = self._inner is not None and self._inner.is_over and not self._connections
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

    # --- calls ---------------------------------------------------------------------------------------------

    async def ask(self, call: Call, *args: object) -> Any:  # noqa: ANN401 - each call knows what it gets
        """Make a call once the node is there, and wait for its value."""
        while True:
            inner = await self._present(call, args)
            try:
                value = await getattr(inner, call.name)(*self._real(call, args))
            except JMSException as error:
                if not is_lost(error):
                    raise
                if call.name not in _REPEATED:
                    raise IllegalStateException(str(error), NODE_LOST) from error
                if self._inner is inner and not inner.is_over:  # The node ends, and hangs up at any moment.
                    await self._news()
            else:
                if self._inner is inner or call.name not in _REPEATED:
                    return value

    async def _present(self, call: Call, args: tuple[Any, ...]) -> Attachment:
        """Wait for the node; raises `IllegalStateException` if what the call is about is closed meanwhile."""
        while True:
            self._check()
            if self._inner is not None:
                return self._inner
            self._real(call, args)
            await self._news()

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

    def _real(self, call: Call, args: tuple[Any, ...]) -> list[Any]:
        """Return the arguments of a call as the node knows them; raises `IllegalStateException` for what is closed."""
        made = list(args)
        for name, at in call.at.items():
            given = args[at]
            match name:
                case "connection":
                    made[at] = _found(self._connections, given, name).real
                case "session":
                    made[at] = _found(self._sessions, given, name).real
                case "consumer":
                    made[at] = _found(self._consumers, given, name).real
                case "unread" | "numbers" if given is not None:
                    made[at] = [number - self._through for number in given if number > self._through]
                case "number":
                    made[at] = self._live(given)
                case "through":
                    made[at] = given - self._through
                case "asked" if isinstance(given, Declare) and given.connection:
                    of = _found(self._connections, given.connection, "connection")
                    made[at] = msgspec.structs.replace(given, connection=of.real)
                case "draft":
                    made[at] = self._real_draft(given)
                case _:
                    pass
        return made

    def _live(self, number: int) -> int:
        """Return the number that the node gave a message; raises `IllegalStateException` if the message is void."""
        if number <= self._through:
            raise IllegalStateException(_STALE, NODE_LOST)
        return number - self._through

    def _real_draft(self, draft: Draft) -> Draft:
        """Return a draft whose headers name connection and session as the node knows them."""
        headers = draft.headers
        if headers is None or (session := self._sessions.get(headers.session)) is None:
            return draft
        real = session.connection.real, session.real
        if (headers.connection, headers.session) == real:
            return draft
        headers = msgspec.structs.replace(headers, connection=real[0], session=real[1])
        return msgspec.structs.replace(draft, headers=headers)

    # --- what is opened and closed -------------------------------------------------------------------------

    def _next(self, real: int) -> int:
        """Return a number that nothing had before: that of the node, if possible."""
        self._number = max(self._number + 1, real)
        return self._number

    async def connect(self, client: str, program: Program) -> int:
        """Connect a program."""
        while True:
            inner = await self._present(CALLS["connect"], (client,))
            made = _Connection(0, 0, client, program)
            made.real = await inner.connect(client, _Seat(self, inner, made))
            if self._inner is inner:
                made.number = self._next(made.real)
                self._connections[made.number] = made
                return made.number

    async def open_session(self, connection: int) -> int:
        """Return one more session."""
        real = int(await self.ask(CALLS["open_session"], connection))
        made = _Session(self._next(real), real, _found(self._connections, connection, "connection"))
        self._sessions[made.number] = made
        return made.number

    async def consume(self, session: int, asked: Subscribe | Receive) -> int:
        """Open a consumer."""
        real = int(await self.ask(CALLS["consume"], session, asked))
        made = _Consumer(self._next(real), real, _found(self._sessions, session, "session"), asked)
        self._consumers[made.number] = made
        self._by_real[real] = made.number
        return made.number

    async def modulate(self, consumer: int, modulator: bytes) -> None:
        """Give a consumer of a channel another modulator."""
        await self.ask(CALLS["modulate"], consumer, modulator)
        found = self._consumers.get(consumer)
        if found is not None and isinstance(found.asked, Subscribe):
            found.asked = msgspec.structs.replace(found.asked, modulator=modulator)

    async def declare(self, asked: Declare) -> str:
        """Manage a queue; a temporary one is declared again with its connection."""
        destination = str(await self.ask(CALLS["declare"], asked))
        if asked.connection:
            _found(self._connections, asked.connection, "connection").temporaries[destination] = asked
        return destination

    async def end_queue(self, destination: str) -> None:
        """End a queue."""
        await self.ask(CALLS["end_queue"], destination)
        for connection in self._connections.values():
            connection.temporaries.pop(destination, None)

    async def disconnect(self, connection: int, unread: Collection[int]) -> None:
        """Close a connection with its sessions."""
        await self._close(CALLS["disconnect"], self._connections, connection, unread)

    async def close_session(self, session: int, unread: Collection[int]) -> None:
        """Close a session."""
        await self._close(CALLS["close_session"], self._sessions, session, unread)

    async def close_consumer(self, consumer: int, unread: Collection[int]) -> None:
        """Close a consumer."""
        await self._close(CALLS["close_consumer"], self._consumers, consumer, unread)

    async def _close(self, call: Call, opened: dict[int, Any], number: int, unread: Collection[int]) -> None:
        """Forget an object with everything in it, and close it on the node, unless the node is gone."""
        if number not in opened:
            return
        inner, args = self._inner, self._real(call, (number, unread))
        self._forget(opened.pop(number))
        if inner is not None:
            try:
                await getattr(inner, call.name)(*args)
            except JMSException as error:
                if not is_lost(error):  # Else the node has closed it by ending.
                    raise

    def _forget(self, closed: _Opened) -> None:
        for session in [each for each in self._sessions.values() if each.connection is closed]:
            self._forget(self._sessions.pop(session.number))
        for consumer in [each for each in self._consumers.values() if closed in {each, each.session}]:
            self._consumers.pop(consumer.number)
        if isinstance(closed, _Session):
            for sent, (asked, performed) in list(self._waiting.items()):
                if asked.session == closed.number:
                    del self._waiting[sent]
                    _fail(performed, IllegalStateException("the context was closed while it waited for the node"))
        self._wake()

    # --- consumers -----------------------------------------------------------------------------------------

    def credit(self, consumer: int, messages: int, nbytes: int) -> None:
        """Grant a consumer this much more credit; one that waits for its node gets all of it anew."""
        found = self._consumers.get(consumer)
        if found is not None and self._inner is not None:
            self._inner.credit(found.real, messages, nbytes)

    def go_on(self, session: int) -> None:
        """Let a session receive more."""
        found = self._sessions.get(session)
        if found is not None and self._inner is not None:
            self._inner.go_on(found.real)

    async def recover(self, session: int, unread: Collection[int], numbers: Collection[int] | None) -> int:
        """Let come again what a session has not acknowledged; void messages do so in any case."""
        if numbers is not None and all(number <= self._through for number in numbers):
            return 0
        return await self._return(CALLS["recover"], session, unread, numbers)

    async def rollback(self, session: int, unread: Collection[int]) -> int:
        """Forget drafts, and let messages come again."""
        return await self._return(CALLS["rollback"], session, unread)

    async def _return(self, call: Call, *args: object) -> int:
        """Let messages come again; if the node ends meanwhile, they do."""
        inner, through = await self._present(call, args), self._through
        try:
            return int(await getattr(inner, call.name)(*self._real(call, args))) + through
        except JMSException as error:
            if not is_lost(error) or self._ended:
                raise
            return self._highest

    async def retry(self, session: int, number: int) -> int:
        """Count a message once more; returns 0 for a void one, which the session does not have any more."""
        return 0 if number <= self._through else int(await self.ask(CALLS["retry"], session, number))

    # --- units of work -------------------------------------------------------------------------------------

    async def room(self) -> None:
        """Wait while too much waits for the node's disk."""
        if self._inner is not None:
            await self._inner.room()

    def perform(self, asked: Perform) -> Performed:
        """Begin a unit of work, or let it wait for the node."""
        self._check()
        if self._inner is not None:
            return self._inner.perform(self._real_unit(asked))
        self._real_unit(asked)
        loop = asyncio.get_running_loop()
        performed = Performed(loop.create_future(), loop.create_future())
        self._waiting[performed.sent] = asked, performed
        performed.sent.add_done_callback(self._cancelled)
        return performed

    def _cancelled(self, sent: asyncio.Future[tuple[Descriptor, ...]]) -> None:
        """Drop a unit of work whose caller was cancelled before it was begun."""
        if sent.cancelled() and sent in self._waiting:
            self._waiting.pop(sent)[1].done.cancel()

    def _real_unit(self, asked: Perform) -> Perform:
        """Return a unit of work as the node knows its parts; raises for void messages."""
        session = _found(self._sessions, asked.session, "session").real
        acks = tuple([self._real_ack(each) for each in asked.acks])
        sends = tuple([each if isinstance(each, int) else self._real_draft(each) for each in asked.sends])
        return asked._replace(session=session, sends=sends, acks=acks)

    def _real_ack(self, ack: Ack) -> Ack:
        session = _found(self._sessions, ack.session, "session").real
        numbers = tuple([self._live(number) for number in ack.numbers])
        return Ack(session, numbers, max(0, ack.through - self._through), ack.late)

    def _begin_waiting(self, inner: Attachment) -> None:
        """Begin the units of work that waited."""
        waiting, self._waiting = list(self._waiting.values()), {}
        for asked, outer in waiting:
            try:
                performed = inner.perform(self._real_unit(asked))
            except JMSException as error:
                _fail(outer, error)
            else:
                _follow(performed.sent, outer.sent)
                _follow(performed.done, outer.done)

    # --- the node goes, and returns ------------------------------------------------------------------------

    def news_of(self, inner: Attachment, consumer: int, number: int) -> tuple[int, int] | None:
        """Return the numbers of a consumer and of a message that a node handed over; None if that node is gone."""
        found = self._by_real.get(consumer)
        if inner is not self._latest or found is None:
            return None
        number += self._through
        self._highest = max(self._highest, number)
        return found, number

    def node_ended(self, inner: Attachment, reason: str) -> None:
        """Note that a node is gone, and begin to try to reach it again."""
        if inner is not self._inner or self._ended:
            return  # It is known, or the node was being restored.
        self._inner = None
        self._by_real.clear()
        self._through = self._highest
        _log.warning("lost the connection to the node at %s (%s); trying to reach it again", self._place, reason)
        loop = asyncio.get_running_loop()
        self._returning = loop.create_task(self._return_to_node(reason), name="carrypost reconnect")
        for connection in list(self._connections.values()):
            connection.program.interrupted(reason, self._through)
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
        self._by_real.clear()
        try:
            restored = [made for each in list(self._connections.values()) for made in await self._restore(inner, each)]
            await self._close_forgotten(inner, restored)
        except JMSException:
            await inner.close()
            return False
        if inner.is_over:
            return False
        self._inner, self._back_s = inner, asyncio.get_running_loop().time()
        for connection in list(self._connections.values()):
            connection.program.resumed()
        self._begin_waiting(inner)
        self._wake()
        return True

    async def _restore(self, inner: Attachment, connection: _Connection) -> list[_Opened]:
        """Open a connection again, and return it with everything in it; raises `JMSException` if the node is gone.

        A connection that the node refuses, or of which it refuses something, is closed, and its program informed.
        """
        what, restored = "the connection", list[_Opened]()
        try:
            connection.real = await inner.connect(connection.client, _Seat(self, inner, connection))
            restored.append(connection)
            for declared in list(connection.temporaries.values()):
                what = f"the temporary queue {declared.name}"
                await inner.declare(msgspec.structs.replace(declared, connection=connection.real))
            for session in [each for each in self._sessions.values() if each.connection is connection]:
                what = "a session"
                session.real = await inner.open_session(connection.real)
                restored.append(session)
            for consumer in [each for each in self._consumers.values() if each.session.connection is connection]:
                what = f"the consumer of {_destination(consumer.asked)}"
                consumer.real = await inner.consume(consumer.session.real, consumer.asked)
                self._by_real[consumer.real] = consumer.number
                restored.append(consumer)
        except JMSException as error:
            if inner.is_over or is_lost(error):
                raise
            if self._connections.pop(connection.number, None) is not None:
                self._forget(connection)
                connection.program.node_ended(
                    f"the node is back, and {what} could not be opened again: {error}. Create a new context"
                )
        return restored

    async def _close_forgotten(self, inner: Attachment, restored: list[_Opened]) -> None:
        """Close on the node what was closed here while it was being restored."""
        closing: list[tuple[Callable[[int, Collection[int]], Awaitable[None]], dict[int, Any], type[_Opened]]] = [
            (inner.disconnect, self._connections, _Connection),
            (inner.close_session, self._sessions, _Session),
            (inner.close_consumer, self._consumers, _Consumer),
        ]
        left = restored
        while True:
            restored, left = left, []
            for close, opened, kind in closing:
                for each in [made for made in restored if type(made) is kind]:
                    if each.number in opened:
                        left.append(each)
                        continue
                    try:
                        await close(each.real, ())
                    except JMSException as error:  # It was closed with what it is part of, or the node is gone.
                        if is_lost(error):
                            raise
            if len(left) == len(restored):
                return

    def _give_up(self, reason: str) -> None:
        """End everything, because there is no way back."""
        self._ended = reason
        _log.warning("%s", reason)
        connections, self._connections = list(self._connections.values()), {}
        waiting, self._waiting = list(self._waiting.values()), {}
        self._sessions.clear()
        self._consumers.clear()
        for _, performed in waiting:
            _fail(performed, IllegalStateException(reason, NODE_ENDED))
        for connection in connections:
            connection.program.node_ended(reason)
        self._wake()


class _Seat(Program):
    """A connection to one node, whose news get the numbers that the program knows."""

    def __init__(self, provider: ReconnectingProvider, inner: Attachment, connection: _Connection) -> None:
        self._provider, self._inner, self._connection = provider, inner, connection

    def deliver(self, handed: Handed, body: bytes | None = None) -> None:
        """Pass on a message."""
        numbers = self._provider.news_of(self._inner, handed.consumer, handed.number)
        if numbers is None:
            return
        if numbers != (handed.consumer, handed.number):
            handed = msgspec.structs.replace(handed, consumer=numbers[0], number=numbers[1])
        self._connection.program.deliver(handed, body)

    def _about_consumer(self, event: E, pass_on: Callable[[E], None]) -> None:
        numbers = self._provider.news_of(self._inner, event.consumer, 0)
        if numbers is not None:
            pass_on(msgspec.structs.replace(event, consumer=numbers[0]))

    def gave_up(self, event: GivenUp) -> None:
        """Pass on what became a dead letter."""
        self._about_consumer(event, self._connection.program.gave_up)

    def unserved(self, event: Unserved) -> None:
        """Pass on which consumer gets nothing further."""
        self._about_consumer(event, self._connection.program.unserved)

    def overlaid(self, event: OverlayTold) -> None:
        """Pass on the state of a consumer of a channel."""
        self._about_consumer(event, self._connection.program.overlaid)

    def browsed(self, part: Browsed) -> None:
        """Pass on a part of what waits in a queue."""
        self._connection.program.browsed(part)

    def receipt(self, receipt: Receipt) -> None:
        """Pass on how far a message has come."""
        self._connection.program.receipt(receipt)

    def lost(self, lost: ClaimLost) -> None:
        """Pass on what was lost."""
        self._connection.program.lost(lost)

    def node_ended(self, reason: str) -> None:
        """Note that the node is gone."""
        self._provider.node_ended(self._inner, reason)


def _found(opened: dict[int, Any], number: int, what: str) -> Any:  # noqa: ANN401 - each caller knows its kind
    """Return an open object; raises `IllegalStateException` if it is closed."""
    try:
        return opened[number]
    except KeyError:
        raise IllegalStateException(f"this {what} is closed: create another") from None


def _destination(asked: Subscribe | Receive) -> str:
    return asked.destination if isinstance(asked, Receive) else asked.name or "a topic"


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
