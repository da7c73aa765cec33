"""The index: messages that match each profile, and the fingerprints of those that are known.

The index has one `View` per distinct interest profile, the host's own or a neighbour's: a bitset of the matching slots
and, over those of them whose id is *known* here (whole, done or declined), the XOR of the fingerprints in each of 64
buckets. All of it is maintained as messages come and go, so that an announcement or the first step of a reconciliation
scans nothing (profiles: JOMS-12 §III.A).

Invariant: a view's set is the set of distinct fingerprints over `known & matches`. Two ids with one fingerprint (an
author can make such a pair of its own messages with some 2**32 hashes) are one member of it: they neither cancel each
other in the XOR nor occur twice in a listing, and a host that lacks both is offered both.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from carrypost.errors import LimitError, StateError
from carrypost.gossip.interest.learning import Learning
from carrypost.gossip.interest.matcher import Slotted
from carrypost.gossip.interest.views import FINGERPRINT_BITS, ROOT_BITS, ROOT_SHIFT, View
from carrypost.gossip.slots import bits, mask_of

if TYPE_CHECKING:
    from carrypost.config import Limits
    from carrypost.model.pattern import Entry

__all__ = ["FINGERPRINT_BITS", "ROOT_BITS", "ProfileIndex", "View"]

_UNKNOWN = -1
_GROWTH = 1024


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
