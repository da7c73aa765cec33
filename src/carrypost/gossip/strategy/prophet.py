"""PRoPHET: a message goes to hosts that are more likely to meet its recipient (Lindgren et al., 2003).

Two hosts that meet send each other their tables of encounters. Once the neighbour's table is complete, it gets the
messages for whose recipients its probability is the higher one; before, it gets only its own. Messages that are for all
subscribers go to every neighbour. A table raises probabilities once in a contact. Then the two hosts, most of whose
messages differ, compare their sets by a list (`gossip.strategy.lists`).

A neighbour may claim any probability, and so attract messages. Nothing here can tell a lie from a good carrier.

A host has its own table, and those of its neighbours:

    encounter:    P(a,b) <- P(a,b) + (1 - P(a,b)) * prophet_p_init
    ageing:       P(a,b) <- P(a,b) * prophet_gamma ^ (time / prophet_unit_s)
    transitivity: P(a,c) <- P(a,c) + (1 - P(a,c)) * P(a,b) * P(b,c) * prophet_beta

Probabilities are kept as they were at the last encounter. They age whenever they are read, and reading changes nothing.

Tables are asked for and answered (`Encounters`). The larger id asks when a contact begins, by its own table, and the
smaller id answers with its table and a list. Whatever is lost, a host that has no table of its neighbour asks again
when it compares. Hosts mostly know the same nodes, so a table is sent without names, beside their hash. A host that
knows other nodes answers with a table with names, which asks for one.
"""

from __future__ import annotations

import hashlib
import heapq
from itertools import chain
from math import exp, log
from typing import TYPE_CHECKING

from carrypost.errors import RemoteError
from carrypost.gossip.slots import bits, mask_of
from carrypost.gossip.strategy.exchange import Routed
from carrypost.gossip.strategy.exchange_contact import WAITING
from carrypost.gossip.strategy.lists import Lists
from carrypost.gossip.timers import OFFER, REVIEW
from carrypost.gossip.transfers.inbox import Parts
from carrypost.gossip.wire import frames as fr
from carrypost.gossip.wire.frames import CERTAIN, ENTRY_BYTES, NAMES_BYTES, Encounters, Held, Listing
from carrypost.model.descriptor_values import recipients
from carrypost.model.ids import node_prefix
from carrypost.model.times import MICROSECONDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from carrypost.config import Settings
    from carrypost.gossip.strategy.exchange_contact import ExchangeContact
    from carrypost.gossip.transfers.arrivals_and_removals import Removals
    from carrypost.gossip.transfers.link import HostContext, Link
    from carrypost.gossip.transfers.transfers import Transfers


class EncounterTable:
    """The table of one host; at most `limits.encounters_max` nodes, those that it is likeliest to meet."""

    def __init__(self, settings: Settings, own: bytes = b"") -> None:
        """`own`: the prefix of the host itself."""
        self._p_init, self._beta = settings.prophet_p_init, settings.prophet_beta
        self._rate = log(settings.prophet_gamma) / (settings.prophet_unit_s * MICROSECONDS)
        """Ageing in a microsecond, as an exponent."""
        self._most, self.own = settings.limits.encounters_max, own
        self._known: dict[bytes, float] = {}
        """Probabilities at the last encounter."""
        self._since_us = 0
        """Time of that."""
        self.nodes = [own]
        """The nodes known here, this one among them, ascending."""

    def _ageing(self, now: int) -> float:
        """Return the factor by which probabilities have fallen since the last encounter."""
        return exp(self._rate * (now - self._since_us))

    def units(self, nodes: Iterable[bytes], now: int) -> dict[bytes, int]:
        """Return the probabilities of nodes as tables on the wire have them."""
        known, scale = self._known, self._ageing(now) * CERTAIN
        return {node: round(known.get(node, 0.0) * scale) for node in nodes}

    def entries(self, now: int) -> dict[bytes, int]:
        """Return the table as it is sent: the probabilities of all nodes, 0 of this one."""
        return self.units(self.nodes, now)

    def met(self, node: bytes, now: int) -> None:
        """Count an encounter with a node."""
        self.add({node: CERTAIN}, self._p_init, now)

    def learn(self, node: bytes, table: Mapping[bytes, int], now: int) -> None:
        """Raise the probabilities of nodes that a node in reach is likely to meet."""
        self.add(table, self._known.get(node, 0.0) * self._ageing(now) * self._beta, now)

    def add(self, table: Mapping[bytes, int], share: float, now: int) -> None:
        """Raise probabilities by a share of what is missing to certainty and of what a table says."""
        ageing, share = self._ageing(now), share / CERTAIN
        known = {node: each * ageing for node, each in self._known.items()}
        for node, units in table.items():
            if units and node != self.own:
                probability = known.get(node, 0.0)
                known[node] = probability + (1 - probability) * share * units
        if len(known) > self._most:
            known = {node: known[node] for node in heapq.nlargest(self._most, known, key=known.__getitem__)}
        if known.keys() != self._known.keys():
            self.nodes = sorted([self.own, *known])
        self._known, self._since_us = known, now

    def names(self) -> bytes:
        """Return the hash of the names of all `nodes`."""
        return hashlib.sha256(b"".join(self.nodes)).digest()[:NAMES_BYTES]


