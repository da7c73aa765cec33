"""The base of strategies: a strategy decides what a contact begins with and what is offered.

A strategy is told when a contact begins, when it is known what the neighbour wants, when something new is here, when
this host announced itself and when a contact is over; at the end of a step it makes its offers. By itself it takes
offers, serves requests and takes acknowledgements, over any link, be there a contact or not. What a strategy does
beyond that it brings along: its contacts, its timers, and what takes frames of other kinds (`Links.handlers`). One that
answers `Digest` gets along with neighbours that compare sets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Generic

from carrypost.gossip.holdings.ranking import INTEREST_FIRST, Ranking
from carrypost.gossip.strategy.contacts import C, Contacts
from carrypost.gossip.timers import ACKNOWLEDGE, OFFER
from carrypost.gossip.transfers.receptions import Arrival
from carrypost.gossip.wire import frames as fr

if TYPE_CHECKING:
    from collections.abc import Sequence

    from carrypost.gossip.holdings.copies import Copy
    from carrypost.gossip.interest.index import View
    from carrypost.gossip.transfers.departures import Departures
    from carrypost.gossip.transfers.ground import Ground
    from carrypost.gossip.transfers.link import Link
    from carrypost.gossip.transfers.receptions import News
    from carrypost.gossip.transfers.transfers import Transfers


class Strategy(Generic[C]):
    """The deciding half of one host's contacts. By itself it offers nothing."""

    contact: type[C]
    """Memory of one neighbour."""
    fixed_period: ClassVar = False
    """Announcements come at a fixed period, as in the papers."""
    stop_and_wait: ClassVar = False
    """Each message is acknowledged before the next is sent, as in the papers."""
    carries_everything: ClassVar = False
    """A host takes along whatever a neighbour has, whoever it is for."""
    ranking: ClassVar[Ranking] = INTEREST_FIRST
    """The order in which copies give way where the cache is full."""

    def __init__(self, ground: Ground, transfers: Transfers, departures: Departures) -> None:  # noqa: ARG002 - for others
        self.ground = ground
        self.transfers = transfers
        self.contacts: Contacts[C] = Contacts(ground.links)
        self._cache, self._links = ground.holdings.cache, ground.links
        self._links.handlers.update({fr.Offer: self.take_offer, fr.Ack: self.take_ack})

    # --- contacts ------------------------------------------------------------------------------------------

    def begin(self, link: Link) -> C:
        """Messages may be exchanged over a link; what the neighbour wants is not known yet."""
        contact = self.contact(link, self.ground.settings)
        self.contacts.begin(contact)
        return contact

    def learn(self, contact: C, view: View, now: int) -> None:
        """The neighbour's profile is known."""
        contact.learn(view)
        self.meet(contact, now)

    def end(self, contact: C, now: int) -> None:
        """The contact is over."""
        self.contacts.end(contact)
        self.transfers.end(contact.link, now)

    # --- what a strategy decides ---------------------------------------------------------------------------

    def meet(self, contact: C, now: int) -> None:
        """Begin a contact, and begin it anew when the neighbour's interests change."""

    def stale(self, contact: C, now: int) -> bool:  # noqa: ARG002 - others look at the time
        """An announcement of the neighbour says nothing new. Returns True if something has to be done all the same."""
        return False

    def announced_receipts(self, link: Link, receipts: tuple[fr.Receipt, ...], now: int) -> bool:
        """The other side announces which unasked Parcels came. Returns True if the step has to be finished for that."""
        return self.transfers.pushes.announced(link, receipts, now)

    def gained(self, now: int, *, fresh: Sequence[Arrival] = (), own: bool = False, partial: bool = False) -> None:
        """Something new is here: published (`own`), received, or only a piece of something (`partial`).

        `fresh`: all of it, where it is few messages.
        """

    def announced(self, now: int) -> bool:  # noqa: ARG002 - others offer then
        """Note that this host announced itself to everybody. Returns True if the step has to be finished for that."""
        return False

    def offer(self, now: int) -> None:
        """Make the offers that are due."""

    def repeat(self, link: Link, now: int) -> None:
        """Something is due on a link: do again what was lost."""
        self.transfers.repeat(link, now)

    def take_request(self, link: Link, frame: fr.Request, now: int) -> None:
        """The other side asks this host for something."""
        contact = self.contacts.of(link)
        self.transfers.serving.serve(link, frame, None if contact is None else contact.view, now, answers=False)

    def take_offer(self, link: Link, frame: fr.Offer, now: int) -> None:
        """The other side offers something."""
        self.transfers.requests.take_offer(link, frame, now, offered=0)

    def take_ack(self, link: Link, frame: fr.Ack, now: int) -> None:
        """The other side has these in memory."""
        self.transfers.serving.acknowledge(link, frame, now)

    # --- what happens --------------------------------------------------------------------------------------

    def news(self, now: int, news: News) -> None:
        """Messages became whole, or others got another piece."""
        if news.whole:
            self.gained(now, fresh=news.fresh)
        if news.grown:
            self.gained(now, partial=True)

    def published(self, copies: Sequence[Copy], now: int) -> None:
        """Messages of this node may leave from now on."""
        self.gained(now, fresh=[Arrival(copy, None, None) for copy in copies], own=True)

    def tick(self, now: int) -> None:
        """Do what is due on the links."""
        self.transfers.second_look.tick(now)
        for link in self._links.usable:
            if min(link.timers.due) <= now:
                self.repeat(link, now)

    def flush(self, now: int, link: Link | None) -> None:
        """End a step that was with one link, or (None) may concern all: answer, acknowledge, offer, send.

        Most of what a host hears concerns one link alone, and nothing is due on the others. Then they are not looked
        at: among hundreds of neighbours that look took longer than everything else.
        """
        transfers = self.transfers
        if self._cache.memories.loosened:
            transfers.second_look.room_appeared(now)
        offers = sends = False
        for each in self._concerned(link, now):
            inbox, due = each.inbox, each.timers.due
            if inbox.answers or inbox.fresh or due[ACKNOWLEDGE] <= now:
                transfers.requests.flush(each, now)
            if due[OFFER] <= now:
                offers = True
            if each.outbox.jobs:
                sends = True
        if offers:
            self.offer(now)
        if sends:
            transfers.flush(now)

    def _concerned(self, link: Link | None, now: int) -> list[Link]:
        """The links that something may have to be sent over at the end of a step."""
        links, wants = self._links, self.transfers.wants
        everywhere = link is None
        if wants.orphaned:
            wants.adopt_orphans()
            everywhere = True
        if links.stirred:
            everywhere = True
            for each in links.settle():
                if not each.usable:
                    self.transfers.end(each, now)
        if link is None or everywhere or links.schedule.due_elsewhere(link.timers if link.usable else None, now):
            return links.usable
        return [link] if link.usable else []
