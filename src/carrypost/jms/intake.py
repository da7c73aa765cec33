"""`Intake`: messages that one consumer was handed and its program has not taken; `Inbox`: the intakes of one session.

The node hands messages over ahead of the program, within the consumer's credit (`prefetch`). A node in this process
hands over descriptors alone, and a body is read from the store when the program takes the message. Over a socket short
bodies come along. A consumer that does not read slows no other consumer. Without prefetch the node is asked for one
message when the program wants one, so that the rest of a queue goes to consumers that are ready for it.

Programs have a `Consumer`, which holds its intake. The connection hands messages to intakes, and the task that calls
the listeners of a session takes from them.

A program in another thread takes a `Batch` without asking the event loop for each message. The messages stay in the
intake, so that nothing has to be undone when the program takes no more of them. A message is consumed when the program
takes it. The intake is informed by `Batch.report`, which the loop calls before the program's next request, and after
50 ms at the latest. A crash before that repeats messages, and loses none. `Batch.pop` belongs to the program's thread.
Everything else is called by the thread of the loop.
"""

# Between a node that hands messages over and a program that takes them lies a window, the prefetch.
# Large windows are fast, as no round trip separates two messages. But what waits here belongs to
# this consumer: others cannot have it, and after a crash of the node it counts as handed over. So a
# queue with slow consumers is better off with a small window, or with none.
#
# Credit is given back in portions (`_RENEWALS`), not message by message: each portion is a call to
# the node, and for a queue elsewhere a message over the air.
#
# What must hold. A message leaves `waiting` in the same turn of the loop in which the program gets
# it; whatever is awaited before may close or recover the session, so that `is_next` is asked again.
# Numbers in `waiting` rise. Messages that were read ahead for another thread are still in
# `waiting`, until that thread takes them (`Batch`).

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from math import inf
from time import monotonic
from typing import TYPE_CHECKING

from carrypost.errors import IllegalStateException, JMSException, ListenerException, MessageFormatException
from carrypost.jms.acknowledgement import Announcements
from carrypost.jms.listener_calls import Pause
from carrypost.jms.mapping import from_handed
from carrypost.jms.provider import is_lost
from carrypost.log.events import ERROR_MAX
from carrypost.messaging.commands import Credit, GoOn, Recover, Release
from carrypost.model.address import addressee, written
from carrypost.model.times import MICROSECONDS
from carrypost.printing import raised

if TYPE_CHECKING:
    from carrypost.jms.acknowledgement import Acknowledgement, SessionUnitsOfWork
    from carrypost.jms.consumer_options import ConsumerOptions
    from carrypost.jms.listener_calls import Kinds, Reports
    from carrypost.jms.messages import Message
    from carrypost.jms.messages.message import Acknowledger
    from carrypost.jms.provider import NodeInfo
    from carrypost.log.events import GivenUp, Handed


BATCH_MAX = 32
"""Number of messages of one batch: larger ones did not measurably reduce the cost of a hop between threads."""
BATCH_BYTES_MAX = 1 << 20
"""Bytes of the bodies of one batch: they are in memory before the program wants them."""
_TOLD_S = 0.05


