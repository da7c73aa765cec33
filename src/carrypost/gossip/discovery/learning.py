"""The pace at which a host learns its neighbours' profiles: one after the other, a moment at a time, with pauses.

Most are learnt as soon as they arrive. A profile that takes longer, such as one that a stranger made for that purpose,
leaves this host four fifths of its time for everything else. Its sender waits, and is charged for all of it.

Only the index knows which profiles are being learnt (`ProfileIndex.learning`). The host's own profile may be one of
them and is then learnt at once, so nothing is remembered here from one moment to the next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from carrypost.gossip.timers import LEARN, Timers

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from carrypost.gossip.interest.matcher import Slotted
    from carrypost.gossip.transfers.host_context import HostContext
    from carrypost.gossip.transfers.link import Link
    from carrypost.model.pattern import Entry

_MOMENT_US = 50_000
_PAUSE_US = 200_000


class LearningPace:
    """The pace of learning: its times, its length, and the link that is charged for it."""

    def __init__(self, context: HostContext) -> None:
        self._index = context.holdings.index
        self._timers = Timers(context.links.schedule)
        context.links.schedule.add(self._timers)

    @property
    def due_us(self) -> int:
        """Time at which learning continues."""
        return self._timers.due[LEARN]

    def begin(
        self, entries: Iterable[Entry], digest: bytes, copies: Collection[Slotted], teller: Link, now: int
    ) -> bool:
        """Learn a profile, or begin to; return True if it is learnt; raises `LimitError` without room."""
        learning = self._index.begin(entries, digest, copies)
        learnt = self._index.go_on(learning, _MOMENT_US)
        if not learnt:
            self._timers.hasten(LEARN, now + _PAUSE_US)
        teller.budgets.learnt(learning.view.matcher, len(copies), now)
        return learnt

    def go_on(self, tellers: Mapping[bytes, Link], now: int) -> bytes | None:
        """Continue with the earliest profile, and return its digest once it is learnt.

        Abandons every profile without a teller: no neighbour announces it any more.
        """
        self._timers.cancel(LEARN)
        index = self._index
        for digest in [digest for digest in index.learning if digest not in tellers]:
            index.abandon(digest)
        if not index.learning:
            return None
        digest, learning = next(iter(index.learning.items()))
        matcher = learning.view.matcher
        before_us = matcher.spent_us
        learnt = index.go_on(learning, _MOMENT_US)
        tellers[digest].budgets.charge(matcher.spent_us - before_us)
        if index.learning:
            self._timers.arm(LEARN, now + _PAUSE_US)
        return digest if learnt else None
