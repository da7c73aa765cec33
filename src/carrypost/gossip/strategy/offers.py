"""The giving side of a contact: messages that a neighbour is offered, its requests, and fresh messages sent unasked.

After the review (`gossip.strategy.review`) a host offers messages that match the neighbour's profile and that the
neighbour is not believed to have: those that it wants for itself first, then by privilege, then those that have waited
longest. From then on it offers whatever it gains, to all neighbours at once. An offer without an answer is repeated.
Requested messages become jobs of the outbox. If several neighbours were offered the same message, its first burst waits
a moment for the others to request it as well.

`Fresh` sends messages unasked, on arrival, to neighbours that have agreed on what they lack and want them.
"""

# Why fresh messages are pushed. In a group where all hosts hear each other, an offer costs three frames (offer,
# request, parcel) per message and neighbour, and every host that has the message makes that offer
# to every other. Data bytes per reception should fall as the group grows; with offers alone,
# control bytes grow instead.
#
# The way chosen. A small message goes out at once, in one broadcast if all neighbours that lack it
# may be sent the same. Each announcement lists the neighbours its sender hears. So a receiver knows
# which of its own neighbours heard the same broadcast: those that the giver lists. It does not send
# the message to them. It *awaits* their receipts instead (`Unconfirmed`), and only a
# message whose receipt does not come is offered.
#
# What must hold.
# 1. A pushed message is neither offered nor pushed again to the same neighbour while its receipt is
#    awaited.
# 2. Nothing is lost by a lost push. A push of this host that was not confirmed is offered at once;
#    one by another host after `coalesce_s`, since every host that awaits the same receipt would
#    otherwise offer it in the same moment.
# 3. Only neighbours whose comparison is over are sent anything unasked: before that, it is unknown
#    what they lack, and most of what would be sent is there already.

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING

from carrypost.gossip.slots import bits, mask_of
from carrypost.gossip.strategy.exchange_contact import SYNCED, OpenOffer
from carrypost.gossip.timers import OFFER, OFFER_AGAIN, REVIEW
from carrypost.gossip.wire.frames import Frame, Offer, OfferEntry, Request
from carrypost.gossip.wire.pieces import to_bitmap
from carrypost.model.times import NEVER

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from carrypost.gossip.holdings.copies import Copy
    from carrypost.gossip.strategy.exchange_contact import Choosing, ExchangeContact
    from carrypost.gossip.strategy.strategy import Contacts
    from carrypost.gossip.transfers.arrivals_and_removals import Arrival
    from carrypost.gossip.transfers.link import HostContext, Link
    from carrypost.gossip.transfers.sending import Pushes
    from carrypost.gossip.transfers.transfers import Transfers


OPEN_PAGES_MAX = 16
"""Number of offer frames to one neighbour that may be without an answer; further ones wait."""
_OPEN_JOBS_MAX = 2048
"""Number of requested messages that may wait to be sent; further ones are offered later."""
_ENTRY_BYTES = 16
"""Bytes of an offer's entry without its id and bitmap."""
_PARTIAL_US = 1_000_000
"""Shortest time between two reports that a half-received message has grown."""
_FEW_LINKS = 2
"""With at most this many neighbours, new messages are offered at once."""
_SHARE_WAIT_US = 20_000
"""Time that a burst waits for other neighbours that were offered the same message."""
_SENDING_ORDER = attrgetter("sending_order")


