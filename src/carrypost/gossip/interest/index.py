"""The index: messages that match each profile, and the fingerprints of those that are known.

The index has one `View` per distinct interest profile, the host's own or a neighbour's: a bitset of the matching slots
and, over those of them whose id is *known* here (whole, done or declined), the XOR of the fingerprints in each of 64
buckets, by which sets are compared. All of it is maintained as messages come and go, so that an announcement or the
first step of a reconciliation scans nothing (profiles: JOMS-12 §III.A). `KnownIds` is all that a view reads of the
index.

Invariant: a view's set is the set of distinct fingerprints over `known & matches`. Two ids with one fingerprint (an
author can make such a pair of its own messages with some 2**32 hashes) are one member of it: they neither cancel each
other in the XOR nor occur twice in a listing, and a host that lacks both is offered both.

`Learning` has profiles that are being learnt: matched against all copies, a part at a time. A stranger's profile may
cost milliseconds per message, within all bounds of its patterns and selectors, and a full cache has tens of thousands:
done at once, that would occupy a host for a minute. So as much is done as takes a moment, which is enough for most
profiles, and the rest later. Until it is done the profile counts as unknown.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import reduce
from operator import or_, xor
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from carrypost.errors import LimitError, StateError
from carrypost.gossip.interest.matcher import Matcher, Slotted
from carrypost.gossip.slots import Members, among, bits, mask_of
from carrypost.model.descriptor_values import is_for, recipients

if TYPE_CHECKING:
    from carrypost.config import Limits
    from carrypost.model.descriptor import Descriptor
    from carrypost.model.ids import NodeId
    from carrypost.model.pattern import Entry


FINGERPRINT_BITS: Final = 64
ROOT_BITS: Final = 6
ROOT_BUCKETS: Final = 1 << ROOT_BITS
ROOT_SHIFT: Final = FINGERPRINT_BITS - ROOT_BITS


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
        if headers is not None and (headers.recipients or headers.home is not None):
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


_AT_ONCE, _AT_ONCE_CHEAP = 8, 1_024
"""Number of messages between two checks of the time spent, and where they are only looked up."""
_LOOK_US: Final = 3
"""CPU time for a message, whatever the profile: descriptors of remembered messages have to be decoded."""


class Learning:
    """A view that was not matched against all copies yet. It is informed of new messages like any other view."""

    __slots__ = ("_copies", "_gone", "_left", "free", "view")

    def __init__(self, view: View, copies: Iterable[Slotted | None]) -> None:
        self.view = view
        self.free = True
        """True if the neighbour that has the profile is not charged for learning it."""
        self._copies: Iterable[Slotted | None] | None = copies
        """Copies to match, if that has not begun. There may be a million, so they are listed only then."""
        self._left: list[Slotted | None] = []
        self._gone: set[int] = set()
        """Slots that were freed meanwhile."""

    def finish(self) -> None:
        """Match all messages that are left, however long that takes."""
        self._begin()
        self._look_at(len(self._left))

    def go_on(self, within_us: int) -> bool:
        """Match more messages for about this long; return True when none is left."""
        self._begin()
        matcher, left = self.view.matcher, self._left
        at_once = _AT_ONCE_CHEAP if matcher.is_cheap else _AT_ONCE
        end_us = matcher.spent_us + within_us
        while left and matcher.spent_us < end_us:
            end_us -= _LOOK_US * min(at_once, len(left))
            self._look_at(at_once)
        return not left

    def _begin(self) -> None:
        if self._copies is not None:
            self._left, self._copies = list(self._copies), None

    def _look_at(self, count: int) -> None:
        """Match some of the messages that are left, the latest first."""
        left, gone = self._left, self._gone
        some, left[-count:] = left[-count:], ()
        self.view.look_at_all([copy for copy in some if copy is not None and copy.slot not in gone])

    def release(self, mask: int) -> None:
        """Forget freed slots."""
        self._gone.update(bits(mask))
        self.view.clear(~mask)


__all__ = ["FINGERPRINT_BITS", "ROOT_BITS", "ProfileIndex", "View"]

_UNKNOWN: Final = -1
_GROWTH: Final = 1024


class ProfileIndex:
    """The views of one host, at most `limits.profiles_max`, and their shared state: the known ids and their buckets.

    Updating a bitset of 10,000 slots costs as much as everything else that is done for a message here. So slots that
    match and slots that became known are gathered in lists, and enter the bitsets when they are read.
    """

    __slots__ = (
        "_becoming_known", "_idle", "_known", "_learning", "_limits", "_twins", "_views", "by_bucket", "fingerprints",
        "holders", "listed", "twins",
    )  # fmt: skip

    def __init__(self, limits: Limits) -> None:
        self.fingerprints: list[int] = []
        """Fingerprints by slot; -1 where the id is not known."""
        self.by_bucket: defaultdict[int, set[int]] = defaultdict(set)
        """The known slots by the top bits of their fingerprints."""
        self.twins = 0
        """Number of known slots whose fingerprint another one had before: 0, unless an author makes such a pair."""
        self.listed = 0
        """Slots of messages that list their recipients."""
        self._known = 0
        self._becoming_known: list[int] = []  # known, but not in the bitset and the XORs yet; never twins
        self.holders: dict[int, int] = {}
        """The known slot of each fingerprint; one of several twins."""
        self._twins: dict[int, int] = {}  # how many known slots have the same fingerprint, where several do
        self._views: dict[bytes, View] = {}
        self._learning: dict[bytes, Learning] = {}
        self._idle: dict[bytes, None] = {}  # unused views, least recently used first
        self._limits = limits

    def __len__(self) -> int:
        return len(self._views)

    @property
    def known(self) -> int:
        """Slots whose id is known: whole, done or declined."""
        self.apply()
        return self._known

    def view(self, digest: bytes) -> View | None:
        """Return the view of the profile with this digest, if it is known here."""
        if digest in self._idle:
            self._idle[digest] = self._idle.pop(digest)
        return self._views.get(digest)

    def learn(self, entries: Iterable[Entry], digest: bytes, copies: Iterable[Slotted], *, own: bool = False) -> View:
        """Match everything in `copies`, which are all that have a slot, against a new profile. A known profile is kept.

        A profile that is being learnt is learnt to its end at once. To make room, the profile that was unused for
        longest is forgotten. If neighbours use all of them the new one is refused (`LimitError`), unless it is the
        host's own.
        """
        if (present := self.view(digest)) is not None:
            return present
        learning = self._learning.get(digest)
        if learning is None:
            learning = self.begin(entries, digest, copies, own=own)
        learning.finish()
        return self._enter(learning)

    def begin(
        self, entries: Iterable[Entry], digest: bytes, copies: Iterable[Slotted | None], *, own: bool = False
    ) -> Learning:
        """Begin to learn a profile that is neither known nor being learnt; raises as `learn` does."""
        self._make_room(own=own)
        learning = self._learning[digest] = Learning(View(self, digest, tuple(entries), self._limits), copies)
        return learning

    @property
    def learning(self) -> Mapping[bytes, Learning]:
        """The profiles that are being learnt, by digest, earliest first. Their views cannot be used yet."""
        return self._learning

    def go_on(self, learning: Learning, within_us: int) -> bool:
        """Continue to learn a profile for about this long; return True once its view can be used."""
        if not learning.go_on(within_us):
            return False
        self._enter(learning)
        return True

    def _enter(self, learning: Learning) -> View:
        """Add the view of a profile that is learnt."""
        view = learning.view
        del self._learning[view.digest]
        self.apply()
        view.toggle({self.fingerprints[slot] for slot in bits(view.known)})
        self._views[view.digest] = view
        self._idle[view.digest] = None
        return view

    def abandon(self, digest: bytes) -> None:
        """Stop learning a profile."""
        del self._learning[digest]

    def close(self) -> None:
        """Break the references between views and index when the host is gone, so that memory is freed at once."""
        self._views.clear()
        self._learning.clear()

    def keep(self, digest: bytes) -> View:
        """Count one more user of this view: a neighbour, or the host itself."""
        view = self._existing(digest)
        view.references += 1
        self._idle.pop(digest, None)
        return view

    def drop(self, digest: bytes) -> None:
        """Count one user fewer of this view; without any it may be forgotten."""
        view = self._existing(digest)
        if not view.references:
            raise StateError("this profile is dropped more often than it was kept")
        view.references -= 1
        if not view.references:
            self._idle[digest] = None
            view.rest()
            self._shrink(self._limits.profiles_max)

    def add(self, copy: Slotted) -> None:
        """Match a message that got a slot against every profile, once. Call it before `mark_known`."""
        slot, descriptor = copy.slot, copy.descriptor
        for view in self._views.values():
            view.look_at(slot, descriptor)
        for learning in self._learning.values():
            learning.view.look_at(slot, descriptor)

    def mark_listed(self, copy: Slotted) -> None:
        """Note that a message lists its recipients: then profiles do not tell which nodes want it. Idempotent."""
        self.listed |= 1 << copy.slot

    def mark_known(self, copy: Slotted) -> None:
        """Include the copy's id in comparisons with neighbours from now on. Idempotent."""
        slot = copy.slot
        fingerprints = self.fingerprints
        if slot >= len(fingerprints):
            fingerprints.extend([_UNKNOWN] * (slot + _GROWTH - len(fingerprints)))
        if fingerprints[slot] != _UNKNOWN:
            return
        fingerprint = fingerprints[slot] = copy.descriptor.fingerprint
        if fingerprint in self.holders:
            self._mark_twin(slot, fingerprint)
            return
        self.holders[fingerprint] = slot
        self.by_bucket[fingerprint >> ROOT_SHIFT].add(slot)
        self._becoming_known.append(slot)

    def add_all(self, copies: Sequence[Slotted]) -> None:
        """Do `add` and `mark_known` for each of these messages, which got slots."""
        for view in self._views.values():
            view.look_at_all(copies)
        for learning in self._learning.values():
            learning.view.look_at_all(copies)
        fingerprints, holders, by_bucket, fresh = self.fingerprints, self.holders, self.by_bucket, self._becoming_known
        for copy in copies:
            slot, fingerprint = copy.slot, copy.descriptor.fingerprint
            if slot >= len(fingerprints) or fingerprints[slot] != _UNKNOWN or fingerprint in holders:
                self.mark_known(copy)
                fresh = self._becoming_known
                continue
            fingerprints[slot] = fingerprint
            holders[fingerprint] = slot
            by_bucket[fingerprint >> ROOT_SHIFT].add(slot)
            fresh.append(slot)

    def mark_unknown(self, copy: Slotted) -> None:
        """Exclude the copy's id from comparisons: the message would be accepted again. The slot stays. Idempotent."""
        slot = copy.slot
        if slot < len(self.fingerprints) and self.fingerprints[slot] != _UNKNOWN:
            self.apply()
            self._forget(slot)

    def release(self, mask: int) -> None:
        """Remove freed slots from every bitset and every XOR."""
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
        for learning in self._learning.values():
            learning.release(mask)
        for slot in slots:
            fingerprint = fingerprints[slot]
            del holders[fingerprint]
            self.by_bucket[fingerprint >> ROOT_SHIFT].remove(slot)
            fingerprints[slot] = _UNKNOWN
        self._known &= keep
        self.listed &= keep

    def apply(self) -> None:
        """Bring bitset and XORs up to date; views call it when they are read."""
        if not self._becoming_known:
            return
        fresh, self._becoming_known = self._becoming_known, []
        mask = mask_of(fresh)
        self._known |= mask
        fingerprints = self.fingerprints
        for view in self._views.values():
            matching = mask & view.matches
            slots = fresh if matching == mask else bits(matching)
            view.toggle([fingerprints[slot] for slot in slots])

    def _mark_twin(self, slot: int, fingerprint: int) -> None:
        """Mark a slot with a known fingerprint: in each view the twins are one member, however many match."""
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
        self.by_bucket[fingerprint >> ROOT_SHIFT].add(slot)

    def _forget(self, slot: int) -> None:
        fingerprint = self.fingerprints[slot]
        self.fingerprints[slot] = _UNKNOWN
        self._known ^= 1 << slot
        self.by_bucket[fingerprint >> ROOT_SHIFT].remove(slot)
        others = self._twins.pop(fingerprint, 1) - 1
        if others:
            self.twins -= 1
            if others > 1:
                self._twins[fingerprint] = others
            same = self.by_bucket[fingerprint >> ROOT_SHIFT]
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
        most = self._limits.profiles_max - len(self._learning)
        self._shrink(most - 1)
        if len(self._views) >= most and not own:
            raise LimitError("profiles", f"more than {self._limits.profiles_max} profiles around at once")

    def _shrink(self, views_max: int) -> None:
        while len(self._views) > views_max and self._idle:
            oldest = next(iter(self._idle))
            del self._idle[oldest], self._views[oldest]
