"""The messages of a queue browser, whose parts arrive as the queue's manager sends them."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from carrypost.log.events import Browsed
    from carrypost.messaging.commands import Browsing
    from carrypost.model.descriptor import Descriptor


class Enumeration:
    """One enumeration of a queue: the messages that arrived so far."""

    def __init__(self, begun: Browsing) -> None:
        self.number = begun.number
        self.waiting: deque[Descriptor] = deque(begun.descriptors or ())
        self.taken_us = begun.taken_us
        """Time at which the manager took the snapshot; 0 before its answer."""
        self.complete = begun.descriptors is not None
        self.ended = ""
        """Reason why nothing more will arrive; empty while more may."""
        self._news = asyncio.Event()

    def add(self, part: Browsed) -> None:
        """Add a further part."""
        self.waiting.extend(part.descriptors)
        self.taken_us, self.complete = part.taken_us, part.complete
        self._news.set()

    def end(self, reason: str) -> None:
        """End it: nothing more will arrive."""
        self.ended = reason
        self._news.set()

    async def more(self, limit_s: float | None) -> bool:
        """Wait for a further part; return False if none came in time."""
        self._news.clear()
        try:
            async with asyncio.timeout(limit_s):
                await self._news.wait()
        except TimeoutError:
            return False
        return True