class Offers:
    """Offers of one host to all its neighbours."""

    def __init__(
        self, context: HostContext, transfers: Transfers, contacts: Contacts[ExchangeContact], choosing: Choosing
    ) -> None:
        self._holdings, self._cache = context.holdings, context.holdings.cache
        self._outputs, self._index = context.outputs, context.holdings.index
        self._wants, self._server = transfers.wants, transfers.server
        self._contacts, self._choosing = contacts, choosing
        self._next_serial = transfers.offer_serial
        self._serial = 0
        """Serial of the last offer."""
        self._coalesce_us = round(context.settings.coalesce_s * 1e6)
        self._gap_us = round(context.settings.offer_s_min * 1e6)
        self._share_wait_us = min(_SHARE_WAIT_US, self._coalesce_us)
        self._entries_max = context.limits.offer_entries_max
        self._wanted_first = self._cache.ranking.wanted_first

    def gained(
        self, contacts: Iterable[ExchangeContact], now: int, *, own: bool = False, partial: bool = False
    ) -> None:
        """Offer new messages to these neighbours soon, not at the next announcement.

        At once, if nothing is on its way to them and no other host could tell them first: the message is this host's
        own, or few neighbours are in range. Otherwise the offer waits for others to join it; where many neighbours are
        in range, most hear of the message meanwhile.
        """
        prompt = own or self._few_links()
        delay_us = max(_PARTIAL_US, self._coalesce_us) if partial else self._coalesce_us
        for contact in contacts:
            offering = contact.offers
            due_us = now if prompt and _idle(contact) else now + delay_us
            if self._gap_us:
                due_us = max(due_us, offering.offered_us + self._gap_us)
            if due_us < contact.timers.due[OFFER] and not offering.stalled:  # Mostly it is due sooner: no call.
                contact.timers.hasten(OFFER, due_us)

    def flush(self, now: int) -> None:
        """Make the offers that are due at the end of a step."""
        groups: dict[int, list[ExchangeContact]] = {}
        partial = self._cache.partial
        for contact in self._contacts.all:
            offering = contact.offers
            if contact.timers.due[OFFER] > now:
                continue
            # Offers to a neighbour that has missed its announcement would be repeated into the
            # void. They resume with its first frame (`heard`), so nothing is lost by waiting.
            if now > contact.overdue_us:
                offering.stall()
                continue
            contact.timers.cancel(OFFER)
            mask = self.new_for(contact)
            if mask and self._choosing.unicast:  # What the next one may be offered depends on this offer.
                self._offer([contact], mask, now)
            elif mask:
                groups.setdefault(mask, []).append(contact)
            if (
                partial
                and not self._choosing.unicast
                and (contact.machine.state in SYNCED or contact.machine.peer_lacks)
            ):
                self._offer_partials(contact, now)
        # Neighbours that lack the same set are offered it in one broadcast. In a group that hears
        # one publisher this is the normal case.
        for mask, contacts in groups.items():
            if len(contacts) > 1 and self._concerns_all(mask, contacts):
                self._offer(contacts, mask, now)
            else:
                for contact in contacts:
                    self._offer([contact], mask, now)

    def _concerns_all(self, mask: int, lacking: list[ExchangeContact]) -> bool:
        """Return True if an offer may be broadcast.

        Neighbours that do not lack these messages have them, and ask for none.
        """
        usable = self._contacts.all
        if self._choosing.unicast or not all(contact.link.broadcast for contact in lacking):
            return False
        if len(lacking) == len(usable):
            return True
        lacks = set(lacking)
        others = (contact for contact in usable if contact not in lacks)
        return not any(mask & ~contact.link.known for contact in others)

    def new_for(self, contact: ExchangeContact, among: int | None = None) -> int:
        """Return the slots that may be offered: the neighbour wants them, and neither has them nor is about to.

        `among`: only these slots of whole messages; by default all of them.
        """
        view, link = contact.view, contact.link
        if view is None:
            return 0
        whole = self._cache.whole if among is None else among
        mask = view.matches & whole
        if self._index.listed:
            mask |= self._naming(contact, whole & self._index.listed & ~mask)
        mask ^= mask & link.known  # As `without`, which would be four calls for each neighbour of each message.
        # Not agreed yet: only what the neighbour's own run has shown it to lack (rule 4 of
        # `exchange_contact`).
        if mask and contact.machine.state not in SYNCED:
            mask &= contact.machine.peer_lacks
        if mask:
            mask ^= mask & (link.unconfirmed.slots | contact.offers.offered | self._holdings.withheld)
        if mask and self._choosing.chooses:
            mask = self._choosing.choose(contact, mask, self._holdings.now_us)
        return mask

    def wanted(self, contact: ExchangeContact, mask: int) -> int:
        """Return those of these slots whose messages are for the neighbour itself."""
        view, listed = contact.view, mask & self._index.listed
        found = self._naming(contact, listed) if listed else 0
        if view is not None and (others := mask & ~listed):
            found |= view.wanted(others, self._cache.copies, contact.link.node)
        return found

    def _naming(self, contact: ExchangeContact, mask: int) -> int:
        """Return the slots whose recipient lists name the neighbour, which wants them whatever its profile says."""
        naming, copies, left_of = contact.offers.naming, self._cache.copies, self._holdings.recipients.left
        # Lists are read once per contact and message. To read them again for each offer would cost
        # their length each time.
        if fresh := naming.fresh(mask):
            node = contact.link.node
            found = [copy for slot in bits(fresh) if (copy := copies[slot]) is not None]
            naming.found |= mask_of([copy.slot for copy in found if node in left_of(copy.descriptor)])
        return mask & naming.found

    def _offer(self, contacts: list[ExchangeContact], mask: int, now: int) -> None:
        """Offer messages to one neighbour, or to several by broadcast."""
        # Both bounds protect the neighbour, too: there is a limit to the offers that it can
        # remember (`offers_open_max`).
        pages, most = self._room(contacts, mask)
        if pages <= 0 or most <= 0:
            return
        frames: list[Frame] = []
        entry_of = self._holdings.entry_of
        link = contacts[0].link
        for page in self._pages(self._ranked(contacts[0], mask, most), link.body_bytes_max)[:pages]:
            offer = self._page([copy.entry or entry_of(copy) for copy in page])
            frames.append(offer)
            if len(contacts) == 1:
                frames += self._beside(contacts[0], offer)
            page_mask = mask_of([copy.slot for copy in page])
            for contact in contacts:
                self._note_offer(contact, page_mask, now)
        if frames and len(contacts) == 1:
            link.send(frames)
        elif frames:
            self._outputs.broadcast(frames)

    def _beside(self, contact: ExchangeContact, offer: Offer) -> Sequence[Frame]:  # noqa: ARG002 - for others
        """Return the frames that follow an offer to one neighbour, whenever it is sent."""
        return ()

    def _room(self, contacts: Sequence[ExchangeContact], mask: int) -> tuple[int, int]:  # noqa: ARG002 - however many there are
        """Return the number of pages, and of messages, that may be offered now."""
        pages = OPEN_PAGES_MAX - max(len(each.offers.open) for each in contacts)
        page_entries = contacts[0].link.body_bytes_max // _ENTRY_BYTES  # At most; ids take their part of it.
        most = min(_OPEN_JOBS_MAX - max(len(each.link.outbox.jobs) for each in contacts), pages * page_entries)
        return pages, most

    def _note_offer(self, contact: ExchangeContact, mask: int, now: int) -> None:
        offering = contact.offers
        offer = offering.open[self._serial] = OpenOffer(mask)
        offering.offered |= mask
        offering.offered_us = now
        self._wait_for_answer(contact, offer, now)

    def _wait_for_answer(self, contact: ExchangeContact, offer: OpenOffer, now: int) -> None:
        """Arm the timer of an offer: longer after each try, and longer on a slow link."""
        # On a slow link an offer that is repeated too soon only delays its own answer.
        offer.due_us = due_us = now + contact.link.outbox.recovery.answer_us(offer.tries)
        contact.timers.hasten(OFFER_AGAIN, due_us)

    def _page(self, entries: list[OfferEntry]) -> Offer:
        self._serial = self._next_serial()
        return Offer(self._serial, tuple(entries))

    def _ranked(self, contact: ExchangeContact, mask: int, most: int) -> list[Copy]:
        """Return copies in the order of offering: those that the neighbour wants first, if this host ranks so."""
        view, copies, candidates = contact.view, self._cache.copies, contact.offers.candidates
        fresh = candidates.unranked(mask)
        wanted = fresh
        if view is not None and self._wanted_first:
            wanted = view.wanted(fresh, copies, contact.link.node)
        if not candidates and mask.bit_count() <= most:
            return self._in_order(wanted) + self._in_order(fresh & ~wanted)  # As mostly: nothing is left for later.
        candidates.rank(fresh, wanted, copies)
        return candidates.first(mask, most, copies)

    def _in_order(self, mask: int) -> list[Copy]:
        """Return the copies of these slots in the order in which they are sent."""
        copies = self._cache.copies
        return sorted([copy for slot in bits(mask) if (copy := copies[slot]) is not None], key=_SENDING_ORDER)

    def _pages(self, copies: list[Copy], page_bytes: int) -> list[list[Copy]]:
        pages: list[list[Copy]] = []
        page: list[Copy] = []
        room = 0
        for copy in copies:
            size = len(copy.id) + _ENTRY_BYTES
            if size > room or len(page) >= self._entries_max:
                page = []
                pages.append(page)
                room = page_bytes
            page.append(copy)
            room -= size
        return pages

    def _offer_partials(self, contact: ExchangeContact, now: int) -> None:
        """Offer half-received messages with the pieces that are here, and again when there are more."""
        view, cache = contact.view, self._cache
        if view is None or not cache.partial:
            return
        # A relay offers more as soon as its last offer is served: it passes on the first pieces while others come.
        prompt = self._few_links() and _idle(contact)
        if now < contact.offers.partials_us and not prompt:
            contact.timers.hasten(OFFER, contact.offers.partials_us)
            return
        mask = view.matches & cache.partial & ~contact.link.known & ~self._holdings.withheld
        if self._choosing.chooses:
            mask = self._choosing.choose(contact, mask, now)
        contact.offers.partials_us = now + _PARTIAL_US
        partials = contact.offers.partials
        for slot in bits(mask):
            copy = cache.copies[slot]
            if copy is None or partials.get(slot) == copy.held or self._wants.whole_at(contact.link, copy.id):
                continue
            partials[slot] = copy.held
            handle = self._holdings.handle_of(copy)
            pieces = to_bitmap(copy.held)
            entry = OfferEntry(copy.id, handle, copy.descriptor.length, copy.privilege, pieces)
            offer = self._page([entry])
            self._note_offer(contact, 0, now)
            contact.link.send((offer,))

    def repeat(self, contact: ExchangeContact, now: int) -> None:
        """Repeat offers without an answer, under the same serial, so that an answer to either transmission counts."""
        offering, copies = contact.offers, self._cache.copies
        if now > contact.overdue_us:
            offering.stall()
            return
        waiting = [offer.due_us for offer in offering.open.values() if offer.due_us > now]
        contact.timers.arm(OFFER_AGAIN, min(waiting, default=NEVER))
        frames: list[Frame] = []
        for serial, offer in list(offering.open.items()):
            if offer.due_us > now:
                continue
            # Messages may have gone meanwhile, or become known by other ways: the repetition lists
            # only the rest. An offer of which nothing is left is closed, not repeated empty.
            mask = offer.mask & self._cache.whole & ~contact.link.known & ~self._holdings.withheld
            if self._choosing.chooses:
                mask = self._choosing.choose(contact, mask, now)
            entries = [self._holdings.entry_of(copy) for slot in bits(mask) if (copy := copies[slot]) is not None]
            if entries:
                offer.tries += 1
                self._wait_for_answer(contact, offer, now)
                frames.append(again := Offer(serial, tuple(entries)))
                frames += self._beside(contact, again)
                continue
            del offering.open[serial]
            offering.offered &= ~offer.mask
            contact.timers.arm(OFFER, now)  # What it kept from being offered may go out at the end of this step.
            if not offer.mask:
                offering.partials.clear()
        if frames:
            contact.link.send(frames)

    # --- what is asked for ---------------------------------------------------------------------------------

    def receive_request(self, contact: ExchangeContact, frame: Request, now: int) -> None:
        """Queue what the neighbour asks for."""
        link = contact.link
        answered = [mask for serial in frame.offers if (mask := contact.offers.answered(serial)) is not None]
        for mask in answered:
            link.learn(mask)
        view = contact.view if self._wanted_first else None
        asked = self._server.serve(link, frame, view, now, answers=bool(answered))
        if self.new_for(contact) and self._prompt(contact):
            contact.timers.arm(OFFER, now)
        if asked:
            self._wait_for_others(contact, asked, now)
        else:
            self._end_turn(contact, now)

    def all_answered(self, contact: ExchangeContact, now: int) -> None:
        """Offer what had to wait for open offers, now that all of them are answered."""
        if contact.timers.due[OFFER] == NEVER and self.new_for(contact):
            contact.timers.arm(OFFER, now)

    def _wait_for_others(self, contact: ExchangeContact, asked: int, now: int) -> None:
        """Delay the burst a moment if others were offered the same: one transmission may then serve several."""
        outbox = contact.link.outbox
        if outbox.recovery.in_flight or not self._share_wait_us:
            return
        for other in self._contacts.all:
            if other.offers.offered & asked and other is not contact:
                outbox.wait(now + self._share_wait_us)
                return

    def acknowledged(self, contact: ExchangeContact, now: int) -> None:
        """Offer more, or end the turn, once the neighbour has acknowledged everything."""
        if not contact.link.outbox.jobs:
            if self._prompt(contact) and (self.new_for(contact) or (self._cache.partial and self._few_links())):
                contact.timers.arm(OFFER, now)
            self._end_turn(contact, now)

    def _prompt(self, contact: ExchangeContact) -> bool:
        """Return True if more may be offered as soon as there is room.

        With `offer_s_min`, new messages wait for their own time instead.
        """
        return not self._gap_us or contact.timers.due[OFFER] == NEVER

    def _few_links(self) -> bool:
        """Return True with few neighbours: this host probably is the only relay between them."""
        return len(self._contacts.all) <= _FEW_LINKS

    @staticmethod
    def _end_turn(contact: ExchangeContact, now: int) -> None:
        """Begin this host's own run, once the neighbour has what its run had shown it to lack."""
        agreement = contact.machine
        if agreement.peer_lacks and not (contact.link.outbox.jobs or contact.offers.open):
            contact.timers.arm(REVIEW, now)


