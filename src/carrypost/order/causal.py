"""Causal and Δ-causal delivery in one group, on one host (CAUSAL codes 1 to 13, with the repairs they need).

`GroupBarrier` has the direct predecessors of the next message that this host publishes in the group. `Watch` has each
waiting message, filed under one missing predecessor, and finds it again by that. A predecessor is named by its source
and its tag. It is resolved once it, or a later message of its source, is delivered, or once it is dead by the deadline
that its successor names. `Group` delivers, by both.
"""

# The problem. Nodes meet at random, so a reply often arrives before the message that it replies to.
# A message is to be delivered only after everything that its author had seen before sending it.
# Vector clocks need the set of members, which no node knows here, and grow with it. So each message
# carries a *barrier*: its direct predecessors, by source and number (`GroupBarrier`). A message
# is delivered once everything that its barrier names was delivered here or is dead.
#
# The two orderings differ in what they know of the dead. In Δ-causal order they are forgotten. In
# causal order they stay in barriers and registries, so that a message that follows one that died
# undelivered here is delivered with the number of those that are missing. To withhold it instead
# would let a stranger silence a member: by a message that only this member gets, and that dies
# before it can be passed on, everything that the member publishes from then on would be withheld.
#
# Why not the paper's algorithm as it stands? It scans everything pending at each delivery: 1,300 µs
# per delivery with 10,000 pending. Here a message that has to wait is filed under a single missing
# predecessor (`Watch`), and examined again only when that one is delivered or dies: 14 µs, whatever
# the number. Deliveries run from a queue, not by recursion, since a chain of waiting messages may
# be as long as the store allows. There are no messages in this module, only descriptors.
#
# Time is the group's clock: the latest of the local clock and of the dates of delivered messages.
# It never goes back, dates what is published, and alone decides which message is dead. With the
# local clock instead, a host whose clock is slow would wait for a predecessor that the author had
# left out as dead, or worse, deliver it afterwards. With the group's clock a predecessor that was
# dead to the author is dead to every host that delivers the message, however wrong the clocks are.
# A date can also be a lie: it would bury everything that lives less long than it is ahead. So a
# message that would advance the clock too far beyond the local one waits until it does not.
#
# Longer barriers than in the paper. The paper keeps one predecessor per source, and a delivered
# message replaces whatever it depends on. That leaves a hole where lifetimes differ. Take
# m1 -> m2 -> m3, with m2 the first to die. With the paper's rule m3 names m2 alone. A host that has
# neither m1 nor m2 delivers m3 after the death of m2, and m1 after that: a violation, although every
# barrier was obeyed. So a message replaces a predecessor only if it lives at least as long, or if
# the predecessor is dead; else both stay.
#
# In Δ-causal order the dead leave the barrier. In causal order they stay until a message replaces
# them, so that hosts that never had them learn that they are missing. They leave only where there
# are more entries than a message may have.
#
# The price is longer barriers: with lifetimes of 15 to 300 s, 11.2 entries on average instead of
# 6.7 with equal ones. The paper's hosts deliver only 83 % of such a history (docs/benchmarks.md,
# "Causal order").
#
# What must hold.
# 1. Of one source, messages are delivered in the order of their tags; a tag at or below the last
#    one never comes again.
# 2. No message is delivered before one that it depends on, directly or not, unless that one was
#    dead by then.
# 3. A message waits for exactly one predecessor at a time, or for its date, and is in `pending` if
#    and only if it is filed.
#
# The literal algorithm is kept in the tests (`literal_causal`), and random histories are run
# through both.

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final, NamedTuple

from carrypost.model.descriptor import Ordering, predecessor
from carrypost.model.times import NEVER

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from carrypost.model.descriptor import Barrier, Descriptor, Predecessor
    from carrypost.model.ids import MessageId, NodeId


BarrierEntries = tuple[tuple[int, int], ...]
"""(tag, deadline) of the messages of one source, by tag; usually one."""


