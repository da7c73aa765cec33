"""Offers, requests and acknowledgements: the heart of a contact (JOMS-15 §2.2, figure 3).

After the review of a contact (`gossip.review`) each side offers what matches the neighbour's profile and the neighbour
is not believed to know, most privileged first, and from then on whatever it gains, to all its neighbours at once.
The neighbour requests what it lacks, in the order of the offer, from one neighbour at a time; every offer is answered,
be it by an empty request, so that a lost one is noticed and repeated. Requests turn into jobs of the outbox, and bursts
come back (`gossip.transfer`). Everything here is soft state: a lost offer, request or acknowledgement costs a
timeout, a lost neighbour costs nothing.

`paper_mode` offers everything that matches with every announcement instead, as the papers do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from carrypost.gossip.frames import Ack, Frame, Offer, OfferEntry, PieceRequest, Request, Transmission
from carrypost.gossip.link import NEVER, Link, OpenOffer
from carrypost.gossip.outbox import FRAME_ROOM
from carrypost.gossip.pieces import from_bitmap, full_mask, to_bitmap
from carrypost.gossip.slots import bits, mask_of
from carrypost.gossip.wants import PATIENCE_US
from carrypost.model.descriptor import PIECE_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from carrypost.gossip.cache import Copy
    from carrypost.gossip.desk import Desk
    from carrypost.gossip.wants import Want, Wants
    from carrypost.gossip.transfer import Transfer

_OPEN_ENTRIES_MAX = 2048
"""So many messages may be on offer to one neighbour, or asked for and not sent yet; the rest follows."""
_ENTRY_BYTES = 16
"""An offer's entry without its id and bitmap."""
_PARTIAL_US = 1_000_000
"""How often, at most, the growth of a half-received message is told."""
_OFFER_RETRY_US = 500_000
_OFFER_DOUBLINGS = 3
_REQUEST_RETRY_US = 2_000_000
_REQUEST_TRIES = 6
_ACK_DELAY_US = 20_000
_ACK_FRAMES = 32
_SHARE_WAIT_US = 20_000
"""How long a burst waits for other neighbours who were offered the same message."""
_WANTED = 256
"""Added to the level of what the neighbour wants for itself: before anything that it would carry for others."""


