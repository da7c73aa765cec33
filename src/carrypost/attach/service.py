"""Serves a provider to programs at the node's socket: it carries out the commands of programs.

Commands begin as they come, and are answered in any order. A program has only what it opened itself: connections,
sessions and consumers of others are refused. Notifications to the program go through `attach.outbox`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Container, Coroutine, Mapping
from contextlib import suppress
from functools import cached_property, partial
from typing import Any, TypeVar

import msgspec
from msgspec import Raw

from carrypost.attach import calls
from carrypost.attach.line import ENVELOPE_BYTES, PART_BYTES, UNWRITTEN_BYTES_MAX, Line
from carrypost.attach.outbox import Bodies, Credits, ProgramConnection, ProgramOutbox, Rounds, cut
from carrypost.attach.values import ANSWERS, decode_command, encode_node_info, unpack_descriptor
from carrypost.config import UNBOUNDED
from carrypost.errors import (
    CarrypostError,
    IllegalStateException,
    JMSException,
    LocalError,
    ResourceAllocationException,
)
from carrypost.jms.provider import Perform, Provider
from carrypost.log.events import Browsed
from carrypost.log.journal import Durability
from carrypost.messaging import commands as do

R = TypeVar("R")
_log = logging.getLogger("carrypost.native")
_UNANSWERED_MAX = 256
_LOOK_S = 1.0
_DRIFT_US = 5_000
"""Time between two looks at the clocks, and the difference that is reported to programs."""
_SENDS = 64
"""Number of units of work after which the service checks whether the disk is behind."""
_GATHERED = 0.1
"""Part of a round for which acknowledgements are gathered."""
_encode_sent = ANSWERS[Perform].encode


def _descriptors(sent: asyncio.Future[Any]) -> Raw:
    """Return what messages were sent with, encoded."""
    return Raw(_encode_sent(sent.result()))


def system_us() -> int:
    """Return the time of the system's clock."""
    return time.time_ns() // 1_000


class SocketService:
    """Serves one provider to all programs at a node's socket."""

    def __init__(self, provider: Provider, *, system_us: Callable[[], int] | None = system_us) -> None:
        self.provider = provider
        self._system_us = system_us
        """The system's clock, with which that of the node is compared; None: it is not."""
        self.bodies = Bodies(provider, PART_BYTES)
        self.rounds = Rounds()
        self.acknowledged = Acknowledged(provider, self.rounds)
        self.busy = False
        """True if the disk is behind."""
        self._programs: set[SocketProgram] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._sends = 0
        self._ahead_us = 0
        self._looking: asyncio.TimerHandle | None = None

    @cached_property
    def place(self) -> bytes:
        """Description of the node for programs, encoded."""
        return encode_node_info(self.provider.node_info)

    @property
    def parts_bytes_max(self) -> int:
        """Length of what comes in parts, at most."""
        return self.provider.node_info.limits.message_bytes_max + ENVELOPE_BYTES

    def join(self, line: Line) -> SocketProgram:
        """Serve one more program."""
        served = SocketProgram(self, line)
        self._programs.add(served)
        if self._looking is None and self._system_us is not None:
            self._look(self._system_us)
        return served

    def settle(self) -> None:
        """Begin what was put off."""
        self.acknowledged.begin()

    def begin(self, work: Coroutine[Any, Any, None], of: set[asyncio.Task[None]] | None = None) -> None:
        """Do something beside all else; `of`: what ends with one program."""
        task = asyncio.get_running_loop().create_task(work)
        tasks = self._tasks if of is None else of
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    def left(self, served: SocketProgram) -> None:
        """Forget a program that is gone."""
        self._programs.discard(served)
        if not self._programs and self._looking is not None:
            self._looking.cancel()
            self._looking = None

    def _look(self, system_us: Callable[[], int]) -> None:
        """Notify programs if the offset of the node's clock from the system's has changed."""
        with suppress(CarrypostError):  # The node ends.
            ahead_us = self.provider.now_us() - system_us()
            if abs(ahead_us - self._ahead_us) > _DRIFT_US:
                self._ahead_us = ahead_us
                self._broadcast(calls.Clock(ahead_us))
            self._looking = asyncio.get_running_loop().call_later(_LOOK_S, self._look, system_us)

    def sent(self) -> None:
        """Note a unit of work of some program."""
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
        self._broadcast(calls.Busy(True))
        await waiting
        self.busy = False
        self._broadcast(calls.Busy(False))
        for program in self._programs:
            program.read_on()

    def _broadcast(self, frame: calls.AnyReply) -> None:
        for program in self._programs:
            program.line.write(frame)


