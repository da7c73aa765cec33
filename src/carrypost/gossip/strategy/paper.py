"""The papers' strategy, for comparison (`paper_mode`): everything that matches is offered with each announcement.

Announcements come at a fixed period, nothing is compared or coalesced, an offer is repeated by the next announcement,
and each message is acknowledged before the next one is sent (JOMS-15 §2.2, figure 3).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from carrypost.gossip.strategy.exchange import Exchange
from carrypost.gossip.strategy.offers import Offers
from carrypost.model.times import NEVER

if TYPE_CHECKING:
    from collections.abc import Sequence

    from carrypost.gossip.strategy.exchange_contact import ExchangeContact, OpenOffer
    from carrypost.gossip.transfers.arrivals import Arrival
    from carrypost.gossip.transfers.host_context import HostContext
    from carrypost.gossip.transfers.removals import Removals
    from carrypost.gossip.transfers.transfers import Transfers


class _Catalogues(Offers):
    """Offers of everything that matches, of any length."""

    def everything(self, now: int) -> None:
        """Offer the whole catalogue to all neighbours."""
        offered = self._cache.whole & ~self._holdings.withheld
        for contact in self._contacts.all:
            contact.offers.withdraw()
            listed = self._naming(contact, offered & self._index.listed)
            if contact.view is not None and (mask := (contact.view.matches & offered) | listed):
                self._offer([contact], mask, now)

    def _room(self, contacts: Sequence[ExchangeContact], mask: int) -> tuple[int, int]:  # noqa: ARG002
        return mask.bit_count(), mask.bit_count()

    def _wait_for_answer(self, contact: ExchangeContact, offer: OpenOffer, now: int) -> None:  # noqa: ARG002
        offer.due_us = NEVER  # Every announcement repeats it.


class Paper(Exchange):
    """The strategy with full catalogues, at a fixed period, one message at a time."""

    fixed_period = True
    stop_and_wait = True

    def __init__(self, context: HostContext, transfers: Transfers, departures: Removals) -> None:
        super().__init__(context, transfers, departures)
        self.offers = self._catalogues = _Catalogues(context, transfers, self.contacts, self)

    def meet(self, contact: ExchangeContact, now: int) -> None:
        """Skip the comparison."""
        self.review.conclude(contact, now)

    def stale(self, contact: ExchangeContact, now: int) -> bool:  # noqa: ARG002
        """Return True if offers are paused; sets are never compared again."""
        return contact.offers.stalled

    def gained(self, now: int, *, fresh: Sequence[Arrival] = (), own: bool = False, partial: bool = False) -> None:
        """Do nothing: the next catalogue has what is new."""

    def announced(self, now: int) -> bool:
        """Offer everything that matches."""
        self._catalogues.everything(now)
        return True
