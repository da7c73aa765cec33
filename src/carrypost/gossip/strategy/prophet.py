"""PRoPHET: a message goes to hosts that are more likely to meet its recipient (Lindgren et al., 2003).

Two hosts that meet send each other their tables of encounters. Once the neighbour's table is complete, it gets the
messages for whose recipients its probability is the higher one; before, it gets only its own. Messages that are for all
subscribers go to every neighbour. A table is sent at the beginning of a contact, and again until it is known to have
arrived; it raises probabilities once in a contact. Then the two hosts, most of whose messages differ, compare their
sets by a list (`gossip.strategy.lists`).

A neighbour may claim any probability, and so attract messages. Nothing here can tell a lie from a good carrier.

A host has its own table, and those of its neighbours:

    encounter:    P(a,b) <- P(a,b) + (1 - P(a,b)) * prophet_p_init
    ageing:       P(a,b) <- P(a,b) * prophet_gamma ^ (time / prophet_unit_s)
    transitivity: P(a,c) <- P(a,c) + (1 - P(a,c)) * P(a,b) * P(b,c) * prophet_beta

Probabilities are kept as they were at the last encounter. They age whenever they are read, and reading changes nothing.

A table is sent in parts (`Encounters`), of 2 bytes for each node, and 8 more with its name. Hosts mostly know the same
nodes, so it is first sent without names, beside their hash. A neighbour that knows other nodes asks for the names by a
list of the leading bits of those that it knows; the answer says which of these are meant, and has only the other names
in full. If what follows does not have the hash, because two names begin alike, both send their tables with all names.
"""

from __future__ import annotations

import functools
import hashlib
import heapq
from math import exp, log
from operator import itemgetter
from typing import TYPE_CHECKING

from carrypost.errors import DecodeError, RemoteError
from carrypost.gossip.slots import Members, bits, mask_of
from carrypost.gossip.strategy.exchange import Routed
from carrypost.gossip.strategy.exchange_contact import WAITING
from carrypost.gossip.strategy.lists import Lists
from carrypost.gossip.timers import OFFER, REVIEW
from carrypost.gossip.wire import frames as fr
from carrypost.gossip.wire.frames import CERTAIN, ENTRY_BYTES, KEY_BYTES, Encounters
from carrypost.model.descriptor_values import recipients
from carrypost.model.times import MICROSECONDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from carrypost.config import Settings
    from carrypost.gossip.strategy.exchange_contact import ExchangeContact
    from carrypost.gossip.transfers.arrivals_and_removals import Arrival, Removals
    from carrypost.gossip.transfers.link import HostContext, Link
    from carrypost.gossip.transfers.transfers import Transfers
    from carrypost.model.ids import NodeId


@functools.lru_cache(maxsize=65_536)
def node_key(node: NodeId) -> bytes:
    """Return the bytes that name a node in tables."""
    return hashlib.sha256(node.encode()).digest()[:KEY_BYTES]


def hash_of(keys: Sequence[bytes]) -> bytes:
    """Return the hash of the keys of a table."""
    return hashlib.sha256(b"".join(keys)).digest()[:KEY_BYTES]