def _idle(contact: ExchangeContact) -> bool:
    """Return True if nothing is offered to the neighbour or on its way to it."""
    return not (contact.offers.open or contact.link.outbox.jobs)


class Fresh:
    """The messages that one host sends unasked, and the neighbours that it sends them to."""

    def __init__(
        self,
        context: HostContext,
        pushes: Pushes,
        contacts: Contacts[ExchangeContact],
        offers: Offers,
        *,
        on: bool = True,
    ) -> None:
        self._pushes = pushes
        self._contacts = contacts
        self._offers, self._cache = offers, context.holdings.cache
        self._coalesce_us = round(context.settings.coalesce_s * 1e6)
        self.on = on and bool(pushes.bytes_max) and not context.settings.paper_mode
        """True if anything is pushed at all."""

    def push(self, fresh: Sequence[Arrival], now: int) -> list[ExchangeContact]:
        """Send new messages to neighbours that lack them, or await them where their giver sends them, too.

        Returns the neighbours to which some have to be offered: those messages do not fit, or no comparison is over
        yet.
        """
        # A copy may have been turned away by its order in the meantime.
        slots = mask_of([arrival.copy.slot for arrival in fresh]) & self._cache.whole
        chosen: dict[Link, list[Copy]] = {}
        lacking: list[tuple[ExchangeContact, int]] = []
        others: list[ExchangeContact] = []
        for contact in self._contacts.all:
            # An overdue neighbour may be out of range: a push to it would be lost, and its offer
            # waits for it.
            if contact.machine.state not in SYNCED or now > contact.overdue_us:
                others.append(contact)
            elif mask := self._offers.new_for(contact, slots):
                link = contact.link
                for copy, giver, serial in fresh:
                    if not mask >> copy.slot & 1:
                        continue
                    if giver is None or link.prefix not in giver.heard:
                        chosen.setdefault(link, []).append(copy)
                    elif serial is not None:
                        link.unconfirmed.add(giver.prefix, serial, copy.slot, now)
                if mask & ~link.unconfirmed.slots:
                    lacking.append((contact, mask))
        if chosen:
            self._pushes.push(chosen, now, broadcast=len(chosen) > 1 and self._welcome(chosen))
        return others + [contact for contact, mask in lacking if mask & ~contact.link.unconfirmed.slots]

    def _welcome(self, chosen: Mapping[Link, Sequence[Copy]]) -> bool:
        """Return True if these may be broadcast: all are sent the same, and no neighbour in range would refuse any."""
        first = next(iter(chosen.values()))
        if not all(copies == first for copies in chosen.values()):
            return False
        mask = mask_of([copy.slot for copy in first])
        for contact in self._contacts.all:
            link, view = contact.link, contact.view
            if link in chosen:
                if not link.broadcast:
                    return False
            # A neighbour that did not ask for this message would have to read it and refuse it. So
            # a broadcast needs every neighbour to want the message or to have it already.
            elif mask & ~(link.known | link.unconfirmed.slots | (view.matches if view is not None else 0)):
                return False
        return True

    def offer_lost(self, contact: ExchangeContact, now: int) -> None:
        """Offer messages whose pushes did not arrive."""
        own, awaited = contact.link.unconfirmed.pop_lost()
        if own:
            contact.timers.hasten(OFFER, now)
        elif awaited:
            contact.timers.hasten(OFFER, now + self._coalesce_us)