class Prophet(Routed):
    """The strategy that follows probabilities."""

    def __init__(self, context: HostContext, transfers: Transfers, departures: Removals) -> None:
        super().__init__(context, transfers, departures)
        self.table = EncounterTable(context.settings, node_prefix(context.node))
        self._parts = Parts(context.limits.descriptor_buffer_bytes_max)
        self._lists = Lists(context, departures, self.review)
        self._heard: dict[Link, EncounterTable] = {}
        """The tables of neighbours that are complete."""
        handlers = context.links.handlers
        handlers[Encounters] = self._over_contact(self._receive_table)
        handlers[Listing] = self._over_contact(self._receive_listing)
        handlers[Held] = self._over_contact(self._lists.receive_held)

    def begin(self, link: Link) -> ExchangeContact:
        """Begin a contact, and count the encounter."""
        self.table.met(link.prefix, self._holdings.now_us)
        self.reconsider()
        return super().begin(link)

    def meet(self, contact: ExchangeContact, now: int) -> None:
        """Ask for the neighbour's table; the smaller id waits to be asked, and begins to compare then."""
        if self.context.node > contact.link.node:
            contact.link.send(self._frames(contact.link, now, asks=True))
        # A neighbour that sends no table has another strategy, or its table is lost.
        contact.timers.arm(REVIEW, now + contact.link.outbox.recovery.answer_us(0))

    def compare(self, contact: ExchangeContact, now: int) -> None:
        """Compare by a list if the neighbour's table came; otherwise ask for it again, and compare by a review."""
        if contact.link not in self._heard:
            contact.link.send(self._frames(contact.link, now, asks=True))
            super().compare(contact, now)
        elif not self._lists.ask(contact, now):
            super().compare(contact, now)

    def end(self, contact: ExchangeContact, now: int) -> None:
        """End a contact."""
        self._heard.pop(contact.link, None)
        self._parts.leave(contact.link.peer)
        super().end(contact, now)

    def relay(self, contact: ExchangeContact, mask: int, now: int) -> int:
        """Choose messages for whose recipients the neighbour is the better carrier, and those for all subscribers."""
        theirs, carried, copies = self._heard.get(contact.link), contact.offers.carried, self._cache.copies
        if theirs is None:
            return 0
        if fresh := carried.fresh(mask):
            found = [copy for slot in bits(fresh) if (copy := copies[slot]) is not None]
            nodes = {copy.slot: list(map(node_prefix, recipients(copy.descriptor))) for copy in found}
            mine, their = (each.units(chain(*nodes.values()), now) for each in (self.table, theirs))
            better = {node for node in mine if their[node] > mine[node]}
            carried.found |= mask_of([slot for slot, each in nodes.items() if not each or not better.isdisjoint(each)])
        return mask & carried.found

    def _receive_listing(self, contact: ExchangeContact, frame: Listing, now: int) -> None:
        """Answer a list, unless the neighbour's table was lost: a host that has agreed would not ask for it again."""
        if contact.link in self._heard:
            self._lists.receive_listing(contact, frame, now)

    # --- tables --------------------------------------------------------------------------------------------

    def _frames(self, link: Link, now: int, *, asks: bool, named: bool = False) -> list[Encounters]:
        """Return the own table, in parts if it is long."""
        entries, names = self.table.entries(now), b"" if named else self.table.names()
        packed = fr.packed_entries(entries.items()) if named else fr.packed_levels(entries.values())
        parts = fr.cut(packed, link.body_bytes_max // ENTRY_BYTES * ENTRY_BYTES)
        return [Encounters(part, len(parts), each, names, asks) for part, each in enumerate(parts)]

    def _receive_table(self, contact: ExchangeContact, frame: Encounters, now: int) -> None:
        """Handle one part of the neighbour's table; raises `RemoteError` if the parts make none."""
        link = contact.link
        link.work.did(len(frame.entries) // ENTRY_BYTES)
        packed = self._parts.add(link.peer, frame.names, frame.part, frame.parts, frame.entries)
        if packed is None:
            return
        if frame.names and frame.names != self.table.names():
            link.answer(self._frames(link, now, asks=True, named=True), now)
            return
        found = fr.unpacked_table(packed, self.table.nodes if frame.names else ())
        if found is None or len(found) > self.context.limits.encounters_max + 1:
            raise RemoteError("encounters")
        if frame.asks:  # Names come from a neighbour that knows other nodes, so it needs those of this table, too.
            link.answer(self._frames(link, now, asks=False, named=not frame.names), now)
        self._complete(contact, found, now)

    def _complete(self, contact: ExchangeContact, found: dict[bytes, int], now: int) -> None:
        """Replace the neighbour's table by one that is complete; the first one raises the own probabilities."""
        link, mine = contact.link, self.table.entries(now)
        theirs = EncounterTable(self.context.settings, link.prefix)
        theirs.add(found, 1.0, now)
        if link not in self._heard:
            link.work.credit()
            self.table.learn(link.prefix, theirs.entries(now), now)
            # The neighbour learns from the table that it was sent, too. It is compared as it is then:
            # as it was, it would seem to be the worse carrier of what both know.
            theirs.learn(self.table.own, mine, now)
        self._heard[link] = theirs
        self.reconsider()
        contact.timers.hasten(OFFER, now)
        if contact.machine.state is WAITING and self.context.node < link.node:
            self.compare(contact, now)