class Batch:
    """The first messages that wait in an intake, with their bodies."""

    def __init__(self, read: Sequence[tuple[Handed, Message]], now_us: int, took: Callable[[Handed], None]) -> None:
        self._read, self._took = read, took
        left_us = min(_end_us(handed) for handed, _ in read) - now_us
        self._until = monotonic() + left_us / MICROSECONDS
        """Time at which the first of them expires, by the steady clock."""
        self._popped = self._reported = 0
        self._closed = False
        self._lock = threading.Lock()
        """A message is either taken, or stays in the intake when the batch is closed."""
        self._loop = asyncio.get_running_loop()
        self._idle = False
        """True if no timer runs, because the program took nothing for a while."""
        self._timer: asyncio.TimerHandle | None = None
        self._begin_timer()

    @property
    def messages(self) -> list[Message]:
        """The messages of the batch."""
        return [message for _, message in self._read]

    def pop(self) -> Message | None:
        """Return the next message; None if there is none, or the rest was returned.

        A signal handler may raise at any moment, as Ctrl-C does. Then nothing is taken.
        """
        at = self._popped
        try:
            with self._lock:
                if self._closed or at == len(self._read) or monotonic() >= self._until:
                    return None
                message = self._read[at][1]
                self._popped = at + 1
            if self._idle:
                self._idle = False
                self._loop.call_soon_threadsafe(self._begin_timer)
        except BaseException:
            self._popped = max(at, self._reported)
            raise
        return message

    def report(self) -> None:
        """Inform the intake of the messages that were taken."""
        while self._reported < self._popped:
            handed, _ = self._read[self._reported]
            self._reported += 1
            self._took(handed)

    def close(self) -> None:
        """Return the rest to the intake. Idempotent."""
        with self._lock:
            self._closed = True
        self.report()
        if self._timer is not None:
            self._timer.cancel()

    @property
    def is_over(self) -> bool:
        """True if the intake knows of everything that was or will be taken."""
        return self._closed or self._reported == len(self._read)

    def _begin_timer(self) -> None:
        self._timer = self._loop.call_later(_TOLD_S, self._report_in_time)

    def _report_in_time(self) -> None:
        self._idle = self._reported == self._popped
        self.report()
        if not self._idle and not self.is_over:
            self._begin_timer()


def _end_us(handed: Handed) -> float:
    """Return the time after which a message may not be given to its program any more."""
    deadline_us = handed.descriptor.deadline_us
    return min(inf if deadline_us is None else deadline_us, handed.lease_us or inf)


Listener = Callable[["Message"], Awaitable[None] | None]
_RENEWALS = 4
"""Number of times that a consumer's credit is renewed within its prefetch: until the manager of a queue elsewhere hears
of it, the rest has to last."""


