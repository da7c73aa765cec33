"""The memory of messages that are not here: they do not come again, or not before there is room for them.

`Deadlines` is the order in which copies expire, and in which memories are forgotten. Entries are the copies' own
`expiry`: deadline, serial and slot as one number, so that an entry keeps no copy alive and comparing two is fast. They
are sorted in on demand, a burst at a time: most messages come in bursts, and nothing reads them before the earliest
deadline. An entry is stale once its slot has another tenant, or none; stale entries are dropped when they come up, and
swept out when there are too many. Deadlines are dates, and the host's own time is ahead of them by `lead_us`.

`Quota` is a bound over all neighbours of a host, for what each of them may cause it to remember.

`Outlived` has ids of finished messages that are remembered beyond their deadlines, as long as a clock of this host may
be wrong. A message is finished when programs of this host are done with it. Its id is forgotten at its deadline, since
other hosts have dropped the message by then. But the clock may have been ahead, and be set back: then others still have
the message, and it would come as a new one. So after the clock was set forward, ids are remembered until their
deadlines have passed by the slower clock, too. The time between two incarnations counts as a step forward.

`Purged` has messages that reached their addressees, as these report: they are not admitted any more. A notice names
messages by their ids, and an id does not tell the addressee of a message. So an id is remembered together with the node
whose notice it was, and counts against a message only once its descriptor shows that it is addressed to that node:
naming others' messages keeps none of them away. `strike` (`gossip.transfers.arrivals_and_removals`) decides about known
messages; `Purged` remembers those that were named and are not known. Nothing breaks when an id is forgotten: the
message travels on until its deadline, and its addressee remembers it. So the bounds are what a phone can spare.
"""

# A message is `done`, and never wanted again, or `declined`: it found no room, or was evicted.
#
# What must hold.
# 1. Both sets of slots are disjoint, and within `limits.seen_max` and `seen_bytes_max`, unless
#    `delivered` messages alone take more. Declined messages are forgotten before done ones; of
#    either, the earliest deadline first.
# 2. A done message that was given to a program here is `delivered`, and remembered until its
#    deadline, so that it is not delivered twice. While these fill the memory (`full`), nothing
#    wanted is admitted (`transfers.inbound`): the memory outgrows its bounds only by what the
#    cache had until then. The obvious way, to forget the oldest, is a replay attack: send a million
#    small messages, then the old one again.
# 3. Messages without a deadline would fill the memory for ever, so their ids are forgotten like
#    others that are done. `lifetime_s_max` keeps such messages out of nodes that care.
# 4. A declined message counts as known in comparisons, or it would be offered in every contact.
#    While there is room, some that would fit are *invited*: left out of the comparison, so that a
#    neighbour that has them offers them again.
# 5. Declined messages are requested again when enough room appears (`transfers.requests`). To
#    test that in O(1), the highest rank and the smallest size of all that wait are kept, or better
#    ones than these.
# 6. Some were turned away by an owner (`holdings.cache`), for example a full queue. They are not
#    requested before that owner reopens them, whatever room the cache has.
#
# Offers of neighbours for which there was no room are remembered beside these, by neighbour and
# handle, whether any piece of their messages arrived or not.

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Collection, Hashable, Iterable, Sequence
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import TYPE_CHECKING, Final

from mypy_extensions import mypyc_attr

from carrypost.config import UNBOUNDED, Settings
from carrypost.gossip.holdings.copies import Copy, deadline_of, slot_of
from carrypost.gossip.holdings.eviction import Ranking, Room, Usage
from carrypost.gossip.slots import Members, bits, mask_of
from carrypost.gossip.wire.frames import OfferEntry
from carrypost.log.journal import SEEN
from carrypost.model.ids import MessageId
from carrypost.model.times import MICROSECONDS, NEVER

if TYPE_CHECKING:
    from carrypost.gossip.outputs import Journal
    from carrypost.model.ids import NodeId


