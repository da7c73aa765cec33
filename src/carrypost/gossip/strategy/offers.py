"""The giving side of a contact: what a neighbour is offered, and what it then asks for.

After the review (`gossip.strategy.review`) a host offers what matches the neighbour's profile and the neighbour is not
believed to know: what it wants for itself first, then by privilege, then the one that has waited longest; and from then
on whatever is gained, to all neighbours at once. An offer that is not answered is repeated. What is asked for becomes a
job of the outbox. Where several neighbours were offered the same message, its first burst waits a moment for them.
"""

from __future__ import annotations

from heapq import nsmallest
from operator import attrgetter
from typing import TYPE_CHECKING

from carrypost.gossip.slots import bits, mask_of
from carrypost.gossip.transfers.accounts import price
from carrypost.gossip.transfers.link import STRANGER, TAKER, Link, OpenOffer
from carrypost.gossip.transfers.outbox import FRAME_ROOM
from carrypost.gossip.wire.frames import Ack, Frame, Offer, OfferEntry, Request
from carrypost.gossip.wire.pieces import from_bitmap, to_bitmap
from carrypost.model.descriptor import PIECE_BYTES
from carrypost.model.times import NEVER

if TYPE_CHECKING:
    from carrypost.gossip.holdings.copies import Copy
    from carrypost.gossip.transfers.ground import Ground
    from carrypost.gossip.transfers.transfer import Transfer
    from carrypost.gossip.transfers.wants import Wants

_OPEN_PAGES_MAX = 16
"""So many offer frames to one neighbour may be without an answer; the rest follows."""
_OPEN_JOBS_MAX = 2048
"""So many messages may be asked for and not sent yet; the rest is offered later."""
_ENTRY_BYTES = 16
"""An offer's entry without its id and bitmap."""
_PARTIAL_US = 1_000_000
"""How often, at most, the growth of a half-received message is told."""
_FEW_LINKS = 2
"""With so many neighbours, what is new is offered at once."""
_OFFER_RETRY_US = 500_000
_OFFER_DOUBLINGS = 6
_SHARE_WAIT_US = 20_000
"""How long a burst waits for other neighbours who were offered the same message."""
_LOOKS_AT_FLIGHTS = 4
"""To look whether so many frames are acknowledged is one unit of waste."""
_AGAIN_BYTES = 16
"""So many bytes that are sent to the same neighbour again are one unit of waste (`gossip.transfers.accounts`)."""
_SENDING_ORDER = attrgetter("sending_order")
_WANTED = 256
"""Added to the level of what the neighbour wants for itself: before anything that it would carry for others."""


