"""PRoPHET: a message goes to hosts that are more likely to meet its recipient (Lindgren et al., 2003).

Two hosts that meet send each other their tables (`Encounters`). Once the neighbour's table is complete, it gets the
messages for whose recipients its probability is the higher one; before, it gets only its own. Messages that are for all
subscribers go to every neighbour. A table is sent at the beginning of a contact, and again with each comparison of the
two sets; it raises probabilities once in a contact.

A neighbour may claim any probability, and so attract messages. Nothing here can tell a lie from a good carrier.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from carrypost.errors import RemoteError
from carrypost.gossip.slots import bits
from carrypost.gossip.strategy.encounter_table import EncounterTable, node_key
from carrypost.gossip.strategy.routed import Routed
from carrypost.gossip.timers import OFFER
from carrypost.gossip.wire.frames import Encounters
from carrypost.gossip.wire.routing_frames import ENTRY_BYTES, packed_entries, unpacked_entries
from carrypost.model.recipients import recipients

if TYPE_CHECKING:
    from collections.abc import Sequence

    from carrypost.gossip.strategy.exchange_contact import ExchangeContact
    from carrypost.gossip.transfers.arrivals import Arrival
    from carrypost.gossip.transfers.host_context import HostContext
    from carrypost.gossip.transfers.link import Link
    from carrypost.gossip.transfers.removals import Removals
    from carrypost.gossip.transfers.transfers import Transfers


class _Heard:
    """The table of one neighbour in one contact, and its consequences."""

    __slots__ = ("better", "met", "parts", "revision", "since_us", "table", "used")

    def __init__(self) -> None:
        self.parts: dict[int, bytes] = {}
        """Parts of a table that is not complete yet, by number."""
        self.table: dict[bytes, int] = {}
        """The latest complete table."""
        self.since_us = -1
        """Time at which that was complete; -1: none was."""
        self.met = self.used = False
        """True once the contact counted as an encounter, and once the table raised probabilities."""
        self.better, self.revision = 0, -1
        """Slots for whose recipients the neighbour is the better carrier, as of a revision."""


class Prophet(Routed):
    """The strategy that follows probabilities."""

    def __init__(self, context: HostContext, transfers: Transfers, departures: Removals) -> None:
        super().__init__(context, transfers, departures)
        self.table = EncounterTable(context.settings)
        self._own, self._entries_max = node_key(context.node), context.limits.encounters_max
        self._heard: dict[Link, _Heard] = {}
        self._slots: dict[bytes, int] = {}
        """Slots of the messages for each recipient; b"": for all subscribers."""
        self._keys: dict[int, tuple[bytes, ...]] = {}
        """The recipients of each slot, as they are in `_slots`."""
        self._indexed = self._revision = 0
        """Slots that are in `_slots`; and a number that rises with changes of the own table."""
        context.links.handlers[Encounters] = self.receive_encounters

    def begin(self, link: Link) -> ExchangeContact:
        """Begin a contact, in which the neighbour has said nothing yet."""
        self._heard[link] = _Heard()
        return super().begin(link)

    def meet(self, contact: ExchangeContact, now: int) -> None:
        """Count the encounter, and send the table."""
        heard = self._heard[contact.link]
        if not heard.met:
            heard.met = True
            self.table.met(node_key(contact.link.node), now)
            self._revision += 1
        self._send_table(contact.link, now)
        self._use(contact, heard, now)
        super().meet(contact, now)

    def compare(self, contact: ExchangeContact, now: int) -> None:
        """Send the table again with each comparison: the first one may be lost."""
        self._send_table(contact.link, now)
        super().compare(contact, now)

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

    def _is_better(self, heard: _Heard, key: bytes, now: int) -> bool:
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

    def _send_table(self, link: Link, now: int) -> None:
        entries, most = self.table.entries(now), link.body_bytes_max // ENTRY_BYTES
        parts = [entries[at : at + most] for at in range(0, len(entries), most)] or [[]]
        link.send([Encounters(part, len(parts), packed_entries(each)) for part, each in enumerate(parts)])

    def receive_encounters(self, link: Link, frame: Encounters, now: int) -> None:
        """Handle one part of the neighbour's table; raises `RemoteError` if the parts make none."""
        contact, heard = self.contacts.of(link), self._heard.get(link)
        if contact is None or heard is None:
            raise RemoteError("not-linked")
        link.work.did(len(frame.entries) // ENTRY_BYTES)
        parts = heard.parts
        parts[frame.part] = frame.entries
        if max(parts) >= frame.parts or sum(map(len, parts.values())) > self._entries_max * ENTRY_BYTES:
            heard.parts = {}  # They are of two tables, or of none.
            raise RemoteError("encounters")
        if len(parts) < frame.parts:
            return
        heard.parts = {}
        entries = [each for part in sorted(parts) for each in unpacked_entries(parts[part])]
        if len(found := dict(entries)) < len(entries):
            raise RemoteError("encounters")
        found.pop(node_key(link.node), None)
        if heard.since_us < 0:
            link.work.credit()
        heard.table, heard.since_us, heard.revision = found, now, -1
        self._use(contact, heard, now)

    def _use(self, contact: ExchangeContact, heard: _Heard, now: int) -> None:
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
