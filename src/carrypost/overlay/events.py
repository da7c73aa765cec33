"""Events of the overlay that report which broker works for a client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from carrypost.log.events import LayerEvent
from carrypost.log.record import Kind
from carrypost.model.ids import NodeId
from carrypost.model.times import MICROSECONDS
from carrypost.overlay.items import Role

if TYPE_CHECKING:
    from collections.abc import Mapping

    from carrypost.log.events import Event
    from carrypost.log.record import Append, Record

FIRST: Final = "first"
NEARER: Final = "nearer"
LOAD: Final = "load"
UPSTREAM: Final = "upstream"
DOWNSTREAM: Final = "downstream"
ORPHAN: Final = "orphan"
"""Reasons for a home: it is the first one; it is nearer than the one before, or on a shorter path; that one had
too much work; the seat moved towards producers, or towards the consumer; or that one is gone.
"""


class Homed(LayerEvent, frozen=True):
    """A client of this node has a home, another one than before."""

    role: Role
    channel: str
    subscription: int
    """Number of the consumer's subscription; 0 for producers."""
    broker: NodeId
    reason: str


class HomeRefused(LayerEvent, frozen=True):
    """A broker refused to be the home of a client of this node, which asks another one."""

    role: Role
    channel: str
    subscription: int
    broker: NodeId
    reason: str
    """`clients`, `seats` or `channels`: it has no room for more of them; `modulator`: it cannot run that of the
    consumer; `broker`: the node is not a broker; `fault`: it closed the seat of the consumer after an error; `moved`:
    the seat is not there any more."""
    detail: str = ""
    """Details of the reason, for people, such as the fault of the modulator."""


class Relocated(LayerEvent, frozen=True):
    """A seat of this broker has moved: the new one counts for its consumer, and this broker has forgotten its copy."""

    consumer: NodeId
    channel: str
    subscription: int
    broker: NodeId
    """Broker that has the seat now."""
    operation: str
    """Operation: `horizontal`, because of the consumer's place, or of the work at this broker; `upstream`, towards
    producers; `downstream`, towards the consumer."""
    state_bytes: int
    """Bytes of the snapshot that moved."""
    pause_us: int
    """Time from the last result of this broker until its consumer left it for the new seat."""


class ModulatorFault(LayerEvent, frozen=True):
    """A modulator failed with an event, which is dropped, or with `keep` for its results, which wait.

    The modulator goes on as if it had not been asked.
    """

    consumer: NodeId
    channel: str
    producer: NodeId
    number: int
    """Number of the event."""
    fault: str


class EventsLost(LayerEvent, frozen=True):
    """Events are missing before the result that follows.

    Either the consumer did not get them, or the state of its modulator lacks them: another broker adopted the seat, and
    no node had them any more, or they did not come within `gap_s`.
    """

    destination: str
    """Destination of the subscription's results."""
    producer: NodeId
    events: int


class SeatFailed(LayerEvent, frozen=True):
    """A seat of this broker raised an error, and was closed. Its consumer attaches elsewhere, or again."""

    consumer: NodeId
    channel: str
    subscription: int
    fault: str
    """The error and its place in the code, for people."""


# --- log rows ----------------------------------------------------------------------------------------------

# Rows of the event log that the overlay appends.


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