class EncounterTable:
    """The table of one host; at most `limits.encounters_max` nodes, those that it is likeliest to meet."""

    def __init__(self, settings: Settings, own: bytes = b"") -> None:
        """`own`: the key of the host itself."""
        self._p_init, self._beta = settings.prophet_p_init, settings.prophet_beta
        self._rate = log(settings.prophet_gamma) / (settings.prophet_unit_s * MICROSECONDS)
        """Ageing in a microsecond, as an exponent."""
        self._most = settings.limits.encounters_max
        self._known: dict[bytes, float] = {}
        """Probabilities at the last encounter."""
        self._since_us = 0
        """Time of that."""
        self._own, self._keys, self._names = own, [own], b""
        """The own key; those of all nodes known here, itself among them, ascending; and the hash of these."""

    def ageing(self, elapsed_us: int) -> float:
        """Return the factor by which probabilities fall in this time."""
        return exp(self._rate * elapsed_us)

    def at(self, key: bytes, now: int) -> float:
        """Return the probability of a node."""
        return self._known.get(key, 0.0) * self.ageing(now - self._since_us)

    def units(self, keys: Iterable[bytes], now: int) -> dict[bytes, int]:
        """Return the probabilities of nodes as tables on the wire have them."""
        known, scale = self._known, self.ageing(now - self._since_us) * CERTAIN
        return {key: round(known.get(key, 0.0) * scale) for key in keys}

    def met(self, key: bytes, now: int) -> None:
        """Count an encounter with a node."""
        self._raise({key: CERTAIN}, self._p_init, now)

    def learn(self, key: bytes, table: Mapping[bytes, int], now: int) -> None:
        """Raise the probabilities of nodes that a node in reach, `key`, is likely to meet."""
        self._raise(table, self.at(key, now) * self._beta, now)

    def _raise(self, table: Mapping[bytes, int], share: float, now: int) -> None:
        """Raise probabilities by a share of what is missing to certainty and of what a table says."""
        ageing, share = self.ageing(now - self._since_us), share / CERTAIN
        self._since_us = now
        self._known = known = {key: each * ageing for key, each in self._known.items()}
        for key, units in table.items():
            probability = known.get(key, 0.0)
            known[key] = probability + (1 - probability) * share * units
        if len(known) > self._most:
            self._known = dict(heapq.nlargest(self._most, known.items(), key=itemgetter(1)))
            self._keys = []

    def names(self) -> bytes:
        """Return the hash of the keys of all nodes known here, this one among them."""
        if len(self._keys) != len(self._known) + 1 or not self._names:
            self._keys = sorted([self._own, *self._known])
            self._names = hash_of(self._keys)
        return self._names

    def levels(self, now: int) -> list[int]:
        """Return the probabilities of all nodes in `names`, in the order of their keys; 0 of this one."""
        return list(self.units(self.keys(), now).values())

    def keys(self) -> list[bytes]:
        """Return the keys of all nodes known here, this one among them, ascending. The list does not change."""
        self.names()
        return self._keys

    def gain(self, units: int, through: int, theirs: int) -> int:
        """Return by how much a node raises a probability, by that of another one (`through`) and by its entry."""
        return round((CERTAIN - units) * through * theirs * self._beta / CERTAIN**2)

    def entries(self, now: int) -> list[tuple[bytes, int]]:
        """Return the entries to send, without those that are nothing on the wire."""
        return sorted([each for each in self.units(self._known, now).items() if each[1]])


class HeardTable:
    """The table of one neighbour in one contact, and its consequences."""

    __slots__ = (
        "arrived", "asked_us", "better", "keys", "met", "named", "parts", "revision", "sent_us", "since_us", "table",
        "unread", "used",
    )  # fmt: skip

    def __init__(self) -> None:
        self.parts: dict[int, bytes] = {}
        """Parts of a table that is not complete yet, by number."""
        self.table: dict[bytes, int] = {}
        """The latest complete table."""
        self.since_us = -1
        """Time at which that was complete; -1: none was."""
        self.met = self.used = self.named = self.arrived = False
        """True once the contact counted as an encounter, once the table raised probabilities, once the own table was
        sent with names, and once the neighbour has shown that it has the own table."""
        self.unread: Encounters | None = None
        """A table that came without names and could not be read; the names were asked for."""
        self.asked_us = 0
        """Time at which names were last asked for."""
        self.keys: list[bytes] = []
        """The names that the own table had when it was last sent without them."""
        self.sent_us = 0
        """Time at which the own table was last sent."""
        self.better, self.revision = 0, -1
        """Slots for whose recipients the neighbour is the better carrier, as of a revision."""

    def add(self, frame: Encounters, entries_max: int) -> dict[bytes, int] | None:
        """Add a part with names; return the table that it completes. Raises `RemoteError` if the parts make none."""
        parts = self.parts
        parts[frame.part] = frame.entries
        if max(parts) >= frame.parts or sum(map(len, parts.values())) > entries_max * ENTRY_BYTES:
            self.parts = {}  # They are of two tables, or of none.
            raise RemoteError("encounters")
        if len(parts) < frame.parts:
            return None
        self.parts = {}
        entries = [each for part in sorted(parts) for each in fr.unpacked_entries(parts[part])]
        if len(found := dict(entries)) < len(entries):
            raise RemoteError("encounters")
        return found


