"""Blocking calls: methods made of those that are awaited, their thread, messages whose calls block, and listeners.

A method that blocks has the parameters of the one that is awaited, and the same words of documentation.

A call is a hop: the thread that makes it waits while the loop does the work. Ctrl-C ends the wait and cancels the work.
When the program ends, the contexts that are still open are closed within five seconds. A `Worker` is the opposite
direction: a thread that calls the functions of one session, so that they may block.

The process has one loop, begun by the first call. A process that was forked off has no such thread. A thread that runs
an event loop of its own must not wait for another. Both get `IllegalStateException`.
"""

# `concurrent.futures.Future` would do the same, with a condition variable and callbacks. A lock
# that is held until the call has ended does with less, and Ctrl-C can interrupt the wait for it.

# Blocking programs could have had a node of their own design, with locks. Instead they use the same
# asynchronous classes in one thread with an event loop, and each call is a hop to that thread. So
# there is one implementation to test, and programs with many threads need no locks: all state
# belongs to the loop.
#
# The price is the hop. Three things keep it small: eager work runs without a task as long as it
# waits for nothing, a lock takes the place of a future (`Call.ended`), and messages that were read
# ahead are taken without any hop (`Batch`).

from __future__ import annotations

import asyncio
import atexit
import inspect
import os
import re
import threading
import types
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager, suppress
from contextvars import Context, copy_context
from functools import wraps
from queue import SimpleQueue
from typing import Any, ClassVar, Concatenate, Generic, NamedTuple, ParamSpec, Protocol, Self, TypeVar, overload

from carrypost.classic.connections import Connection
from carrypost.errors import CarrypostError, IllegalArgumentException, IllegalStateException
from carrypost.java_names import JavaNamed
from carrypost.jms import declarations, messages
from carrypost.jms.context_sessions import ContextSessions
from carrypost.jms.intake import BATCH_MAX, Batch
from carrypost.jms.listener_calls import Caller, Kinds

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


_CLOSE_S, _CUT_OFF_S, _JOIN_S = 4.0, 0.5, 0.5
"""At exit: how long listeners may take to finish, closing without them, and the thread to end."""


