"""The base of routing strategies, which studies of opportunistic networks compare with epidemic routing.

A host carries every message, and `relay` decides which of them a neighbour gets to carry, too. What is for the
neighbour itself always goes to it. Messages go to one neighbour at a time. No acknowledgements spread: a host keeps its
copy of a message that arrived at its recipient until it expires or makes room, as in the papers and in The ONE. A
recipient drops its own copy once its program has the message.

State of these strategies is not stored. So they are for emulation; real nodes refuse them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from carrypost.gossip.holdings.ranking import FIRST_IN_FIRST_OUT, Ranking
from carrypost.gossip.strategy.exchange import Exchange
from carrypost.gossip.transfers.purging import strike
from carrypost.log.events import Reason

if TYPE_CHECKING:
    from carrypost.gossip.strategy.exchange_contact import ExchangeContact
    from carrypost.gossip.transfers.host_context import HostContext
    from carrypost.gossip.transfers.link import Link
    from carrypost.gossip.transfers.removals import Removals
    from carrypost.gossip.transfers.transfers import Transfers


class Routed(Exchange):
    """The strategy that gives a neighbour what is for it, and `relay` decides about the rest."""

    carries_everything = True
    chooses = True
    unicast = True
    acknowledges = False
    durable_first = True
    ranking: ClassVar[Ranking] = FIRST_IN_FIRST_OUT

    def __init__(self, context: HostContext, transfers: Transfers, departures: Removals) -> None:
        super().__init__(context, transfers, departures)
        self._holdings = context.holdings

    def choose(self, contact: ExchangeContact, mask: int, now: int) -> int:
        """Choose what is for the neighbour, and what `relay` chooses of the rest."""
        mine = self.offers.wanted(contact, mask)
        rest = mask & ~mine
        return mine | self.relay(contact, rest, now) if rest else mine

    def relay(self, contact: ExchangeContact, mask: int, now: int) -> int:  # noqa: ARG002 - others look at these
        """Return those of the slots in `mask`, all for other nodes, that the neighbour gets to carry."""
        return 0

    def flush(self, now: int, link: Link | None) -> None:
        """Drop this host's copies of messages that its programs have, then end the step."""
        holdings = self._holdings
        # The acknowledgements of other strategies do this, after they have told all carriers.
        if holdings.acknowledged:
            done = holdings.pop_acknowledged()
            strike(self.context, done, self.context.node, max(until_us for until_us, _ in done.values()))
        if holdings.lingering:
            self._cache.throw_out(holdings.pop_lingering(), Reason.PURGED)
        super().flush(now, link)
