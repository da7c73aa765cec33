"""A contact between two hosts, from the first review to the last acknowledgement (JOMS-15 §2.2, figure 3).

The two agree on what each of them lacks (`gossip.review`), then each offers that (`gossip.offers`), the other requests
it (`gossip.requests`), and bursts of descriptors and data come back (`gossip.transfer`, `gossip.inbound`), acknowledged
cumulatively. What is gained on the way is offered to all neighbours at once. Both directions run side by side, with
several neighbours at the same time. Everything is soft state: a lost offer, request or acknowledgement costs a
timeout, a lost neighbour costs nothing, and nothing is believed for longer than until the next review.

`paper_mode` offers everything that matches with every announcement instead, as the papers do.

This module only joins the parts; another strategy of exchange would stand in its place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from carrypost.gossip import frames as fr
from carrypost.gossip.declined import Declined
from carrypost.gossip.inbound import Inbound
from carrypost.gossip.offers import Offers
from carrypost.gossip.parcels import Parcels
from carrypost.gossip.requests import Requests
from carrypost.gossip.review import Review
from carrypost.gossip.transfer import Transfer
from carrypost.gossip.wants import Wants

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from carrypost.gossip.deliveries import Deliveries
    from carrypost.gossip.desk import Desk
    from carrypost.gossip.link import Link
    from carrypost.gossip.receptions import Receptions
    from carrypost.model.pattern import Entry


class Exchange:
    """The exchange of one host with all its neighbours."""

    def __init__(self, desk: Desk, deliveries: Deliveries, receptions: Receptions) -> None:
        self._desk = desk
        self._wants = Wants(desk)
        self._inbound = Inbound(desk, self._wants, deliveries, receptions)
        self._parcels = Parcels(desk, self._wants, self._inbound, receptions)
        self._transfer = Transfer(desk)
        self._offers = Offers(desk, self._wants, self._transfer)
        self._declined = Declined(desk, self._wants)
        self._requests = Requests(desk, self._wants, self._declined)
        self._review = Review(desk)
        self.handlers: dict[type, Callable[..., None]] = {
            fr.Digest: self._review.take,
            fr.Offer: self._offer,
            fr.WholeDescriptor: self._descriptor,
            fr.DescriptorPart: self._descriptor,
            fr.HashList: self._hash_list,
            fr.Data: self._data,
            fr.BlankData: self._data,
            fr.Ack: self._offers.take_ack,
        }
        """Kinds of frames that are taken from a usable link as they come."""

    def request(self, link: Link, frame: fr.Request, now: int) -> None:
        """The neighbour asks for something."""
        self._offers.take_request(link, frame, now)

    def up(self, link: Link, now: int) -> None:
        """A contact began, or the neighbour's profile changed."""
        link.agreement.synced = False
        self._review.begin(link, now)

    def down(self, link: Link, now: int) -> None:
        """The contact is over."""
        others = self._wants.alternatives(link)
        self._inbound.drop_link(link)
        link.forget()
        self._requests.released(others, now)

    def gained(self, now: int, *, own: bool = False, partial: bool = False) -> None:
        """Something new is here: published, received, or only a piece of something."""
        self._offers.gained(now, own=own, partial=partial)

    def interests_changed(self, entries: Sequence[Entry]) -> None:
        """These came or went: what was of no interest may be now."""
        self._inbound.interests_changed(entries)

    def room_appeared(self, now: int) -> None:
        """There may be room for something that was declined."""
        self._declined.room_appeared(now)

    def announced(self, now: int) -> None:
        """`paper_mode`: an announcement of this host went out."""
        self._offers.offer_everything(now)

    def tick(self, now: int) -> None:
        """Do what is due on the links."""
        if self._desk.look_us <= now:
            self._declined.look(now)
        for link in list(self._desk.usable):
            if link.due_us() <= now:
                self._offers.tick(link, now)
                self._requests.tick(link, now)
                if link.agreement.due_us <= now:
                    self._review.ask(link, now)

    def settle(self, now: int) -> None:
        """The end of a step: answer, acknowledge, offer, send."""
        if self._desk.cache.loosened:
            self._declined.room_appeared(now)
        if self._wants.orphaned:
            for link, handle in self._wants.orphans():
                link.inbox.fresh.append(handle)
        links = self._desk.usable
        offers = sends = False
        for link in links:
            inbox = link.inbox
            if inbox.answers or inbox.fresh or inbox.ack_due_us <= now:
                self._requests.settle(link, now)
            if link.offering.due_us <= now:
                offers = True
            if link.outbox.jobs:
                sends = True
        if offers:
            self._offers.settle(now)
        if sends:
            self._transfer.flush(links, now)

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
        waiting = bool(link.offering.open)
        self._requests.take_offer(link, frame, now)
        if waiting and not link.offering.open:
            self._offers.all_answered(link, now)

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
