"""Listeners of one session: called one at a time, in one task, in the order in which messages were handed over."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from carrypost.errors import IllegalStateException, JMSException
from carrypost.jms.caller import Caller, is_called_by
from carrypost.jms.pause import pause_s
from carrypost.messaging.program_commands import Recover, Retry

if TYPE_CHECKING:
    from carrypost.jms.intake import Inbox, Intake, Listener
    from carrypost.jms.messages import Message
    from carrypost.jms.reports import Reports
    from carrypost.log.events import Handed

_log = logging.getLogger("carrypost.jms")


class ListenerTask:
    """The task in which the listeners of a session are called."""

    def __init__(self, inbox: Inbox, caller: Caller, reports: Reports) -> None:
        self._inbox, self._caller, self._reports = inbox, caller, reports
        self._idle = asyncio.Event()
        self._idle.set()
        self._ends = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        """The task; None before the first listener."""

    def begin(self) -> None:
        """Begin to call the listeners. Idempotent."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="carrypost listeners")

    def check_not_inside(self, what: str) -> None:
        """Raise if this is called by a listener: it would wait for itself."""
        if is_called_by(self):
            raise IllegalStateException(f"a listener cannot {what}: it would wait for itself")

    async def idle(self) -> None:
        """Wait until no listener is being called."""
        await self._idle.wait()

    async def close(self) -> None:
        """Let the running listener finish, and call no other."""
        self._ends.set()
        self._inbox.news.set()
        if self._task is not None:
            await asyncio.wait({self._task})

    def abandon(self) -> None:
        """Cancel the running listener: the node is gone, or nothing waits for it any more."""
        self._ends.set()
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        while not self._ends.is_set():
            intake = self._next()
            if intake is None:
                self._inbox.news.clear()
                if self._inbox.delivers:
                    self._inbox.go_on()
                await self._inbox.news.wait()
                continue
            handed = intake.waiting[0]
            self._idle.clear()
            try:
                await self._serve(intake, handed)
            # What listeners raise is dealt with below. This is the node, such as one whose disk is
            # full, or a fault of ours, and the other listeners go on.
            except Exception as error:  # noqa: BLE001 - whatever it is
                await self._return(intake, handed, error)
            finally:
                self._idle.set()

    async def _return(self, intake: Intake, handed: Handed, error: Exception) -> None:
        """Report why a message could not be given to its listener, and let it come again after a while."""
        if handed.number <= self._inbox.through:
            return  # The node was lost meanwhile, and it comes again.
        if isinstance(error, JMSException):
            self._reports.report(error)
        else:
            _log.error("a message could not be given to its listener", exc_info=error)
        if intake.is_next(handed):
            intake.waiting.popleft()
        if await self._pause(handed.count):
            return  # The end of the session returns it.
        with suppress(JMSException):  # The node has ended, or has no message under this number any more.
            await self._inbox.units.provider.execute(Recover(self._inbox.units.session, (), (handed.number,)))
        intake.was_taken(handed)

    def _next(self) -> Intake | None:
        """Return the intake whose message is next."""
        if not self._inbox.delivers:
            return None
        waiting = [each for each in self._inbox.intakes.values() if each.listener is not None and each.waiting]
        return min(waiting, key=lambda each: each.waiting[0].number, default=None)

    async def _serve(self, intake: Intake, handed: Handed) -> None:
        message = await intake.read(handed)
        listener = intake.listener
        if listener is None or not intake.is_next(handed):
            return  # Things changed meanwhile.
        intake.waiting.popleft()
        if message is None:
            intake.was_taken(handed)
        elif self._inbox.acknowledgement.retries:
            consumed = await self._tried(intake, listener, handed, message)
            if consumed and handed.number > self._inbox.through:  # Else the node was lost meanwhile.
                self._inbox.acknowledgement.consumed(handed)
            intake.was_taken(handed)
        else:
            self._inbox.acknowledgement.consumed(handed)
            intake.was_taken(handed)
            await self._called(listener, message)

    async def _tried(self, intake: Intake, listener: Listener, handed: Handed, message: Message) -> bool:
        """Call the listener until it does not raise; return True if the message is consumed, False if it is given up.

        Earlier hand-overs count, also those before restarts: a message that crashes its program each time is given up
        in the end. So each further try is counted, and that is durable, before it begins.
        """
        units = self._inbox.units
        tries = handed.tries or units.provider.node_info.settings.tries
        while True:
            error = await self._called(listener, message)
            if error is None:
                return True
            if handed.number <= self._inbox.through:
                return False  # The node was lost meanwhile, and it comes again.
            if handed.count >= tries:
                await self._inbox.give_up(handed.number, message, handed.count, error)
                return False
            if await self._pause(handed.count):
                return False
            count = await units.provider.execute(Retry(units.session, handed.number))
            handed = msgspec.structs.replace(handed, count=count)
            again = await intake.read(handed) if count else None
            if again is None:
                return False  # It expired.
            message = again

    async def _pause(self, failures: int) -> bool:
        """Wait before the next try; return True if listeners are not called any more."""
        first_s = self._inbox.units.provider.node_info.settings.redelivery_delay_s
        with suppress(TimeoutError):
            async with asyncio.timeout(pause_s(first_s, failures)):
                await self._ends.wait()
        return self._ends.is_set()

    async def _called(self, listener: Listener, message: Message) -> BaseException | None:
        """Call a listener; return what it raised."""
        error, _ = await self._caller.called(self, listener, message)
        if error is not None:
            _log.warning("a listener failed with %r: %r", message, error, exc_info=error)
        return error
