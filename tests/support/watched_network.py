"""A network of hosts beside an independent account of it, for the tests that search for rare faults.

`Watched` drives `testing.network` and checks, at every event that a host emits, what must always hold. Only published
messages are received and delivered, unchanged and before their deadline. Nothing is delivered twice in one life of a
host, nor ever after it was confirmed. Redeliveries after a crash are flagged. Nothing leaves without a reason. Ids are
never used twice. `Published` is emitted once, before any other event of its message. The account uses only the public
interface.

Every message carries its number as attribute `n`, so that it is known even if a crash kept `publish` from returning.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from itertools import permutations
from typing import Any, NamedTuple

from tests.support import timers

from carrypost import testing
from carrypost.emu.engine.driver import MemoryStore
from carrypost.errors import StateError
from carrypost.log import events
from carrypost.log.events import Reason
from carrypost.log.journal import Batch
from carrypost.model.descriptor import Descriptor
from carrypost.model.ids import MessageId

Pattern = str | dict[str, str]
US = 1_000_000
SETTLED_S = 300.0
"""Time with good contacts after which everything must have arrived: several reviews fit into it."""
QUIET_S = 90.0
QUIET_FRAMES = {"Announce", "Profile", "ProfileRequest", "Digest"}
OFFER_FRAMES = QUIET_FRAMES | {"Offer", "Request"}
FAULTS = {
    "security-level", "digest", "digest-root", "id", "forgery", "signature", "fragment", "hash-list", "message-size",
    "descriptor-size", "profile-digest", "parts", "deadline",
}  # fmt: skip
"""Reasons for which honest hosts never refuse each other's frames, however bad the links are."""


class CrashError(Exception):
    """The power fails while a batch is being written."""

    def __init__(self, node: str) -> None:
        super().__init__(node)
        self.node = node


class FaultyStore(MemoryStore):
    """A store that counts its batches, and takes its node down at a chosen one."""

    def __init__(self, node: str) -> None:
        super().__init__()
        self.node = node
        self.batches = 0
        self.fuse = -1
        """Number of batches until the crash; below 0: no crash."""
        self.after = False
        """The crash comes right after that batch became durable, instead of right before."""

    def write(self, batch: Batch) -> None:
        """The disk takes a batch and has written it."""
        self.accept(batch)
        self.commit(batch.serial)

    def commit(self, serial: int) -> None:
        """The disk has written a batch."""
        self.batches += 1
        self.fuse -= self.fuse >= 0
        if self.fuse == 0 and not self.after:
            self._blow()
        super().commit(serial)
        if self.fuse == 0:
            self._blow()

    def _blow(self) -> None:
        self.fuse = -1
        raise CrashError(self.node)


@dataclass(frozen=True, kw_only=True)
class Config:
    """The options of one run's network."""

    names: str = "abc"
    seed: int = 0
    security: str = "off"
    encoded: bool = False
    paper_mode: bool = False
    altruistic: bool = False
    horizon_hops: int = 1
    confirm: bool = True
    disk_delay_s: float = 0.0
    cache_messages_max: int = 20_000
    cache_bytes_max: int = 256 * 1024 * 1024

    @property
    def roomy(self) -> bool:
        """True if nothing ever has to be evicted."""
        return self.cache_messages_max > 1000

    def network(self, record: testing.Record) -> testing.Network:
        """Return a network like that, not open yet, on faulty disks."""
        options = asdict(self)
        net = testing.network(*options.pop("names"), record=record, **options)
        for name in self.names:
            net._driver(name).disk.store = FaultyStore(name)  # noqa: SLF001 - there is no other way to make a disk faulty
        return net


@dataclass
class Message:
    """A published message, and its fate at its author."""

    author: str
    destination: str
    payload: bytes
    language: str
    persistent: bool
    t_us: int
    deadline_us: int | None
    life: int
    """Life of its author."""
    id: MessageId | None = None
    published: bool = False
    """True if its author's host reported it."""
    seen: bool = False
    """True if an event reported it: before that it may vanish in a crash without a trace, its id included."""
    stored: bool = False
    failed: bool = False
    sure: bool = True
    """True if its author has it, and will have it after a crash if `durable_us` is over by then."""
    durable_us: int = 0

    def alive(self, now_us: int) -> bool:
        return self.deadline_us is None or now_us < self.deadline_us


