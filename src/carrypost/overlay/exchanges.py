"""Exchanges: seats that leave a broker with too much work, so that another can come for which that is worth more.

While loads are high, the broker nearest to a consumer often has no room for its seat, though it has the seat of another
consumer that would be nearly as well off elsewhere. So a broker also offers a seat where there is no room, together
with the hops that its paths would become shorter by. The other broker accepts if one of its own seats can move to a
third broker, or in the opposite direction, and loses less. Both moves are relocations like others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from carrypost.model.ids import node_prefix
from carrypost.overlay.load import DIGITS

if TYPE_CHECKING:
    from carrypost.gossip.transfers.host_context import HostContext
    from carrypost.overlay.alternatives import Alternatives
    from carrypost.overlay.candidates import Candidates
    from carrypost.overlay.items import Handoff
    from carrypost.overlay.load import Load
    from carrypost.overlay.notices import NearestBroker

GAIN_MIN = 0.5
"""Hops by which the paths of both consumers together must become shorter: two relocations are not for less."""


class Exchanges:
    """The seats of one broker that could leave for others."""

    def __init__(self, context: HostContext, load: Load, candidates: Candidates, alternatives: Alternatives) -> None:
        self._load, self._candidates, self._alternatives = load, candidates, alternatives
        self._period_us = round(context.settings.overlay.discovery_s * 1e6)
        self._next_us = 0
        """Time of the next search. One compares all seats with all neighbours, and strangers may cause it."""

    def options(self, item: Handoff, now: int) -> list[NearestBroker]:
        """Return moves of seats that would make room for an offered one, and are worth it; the best ones first."""
        if not item.gain or now < self._next_us:
            return []
        self._next_us = now + self._period_us
        freed_there, options = self._candidates.load_of(item.work, node_prefix(item.h.source)), []
        # By a shorter estimate a seat could leave that soon wants to come back: seats would change
        # places again and again.
        for notice in self._alternatives.all(now, at_most=True):
            here, there = self._candidates.compare(notice)
            lost = there.path - here.path
            # The offered seat leaves its broker, which has room for another one then.
            freed = freed_there if notice.broker == item.h.source else 0.0
            fits = round(there.load - freed, DIGITS) <= self._load.load_max and self._makes_room(notice, item)
            if fits and item.gain / 100 - lost > GAIN_MIN and not self._candidates.is_early(notice):
                options.append((lost, there.load, notice))
        return [notice for _, _, notice in sorted(options)]

    def begun(self, notice: NearestBroker) -> None:
        """Note that one of the moves has begun."""
        self._candidates.sent(notice)

    def _makes_room(self, notice: NearestBroker, item: Handoff) -> bool:
        after = self._load.ahead + item.work / self._load.power - self._candidates.share(notice)
        return round(after, DIGITS) <= self._load.load_max
