"""Acknowledgements of durable commits that are not released yet: they are final, and collected for a moment.

While a commit is not durable, its acknowledgements are kept in case it is undone. Afterwards they are released, and
that is written: messages leave the cache, entries of queues are closed for good. For a program that commits
continuously this would cost as much as its commits, one by one; so it is collected for a moment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from carrypost.model.times import NEVER

if TYPE_CHECKING:
    from collections.abc import Collection

    from carrypost.mom.claims import Claims
    from carrypost.mom.context import MessagingContext
    from carrypost.mom.state import Claim

_QUIET_US = 20_000
"""Time without a commit after which all of it is released."""
_RIPE_US = 50_000
"""Time after which it is released together with whatever is written next."""
_MESSAGES_MAX, _BYTES_MAX = 64, 64 * 1024
"""Amounts that are released with the next batch at once: they take room in the cache."""
_PART = 16
"""Part of the cache, or of what may be pinned, that has the same effect: a small cache would refuse sends."""


class CommittedAcks:
    """The messages that the durable commits of one host acknowledged."""

    def __init__(self, context: MessagingContext, claims: Claims) -> None:
        self._claims, self._holdings = claims, context.holdings
        settings, limits = context.settings, context.limits
        self._messages_max = min(_MESSAGES_MAX, min(settings.cache_messages_max, limits.unconfirmed_max) // _PART)
        self._bytes_max = min(_BYTES_MAX, min(settings.cache_bytes_max, limits.unconfirmed_bytes_max) // _PART)
        self._done: list[Claim] = []
        self._bytes = 0
        self._ripe_us = NEVER
        """Time from which they are released with the next batch."""
        self.due_us = NEVER
        """Time at which they are released in any case."""

    def add(self, done: Collection[Claim]) -> None:
        """Collect the acknowledgements of a commit that is durable."""
        now = self._holdings.now_us
        self._done += done
        self._bytes += sum(each.copy.descriptor.length for each in done)
        self._ripe_us = min(self._ripe_us, now + _RIPE_US)
        if len(self._done) >= self._messages_max or self._bytes >= self._bytes_max:
            self._ripe_us = 0
        self.due_us = now + _QUIET_US

    def is_ripe(self, now: int) -> bool:
        """Return True if they are released with the next batch."""
        return self._ripe_us <= now

    def release(self) -> None:
        """Release what cannot be undone any more."""
        done, self._done, self._bytes = self._done, [], 0
        self._ripe_us = self.due_us = NEVER
        self._claims.keep(done)
