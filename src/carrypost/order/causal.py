"""Causal and Δ-causal delivery in one group, on one host (CAUSAL codes 1 to 13, with the repairs they need)."""

# The problem. Nodes meet at random, so a reply often arrives before the message that it replies to.
# A message is to be delivered only after everything that its author had seen before sending it.
# Vector clocks need the set of members, which no node knows here, and grow with it. So each message
# carries a *barrier*: its direct predecessors, by source and number (`barrier`). A message is
# delivered once everything that its barrier names was delivered here or is dead.
#
# The two orderings differ in what they know of the dead. In Δ-causal order they are forgotten. In
# causal order they stay in barriers and registries, so that a message that follows one that died
# undelivered here is delivered with the number of those that are missing. To withhold it instead
# would let a stranger silence a member: by a message that only this member gets, and that dies
# before it can be passed on, everything that the member publishes from then on would be withheld.
#
# Why not the paper's algorithm as it stands? It scans everything pending at each delivery: 1,300 µs
# per delivery with 10,000 pending. Here a message that has to wait is filed under a single missing
# predecessor (`watch`), and examined again only when that one is delivered or dies: 14 µs, whatever
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

from typing import TYPE_CHECKING, NamedTuple

from carrypost.model.descriptor import Ordering
from carrypost.model.times import NEVER
from carrypost.order.barrier import Barrier
from carrypost.order.watch import WaitingMessage, Watch

if TYPE_CHECKING:
    from collections.abc import Iterable

    from carrypost.model.descriptor import Barrier as Entries
    from carrypost.model.descriptor import Descriptor, Predecessor
    from carrypost.model.ids import MessageId, NodeId

_NONE = -1
_AHEAD_US = 5_000_000
"""A date may be ahead of the local clock by this time, however short the lifetimes of messages are."""
_AHEAD_PART = 4
"""A date may be ahead by one in this many of the shortest lifetime of messages in the group."""
_MEMORY_US = 86_400_000_000
"""Time for which the shortest lifetime is remembered after the death of its message."""
_SLACK = 64
"""Dead sources are swept out when there are this many more sources than twice those left the last time."""
_SOURCES_MAX = 100_000
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
        self._barrier = Barrier(0 if self._forgets else entries_max)
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

    def _missing(self, predecessors: Entries, at: int) -> int:
        """Return the index of the first predecessor from `at` on that has to be waited for, or `_NONE`."""
        last, clock_us = self._tags.get, self.clock_us
        for source, tag, deadline_us in predecessors[at:] if at else predecessors:
            if deadline_us > clock_us and last(source, -1) < tag:
                return at
            at += 1
        return _NONE

    def _deliver(self, descriptor: Descriptor, predecessors: Entries) -> None:
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

    def load(self, clock_us: int, newest_us: int, barrier: Entries) -> None:
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
