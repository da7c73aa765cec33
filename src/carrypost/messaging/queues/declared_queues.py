"""The queues that this node declared: their rows, their bounds, and their live entries.

A temporary queue has no row: it ends with its connection. Live entries are pinned, within the bounds of their queues,
and have delivery times and leases.

Bounds. Entries are pinned, so they have to leave room for everything else: all of them together have `share_queues` of
the cache, and each queue has bounds of its own. As any node may send to a queue, an author may not fill one: once a
queue, or the room of all queues, is more than half full, an author has at most `share_author` of it. A lone author gets
half. Programs of this node are exempt from that share; beyond the bounds their sends raise. Other messages that do not
fit are turned away, and invited again when there is room.

Messages that were turned away stay with their carriers, which do not ask whether there is room by now. So they are
invited: when a tenth of the room was freed, or after a minute, as many messages as fit, one of each author in turn. If
everything were invited, nearly all of it would travel in vain, each time. An invited message that does not come keeps
its place for a minute after the last arrival; then others are invited in its place.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import msgspec

from carrypost.application.ledger import Agenda, Table
from carrypost.errors import InvalidDestinationException, JMSException, ResourceAllocationException
from carrypost.gossip.holdings.cache import QUEUES
from carrypost.gossip.holdings.eviction import Usage
from carrypost.gossip.layer import Part, Stored
from carrypost.gossip.slots import mask_of
from carrypost.gossip.wire.pieces import Blank
from carrypost.log.events import Reason
from carrypost.messaging.commands import Declare, Redelivery
from carrypost.messaging.control import RECEIVERS_MAX
from carrypost.messaging.namespace import DEAD_LETTERS, name_here, source_of
from carrypost.messaging.policies import fair, policy_named, policy_names
from carrypost.messaging.queues.entries import EntryRow, EntryState, QueueEntry
from carrypost.messaging.queues.queue import Queue
from carrypost.model import address
from carrypost.model.ids import MessageId
from carrypost.model.times import NEVER

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from carrypost.gossip.draft import Draft
    from carrypost.gossip.holdings.copies import Copy
    from carrypost.messaging.context import MessagingContext


_INVITE_US = 60_000_000
"""Longest interval of invitations, as long as any messages are turned away."""
_STALE_SLACK = 64
"""The memory of messages turned away is swept when it has grown to twice its size, and this many more."""

Author = str | bytes


class Room(Usage):
    """The room of one queue, or of all, with the part that each author uses."""

    __slots__ = ("_authors", "_bytes_max", "_messages_max", "_share")

    def __init__(self, messages_max: float, bytes_max: float, share: float) -> None:
        super().__init__()
        self._messages_max, self._bytes_max, self._share = messages_max, bytes_max, share
        self._authors: dict[Author, Usage] = {}

    def copy(self) -> Room:
        """Return a copy of this room, to plan with."""
        made = Room(self._messages_max, self._bytes_max, self._share)
        made.add(self.messages, self.bytes)
        for author, usage in self._authors.items():
            made._authors[author] = mine = Usage()
            mine.add(usage.messages, usage.bytes)
        return made

    def enter(self, author: Author, nbytes: int) -> None:
        """Add a message of this author."""
        self.add(1, nbytes)
        self._authors.setdefault(author, Usage()).add(1, nbytes)

    def leave(self, author: Author, nbytes: int) -> None:
        """Remove a message of this author."""
        self.add(-1, -nbytes)
        mine = self._authors[author]
        mine.add(-1, -nbytes)
        if not mine.messages:
            del self._authors[author]

    def holds(self, messages: int, nbytes: int) -> bool:
        """Return True if this much in all is within the bounds; one message alone always is."""
        # One message alone always fits, or a message longer than the whole room could never be
        # consumed.
        return messages <= 1 or (messages <= self._messages_max and nbytes <= self._bytes_max)

    def admits(self, author: Author, nbytes: int, *, own: bool) -> bool:
        """Return True if another message of this author fits; `own`: the author is this node, whatever its share."""
        messages, total = self.messages + 1, self.bytes + nbytes
        mine = self._authors.get(author)
        if not self.holds(messages, total):
            return False
        # The share counts only in the upper half: a lone author may use half of an empty queue, as
        # no other author needs it.
        if own or mine is None or (messages * 2 <= self._messages_max and total * 2 <= self._bytes_max):
            return True
        return (
            mine.messages + 1 <= self._messages_max * self._share
            and mine.bytes + nbytes <= self._bytes_max * self._share
        )

    @property
    def has_place(self) -> bool:
        """True if an empty message would fit."""
        return self.holds(self.messages + 1, self.bytes)

    def is_tenth(self, freed: Usage) -> bool:
        """Return True if this much is a tenth of this room."""
        return freed.messages * 10 >= self._messages_max or freed.bytes * 10 >= self._bytes_max


class Bounds(Part):
    """The bounds of one node's queues, and the messages that were turned away for them."""

    def __init__(self, context: MessagingContext) -> None:
        limits, settings = context.limits, context.settings
        self._holdings = context.holdings
        self._limits = limits
        self._all = Room(
            settings.cache_messages_max * limits.share_queues, settings.cache_bytes_max * limits.share_queues,
            limits.share_author,
        )  # fmt: skip
        self._rooms: dict[Queue, Room] = {}
        """Rooms of the queues with entries."""
        self._away: dict[Queue, dict[Author, deque[tuple[MessageId, int]]]] = {}
        """Messages turned away and not invited since, with their bytes. Bounded by the memory of the cache."""
        self._away_count, self._sweep_at = 0, _STALE_SLACK
        self._invited: dict[MessageId, tuple[Queue, Author, int]] = {}
        """Invited messages that have not arrived yet."""
        self._came = False
        """True if any of these arrived since the last check."""
        self._freed = Usage()
        """Room freed in queues since the last invitation."""

    # --- entries -------------------------------------------------------------------------------------------

    def admits(self, queue: Queue, copy: Copy, *, moved: bool = False) -> bool:
        """Return True if a message fits; `moved`: it moves here from another queue of this node."""
        self._came |= self._invited.pop(copy.id, None) is not None
        author, nbytes = copy.descriptor.author, copy.descriptor.length
        # A message that moves between queues of this node is in the room of all already: to count
        # it twice would refuse it.
        rooms = (self._room(queue),) if moved else (self._room(queue), self._all)
        return all(room.admits(author, nbytes, own=copy.own) for room in rooms)

    def entered(self, queue: Queue, copy: Copy) -> None:
        """Count a message that became an entry."""
        room = self._rooms[queue] = self._room(queue)
        for each in (room, self._all):
            each.enter(copy.descriptor.author, copy.descriptor.length)

    def released(self, queue: Queue, copy: Copy) -> None:
        """Remove an entry; invite others if that makes room for many."""
        author, nbytes = copy.descriptor.author, copy.descriptor.length
        room = self._rooms[queue]
        for each in (room, self._all):
            each.leave(author, nbytes)
        if not room.messages:
            del self._rooms[queue]
        self._freed.add(1, nbytes)
        if self._away and (room.is_tenth(self._freed) or self._all.is_tenth(self._freed)):
            self._invite()

    def _room(self, queue: Queue) -> Room:
        limits = self._limits
        return self._rooms.get(queue) or Room(limits.queue_messages_max, limits.queue_bytes_max, limits.share_author)

    def room_of(self, queue: Queue) -> tuple[Usage, int, int]:
        """Return what a queue has, and the messages and bytes that it may have."""
        return self._room(queue), self._limits.queue_messages_max, self._limits.queue_bytes_max

    def check(self, sends: Mapping[Queue, Sequence[Draft]]) -> None:
        """Raise unless all of these messages, which programs of this node send together, fit."""
        limits, sums = self._limits, Usage()
        for queue, drafts in sends.items():
            room, nbytes = self._room(queue), sum(map(_length, drafts))
            sums.add(len(drafts), nbytes)
            if not room.holds(room.messages + len(drafts), room.bytes + nbytes):
                bound = "messages" if room.messages + len(drafts) > limits.queue_messages_max else "bytes"
                raise _full(f"the queue {queue.asked.name!r} has", room, f"queue_{bound}_max")
        if not self._all.holds(self._all.messages + sums.messages, self._all.bytes + sums.bytes):
            raise _full("all queues of this node together have", self._all, "share_queues")

    # --- messages that were turned away --------------------------------------------------------------------

    def turn_away(self, queue: Queue, copy: Copy) -> None:
        """Drop a message that does not fit; its carriers keep it until it is invited."""
        away = self._away.setdefault(queue, {}).setdefault(copy.descriptor.author, deque())
        away.append((copy.id, copy.descriptor.length))
        self._holdings.discard(copy, Reason.PENDING, owner=QUEUES)
        self.due_us = min(self.due_us, self._holdings.now_us + _INVITE_US)
        self._away_count += 1
        if self._away_count > self._sweep_at:
            self._sweep()

    def _sweep(self) -> None:
        """Forget messages that the cache does not remember any more."""
        kept: dict[Queue, dict[Author, deque[tuple[MessageId, int]]]] = {}
        self._away_count = 0
        for queue, authors in self._away.items():
            for author, away in authors.items():
                left = deque(dict.fromkeys(each for each in away if self._remembered(each[0]) is not None))
                if left:
                    kept.setdefault(queue, {})[author] = left
                    self._away_count += len(left)
        self._away, self._sweep_at = kept, 2 * self._away_count + _STALE_SLACK

    def _remembered(self, message: MessageId) -> Copy | None:
        """Return the cache's memory of a message that was turned away, unless it came again since."""
        copy = self._holdings.cache.get(message)
        return None if copy is None or copy.here or copy.finished else copy

    def expire(self, now: int) -> None:
        """Invite others, also in place of those that were invited and do not come."""
        if not self._came:
            # Invitations without an answer for a whole interval hold their places for nothing:
            # carriers may have dropped them.
            self._invited = {}
        self._came = False
        self._invite()
        self.due_us = now + _INVITE_US if self._away else NEVER

    def ended(self, queue: Queue) -> None:
        """Invite everything that was for a queue that ended, so that its senders are informed of the failure."""
        self._reopen([message for away in self._away.pop(queue, {}).values() for message, _ in away])

    def _invite(self) -> None:
        """Invite as much as there is room for, beside earlier invitations; one of each author in turn."""
        self._freed = Usage()
        # Plan with copies of the rooms: invitations are no reservations, and nothing may leak from
        # a plan into the counts.
        everything = self._all.copy()
        rooms = {queue: self._room(queue).copy() for queue in self._away}
        for queue, author, nbytes in self._invited.values():
            everything.enter(author, nbytes)
            if queue in rooms:
                rooms[queue].enter(author, nbytes)
        found: list[MessageId] = []
        # One message of each author in turn: otherwise the author that sent most before would fill
        # the freed room again.
        turns = deque((queue, deque(authors)) for queue, authors in self._away.items())
        while turns and everything.has_place:
            queue, authors = turns.popleft()
            room, author = rooms[queue], authors.popleft()
            message, nbytes = self._away[queue][author][0]
            if everything.admits(author, nbytes, own=False) and room.admits(author, nbytes, own=False):
                if self._forget_first(queue, author):
                    authors.append(author)
                if message not in self._invited and self._remembered(message) is not None:
                    found.append(message)
                    self._invited[message] = queue, author, nbytes
                    for each in (everything, room):
                        each.enter(author, nbytes)
            if authors and room.has_place:
                turns.append((queue, authors))
        self._reopen(found)

    def _forget_first(self, queue: Queue, author: Author) -> bool:
        """Remove the first message of an author that was turned away; return True if there are more."""
        authors = self._away[queue]
        authors[author].popleft()
        self._away_count -= 1
        if authors[author]:
            return True
        del authors[author]
        if not authors:
            del self._away[queue]
        return False

    def _reopen(self, messages: Sequence[MessageId]) -> None:
        slots = [copy.slot for each in messages if (copy := self._remembered(each)) is not None]
        if slots:
            self._holdings.cache.reopen(QUEUES, mask_of(slots))


