"""Eviction: the order in which copies give way or are sent, and room by level, by author, by giver and of queues.

A rank is one number: the level of a message, then the time at which it was created. Another order of eviction is
another `Ranking`, passed to the cache. A `Ranking` has the order in which copies are sent, too.

`Room` owns the two limits of the cache (messages, bytes) and evicts copies in the order of their ranks; among equals
the one that came first. Its invariant is that its sums, in all and per level and party, are those over its copies. It
knows nothing of slots, deadlines or memory: that is `gossip.holdings.cache`, and only the cache changes it. On a short
disk the limit of bytes is lower (`limit`), and only carried copies give way.

A `Heap` is the order of eviction among the copies of a cache, or of one author or giver. Heaps are lazy: an entry whose
copy left, was pinned, changed its rank or belongs elsewhere by now is dropped when it comes up, and a heap with mostly
such entries is rebuilt. Authors and givers have a heap only once their share has mattered.

`Usage` is the room that several copies use.
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

from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, ClassVar, Final

from mypy_extensions import mypyc_attr

from carrypost.config import Settings
from carrypost.gossip.holdings.copies import Copy
from carrypost.gossip.wire.fields import MESSAGE_ID_BYTES_MAX
from carrypost.log.events import Reason
from carrypost.model.address import between_nodes
from carrypost.model.descriptor import Descriptor
from carrypost.model.descriptor_values import PRIVILEGE_MAX

if TYPE_CHECKING:
    from random import Random


CREATED_BITS: Final = 54
"""`created_us` is at most 2**53."""
_ID_BITS: Final = 8 * MESSAGE_ID_BYTES_MAX
_FLOOR_MAX: Final = PRIVILEGE_MAX << CREATED_BITS | 1 << CREATED_BITS - 1


class Ranking:
    """An order of eviction: messages of a lower level first, then older ones.

    The rank of a message is one number, and the part that depends on its privilege is looked up: an application's own
    rule costs nothing per message.
    """

    __slots__ = ("bases", "carried_top", "evicted_return", "top")
    level_shift: ClassVar = CREATED_BITS
    """Bits of a rank below the level."""
    wanted_first: ClassVar = True
    """Send a neighbour first what it wants for itself, then what it would only carry."""

    def __init__(self, level: Callable[[int, bool], int]) -> None:
        """Make a ranking; `level` maps a privilege (0 to 255), and True for a wanted message, to a level (0 to 511)."""
        self.bases = [
            [level(privilege, interesting) << self.level_shift for privilege in range(PRIVILEGE_MAX + 1)]
            for interesting in (False, True)
        ]
        """By whether a message is wanted, and by privilege: its level, as the upper bits of its rank."""
        self.top = max(map(max, self.bases)) | (1 << self.level_shift) - 1
        """The highest possible rank."""
        carried, wanted = self.bases
        self.carried_top = min(wanted) - 1 if min(wanted) > max(carried) else self.top
        """The highest rank of a copy that is only carried; if wanted ones may rank lower, the highest of all."""
        self.evicted_return = False
        """Forget carried copies that were evicted, so that they may come again."""

    def rank(self, privilege: int, interesting: bool, descriptor: Descriptor) -> int:
        """Return the rank of a message."""
        return self.bases[interesting][privilege] | descriptor.created_us

    def orders(self, privilege: int, interesting: bool, descriptor: Descriptor) -> tuple[int, int]:
        """Return the rank of a message, and its sending order.

        The smallest sending order goes first: by privilege, then the message that has waited longest.
        """
        created_us = descriptor.created_us
        return self.bases[interesting][privilege] | created_us, created_us - (privilege << CREATED_BITS)

    def best(self, privilege: int, interesting: bool) -> int:
        """Return the highest rank that a message of unknown age can have."""
        return self.bases[interesting][privilege] | (1 << self.level_shift) - 1

    def floor(self, rank: int) -> int:  # noqa: ARG002 - for rankings that depend on it
        """Return the floor to advertise for the lowest rank of a full cache (see `precedence`); 0 for none."""
        return 0


class ShuffledRanking(Ranking):
    """Another order of eviction, whose messages are sent by privilege, and among equals in random order."""

    __slots__ = ("_random_bits", "_ranking")

    def __init__(self, ranking: Ranking, rng: Random) -> None:
        self.bases, self.top, self.carried_top = ranking.bases, ranking.top, ranking.carried_top
        self.evicted_return = ranking.evicted_return
        self._ranking, self._random_bits = ranking, rng.getrandbits

    def rank(self, privilege: int, interesting: bool, descriptor: Descriptor) -> int:
        """Return the rank of a message."""
        return self._ranking.rank(privilege, interesting, descriptor)

    def orders(self, privilege: int, interesting: bool, descriptor: Descriptor) -> tuple[int, int]:
        """Return the rank of a message, and its sending order, which is drawn."""
        drawn = self._random_bits(CREATED_BITS) - (privilege << CREATED_BITS)
        return self.rank(privilege, interesting, descriptor), drawn


class TotalRanking(Ranking):
    """An order without ties, which the id breaks; messages are sent in the same order, highest first.

    Hosts whose levels depend on the privilege alone then agree which of their messages to evict, in whatever order they
    came.
    """

    __slots__ = ()
    level_shift: ClassVar = CREATED_BITS + _ID_BITS
    wanted_first: ClassVar = False

    def rank(self, privilege: int, interesting: bool, descriptor: Descriptor) -> int:
        """Return the rank of a message."""
        number = int.from_bytes(descriptor.id.ljust(MESSAGE_ID_BYTES_MAX, b"\0"), "big")
        return self.bases[interesting][privilege] | descriptor.created_us << _ID_BITS | number

    def orders(self, privilege: int, interesting: bool, descriptor: Descriptor) -> tuple[int, int]:
        """Return the rank of a message, and its sending order."""
        rank = self.rank(privilege, interesting, descriptor)
        return rank, -rank

    def floor(self, rank: int) -> int:
        """Return the floor to advertise for the lowest rank of a full cache."""
        return min(rank >> _ID_BITS, _FLOOR_MAX)


class ArrivalRanking(Ranking):
    """An order in which the copy that came first is evicted first, so that there is always room for another.

    What was evicted would find room, too, so it may come again: after the next comparison with a neighbour that has it.
    """

    __slots__ = ("_arrivals",)

    def __init__(self, level: Callable[[int, bool], int]) -> None:
        super().__init__(level)
        self.evicted_return = True
        self._arrivals = 0
        """Number of arrivals so far, at all hosts that share this order: it only rises."""

    def rank(self, privilege: int, interesting: bool, descriptor: Descriptor) -> int:  # noqa: ARG002 - of its age, nothing
        """Return the rank of a message that comes now."""
        self._arrivals += 1
        return self.bases[interesting][privilege] | self._arrivals

    def orders(self, privilege: int, interesting: bool, descriptor: Descriptor) -> tuple[int, int]:
        """Return the rank of a message that comes now, and its sending order."""
        return self.rank(privilege, interesting, descriptor), super().orders(privilege, interesting, descriptor)[1]


def precedence(privilege: int, descriptor: Descriptor) -> int:
    """Return privilege and date of a message as one number, which can be compared with a neighbour's floor."""
    return privilege << CREATED_BITS | descriptor.created_us


