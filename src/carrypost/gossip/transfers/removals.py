"""Copies that leave the cache: reported, journalled, and forgotten in all bitsets before their slots are reused.

`sweep` does this for everything that was removed since the last call, and runs after anything that may remove copies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from carrypost.gossip.holdings.owners import ORDER
from carrypost.gossip.layer import Layer, Layers
from carrypost.log.events import Reason

if TYPE_CHECKING:
    from carrypost.gossip.holdings.copies import Copy
    from carrypost.gossip.transfers.host_context import HostContext


class Removals:
    """The removal of copies from one host's holdings."""

    __slots__ = ("_cache", "_holdings", "_layers", "_links", "_outputs")

    def __init__(self, context: HostContext, layers: Layers) -> None:
        self._holdings = context.holdings
        self._cache = context.holdings.cache
        self._outputs = context.outputs
        self._links = context.links
        self._layers = layers

    def expire(self, now: int) -> bool:
        """Drop every copy whose deadline has passed; return True if there was any."""
        gone = self._cache.expire(now)
        if gone:
            self._leave(gone, Reason.EXPIRED)
        if self._cache.changed:
            self.sweep()
        return bool(gone)

    def sweep(self) -> None:
        """Report and journal the copies removed since the last sweep, and make all links forget the freed slots."""
        removed = self._cache.pop_removed()
        if removed:
            by_reason: dict[Reason, list[Copy]] = {}
            for copy, reason in removed:
                by_reason.setdefault(reason, []).append(copy)
            for reason, copies in by_reason.items():
                self._leave(copies, reason)
        # The order matters: a slot may be reused as soon as it is released, and a link that still
        # believed something of it would believe it of another message.
        released = self._holdings.pop_released()
        if released:
            for link in self._links:
                link.forget_slots(released)

    def _leave(self, copies: list[Copy], reason: Reason) -> None:
        expired = reason is Reason.EXPIRED
        # What still waited when it died was received and will never be delivered: that is more than being dropped.
        if waited := [copy.descriptor for copy in copies if expired and copy.pins & ORDER]:
            self._outputs.drop(waited, reason, undelivered=True)
        if dropped := [copy.descriptor for copy in copies if not (expired and copy.pins & ORDER)]:
            self._outputs.drop(dropped, reason)
        for layer in self._layers.having[Layer.left]:
            layer.left(copies, reason)
        self._holdings.clear(copies, expired=expired)
        # A burst may be in flight to several neighbours. Sending the rest would read a payload that
        # is gone.
        for outbox in [link.outbox for link in self._links if link.outbox.jobs]:
            for copy in copies:
                outbox.cancel(copy.slot)
