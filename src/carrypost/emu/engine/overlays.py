"""Overlays of emulated nodes, by the names of nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from carrypost.model.ids import NodeId
    from carrypost.overlay.overlay import OverlayView


class OverlayOf:
    """The overlay as one node knows it, at one moment."""

    def __init__(self, view: OverlayView, name: Callable[[NodeId], str]) -> None:
        self.broker = view.broker
        """True if the node is a broker."""
        self.brokers = sorted(map(name, view.brokers))
        """Other brokers that it knows."""
        self.neighbours = {name(node): hops for node, hops in view.neighbours.items()}
        """Its neighbours in the overlay, and over how many hops they are reached."""
        self.topology_bytes = view.topology_bytes
        """Bytes of the messages by which it told other brokers of the overlay."""
        self.legs, self.repaired = view.legs, view.repaired
        """Legs that it passed on, and routes of legs that it changed."""
        self._paths = {name(node): [name(each) for each in path] for node, path in view.paths.items()}

    def path(self, broker: str) -> list[str] | None:
        """Return the brokers from this node to another one, both included; None if it knows no path."""
        return self._paths.get(broker)