class Acknowledged:
    """Acknowledgements of all programs that no call waits for, gathered for a part of a round into one unit of work.

    After a round many programs acknowledge at about the same time, and a unit of work costs more than a message does.
    """

    def __init__(self, provider: Provider, rounds: Rounds) -> None:
        self._provider, self._rounds = provider, rounds
        self._gathered: list[tuple[SocketProgram, int, tuple[do.Ack, ...]]] = []
        """Programs, with the numbers of their calls."""

    def add(self, program: SocketProgram, number: int, acks: tuple[do.Ack, ...]) -> None:
        """Add what a program acknowledges."""
        if not self._gathered:
            asyncio.get_running_loop().call_later(self._rounds.length_s * _GATHERED, self.begin)
        self._gathered.append((program, number, acks))

    def begin(self, program: SocketProgram | None = None) -> None:
        """Begin the unit of work, because it is time, or because a `program` that acknowledged something does more."""
        if not self._gathered or (program is not None and all(each[0] is not program for each in self._gathered)):
            return
        gathered, self._gathered = self._gathered, []
        acks = tuple([ack for _, _, some in gathered for ack in some])
        try:
            done = self._provider.perform(Perform(0, (), acks)).done
        except CarrypostError:  # One of them is wrong, and the others are not.
            for served, number, some in gathered:
                served.perform(number, Perform(0, (), some))
            return
        for served, number, _ in gathered:
            done.add_done_callback(partial(served.answer_done, number, None, patient=True))


