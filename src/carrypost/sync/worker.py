"""`Worker`: a thread that calls the functions of one session, so that they may block."""
# A listener of a blocking program may sleep or call back into `carrypost.sync`. In the thread of
# the loop either would stop all contexts of the process, and the second would wait for itself for
# ever. So each session with listeners has a thread of its own, which calls them one at a time, in
# order.

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context, copy_context
from queue import SimpleQueue
from typing import Any, NamedTuple, Protocol, TypeVar

from carrypost.errors import IllegalArgumentException
from carrypost.jms.listener_calls import Caller
from carrypost.sync.blocking_calls import KINDS, Message, loop

F = TypeVar("F")
Listener = Callable[[Message], object]


class MessageListener(Protocol):
    """A listener as an object."""

    def on_message(self, message: Message) -> object:
        """Handle a message; raise if that failed, and the message comes again."""


class _Job(NamedTuple):
    """A function to call."""

    context: Context
    """Context variables, which also mark the thread as inside a listener."""
    function: Callable[..., object]
    given: tuple[object, ...]
    done: asyncio.Future[object]


class Worker(Caller):
    """Calls functions one at a time, in a thread that the first of them begins.

    A function whose caller is cancelled runs on to its end, because a thread cannot be ended; no caller waits for it.
    """

    kinds = KINDS

    def __init__(self) -> None:
        self._jobs: SimpleQueue[_Job | None] | None = None

    async def _call(self, function: Callable[..., object], *given: object) -> object:
        if inspect.iscoroutinefunction(function):  # Programs have none here: it is a responder, which calls theirs.
            return await function(*given)
        if self._jobs is None:
            self._jobs = SimpleQueue()
            threading.Thread(target=_serve, args=(self._jobs,), name="carrypost listeners", daemon=True).start()
        done = asyncio.get_running_loop().create_future()
        self._jobs.put(_Job(copy_context(), function, given, done))
        return await done

    def close(self) -> None:
        """Let the thread end when it has nothing to do."""
        if self._jobs is not None:
            self._jobs.put(None)
            self._jobs = None


def _serve(jobs: SimpleQueue[_Job | None]) -> None:
    """Call one function after the other, until the thread has to end."""
    with suppress(RuntimeError):  # The loop is closed: the program ends.
        while (job := jobs.get()) is not None:
            result, error = _outcome(job)
            job.done.get_loop().call_soon_threadsafe(_answer, job.done, result, error)
            del job, result, error  # Nothing is kept alive while there is nothing to do.


def _outcome(job: _Job) -> tuple[object, Exception | None]:
    try:
        result = job.context.run(job.function, *job.given)
    except BaseException as error:  # noqa: BLE001 - whatever a program raises; sys.exit() ends no other thread
        return None, _raisable(error)
    if inspect.iscoroutine(result):
        result.close()
        return None, _is_async(job.function)
    return result, None


def _raisable(error: BaseException) -> Exception:
    """Return an exception that a task may raise: neither the end of the program nor that of an iteration."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    made = RuntimeError(f"a function that carrypost called raised {error!r}")
    made.__cause__ = error
    return made


def _answer(done: asyncio.Future[object], result: object, error: Exception | None) -> None:
    if done.done():
        return  # Its caller was cancelled.
    if error is None:
        done.set_result(result)
    else:
        done.set_exception(error)


def plain(listener: F) -> F:
    """Return a function, or an object with methods, that a thread can call; raises `IllegalArgumentException`."""
    for each in (listener, *(getattr(listener, name, None) for name in _METHODS)):
        if inspect.iscoroutinefunction(each):
            raise _is_async(each)
    return listener


def threaded(decorate: Callable[[Any], Any]) -> Callable[[F], F]:
    """Return a decorator of functions that a thread calls."""

    def decorated(function: F) -> F:
        async def begin() -> None:
            decorate(plain(function))

        loop().run(begin)
        return function

    return decorated


_METHODS = ("on_message", "on_exception", "on_completion")


def _is_async(function: object) -> IllegalArgumentException:
    return IllegalArgumentException(
        f"carrypost.sync calls plain functions, and {function!r} is async: define it with def, or use the "
        "classes of carrypost"
    )