_STALE_SLACK: Final = 64
"""Stale entries are swept out when there are this many entries more than twice the copies."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Deadlines:
    """The deadlines of copies that have slots."""

    __slots__ = ("_copies", "_entries", "_new", "due_us", "lead_us")

    def __init__(self, copies: Sequence[Copy | None]) -> None:
        self.due_us = NEVER
        """Not after the earliest deadline, in the host's own time: nothing expires before this time."""
        self.lead_us = 0
        self._copies = copies
        """The tenants by slot."""
        self._entries: list[int] = []
        """A heap."""
        self._new: list[int] = []

    def add(self, copies: Sequence[Copy], tenants: int) -> None:
        """Add the deadlines of copies; `tenants` is the number of tenants in all."""
        expiries = [copy.expiry for copy in copies]
        self._new += expiries
        if expiries and (first_us := deadline_of(min(expiries)) + self.lead_us) < self.due_us:
            self.due_us = first_us
        if len(self._entries) + len(self._new) > 2 * tenants + _STALE_SLACK:
            self._new += self._entries
            self._new = [expiry for expiry in dict.fromkeys(self._new) if self._tenant(expiry) is not None]
            self._entries.clear()

    def pop_due(self, now: int) -> list[Copy]:
        """Remove and return the copies whose deadline has passed, earliest first; they still have their slots."""
        ended: list[Copy] = []
        if self.due_us > now:
            return ended
        entries, date_us = self._in_order(), now - self.lead_us
        while entries and deadline_of(entries[0]) <= date_us:
            copy = self._tenant(heappop(entries))
            if copy is not None:
                ended.append(copy)
        self.due_us = deadline_of(entries[0]) + self.lead_us if entries else NEVER
        return ended

    def set_lead(self, lead_us: int) -> None:
        """Set the time by which the host's own time is ahead of dates."""
        if self.due_us < NEVER:
            self.due_us += lead_us - self.lead_us
        self.lead_us = lead_us

    def pop(self) -> Copy:
        """Remove and return the copy with the earliest deadline; there must be one."""
        entries = self._in_order()
        while True:
            expiry = heappop(entries)
            while entries and entries[0] == expiry:  # A copy that came back and left again is in here twice.
                heappop(entries)
            copy = self._tenant(expiry)
            if copy is not None:
                return copy

    def _tenant(self, expiry: int) -> Copy | None:
        """Return the copy of an entry, unless the entry is stale."""
        copy = self._copies[slot_of(expiry)]
        return copy if copy is not None and copy.expiry == expiry else None

    def _in_order(self) -> list[int]:
        entries, new = self._entries, self._new
        if len(new) > len(entries) >> 3:
            entries += new
            heapify(entries)
        else:
            for expiry in new:
                heappush(entries, expiry)
        new.clear()
        return entries


class Quota:
    """Entries of all neighbours together. Half of them are common; of the rest, each neighbour has a share of its own.

    So many neighbours cannot fill the memory, and none of them can keep another from having a few.
    """

    __slots__ = ("_common", "_most", "_share", "count")

    def __init__(self, most: int, neighbours: int) -> None:
        self._most, self._common, self._share = most, most - most // 2, max(1, most // 2 // neighbours)
        self.count = 0
        """Number of entries; counted by the owner of the entries."""

    @classmethod
    def of_offers(cls, settings: Settings) -> Quota:
        """Return a bound for offers of neighbours, and of hosts at the ends of routes."""
        limits = settings.limits
        return cls(limits.offers_all_max, limits.neighbours_max + settings.routes_max)

    def has_room(self, own: int) -> bool:
        """Return True if a neighbour with this many entries may have another one."""
        return self.count < self._common or (own < self._share and self.count < self._most)


_INVITED_MIN: Final = 256
"""Fewest declined messages that may be offered again after a review; if there are more places, as many as those."""
_INVITE_SCAN: Final = 4096
"""Number of remembered copies that are examined at a time."""


