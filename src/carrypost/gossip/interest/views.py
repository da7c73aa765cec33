"""One interest profile, matched against all copies: the matching slots, and the buckets by which sets are compared.

A view belongs to a `gossip.interest.index.ProfileIndex`, which informs it of copies that come and go. `KnownIds` is all
that it reads of the index.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import reduce
from operator import or_, xor
from typing import TYPE_CHECKING, NamedTuple, Protocol

from carrypost.gossip.interest.matcher import Matcher, Slotted
from carrypost.gossip.slots import Members, among, bits, mask_of
from carrypost.model.recipients import is_for, recipients

if TYPE_CHECKING:
    from carrypost.config import Limits
    from carrypost.model.descriptor import Descriptor
    from carrypost.model.ids import NodeId
    from carrypost.model.pattern import Entry

FINGERPRINT_BITS = 64
ROOT_BITS = 6
ROOT_BUCKETS = 1 << ROOT_BITS
ROOT_SHIFT = FINGERPRINT_BITS - ROOT_BITS


class KnownIds(Protocol):
    """The known ids and their fingerprints: shared by all views of a host, which only read them."""

    @property
    def known(self) -> int:
        """Slots whose id is known: whole, done or declined."""

    @property
    def fingerprints(self) -> Sequence[int]:
        """Fingerprints by slot."""

    @property
    def holders(self) -> Mapping[int, int]:
        """The known slot of each fingerprint; one of several twins."""

    @property
    def by_bucket(self) -> Mapping[int, Collection[int]]:
        """The known slots by the top bits of their fingerprints."""

    @property
    def twins(self) -> int:
        """Number of known slots that share their fingerprint with an earlier one."""

    @property
    def listed(self) -> int:
        """Slots of messages that list their recipients."""

    def apply(self) -> None:
        """Inform all views of ids that became known since the last call."""


class _Sorted(NamedTuple):
    """The members of a view in one of the 64 buckets."""

    values: list[int]
    """Fingerprints, ascending; twins stand next to each other."""
    slots: list[int]
    """Their slots, in the same order."""
    mask: int


class View:
    """One profile, matched against all copies."""

    __slots__ = (
        "_addressed", "_compared", "_fingerprints", "_fresh", "_index", "_limits", "_matches", "_near_made", "_sorted",
        "_wanted", "digest", "entries", "matcher", "mixed", "references", "wants_something",
    )  # fmt: skip

    def __init__(self, index: KnownIds, digest: bytes, entries: tuple[Entry, ...], limits: Limits) -> None:
        self.digest = digest
        self.entries = entries
        self.matcher = Matcher(entries, limits)
        near = sum(not entry.hops for entry in entries)
        self.mixed = near < len(entries)
        """True if some entries are only carried for others."""
        self._near_made: Matcher | None = None  # made when asked for, which the host does not ask of its own profile
        self._limits = limits
        self.wants_something = near > 0
        """True if the node itself wants anything."""
        self.references = 0
        """Number of users of this view: neighbours, and the host itself."""
        self._index = index
        self._matches = 0
        self._fresh: list[int] = []  # matching slots that are not in the bitset yet
        self._compared = self._wanted = self._addressed = 0  # slots that `wanted` was asked about, and what it found
        self._fingerprints = [0] * ROOT_BUCKETS
        self._sorted: list[_Sorted | None] = [None] * ROOT_BUCKETS  # made when asked for, until it changes

    @property
    def matches(self) -> int:
        """Slots that match, known or not."""
        if self._fresh:
            self._matches |= mask_of(self._fresh)
            self._fresh.clear()
        return self._matches

    def wants(self, descriptor: Descriptor, node: NodeId) -> bool:
        """Return True if a match is for the node that has the profile, not only carried for others.

        Messages that name the node as a recipient are for it, though no profile says so
        (`gossip.interest.own_interests`). Messages that list others are not.
        """
        headers = descriptor.headers
        if headers is not None and headers.recipients:
            return is_for(descriptor, node)
        return not self.mixed or self._near.matches(descriptor) or is_for(descriptor, node)

    @property
    def _near(self) -> Matcher:
        """The entries by which the node wants messages for itself."""
        if self._near_made is None:
            self._near_made = Matcher([entry for entry in self.entries if not entry.hops], self._limits)
        return self._near_made

    def wanted(self, mask: int, copies: Sequence[Slotted | None], node: NodeId) -> int:
        """Return the slots among these whose messages are for this node itself, as `wants` decides for one.

        Called for every page of offers, with everything that might be on it; so each slot is matched against the
        profile once.
        """
        listed = mask & self._index.listed
        if not self.mixed:
            found, doubtful = mask ^ listed, listed
        else:
            if fresh := mask & ~self._compared:
                self._compare(fresh, copies)
            found = mask & self._wanted & ~listed
            doubtful = (mask & self._addressed & ~found) | listed
        for slot in bits(doubtful) if doubtful else ():
            copy = copies[slot]
            if copy is not None and is_for(copy.descriptor, node):
                found |= 1 << slot
        return found

    def _compare(self, mask: int, copies: Sequence[Slotted | None]) -> None:
        wanted: list[int] = []
        addressed: list[int] = []
        matches = self._near.matches
        for slot in bits(mask):
            if (copy := copies[slot]) is not None:
                if matches(copy.descriptor):
                    wanted.append(slot)
                elif recipients(copy.descriptor):
                    addressed.append(slot)
        self._compared |= mask
        self._wanted |= mask_of(wanted)
        self._addressed |= mask_of(addressed)

    @property
    def known(self) -> int:
        """Slots of the set: matching and known."""
        return self._index.known & self.matches

    @property
    def count(self) -> int:
        """Number of slots in the set."""
        return self.known.bit_count()

    @property
    def fingerprints(self) -> tuple[int, ...]:
        """XOR over the set in each of the 64 buckets."""
        self._index.apply()
        return tuple(self._fingerprints)

    def members(self, depth: int, prefix: int) -> list[int]:
        """Return the fingerprints that start with the `depth` bits `prefix`, ascending, each once."""
        if depth >= ROOT_BITS:
            bucket, low, high = self._range(depth, prefix)
            found = bucket.values[low:high]
        elif depth:
            found = [value for bucket in self._buckets(depth, prefix) for value in bucket.values]
        else:  # Asked of small sets, most of whose buckets are empty.
            found = sorted([self._index.fingerprints[slot] for slot in bits(self.known)])
        return list(dict.fromkeys(found)) if self._index.twins else found

    def mask(self, depth: int, prefix: int) -> int:
        """Return the slots of the members in a bucket."""
        if depth > ROOT_BITS:
            bucket, low, high = self._range(depth, prefix)
            return mask_of(bucket.slots[low:high])
        return reduce(or_, (bucket.mask for bucket in self._buckets(depth, prefix))) if depth else self.known

    def fingerprint(self, depth: int, prefix: int) -> int:
        """Return the XOR over the members in a bucket."""
        if depth == ROOT_BITS:
            self._index.apply()
            return self._fingerprints[prefix]
        return reduce(xor, self.members(depth, prefix), 0)

    def xors(self, depth: int, first: int, count: int) -> list[int]:
        """Return the XORs over `count` buckets of a depth, from number `first` on."""
        if depth == ROOT_BITS:
            self._index.apply()
            return self._fingerprints[first : first + count]
        width = count.bit_length() - 1
        if count == 1 << width and not first % count and depth - width >= ROOT_BITS:
            found, shift = [0] * count, FINGERPRINT_BITS - depth  # All the children of one bucket: one pass over it.
            for value in self.members(depth - width, first >> width):
                found[(value >> shift) - first] ^= value
            return found
        return [self.fingerprint(depth, prefix) for prefix in range(first, first + count)]

    def slots(self, fingerprint: int) -> list[int]:
        """Return the slots of the member with this fingerprint: none or one; several where ids collide."""
        bucket = self._bucket(fingerprint >> ROOT_SHIFT)
        low = bisect_left(bucket.values, fingerprint)
        return bucket.slots[low : bisect_right(bucket.values, fingerprint, low)]

    def find(self, fingerprints: Iterable[int]) -> tuple[list[int], list[int]]:
        """Return the slots of those members that are in the set, and the fingerprints that are not."""
        index, found, missing = self._index, [], []
        known, holders = Members(self.known), index.holders
        for fingerprint in fingerprints:
            slot = holders.get(fingerprint)
            if slot is not None and slot in known and not index.twins:
                found.append(slot)
            elif slots := self.slots(fingerprint) if index.twins else ():
                found += slots
            else:
                missing.append(fingerprint)
        return found, missing

    # What follows is for the index.

    def look_at(self, slot: int, descriptor: Descriptor) -> None:
        """Match a message that got this slot."""
        if self.matcher.matches(descriptor):
            self._fresh.append(slot)

    def look_at_all(self, copies: Iterable[Slotted]) -> None:
        """Match messages that got slots."""
        self._fresh += self.matcher.slots_of(copies)

    def toggle(self, fingerprints: Iterable[int]) -> None:
        """Update the XORs for members that came or went."""
        xors, made = self._fingerprints, self._sorted
        for fingerprint in fingerprints:
            bucket = fingerprint >> ROOT_SHIFT
            xors[bucket] ^= fingerprint
            made[bucket] = None

    def touch(self, fingerprint: int) -> None:
        """Drop what was prepared for a bucket in which the slots of a member changed."""
        self._sorted[fingerprint >> ROOT_SHIFT] = None

    def clear(self, keep: int) -> None:
        """Drop all slots except these, which still have tenants."""
        self._matches = self.matches & keep
        if self._compared:
            self._compared &= keep
            self._wanted &= keep
            self._addressed &= keep

    def rest(self) -> None:
        """Drop the sorted members: no node uses the view for now, and they are sorted again when asked for."""
        self._sorted = [None] * ROOT_BUCKETS

    def _buckets(self, depth: int, prefix: int) -> Iterable[_Sorted]:
        width = ROOT_BITS - depth
        return map(self._bucket, range(prefix << width, (prefix + 1) << width))

    def _range(self, depth: int, prefix: int) -> tuple[_Sorted, int, int]:
        bucket = self._bucket(prefix >> (depth - ROOT_BITS))
        width = FINGERPRINT_BITS - depth
        low = bisect_left(bucket.values, prefix << width)
        return bucket, low, bisect_left(bucket.values, (prefix + 1) << width, low)

    def _bucket(self, number: int) -> _Sorted:
        index = self._index
        index.apply()
        bucket = self._sorted[number]
        if bucket is None:
            matches = self.matches
            # Twins stand in the order of their slots; others have no need to be sorted by those first.
            slots = (sorted if index.twins else list)(index.by_bucket.get(number, ()))
            if index.known & ~matches:
                slots = among(slots, matches)
            slots.sort(key=index.fingerprints.__getitem__)
            bucket = _Sorted([index.fingerprints[slot] for slot in slots], slots, mask_of(slots))
            self._sorted[number] = bucket
        return bucket