INTEREST_FIRST: Final = Ranking(lambda privilege, interesting: interesting << 8 | privilege)
"""Carried messages are evicted before those that are wanted here (JOMS-15 §2.4)."""
FIRST_IN_FIRST_OUT: Final = ArrivalRanking(lambda privilege, _: privilege)
"""By privilege, then the copy that came first, whatever the interests here and the author: as in The ONE."""
PRIVILEGE_ONLY: Final = TotalRanking(lambda privilege, _: privilege)
"""By privilege, date and id, whatever the interests here and the author (EMMA §3.2)."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Usage:
    """A number of messages and their bytes."""

    __slots__ = ("bytes", "messages")

    def __init__(self) -> None:
        self.messages = 0
        self.bytes = 0

    def add(self, messages: int, nbytes: int) -> None:
        """Count more, or less."""
        self.messages += messages
        self.bytes += nbytes


_STALE_SLACK: Final = 64
"""A heap is rebuilt when it has this many entries more than twice the copies it is for."""


class Heap:
    """Copies, lowest rank first, then lowest serial."""

    __slots__ = ("_arrived", "_belongs", "_entries", "_of")

    def __init__(self, of: Usage, copies: list[Copy], belongs: Callable[[Copy], bool] | None = None) -> None:
        """Make a heap of these copies; `belongs` selects the copies that it is for, None all of them."""
        self._of, self._belongs = of, belongs
        self._arrived = copies
        """Copies that are not sorted in yet, which is not necessary while there is room."""
        self._entries: list[tuple[int, int, Copy]] = []

    def push(self, copy: Copy) -> None:
        """Add a copy that arrived, or may be evicted again."""
        self._arrived.append(copy)
        if len(self._entries) + len(self._arrived) > 2 * self._of.messages + _STALE_SLACK:
            self._arrived, self._entries = self.copies(), []

    def copies(self) -> list[Copy]:
        """Return all copies that are here, unordered; a pinned one may be missing once `lowest` was called."""
        both = dict.fromkeys(self._arrived)
        both.update((copy, None) for rank, _, copy in self._entries if rank == copy.rank)
        return [copy for copy in both if copy.here]

    def lowest(self) -> Copy | None:
        """Return the copy to evict first."""
        entries = self._entries
        if self._arrived:
            self._sort_in()
        while entries:
            rank, _, copy = entries[0]
            if copy.here and not copy.pins and rank == copy.rank and (self._belongs is None or self._belongs(copy)):
                return copy
            heappop(entries)
        return None

    def _sort_in(self) -> None:
        entries, arrived = self._entries, self._arrived
        if len(arrived) > len(entries) >> 3:
            entries.extend([(copy.rank, copy.serial, copy) for copy in arrived])
            heapify(entries)
        else:
            for copy in arrived:
                heappush(entries, (copy.rank, copy.serial, copy))
        arrived.clear()


_QUEUES: Final = "queues"
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
    descriptor = copy.descriptor
    return _is_carried(copy) and (between_nodes(descriptor.destination) or descriptor.home is not None)
