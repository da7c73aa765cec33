"""Rows of the event log that the overlay appends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from carrypost.model.times import MICROSECONDS
from carrypost.overlay.events import Homed, Relocated, SeatFailed
from carrypost.overlay.kept_checkpoints import EventsLost
from carrypost.record import Kind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from carrypost.events import Event
    from carrypost.record import Append, Record

EVENTS_LOST, SEAT_FAILED = "events-lost", "seat-failed"


def _lost(record: Record, t_us: int, node: str, event: EventsLost) -> None:
    """Append how many events of a producer a consumer did not get."""
    attrs = {"destination": event.destination}
    record.add(Kind.FAILURE, t_us, node, peer=event.producer, size=event.events, detail=EVENTS_LOST, attrs=attrs)


def _homed(record: Record, t_us: int, node: str, event: Homed) -> None:
    """Append the home broker of a client."""
    attrs = {"channel": event.channel, "role": event.role.name.lower()}
    if event.subscription:
        attrs["subscription"] = str(event.subscription)
    record.add(Kind.HOME, t_us, node, peer=event.broker, detail=event.reason, attrs=attrs)


def _relocated(record: Record, t_us: int, node: str, event: Relocated) -> None:
    """Append that a seat has moved."""
    attrs = {"channel": event.channel, "consumer": event.consumer, "pause_s": repr(event.pause_us / MICROSECONDS)}
    record.add(
        Kind.RELOCATE, t_us, node, peer=event.broker, size=event.state_bytes, detail=event.operation, attrs=attrs
    )


def _failed(record: Record, t_us: int, node: str, event: SeatFailed) -> None:
    """Append that a broker closed the seat of a consumer after an error."""
    attrs = {"channel": event.channel, "subscription": str(event.subscription), "fault": event.fault}
    record.add(Kind.FAILURE, t_us, node, peer=event.consumer, detail=SEAT_FAILED, attrs=attrs)


ROWS: Mapping[type[Event], Append] = {EventsLost: _lost, Homed: _homed, Relocated: _relocated, SeatFailed: _failed}
