"""Where a host meets its layers: what they are handed, what they want, and what they have to say.

Copies that are in the store already are handed on, and the store learns which of them were delivered. Changes of what
the node wants are acted upon: who wants now what is here gets it, and neighbours are told. Drafts are published.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from carrypost.errors import LocalError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from carrypost.gossip.discovery.neighbours import Neighbours
    from carrypost.gossip.holdings.copies import Copy
    from carrypost.gossip.strategy.strategy import Strategy
    from carrypost.gossip.transfers.ground import Ground
    from carrypost.host.works import Works
    from carrypost.local.deliveries import Deliveries


class Passage:
    """The layers' part in the steps of one host."""

    def __init__(
        self, ground: Ground, deliveries: Deliveries, works: Works, strategy: Strategy, neighbours: Neighbours
    ) -> None:
        self._holdings, self._outputs = ground.holdings, ground.outputs
        self._wishes, self._layers, self._works = deliveries.wishes, works.layers, works
        self._strategy, self._neighbours = strategy, neighbours

    def hand_on(self, copies: Sequence[Copy]) -> None:
        """Hand copies that are in the store already to the layers."""
        self._holdings.keep(self._layers.take(copies), again=True)

    def grant_wishes(self, now: int) -> None:
        """This node wants other messages than before."""
        entries, found, unwanted = self._wishes.take()
        if unwanted:
            self._layers.left(unwanted, None)
        if found:
            self.hand_on(found)
        if entries:
            self._strategy.interests_changed(entries)
            self._neighbours.interests_changed(now)
        if (missed := self._wishes.take_untold()) is not None:
            self._strategy.look_again(missed, now)

    def finish(self, now: int) -> None:
        """The end of a step: act upon what layers want, and publish what they say."""
        if self._wishes:
            self.grant_wishes(now)
        for draft in self._layers.finish(now):
            try:
                self._works.publish(draft, now)
            except LocalError:
                # There is no room, or it is beyond the limits; the layer was not told of it by `published`.
                self._outputs.refuse("draft", "")
