"""The queues of other nodes that this one asked for messages, in this incarnation or an earlier one: a row each.

Only a manager that was asked may assign something to this node. Its assignment may arrive long after the demand ended,
and after a restart that forgot the demand itself; so the queue is remembered, in a row that is durable before the
demand leaves. The number of the demand in an assignment is not checked against the row: a manager may name any of its
own.
"""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING

from carrypost.application.tables import Deadlines
from carrypost.messaging.admission import ASKED_MAX, ASKED_US

if TYPE_CHECKING:
    from carrypost.application.ledger import Ledger
    from carrypost.gossip.composite import Stored

_RENEWED_US = ASKED_US // 30
"""A row is written again when it would last this much longer: demands are renewed much more often."""


class DemandedQueues(Deadlines):
    """The destinations of queues that one node asked; the one asked longest ago comes first."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger, b"M")

    def add(self, destination: str, now: int) -> None:
        """Note that a queue is asked."""
        known_us, until_us = self._until_us.pop(destination, 0), now + ASKED_US
        if until_us - known_us < _RENEWED_US:
            self._until_us[destination] = known_us
            return
        self._put(destination, until_us)
        if len(self._until_us) > ASKED_MAX:
            self.forget(next(iter(self._until_us)))

    def restore(self, stored: Stored, now: int) -> None:
        """Restore the rows after a restart, the one asked longest ago first."""
        super().restore(stored, now)
        self._until_us = dict(sorted(self._until_us.items(), key=itemgetter(1)))