class Offers:
    """Offers of one host to all its neighbours."""

    def __init__(self, ground: Ground, wants: Wants, transfer: Transfer) -> None:
        self._holdings, self._cache = ground.holdings, ground.holdings.cache
        self._outputs, self._links, self._settings = ground.outputs, ground.links, ground.settings
        self._wants = wants
        self._transfer = transfer
        self._serial = 0
        self._coalesce_us = round(self._settings.coalesce_s * 1e6)
        self._gap_us = round(self._settings.offer_s_min * 1e6)
        self._share_wait_us = min(_SHARE_WAIT_US, self._coalesce_us)
        self._page_bytes = self._settings.mtu_bytes - FRAME_ROOM
        self._entries_max = ground.limits.offer_entries_max
        self._page_entries = self._page_bytes // _ENTRY_BYTES
        """At most; ids take their part of it."""

    def gained(self, now: int, *, own: bool = False, partial: bool = False) -> None:
        """Something new is here: it is offered to the other neighbours soon, not at the next announcement.

        At once, if nothing is on its way to them and nobody else could tell them first: it is this host's own, or few
        are in reach. Else it waits for company; and where many are in reach, most hear of it meanwhile.
        """
        if self._settings.paper_mode:
            return
        prompt = own or self._few_links()
        delay_us = max(_PARTIAL_US, self._coalesce_us) if partial else self._coalesce_us
        for link in self._links.usable:
            offering = link.offering
            due_us = now if prompt and _idle(link) else now + delay_us
            if self._gap_us:
                due_us = max(due_us, offering.offered_us + self._gap_us)
            if due_us < offering.due_us and not offering.stalled:
                offering.due_us = due_us
                self._links.wake(due_us)

    def settle(self, now: int) -> None:
        """The end of a step: make the offers that are due."""
        groups: dict[int, list[Link]] = {}
        partial = self._cache.partial
        for link in self._links.usable:
            offering = link.offering
            if offering.due_us > now:
                continue
            if link.overdue(now):
                offering.stall()
                continue
            offering.due_us = NEVER
            if link.agreement.synced or link.agreement.lacking:
                if mask := self._new_for(link):
                    groups.setdefault(mask, []).append(link)
                if partial:
                    self._offer_partials(link, now)
        for mask, links in groups.items():
            if len(links) > 1 and self._concerns_all(mask, links):
                self._offer(links, mask, None, now)
            else:
                for link in links:
                    self._offer([link], mask, link.peer, now)

    def _concerns_all(self, mask: int, lacking: list[Link]) -> bool:
        """Whether an offer may be broadcast: whoever does not lack these messages has them, and asks for none."""
        usable = self._links.usable
        if len(lacking) == len(usable):
            return True
        others = (link for link in usable if link not in lacking)
        return not any(mask & ~link.offering.known for link in others)

    def offer_everything(self, now: int) -> None:
        """`paper_mode`: with each announcement the whole catalogue, for whoever is there."""
        for link in self._links.usable:
            link.offering.open.clear()
            link.offering.retry_us = NEVER
            link.offering.offered = 0
            if link.view is not None and (mask := link.view.matches & self._cache.whole & ~self._holdings.withheld):
                self._offer([link], mask, link.peer, now)

    def _new_for(self, link: Link) -> int:
        view, cache = link.view, self._cache
        if view is None:
            return 0
        agreement, offering = link.agreement, link.offering
        mask = view.matches if agreement.synced else view.matches & agreement.lacking
        return mask & cache.whole & ~(offering.known | offering.offered | self._holdings.withheld)

    def _offer(self, links: list[Link], mask: int, to: str | None, now: int) -> None:
        pages = _OPEN_PAGES_MAX - max(len(link.offering.open) for link in links)
        most = min(_OPEN_JOBS_MAX - max(len(link.outbox.jobs) for link in links), pages * self._page_entries)
        if self._settings.paper_mode:
            pages = most = mask.bit_count()
        if pages <= 0 or most <= 0:
            return
        frames: list[Frame] = []
        for page in self._pages(self._ranked(links[0], mask, most))[:pages]:
            frames.append(self._page([copy.entry or self._entry(copy) for copy in page]))
            page_mask = mask_of([copy.slot for copy in page])
            for link in links:
                self._note_offer(link, page_mask, now)
        if frames:
            self._outputs.send(frames, to)

    def _note_offer(self, link: Link, mask: int, now: int) -> None:
        offering = link.offering
        offer = offering.open[self._serial] = OpenOffer(mask)
        offering.offered |= mask
        offering.offered_us = now
        self._wait_for_answer(link, offer, now)

    def _wait_for_answer(self, link: Link, offer: OpenOffer, now: int) -> None:
        """Longer each time, and longer on a slow link: an offer repeated too soon only delays its answer."""
        if self._settings.paper_mode:
            offer.due_us = NEVER  # Every announcement repeats it.
            return
        offering = link.offering
        patience_us = max(_OFFER_RETRY_US, 2 * link.outbox.recovery.timeout_us)
        if offer.tries:
            patience_us <<= min(offer.tries, _OFFER_DOUBLINGS)
        offer.due_us = due_us = now + patience_us
        if due_us < offering.retry_us:
            offering.retry_us = due_us
        self._links.wake(due_us)

    def _page(self, entries: list[OfferEntry]) -> Offer:
        self._serial += 1
        return Offer(self._serial, tuple(entries))

    def _ranked(self, link: Link, mask: int, most: int) -> list[Copy]:
        """What the neighbour wants for itself first, then by privilege, then the one that has waited longest."""
        copies = self._cache.copies
        found = [copy for slot in bits(mask) if (copy := copies[slot]) is not None]
        view = link.view
        if view is not None and view.mixed:
            return nsmallest(most, found, key=lambda copy: (not view.wants(copy.descriptor), copy.sending_order))
        if len(found) > most:
            return nsmallest(most, found, key=_SENDING_ORDER)
        found.sort(key=_SENDING_ORDER)
        return found

    def _pages(self, copies: list[Copy]) -> list[list[Copy]]:
        pages: list[list[Copy]] = []
        page: list[Copy] = []
        room = 0
        for copy in copies:
            size = len(copy.id) + _ENTRY_BYTES
            if size > room or len(page) >= self._entries_max:
                page = []
                pages.append(page)
                room = self._page_bytes
            page.append(copy)
            room -= size
        return pages

    def _entry(self, copy: Copy) -> OfferEntry:
        if copy.entry is None:
            handle = self._holdings.handle_of(copy)
            copy.entry = OfferEntry(copy.id, handle, copy.descriptor.length, copy.privilege)
        return copy.entry

    def _offer_partials(self, link: Link, now: int) -> None:
        """Half-received messages are offered too, with the pieces that are here; again when there are more."""
        view, cache = link.view, self._cache
        if view is None or not cache.partial:
            return
        # A relay tells of more as soon as what it told of is through: it passes on the first pieces while others come.
        prompt = self._few_links() and _idle(link)
        if now < link.offering.partials_us and not prompt:
            link.offering.due_us = min(link.offering.due_us, link.offering.partials_us)
            self._links.wake(link.offering.due_us)
            return
        mask = view.matches & cache.partial & ~link.offering.known
        link.offering.partials_us = now + _PARTIAL_US
        for slot in bits(mask):
            copy = cache.copies[slot]
            if copy is None or link.offering.partials.get(slot) == copy.held or self._wants.whole_at(link, copy.id):
                continue
            link.offering.partials[slot] = copy.held
            handle = self._holdings.handle_of(copy)
            pieces = to_bitmap(copy.held)
            entry = OfferEntry(copy.id, handle, copy.descriptor.length, copy.privilege, pieces)
            offer = self._page([entry])
            self._note_offer(link, 0, now)
            self._outputs.send((offer,), link.peer)

    def _repeat_offers(self, link: Link, now: int) -> None:
        """Offers that nobody answered go out anew, under the same serial: an answer to either copy will do."""
        offering, copies = link.offering, self._cache.copies
        if link.overdue(now):
            offering.stall()
            return
        offering.retry_us = min((offer.due_us for offer in offering.open.values() if offer.due_us > now), default=NEVER)
        frames: list[Frame] = []
        for serial, offer in list(offering.open.items()):
            if offer.due_us > now:
                continue
            mask = offer.mask & self._cache.whole & ~offering.known
            entries = [self._entry(copy) for slot in bits(mask) if (copy := copies[slot]) is not None]
            if entries:
                offer.tries += 1
                self._wait_for_answer(link, offer, now)
                frames.append(Offer(serial, tuple(entries)))
                continue
            del offering.open[serial]
            offering.offered &= ~offer.mask
            offering.due_us = now  # What it kept from being offered may go out at the end of this step.
            if not offer.mask:
                offering.partials.clear()
        if frames:
            self._outputs.send(frames, link.peer)

    # --- what is asked for ---------------------------------------------------------------------------------

    def take_request(self, link: Link, frame: Request, now: int) -> None:
        """Queue what the neighbour asks for."""
        asked = self._serve(link, frame, now)
        if self._new_for(link) and self._prompt(link):
            link.offering.due_us = now
        if asked:
            self._wait_for_others(link, asked, now)
        else:
            self._end_turn(link, now)

    def _serve(self, link: Link, frame: Request, now: int) -> int:
        """Queue what is asked for and not queued yet, and credit the request by that; the slots that were queued."""
        offering, known = link.offering, self._holdings.by_handle
        answered = sum(offering.answered(serial) for serial in frame.offers)
        wanted = [copy for handle in frame.handles if (copy := known(handle)) is not None]
        queued = [copy for copy in wanted if self._queue(link, copy, copy.held, now)]
        asked = mask_of([copy.slot for copy in queued])
        again_bytes = 0
        if repeated := asked & offering.served:
            # What was sent in this contact already, and was lost, is sent again, but not as often as one likes.
            again_bytes = sum(copy.descriptor.length for copy in queued if repeated >> copy.slot & 1)
        offering.served |= asked
        unknown = len(frame.handles) - len(wanted)
        for part in frame.parts:
            copy = known(part.handle)
            if copy is None:
                unknown += 1
            elif self._queue(link, copy, pieces := copy.held & from_bitmap(part.pieces), now):
                asked |= 1 << copy.slot
                again_bytes += PIECE_BYTES * offering.serve(copy.slot, pieces)
        if unknown:
            self._outputs.refuse_many("handle", link.peer, unknown)
        if asked or answered:
            link.budgets.tally += price(frame) - unknown - again_bytes // _AGAIN_BYTES
        return asked

    def all_answered(self, link: Link, now: int) -> None:
        """The neighbour has all that was on offer: what had to wait for it, if nothing else brings it up, is next."""
        if link.offering.due_us == NEVER and self._new_for(link):
            link.offering.due_us = now

    def _queue(self, link: Link, copy: Copy, wanted: int, now: int) -> bool:
        """Queue these pieces of a message, unless it is queued already: then False."""
        if not wanted:
            return False
        outbox = link.outbox
        running = outbox.jobs.get(copy.slot)
        if running is not None:
            # What is on its way, or was lost and is to go out again, was asked for twice; what came in since was not.
            running.ask_more(wanted)
            return False
        view = link.view
        level = copy.privilege
        if view is not None and (not view.mixed or view.wants(copy.descriptor)):
            level += _WANTED
        skip_preamble = not copy.descriptor.small and outbox.knows_preamble(copy, now)
        outbox.add(self._transfer.job(copy, wanted, level, skip_preamble=skip_preamble))
        return True

    def _wait_for_others(self, link: Link, asked: int, now: int) -> None:
        """One transmission may serve several requesters, if it waits a moment for them."""
        outbox = link.outbox
        if outbox.recovery.in_flight or not self._share_wait_us:
            return
        for other in self._links.usable:
            if other.offering.offered & asked and other is not link:
                outbox.wait(now + self._share_wait_us)
                self._links.wake(outbox.wait_us)
                return

    def take_ack(self, link: Link, frame: Ack, now: int) -> None:
        """The neighbour has these in memory."""
        outbox = link.outbox
        unacknowledged = outbox.recovery.unacknowledged
        through = outbox.acknowledge(frame.base, from_bitmap(frame.bitmap), now)
        link.offering.known |= through
        if through and link.standing is STRANGER:
            link.standing = TAKER
        # Each was looked at, at worst: whoever acknowledges nothing again and again pays for it.
        looked_at = unacknowledged // _LOOKS_AT_FLIGHTS
        link.budgets.tally += price(frame) if outbox.recovery.unacknowledged < unacknowledged else -looked_at
        for job in outbox.take_unfinished():
            outbox.add(self._transfer.job(job.copy, job.more, job.level, skip_preamble=True))
        if not outbox.jobs:
            if self._prompt(link) and (self._new_for(link) or (self._cache.partial and self._few_links())):
                link.offering.due_us = now
            self._end_turn(link, now)

    def _prompt(self, link: Link) -> bool:
        """Whether more may be offered as soon as there is room: with `offer_s_min` what came since has its own time."""
        return not self._gap_us or link.offering.due_us == NEVER

    def _few_links(self) -> bool:
        """Whether this host is a relay between a few, and nobody else is likely to be."""
        return len(self._links.usable) <= _FEW_LINKS

    @staticmethod
    def _end_turn(link: Link, now: int) -> None:
        """What the neighbour's review had shown it to lack is there: now for the rest."""
        agreement = link.agreement
        if agreement.lacking and not agreement.synced and not (link.outbox.jobs or link.offering.open):
            agreement.due_us = now

    def tick(self, link: Link, now: int) -> None:
        """Repeat what was lost: transfer frames, and offers."""
        link.outbox.tick(now)
        if link.offering.retry_us <= now:
            self._repeat_offers(link, now)


def _idle(link: Link) -> bool:
    """Whether nothing is on its way to the neighbour, nor offered to it."""
    return not (link.offering.open or link.outbox.jobs)
