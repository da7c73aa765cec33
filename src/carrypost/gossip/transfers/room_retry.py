"""A second look at messages that were declined for lack of room (`holdings.memories`), when room appears.

Room is unused space, or the space of copies that may be evicted. It appears when a copy leaves, or becomes evictable
because it was confirmed. Then the neighbours' offers are looked through, highest rank first, and as much is requested
as fits beside what each neighbour was asked for already: at once, and at most once a second.
"""

# Why it is needed. A full cache declines offers, and neighbours remember that. When a copy expires
# later, nothing would come in its place until the next contact: reviews count a declined message as
# known, or two full caches would offer each other the same messages in every round. So the
# receiving side keeps the initiative.
#
# A message that a neighbour offered during this contact is known by its handle (for messages
# evicted since, see `Inbox.closed`), and is requested without a new offer. A message declined
# before the contact is on offer nowhere; so some of these are invited when a review begins while
# there is room, and the neighbour offers them again.
#
# Why it ends. Unused room displaces no message; otherwise a lower rank makes room for a higher one.
# Sort the contents of a cache by rank before and after: the later sequence is the larger, so no two
# messages can displace each other in turns.

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING

from carrypost.gossip.slots import bits
from carrypost.gossip.timers import SECOND_LOOK, Timers
from carrypost.gossip.transfers.wants import PATIENCE_US
from carrypost.model.times import NEVER

if TYPE_CHECKING:
    from collections.abc import Collection

    from carrypost.gossip.holdings.cache import Cache
    from carrypost.gossip.transfers.host_context import HostContext
    from carrypost.gossip.transfers.link import Link
    from carrypost.gossip.transfers.wants import Wants
    from carrypost.gossip.wire.frames import OfferEntry
    from carrypost.model.ids import MessageId

_LOOK_GAP_US = 1_000_000
_LOOK_ENTRIES_MAX = 16_384
"""Number of entries that are looked through at a time; the other links have their turn at the next look."""

Candidate = tuple[int, int, "OfferEntry"]
"""The rank of a message, the bytes that it lacks, and the neighbour's entry for it."""
_RANK, _LACKING = itemgetter(0), itemgetter(1)