class Memories:
    """The memory of one cache: bitsets of slots, whose copies the cache has, and offers of neighbours."""

    def __init__(self, settings: Settings, copies: Sequence[Copy | None], room: Room, ranking: Ranking) -> None:
        limits = settings.limits
        self._copies, self._room, self._ranking = copies, room, ranking
        self.done = self.declined = self.delivered = 0
        """Bitsets of slots; `delivered` is a subset of `done`."""
        self.full = False
        """True while `delivered` reaches a bound."""
        self._delivered = Usage()
        self._count = self._bytes = 0
        self._count_max, self._bytes_max = limits.seen_max, limits.seen_bytes_max
        self._done_order, self._declined_order = Deadlines(copies), Deadlines(copies)
        """Orders in which memories, except `delivered`, are forgotten. A declined one that is finished may be in
        both."""
        self._offers: dict[Hashable, OrderedDict[int, OfferEntry]] = defaultdict(OrderedDict)
        """Declined offers by neighbour and handle; at most `_offers_max` of each neighbour."""
        self._offers_max, self._quota = limits.offers_open_max, Quota.of_offers(settings)
        self.turned_away: dict[int, int] = {}
        """Slots by the owner that turned them away."""
        self._reopened: set[MessageId] = set()
        """Messages among these to request at once."""
        self._rank_max, self._bytes_min = -1, UNBOUNDED
        """Highest rank and smallest size of everything that waits for room."""
        self._short = self.has_new_room = False
        """Flags: room has been short; and since the last `opens` some has appeared, or may have."""
        self._invited = 0
        """Declined slots that do not count as known."""
        self._up_to = 0
        """The first slot to examine at the next `invite`."""

    @property
    def waiting(self) -> int:
        """Declined slots that only the lack of room keeps away."""
        waiting = self.declined
        for slots in self.turned_away.values():
            waiting &= ~slots
        return waiting

    def keep(self, copies: Sequence[Copy]) -> list[Copy]:
        """Remember copies that are not here any more; return those to forget in exchange."""
        self._count += len(copies)
        self._bytes += sum(map(_nbytes, copies))
        if declined := [copy for copy in copies if not copy.finished]:
            for copy in declined:
                self.note_shortage()
                self.expect(copy.rank or self._ranking.top, copy.descriptor.length)
            self.declined |= mask_of([copy.slot for copy in declined])
            self._declined_order.add(declined, self._count)
        if len(declined) < len(copies):
            self._add_done([copy for copy in copies if copy.finished])
        return self._excess() if self._count > self._count_max or self._bytes > self._bytes_max else []

    def _add_done(self, copies: list[Copy]) -> None:
        self.done |= mask_of([copy.slot for copy in copies])
        delivered = list(filter(_is_delivered, copies))
        if delivered:
            self.delivered |= mask_of([copy.slot for copy in delivered])
            self._count_delivered(len(delivered), sum(map(_nbytes, delivered)))
        if len(delivered) < len(copies):
            self._done_order.add([copy for copy in copies if not _is_delivered(copy)], self._count)

    def _count_delivered(self, messages: int, nbytes: int) -> None:
        self._delivered.add(messages, nbytes)
        self.full = self._delivered.messages >= self._count_max or self._delivered.bytes >= self._bytes_max

    def _excess(self) -> list[Copy]:
        """Return the copies to forget so that the rest is within the bounds, as far as possible."""
        count, nbytes, declined = self._count, self._bytes, self.declined.bit_count()
        excess: list[Copy] = []
        while (count > self._count_max or nbytes > self._bytes_max) and count > self._delivered.messages:
            copy = (self._declined_order if declined else self._done_order).pop()
            if not copy.here and copy.finished == (not declined):
                excess.append(copy)
                declined -= declined > 0
                count, nbytes = count - 1, nbytes - _nbytes(copy)
        return excess

    def finish(self, copy: Copy) -> None:
        """Never want a declined message again."""
        self.declined ^= 1 << copy.slot
        self._add_done([copy])

    def recall(self, copy: Copy) -> None:
        """Forget that a message was declined, because it is admitted."""
        self.declined ^= 1 << copy.slot
        self._count -= 1
        self._bytes -= _nbytes(copy)

    def forget(self, copies: Iterable[Copy], keep: int) -> None:
        """Forget copies whose tenancy ends; `keep` are all other slots."""
        remembered, delivered = Members(self.done | self.declined), Members(self.delivered)
        for copy in copies:
            if copy.slot in remembered:
                nbytes = _nbytes(copy)
                self._count -= 1
                self._bytes -= nbytes
                if copy.slot in delivered:
                    self._count_delivered(-1, -nbytes)
        self.done, self.declined, self.delivered = self.done & keep, self.declined & keep, self.delivered & keep
        self._invited &= keep
        for owner, slots in self.turned_away.items():
            if slots:
                self.turned_away[owner] = slots & keep

    # --- offers that were declined -------------------------------------------------------------------------

    def decline(self, neighbour: Hashable, entry: OfferEntry, *, interesting: bool) -> None:
        """Remember a declined offer; offers beyond the bound are left to the next review."""
        offers = self._offers[neighbour]
        if entry.handle not in offers:
            if offers and (len(offers) >= self._offers_max or not self._quota.has_room(len(offers))):
                offers.popitem(last=False)
                self._quota.count -= 1
            self._quota.count += 1
        offers[entry.handle] = entry
        self.expect(self._ranking.best(entry.privilege, interesting), entry.length)

    def offers(self, neighbour: Hashable) -> Collection[OfferEntry]:
        """Return the declined offers of a neighbour."""
        return self._offers[neighbour].values() if neighbour in self._offers else ()

    def forget_offer(self, neighbour: Hashable, handle: int) -> None:
        """Forget a declined offer, if it is remembered: it is requested, or of no use any more."""
        if self._offers[neighbour].pop(handle, None) is not None:
            self._quota.count -= 1

    def leave(self, neighbour: Hashable) -> None:
        """Forget the offers of a neighbour whose contact is over."""
        self._quota.count -= len(self._offers.pop(neighbour, ()))

    # --- owners that turned something away -----------------------------------------------------------------

    def turn_away(self, copy: Copy, owner: int) -> None:
        """Note that this owner has no room for a message."""
        self.turned_away[owner] = self.turned_away.get(owner, 0) | 1 << copy.slot

    def is_turned_away(self, copy: Copy) -> bool:
        """Return True while an owner has no room for a message."""
        return any(slots >> copy.slot & 1 for slots in self.turned_away.values())

    def reopen(self, owner: int, slots: int, *, at_once: bool) -> None:
        """Allow these slots that the owner turned away again; `at_once`: have them returned by `pop_reopened`."""
        away = self.turned_away.get(owner, 0)
        self.turned_away[owner] = away & ~slots
        for slot in bits(away & slots) if at_once else ():
            if (copy := self._copies[slot]) and not copy.here:
                self._reopened.add(copy.id)

    def pop_reopened(self) -> set[MessageId]:
        """Return the messages reopened since the last call that are to be requested at once."""
        reopened, self._reopened = self._reopened, set()
        return reopened

    # --- room ----------------------------------------------------------------------------------------------

    def expect(self, rank: int, nbytes: int) -> None:
        """Note that a message of this rank and size waits for room."""
        self._rank_max, self._bytes_min = max(self._rank_max, rank), min(self._bytes_min, nbytes)

    def expect_nothing(self) -> None:
        """Reset what waits for room, before all of it is examined and noted again."""
        self._rank_max, self._bytes_min = -1, UNBOUNDED

    def note_shortage(self) -> None:
        """Note that there was no room for something."""
        self._short = True

    def note_room(self, *, short: bool = False) -> None:
        """Note that there may be more room than before, if it has been short, or is now."""
        self.has_new_room = short or self._short

    def opens(self) -> bool:
        """Return True if anything that waits might find room by now. It may still find none."""
        self.has_new_room = False
        return self._room.fits(1, self._bytes_min) or self._room.yields(self._rank_max)

    def invite(self) -> tuple[list[Copy], list[Copy]]:
        """Choose messages that do not count as known in the next review; return them, and those that count again.

        With room for one message, every small enough one would do, and this host cannot know which of them the
        neighbour has. So some are chosen, and others the next time.
        """
        before, copies = self._invited, self._copies
        self._invited = invited = self._chosen()
        ended = [copy for slot in bits(before & ~invited) if (copy := copies[slot]) and (copy.whole or not copy.here)]
        return [copy for slot in bits(invited) if (copy := copies[slot])], ended

    def _chosen(self) -> int:
        room, waiting = self._room, self.waiting
        if not waiting or not room.fits(1, 0):
            return 0
        waiting = waiting >> self._up_to << self._up_to or waiting
        most = max(_INVITED_MIN, room.messages_max - room.messages)
        chosen: list[int] = []
        for slot in islice(bits(waiting), _INVITE_SCAN):
            copy = self._copies[slot]
            self._up_to = slot + 1
            if copy is not None and room.fits(1, copy.descriptor.length):
                chosen.append(slot)
                if len(chosen) >= most:
                    break
        return mask_of(chosen)


