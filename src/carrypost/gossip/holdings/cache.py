"""The cache: copies by slot and id, their states and owners, and the memory of those that need not come again.

A `Cache` keeps the rules N5, N7, N8, N11 and N14.

`Tenants` has the messages known here, by slot and by id: each has one `Copy` for as long as it is known. The invariant
is that a slot whose tenancy ended is not reused before `release` reported it to the owners of other bitsets.

The cache keeps the states of messages as bitsets; `state_of` reads them. `tools/copy_moves.py` has the moves between
them, which a test finds by driving the cache through every state.

Owners (`DELIVERIES` and so on) protect a copy from eviction, from being offered or from being admitted. Each undoes
only its own mark.
"""

# A message known here has a slot and one `Copy`, and is in one of these states, each of the last
# four a bitset:
#
#     admitted   here, but none of its pieces is
#     `partial`  here, with some of its pieces
#     `whole`    here, with all of its pieces
#     `done`     not here, and never wanted again: delivered and confirmed, this host's own, or withdrawn
#     `declined` not here: evicted, or no room; not requested again until there is room (`holdings.memories`)
#
# What must hold.
# 1. The four sets are disjoint, and each bit has a `Copy` in `copies`.
# 2. A slot whose tenancy ended is not reused before `pop_released` reported it to the owners of
#    other bitsets. Otherwise a neighbour believed to know one message would be believed to know
#    another, and never be offered it.
# 3. Copies stay within both limits (messages, bytes); `gossip.holdings.memories` bounds the rest.
# 4. Nothing outlives its deadline, pinned or not. A pin protects from eviction, never from time.
# 5. Everything `declined` is forgotten when a copy leaves (unless for lack of room itself) and less
#    than nine tenths of both limits are used. The tenth in between keeps a cache at its limit from
#    asking for the same messages again and again, each time one expires.
#
# Why a memory of what is gone? Without it a message that was delivered would come back with the
# next neighbour that still carries it, and be delivered twice; and a message that was evicted would
# be offered, requested and evicted in every contact. Which copy is evicted is decided in
# `gossip.holdings.eviction`.

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from carrypost.config import Settings
from carrypost.errors import StateError
from carrypost.gossip.holdings.copies import DEADLINE_SHIFT, SERIAL_SHIFT, Copy, Newcomer
from carrypost.gossip.holdings.eviction import INTEREST_FIRST, Ranking, Room
from carrypost.gossip.holdings.memories import Deadlines, Memories, Outlived
from carrypost.gossip.slots import Slots, bits, mask_of
from carrypost.log.events import Reason
from carrypost.model.descriptor import Descriptor
from carrypost.model.ids import MessageId, NodeId
from carrypost.model.times import NEVER

# Bits rather than members of an enumeration, whose operators cost ten times as much: pins come with every message.
DELIVERIES: Final = 1
"""The copy was delivered and is not confirmed."""
ORDER: Final = 2
"""The copy waits for messages that it depends on."""
PUBLISHING: Final = 4
"""The copy was published here and may leave only once that is durable."""
CLAIMS: Final = 8
"""A subscription of messaging has a claim to the copy."""
QUEUES: Final = 16
"""The copy is an entry of a queue that this node manages, or was assigned to this node by another manager."""
RECIPIENTS: Final = 32
"""The message is for this node alone, of all recipients that it had."""
ISLAND: Final = 64
"""The message goes straight to its recipients, or may not be carried by others."""
PASSING: Final = 128
"""A message of this node with the same payload is being made."""
DELIVERED_IN_ORDER: Final = 512
"""The copy was delivered in its order, and that is not durable: programs do not have it yet, but what follows it."""
LOG: Final = 256
"""The copy is an event of this node, which brokers may request again."""


