"""Room in the cache when it is short: copies by rank, room by level, shares by author, by giver and of queues.

`Room` owns the two limits (messages, bytes) and evicts copies in the order of their ranks (`gossip.holdings.ranking`);
among equals the one that came first. Its invariant is that its sums, in all and per level and party, are those over its
copies. It knows nothing of slots, deadlines or memory: that is `gossip.holdings.cache`, and only the cache changes it.
On a short disk the limit of bytes is lower (`limit`), and only carried copies give way.
"""

# The attack. Rank alone would let a stranger own every cache: publish enough messages of high
# privilege, under any number of keys, and everything else is evicted. So there are shares. An
# author (other than this host) is a *party*, and so is a giver, that is the link address that
# brought a copy: keys are free, addresses in radio range are fewer. All messages together that are
# carried for others to queues and control destinations are one party, too: every node carries those
# without being asked, so that any author could fill caches with them.
#
# A party is over its share when it has more than one copy here and they use more than its part of
# either limit. Shares act only when room has to be made. A hard quota would leave a cache half
# empty in a village with one author.
#
# Why sums per level: `could_fit` is asked for every entry of every offer, and must not look at
# copies. With at most 512 levels it adds up a few numbers. Why heaps per party are built late: most
# caches never see a party over its share.

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from carrypost.config import Settings
from carrypost.gossip.holdings.copies import Copy
from carrypost.gossip.holdings.heaps import Heap
from carrypost.gossip.holdings.ranking import Ranking
from carrypost.gossip.holdings.usage import Usage
from carrypost.log.events import Reason
from carrypost.model.address import between_nodes

_QUEUES = "queues"
"""The name of the only party of its share."""


class Share:
    """The part of the limits that one party of a kind may fill at others' cost, and all parties of that kind."""

    __slots__ = ("bytes_max", "messages_max", "over", "parties")

    def __init__(self, settings: Settings, part: float) -> None:
        self.messages_max = settings.cache_messages_max * part
        self.bytes_max = settings.cache_bytes_max * part
        self.parties: dict[str | bytes, Party] = {}
        """Parties with a copy here: bounded by `cache_messages_max`."""
        self.over: set[Party] = set()
        """Parties that have been above a bound and may still be."""

    def join(self, name: str | bytes, copy: Copy) -> Party:
        """Charge a copy to the party of this name."""
        party = self.parties.get(name)
        if party is None:
            party = self.parties[name] = Party(self, name)
        party.add(1, copy.held_bytes)
        if party.messages > self.messages_max or party.bytes > self.bytes_max:
            self.over.add(party)
        if party.heap is not None:
            party.heap.push(copy)
        return party


class Party(Usage):
    """Usage by one author or giver, or by everything that is carried between nodes."""

    __slots__ = ("heap", "name", "share")

    def __init__(self, share: Share, name: str | bytes) -> None:
        super().__init__()
        self.share = share
        self.name = name
        self.heap: Heap | None = None

    def exceeds(self, messages: int = 0, nbytes: int = 0) -> bool:
        """Return True if this much more would exceed the share. One message alone is never too much."""
        messages += self.messages
        share = self.share
        return messages > 1 and (messages > share.messages_max or self.bytes + nbytes > share.bytes_max)

    def quit(self, nbytes: int) -> None:
        """Remove one of its messages. An empty party is dropped, and so is the heap of a party far below its share."""
        self.add(-1, -nbytes)
        if not self.messages:
            del self.share.parties[self.name]
            self.share.over.discard(self)
        if self.heap is not None and not self.exceeds(self.messages, self.bytes):
            self.heap = None


Charge = tuple[Usage, list[Party]]
"""Accounts that the room of one copy is charged to: its level, unless it is pinned, and its parties."""