class RoomRetry:
    """Requests to the neighbours of one host for messages that it had no room for."""

    def __init__(self, context: HostContext, wants: Wants) -> None:
        self._cache = context.holdings.cache
        self._links, self._interests = context.links, context.interests
        self._wants, self._memories = wants, context.holdings.cache.memories
        self._looked_us = -NEVER
        self._timers = Timers(context.links.schedule)
        context.links.schedule.add(self._timers)
        self._first = 0
        """Index of the link that comes first."""

    def room_appeared(self, now: int) -> None:
        """Look soon for messages that fit into the room that appeared."""
        self._recall(self._memories.pop_reopened())
        if self._memories.opens() and self._links.usable:
            self._look_soon(now)

    def _look_soon(self, now: int) -> None:
        self._timers.hasten(SECOND_LOOK, max(now, self._looked_us + _LOOK_GAP_US))

    def look_again(self, messages: Collection[MessageId], now: int) -> None:
        """Look soon at what neighbours offered: this host wants more than before, these messages among it."""
        self._recall(messages)
        if self._links.usable:
            self._look_soon(now)

    def _recall(self, messages: Collection[MessageId]) -> None:
        """Consider these messages again: closed handles show which neighbours offered them."""
        for link in self._links.usable if messages else ():
            for entry in [each for each in link.inbox.closed.values() if each.message in messages]:
                self._memories.decline(link, entry, interesting=self._interests.wants_something)

    def decline(self, link: Link, entry: OfferEntry, now: int) -> None:
        """Record an offer that is not requested, for lack of room, or of open requests.

        If the message was declined before, there may be room by now.
        """
        self._memories.decline(link, entry, interesting=self._interests.wants_something)
        if (copy := self._cache.get(entry.message)) is not None and not copy.here:
            if (candidate := self._candidate(entry)) and self._fits(link, candidate, 0, 0):
                self._look_soon(now)
        elif self._wants.is_full(link):
            self._timers.hasten(SECOND_LOOK, now + _LOOK_GAP_US)

    def tick(self, now: int) -> None:
        """Look again, if it is due."""
        if self._timers.due[SECOND_LOOK] <= now:
            self._look(now)

    def _look(self, now: int) -> None:
        """Request what fits by now."""
        self._timers.cancel(SECOND_LOOK)
        self._looked_us = now
        places = _SpareRoom(self._cache)
        self._memories.expect_nothing()
        links, left = self._links.usable, _LOOK_ENTRIES_MAX
        for turn in range(len(links)):
            link = links[(self._first + turn) % len(links)]
            left -= len(self._memories.offers(link)) + len(link.inbox.closed)
            if candidates := self._candidates(link):
                self._ask(link, candidates, places, now)
            if left <= 0 and turn + 1 < len(links):
                self._first += turn + 1
                self._timers.hasten(SECOND_LOOK, now + _LOOK_GAP_US)
                break

    def _candidates(self, link: Link) -> list[Candidate]:
        """Return the messages that the neighbour offered in this contact and that found no room here, by rank."""
        inbox, get = link.inbox, self._cache.get
        offered = {entry.handle: entry for entry in self._memories.offers(link)}
        for handle, entry in inbox.closed.items() if self._cache.declined else ():
            copy = get(entry.message)
            if copy is not None and not (copy.here or copy.finished or handle in inbox.wants):
                offered.setdefault(handle, entry)
        found: list[Candidate] = []
        for handle, entry in offered.items():
            if candidate := self._candidate(entry):
                found.append(candidate)
            else:
                self._memories.forget_offer(link, handle)
        found.sort(key=_RANK, reverse=True)
        return found

    def _candidate(self, entry: OfferEntry) -> Candidate | None:
        """Return the candidate for an entry; None if the message is here, or never wanted again."""
        copy = self._cache.get(entry.message)
        if copy is not None and (copy.whole or copy.finished):
            return None
        if copy is None or (not copy.here and not copy.rank):
            # Of what never came, the age is not known: it may be younger than any.
            wanted = self._interests.wants_something
            return self._cache.ranking.best(entry.privilege, wanted), entry.length, entry
        return copy.rank, entry.length - (copy.held_bytes if copy.here else 0), entry

    def _coming(self, link: Link) -> tuple[int, int]:
        """Return the messages and bytes that this neighbour was asked for, or that are half here from any neighbour."""
        cache, wants = self._cache, self._wants
        messages = nbytes = 0
        for want in link.inbox.wants.values():
            if want.requested and ((copy := cache.get(want.entry.message)) is None or not copy.here):
                messages += 1
                nbytes += want.entry.length
        for slot in bits(cache.partial):
            half = cache.copies[slot]
            if half is not None and wants.sources(half.id):
                nbytes += max(0, half.descriptor.length - half.held_bytes)
        return messages, nbytes

    def _ask(self, link: Link, candidates: list[Candidate], places: _SpareRoom, now: int) -> None:
        inbox = link.inbox
        messages, nbytes = self._coming(link)
        too_much = NEVER
        cache = self._cache
        self._memories.expect(candidates[0][0], min(map(_LACKING, candidates)))
        lowest = cache.room.lowest(candidates[0][0])
        for candidate in candidates:
            rank, lacking, entry = candidate
            least = lowest is None or rank <= lowest.rank
            if least and not cache.room.fits(messages + 1, nbytes):
                return  # Nor would any that follow find room.
            if self._wants.is_full(link):
                if now - inbox.progress_us < PATIENCE_US:
                    self._timers.hasten(SECOND_LOOK, now + _LOOK_GAP_US)
                return
            coming = messages + places.messages, nbytes + places.bytes
            if lacking >= too_much or not self._fits(link, candidate, *coming):
                continue
            if not places.reserve(candidate, messages, nbytes):
                too_much = lacking  # For whatever comes next, and has a lower rank, too.
                continue
            self._memories.forget_offer(link, entry.handle)
            self._wants.forgive(link, entry.message)
            if (want := self._wants.add(link, entry, now)) is not None:
                want.unsure = True
                inbox.fresh.append(entry.handle)

    def _fits(self, link: Link, candidate: Candidate, messages: int, nbytes: int) -> bool:
        """Return True if there may be room beside this much that is on its way, by evicting others if necessary."""
        rank, lacking, entry = candidate
        cache, copy = self._cache, self._cache.get(entry.message)
        if copy is not None and self._memories.is_turned_away(copy):
            return False
        messages, nbytes = messages + 1, nbytes + lacking
        if cache.room.fits(messages, nbytes):
            return True
        # A party over its share takes no room from others. Messages carried between nodes take it from their own kind
        # only.
        if self._wants.blocked(link, entry.message) or not cache.room.displaces(messages, nbytes, rank):
            return False
        return copy is None or not cache.room.shared_out(copy, 1, lacking)


class _SpareRoom:
    """The room of a cache during one look: unused space, and the space of evictable copies, each counted once."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._yielding: list[tuple[int, int]] | None = None
        """Rank and bytes of evictable copies, lowest last; computed when a copy has to be evicted."""
        self.messages = self.bytes = 0
        """Messages and bytes requested during this look, less the room of the copies that are evicted for them."""

    def reserve(self, candidate: Candidate, messages: int, nbytes: int) -> bool:
        """Reserve room for a candidate, beside this much that is on its way; return False if there is too little."""
        rank, lacking, _ = candidate
        messages += self.messages + 1
        nbytes += self.bytes + lacking
        gone: list[tuple[int, int]] = []
        freed = 0
        while not self._cache.room.fits(messages - len(gone), nbytes - freed):
            if self._yielding is None:
                self._yielding = self._cache.room.yielding()
            if not self._yielding or self._yielding[-1][0] >= self._cache.room.reach(rank):
                self._yielding += reversed(gone)
                return False
            gone.append(self._yielding.pop())
            freed += gone[-1][1]
        self.messages += 1 - len(gone)
        self.bytes += lacking - freed
        return True
