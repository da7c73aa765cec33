"""Fresh messages, which are sent on unasked as soon as they are here, to neighbours that have agreed and want them.

Everybody whom its giver lists as heard was sent it by the giver as well. So it is not sent there: its arrival is
awaited, and only what does not arrive is offered. Thus one broadcast among neighbours that all hear each other is all
that it takes. What is lost is offered (`gossip.strategy.offers`): an own push at once, an awaited one after a moment,
since others who await it offer it, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from carrypost.gossip.slots import mask_of
from carrypost.gossip.strategy.states import SYNCED
from carrypost.gossip.timers import OFFER

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from carrypost.gossip.holdings.copies import Copy
    from carrypost.gossip.strategy.beliefs import ExchangeContact
    from carrypost.gossip.strategy.contacts import Contacts
    from carrypost.gossip.strategy.offers import Offers
    from carrypost.gossip.transfers.ground import Ground
    from carrypost.gossip.transfers.link import Link
    from carrypost.gossip.transfers.pushes import Pushes
    from carrypost.gossip.transfers.receptions import Arrival


class Fresh:
    """The choice of one host of what is sent unasked, and to whom."""

    def __init__(self, ground: Ground, pushes: Pushes, contacts: Contacts[ExchangeContact], offers: Offers) -> None:
        self._pushes = pushes
        self._contacts = contacts
        self._offers = offers
        self._coalesce_us = round(ground.settings.coalesce_s * 1e6)
        self.on = bool(pushes.bytes_max) and not ground.settings.paper_mode
        """True if anything is pushed at all."""

    def push(self, fresh: Sequence[Arrival], now: int) -> list[ExchangeContact]:
        """Send messages that are new here to those who lack them, or await them where their giver sends them, too.

        Returns those to whom some of them are to be offered: they do not fit, or it is not agreed yet what they lack.
        """
        slots = mask_of([arrival.copy.slot for arrival in fresh])
        chosen: dict[Link, list[Copy]] = {}
        lacking: list[tuple[ExchangeContact, int]] = []
        others: list[ExchangeContact] = []
        for contact in self._contacts.all:
            if contact.agreement.state not in SYNCED or now > contact.overdue_us:
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
        """Return True if these may be broadcast: they are the same for all, and nobody in reach would refuse them."""
        first = next(iter(chosen.values()))
        if not all(copies == first for copies in chosen.values()):
            return False
        mask = mask_of([copy.slot for copy in first])
        for contact in self._contacts.all:
            link, view = contact.link, contact.view
            if link in chosen:
                if not link.broadcast:
                    return False
            elif mask & ~(link.known | link.unconfirmed.slots | (view.matches if view is not None else 0)):
                return False
        return True

    def offer_lost(self, contact: ExchangeContact, now: int) -> None:
        """Offer what was pushed and did not arrive."""
        own, awaited = contact.link.unconfirmed.take_lost()
        if own:
            contact.timers.hasten(OFFER, now)
        elif awaited:
            contact.timers.hasten(OFFER, now + self._coalesce_us)
