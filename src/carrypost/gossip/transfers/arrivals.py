"""Messages that became whole: handed to the layers, journalled and reported.

Messages of one step with one neighbour are reported together. Events come in the order in which things happened, so
where room had to be made, earlier arrivals are reported first, then the evictions, then the message they made room for.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import repeat
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from carrypost.gossip.holdings.copies import Copy
from carrypost.gossip.transfers.accounts import MESSAGE

if TYPE_CHECKING:
    from carrypost.gossip.layer import Layers
    from carrypost.gossip.transfers.host_context import HostContext
    from carrypost.gossip.transfers.link import Link
    from carrypost.gossip.transfers.removals import Removals
    from carrypost.log.events import Reception


_HERE = attrgetter("here")
_FRESH_MAX = 8
"""If more than this arrive in one step it is a burst, which is offered: the neighbours of its sender may get it,
too."""


class Arrival(NamedTuple):
    """One message that became whole here."""

    copy: Copy
    giver: Link | None
    """None: it was published here."""
    serial: int | None
    """Serial of the giver's unasked Parcel; None: it was requested."""


class News(NamedTuple):
    """The arrivals of one step."""

    whole: bool
    """True if messages became whole."""
    grown: bool
    """True if other messages got another piece."""
    fresh: Sequence[Arrival]
    """The messages that became whole, if they are few."""
    unasked: bool
    """True if some of them were not requested."""


class Arrivals:
    """The messages that one host received."""

    def __init__(self, context: HostContext, layers: Layers, departures: Removals, *, every: bool = False) -> None:
        """`every`: all messages of a step are reported one by one, and not only a few."""
        self._holdings, self._cache = context.holdings, context.holdings.cache
        self._outputs = context.outputs
        self._layers = layers
        self._removals = departures
        self._fresh_max = sys.maxsize if every else _FRESH_MAX
        self._count = 0
        """Number of messages that became whole."""
        self._fresh: list[Arrival] = []
        self._grown = self._unasked = self.news = False
        """True if something arrived since the last call of `pop_news`."""

    def pop_news(self) -> News:
        """Return what arrived since the last call."""
        few = self._count <= self._fresh_max
        news = News(self._count > 0, self._grown, self._fresh if few else (), self._unasked)
        self._count, self._fresh = 0, []
        self._grown = self._unasked = self.news = False
        return news

    def piece(self, copy: Copy) -> None:
        """Journal another piece of a message that is not whole yet."""
        self._holdings.keep((copy,))
        self._grown = self.news = True

    def whole(
        self,
        copies: Sequence[Copy],
        receptions: Sequence[Reception],
        link: Link,
        serials: Sequence[int | None] | None = None,
    ) -> None:
        """Handle messages whose last pieces arrived: all of them are wanted here, or none is.

        `serials`: of unasked Parcels, None for requested ones; without it all were requested.
        """
        if self._cache.changed:
            self._outputs.report()
            self._removals.sweep()
        self._outputs.receive(link.node, link.path, receptions)
        self.news = True
        self._count += len(copies)
        if serials is not None:
            self._unasked = True
        if self._count <= self._fresh_max:
            self._fresh += map(Arrival, copies, repeat(link), serials or repeat(None))
        # Layers may hold a message back (causal order), or release others that waited for it. So
        # the messages delivered are not always those that arrived.
        delivered = self._layers.receive(copies) if copies[0].interesting else copies
        # One that was turned away at once, because too many wait for others, led to nothing.
        link.work.credit(MESSAGE * sum(map(_HERE, copies)))
        self._holdings.keep(copies)
        if delivered is not copies:
            arrived = {copy.slot for copy in copies}
            held_back = [copy for copy in delivered if copy.slot not in arrived]
            self._holdings.keep(held_back)
