"""The queues of other nodes that this one asked for messages, in this life or an earlier one: a row each.

Only a manager that was asked may assign something to this node. What it assigns may come long after its demand ended,
and after a restart that forgot the demand itself; so the queue is remembered, in a row that is durable before the
demand leaves. Which of its own demands a manager names is not checked against the row: it may name any of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from carrypost.model.times import NEVER
from carrypost.mom.admission import ASKED_MAX, ASKED_US

if TYPE_CHECKING:
    from collections.abc import Iterable

    from carrypost.mom.ledger import Ledger

FAMILY = b"M"
_TIME_BYTES = 8
_RENEWED_US = ASKED_US // 30
"""A row is written again when it would last so much longer: demands are renewed much more often."""


class Asked:
    """The queues that one node asked, by destination, each with the time until which that is remembered."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._until_us: dict[str, int] = {}
        """The one that was asked longest ago comes first."""
        self.due_us = NEVER

    def __contains__(self, destination: str) -> bool:
        return destination in self._until_us

    def add(self, destination: str, now: int) -> None:
        """A queue is asked, now or again."""
        known_us, until_us = self._until_us.pop(destination, 0), now + ASKED_US
        if until_us - known_us < _RENEWED_US:
            self._until_us[destination] = known_us
            return
        self._until_us[destination] = until_us
        self._ledger.put(FAMILY + destination.encode(), until_us.to_bytes(_TIME_BYTES, "big"))
        self.due_us = min(self.due_us, until_us)
        if len(self._until_us) > ASKED_MAX:
            self._forget(next(iter(self._until_us)))

    def _forget(self, destination: str) -> None:
        del self._until_us[destination]
        self._ledger.delete(FAMILY + destination.encode())

    def expire(self, now: int) -> None:
        """Forget those that were not asked for too long."""
        if self.due_us <= now:
            for destination in [each for each, until_us in self._until_us.items() if until_us <= now]:
                self._forget(destination)
            self.due_us = min(self._until_us.values(), default=NEVER)

    def restore(self, rows: Iterable[tuple[bytes, bytes]]) -> None:
        """Take in the rows of an earlier life."""
        found = [(int.from_bytes(value, "big"), name[1:].decode()) for name, value in rows if name[:1] == FAMILY]
        self._until_us = {destination: until_us for until_us, destination in sorted(found)}
        self.due_us = min(self._until_us.values(), default=NEVER)
