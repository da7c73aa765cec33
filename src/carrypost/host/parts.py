"""The parts of one host: built once, lowest first, and wired to each other here alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from carrypost.application.circles import Circles
from carrypost.application.deliveries import Deliveries
from carrypost.application.keyring import Keyring
from carrypost.application.letters import Letters
from carrypost.application.opening import Opening
from carrypost.application.publishing import Publisher
from carrypost.errors import LocalError
from carrypost.gossip.acked.acked import Acked
from carrypost.gossip.discovery.neighbours import Neighbours
from carrypost.gossip.holdings.holdings import Holdings
from carrypost.gossip.holdings.ranking import ShuffledRanking
from carrypost.gossip.interest.own_interests import OwnInterests
from carrypost.gossip.layer import Layer, Layers
from carrypost.gossip.outputs import Outputs
from carrypost.gossip.strategy.choice import choose_strategy
from carrypost.gossip.transfers.arrivals import Arrivals
from carrypost.gossip.transfers.host_context import HostContext
from carrypost.gossip.transfers.link import Links
from carrypost.gossip.transfers.removals import Removals
from carrypost.gossip.transfers.transfers import Transfers
from carrypost.host.recovery import Recovery
from carrypost.host.steps import Steps
from carrypost.host.units_of_work import UnitsOfWork
from carrypost.island.island import Island
from carrypost.log.journal import MOM
from carrypost.order.groups import Order
from carrypost.overlay.commands import ChannelTopics
from carrypost.overlay.overlay import OverlayLayer
from carrypost.security.entropy import from_system

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from random import Random

    from carrypost.config import Settings
    from carrypost.model.privilege import Privilege
    from carrypost.overlay.modulators.modulator import Meter
    from carrypost.security.entropy import Entropy
    from carrypost.security.identity import Identity


class Parts:
    """The parts of one host."""

    def __init__(
        self,
        identity: Identity,
        settings: Settings,
        rng: Random,
        privilege: Privilege,
        layers: Sequence[Callable[[HostContext], Layer]],
        *,
        meter: Meter | None = None,
        entropy: Entropy = from_system,
    ) -> None:
        if identity.signed != (settings.security == "signed"):
            level = "a plain name" if settings.security == "signed" else "a key"
            raise LocalError(f'the settings say security = "{settings.security}", but the identity is {level}')
        outputs = Outputs(settings.limits)
        kind = choose_strategy(settings)
        ranking = ShuffledRanking(kind.ranking, rng) if settings.send_order == "random" else kind.ranking
        holdings = Holdings(settings, outputs.journal, privilege, rng, identity.node, ranking=ranking)
        links = Links(settings, outputs, meter)
        own = OwnInterests(settings, identity.node, everything=kind.carries_everything)
        self.context = context = HostContext(identity, settings, holdings, outputs, own, links)
        self.deliveries = Deliveries(context)
        self.order = Order(context, self.deliveries)
        keyring = Keyring(context, entropy)
        self.circles = circles = Circles(context, self.deliveries, keyring)
        opening = [Opening(context, keyring, circles)] if identity.signed else []
        upper = [*opening, self.order, *[make(context) for make in layers], self.deliveries]
        self.acked = Acked(context)
        self.layers = Layers([self.acked, *upper] if kind.acknowledges else upper, links.handlers)
        departures = Removals(context, self.layers)
        receptions = Arrivals(context, self.layers, departures, every=kind.unicast)
        transfers = Transfers(context, receptions, rng, durable_first=kind.durable_first)
        self.strategy = strategy = kind(context, transfers, departures)
        self.island = Island(context, strategy, self.acked, rng) if settings.island else None
        if self.island is not None:
            self.layers.insert(self.island)
        self.overlay: OverlayLayer | None = None
        if settings.overlay.enabled and self.island is not None:
            self.overlay = OverlayLayer(context, self.deliveries, self.island, rng, meter)
            self.layers.insert(self.overlay)
        self.channels = None if self.overlay is None else ChannelTopics(self.overlay, MOM)
        """Channels of the overlay, for messaging."""
        self.neighbours = Neighbours(context, strategy, self.layers, rng)
        publisher = Publisher(context, Letters(context, keyring, circles))
        self.units = UnitsOfWork(context, publisher, self.order, self.layers, strategy)
        self.recovery = Recovery(context, self.deliveries)
        self.steps = Steps(
            context, self.deliveries, self.units, departures=departures, receptions=receptions, strategy=strategy,
            neighbours=self.neighbours,
        )  # fmt: skip
