"""EMMA's strategy: two hosts that meet list what they have, and each sends what the other lacks (EMMA §3.2).

A contact begins with a session (`gossip.strategy.lists`) instead of a review; everything after that is as in
`Exchange`. A host carries every message it is offered. Copies are evicted and sent by privilege, date and id alone, so
that two hosts that meet agree which of their messages are worth keeping.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from carrypost.gossip.holdings.eviction import PRIVILEGE_ONLY, Ranking
from carrypost.gossip.strategy.exchange import Exchange

if TYPE_CHECKING:
    from carrypost.gossip.strategy.exchange_contact import ExchangeContact


class AntiEntropy(Exchange):
    """The strategy that opens a contact with a session, then offers what is new."""

    carries_everything = True
    ranking: ClassVar[Ranking] = PRIVILEGE_ONLY

    def meet(self, contact: ExchangeContact, now: int) -> None:
        """List the messages held here, if this node has the smaller id; otherwise wait for the neighbour's list."""
        self.sessions.begin(contact, now)

    def compare(self, contact: ExchangeContact, now: int) -> None:
        """Repeat the list while the neighbour may still answer it; after that, compare the sets."""
        if not self.sessions.repeat(contact, now):
            self.review.ask(contact, now)
