"""All order groups of one host, between its cache and its applications, and the stamps of messages published together.

A group consists of the messages with one destination and one ordering. Copies that have to wait stay in the cache,
pinned, within a bound for all and one for each author: a forged barrier that makes a message wait for ever costs its
author's share, and no more. A copy beyond the bound is dropped, and may come again.

The registries are stored in the same batch as the deliveries that changed them, a row for each source and one for each
group. Until that batch is durable no delivery is handed over and no message leaves. If the batch is lost, the groups
are reset to their state before it, and everything delivered since is delivered again, or not published at all.

Messages that are published together get their dates and barriers before the first of them is published (`Stamping`). A
message depends on those before it. So each stamped message is published in an *outlook*: a group with the clock and the
barrier of the real one, and nothing else. The real groups change only when the messages are published; if one of them
cannot be stamped, nothing has changed.

A message names a limited number of predecessors. If there are more, messages without content are published before it.
Each of them joins some predecessors: it names them and lives as long as they do, so that it replaces them. Few are
left: predecessors that live longer than the messages that follow would be named by each of these. A joining message is
a source of its own (`Descriptor.source`). Otherwise a host that delivers it would ignore earlier messages of its
author, which precede it and which it need not name.
"""

from __future__ import annotations

from collections import Counter
from itertools import groupby
from operator import attrgetter, is_
from typing import TYPE_CHECKING, Final, NamedTuple

from carrypost.application.publishing import Stamp
from carrypost.errors import OrderError
from carrypost.gossip.holdings.cache import DELIVERED_IN_ORDER, ORDER
from carrypost.gossip.holdings.eviction import Usage
from carrypost.gossip.layer import Layer
from carrypost.log.events import Reason
from carrypost.log.journal import ORDER as ORDER_ROWS
from carrypost.model.descriptor import Descriptor, Ordering, PayloadCodec
from carrypost.model.times import MICROSECONDS, NEVER
from carrypost.order import rows
from carrypost.order.causal import Group

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from carrypost.application.deliveries import Deliveries
    from carrypost.gossip.holdings.copies import Copy
    from carrypost.gossip.transfers.link import HostContext
    from carrypost.log.journal import Key, Value
    from carrypost.model.descriptor import Predecessor
    from carrypost.model.ids import MessageId, NodeId


_FEW_PART: Final = 8
"""Predecessors are joined until at most one in this many of the limit is left."""


