"""Acknowledgement of received messages, with the units of work of a session and what it announces to its node.

The host counts messages that were handed over and not acknowledged. One class for each mode of sessions decides which
numbers are acknowledged, and when.

A send, an acknowledgement or a commit is one unit of work, and the node does it whole or not at all. A task that is
cancelled while it waits for the outcome does not undo it: the next call on the session waits for that outcome first. If
it was a failure, no caller is left to raise it to, so it is reported.

An attached program announces which messages of a consumer its code gets. Only what the code of a program got, or may
have got, counts as a delivery. A program that ends in order says what it has not read. A program that is killed cannot,
so the node has to know before the code gets a message.
"""

# An announcement costs a round trip. It cannot be shorter: bytes that were written and not read are
# lost if the node meanwhile writes to the program that is gone. So a program that takes messages in
# quick succession announces many at once, also such that have not come, and takes that back when it
# pauses. With 32 at once, small messages took 40 % more CPU time than without announcements.

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from carrypost.errors import IllegalStateException, JMSException, TransactionInProgressException
from carrypost.gossip.draft import Draft
from carrypost.jms.modes import SessionMode
from carrypost.jms.provider import NODE_LOST, Perform, Performed, Provider, is_lost
from carrypost.log.journal import Durability
from carrypost.messaging.commands import LEASE_OVER, Ack, Announce, Defer, Late, Recover
from carrypost.model.descriptor import Descriptor

if TYPE_CHECKING:
    from carrypost.log.events import Handed


Report = Callable[[JMSException], None]


