"""Acknowledgement of received messages: one class for each mode of sessions.

The host counts messages that were handed over and not acknowledged; these classes decide which numbers are
acknowledged, and when.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from carrypost.errors import IllegalStateException, JMSException, TransactionInProgressException
from carrypost.jms.modes import SessionMode
from carrypost.jms.provider import NODE_LOST, is_lost
from carrypost.jms.units_of_work import SessionUnitsOfWork
from carrypost.log.journal import Durability
from carrypost.messaging.commands import Late
from carrypost.messaging.leases import LEASE_OVER
from carrypost.messaging.program_commands import Defer, Recover

if TYPE_CHECKING:
    from carrypost.log.events import Handed

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


_BY_MODE: Mapping[SessionMode, type[Acknowledgement]] = {
    SessionMode.AUTO_ACKNOWLEDGE: AutoAcknowledgement,
    SessionMode.DUPS_OK_ACKNOWLEDGE: DupsOkAcknowledgement,
    SessionMode.CLIENT_ACKNOWLEDGE: ClientAcknowledgement,
    SessionMode.INDIVIDUAL_ACKNOWLEDGE: IndividualAcknowledgement,
    SessionMode.SESSION_TRANSACTED: TransactedAcknowledgement,
}


def acknowledgement_of(mode: SessionMode, units: SessionUnitsOfWork) -> Acknowledgement:
    """Return the way in which a session of this mode acknowledges."""
    return _BY_MODE[mode](units)
