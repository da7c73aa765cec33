"""A network with queues, and an oracle that knows only what programs sent, received and acknowledged.

`QueueWorld` performs commands on a network of hosts: programs send, consume, acknowledge, commit, start and end; nodes
meet, part, crash at any batch, run out of disk, and evict control messages. At every hand-over it checks that it is
allowed. In a queue that never redelivers: on one node only, and flagged if it was seen before. In a queue with leases:
nowhere else while a lease runs. Never again once an acknowledgement is durable. `settle` repairs everything, lets all
consumers consume, and reports lost messages and leftover rows.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations
from typing import NamedTuple, TypeVar

import msgspec
from tests.support.watched_network import CrashError, FaultyStore

from carrypost import testing
from carrypost.errors import IllegalStateException, ResourceAllocationException
from carrypost.gossip.draft import Draft
from carrypost.gossip.holdings.cache import CopyState
from carrypost.log.events import Assigned, Done, Event, Handed, Published, Reason, Refused
from carrypost.log.journal import MESSAGE, MOM
from carrypost.messaging.commands import (
    LEASE_OVER,
    Ack,
    CloseConsumer,
    Connect,
    Consume,
    Credit,
    Declare,
    DeclareQueue,
    Disconnect,
    Late,
    OpenSession,
    Receive,
    Recover,
    Redelivery,
    UnitOfWork,
)
from carrypost.messaging.messaging import MessagingCommands
from carrypost.model import address
from carrypost.model.descriptor import Descriptor
from carrypost.model.headers import Headers
from carrypost.model.ids import MessageId, NodeId

T = TypeVar("T")
US = 1_000_000
ALONE_US = 1_000_000
"""Time for which a message that perhaps crashed its program is handed over alone."""
PLENTY = 1_000_000
NODES = ("m", "a", "b", "c")
SELECTORS = {None: (0, 1, 2, 3), "k > 1": (2, 3), "k = 0 OR k = 3": (0, 3)}
"""Selectors of consumers, and the properties `k` that each matches."""
LIFETIMES_S = (30.0, 2_000.0, 100_000.0)
SETTLED_S = 240.0
"""Time with good contacts after which everything must have arrived: nodes return messages that no consumer asks for
after 60 s, and request messages again for which they had no room after about the same time."""
REMINDED_S = 12 * 3_600.0 + 120.0
"""Time after which every lost control message was repeated: the manager sends reminders within six hours, and receivers
renew their requests after twelve."""
FOREVER_S = 40 * 86_400.0
"""All deadlines are over by then: of messages, requests and receipts."""
FAULTS = {"control", "assignee", "assignment", "looks", "queue", "receiver", "requests", "selector"}
"""Reasons for which honest nodes never refuse each other's frames."""


class Truth(enum.Enum):
    """Truth of something that a crash may have left open."""

    NO = 0
    PERHAPS = 1
    YES = 2


class Content(NamedTuple):
    """The content of a message."""

    queue: int
    k: int
    """A property, for selectors."""
    lifetime_s: float
    delay_s: float
    priority: int
    persistent: bool


class Kept(NamedTuple):
    """A queue."""

    name: str
    node: str
    lease_s: float = 0.0
    """0: it never redelivers."""

    @property
    def destination(self) -> str:
        return f"queue/{self.node}/{self.name}"


QUEUES = (Kept("jobs", "m"), Kept("work", "m", 20.0), Kept("side", "a"), Kept("long", "a", 400.0))


@dataclass(eq=False)
class Letter:
    """A message that was sent to a queue."""

    n: int
    queue: Kept
    author: str
    life: int
    k: int
    sent_us: int
    deadline_us: int
    due_us: int
    sent: Truth = Truth.PERHAPS
    id: MessageId | None = None
    hands: list[Hand] = field(default_factory=list)
    disowned: bool = False
    """True if the sender was informed that the message could not be kept."""
    acked: Truth = Truth.NO
    acked_on: set[str] = field(default_factory=set)
    """Nodes where that is durable."""
    assigned: list[tuple[int, str]] = field(default_factory=list)
    """Times at which the manager reported an assignment, and its node."""

    def __str__(self) -> str:
        return f"message {self.n} of {self.queue.name} ({self.author}, sent {self.sent_us / US:.3f} s, {self.hands})"

    @property
    def seen(self) -> list[Hand]:
        return [hand for hand in self.hands if hand.seen]