def _length(draft: Draft) -> int:
    return draft.payload.size if isinstance(draft.payload, Blank) else len(draft.payload)


def _full(whose: str, room: Room, limit: str) -> ResourceAllocationException:
    return ResourceAllocationException(
        f"{whose} {room.messages:,} messages of {room.bytes:,} bytes, and no room for more "
        f"(limits.{limit}): consume some of them first"
    )


class QueueRow(msgspec.Struct, frozen=True, array_like=True):
    """A queue in the store; fields may be appended with a default."""

    asked: Declare


class DeclaredQueues(Part):
    """The queues of one node."""

    def __init__(self, context: MessagingContext) -> None:
        self._node, self._table = context.node, Table(context.ledger, b"Q", QueueRow)
        self._queues: dict[str, Queue] = {}
        self._by_number: dict[int, Queue] = {}
        self._number = 0

    def __iter__(self) -> Iterator[Queue]:
        return iter(self._queues.values())

    def get(self, destination: str) -> Queue | None:
        """Return the queue of this address."""
        return self._queues.get(destination)

    def numbered(self, number: int) -> Queue | None:
        """Return the queue of this number."""
        return self._by_number.get(number)

    def managed(self, destination: str) -> Queue:
        """Return the queue of this address; raises `InvalidDestinationException` if there is none."""
        found = self._queues.get(destination)
        if found is None:
            name, node = address.name_of(destination) or destination, address.addressee(destination)
            remedy = (
                "declare it first" if node in (None, self._node) else f"use it on the node {node}, which manages it"
            )
            raise InvalidDestinationException(f"this node manages no queue {name!r}: {remedy}")
        return found

    def letters_of(self, queue: Queue) -> Queue:
        """Return the queue for dead letters of a queue. It has the same receivers."""
        name = DEAD_LETTERS + queue.asked.name
        known = self._queues.get(address.queue(name, self._node))
        return known or self.declare(Declare(name, receivers=queue.asked.receivers))

    def reach(self, destination: str) -> Queue | None:
        """Return the queue of this address, made if it is for dead letters of a queue that is here.

        So programs can wait for dead letters before there are any. Other nodes may ask for it, too: they make no more
        of these queues than there are others.
        """
        found = self._queues.get(destination)
        if found is None and (name := source_of(name_here(destination, self._node))):
            source = self._queues.get(address.queue(name, self._node))
            if source is not None and not source.asked.connection:
                return self.letters_of(source)
        return found

    def declare(self, asked: Declare) -> Queue:
        """Return the queue of this name, declared unless it is here; raises `JMSException` if it has other options."""
        policy = policy_named(asked.policy)
        if policy is None:
            raise JMSException(f"there is no policy {asked.policy!r}; there are {', '.join(policy_names())}")
        if asked.receivers is not None and len(asked.receivers) > RECEIVERS_MAX:
            raise JMSException(f"a queue names at most {RECEIVERS_MAX} receivers, not {len(asked.receivers):,}")
        destination = address.queue(asked.name, self._node)
        known = self._queues.get(destination)
        if known is not None:
            if known.asked != asked:
                raise JMSException(
                    f"the queue {asked.name!r} exists with other options ({_options(known.asked)}): declare it with "
                    "the same, or end it first"
                )
            return known
        self._number += 1
        queue = Queue(self._number, destination, asked, policy)
        self._enter(queue)
        if not asked.connection:
            self._table.put(_row_name(queue.number), QueueRow(asked))
        return queue

    def _enter(self, queue: Queue) -> None:
        self._queues[queue.destination] = self._by_number[queue.number] = queue

    def remove(self, queue: Queue) -> None:
        """Remove a queue."""
        del self._queues[queue.destination], self._by_number[queue.number]
        self._table.delete(_row_name(queue.number))

    def restore(self, stored: Stored, now: int) -> None:  # noqa: ARG002 - queues do not end by themselves
        """Restore the queues after a restart."""
        for name, row in self._table.read(stored):
            number, asked = int.from_bytes(name, "big"), row.asked
            policy = policy_named(asked.policy) or fair  # A program registered it, and has not yet in this incarnation.
            self._number = max(self._number, number)
            self._enter(Queue(number, address.queue(asked.name, self._node), asked, policy))


