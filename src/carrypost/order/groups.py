"""All order groups of one host, between its cache and its applications.

A group is made of the messages with one destination and one ordering. Copies that have to wait stay in the cache, where
they are pinned, within a bound for all and one for each author: what a forged barrier makes wait for ever costs its
author's share, and no more. What exceeds it is dropped, and may come again.

The registries go to the store in the same batch as the deliveries that changed them, a row for each source and one for
each group. Until that batch is durable no delivery is handed over and no message leaves; so where it is lost, the
groups are set back to what they were, and what was delivered since is delivered again, or published not at all.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from carrypost.errors import OrderError
from carrypost.events import Expired, Reason
from carrypost.gossip.holdings.copies import Usage
from carrypost.model.descriptor import ENDLESS_US, Descriptor, Ordering, Predecessor
from carrypost.order import rows
from carrypost.order.causal import Group, Undo

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from carrypost.gossip.desk import Desk
    from carrypost.gossip.holdings.copies import Copy
    from carrypost.journal import Key
    from carrypost.local.deliveries import Deliveries

_PENDING_PART = 2
"""At most one in so many of the cache's messages, and of its bytes, may wait."""
_REOPEN_US = 10_000_000
"""What was turned away because what it waits for is delivered, or dead, may come again at most so often."""
_FORGET_US = 1_000_000
"""Groups of which nothing is alive are looked for at most so often."""


class Registry(NamedTuple):
    """How much one group remembers."""

    destination: str
    ordering: Ordering
    c_barrier: int
    co_delivered: int
    pending: int


