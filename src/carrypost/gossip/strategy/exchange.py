"""Our strategy: the two compare what each of them has, then offer what the other lacks (JOMS-15 §2.2, figure 3).

The two agree on what each of them lacks (`gossip.strategy.review`), then each offers that (`gossip.strategy.offers`),
the other requests it, and bursts of descriptors and data come back (`gossip.transfers`). What is gained on the way is
pushed (`gossip.strategy.fresh`), or offered to all neighbours at once. Nothing is believed for longer than until the
next review.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from carrypost.errors import RemoteError
from carrypost.gossip.strategy.beliefs import ExchangeContact
from carrypost.gossip.strategy.fresh import Fresh
from carrypost.gossip.strategy.offers import Offers
from carrypost.gossip.strategy.review import Review
from carrypost.gossip.strategy.sessions import Sessions
from carrypost.gossip.strategy.states import SYNCED
from carrypost.gossip.strategy.strategy import Strategy
from carrypost.gossip.timers import OFFER_AGAIN, REVIEW
from carrypost.gossip.wire import frames as fr

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from carrypost.gossip.transfers.departures import Departures
    from carrypost.gossip.transfers.ground import Ground
    from carrypost.gossip.transfers.link import Link
    from carrypost.gossip.transfers.receptions import Arrival
    from carrypost.gossip.transfers.transfers import Transfers


class Exchange(Strategy[ExchangeContact]):
    """Reviews, then increments."""

    contact = ExchangeContact

    def __init__(self, ground: Ground, transfers: Transfers, departures: Departures) -> None:
        super().__init__(ground, transfers, departures)
        self.review = Review(ground, departures)
        self.sessions = Sessions(ground, transfers.serving, departures, self.review)
        self.offers = Offers(ground, transfers, self.contacts)
        self.fresh = Fresh(ground, transfers.pushes, self.contacts, self.offers)
        handlers = ground.links.handlers
        handlers[fr.Digest] = self._take(self.review.take)
        handlers[fr.Summary] = self._take(self.sessions.take_summary)
        handlers[fr.Missing] = self._take(self.sessions.take_missing)

    def meet(self, contact: ExchangeContact, now: int) -> None:
        """Compare the two sets: the smaller id begins."""
        self.review.begin(contact, now)

    def compare(self, contact: ExchangeContact, now: int) -> None:
        """Find out what the neighbour lacks, for the first time or again."""
        self.review.ask(contact, now)

    def stale(self, contact: ExchangeContact, now: int) -> bool:
        """Compare the sets again every so many announcements: beliefs go stale."""
        return contact.offering.stalled or (contact.agreement.state in SYNCED and self.review.due(contact, now))

    def announced_receipts(self, link: Link, receipts: tuple[fr.Receipt, ...], now: int) -> bool:
        """Offer what was pushed and did not come."""
        changed = self.transfers.pushes.announced(link, receipts, now)
        if changed and (contact := self.contacts.of(link)) is not None:
            self.fresh.offer_lost(contact, now)
        return changed

    def gained(self, now: int, *, fresh: Sequence[Arrival] = (), own: bool = False, partial: bool = False) -> None:
        """Send it unasked to those who have agreed and are sent it by nobody else, and offer it to the others soon."""
        others = self.fresh.push(fresh, now) if fresh and self.fresh.on else self.contacts.all
        self.offers.gained(others, now, own=own, partial=partial)

    def offer(self, now: int) -> None:
        """Make the offers that are due."""
        self.offers.flush(now)

    def repeat(self, link: Link, now: int) -> None:
        """Do again what was lost: transfer frames, offers, requests, a review."""
        super().repeat(link, now)
        contact, due = self.contacts.of(link), link.timers.due
        if contact is not None and due[OFFER_AGAIN] <= now:
            self.offers.repeat(contact, now)
        if contact is not None and due[REVIEW] <= now:
            self.compare(contact, now)

    def take_request(self, link: Link, frame: fr.Request, now: int) -> None:
        """Serve it; what it answers is believed to be known to the neighbour, or on its way."""
        contact = self.contacts.of(link)
        if contact is None:
            super().take_request(link, frame, now)
        else:
            self.offers.take_request(contact, frame, now)

    def take_offer(self, link: Link, frame: fr.Offer, now: int) -> None:
        """Note what the neighbour has; where the two offered each other the same, either offer answers the other."""
        contact = self.contacts.of(link)
        if contact is None:
            super().take_offer(link, frame, now)
            return
        offering = contact.offering
        waiting = bool(offering.open)
        taken = self.transfers.requests.take_offer(link, frame, now, offered=offering.offered)
        offering.needless(taken)
        if waiting and not offering.open:
            self.offers.all_answered(contact, now)

    def take_ack(self, link: Link, frame: fr.Ack, now: int) -> None:
        """Note what went through, and offer more once all of it has."""
        super().take_ack(link, frame, now)
        contact = self.contacts.of(link)
        if contact is not None:
            self.fresh.offer_lost(contact, now)
            self.offers.acknowledged(contact, now)

    def _take(self, take: Callable[[ExchangeContact, Any, int], None]) -> Callable[[Link, Any, int], None]:
        """Return what takes a frame over a link: by its contact, or, if there is none, not at all."""

        def taken(link: Link, frame: fr.Frame, now: int) -> None:
            contact = self.contacts.of(link)
            if contact is None:
                raise RemoteError("not-linked")
            take(contact, frame, now)

        return taken
