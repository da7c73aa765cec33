"""PRoPHET: a message goes to hosts that are more likely to meet its recipient (Lindgren et al., 2003).

Two hosts that meet send each other their tables (`Encounters`). Once the neighbour's table is complete, it gets the
messages for whose recipients its probability is the higher one; before, it gets only its own. Messages that are for all
subscribers go to every neighbour. A table is sent at the beginning of a contact (`gossip.strategy.table_exchange`), and
again until it is known to have arrived; it raises probabilities once in a contact. Then the two hosts, most of whose
messages differ, compare their sets by a list (`gossip.strategy.lists`).

A neighbour may claim any probability, and so attract messages. Nothing here can tell a lie from a good carrier.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from carrypost.gossip.slots import bits
from carrypost.gossip.strategy.encounter_table import EncounterTable, node_key
from carrypost.gossip.strategy.exchange_machine import WAITING
from carrypost.gossip.strategy.heard_table import HeardTable
from carrypost.gossip.strategy.lists import Lists
from carrypost.gossip.strategy.routed import Routed
from carrypost.gossip.strategy.table_exchange import TableExchange
from carrypost.gossip.timers import OFFER, REVIEW
from carrypost.gossip.wire.frames import Encounters, Held, Listing, Names, NamesRequest
from carrypost.model.recipients import recipients

if TYPE_CHECKING:
    from collections.abc import Sequence

    from carrypost.gossip.strategy.exchange_contact import ExchangeContact
    from carrypost.gossip.transfers.arrivals import Arrival
    from carrypost.gossip.transfers.host_context import HostContext
    from carrypost.gossip.transfers.link import Link
    from carrypost.gossip.transfers.removals import Removals
    from carrypost.gossip.transfers.transfers import Transfers


class Prophet(Routed):
    """The strategy that follows probabilities."""

    def __init__(self, context: HostContext, transfers: Transfers, departures: Removals) -> None:
        super().__init__(context, transfers, departures)
        self._own = node_key(context.node)
        self.table = EncounterTable(context.settings, self._own)
        self._tables = TableExchange(context, self.table)
        self._lists = Lists(context, departures, self.review)
        self._heard: dict[Link, HeardTable] = {}
        self._slots: dict[bytes, int] = {}
        """Slots of the messages for each recipient; b"": for all subscribers."""
        self._keys: dict[int, tuple[bytes, ...]] = {}
        """The recipients of each slot, as they are in `_slots`."""
        self._indexed = self._revision = 0
        """Slots that are in `_slots`; and a number that rises with changes of the own table."""
        handlers = context.links.handlers
        handlers[Encounters] = self._over_contact(self._receive_table)
        handlers[NamesRequest] = self._over_contact(self._receive_request)
        handlers[Names] = self._over_contact(self._receive_names)
        handlers[Listing] = self._over_contact(self._receive_listing)
        handlers[Held] = self._over_contact(self._receive_held)

    def begin(self, link: Link) -> ExchangeContact:
        """Begin a contact, in which the neighbour has said nothing yet."""
        self._heard[link] = HeardTable()
        return super().begin(link)

    def meet(self, contact: ExchangeContact, now: int) -> None:
        """Count the encounter, and send the table."""
        heard = self._heard[contact.link]
        if not heard.met:
            heard.met = True
            self.table.met(node_key(contact.link.node), now)
            self._revision += 1
        self._tables.send(contact.link, self._heard[contact.link], now)
        self._use(contact, heard, now)
        if contact.link.is_old:
            super().meet(contact, now)
        elif not self._compare_by_list(contact, now):
            # A neighbour that sends no table has another strategy, or its table is lost.
            contact.timers.arm(REVIEW, now + contact.link.outbox.recovery.answer_us(0))

    def compare(self, contact: ExchangeContact, now: int) -> None:
        """Compare by a list if the neighbour's table came; otherwise by a review. Repeat a table that may be lost."""
        heard = self._heard[contact.link]
        if not heard.arrived:
            self._tables.send(contact.link, self._heard[contact.link], now)
        if heard.since_us < 0 or not self._lists.ask(contact, now):
            super().compare(contact, now)

    def _compare_by_list(self, contact: ExchangeContact, now: int) -> bool:
        """Begin the first comparison, if it is this host's turn and the neighbour's table is complete."""
        turn = self._heard[contact.link].since_us >= 0 and self.context.node < contact.link.node
        return turn and contact.machine.state is WAITING and self._lists.ask(contact, now)

    def _receive_listing(self, contact: ExchangeContact, frame: Listing, now: int) -> None:
        """Answer a list, which says that the own table arrived; not if the neighbour's table did not."""
        heard = self._heard[contact.link]
        heard.arrived = True
        if heard.since_us >= 0:
            self._lists.receive_listing(contact, frame, now)

    def _receive_held(self, contact: ExchangeContact, frame: Held, now: int) -> None:
        """Handle the answer to a list, which says that the own table arrived."""
        if self._lists.receive_held(contact, frame, now):
            self._heard[contact.link].arrived = True

    def end(self, contact: ExchangeContact, now: int) -> None:
        """End a contact."""
        del self._heard[contact.link]
        super().end(contact, now)

    def gained(self, now: int, *, fresh: Sequence[Arrival] = (), own: bool = False, partial: bool = False) -> None:
        """Index new messages by their recipients."""
        for copy, _, _ in fresh:
            self._index(copy.slot, now)
        super().gained(now, fresh=fresh, own=own, partial=partial)

    def relay(self, contact: ExchangeContact, mask: int, now: int) -> int:
        """Choose messages for whose recipients the neighbour is the better carrier."""
        heard = self._heard[contact.link]
        if heard.since_us < 0:
            return 0
        for slot in bits(mask & ~self._indexed):  # They are older than this incarnation.
            self._index(slot, now)
        if heard.revision != self._revision:
            heard.revision, heard.better = self._revision, 0
            for key, slots in self._slots.items():
                if slots and self._is_better(heard, key, now):
                    heard.better |= slots
        return mask & heard.better

    def _is_better(self, heard: HeardTable, key: bytes, now: int) -> bool:
        """Return True if a neighbour is a better carrier than this host to a recipient; b"": to all subscribers."""
        theirs = heard.table.get(key, 0)
        return not key or (theirs > 0 and theirs * self.table.ageing(now - heard.since_us) > self.table.units(key, now))

    def _index(self, slot: int, now: int) -> None:
        """Enter a message under its recipients, also in what is known of neighbours: arrivals are frequent."""
        copy, bit = self._cache.copies[slot], 1 << slot
        if copy is None:
            return
        for key in self._keys.get(slot, ()):
            self._slots[key] &= ~bit
        keys = self._keys[slot] = tuple([node_key(node) for node in recipients(copy.descriptor)]) or (b"",)
        for key in keys:
            self._slots[key] = self._slots.get(key, 0) | bit
        self._indexed |= bit
        for heard in self._heard.values():
            better = any(self._is_better(heard, key, now) for key in keys)
            heard.better = heard.better | bit if better else heard.better & ~bit

    # --- tables --------------------------------------------------------------------------------------------

    def _receive_table(self, contact: ExchangeContact, frame: Encounters, now: int) -> None:
        """Handle one part of the neighbour's table; raises `RemoteError` if the parts make none."""
        heard = self._heard[contact.link]
        self._complete(contact, heard, self._tables.read(contact.link, heard, frame, now), now)

    def _receive_request(self, contact: ExchangeContact, frame: NamesRequest, now: int) -> None:
        """Send the names of the own table."""
        self._tables.answer(contact.link, self._heard[contact.link], frame, now)

    def _receive_names(self, contact: ExchangeContact, frame: Names, now: int) -> None:
        """Handle the names of the neighbour's table; raises `RemoteError` for impossible ones."""
        heard = self._heard[contact.link]
        self._complete(contact, heard, self._tables.add_names(contact.link, heard, frame, now), now)

    def _complete(self, contact: ExchangeContact, heard: HeardTable, found: dict[bytes, int] | None, now: int) -> None:
        """Replace the neighbour's table by one that is complete."""
        if found is None:
            return
        found.pop(node_key(contact.link.node), None)
        if heard.since_us < 0:
            contact.link.work.credit()
        elif not heard.arrived and now - heard.sent_us > contact.link.outbox.recovery.answer_us(0):
            # The neighbour repeats its table because it waits for this one.
            self._tables.send(contact.link, heard, now)
        heard.table, heard.since_us, heard.revision = found, now, -1
        self._use(contact, heard, now)
        self._compare_by_list(contact, now)

    def _use(self, contact: ExchangeContact, heard: HeardTable, now: int) -> None:
        """Raise the own probabilities by the neighbour's table, once in a contact, and offer what follows from it."""
        if heard.since_us < 0 or not heard.met:
            return
        if not heard.used:
            heard.used = True
            # The neighbour learns from the table that it was sent, too. It is compared as it is then:
            # as it was, it would seem to be the worse carrier of what both know.
            mutual, mine = heard.table.pop(self._own, 0), dict(self.table.entries(now))
            self.table.learn(node_key(contact.link.node), heard.table, now)
            heard.table = {
                key: units + self.table.gain(units, mutual, mine.get(key, 0)) for key, units in heard.table.items()
            }
            self._revision += 1
        heard.table.pop(self._own, None)
        contact.timers.hasten(OFFER, now)