def _nbytes(copy: Copy) -> int:
    """Return the bytes that the descriptor of a memory takes."""
    return len(copy.wire) or copy.descriptor.wire_bytes


def _is_delivered(copy: Copy) -> bool:
    """Return True for a message that a program here was given and that may come again: until its deadline."""
    return bool(copy.given) and not copy.own and deadline_of(copy.expiry) != NEVER


SLACK_US_MAX: Final = 7 * 24 * 3_600 * MICROSECONDS
"""Longest time for which ids outlive their deadlines: a clock that is wrong by more than that is noticed."""
_OUTLIVED_SWEEP_US: Final = 60 * MICROSECONDS


class Outlived:
    """The ids of one host that outlive their deadlines. Those of confirmed messages have rows."""

    __slots__ = ("_max", "_sweep_us", "ids", "slack_us")

    def __init__(self, ids_max: int) -> None:
        self.ids: dict[MessageId, int] = {}
        """Deadlines by message. Checked for every descriptor: empty unless the clock was set forward."""
        self.slack_us = 0
        """Time by which dates are ahead of the slowest clock that this host has had."""
        self._max = ids_max
        self._sweep_us = 0

    def clock_stepped(self, delta_us: int) -> None:
        """Note that the clock was set forward or, by a negative amount, back."""
        self.slack_us = min(max(self.slack_us + delta_us, 0), SLACK_US_MAX)
        self._sweep_us = 0

    def expired(self, copies: Iterable[Copy], date_us: int) -> None:
        """Keep the ids of finished messages whose deadlines have passed by the date, and not by the slowest clock."""
        for copy in copies if self.slack_us else ():
            if copy.given and copy.finished and not copy.here:
                self.keep(copy.id, copy.descriptor.ends_us, date_us)

    def keep(self, message: MessageId, ends_us: int, date_us: int) -> bool:
        """Keep the id of a message beyond its deadline, if that is necessary; return True if it is kept."""
        if date_us - self.slack_us < ends_us <= date_us and len(self.ids) < self._max:
            self.ids[message] = ends_us
        return message in self.ids

    def forget(self, copy: Copy, date_us: int, journal: Journal) -> None:
        """Delete the row of a confirmed message that is forgotten, unless its id outlives its deadline."""
        if not self.keep(copy.id, copy.descriptor.ends_us, date_us):
            journal.delete((SEEN, copy.id, 0))

    def sweep(self, date_us: int, journal: Journal) -> None:
        """Forget ids whose deadlines have passed by the slowest clock, too."""
        if not self.ids or date_us < self._sweep_us:
            return
        self._sweep_us = date_us + _OUTLIVED_SWEEP_US
        for message in [each for each, ends_us in self.ids.items() if ends_us <= date_us - self.slack_us]:
            del self.ids[message]
            journal.delete((SEEN, message, 0))


