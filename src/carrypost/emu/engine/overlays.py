"""Overlays of emulated nodes, by the names of nodes, and samples of them.

The rows `path` have, for each broker, the sum of the hops to all other brokers: `network`, as the network is, and
`overlay`, along the broker's own paths (OVERLAY §4.1). Pairs that are not connected count in neither. A row for each
pair would be forty times as many. For each producer of channels they have the sum of the hops to all consumers
(`delivery_paths`). The rows `registry` with the detail `topology` have the bytes of the messages by which a broker
informed others of the overlay since the sample before, the rows `load` its load.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from carrypost.emu.engine.delivery_paths import DeliveryPaths, along
from carrypost.emu.engine.driver import EmulatedDriver, NodeState
from carrypost.emu.engine.radio import Radio
from carrypost.log.record import Kind, Record

if TYPE_CHECKING:
    from collections.abc import Callable

    from carrypost.model.ids import NodeId
    from carrypost.overlay.commands import OverlayView

TOPOLOGY = "topology"
NETWORK, OVERLAY = "network", "overlay"
_THOUSANDTHS = 1_000


class OverlayOf:
    """The overlay as one node knows it, at one moment."""

    def __init__(self, view: OverlayView, name: Callable[[NodeId], str]) -> None:
        self.broker = view.broker
        """True if the node is a broker."""
        self.brokers = sorted(map(name, view.brokers))
        """Other brokers that it knows."""
        self.neighbours = {name(node): hops for node, hops in view.neighbours.items()}
        """Neighbours in the overlay, and their distances in hops."""
        self.topology_bytes = view.topology_bytes
        """Bytes of the messages by which it informed other brokers of the overlay."""
        self.load = view.load
        """Load of a broker; 1: all that it can do."""
        self.legs, self.repaired = view.legs, view.repaired
        """Legs that it passed on, and routes of legs that it changed."""
        self.homes = {channel: name(broker) for channel, broker in view.homes.items()}
        """Home brokers of the node's clients, by channel."""
        self.clients = view.clients
        """Number of clients that the node is the home broker of."""
        self.seats = [(name(node), *rest) for node, *rest in view.seats]
        """Seats of consumers that it has: consumer, channel, epoch, and the number of the last result."""
        self._paths = {name(node): [name(each) for each in path] for node, path in view.paths.items()}

    def path(self, broker: str) -> list[str] | None:
        """Return the brokers from this node to another one, both included; None if it knows no path."""
        return self._paths.get(broker)


class OverlaySampler:
    """Samples of the overlay in one run: lengths of paths, and what it costs to keep them."""

    def __init__(
        self, record: Record, radio: Radio, drivers: Mapping[str, EmulatedDriver], deliveries: DeliveryPaths
    ) -> None:
        self._record, self._radio, self._drivers, self._deliveries = record, radio, drivers, deliveries
        self._last_bytes: dict[str, int] = {}
        """Bytes that each broker had sent to others at its last sample."""

    def sample(self, t_us: int) -> None:
        """Sample all brokers that are running, and the clients of channels."""
        brokers = {
            driver.identity.node: driver
            for _, driver in sorted(self._drivers.items())
            if driver.settings.overlay.broker and driver.state is NodeState.RUNNING
        }
        nodes = {name: driver.identity.node for name, driver in self._drivers.items()}
        links = {name: self._radio.neighbours_of(name) for name in self._drivers if brokers}
        hops = {
            node: {nodes[name]: hops for name, hops in _hops_from(driver.name, links).items()}
            for node, driver in brokers.items()
        }
        for node, driver in brokers.items():
            view, there = driver.host.overlay.view(), hops[node]
            self._add(t_us, driver, NETWORK, [there[other] for other in brokers if other != node and other in there])
            ways = [along(path, hops) for other, path in view.paths.items() if other in there]
            self._add(t_us, driver, OVERLAY, [way for way in ways if way is not None])
            self._record.add(Kind.LOAD, t_us, driver.name, size=round(_THOUSANDTHS * view.load))
            sent = view.topology_bytes
            last, self._last_bytes[driver.name] = self._last_bytes.get(driver.name, 0), sent
            size = sent - last if sent >= last else sent  # A crash begins anew.
            self._record.add(Kind.REGISTRY, t_us, driver.name, size=size, detail=TOPOLOGY)
        for driver, details in self._deliveries.lengths(brokers, hops):
            for detail, found in details.items():
                self._add(t_us, driver, detail, found)

    def _add(self, t_us: int, driver: EmulatedDriver, detail: str, hops: Sequence[int]) -> None:
        attrs = {"pairs": str(len(hops))}
        self._record.add(Kind.PATH, t_us, driver.name, size=sum(hops), detail=detail, attrs=attrs)


def _hops_from(name: str, links: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """Return the nodes that are connected with one, itself included, and over how many hops."""
    found, edge, distance = {name: 0}, [name], 0
    while edge:
        distance += 1
        edge = sorted(set().union(*[links[each] for each in edge]) - found.keys())
        found.update(dict.fromkeys(edge, distance))
    return found