@dataclass(eq=False)
class Hand:
    """One hand-out of a message."""

    letter: Letter
    seat: Seat
    t_us: int
    number: int
    count: int
    lease_us: int
    """Time before which the lease cannot have ended."""
    alone: bool
    accompanied: bool
    """True if it came alone to a session that had not acknowledged another message that had: a crash is not counted."""
    seen: bool = True

    def __repr__(self) -> str:
        seen = "" if self.seen else " unseen"
        return f"<{self.seat.node}/{self.seat.life} at {self.t_us / US:.3f} s, count {self.count}{seen}>"


@dataclass(eq=False)
class Seat:
    """A consumer, with a connection and a session of its own, in one life of its node."""

    node: str
    life: int
    queue: Kept
    selector: str | None
    connection: int
    session: int
    consumer: int = 0
    credit: int = 0
    prompt: bool = False
    """True if it acknowledges everything at once."""
    open: bool = True
    connected: bool = True
    served: bool = False
    """True if it was handed something."""
    held: dict[int, Hand] = field(default_factory=dict)
    """Messages that it has and did not acknowledge, by number."""
    alone: int = 0
    """The number of the message that came alone: nothing comes beside it for a second, or until it is acknowledged."""

    def waits(self, now: int) -> bool:
        return self.alone in self.held and now < self.held[self.alone].t_us + ALONE_US


@dataclass(eq=False)
class Job:
    """A work that was not answered."""

    node: str
    life: int
    letters: list[Letter] = field(default_factory=list)
    acks: list[tuple[Seat, Hand]] = field(default_factory=list)
    asked_us: int = 0
    before: dict[Letter, int] = field(default_factory=dict)
    """Number of times that each was handed out before a crash took the answer."""


@dataclass
class Node:
    life: int = 1
    up: bool = True
    fell_us: int = -1
    """Time of its last crash."""
    full: bool = False
    was_full: bool = False