class Intake:
    """Messages that wait for one consumer, and the credit for more."""

    def __init__(self, inbox: Inbox, number: int, wanted: ConsumerOptions) -> None:
        self.number = number
        """The number of the consumer at the node."""
        self.wanted = wanted
        self.waiting: deque[Handed] = deque()
        self._bodies: dict[int, bytes] = {}
        """Bodies that came with messages that wait, by number."""
        self.listener: Listener | None = None
        self.receiving = False
        """True if a task waits in `receive`."""
        self.closed = ""
        """Reason why the consumer is closed, if it is."""
        self._inbox = inbox
        self._provider = inbox.units.provider
        self._prefetch = _prefetch(wanted, self._provider.node_info)
        self._prefetch_bytes = self._fetch_bytes = self._provider.node_info.settings.prefetch_bytes
        self._fetching = False
        """Without prefetch: True if a message was asked for, and has not come."""
        self._in_doubt: asyncio.Future[None] | None = None
        """The acknowledgement of the last message taken, if the next one has to wait for it."""
        self._waiter: asyncio.Future[None] | None = None
        self._batch: Batch | None = None
        """Messages that were read for a program in another thread, the first that wait here."""
        self._used = self._used_bytes = 0
        """Number of messages taken since credit was last given."""
        self._announcements = Announcements(self._provider) if self._provider.outlives_programs else None
        if self._prefetch:
            self._credit(self._prefetch, self._prefetch_bytes)

    # --- receiving -----------------------------------------------------------------------------------------

    async def receive(self, limit_s: float | None, kind: type | None) -> Message | None:
        """Return the next message; None when the time is over, or the consumer is closed meanwhile.

        `kind`: raise `MessageFormatException` unless the body is of this type.
        """
        read = await self._wait(limit_s, kind, 1)
        if not read:
            return None
        ((handed, message),) = read
        self._took(handed)
        return message

    async def read_ahead(self, limit_s: float | None, kind: type | None, count: int) -> Batch | None:
        """Read up to `count` messages for a program in another thread, which takes them later; else as `receive`."""
        read = await self._wait(limit_s, kind, count)
        if not read:
            return None
        self._batch = Batch(read, self._provider.now_us(), self._took)
        return self._batch

    async def _wait(self, limit_s: float | None, kind: type | None, count: int) -> list[tuple[Handed, Message]]:
        """Wait for a message, and read it with those behind it, `count` in all; none when `receive` returns None.

        The caller takes them from the intake, or makes a batch of them, before it awaits anything else.
        """
        inbox = self._inbox
        self.check_receiving()
        self.hold_back()
        self.receiving = True
        try:
            await inbox.ready()
            until = None if limit_s is None else asyncio.get_running_loop().time() + limit_s
            while not self.closed:
                found = await self._look(limit_s, kind, count)
                if found:
                    return found
                if found is None and limit_s == 0:
                    await asyncio.sleep(0)  # A program that asks again and again lets others go on.
                    return []
                if found is None and not await self._news(until):
                    return []
            if inbox.ended:
                raise IllegalStateException(inbox.ended)
            return []
        finally:
            self.receiving = False

    async def _look(self, limit_s: float | None, kind: type | None, count: int) -> list[tuple[Handed, Message]] | None:
        """Read what waits; none if it may be worth looking again at once, None if there is nothing before any news."""
        inbox = self._inbox
        try:
            if not self._prefetch and not self.waiting and not inbox.away:
                await self._fetch(at_once=limit_s == 0)
            if self.waiting and inbox.delivers:
                return await self._read_first(kind, count)
            if not self.waiting and inbox.go_on():
                # With no time to wait, the answer is what the node has now: let it hand that over
                # before the decision.
                if limit_s == 0:
                    await inbox.units.settled()
                return []
        except JMSException as error:
            if not is_lost(error):  # Else what waited comes again, or the node is gone for good.
                raise
            if self.closed or (self.waiting and not inbox.away):
                return []  # That happened before the task went on, and no further news will say so.
        return None

    def check_receiving(self) -> None:
        """Raise `IllegalStateException` unless the program may receive here."""
        if self.closed:
            raise IllegalStateException(self.closed)
        if self._inbox.listens:
            raise IllegalStateException("this context has listeners: receive in another context (ctx.create_context())")
        if self.receiving:
            raise IllegalStateException("another task receives from this consumer: create one consumer per task")

    async def _news(self, until: float | None) -> bool:
        """Wait until something changed; return False when the time is over."""
        waiter = self._waiter = asyncio.get_running_loop().create_future()
        try:
            if until is None:
                await waiter
            else:
                async with asyncio.timeout_at(until):
                    await waiter
        except TimeoutError:
            return False
        finally:
            self._waiter = None
        return True

    async def _read_first(self, kind: type | None, count: int) -> list[tuple[Handed, Message]]:
        """Read the first messages that wait, up to `count`; none if the first is gone or dead, or may not be taken."""
        first = self.waiting[0]
        message = await self.read(first)
        if not self._is_due(first):
            return []
        if message is None:
            self.waiting.popleft()
            self._replenish(first)
            return []
        if kind is not None and (message.body_type == 1 or not message.is_body_assignable_to(kind)):
            # Where the mode retries, the message stays: the program may ask again, for another type
            # or for the whole message.
            if not self._inbox.acknowledgement.retries:
                self._took(first)
            raise _misfit(message, kind)
        read, room = [(first, message)], BATCH_BYTES_MAX - first.descriptor.length
        while len(read) < min(count, len(self.waiting)):
            handed = self.waiting[len(read)]
            room -= handed.descriptor.length
            announced = self._announcements is None or handed.number <= self._announcements.through
            message = await self.read(handed) if room >= 0 and announced else None
            if not self._is_due(first):
                return []
            if message is None:
                break
            read.append((handed, message))
        return read

    def _is_due(self, handed: Handed) -> bool:
        """Return True if the program may still have this message first: nothing was closed, recovered or stopped."""
        return self.is_next(handed) and self._inbox.delivers

    def _took(self, handed: Handed) -> None:
        """Note that the program has the first message that waits."""
        self.waiting.popleft()
        self._inbox.acknowledgement.consumed(handed)
        self.was_taken(handed)

    def hold_back(self) -> None:
        """Stop giving a program in another thread messages that were read ahead for it: the rest waits here."""
        if self._batch is not None:
            self._batch.close()
            self._batch = None

    async def _fetch(self, *, at_once: bool) -> None:
        """Ask the node for a message, without prefetch; `at_once`: and wait until it has handed over a waiting one.

        Wait first until the last message is acknowledged durably, so that at most one message is in doubt.
        """
        if self._in_doubt is not None:
            await asyncio.wait({self._in_doubt})
        self._ask_for_one()
        if at_once:
            await self._inbox.units.settled()

    def _ask_for_one(self) -> None:
        """Ask for a message, unless one was asked for already, or waits here."""
        if not self._fetching and not self.waiting and self._inbox.delivers and not self._inbox.away:
            self._fetching = True
            self._credit(1, self._fetch_bytes)

    async def read(self, handed: Handed) -> Message | None:
        """Read the message that was handed over; None if it is gone, or dead by now, or its lease is over."""
        now_us, body = self._provider.now_us(), self._bodies.pop(handed.number, None)
        # The lease may end while the message waits here. The manager then gives it to another node,
        # so this program must not.
        if 0 < handed.lease_us <= now_us:
            await self._provider.execute(Recover(self._inbox.units.session, (), (handed.number,)))
            return None
        if not handed.descriptor.alive(now_us):
            return None
        payload = await self._provider.payload(handed.descriptor) if body is None else body
        if payload is None:
            return None
        if self._announcements is not None:
            try:
                await self._announcements.add(self.number, handed.number)
            except IllegalStateException:
                if not self.closed:
                    raise
                return None
        return from_handed(
            handed, payload, now_us, self._inbox.acknowledger, self.wanted.destination, kinds=self._inbox.kinds
        )

    def is_next(self, handed: Handed) -> bool:
        """Return True while this message is the first that waits."""
        return bool(self.waiting) and self.waiting[0] is handed

    # --- what is handed over -------------------------------------------------------------------------------

    def hand(self, handed: Handed, body: bytes | None) -> None:
        """Add a message, with its body if that came along, and wake a waiting `receive`."""
        self.waiting.append(handed)
        if body is not None:
            self._bodies[handed.number] = body
        self._fetching = False
        if handed.alone:
            self._inbox.came_alone()
        if self.listener is None:
            self.wake()
        else:
            self._inbox.news.set()

    def wake(self) -> None:
        """Wake a pending `receive`, and ask for a message for a listener without prefetch."""
        if self.listener is not None and not self._prefetch and not self.waiting:
            self._ask_for_one()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def was_taken(self, handed: Handed) -> None:
        """Let the node hand over another message, as the program has this one.

        With a prefetch of one, or without, it may do so only when the acknowledgement is durable: then no more than one
        message is in doubt after a crash.
        """
        if self._prefetch > 1:
            self._replenish(handed)
            return
        done = self._in_doubt = self._inbox.acknowledgement.flush()
        if done is None:
            self._replenish(handed)
        else:
            done.add_done_callback(lambda _: self._replenish(handed))

    def pop_unread(self) -> list[int]:
        """Remove the messages that wait here; return their numbers, which the caller gives back to the node at once.

        As much may be handed over instead, but only after that: otherwise later messages would be handed over first.
        """
        self.hold_back()
        unread, self.waiting = self.waiting, deque()
        self._bodies.clear()
        for handed in unread:
            # Not at once: with credit before the numbers are back, the node would hand later
            # messages over first.
            asyncio.get_running_loop().call_soon(self._replenish, handed)
        return [each.number for each in unread]

    def drop_through(self, number: int) -> None:
        """Drop messages under numbers up to this one, which come again; as many more may be handed over."""
        self.hold_back()
        while self.waiting and self.waiting[0].number <= number:
            dropped = self.waiting.popleft()
            self._bodies.pop(dropped.number, None)
            self._replenish(dropped)

    def interrupted(self) -> None:
        """Drop everything that waits, with all credit, as the node is lost."""
        self.waiting.clear()
        self._bodies.clear()
        self._fetching, self._fetch_bytes = False, self._prefetch_bytes
        self._used = self._used_bytes = 0
        if self._announcements is not None:
            self._announcements.reset()

    def resumed(self) -> None:
        """Ask for messages again, as the node is back."""
        if self._prefetch:
            self._credit(self._prefetch, self._prefetch_bytes)
        self.wake()

    def _replenish(self, handed: Handed) -> None:
        if handed.number <= self._inbox.through:
            return  # Its credit was dropped with the node that handed it over.
        if not self._prefetch:
            # The bytes that this message used are given back with the next request, so that the
            # credit at the node stays the same.
            self._fetch_bytes = handed.descriptor.length
            if self.listener is not None:
                self._ask_for_one()
            return
        self._used += 1
        self._used_bytes += handed.descriptor.length
        if self._used * _RENEWALS >= self._prefetch or self._used_bytes * _RENEWALS >= self._prefetch_bytes:
            self._credit(self._used, self._used_bytes)
            self._used = self._used_bytes = 0

    def _credit(self, messages: int, nbytes: int) -> None:
        if not self.closed:
            self._provider.tell(Credit(self.number, messages, nbytes))

    def listen(self, listener: Listener | None) -> None:
        """Set the function that gets every message; None: none does."""
        self.hold_back()
        self.listener = listener
        self._inbox.look_for_listeners()

    def end(self, reason: str) -> None:
        """Close the intake: a pending `receive` returns."""
        self.hold_back()
        self.closed = self.closed or reason
        self.waiting.clear()
        self._bodies.clear()
        if self._announcements is not None:
            self._announcements.close()
        self.wake()