class Order:
    """The groups of one host."""

    def __init__(self, desk: Desk, deliveries: Deliveries) -> None:
        self._desk = desk
        self._deliveries = deliveries
        self._groups: dict[tuple[str, Ordering], Group] = {}
        self._waiting = _Room(desk)
        self._touched: dict[Group, None] = {}
        """Groups with changes that no batch has."""
        self._open: dict[int, list[tuple[Group, Undo]]] = {}
        """Changes in batches that are not durable."""
        self._expired: list[Descriptor] = []
        self._turned_away: list[Copy] = []
        self._reopen_us, self._reopened_us = ENDLESS_US, -_REOPEN_US
        self._forgot_us = -_FORGET_US
        self.due_us = ENDLESS_US
        """Not after the next death of something that is waited for."""

    # --- publication ---------------------------------------------------------------------------------------

    def prepare(self, destination: str, ordering: Ordering, now: int) -> tuple[int, tuple[Predecessor, ...]]:
        """The date and the barrier of a message that is to be published."""
        group = self._group(destination, ordering)
        if group is None:
            raise OrderError(f"there are {len(self._groups):,} order groups already (limits.groups_max)")
        barrier = group.barrier(now, signed=self._desk.identity.signed)
        if len(barrier) > self._desk.limits.barrier_entries_max:
            raise OrderError(
                f"the message would depend on {len(barrier):,} others directly, more than "
                f"{self._desk.limits.barrier_entries_max:,} (limits.barrier_entries_max); later there may be fewer"
            )
        return group.stamp(now), barrier

    def published(self, copy: Copy, now: int) -> None:
        """An own message: delivered here at once."""
        group = self._group(copy.descriptor.destination, copy.descriptor.ordering)
        assert group is not None
        self._hand_over(group, group.published(copy.descriptor, now))

    # --- reception -----------------------------------------------------------------------------------------

    def take(self, copies: Sequence[Copy]) -> None:
        """Whole messages that are wanted here: deliver them and what waited for them, or let them wait."""
        for (destination, ordering), some in groupby(copies, _group_of):
            found, group = list(some), self._group(destination, ordering)
            if group is None:
                self._turned_away += found
                continue
            self._hand_over(group, group.receive_all([copy.descriptor for copy in found], self._desk.now_us))
            for copy in found if group.pending else ():
                if copy.id in group.pending and copy.id not in self._desk.pending:
                    self._let_wait(group, copy)

    def expire(self, now: int) -> None:
        """Deliver what waited for messages that are dead by now."""
        for group in list(self._groups.values()):
            if group.due_us <= now:
                self._hand_over(group, group.expire(now))
        self._deliveries.flush()  # Not every step that begins like this has an end.
        self.tell()
        if self._reopen_us <= now:
            self._reopen_us, self._reopened_us = ENDLESS_US, now
            self._desk.cache.reopen()
        self.due_us = min([self._reopen_us, *[group.due_us for group in self._groups.values()]])

    def left(self, copy: Copy) -> None:
        """A copy that waited left the cache, or is wanted no more."""
        if copy.id in self._desk.pending:
            self._release(copy)
            group = self._groups.get((copy.descriptor.destination, copy.descriptor.ordering))
            if group is not None:
                group.discard(copy.descriptor)

    def tell(self) -> None:
        """Tell of what will never be delivered: after its reception, and before it is dropped."""
        if self._expired:
            self._desk.events.append(Expired(tuple(self._expired)))
            self._expired = []

    def settle(self) -> None:
        """The end of a step: drop what may not wait here."""
        self.tell()
        turned_away, self._turned_away = self._turned_away, []
        for copy in turned_away:
            if copy.here:
                self._desk.discard(copy, Reason.PENDING)

    @property
    def unsettled(self) -> bool:
        """Whether `settle` has something to do."""
        return bool(self._expired or self._turned_away)

    def registries(self, now: int) -> list[Registry]:
        """The sizes of all registries."""
        return [
            Registry(group.destination, group.ordering, *group.sizes(now)) for _, group in sorted(self._groups.items())
        ]

    def _group(self, destination: str, ordering: Ordering) -> Group | None:
        """The group, made if there is room for one more."""
        key = (destination, ordering)
        group = self._groups.get(key)
        if group is None:
            if len(self._groups) >= self._desk.limits.groups_max and self._desk.now_us >= self._forgot_us + _FORGET_US:
                self._forget_idle()
            if len(self._groups) >= self._desk.limits.groups_max:
                return None
            group = self._restored(destination, ordering)
        return group

    def _forget_idle(self) -> None:
        """Forget the groups of which nothing is alive, by the clock of anybody, and nothing may be taken back."""
        now = self._forgot_us = self._desk.now_us
        busy = {group for changes in self._open.values() for group, _ in changes}
        for key, group in list(self._groups.items()):
            group.forget_dead(now)
            if group.undo is not None:
                self._touched[group] = None
            if group.idle and group.clock_us <= now and group not in busy:
                del self._groups[key]
                self._touched.pop(group, None)
                self._desk.journal.delete(rows.head_key(group))
                for source in group.undo.co_delivered if group.undo else ():
                    self._desk.journal.delete(rows.source_key(group, source))

    def _let_wait(self, group: Group, copy: Copy) -> None:
        if not self._waiting.enter(copy):
            self._look_outside(group.waits_until_us(copy.descriptor))
            group.discard(copy.descriptor)
            self._turned_away.append(copy)

    def _look_outside(self, t_us: int) -> None:
        """What was turned away may come again then: it may be its turn, and others may wait here for it."""
        self._reopen_us = min(self._reopen_us, max(t_us, self._reopened_us + _REOPEN_US))
        self.due_us = min(self.due_us, self._reopen_us)

    def _hand_over(self, group: Group, delivered: list[Descriptor]) -> None:
        """Give the application what a group delivers, in this order."""
        if group.due_us < self.due_us:
            self.due_us = group.due_us
        if group.undo is not None:
            self._touched[group] = None
        desk = self._desk
        get, pending = desk.cache.get, desk.pending
        if not delivered and not group.has_expired:
            return
        if desk.cache.turned_away:
            self._look_outside(desk.now_us)
        copies = [copy for each in delivered if (copy := get(each.id)) is not None and copy.here]
        waited = [copy for copy in copies if copy.id in pending] if pending else []
        for copy in waited:
            self._release(copy)
        self._deliveries.hand_over(copies)
        for copy in waited:
            desk.keep(copy, again=True)
        for each in group.take_expired():
            self._expired.append(each)
            late = get(each.id)
            if late is not None:
                self._release(late)
                late.finished = True

    def _release(self, copy: Copy) -> None:
        if self._waiting.leave(copy):
            self._desk.cache.unpin(copy)
            if self._desk.cache.turned_away and self._waiting.plenty:
                self._desk.cache.reopen()

    # --- the store -----------------------------------------------------------------------------------------

    def write(self) -> list[tuple[Group, Undo]]:
        """Put what changed into the batch that is being made; to be told to `written`."""
        put, delete = self._desk.journal.put, self._desk.journal.delete
        found: list[tuple[Group, Undo]] = []
        for group in self._touched:
            undo = group.mark()
            if undo is None:
                continue
            found.append((group, undo))
            put(rows.head_key(group), rows.head_row(group))
            for source in undo.co_delivered:
                last = group.last(source)
                if last is None:
                    delete(rows.source_key(group, source))
                else:
                    put(rows.source_key(group, source), rows.source_row(source, last))
        self._touched = {}
        return found

    def write_again(self) -> None:
        """What was taken back is to be written, be there a batch for something else or not."""
        for group in self._touched:
            self._desk.journal.put(rows.head_key(group), rows.head_row(group))

    def written(self, serial: int, changes: list[tuple[Group, Undo]]) -> None:
        """They are in this batch."""
        self._open[serial] = changes

    def durable(self, serial: int) -> None:
        """A batch is on disk."""
        if self._open:
            self._open.pop(serial, None)

    def lost(self, serial: int) -> list[Descriptor]:
        """A batch could not be written: what was delivered or published by it, or since, is taken back."""
        undos: dict[Group, list[Undo]] = {}
        for each in sorted((each for each in self._open if each >= serial), reverse=True):
            for group, undo in self._open.pop(each):
                undos.setdefault(group, []).append(undo)
        taken_back: list[Descriptor] = []
        for group, found in undos.items():
            latest = group.mark()
            taken_back += group.take_back(found if latest is None else [latest, *found])
            self._touched[group] = None
            self.due_us = min(self.due_us, group.due_us)
        return taken_back

    def restore(self, state: Iterable[tuple[Key, bytes]]) -> None:
        """What an earlier life knew."""
        for key, value in state:
            rows.load(self._restored, key, value)

    def _restored(self, destination: str, ordering: Ordering) -> Group:
        group = self._groups.get((destination, ordering))
        if group is None:
            group = self._groups[destination, ordering] = Group(destination, ordering, self._desk.node)
        return group


