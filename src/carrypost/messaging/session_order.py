"""The order in which sessions sent their messages, as far as it was broken on the way.

A message that arrives after one that its session sent later to the same destination is marked as out of order as long
as its copy is here. A row records the mark, since programs may get the message only after a restart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from carrypost.application.tables import Marks

if TYPE_CHECKING:
    from carrypost.gossip.composite import Stored
    from carrypost.gossip.holdings.copies import Copy
    from carrypost.messaging.context import MessagingContext

_LATEST_MAX = 4_096
"""Number of sessions and destinations whose progress is remembered."""


class SessionOrder:
    """The messages of one host that arrived out of the order of their sessions."""

    def __init__(self, context: MessagingContext) -> None:
        self._holdings = context.holdings
        self._latest: dict[tuple[str | bytes, int, int, str], int] = {}
        """The highest number that arrived, by author, incarnation, session and destination; the least recent are
        dropped first."""
        self._broken = Marks(context.ledger, b"B")
        """Messages that arrived after one that their session sent later."""

    def is_broken_by(self, copy: Copy) -> bool:
        """Return True if it arrived after a message that its session sent later to the same destination."""
        return copy.id in self._broken

    def note(self, copy: Copy) -> None:
        """Note the arrival of a message."""
        descriptor = copy.original
        headers = descriptor.headers
        if headers is None or not headers.session or not headers.number:
            return
        key = descriptor.author, descriptor.incarnation, headers.session, descriptor.destination
        latest = self._latest.pop(key, 0)
        if headers.number < latest:
            self._broken.add(copy.id)
        self._latest[key] = max(latest, headers.number)
        if len(self._latest) > _LATEST_MAX:
            del self._latest[next(iter(self._latest))]

    def left(self, copy: Copy) -> None:
        """Drop the mark of a copy that is gone."""
        self._broken.discard(copy.id)

    def restore(self, stored: Stored) -> None:
        """Restore the marks after a restart."""
        self._broken.read(stored, self._holdings.here)
