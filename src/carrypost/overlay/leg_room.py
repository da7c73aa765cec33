"""Room for legs of others' messages: what a broker passes on is its own message, and must not push out everything else.

All legs together that pass on messages of other nodes have `share_queues` of the cache, as what is carried between
nodes has, and those of one node `share_author` of that. One leg alone is never too much.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from carrypost.gossip.holdings.copies import Usage

if TYPE_CHECKING:
    from carrypost.config import Settings
    from carrypost.gossip.holdings.copies import Copy
    from carrypost.model.ids import MessageId, NodeId


class LegRoom:
    """The legs of others' messages that one broker published, and that are still here."""

    def __init__(self, own: NodeId, settings: Settings) -> None:
        share, self._author_part = settings.limits.share_queues, settings.limits.share_author
        self._own = own
        self._messages_max, self._bytes_max = settings.cache_messages_max * share, settings.cache_bytes_max * share
        self._all = Usage()
        self._of: dict[NodeId, Usage] = {}
        """By the node that legs are charged to: those with a leg here."""
        self._legs: dict[MessageId, tuple[NodeId, Copy]] = {}
        """Legs that are here, with the nodes that they are charged to; the oldest first."""

    def has_room(self, copy: Copy, payer: NodeId, legs: int) -> bool:
        """Return True if a node's share has room for this many legs with the payload of a copy."""
        if payer == self._own:
            return True
        nbytes = copy.descriptor.length * legs
        return self._fits(self._all, legs, nbytes, 1.0) and (
            payer not in self._of or self._fits(self._of[payer], legs, nbytes, self._author_part)
        )

    def _fits(self, used: Usage, legs: int, nbytes: int, part: float) -> bool:
        messages, nbytes = used.messages + legs, used.bytes + nbytes
        return not used.messages or (messages <= self._messages_max * part and nbytes <= self._bytes_max * part)

    def add(self, leg: Copy, payer: NodeId) -> None:
        """Charge a leg that was published to a node."""
        if payer != self._own:
            self._legs[leg.id] = payer, leg
            for used in (self._all, self._of.setdefault(payer, Usage())):
                used.add(1, leg.descriptor.length)

    def of(self, payer: NodeId) -> list[Copy]:
        """Return the legs that are charged to a node, the oldest first."""
        return [leg for charged, leg in self._legs.values() if charged == payer]

    def remove(self, leg: Copy) -> None:
        """Stop charging for a copy that is gone, if it is a leg."""
        if (found := self._legs.pop(leg.id, None)) is not None:
            payer, _ = found
            for used in (self._all, self._of[payer]):
                used.add(-1, -leg.descriptor.length)
            if not self._of[payer].messages:
                del self._of[payer]
