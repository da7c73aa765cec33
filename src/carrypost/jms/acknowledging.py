"""When what a program got counts as consumed: one class for each mode of sessions.

The host counts what was handed over and not acknowledged; here is only which numbers are acknowledged, and when.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

from carrypost.errors import IllegalStateException, JMSException
from carrypost.jms.modes import SessionMode
from carrypost.jms.works import SessionWorks
from carrypost.journal import Durability

UNACKNOWLEDGED_MAX = 10_000
"""What a session may have and not acknowledge: a program that never does would be told of it."""
_GROUP = 50
_GROUP_S = 1.0
"""DUPS_OK acknowledges so many together, or what there is after so long."""


class Acknowledging(ABC):
    """What one session has and did not acknowledge."""

    retries: ClassVar[bool]
    """Whether a message whose listener raised comes to it again at once."""

    def __init__(self, works: SessionWorks) -> None:
        self._works = works
        self._numbers: dict[int, None] = {}

    @abstractmethod
    def consumed(self, number: int) -> None:
        """The program got this one; or, if a listener got it, is done with it."""

    @abstractmethod
    async def acknowledge(self, number: int) -> None:
        """The program acknowledges the message that was handed over under this number."""

    async def acknowledge_all(self) -> None:
        """The program acknowledges everything that it got so far."""
        await self._works.ready()
        await self._finish(list(self._numbers))

    async def _finish(self, numbers: list[int]) -> None:
        """Acknowledge these, and wait until that is durable."""
        if numbers:
            done = self._works.acknowledge(numbers, Durability.FULL)
            for number in numbers:
                self._numbers.pop(number, None)
            await self._works.outcome(done)

    def check(self) -> None:
        """Raise if the program has too much that it did not acknowledge."""
        if len(self._numbers) >= UNACKNOWLEDGED_MAX:
            raise IllegalStateException(
                f"{len(self._numbers):,} messages are not acknowledged: acknowledge, commit or recover before more come"
            )

    def flush(self) -> asyncio.Future[None] | None:
        """Acknowledge now what is acknowledged soon anyway; returns when that is durable, None if there was nothing."""
        return None

    def forget(self) -> None:
        """Everything that was not acknowledged comes again."""
        self._numbers.clear()

    def forget_one(self, number: int) -> None:
        """This one comes again."""
        self._numbers.pop(number, None)


class _Automatic(Acknowledging):
    """Acknowledges by itself; what a program says is not needed."""

    retries = True

    async def acknowledge(self, number: int) -> None:  # noqa: ARG002 - it is acknowledged already, or soon
        """Nothing is left to do."""
        self._works.check()

    async def acknowledge_all(self) -> None:
        """Nothing is left to do."""
        self._works.check()

    def flush(self) -> asyncio.Future[None] | None:
        """Acknowledge what was consumed since the last time."""
        if not self._numbers:
            return None
        numbers, self._numbers = self._numbers, {}
        try:
            done = self._works.acknowledge(numbers, Durability.NORMAL)
        except JMSException:
            return None  # The node is gone: they come again, flagged.
        self._works.leave(done)
        return done


class AutoAcknowledging(_Automatic):
    """In the next turn of the loop, without waiting for the disk: after a crash the last ones may come again."""

    def consumed(self, number: int) -> None:
        """It is acknowledged in the next turn, with all that were consumed in this one."""
        if not self._numbers:
            asyncio.get_running_loop().call_soon(self.flush)
        self._numbers[number] = None


class DupsOkAcknowledging(_Automatic):
    """In groups, to spare the disk."""

    def __init__(self, works: SessionWorks) -> None:
        super().__init__(works)
        self._timer: asyncio.TimerHandle | None = None

    def consumed(self, number: int) -> None:
        """It is acknowledged with others."""
        self._numbers[number] = None
        if len(self._numbers) >= _GROUP:
            self.flush()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_GROUP_S, self.flush)

    def flush(self) -> asyncio.Future[None] | None:
        """Acknowledge the group as it is."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        return super().flush()


class ClientAcknowledging(Acknowledging):
    """The program says so, for everything that it got so far."""

    retries = False

    def consumed(self, number: int) -> None:
        """It waits for the program's word."""
        self._numbers[number] = None

    async def acknowledge(self, number: int) -> None:  # noqa: ARG002 - one stands for all
        """Acknowledge all that the session got so far."""
        await self.acknowledge_all()


class IndividualAcknowledging(ClientAcknowledging):
    """The program says so, for each."""

    async def acknowledge(self, number: int) -> None:
        """Acknowledge this one."""
        await self._works.ready()
        if number in self._numbers:
            await self._finish([number])


class TransactedAcknowledging(Acknowledging):
    """The commit of the transaction says so; what a program says of one message is not needed."""

    retries = False

    @property
    def numbers(self) -> tuple[int, ...]:
        """What the transaction has received."""
        return tuple(self._numbers)

    def consumed(self, number: int) -> None:
        """It waits for the commit."""
        self._numbers[number] = None

    async def acknowledge(self, number: int) -> None:  # noqa: ARG002 - the commit does
        """Nothing is to be done."""
        self._works.check()

    async def acknowledge_all(self) -> None:
        """Nothing is to be done."""
        self._works.check()


_BY_MODE: Mapping[SessionMode, type[Acknowledging]] = {
    SessionMode.AUTO_ACKNOWLEDGE: AutoAcknowledging,
    SessionMode.DUPS_OK_ACKNOWLEDGE: DupsOkAcknowledging,
    SessionMode.CLIENT_ACKNOWLEDGE: ClientAcknowledging,
    SessionMode.INDIVIDUAL_ACKNOWLEDGE: IndividualAcknowledging,
    SessionMode.SESSION_TRANSACTED: TransactedAcknowledging,
}


def acknowledging(mode: SessionMode, works: SessionWorks) -> Acknowledging:
    """How a session of this mode acknowledges."""
    return _BY_MODE[mode](works)
