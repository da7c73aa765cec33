"""Which messages match which profile, and the fingerprints of what is known of them.

The book holds one `View` per distinct interest profile, the host's own or a neighbour's: a bitset of the
slots that match, and, over those of them whose id is *known* here (whole, done or declined), the XOR of the
fingerprints in each of 64 buckets. All of it is kept up as messages come and go, so that an announcement or
the first step of a reconciliation scans nothing (profiles: JOMS-12 §III.A).

Invariant: a view's set is the set of distinct fingerprints over `known & matches`. Two ids with one
fingerprint (an author can make such a pair of its own messages with some 2**32 hashes) are one member of it:
they neither cancel each other in the XOR nor stand twice in a listing, and who lacks both is offered both.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from functools import reduce
from operator import or_, xor
from typing import TYPE_CHECKING, NamedTuple, Protocol

from carrypost.errors import LimitError, StateError
from carrypost.gossip.interests import Matcher
from carrypost.gossip.slots import bits, mask_of

if TYPE_CHECKING:
    from carrypost.config import Limits
    from carrypost.model.descriptor import Descriptor
    from carrypost.model.pattern import Entry

FINGERPRINT_BITS = 64
ROOT_BITS = 6
ROOT_BUCKETS = 1 << ROOT_BITS
_ROOT_SHIFT = FINGERPRINT_BITS - ROOT_BITS
_UNKNOWN = -1
_GROWTH = 1024


class Slotted(Protocol):
    """What the book has to know of a copy."""

    @property
    def slot(self) -> int:
        """The number under which bitsets speak of it."""

    @property
    def descriptor(self) -> Descriptor:
        """What profiles are matched against."""


class _Sorted(NamedTuple):
    """What a view has in one of the 64 buckets."""

    values: list[int]
    """Fingerprints, ascending; twins stand next to each other."""
    slots: list[int]
    """Their slots, in the same order."""
    mask: int


class View:
    """One profile against everything that is here."""

    __slots__ = (
        "_book", "_fingerprints", "_fresh", "_matches", "_near", "_sorted", "digest", "entries", "matcher",
        "mixed", "references", "wants_something",
    )  # fmt: skip

    def __init__(self, book: ProfileBook, digest: bytes, entries: tuple[Entry, ...], limits: Limits) -> None:
        self.digest = digest
        self.entries = entries
        self.matcher = Matcher(entries, limits)
        near = tuple(entry for entry in entries if not entry.hops)
        self._near = Matcher(near, limits) if len(near) < len(entries) else None
        self.mixed = self._near is not None
        """Whether some of it is only to be carried for others."""
        self.wants_something = bool(near)
        """Whether anything is wanted for the node itself."""
        self.references = 0
        """How many neighbours, and the host itself, use this view."""
        self._book = book
        self._matches = 0
        self._fresh: list[int] = []  # matching slots that are not in the bitset yet
        self._fingerprints = [0] * ROOT_BUCKETS
        self._sorted: list[_Sorted | None] = [None] * ROOT_BUCKETS  # made when asked for, until it changes

    @property
    def matches(self) -> int:
        """Slots that match, known or not."""
        if self._fresh:
            self._matches |= mask_of(self._fresh)
            self._fresh.clear()
        return self._matches

    def wants(self, descriptor: Descriptor) -> bool:
        """Whether a match is for the node itself, not only to be carried for others."""
        return self._near is None or self._near.matches(descriptor)

    @property
    def known(self) -> int:
        """Slots of the set."""
        return self._book.known & self.matches

    @property
    def count(self) -> int:
        """How many slots the set has."""
        return self.known.bit_count()

    @property
    def fingerprints(self) -> tuple[int, ...]:
        """XOR over the set in each of the 64 buckets."""
        self._book.apply()
        return tuple(self._fingerprints)

    def members(self, depth: int, prefix: int) -> list[int]:
        """The fingerprints that start with the `depth` bits `prefix`, ascending, each once."""
        if depth >= ROOT_BITS:
            bucket, low, high = self._range(depth, prefix)
            found = bucket.values[low:high]
        elif depth:
            found = [value for bucket in self._buckets(depth, prefix) for value in bucket.values]
        else:  # Asked of small sets, most of whose buckets are empty.
            found = sorted([self._book.fingerprints[slot] for slot in bits(self.known)])
        return list(dict.fromkeys(found)) if self._book.twins else found

    def mask(self, depth: int, prefix: int) -> int:
        """The slots of those members."""
        if depth > ROOT_BITS:
            bucket, low, high = self._range(depth, prefix)
            return mask_of(bucket.slots[low:high])
        return reduce(or_, (bucket.mask for bucket in self._buckets(depth, prefix))) if depth else self.known

    def fingerprint(self, depth: int, prefix: int) -> int:
        """The XOR over those members."""
        if depth == ROOT_BITS:
            self._book.apply()
            return self._fingerprints[prefix]
        return reduce(xor, self.members(depth, prefix), 0)

    def xors(self, depth: int, first: int, count: int) -> list[int]:
        """The XORs over so many buckets of a depth, from number `first` on."""
        if depth == ROOT_BITS:
            self._book.apply()
            return self._fingerprints[first : first + count]
        width = count.bit_length() - 1
        if count == 1 << width and not first % count and depth - width >= ROOT_BITS:
            found, shift = [0] * count, FINGERPRINT_BITS - depth  # All the children of one bucket: one pass over it.
            for value in self.members(depth - width, first >> width):
                found[(value >> shift) - first] ^= value
            return found
        return [self.fingerprint(depth, prefix) for prefix in range(first, first + count)]

    def slots(self, fingerprint: int) -> list[int]:
        """The slots of the member with this fingerprint: none or one; several where ids collide."""
        bucket = self._bucket(fingerprint >> _ROOT_SHIFT)
        low = bisect_left(bucket.values, fingerprint)
        return bucket.slots[low : bisect_right(bucket.values, fingerprint, low)]

    def find(self, fingerprints: Iterable[int]) -> tuple[list[int], list[int]]:
        """The slots of those members that are in the set, and the fingerprints that are not."""
        book, found, missing = self._book, [], []
        known, holders = self.known, book.holders
        for fingerprint in fingerprints:
            slot = holders.get(fingerprint)
            if slot is not None and known >> slot & 1 and not book.twins:
                found.append(slot)
            elif slots := self.slots(fingerprint) if book.twins else ():
                found += slots
            else:
                missing.append(fingerprint)
        return found, missing

    # What follows is for the book.

    def look_at(self, slot: int, descriptor: Descriptor) -> None:
        """A message got this slot."""
        if self.matcher.matches(descriptor):
            self._fresh.append(slot)

    def look_at_all(self, copies: Sequence[Slotted]) -> None:
        """Messages got slots."""
        destinations = self.matcher.destinations
        if destinations is not None:
            self._fresh += [copy.slot for copy in copies if copy.descriptor.destination in destinations]
            return
        matches = self.matcher.matches
        self._fresh += [copy.slot for copy in copies if matches(copy.descriptor)]

    def toggle(self, fingerprints: Iterable[int]) -> None:
        """Members came or went."""
        xors, made = self._fingerprints, self._sorted
        for fingerprint in fingerprints:
            bucket = fingerprint >> _ROOT_SHIFT
            xors[bucket] ^= fingerprint
            made[bucket] = None

    def touch(self, fingerprint: int) -> None:
        """The slots of a member changed, be it to none."""
        self._sorted[fingerprint >> _ROOT_SHIFT] = None

    def clear(self, keep: int) -> None:
        """Only these slots have tenants still."""
        self._matches = self.matches & keep

    def _buckets(self, depth: int, prefix: int) -> Iterable[_Sorted]:
        width = ROOT_BITS - depth
        return map(self._bucket, range(prefix << width, (prefix + 1) << width))

    def _range(self, depth: int, prefix: int) -> tuple[_Sorted, int, int]:
        bucket = self._bucket(prefix >> (depth - ROOT_BITS))
        width = FINGERPRINT_BITS - depth
        low = bisect_left(bucket.values, prefix << width)
        return bucket, low, bisect_left(bucket.values, (prefix + 1) << width, low)

    def _bucket(self, number: int) -> _Sorted:
        book = self._book
        book.apply()
        bucket = self._sorted[number]
        if bucket is None:
            slots, matches = sorted(book.by_bucket[number]), self.matches
            if book.known & ~matches:
                slots = [slot for slot in slots if matches >> slot & 1]
            slots.sort(key=book.fingerprints.__getitem__)
            bucket = _Sorted([book.fingerprints[slot] for slot in slots], slots, mask_of(slots))
            self._sorted[number] = bucket
        return bucket


class ProfileBook:
    """The views of one host, at most `limits.profiles_max`, and what they share: who is known, and where.

    To touch a bitset of 10,000 slots costs as much as all else that is done for a message here. So slots that
    match and slots that became known are gathered in lists, and enter the bitsets when somebody looks.
    """

    __slots__ = (
        "_idle", "_known", "_limits", "_settling", "_twins", "_views", "by_bucket", "fingerprints", "holders", "twins",
    )  # fmt: skip

    def __init__(self, limits: Limits) -> None:
        self.fingerprints: list[int] = []
        """By slot; -1 where the id is not known."""
        self.by_bucket: list[set[int]] = [set() for _ in range(ROOT_BUCKETS)]
        """The known slots by the top bits of their fingerprints."""
        self.twins = 0
        """Known slots whose fingerprint another one had before: 0, unless somebody makes them."""
        self._known = 0
        self._settling: list[int] = []  # known, but not in the bitset and the XORs yet; never twins
        self.holders: dict[int, int] = {}
        """The known slot of each fingerprint; of twins, one."""
        self._twins: dict[int, int] = {}  # how many known slots have the same fingerprint, where several do
        self._views: dict[bytes, View] = {}
        self._idle: dict[bytes, None] = {}  # views that nobody refers to, least recently used first
        self._limits = limits

    def __len__(self) -> int:
        return len(self._views)

    @property
    def known(self) -> int:
        """Slots whose id is known: whole, done or declined."""
        self.apply()
        return self._known

    def view(self, digest: bytes) -> View | None:
        """The view of the profile with this digest, if it is known here."""
        if digest in self._idle:
            self._idle[digest] = self._idle.pop(digest)
        return self._views.get(digest)

    def learn(self, entries: Iterable[Entry], digest: bytes, copies: Iterable[Slotted], *, own: bool = False) -> View:
        """Match everything in `copies`, all that have a slot, against a new profile. One known already stays.

        Room is made by forgetting the profile that nobody has referred to for the longest time. Where
        neighbours refer to all of them the newcomer is refused (`LimitError`), unless it is the host's own.
        """
        if (present := self.view(digest)) is not None:
            return present
        self._make_room(own=own)
        self.apply()
        view = View(self, digest, tuple(entries), self._limits)
        for copy in copies:
            view.look_at(copy.slot, copy.descriptor)
        view.toggle({self.fingerprints[slot] for slot in bits(view.known)})
        self._views[digest] = view
        self._idle[digest] = None
        return view

    def close(self) -> None:
        """The host is gone: views and book let go of each other, so that the memory is free at once."""
        self._views.clear()

    def keep(self, digest: bytes) -> View:
        """One more neighbour, or the host itself, refers to this view."""
        view = self._existing(digest)
        view.references += 1
        self._idle.pop(digest, None)
        return view

    def drop(self, digest: bytes) -> None:
        """One fewer does."""
        view = self._existing(digest)
        if not view.references:
            raise StateError("this profile is dropped more often than it was kept")
        view.references -= 1
        if not view.references:
            self._idle[digest] = None
            self._shrink(self._limits.profiles_max)

    def enter(self, copy: Slotted) -> None:
        """A message got a slot: it is matched against every profile, once. Comes before `settle`."""
        slot, descriptor = copy.slot, copy.descriptor
        for view in self._views.values():
            view.look_at(slot, descriptor)

    def settle(self, copy: Slotted) -> None:
        """Its id became known: from now on it counts in what is compared with neighbours. Idempotent."""
        slot = copy.slot
        fingerprints = self.fingerprints
        if slot >= len(fingerprints):
            fingerprints.extend([_UNKNOWN] * (slot + _GROWTH - len(fingerprints)))
        if fingerprints[slot] != _UNKNOWN:
            return
        fingerprint = fingerprints[slot] = copy.descriptor.fingerprint
        if fingerprint in self.holders:
            self._settle_twin(slot, fingerprint)
            return
        self.holders[fingerprint] = slot
        self.by_bucket[fingerprint >> _ROOT_SHIFT].add(slot)
        self._settling.append(slot)

    def take_in(self, copies: Sequence[Slotted]) -> None:
        """Messages got slots, and their ids are known from now on: `enter` and `settle` for each."""
        for view in self._views.values():
            view.look_at_all(copies)
        fingerprints, holders, by_bucket, settling = self.fingerprints, self.holders, self.by_bucket, self._settling
        for copy in copies:
            slot, fingerprint = copy.slot, copy.descriptor.fingerprint
            if slot >= len(fingerprints) or fingerprints[slot] != _UNKNOWN or fingerprint in holders:
                self.settle(copy)
                settling = self._settling
                continue
            fingerprints[slot] = fingerprint
            holders[fingerprint] = slot
            by_bucket[fingerprint >> _ROOT_SHIFT].add(slot)
            settling.append(slot)

    def unsettle(self, copy: Slotted) -> None:
        """Its id is not known any more, and the message would be taken again; the slot stays. Idempotent."""
        slot = copy.slot
        if slot < len(self.fingerprints) and self.fingerprints[slot] != _UNKNOWN:
            self.apply()
            self._forget(slot)

    def release(self, mask: int) -> None:
        """These slots were freed: they are gone from every bitset and every XOR."""
        if not mask:
            return
        fingerprints, holders = self.fingerprints, self.holders
        for slot in list(bits(mask & self.known)) if self.twins else ():
            if fingerprints[slot] in self._twins:
                self._forget(slot)
        gone = mask & self.known
        slots, keep = list(bits(gone)), ~mask
        for view in self._views.values():
            matching = gone & view.matches
            view.toggle([fingerprints[slot] for slot in (slots if matching == gone else bits(matching))])
            view.clear(keep)
        for slot in slots:
            fingerprint = fingerprints[slot]
            del holders[fingerprint]
            self.by_bucket[fingerprint >> _ROOT_SHIFT].remove(slot)
            fingerprints[slot] = _UNKNOWN
        self._known &= keep

    def apply(self) -> None:
        """Bring bitset and XORs up to date; views do it when they are looked at."""
        if not self._settling:
            return
        settling, self._settling = self._settling, []
        mask = mask_of(settling)
        self._known |= mask
        fingerprints = self.fingerprints
        for view in self._views.values():
            matching = mask & view.matches
            slots = settling if matching == mask else bits(matching)
            view.toggle([fingerprints[slot] for slot in slots])

    def _settle_twin(self, slot: int, fingerprint: int) -> None:
        """The slow way: in each view it is one member, whether one of the twins matches or several do."""
        self.apply()
        # They are looked for before the newcomer is among them.
        for view in self._views.values():
            if view.matches >> slot & 1:
                if not view.slots(fingerprint):
                    view.toggle((fingerprint,))
                view.touch(fingerprint)
        self._twins[fingerprint] = self._twins.get(fingerprint, 1) + 1
        self.twins += 1
        self._known |= 1 << slot
        self.by_bucket[fingerprint >> _ROOT_SHIFT].add(slot)

    def _forget(self, slot: int) -> None:
        fingerprint = self.fingerprints[slot]
        self.fingerprints[slot] = _UNKNOWN
        self._known ^= 1 << slot
        self.by_bucket[fingerprint >> _ROOT_SHIFT].remove(slot)
        others = self._twins.pop(fingerprint, 1) - 1
        if others:
            self.twins -= 1
            if others > 1:
                self._twins[fingerprint] = others
            same = self.by_bucket[fingerprint >> _ROOT_SHIFT]
            self.holders[fingerprint] = next(each for each in same if self.fingerprints[each] == fingerprint)
        else:
            del self.holders[fingerprint]
        # Twins are looked for once this one is no longer among them.
        for view in self._views.values():
            if view.matches >> slot & 1:
                view.touch(fingerprint)
                if not (others and view.slots(fingerprint)):
                    view.toggle((fingerprint,))

    def _existing(self, digest: bytes) -> View:
        view = self._views.get(digest)
        if view is None:
            raise StateError("this profile has not been learnt, or was forgotten")
        return view

    def _make_room(self, *, own: bool) -> None:
        self._shrink(self._limits.profiles_max - 1)
        if len(self._views) >= self._limits.profiles_max and not own:
            raise LimitError("profiles", f"more than {self._limits.profiles_max} profiles around at once")

    def _shrink(self, views_max: int) -> None:
        while len(self._views) > views_max and self._idle:
            oldest = next(iter(self._idle))
            del self._idle[oldest], self._views[oldest]
