"""One blocking call of a thread, from its request to its outcome."""
# `concurrent.futures.Future` would do the same, with a condition variable and callbacks. A lock
# that is held until the call has ended does with less, and Ctrl-C can interrupt the wait for it.

from __future__ import annotations

import asyncio
import re
import threading
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any, Generic, TypeVar

from carrypost.errors import CarrypostError, IllegalStateException

T = TypeVar("T")
_WORDS = (
    (r"to be opened by ``async with``, or by awaiting it", "open already, and closed by ``with``"),
    (r"\basync (with|for|def)\b", r"\1"),
    (r"\bawait ", ""),
    (r"an async function or ", "or "),
    (r"[Tt]o be awaited, or ", "To be "),
)


def reworded(text: str | None) -> str | None:
    """Return a text about something that is awaited, as it reads where nothing is."""
    for pattern, words in _WORDS:
        text = None if text is None else re.sub(pattern, words, text)
    return text


def _as_blocking(error: BaseException) -> BaseException:
    """Return an error of this package whose advice reads as a blocking program is written."""
    if isinstance(error, CarrypostError) and error.args and isinstance(error.args[0], str):
        error.args = (reworded(error.args[0]), *error.args[1:])
    return error


class Call(Generic[T]):
    """One call that a thread waits for."""

    __slots__ = ("abandoned", "begin", "eager", "ended", "error", "result", "task")

    def __init__(self, begin: Callable[[], Awaitable[T]], *, eager: bool) -> None:
        self.begin, self.eager = begin, eager
        self.ended = threading.Lock()
        """Held until the call has ended."""
        self.ended.acquire()
        self.result: T | None = None
        self.error: BaseException | None = None
        self.task: asyncio.Task[None] | None = None
        self.abandoned = False

    async def perform(self) -> None:
        """Do the work, and wake the thread."""
        try:
            self.result = await self.begin()
        except asyncio.CancelledError:
            self.error = IllegalStateException("the call was cancelled: the program ends")
        except BaseException as error:  # noqa: BLE001 - the thread raises it
            self.error = _as_blocking(error)
        finally:
            self.ended.release()

    def fail(self, error: Exception) -> None:
        """End a call that did not begin, and wake the thread."""
        self.error = error
        self.ended.release()


@types.coroutine
def resumed(coroutine: Coroutine[Any, Any, T], awaited: object) -> Generator[Any, Any, T]:
    """Continue a coroutine that has begun, and waits for something."""
    try:
        while True:
            try:
                yield awaited
            except BaseException as error:  # noqa: BLE001 - the coroutine has it
                awaited = coroutine.throw(error)
            else:
                awaited = coroutine.send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
