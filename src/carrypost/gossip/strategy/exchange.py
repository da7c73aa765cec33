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

from carrypost.gossip.strategy.offers import Offers
from carrypost.gossip.strategy.review import Review
from carrypost.gossip.transfers.declined import Declined
from carrypost.gossip.transfers.inbound import Inbound
from carrypost.gossip.transfers.link import LINKED
from carrypost.gossip.transfers.parcels import Parcels
from carrypost.gossip.transfers.requests import Requests
from carrypost.gossip.transfers.transfer import Transfer
from carrypost.gossip.transfers.wants import Wants
from carrypost.gossip.wire import frames as fr
from carrypost.model.times import NEVER

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from random import Random

    from carrypost.gossip.transfers.departures import Departures
    from carrypost.gossip.transfers.ground import Ground
    from carrypost.gossip.transfers.link import Link
    from carrypost.gossip.transfers.receptions import Receptions
    from carrypost.model.pattern import Entry


class Exchange:
    """The exchange of one host with all its neighbours."""

    def __init__(self, ground: Ground, receptions: Receptions, departures: Departures, rng: Random) -> None:
        self._cache, self._links = ground.holdings.cache, ground.links
        self._wants = Wants(ground)
        self._inbound = Inbound(ground, self._wants, receptions)
        self._parcels = Parcels(ground, self._wants, self._inbound, receptions)
        self._transfer = Transfer(ground, rng)
        self._offers = Offers(ground, self._wants, self._transfer)
        self._declined = Declined(ground, self._wants)
        self._requests = Requests(ground, self._wants, self._declined)
        self._review = Review(ground, departures)
        self._quiet_us = 0
        """Until then no link has anything to settle but for what comes from it. 0: that is not known."""
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

    @property
    def look_us(self) -> int:
        """When to look again at what was declined: due on no link in particular."""
        return self._declined.due_us

    def close(self) -> None:
        """The host is done with it."""
        self.handlers.clear()

    def request(self, link: Link, frame: fr.Request, now: int) -> None:
        """The neighbour asks for something."""
        self._offers.take_request(link, frame, now)

    def up(self, link: Link, now: int) -> None:
        """A contact began, or the neighbour's profile changed."""
        link.agreement.synced = False
        self._review.begin(link, now)
        self._quiet_us = min(self._quiet_us, link.offering.due_us)

    def down(self, link: Link, now: int) -> None:
        """The contact is over."""
        self._quiet_us = 0
        others = self._wants.alternatives(link)
        self._inbound.drop_link(link)
        link.forget()
        self._requests.released(others, now)

    def gained(self, now: int, *, own: bool = False, partial: bool = False) -> None:
        """Something new is here: published, received, or only a piece of something."""
        self._quiet_us = 0
        self._offers.gained(now, own=own, partial=partial)

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
        for link in list(self._links.usable):
            if link.due_us() <= now:
                self._offers.tick(link, now)
                self._requests.tick(link, now)
                if link.agreement.due_us <= now:
                    self._review.ask(link, now)

    def settle(self, now: int, concerned: Sequence[Link] | None = None) -> None:
        """The end of a step: answer, acknowledge, offer, send. `concerned`: whom the step was with; None: anybody.

        Most of what a host hears concerns one link alone, and nothing is due on the others. Then they are not looked
        at: among hundreds of neighbours that look took longer than everything else.
        """
        if self._cache.loosened:
            self.room_appeared(now)
        if self._wants.orphaned:
            self._quiet_us = 0
            for other, handle in self._wants.orphans():
                other.inbox.fresh.append(handle)
        if concerned is None or (concerned and self._quiet_us <= now):
            links, self._quiet_us = self._links.usable, NEVER
        else:
            links = [link for link in concerned if link.state is LINKED]
        offers, sends = self._answer(links, now)
        if offers:
            self._offers.settle(now)
            self._quiet_us = min(self._quiet_us, *[each.offering.due_us for each in links])
        if sends:
            self._transfer.flush(self._links.usable, now)

    def _answer(self, links: list[Link], now: int) -> tuple[bool, bool]:
        """Answer and acknowledge. Whether there is something to offer to somebody, and something to send."""
        offers = sends = False
        quiet_us = self._quiet_us
        for link in links:
            inbox, outbox, due_us = link.inbox, link.outbox, link.offering.due_us
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