class Loop:
    """The event loop of blocking calls, its thread, and what is open."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.batches: list[Batch] = []
        """Messages that threads take on their own: their consumption is reported before anything else is done."""
        self._contexts: list[ContextSessions | Connection] = []
        self._began = threading.Event()
        # A daemon thread: a program that ends by an exception must not hang, and `atexit` closes
        # what is open.
        self._thread = threading.Thread(target=asyncio.run, args=(self._serve(),), name="carrypost loop", daemon=True)
        self._thread.start()
        self._began.wait()
        atexit.register(self._end)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._ends = asyncio.Event()
        self._began.set()
        await self._ends.wait()

    # --- calls ---------------------------------------------------------------------------------------------

    def run(
        self, begin: Callable[[], Awaitable[T]], undo: Callable[[T], object] | None = None, *, eager: bool = False
    ) -> T:
        """Do something in the thread of the loop, and wait for the outcome; raises what that raises.

        If a signal handler raises meanwhile, as Ctrl-C does, the work is cancelled, and a result that it had
        nevertheless is passed to `undo`. Eager work needs no task until it waits for something, which saves a turn of
        the loop.
        """
        call = Call(begin, eager=eager)
        try:
            self.post(self._begin, call)
            call.ended.acquire()
        except BaseException:
            if not self._loop.is_closed():
                self.run(lambda: asyncio.shield(self._loop.create_task(self._abandon(call, undo))))
            raise
        if call.error is not None:
            raise call.error
        return call.result  # type: ignore[return-value]  # there is one, as there is no error

    def post(self, function: Callable[..., object], *given: object) -> None:
        """Have a function called in the thread of the loop, after all that was asked for before."""
        try:
            self._loop.call_soon_threadsafe(function, *given, context=copy_context())
        except RuntimeError:
            if self._loop.is_closed():
                raise IllegalStateException("the program ends: its contexts are closed") from None
            raise

    def _begin(self, call: Call[Any]) -> None:
        # A thread waits for the call: whatever is raised here ends it, or the thread would wait for
        # ever.
        try:
            self._report_taken()
            if not call.abandoned:  # Else Ctrl-C came before the loop began with it.
                self._perform(call)
        except Exception as error:  # noqa: BLE001 - the thread raises it
            call.fail(error)

    def _report_taken(self) -> None:
        """Report messages that threads took since, before anything else: an acknowledgement covers what was taken."""
        if self.batches:
            for batch in self.batches:
                batch.report()
            self.batches = [each for each in self.batches if not each.is_over]

    def _perform(self, call: Call[Any]) -> None:
        work: Coroutine[Any, Any, None] = call.perform()
        if call.eager:
            try:
                work = resumed(work, work.send(None))
            except StopIteration:
                return
        call.task = self._loop.create_task(work)

    async def _abandon(self, call: Call[T], undo: Callable[[T], object] | None) -> None:
        call.abandoned = True
        if call.task is not None:
            call.task.cancel()
            await asyncio.wait({call.task})
        undone = None if undo is None or call.result is None else undo(call.result)
        if isinstance(undone, Awaitable):
            await undone

    # --- the end -------------------------------------------------------------------------------------------

    def add(self, context: ContextSessions | Connection) -> None:
        """Close this context, or connection, when the program ends, unless it is closed by then."""
        self._contexts = [*(each for each in self._contexts if each._is_open), context]  # noqa: SLF001 - a part of the same API

    def _end(self) -> None:
        # A forked child inherits the handler, but neither the thread nor the contexts.
        if os.getpid() == self.pid:
            with suppress(IllegalStateException):
                self.run(self._close)
                self.post(self._ends.set)
            self._thread.join(_JOIN_S)

    async def _close(self) -> None:
        """Close all open contexts; listeners that do not end in time are left alone."""
        for limit_s in (_CLOSE_S, _CUT_OFF_S):
            closing = [asyncio.ensure_future(each.close()) for each in self._contexts]
            if not closing or not (await asyncio.wait(closing, timeout=limit_s))[1]:
                return
            for each in self._contexts:
                each._cut_off()  # noqa: SLF001


_begun: list[Loop] = []
_beginning = threading.Lock()


def running() -> Loop:
    """Return the loop that some call has begun."""
    return _begun[0]


def post(function: Callable[[], object]) -> None:
    """Have the loop call a function, if it runs, and in this process. May be called by ending generators, anywhere."""
    if _begun[0].pid == os.getpid():
        with suppress(IllegalStateException):
            _begun[0].post(function)


def loop() -> Loop:
    """Return the loop of this process; raises `IllegalStateException` where it cannot be waited for."""
    # Waiting here would block the very loop that others in this thread need, so that it is refused,
    # not merely slow.
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        raise IllegalStateException(
            "carrypost.sync would block the event loop of this thread: use the classes of carrypost, which "
            "are awaited, or asyncio.to_thread"
        )
    if not _begun:
        # Checked again under the lock: two threads may make their first call at the same time.
        with _beginning:
            if not _begun:
                _begun.append(Loop())
    if _begun[0].pid != os.getpid():
        raise IllegalStateException(
            "carrypost.sync was used before this process was forked, and its thread does not survive a fork: "
            "fork before the first call, or use multiprocessing.get_context('spawn')"
        )
    return _begun[0]


P = ParamSpec("P")

R = TypeVar("R")
C = TypeVar("C", bound=ContextSessions | Connection)
F = TypeVar("F", bound=Callable[..., Any] | type)


def documented(original: object) -> Callable[[F], F]:
    """Give a class or a method the documentation of the one that it stands for."""

    def decorate(function: F) -> F:
        function.__doc__ = reworded(original.__doc__)
        return function

    return decorate


@overload
def blocking(method: Callable[Concatenate[Any, P], Awaitable[T]]) -> Callable[Concatenate[Any, P], T]: ...
@overload
def blocking(
    method: Callable[Concatenate[Any, P], Awaitable[T]],
    convert: Callable[[T], R],
    undo: Callable[[R], object] | None = None,
    *,
    eager: bool = False,
) -> Callable[Concatenate[Any, P], R]: ...
def blocking(
    method: Callable[..., Awaitable[Any]],
    convert: Callable[[Any], Any] | None = None,
    undo: Callable[[Any], object] | None = None,
    *,
    eager: bool = False,
) -> Callable[..., Any]:
    """Return a method that waits for one that is awaited, and converts what that returns.

    `eager` is for a method that often waits for nothing, and needs no task before it does.
    """

    @documented(method)
    @wraps(method)
    def waiting(self: Any, *given: object, **named: object) -> object:  # noqa: ANN401 - a class below
        async def begin() -> object:
            result = await method(self._inner, *given, **named)
            return result if convert is None else convert(result)

        return loop().run(begin, undo, eager=eager)

    return waiting


@overload
def hopping(method: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Any, P], T]: ...
@overload
def hopping(
    method: Callable[Concatenate[Any, P], T], convert: Callable[[T], R]
) -> Callable[Concatenate[Any, P], R]: ...
def hopping(method: Callable[..., Any], convert: Callable[[Any], Any] | None = None) -> Callable[..., Any]:
    """Return a method that has a plain one called in the thread of the loop, and converts what that returns."""

    @wraps(method)
    async def begin(inner: object, *given: object, **named: object) -> object:
        return method(inner, *given, **named)

    return blocking(begin) if convert is None else blocking(begin, convert)


def passing(
    method: Callable[Concatenate[Any, P], T], convert: Callable[[T], T] = lambda result: result
) -> Callable[Concatenate[Any, P], T]:
    """Return a method that calls a plain one, which touches no loop, and converts what that returns."""

    @documented(method)
    @wraps(method)
    def passed(self: Any, *given: object, **named: object) -> object:  # noqa: ANN401 - a class below
        return convert(method(self._inner, *given, **named))  # type: ignore[arg-type]  # as they were given

    return passed  # type: ignore[return-value]


def reading(attribute: Callable[[Any], T]) -> T:
    """Return a property that reads one of the inner object."""
    getter: Callable[[Any], T] = attribute.fget  # type: ignore[attr-defined]  # type checkers see properties otherwise
    return property(lambda self: getter(self._inner), doc=reworded(getter.__doc__))  # type: ignore[return-value]


@contextmanager
def entered(block: AbstractAsyncContextManager[T]) -> Iterator[T]:
    """Enter and leave an asynchronous block."""
    value = loop().run(block.__aenter__)
    try:
        yield value
    except BaseException as error:
        raised = error
        if not loop().run(lambda: block.__aexit__(type(raised), raised, raised.__traceback__)):
            raise
    else:
        loop().run(lambda: block.__aexit__(None, None, None))


class Blocking(JavaNamed, Generic[T]):
    """An object of the API for programs that block, which stands for one of the asyncio API."""

    def __init__(self, inner: T) -> None:
        self._inner = inner

    def __repr__(self) -> str:
        return repr(self._inner)


class Closing(Blocking[T]):
    """Such an object that is closed at the end of a ``with`` block."""

    def close(self) -> None:
        """Close it."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Lasting(Blocking[C]):
    """Such an object that is open until its ``with`` block ends, it is closed, or the program ends."""

    _closed_by: ClassVar[str]
    """The call that closes it, for a warning."""

    def __init__(self, inner: C) -> None:
        super().__init__(inner)
        running().add(inner)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        loop().run(lambda: self._inner.__aexit__(kind, error, None))

    def __del__(self) -> None:
        if self._inner._is_open:  # noqa: SLF001 - a part of the same API
            text = f"{self!r} was not closed: use `with`, or {self._closed_by}"
            warnings.warn(text, ResourceWarning, 2, source=self)


