"""Calls of a program's functions, plain or async: listeners of messages, of completions and of exceptions.

Whatever such a function raises is returned, so that it does not end the task that calls it. A context variable says
which functions are being called: a function that waits for its own caller, by whichever task, would wait forever.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(slots=True, eq=False)
class _Call:
    """One call, seen by the function and by the tasks that it starts."""

    caller: object
    outer: _Call | None
    runs: bool = True
    """False as soon as the function has returned: a task that it left behind may wait for its caller."""


_current: ContextVar[_Call | None] = ContextVar("carrypost_call", default=None)


def is_called_by(caller: object) -> bool:
    """Return True inside a function that `caller` is calling, or in a task that was started there meanwhile."""
    call = _running(_current.get())
    while call is not None:
        if call.caller is caller:
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


async def called(caller: object, function: Callable[..., object], *given: object) -> Outcome:
    """Call a program's function for `caller`, and await what it returns if that can be; return how that ended.

    Something that it waited for may have been cancelled: that is a failure of the program, too. Only if the calling
    task itself is cancelled does this raise.
    """
    call = _Call(caller, _running(_current.get()))
    token = _current.set(call)
    try:
        result = function(*given)
        if inspect.isawaitable(result):
            result = await result
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
    return Outcome(None, result)
