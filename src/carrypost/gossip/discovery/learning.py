"""The pace at which a host learns its neighbours' profiles: one after the other, a moment at a time, with pauses.

Most are learnt as soon as they arrive. A profile that takes longer, such as one that a stranger made for that purpose,
leaves this host nine tenths of its time for everything else. Its sender waits, and is charged for all of it; for the
first one, all addresses together are.

Only the index knows which profiles are being learnt (`ProfileIndex.learning`). The host's own profile may be one of
them and is then learnt at once, so none is remembered here from one moment to the next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from carrypost.gossip.timers import LEARN, Timers

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from carrypost.gossip.interest.learning import Learning
    from carrypost.gossip.interest.matcher import Slotted
    from carrypost.gossip.transfers.host_context import HostContext
    from carrypost.gossip.transfers.link import Link
    from carrypost.model.pattern import Entry

_MOMENT_US = 50_000
_PAUSE_US = 750_000
_LOOK_US = 3_000
"""Time for a profile that comes during a pause: most are learnt within it. Also the time by which matching is counted
between two looks at the clock."""
_PROFILE, _ENTRY, _COPY = 100, 30, 2
"""Work for a profile, for compiling a pattern, and for matching a message (`gossip.transfers.accounts`)."""


class LearningPace:
    """The pace of learning: its times, its length, and the link that is charged for it."""

    def __init__(self, context: HostContext) -> None:
        self._index, self._accounts = context.holdings.index, context.links.accounts
        self._timers = Timers(context.links.schedule)
        context.links.schedule.add(self._timers)
        self._rested_us = 0
        """Time until which this host has to do other things than learn, but for profiles that take no time."""

    @property
    def due_us(self) -> int:
        """Time at which learning continues."""
        return self._timers.due[LEARN]

    def begin(
        self, entries: Iterable[Entry], digest: bytes, copies: Collection[Slotted | None], teller: Link, now: int
    ) -> bool:
        """Learn a profile, or begin to; return True if it is learnt; raises `LimitError` without room."""
        began_us, work = self._accounts.clock_us(), teller.work
        learning = self._index.begin(entries, digest, copies)
        # During a pause it is only tried if that may be enough: a neighbour may begin with many profiles and end none.
        rests = now < self._rested_us
        hopeless = rests and len(copies) > _LOOK_US
        learnt = not hopeless and self._go_on(learning, _LOOK_US if rests else _MOMENT_US)
        if not learnt:
            self._rested_us = now + _PAUSE_US
            self._timers.hasten(LEARN, self._rested_us)
        matcher = learning.view.matcher
        units = _PROFILE + _ENTRY * len(matcher.entries) + _COPY * len(copies) + matcher.spent_us
        work.did(units)
        # A newcomer's first profiles are necessary work. Charging them to the newcomer would mute
        # honest nodes with large profiles; not charging them at all would let a thousand addresses
        # compile patterns for free.
        learning.free = teller.takes_free(now)
        if learning.free:
            work.credit(units)
            work.owe(self._accounts.took(began_us, units), free=True)
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
        began_us, before_us = self._accounts.clock_us(), matcher.spent_us
        learnt = self._go_on(learning, _MOMENT_US)
        tellers[digest].work.owe(self._accounts.took(began_us, matcher.spent_us - before_us), free=learning.free)
        self._rested_us = now + _PAUSE_US
        if index.learning:
            self._timers.arm(LEARN, self._rested_us)
        return digest if learnt else None

    def _go_on(self, learning: Learning, within_us: int) -> bool:
        """Match for about this long, measured if it can be; return True once the profile is learnt."""
        began_us, counted_us, matcher = self._accounts.clock_us(), 0, learning.view.matcher
        while self._accounts.took(began_us, counted_us) < within_us:
            before_us = matcher.spent_us
            if self._index.go_on(learning, _LOOK_US):
                return True
            counted_us += max(_LOOK_US, matcher.spent_us - before_us)
        return False
