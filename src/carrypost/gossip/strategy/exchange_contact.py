"""Beliefs about a neighbour's cache, and the offers made to it.

The strategies `exchange` and `paper` remember this of a contact. No belief outlives the next review: a neighbour may
evict a message at any time, and does not report it to this host.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from carrypost.gossip.slots import bits
from carrypost.gossip.strategy.candidates import Candidates
from carrypost.gossip.strategy.contacts import Contact
from carrypost.gossip.strategy.exchange_machine import ExchangeMachine
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


class OffersMade:
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
        """Slots outside the neighbour's profile whose recipient lists were read, and those of them that name the
        neighbour."""
        self.offered = 0
        """Slots in offers without an answer yet."""
        self.offered_us = -NEVER
        """Time of the last offer of something new."""
        self.open: dict[int, OpenOffer] = {}
        """Open offers, by serial."""
        self.partials: dict[int, int] = {}
        """By slot: the pieces of a half-received message that the last offer listed."""
        self.partials_us = 0
        """Earliest time to report again that a half-received message has grown."""
        self.stalled = False
        """True while the neighbour is overdue: nothing is offered, or offered again, until it is heard."""

    def withdraw(self) -> None:
        """Forget all open offers."""
        self.open.clear()
        self._timers.cancel(OFFER_AGAIN)
        self.offered = 0

    def stall(self) -> None:
        """Pause offers, because the neighbour is overdue."""
        self._timers.cancel(OFFER)
        self._timers.cancel(OFFER_AGAIN)
        self.stalled = True

    def revive(self, now: int) -> None:
        """Resume offers, because the neighbour was heard again."""
        self.stalled = False
        self._timers.arm(OFFER, now)
        self._timers.arm(OFFER_AGAIN, now)

    def answered(self, serial: int) -> int | None:
        """Close an offer that the neighbour answered, and return its slots; None if no such offer is open.

        The neighbour has these messages, or they are on their way to it.
        """
        offer = self.open.pop(serial, None)
        if offer is None:
            return None
        if not self.open:
            self._timers.cancel(OFFER_AGAIN)
        self.offered &= ~offer.mask
        return offer.mask

    def needless(self, mask: int) -> None:
        """Remove slots from open offers, because the neighbour offered the same messages itself."""
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
        """Drop every belief about these slots."""
        keep = ~mask
        self.candidates.forget_slots(mask)
        self.looked_at, self.naming = self.looked_at & keep, self.naming & keep
        self.offered &= keep
        for offer in self.open.values():
            offer.mask &= keep
        for slot in bits(mask) if self.partials else ():
            self.partials.pop(slot, None)


class ExchangeContact(Contact):
    """One neighbour, the messages that it is believed to have, and the state of the comparison with it."""

    __slots__ = ("_review_after", "machine", "offers")

    def __init__(self, link: Link, settings: Settings) -> None:
        super().__init__(link, settings)
        self.offers = OffersMade(link.timers)
        self.machine = ExchangeMachine()
        self._review_after = settings.digest_every - 1
        """Number of periods after which the next one may be due for a comparison."""

    def learn(self, view: View) -> None:
        """Note the neighbour's interests."""
        self.view = view
        self.offers.candidates.clear()
        self.machine.profile_known()

    def unlearn(self) -> None:
        """Drop the neighbour's profile, which it has replaced by one not known yet."""
        self.view = None
        self.machine.profile_changed()
        self.timers.cancel(REVIEW)

    def announced(self, overdue_us: int, *, period: bool) -> bool:
        """Count an announcement that says nothing new; return False if a review may be due."""
        if self.offers.stalled or (period and not self.machine.count_period(self._review_after)):
            return False
        self.overdue_us = overdue_us
        return True

    def count_period(self) -> None:
        """Count a period of the neighbour; after `digest_every` of them the sets are compared again."""
        self.machine.count_period()

    def heard(self, now: int, overdue_us: int) -> None:
        """Note that the neighbour is still there."""
        self.overdue_us = overdue_us
        if self.offers.stalled:
            self.offers.revive(now)

    def forget_slots(self, mask: int) -> None:
        """Drop every belief about slots that were freed for other messages."""
        self.offers.forget_slots(mask)
        self.machine.forget_slots(mask)
