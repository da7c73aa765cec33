"""Items that parts of the overlay send to other nodes, until they are published.

An item of momentary use goes to a connected node, lives `handoff_s`, and is never carried. Every other one waits until
its cause is durable. An item of a node to itself is processed at once, without a message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from carrypost.gossip.layer import Draft
from carrypost.model import address
from carrypost.model.headers import Headers
from carrypost.overlay.items import ITEMS, Abort, Detour, Detoured, Handoff, Item, Ready

if TYPE_CHECKING:
    from collections.abc import Iterable

    from carrypost.gossip.transfers.host_context import HostContext
    from carrypost.model.ids import NodeId

_NOW = (Handoff, Ready, Detour, Detoured, Abort)
_LIFE_US = 60_000_000
"""Lifetime of all other items, which are repeated until they are answered."""
_PRIORITY = 9


class ItemOutbox:
    """The drafts of one node that have not been published yet."""

    def __init__(self, context: HostContext) -> None:
        self._node, self._now_us = context.node, round(context.settings.overlay.handoff_s * 1e6)
        self._drafts: list[Draft] = []
        self._own: list[tuple[NodeId, Item]] = []

    def add(self, to: NodeId, item: Item, *, origin: bytes = b"", payload: bytes = b"") -> None:
        """Send an item to a node; `origin`: the message that it passes on, `payload`: content beside the item."""
        if to == self._node:
            self._own.append((to, item))
            return
        now = isinstance(item, _NOW)
        headers = Headers(control=ITEMS.encode([item]), connected=now, origin=origin)
        lifetime_us = self._now_us if now else _LIFE_US
        draft = Draft(
            address.overlay(to), payload, lifetime_us=lifetime_us, priority=_PRIORITY, headers=headers, withheld=not now
        )
        self._drafts.append(draft)

    def broadcast(self, nodes: Iterable[NodeId], item: Item) -> None:
        """Send an item to several nodes."""
        for node in nodes:
            self.add(node, item)

    def pop_own(self) -> list[tuple[NodeId, Item]]:
        """Return the items of this node to itself, once."""
        own, self._own = self._own, []
        return own

    def drafts(self) -> list[Draft]:
        """Return the messages to publish, once."""
        drafts, self._drafts = self._drafts, []
        return drafts
