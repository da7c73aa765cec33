"""Relocation by the tables of `overlay.relocation`, among models of all other participants.

Homes of producers, brokers with seats, and one consumer exchange the items of the overlay over a bad network.
Everything that a node does in one step is durable; a crash loses the rest, as `RESTART` lists. The state of the
modulator is a hash of all earlier events, of all producers, and every third event gives no result. So a result is right
only if the seat processed exactly the events that the consumer knows of, in that order.

The consumer accepts a result if its number is the next one and its author held the epoch. It closes earlier epochs when
it has its seat adopted. It keeps the last checkpoint, and the runs that it accepted since.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from tests.support.relocation_net import SECOND, Net, Weather

from carrypost.config.settings import Overlay
from carrypost.model.ids import NodeId
from carrypost.overlay.relocation import (
    VARIANTS,
    Action,
    Actions,
    Destination,
    DestinationInput,
    DestinationState,
    HandoffId,
    Source,
    SourceInput,
    SourceState,
)

BROKERS = ("A", "B", "C")
PRODUCERS = ("P1", "P2", "P3")
HOMES = ("H1", "H2")
PERIOD_US = 20_000 * len(PRODUCERS)
ORPHAN_US = 3 * SECOND
PATIENCE_US = 60 * SECOND
REPLAY_MAX = 64
CHECKPOINT_EVERY = 25
FOREVER = 0.1
"""Share of crashes in the second half of a run after which a broker never returns."""
Events = tuple[tuple[str, int], ...]


SETTINGS = Overlay(handoff_s=2.0, gap_s=4.0)


# --- messages, named as the items --------------------------------------------------------------------------


class Event(NamedTuple):
    producer: str
    number: int


class Roster(NamedTuple):
    """Item: its author, a broker, has a seat or expects one."""

    seats: bool


class Replay(NamedTuple):
    after: int


class Ready(NamedTuple):
    h: HandoffId


class Detour(NamedTuple):
    h: HandoffId
    to: str


class Detoured(NamedTuple):
    h: HandoffId
    last: Mapping[NodeId, int]


class State(NamedTuple):
    h: HandoffId
    seat: Seat


class Moving(NamedTuple):
    epoch: int
    to: str


class Attached(NamedTuple):
    epoch: int


class Adopt(NamedTuple):
    epoch: int
    checkpoint: Result
    runs: Events


class Progress(NamedTuple):
    """Item of the consumer: the valid epoch, the seat that has it, and the last accepted number."""

    epoch: int
    home: str
    number: int


class Alive(NamedTuple):
    epoch: int


class Result(NamedTuple):
    author: str
    """The seat that signed it; others can pass it on."""
    epoch: int
    number: int
    events: Events
    """Events since the result before, in the order in which they were processed."""
    state: bytes
    cursors: Mapping[str, int]
    """With a checkpoint, which has no events; in others they are left empty."""
    lost: int = 0
    """Events that the seat skipped."""


NOTHING = Result("", 0, 0, (), b"", {})
"""The checkpoint of a consumer that accepted none."""


def hashed(state: bytes, event: tuple[str, int]) -> bytes:
    return hashlib.blake2b(state + repr(event).encode(), digest_size=8).digest()


# --- producers and their homes -----------------------------------------------------------------------------


@dataclass
class Producer:
    """A producer, which numbers its events and keeps all of them."""

    net: Net
    name: str
    home: str
    last: int = 0
    up: bool = True

    def emit(self) -> None:
        self.last += 1
        self.net.send(self.name, self.home, Event(self.name, self.last))

    def change_home(self) -> None:
        self.home = self.net.rng.choice(HOMES)

    def receive(self, author: str, message: object) -> None:
        assert isinstance(message, Replay)
        for number in range(message.after + 1, min(self.last, message.after + REPLAY_MAX) + 1):
            self.net.send(self.name, author, Event(self.name, number))


@dataclass
class Home:
    """A home of producers, which passes on their events to seats."""

    net: Net
    name: str
    seats: set[str] = field(default_factory=lambda: {"A"})
    last: dict[NodeId, int] = field(default_factory=dict)
    """By producer: the highest number of an event that was passed on."""
    detoured: dict[HandoffId, Detoured] = field(default_factory=dict)
    up: bool = True

    def receive(self, author: str, message: object) -> None:
        if isinstance(message, Event):
            producer = NodeId(message.producer)
            self.last[producer] = max(message.number, self.last.get(producer, 0))
            for seat in sorted(self.seats):
                self.net.send(self.name, seat, message)
        elif isinstance(message, Roster):
            (self.seats.add if message.seats else self.seats.discard)(author)
        elif isinstance(message, Detour):
            self.seats.add(message.to)
            if message.to == author:  # Back.
                return
            answer = self.detoured.setdefault(message.h, Detoured(message.h, dict(self.last)))
            for broker in (author, message.to):
                self.net.send(self.name, broker, answer)


# --- brokers -----------------------------------------------------------------------------------------------


@dataclass
class Seat:
    """Modulator, cursors and results of the consumer."""

    broker: str
    epoch: int
    variant: str
    number: int = 0
    state: bytes = b""
    count: int = 0
    cursors: dict[str, int] = field(default_factory=dict)
    open: Events = ()
    """Events since the last result."""
    lost: int = 0
    skips: frozenset[str] = frozenset()
    """Producers whose next event may leave a gap, because missing events are not requested."""
    results: dict[int, Result] = field(default_factory=dict)
    """Results that the consumer has not confirmed."""

    def process(self, producer: str, number: int, *, repeated: bool = False) -> None:
        if producer in self.skips:
            self.lost += number - self.cursors.get(producer, 0) - 1
            self.skips -= {producer}
        self.cursors[producer] = number
        self.state, self.count = hashed(self.state, (producer, number)), self.count + 1
        self.open += ((producer, number),)
        if repeated:
            self.open = ()
        elif self.count % 3:
            self.speak(checkpoint=False)
            if self.number % CHECKPOINT_EVERY == 0:
                self.speak(checkpoint=True)

    def speak(self, *, checkpoint: bool) -> None:
        self.number += 1
        cursors = dict(self.cursors) if checkpoint else {}
        self.results[self.number] = Result(
            self.broker, self.epoch, self.number, self.open, self.state, cursors, self.lost
        )
        self.open, self.lost = (), 0

    def copy(self) -> Seat:
        return replace(self, cursors=dict(self.cursors), results=dict(self.results))


@dataclass
class Broker:
    """A broker, with at most one active seat, copies of seats that left, and seats that are expected."""

    net: Net
    name: str
    seat: Seat | None = None
    source: Source | None = None
    copies: dict[HandoffId, tuple[Source, Seat]] = field(default_factory=dict)
    """Seats that left, until that is certain."""
    expected: Destination | None = None
    runs: list[tuple[str, int]] = field(default_factory=list)
    """Events that are repeated repeated."""
    lanes: dict[str, set[int]] = field(default_factory=dict)
    counter: int = 0
    up: bool = True
    unlisted: int = 0
    moves: int = 0
    acted: int = 0
    """Times that a table had it do something."""
    crash_at: int = 0
    """Number of actions after which a crash comes; 0: none does."""

    @property
    def confirmed_here(self) -> bool:
        return self.expected is None or self.expected.state is DestinationState.CONFIRMED

    # --- the source ---

    def migrate(self, to: str) -> None:
        free = self.source is None and not self.runs and self.confirmed_here
        if self.up and self.seat is not None and free and to != self.name:
            self.counter += 1
            handoff = HandoffId(NodeId(self.name), self.seat.epoch, self.counter)
            self.source = Source(handoff, NodeId(to), VARIANTS[self.seat.variant], SETTINGS, self.net.now)
            self.act(self.source, self.source.handle(SourceInput.MIGRATE, self.net.now))

    def act(self, source: Source, actions: Actions | None) -> None:
        """Do what the table of the source says."""
        h, to = source.handoff, source.to
        if actions is None:
            self.unlisted += 1
            return
        for action in actions:
            if action is Action.SUSPEND:
                assert self.seat is not None
                self.copies[h] = source, self.seat
                self.seat = None
            elif action is Action.STATE:
                self.send(to, State(h, (self.seat or self.copies[h][1]).copy()))
            elif action is Action.FORGET:
                del self.copies[h]
            items: dict[Action, list[tuple[str, object]]] = {
                Action.HANDOFF: [(to, h)],
                Action.MOVING: [("consumer", Moving(h.epoch, to))],
                Action.DETOUR: [(home, Detour(h, to)) for home in sorted(source.waiting)],
                Action.DETOUR_BACK: [(each, Detour(h, self.name)) for each in sorted({*source.homes, to})],
            }
            for whom, item in items.get(action, ()):
                self.send(whom, item)
        if source is self.source and (source.is_over or source.state is SourceState.MOVED):
            self.source = None
        self.acted += bool(actions)
        self.crash_if_due()

    # --- the destination ---

    def obey(self, actions: Actions | None, item: State | None = None) -> None:
        """Do what the table of the destination says."""
        expected = self.expected
        assert expected is not None
        if actions is None:
            self.unlisted += 1
            return
        h = expected.handoff
        for action in actions:
            if action is Action.LOAD:
                assert item is not None
                self.load(item, h.epoch + 1)
            elif action is Action.FORGET:
                self.expected, self.seat, self.runs = None, None, []
            items: dict[Action, tuple[str, object]] = {
                Action.READY: (h.source, Ready(h)),
                Action.ATTACHED: ("consumer", Attached(h.epoch + 1)),
            }
            if action in items:
                self.send(*items[action])
        if Action.LOAD in actions:
            self.work()
        self.acted += bool(actions)
        self.crash_if_due()

    def load(self, item: State, epoch: int) -> None:
        self.moves += 1
        variant = VARIANTS[item.seat.variant]
        skips = frozenset() if variant.detours else frozenset(PRODUCERS)
        self.seat = replace(item.seat, broker=self.name, epoch=epoch, skips=skips)
        if not variant.state:
            self.seat.state, self.seat.count = b"", 0

    # --- both ---

    def send(self, to: str, message: object) -> None:
        self.net.send(self.name, to, message, carried=isinstance(message, Moving | Attached))

    def work(self) -> None:
        """Process what can be: runs first, then lanes by number, producers as they come."""
        while self.seat is not None and self.runs:
            producer, number = self.runs[0]
            if number not in self.lanes.get(producer, ()):
                return
            self.seat.process(producer, number, repeated=True)
            del self.runs[0]
        while self.seat is not None and (ready := [each for each in PRODUCERS if self.next_of(each) is not None]):
            producer, before = self.net.rng.choice(ready), self.seat.number
            self.seat.process(producer, self.next_of(producer) or 0)
            for each in range(before + 1, self.seat.number + 1):
                self.send("consumer", self.seat.results[each])
        if self.source is not None and self.seat is not None:
            cursors = {NodeId(each): number for each, number in self.seat.cursors.items()}
            self.act(self.source, self.source.worked(cursors, self.net.now))

    def next_of(self, producer: str) -> int | None:
        """Return the event of a producer that may be processed next."""
        assert self.seat is not None
        after, lane = self.seat.cursors.get(producer, 0), self.lanes.get(producer, set())
        number = min((each for each in lane if each > after), default=0) if producer in self.seat.skips else after + 1
        source = self.source
        stops = source is not None and source.state is SourceState.DRAINING
        if source is not None and stops and number > source.last.get(NodeId(producer), 0):
            return None
        return number if number in lane else None

    def tick(self) -> None:
        """Announce seats to homes, request missing events, repeat unconfirmed items."""
        if not self.up:
            return
        for home in HOMES:
            self.send(home, Roster(self.seat is not None or self.expected is not None))
        for source, _ in list(self.copies.values()):
            self.act(source, source.expire(self.net.now))
        if self.source is not None:
            self.act(self.source, self.source.expire(self.net.now))
        if self.expected is not None:
            self.obey(self.expected.expire(self.net.now))
        if self.seat is None:
            return
        for producer in PRODUCERS:
            if producer not in self.seat.skips:
                self.send(producer, Replay(self.seat.cursors.get(producer, 0)))
        for number in sorted(self.seat.results)[:REPLAY_MAX]:
            self.send("consumer", self.seat.results[number])

    def lost(self, broker: str) -> None:
        if self.up and self.source is not None:
            actions = self.source.lost(NodeId(broker), self.net.now)
            self.act(self.source, () if actions is None else actions)

    def crash_if_due(self) -> None:
        if self.acted == self.crash_at and self.up:
            self.crash_at = 0
            self.crash()
            self.net.at(self.net.now + round(self.net.rng.uniform(0.01, 1) * SECOND), self.restart)

    def crash(self) -> None:
        self.up = False
        self.lanes = {}

    def restart(self) -> None:
        self.up = True
        if self.source is not None:
            source, self.source = self.source, None
            self.act(source, source.handle(SourceInput.RESTART, self.net.now))
        for source, _ in list(self.copies.values()):
            self.act(source, source.handle(SourceInput.RESTART, self.net.now))
        if self.expected is not None and not self.expected.is_over:
            self.obey(self.expected.handle(DestinationInput.RESTART, self.net.now))
        self.work()

    def receive(self, author: str, message: object) -> None:
        now = self.net.now
        if isinstance(message, Event):
            if self.seat is not None or self.expected is not None:
                self.lanes.setdefault(message.producer, set()).add(message.number)
                self.work()
        elif isinstance(message, HandoffId):
            self.offered(NodeId(author), message)
        elif isinstance(message, Ready | Detoured):
            self.answered(NodeId(author), message)
        elif isinstance(message, State | Detour):
            what = DestinationInput.STATE if isinstance(message, State) else DestinationInput.DETOUR_BACK
            if self.expected is None or self.expected.handoff != message.h:
                self.unlisted += 1
            else:
                self.obey(
                    self.expected.handle_source(NodeId(author), what, now),
                    message if isinstance(message, State) else None,
                )
        elif isinstance(message, Adopt):
            self.adopt(message)
        elif isinstance(message, Progress):
            self.confirmed(message)

    def offered(self, author: NodeId, handoff: HandoffId) -> None:
        over = self.expected is None or self.expected.state is DestinationState.ABSENT
        newer = self.expected is not None and handoff[1:] > self.expected.handoff[1:]
        if self.seat is not None and self.seat.epoch >= handoff.epoch:
            self.unlisted += handoff != (self.expected and self.expected.handoff)
            if self.expected is None or handoff != self.expected.handoff:
                return
        elif over or newer:
            self.seat, self.source, self.runs = None, None, []
            self.expected = Destination(handoff, SETTINGS, self.net.now)
        if self.expected is not None and handoff == self.expected.handoff:
            self.obey(self.expected.handle_source(author, DestinationInput.HANDOFF, self.net.now))

    def answered(self, author: NodeId, message: Ready | Detoured) -> None:
        now, source = self.net.now, self.source
        if source is None or source.handoff != message.h:
            self.unlisted += not (self.expected is not None and self.expected.handoff == message.h)
        elif isinstance(message, Ready):
            self.act(source, source.ready(author, tuple(map(NodeId, HOMES)), now))
            self.work()
        else:
            self.act(source, source.detoured(author, message.last, now))
            self.work()

    def adopt(self, message: Adopt) -> None:
        """Begin with the checkpoint, and repeat the runs without results."""
        if self.seat is not None and self.seat.epoch > message.epoch:
            self.unlisted += 1
            return
        handoff = HandoffId(NodeId("consumer"), message.epoch - 1, 0)
        if self.expected is None or self.expected.handoff != handoff:
            self.expected, self.source = Destination(handoff, SETTINGS, self.net.now, seated=True), None
            last, self.runs = message.checkpoint, list(message.runs)
            self.seat = Seat(self.name, message.epoch, "strict", last.number, last.state, cursors=dict(last.cursors))
        self.send("consumer", Attached(message.epoch))
        self.work()
        self.acted += 1
        self.crash_if_due()

    def confirmed(self, message: Progress) -> None:
        now = self.net.now
        if message.home != self.name:
            for source, _ in list(self.copies.values()):
                if message.epoch > source.handoff.epoch:
                    self.act(source, source.handle(SourceInput.ELSEWHERE, now))
            if self.seat is not None and message.epoch > self.seat.epoch:
                self.seat, self.source, self.expected, self.runs = None, None, None, []
        if (
            self.seat is not None
            and message == (self.seat.epoch, self.name, message.number)
            and not self.confirmed_here
        ):
            assert self.expected is not None
            self.obey(self.expected.handle(DestinationInput.CONFIRMED, now))
        if self.seat is not None and message.epoch <= self.seat.epoch:
            self.seat.results = {each: result for each, result in self.seat.results.items() if each > message.number}
            self.send("consumer", Alive(self.seat.epoch))


# --- the consumer ------------------------------------------------------------------------------------------


@dataclass
class Consumer:
    """The consumer, which decides which seat counts."""

    net: Net
    home: str = "A"
    epoch: int = 1
    closed: int = 0
    """Results of this epoch and earlier ones do not count."""
    holders: dict[int, str] = field(default_factory=lambda: {1: "A"})
    """Seats that count, or will when they say so."""
    adopting: Adopt | None = None
    number: int = 0
    checkpoint: Result = NOTHING
    runs: Events = ()
    accepted: list[Result] = field(default_factory=list)
    held: dict[int, Result] = field(default_factory=dict)
    heard_us: int = 0
    adoptions: int = 0
    up: bool = True

    def receive(self, author: str, message: object) -> None:
        if isinstance(message, Result):
            if message.epoch > self.closed and self.holders.get(message.epoch) == message.author:
                self.take(author, message)
        elif isinstance(message, Moving):
            if author == self.home and message.epoch == self.epoch:
                self.holders[message.epoch + 1] = message.to
        elif isinstance(message, Attached):
            if self.holders.get(message.epoch) == author and message.epoch > self.epoch:
                self.epoch, self.home, self.heard_us, self.adopting = message.epoch, author, self.net.now, None
        elif isinstance(message, Alive) and author == self.home:
            self.heard_us = self.net.now

    def take(self, author: str, result: Result) -> None:
        """Accept results by number."""
        if author == self.home:
            self.heard_us = self.net.now
        if result.number > self.number:
            self.held[result.number] = result
        while (found := self.held.pop(self.number + 1, None)) is not None:
            self.number += 1
            self.accepted.append(found)
            self.runs += found.events
            if found.cursors:
                self.checkpoint, self.runs = found, ()

    def tick(self) -> None:
        for broker in BROKERS:
            self.net.send("consumer", broker, Progress(self.epoch, self.home, self.number))
        silent = self.net.now - self.heard_us >= ORPHAN_US
        if silent:
            self.heard_us = self.net.now
            epoch = max(self.epoch, self.adopting.epoch if self.adopting else 0) + 2
            at = BROKERS.index(self.holders[epoch - 2] if self.adopting else self.home)
            others = [each for each in (*BROKERS[at + 1 :], *BROKERS[:at]) if self.net.nodes[each].up]
            if not others:
                return
            self.adoptions += 1
            self.closed = epoch - 1
            self.holders = {epoch: others[0]}
            self.held = {}
            self.adopting = Adopt(epoch, self.checkpoint._replace(number=self.number), self.runs)
        if self.adopting is not None:
            self.net.send("consumer", self.holders[self.adopting.epoch], self.adopting)


@dataclass
class Outcome:
    """Outcome of a run."""

    relocations: int
    adoptions: int
    sent: int
    events: list[tuple[str, int]]
    """As the consumer saw them."""
    lost: int
    """Events that results call lost."""
    wrong_state: int
    reordered: int
    unlisted: int


def play(
    seed: int, weather: Weather, seconds: int, *, variant: str = "strict", crash: tuple[str, int] = ("A", 0)
) -> Outcome:
    """Relocate about every half second while events flow; then let all come to an end.

    `crash`: a broker, and after how many actions by a table it crashes.
    """
    net = Net(seed, weather)
    end_us = seconds * SECOND
    consumer = Consumer(net)
    producers = [Producer(net, name, net.rng.choice(HOMES)) for name in PRODUCERS]
    brokers = {name: Broker(net, name) for name in BROKERS}
    brokers["A"].seat = Seat("A", 1, variant)
    net.nodes.update({"consumer": consumer, **brokers, **{name: Home(net, name) for name in HOMES}})
    net.nodes.update({each.name: each for each in producers})
    brokers[crash[0]].crash_at = crash[1]
    last_us = end_us + PATIENCE_US
    for number, each in enumerate(producers):  # One is there, the others join.
        net.at(number * end_us // 4, lambda each=each: net.every(PERIOD_US, each.emit, end_us))  # type: ignore[misc]
        net.every(SECOND, each.change_home, end_us)
    for tick in (*(broker.tick for broker in brokers.values()), consumer.tick):
        net.every(SECOND // 5, tick, last_us)

    def migrate() -> None:
        to = net.rng.choice(BROKERS)
        for broker in brokers.values():
            broker.migrate(to)

    net.every(SECOND // 2, migrate, end_us)
    net.every(SECOND // 2, lambda: crash_one(net, brokers, final=net.now > end_us // 2), end_us)
    sent = 0
    while net.now < last_us:
        net.run(net.now + SECOND)
        sent = sum(each.last for each in producers)
        if net.now > end_us and sum(len(each.events) + each.lost for each in consumer.accepted) >= sent - 2:
            break
    return judged(consumer, brokers, sent, stateless=not VARIANTS[variant].state)


def crash_one(net: Net, brokers: Mapping[str, Broker], *, final: bool) -> None:
    """Let a broker crash, if all are up and chance says so. It comes back, or perhaps (`final`) never."""
    victim = brokers[net.rng.choice(BROKERS)]
    if net.rng.random() >= net.weather.crashes_per_s / 2 or not all(each.up for each in brokers.values()):
        return
    victim.crash()
    for other in brokers.values():
        net.at(net.now + SECOND // 3, lambda other=other: other.lost(victim.name))  # type: ignore[misc]
    if not final or net.rng.random() >= FOREVER:
        net.at(net.now + round(net.rng.uniform(0.1, 5) * SECOND), victim.restart)


def judged(consumer: Consumer, brokers: Mapping[str, Broker], sent: int, *, stateless: bool) -> Outcome:
    events = [event for result in consumer.accepted for event in result.events]
    state, wrong = b"", 0
    for result in consumer.accepted:
        for event in result.events:
            state = hashed(state, event)
        wrong += result.state != state and not stateless
    last: dict[str, int] = {}
    reordered = 0
    for producer, number in events:
        reordered += number <= last.get(producer, 0)
        last[producer] = number
    return Outcome(
        sum(each.moves for each in brokers.values()), consumer.adoptions, sent, events,
        sum(each.lost for each in consumer.accepted), wrong, reordered, sum(each.unlisted for each in brokers.values()),
    )  # fmt: skip
