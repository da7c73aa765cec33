"""The seats of a broker by consumer and by channel, and the one boundary that faults of a seat do not pass.

A seat works on data of other nodes. An error in this work that no check foresaw must not end the step of its broker,
which serves others: the step would fail again after each restart. So all work of a seat passes through `_run`. A seat
that raises is closed, counted and reported, and its consumer is informed, which has another broker adopt the seat.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, ParamSpec, TypeVar

from carrypost.model.times import NEVER
from carrypost.overlay.events import SeatFailed
from carrypost.overlay.items import DETAIL_MAX
from carrypost.overlay.lanes import Seat, name_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import TracebackType

    from carrypost.gossip.outputs import Outputs
    from carrypost.overlay.tables import Client

P = ParamSpec("P")
T = TypeVar("T")


class Failure(NamedTuple):
    """A seat that was closed because it raised."""

    client: Client
    fault: str
    """The error, for people."""


class SeatTable(ABC):
    """The seats of one broker."""

    def __init__(self, outputs: Outputs) -> None:
        self._outputs = outputs
        self._seats: dict[bytes, Seat] = {}
        """Seats by the name of the row."""
        self._of_channels: dict[str, dict[bytes, Seat]] = {}
        self._failures: list[Failure] = []
        """Seats that failed, until `pop_failures`."""
        self.failed = 0
        """Number of seats that failed, in this life."""
        self.last_fault = ""
        """Error of the last seat that failed, for people; empty if none did."""

    def __len__(self) -> int:
        return len(self._seats)

    def __iter__(self) -> Iterator[Seat]:
        return iter(self._seats.values())

    def find(self, client: Client) -> Seat | None:
        """Return the seat of a consumer, which the caller may change."""
        return self._named(name_of(client))

    def at(self, client: Client) -> Seat:
        """Return the seat of a consumer that has one, which the caller may change."""
        seat = self.find(client)
        assert seat is not None
        return seat

    def _named(self, name: bytes) -> Seat | None:
        if (seat := self._seats.get(name)) is not None:
            seat.next_us = 0
        return seat

    def _of(self, channel: str) -> Iterable[Seat]:
        """Return the seats of a channel, all of which the caller may change."""
        seats = list(self._of_channels.get(channel, {}).values())
        for seat in seats:
            seat.next_us = 0
        return seats

    @property
    def due_us(self) -> int:
        """Time at which there is something to do for a seat, or for the consumer of one that failed."""
        due_us = NEVER
        # Asked after every step. A cached time per seat makes it one comparison for the many that
        # have nothing to do.
        for seat in [each for each in self._seats.values() if not each.next_us]:
            self._run(seat, _look_ahead, seat)
        for seat in self._seats.values():
            if seat.next_us < due_us:
                due_us = seat.next_us
        return 0 if self._failures else due_us

    # --- faults --------------------------------------------------------------------------------------------

    def _run(self, seat: Seat, act: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T | None:
        """Do a part of a seat's work; return its result, or None if the seat raised, and was closed for it."""
        try:
            return act(*arguments, **options)
        except Exception as error:  # noqa: BLE001 - One seat must not end the step of all others.
            client, item = seat.client, seat.client.item
            fault = _described(error)
            self._failures.append(Failure(client, fault))
            self.failed, self.last_fault = self.failed + 1, fault
            self._outputs.refuse("seat", client.node)
            self._outputs.emit(SeatFailed(client.node, item.channel, item.subscription, fault))
            self.close(client)
            return None

    @abstractmethod
    def close(self, client: Client) -> None:
        """End the seat of a consumer."""

    def pop_failures(self) -> list[Failure]:
        """Return the seats that failed, once."""
        failures, self._failures = self._failures, []
        return failures


def _look_ahead(seat: Seat) -> None:
    seat.next_us = seat.due_us


def _described(error: Exception) -> str:
    """Return an error and its place in the code, for people."""
    place: TracebackType | None = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    where = "" if place is None else f" ({place.tb_frame.f_code.co_qualname}, line {place.tb_lineno})"
    return f"{type(error).__name__}: {error}"[: DETAIL_MAX - len(where)] + where
