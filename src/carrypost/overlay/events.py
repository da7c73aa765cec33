"""Events of the overlay that report which broker works for a client."""

from __future__ import annotations

from typing import Final

from carrypost.events import LayerEvent
from carrypost.model.ids import NodeId
from carrypost.overlay.items import Role

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
    """A seat of this broker has moved: the new one works, and this broker has forgotten its copy."""

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
    """Time from the last result of this broker until it heard that the new seat works."""


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


class SeatFailed(LayerEvent, frozen=True):
    """A seat of this broker raised an error, and was closed. Its consumer attaches elsewhere, or again."""

    consumer: NodeId
    channel: str
    subscription: int
    fault: str
    """The error and its place in the code, for people."""
