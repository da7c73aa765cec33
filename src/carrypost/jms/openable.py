"""Objects that are opened by being awaited, or entered by ``async with``."""

from __future__ import annotations

import warnings
from collections.abc import Awaitable, Callable, Generator
from typing import Any, Generic, NoReturn, TypeVar

from carrypost.errors import IllegalStateException

T = TypeVar("T")


class Openable(Generic[T]):
    """Something that is opened when it is awaited, or entered by ``async with``; leaving that closes it."""

    def __init__(self, open_: Callable[[], Awaitable[T]], what: str, shown: str = "consumer = await ctx") -> None:
        self._open, self._what, self._shown = open_, what, shown
        self._opened: Any = None
        self._asked = False

    def __await__(self) -> Generator[Any, None, T]:
        self._asked = True
        return self._open().__await__()

    async def __aenter__(self) -> T:
        self._asked = True
        self._opened = await self._open()
        return self._opened  # type: ignore[no-any-return]

    async def __aexit__(self, *_: object) -> None:
        await self._opened.close()

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        raise self._misused()

    def __aiter__(self) -> NoReturn:
        raise self._misused()

    def _misused(self) -> IllegalStateException:
        self._asked = True  # Reported now, so `__del__` does not warn.
        return IllegalStateException(f"{self._what} must be awaited first: `{self._shown}.{self._what}(…)`")

    def __del__(self) -> None:
        if not self._asked:
            made = self._shown.partition(" ")[0]
            warnings.warn(
                f"{self._what} was never awaited, so there is no {made}: await it", RuntimeWarning, 2, source=self
            )