class Room(Usage):
    """The room of one cache, its users, and the order in which they are evicted."""

    __slots__ = (
        "_authors", "_carried_top", "_charges", "_charging", "_copies", "_givers", "_heap", "_level_shift",
        "_levels", "_most_bytes", "_queues", "_shares", "bytes_max", "messages_max",
    )  # fmt: skip

    def __init__(self, settings: Settings, copies: Sequence[Copy | None], ranking: Ranking) -> None:
        super().__init__()
        self._copies = copies
        """All copies that are here, and others."""
        self._level_shift, self._carried_top = ranking.level_shift, ranking.carried_top
        self.messages_max = settings.cache_messages_max
        self.bytes_max = self._most_bytes = settings.cache_bytes_max
        """Limits of bytes: what the disk takes, and what the settings allow at most."""
        self._shares = settings.shares
        self._authors = Share(settings, settings.limits.share_author)
        self._givers = Share(settings, settings.limits.share_neighbour)
        self._queues = Share(settings, settings.limits.share_queues)
        self._levels: dict[int, Usage] = {}
        """Usage by evictable copies, by level; at most 512."""
        self._heap = Heap(self, [])
        self._charges: dict[Copy, Charge] = {}
        """Charges of every copy that is here: bounded by `cache_messages_max`."""
        self._charging = False
        """True if heap, levels, parties and charges are maintained: once room has been short. Before, nothing needs
        them."""

    @property
    def plenty(self) -> bool:
        """True if less than nine tenths of both limits are used."""
        return self.messages * 10 < self.messages_max * 9 and self.bytes * 10 < self.bytes_max * 9

    def limit(self, nbytes: int) -> bool:
        """Let copies have this many bytes more than now, within the settings; return True if that raises the limit."""
        before, self.bytes_max = self.bytes_max, min(self.bytes + nbytes, self._most_bytes)
        return self.bytes_max > before

    @property
    def limited(self) -> bool:
        """True if the disk takes less than the settings allow."""
        return self.bytes_max < self._most_bytes

    def reach(self, rank: int) -> int:
        """Return the rank below which copies give way to one of this rank: on a short disk, only carried ones do."""
        return min(rank, self._carried_top) if self.limited else rank

    def fits(self, messages: int, nbytes: int) -> bool:
        """Return True if this much more fits without any eviction."""
        return self.messages + messages <= self.messages_max and self.bytes + nbytes <= self.bytes_max

    def could_fit(self, messages: int, nbytes: int, rank: int) -> bool:
        """Return True if there is room, at the latest once all copies up to the level of this rank are evicted."""
        if self.fits(messages, nbytes):
            return True
        self._start_charging()
        level = self.reach(rank) >> self._level_shift
        for lower, usage in self._levels.items():
            if lower <= level:
                messages -= usage.messages
                nbytes -= usage.bytes
        return self.fits(messages, nbytes)

    def displaces(self, messages: int, nbytes: int, rank: int) -> bool:
        """Return True if this much more of this rank fits by evicting others."""
        return self.yields(rank) and self.could_fit(messages, nbytes, rank)

    def yields(self, rank: int) -> bool:
        """Return True if any copy would be evicted for one of this rank."""
        lowest = self.lowest(rank)
        return lowest is not None and lowest.rank < self.reach(rank)

    def enter(self, copies: Sequence[Copy]) -> None:
        """Add copies, which are marked as being here, with their ranks and their bytes."""
        self.messages += len(copies)
        for copy in copies:
            self.bytes += copy.held_bytes
            if self._charging:
                self._charge(copy)

    def grow(self, copy: Copy, nbytes: int) -> None:
        """Charge more bytes to a copy."""
        copy.held_bytes += nbytes
        self.bytes += nbytes
        if not self._charging:
            return
        level, parties = self._charges[copy]
        if not copy.pins:
            level.add(0, nbytes)
        for party in parties:
            party.bytes += nbytes
            if party.bytes > party.share.bytes_max:
                party.share.over.add(party)

    def leave(self, copy: Copy) -> None:
        """Remove a copy, whether it is pinned or not."""
        nbytes = copy.held_bytes
        self.add(-1, -nbytes)
        if self._charging:
            level, parties = self._charges.pop(copy)
            if not copy.pins:
                level.add(-1, -nbytes)
            for party in parties:
                party.quit(nbytes)
        copy.here = False

    def pin(self, copies: Iterable[Copy], owner: int) -> None:
        """Protect copies that are here from eviction until this owner unpins them."""
        for copy in copies:
            if not copy.here:
                continue
            if self._charging and not copy.pins:
                self._charges[copy][0].add(-1, -copy.held_bytes)
            copy.pins |= owner

    def unpin(self, copies: Iterable[Copy], owner: int) -> bool:
        """Allow copies to be evicted, unless another owner pins them; return True if there are any here."""
        found = False
        for copy in copies:
            if not copy.pins & owner:
                continue
            copy.pins &= ~owner
            if copy.here:
                found = True
                if self._charging and not copy.pins:
                    self._present(copy)
        return found

    def rerank(self, copy: Copy, rank: int) -> None:
        """Change the rank of a copy that became wanted, or is only carried from now on."""
        if not self._charging:
            copy.rank = rank
            return
        level, parties = self._charges[copy]
        if not copy.pins:
            level.add(-1, -copy.held_bytes)
        copy.rank = rank
        self._charges[copy] = self._level(rank), self._moved(copy, parties)
        if not copy.pins:
            self._present(copy)

    def _moved(self, copy: Copy, parties: list[Party]) -> list[Party]:
        """Return the parties of a copy that became wanted or merely carried; `parties` are those before."""
        now = dict(self._payers(copy))
        for party in parties:
            if now.pop(party.share, None) is None:
                party.quit(copy.held_bytes)
                parties = [each for each in parties if each is not party]
        return parties + [share.join(name, copy) for share, name in now.items()]

    def _present(self, copy: Copy) -> None:
        """Make a copy evictable again."""
        level, parties = self._charges[copy]
        level.add(1, copy.held_bytes)
        self._heap.push(copy)
        for party in parties:
            if party.heap is not None:
                party.heap.push(copy)

    def clear(self, copy: Copy, messages: int, nbytes: int) -> list[Copy] | Reason:
        """Make room for more of a copy that does not fit; return all evicted copies, or the reason if there are none.

        A copy that would put its author over its share displaces copies of that author only; otherwise one that would
        put its giver over its share displaces copies of that giver only. A copy that would put everything between nodes
        over its share displaces the lowest copy between nodes, if that may be evicted at all. Any other copy first
        displaces what is over its share. For lack of room between nodes neither the author nor the giver is at fault.
        """
        self._start_charging()
        rank = self.reach(copy.rank)
        confined = self._confined(copy, messages, nbytes)
        leaving: list[Copy] = []
        while True:
            lowest = self._heap_of(confined[-1]).lowest() if confined else self.lowest(rank)
            if lowest is not None and any(party not in self._charges[lowest][1] for party in confined):
                lowest = None
            # One is mostly enough. Before more are moved, see whether all there are would be.
            hopeless = len(leaving) == 1 and not self.could_fit(messages, nbytes, rank)
            if lowest is None or lowest.rank >= rank or hopeless:
                for victim in leaving:
                    victim.here = True
                self.enter(leaving)
                at_fault = confined and confined[0].share is not self._queues
                return Reason.SHARE if at_fault else Reason.NO_ROOM
            self.leave(lowest)
            leaving.append(lowest)
            if self.fits(messages, nbytes):
                return leaving

    def _confined(self, copy: Copy, messages: int, nbytes: int) -> list[Party]:
        """Return the parties at whose cost alone this copy may come in: its author or its giver, and the queues."""
        found: list[Party] = []
        for share, name in self._payers(copy):
            party = share.parties.get(name)
            if party is not None and party.exceeds(messages, nbytes) and (share is self._queues or not found):
                found.append(party)
        return found

    def _payers(self, copy: Copy) -> Iterator[tuple[Share, str | bytes]]:
        """Yield the shares that a copy counts in, with the name of its party in each."""
        if self._shares and not copy.own:
            yield self._authors, copy.descriptor.author
            if copy.giver is not None:
                yield self._givers, copy.giver
            if _between_nodes(copy):
                yield self._queues, _QUEUES

    def shared_out(self, copy: Copy, messages: int, nbytes: int) -> bool:
        """Return True if this much of a message between nodes would displace nothing.

        Messages between nodes fill their share already, and none of them ranks lower.
        """
        queues = self._queues.parties.get(_QUEUES)
        if queues is None or not _between_nodes(copy) or not queues.exceeds(messages, nbytes):
            return False
        lowest = self._heap_of(queues).lowest()
        return lowest is None or lowest.rank >= copy.rank

    def lowest(self, rank: int) -> Copy | None:
        """Return the copy below this rank to evict first: of parties over their share, else of all."""
        self._start_charging()
        return self._lowest_over_share(rank) or self._heap.lowest()

    def _lowest_over_share(self, rank: int) -> Copy | None:
        first: Copy | None = None
        for share in (self._authors, self._givers, self._queues):
            if not share.over:
                continue
            share.over = {party for party in share.over if party.exceeds()}
            for party in share.over:
                lowest = self._heap_of(party).lowest()
                if (
                    lowest is not None
                    and lowest.rank < rank
                    and (first is None or (lowest.rank, lowest.serial) < (first.rank, first.serial))
                ):
                    first = lowest
        return first

    def yielding(self) -> list[tuple[int, int]]:
        """Return rank and bytes of all evictable copies, highest rank first."""
        self._start_charging()
        return sorted([(copy.rank, copy.held_bytes) for copy in self._heap.copies() if not copy.pins], reverse=True)

    def _heap_of(self, party: Party) -> Heap:
        if party.heap is None:
            charges = self._charges

            def belongs(copy: Copy) -> bool:
                """Return False for a copy that left and came back from another party."""
                return party in charges[copy][1]

            party.heap = Heap(party, list(filter(belongs, self._heap.copies())), belongs)
        return party.heap

    def _start_charging(self) -> None:
        if not self._charging:
            self._charging = True
            for copy in self._copies:
                if copy is not None and copy.here:
                    self._charge(copy)

    def _charge(self, copy: Copy) -> None:
        """Charge a copy to its level and its parties, and make it evictable."""
        self._heap.push(copy)
        level = self._level(copy.rank)
        if not copy.pins:
            level.add(1, copy.held_bytes)
        self._charges[copy] = level, [share.join(name, copy) for share, name in self._payers(copy)]

    def _level(self, rank: int) -> Usage:
        number = rank >> self._level_shift
        level = self._levels.get(number)
        if level is None:
            level = self._levels[number] = Usage()
        return level


def _is_carried(copy: Copy) -> bool:
    """Return True for a copy that is neither wanted nor written here."""
    return not (copy.interesting or copy.own)


def _between_nodes(copy: Copy) -> bool:
    """Return True if a copy is carried for others to a queue or a node."""
    return _is_carried(copy) and between_nodes(copy.descriptor.destination)
