"""The neighbours' profiles that this host is learning: one after the other, a moment at a time, with pauses.

Most are learnt as soon as they come. One that takes longer, as a stranger's may that was made for it, leaves this host
four fifths of its time for everything else; its teller waits, and is charged for all of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from carrypost.gossip.timers import LEARN, Timers

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from carrypost.gossip.interest.matcher import Slotted
    from carrypost.gossip.transfers.ground import Ground
    from carrypost.gossip.transfers.link import Link
    from carrypost.model.pattern import Entry

_MOMENT_US = 50_000
_PAUSE_US = 200_000


class LearningQueue:
    """The profiles of one host that are not learnt yet, by their digests."""

    def __init__(self, ground: Ground) -> None:
        self._index = ground.holdings.index
        self._timers = Timers(ground.links.schedule)
        ground.links.schedule.add(self._timers)
        self._tellers: dict[bytes, Link] = {}
        """Whose it is, first come first."""
        self._learnt: list[bytes] = []

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._tellers

    @property
    def due_us(self) -> int:
        """When it is time to go on."""
        return self._timers.due[LEARN]

    def begin(
        self, entries: Iterable[Entry], digest: bytes, copies: Collection[Slotted], teller: Link, now: int
    ) -> None:
        """Learn a profile, or begin to; raises `LimitError` where there is no room for another."""
        self._index.begin(entries, digest, copies)
        matcher = self._index.learning(digest).matcher  # type: ignore[union-attr]  # it was begun
        if self._index.go_on(digest, _MOMENT_US) is not None:
            self._learnt.append(digest)
        else:
            self._tellers[digest] = teller
            self._timers.hasten(LEARN, now + _PAUSE_US)
        teller.budgets.learnt(matcher, len(copies), now)

    def go_on(self, wanted: Collection[bytes], now: int) -> None:
        """Go on with the first; what nobody is known by any more is given up."""
        self._timers.cancel(LEARN)
        for digest in [digest for digest in self._tellers if digest not in wanted]:
            del self._tellers[digest]
            self._index.abandon(digest)
        for digest, teller in self._tellers.items():
            matcher = self._index.learning(digest).matcher  # type: ignore[union-attr]  # likewise
            before_us = matcher.spent_us
            if self._index.go_on(digest, _MOMENT_US) is not None:
                self._learnt.append(digest)
            teller.budgets.charge(matcher.spent_us - before_us)
            break
        for digest in self._learnt:
            del self._tellers[digest]
        if self._tellers:
            self._timers.arm(LEARN, now + _PAUSE_US)

    def take_learnt(self) -> list[bytes]:
        """The digests of those that were learnt since the last call."""
        learnt, self._learnt = self._learnt, []
        return learnt