@dataclass
class Node:
    """The knowledge of one node from outside."""

    life: int = 1
    state: str = "up"
    full: bool = False
    was_full: bool = False
    subscriptions: dict[int, Pattern] = field(default_factory=dict)
    numbers: int = 0
    wanted: list[Pattern] = field(default_factory=list)
    """Everything subscribed to in this life: an ended subscription may still get messages that were on their way."""
    held: dict[int, int] = field(default_factory=dict)
    """Bytes of the messages that became whole here in this life and have not left."""
    delivered: dict[int, int] = field(default_factory=dict)
    """The life in which each message was last delivered."""
    confirming: set[int] = field(default_factory=set)
    confirmed: set[int] = field(default_factory=set)


def matches(pattern: Pattern, message: Message) -> bool:
    """Return True if a subscription matches this message, by Python's own regular expressions."""
    patterns = {"destination": pattern} if isinstance(pattern, str) else pattern
    values = {"destination": message.destination, "language": message.language}
    return all(re.fullmatch(each, values[name]) for name, each in patterns.items())


class Step(NamedTuple):
    """A step of the network, by the name of a method of `Watched`."""

    name: str
    arguments: tuple[Any, ...] = ()
    keywords: dict[str, Any] = {}  # noqa: RUF012 - nobody changes it