class GroupBarrier:
    """The registry `c_barrier` of one group."""

    __slots__ = ("_entries_max", "_sources")

    def __init__(self, entries_max: int) -> None:
        self._entries_max = entries_max
        """Expired predecessors are forgotten if there are more entries than this."""
        self._sources: dict[NodeId, BarrierEntries] = {}

    def __iter__(self) -> Iterator[tuple[NodeId, int, int]]:
        """Yield source, tag and deadline of every entry, the last delivered first.

        A receiver that has to wait files the message under the first missing predecessor, and that one will probably
        come last.
        """
        for source in reversed(self._sources):
            for tag, deadline_us in reversed(self._sources[source]):
                yield source, tag, deadline_us

    def size(self, clock_us: int) -> int:
        """Return the number of entries of a message published at this time."""
        entries = sum(map(len, self._sources.values()))
        if entries <= self._entries_max:
            return entries
        ends_us = (deadline_us for standing in self._sources.values() for _, deadline_us in standing)
        return max(self._entries_max, sum(1 for deadline_us in ends_us if deadline_us > clock_us))

    def put(self, source: NodeId, tag: int, deadline_us: int, predecessors: Barrier, clock_us: int) -> None:
        """Depend on a message that was delivered here, or published, instead of on its predecessors."""
        sources = self._sources
        for named, named_tag, told_us in predecessors:
            standing = sources.get(named)
            if standing is None:
                continue
            # A host waits for its predecessors no longer than the deadlines that it names: an author may lie.
            until_us = max(min(deadline_us, told_us), clock_us)
            if len(standing) == 1:
                own_tag, own_us = standing[0]
                if own_tag == named_tag and own_us <= until_us:
                    del sources[named]
                continue
            left = tuple([each for each in standing if each[0] != named_tag or each[1] > until_us])
            if left:
                sources[named] = left
            else:
                del sources[named]
        standing = sources.pop(source, None)
        if standing is None:
            sources[source] = ((tag, deadline_us),)
        else:
            # A host that delivered it delivers no earlier message of this source any more, for any barrier.
            longer = [each for each in standing if each[1] > deadline_us]
            sources[source] = (*longer, (tag, deadline_us))

    def expunge(self, clock_us: int) -> None:
        """Forget the dead (Code 10) as far as there are too many entries, those first that died first."""
        # What lives longer stands before: only the last of a source can be the first to die.
        dead = [(standing[-1][1], each) for each, standing in self._sources.items() if standing[-1][1] <= clock_us]
        if not dead:
            return
        if self._entries_max:
            entries = sum(map(len, self._sources.values()))
            dead = sorted(dead)[: max(0, entries - self._entries_max)]
        for _, source in dead:
            left = tuple([each for each in self._sources[source] if each[1] > clock_us])
            if left:
                self._sources[source] = left
            else:
                del self._sources[source]

    def entries(self, *, signed: bool) -> tuple[Predecessor, ...]:
        """Return the entries for the next message, in their wire form."""
        return tuple(predecessor(*each, signed=signed) for each in self)

    def load(self, entries: Barrier) -> None:
        """Restore the barrier after a restart."""
        for source, tag, deadline_us in reversed(entries):
            self._sources[source] = (*self._sources.get(source, ()), (tag, deadline_us))


Reminder = tuple[int, "NodeId", int]
"""A time, and the source and the tag of the predecessor to examine then."""
_STALE_SLACK: Final = 64
"""Number of stale entries, beyond the others, at which stale ones are swept out."""


class WaitingMessage:
    """A message that was received and waits for a predecessor, or for its date."""

    __slots__ = ("at", "descriptor", "early", "predecessors")

    def __init__(self, descriptor: Descriptor, predecessors: Barrier, at: int, *, early: bool = False) -> None:
        self.descriptor = descriptor
        self.predecessors = predecessors
        self.at = at
        """Index of the predecessor that it is filed under; those before are delivered or expired, for good."""
        self.early = early
        """True if its date is too far ahead. It is then filed under itself, with the time at which it is not."""


