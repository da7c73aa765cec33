"""Ids of finished messages that are remembered beyond their deadlines, as long as a clock of this host may be wrong.

A message is finished when programs of this host are done with it. Its id is forgotten at its deadline, since other
hosts have dropped the message by then. But the clock may have been ahead, and be set back: then others still have the
message, and it would come as a new one. So after the clock was set forward, ids are remembered until their deadlines
have passed by the slower clock, too. The time between two incarnations counts as a step
forward.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from carrypost.log.journal import SEEN
from carrypost.model.times import MICROSECONDS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from carrypost.gossip.holdings.copies import Copy
    from carrypost.log.journal import Journal
    from carrypost.model.ids import MessageId

SLACK_US_MAX = 7 * 24 * 3_600 * MICROSECONDS
"""Longest time for which ids outlive their deadlines: a clock that is wrong by more than that is noticed."""
_SWEEP_US = 60 * MICROSECONDS


class Outlived:
    """The ids of one host that outlive their deadlines. Those of confirmed messages have rows."""

    __slots__ = ("_max", "_sweep_us", "ids", "slack_us")

    def __init__(self, ids_max: int) -> None:
        self.ids: dict[MessageId, int] = {}
        """Deadlines by message. Checked for every descriptor: empty unless the clock was set forward."""
        self.slack_us = 0
        """Time by which dates are ahead of the slowest clock that this host has had."""
        self._max = ids_max
        self._sweep_us = 0

    def clock_stepped(self, delta_us: int) -> None:
        """Note that the clock was set forward or, by a negative amount, back."""
        self.slack_us = min(max(self.slack_us + delta_us, 0), SLACK_US_MAX)
        self._sweep_us = 0

    def expired(self, copies: Iterable[Copy], date_us: int) -> None:
        """Keep the ids of finished messages whose deadlines have passed by the date, and not by the slowest clock."""
        for copy in copies if self.slack_us else ():
            if copy.given and copy.finished and not copy.here:
                self.keep(copy.id, copy.descriptor.ends_us, date_us)

    def keep(self, message: MessageId, ends_us: int, date_us: int) -> bool:
        """Keep the id of a message beyond its deadline, if that is necessary; return True if it is kept."""
        if date_us - self.slack_us < ends_us <= date_us and len(self.ids) < self._max:
            self.ids[message] = ends_us
        return message in self.ids

    def forget(self, copy: Copy, date_us: int, journal: Journal) -> None:
        """Delete the row of a confirmed message that is forgotten, unless its id outlives its deadline."""
        if not self.keep(copy.id, copy.descriptor.ends_us, date_us):
            journal.delete((SEEN, copy.id, 0))

    def sweep(self, date_us: int, journal: Journal) -> None:
        """Forget ids whose deadlines have passed by the slowest clock, too."""
        if not self.ids or date_us < self._sweep_us:
            return
        self._sweep_us = date_us + _SWEEP_US
        for message in [each for each, ends_us in self.ids.items() if ends_us <= date_us - self.slack_us]:
            del self.ids[message]
            journal.delete((SEEN, message, 0))