class _Steps(Generic[T]):
    """An asynchronous iterator, of which a thread takes several items per hop."""

    def __init__(self, items: AsyncIterator[T]) -> None:
        self._items = items
        self._next: asyncio.Future[T] | None = None

    async def some(self) -> list[T]:
        """Wait for an item, and return it with all that are there already; none at the end."""
        found: list[T] = []
        while len(found) < BATCH_MAX:
            if self._next is None:
                self._next = asyncio.ensure_future(anext(self._items))
            await (asyncio.sleep(0) if found else asyncio.wait({self._next}))
            if not self._next.done() or (found and self._next.exception() is not None):
                break
            step, self._next = self._next, None
            if isinstance(step.exception(), StopAsyncIteration):
                break
            found.append(step.result())
        return found

    def close(self) -> None:
        """Take no more."""
        if self._next is not None:
            self._next.cancel()


def each(items: AsyncIterator[T]) -> Iterator[T]:
    """Yield what an asynchronous iterator yields."""
    steps = _Steps(items)
    try:
        while found := loop().run(steps.some):
            yield from found
    finally:
        post(steps.close)


_acknowledge = blocking(messages.Message.acknowledge)
_release = blocking(messages.Message.release)
_delete = blocking(declarations.Temporary.delete)


class Itself:
    """An object of this API that stands for no other."""

    __slots__ = ()

    @property
    def _inner(self) -> Self:
        return self


