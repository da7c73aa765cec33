"""Calls of a program's functions, mostly listeners, and what follows from failures: reports, and pauses of a session.

Functions are plain or async: listeners of messages, of completions and of exceptions. An exception of such a function
is returned, so that it does not end the task that calls it. A context variable holds the functions that are being
called, and their owners: a function that waits for its owner, in whichever task or thread, would wait for ever.

Problems that no call can raise are reported to the program's exception listener, or to the log.

After a program failed, its session hands out nothing for a while, so that order is kept. Without a pause, a program
that cannot do its work for a moment would use up all tries of a message within milliseconds. The pause doubles with
each failure in a row, up to a minute.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from carrypost.errors import IllegalArgumentException, JMSException
from carrypost.model.address import addressee, written

if TYPE_CHECKING:
    from carrypost.jms.provider import Source
    from carrypost.log.events import Unserved


Kinds = Mapping[type, type[Any]]
"""Classes of messages and temporary destinations that a program gets, by those of the asyncio API in their place."""
SAME: Kinds = {}


@dataclass(slots=True, eq=False)
class _Call:
    """One call, visible to the function and to the tasks that it starts."""

    owner: object
    outer: _Call | None
    runs: bool = True
    """False as soon as the function has returned: a task that it left behind may wait for its owner."""


_current: ContextVar[_Call | None] = ContextVar("carrypost_call", default=None)


def is_called_by(owner: object) -> bool:
    """Return True inside a function that is being called for `owner`, or in a task that was started there meanwhile."""
    call = _running(_current.get())
    while call is not None:
        if call.owner is owner:
            return True
        call = _running(call.outer)
    return False


def _running(call: _Call | None) -> _Call | None:
    while call is not None and not call.runs:
        call = call.outer
    return call


class Outcome(NamedTuple):
    """Outcome of a call of a program's function."""

    error: BaseException | None
    """Exception that it raised; None if it returned."""
    value: object = None
    """Value that it returned."""


class Caller:
    """The way in which the functions of one session are called: here, in the task that wants them called."""

    kinds: ClassVar[Kinds] = SAME

    async def called(self, owner: object, function: Callable[..., object], *given: object) -> Outcome:
        """Call a program's function for `owner`, and return the outcome.

        If something that the function awaited was cancelled, that is a failure of the program, too. This raises only if
        the calling task itself is cancelled.
        """
        call = _Call(owner, _running(_current.get()))
        token = _current.set(call)
        try:
            return Outcome(None, await self._call(function, *given))
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            return Outcome(error)
        except Exception as error:  # noqa: BLE001 - whatever a program raises
            return Outcome(error)
        finally:
            call.runs = False
            _current.reset(token)

    async def _call(self, function: Callable[..., object], *given: object) -> object:
        """Call a function, and await what it returns if that can be."""
        result = function(*given)
        return await result if inspect.isawaitable(result) else result

    def close(self) -> None:
        """Release what is kept for further calls."""


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


_LONGEST_S = 60.0
_DOUBLINGS_MAX = 32
"""Further doublings change nothing, whatever the first pause is."""


def pause_s(first_s: float, failures: int) -> float:
    """Return the length of the pause after this many failures in a row; `first_s` is that of the first."""
    return min(first_s * 2.0 ** min(failures - 1, _DOUBLINGS_MAX), max(first_s, _LONGEST_S))


class Pause:
    """Pauses of one session, and their lengths."""

    def __init__(self, first_s: float, wake: Callable[[], None]) -> None:
        self._first_s = first_s
        self._wake = wake
        self._failures = 0
        self.timer: asyncio.TimerHandle | None = None
        """Runs while nothing may be handed out."""

    def begin(self) -> None:
        """Begin a pause, because the program failed once more."""
        self._failures += 1
        if self._first_s:
            self.end()
            length_s = pause_s(self._first_s, self._failures)
            self.timer = asyncio.get_running_loop().call_later(length_s, self._over)

    def succeed(self) -> None:
        """Note a success: the next pause is a short one again."""
        self._failures = 0

    def _over(self) -> None:
        self.timer = None
        self._wake()

    def end(self) -> None:
        """Pause no longer."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