class Tenants:
    """Copies by slot, and by id."""

    __slots__ = ("_by_id", "_ended", "_serial", "_slots", "copies", "deadlines", "get")

    def __init__(self) -> None:
        self.copies: list[Copy | None] = []
        """By slot; None where the slot has no tenant."""
        self._by_id: dict[MessageId, Copy] = {}
        self.get: Callable[[MessageId], Copy | None] = self._by_id.get
        """Return the copy of a message. Called several times per message."""
        self._slots = Slots()
        self._serial = 0
        self._ended = 0
        """Slots whose tenancy ended since the last `release`."""
        self.deadlines = Deadlines(self.copies)

    def __len__(self) -> int:
        return len(self._by_id)

    def newer(self, serial: int) -> Iterator[Copy]:
        """Yield the copies that became known after the one with this serial, latest first."""
        for copy in reversed(self._by_id.values()):  # In order of their serials: a copy that comes back keeps its own.
            if copy.serial <= serial:
                return
            yield copy

    def allocate(self, count: int = 1) -> Iterator[tuple[int, int]]:
        """Yield slots and serials for messages that are not known yet; the caller must `enter` their copies at once."""
        first = self._serial + 1
        self._serial += count
        return zip(self._slots.allocate(count), range(first, first + count), strict=True)

    def enter(self, newcomers: Sequence[Copy]) -> None:
        """Add these messages to the known ones."""
        by_id, copies = self._by_id, self.copies
        for copy in newcomers:
            slot, deadline_us = copy.slot, copy.descriptor.deadline_us
            copy.expiry = (
                (NEVER if deadline_us is None else deadline_us) << DEADLINE_SHIFT | copy.serial << SERIAL_SHIFT | slot
            )
            by_id[copy.id] = copy
            if slot < len(copies):
                copies[slot] = copy
            else:
                copies.append(copy)
        self.deadlines.add(newcomers, len(by_id))

    def refuse(self, copy: Copy) -> None:
        """End the tenancy of a newcomer whose slot nothing else has seen: slot and id may be reused at once."""
        self.copies[copy.slot] = None
        del self._by_id[copy.id]
        self._slots.release(copy.slot)

    def end(self, copies: Iterable[Copy]) -> int:
        """End the tenancy of copies; return their slots."""
        for copy in copies:
            self.copies[copy.slot] = None
            del self._by_id[copy.id]
        ended = mask_of([copy.slot for copy in copies])
        self._ended |= ended
        return ended

    def release(self) -> int:
        """Return the slots whose tenancy ended since the last call. They may be reused from now on."""
        released, self._ended = self._ended, 0
        for slot in bits(released):
            self._slots.release(slot)
        return released


_ENDED_MAX: Final = 32
"""Number of slots of expired copies that are freed together."""