class Inbox:
    """The intakes of one session, and the state that decides whether its program may have their messages."""

    def __init__(
        self,
        units: SessionUnitsOfWork,
        acknowledgement: Acknowledgement,
        acknowledger: Acknowledger,
        reports: Reports,
        kinds: Kinds,
    ) -> None:
        self.kinds = kinds
        """Classes of messages in the place of those of the asyncio API."""
        self.units = units
        self.acknowledgement = acknowledgement
        self.acknowledger = acknowledger
        """Link back to the session, which messages keep."""
        self.intakes: dict[int, Intake] = {}
        """By number of the consumer."""
        self.pause = Pause(units.provider.node_info.settings.redelivery_delay_s, self.wake)
        self.news = asyncio.Event()
        """Set when there may be something for a listener."""
        self.listens = False
        """True if there are listeners."""
        self.draining = False
        self.ended = ""
        """Reason why the node is gone, if it is."""
        self.away = False
        """True while the node is gone, and expected back."""
        self.through = 0
        """Messages up to this number were handed over before the node was last lost."""
        self.given_up = 0
        """Messages that the program failed with too often, in this life or in earlier ones."""
        self._reports = reports
        self._started = False
        self._alone = False
        """True if a message came alone, and nothing else may come before the program is done with it."""

    @property
    def delivers(self) -> bool:
        """True if messages may be given to the program."""
        return self._started and not self.draining and self.pause.timer is None

    @property
    def receives(self) -> bool:
        """True if a task waits in `receive`."""
        return any(each.receiving for each in self.intakes.values())

    @property
    def unread(self) -> list[int]:
        """The numbers of all messages that wait."""
        return [handed.number for each in self.intakes.values() for handed in each.waiting]

    def add(self, number: int, wanted: ConsumerOptions) -> Intake:
        """Open the intake of one more consumer."""
        made = self.intakes[number] = Intake(self, number, wanted)
        return made

    def remove(self, intake: Intake, reason: str) -> None:
        """Close an intake."""
        self.intakes.pop(intake.number, None)
        if intake.listener is not None:
            self.look_for_listeners()
        intake.end(reason)

    def look_for_listeners(self) -> None:
        """Note whether there are listeners: to look with every `receive` would cost each consumer the number of all."""
        self.listens = any(each.listener is not None for each in self.intakes.values())

    def start(self) -> None:
        """Allow messages to be given to the program."""
        self._started = True
        self.wake()

    def stop(self) -> None:
        """Give the program no message until `start`."""
        self._started = False
        self._hold_back()

    def drain(self) -> None:
        """Give the program no more messages."""
        self.draining = True
        self._hold_back()

    def _hold_back(self) -> None:
        for intake in self.intakes.values():
            intake.hold_back()

    async def ready(self) -> None:
        """Wait for the outcome of calls that were cancelled; raise if nothing may be received."""
        await self.units.ready()
        self.acknowledgement.check()

    def came_alone(self) -> None:
        """Note a message that perhaps caused a crash: the node hands over nothing else with it.

        It may be for another consumer than the one that a caller waits at, which then asks for more.
        """
        self._alone = True
        for intake in self.intakes.values():
            if not intake.waiting:
                intake.wake()

    def go_on(self) -> bool:
        """Ask for more, because the program does and nothing is here; return True if a message came alone.

        A program may need several messages before it acknowledges any of them.
        """
        alone, self._alone = self._alone, False
        if alone:
            self.units.provider.tell(GoOn(self.units.session))
        return alone

    def wake(self) -> None:
        """Wake everything that waits for a message."""
        for intake in self.intakes.values():
            intake.wake()
        self.news.set()

    def pop_unread(self) -> list[int]:
        """Remove all waiting messages; return their numbers, which the caller gives back to the node at once."""
        return [number for each in self.intakes.values() for number in each.pop_unread()]

    def drop_through(self, number: int) -> None:
        """Drop messages that were on their way when the node returned everything: they come again, too."""
        for each in self.intakes.values():
            each.drop_through(number)

    def interrupted(self, through: int) -> None:
        """Drop all messages, as the node is lost: those up to the number `through` come again."""
        self._hold_back()
        self.acknowledgement.interrupted()
        self.through, self.away, self._alone = through, True, False
        for each in self.intakes.values():
            each.interrupted()

    def resumed(self) -> None:
        """Ask for messages again, as the node is back."""
        self.away = False
        for each in self.intakes.values():
            each.resumed()

    # --- dead letters --------------------------------------------------------------------------------------

    async def give_up(
        self, number: int, message: Message, count: int, cause: BaseException, *, block: bool = False
    ) -> None:
        """Make a dead letter of a message that the program failed with too often.

        `block`: the block of a job failed, in which the error was raised, and not a listener.
        """
        self.acknowledgement.forget_one(number)
        letters = ""
        try:
            text = raised(cause, ERROR_MAX)
            letters = await self.units.provider.execute(Release(self.units.session, (number,), dead=True, error=text))
        except JMSException as failed:
            self._reports.report(failed)
        self.given_up += 1
        failing = "processing it" if block else "the listener"
        now = f"it is now a dead letter in {written(letters)}" if letters else "it is not delivered again"
        error = ListenerException(f"{failing} failed {count} times: {now}: {message!r}", message)
        error.__cause__ = cause
        self._reports.report(error, seen=block)

    def gave_up(self, event: GivenUp) -> None:
        """Report a dead letter that the node made: it was handed over too often, and never acknowledged."""
        if event.consumer not in self.intakes:
            return
        self.given_up += 1
        self._reports.report(
            ListenerException(
                f"the message {event.descriptor.id_text} to {written(event.descriptor.destination)} was delivered "
                f"{event.count} times and never acknowledged: it is now a dead letter"
            ),
            seen=True,  # The program rolled it back, or an earlier life ended with it.
        )


def _prefetch(wanted: ConsumerOptions, node_info: NodeInfo) -> int:
    """Return the number of messages that a consumer is handed ahead of its program."""
    if wanted.prefetch is not None:
        return wanted.prefetch  # type: ignore[no-any-return]  # it was checked when it was opened
    is_remote = addressee(wanted.destination.address) not in (None, node_info.node)
    return node_info.settings.prefetch_remote if is_remote else node_info.settings.prefetch


def _misfit(message: Message | None, kind: type | None) -> MessageFormatException:
    name = getattr(kind, "__name__", kind)
    return MessageFormatException(
        f"the body of the next message is not a {name}: call receive() to get the message {message!r}"
    )
