"""Problems that no call can raise: reported to the program's exception listener, or to the log."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from carrypost.errors import IllegalArgumentException, JMSException
from carrypost.jms.caller import Caller, is_called_by
from carrypost.model.address import addressee, written

if TYPE_CHECKING:
    from carrypost.jms.provider import Source
    from carrypost.log.events import Unserved

ExceptionListener = Callable[[JMSException], Awaitable[None] | None]
_log = logging.getLogger("carrypost.jms")


def unserved(event: Unserved) -> JMSException:
    """Return the exception that programs get for a consumer that gets no further messages."""
    return JMSException(
        f"the consumer of {written(event.destination)} receives no more messages: the path to "
        f"{addressee(event.destination)!r}, which holds the topic, is lost. Close the consumer and create "
        "it again when there is a path, or make it durable"
    )


class Reports:
    """The problems of one connection, reported one at a time."""

    def __init__(self, source: Source, caller: Caller) -> None:
        self.listener: ExceptionListener | None = None
        self._source, self._caller = source, caller
        self._waiting: deque[tuple[JMSException, bool]] = deque()
        self._task: asyncio.Task[None] | None = None

    def listen(self, listener: object) -> None:
        """Set the function that is called with problems; None removes it. Raises `IllegalArgumentException`."""
        found = getattr(listener, "on_exception", listener)
        if found is not None and not callable(found):
            raise IllegalArgumentException(
                f"an exception listener must be a function or have on_exception, not {listener!r}"[:200]
            )
        self.listener = found

    def report(self, error: JMSException, *, seen: bool = False) -> None:
        """Report to the exception listener, or the log, once for all units of work that failed with this error.

        `seen`: the program knows already what it is about.
        """
        if (error, seen) in self._waiting:
            return
        self._waiting.append((error, seen))
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run(), name="carrypost exceptions")

    async def drained(self) -> None:
        """Wait until all problems were reported; an exception listener that calls this does not wait."""
        if self._task is not None and not is_called_by(self):
            await asyncio.wait({self._task})
            self._caller.close()

    async def _run(self) -> None:
        while self._waiting:
            error, seen = self._waiting.popleft()
            if self.listener is None:
                # An answer of the node that says why has no traceback, and none is needed.
                _log.error("%s", error, exc_info=error if error.__traceback__ is not None else None)
                if not seen:
                    self._source.unhandled(error)
                continue
            failed, _ = await self._caller.called(self, self.listener, error)
            if failed is not None:
                _log.error("an exception listener failed", exc_info=failed)
