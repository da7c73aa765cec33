"""First contact: there is one copy of each message, which goes to whichever host comes first (Jain et al., 2004).

A host drops its copy once the neighbour has confirmed that it stored the message. If the confirmation is lost, or says
only that the message arrived, as from hosts with other strategies that are not for routing, both have a copy: a message
may double, and never vanishes. A host that handed a message over does not take it again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from carrypost.gossip.slots import bits, mask_of
from carrypost.gossip.strategy.exchange import Routed
from carrypost.log.events import Reason

if TYPE_CHECKING:
    from carrypost.gossip.strategy.exchange_contact import ExchangeContact


class FirstContact(Routed):
    """The strategy that hands messages over."""

    def relay(self, contact: ExchangeContact, mask: int, now: int) -> int:  # noqa: ARG002 - as others have it
        """Choose everything that is not the neighbour's own, and not offered, or on its way, to another one."""
        for other in self.contacts.all if len(self.contacts.all) > 1 else ():
            if other is not contact:
                mask &= ~(other.offers.offered | mask_of(other.link.outbox.jobs))
        # An author that has forgotten its message in a crash would acknowledge it, and not carry it.
        copies, author = self._cache.copies, contact.link.node
        return mask_of([slot for slot in bits(mask) if (copy := copies[slot]) and copy.descriptor.node != author])

    def gave(self, contact: ExchangeContact, mask: int, *, stored: bool, now: int) -> None:  # noqa: ARG002
        """Drop what the neighbour has stored. What is only in its memory would vanish if it crashed."""
        if stored:
            self._cache.throw_out(self._holdings.at(mask), Reason.FORWARDED)