class SessionUnitsOfWork:
    """The units of work that one session asked its node for, and that are not answered yet."""

    def __init__(self, provider: Provider, session: int, report: Report) -> None:
        self.provider = provider
        self.session = session
        self.report = report
        """Reports a problem that no call can raise."""
        self._open: dict[asyncio.Future[None], asyncio.Future[None] | None] = {}
        """Units of work without an answer, and the future that a caller waits for, if any."""
        self._left: set[asyncio.Future[None]] = set()
        """Units of work that no caller waits for."""
        self.abandoned: set[asyncio.Future[None]] = set()
        """Units of work at which a task was cancelled."""
        self._closed = ""

    def close(self, reason: str) -> None:
        """Refuse units of work from now on, for this reason."""
        self._closed = reason

    def check(self) -> None:
        """Raise unless the session is open."""
        if self._closed:
            raise IllegalStateException(self._closed)

    def perform(
        self,
        sends: tuple[Draft | int, ...],
        durability: Durability,
        acknowledged: Collection[int] = (),
        *,
        late: Late = Late.REFUSE,
        early: bool = False,
    ) -> Performed:
        """Begin a unit of work that sends messages and drafts, and acknowledges the messages of these numbers."""
        self.check()
        acks = (Ack(self.session, tuple(acknowledged), late=late),) if acknowledged else ()
        performed = self.provider.perform(Perform(self.session, sends, acks, durability, early))
        self._follow(performed.done)
        return performed

    def _follow(self, done: asyncio.Future[None]) -> None:
        self._open[done] = None
        done.add_done_callback(self._answered)

    def _answered(self, done: asyncio.Future[None]) -> None:
        waiter = self._open.pop(done)
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
        if done in self._left:
            self._left.discard(done)
            self._report(done)

    def leave(self, done: asyncio.Future[None]) -> None:
        """Note that no caller waits for this one: its failure is reported."""
        if done in self._open:
            self._left.add(done)
        else:
            self._report(done)

    async def sent(self, performed: Performed) -> tuple[Descriptor, ...]:
        """Wait until the node has the messages of a unit of work; raises what is wrong with them."""
        try:
            return await performed.sent
        except asyncio.CancelledError:
            # The node goes on with it; the next caller waits for its outcome first (`ready`).
            self._abandon(performed.done)
            raise

    async def outcome(self, done: asyncio.Future[None]) -> None:
        """Wait until a unit of work is durable; raises what it failed with."""
        try:
            await self._end_of(done)
        except asyncio.CancelledError:
            self._abandon(done)
            raise
        done.result()

    async def conclude(self, done: asyncio.Future[None], ending: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Wait until a unit of work is durable or failed, and do what follows from that.

        A caller that is cancelled, or would have to wait once more, leaves the rest to a task: it is done in any case.
        """
        try:
            await self._end_of(done)
        except asyncio.CancelledError:
            task = asyncio.ensure_future(ending())
            self._follow(task)
            self._abandon(task)
            raise
        # After a failure `ending` waits for the node again, and may be cancelled there; a task of
        # its own cannot.
        if done.cancelled() or done.exception() is not None:
            await self.outcome(asyncio.ensure_future(ending()))
        else:
            await ending()

    async def _end_of(self, done: asyncio.Future[None]) -> None:
        """Wait on a separate future, so that a cancelled caller does not cancel the answer.

        `asyncio.shield` does the same with three callbacks more.
        """
        if not done.done():
            if done not in self._open:
                self._follow(done)
            waiter = self._open[done] = done.get_loop().create_future()
            await waiter

    def _abandon(self, done: asyncio.Future[None]) -> None:
        """Note that the task that waited was cancelled."""
        self.abandoned.add(done)
        self.leave(done)

    async def settled(self) -> None:
        """Wait until the node has done what it was asked for so far, and has reported it."""
        await self.outcome(self.perform((), Durability.NORMAL).done)

    async def ready(self) -> None:
        """Wait for the outcome of cancelled calls, then raise unless the session is open."""
        if self.abandoned:
            await self.abandoned_done()
        self.check()

    async def abandoned_done(self) -> None:
        """Wait for the outcome of cancelled calls."""
        while self.abandoned:
            await asyncio.wait(self.abandoned)
            self.abandoned = {each for each in self.abandoned if not each.done()}

    async def all_done(self) -> None:
        """Wait for the outcome of everything."""
        while self._open:
            await asyncio.wait(self._open)

    def _report(self, done: asyncio.Future[None]) -> None:
        error = None if done.cancelled() else done.exception()
        if isinstance(error, JMSException):
            self.report(error)


UNACKNOWLEDGED_MAX = 10_000
"""Number of messages that a session may have unacknowledged: a program that never acknowledges gets an exception."""
_LOST = (
    "the connection to the node was lost after this program received the message, so that it cannot be acknowledged: "
    "it comes again, flagged as redelivered"
)
_GROUP = 50
_GROUP_S = 1.0
"""Number of messages, and time, after which DUPS_OK acknowledges a group."""


class Acknowledgement:
    """Messages that one session has and did not acknowledge."""

    retries: ClassVar[bool] = False
    """True if a message whose listener raised is given to it again at once."""

    def __init__(self, units: SessionUnitsOfWork) -> None:
        self._units = units
        self._held: dict[int, None] = {}
        """Numbers of messages that the program has, in the order in which it got them."""
        self._lost: dict[int, None] = {}
        """Numbers of messages that the program had, and did not acknowledge, when its node was lost."""

    def consumed(self, handed: Handed) -> None:
        """Note that the program got this message or, with a listener, is done with it."""
        self._held[handed.number] = None

    async def acknowledge(self, number: int) -> None:  # noqa: ARG002 - modes that heed the program do
        """Acknowledge a message at the program's request, if the mode leaves that to the program."""
        self._units.check()

    async def acknowledge_all(self) -> None:
        """Acknowledge everything that the program got so far at its request, if the mode leaves that to the program."""
        self._units.check()

    async def release(self, number: int, delay_us: int) -> None:  # noqa: ARG002 - one mode heeds the program
        """Let a message come again after a while, at the program's request; only with individual acknowledgement."""
        raise IllegalStateException(
            "this context does not acknowledge messages individually: create it with SessionMode.INDIVIDUAL_ACKNOWLEDGE"
        )

    def check(self) -> None:
        """Raise if the program has too many unacknowledged messages."""
        if len(self._held) >= UNACKNOWLEDGED_MAX:
            raise IllegalStateException(
                f"{len(self._held):,} messages are not acknowledged: acknowledge, commit or recover to receive more"
            )

    def flush(self) -> asyncio.Future[None] | None:
        """Acknowledge now what would be acknowledged soon; return a future for its durability, or None."""
        return None

    def forget(self) -> None:
        """Forget everything that was not acknowledged, because it comes again."""
        self._held.clear()

    def forget_one(self, number: int) -> None:
        """Forget a message that comes again."""
        self._held.pop(number, None)

    def interrupted(self) -> None:
        """Forget everything, as the node is lost: it comes again."""
        self._lost |= self._held
        self._held.clear()
        while len(self._lost) > UNACKNOWLEDGED_MAX:
            del self._lost[next(iter(self._lost))]


class _Automatic(Acknowledgement):
    """Acknowledging without the program."""

    retries = True

    def flush(self) -> asyncio.Future[None] | None:
        """Acknowledge what was consumed since the last call.

        A late acknowledgement counts if no other consumer has the message; that it was late is reported.
        """
        if not self._held:
            return None
        numbers, self._held = self._held, {}
        try:
            done = self._units.perform((), Durability.NORMAL, numbers).done
        except JMSException as error:
            if error.error_code == LEASE_OVER:
                self._units.report(error)
            return self._accept_late(numbers, error)
        done.add_done_callback(partial(self._answered, numbers))
        return done

    def _answered(self, numbers: Collection[int], done: asyncio.Future[None]) -> None:
        error = None if done.cancelled() else done.exception()
        if isinstance(error, JMSException) and not (is_lost(error) and self._units.provider.reconnects):
            self._units.report(error)
            self._accept_late(numbers, error)

    def _accept_late(self, numbers: Collection[int], error: BaseException) -> asyncio.Future[None] | None:
        """Acknowledge what no other consumer has, if the node refused the whole because leases are over."""
        if not isinstance(error, JMSException) or error.error_code != LEASE_OVER:
            return None  # The node is gone, or cannot write: they come again, flagged.
        try:
            done = self._units.perform((), Durability.NORMAL, numbers, late=Late.ACCEPT).done
        except JMSException:
            return None
        self._units.leave(done)
        return done


class AutoAcknowledgement(_Automatic):
    """Acknowledgement in the next turn of the loop, without waiting for the disk: a crash may repeat the last ones."""

    def consumed(self, handed: Handed) -> None:
        """Acknowledge it in the next turn, with all that were consumed in this one."""
        if not self._held:
            asyncio.get_running_loop().call_soon(self.flush)
        self._held[handed.number] = None


class DupsOkAcknowledgement(_Automatic):
    """Acknowledgement in groups, to spare the disk."""

    def __init__(self, units: SessionUnitsOfWork) -> None:
        super().__init__(units)
        self._timer: asyncio.TimerHandle | None = None

    def consumed(self, handed: Handed) -> None:
        """Acknowledge it with others."""
        super().consumed(handed)
        if len(self._held) >= _GROUP:
            self.flush()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_GROUP_S, self.flush)

    def flush(self) -> asyncio.Future[None] | None:
        """Acknowledge the group as it is."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        return super().flush()


class ClientAcknowledgement(Acknowledgement):
    """Acknowledgement by the program, of everything that it got so far."""

    async def _finish(self, numbers: Collection[int]) -> None:
        """Acknowledge these, and wait until that is durable; raises if leases are over.

        Messages whose leases are over go back to their queues, and the others are acknowledged.
        """
        if not numbers:
            return
        try:
            done = self._units.perform((), Durability.FULL, numbers).done
        except JMSException as error:
            await self._refused(numbers, error)
        else:
            self._forget(numbers)
            await self._units.conclude(done, partial(self._concluded, numbers, done))

    async def _concluded(self, numbers: Collection[int], done: asyncio.Future[None]) -> None:
        try:
            await done
        except JMSException as error:
            await self._refused(numbers, error)

    async def _refused(self, numbers: Collection[int], error: JMSException) -> None:
        """Acknowledge what can be acknowledged, because the node refused the whole; raise its reason."""
        if error.error_code == LEASE_OVER:
            done = self._units.perform((), Durability.FULL, numbers, late=Late.RETURN).done
            self._forget(numbers)
            await self._units.outcome(done)
        raise error

    def _forget(self, numbers: Collection[int]) -> None:
        for number in numbers:
            self._held.pop(number, None)

    async def acknowledge(self, number: int) -> None:
        """Acknowledge all that the session got so far; raises if the node was lost since it got this message."""
        if number in self._lost:
            await self.acknowledge_all()
        self._lost.clear()
        await self._units.ready()
        await self._finish(list(self._held))

    async def acknowledge_all(self) -> None:
        """Acknowledge all that the session got so far; raises, once, if the node was lost since it got some of it."""
        await self._units.ready()
        if self._lost:
            self._lost.clear()
            raise IllegalStateException(_LOST, NODE_LOST)
        await self._finish(list(self._held))


class IndividualAcknowledgement(ClientAcknowledgement):
    """Acknowledgement by the program, one by one."""

    async def acknowledge(self, number: int) -> None:
        """Acknowledge this one."""
        await self._units.ready()
        self._check_present(number)
        if number in self._held:
            try:
                await self._finish([number])
            except JMSException as error:
                if is_lost(error):  # Another try must not look like a success.
                    self._lost[number] = None
                raise

    def _check_present(self, number: int) -> None:
        if number in self._lost:
            raise IllegalStateException(_LOST, NODE_LOST)

    async def release(self, number: int, delay_us: int) -> None:
        """Let this message come again after `delay_us`, unless it was acknowledged or released."""
        await self._units.ready()
        self._check_present(number)
        if number in self._held:
            await self._units.outcome(asyncio.ensure_future(self._release(number, delay_us)))

    async def _release(self, number: int, delay_us: int) -> None:
        del self._held[number]
        try:
            if delay_us:
                await self._units.provider.execute(Defer(self._units.session, number, delay_us))
            else:
                await self._units.provider.execute(Recover(self._units.session, (), (number,)))
        except JMSException as error:
            if is_lost(error):
                self._lost[number] = None
            else:
                self._held[number] = None  # The session has it as before.
            raise


class TransactedAcknowledgement(Acknowledgement):
    """Acknowledgement by the commit of the transaction."""

    def __init__(self, units: SessionUnitsOfWork) -> None:
        super().__init__(units)
        self.committing = False
        """True if a commit is under way. Set by the transaction."""

    @property
    def numbers(self) -> tuple[int, ...]:
        """The messages that the transaction has received."""
        return tuple(self._held)

    def check(self) -> None:
        """Raise while a commit runs, and if the transaction has received too much."""
        self.check_idle()
        super().check()

    def check_idle(self) -> None:
        """Raise while a commit runs."""
        if self.committing:
            raise TransactionInProgressException("a commit is in progress in this context: wait for it first")


ACKNOWLEDGEMENTS: Mapping[SessionMode, type[Acknowledgement]] = {
    SessionMode.AUTO_ACKNOWLEDGE: AutoAcknowledgement,
    SessionMode.DUPS_OK_ACKNOWLEDGE: DupsOkAcknowledgement,
    SessionMode.CLIENT_ACKNOWLEDGE: ClientAcknowledgement,
    SessionMode.INDIVIDUAL_ACKNOWLEDGE: IndividualAcknowledgement,
    SessionMode.SESSION_TRANSACTED: TransactedAcknowledgement,
}
"""Ways in which sessions acknowledge, by their modes."""


_TOGETHER_MAX = 1_024
"""Number of messages that are announced together, at most."""
_QUICK_S = 0.05
"""Time between two messages that are taken in quick succession, at most."""


class Announcements:
    """The announcements of one consumer."""

    def __init__(self, provider: Provider) -> None:
        self._provider = provider
        self.through = 0
        """The number up to which the program's code may get messages."""
        self._last, self._last_s = 0, -_QUICK_S
        """Number of the last message that it got, and when."""
        self._consumer = 0
        self._together = 1
        """Number of messages in the last announcement."""
        self._timer: asyncio.TimerHandle | None = None
        self._retracting: asyncio.Task[None] | None = None

    def reset(self) -> None:
        """Forget what was announced, as the node that heard it is gone."""
        self.through = 0
        self.close()

    async def add(self, consumer: int, number: int) -> None:
        """Announce a message, unless it was announced with those before it, and is taken soon after them."""
        if number <= self._last:
            return  # It is read once more.
        now_s = asyncio.get_running_loop().time()
        quick = now_s < self._last_s + _QUICK_S
        if not quick or number > self.through:
            together = min(2 * self._together, _TOGETHER_MAX) if quick else 1
            through = number + together - 1
            await self._provider.execute(Announce(consumer, number, through))
            self._consumer, self._together, self.through = consumer, together, through
        self._last, self._last_s = number, now_s
        if self._timer is None and self.through > number:
            self._look_later()

    def _look_later(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_QUICK_S, self._look, self._last)

    def _look(self, last: int) -> None:
        """Take back what was announced in advance, if the program has taken nothing since the message `last`."""
        if last != self._last:
            self._look_later()
            return
        self._timer, self.through = None, last
        self._retracting = asyncio.get_running_loop().create_task(self._retract())

    async def _retract(self) -> None:
        with suppress(JMSException):  # The consumer was closed, or the node ended.
            await self._provider.execute(Announce(self._consumer, self._last, self.through))

    def close(self) -> None:
        """Take nothing back any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
