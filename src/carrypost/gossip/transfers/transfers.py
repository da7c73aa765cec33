"""Moving messages over links, whatever decided that they are offered: requests, pieces, bursts, acknowledgements.

This module joins the parts: offers of neighbours become wants (`wants`, `requests`, `room_retry`), received frames
become whole messages (`inbound`, `parcels`, `arrivals`), requests become bursts (`request_server`, `burst_builder`,
`outbox`). Both directions run side by side, over several links at the same time. Everything is soft state: a lost
request or acknowledgement costs a timeout, a lost link costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from carrypost.gossip.timers import ACKNOWLEDGE, REQUEST_AGAIN
from carrypost.gossip.transfers.burst_builder import BurstBuilder
from carrypost.gossip.transfers.inbound import Inbound
from carrypost.gossip.transfers.outbox import PARCEL_GAIN, TIMEOUTS_DOUBTFUL
from carrypost.gossip.transfers.parcels import Parcels
from carrypost.gossip.transfers.pushes import Pushes
from carrypost.gossip.transfers.request_server import RequestServer
from carrypost.gossip.transfers.requests import Requests
from carrypost.gossip.transfers.room_retry import RoomRetry
from carrypost.gossip.transfers.wants import Wants
from carrypost.gossip.wire import frames as fr

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

    from carrypost.gossip.holdings.copies import Copy
    from carrypost.gossip.transfers.arrivals import Arrivals
    from carrypost.gossip.transfers.host_context import HostContext
    from carrypost.gossip.transfers.link import Link

_ENTRY_BYTES = 25
"""Largest size of an offer's entry without its id, in bytes."""


class Transfers:
    """The moving half of one host's contacts."""

    def __init__(self, context: HostContext, arrivals: Arrivals, rng: Random, *, durable_first: bool = False) -> None:
        """`durable_first`: acknowledge transfer frames once what they brought is durable, and not before."""
        self._links = context.links
        self.wants = Wants(context)
        self.inbound = Inbound(context, self.wants, arrivals)
        self._bursts = BurstBuilder(context, rng)
        self.pushes = Pushes(context, self._bursts)
        self.server = RequestServer(context, self._bursts, self.pushes)
        self.room_retry = RoomRetry(context, self.wants)
        self.requests = Requests(context, self.wants, self.room_retry, durable_first=durable_first)
        self._parcels = Parcels(context, self.wants, self.requests, self.inbound, arrivals)
        self._holdings, self._entries_max = context.holdings, context.limits.offer_entries_max
        self._offers = 0
        self._links.handlers.update(
            {
                fr.WholeDescriptor: self._receive_preamble,
                fr.DescriptorPart: self._receive_preamble,
                fr.HashList: self._receive_preamble,
                fr.Data: self._receive_data,
                fr.BlankData: self._receive_data,
                fr.OpenParcel: self._receive_parcels,
            }
        )

    def end(self, link: Link, now: int) -> None:
        """End the contact over a link, and request from others what it was asked for."""
        others = self.wants.alternatives(link)
        self.inbound.drop_link(link)
        link.clear()
        self.requests.released(others, now)

    def repeat(self, link: Link, now: int) -> None:
        """Retransmit frames and repeat requests that were lost."""
        link.outbox.tick(now)
        # Two timeouts in a row: either the neighbour left, or its interface reported a larger
        # datagram than the path carries. Smaller frames cost little in the first case and solve the
        # second.
        doubtful = link.outbox.recovery.timeouts >= TIMEOUTS_DOUBTFUL
        if doubtful and (unpacked := link.outbox.unpack(link.body_bytes_max + PARCEL_GAIN)):
            link.doubt()
            self._links.fit()
            self.offer(link, [job.copy for job in unpacked if job.unasked])
        if link.timers.due[REQUEST_AGAIN] <= now:
            began_us = self._links.accounts.clock_us()
            self.requests.repeat(link, now)
            # A neighbour that sends most of what it offers pays for this by its merit.
            self._links.accounts.charge_time(link.peer, began_us, now)

    def push(self, link: Link, copies: Sequence[Copy], now: int) -> None:
        """Send messages over a link unasked: as Parcels, which are repeated until they arrive, and the rest in offers.

        Messages that were sent this way before, and are not on their way any more, are offered.
        """
        self.server.give(link, copies)
        self._bursts.flush([link], now)
        self.offer(link, [copy for copy in copies if copy.slot not in link.outbox.jobs])

    def offer(self, link: Link, copies: Sequence[Copy]) -> None:
        """Offer messages over a link, with or without a contact. The offer is not repeated."""
        step = link.body_bytes_max // max((len(copy.id) + _ENTRY_BYTES for copy in copies), default=1)
        step = min(step, self._entries_max)
        for at in range(0, len(copies), step):
            entries = tuple(map(self._holdings.entry_of, copies[at : at + step]))
            link.send((fr.Offer(self.offer_serial(), entries),))

    def offer_serial(self) -> int:
        """Return the serial of another offer."""
        self._offers += 1
        return self._offers

    def flush(self, now: int) -> None:
        """Send what the windows of all links allow."""
        self._bursts.flush(self._links.usable, now)

    def _receive_parcels(self, link: Link, frames: Sequence[fr.OpenParcel], now: int) -> bool:
        """Handle small messages, each of which arrived whole; return False if they contained nothing new."""
        serials, unasked, new = self._parcels.receive(link, frames, now)
        # Several bursts may come together, or the end of one first.
        last = frames[-1].last or any(frame.last for frame in frames)
        if unasked:
            self.requests.came_unasked(link, unasked, now)
        if serials:
            self.requests.arrived(link, serials, now, last=last)
            link.inbox.progress_us = now
        elif last:
            link.timers.arm(ACKNOWLEDGE, now)
        return new or link.timers.due[ACKNOWLEDGE] <= now

    def _receive_preamble(
        self, link: Link, frame: fr.WholeDescriptor | fr.DescriptorPart | fr.HashList, now: int
    ) -> None:
        if isinstance(frame, fr.HashList):
            accepted = self.inbound.hash_list(link, frame, now)
        else:
            accepted = self.inbound.descriptor(link, frame, now)
        if accepted:
            self.requests.arrived(link, [frame.serial], now, last=False)

    def _receive_data(self, link: Link, frame: fr.Data | fr.BlankData, now: int) -> None:
        if self.inbound.data(link, frame, now):
            self.requests.arrived(link, [frame.serial], now, last=frame.last)
            link.inbox.progress_us = now
        elif frame.last:
            link.timers.arm(ACKNOWLEDGE, now)
