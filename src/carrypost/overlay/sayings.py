"""Items that parts of the overlay say to other nodes, until they are published.

What is of use only now goes to a node that is connected, lives `handoff_s`, and is never carried. Everything else waits
until it is durable why it is said. What a node says to itself is acted upon at once, without a message.
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
"""Lifetime of everything else, which is repeated until it is answered."""
_PRIORITY = 9


class Sayings:
    """The drafts of one node that have not been published yet."""

    def __init__(self, ground: HostContext) -> None:
        self._node, self._now_us = ground.node, round(ground.settings.overlay.handoff_s * 1e6)
        self._drafts: list[Draft] = []
        self._own: list[tuple[NodeId, Item]] = []

    def say(self, to: NodeId, item: Item, *, origin: bytes = b"", payload: bytes = b"") -> None:
        """Say an item to a node; `origin`: the message that it passes on, `payload`: what it has beside the item."""
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

    def say_all(self, nodes: Iterable[NodeId], item: Item) -> None:
        """Say an item to several nodes."""
        for node in nodes:
            self.say(node, item)

    def own(self) -> list[tuple[NodeId, Item]]:
        """Take what this node said to itself."""
        own, self._own = self._own, []
        return own

    def drafts(self) -> list[Draft]:
        """Take the messages that are to be published."""
        drafts, self._drafts = self._drafts, []
        return drafts