@documented(messages.Message)
class Message(Itself, messages.Message):
    __slots__ = ()

    acknowledge = _acknowledge  # type: ignore[assignment]  # it blocks, as those below
    release = _release  # type: ignore[assignment]

    @documented(messages.Message.processing)
    def processing(self) -> AbstractContextManager[Self]:  # type: ignore[override]
        return entered(super().processing())


@documented(messages.TextMessage)
class TextMessage(Message, messages.TextMessage):
    __slots__ = ()


@documented(messages.BytesMessage)
class BytesMessage(Message, messages.BytesMessage):
    __slots__ = ()


@documented(messages.MapMessage)
class MapMessage(Message, messages.MapMessage):
    __slots__ = ()


@documented(messages.StreamMessage)
class StreamMessage(Message, messages.StreamMessage):
    __slots__ = ()


@documented(messages.ObjectMessage)
class ObjectMessage(Message, messages.ObjectMessage):
    __slots__ = ()


@documented(declarations.TemporaryQueue)
class TemporaryQueue(Itself, declarations.TemporaryQueue):
    __slots__ = ()

    delete = _delete  # type: ignore[assignment]


@documented(declarations.TemporaryTopic)
class TemporaryTopic(Itself, declarations.TemporaryTopic):
    __slots__ = ()

    delete = _delete  # type: ignore[assignment]


KINDS: Kinds = {
    messages.Message: Message,
    messages.TextMessage: TextMessage,
    messages.BytesMessage: BytesMessage,
    messages.MapMessage: MapMessage,
    messages.StreamMessage: StreamMessage,
    messages.ObjectMessage: ObjectMessage,
    declarations.TemporaryQueue: TemporaryQueue,
    declarations.TemporaryTopic: TemporaryTopic,
}
"""Classes of messages and temporary destinations for programs that block, by those of the asyncio API."""


def as_message(message: messages.Message) -> Message:
    """Return a message as what it is: made for a program that blocks."""
    return message  # type: ignore[return-value]  # a connection makes it so, as those below


def as_queue(queue: declarations.TemporaryQueue) -> TemporaryQueue:
    """Return a temporary queue as what it is: made for a program that blocks."""
    return queue  # type: ignore[return-value]


def as_topic(topic: declarations.TemporaryTopic) -> TemporaryTopic:
    """Return a temporary topic as what it is: made for a program that blocks."""
    return topic  # type: ignore[return-value]


# A listener of a blocking program may sleep or call back into `carrypost.sync`. In the thread of
# the loop either would stop all contexts of the process, and the second would wait for itself for
# ever. So each session with listeners has a thread of its own, which calls them one at a time, in
# order.

L = TypeVar("L")
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


def plain(listener: L) -> L:
    """Return a function, or an object with methods, that a thread can call; raises `IllegalArgumentException`."""
    for each in (listener, *(getattr(listener, name, None) for name in _METHODS)):
        if inspect.iscoroutinefunction(each):
            raise _is_async(each)
    return listener


def threaded(decorate: Callable[[Any], Any]) -> Callable[[L], L]:
    """Return a decorator of functions that a thread calls."""

    def decorated(function: L) -> L:
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