def _row_name(number: int) -> bytes:
    return number.to_bytes(8, "big")


def _options(asked: Declare) -> str:
    """Return the options of a queue, as a program would write them."""
    lease = f", lease_s={asked.lease_us / 1e6:g}" if asked.redelivery is Redelivery.AFTER_LEASE else ""
    receivers = '"anyone"' if asked.receivers is None else list(asked.receivers)
    tries = f", tries={asked.tries}" if asked.tries else ""
    sealed = ", sealed=True" if asked.sealed else ""
    return f'redelivery="{asked.redelivery}"{lease}, policy="{asked.policy}", receivers={receivers}{tries}{sealed}'


class LiveEntries:
    """The entries of one node, by the ids of their messages."""

    def __init__(self, context: MessagingContext) -> None:
        self._holdings, self._table = context.holdings, Table(context.ledger, b"E", EntryRow)
        self._entries: dict[MessageId, list[QueueEntry]] = {}
        """Entries by message: one, except for dead letters of several subscriptions to topics."""
        self._place = 0
        self.bounds = Bounds(context)
        self.delays, self.leases = Agenda(_is_delayed), Agenda(_is_leased)

    def __contains__(self, message: object) -> bool:
        return message in self._entries

    def of(self, message: MessageId) -> Sequence[QueueEntry]:
        """Return the entries of a message."""
        return tuple(self._entries.get(message, ()))

    def make(self, queue_number: int, copy: Copy) -> QueueEntry:
        """Make an entry of a message, the latest of all."""
        self._place += 1
        entry = QueueEntry(self._place, table=self._table, queue_number=queue_number, message=copy.id)
        entry.fill(copy, self._holdings)
        self._holdings.mark_claimed(copy)
        self._holdings.cache.mark_done((copy,))
        return entry

    def read(self, stored: Stored) -> Iterator[QueueEntry]:
        """Yield the entries after a restart by their places, without their copies."""
        for name, row in sorted(self._table.read(stored), key=lambda each: each[1].place):
            self._place = max(self._place, row.place)
            number, message = int.from_bytes(name[:8], "big"), MessageId(name[8:])
            yield QueueEntry(*msgspec.structs.astuple(row), table=self._table, queue_number=number, message=message)

    def enter(self, queue: Queue, entry: QueueEntry) -> None:
        """Put an entry into its queue."""
        assert entry.copy is not None  # It was filled, or is reopened with its copy.
        entry.queue, entry.tries = queue.asked.name, queue.asked.tries
        queue.entries[entry.message] = entry
        self._entries.setdefault(entry.message, []).append(entry)
        if entry.state is EntryState.ASSIGNED:
            queue.hold(entry.receiver)
        self.bounds.entered(queue, entry.copy)
        self._holdings.cache.pin((entry.copy,), QUEUES)

    def leave(self, queue: Queue, entry: QueueEntry) -> None:
        """Remove a closed entry from its queue. Its copy stays pinned."""
        assert entry.copy is not None  # It was alive until now.
        del queue.entries[entry.message]
        left = self._entries[entry.message]
        left.remove(entry)
        if not left:
            del self._entries[entry.message]
        self.bounds.released(queue, entry.copy)
        if entry.due_us > self._holdings.now_us:
            self.delays.note_ended()
        if entry.lease_us:
            self.leases.note_ended()

    def end_lease(self, entry: QueueEntry) -> None:
        """End the lease of an entry, if it has one."""
        if entry.lease_us:
            entry.lease_us = 0
            self.leases.note_ended()


def _is_delayed(entry: QueueEntry, due_us: int) -> bool:
    return entry.state is EntryState.WAITING and entry.due_us == due_us


def _is_leased(entry: QueueEntry, due_us: int) -> bool:
    return entry.state is EntryState.ASSIGNED and entry.lease_us == due_us