PURGED_IDS_MAX: Final = 65_536
"""Number of ids in all, about 10 MB; beyond it, all ids of the node heard from least recently are forgotten."""
PURGED_NODE_IDS_MAX: Final = 8_192
"""Number of ids of one node, its latest ones: eight nodes that purge without end fill the memory."""
_PURGED_SWEEP_US: Final = 60_000_000
"""Least time between two sweeps. Notices that end one by one would otherwise cause a scan of all ids each."""


class Purged:
    """The ids that notices named, by the node whose notices they were."""

    __slots__ = ("_count", "_sweep_us", "by_node")

    def __init__(self) -> None:
        self.by_node: OrderedDict[NodeId, dict[MessageId, int]] = OrderedDict()
        """Time until which each id counts, by node. Checked for every descriptor: empty as long as there was no
        notice."""
        self._count = 0
        self._sweep_us = 0

    def __len__(self) -> int:
        return self._count

    def add(self, messages: Iterable[MessageId], node: NodeId, until_us: int, now: int) -> None:
        """Remember that a notice of this node named these messages, until `until_us`."""
        if now >= self._sweep_us:
            self._sweep_us = now + _PURGED_SWEEP_US
            self._sweep(now)
        ids = self.by_node.setdefault(node, {})
        self.by_node.move_to_end(node)
        before = len(ids)
        for message in messages:
            ids[message] = max(until_us, ids.pop(message, 0))
        for message in list(islice(ids, max(0, len(ids) - PURGED_NODE_IDS_MAX))):
            del ids[message]
        self._count += len(ids) - before
        while self._count > PURGED_IDS_MAX:
            self._count -= len(self.by_node.popitem(last=False)[1])

    def names(self, message: MessageId, node: NodeId, now: int) -> bool:
        """Return True if a notice of this node names the message."""
        ids = self.by_node.get(node)
        return ids is not None and ids.get(message, now) > now

    def _sweep(self, now: int) -> None:
        for node, ids in list(self.by_node.items()):
            for message in [each for each, until_us in ids.items() if until_us <= now]:
                del ids[message]
            if not ids:
                del self.by_node[node]
        self._count = sum(map(len, self.by_node.values()))
