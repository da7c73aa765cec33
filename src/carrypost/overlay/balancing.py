"""Load balancing: an adaptor that lets clients leave a broker with too much work (OVERLAY §3.5).

The rules for homes look at loads when a consumer reports a broker as near as its home. Where none does, an overloaded
broker looks for other homes by itself. It moves those seats first whose paths grow least, until it is not overloaded.
A reported broker that had too much work is tried again when brokers announce new loads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from carrypost.overlay.notices import LoadChanged, NearestBroker, Notice, Option, Propagated

if TYPE_CHECKING:
    from collections.abc import Collection

    from carrypost.overlay.alternatives import Alternatives
    from carrypost.overlay.candidates import Candidates
    from carrypost.overlay.load import Load
    from carrypost.overlay.rehoming import Rehoming


class LoadAdaptor:
    """An adaptor that moves seats away from this broker while it is overloaded."""

    def __init__(self, load: Load, candidates: Candidates, alternatives: Alternatives, rehoming: Rehoming) -> None:
        self._load, self._candidates, self._alternatives = load, candidates, alternatives
        self._rehoming = rehoming
        self._full: dict[Option, NearestBroker] = {}
        """Reports of brokers that had too much work."""

    def subscribe(self) -> Collection[type[Notice]]:
        """Subscribe to changes of the load, and to brokers that consumers report."""
        return (LoadChanged, NearestBroker, Propagated)

    def process(self, notice: Notice) -> None:
        """Remember the report of a consumer; move seats away while this broker is overloaded."""
        if isinstance(notice, NearestBroker):
            for each in notice.each:
                self._remember(each)
        elif isinstance(notice, LoadChanged) and notice.load > self._load.load_max:
            self._relieve(notice.now_us)
        elif isinstance(notice, Propagated):
            self._try_again(notice.now_us)

    def _remember(self, report: NearestBroker) -> None:
        forgotten = self._alternatives.remember(report)
        if self._candidates.load_after(report) > self._load.load_max:
            self._full[report.option] = report
        else:
            self._full.pop(report.option, None)
        if forgotten is not None:
            self._full.pop(forgotten, None)

    def _try_again(self, now: int) -> None:
        """Move seats to nearer brokers that had too much work when consumers reported them."""
        full, self._full = self._full, {}
        for option, report in full.items():
            if self._alternatives.is_valid(report, now):
                moved = self._rehoming.try_move(report._replace(now_us=now))
                if not moved and self._candidates.load_after(report) > self._load.load_max:
                    self._full[option] = report

    def _relieve(self, now: int) -> None:
        """Move seats away, first those whose paths become longer by the fewest hops."""
        options = []
        for notice in self._alternatives.all(now):
            here, there = self._candidates.compare(notice)
            options.append((there.path - here.path, there.load, notice))
        for _, _, notice in sorted(options):
            # `ahead` already leaves out the seats that began to move, so that no more move than
            # necessary.
            if self._load.ahead <= self._load.load_max:
                return
            self._rehoming.try_move(notice)
