"""Order groups on their own: hosts that consist of a `Group`, an application and a clock, and no network."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping

from tests.support.happens_before import History

from carrypost.application.publishing import Stamp
from carrypost.model.descriptor import Descriptor, Ordering, PayloadCodec, Predecessor
from carrypost.model.headers import Headers
from carrypost.model.ids import NodeId
from carrypost.model.times import NEVER
from carrypost.order.causal import Group, Last
from carrypost.order.groups import Stamping

DESTINATION = "forum"
SECOND_US = 1_000_000
AHEAD_US = 5 * SECOND_US
"""Dates may always be ahead of the local clock by this time."""


def described(
    author: str,
    sequence: int,
    *,
    created_us: int = 0,
    deadline_us: int | None = None,
    ordering: Ordering = Ordering.DELTA_CAUSAL,
    barrier: tuple[Predecessor, ...] = (),
    incarnation: int = 1,
    label: str = "",
    joins: bool = False,
) -> Descriptor:
    """Return a message of the group."""
    return Descriptor(
        author,
        incarnation,
        sequence,
        created_us,
        deadline_us,
        DESTINATION,
        0,
        0,
        PayloadCodec.BLANK,
        b"",
        1024,
        label=label,
        ordering=ordering,
        barrier=barrier,
        headers=Headers(joins=True) if joins else None,
    )


def named(descriptor: Descriptor) -> Predecessor:
    """Return the entry that stands for a message in a barrier."""
    return Predecessor(descriptor.source, descriptor.incarnation, descriptor.sequence, descriptor.deadline_us)


class GroupHost:
    """One host, whose clock never goes back: after a backward step it stops until the time has caught up.

    Events become part of the history. Published messages can be received by others once they are stored: at once if
    `prompt`, else by `store`. Messages that were not stored are lost by `restart`.
    """

    def __init__(
        self,
        name: str,
        ordering: Ordering,
        history: History,
        *,
        ahead_us: int = 0,
        prompt: bool = True,
        entries_max: int = NEVER,
    ) -> None:
        self.name = name
        self.ordering = ordering
        self.history = history
        self.ahead_us = ahead_us
        self.prompt = prompt
        self.entries_max = entries_max
        self.now = 0
        self.group = self._new_group()
        self.copies: dict[str, Descriptor] = {}
        """Received from others, and still in the cache."""
        self.waiting: dict[str, Descriptor] = {}
        """Messages that were neither delivered nor given up."""
        self.published: dict[str, Descriptor] = {}
        self.expired: set[str] = set()
        self.answers: dict[str, tuple[str, int | None]] = {}
        """Answers that the application broadcasts, with their lifetimes, as soon as it gets a certain message."""
        self.log: list[tuple[str, Descriptor]] = []
        """Changes that are not stored yet."""
        self._told: set[str] = set()  # expired, and not received again since
        self._dated_us = self._dated_stored_us = 0  # the latest date of what was delivered; and as it is stored
        self._incarnation = 1
        self._sequence = 0
        self._head = self.group.head
        self._last: dict[NodeId, Last] = {}

    @property
    def clock_us(self) -> int:
        """The clock by which messages of the group expire here."""
        return max(self.now, self.group.clock_us)

    def alive(self, descriptor: Descriptor) -> bool:
        """Return True if a message is alive by the clock of the group."""
        return descriptor.alive(self.clock_us)

    def reach(self, true_us: int) -> None:
        """Let time pass: timers run when they are due, and the cache drops dead messages."""
        now = max(self.now, true_us + self.ahead_us)
        while (stop := self._next_us()) <= now:
            self.now = max(self.now, stop)
            self.expire()
            for name in [name for name, each in self.copies.items() if not each.alive(self.now)]:
                self.evict(name)
            assert self._next_us() > self.now, "a timer that rang is set for later, or off"
        self.now = now

    def expire(self) -> None:
        """The timer of the group rings."""
        self._settle(self.group.expire(self.now))

    def publish(self, name: str, lifetime_us: int | None) -> Descriptor:
        """Broadcast a message as the application, after messages that join its predecessors if there are too many."""
        joined, stamping = 0, self._stamping()
        while (stamp := stamping.stamp(DESTINATION, self.ordering)).until_us:
            joined += 1
            descriptor = self._described(f"{name}: {joined}", stamp, stamp.until_us)
            stamping.add(descriptor)
            self._settle(self._broadcast(descriptor))
        ends_us = NEVER if lifetime_us is None else stamp.created_us + lifetime_us
        descriptor = self._described(name, stamp, ends_us)
        self._settle(self._broadcast(descriptor))
        return descriptor

    def receive(self, descriptor: Descriptor) -> None:
        """A copy comes into the cache, for the first time or again."""
        name = descriptor.label
        self.copies[name] = descriptor
        self._told.discard(name)
        if not descriptor.joins and name not in self.expired and not self.delivered(name):
            self.waiting[name] = descriptor
        self._settle(self.group.receive((descriptor,), self.now))

    def evict(self, name: str) -> None:
        """Evict a copy from the cache, and inform the group if it was not delivered."""
        descriptor = self.copies.pop(name, None)
        self.waiting.pop(name, None)
        if descriptor is not None and (descriptor.joins or not self.delivered(name)):
            self.group.discard(descriptor)

    def delivered(self, name: str) -> bool:
        """Return True if it was delivered here, stored or not."""
        return self.history.delivered(self.name, name) or any(
            kind == "deliver" and each.label == name for kind, each in self.log
        )

    def store(self) -> None:
        """Store all changes."""
        changes = self.group.mark()
        if changes is not None:
            self._head = self.group.head
            for source in changes:
                last = self.group.last(source)
                if last is None:
                    self._last.pop(source, None)
                else:
                    self._last[source] = last
        self._dated_stored_us = self._dated_us
        for kind, each in self.log:
            if kind == "publish":
                if not each.joins:
                    self.history.publish(self.name, each.label)
                self.published[each.label] = each
            elif kind == "deliver":
                if each.label in self.expired:
                    self.history.faults.append("delivered after it expired")
                self.history.deliver(self.name, each.label)
            else:
                if self.history.delivered(self.name, each.label):
                    self.history.faults.append("expired after it was delivered")
                self.expired.add(each.label)
        self.log.clear()

    def restart(self) -> None:
        """Restart: a new group restores the store of the old one, and receives the copies in the cache."""
        self._incarnation, self._sequence = self._incarnation + 1, 0
        self.group = self._new_group()
        clock_us, newest_us, barrier = self._head
        self.group.load(clock_us, newest_us, tuple(barrier))
        for source, last in self._last.items():
            self.group.load_last(source, last)
        self.log.clear()
        self._dated_us = self._dated_stored_us
        self.waiting.clear()
        for each in list(self.copies.values()):
            if each.joins or (not self.delivered(each.label) and each.label not in self.expired):
                self.receive(each)

    def forget(self) -> bool:
        """Replace this group by a new one, if that cannot break any order."""
        if self.log or not self.group.is_over(self.now):
            return False
        self.group = self._new_group()
        self._head, self._last = self.group.head, {}
        return True

    def stuck(self, messages: Mapping[str, Descriptor]) -> list[str]:
        """Return live messages that wait here for nothing: neither for predecessors nor for their dates."""
        return [
            name
            for name, each in self.waiting.items()
            if self.alive(each) and not self.early(each) and not self.awaited(name, messages)
        ]

    def early(self, descriptor: Descriptor) -> bool:
        """Return True if a message may wait because its date is ahead of the local clock."""
        return descriptor.created_us > self.now + AHEAD_US

    def awaited(self, name: str, messages: Mapping[str, Descriptor]) -> list[str]:
        """Return the messages that one may wait for: live predecessors that are not delivered, or that join such."""
        missing = self.history.missing(self.name, name)
        barrier = set(messages[name].barrier)
        for label, each in messages.items():
            last = self.group.last(each.source)
            if each.joins and named(each) in barrier and (last is None or last.tag < each.tag):
                missing.append(label)
        return [each for each in missing if self.alive(messages[each])]

    def _new_group(self) -> Group:
        return Group(DESTINATION, self.ordering, me=NodeId(self.name), entries_max=self.entries_max)

    def _stamping(self) -> Stamping:
        return Stamping(lambda *_: self.group, self.now, signed=False, entries_max=self.entries_max)

    def _described(self, name: str, stamp: Stamp, ends_us: int) -> Descriptor:
        assert len(stamp.barrier) <= self.entries_max
        self._sequence += 1
        return described(
            self.name,
            self._sequence,
            created_us=stamp.created_us,
            deadline_us=None if ends_us == NEVER else ends_us,
            ordering=self.ordering,
            barrier=stamp.barrier,
            incarnation=self._incarnation,
            label=name,
            joins=bool(stamp.until_us),
        )

    def _broadcast(self, descriptor: Descriptor) -> list[Descriptor]:
        self.log.append(("publish", descriptor))
        delivered = self.group.published(descriptor, self.now)
        assert delivered[:1] == [descriptor], "a host delivers its own broadcast at once"
        return delivered

    def _next_us(self) -> int:
        deadlines = (each.deadline_us for each in self.copies.values() if each.deadline_us is not None)
        return min([self.group.due_us, *deadlines])

    def _settle(self, delivered: Iterable[Descriptor]) -> None:
        """Hand deliveries to the application, which may broadcast in each; then see what will never come."""
        queue = deque(delivered)
        while queue:
            descriptor = queue.popleft()
            if not descriptor.alive(max(self.now, self._dated_us)):
                self.history.faults.append("delivered dead")
            self._dated_us = max(self._dated_us, descriptor.created_us)
            self.waiting.pop(descriptor.label, None)
            if descriptor.joins:
                continue
            self.log.append(("deliver", descriptor))
            if descriptor.label in self.answers:
                name, lifetime_us = self.answers.pop(descriptor.label)
                stamp = self._stamping().stamp(DESTINATION, self.ordering)
                ends_us = NEVER if lifetime_us is None else stamp.created_us + lifetime_us
                queue.extend(self._broadcast(self._described(name, stamp, ends_us)))
        for each in self.group.pop_expired():
            if each.joins:
                continue
            if each.label in self._told:
                self.history.faults.append("expired twice")
            self._told.add(each.label)
            self.waiting.pop(each.label, None)
            self.log.append(("expire", each))
        if self.prompt:
            self.store()
