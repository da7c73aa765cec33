"""The overlay as programs and `carrypost status` see it."""

from __future__ import annotations

import msgspec

from carrypost.model.ids import NodeId


class OverlayView(msgspec.Struct, frozen=True):
    """The overlay as one node knows it, at one moment."""

    broker: bool
    """True if this node is a broker."""
    brokers: tuple[NodeId, ...]
    """Other brokers that it knows."""
    neighbours: dict[NodeId, int]
    """Neighbours in the overlay, and the hops to each."""
    paths: dict[NodeId, tuple[NodeId, ...]]
    """By broker that a path leads to: brokers from this one to that one, both included."""
    load: float
    """Load: work of its seats that arrived in `load_window_s`, as a share of what it can do."""
    topology_bytes: int
    """Bytes of the messages by which it informed other brokers of the overlay: descriptors and signatures."""
    legs: int
    """Legs that it passed on."""
    arrived: int
    """Messages that came to it along the overlay, as the last broker of a route, in this life."""
    repaired: int
    """Routes of legs that it changed, because the next broker could not be reached."""
    homes: dict[str, NodeId]
    """Home brokers of its clients, by channel."""
    clients: int
    """Clients that it is the home broker of."""
    channels: int
    """Channels of which these are."""
    rosters: int
    """Brokers whose rosters it knows, itself included."""
    seats: tuple[tuple[NodeId, str, int, int], ...]
    """Seats of consumers that it has: node, channel, epoch, and the number of the last result."""
    faults: int
    """Events that the modulators of these seats failed with, in this life."""
    busy_us: int
    """Execution time of the modulators of these seats, in this life: measured on nodes, as declared in emulation."""
    failed: int
    """Seats that it closed because of an error, in this life."""
    last_fault: str
    """The last of these errors, for people; empty if there was none."""
    emitted: int
    """Events that it sent, in all its lives."""
    consumed: int
    """Events that results for its open subscriptions covered."""
    lost: int
    """Events that were missing for its subscriptions, in this life."""
    discarded: int
    """Results for its open subscriptions that modulators refused to keep while this node could not be reached."""
