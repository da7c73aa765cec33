"""What every strategy is: it decides what a contact begins with and what is offered; `gossip.transfers` moves it.

A strategy is told when a contact begins, when it is known what the neighbour wants, when something new is here, when
this host announced itself and when a contact is over; at the end of a step it makes its offers. It answers what
neighbours with other strategies send: everybody takes offers, serves requests, and compares sets when asked to. So a
strategy overrides what it wants to do differently, and hosts with different ones get along in one network.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from carrypost.gossip.strategy.beliefs import Contact, Contacts
from carrypost.gossip.strategy.review import Review
from carrypost.gossip.timers import ACKNOWLEDGE, OFFER
from carrypost.gossip.wire import frames as fr

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from carrypost.gossip.interest.index import View
    from carrypost.gossip.transfers.departures import Departures
    from carrypost.gossip.transfers.ground import Ground
    from carrypost.gossip.transfers.link import Link
    from carrypost.gossip.transfers.transfers import Transfers
    from carrypost.model.ids import MessageId
    from carrypost.model.pattern import Entry


class Strategy:
    """The deciding half of one host's contacts. By itself it offers nothing."""

    fixed_period: ClassVar = False
    """Announcements come at a fixed period, as in the papers."""
    stop_and_wait: ClassVar = False
    """Each message is acknowledged before the next is sent, as in the papers."""

    def __init__(self, ground: Ground, transfers: Transfers, departures: Departures) -> None:
        self.ground = ground
        self.transfers = transfers
        self.contacts = Contacts(ground.links, ground.settings)
        self.review = Review(ground, departures)
        self._cache = ground.holdings.cache
        self._schedule = ground.links.schedule
        self.handlers: dict[type, Callable[..., None]] = {
            fr.Digest: self.review.take,
            fr.Offer: self.take_offer,
            fr.Ack: self.take_ack,
        }
        """Kinds of frames that are taken as they come, each with the contact that it came by."""

    def close(self) -> None:
        """The host is done with it."""
        self.handlers.clear()
        self.transfers.handlers.clear()

    # --- contacts ------------------------------------------------------------------------------------------

    def begin(self, link: Link) -> Contact:
        """Messages may be exchanged over a link; what the neighbour wants is not known yet."""
        return self.contacts.begin(link)

    def learn(self, contact: Contact, view: View, now: int) -> None:
        """The neighbour's profile is known."""
        contact.learn(view)
        self.meet(contact, now)

    def unlearn(self, contact: Contact) -> None:
        """The neighbour wants something else, and it is not known yet what."""
        contact.unlearn()

    def end(self, contact: Contact, now: int) -> None:
        """The contact is over."""
        self.contacts.end(contact)
        self.transfers.end(contact.link, now)

    # --- what a strategy decides ---------------------------------------------------------------------------

    def meet(self, contact: Contact, now: int) -> None:
        """What a contact begins with, and begins anew with when the neighbour wants something else."""
        self.review.conclude(contact, now)

    def stale(self, contact: Contact, now: int) -> bool:  # noqa: ARG002 - others look at the time
        """An announcement of the neighbour says nothing new. Returns True if something has to be done all the same."""
        return contact.offering.stalled

    def gained(self, now: int, *, own: bool = False, partial: bool = False) -> None:
        """Something new is here: published (`own`), received, or only a piece of something (`partial`)."""

    def announced(self, now: int) -> bool:  # noqa: ARG002 - others offer then
        """This host announced itself to everybody. Returns True if the step has to be finished for that."""
        return False

    def offer(self, now: int) -> None:
        """Make the offers that are due."""

    def repeat(self, contact: Contact, now: int) -> None:
        """Something is due on a contact: do again what was lost."""
        self.transfers.repeat(contact.link, now)

    def take_request(self, contact: Contact, frame: fr.Request, now: int) -> None:
        """The neighbour asks this host for something."""
        self.transfers.serving.serve(contact.link, frame, contact.view, now, answers=False)

    def take_offer(self, contact: Contact, frame: fr.Offer, now: int) -> None:
        """The neighbour offers something."""
        self.transfers.requests.take_offer(contact.link, frame, now, offered=0)

    def take_ack(self, contact: Contact, frame: fr.Ack, now: int) -> None:
        """The neighbour has these in memory."""
        self.transfers.serving.acknowledge(contact.link, frame, now)

    # --- what happens --------------------------------------------------------------------------------------

    def news(self, now: int, whole: bool, grown: bool) -> None:
        """Messages became whole, or others got another piece."""
        if whole:
            self.gained(now)
        if grown:
            self.gained(now, partial=True)

    def interests_changed(self, entries: Sequence[Entry]) -> None:
        """These came or went: what was of no interest may be now."""
        self.transfers.interests_changed(entries)

    def look_again(self, messages: Collection[MessageId], now: int) -> None:
        """More is wanted than before, and no neighbour is told: these, and perhaps others that they offered."""
        self.transfers.look_again(messages, now)

    def room_appeared(self, now: int) -> None:
        """There may be room for something that was declined."""
        self.transfers.room_appeared(now)

    def tick(self, now: int) -> None:
        """Do what is due on the contacts."""
        self.transfers.look(now)
        for contact in list(self.contacts.all):
            if min(contact.timers.due) <= now:
                self.repeat(contact, now)

    def flush(self, now: int, contact: Contact | None, *, everybody: bool) -> None:
        """The end of a step with one contact, or none: answer, acknowledge, offer, send.

        Most of what a host hears concerns one link alone, and nothing is due on the others. Then they are not looked
        at: among hundreds of neighbours that look took longer than everything else.
        """
        if self._cache.loosened:
            self.room_appeared(now)
        if self.transfers.wants.orphaned and self.transfers.adopt_orphans():
            everybody = True
        own = None if contact is None else contact.timers
        if everybody or self._schedule.due_elsewhere(own, now):
            contacts = self.contacts.all
        else:
            contacts = [] if contact is None else [contact]
        offers = sends = False
        for each in contacts:
            link, due = each.link, each.timers.due
            inbox = link.inbox
            if inbox.answers or inbox.fresh or due[ACKNOWLEDGE] <= now:
                self.transfers.requests.flush(link, now)
            if due[OFFER] <= now:
                offers = True
            if link.outbox.jobs:
                sends = True
        if offers:
            self.offer(now)
        if sends:
            self.transfers.flush(now)
