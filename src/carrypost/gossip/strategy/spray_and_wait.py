"""Spray-and-wait: of each message there are a few tickets, and a host with one ticket waits (Spyropoulos et al., 2005).

An author begins with `spray_copies` tickets. A host with more than one gives a neighbour half of them (`spray_binary`,
rounded down) or one, with the message. With its last ticket a host waits for the recipient. A delivery takes tickets,
too, as in The ONE, which therefore counts deliveries as copies.
"""

# What must hold: the tickets of a message never become more, whatever is lost.
#
# - Tickets are *reserved* when a message is offered, and stay reserved until the neighbour confirms
#   the message or the contact ends: during a contact a neighbour may request what it was offered at
#   any time, even if it answered at first that it did not want it.
# - At the end of a contact they return if the neighbour cannot have the message: it declined or did
#   not request it, or not all of it was sent. In doubt they are spent.
# - A receiver takes them only with a message that becomes whole over the same link, in the same
#   contact. A message that comes without them has one ticket, with which a host waits.
#
# Tickets are not stored. After a crash each copy has one.

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from carrypost.errors import RemoteError
from carrypost.gossip.slots import bits
from carrypost.gossip.strategy.exchange import Routed
from carrypost.gossip.strategy.offers import OPEN_PAGES_MAX, Offers
from carrypost.gossip.wire.frames import Frame, Offer, Tickets

if TYPE_CHECKING:
    from collections.abc import Sequence

    from carrypost.gossip.holdings.copies import Copy
    from carrypost.gossip.strategy.exchange_contact import ExchangeContact
    from carrypost.gossip.strategy.strategy import Contacts
    from carrypost.gossip.transfers.arrivals_and_removals import Arrival, Removals
    from carrypost.gossip.transfers.link import HostContext, Link
    from carrypost.gossip.transfers.transfers import Transfers
    from carrypost.model.ids import MessageId


class _Reserved:
    """The tickets that are reserved for one neighbour in one contact."""

    __slots__ = ("by_slot", "mask")

    def __init__(self) -> None:
        self.by_slot: dict[int, tuple[Copy, int]] = {}
        self.mask = 0


class TicketLedger:
    """The tickets of one host's copies: those that it has, and those that are reserved for neighbours."""

    def __init__(self, context: HostContext) -> None:
        self._binary = context.settings.spray_binary
        self._copies = context.holdings.cache.copies
        self._held: dict[int, int] = {}
        """Tickets by slot, if their number is not one. Entries of slots without a copy are outdated."""
        self.several = 0
        """Slots with more than one ticket."""
        self._reserved: dict[Link, _Reserved] = {}

    def of(self, slot: int) -> int:
        """Return the number of tickets that may be given away."""
        return self._held.get(slot, 1)

    def set(self, slot: int, number: int) -> None:
        """Set the number of tickets of a copy."""
        bit = 1 << slot
        self.several = self.several | bit if number > 1 else self.several & ~bit
        if number == 1:
            self._held.pop(slot, None)
        else:
            self._held[slot] = number

    def reserved(self, link: Link) -> int:
        """Return the slots that are reserved for a neighbour."""
        found = self._reserved.get(link)
        return 0 if found is None else found.mask

    def reserve(self, link: Link, copy: Copy) -> int:
        """Reserve tickets of a copy that has several for a neighbour, unless that was done; return their number."""
        mine = self._reserved.setdefault(link, _Reserved())
        found = mine.by_slot.get(copy.slot)
        if found is None or found[0] is not copy:
            held = self.of(copy.slot)
            found = mine.by_slot[copy.slot] = copy, held // 2 if self._binary else 1
            mine.mask |= 1 << copy.slot
            self.set(copy.slot, held - found[1])
        return found[1]

    def spend(self, link: Link, mask: int) -> None:
        """Spend the tickets of messages that the neighbour has; one of each that it got without an offer."""
        mine = self._reserved.get(link, _Reserved())
        mine.mask &= ~mask
        for slot in bits(mask):
            if mine.by_slot.pop(slot, None) is None:
                self.set(slot, max(1, self.of(slot) - 1))

    def end(self, link: Link) -> None:
        """Return the tickets of messages that the neighbour cannot have, before its link is cleared."""
        for slot, (copy, number) in self._reserved.pop(link, _Reserved()).by_slot.items():
            job = link.outbox.jobs.get(slot)
            if (job is None or not job.exhausted) and self._copies[slot] is copy and copy.here:
                self.set(slot, self.of(slot) + number)


