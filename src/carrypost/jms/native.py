"""Serves a provider to programs at the node's socket: each call of a program is a call of the provider.

Calls begin as they come, and are answered in any order. A program has only what it opened itself: connections, sessions
and consumers of others are refused. What is handed to it waits here as descriptors, within its credit, and a body is
read when it is written. So a program that does not read costs little, and slows nobody.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
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
from carrypost.events import Browsed, ClaimLost, GivenUp, Handed, Receipt
from carrypost.jms.flow import WAITING_MAX, Bodies, Credits
from carrypost.jms.provider import Performed, Provider
from carrypost.jms.values import CALLS, NEWS, Call, Fault, encode_place
from carrypost.journal import Durability
from carrypost.model.ids import MessageId
from carrypost.mom.commands import Browsing
from carrypost.node.control import calls
from carrypost.node.control.framing import ENVELOPE_BYTES, PART_BYTES
from carrypost.node.control.line import PATIENCE_S, UNWRITTEN_BYTES_MAX, Line

_log = logging.getLogger("carrypost.native")
_UNANSWERED_MAX = 256
_BROWSED = 32
"""Descriptors of a queue that are told together."""
_LOOK_S = 1.0
_DRIFT_US = 5_000
"""Time between two looks at the clocks, and the difference that programs are told of."""
_WAKE_S, _WINDOW_S_MAX = 0.001, 0.05
"""Pause that each program adds to that between two writes of news to one of them, and the longest: to wake a program,
and take what it acknowledges, costs more than a message does."""
_SENDS = 64
"""Works after which is looked whether the disk is behind."""
_ALONE = frozenset({"payload", "browse"})
"""Calls whose answers may be long: a program has one of them at a time, and the others wait for it."""


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

    @property
    def window_s(self) -> float:
        """Time for which news are gathered: the more programs there are to wake, the longer."""
        return min(max(PATIENCE_S, len(self._programs) * _WAKE_S), _WINDOW_S_MAX)

    def join(self, line: Line) -> Served:
        """Serve one more program."""
        served = Served(self, line)
        self._programs.add(served)
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


class _Seat:
    """One connection of a program, to which the provider tells what happens."""

    def __init__(self, served: Served) -> None:
        self.number = 0
        self._served = served

    def take(self, handed: Handed, body: bytes | None = None) -> None:
        """Let a message wait until it can be written."""
        self._served.beyond.append(handed.number)
        self._served.news(self.number, "take", handed, body)

    def gave_up(self, event: GivenUp) -> None:
        """Pass on what became a dead letter."""
        self._served.news(self.number, "gave_up", event)

    def browsed(self, part: Browsed) -> None:
        """Pass on a part of what waits in a queue."""
        self._served.news(self.number, "browsed", part)

    def lost(self, lost: ClaimLost) -> None:
        """Pass on what was lost."""
        self._served.news(self.number, "lost", lost)

    def receipt(self, receipt: Receipt) -> None:
        """Pass on the latest receipt of each message: it says all that those before it did."""
        self._served.receipts[self.number, receipt.message] = receipt
        self._served.wake.set()

    def node_ended(self, reason: str) -> None:
        """Tell the program, and hang up."""
        self._served.line.hang_up(calls.Ended(reason))


class Served:
    """One program."""

    def __init__(self, native: Native, line: Line) -> None:
        self.line = line
        self.beyond: deque[int] = deque()
        """The numbers of messages that the program may not have read."""
        self.receipts: dict[tuple[int, MessageId], Receipt] = {}
        self.wake = asyncio.Event()
        """Set when something waits to be written."""
        self._native, self._provider = native, native.provider
        self._waiting: deque[tuple[int, str, tuple[Any, ...]]] = deque()
        self._connections: set[int] = set()
        self._sessions: dict[int, int] = {}
        """Their connections."""
        self._consumers = Credits(self._give)
        self._browsings = 0
        self._unanswered = 0
        self._alone = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        native.begin(self._hand_out(), self._tasks)

    # --- what is told to the program -----------------------------------------------------------------------

    def news(self, connection: int, name: str, *args: object) -> None:
        """Let something wait until it can be written; of what is only good to know, not too much."""
        if name in {"lost", "gave_up"} and len(self._waiting) >= WAITING_MAX:
            return
        self._waiting.append((connection, name, args))
        self.wake.set()

    async def _hand_out(self) -> None:
        try:
            while True:
                while not self._waiting and not self.receipts:
                    self.wake.clear()
                    await self.wake.wait()
                await self._write_next()
                if self.line.is_full:
                    await self.line.drained()
        except JMSException:
            pass  # The node ends, and says so.
        except Exception:  # noqa: BLE001 - A program that is deaf and does not know it would wait for ever.
            _log.exception("something could not be told to a program; hanging up")
            self.line.hang_up()

    async def _write_next(self) -> None:
        if not self._waiting:
            first = next(iter(self.receipts))
            self._say_news(first[0], "receipt", self.receipts.pop(first))
            return
        connection, name, args = self._waiting[0]
        if name == "take":
            handed, body = args
            if handed.consumer in self._consumers:
                body = await self._native.bodies.read(handed.descriptor) if body is None else body
                self._waiting.popleft()
                self._say_news(connection, name, handed, body)
                self._consumers.written(handed.consumer)
                return
        self._waiting.popleft()
        if not name:
            self.line.say(*args)
        elif name != "take":  # A consumer that closed meanwhile gave it back.
            self._say_news(connection, name, *args)

    def _say_news(self, connection: int, name: str, *args: object) -> None:
        self.line.say(
            calls.News(connection, name, Raw(NEWS[name].encode(args))), self.line.pace_s(self._native.window_s)
        )

    # --- what the program asks -----------------------------------------------------------------------------

    def take(self, call: calls.Call) -> None:
        """Begin a call; raises `LocalError` for what nobody would hear of otherwise."""
        while self.beyond and self.beyond[0] <= call.read:
            self.beyond.popleft()
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
        mine: Mapping[str, Container[object]] = {
            "connection": self._connections,
            "session": self._sessions,
            "consumer": self._consumers,
        }
        self._add_unread(call, args)
        for at, name in enumerate(call.parameters):
            if args[at] not in mine.get(name, (args[at],)):
                raise IllegalStateException(f"{name} {args[at]} is not one of this program: it is closed, or another's")
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
            args[at] = [*args[at], *(number for number in self.beyond if number > known)]

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
        sends = args[1]
        try:
            performed = self._provider.perform(*args)
        except CarrypostError as error:
            self._unanswered -= 1
            self._refuse(number, error)
            return
        if sends:
            self._native.sent()
            # The program waits for the disk, or only until the node has the message: the other frame may wait.
            if performed.sent.done():
                self._say_sent(number, PATIENCE_S if args[-1] is Durability.FULL else 0.0, performed.sent)
            else:
                performed.sent.add_done_callback(partial(self._say_sent, number, 0.0))
        within_s = self._native.window_s if (sends or args[2]) and args[-1] is Durability.NORMAL else 0.0
        performed.done.add_done_callback(partial(self._say_done, number, performed, within_s))

    def _say_sent(self, number: int, within_s: float, sent: asyncio.Future[Any]) -> None:
        if sent.exception() is None:
            self.line.say(calls.Sent(number, Raw(CALLS["perform"].encode_value(sent.result()))), within_s)

    def _say_done(self, number: int, performed: Performed, within_s: float, done: asyncio.Future[None]) -> None:
        self._unanswered -= 1
        error = performed.sent.exception() or done.exception()
        if isinstance(error, CarrypostError):
            self._refuse(number, error)
        else:
            self._say_in_turn(calls.Answer(number), within_s)
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
                seat = _Seat(self)
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
        self._say_in_turn(calls.Answer(number, Raw(raw)))

    def _say_in_turn(self, frame: calls.AnyReply, within_s: float = 0.0) -> None:
        """Say something behind all that was handed over before: a program that asked knows then what there is."""
        if self._waiting:
            self._waiting.append((0, "", (frame,)))
        else:
            self.line.say(frame, within_s)

    async def _show(self, number: int, found: Browsing, connection: int) -> None:
        """Answer with a number by which all that waits in a queue is told, a few at a time."""
        self._browsings -= 1  # Those of queues elsewhere count upwards.
        told = Browsing(self._browsings, found.taken_us)
        self.line.say(calls.Answer(number, Raw(CALLS["browse"].encode_value(told))))
        descriptors = found.descriptors or ()
        for first in range(0, len(descriptors), _BROWSED):
            some, rest = descriptors[first : first + _BROWSED], len(descriptors) - first - _BROWSED
            self._say_news(connection, "browsed", Browsed(told.number, some, found.taken_us, rest <= 0))
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
        full = self._unanswered >= _UNANSWERED_MAX or self.line.unwritten_bytes > UNWRITTEN_BYTES_MAX
        self.line.read(not full and not self._native.busy)

    def leave(self) -> None:
        """The program is gone: what was not written it never saw, and what was comes flagged, one at a time."""
        for task in self._tasks:
            task.cancel()
        self._native.left(self)
        self._native.begin(self._disconnect([args[0].number for _, name, args in self._waiting if name == "take"]))

    async def _disconnect(self, unread: list[int]) -> None:
        for connection in self._connections:
            with suppress(CarrypostError):  # The node ends.
                await self._provider.abandon(connection, unread)
