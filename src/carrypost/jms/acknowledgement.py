"""Acknowledgement of received messages: one class for each mode of sessions.

The host counts messages that were handed over and not acknowledged; these classes decide which numbers are
acknowledged, and when.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, ClassVar

from carrypost.errors import IllegalStateException, JMSException, TransactionInProgressException
from carrypost.jms.modes import SessionMode
from carrypost.jms.units_of_work import SessionUnitsOfWork
from carrypost.journal import Durability

if TYPE_CHECKING:
    from carrypost.events import Handed

UNACKNOWLEDGED_MAX = 10_000
"""Number of messages that a session may have unacknowledged: a program that never acknowledges gets an exception."""
_GROUP = 50
_GROUP_S = 1.0
"""Number of messages, and time, after which DUPS_OK acknowledges a group."""


class Acknowledgement:
    """Messages that one session has and did not acknowledge."""

    retries: ClassVar[bool] = False
    """True if a message whose listener raised is given to it again at once."""

    def __init__(self, units: SessionUnitsOfWork) -> None:
        self._units = units
        self._leases: dict[int, int] = {}
        """By number, the time at which its lease ends; 0: never."""

    def consumed(self, handed: Handed) -> None:
        """Note that the program got this message or, with a listener, is done with it."""
        self._leases[handed.number] = handed.lease_us

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

    async def _finish(self, numbers: list[int]) -> None:
        """Acknowledge these, and wait until that is durable; raises if some leases are over.

        Messages whose leases are over are returned, and the others are acknowledged.
        """
        lapsed = self.lapsed(numbers)
        held = [number for number in numbers if number not in lapsed] if lapsed else numbers
        done = self._units.perform((), Durability.FULL, held).done if held else None
        for number in numbers:
            self._leases.pop(number, None)
        if lapsed:
            await self._units.provider.recover(self._units.session, (), lapsed)
        if done is not None:
            await self._units.outcome(done)
        if lapsed:
            raise lease_over(len(lapsed), len(numbers))

    def lapsed(self, numbers: Collection[int]) -> list[int]:
        """Return the messages whose leases are over: others may have them by now, or be done with them."""
        leased = [number for number in numbers if self._leases.get(number)]
        now_us = self._units.provider.now_us() if leased else 0
        return [number for number in leased if self._leases[number] <= now_us]

    def check(self) -> None:
        """Raise if the program has too many unacknowledged messages."""
        if len(self._leases) >= UNACKNOWLEDGED_MAX:
            raise IllegalStateException(
                f"{len(self._leases):,} messages are not acknowledged: acknowledge, commit or recover to receive more"
            )

    def flush(self) -> asyncio.Future[None] | None:
        """Acknowledge now what would be acknowledged soon; return a future for its durability, or None."""
        return None

    def forget(self) -> None:
        """Forget everything that was not acknowledged, because it comes again."""
        self._leases.clear()

    def forget_one(self, number: int) -> None:
        """Forget a message that comes again."""
        self._leases.pop(number, None)


class _Automatic(Acknowledgement):
    """Acknowledging without the program."""

    retries = True

    def flush(self) -> asyncio.Future[None] | None:
        """Acknowledge what was consumed since the last call.

        A late acknowledgement counts if no other consumer has the message; that it was late is reported.
        """
        if not self._leases:
            return None
        if lapsed := self.lapsed(self._leases):
            self._units.report(lease_over(len(lapsed), len(self._leases)))
        numbers, self._leases = self._leases, {}
        try:
            done = self._units.perform((), Durability.NORMAL, numbers).done
        except JMSException:
            return None  # The node is gone: they come again, flagged.
        self._units.leave(done)
        return done


class AutoAcknowledgement(_Automatic):
    """Acknowledgement in the next turn of the loop, without waiting for the disk: a crash may repeat the last ones."""

    def consumed(self, handed: Handed) -> None:
        """Acknowledge it in the next turn, with all that were consumed in this one."""
        if not self._leases:
            asyncio.get_running_loop().call_soon(self.flush)
        self._leases[handed.number] = handed.lease_us


class DupsOkAcknowledgement(_Automatic):
    """Acknowledgement in groups, to spare the disk."""

    def __init__(self, units: SessionUnitsOfWork) -> None:
        super().__init__(units)
        self._timer: asyncio.TimerHandle | None = None

    def consumed(self, handed: Handed) -> None:
        """Acknowledge it with others."""
        super().consumed(handed)
        if len(self._leases) >= _GROUP:
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

    async def acknowledge(self, number: int) -> None:  # noqa: ARG002 - one stands for all
        """Acknowledge all that the session got so far."""
        await self.acknowledge_all()

    async def acknowledge_all(self) -> None:
        """Acknowledge all that the session got so far."""
        await self._units.ready()
        await self._finish(list(self._leases))


class IndividualAcknowledgement(ClientAcknowledgement):
    """Acknowledgement by the program, one by one."""

    async def acknowledge(self, number: int) -> None:
        """Acknowledge this one."""
        await self._units.ready()
        if number in self._leases:
            await self._finish([number])

    async def release(self, number: int, delay_us: int) -> None:
        """Let this message come again after `delay_us`, unless it was acknowledged or released."""
        await self._units.ready()
        if number in self._leases:
            await self._units.outcome(asyncio.ensure_future(self._release(number, delay_us)))

    async def _release(self, number: int, delay_us: int) -> None:
        lease_us = self._leases.pop(number)
        try:
            if delay_us:
                await self._units.provider.defer(self._units.session, number, delay_us)
            else:
                await self._units.provider.recover(self._units.session, (), (number,))
        except JMSException:
            self._leases[number] = lease_us  # The session has it as before.
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
        return tuple(self._leases)

    def check(self) -> None:
        """Raise while a commit runs, and if the transaction has received too much."""
        self.check_idle()
        super().check()

    def check_idle(self) -> None:
        """Raise while a commit runs."""
        if self.committing:
            raise TransactionInProgressException("a commit is in progress in this context: wait for it first")


def lease_over(lapsed: int, count: int) -> IllegalStateException:
    """Return the exception for a program that took longer than its leases, for this many of its messages."""
    which = "the lease of the message is" if count == 1 else f"the leases of {lapsed} of {count} messages are"
    return IllegalStateException(
        f"{which} over, and the messages may have been redelivered elsewhere: declare the queue with a longer lease_s",
        "LEASE_OVER",
    )


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
