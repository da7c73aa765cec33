"""Functions of programs, plain or async, called so that whatever they raise does not end who calls them."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable


async def called(function: Callable[..., object], *given: object) -> BaseException | None:
    """Call a program's function, and await what it returns if that can be; returns what it raised.

    Something that it waited for may have been cancelled: that is a failure of the program, too. Only if the calling
    task itself is cancelled does this raise.
    """
    try:
        result = function(*given)
        if inspect.isawaitable(result):
            await result
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        return error
    except Exception as error:  # noqa: BLE001 - whatever a program raises
        return error
    return None
