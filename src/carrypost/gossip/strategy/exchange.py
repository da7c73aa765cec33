"""The default strategy: compare the two sets of messages, then offer what the other lacks (JOMS-15 §2.2, figure 3).

Two hosts agree on what each of them lacks (`gossip.strategy.review`). Each offers that (`gossip.strategy.offers`), the
other requests it, and bursts of descriptors and data follow (`gossip.transfers`). Messages gained during the contact
are pushed (`gossip.strategy.fresh`) or offered to all neighbours at once. No belief outlives the next review.
"""

# Where to read on. This class only connects the parts; each part is one module with one job:
#
#     neighbour's profile is known -> meet()     review     what does it lack?       `exchange_machine` has the table
#     review is over               -> OFFER      offers     pages of ids             `candidates` has the order
#     Request comes back           -> serving    bursts of parcels and pieces        `transfers.loss` has the window
#     a new message arrives here   -> gained()   fresh      pushed, or else offered
#
# Why not send every message to every neighbour (epidemic routing)? Contacts are short and radios
# are slow: where two hosts hold 10,000 messages each and one is new, comparing costs some 1,000
# bytes and flooding would cost all of them again. Why not offer everything with each announcement,
# as the papers do? See `paper`, which exists to measure exactly that.

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from carrypost.errors import RemoteError
from carrypost.gossip.strategy.exchange_contact import ExchangeContact
from carrypost.gossip.strategy.exchange_machine import SYNCED
from carrypost.gossip.strategy.fresh import Fresh
from carrypost.gossip.strategy.offers import Offers
from carrypost.gossip.strategy.review import Review
from carrypost.gossip.strategy.sessions import Sessions
from carrypost.gossip.strategy.strategy import Strategy
from carrypost.gossip.timers import OFFER_AGAIN, REVIEW
from carrypost.gossip.wire import frames as fr

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from carrypost.gossip.transfers.arrivals import Arrival
    from carrypost.gossip.transfers.host_context import HostContext
    from carrypost.gossip.transfers.link import Link
    from carrypost.gossip.transfers.removals import Removals
    from carrypost.gossip.transfers.transfers import Transfers


class Exchange(Strategy[ExchangeContact]):
    """The strategy that opens a contact with a review, then offers what is new."""

    contact = ExchangeContact

    def __init__(self, context: HostContext, transfers: Transfers, departures: Removals) -> None:
        super().__init__(context, transfers, departures)
        self.review = Review(context, departures)
        self.sessions = Sessions(context, transfers.server, departures, self.review, self)
        self.offers = Offers(context, transfers, self.contacts, self)
        self.fresh = Fresh(context, transfers.pushes, self.contacts, self.offers, on=not self.unicast)
        handlers = context.links.handlers
        handlers[fr.Digest] = self._over_contact(self.review.receive)
        handlers[fr.Summary] = self._over_contact(self.sessions.receive_summary)
        handlers[fr.Missing] = self._over_contact(self.sessions.receive_missing)

    def meet(self, contact: ExchangeContact, now: int) -> None:
        """Compare the two sets, if this node has the smaller id; otherwise wait for the neighbour to begin."""
        if contact.link.is_old:
            self.compare(contact, now)
        else:
            self.review.begin(contact, now)

    def compare(self, contact: ExchangeContact, now: int) -> None:
        """Find out what the neighbour lacks, for the first time or again. Charters, which are few, are all offered."""
        if contact.link.is_old:
            self.review.conclude(contact, now)
        else:
            self.review.ask(contact, now)

    def stale(self, contact: ExchangeContact, now: int) -> bool:
        """Return True if offers are paused, or a comparison is due again because beliefs go stale."""
        return contact.offers.stalled or (contact.machine.state in SYNCED and self.review.due(contact, now))

    def announced_receipts(self, link: Link, receipts: tuple[fr.Receipt, ...], now: int) -> bool:
        """Offer again the messages that were pushed and did not arrive."""
        changed = super().announced_receipts(link, receipts, now)
        if changed and (contact := self.contacts.of(link)) is not None:
            self.fresh.offer_lost(contact, now)
        return changed

    def gained(self, now: int, *, fresh: Sequence[Arrival] = (), own: bool = False, partial: bool = False) -> None:
        """Push new messages to neighbours that want them and get them from no other; offer them to the rest soon."""
        others = self.fresh.push(fresh, now) if fresh and self.fresh.on else self.contacts.all
        self.offers.gained(others, now, own=own, partial=partial)

    def offer(self, now: int) -> None:
        """Make the offers that are due."""
        self.offers.flush(now)

    def repeat(self, link: Link, now: int) -> None:
        """Repeat whatever was lost: transfer frames, offers, requests, a review."""
        super().repeat(link, now)
        contact, due = self.contacts.of(link), link.timers.due
        if contact is not None and due[OFFER_AGAIN] <= now:
            self.offers.repeat(contact, now)
        if contact is not None and due[REVIEW] <= now:
            self.compare(contact, now)

    def receive_request(self, link: Link, frame: fr.Request, now: int) -> None:
        """Serve a request, and note that the neighbour has the offered messages or is about to."""
        # A link without a contact belongs to another layer, such as a route over several hops.
        # Nothing is believed about its other end, but its requests are served like any other.
        contact = self.contacts.of(link)
        if contact is None:
            super().receive_request(link, frame, now)
        else:
            self.offers.receive_request(contact, frame, now)

    def receive_offer(self, link: Link, frame: fr.Offer, now: int) -> None:
        """Handle an offer. Where both sides offered the same message, either offer answers the other."""
        contact = self.contacts.of(link)
        if contact is None:
            super().receive_offer(link, frame, now)
            return
        offering = contact.offers
        waiting = bool(offering.open)
        held = self.transfers.requests.receive_offer(link, frame, now, offered=offering.offered)
        offering.needless(held)
        # Offers that crossed leave nothing open: whatever had to wait for their answers goes out
        # now instead of at the next announcement.
        if waiting and not offering.open:
            self.offers.all_answered(contact, now)

    def receive_ack(self, link: Link, frame: fr.Ack, now: int) -> None:
        """Mark frames as arrived, and offer more once all of them have."""
        super().receive_ack(link, frame, now)
        contact = self.contacts.of(link)
        if contact is not None:
            self.fresh.offer_lost(contact, now)
            self.offers.acknowledged(contact, now)

    def _over_contact(self, handle: Callable[[ExchangeContact, Any, int], None]) -> Callable[[Link, Any, int], None]:
        """Return a handler of frames from contacts; a frame over any other link is refused as `not-linked`."""

        def handler(link: Link, frame: fr.Frame, now: int) -> None:
            contact = self.contacts.of(link)
            if contact is None:
                raise RemoteError("not-linked")
            handle(contact, frame, now)

        return handler
