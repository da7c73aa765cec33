"""The units of work of one session: begun, and waited for so that a cancelled caller leaves nothing half done.

A send, an acknowledgement or a commit is one unit of work, and the node does it whole or not at all. A task that is
cancelled while it waits for the outcome does not undo it: the next call on the session waits for that outcome first. If
it was a failure, no caller is left to raise it to, so it is reported.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine
from typing import Any

from carrypost.errors import IllegalStateException, JMSException
from carrypost.gossip.draft import Draft
from carrypost.jms.provider import Perform, Performed, Provider
from carrypost.log.journal import Durability
from carrypost.messaging.commands import Ack, Late
from carrypost.model.descriptor import Descriptor

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
