"""Sends that have begun, and are to be awaited.

Java chains sends: ``producer.send(a, x).send(b, y)``. Here a send is awaited. As Python's coroutines have a method
`send` of their own, which runs them, such a chain would fail with an error about coroutines.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec

from carrypost.errors import IllegalStateException
from carrypost.jms.sent import Sent

P = ParamSpec("P")


class PendingSend(Coroutine[Any, Any, Sent]):
    """The coroutine that a send returns, to be awaited or made a task. Used otherwise, it says so."""

    __slots__ = ("__weakref__", "_call", "_coroutine")

    def __init__(self, coroutine: Coroutine[Any, Any, Sent], call: str) -> None:
        self._coroutine = coroutine
        self._call = call
        """Name of the call that the program made."""

    def __await__(self) -> Generator[Any, Any, Sent]:
        return self._coroutine.__await__()

    def send(self, *given: Any, **named: Any) -> Any:  # noqa: ANN401 - as coroutines have it, and producers
        """Run the coroutine further, if an event loop calls. Raises if a program chains another send."""
        if named or given != (None,):
            raise self._misused("send")
        return self._coroutine.send(None)

    def throw(self, *given: Any) -> Any:  # noqa: ANN401 - as coroutines have it
        """Raise an exception in the coroutine. Called by event loops."""
        return self._coroutine.throw(*given)

    def close(self) -> None:
        """End the coroutine. Called by event loops."""
        self._coroutine.close()

    if not TYPE_CHECKING:  # Type checkers say by themselves that a coroutine has no such attribute.

        def __getattr__(self, name: str) -> object:
            if name.startswith("set_") or (name in dir(Sent) and not name.startswith("_")):
                raise self._misused(name)
            return getattr(self._coroutine, name)

    def _misused(self, name: str) -> IllegalStateException:
        self._coroutine.close()  # Python would warn that it was never awaited, which this says better.
        return IllegalStateException(
            f"await the first send before `{name}`: `sent = await {self._call}(…)`. It returns a Sent, so sends "
            "are not chained"
        )


def pending(function: Callable[P, Coroutine[Any, Any, Sent]]) -> Callable[P, PendingSend]:
    """Let an async method return a `PendingSend`."""
    call = function.__qualname__.lower()

    @wraps(function)
    def begun(*given: P.args, **named: P.kwargs) -> PendingSend:
        return PendingSend(function(*given, **named), call)

    return begun
