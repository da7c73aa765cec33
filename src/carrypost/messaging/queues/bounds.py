"""The bounds of a node's queues: messages that do not fit are turned away, and invited again when there is room.

Entries are pinned, so they have to leave room for everything else: all of them together have `share_queues` of the
cache, and each queue has bounds of its own. As any node may send to a queue, an author may not fill one: once a queue,
or the room of all queues, is more than half full, an author has at most `share_author` of it. A lone author gets half.
Programs of this node are exempt from that share; beyond the bounds their sends raise.

Messages that were turned away stay with their carriers, which do not ask whether there is room by now. So they are
invited: when a tenth of the room was freed, or after a minute, as many messages as fit, one of each author in turn. If
everything were invited, nearly all of it would travel in vain, each time. An invited message that does not come keeps
its place for a minute after the last arrival; then others are invited in its place.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from carrypost.errors import ResourceAllocationException
from carrypost.gossip.composite import Part
from carrypost.gossip.holdings.owners import QUEUES
from carrypost.gossip.holdings.usage import Usage
from carrypost.gossip.slots import mask_of
from carrypost.gossip.wire.pieces import Blank
from carrypost.log.events import Reason
from carrypost.model.times import NEVER

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from carrypost.gossip.draft import Draft
    from carrypost.gossip.holdings.copies import Copy
    from carrypost.messaging.context import MessagingContext
    from carrypost.messaging.queues.queue import Queue
    from carrypost.model.ids import MessageId

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

    @property
    def of_each(self) -> tuple[int, int]:
        """Messages and bytes that one queue may have."""
        return self._limits.queue_messages_max, self._limits.queue_bytes_max

    def usage(self, queue: Queue) -> Usage:
        """Return the messages of a queue and their bytes."""
        return self._room(queue)

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