class Cache:
    """Copies by slot, their room, their deadlines, and the memory of those that left."""

    def __init__(self, settings: Settings, ranking: Ranking = INTEREST_FIRST) -> None:
        self.whole = self.partial = 0
        self.tenants = Tenants()
        self.copies, self.get = self.tenants.copies, self.tenants.get
        """By slot, and by id: the copy that is here, or (its `here` is false) the memory of it."""
        self.deadlines = self.tenants.deadlines
        self.ranking = ranking
        self.room = Room(settings, self.copies, ranking)
        self.memories = Memories(settings, self.copies, self.room, ranking)
        self.outlived = Outlived(settings.limits.seen_max)
        """Ids of finished messages that are remembered beyond their deadlines."""
        self.changed = False
        """True if `pop_removed` and `pop_released` have something to return. Checked after every step."""
        self._removed: list[tuple[Copy, Reason]] = []
        self._ended = 0
        """Number of ended tenancies, or `_ENDED_MAX` if they must be reported soon; expired copies are reported in
        batches."""

    @property
    def done(self) -> int:
        """Slots of messages that are not here, and never wanted again."""
        return self.memories.done

    @property
    def declined(self) -> int:
        """Slots of messages that are not here, and not requested until there is room."""
        return self.memories.declined

    @property
    def messages(self) -> int:
        """Number of copies in the cache."""
        return self.room.messages

    @property
    def bytes(self) -> int:
        """Number of bytes that the copies use."""
        return self.room.bytes

    @property
    def floor(self) -> int:
        """Floor to advertise to neighbours: the lowest rank in a full cache; 0 while there is room."""
        if self.room.fits(1, 1):
            return 0
        lowest = self.room.lowest(0)
        return self.ranking.floor(self.ranking.top if lowest is None else lowest.rank)

    def admits(self, length: int, privilege: int, *, interesting: bool = True) -> bool:
        """Return True if an offered message is worth requesting. Its age is not known yet and may decide later."""
        admits = self.room.could_fit(1, length, self.ranking.best(privilege, interesting))
        if not admits:
            self.memories.note_shortage()
        return admits

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
        """Admit a message with `nbytes` to begin with; `held`: the pieces already here, which these bytes cover.

        The results `EXPIRED`, `NO_ROOM` and `SHARE` mean that it was refused, and that nothing was evicted for it. For
        lack of room it is then remembered as `declined`, unless it is the host's own. A declined message is admitted
        under its old slot. Raises `StateError` for a message that is here or `done`.
        """
        if not descriptor.alive(now - self.deadlines.lead_us):
            return Reason.EXPIRED
        copy = self.get(descriptor.id)
        newcomer = copy is None
        if copy is None:
            copy = self._tenant(descriptor)
        elif copy.here or copy.finished:
            raise StateError(f"{descriptor.shown} is known already")
        copy.privilege, copy.interesting, copy.own, copy.giver = privilege, interesting, own, giver
        copy.hops, copy.age_ms, copy.received_us = hops, age_ms, now
        copy.rank, copy.sending_order = self.ranking.orders(privilege, interesting, descriptor)
        room = self.room
        leaving: list[Copy] = []
        if not room.fits(1, nbytes):
            cleared = room.clear(copy, 1, nbytes)
            if isinstance(cleared, Reason):
                if newcomer:
                    self._refuse(copy)
                return cleared
            leaving = cleared
        if not newcomer:
            self.memories.recall(copy)
        copy.finished = own
        copy.held = copy.pins = 0
        copy.held_bytes, copy.here = nbytes, True
        room.enter((copy,))
        if held:
            self._hold(copy, held)
        if leaving:
            self._evict(leaving)
        return copy

    def backdate(self, copy: Copy, received_us: int) -> None:
        """Set the arrival time of a copy that was received before a restart."""
        copy.received_us = received_us

    def admit_small(self, newcomers: list[Newcomer], giver: NodeId, now: int, *, interesting: bool) -> list[Copy]:
        """Admit whole messages of one piece, not known here, that fit even as merely carried ones."""
        found: list[Copy] = []
        orders, places = self.ranking.orders, self.tenants.allocate(len(newcomers))
        for (slot, serial), (descriptor, privilege, hops, age_ms) in zip(places, newcomers, strict=True):
            rank, order = orders(privilege, interesting, descriptor)
            found.append(Copy(
                slot, serial, descriptor, descriptor.id, 0, privilege, interesting, False, giver, hops, age_ms, now,
                rank, order, 1, descriptor.length, True, True,
            ))  # fmt: skip
        self.tenants.enter(found)
        self.whole |= mask_of([copy.slot for copy in found])
        self.room.enter(found)
        return found

    def grow(self, copy: Copy, piece: int, nbytes: int) -> bool:
        """Add a verified piece to a copy; return False, and change nothing, if there is no room or the copy left."""
        if not copy.here:
            return False
        held = copy.held | 1 << piece
        if held == copy.held:
            return True
        room = self.room
        leaving: list[Copy] = []
        if not room.fits(0, nbytes):
            found = room.clear(copy, 0, nbytes)
            if isinstance(found, Reason):
                return False
            leaving = found
        room.grow(copy, nbytes)
        self._hold(copy, held)
        if leaving:
            self._evict(leaving)
        return True

    def limit(self, nbytes: int) -> bool:
        """Let copies have this many bytes more than now; return True if declined messages may find room by that."""
        if not self.room.limit(nbytes):
            return False
        self.memories.note_room()
        self._reconsider()
        return self.memories.has_new_room

    def reopen(self, owner: int = QUEUES, slots: int = -1, *, at_once: bool = True) -> None:
        """Allow messages that this owner turned away, all or these `slots`, to come again.

        `at_once`: request them from neighbours in range. Otherwise they come after the next review.
        """
        self.memories.reopen(owner, slots, at_once=at_once)
        self.memories.note_room()
        self._reconsider()

    def remove(self, copy: Copy, reason: Reason, *, done: bool = False, owner: int = QUEUES) -> None:
        """Remove a copy, or change the memory of one. A copy without a slot is left alone.

        `EXPIRED` forgets it altogether. Otherwise it is `done` if the caller says so, withdrawn, the host's own or
        marked before, else `declined`. The room that it leaves is no reason to request it again. A `PENDING` one may
        come again only when its `owner` allows it (`reopen`).
        """
        if self.copies[copy.slot] is not copy:
            return
        if copy.here:
            self._unset(copy)
            self.room.leave(copy)
            if reason is Reason.EXPIRED:
                self._forget([copy])
            if reason is Reason.PENDING:
                self.memories.turn_away(copy, owner)
            elif reason is not Reason.NO_ROOM:  # What does not fit makes no room for what did not fit, either.
                self._reconsider()
            self.memories.note_room()
            if reason is not Reason.EXPIRED:
                copy.finished = copy.finished or done or reason is Reason.WITHDRAWN
                self._keep_memory([copy])
        elif reason is Reason.EXPIRED:
            self._forget([copy])
        elif done or reason is Reason.WITHDRAWN:
            self.mark_done((copy,))

    def throw_out(self, copies: Iterable[Copy], reason: Reason) -> None:
        """Remove copies that are here together, and never want them again; the next sweep reports them."""
        leaving = [copy for copy in copies if copy.here]
        mask = mask_of([copy.slot for copy in leaving])
        self.whole, self.partial = self.whole & ~mask, self.partial & ~mask
        for copy in leaving:
            self.room.leave(copy)
            copy.whole, copy.finished = False, True
            self._removed.append((copy, reason))
        self.changed = self.changed or bool(leaving)
        self._reconsider()
        self.memories.note_room()
        self._keep_memory(leaving)

    def remember(self, descriptor: Descriptor, *, done: bool = True, given: int = 0) -> Copy:
        """Remember a message without a copy. If it is known already, only `done` is noted.

        `given`: the programs that it was given to before a restart.
        """
        copy = self.get(descriptor.id)
        if copy is None:
            copy = self._tenant(descriptor)
            copy.finished, copy.given = done, given
            self._keep_memory([copy])
        elif done:
            self.mark_done((copy,))
        return copy

    def note_removed(self, copy: Copy, reason: Reason) -> None:
        """Have a removed copy reported by the next sweep, as evicted ones are."""
        self._removed.append((copy, reason))
        self.changed = True

    def mark_done(self, copies: Iterable[Copy]) -> None:
        """Never want these again: they are `done` once they leave, or at once if they are not here."""
        for copy in copies:
            if not copy.finished and not copy.here and self.copies[copy.slot] is copy:
                self.memories.finish(copy)
            copy.finished = True

    def pin(self, copies: Iterable[Copy], owner: int) -> None:
        """Protect copies that are here from eviction until this owner unpins them."""
        self.room.pin(copies, owner)

    def unpin(self, copies: Iterable[Copy], owner: int) -> None:
        """Remove this owner's pin from copies, which may be evicted unless another owner pins them."""
        if self.room.unpin(copies, owner):
            self.memories.note_room()

    def set_interesting(self, copy: Copy, interesting: bool) -> None:
        """Set whether a copy is wanted here or only carried, after the local interests changed."""
        changes = copy.interesting is not interesting
        copy.interesting = interesting
        if changes and copy.here:
            self.room.rerank(copy, self.ranking.rank(copy.privilege, interesting, copy.descriptor))

    def expire(self, now: int) -> list[Copy]:
        """Forget everything whose deadline has passed; return the copies that were here, earliest deadline first."""
        ended = self.deadlines.pop_due(now)
        self.outlived.expired(ended, now - self.deadlines.lead_us)
        gone = [copy for copy in ended if copy.here]
        for copy in gone:
            self.room.leave(copy)
        if ended:
            self._forget(ended, at_leisure=len(gone) == len(ended))
            if self.declined:
                self._reconsider()
            self.memories.note_room()
        return gone

    def pop_removed(self) -> list[tuple[Copy, Reason]]:
        """Return the copies removed since the last call, in order, with the reasons."""
        removed, self._removed = self._removed, []
        return removed

    def pop_released(self) -> int:
        """Return the slots whose tenancy ended since the last call. They may be reused from now on."""
        self._ended = 0
        self.changed = bool(self._removed)
        return self.tenants.release()

    def _tenant(self, descriptor: Descriptor) -> Copy:
        """Assign a slot and an empty copy to a message that is not known yet."""
        ((slot, serial),) = self.tenants.allocate()
        copy = Copy(slot, serial, descriptor, descriptor.id)
        self.tenants.enter((copy,))
        return copy

    def _refuse(self, copy: Copy) -> None:
        """Refuse a new tenant: remember it, unless it is the host's own."""
        if copy.own:
            self.tenants.refuse(copy)
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
        """Remove a copy from `whole` or `partial`."""
        if copy.whole:
            self.whole ^= 1 << copy.slot
            copy.whole = False
        elif copy.held:
            self.partial ^= 1 << copy.slot

    def _evict(self, leaving: list[Copy]) -> None:
        """Remember copies that made room for another as evicted."""
        for copy in leaving:
            self._unset(copy)
            self.note_removed(copy, Reason.EVICTED)
        if self.ranking.evicted_return:
            carried = [copy for copy in leaving if not (copy.interesting or copy.own or copy.finished)]
            self._forget(carried)
            leaving = [copy for copy in leaving if copy not in carried]
        self._keep_memory(leaving)
        # Often more bytes were evicted than were needed, but never more messages, where their
        # number is the limit.
        if self.room.messages < self.room.messages_max:
            self.memories.note_room(short=True)

    def _keep_memory(self, copies: list[Copy]) -> None:
        """Remember copies that are not here any more, within the bound."""
        if excess := self.memories.keep(copies):
            self._forget(excess)

    def _reconsider(self) -> None:
        """Forget declined messages if there is plenty of room again."""
        if self.declined and self.room.plenty and (waiting := self.memories.waiting):
            self._forget([copy for slot in bits(waiting) if (copy := self.copies[slot])])

    def _forget(self, copies: list[Copy], *, at_leisure: bool = False) -> None:
        """End the tenancy of copies that left the room; `at_leisure`: others need not know at once."""
        self._ended += len(copies) if at_leisure else _ENDED_MAX
        if self._ended >= _ENDED_MAX:
            self.changed = True
        for copy in copies:
            copy.whole = False
        keep = ~self.tenants.end(copies)
        self.whole, self.partial = self.whole & keep, self.partial & keep
        self.memories.forget(copies, keep)