def _group_of(copy: Copy) -> tuple[str, Ordering]:
    return copy.descriptor.destination, copy.descriptor.ordering


class _Room:
    """The copies that wait, within their bounds."""

    def __init__(self, desk: Desk) -> None:
        limits, settings = desk.limits, desk.settings
        self._desk = desk
        self._all = Usage()
        self._by_author: dict[str | bytes, Usage] = {}
        self._messages_max = min(limits.pending_max, max(1, settings.cache_messages_max // _PENDING_PART))
        self._bytes_max = min(limits.pending_bytes_max, settings.cache_bytes_max // _PENDING_PART)
        self._share = limits.share_author

    def enter(self, copy: Copy) -> bool:
        """Let a copy wait, pinned, if that is within the bounds. One message alone is never too much."""
        nbytes, author = copy.descriptor.length, copy.descriptor.author
        mine = self._by_author.get(author) or Usage()
        if not (self._fits(self._all, nbytes, 1.0) and self._fits(mine, nbytes, self._share)):
            return False
        self._by_author[author] = mine
        for usage in (self._all, mine):
            usage.messages += 1
            usage.bytes += nbytes
        self._desk.pending[copy.id] = copy
        self._desk.cache.pin(copy)
        return True

    @property
    def plenty(self) -> bool:
        """Whether at most three quarters of what may wait does."""
        return self._all.messages * 4 <= self._messages_max * 3 and self._all.bytes * 4 <= self._bytes_max * 3

    def leave(self, copy: Copy) -> bool:
        """A copy waits no more; False if it did not."""
        if self._desk.pending.pop(copy.id, None) is None:
            return False
        author = copy.descriptor.author
        mine = self._by_author[author]
        for usage in (self._all, mine):
            usage.messages -= 1
            usage.bytes -= copy.descriptor.length
        if not mine.messages:
            del self._by_author[author]
        return True

    def _fits(self, usage: Usage, nbytes: int, part: float) -> bool:
        return not usage.messages or (
            usage.messages + 1 <= self._messages_max * part and usage.bytes + nbytes <= self._bytes_max * part
        )
