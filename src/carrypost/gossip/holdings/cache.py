"""The cache: copies of messages, and the memory of those that need not come again (N5, N7, N8, N11, N14).

A message known here has a slot and one `Copy`, and is in one of these states, each of the last four a bitset:

    admitted   here, but none of its pieces is
    `partial`  here, with some of its pieces
    `whole`    here, with all of its pieces
    `done`     not here, and never wanted again: delivered and confirmed, this host's own, or withdrawn
    `declined` not here: evicted, or no room; not to be asked for again until there is room (`transfers.declined`)

The invariant is that the four are disjoint, that each bit has a `Copy` in `copies`, and that a slot whose tenancy ended
is not given again before `take_released` reported it to the owners of other bitsets. What is here stays within both
limits, `done` and `declined` within `limits.seen_max` and `seen_bytes_max`: the earliest deadline is forgotten first.
Nothing outlives its deadline, pinned or not. All that is `declined` is forgotten when a copy leaves (but not for want
of room) and less than nine tenths of both limits are used. Who gives way is decided in `gossip.holdings.ranking`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from heapq import heapify, heappop, heappush

from carrypost.config import Settings
from carrypost.errors import StateError
from carrypost.events import Reason
from carrypost.gossip.holdings.copies import Copy, Newcomer
from carrypost.gossip.holdings.deadlines import Deadlines
from carrypost.gossip.holdings.owners import QUEUES
from carrypost.gossip.holdings.ranking import CREATED_BITS, Demand, Room, best_rank, rank_of, sending_order
from carrypost.gossip.slots import Members, Slots, bits, mask_of
from carrypost.model.descriptor import Descriptor
from carrypost.model.ids import MessageId, NodeId
from carrypost.model.times import NEVER

_WANTED_RANK = rank_of(0, True, 0)
"""Whatever is below is only carried."""
_ENDED_MAX = 32
"""So many slots of expired copies are freed together."""
_STALE_SLACK = 64
"""Entries of copies that left are swept out when there are this many more than twice the copies."""


class Cache:
    """Copies by slot, their room, their deadlines, and what is remembered of those that left."""

    def __init__(self, settings: Settings) -> None:
        self.whole = self.partial = self.done = self.declined = 0
        self.short = self.loosened = False
        """Room has been short, and since then some has appeared, or may have: reset by whoever makes use of it."""
        self.demand = Demand()
        """What waits for room."""
        self.turned_away = 0
        """Of those declined: not to be asked for until `reopen`, whatever room there is."""
        self.turned_away_by: dict[int, int] = {}
        """The same, by who turned them away."""
        self.reopened: set[MessageId] = set()
        """Those that may come again: reset by whoever asks for them."""
        self.copies: list[Copy | None] = []
        """By slot: the copy here, or what is remembered of it; None where the slot has no tenant."""
        self._seen_max = settings.limits.seen_max
        self._seen_bytes_max = settings.limits.seen_bytes_max
        self._seen_bytes = 0
        self._room = Room(settings, self.copies)
        self._bytes_max = self._confined_bytes = settings.cache_bytes_max
        self._slots = Slots()
        self._by_id: dict[MessageId, Copy] = {}
        self.get: Callable[[MessageId], Copy | None] = self._by_id.get
        """The copy that is here, or (its `here` is false) the memory of one. Asked several times per message."""
        self._serial = 0
        self.deadlines = Deadlines(self.copies)
        self._memories: list[tuple[int, int, Copy]] = []
        """Lazy heap of `done` and `declined` by deadline: stale likewise, or once its copy is here again."""
        self.changed = False
        """Whether `take_removed` and `take_released` should be asked. Looked at after every step."""
        self._removed: list[tuple[Copy, Reason]] = []
        self._released = 0
        self._ended = 0
        """How many slots that is, or `_ENDED_MAX` where it must be known soon: what expired waits for company."""

    @property
    def messages(self) -> int:
        """How many copies are here."""
        return self._room.messages

    @property
    def bytes(self) -> int:
        """How many bytes they use."""
        return self._room.bytes

    @property
    def known(self) -> int:
        """How many are here or remembered."""
        return len(self._by_id)

    def newer(self, serial: int) -> Iterator[Copy]:
        """Those that became known after the one with this serial, latest first."""
        for copy in reversed(self._by_id.values()):  # In order of their serials: a copy that comes back keeps its own.
            if copy.serial <= serial:
                return
            yield copy

    def admits(self, length: int, privilege: int, *, interesting: bool = True) -> bool:
        """Whether a message on offer is worth asking for. Its age is not known yet: that may decide later."""
        self._bound(interesting)
        admits = self._room.could_fit(1, length, rank_of(privilege, interesting, 0))
        if not admits:
            self.short = True
        return admits

    @property
    def opens(self) -> bool:
        """Whether anything that is waiting for room might find some; not whether it does."""
        demand = self.demand
        return self.vacant(1, demand.nbytes, interesting=True) or self.lowest_rank(demand.rank) < demand.rank

    def lowest_rank(self, rank: int) -> int:
        """The rank of the copy that would be the first to go for one of this rank."""
        lowest = self._room.lowest(rank)
        return best_rank(255, True) if lowest is None else lowest.rank

    def loosen(self, *, used: bool = False) -> None:
        """Note that there may be more room than there was; `used`: use was made of it."""
        self.loosened = self.short and not used

    def vacant(self, messages: int, nbytes: int, *, interesting: bool) -> bool:
        """Whether so much more fits without an eviction."""
        self._bound(interesting)
        return self._room.fits(messages, nbytes)

    def displaces(self, messages: int, nbytes: int, rank: int, *, interesting: bool) -> bool:
        """Whether so much more of this rank fits if others are evicted for it."""
        self._bound(interesting)
        return self.lowest_rank(rank) < rank and self._room.could_fit(messages, nbytes, rank)

    def shared_out(self, copy: Copy, messages: int, nbytes: int) -> bool:
        """Whether so much of a message that was declined, and of others of its kind, would displace nobody."""
        return self._room.shared_out(copy, messages, nbytes)

    def yielding(self) -> list[tuple[int, int]]:
        """Rank and bytes of all copies that may have to go, highest rank first."""
        return self._room.yielding()

    def admit(
        self,
        descriptor: Descriptor,
        *,
        nbytes: int,
        privilege: int,
        interesting: bool,
        own: bool = False,
        giver: NodeId | None = None,
        hops: int = 0,
        age_ms: int = 0,
        held: int = 0,
        now: int,
    ) -> Copy | Reason:
        """Let a message in, with `nbytes` to begin with; `held`: pieces that are here already, paid by them.

        The answer `EXPIRED`, `NO_ROOM` or `SHARE` means that it stays outside, and nobody was evicted for it.
        For want of room it is then remembered as `declined`, unless it is the host's own. One that was
        declined gets in under its old slot. Raises `StateError` for one that is here or `done`.
        """
        if not descriptor.alive(now):
            return Reason.EXPIRED
        copy = self._by_id.get(descriptor.id)
        newcomer = copy is None
        if copy is None:
            copy = self._tenant(descriptor)
        elif copy.here or copy.finished:
            raise StateError(f"{descriptor.shown} is known already")
        copy.privilege, copy.interesting, copy.own, copy.giver = privilege, interesting, own, giver
        copy.hops, copy.age_ms, copy.received_us = hops, age_ms, now
        copy.rank = rank_of(privilege, interesting, descriptor.created_us)
        copy.sending_order = sending_order(privilege, descriptor.created_us)
        room = self._room
        self._bound(interesting)
        leaving: list[Copy] = []
        if not room.fits(1, nbytes):
            cleared = room.clear(copy, 1, nbytes)
            if isinstance(cleared, Reason):
                if newcomer:
                    self._refuse(copy)
                return cleared
            leaving = cleared
        if not newcomer:
            self.declined ^= 1 << copy.slot
            self._seen_bytes -= len(descriptor.wire)
        copy.finished = own
        copy.held = copy.pins = 0
        copy.held_bytes, copy.here = nbytes, True
        room.enter((copy,))
        if held:
            self._hold(copy, held)
        if leaving or room.bytes > self._confined_bytes:
            self._give_way(leaving)
        return copy

    def backdate(self, copy: Copy, received_us: int) -> None:
        """Set when a copy came in, in an earlier life."""
        copy.received_us = received_us

    def roomy(self, messages: int, nbytes: int) -> bool:
        """Whether so much more fits without an eviction, whether it is wanted here or only carried."""
        room = self._room
        return room.messages + messages <= room.messages_max and room.bytes + nbytes <= self._confined_bytes

    def admit_small(self, newcomers: list[Newcomer], giver: NodeId, now: int) -> list[Copy]:
        """Let in whole messages of one piece, wanted and not known here, where it is `roomy`: what most are."""
        by_id, copies, serial = self._by_id, self.copies, self._serial
        found: list[Copy] = []
        slots = self._slots.take(len(newcomers))
        for slot, (descriptor, privilege, hops, age_ms) in zip(slots, newcomers, strict=True):
            created_us, message = descriptor.created_us, descriptor.id
            serial += 1
            copy = Copy(
                slot, serial, descriptor, message, privilege, True, False, giver, hops, age_ms, now,
                (256 | privilege) << CREATED_BITS | created_us, created_us - (privilege << CREATED_BITS),
                1, descriptor.length, True, True,
            )  # fmt: skip
            by_id[message] = copy
            if slot < len(copies):
                copies[slot] = copy
            else:
                copies.append(copy)
            found.append(copy)
        self._serial = serial
        self.whole |= mask_of(slots)
        self.deadlines.add(found, len(by_id))
        self._room.enter(found)
        return found

    def grow(self, copy: Copy, piece: int, nbytes: int) -> bool:
        """Add a verified piece to a copy. Returns False, and changes nothing, if there is no room or the copy left."""
        if not copy.here:
            return False
        held = copy.held | 1 << piece
        if held == copy.held:
            return True
        room = self._room
        self._bound(copy.interesting)
        leaving = [] if room.fits(0, nbytes) else room.clear(copy, 0, nbytes)
        if isinstance(leaving, Reason):
            return False
        room.grow(copy, nbytes)
        self._hold(copy, held)
        self._give_way(leaving)
        return True

    def confine(self, bytes_max: int) -> None:
        """Evict carried copies down to this bound, and only those: a full disk may soon have room again."""
        self._confined_bytes = min(bytes_max, self._bytes_max)
        self._give_way([])

    def relieve(self) -> None:
        """End `confine`; what was declined is worth another look."""
        self._confined_bytes = self._bytes_max
        self.loosen()
        self._reconsider()

    def reopen(self, owner: int = QUEUES, slots: int = -1, *, at_once: bool = True) -> None:
        """Let come again what this owner turned away (`holdings.owners`), all or these `slots`, and nothing else.

        `at_once`: neighbours in reach are asked for it. Else, and of others, it comes after the next review.
        """
        mask = self.turned_away_by.get(owner, 0) & slots
        self.turned_away_by[owner] = self.turned_away_by.get(owner, 0) & ~mask
        self.turned_away &= ~mask
        if at_once:
            self.reopened.update([copy.id for slot in bits(mask) if (copy := self.copies[slot]) and not copy.here])
        self.loosen()
        self._reconsider()

    def _give_way(self, leaving: list[Copy]) -> None:
        """Evict these, which left the room for another copy, and carried ones as long as the room is confined."""
        room, rank = self._room, _WANTED_RANK
        while room.bytes > self._confined_bytes:
            lowest = room.lowest(rank)
            if lowest is None or lowest.rank >= rank:
                break
            room.leave(lowest)
            leaving.append(lowest)
        if leaving:
            self._evict(leaving)

    def _bound(self, interesting: bool) -> None:
        """Bound the room as it is for a copy that is wanted here, or only carried."""
        self._room.bytes_max = self._bytes_max if interesting else self._confined_bytes

    def remove(self, copy: Copy, reason: Reason, *, done: bool = False, owner: int = QUEUES) -> None:
        """Take a copy out, or change the memory of one. What has no slot any more is left alone.

        `EXPIRED` forgets it altogether. Otherwise it is `done` if the caller says so, withdrawn, the host's own or
        marked before, else `declined`; and that it makes room itself is no reason to ask for it again. What is
        `PENDING` may come again by the word of its `owner` alone (`reopen`).
        """
        if self.copies[copy.slot] is not copy:
            return
        if copy.here:
            self._unset(copy)
            self._room.leave(copy)
            if reason is Reason.EXPIRED:
                self._forget([copy])
            if reason is Reason.PENDING:
                self.turned_away |= 1 << copy.slot
                self.turned_away_by[owner] = self.turned_away_by.get(owner, 0) | 1 << copy.slot
            elif reason is not Reason.NO_ROOM:  # What does not fit makes no room for what did not fit, either.
                self._reconsider()
            self.loosen()
            if reason is not Reason.EXPIRED:
                copy.finished = copy.finished or done or reason is Reason.WITHDRAWN
                self._keep_memory([copy])
        elif reason is Reason.EXPIRED:
            self._forget([copy])
        elif done or reason is Reason.WITHDRAWN:
            self.mark_done((copy,))

    def throw_out(self, copies: Iterable[Copy], reason: Reason) -> None:
        """Take copies that are here out together, and never want them again; the next sweep reports them."""
        leaving = [copy for copy in copies if copy.here]
        mask = mask_of([copy.slot for copy in leaving])
        self.whole, self.partial = self.whole & ~mask, self.partial & ~mask
        for copy in leaving:
            self._room.leave(copy)
            copy.whole, copy.finished = False, True
            self._removed.append((copy, reason))
        self.changed = self.changed or bool(leaving)
        self._reconsider()
        self.loosen()
        self._keep_memory(leaving)

    def remember(self, descriptor: Descriptor, *, done: bool = True) -> Copy:
        """Remember a message without a copy, as after a restart. If it is known already, `done` alone is noted."""
        copy = self._by_id.get(descriptor.id)
        if copy is None:
            copy = self._tenant(descriptor)
            copy.finished = done
            self._keep_memory([copy])
        elif done:
            self.mark_done((copy,))
        return copy

    def note_removed(self, copy: Copy, reason: Reason) -> None:
        """Let a copy that was removed be reported by the next sweep, as evicted ones are."""
        self._removed.append((copy, reason))
        self.changed = True

    def mark_undone(self, copy: Copy) -> None:
        """Let a copy that is here be wanted again once it leaves, unless it is the host's own."""
        copy.finished = copy.own

    def mark_done(self, copies: Iterable[Copy]) -> None:
        """Never want these again: they are `done` once they leave, or at once if they are not here."""
        for copy in copies:
            if not copy.finished and not copy.here and self.copies[copy.slot] is copy:
                self.declined ^= 1 << copy.slot
                self.done |= 1 << copy.slot
            copy.finished = True

    def pin(self, copies: Iterable[Copy], owner: int) -> None:
        """Keep copies that are here from being evicted until this owner unpins them (`holdings.owners`)."""
        self._room.pin(copies, owner)

    def unpin(self, copies: Iterable[Copy], owner: int) -> None:
        """Let copies be evicted again, as far as this owner is concerned."""
        if self._room.unpin(copies, owner):
            self.loosen()

    def set_interesting(self, copy: Copy, interesting: bool) -> None:
        """Note whether a copy is wanted here or only carried, after the local interests changed."""
        copy.interesting = interesting
        rank = rank_of(copy.privilege, interesting, copy.descriptor.created_us)
        if rank != copy.rank and copy.here:
            self._room.rerank(copy, rank)

    def expire(self, now: int) -> list[Copy]:
        """Forget everything whose deadline has come; the copies that were here, earliest deadline first."""
        ended = self.deadlines.take(now)
        gone = [copy for copy in ended if copy.here]
        for copy in gone:
            self._room.leave(copy)
        if ended:
            self._forget(ended, at_leisure=len(gone) == len(ended))
            if self.declined:
                self._reconsider()
            self.loosen()
        return gone

    def take_removed(self) -> list[tuple[Copy, Reason]]:
        """The copies that were removed since the last call, in order, and why."""
        removed, self._removed = self._removed, []
        return removed

    def take_released(self) -> int:
        """The slots whose tenancy ended since the last call. They may be given again from now on."""
        released, self._released, self._ended = self._released, 0, 0
        self.changed = bool(self._removed)
        for slot in bits(released):
            self._slots.release(slot)
        return released

    def _tenant(self, descriptor: Descriptor) -> Copy:
        """Give a slot and an empty copy to a message that is not known yet."""
        self._serial += 1
        (slot,) = self._slots.take()
        message = descriptor.id
        copy = self._by_id[message] = Copy(slot, self._serial, descriptor, message)
        self.copies[slot : slot + 1] = (copy,)  # It may be the first beyond the end.
        self.deadlines.add((copy,), len(self._by_id))
        return copy

    def _refuse(self, copy: Copy) -> None:
        """Turn a new tenant away: remember it, unless it is the host's own."""
        if copy.own:
            # Nobody has seen its slot: it is free at once, and the id may be used again.
            self.copies[copy.slot] = None
            del self._by_id[copy.id]
            self._slots.release(copy.slot)
        else:
            self._keep_memory([copy])

    def _hold(self, copy: Copy, held: int) -> None:
        if held == (1 << copy.descriptor.pieces) - 1:
            self.whole |= 1 << copy.slot
            copy.whole = True
            if copy.held:
                self.partial ^= 1 << copy.slot
        elif not copy.held:
            self.partial |= 1 << copy.slot
        copy.held = held

    def _unset(self, copy: Copy) -> None:
        """Take a copy out of `whole` or `partial`."""
        if copy.whole:
            self.whole ^= 1 << copy.slot
            copy.whole = False
        elif copy.held:
            self.partial ^= 1 << copy.slot

    def _evict(self, leaving: list[Copy]) -> None:
        """Remember copies that left the room for another as evicted."""
        for copy in leaving:
            self._unset(copy)
            self.note_removed(copy, Reason.EVICTED)
        self._keep_memory(leaving)
        # Often more went than was needed; but where only so many messages may be here, never.
        self.loosened = self.loosened or self._room.messages < self._room.messages_max

    def _keep_memory(self, copies: list[Copy]) -> None:
        """Remember copies that are not here any more, within the bound."""
        heap = self._memories
        done: list[int] = []
        for copy in copies:
            if copy.finished:
                done.append(copy.slot)
            else:
                self.declined |= 1 << copy.slot
                self.short = True
                self.demand.note(copy.rank or best_rank(255, True), copy.descriptor.length)
            deadline_us = copy.descriptor.deadline_us
            self._seen_bytes += len(copy.descriptor.wire)
            heappush(heap, (NEVER if deadline_us is None else deadline_us, copy.serial, copy))
        if done:
            self.done |= mask_of(done)
        while len(self._by_id) - self._room.messages > self._seen_max or self._seen_bytes > self._seen_bytes_max:
            copy = heappop(heap)[2]
            if self._remembers(copy):
                self._forget([copy])
        if len(heap) > 2 * (len(self._by_id) - self._room.messages) + _STALE_SLACK:
            heap[:] = dict.fromkeys(entry for entry in heap if self._remembers(entry[2]))
            heapify(heap)

    def _remembers(self, copy: Copy) -> bool:
        return not copy.here and self.copies[copy.slot] is copy

    def _reconsider(self) -> None:
        """Forget what was declined if there is room again."""
        self._bound(interesting=False)
        if (declined := self.declined & ~self.turned_away) and self._room.plenty:
            self._forget([copy for slot in bits(declined) if (copy := self.copies[slot])])

    def _forget(self, copies: list[Copy], *, at_leisure: bool = False) -> None:
        """End the tenancy of copies that left the room. `at_leisure`: others need not know at once."""
        self._ended += len(copies) if at_leisure else _ENDED_MAX
        if self._ended >= _ENDED_MAX:
            self.changed = True
        remembered = Members(self.done | self.declined)
        for copy in copies:
            if copy.slot in remembered:
                self._seen_bytes -= len(copy.descriptor.wire)
            self.copies[copy.slot] = None
            del self._by_id[copy.id]
            copy.whole = False
        mask = mask_of([copy.slot for copy in copies])
        keep = ~mask
        self._released |= mask
        self.whole, self.partial = self.whole & keep, self.partial & keep
        self.done, self.declined = self.done & keep, self.declined & keep
        if self.turned_away & mask:
            self.turned_away &= keep
            self.turned_away_by = {owner: slots & keep for owner, slots in self.turned_away_by.items()}
