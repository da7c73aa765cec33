"""Messages that became whole: handed to the layers, journalled and reported.

Those of one step with one neighbour are reported together. But events come in the order in which things happened, so
where room had to be made, what came before is reported first, then what was evicted, then what it was evicted for.
"""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING, NamedTuple

from carrypost.gossip.transfers.accounts import MESSAGE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from carrypost.events import Reception
    from carrypost.gossip.holdings.copies import Copy
    from carrypost.gossip.layer import Layers
    from carrypost.gossip.transfers.departures import Departures
    from carrypost.gossip.transfers.ground import Ground
    from carrypost.gossip.transfers.link import Link


_FRESH_MAX = 8
"""More that come in one step are a burst, which is offered: the neighbours of whoever sends it may be at it, too."""


class Arrival(NamedTuple):
    """One message that is whole here now."""

    copy: Copy
    giver: Link | None
    """None: it was published here."""
    serial: int | None
    """Of the giver's unasked Parcel; None: it was asked for."""


class News(NamedTuple):
    """News of one step."""

    whole: bool
    """Messages became whole."""
    grown: bool
    """True if others got another piece."""
    fresh: Sequence[Arrival]
    """The messages that became whole, if they are few."""
    unasked: bool
    """Some of them were not asked for."""


class Receptions:
    """The messages that one host received."""

    def __init__(self, ground: Ground, layers: Layers, departures: Departures) -> None:
        self._holdings, self._cache = ground.holdings, ground.holdings.cache
        self._outputs = ground.outputs
        self._layers = layers
        self._departures = departures
        self._count = 0
        """Messages that became whole."""
        self._fresh: list[Arrival] = []
        self._grown = self._unasked = self.news = False
        """Something came since the last call of `take_news`."""

    def take_news(self) -> News:
        """Return what came since the last call."""
        few = self._count <= _FRESH_MAX
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
        """Take messages whose last pieces came: all of them are wanted here, or none is.

        `serials`: of the Parcels that were not asked for, None for others; without it all were.
        """
        if self._cache.changed:
            self._outputs.report()
            self._departures.sweep()
        self._outputs.receive(link.node, link.path, receptions)
        link.budgets.credit(MESSAGE * len(copies))
        self.news = True
        self._count += len(copies)
        if serials is not None:
            self._unasked = True
        if self._count <= _FRESH_MAX:
            self._fresh += map(Arrival, copies, repeat(link), serials or repeat(None))
        delivered = self._layers.take(copies) if copies[0].interesting else copies
        self._holdings.keep(copies)
        if delivered is not copies:
            arrived = {copy.slot for copy in copies}
            held_back = [copy for copy in delivered if copy.slot not in arrived]
            self._holdings.keep(held_back, again=True)