class Watch:
    """Waiting messages, by the predecessor that they wait for."""

    __slots__ = ("_due", "_filed", "_new", "_size", "_tagged", "due_us", "tags")

    def __init__(self) -> None:
        self._filed: dict[tuple[NodeId, int], dict[WaitingMessage, None]] = {}
        self._size = 0
        """Number of messages that are filed."""
        self.tags: dict[NodeId, list[int]] = {}
        """Heaps of the tags under which something is, or was, filed, by source."""
        self._tagged = 0
        """Number of tags under which they are filed."""
        self._due: list[Reminder] = []
        """Heap of reminders by the deadlines that successors name; some are stale."""
        self._new: list[Reminder] = []
        """Reminders that are not sorted in: most messages do not wait that long."""
        self.due_us = NEVER
        """Not after the earliest of those deadlines."""

    def file(self, waiting: WaitingMessage) -> None:
        """File a message under the predecessor that it waits for."""
        source, tag, deadline_us = waiting.predecessors[waiting.at]
        key = (source, tag)
        self._size += 1
        others = self._filed.get(key)
        if others is None:
            self._filed[key] = {waiting: None}
            tags = self.tags.get(source)
            if tags is None:
                self.tags[source] = [tag]
            else:
                heappush(tags, tag)
            self._tagged += 1
            if self._tagged > 2 * self._size + _STALE_SLACK:
                self._sweep()
        else:
            first = next(iter(others))
            others[waiting] = None
            if first.predecessors[first.at][2] == deadline_us:
                return  # All name the same deadline of a message, unless an author lies.
        if deadline_us < NEVER:
            self.remind(deadline_us, source, tag)

    def remind(self, t_us: int, source: NodeId, tag: int) -> None:
        """Examine what is filed under this predecessor again at that time."""
        self._new.append((t_us, source, tag))
        if t_us < self.due_us:
            self.due_us = t_us
        if len(self._new) + len(self._due) > 2 * self._size + _STALE_SLACK:
            self._sweep()

    def leave(self, waiting: WaitingMessage) -> None:
        """Remove a message that waits no more, whatever became of its predecessor."""
        source, tag, _ = waiting.predecessors[waiting.at]
        filed = self._filed[source, tag]
        del filed[waiting]
        if not filed:
            del self._filed[source, tag]
        self._size -= 1

    def delivered(self, source: NodeId, tag: int) -> list[WaitingMessage]:
        """Remove and return what waits for this message or an earlier one of its source, which is in `tags`."""
        tags = self.tags[source]
        found: list[WaitingMessage] = []
        while tags and tags[0] <= tag:
            found += self._filed.pop((source, heappop(tags)), ())
            self._tagged -= 1
        if not tags:
            del self.tags[source]
        self._size -= len(found)
        return found

    def dead(self, clock_us: int) -> list[WaitingMessage]:
        """Remove and return what waits for messages that are dead by now."""
        due, filed = self._due, self._filed
        for each in self._new:
            if each[1:] in filed:
                heappush(due, each)
        self._new.clear()
        found: list[WaitingMessage] = []
        while due and (due[0][0] <= clock_us or due[0][1:] not in filed):
            found += filed.pop(heappop(due)[1:], ())
        self._size -= len(found)
        self.due_us = due[0][0] if due else NEVER
        return found

    def _sweep(self) -> None:
        """Drop stale entries, if they are the majority.

        Otherwise an author that names messages that do not exist, or a new deadline for them each time, would fill the
        memory.
        """
        waiting = {(each.predecessors[each.at][2], *key) for key, some in self._filed.items() for each in some}
        soon = [each for each in self._due + self._new if not each[0] and each[1:] in self._filed]
        self._due, self._new = sorted(waiting.union(soon)), []  # A list in order is a heap.
        self.tags = {}
        for source, tag in sorted(self._filed):
            self.tags.setdefault(source, []).append(tag)
        self._tagged = len(self._filed)


_NONE: Final = -1
_AHEAD_US: Final = 5_000_000
"""A date may be ahead of the local clock by this time, however short the lifetimes of messages are."""
_AHEAD_PART: Final = 4
"""A date may be ahead by one in this many of the shortest lifetime of messages in the group."""
_MEMORY_US: Final = 86_400_000_000
"""Time for which the shortest lifetime is remembered after the death of its message."""
_SLACK: Final = 64
"""Dead sources are swept out when there are this many more sources than twice those left the last time."""
_SOURCES_MAX: Final = 100_000
"""Causal order: sources of which nothing is alive are forgotten beyond this number. Messages that name them count them
as missing."""


class Last(NamedTuple):
    """The entry of `co_delivered` for a source."""

    tag: int
    """Tag of the last message delivered: earlier ones were delivered, or never will be."""
    deadline_us: int
    """The latest deadline of those delivered: after it none of them can come again."""