class _TicketedOffers(Offers):
    """Offers that are followed by their tickets."""

    def __init__(
        self, context: HostContext, transfers: Transfers, contacts: Contacts[ExchangeContact], strategy: SprayAndWait
    ) -> None:
        super().__init__(context, transfers, contacts, strategy)
        self._ledger = strategy.tickets

    def _offer(self, contacts: list[ExchangeContact], mask: int, now: int) -> None:
        """Offer messages with tickets to give away, then those for the neighbour itself that have only one."""
        several = mask & (self._ledger.several | self._ledger.reserved(contacts[0].link))
        for part in (several, mask & ~several):
            if part:
                super()._offer(contacts, part, now)

    def _beside(self, contact: ExchangeContact, offer: Offer) -> Sequence[Frame]:
        several = self._ledger.several | self._ledger.reserved(contact.link)
        copies = [copy for entry in offer.entries if (copy := self._cache.get(entry.message)) is not None]
        if not all(several >> copy.slot & 1 for copy in copies):
            return ()
        return (Tickets(offer.serial, tuple([self._ledger.reserve(contact.link, copy) for copy in copies])),)


class SprayAndWait(Routed):
    """The strategy in which a message has a number of tickets."""

    def __init__(self, context: HostContext, transfers: Transfers, departures: Removals) -> None:
        super().__init__(context, transfers, departures)
        self.tickets = TicketLedger(context)
        self.offers: Offers = _TicketedOffers(context, transfers, self.contacts, self)
        self._most, self._promised_max = context.settings.spray_copies, context.limits.offers_open_max
        self._offered: dict[Link, OrderedDict[int, tuple[MessageId, ...]]] = {}
        """By serial: the latest offers of each neighbour, until their tickets come."""
        self._promised: dict[Link, dict[MessageId, int]] = {}
        """The tickets that come with messages of each neighbour; at most `limits.offers_open_max`."""
        context.links.handlers[Tickets] = self.receive_tickets

    def relay(self, contact: ExchangeContact, mask: int, now: int) -> int:  # noqa: ARG002 - as others have it
        """Choose what has more than one ticket, or has tickets that are reserved for this neighbour."""
        return mask & (self.tickets.several | self.tickets.reserved(contact.link))

    def gave(self, contact: ExchangeContact, mask: int, *, stored: bool, now: int) -> None:  # noqa: ARG002
        """Spend the tickets that went with these messages."""
        self.tickets.spend(contact.link, mask)

    def gained(self, now: int, *, fresh: Sequence[Arrival] = (), own: bool = False, partial: bool = False) -> None:
        """Give new messages their tickets: all to own ones, to others those that came with them."""
        for copy, giver, _ in fresh:
            promised = {} if giver is None else self._promised.get(giver, {})
            self.tickets.set(copy.slot, self._most if own else promised.pop(copy.id, 1))
        super().gained(now, fresh=fresh, own=own, partial=partial)

    def end(self, contact: ExchangeContact, now: int) -> None:
        """End a contact, and return what was reserved for it and did not arrive."""
        self.tickets.end(contact.link)
        self._offered.pop(contact.link, None)
        self._promised.pop(contact.link, None)
        super().end(contact, now)

    def receive_offer(self, link: Link, frame: Offer, now: int) -> None:
        """Handle an offer, and remember it for its tickets."""
        super().receive_offer(link, frame, now)
        if self.contacts.of(link) is not None:
            offered = self._offered.setdefault(link, OrderedDict())
            offered[frame.serial] = tuple([entry.message for entry in frame.entries])
            while len(offered) > OPEN_PAGES_MAX:
                offered.popitem(last=False)

    def receive_tickets(self, link: Link, frame: Tickets, now: int) -> None:  # noqa: ARG002 - as handlers have it
        """Note the tickets of an offer; raises `RemoteError` if they do not fit one."""
        link.work.did(len(frame.copies))
        messages = self._offered.get(link, OrderedDict()).pop(frame.serial, ())
        sound = len(messages) == len(frame.copies) and all(1 <= number <= self._most for number in frame.copies)
        if not sound or not messages:
            raise RemoteError("tickets")
        link.work.credit()
        promised = self._promised.setdefault(link, {})
        for message, number in zip(messages, frame.copies, strict=True):
            copy = self._cache.get(message)
            if (copy is None or not (copy.whole or copy.finished)) and len(promised) < self._promised_max:
                promised[message] = number
