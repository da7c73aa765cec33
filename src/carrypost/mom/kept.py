"""Acknowledgements of commits that are not let go yet: they are final, and gather for a moment.

While a commit is not durable, what it acknowledged is kept for the case that it is undone. Afterwards it is let go, and
that is written: messages leave the cache, entries of queues are closed for good. For a program that commits again and
again this would cost as much as its commits, one by one; so it gathers for a moment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from carrypost.model.times import NEVER

if TYPE_CHECKING:
    from collections.abc import Collection

    from carrypost.mom.claims import Claims
    from carrypost.mom.context import Context
    from carrypost.mom.state import Claim

_QUIET_US = 20_000
"""After so long without a commit, all of it is let go."""
_RIPE_US = 50_000
"""After so long it is let go together with whatever is written next."""
_MESSAGES_MAX, _BYTES_MAX = 64, 64 * 1024
"""So much is let go with the next batch at once: it takes room in the cache."""
_PART = 16
"""And so does this part of what the cache may hold, or may be pinned: a small one would refuse what programs send."""


class Kept:
    """The messages that the durable commits of one host acknowledged."""

    def __init__(self, context: Context, claims: Claims) -> None:
        self._claims, self._holdings = claims, context.holdings
        settings, limits = context.settings, context.limits
        self._messages_max = min(_MESSAGES_MAX, min(settings.cache_messages_max, limits.unconfirmed_max) // _PART)
        self._bytes_max = min(_BYTES_MAX, min(settings.cache_bytes_max, limits.unconfirmed_bytes_max) // _PART)
        self._done: list[Claim] = []
        self._bytes = 0
        self._ripe_us = NEVER
        """Time from which they go with the next batch."""
        self.due_us = NEVER
        """Time at which they go in any case."""

    def add(self, done: Collection[Claim]) -> None:
        """Gather what a commit acknowledged that is durable."""
        now = self._holdings.now_us
        self._done += done
        self._bytes += sum(each.copy.descriptor.length for each in done)
        self._ripe_us = min(self._ripe_us, now + _RIPE_US)
        if len(self._done) >= self._messages_max or self._bytes >= self._bytes_max:
            self._ripe_us = 0
        self.due_us = now + _QUIET_US

    def is_ripe(self, now: int) -> bool:
        """Return True if they go with the next batch."""
        return self._ripe_us <= now

    def let_go(self) -> None:
        """Nothing will undo it."""
        done, self._done, self._bytes = self._done, [], 0
        self._ripe_us = self.due_us = NEVER
        self._claims.keep(done)
