"""Blocking methods, made of those that are awaited: the same parameters, and the same words of documentation."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from functools import wraps
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, overload

from carrypost.java_names import JavaNamed
from carrypost.jms.batches import BATCH_MAX
from carrypost.sync.call import reworded
from carrypost.sync.process import loop, post

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")
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
