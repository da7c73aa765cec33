"""Context of the parts of messaging: the parts of their host, its rows and outbox, and its overlay for event channels.

A topic may be an event channel of the overlay (`Channels`). A subscription of messaging to a channel is one of the
overlay, whose results go to its consumers; these get reports of its state. The overlay keeps its subscriptions in rows
of its own, in the same batches. Those that no durable subscription of messaging knows after a restart belonged to live
consumers, and are closed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from carrypost.application.control_outbox import ControlOutbox
from carrypost.application.ledger import Ledger
from carrypost.errors import IllegalArgumentException, IllegalStateException
from carrypost.gossip.layer import Part
from carrypost.log.events import OverlayState, OverlayTold
from carrypost.log.journal import MOM
from carrypost.messaging.claim_and_claimant import destination_of
from carrypost.messaging.control import CONTROL
from carrypost.model.address import is_channel
from carrypost.model.times import NEVER

if TYPE_CHECKING:
    from collections.abc import Sequence

    from carrypost.application.circles import Circles
    from carrypost.application.deliveries import Deliveries
    from carrypost.config import Limits, Settings
    from carrypost.gossip.holdings.holdings import Holdings
    from carrypost.gossip.interest.own_interests import OwnInterests
    from carrypost.gossip.outputs import Journal, Outputs
    from carrypost.gossip.transfers.link import HostContext
    from carrypost.messaging.claim_and_claimant import Subscription
    from carrypost.messaging.commands import Subscribe
    from carrypost.model.ids import MessageId, NodeId


_LOOK_US = 1_000_000
"""Interval of reports to consumers."""


class Overlay(Protocol):
    """The overlay, as far as messaging uses it.

    A modulator is bytes, which only the overlay interprets; empty: none.
    """

    def open(self, channel: str, selector: str | None, modulator: bytes, relocation: str, now: int) -> str:
        """Subscribe to a channel and return the destination of the results. Raises `LocalError`."""

    def change(self, destination: str, modulator: bytes, now: int) -> None:
        """Give a subscription another modulator; raises `LocalError`."""

    def close(self, destination: str, now: int) -> None:
        """End a subscription."""

    def opened(self) -> Sequence[str]:
        """Return the destinations of all subscriptions of messaging, including those from before a restart."""

    def lost_before(self, message: MessageId) -> int:
        """Return the number of events missing before a result that came with the present step."""

    def state(self, destination: str) -> OverlayState:
        """Return the state of a subscription."""


class Channels(Part):
    """The subscriptions of one node's programs to channels."""

    def __init__(self, outputs: Outputs, overlay: Overlay | None) -> None:
        self._emit, self._overlay = outputs.emit, overlay
        self._open: dict[str, Subscription] = {}
        """Subscriptions by the destination of their results."""
        self._reported: dict[int, OverlayState] = {}
        """The state last reported, by consumer."""

    @property
    def _enabled(self) -> Overlay:
        if self._overlay is None:
            raise IllegalStateException(
                "channels require the overlay, which is off on this node: set overlay.enabled = true and island "
                "= true, and restart the node"
            )
        return self._overlay

    def check_destination(self, destination: str) -> None:
        """Raise `IllegalStateException` for a channel if this node has no overlay."""
        if is_channel(destination):
            _ = self._enabled

    def check(self, asked: Subscribe) -> None:
        """Raise unless a subscription may be opened, or does not concern channels."""
        if is_channel(destination_of(asked.entry)):
            _ = self._enabled
            if asked.ordering:
                raise IllegalArgumentException(
                    "a channel has no ordering, since the events of each producer are always in order: leave "
                    f"ordering={asked.ordering.text!r} out"
                )
        elif asked.modulator or asked.relocation:
            raise IllegalArgumentException(
                'modulator and relocation require a channel: create the topic with model="channel", or leave them out'
            )

    # --- subscriptions -------------------------------------------------------------------------------------

    def enter(self, subscription: Subscription, results: str, now: int) -> None:
        """Open a subscription to a channel at the overlay, or resume it after a restart."""
        if self._overlay is None:
            subscription.results = results  # It collects again when the overlay is enabled again.
            return
        if results not in self._overlay.opened():
            asked = subscription.asked
            relocation = asked.relocation or "strict"
            results = self._overlay.open(subscription.channel, asked.entry.selector, asked.modulator, relocation, now)
        subscription.results = results
        self._open[results] = subscription
        self.due_us = min(self.due_us, now)

    def change(self, subscription: Subscription, modulator: bytes, now: int) -> None:
        """Give a subscription another modulator, or none."""
        self._enabled.change(subscription.results, modulator, now)

    def leave(self, subscription: Subscription, now: int) -> None:
        """End a subscription at the overlay."""
        if self._overlay is not None and self._open.pop(subscription.results, None) is not None:
            self._overlay.close(subscription.results, now)

    def close_unknown(self, now: int) -> None:
        """Close the subscriptions of consumers that a restart ended."""
        if self._overlay is not None:
            for results in self._overlay.opened():
                if results not in self._open:
                    self._overlay.close(results, now)

    # --- results -------------------------------------------------------------------------------------------

    def lost_before(self, message: MessageId) -> int:
        """Return the number of events missing before a result."""
        return self._overlay.lost_before(message) if self._overlay is not None and self._open else 0

    def expire(self, now: int) -> None:
        """Report changes to consumers."""
        if self._overlay is None:
            return
        states = {}
        for results, subscription in self._open.items():
            for consumer in subscription.consumers:
                state = states[consumer.number] = self._overlay.state(results)
                if self._reported.get(consumer.number) != state:
                    self._emit(OverlayTold(consumer.number, state))
        self._reported = states
        self.due_us = now + _LOOK_US if states else NEVER

    def consumed(self, now: int) -> None:
        """Report the state soon, because there may be a new consumer."""
        if self._open:
            self.due_us = min(self.due_us, now)


class MessagingContext:
    """Messaging on one host, in one incarnation of it."""

    def __init__(
        self,
        host_context: HostContext,
        deliveries: Deliveries,
        circles: Circles,
        incarnation: int,
        overlay: Overlay | None,
    ) -> None:
        self.host_context, self.deliveries, self.incarnation = host_context, deliveries, incarnation
        self.circles, self.keyring = circles, circles.keyring
        self.node: NodeId = host_context.node
        self.settings: Settings = host_context.settings
        self.limits: Limits = host_context.limits
        self.holdings: Holdings = host_context.holdings
        self.outputs: Outputs = host_context.outputs
        self.interests: OwnInterests = host_context.interests
        self.journal: Journal = host_context.outputs.journal
        self.ledger: Ledger = Ledger(self.journal, MOM)
        self.outbox: ControlOutbox = ControlOutbox(host_context, CONTROL)
        self.channels: Channels = Channels(host_context.outputs, overlay)
