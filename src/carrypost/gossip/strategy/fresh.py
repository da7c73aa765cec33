"""Fresh messages: sent unasked, on arrival, to neighbours that have agreed on what they lack and want them."""

# The problem. In a group where all hosts hear each other, an offer costs three frames (offer,
# request, parcel) per message and neighbour, and every host that has the message makes that offer
# to every other. Data bytes per reception should fall as the group grows; with offers alone,
# control bytes grow instead.
#
# The way chosen. A small message goes out at once, in one broadcast if all neighbours that lack it
# may be sent the same. Each announcement lists the neighbours its sender hears. So a receiver knows
# which of its own neighbours heard the same broadcast: those that the giver lists. It does not send
# the message to them. It *awaits* their receipts instead (`transfers.unconfirmed`), and only a
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

from typing import TYPE_CHECKING

from carrypost.gossip.slots import mask_of
from carrypost.gossip.strategy.exchange_machine import SYNCED
from carrypost.gossip.timers import OFFER

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from carrypost.gossip.holdings.copies import Copy
    from carrypost.gossip.strategy.contacts import Contacts
    from carrypost.gossip.strategy.exchange_contact import ExchangeContact
    from carrypost.gossip.strategy.offers import Offers
    from carrypost.gossip.transfers.arrivals import Arrival
    from carrypost.gossip.transfers.host_context import HostContext
    from carrypost.gossip.transfers.link import Link
    from carrypost.gossip.transfers.pushes import Pushes


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