class CopyState(enum.Enum):
    """The state of a message on a host."""

    UNKNOWN = "unknown"
    """The host has no copy and remembers nothing. If the message is offered, it is a *want*: recorded, requested, then
    a buffer of fragments."""
    PARTIAL = "partial"
    """The host has some pieces, and offers them."""
    WHOLE = "whole"
    """The host has all pieces, and no program here was given the message."""
    WAITING = "waiting"
    """Whole, and held back until the messages that it depends on were delivered; not evicted."""
    PINNED = "pinned"
    """Whole, delivered, not confirmed; not evicted."""
    UNSENT = "unsent"
    """Published here, and not offered before it is durable, because it has an order or the program required that; not
    evicted."""
    FINISHED = "finished"
    """Whole, and never wanted again: confirmed, or published here. Still offered to others."""
    DONE = "done"
    """No copy, and never wanted again."""
    DECLINED = "declined"
    """No copy, for lack of room; not requested until there is room."""


_HELD_BY: Final = (
    (PUBLISHING, CopyState.UNSENT),
    (ORDER, CopyState.WAITING),
    (DELIVERIES, CopyState.PINNED),
    (CLAIMS, CopyState.PINNED),
)
"""States of a copy by the owner of its pin. An own message that is delivered here is handed over when it may be
sent."""


def state_of(cache: Cache, message: MessageId) -> CopyState:
    """Return the state of one message."""
    copy = cache.get(message)
    if copy is None:
        return CopyState.UNKNOWN
    if not copy.here:
        return CopyState.DONE if cache.done >> copy.slot & 1 else CopyState.DECLINED
    if not copy.whole:
        return CopyState.PARTIAL
    for owner, state in _HELD_BY:
        if copy.pins & owner:
            return state
    return CopyState.FINISHED if copy.finished else CopyState.WHOLE
