"""Messages that became whole: handed to the layers, journalled and reported.

Those of one step with one neighbour are reported together. But events come in the order in which things happened, so
where room had to be made, what came before is reported first, then what was evicted, then what it was evicted for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from carrypost.gossip.transfers.accounts import MESSAGE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from carrypost.events import Reception
    from carrypost.gossip.holdings.copies import Copy
    from carrypost.gossip.layer import Layers
    from carrypost.gossip.transfers.departures import Departures
    from carrypost.gossip.transfers.ground import Ground
    from carrypost.gossip.transfers.link import Link


class Receptions:
    """What one host received."""

    def __init__(self, ground: Ground, layers: Layers, departures: Departures) -> None:
        self._holdings, self._cache = ground.holdings, ground.holdings.cache
        self._outputs = ground.outputs
        self._layers = layers
        self._departures = departures
        self._whole = self._grown = self.news = False
        """Something came since the last call of `take_news`."""

    def take_news(self) -> tuple[bool, bool]:
        """Whether messages became whole since the last call, and whether others got another piece."""
        news = self._whole, self._grown
        self._whole = self._grown = self.news = False
        return news

    def piece(self, copy: Copy) -> None:
        """Journal another piece of a message that is not whole yet."""
        self._holdings.keep((copy,))
        self._grown = self.news = True

    def whole(self, copies: Sequence[Copy], receptions: Sequence[Reception], link: Link) -> None:
        """Take messages whose last pieces came: all of them are wanted here, or none is."""
        if self._cache.changed:
            self._outputs.report()
            self._departures.sweep()
        self._outputs.receive(link.node, receptions)
        link.budgets.credit(MESSAGE * len(copies))
        self._whole = self.news = True
        delivered = self._layers.take(copies) if copies[0].interesting else copies
        self._holdings.keep(copies)
        if delivered is not copies:
            arrived = {copy.slot for copy in copies}
            held_back = [copy for copy in delivered if copy.slot not in arrived]
            self._holdings.keep(held_back, again=True)
