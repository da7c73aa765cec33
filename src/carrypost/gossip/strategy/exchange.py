"""A contact between two hosts, from the first review to the last acknowledgement (JOMS-15 §2.2, figure 3).

The two agree on what each of them lacks (`gossip.strategy.review`), then each offers that (`gossip.strategy.offers`),
the other requests it (`gossip.transfers.requests`), and bursts of descriptors and data come back
(`gossip.transfers.transfer`, `gossip.transfers.inbound`), acknowledged cumulatively. What is gained on the way is
offered to all neighbours at once. Both directions run side by side, with several neighbours at the same time.
Everything is soft state: a lost offer, request or acknowledgement costs a timeout, a lost neighbour costs nothing, and
nothing is believed for longer than until the next review.

`paper_mode` offers everything that matches with every announcement instead, as the papers do.

This module only joins the parts; another strategy of exchange would stand in its place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from carrypost.gossip.strategy.beliefs import Contacts
from carrypost.gossip.strategy.offers import Offers
from carrypost.gossip.strategy.review import Review
from carrypost.gossip.transfers.declined import Declined
from carrypost.gossip.transfers.inbound import Inbound
from carrypost.gossip.transfers.parcels import Parcels
from carrypost.gossip.transfers.requests import Requests
from carrypost.gossip.transfers.serving import Serving
from carrypost.gossip.transfers.transfer import Transfer
from carrypost.gossip.transfers.wants import Wants
from carrypost.gossip.wire import frames as fr
from carrypost.model.times import NEVER

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from random import Random

    from carrypost.gossip.interest.index import View
    from carrypost.gossip.strategy.beliefs import Contact
    from carrypost.gossip.transfers.departures import Departures
    from carrypost.gossip.transfers.ground import Ground
    from carrypost.gossip.transfers.link import Link
    from carrypost.gossip.transfers.receptions import Receptions
    from carrypost.model.pattern import Entry


class Exchange:
    """The exchange of one host with all its neighbours."""

    def __init__(self, ground: Ground, receptions: Receptions, departures: Departures, rng: Random) -> None:
        self._cache, self._links = ground.holdings.cache, ground.links
        self._contacts = Contacts(ground.links, ground.settings)
        self._wants = Wants(ground)
        self._inbound = Inbound(ground, self._wants, receptions)
        self._parcels = Parcels(ground, self._wants, self._inbound, receptions)
        self._transfer = Transfer(ground, rng)
        self._offers = Offers(ground, self._wants, Serving(ground, self._transfer), self._contacts)
        self._declined = Declined(ground, self._wants)
        self._requests = Requests(ground, self._wants, self._declined)
        self._review = Review(ground, departures)
        self._quiet_us = 0
        """Until then no link has anything to settle but for what comes from it. 0: that is not known."""
        self.handlers: dict[type, Callable[..., None]] = {
            fr.Digest: self._digest,
            fr.Offer: self._offer,
            fr.WholeDescriptor: self._descriptor,
            fr.DescriptorPart: self._descriptor,
            fr.HashList: self._hash_list,
            fr.Data: self._data,
            fr.BlankData: self._data,
            fr.Ack: self._ack,
        }
        """Kinds of frames that are taken from a usable link as they come."""

    @property
    def look_us(self) -> int:
        """When to look again at what was declined: due on no link in particular."""
        return self._declined.due_us

    def close(self) -> None:
        """The host is done with it."""
        self.handlers.clear()

    def request(self, link: Link, frame: fr.Request, now: int) -> None:
        """The neighbour asks for something."""
        self._offers.take_request(self._contacts.of(link), frame, now)

    def begin(self, link: Link) -> Contact:
        """Messages may be exchanged over a link; what the neighbour wants is not known yet."""
        return self._contacts.begin(link)

    def learn(self, contact: Contact, view: View, now: int) -> None:
        """The neighbour's profile is known: compare what there is for it."""
        contact.learn(view)
        self._review.begin(contact, now)
        self._quiet_us = min(self._quiet_us, contact.offering.due_us)

    def unlearn(self, contact: Contact) -> None:
        """The neighbour wants something else, and it is not known yet what."""
        contact.learn(None)

    def review_due(self, contact: Contact, now: int) -> bool:
        """An announcement says nothing new: whether something has to be done all the same."""
        return contact.offering.stalled or (contact.agreement.synced and self._review.due(contact, now))

    def end(self, contact: Contact, now: int) -> None:
        """The contact is over."""
        self._quiet_us = 0
        link = contact.link
        self._contacts.end(contact)
        others = self._wants.alternatives(link)
        self._inbound.drop_link(link)
        link.clear()
        self._requests.released(others, now)

    def gained(self, now: int, *, own: bool = False, partial: bool = False) -> None:
        """Something new is here: published, received, or only a piece of something."""
        self._quiet_us = 0
        self._offers.gained(now, own=own, partial=partial)

    def news(self, now: int, whole: bool, grown: bool) -> None:
        """Messages became whole, or others got another piece."""
        if whole:
            self.gained(now)
        if grown:
            self.gained(now, partial=True)

    def interests_changed(self, entries: Sequence[Entry]) -> None:
        """These came or went: what was of no interest may be now."""
        self._quiet_us = 0
        self._inbound.interests_changed(entries)

    def room_appeared(self, now: int) -> None:
        """There may be room for something that was declined."""
        self._quiet_us = 0
        self._declined.room_appeared(now)

    def announced(self, now: int) -> None:
        """`paper_mode`: an announcement of this host went out."""
        self._offers.offer_everything(now)

    def tick(self, now: int) -> None:
        """Do what is due on the links."""
        if self._declined.due_us <= now:
            self._declined.look(now)
        for contact in list(self._contacts.all):
            if contact.due_us() <= now:
                self._offers.tick(contact, now)
                self._requests.tick(contact.link, now)
                if contact.agreement.due_us <= now:
                    self._review.ask(contact, now)

    def settle(self, now: int, contact: Contact | None, *, everybody: bool) -> None:
        """The end of a step with one contact, or none: answer, acknowledge, offer, send.

        Most of what a host hears concerns one link alone, and nothing is due on the others. Then they are not looked
        at: among hundreds of neighbours that look took longer than everything else.
        """
        if self._cache.loosened:
            self.room_appeared(now)
        if self._wants.orphaned:
            self._quiet_us = 0
            for other, handle in self._wants.orphans():
                other.inbox.fresh.append(handle)
        if everybody or self._quiet_us <= now:
            contacts, self._quiet_us = self._contacts.all, NEVER
        else:
            contacts = [] if contact is None else [contact]
        offers, sends = self._answer(contacts, now)
        if offers:
            self._offers.settle(now)
            self._quiet_us = min(self._quiet_us, *[each.offering.due_us for each in contacts])
        if sends:
            self._transfer.flush(self._links.usable, now)

    def _answer(self, contacts: list[Contact], now: int) -> tuple[bool, bool]:
        """Answer and acknowledge. Whether there is something to offer to somebody, and something to send."""
        offers = sends = False
        quiet_us = self._quiet_us
        for contact in contacts:
            link, due_us = contact.link, contact.offering.due_us
            inbox, outbox = link.inbox, link.outbox
            if inbox.answers or inbox.fresh or inbox.ack_due_us <= now:
                self._requests.settle(link, now)
            # By comparisons: this is done after every step.
            if due_us <= now:
                offers = True
            elif due_us < quiet_us:
                quiet_us = due_us
            if outbox.jobs:
                sends = True
            if inbox.ack_due_us < quiet_us:
                quiet_us = inbox.ack_due_us
            if outbox.wait_us < quiet_us:
                quiet_us = outbox.wait_us
        self._quiet_us = quiet_us
        return offers, sends

    def parcels(self, link: Link, frames: Sequence[fr.OpenParcel], now: int) -> None:
        """Small messages came, each of them whole."""
        serials = self._parcels.take(link, frames, now)
        # Several bursts may come together, or the end of one first.
        last = frames[-1].last or any(frame.last for frame in frames)
        if serials:
            self._requests.all_arrived(link, serials, now, last=last)
        elif last:
            link.inbox.ack_due_us = now

    def _offer(self, link: Link, frame: fr.Offer, now: int) -> None:
        contact = self._contacts.of(link)
        offering = contact.offering
        waiting = bool(offering.open)
        offering.needless(self._requests.take_offer(link, frame, now, offered=offering.offered))
        if waiting and not offering.open:
            self._offers.all_answered(contact, now)

    def _digest(self, link: Link, frame: fr.Digest, now: int) -> None:
        self._review.take(self._contacts.of(link), frame, now)

    def _ack(self, link: Link, frame: fr.Ack, now: int) -> None:
        self._offers.take_ack(self._contacts.of(link), frame, now)

    def _descriptor(self, link: Link, frame: fr.WholeDescriptor | fr.DescriptorPart, now: int) -> None:
        if self._inbound.descriptor(link, frame, now):
            self._requests.arrived(link, frame.serial, now, last=False)

    def _hash_list(self, link: Link, frame: fr.HashList, now: int) -> None:
        if self._inbound.hash_list(link, frame, now):
            self._requests.arrived(link, frame.serial, now, last=False)

    def _data(self, link: Link, frame: fr.Data | fr.BlankData, now: int) -> None:
        if self._inbound.data(link, frame, now):
            self._requests.arrived(link, frame.serial, now, last=frame.last)
            self._requests.progress(link, now)
        elif frame.last:
            link.inbox.ack_due_us = now
