"""Calls of a program's functions, plain or async: listeners of messages, of completions and of exceptions.

An exception of such a function is returned, so that it does not end the task that calls it. A context variable holds
the functions that are being called, and their owners: a function that waits for its owner, in whichever task or thread,
would wait for ever.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

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
