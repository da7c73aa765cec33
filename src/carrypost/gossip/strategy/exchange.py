"""The default strategy, and two derived from it: the papers' one for comparison, and the base of routing strategies.

In an `Exchange` two hosts compare their sets of messages, then each offers what the other lacks (JOMS-15 §2.2,
figure 3). They agree on what each of them lacks (`gossip.strategy.review`). Each offers that
(`gossip.strategy.offers`), the other requests it, and bursts of descriptors and data follow (`gossip.transfers`).
Messages gained during the contact are pushed (`Fresh`) or offered to all neighbours at once. No belief outlives the
next review.

`Paper` is the papers' strategy (`paper_mode`): everything that matches is offered with each announcement. Announcements
come at a fixed period, nothing is compared or coalesced, an offer is repeated by the next announcement, and each
message is acknowledged before the next one is sent (JOMS-15 §2.2, figure 3).

`Routed` is the base of routing strategies, which studies of opportunistic networks compare with epidemic routing. A
host carries every message, and `relay` decides which of them a neighbour gets to carry, too. What is for the neighbour
itself always goes to it. Messages go to one neighbour at a time. No acknowledgements spread: a host keeps its copy of a
message that arrived at its recipient until it expires or makes room, as in the papers and in The ONE. A recipient drops
its own copy once its program has the message. State of routing strategies is not stored. So they are for emulation;
real nodes refuse them.
"""

# Where to read on. `Exchange` only connects the parts; each of them has one job:
#
#     neighbour's profile is known -> meet()     review     what does it lack?       `ExchangeMachine` has the table
#     review is over               -> OFFER      offers     pages of ids             `Candidates` has the order
#     Request comes back           -> serving    bursts of parcels and pieces        `transfers.loss` has the window
#     a new message arrives here   -> gained()   offers     pushed, or else offered
#
# Why not send every message to every neighbour (epidemic routing)? Contacts are short and radios
# are slow: where two hosts hold 10,000 messages each and one is new, comparing costs some 1,000
# bytes and flooding would cost all of them again. Why not offer everything with each announcement,
# as the papers do? See `Paper`, which exists to measure exactly that.

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from carrypost.errors import RemoteError
from carrypost.gossip.holdings.eviction import FIRST_IN_FIRST_OUT, Ranking
from carrypost.gossip.strategy.exchange_contact import SYNCED, ExchangeContact
from carrypost.gossip.strategy.lists import Sessions
from carrypost.gossip.strategy.offers import Fresh, Offers
from carrypost.gossip.strategy.review import Review
from carrypost.gossip.strategy.strategy import Strategy
from carrypost.gossip.timers import OFFER_AGAIN, REVIEW
from carrypost.gossip.transfers.arrivals_and_removals import strike
from carrypost.gossip.wire import frames as fr
from carrypost.log.events import Reason
from carrypost.model.times import NEVER

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from carrypost.gossip.strategy.exchange_contact import OpenOffer
    from carrypost.gossip.transfers.arrivals_and_removals import Arrival, Removals
    from carrypost.gossip.transfers.link import HostContext, Link
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
            if self.fresh.on:
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

    def reconsider(self) -> None:
        """Look again at all messages that `relay` looks at once for each neighbour (`OffersMade.carried`)."""
        for contact in self.contacts.all:
            contact.offers.carried.forget_slots(-1)

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
