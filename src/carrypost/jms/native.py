"""Serves a provider to programs at the node's socket: each call of a program is a call of the provider.

Calls begin as they come, and are answered in any order. A program has only what it opened itself: connections, sessions
and consumers of others are refused. What it is told goes through `jms.telling`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Container, Coroutine, Mapping
from contextlib import suppress
from functools import cached_property, partial
from typing import Any

import msgspec
from msgspec import Raw

from carrypost.config import UNBOUNDED
from carrypost.errors import (
    CarrypostError,
    IllegalStateException,
    JMSException,
    LocalError,
    ResourceAllocationException,
)
from carrypost.events import Browsed
from carrypost.jms.flow import Bodies, Credits
from carrypost.jms.provider import Performed, Provider
from carrypost.jms.telling import Rounds, Seat, Telling
from carrypost.jms.values import CALLS, Call, Fault, encode_place
from carrypost.journal import Durability
from carrypost.mom.commands import Browsing
from carrypost.node.control import calls
from carrypost.node.control.framing import ENVELOPE_BYTES, PART_BYTES
from carrypost.node.control.line import UNWRITTEN_BYTES_MAX, Line

_log = logging.getLogger("carrypost.native")
_UNANSWERED_MAX = 256
_BROWSED = 32
"""Descriptors of a queue that are told together."""
_LOOK_S = 1.0
_DRIFT_US = 5_000
"""Time between two looks at the clocks, and the difference that programs are told of."""
_SENDS = 64
"""Works after which is looked whether the disk is behind."""
_ALONE = frozenset({"payload", "browse"})
"""Calls whose answers may be long: a program has one of them at a time, and the others wait for it."""


def _descriptors(sent: asyncio.Future[Any]) -> Raw:
    """Return what messages were sent with, encoded."""
    return Raw(CALLS["perform"].encode_value(sent.result()))


def system_us() -> int:
    """Return the time of the system's clock."""
    return time.time_ns() // 1_000


class Native:
    """Serves one provider to all programs at a node's socket."""

    def __init__(self, provider: Provider, *, system_us: Callable[[], int] | None = system_us) -> None:
        self.provider = provider
        self._system_us = system_us
        """The system's clock, with which that of the node is compared; None: it is not."""
        self.bodies = Bodies(provider, PART_BYTES)
        self.rounds = Rounds()
        self.busy = False
        """True if the disk is behind."""
        self._programs: set[Served] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._sends = 0
        self._ahead_us = 0
        self._looking: asyncio.TimerHandle | None = None

    @cached_property
    def place(self) -> bytes:
        """Description of the node for programs, encoded."""
        return encode_place(self.provider.place)

    @property
    def parts_bytes_max(self) -> int:
        """Length of what comes in parts, at most."""
        return self.provider.place.limits.message_bytes_max + ENVELOPE_BYTES

    def join(self, line: Line) -> Served:
        """Serve one more program."""
        served = Served(self, line)
        self._programs.add(served)
        self.rounds.programs = len(self._programs)
        if self._looking is None and self._system_us is not None:
            self._look(self._system_us)
        return served

    def begin(self, work: Coroutine[Any, Any, None], of: set[asyncio.Task[None]] | None = None) -> None:
        """Do something beside all else; `of`: what ends with one program."""
        task = asyncio.get_running_loop().create_task(work)
        tasks = self._tasks if of is None else of
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    def left(self, served: Served) -> None:
        """A program is gone."""
        self._programs.discard(served)
        self.rounds.programs = len(self._programs)
        if not self._programs and self._looking is not None:
            self._looking.cancel()
            self._looking = None

    def _look(self, system_us: Callable[[], int]) -> None:
        """Tell programs if the node's clock goes another way than the system's."""
        with suppress(CarrypostError):  # The node ends.
            ahead_us = self.provider.now_us() - system_us()
            if abs(ahead_us - self._ahead_us) > _DRIFT_US:
                self._ahead_us = ahead_us
                self._tell_all(calls.Clock(ahead_us))
            self._looking = asyncio.get_running_loop().call_later(_LOOK_S, self._look, system_us)

    def sent(self) -> None:
        """Note a work of some program."""
        self._sends += 1
        if self._sends >= _SENDS and not self.busy:
            self._sends = 0
            self.begin(self._wait_for_room())

    async def _wait_for_room(self) -> None:
        waiting = asyncio.ensure_future(self.provider.room())
        await asyncio.sleep(0)
        if waiting.done() or self.busy:
            await waiting
            return
        self.busy = True
        self._tell_all(calls.Busy(True))
        await waiting
        self.busy = False
        self._tell_all(calls.Busy(False))
        for program in self._programs:
            program.went_on()

    def _tell_all(self, frame: calls.AnyReply) -> None:
        for program in self._programs:
            program.line.say(frame)


