"""What the parts of one host share: the cache, the profiles, the journal, the links and the two out-trays.

The desk owns the rule by which a copy leaves: its removal is told, journalled, and its slot is forgotten by everybody
who keeps bitsets, before the slot can be given to another message. `sweep` does that, and runs after anything that may
have removed copies.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from carrypost import journal as keys
from carrypost.events import Dropped, Event, Expired, Reason, Refused
from carrypost.gossip.holdings.cache import Cache
from carrypost.gossip.interest.index import ProfileBook
from carrypost.gossip.slots import bits, mask_of
from carrypost.gossip.transfers.link import LINKED
from carrypost.journal import MESSAGE, Journal, StoredMessage
from carrypost.model.descriptor import PayloadCodec
from carrypost.model.ids import node_prefix
from carrypost.model.privilege import clamp
from carrypost.model.times import NEVER

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from random import Random

    from carrypost.config import Settings
    from carrypost.gossip.holdings.copies import Copy
    from carrypost.gossip.interest.index import View
    from carrypost.gossip.transfers.link import Link
    from carrypost.gossip.wire.frames import Transmission
    from carrypost.model.descriptor import Descriptor
    from carrypost.model.ids import MessageId
    from carrypost.model.privilege import Privilege
    from carrypost.security.identity import Identity

_HANDLE_BASE_MAX = 2**24
_BLANK = PayloadCodec.BLANK
_EXPIRED = Reason.EXPIRED


class Desk:
    """Shared state of one host."""

    def __init__(self, identity: Identity, settings: Settings, rng: Random, privilege: Privilege) -> None:
        self.identity = identity
        self.node = identity.node
        self.prefix = node_prefix(identity.node)
        self.settings = settings
        self.limits = settings.limits
        self.rng = rng
        self.privilege = privilege
        self.events: list[Event] = []
        self.outgoing: list[Transmission] = []
        self.journal = Journal(self.events)
        self.cache = Cache(settings)
        self.now_us = 0
        """The time of the step that is being done."""
        self.unsent = 0
        """Slots of own messages that must not leave yet."""
        self.pending: dict[MessageId, Copy] = {}
        """Copies that wait for their predecessors; changed by `order` only."""
        self.book = ProfileBook(settings.limits)
        self.own: View | None = None
        """This host's interest profile, as last announced."""
        self.links: dict[str, Link] = {}
        self.usable: list[Link] = []
        """The neighbours with whom messages may be exchanged."""
        self.incarnation = 0
        self.ready = False
        """The incarnation is durable: what carries it may be told and sent."""
        self.grown = False
        """A half-received message got another piece."""
        self.wake_us = NEVER
        """Not after the earliest moment at which a link needs a tick; found exactly after each one."""
        self.look_us = NEVER
        """When there may be room for something that was declined (`gossip.transfers.declined`)."""
        self.on_leave: Callable[[Copy], None] = lambda _: None
        """Told of every copy that leaves."""
        self.delivered = 0
        """Slots that were given to the application in this life or, unconfirmed, in an earlier one."""
        self.again = 0
        """Slots that an earlier life delivered and nobody confirmed."""
        self.seen: dict[int, MessageId] = {}
        """Confirmed deliveries by slot: their ids are in the store until the deadline."""
        self.by_handle: dict[int, Copy] = {}
        self.hashes: dict[int, bytes] = {}
        """Hash lists of messages of several pieces, by slot."""
        self.store_failed_until_us = 0
        """The disk is full or failing: nothing is asked for until then."""
        self.refused: Counter[str] = Counter()
        self.dropped: Counter[str] = Counter()
        # Handles start anywhere, so that those of an earlier life are not mistaken for new ones.
        self._handle = rng.randrange(_HANDLE_BASE_MAX)
        self.refusals: Counter[tuple[str, str]] = Counter()
        self._named = 0

    def close(self) -> None:
        """The host is gone."""
        self.on_leave = lambda _: None
        self.book.close()
        self.cache.copies.clear()

    def wake(self, due_us: int) -> None:
        """Something on a link is due then."""
        if due_us < self.wake_us:
            self.wake_us = due_us

    @property
    def sending(self) -> bool:
        """Whether anything is on its way to a neighbour."""
        return any(link.outbox.jobs for link in self.usable)

    def links_changed(self) -> None:
        """A link went, or became usable, or is so no more."""
        self.usable = [link for link in self.links.values() if link.state is LINKED]

    def refuse(self, reason: str, peer: str, message: str | None = None) -> None:
        """Count something that was not taken. Those that name no message are told together."""
        self.refused[reason] += 1
        if message is None or self._named >= self.limits.refusals_max:
            self._gather(reason, peer, 1)
        else:
            self._named += 1
            self.events.append(Refused(reason, peer, 1, message))

    def refuse_many(self, reason: str, peer: str, count: int) -> None:
        """Count several of a kind."""
        self.refused[reason] += count
        self._gather(reason, peer, count)

    def _gather(self, reason: str, peer: str, count: int) -> None:
        """Addresses are a stranger's to choose: beyond so many, what they cost is told without them."""
        key = (reason, peer) if len(self.refusals) < self.limits.refusals_max else (reason, "")
        self.refusals[key] += count

    def take_events(self) -> list[Event]:
        """Everything there is to tell, once."""
        if self.refusals:
            told = [Refused(reason, peer, count) for (reason, peer), count in self.refusals.items()]
            self.events.extend(told)
            self.refusals.clear()
        if not self.events:
            return []
        self._named = 0
        taken = self.events[:]
        self.events.clear()
        return taken

    def rank(self, descriptor: Descriptor) -> int:
        """The privilege of a message, by the papers' rule or the application's own."""
        known = descriptor.__dict__.get("privilege")
        if known is not None and known[0] is self.privilege:
            return int(known[1])  # An emulation shows the same object to every host.
        level = clamp(self.privilege(descriptor))
        descriptor.__dict__["privilege"] = self.privilege, level
        return level

    def handle_of(self, copy: Copy) -> int:
        """The number under which neighbours hear of this copy."""
        if copy.handle < 0:
            self._handle += 1
            copy.handle = self._handle
            self.by_handle[copy.handle] = copy
        return copy.handle

    def keep(self, copy: Copy, durability: keys.Durability = keys.Durability.NORMAL, *, again: bool = False) -> None:
        """Journal what the store should know of a copy; `again`: of one that it has already."""
        stored = StoredMessage(
            copy.descriptor, copy.held, copy.hops, copy.age_ms, copy.received_us, copy.giver, copy.own,
            copy.interesting, bool(self.delivered >> copy.slot & 1),
        )  # fmt: skip
        if again:
            self.journal.put_again((keys.MESSAGE, copy.id, 0), stored)
        else:
            self.journal.put((keys.MESSAGE, copy.id, 0), stored, durability)

    def keep_all(self, copies: Sequence[Copy]) -> None:
        """Journal whole copies that the store has not, after they were delivered."""
        mask = mask_of([copy.slot for copy in copies])
        delivered = self.delivered & mask
        self.journal.put_all({
            (MESSAGE, copy.id, 0): StoredMessage(
                copy.descriptor, copy.held, copy.hops, copy.age_ms, copy.received_us, copy.giver, copy.own,
                copy.interesting, delivered == mask or bool(delivered >> copy.slot & 1),
            )
            for copy in copies
        })  # fmt: skip

    def keep_piece(self, descriptor: Descriptor, body: bytes) -> None:
        """Journal the payload of a small message."""
        if descriptor.codec is not _BLANK:
            self.journal.put((keys.PIECE, descriptor.id, 0), body)

    def discard(self, copy: Copy, reason: Reason, *, done: bool = False) -> None:
        """Take one copy out of the cache. What the store lost is forgotten, so that it may come again."""
        forgotten = reason in (Reason.STORE, Reason.PAYLOAD_GONE)
        self.cache.remove(copy, Reason.EXPIRED if forgotten else reason, done=done)
        self._leave([copy], reason)

    def expire_due(self, now: int) -> bool:
        """Deadlines: one predicate, everywhere. Whether anything expired."""
        if self.cache.deadlines.due_us > now:
            return False
        gone = self.cache.expire(now)
        if gone:
            self._leave(gone, _EXPIRED)
        if self.cache.changed:
            self.sweep()
        return bool(gone)

    def sweep(self) -> None:
        """Tell and journal what evictions removed; make everybody forget the slots that were freed."""
        removed = self.cache.take_removed()
        if removed:
            by_reason: dict[Reason, list[Copy]] = {}
            for copy, reason in removed:
                by_reason.setdefault(reason, []).append(copy)
            for reason, copies in by_reason.items():
                self._leave(copies, reason)
        released = self.cache.take_released()
        if released:
            self.book.release(released)
            self.delivered &= ~released
            self.again &= ~released
            self.unsent &= ~released
            if self.seen:
                for slot in bits(released):
                    if slot in self.seen:
                        self.journal.delete((keys.SEEN, self.seen.pop(slot), 0))
            for link in self.links.values():
                link.forget_slots(released)

    def invite(self) -> None:
        """Sets are about to be compared: some of what was declined and would find room does not count as known."""
        invited, ended = self.cache.invite()
        for copy in invited:
            self.book.unsettle(copy)
        for copy in ended:
            self.book.settle(copy)

    def _leave(self, copies: list[Copy], reason: Reason) -> None:
        self.dropped[reason] += len(copies)
        dropped = copies
        if self.pending and reason is Reason.EXPIRED:
            late = [copy.descriptor for copy in copies if copy.id in self.pending]
            if late:
                self.events.append(Expired(tuple(late)))
                dropped = [copy for copy in copies if copy.id not in self.pending]
        if dropped:
            self.events.append(Dropped(tuple([copy.descriptor for copy in dropped]), reason))
        busy = [link.outbox for link in self.links.values() if link.outbox.jobs]
        hashes, by_handle, known = self.hashes, self.by_handle, self.cache.get
        for copy in copies:
            self.forget(copy.descriptor, copy.held)
            self.on_leave(copy)
            if reason is _EXPIRED and copy.slot in self.seen:
                self.journal.delete((keys.SEEN, self.seen.pop(copy.slot), 0))
            if hashes:
                hashes.pop(copy.slot, None)
            if copy.handle >= 0:
                by_handle.pop(copy.handle, None)
                copy.handle, copy.entry = -1, None
            for outbox in busy:
                outbox.cancel(copy.slot)
            if known(copy.id) is copy:
                self.book.settle(copy)

    def forget(self, descriptor: Descriptor, held: int) -> None:
        """Journal that the store may forget a copy."""
        message: MessageId = descriptor.id
        journal = self.journal
        journal.delete((keys.MESSAGE, message, 0))
        if descriptor.codec is not _BLANK:
            for piece in bits(held):
                journal.delete((keys.PIECE, message, piece))
        if descriptor.pieces > 1 and descriptor.signed:
            journal.delete((keys.HASHES, message, 0))
