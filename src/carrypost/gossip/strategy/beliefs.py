"""Beliefs about a neighbour's cache, and the offers that it was made.

This is what the strategies `exchange` and `paper` remember of a contact. Nothing in it is believed for longer than
until the next review.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from carrypost.gossip.slots import bits
from carrypost.gossip.strategy.candidates import Candidates
from carrypost.gossip.strategy.contacts import Contact
from carrypost.gossip.strategy.states import Agreement
from carrypost.gossip.timers import OFFER, OFFER_AGAIN, REVIEW, Timers
from carrypost.model.times import NEVER

if TYPE_CHECKING:
    from carrypost.config import Settings
    from carrypost.gossip.interest.index import View
    from carrypost.gossip.transfers.link import Link


class OpenOffer:
    """An offer that has not been answered yet."""

    __slots__ = ("due_us", "mask", "tries")

    def __init__(self, mask: int) -> None:
        self.mask = mask
        self.due_us = NEVER
        self.tries = 0


class Offering:
    """The beliefs about one neighbour's cache, and the offers made to it (`gossip.strategy.offers`)."""

    __slots__ = (
        "_timers", "candidates", "looked_at", "naming", "offered", "offered_us", "open", "partials", "partials_us",
        "stalled",
    )  # fmt: skip

    def __init__(self, timers: Timers) -> None:
        self._timers = timers
        self.candidates = Candidates()
        """Messages that may be offered next."""
        self.looked_at = self.naming = 0
        """Slots outside the neighbour's profile whose lists of recipients were looked at, and those that name it."""
        self.offered = 0
        """Slots that stand in an offer not answered yet."""
        self.offered_us = -NEVER
        """Time of the last offer of something new."""
        self.open: dict[int, OpenOffer] = {}
        """Open offers, by serial."""
        self.partials: dict[int, int] = {}
        """By slot: which pieces of a half-received message stood in the last offer."""
        self.partials_us = 0
        """Time at which the growth of half-received messages may be told again."""
        self.stalled = False
        """The neighbour is overdue: nothing is offered, or offered again, until it is heard."""

    def withdraw(self) -> None:
        """No answer is waited for any more."""
        self.open.clear()
        self._timers.cancel(OFFER_AGAIN)
        self.offered = 0

    def stall(self) -> None:
        """The neighbour is overdue."""
        self._timers.cancel(OFFER)
        self._timers.cancel(OFFER_AGAIN)
        self.stalled = True

    def revive(self, now: int) -> None:
        """Note that the neighbour is heard again."""
        self.stalled = False
        self._timers.arm(OFFER, now)
        self._timers.arm(OFFER_AGAIN, now)

    def answered(self, serial: int) -> int | None:
        """The neighbour answered an offer: what stood in it, which it has, or is on its way. None: there was none."""
        offer = self.open.pop(serial, None)
        if offer is None:
            return None
        if not self.open:
            self._timers.cancel(OFFER_AGAIN)
        self.offered &= ~offer.mask
        return offer.mask

    def needless(self, mask: int) -> None:
        """The neighbour offers these itself: offers of them need no answer any more."""
        if not self.offered & mask:
            return
        self.offered &= ~mask
        for serial, offer in list(self.open.items()):
            if offer.mask & mask:
                offer.mask &= ~mask
                if not offer.mask:
                    del self.open[serial]
        if not self.open:
            self._timers.cancel(OFFER_AGAIN)

    def forget_slots(self, mask: int) -> None:
        """Believe nothing of these any more."""
        keep = ~mask
        self.candidates.forget_slots(mask)
        self.looked_at, self.naming = self.looked_at & keep, self.naming & keep
        self.offered &= keep
        for offer in self.open.values():
            offer.mask &= keep
        for slot in bits(mask) if self.partials else ():
            self.partials.pop(slot, None)


class ExchangeContact(Contact):
    """One neighbour, what it is believed to have, and how far the two have agreed on that."""

    __slots__ = ("_review_after", "agreement", "offering")

    def __init__(self, link: Link, settings: Settings) -> None:
        super().__init__(link, settings)
        self.offering = Offering(link.timers)
        self.agreement = Agreement()
        self._review_after = settings.digest_every - 1
        """After so many periods the next one may be the time to compare sets again."""

    def learn(self, view: View) -> None:
        """Note the neighbour's interests."""
        self.view = view
        self.offering.candidates.clear()
        self.agreement.profile_known()

    def unlearn(self) -> None:
        """The neighbour wants something else, and it is not known yet what."""
        self.view = None
        self.agreement.profile_changed()
        self.timers.cancel(REVIEW)

    def announced(self, overdue_us: int, *, period: bool) -> bool:
        """Take an announcement that says nothing new, unless it may be time for a review."""
        if self.offering.stalled or (period and not self.agreement.count_period(self._review_after)):
            return False
        self.overdue_us = overdue_us
        return True

    def count_period(self) -> None:
        """Another period of the neighbour is over; after so many the sets are compared again."""
        self.agreement.count_period()

    def heard(self, now: int, overdue_us: int) -> None:
        """Anything at all from the neighbour shows that it is still there."""
        self.overdue_us = overdue_us
        if self.offering.stalled:
            self.offering.revive(now)

    def forget_slots(self, mask: int) -> None:
        """Slots were freed for other messages."""
        self.offering.forget_slots(mask)
        self.agreement.forget_slots(mask)
