"""Messages that became whole: what is told of them, delivered and kept.

Those of one step with one neighbour are told together; but events come in order of happening, so where room had to be
made, what came before is told first, then what had to go, and then what it went for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from carrypost.events import Received, Reception
from carrypost.gossip.transfers.accounts import MESSAGE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from carrypost.gossip.desk import Desk
    from carrypost.gossip.holdings.copies import Copy
    from carrypost.gossip.transfers.link import Link
    from carrypost.local.deliveries import Deliveries
    from carrypost.model.ids import NodeId


class Receptions:
    """What one host received and has not told yet."""

    def __init__(self, desk: Desk, deliveries: Deliveries) -> None:
        self._desk = desk
        self._deliveries = deliveries
        self.untold: dict[NodeId, list[Reception]] = {}
        """By the neighbour who brought them."""
        self.told: Callable[[], None] = lambda: None
        """What is to be told of them besides, before anything is dropped."""

    def whole(self, copy: Copy, link: Link, reception: Reception) -> None:
        """The last piece of a message is here."""
        if self._desk.cache.changed:
            self.tell()
            self._desk.sweep()
        self.untold.setdefault(link.node, []).append(reception)
        link.budgets.tally += MESSAGE
        if copy.interesting:
            self._deliveries.deliver(copy)
        self._desk.keep(copy)

    def all_whole(self, copies: Sequence[Copy], link: Link) -> None:
        """These messages are here, all of them wanted, and nobody had to go for them."""
        found = [Reception(copy.descriptor, copy.hops, copy.age_ms) for copy in copies]
        self.untold.setdefault(link.node, []).extend(found)
        link.budgets.tally += MESSAGE * len(found)
        self._deliveries.deliver_all(copies)
        self._desk.keep_all(copies)

    def tell(self) -> None:
        """Tell of them, those of each neighbour together."""
        for peer, receptions in self.untold.items():
            self._desk.events.append(Received(peer, tuple(receptions)))
        self.untold = {}
        self.told()