class Group:
    """One order group on one host."""

    __slots__ = (
        "_ahead_us_max", "_at", "_barrier", "_early", "_ends_us", "_expired", "_forgets", "_lost", "_newest_us",
        "_now_us", "_out", "_shortest_until_us", "_shortest_us", "_sweep_at", "_tags", "_watch", "clock_us",
        "_changes", "_delivered", "destination", "me", "opener", "ordering", "pending",
    )  # fmt: skip

    def __init__(
        self,
        destination: str,
        ordering: Ordering,
        me: NodeId,
        opener: str = "",
        *,
        ahead_us_max: int = NEVER,
        entries_max: int = NEVER,
    ) -> None:
        """Create a group that knows nothing.

        `ahead_us_max`: no date may be ahead of the local clock by more. `entries_max`: in causal order, dead
        predecessors are named up to this number of predecessors.
        """
        self.opener = opener
        """The author of its first message; empty: not known."""
        self.destination = destination
        self.ordering = ordering
        self.me = me
        self._forgets = ordering is Ordering.DELTA_CAUSAL
        self.clock_us = 0
        """The group's time, which never goes back."""
        self._now_us = 0
        """The local clock."""
        self._ahead_us_max = ahead_us_max
        self._shortest_us = self._shortest_until_us = 0
        """The shortest lifetime of delivered messages, and the time until which it is remembered: a while after the
        deadlines of all that are about as short."""
        self._newest_us = -1
        """The latest date of a delivered message of another author."""
        self._barrier = GroupBarrier(0 if self._forgets else entries_max)
        # `co_delivered`, in two parts, since one of them is asked for several times per message.
        self._tags: dict[NodeId, int] = {}
        self._ends_us: dict[NodeId, int] = {}
        self.pending: dict[MessageId, WaitingMessage] = {}
        """Messages that were received, and not delivered yet."""
        self._watch = Watch()
        self._early: Watch | None = None
        """Messages that wait for their dates, if there ever was one."""
        self._lost: dict[MessageId, int] = {}
        """Causal order: delivered messages with predecessors that died undelivered here, and the number of these."""
        self._expired: list[Descriptor] = []
        self._out: list[Descriptor] = []
        """Messages delivered in this step, in order; also the queue from which waiting messages are examined."""
        self._at = 0
        """Number of these that were examined."""
        self._sweep_at = _SLACK
        self._changes: dict[NodeId, None] | None = None
        """Sources that changed since the last `mark`; None: nothing changed."""
        self._delivered = False
        """True if anything was delivered since."""

    @property
    def due_us(self) -> int:
        """Time at which `expire` has to be called: no later than the deadline of any missing predecessor."""
        return self._watch.due_us if self._early is None else min(self._watch.due_us, self._early.due_us)

    # --- publication ---------------------------------------------------------------------------------------

    def stamp(self, now: int) -> int:
        """Return the date of a message published now: later than all messages of others that it depends on."""
        return max(now, self.clock_us, self._newest_us + 1)

    def barrier(self, now: int, *, signed: bool = False) -> tuple[Predecessor, ...]:
        """Return the predecessors of a message published now."""
        self._look_at_clock(now)
        self._barrier.expunge(self.clock_us)
        return self._barrier.entries(signed=signed)

    def published(self, descriptor: Descriptor, now: int) -> list[Descriptor]:
        """Deliver an own message and everything that waited for it; return the delivered messages in order."""
        self._look_at_clock(now)
        self._deliver(descriptor, descriptor.predecessors)
        self._drain()
        return self._pop_delivered()

    # --- reception -----------------------------------------------------------------------------------------

    def receive(self, descriptors: Iterable[Descriptor], now: int) -> list[Descriptor]:
        """Process received messages one after the other; return the messages delivered thereby, in order."""
        self._look_at_clock(now)
        tags, pending = self._tags, self.pending
        for each in descriptors:
            if each.tag <= tags.get(each.source, -1) or each.id in pending:
                continue  # It was delivered; or one that follows it was, because it was dead.
            if each.ends_us <= self.clock_us:
                self._expired.append(each)
                continue
            near_us = each.created_us - self._ahead_us(each) if each.created_us > now else 0
            if near_us > now:
                self._postpone(WaitingMessage(each, (), 0, early=True), near_us)
                continue
            predecessors = each.predecessors
            at = self._missing(predecessors, 0)
            if at >= 0:
                waiting = pending[each.id] = WaitingMessage(each, predecessors, at)
                self._watch.file(waiting)
                continue
            self._deliver(each, predecessors)
            if self._watch.tags:
                self._drain()  # Before the next one, so that it does not matter which come together.
        return self._pop_delivered()

    def expire(self, now: int) -> list[Descriptor]:
        """Advance the clock; return the messages delivered because a predecessor died, or their date is near."""
        self._look_at_clock(now)
        self._drain()
        return self._pop_delivered()

    def discard(self, descriptor: Descriptor) -> None:
        """Drop a waiting message whose copy expired or was removed. Messages that wait for it keep waiting."""
        waiting = self.pending.pop(descriptor.id, None)
        if waiting is not None:
            (self._early if waiting.early and self._early is not None else self._watch).leave(waiting)

    def waits_until_us(self, descriptor: Descriptor) -> int:
        """Return the deadline of the predecessor under which a waiting message is filed, or the time to look again."""
        waiting = self.pending[descriptor.id]
        return waiting.predecessors[waiting.at][2]

    def pop_expired(self) -> list[Descriptor]:
        """Return the received messages that will never be delivered."""
        expired, self._expired = self._expired, []
        return expired

    def pop_lost(self) -> dict[MessageId, int]:
        """Return the delivered messages with predecessors that died undelivered here, and the number of these.

        Causal order only: Δ-causal order forgets the dead.
        """
        lost, self._lost = self._lost, {}
        return lost

    def sizes(self, now: int) -> tuple[int, int, int]:
        """Return the sizes of `c_barrier`, `co_delivered` and `pending`, without the dead that will be forgotten."""
        clock_us, ends_us = max(now, self.clock_us), self._ends_us.values()
        co_delivered = sum(1 for each in ends_us if each > clock_us) if self._forgets else len(ends_us)
        return self._barrier.size(clock_us), co_delivered, len(self.pending)

    # --- waiting -------------------------------------------------------------------------------------------

    def _look_at_clock(self, now: int) -> None:
        self._now_us = now
        if now > self.clock_us:
            self.clock_us = now

    def _ahead_us(self, descriptor: Descriptor) -> int:
        """Return the time by which the date of a message may be ahead of the local clock.

        A delivery advances the clock of the group to that date, so that messages die early by this time. It is a small
        part of the lifetimes that are usual in the group, or a few seconds if none is known.
        """
        shortest_us = min(self._shortest_us, descriptor.ends_us - descriptor.created_us)
        return min(max(_AHEAD_US, shortest_us // _AHEAD_PART), self._ahead_us_max)

    def _postpone(self, waiting: WaitingMessage, near_us: int) -> None:
        """File a message until the local clock is near its date."""
        if self._early is None:
            self._early = Watch()
        descriptor = waiting.descriptor
        waiting.predecessors = ((descriptor.source, descriptor.tag, near_us),)
        self.pending[descriptor.id] = waiting
        self._early.file(waiting)

    def _near(self, early: Watch) -> list[WaitingMessage]:
        """Return the messages whose date is not too far ahead any more, to be examined like others."""
        found: list[WaitingMessage] = []
        for waiting in early.dead(self._now_us):
            descriptor = waiting.descriptor
            near_us = descriptor.created_us - self._ahead_us(descriptor)
            if near_us > self._now_us:  # Shorter lifetimes were seen since.
                self._postpone(waiting, near_us)
                continue
            waiting.predecessors, waiting.early = descriptor.predecessors, False
            found.append(waiting)
        return found

    def _missing(self, predecessors: Barrier, at: int) -> int:
        """Return the index of the first predecessor from `at` on that has to be waited for, or `_NONE`."""
        last, clock_us = self._tags.get, self.clock_us
        for source, tag, deadline_us in predecessors[at:] if at else predecessors:
            if deadline_us > clock_us and last(source, -1) < tag:
                return at
            at += 1
        return _NONE

    def _deliver(self, descriptor: Descriptor, predecessors: Barrier) -> None:
        source, tag, deadline_us = descriptor.source, descriptor.tag, descriptor.ends_us
        if self._changes is None:
            self._changes = {}
        self._changes[source] = None
        self._delivered = True
        if not self._forgets and source != self.me:
            last = self._tags.get
            if lost := sum(last(named, -1) < named_tag for named, named_tag, _ in predecessors):
                self._lost[descriptor.id] = lost
        self._tags[source] = tag
        if deadline_us > self._ends_us.get(source, -1):
            self._ends_us[source] = deadline_us
        self._barrier.put(source, tag, deadline_us, predecessors, self.clock_us)
        created_us = descriptor.created_us
        lifetime_us = deadline_us - created_us
        if lifetime_us < self._shortest_us or self.clock_us >= self._shortest_until_us:
            self._shortest_us, self._shortest_until_us = lifetime_us, deadline_us + _MEMORY_US
        elif lifetime_us <= 2 * self._shortest_us and deadline_us + _MEMORY_US > self._shortest_until_us:
            self._shortest_until_us = deadline_us + _MEMORY_US
        if created_us > self._newest_us and source != self.me:
            self._newest_us = created_us
        if created_us > self.clock_us:
            self.clock_us = created_us
        self._out.append(descriptor)

    def _drain(self) -> None:
        """Examine again what waited for delivered or dead messages, until nothing changes."""
        out, watch = self._out, self._watch
        while True:
            while self._at < len(out):
                source, tag = out[self._at].source, out[self._at].tag
                self._at += 1
                tags = watch.tags.get(source)
                if tags is not None and tags[0] <= tag:
                    self._look_again(watch.delivered(source, tag))
            if watch.due_us <= self.clock_us:
                self._look_again(watch.dead(self.clock_us))
            elif self._early is not None and self._early.due_us <= self._now_us:
                self._look_again(self._near(self._early))
            elif self._at >= len(out):
                break

    def _pop_delivered(self) -> list[Descriptor]:
        """Return the messages delivered in this step."""
        out = self._out
        if out:
            self._out, self._at = [], 0
        return out

    def _look_again(self, found: Iterable[WaitingMessage]) -> None:
        """Deliver messages, drop them, or file them anew: their predecessor was delivered, or is dead."""
        pending = self.pending
        for waiting in found:
            descriptor, predecessors = waiting.descriptor, waiting.predecessors
            if descriptor.ends_us <= self.clock_us or descriptor.tag <= self._tags.get(descriptor.source, -1):
                # It is dead; or its author, which lost its store or lies, did not name it in a later one.
                del pending[descriptor.id]
                self._expired.append(descriptor)
                continue
            at = self._missing(predecessors, waiting.at)
            if at >= 0:
                waiting.at = at
                self._watch.file(waiting)
                continue
            del pending[descriptor.id]
            self._deliver(descriptor, predecessors)

    # --- the store -----------------------------------------------------------------------------------------

    @property
    def changed(self) -> bool:
        """True if anything has changed since the last `mark`."""
        return self._changes is not None

    def mark(self) -> Iterable[NodeId] | None:
        """Return the sources that changed since the last call; None: nothing changed. The dead are forgotten before."""
        if self._changes is not None:
            self._barrier.expunge(self.clock_us)  # A host that never publishes would keep them all.
            if len(self._tags) > self._sweep_at:
                self._sweep(self._changes)
        changes, self._changes, self._delivered = self._changes, None, False
        return changes

    def _sweep(self, changes: dict[NodeId, None]) -> None:
        if self._forgets or len(self._tags) > _SOURCES_MAX:
            for source in [source for source, ends_us in self._ends_us.items() if ends_us <= self.clock_us]:
                changes[source] = None
                del self._tags[source], self._ends_us[source]
        self._sweep_at = 2 * len(self._tags) + _SLACK

    def forget_dead(self, now: int) -> None:
        """Forget the dead at once, in Δ-causal order."""
        self._look_at_clock(now)
        if not self._forgets or all(ends_us > self.clock_us for ends_us in self._ends_us.values()):
            return
        if self._changes is None:
            self._changes = {}
        self._barrier.expunge(self.clock_us)
        self._sweep(self._changes)

    def last(self, source: NodeId) -> Last | None:
        """Return the state of a source, which is its row in the store."""
        tag = self._tags.get(source)
        return None if tag is None else Last(tag, self._ends_us[source])

    @property
    def head(self) -> tuple[int, int, list[tuple[NodeId, int, int]]]:
        """The state of the group besides its sources that a restart needs: clock, newest date, barrier."""
        return self.clock_us, self._newest_us, list(self._barrier)

    def load(self, clock_us: int, newest_us: int, barrier: Barrier) -> None:
        """Restore the head after a restart."""
        self.clock_us, self._newest_us = clock_us, newest_us
        self._barrier.load(barrier)

    def load_last(self, source: NodeId, last: Last) -> None:
        """Restore the state of a source after a restart."""
        self._tags[source], self._ends_us[source] = last

    @property
    def ends_us(self) -> int:
        """Time at which everything that was delivered has expired.

        A host that learns of a later date delivers none of it any more.
        """
        return max(self._ends_us.values(), default=-1)

    @property
    def sources(self) -> set[NodeId]:
        """All sources that may have a row in the store."""
        return {*self._tags, *(self._changes or ())}

    def is_over(self, now: int, *, margin_us: int = 0) -> bool:
        """Return True if a new group in its place breaks no order: nothing waits, and all that it knows is dead.

        Predecessors of a delivered message are dead as well: they were named by it, or were dead already. `margin_us`:
        the time for which everything has to be dead.
        """
        return not (self.pending or self._delivered) and self.clock_us <= now and self.ends_us <= now - margin_us