class Served:
    """One program."""

    def __init__(self, native: Native, line: Line) -> None:
        self.line = line
        self._native, self._provider = native, native.provider
        self._connections: set[int] = set()
        self._sessions: dict[int, int] = {}
        """Their connections."""
        self._consumers = Credits(self._give)
        self._mine: Mapping[str, Container[object]] = {
            "connection": self._connections, "session": self._sessions, "consumer": self._consumers,
        }  # fmt: skip
        self._browsings = 0
        self._unanswered = 0
        self._alone = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._telling = Telling(line, native.bodies, self._consumers, native.rounds, self.went_on)
        native.begin(self._telling.run(), self._tasks)

    # --- what the program asks -----------------------------------------------------------------------------

    def take(self, call: calls.Call) -> None:
        """Begin a call; raises `LocalError` for what nobody would hear of otherwise."""
        self._telling.was_read(call.read)
        known = CALLS.get(call.name)
        try:
            if known is None:
                raise JMSException(
                    f"this node does not know the call {call.name[:80]!r}: use the same carrypost for both"
                )
            args = list(known.decode(call.args))
            if known.answered:
                self._check(known, args)
        except CarrypostError as error:
            self._refuse(call.number, error)
            return
        if not known.answered:
            self._tell(known, args)
            return
        self._unanswered += 1
        if known.name == "perform":
            self._perform(call.number, args)
        else:
            self._native.begin(self._answer(call.number, known, args), self._tasks)
        self.went_on()

    def _check(self, call: Call, args: list[Any]) -> None:
        """Raise for what is not this program's, and add what it has not read to what it calls unread."""
        self._add_unread(call, args)
        for name, value in zip(call.parameters, args, strict=True):
            if name in self._mine and value not in self._mine[name]:
                raise IllegalStateException(f"{name} {value} is not one of this program: it is closed, or another's")
        acks = args[call.parameters.index("acks")] if "acks" in call.parameters else ()
        declared = getattr(args[0], "connection", 0) if args else 0
        if any(ack.session not in self._sessions for ack in acks) or (declared and declared not in self._connections):
            raise IllegalStateException(
                "a session or a connection is not one of this program: it is closed, or another's"
            )

    def _add_unread(self, call: Call, args: list[Any]) -> None:
        """Add what the program cannot have read to what it says that it did not."""
        if "unread" in call.parameters:
            at = call.parameters.index("unread")
            known = max(args[at], default=0)
            args[at] = [*args[at], *(number for number in self._telling.beyond if number > known)]

    def _tell(self, call: Call, args: list[Any]) -> None:
        """Make a call that has no answer; for what is closed by now it does nothing."""
        if call.name == "credit":
            consumer, messages, nbytes = args
            if not (0 <= messages <= UNBOUNDED and 0 <= nbytes <= UNBOUNDED):
                raise LocalError(
                    f"a credit of {messages:,} messages and {nbytes:,} bytes; at most {UNBOUNDED:,} are given"
                )
            self._consumers.add(consumer, messages, nbytes)
        elif args[0] in self._sessions:
            with suppress(CarrypostError):  # The node ends.
                getattr(self._provider, call.name)(*args)

    def _give(self, consumer: int, messages: int, nbytes: int) -> None:
        with suppress(CarrypostError):  # The node ends.
            self._provider.credit(consumer, messages, nbytes)

    def _perform(self, number: int, args: list[Any]) -> None:
        session, sends, acks, durability, early = args
        try:
            performed = self._provider.perform(session, sends, acks, durability, early=early)
        except CarrypostError as error:
            self._unanswered -= 1
            self._refuse(number, error)
            return
        told = not sends or early or durability is Durability.NORMAL
        if sends:
            self._native.sent()
            if told:  # Else they come with its end: nobody waits for them alone.
                self._say_sent(number, performed.sent)
        patient = durability is Durability.NORMAL and bool(sends or acks)
        performed.done.add_done_callback(partial(self._say_done, number, performed, told=told, patient=patient))

    def _say_sent(self, number: int, sent: asyncio.Future[Any]) -> None:
        if not sent.done():
            sent.add_done_callback(partial(self._say_sent, number))
        elif sent.exception() is None:
            self.line.say(calls.Sent(number, _descriptors(sent)))

    def _say_done(
        self, number: int, performed: Performed, done: asyncio.Future[None], *, told: bool, patient: bool
    ) -> None:
        self._unanswered -= 1
        error = performed.sent.exception() or done.exception()
        if isinstance(error, CarrypostError):
            if not told:
                self._say_sent(number, performed.sent)
            self._refuse(number, error)
        else:
            value = calls.NOTHING if told else _descriptors(performed.sent)
            self._telling.answer(calls.Answer(number, value), patient=patient)
            if not self._unanswered:
                self.line.flush()
        self.went_on()

    async def _answer(self, number: int, call: Call, args: list[Any]) -> None:
        try:
            if call.name in _ALONE:
                async with self._alone:
                    await self._carry_out(number, call, args)
                    await self.line.drained(parts=True)
            else:
                await self._carry_out(number, call, args)
        except CarrypostError as error:
            self._refuse(number, error)
        except Exception as error:  # noqa: BLE001 - A mistake of ours in one call must not end the others.
            _log.exception("the call %s failed", call.name)
            self._refuse(number, JMSException(f"the node failed: {error!r}"))
        finally:
            self._unanswered -= 1
            self.went_on()

    async def _carry_out(self, number: int, call: Call, args: list[Any]) -> None:
        """Make a call of the provider, note what it opens and closes, and answer it."""
        match call.name:
            case "connect":
                seat = Seat(self._telling)
                value: Any = await self._provider.connect(args[0], seat)
                seat.number = value
                self._connections.add(value)
            case "open_session":
                value = await self._provider.open_session(*args)
                self._sessions[value] = args[0]
            case "consume":
                value = await self._provider.consume(*args)
                self._consumers.open(value, args[0])
            case "browse":
                value = await self._provider.browse(*args)
                if value.descriptors is not None and len(value.descriptors) > _BROWSED:
                    await self._show(number, value, self._sessions[args[0]])
                    return
            case _:
                self._add_unread(call, args)  # Once more, for what was handed over since the call came.
                self._forget(call.name, args)
                value = await getattr(self._provider, call.name)(*args)
        raw = call.encode_value(value)
        if len(raw) > self._native.parts_bytes_max:
            raise ResourceAllocationException(f"the answer has {len(raw):,} bytes: ask for less")
        self._telling.answer(calls.Answer(number, Raw(raw)))

    async def _show(self, number: int, found: Browsing, connection: int) -> None:
        """Answer with a number by which all that waits in a queue is told, a few at a time."""
        self._browsings -= 1  # Those of queues elsewhere count upwards.
        told = Browsing(self._browsings, found.taken_us)
        self.line.say(calls.Answer(number, Raw(CALLS["browse"].encode_value(told))))
        descriptors = found.descriptors or ()
        for first in range(0, len(descriptors), _BROWSED):
            some, rest = descriptors[first : first + _BROWSED], len(descriptors) - first - _BROWSED
            self._telling.say(connection, "browsed", (Browsed(told.number, some, found.taken_us, rest <= 0),))
            await self.line.drained()

    def _forget(self, name: str, args: list[Any]) -> None:
        """Forget what a call closes."""
        if name == "disconnect":
            self._connections.discard(args[0])
            for session in [session for session, of in self._sessions.items() if of == args[0]]:
                self._forget("close_session", [session])
        elif name == "close_session":
            self._sessions.pop(args[0], None)
            self._consumers.close_session(args[0])
        elif name == "close_consumer":
            self._consumers.close(args[0])

    def _refuse(self, number: int, error: CarrypostError) -> None:
        fault = Fault.of(error if isinstance(error, JMSException) else JMSException(str(error)))
        self.line.say(calls.Refusal(number, *msgspec.structs.astuple(fault)))

    # --- flow, and the end ---------------------------------------------------------------------------------

    def went_on(self) -> None:
        """Read from the program, unless too much of it is unanswered or unwritten, or the disk is behind."""
        full = self._unanswered >= _UNANSWERED_MAX or self._telling.is_full
        unread = self.line.unwritten_bytes > UNWRITTEN_BYTES_MAX
        self.line.read(not full and not unread and not self._native.busy)

    def leave(self) -> None:
        """The program is gone: what was not written it never saw, and what was comes flagged, one at a time."""
        for task in self._tasks:
            task.cancel()
        self._native.left(self)
        self._native.begin(self._disconnect(self._telling.unwritten))

    async def _disconnect(self, unread: list[int]) -> None:
        for connection in self._connections:
            with suppress(CarrypostError):  # The node ends.
                await self._provider.abandon(connection, unread)
