"""Steps of a host that programs ask for: their errors become those of JMS, and the host is drained after them."""

from __future__ import annotations

from collections.abc import Callable

from carrypost.errors import CarrypostError
from carrypost.jms.translation import translated


class Translating:
    """Errors of the core become those of JMS."""

    __slots__ = ()

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, CarrypostError):
            made = translated(error)
            raise made from (made.__cause__ if made is error else error)


class HostCommand(Translating):
    """A step of the host, after which it is drained soon."""

    __slots__ = ("_drain",)

    def __init__(self, drain: Callable[[], None]) -> None:
        self._drain = drain

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            self._drain()
        else:
            super().__exit__(kind, error, trace)


translating = Translating()