class TableExchange:
    """Sends the table of one host, and reads those of its neighbours."""

    def __init__(self, context: HostContext, table: EncounterTable) -> None:
        self._table, self._entries_max = table, context.limits.encounters_max

    def send(self, link: Link, heard: HeardTable, now: int) -> None:
        """Send the table without names, if it fits into one frame so."""
        heard.sent_us = now
        levels = fr.packed_levels(self._table.levels(now))
        if len(levels) <= link.body_bytes_max:
            heard.named, heard.keys = False, self._table.keys()
            link.send([Encounters(0, 1, levels, self._table.names())])
        else:
            self._send_named(link, heard, now)

    def _send_named(self, link: Link, heard: HeardTable, now: int) -> None:
        heard.named = True
        entries, most = self._table.entries(now), link.body_bytes_max // ENTRY_BYTES
        parts = [entries[at : at + most] for at in range(0, len(entries), most)] or [[]]
        link.send([Encounters(part, len(parts), fr.packed_entries(each)) for part, each in enumerate(parts)])

    def read(self, link: Link, heard: HeardTable, frame: Encounters, now: int) -> dict[bytes, int] | None:
        """Return the neighbour's table if it is complete; raises `RemoteError` if the parts make none."""
        link.work.did(len(frame.entries) // ENTRY_BYTES)
        if not frame.names:
            found = heard.add(frame, self._entries_max)
            # A neighbour that sends all names could not read the own table, either.
            if not heard.named:
                self._send_named(link, heard, now)
            return found
        if frame.names == self._table.names():
            return _named(self._table.keys(), frame)
        if heard.unread is None or now - heard.asked_us > link.outbox.recovery.answer_us(0):
            heard.unread, heard.asked_us = frame, now
            self._ask(link, heard, frame, now)
        return None

    def _ask(self, link: Link, heard: HeardTable, frame: Encounters, now: int) -> None:
        """Ask for the names of a table."""
        keys = self._table.keys()
        if len(keys) <= fr.LISTED_MAX and fr.listing_bytes(len(keys)) <= link.body_bytes_max:
            link.send((fr.NamesRequest(frame.names, len(keys), fr.packed_hashes(_leading(keys, len(keys)))),))
        elif not heard.named:
            self._send_named(link, heard, now)

    def answer(self, link: Link, heard: HeardTable, frame: fr.NamesRequest, now: int) -> None:
        """Send the names of the own table; raises `RemoteError` for an impossible request."""
        asked = fr.unpacked_hashes(frame.hashes, frame.count)
        if asked is None:
            raise DecodeError("names-request")
        link.work.did(frame.count)
        if heard.named or not heard.keys or frame.names != hash_of(heard.keys):
            return
        place = {each: number for number, each in enumerate(asked)}
        leading = dict(zip(heard.keys, _leading(heard.keys, frame.count), strict=True))
        held = mask_of([place[each] for each in leading.values() if each in place])
        others = b"".join([key for key, each in leading.items() if each not in place])
        if len(others) > link.body_bytes_max:
            self._send_named(link, heard, now)
        else:
            link.send((fr.Names(frame.names, held.to_bytes((frame.count + 7) // 8, "little"), others),))

    def add_names(self, link: Link, heard: HeardTable, frame: fr.Names, now: int) -> dict[bytes, int] | None:
        """Return the table whose names these are, if it waits for them and they are right."""
        table, heard.unread = heard.unread, None
        if table is None or table.names != frame.names:
            return None
        link.work.did(len(frame.others) // KEY_BYTES)
        held = Members(int.from_bytes(frame.held, "little"))
        keys = [key for number, key in enumerate(self._table.keys()) if number in held]
        keys = sorted([*keys, *fr.cut(frame.others, KEY_BYTES)])
        if hash_of(keys) == frame.names:
            return _named(keys, table)
        if not heard.named:  # The own table has changed meanwhile, or two names begin alike.
            self._send_named(link, heard, now)
        return None


def _leading(keys: Sequence[bytes], count: int) -> list[int]:
    """Return the leading bits of names, as a list of `count` names has them."""
    shift = 8 * KEY_BYTES - fr.LOW_BITS - count.bit_length()
    return [int.from_bytes(key, "big") >> shift for key in keys]


def _named(keys: Sequence[bytes], frame: Encounters) -> dict[bytes, int]:
    """Return the entries of a table without names; raises `DecodeError` if these are not its names."""
    levels = fr.unpacked_levels(frame.entries)
    if len(levels) != len(keys):
        raise DecodeError("encounters")
    return {key: units for key, units in zip(keys, levels, strict=True) if units}


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
        handlers[fr.NamesRequest] = self._over_contact(self._receive_request)
        handlers[fr.Names] = self._over_contact(self._receive_names)
        handlers[fr.Listing] = self._over_contact(self._receive_listing)
        handlers[fr.Held] = self._over_contact(self._receive_held)

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
        self._tables.send(contact.link, heard, now)
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
            self._tables.send(contact.link, heard, now)
        if heard.since_us < 0 or not self._lists.ask(contact, now):
            super().compare(contact, now)

    def _compare_by_list(self, contact: ExchangeContact, now: int) -> bool:
        """Begin the first comparison, if it is this host's turn and the neighbour's table is complete."""
        turn = self._heard[contact.link].since_us >= 0 and self.context.node < contact.link.node
        return turn and contact.machine.state is WAITING and self._lists.ask(contact, now)

    def _receive_listing(self, contact: ExchangeContact, frame: fr.Listing, now: int) -> None:
        """Answer a list, which says that the own table arrived; not if the neighbour's table did not."""
        heard = self._heard[contact.link]
        heard.arrived = True
        if heard.since_us >= 0:
            self._lists.receive_listing(contact, frame, now)

    def _receive_held(self, contact: ExchangeContact, frame: fr.Held, now: int) -> None:
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
            for key in self._better_of(heard, self._slots, now):
                heard.better |= self._slots[key]
        return mask & heard.better

    def _better_of(self, heard: HeardTable, keys: Iterable[bytes], now: int) -> list[bytes]:
        """Return the recipients to which a neighbour is a better carrier than this host; b"": all subscribers."""
        theirs, ageing = heard.table.get, self.table.ageing(now - heard.since_us)
        return [key for key, mine in self.table.units(keys, now).items() if not key or theirs(key, 0) * ageing > mine]

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
            heard.better = heard.better | bit if self._better_of(heard, keys, now) else heard.better & ~bit

    # --- tables --------------------------------------------------------------------------------------------

    def _receive_table(self, contact: ExchangeContact, frame: Encounters, now: int) -> None:
        """Handle one part of the neighbour's table; raises `RemoteError` if the parts make none."""
        heard = self._heard[contact.link]
        self._complete(contact, heard, self._tables.read(contact.link, heard, frame, now), now)

    def _receive_request(self, contact: ExchangeContact, frame: fr.NamesRequest, now: int) -> None:
        """Send the names of the own table."""
        self._tables.answer(contact.link, self._heard[contact.link], frame, now)

    def _receive_names(self, contact: ExchangeContact, frame: fr.Names, now: int) -> None:
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
            mutual, mine = heard.table.pop(self._own, 0), self.table.units(heard.table, now)
            self.table.learn(node_key(contact.link.node), heard.table, now)
            heard.table = {key: units + self.table.gain(units, mutual, mine[key]) for key, units in heard.table.items()}
            self._revision += 1
        heard.table.pop(self._own, None)
        contact.timers.hasten(OFFER, now)
