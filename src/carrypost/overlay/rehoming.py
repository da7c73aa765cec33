"""Rehoming: moves of seats to brokers that are better homes (OVERLAY §2.4, step 2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from carrypost.overlay.events import LOAD, NEARER
from carrypost.overlay.exchanges import GAIN_MIN
from carrypost.overlay.home_choice import choose_home
from carrypost.overlay.items import MoveReason

if TYPE_CHECKING:
    from collections.abc import Sequence

    from carrypost.overlay.candidates import Candidates
    from carrypost.overlay.handoffs import Handoffs
    from carrypost.overlay.load import Load
    from carrypost.overlay.notices import NearestBroker
    from carrypost.overlay.topology import Topology


class Rehoming:
    """Handoffs of seats from this broker to those that the rules prefer (`choose_home`)."""

    def __init__(self, topology: Topology, load: Load, candidates: Candidates, moves: Handoffs) -> None:
        self._topology, self._load, self._candidates, self._moves = topology, load, candidates, moves

    def try_moves(self, notices: Sequence[NearestBroker]) -> None:
        """Move the seat of a consumer to the best of several brokers that is a better home, and has or makes room."""
        known = [each for each in notices if each.broker in self._topology.brokers]
        ordered = sorted(known, key=self._path) if len(known) > 1 else known
        for attempt in (self.try_move, self._ask):
            if any(attempt(each) for each in ordered):
                return

    def _path(self, notice: NearestBroker) -> float:
        return self._candidates.compare(notice)[1].path

    def try_move(self, notice: NearestBroker) -> bool:
        """Move the seat of a consumer to a broker that is a better home. Returns False if it stays.

        Because of load no seat moves that came less than `discovery_s` ago.
        """
        if notice.broker not in self._topology.brokers:
            return False
        here, there = self._candidates.compare(notice)
        reason: MoveReason = LOAD if here.load > self._load.load_max else NEARER
        early = reason is LOAD and self._candidates.is_early(notice)
        if early or choose_home(here, there, self._load.load_max) is not there:
            return False
        return self._offer(notice, reason)

    def _ask(self, notice: NearestBroker) -> bool:
        """Offer the seat to a broker with too much work that is on much shorter paths. It may make room."""
        here, there = self._candidates.compare(notice)
        gain = here.path - there.path
        if here.load > self._load.load_max or there.load <= self._load.load_max or gain <= GAIN_MIN:
            return False
        return self._offer(notice, NEARER, gain)

    def _offer(self, notice: NearestBroker, reason: MoveReason, gain: float = 0.0) -> bool:
        consumer = notice.consumer, notice.channel, notice.subscription
        if not self._moves.migrate(consumer, notice.broker, reason, notice.now_us, gain):
            return False
        if not gain:
            self._candidates.sent(notice)
        return True
