"""The parts of one host: built once, lowest first, wired to each other here alone, and restored from the store.

`choose_strategy` returns the strategy that the settings ask for, from the table `STRATEGIES`.

`Recovery` restores a host after a crash, or because a batch could not be written. Its `restore` makes a host of its
earlier batches: copies, seen ids, hash lists and the incarnation, which is raised.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from carrypost.application.circles import Circles
from carrypost.application.deliveries import Deliveries
from carrypost.application.keyring import Keyring
from carrypost.application.publishing import Publisher
from carrypost.application.sealed_messages import Letters, Opening
from carrypost.errors import LocalError
from carrypost.gossip.acked.acked import Acked
from carrypost.gossip.discovery.neighbours import Neighbours
from carrypost.gossip.holdings.eviction import ShuffledRanking
from carrypost.gossip.holdings.holdings import Holdings
from carrypost.gossip.interest.own_interests import OwnInterests
from carrypost.gossip.layer import Layer, Layers
from carrypost.gossip.outputs import Outputs
from carrypost.gossip.slots import bits
from carrypost.gossip.strategy.antientropy import AntiEntropy
from carrypost.gossip.strategy.direct import Direct
from carrypost.gossip.strategy.epidemic import Epidemic
from carrypost.gossip.strategy.exchange import Exchange, Paper
from carrypost.gossip.strategy.first_contact import FirstContact
from carrypost.gossip.strategy.prophet import Prophet
from carrypost.gossip.strategy.spray_and_wait import SprayAndWait
from carrypost.gossip.transfers.arrivals_and_removals import Arrivals, Removals
from carrypost.gossip.transfers.link import HostContext, Links
from carrypost.gossip.transfers.transfers import Transfers
from carrypost.gossip.wire.pieces import full_mask
from carrypost.host.steps import Steps
from carrypost.host.units_of_work import UnitsOfWork
from carrypost.island.island import Island
from carrypost.log import journal as keys
from carrypost.log.events import Reason
from carrypost.log.journal import MOM, Key, StoredMessage, Value
from carrypost.model.descriptor import Descriptor
from carrypost.model.ids import MessageId
from carrypost.order.groups import Order
from carrypost.overlay.commands import ChannelTopics
from carrypost.overlay.overlay import OverlayLayer
from carrypost.security.identity import from_system

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from random import Random

    from carrypost.config import Settings
    from carrypost.gossip.strategy.strategy import Strategy
    from carrypost.model.descriptor_values import Privilege
    from carrypost.overlay.modulators.modulator import Meter
    from carrypost.security.identity import Entropy, Identity


STRATEGIES: dict[str, type[Strategy[Any]]] = {
    "exchange": Exchange, "anti-entropy": AntiEntropy, "paper": Paper, "direct": Direct, "epidemic": Epidemic,
    "first-contact": FirstContact, "spray-and-wait": SprayAndWait, "prophet": Prophet,
}  # fmt: skip
"""Strategies by the name that settings use."""


def choose_strategy(settings: Settings) -> type[Strategy[Any]]:
    """Return the strategy that the settings ask for."""
    return STRATEGIES["paper" if settings.paper_mode else settings.strategy]


class Recovery:
    """The host's side of crashes and failing disks."""

    def __init__(self, context: HostContext, deliveries: Deliveries) -> None:
        self._author = context.identity.author
        self._holdings, self._cache = context.holdings, context.holdings.cache
        self._outputs, self._journal = context.outputs, context.outputs.journal
        self._deliveries = deliveries
        self._keep_partials = context.settings.keep_partials

    def restore(self, state: Iterable[tuple[Key, Value]], now: int) -> int:
        """Restore the state of the earlier batches, without payloads; return its incarnation."""
        messages: list[StoredMessage] = []
        hashes: dict[bytes, bytes] = {}
        seen: dict[bytes, Descriptor] = {}
        incarnation = 0
        for key, value in state:
            kind, name, _ = key
            if kind == keys.MESSAGE and isinstance(value, StoredMessage):
                messages.append(value)
            elif kind == keys.HASHES and isinstance(value, bytes):
                hashes[name] = value
            elif kind == keys.SEEN and isinstance(value, Descriptor):
                seen[name] = value
            elif kind == keys.STRUCK and isinstance(value, bytes):
                self._holdings.recipients.restore(MessageId(name), value, now)
            elif key == keys.INCARNATION and isinstance(value, int):
                incarnation = value
            elif key == keys.DATE and isinstance(value, int):
                self._cache.outlived.clock_stepped(now - value)
        for stored in messages:
            self._restore_copy(stored, hashes.get(stored.descriptor.id, b""), seen, now)
        for message, descriptor in seen.items():
            self._restore_seen(descriptor, message, now)
        return incarnation

    def _restore_copy(self, stored: StoredMessage, hashes: bytes, seen: dict[bytes, Descriptor], now: int) -> None:
        descriptor = stored.descriptor
        over = self._holdings.recipients.is_over(descriptor, now)
        if over and not stored.claimed:
            # Its copy was to be deleted with the last recipient, and that was not written.
            self._forget(stored, Reason.PURGED)
            return
        if not self._keep_partials and stored.held != full_mask(descriptor.pieces):
            self._forget(stored, Reason.INCOMPLETE)
            return
        size = sum(descriptor.piece_length(piece) for piece in bits(stored.held)) + (0 if stored.own else len(hashes))
        copy = self._holdings.admit(
            descriptor, nbytes=size, held=stored.held, interesting=stored.interesting, own=stored.own,
            giver=stored.giver, hops=stored.hops, age_ms=stored.age_ms, now=now,
        )  # fmt: skip
        if isinstance(copy, Reason):
            # The shares of the cache are not known yet, so a copy that does not fit is dropped for lack of room.
            self._forget(stored, copy if copy is Reason.EXPIRED else Reason.NO_ROOM)
            return
        self._cache.backdate(copy, stored.received_us)
        copy.predecessors_lost = stored.predecessors_lost
        if hashes:
            self._holdings.keep_hashes(copy, hashes)
        confirmed = seen.pop(descriptor.id, None) is not None
        if stored.claimed:
            self._holdings.mark_claimed(copy)
        if over:
            self._holdings.linger(copy)
        self._deliveries.restored(copy, delivered=stored.delivered, confirmed=confirmed)

    def _forget(self, stored: StoredMessage, reason: Reason) -> None:
        self._holdings.forget(stored.descriptor, stored.held)
        self._outputs.drop((stored.descriptor,), reason)

    def _restore_seen(self, descriptor: Descriptor, message: bytes, now: int) -> None:
        if not descriptor.alive(now):
            if not self._cache.outlived.keep(MessageId(message), descriptor.ends_us, now):
                self._journal.delete((keys.SEEN, message, 0))
            return
        memory = self._holdings.remember(descriptor, delivered=descriptor.author != self._author)
        self._deliveries.restored(memory, delivered=True, confirmed=True)


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
