"""EMMA's strategy: who meets somebody lists what it has, and each sends what the other lacks (EMMA §3.2).

A contact begins with a session (`gossip.strategy.sessions`) where ours begins with a review; the rest is ours. A host
takes along whatever there is, and its copies give way, and are sent, by privilege, date and id alone: so hosts that
meet agree which of their messages are worth their room.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from carrypost.gossip.holdings.ranking import PRIVILEGE_ONLY, Ranking
from carrypost.gossip.strategy.exchange import Exchange

if TYPE_CHECKING:
    from carrypost.gossip.strategy.beliefs import ExchangeContact


class AntiEntropy(Exchange):
    """Sessions, then increments."""

    carries_everything = True
    ranking: ClassVar[Ranking] = PRIVILEGE_ONLY

    def meet(self, contact: ExchangeContact, now: int) -> None:
        """List what is here: the smaller id begins."""
        self.sessions.begin(contact, now)

    def compare(self, contact: ExchangeContact, now: int) -> None:
        """Repeat the list, as long as it may be answered; else compare the sets."""
        if not self.sessions.repeat(contact, now):
            self.review.ask(contact, now)