class SocketProgram:
    """One program."""

    def __init__(self, native: SocketService, line: Line) -> None:
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
        self._outbox = ProgramOutbox(line, native.bodies, self._consumers, native.rounds, self.read_on)
        native.begin(self._outbox.run(), self._tasks)

    # --- what the program asks -----------------------------------------------------------------------------

    def receive(self, call: calls.Call) -> None:
        """Begin a command; raises `LocalError` for a fault that could not be reported otherwise."""
        self._outbox.was_read(call.read)
        try:
            command = decode_command(call.command)
            if not isinstance(command, do.Credit | do.GoOn):
                self._check(command)
                command = self._add_unread(command)
        except CarrypostError as error:
            self._refuse(call.number, error)
            return
        if isinstance(command, do.Credit | do.GoOn):
            self._tell(command)
            return
        if isinstance(
            command, do.Announce
        ):  # Answered at once: the program waits for it, and the node has nothing to do.
            self._outbox.announced(command.consumer, command.number, command.through)
            self.line.write(calls.Answer(call.number))
            return
        self._unanswered += 1
        if not isinstance(command, Perform):
            self._native.acknowledged.begin(self)
            self._native.begin(self._answer(call.number, command), self._tasks)
        elif command.acks and not command.sends and command.durability is Durability.NORMAL:
            self._native.acknowledged.add(self, call.number, command.acks)
        else:
            self._native.acknowledged.begin(self)
            self.perform(call.number, command)
        self.read_on()

    def _check(self, command: do.Command[Any]) -> None:
        """Raise for what is not this program's."""
        named = [(name, getattr(command, name)) for name in self._mine if name in command.__struct_fields__]
        if isinstance(command, Perform):
            named += [("session", ack.session) for ack in command.acks]
        elif isinstance(command, do.DeclareQueue) and command.asked.connection:
            named.append(("connection", command.asked.connection))
        for name, number in named:
            if number not in self._mine[name]:
                raise IllegalStateException(
                    f"this program has no open {name} {number}: it was closed, or belongs to another program"
                )

    def _add_unread(self, command: do.Command[R]) -> do.Command[R]:
        """Return a command with what the program cannot have read in what it says that it did not."""
        unread: Collection[int] | None = getattr(command, "unread", None)
        if unread is None:
            return command
        known = max(unread, default=0)
        beyond = [number for number in self._outbox.beyond if number > known]
        return msgspec.structs.replace(command, unread=[*unread, *beyond]) if beyond else command

    def _tell(self, command: do.Credit | do.GoOn) -> None:
        """Carry out a command that has no answer; for what is closed by now it does nothing."""
        if isinstance(command, do.Credit):
            messages, nbytes = command.messages, command.nbytes
            if not (0 <= messages <= UNBOUNDED and 0 <= nbytes <= UNBOUNDED):
                raise LocalError(
                    f"a credit must be at most {UNBOUNDED:,}, not {messages:,} messages and {nbytes:,} bytes"
                )
            self._consumers.add(command.consumer, messages, nbytes)
        elif command.session in self._sessions:
            with suppress(CarrypostError):  # The node ends.
                self._provider.tell(command)

    def _give(self, consumer: int, messages: int, nbytes: int) -> None:
        with suppress(CarrypostError):  # The node ends.
            self._provider.tell(do.Credit(consumer, messages, nbytes))

    def perform(self, number: int, asked: Perform) -> None:
        """Begin a unit of work of the program."""
        try:
            performed = self._provider.perform(asked)
        except CarrypostError as error:
            self._unanswered -= 1
            self._refuse(number, error)
            return
        reported = not asked.sends or asked.early or asked.durability is Durability.NORMAL
        if asked.sends:
            self._native.sent()
            if reported:  # Else they come with its end: no caller waits for them alone.
                self._answer_sent(number, performed.sent)
        patient = asked.durability is Durability.NORMAL and bool(asked.sends or asked.acks)
        unreported = None if reported else performed.sent
        performed.done.add_done_callback(partial(self.answer_done, number, unreported, patient=patient))

    def _answer_sent(self, number: int, sent: asyncio.Future[Any]) -> None:
        if not sent.done():
            sent.add_done_callback(partial(self._answer_sent, number))
        elif sent.exception() is None:
            self.line.write(calls.Sent(number, _descriptors(sent)))

    def answer_done(
        self, number: int, unreported: asyncio.Future[Any] | None, done: asyncio.Future[None], *, patient: bool
    ) -> None:
        """Answer a unit of work that is durable or failed; `unreported`: messages that the program does not know of."""
        self._unanswered -= 1
        error = done.exception()
        if isinstance(error, CarrypostError):
            if unreported is not None:
                self._answer_sent(number, unreported)
            self._refuse(number, error)
        else:
            value = calls.NOTHING if unreported is None else _descriptors(unreported)
            self._outbox.answer(calls.Answer(number, value), patient=patient)
        self.read_on()

    async def _answer(self, number: int, command: do.Command[Any]) -> None:
        try:
            if isinstance(command, do.ReadPayload | do.Browse):  # Answers may be long: a program has one at a time.
                async with self._alone:
                    await self._carry_out(number, command)
                    await self.line.drained(parts=True)
            else:
                await self._carry_out(number, command)
        except CarrypostError as error:
            self._refuse(number, error)
        except Exception as error:  # noqa: BLE001 - A mistake of ours in one call must not end the others.
            _log.exception("the command %s failed", type(command).__name__)
            self._refuse(number, JMSException(f"the node failed: {error!r}"))
        finally:
            self._unanswered -= 1
            self.read_on()

    async def _carry_out(self, number: int, command: do.Command[Any]) -> None:
        """Carry out a command, note what it opens and closes, and answer it."""
        value: Any
        match command:
            case do.Connect():
                seat = ProgramConnection(self._outbox)
                value = seat.number = await self._provider.connect(command.client, seat)
                self._connections.add(value)
            case do.OpenSession():
                value = await self._provider.execute(command)
                self._sessions[value] = command.connection
            case do.Consume():
                value = await self._provider.execute(command)
                self._consumers.open(value, command.session)
            case do.ReadPayload():
                value = await self._provider.payload(unpack_descriptor(command.wire))
            case do.Browse():
                value = await self._provider.execute(command)
                if sum(each.wire_bytes for each in value.descriptors or ()) > PART_BYTES:
                    await self._show(number, value, self._sessions[command.session])
                    return
            case _:
                command = self._add_unread(command)  # Once more, for what was handed over since the command came.
                self._forget(command)
                value = await self._provider.execute(command)
        raw = ANSWERS[type(command)].encode(value)
        if len(raw) > self._native.parts_bytes_max:
            raise ResourceAllocationException(f"the answer of {len(raw):,} bytes is too long: ask for less")
        self._outbox.answer(calls.Answer(number, Raw(raw)))

    async def _show(self, number: int, found: do.Browsing, connection: int) -> None:
        """Answer with a number, under which the waiting messages of a queue follow, a few at a time."""
        self._browsings -= 1  # Those of queues elsewhere count upwards.
        reported = do.Browsing(self._browsings, found.taken_us)
        self.line.write(calls.Answer(number, Raw(ANSWERS[do.Browse].encode(reported))))
        for part in cut(Browsed(reported.number, found.descriptors or (), found.taken_us, complete=True)):
            self._outbox.write_news(connection, part)
            await self.line.drained()

    def _forget(self, command: do.Command[Any]) -> None:
        """Forget what a command closes."""
        match command:
            case do.Disconnect():
                self._connections.discard(command.connection)
                for session in [session for session, of in self._sessions.items() if of == command.connection]:
                    self._forget(do.CloseSession(session))
            case do.CloseSession():
                self._sessions.pop(command.session, None)
                self._consumers.close_session(command.session)
                self._outbox.forget_closed()
            case do.CloseConsumer():
                self._consumers.close(command.consumer)
                self._outbox.forget_closed()
            case _:
                pass

    def _refuse(self, number: int, error: CarrypostError) -> None:
        raised = error if isinstance(error, JMSException) else JMSException(str(error))
        self.line.write(calls.Refusal.of(number, raised))

    # --- flow, and the end ---------------------------------------------------------------------------------

    def read_on(self) -> None:
        """Read from the program, unless too much of it is unanswered or unwritten, or the disk is behind."""
        full = self._unanswered >= _UNANSWERED_MAX or self._outbox.is_full
        unread = self.line.unwritten_bytes > UNWRITTEN_BYTES_MAX
        self.line.read(not full and not unread and not self._native.busy)

    def leave(self) -> None:
        """Forget the program: messages that it announced to its code are redelivered, flagged, one at a time.

        It never saw the others, which are redelivered as if they had not been handed over.
        """
        for task in self._tasks:
            task.cancel()
        self._native.acknowledged.begin(self)
        self._native.left(self)
        self._native.begin(self._disconnect(self._outbox.unseen()))

    async def _disconnect(self, unread: list[int]) -> None:
        for connection in self._connections:
            with suppress(CarrypostError):  # The node ends.
                await self._provider.execute(do.Disconnect(connection, unread, crashed=True))