class Exchange:
    """Runs the exchange of one host with all its neighbours."""

    def __init__(self, desk: Desk, wants: Wants, transfer: Transfer) -> None:
        self._desk = desk
        self._wants = wants
        self._transfer = transfer
        self._serial = 0
        self._coalesce_us = round(desk.settings.coalesce_s * 1e6)
        self._share_wait_us = min(_SHARE_WAIT_US, self._coalesce_us)
        self._page_bytes = desk.settings.mtu_bytes - FRAME_ROOM

    # --- offering ------------------------------------------------------------------------------------------

    def gained(self, now: int, *, partial: bool = False) -> None:
        """Something new is here: it is offered to the other neighbours soon, not at the next announcement."""
        delay_us = max(_PARTIAL_US, self._coalesce_us) if partial else self._coalesce_us
        if not self._desk.settings.paper_mode:
            for link in self._desk.usable_links():
                link.offer_due_us = min(link.offer_due_us, now + delay_us)

    def offer_due(self, now: int) -> None:
        """Make the offers that are due; one broadcast where all neighbours get the same."""
        usable = 0
        groups: dict[int, list[Link]] = {}
        for link in self._desk.usable_links():
            usable += link.view is not None
            if link.offer_due_us > now:
                continue
            link.offer_due_us = min((offer.due_us for offer in link.open_offers.values()), default=NEVER)
            if link.synced:
                if mask := self._new_for(link):
                    groups.setdefault(mask, []).append(link)
                self._offer_partials(link, now)
        for mask, links in groups.items():
            if len(links) == usable > 1:
                self._offer(links, mask, None, now)
            else:
                for link in links:
                    self._offer([link], mask, link.peer, now)

    def offer_everything(self, now: int) -> None:
        """`paper_mode`: with each announcement the whole catalogue, for whoever is there."""
        for link in self._desk.usable_links():
            link.open_offers.clear()
            link.offered = 0
            if link.view is not None and (mask := link.view.matches & self._desk.cache.whole):
                self._offer([link], mask, link.peer, now)

    def _new_for(self, link: Link) -> int:
        view, cache = link.view, self._desk.cache
        if view is None:
            return 0
        return view.matches & cache.whole & ~(link.known | link.offered)

    def _offer(self, links: list[Link], mask: int, to: str | None, now: int) -> None:
        room = _OPEN_ENTRIES_MAX - max(link.offered.bit_count() + len(link.outbox.jobs) for link in links)
        frames: list[Frame] = []
        for page in self._pages(self._ranked(links[0], mask)[: max(0, room)]):
            frames.append(self._page([self._entry(copy) for copy in page]))
            page_mask = mask_of([copy.slot for copy in page])
            for link in links:
                self._note_offer(link, page_mask, now)
        if frames:
            self._desk.outgoing.append(Transmission(tuple(frames), to))

    def _note_offer(self, link: Link, mask: int, now: int, tries: int = 0) -> None:
        paper = self._desk.settings.paper_mode  # Then every announcement repeats it.
        due_us = NEVER if paper else now + (_OFFER_RETRY_US << min(tries, _OFFER_DOUBLINGS))
        link.open_offers[self._serial] = OpenOffer(mask, due_us, tries)
        link.offered |= mask
        link.offer_due_us = min(link.offer_due_us, due_us)

    def _page(self, entries: list[OfferEntry]) -> Offer:
        self._serial += 1
        return Offer(self._serial, tuple(entries))

    def _ranked(self, link: Link, mask: int) -> list[Copy]:
        """What the neighbour wants for itself first, then by privilege, then the one that has waited longest."""
        copies = self._desk.cache.copies
        found = [copy for slot in bits(mask) if (copy := copies[slot]) is not None]
        found.sort(key=lambda copy: (-self._level(link, copy), copy.descriptor.created_us))
        return found

    @staticmethod
    def _level(link: Link, copy: Copy) -> int:
        wants_it = link.view is not None and link.view.wants(copy.descriptor)
        return copy.privilege + (_WANTED if wants_it else 0)

    def _pages(self, copies: list[Copy]) -> list[list[Copy]]:
        pages: list[list[Copy]] = []
        room = 0
        for copy in copies:
            size = len(copy.id) + _ENTRY_BYTES
            if size > room or len(pages[-1]) >= self._desk.limits.offer_entries_max:
                pages.append([])
                room = self._page_bytes
            pages[-1].append(copy)
            room -= size
        return pages

    def _entry(self, copy: Copy) -> OfferEntry:
        if copy.entry is None:
            handle = self._desk.handle_of(copy)
            copy.entry = OfferEntry(copy.id, handle, copy.descriptor.length, copy.privilege)
        return copy.entry

    def _offer_partials(self, link: Link, now: int) -> None:
        """Half-received messages are offered too, with the pieces that are here; again when there are more."""
        view, cache = link.view, self._desk.cache
        if view is None or not cache.partial or now < link.partials_us:
            return
        mask = view.matches & cache.partial & ~link.known
        link.partials_us = now + _PARTIAL_US
        for slot in bits(mask):
            copy = cache.copies[slot]
            if copy is None or link.partial_offered.get(slot) == copy.held or self._wants.whole_at(link, copy.id):
                continue
            link.partial_offered[slot] = copy.held
            handle = self._desk.handle_of(copy)
            pieces = to_bitmap(copy.held)
            entry = OfferEntry(copy.id, handle, copy.descriptor.length, copy.privilege, pieces)
            offer = self._page([entry])
            self._note_offer(link, 0, now)
            self._desk.outgoing.append(Transmission((offer,), link.peer))

    def _repeat_offers(self, link: Link, now: int) -> None:
        """Offers that nobody answered go out anew."""
        for serial, offer in list(link.open_offers.items()):
            if offer.due_us > now:
                link.offer_due_us = min(link.offer_due_us, offer.due_us)
                continue
            del link.open_offers[serial]
            link.offered &= ~offer.mask
            mask = offer.mask & self._desk.cache.whole & ~link.known
            if not offer.mask:
                link.partial_offered.clear()
                link.offer_due_us = now
                continue
            frames: list[Frame] = []
            for page in self._pages(self._ranked(link, mask)):
                frames.append(self._page([self._entry(copy) for copy in page]))
                self._note_offer(link, mask_of([copy.slot for copy in page]), now, offer.tries + 1)
            if frames:
                self._desk.outgoing.append(Transmission(tuple(frames), link.peer))

    # --- requesting ----------------------------------------------------------------------------------------

    def take_offer(self, link: Link, frame: Offer, now: int) -> None:
        """Note what the neighbour has; it is answered at the end of the step, several offers together."""
        cache, own = self._desk.cache, self._desk.own
        # Whether this host wants a message for itself is not known before its descriptor comes; of one that only
        # carries it is.
        interesting = own is None or any(not each.hops for each in own.entries)
        storing = now >= self._desk.store_failed_until_us
        link.answers.append(frame.serial)
        for entry in frame.entries:
            copy = cache.get(entry.message)
            if copy is not None and (copy.whole or not copy.here):
                if not entry.pieces:  # Who offers some pieces lacks the others.
                    link.known |= 1 << copy.slot
            elif storing and cache.admits(entry.length, entry.privilege, interesting=interesting):
                if self._wants.add(link, entry, now):
                    link.fresh.append(entry.handle)
            else:
                self._desk.refuse("no-room", link.peer)

    def _request(self, link: Link, among: Iterable[int], serials: tuple[int, ...], now: int) -> None:
        """Ask for what is missing, and not asked for yet, of the wants with these handles."""
        handles: list[int] = []
        parts: list[PieceRequest] = []
        for handle in among:
            want = link.wants.get(handle)
            if want is None or not (missing := self._missing(want)):
                continue
            if elsewhere := self._wants.requested_elsewhere(want.entry.message, link, now):
                missing &= ~elsewhere
                link.request_due_us = min(link.request_due_us, now + PATIENCE_US)
                if not missing:
                    continue
            want.requested |= missing
            self._wants.asked(want.entry.message, now)
            if missing == full_mask(_pieces(want)):
                handles.append(handle)
            else:
                parts.append(PieceRequest(handle, to_bitmap(missing)))
        frames = self._request_frames(link, serials, handles, parts)
        if frames:
            self._desk.outgoing.append(Transmission(tuple(frames), link.peer))
        if handles or parts:
            link.request_due_us = now + _REQUEST_RETRY_US

    def _missing(self, want: Want) -> int:
        entry = want.entry
        offered = from_bitmap(entry.pieces) if entry.pieces else full_mask(_pieces(want))
        copy = self._desk.cache.get(entry.message)
        held = copy.held if copy is not None and copy.here else 0
        return offered & ~(held | want.requested)

    def _request_frames(
        self, link: Link, serials: tuple[int, ...], handles: list[int], parts: list[PieceRequest]
    ) -> list[Frame]:
        step = min(self._desk.limits.request_handles_max, self._page_bytes // 6)
        frames: list[Frame] = []
        for at in range(0, len(handles), step):
            frames.append(Request(link.prefix, (), tuple(handles[at : at + step])))
        for part in parts:
            frames.append(Request(link.prefix, (), (), (part,)))
        for at in range(0, len(serials), step):
            frames.insert(0, Request(link.prefix, serials[at : at + step]))
        if len(frames) == 2 and serials and handles:
            frames = [Request(link.prefix, serials, tuple(handles))]
        return frames

    def released(self, links: list[Link], now: int) -> None:
        """A neighbour that was asked is gone: ask the others who offered the same."""
        for link in links:
            if link.usable:
                self._request(link, list(link.wants), (), now)

    def progress(self, link: Link, now: int) -> None:
        """Something that was asked for came."""
        link.request_tries = 0
        link.request_due_us = now + _REQUEST_RETRY_US if link.wants else NEVER

    # --- answering requests --------------------------------------------------------------------------------

    def take_request(self, link: Link, frame: Request, now: int) -> None:
        """Queue what the neighbour asks for."""
        for serial in frame.offers:
            offer = link.open_offers.pop(serial, None)
            if offer is not None:
                link.offered &= ~offer.mask
                link.known |= offer.mask
        asked = 0
        for handle in frame.handles:
            asked |= self._queue(link, handle, None)
        for part in frame.parts:
            asked |= self._queue(link, part.handle, from_bitmap(part.pieces))
        if self._new_for(link):
            link.offer_due_us = now
        if asked:
            self._wait_for_others(link, asked, now)

    def _queue(self, link: Link, handle: int, pieces: int | None) -> int:
        copy = self._desk.by_handle.get(handle)
        if copy is None:
            self._desk.refuse("handle", link.peer)
            return 0
        wanted = copy.held if pieces is None else copy.held & pieces
        if not wanted:
            return 0
        if copy.slot in link.outbox.jobs:
            return 0  # It is on its way, or what was lost of it is to go out again: the request was repeated.
        link.outbox.add(self._transfer.job(copy, wanted, self._level(link, copy)))
        return 1 << copy.slot

    def _wait_for_others(self, link: Link, asked: int, now: int) -> None:
        """One transmission may serve several requesters, if it waits a moment for them."""
        outbox = link.outbox
        if outbox.flights or not self._share_wait_us:
            return
        waits = any(other.offered & asked for other in self._desk.usable_links() if other is not link)
        outbox.not_before_us = now + self._share_wait_us if waits else now
        outbox.arm(now)

    # --- acknowledgements ----------------------------------------------------------------------------------

    def arrived(self, link: Link, serial: int, now: int, *, last: bool) -> None:
        """A transfer frame came and need not come again."""
        earlier = link.receipts.note(serial)
        if earlier is not None:
            self._desk.outgoing.append(Transmission((earlier,), link.peer))
        if last or link.receipts.count >= _ACK_FRAMES:
            link.ack_due_us = now
        elif link.ack_due_us == NEVER:
            link.ack_due_us = now + _ACK_DELAY_US

    def take_ack(self, link: Link, frame: Ack, now: int) -> None:
        """The neighbour has these in memory."""
        link.known |= link.outbox.acknowledge(frame.base, from_bitmap(frame.bitmap), now)
        if link.synced and not link.outbox.jobs and self._new_for(link):
            link.offer_due_us = now

    def settle(self, now: int) -> None:
        """The end of a step: answer what was offered, acknowledge what came, offer what is due."""
        offers = False
        for link, handle in self._wants.orphans():
            link.fresh.append(handle)
        for link in self._desk.links.values():
            if link.answers or link.fresh:
                serials, link.answers = tuple(link.answers), []
                fresh, link.fresh = link.fresh, []
                self._request(link, fresh, serials, now)
            if link.ack_due_us <= now:
                link.ack_due_us = NEVER
                self._desk.outgoing.append(Transmission((link.receipts.report(),), link.peer))
            offers = offers or link.offer_due_us <= now
        if offers:
            self.offer_due(now)

    # --- time ----------------------------------------------------------------------------------------------

    def tick(self, link: Link, now: int) -> None:
        """Whatever is due on this link, but the offers, which are made for all links together."""
        if link.outbox.due_us <= now:
            if link.outbox.flights:
                link.outbox.time_out(now)
            else:
                link.outbox.due_us = NEVER
        if link.request_due_us <= now:
            self._repeat_requests(link, now)
        if link.offer_due_us <= now:
            self._repeat_offers(link, now)

    def _repeat_requests(self, link: Link, now: int) -> None:
        link.request_due_us = NEVER
        asked = [handle for handle, want in link.wants.items() if want.requested]
        waiting = [handle for handle, want in link.wants.items() if not want.requested]
        self._request(link, waiting, (), now)  # If those who were asked for it kept it to themselves.
        if not asked:
            return
        link.request_tries += 1
        if link.request_tries <= _REQUEST_TRIES:
            for handle in asked:
                link.wants[handle].requested = 0
            self._request(link, asked, (), now)
            return
        # It does not answer: leave it to the next review, and ask the others.
        others = self._wants.alternatives(link)
        for handle in asked:
            self._wants.drop(link, handle)
        self.released(others, now)


def _pieces(want: Want) -> int:
    return max(1, -(-want.entry.length // PIECE_BYTES))