class QueueWorld:
    """A network with queues and the oracle."""

    def __init__(self, *, seed: int = 0, disk_delay_s: float = 0.0, queues: Iterable[Kept] = QUEUES) -> None:
        self.queues = tuple(queues)
        self.delay_us = round(disk_delay_s * US)
        self.net = testing.network(
            *NODES, seed=seed, disk_delay_s=disk_delay_s, announce_s_min=1.0, announce_s_max=10.0,
            messaging={"tries": 1_000},
        )  # fmt: skip
        for name in NODES:
            self.net._driver(name).disk.store = FaultyStore(name)  # noqa: SLF001 - there is no other way to make a disk faulty
        self.nodes = {name: Node() for name in NODES}
        self.letters: list[Letter] = []
        self.seats: list[Seat] = []
        self.jobs: dict[int, Job] = {}
        self.pacts: list[Job] = []
        """Commits whose outcome only the hosts know."""
        self.words: list[Descriptor] = []
        """All that nodes said to each other about queues."""
        self.evicted = False
        """True if any of it was evicted everywhere."""
        self.recovered = False
        """True if a session had something come again."""
        self.script: list[tuple[object, ...]] = []
        self._numbers = 0
        self._stack = ExitStack()
        self._stack.enter_context(self.net)
        self.net.open_messaging()
        self.net.watch(self._take)
        for queue in self.queues:
            redelivery = Redelivery.AFTER_LEASE if queue.lease_s else Redelivery.NEVER
            asked = Declare(queue.name, redelivery, round(queue.lease_s * US))
            self.messaging(queue.node).execute(DeclareQueue(asked), self.now, self._number())
        self.net.advance(1.0)

    def close(self) -> None:
        """No more questions."""
        self._stack.close()

    # --- asking --------------------------------------------------------------------------------------------

    @property
    def now(self) -> int:
        return round(self.net.now * US)

    def messaging(self, node: str) -> MessagingCommands:
        return self.net.host(node).messaging

    def up(self) -> list[str]:
        return [name for name, node in self.nodes.items() if node.up]

    def sitting(self) -> list[Seat]:
        """Consumers and sessions that are there."""
        return [seat for seat in self.seats if seat.connected and self._lives(seat)]

    def _lives(self, seat: Seat) -> bool:
        node = self.nodes[seat.node]
        return node.up and node.life == seat.life

    def _number(self) -> int:
        self._numbers += 1
        return self._numbers

    def _safely(self, step: Callable[[], object]) -> bool:
        """Do something during which a disk may take its node down; whether it was done."""
        try:
            step()
        except CrashError as crash:
            self._killed(crash.node)
            return False
        return True

    def _do(self, node: str, step: Callable[[], object]) -> bool:
        """Do something to a host, and let it do what follows."""

        def done() -> None:
            step()
            self.net._driver(node).drain()  # noqa: SLF001 - as programs do

        return self._safely(done)

    # --- steps: programs -----------------------------------------------------------------------------------

    def play(self, name: str, *arguments: object) -> None:
        """One step by name, noted so that it can be played again."""
        self.script.append((name, *arguments))
        getattr(self, name)(*arguments)

    def letter(self, node: str, content: Content) -> Letter:
        due_us = self.now + round(content.delay_s * US) if content.delay_s else 0
        made = Letter(
            len(self.letters), chosen(self.queues, content.queue), node, self.nodes[node].life, content.k, self.now,
            self.now + round(content.lifetime_s * US), due_us,
        )  # fmt: skip
        self.letters.append(made)
        return made

    def draft(self, letter: Letter, content: Content) -> Draft:
        return Draft(
            letter.queue.destination, b"x" * (letter.n % 3), {"k": letter.k, "n": letter.n},
            letter.deadline_us - letter.sent_us, priority=content.priority, persistent=content.persistent,
            headers=Headers(delivery_time_us=letter.due_us or None),
        )  # fmt: skip

    def send(self, pick: int, contents: list[Content]) -> None:
        """Let a program send several messages in one unit of work."""
        if self.up():
            self._work(chosen(self.up(), pick), contents, [], ())

    def acknowledge(self, pick: int, which: int, contents: list[Content]) -> None:
        """Let a session acknowledge some of its messages; with contents, in a commit."""
        seats = [seat for seat in self.sitting() if seat.held]
        if seats:
            seat = chosen(seats, pick)
            numbers = some(seat.held, which)
            if numbers:
                self._work(seat.node, contents, [(seat, seat.held[number]) for number in numbers], numbers)

    def _work(
        self, node: str, contents: list[Content], acks: list[tuple[Seat, Hand]],
        numbers: Iterable[int],
    ) -> None:  # fmt: skip
        letters = [self.letter(node, content) for content in contents]
        drafts = [self.draft(letter, content) for letter, content in zip(letters, contents, strict=True)]
        number = self._number()
        self.jobs[number] = Job(node, self.nodes[node].life, letters, acks, self.now)
        for seat, hand in acks:
            hand.letter.acked = max(hand.letter.acked, Truth.PERHAPS, key=lambda each: each.value)
            del seat.held[hand.number]
            seat.alone = 0 if seat.alone == hand.number else seat.alone

        def perform() -> None:
            ack = Ack(acks[0][0].session, tuple(numbers)) if acks else None
            host = self.net.host(node)
            try:
                sent = host.perform(UnitOfWork(number, tuple(drafts), (ack,) if ack else ()), self.now)
            except ResourceAllocationException:  # The disk is full: nothing of it was done.
                assert self.nodes[node].full
                del self.jobs[number]
                for letter in letters:
                    letter.sent = Truth.NO
                for seat, hand in acks:
                    seat.held[hand.number] = hand
                return
            except IllegalStateException as error:
                over = [hand for _, hand in acks if hand.letter.queue.lease_s and hand.lease_us <= self.now]
                if ack is None or error.error_code != LEASE_OVER or not over:
                    raise
                for letter in letters:
                    letter.sent = Truth.NO
                self.jobs[number].letters = []
                host.perform(UnitOfWork(number, (), (msgspec.structs.replace(ack, late=Late.ACCEPT),)), self.now)
                return
            for letter, descriptor in zip(letters, sent, strict=True):
                letter.id = descriptor.id

        self._do(node, perform)

    def consume(self, pick: int, queue: int, selector: str | None, credit: int, prompt: bool) -> None:
        """One more consumer."""
        if not self.up():
            return
        node = chosen(self.up(), pick)
        kept = chosen(self.queues, queue)
        seat = Seat(node, self.nodes[node].life, kept, selector, 0, 0, prompt=prompt)
        self.seats.append(seat)

        def join() -> None:
            messaging = self.messaging(node)
            seat.connection = messaging.execute(Connect(), self.now)
            seat.session = messaging.execute(OpenSession(seat.connection), self.now)
            asked = Receive(kept.destination, selector)
            seat.consumer = messaging.execute(Consume(seat.session, asked), self.now, self._number())
            seat.credit = credit
            messaging.execute(Credit(seat.consumer, credit, PLENTY), self.now)

        self._do(node, join)

    def credit(self, pick: int, messages: int) -> None:
        seats = [seat for seat in self.sitting() if seat.open]
        if seats:
            seat = chosen(seats, pick)
            seat.credit += messages
            self._do(
                seat.node, lambda: self.messaging(seat.node).execute(Credit(seat.consumer, messages, PLENTY), self.now)
            )

    def leave(self, pick: int, how: str, which: int) -> None:
        """Close a consumer or its connection, or recover its session; some of its messages were never seen."""
        seats = [seat for seat in self.sitting() if seat.open or how != "consumer"]
        if not seats:
            return
        seat = chosen(seats, pick)
        unread = some(seat.held, which)
        messaging = self.messaging(seat.node)
        for number in unread:
            seat.held.pop(number).seen = False
        if how == "consumer":
            seat.open = False
            self._do(seat.node, lambda: messaging.execute(CloseConsumer(seat.consumer, unread), self.now))
            return
        seat.held = {}
        if how == "recover":
            self.recovered = True
            self._do(seat.node, lambda: messaging.execute(Recover(seat.session, unread), self.now))
            return
        seat.open = seat.connected = False
        self._do(seat.node, lambda: messaging.execute(Disconnect(seat.connection, unread), self.now))

    # --- steps: the world ----------------------------------------------------------------------------------

    def link(self, pair: int, loss: float) -> None:
        self.part(pair)
        self.net.link(*chosen(combinations(NODES, 2), pair), loss=loss)

    def part(self, pair: int) -> None:
        one, other = chosen(combinations(NODES, 2), pair)
        if self.net.linked(one, other):
            self.net.unlink(one, other)

    def link_all(self) -> None:
        for a, b in combinations(NODES, 2):
            if not self.net.linked(a, b):
                self.net.link(a, b)

    def advance(self, seconds: float) -> None:
        end = self.net.now + seconds
        while not self._safely(lambda: self.net.advance(max(0.0, end - self.net.now))):
            pass

    def kill(self, pick: int) -> None:
        if self.up():
            self._killed(chosen(self.up(), pick))

    def arm(self, pick: int, fuse: int, after: bool) -> None:
        """A crash at a batch to come."""
        if self.up():
            store = self.net._driver(chosen(self.up(), pick)).store  # noqa: SLF001 - as above
            assert isinstance(store, FaultyStore)
            store.fuse, store.after = fuse, after

    def restart(self, pick: int) -> None:
        down = [name for name, node in self.nodes.items() if not node.up]
        if down:
            name = chosen(down, pick)
            node = self.nodes[name]
            node.life += 1
            node.up = True
            self._safely(lambda: self.net.restart(name))

    def fill_disk(self, pick: int, full: bool) -> None:
        name = chosen(NODES, pick)
        self.nodes[name].full = full
        self.nodes[name].was_full |= full
        self.net.fill_disk(name, full=full)

    def evict(self, pick: int) -> None:
        """Let all nodes, including the authors, evict the messages on their way to one node, or to any."""
        to = chosen((*NODES, None), pick)
        gone = [address.control(NodeId(name)) for name in NODES if to in (name, None)]
        for word in [each for each in self.words if each.destination in gone]:
            for name in self.up():
                if self.net.host(name).state_of(word.id) in (CopyState.WHOLE, CopyState.FINISHED):
                    self.evicted = True
                    self._do(name, partial(self.net.host(name).discard, word.id, Reason.EVICTED, self.now))

    def _killed(self, name: str) -> None:
        node = self.nodes[name]
        node.up, node.fell_us = False, self.now
        store = self.net._driver(name).store  # noqa: SLF001 - as above
        assert isinstance(store, FaultyStore)
        store.fuse = -1
        self.net.kill(name)
        stored = {key[1] for key, _ in store.state() if key[0] == MESSAGE}
        for number, job in list(self.jobs.items()):
            if job.node == name:
                del self.jobs[number]
                job.before = {hand.letter: len(hand.letter.hands) for _, hand in job.acks}
                if job.letters and job.acks:
                    self.pacts.append(job)
                for letter in job.letters:
                    if letter.id in stored:
                        letter.sent = Truth.YES

    # --- what hosts tell -----------------------------------------------------------------------------------

    def _take(self, t: float, node: str, event: Event) -> None:
        match event:
            case Handed():
                self._handed(round(t * US), node, event)
            case Done(number):
                self._done(number)
            case Assigned(descriptor, receiver):
                letter = self._letter(descriptor)
                assert node == letter.queue.node, f"{node} assigned {letter}"
                letter.assigned.append((round(t * US), self.net.name(receiver)))
            case Published(descriptor):
                self.words += [descriptor] if descriptor.destination.startswith("control/") else []
            case Refused(reason):
                # Whoever answers after its lease may find that somebody else has the message by now; and to a node that
                # started again everything is said again.
                leased = any(queue.lease_s for queue in self.queues if queue.node == node)
                late = reason == "assignee" and (leased or self.evicted or self.nodes[node].life > 1)
                assert late or reason not in FAULTS, f"{node}: {event}"
            case _:
                pass

    def _letter(self, descriptor: Descriptor) -> Letter:
        return self.letters[int(descriptor.attributes["n"])]

    def _done(self, number: int) -> None:
        job = self.jobs.pop(number, None)
        if job is not None:
            for letter in job.letters:
                letter.sent = Truth.YES
            for _, hand in job.acks:
                if not hand.letter.queue.lease_s or job.asked_us < hand.lease_us:
                    hand.letter.acked = Truth.YES
                    hand.letter.acked_on.add(job.node)

    def _handed(self, t_us: int, node: str, event: Handed) -> None:
        letter = self._letter(event.descriptor)
        found = [
            seat for seat in self.seats
            if (seat.node, seat.life, seat.consumer) == (node, self.nodes[node].life, event.consumer)
        ]  # fmt: skip
        assert found, f"nobody consumes as {event.consumer} on {node}: {letter}"
        seat = found[0]
        assert seat.open, f"the consumer on {node} is closed: {letter}"
        seat.credit -= 1
        seat.served = True
        assert seat.credit >= 0, f"{node} hands out more than was asked for: {letter}"
        assert not seat.waits(t_us + self.delay_us) or self.nodes[node].was_full, (
            f"it comes beside what comes alone: {letter}"
        )
        seat.alone = event.number if event.alone else 0
        had = [each for each in letter.seen if each.seat.node == node and each.seat.life < seat.life]
        assert event.alone or not had or letter.queue.lease_s, (
            f"an earlier life had it, and it comes with others: {letter}"
        )
        accompanied = event.alone and any(each.alone for each in seat.held.values())
        lease_us = self._lease_us(letter, node, t_us)
        hand = Hand(letter, seat, t_us, event.number, event.count, lease_us, event.alone, accompanied)
        self._check(hand)
        self._resolve(hand)
        letter.sent = Truth.YES
        letter.hands.append(hand)
        seat.held[event.number] = hand
        if seat.prompt:
            self._acknowledge_at_once(seat, hand)

    def _acknowledge_at_once(self, seat: Seat, hand: Hand) -> None:
        number = self._number()
        self.jobs[number] = Job(seat.node, seat.life, [], [(seat, hand)], self.now)
        del seat.held[hand.number]
        hand.letter.acked = max(hand.letter.acked, Truth.PERHAPS, key=lambda each: each.value)
        self.net.host(seat.node).perform(
            UnitOfWork(number, acks=(Ack(seat.session, (hand.number,), late=Late.ACCEPT),)), self.now
        )
        seat.credit += 1
        self.messaging(seat.node).execute(Credit(seat.consumer, 1, 10), self.now)

    def _lease_us(self, letter: Letter, node: str, t_us: int) -> int:
        """Return the time at which the lease of a hand-out ends at the earliest."""
        known = [at_us for at_us, whom in letter.assigned if whom == node and at_us <= t_us]
        began_us = max([letter.sent_us, *(at_us - self.delay_us for at_us in known)])
        return began_us + round(letter.queue.lease_s * US)

    def _check(self, hand: Hand) -> None:
        letter, node = hand.letter, hand.seat.node
        assert letter.sent is not Truth.NO, f"it was never sent: {letter}, and {hand}"
        assert letter.queue == hand.seat.queue
        assert letter.k in SELECTORS[hand.seat.selector], f"nobody selected it: {letter}"
        assert hand.t_us < letter.deadline_us, f"it is dead: {letter}, and {hand}"
        assert hand.t_us >= letter.due_us, f"it is too early: {letter}, and {hand}"
        counted = [each for each in letter.seen if not each.accompanied]
        before = min(len(counted), 1) if letter.queue.lease_s else len(counted)
        assert hand.count > before, f"it was seen before, and is not flagged so: {letter}, and {hand}"
        assert node not in letter.acked_on, f"it was acknowledged here: {letter}, and {hand}"
        elsewhere = [each for each in letter.seen if each.seat.node != node]
        if not letter.queue.lease_s:
            assert not elsewhere, f"another node had it: {letter}, and {hand}"
            assert letter.acked is not Truth.YES, f"it was acknowledged: {letter}, and {hand}"
            return
        for each in elsewhere:
            assert hand.t_us >= each.lease_us, f"a lease runs: {letter}, and {hand}"
        manager = self.nodes[letter.queue.node]
        if manager.life == 1 and not manager.was_full:
            told = [at_us for at_us, whom in letter.assigned if whom == node]
            assert told, f"it was not assigned: {letter}, and {hand}"
            over_us = told[-1] + round(letter.queue.lease_s * US) + self.delay_us
            assert hand.t_us <= over_us, f"its lease was over at {over_us / US} s: {letter}, and {hand}"

    def _resolve(self, hand: Hand) -> None:
        """Conclude from a hand-out whether a commit before a crash was done: then all of it was."""
        letter = hand.letter
        for pact in self.pacts:
            if letter in pact.letters:
                for _, other in pact.acks:
                    again = other.letter.hands[pact.before[other.letter] :]
                    if not other.letter.queue.lease_s:
                        assert not again, f"half a commit: {letter} was sent, and not acknowledged {other.letter}"
                        other.letter.acked = Truth.YES
            if any(other.letter is letter for _, other in pact.acks) and not letter.queue.lease_s:
                for other_letter in pact.letters:
                    assert not other_letter.hands, f"half a commit: {other_letter} sent, and not acknowledged {letter}"
                    other_letter.sent = Truth.NO

    # --- in the end ----------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Repair everything and let all programs consume: nothing may be lost or left behind."""
        for name, node in self.nodes.items():
            store = self.net._driver(name).store  # noqa: SLF001 - as above
            assert isinstance(store, FaultyStore)
            store.fuse = -1
            self.net.fill_disk(name, full=False)
            node.full = False
        while len(self.up()) < len(NODES):
            self.restart(0)
        for a, b in combinations(NODES, 2):
            if self.net.linked(a, b):
                self.net.unlink(a, b)
        if self.evicted:
            self.advance(REMINDED_S)
        self.link_all()
        self.advance(SETTLED_S)
        self.check_served()
        for seat in self.sitting():
            self.leave(self.sitting().index(seat), "connection", 0)
        for at in range(len(NODES)):
            for queue in range(len(self.queues)):
                self.consume(at, queue, None, PLENTY, True)
        self.advance(SETTLED_S + 2 * max(queue.lease_s for queue in self.queues))
        lost = [str(letter) for letter in self.letters if self._is_owed(letter)]
        assert not lost, f"nobody got {lost}"
        self.check_entries()
        self.check_rows()

    def _is_owed(self, letter: Letter) -> bool:
        """Return True if it is alive, and no program may be done with it."""
        sent = letter.sent is Truth.YES and not letter.disowned
        return sent and letter.acked is Truth.NO and letter.deadline_us > self.now

    def check_entries(self) -> None:
        """Check that managers have only entries that are not due."""
        for name in NODES:
            overview = self.messaging(name).overview()
            mine = [letter for letter in self.letters if letter.queue.node == name]
            delayed = [letter for letter in mine if letter.due_us > self.now]
            assert overview is not None
            assert overview.entries <= len(delayed), f"{name} still has {overview.entries} messages"

    def check_served(self) -> None:
        """Check that every consumer with credit got what waits for it."""
        for letter in self.letters:
            if not self._is_owed(letter) or letter.hands or letter.due_us > self.now:
                continue
            if letter.assigned and self._may_wait_on(letter, *letter.assigned[-1]):
                continue
            # A consumer that was silent for a lease is given nothing; one that recovers takes more than it asks for.
            waiting = [
                seat for seat in self.sitting()
                if seat.open and seat.credit and seat.queue == letter.queue and letter.k in SELECTORS[seat.selector]
                and not (letter.queue.lease_s and seat.served) and not seat.waits(self.now)
            ]  # fmt: skip
            assert self.recovered or not waiting, f"a consumer waits on {waiting[0].node}, and nobody gets {letter}"

    def _may_wait_on(self, letter: Letter, assigned_us: int, name: str) -> bool:
        """Return True if a node may keep a message that was assigned to it.

        The message may have been on its way to a program when the power failed. Or another consumer of the node takes
        the messages of one that closed, and has no credit left for its own.
        """
        closed = [seat for seat in self.seats if seat.node == name and seat.queue == letter.queue and not seat.open]
        return bool(closed) or self.nodes[name].fell_us >= assigned_us - self.delay_us

    def check_rows(self) -> None:
        """After all deadlines messaging keeps nothing but what queues there are."""
        for seat in self.sitting():
            self.leave(self.sitting().index(seat), "connection", 0)
        self.advance(30.0)
        for name in NODES:
            self._killed(name)
        self.net.advance(FOREVER_S)
        for _ in NODES:
            self.restart(0)
        self.advance(120.0)
        for name in NODES:
            rows = [key[1] for key, _ in self.net._driver(name).store.state() if key[0] == MOM]  # noqa: SLF001
            left = [row for row in rows if row[:1] != b"Q"]
            assert not left, f"{name} keeps rows for ever: {left}"


def chosen(things: Iterable[T], pick: int) -> T:
    listed = list(things)
    return listed[pick % len(listed)]


def some(things: Iterable[T], left_out: int) -> list[T]:
    """Return the things whose bits are not set."""
    return [each for at, each in enumerate(things) if not left_out >> min(at, 6) & 1]