class Stamping:
    """Stamper of the messages of one unit of work, in the order in which they will be published."""

    __slots__ = ("_entries_max", "_joining", "_now", "_opened", "_outlooks", "_signs")

    def __init__(self, opened: Callable[[str, Ordering], Group], now: int, *, signed: bool, entries_max: int) -> None:
        self._opened, self._now, self._signs, self._entries_max = opened, now, signed, entries_max
        self._outlooks: dict[tuple[str, Ordering], Group] = {}
        self._joining = False
        """True after a message that joins predecessors, until few are left."""

    def stamp(self, destination: str, ordering: Ordering) -> Stamp:
        """Return the date and the barrier of the next message, or of one that has to join predecessors before it.

        Raises `OrderError` if there is no room for its group.
        """
        if not ordering:
            return Stamp(self._now)
        group = self._outlooks.get((destination, ordering)) or self._opened(destination, ordering)
        barrier = group.barrier(self._now, signed=self._signs)
        most = max(2, self._entries_max // _FEW_PART) if self._joining else self._entries_max
        self._joining = len(barrier) > most
        if not self._joining:
            return Stamp(group.stamp(self._now), barrier)
        # Those that die at about the same time are joined, so that nobody waits for the joining
        # message much longer than for them.
        joined = sorted(barrier, key=_end_us)[: self._entries_max]
        return Stamp(group.stamp(self._now), tuple(joined), until_us=_end_us(joined[-1]))

    def add(self, descriptor: Descriptor) -> None:
        """Make the following messages depend on one that was stamped."""
        if not descriptor.ordering:
            return
        key = (descriptor.destination, descriptor.ordering)
        outlook = self._outlooks.get(key)
        if outlook is None:
            group = self._opened(*key)
            outlook = self._outlooks[key] = Group(group.destination, group.ordering, group.me)
            clock_us, newest_us, barrier = group.head
            outlook.load(clock_us, newest_us, tuple(barrier))
        outlook.published(descriptor, self._now)


def _end_us(predecessor: Predecessor) -> int:
    return predecessor.tag_and_end[1]


_PENDING_PART: Final = 2
"""At most one in this many of the cache's messages, and of its bytes, may wait."""
_REOPEN_US: Final = 10_000_000
"""Shortest time between two attempts to admit messages whose missing predecessor is delivered or has expired."""
_FORGET_US: Final = 1_000_000
"""Shortest time between two searches for groups of which nothing is alive."""
_CAUSAL_PART: Final = 64
"""Causal groups with a subscriber here that are forgotten at a time: at most one in this many of `groups_max`."""
_BARRIER_PART: Final = 2
"""The barrier of an own message takes at most one in this many of the bytes of a descriptor."""
_ENTRY_BYTES: Final = 40
"""Bytes of an entry of a barrier, with keys and large numbers."""
_JOINED_MIN: Final = 2
"""Joining fewer predecessors would not reduce their number."""


class Registry(NamedTuple):
    """The sizes of one group's registries."""

    destination: str
    ordering: Ordering
    c_barrier: int
    co_delivered: int
    pending: int


class Order(Layer):
    """The groups of one host."""

    kind = ORDER_ROWS

    def __init__(self, context: HostContext, deliveries: Deliveries) -> None:
        self._node, self._signs, self._limits = context.node, context.identity.signed, context.limits
        self._holdings, self._cache = context.holdings, context.holdings.cache
        self._outputs = context.outputs
        self._deliveries = deliveries
        self._groups: dict[tuple[str, Ordering], Group] = {}
        self._opened: Counter[str] = Counter()
        """Number of groups that each author opened."""
        self._opened_max = max(1, int(context.limits.groups_max * context.limits.share_author))
        self._skew_us = round(context.settings.skew_s_max * MICROSECONDS)
        room = context.limits.descriptor_bytes_max // _BARRIER_PART // _ENTRY_BYTES
        self._entries_max = max(_JOINED_MIN, min(context.limits.barrier_entries_max, room))
        """Number of predecessors that an own message names: further ones are joined before."""
        self._interests = context.interests
        self._waiting = _Room(context)
        self._delivered: list[Copy] = []
        """Copies that were delivered since the last batch."""
        self._passing: list[Copy] = []
        """Messages that go on with the next `receive`, in order."""
        self._stamped: set[Group] = set()
        """Groups of the messages stamped last. They are kept, because the messages may not be published yet."""
        self._touched: dict[Group, None] = {}
        """Groups with changes that are in no batch yet."""
        self._reopen_us, self._reopened_us = NEVER, -_REOPEN_US
        self._forgot_us = -_FORGET_US
        self.due_us = NEVER
        """Not after the next death of a missing predecessor."""

    # --- publication ---------------------------------------------------------------------------------------

    def stamping(self, date_us: int) -> Stamping:
        """Begin to stamp messages that are published together."""
        self._stamped = set()
        return Stamping(self.opened, date_us, signed=self._signs, entries_max=self._entries_max)

    def opened(self, destination: str, ordering: Ordering) -> Group:
        """Return the group of an own message, made if there is room for one more; raise `OrderError` if not."""
        group = self._group(destination, ordering, self._node)
        if group is None:
            raise OrderError(f"the node has {len(self._groups):,} order groups, the maximum (limits.groups_max)")
        self._stamped.add(group)
        return group

    def published(self, copies: Sequence[Copy]) -> None:
        """Pass own messages on at once."""
        for copy in copies:
            if copy.descriptor.ordering:
                group = self._groups[_group_of(copy)]  # It was there when the message was stamped, in the same step.
                self._deliver(group, group.published(copy.descriptor, self._holdings.date_us))

    # --- reception -----------------------------------------------------------------------------------------

    def receive(self, copies: Sequence[Copy]) -> Sequence[Copy]:
        """Pass on messages whose predecessors were delivered or are dead, and what waited for them.

        Messages without an order pass, and so do those delivered before a restart: the registries know them already. A
        finished message was skipped, or will never be delivered, and that was reported.
        """
        # Most bursts have no order at all: one pass over a C function decides that.
        if not self._passing and not any(map(_ORDERING, copies)):
            return copies
        for (destination, ordering), found in groupby(copies, _group_of):
            some = list(found)
            if not ordering:
                self._passing += some
            elif not (self._deliveries.redelivers or self._holdings.claims or any(map(_FINISHED, some))):
                self._receive(destination, ordering, some)
            else:
                for again, same in groupby(some, self._passed_before):
                    if again:
                        self._passing += same
                    else:
                        self._receive(destination, ordering, [copy for copy in same if not copy.finished])
        passing, self._passing = self._passing, []
        unchanged = len(passing) == len(copies) and all(map(is_, passing, copies))
        return copies if unchanged else passing

    def _passed_before(self, copy: Copy) -> bool:
        """Return True if it comes again, or for a later subscriber: the registries know it already."""
        deliveries = self._deliveries
        return deliveries.comes_again(copy) or self._holdings.is_given(copy) or deliveries.is_open(copy)

    def _receive(self, destination: str, ordering: Ordering, copies: list[Copy]) -> None:
        if not copies:
            return
        # Any of the authors that has a place left may open the group: a group is not refused
        # because of one of them.
        for opener in dict.fromkeys([copy.descriptor.node for copy in copies]):
            group = self._group(destination, ordering, opener)
            if group is not None:
                break
        else:
            for copy in copies:
                self._holdings.discard(copy, Reason.PENDING, owner=ORDER)
            return
        self._deliver(group, group.receive([copy.descriptor for copy in copies], self._holdings.date_us))
        for copy in copies if group.pending else ():
            if copy.id in group.pending and copy.id not in self._waiting.copies:
                self._hold(group, copy)

    def expire(self, now: int) -> None:
        """Pass on messages that waited for others that are dead by now."""
        date_us = self._holdings.date_of(now)
        for group in list(self._groups.values()):
            if group.due_us <= date_us:
                self._deliver(group, group.expire(date_us))
        if self._reopen_us <= now:
            self._reopen_us, self._reopened_us = NEVER, now
            # That the turn of something has come is a guess: asked for at once, all of it would come every few seconds.
            self._cache.reopen(ORDER, at_once=False)
        dues_us = min([group.due_us for group in self._groups.values()], default=NEVER)
        self.due_us = min(self._reopen_us, self._holdings.own_time(dues_us))

    def left(self, copies: Sequence[Copy], reason: Reason | None) -> None:  # noqa: ARG002 - whatever the reason is
        """Drop waiting copies that left the cache, or are not wanted any more."""
        waited = [copy for copy in copies if copy.id in self._waiting.copies] if self._waiting.copies else ()
        for copy in waited:
            group = self._groups.get((copy.descriptor.destination, copy.descriptor.ordering))
            if group is not None:
                group.discard(copy.descriptor)
        self._release(waited)

    def registries(self, now: int) -> list[Registry]:
        """Return the sizes of the registries of all groups."""
        groups, date_us = sorted(self._groups.items()), self._holdings.date_of(now)
        return [Registry(group.destination, group.ordering, *group.sizes(date_us)) for _, group in groups]

    def _group(self, destination: str, ordering: Ordering, opener: NodeId) -> Group | None:
        """Return the group, made if there is room for one more, and for one more of this author."""
        group = self._groups.get((destination, ordering))
        if group is None:
            if not self._room_for(opener) and self._holdings.now_us >= self._forgot_us + _FORGET_US:
                self._forget_dead(opener)
            if not self._room_for(opener):
                return None
            group = self._restored(destination, ordering, opener)
        return group

    def _room_for(self, opener: NodeId) -> bool:
        """Return True if one more group may be opened.

        Other authors have a share each, so that none of them takes all places.
        """
        within = opener == self._node or self._opened[opener] < self._opened_max
        return within and len(self._groups) < self._limits.groups_max

    def _forget_dead(self, opener: NodeId) -> None:
        """Forget groups of which nothing is alive, to make room for one of this author.

        A Δ-causal group needs nothing that it knew of the dead. In causal order a message that names one of them is
        delivered as if that one were missing. So causal groups with a subscriber here are forgotten only as far as
        necessary, the one that ended first before others, and none before it is over by every node's clock.
        """
        self._forgot_us, date_us = self._holdings.now_us, self._holdings.date_us
        full = len(self._groups) >= self._limits.groups_max
        spare: list[Group] = []
        for group in list(self._groups.values()):
            group.forget_dead(date_us)
            if group.changed:
                self._touched[group] = None
            causal = group.ordering is Ordering.CAUSAL
            if group in self._stamped or not group.is_over(date_us, margin_us=self._skew_us if causal else 0):
                continue
            # A causal group that no program here subscribes to is not missed; one that is
            # subscribed to is forgotten last.
            if not causal or not self._is_wanted(group):
                self._forget(group)
            elif full or group.opener == opener:
                spare.append(group)
        spare.sort(key=attrgetter("ends_us"))
        for group in spare[: max(1, self._limits.groups_max // _CAUSAL_PART)]:
            if self._room_for(opener):
                break
            self._forget(group)
        if self._cache.memories.turned_away.get(ORDER) and self._room_for(opener):
            self._look_outside(self._forgot_us)

    def _is_wanted(self, group: Group) -> bool:
        """Return True if a program here subscribes to a message of the group that has no attributes."""
        return bool(self._interests.which(_sample(group.destination)))

    def _forget(self, group: Group) -> None:
        del self._groups[group.destination, group.ordering]
        self._count(group, -1)
        self._touched.pop(group, None)
        self._outputs.journal.delete(rows.head_key(group))
        for source in sorted(group.sources):
            self._outputs.journal.delete(rows.source_key(group, source))

    def _count(self, group: Group, more: int) -> None:
        self._opened[group.opener] += more
        if not self._opened[group.opener]:
            del self._opened[group.opener]

    def _hold(self, group: Group, copy: Copy) -> None:
        if not self._waiting.enter(copy):
            self._look_outside(self._holdings.own_time(group.waits_until_us(copy.descriptor)))
            group.discard(copy.descriptor)
            self._holdings.discard(copy, Reason.PENDING, owner=ORDER)

    def _look_outside(self, t_us: int) -> None:
        """Let messages that were turned away come again at this time: they may be due, and others may wait for them."""
        self._reopen_us = min(self._reopen_us, max(t_us, self._reopened_us + _REOPEN_US))
        self.due_us = min(self.due_us, self._reopen_us)

    def _deliver(self, group: Group, delivered: list[Descriptor]) -> None:
        """Pass on the messages that a group delivers, in this order, and report those that died while they waited."""
        self.due_us = min(self.due_us, self._holdings.own_time(group.due_us))
        if group.changed:
            self._touched[group] = None
        expired, lost = group.pop_expired(), group.pop_lost()
        if not delivered and not expired:
            return
        get = self._cache.get
        if self._cache.memories.turned_away.get(ORDER):
            self._look_outside(self._holdings.now_us)
        copies = [copy for each in delivered if (copy := get(each.id)) is not None and copy.here]
        for copy in copies if lost else ():
            copy.predecessors_lost = lost.get(copy.id, 0)
        if joining := [copy for copy in copies if copy.descriptor.joins]:
            self._cache.mark_done(joining)
        self._release(copies)
        # A copy that gives way before programs have it takes its delivery back, and what follows it
        # in its order would be delivered nevertheless.
        self._cache.pin(copies, DELIVERED_IN_ORDER)
        self._delivered += copies
        self._passing += copies
        if expired:
            self._outputs.expire(expired)
            late = [copy for each in expired if (copy := get(each.id)) is not None]
            self._release(late)
            self._cache.mark_done(late)

    def _release(self, copies: Sequence[Copy]) -> None:
        """Stop waiting for these copies, and reopen what was turned away if there is room again."""
        left = [copy for copy in copies if self._waiting.leave(copy)] if self._waiting.copies else ()
        if left and self._cache.memories.turned_away.get(ORDER) and self._waiting.plenty:
            self._cache.reopen(ORDER, at_once=False)

    # --- the store -----------------------------------------------------------------------------------------

    def rows(self) -> dict[Key, Value | None]:
        """Return the rows that changed since the last batch."""
        if self._delivered:  # These may give way once the batch that reports them is durable.
            self._outputs.journal.when_durable(self._cache.unpin, self._delivered, DELIVERED_IN_ORDER)
            self._delivered = []
        if not self._touched:
            return {}
        changed: dict[Key, Value | None] = {}
        for group in self._touched:
            sources = group.mark()
            if sources is None:
                continue
            changed[rows.head_key(group)] = rows.head_row(group)
            for source in sources:
                last = group.last(source)
                changed[rows.source_key(group, source)] = None if last is None else rows.source_row(source, last)
        self._touched = {}
        return changed

    def restore(self, state: Iterable[tuple[Key, Value]]) -> None:
        """Restore the groups after a restart."""
        for key, value in state:
            if isinstance(value, bytes):
                rows.load(self._restored, key, value)
        self._opened = Counter(group.opener for group in self._groups.values())

    def _restored(self, destination: str, ordering: Ordering, opener: str = "") -> Group:
        group = self._groups.get((destination, ordering))
        if group is None:
            group = self._groups[destination, ordering] = Group(
                destination,
                ordering,
                self._node,
                opener,
                ahead_us_max=self._skew_us // 2,
                entries_max=self._entries_max,
            )
            self._count(group, 1)
        return group


def _sample(destination: str) -> Descriptor:
    """Return a message to a destination, which can be matched against subscriptions."""
    return Descriptor("", 0, 0, 0, None, destination, 0, 0, PayloadCodec.BLANK, b"", 1)


_FINISHED: Final = attrgetter("finished")
_ORDERING: Final = attrgetter("descriptor.ordering")
_group_of = attrgetter("descriptor.destination", "descriptor.ordering")


class _Room:
    """The copies that wait, within their bounds."""

    def __init__(self, context: HostContext) -> None:
        limits, settings = context.limits, context.settings
        self._cache = context.holdings.cache
        self.copies: dict[MessageId, Copy] = {}
        self._all = Usage()
        self._by_author: dict[str | bytes, Usage] = {}
        self._messages_max = min(limits.pending_max, max(1, settings.cache_messages_max // _PENDING_PART))
        self._bytes_max = min(limits.pending_bytes_max, settings.cache_bytes_max // _PENDING_PART)
        self._share = limits.share_author

    def enter(self, copy: Copy) -> bool:
        """Pin a copy that has to wait, if that is within the bounds. One message alone is never too much."""
        nbytes, author = copy.descriptor.length, copy.descriptor.author
        mine = self._by_author.get(author) or Usage()
        if not (self._fits(self._all, nbytes, 1.0) and self._fits(mine, nbytes, self._share)):
            return False
        self._by_author[author] = mine
        for usage in (self._all, mine):
            usage.add(1, nbytes)
        self.copies[copy.id] = copy
        self._cache.pin((copy,), ORDER)
        return True

    @property
    def plenty(self) -> bool:
        """True if at most three quarters of the room for waiting messages are used."""
        return self._all.messages * 4 <= self._messages_max * 3 and self._all.bytes * 4 <= self._bytes_max * 3

    def leave(self, copy: Copy) -> bool:
        """Stop waiting with a copy; return False if it did not wait."""
        if self.copies.pop(copy.id, None) is None:
            return False
        self._cache.unpin((copy,), ORDER)
        author = copy.descriptor.author
        mine = self._by_author[author]
        for usage in (self._all, mine):
            usage.add(-1, -copy.descriptor.length)
        if not mine.messages:
            del self._by_author[author]
        return True

    def _fits(self, usage: Usage, nbytes: int, part: float) -> bool:
        return not usage.messages or (
            usage.messages + 1 <= self._messages_max * part and usage.bytes + nbytes <= self._bytes_max * part
        )
