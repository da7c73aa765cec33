"""Pins of copies for claims: within one bound for all, shared so that no subscription uses up the room of others.

When the bound is reached, the subscription with most pins loses its latest one: a subscription that no program consumes
any more keeps what the others leave, and no more. A claim without a pin remains, but its copy may be evicted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from carrypost.gossip.holdings.owners import CLAIMS
from carrypost.gossip.holdings.usage import Usage

if TYPE_CHECKING:
    from carrypost.config import Settings
    from carrypost.gossip.holdings.cache import Cache
    from carrypost.messaging.state import Claim, Claimant
    from carrypost.model.ids import MessageId

_TRIES = 8
"""Pins that others give up for one; most copies are pinned for several subscriptions or for one, not for half."""


class _Holder(Usage):
    """The pins of one subscription."""

    __slots__ = ("claims",)

    def __init__(self) -> None:
        super().__init__()
        self.claims: dict[MessageId, Claim] = {}


class Pins:
    """The pins of all claims."""

    def __init__(self, cache: Cache, settings: Settings) -> None:
        self._cache = cache
        self._messages_max, self._bytes_max = settings.pinned_max
        self._bytes = 0
        self._count: dict[MessageId, int] = {}
        """Number of subscriptions for which each copy is pinned."""
        self._holders: dict[Claimant, _Holder] = {}

    def __len__(self) -> int:
        return len(self._count)

    def pin(self, claim: Claim) -> None:
        """Pin the copy of a claim, if that is within the bounds, or if others have more pins than its subscription."""
        holder = self._holders.get(claim.claimant) or _Holder()
        message, nbytes = claim.copy.id, claim.copy.descriptor.length
        if message not in self._count and not self._make_room(holder, nbytes):
            return
        self._holders[claim.claimant] = holder
        holder.claims[message] = claim
        holder.add(1, nbytes)
        self._count[message] = self._count.get(message, 0) + 1
        if self._count[message] == 1:
            self._bytes += nbytes
            self._cache.pin((claim.copy,), CLAIMS)

    def unpin(self, claim: Claim) -> None:
        """Unpin the copy of a claim that ended, or gives up its pin."""
        holder, message, nbytes = self._holders.get(claim.claimant), claim.copy.id, claim.copy.descriptor.length
        if holder is None or holder.claims.get(message) is not claim:
            return
        del holder.claims[message]
        holder.add(-1, -nbytes)
        if not holder.claims:
            del self._holders[claim.claimant]
        self._count[message] -= 1
        if not self._count[message]:
            del self._count[message]
            self._bytes -= nbytes
            self._cache.unpin((claim.copy,), CLAIMS)

    def _make_room(self, holder: _Holder, nbytes: int) -> bool:
        for _ in range(_TRIES):
            if len(self._count) < self._messages_max and self._bytes + nbytes <= self._bytes_max:
                return True
            most = max(self._holders.values(), key=self._part, default=None)
            if most is None or self._part(most) <= self._part(holder, 1, nbytes):
                return False
            self.unpin(next(reversed(most.claims.values())))
        return False

    def _part(self, holder: _Holder, messages: int = 0, nbytes: int = 0) -> float:
        """Return the part of the bounds that a subscription uses, or would use with this much more."""
        return max((holder.messages + messages) / self._messages_max, (holder.bytes + nbytes) / self._bytes_max)