class Watched:
    """A network and the account of it."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.record = testing.Record("run")
        self.net = config.network(self.record)
        self.messages: dict[int, Message] = {}
        self.ids: dict[MessageId, int] = {}
        self.nodes = {name: Node() for name in config.names}
        self.script: list[Step] = []
        self._stack = ExitStack()
        self._stack.enter_context(timers.checked())
        self.net.watch(self._take)
        self._safely(lambda: self._stack.enter_context(self.net))

    def close(self) -> None:
        """No more questions."""
        self._stack.close()

    def play(self, name: str, *arguments: object, **keywords: object) -> None:
        """One step by name, noted so that it can be played again."""
        self.script.append(Step(name, arguments, keywords))
        getattr(self, name)(*arguments, **keywords)

    def store(self, node: str) -> FaultyStore:
        """Return the disk of a node."""
        store = self.net._driver(node).store  # noqa: SLF001 - as above
        assert isinstance(store, FaultyStore)
        return store

    @property
    def now_us(self) -> int:
        """The instant."""
        return round(self.net.now * US)

    def up(self) -> list[str]:
        """Nodes that take commands."""
        return [name for name, node in self.nodes.items() if node.state == "up"]

    def _safely(self, step: Callable[[], object]) -> bool:
        """Do something during which a disk may take its node down; whether it was done."""
        try:
            step()
        except CrashError as crash:
            self._killed(crash.node)
            return False
        return True

    # --- steps ---------------------------------------------------------------------------------------------

    def publish(
        self, node: str, destination: str, size: int, *, language: str = "en", persistent: bool = False,
        lifetime_s: float | None = None, priority: int = 4, label: bool = False,
    ) -> None:  # fmt: skip
        """Publish a message of this many random bytes."""
        n = len(self.messages)
        payload = random.Random(f"{self.config.seed} {n}").randbytes(size)
        now = self.now_us
        deadline_us = None if lifetime_s is None else now + round(lifetime_s * US)
        message = Message(node, destination, payload, language, persistent, now, deadline_us, self.nodes[node].life)
        message.durable_us = now + round(self.config.disk_delay_s * US)
        message.sure = True
        self.messages[n] = message

        def send() -> None:
            found = self.net.publish(
                node, destination, payload, attributes={"n": n, "language": language}, lifetime_s=lifetime_s,
                label=f"m{n}" if label else None, persistent=persistent, priority=priority,
            )  # fmt: skip
            self._identify(n, found)

        try:
            if not self._safely(send):
                message.sure = False
        except StateError as error:
            assert "is full" in str(error)  # noqa: PT017 - the only reason not to take a message
            assert self.nodes[node].full or not self.config.roomy
            message.sure, message.failed = False, True

    def subscribe(self, node: str, pattern: Pattern) -> None:
        """Want something."""
        known = self.nodes[node]
        known.wanted.append(pattern)
        known.numbers += 1
        known.subscriptions[known.numbers] = pattern  # A crash on the way does not undo it: it is made again.
        self._safely(lambda: self.net.subscribe(node, pattern))

    def unsubscribe(self, node: str, which: int) -> None:
        """Want it no longer."""
        known = self.nodes[node]
        number = sorted(known.subscriptions)[which]
        del known.subscriptions[number]
        self._safely(lambda: self.net.unsubscribe(node, number))

    def confirm(self, node: str, numbers: Iterable[int]) -> None:
        """The application has these."""
        found = [(n, self.messages[n].id) for n in numbers]
        self.nodes[node].confirming.update(n for n, _ in found)
        self._safely(lambda: self.net.confirm(node, [each for _, each in found if each is not None]))

    def link(
        self, a: str, b: str, *, one_way: bool = False, loss: float = 0.0, duplicate: float = 0.0, reorder: float = 0.0
    ) -> None:
        """Begin a contact, or change its link."""
        self.unlink(a, b)
        self.net.link(a, b, one_way=one_way, loss=loss, duplicate=duplicate, reorder=reorder)

    def unlink(self, a: str, b: str) -> None:
        """A contact ends."""
        if self.net.linked(a, b) or self.net.linked(b, a):
            self.net.unlink(a, b)

    def advance(self, seconds: float) -> None:
        """Time passes."""
        end = self.net.now + seconds
        while not self._safely(lambda: self.net.advance(max(0.0, end - self.net.now))):
            pass

    def kill(self, node: str) -> None:
        """A crash."""
        self._killed(node)

    def arm(self, node: str, fuse: int, after: bool) -> None:
        """A crash at a batch to come."""
        store = self.store(node)
        store.fuse, store.after = fuse, after

    def restart(self, node: str) -> None:
        """Restart a node."""
        known = self.nodes[node]
        known.life += 1
        known.state = "up"
        known.wanted = list(known.subscriptions.values())
        known.held.clear()
        self._safely(lambda: self.net.restart(node))

    def suspend(self, node: str) -> None:
        """Suspend a node."""
        self.nodes[node].state = "suspended"
        self.net.suspend(node)

    def resume(self, node: str) -> None:
        """Resume a node."""
        self.nodes[node].state = "up"
        self._safely(lambda: self.net.resume(node))

    def fill_disk(self, node: str, full: bool) -> None:
        """Fill a node's disk, or empty it."""
        known = self.nodes[node]
        known.full = full
        known.was_full = known.was_full or full
        self.net.fill_disk(node, full=full)

    def heal(self) -> None:
        """Everything is good again."""
        for name, node in self.nodes.items():
            self.store(name).fuse = -1
            self.fill_disk(name, False)
            if node.state == "suspended":
                self.resume(name)
            elif node.state == "down":
                self.restart(name)
        for a, b in permutations(self.config.names, 2):
            if a < b:
                self.link(a, b)

    def _killed(self, node: str) -> None:
        known = self.nodes[node]
        known.state = "down"
        self.store(node).fuse = -1
        now = self.now_us
        for message in self.messages.values():
            if message.author != node:
                continue
            if not (message.persistent and message.stored):
                message.sure = message.sure and message.durable_us < now
            if not message.seen and message.id is not None:
                del self.ids[message.id]
                message.id = None
        self.net.kill(node)

    # --- what hosts tell -----------------------------------------------------------------------------------

    def _take(self, t: float, node: str, event: events.Event) -> None:
        known, now = self.nodes[node], round(t * US)
        match event:
            case events.Published(descriptor):
                self._published(node, descriptor)
            case events.Received(peer, receptions):
                assert self.net.name(peer) in self.nodes
                self._received(node, [reception.descriptor for reception in receptions], now)
            case events.Delivered(deliveries):
                for delivery in self.net.deliveries(node)[-len(deliveries) :] if deliveries else ():
                    self._delivered(known, delivery, now)
            case events.Confirmed(ids):
                numbers = {self.ids[each] for each in ids}
                assert numbers <= known.delivered.keys()
                known.confirmed |= numbers
            case events.Stored(each):
                message = self._sent(each)
                message.seen = message.stored = True
            case events.Dropped(descriptors, reason):
                self._dropped(node, descriptors, reason, now)
            case events.Refused(reason):
                assert reason not in FAULTS, event
            case _:
                pass

    def _published(self, node: str, descriptor: Descriptor) -> None:
        message = self.messages[int(descriptor.attributes["n"])]
        assert node == message.author
        assert not message.published, "a publication is told twice"
        message.published = True
        self._number(descriptor)

    def _sent(self, found: MessageId) -> Message:
        """Return the message that a host reports to its author, even while it is being published."""
        n = self.ids.get(found, len(self.messages) - 1)
        self._identify(n, found)
        assert self.messages[n].published
        return self.messages[n]

    def _number(self, descriptor: Descriptor) -> tuple[int, Message]:
        n = descriptor.attributes["n"]
        assert isinstance(n, int)
        message = self.messages[n]
        assert message.published, "somebody has what nobody published"
        assert self.net.name(descriptor.node) == message.author
        assert (descriptor.destination, descriptor.deadline_us) == (message.destination, message.deadline_us)
        assert (descriptor.attributes["language"], descriptor.persistent) == (message.language, message.persistent)
        self._identify(n, descriptor.id)
        return n, message

    def _identify(self, n: int, found: MessageId) -> None:
        """Ids are unique, crashes or not."""
        before = self.messages[self.ids.setdefault(found, n)]
        message = self.messages[n]
        assert before is message or not before.seen, f"{found!r} is the id of two messages"
        self.ids[found] = n
        assert message.id in (None, found), f"message {n} has two ids"
        message.id = found

    def _received(self, node: str, descriptors: list[Descriptor], now: int) -> None:
        known = self.nodes[node]
        for descriptor in descriptors:
            n, message = self._number(descriptor)
            message.seen = True
            assert message.author != node
            assert message.alive(now)
            assert n not in known.held, f"{node} has message {n} already"
            known.held[n] = descriptor.length
            assert len(known.held) <= self.config.cache_messages_max
            assert sum(known.held.values()) <= self.config.cache_bytes_max

    def _delivered(self, known: Node, delivery: testing.Delivery, now: int) -> None:
        n, message = self._number(delivery.descriptor)
        redelivered = delivery.redelivered
        message.seen = True
        assert delivery.payload == message.payload, f"message {n} was changed"
        assert message.alive(now), f"message {n} is delivered after its deadline"
        assert any(matches(pattern, message) for pattern in known.wanted), f"nobody asked for message {n}"
        assert n not in known.confirmed, f"message {n} is delivered again after its confirmation"
        assert known.delivered.get(n) != known.life, f"message {n} is delivered twice in one life"
        assert redelivered or n not in known.delivered, f"message {n} comes again and does not say so"
        assert not redelivered or known.life > 1
        known.delivered[n] = known.life
        if self.config.confirm:
            known.confirming.add(n)

    def _dropped(self, node: str, descriptors: Iterable[Descriptor], reason: Reason, now: int) -> None:
        known = self.nodes[node]
        for n, message in map(self._number, descriptors):
            known.held.pop(n, None)
            if message.author == node:
                message.sure = False
            assert (reason is Reason.EXPIRED) == (not message.alive(now)), (n, reason)
            if self.config.roomy and not known.was_full:
                assert reason is Reason.EXPIRED, (n, reason)
            assert reason is not Reason.PAYLOAD_GONE

    # --- in the end ----------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Make everything good; then everything wanted arrives, and the hosts fall quiet."""
        self.heal()
        self.advance(SETTLED_S)
        self.check_arrived()
        before = {name: Counter(self.net.sent(name).frames) for name in self.config.names}
        self.advance(QUIET_S)
        for name in self.config.names:
            busy = set(self.net.sent(name).frames - before[name])
            # Whoever has no room for a message is offered it again at the next review, and declines.
            repeated = self.config.paper_mode or not self.config.roomy
            assert busy <= (OFFER_FRAMES if repeated else QUIET_FRAMES), f"{name} does not rest: {sorted(busy)}"
            assert "Announce" in busy

    def check_arrived(self) -> None:
        """Check that every subscriber received the messages that authors have, again if it did not confirm them."""
        now = self.now_us
        for n, message in self.messages.items():
            ended = message.stored or message.failed or message.life < self.nodes[message.author].life
            assert ended, f"whether message {n} was stored or not was never told"
            for name, node in self.nodes.items():
                wanted = any(matches(pattern, message) for pattern in node.subscriptions.values())
                if not wanted or not message.alive(now):
                    continue
                if n in node.delivered:
                    again = node.delivered[n] == node.life or n in node.confirming
                    assert again, f"message {n} was not confirmed by {name} and did not come again"
                elif message.sure and self.config.roomy:
                    raise AssertionError(f"message {n} of {message.author} never came to {name}")
