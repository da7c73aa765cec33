"""A model of the promises of messaging on one host, in plain lists and dictionaries: the oracle of the stateful tests.

It is written from the promises, not from the engine's implementation. `Model` receives every command when it is given
and every event when it is emitted. It raises `AssertionError` for an event that must not happen, and `check_complete`
reports missing events once the disk has caught up. Where a crash leaves open whether something was written, the model
says "perhaps" until that is known.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from carrypost.log.events import (
    ClaimLost,
    Delivered,
    Done,
    Dropped,
    Event,
    Handed,
    Published,
    Reason,
    Stored,
)
from carrypost.model.descriptor import Ordering

ALONE_US = 1_000_000
"""Time for which a message that perhaps crashed its program is handed over alone."""
PATTERNS = {"a": ("a",), "b": ("b",), "[ab]": ("a", "b"), "c": ("c",), "d": ("d",)}
"""Patterns of subscriptions, and the destinations that each matches."""
ORDERINGS = {"c": Ordering.CAUSAL, "d": Ordering.DELTA_CAUSAL}


class Truth(enum.Enum):
    """Truth of something that a crash may have left open."""

    NO = 0
    PERHAPS = 1
    YES = 2


@dataclass
class Letter:
    """One message that was published, or is to be by a work."""

    topic: str
    n: int
    ordering: Ordering
    line: int
    """Number of the line: messages of one line, to one topic, are handed over in the order of sending."""
    lifetime: int
    deadline: int | None
    due: int
    life: int
    connection: int
    client: str
    size: int
    id: bytes = b""
    place: int = 0
    here: bool = False
    answered: bool = False
    failed: bool = False
    evicted: bool = False
    acks: list[Owed] = field(default_factory=list)
    """Subscriptions that acknowledged it, perhaps or for certain, including those that ended."""
    handed_by_gone: bool = False
    """True if a deleted subscription, or an earlier life, had it and did not acknowledge it."""
    wanted: bool = False
    """True if a subscription has, or had, a claim to it, perhaps."""
    claimed: bool = False
    """True if it is certainly claimed."""
    claimed_before: bool = False
    """True if it was claimed in an earlier life, or by a deleted subscription: it may be flagged as redelivered."""

    def alive(self, now: int) -> bool:
        return self.here and not self.is_over(now)

    def is_over(self, now: int) -> bool:
        return self.deadline is not None and self.deadline <= now

    @property
    def acknowledged(self) -> Truth:
        return max((each.acked for each in self.acks), key=lambda each: each.value, default=Truth.NO)


@dataclass(eq=False)
class Owed:
    """The claim of one subscription to one message."""

    letter: Letter
    must: bool
    """True if it must be handed over; otherwise it may be."""
    acked: Truth = Truth.NO
    holder: int | None = None
    """The number under which a session has it."""
    told: int = 0
    """Number of times that the message was handed over and seen."""
    anchor: int | None = None
    """Number of earlier hand-overs that count; None: not known yet."""
    exact: bool = True
    must_flag: bool = False
    may_flag: bool = False
    fresh: bool = True
    late: bool = False
    """True if it came back out of its turn, when a commit was undone."""
    doubtful: bool = False
    """True if it was certainly handed over in an earlier life, and the subscription still exists: it is handed over
    alone."""
    accompanied: bool = False
    """True if it came alone to a session that had not acknowledged another message that had: a crash is not counted."""


@dataclass(eq=False)
class Sub:
    """A subscription."""

    pattern: str
    above: int | None
    """Selector: n must be greater than this value."""
    name: str
    client: str
    durable: bool
    shared: bool
    no_local: bool
    connection: int
    stands: Truth = Truth.YES
    consumers: list[int] = field(default_factory=list)
    owed: dict[bytes, Owed] = field(default_factory=dict)
    peak: int = 0
    """Highest number of claims at one time."""

    @property
    def key(self) -> tuple[str, str, bool]:
        return self.client, self.name, self.durable

    @property
    def asked(self) -> tuple[object, ...]:
        return self.pattern, self.above, self.shared, self.no_local

    @property
    def ordering(self) -> Ordering:
        return ORDERINGS.get(self.pattern, Ordering.NONE)

    def takes(self, letter: Letter, life: int) -> bool:
        if letter.topic not in PATTERNS[self.pattern] or (self.above is not None and letter.n <= self.above):
            return False
        if not self.no_local:
            return True
        if self.durable:
            return not letter.client or letter.client != self.client
        return (letter.life, letter.connection) != (life, self.connection)


@dataclass
class Consumer:
    number: int
    session: int
    sub: Sub
    messages: int = 0
    nbytes: int = 0


@dataclass
class Session:
    number: int
    connection: int
    consumers: list[int] = field(default_factory=list)
    handed: dict[int, tuple[int, Sub, Owed]] = field(default_factory=dict)
    """Consumer, subscription and claim of messages that were handed over, by number."""
    drafts: dict[int, Letter] = field(default_factory=dict)
    alone: int = 0
    """The number of the message that came alone, if nothing may come beside it."""
    alone_us: tuple[int, int] = (0, 0)
    """The times between which it was handed over."""
    touched_us: int = 0
    """The last time at which something was done that can lead to a hand-over, or one was reported."""
    suspects: set[int] = field(default_factory=set)
    """The numbers of all messages that came alone."""

    def waits(self, now: int) -> bool:
        """Return True if a message certainly came alone less than a second ago."""
        return self.alone in self.handed and now < self.alone_us[0] + ALONE_US

    def may_wait(self, now: int) -> bool:
        """Return True if a message perhaps came alone less than a second ago."""
        return self.alone in self.handed and now < self.alone_us[1] + ALONE_US


@dataclass
class Command:
    """A command without an answer yet."""

    letters: list[Letter] = field(default_factory=list)
    acked: list[tuple[int, int, int, Sub, Owed]] = field(default_factory=list)
    """Session, number, consumer, subscription and what."""
    commit: bool = False
    made: Sub | None = None
    ended: Sub | None = None
    retried: tuple[Owed, int] | None = None
    """A claim that was tried again, and the number of hand-overs that are counted with the answer."""


def _is_seen(owed: Owed) -> bool:
    return owed.told + (owed.anchor or 0) > 0


class Model:
    """One host, as its users see it."""

    def __init__(self, *, messages_max: int, pins_max: int) -> None:
        self.now = 0
        self.life = 0
        self._messages_max, self._pins_max = messages_max, pins_max
        self._place = 0
        self.letters: dict[bytes, Letter] = {}
        self.connections: dict[int, str] = {}
        self.sessions: dict[int, Session] = {}
        self.consumers: dict[int, Consumer] = {}
        self.subs: list[Sub] = []
        self.commands: dict[int, Command] = {}
        self.answered: set[int] = set()
        self._delivered: set[bytes] = set()
        self._number = 0
        self._subs_peak = 1
        self._expected: list[Letter] = []
        """Sent by the work that is being done, and not named yet."""
        self._lost: Counter[tuple[str, bytes]] = Counter()
        """Claims whose copies are perhaps gone, so that this may be reported."""
        self._replaced: list[Sub] = []
        """Subscriptions that were replaced, in this life."""
        self._untold: Counter[tuple[str, bytes]] = Counter()
        """Claims whose copies are certainly gone, so that this must be reported."""
        self._takes: dict[type, Callable[[Any], None]] = {
            Published: self._published, Stored: self._stored, Dropped: self._dropped,
            Delivered: self._tell_delivered, Handed: self._handed, ClaimLost: self._claim_lost, Done: self._done,
        }  # fmt: skip

    # --- publishing ----------------------------------------------------------------------------------------

    def send(self, letters: Iterable[Letter]) -> None:
        """Note that these are published next, in this order."""
        self._expected += letters

    def _published(self, event: Published) -> None:
        letter = self._expected.pop(0)
        self._place += 1
        letter.id, letter.place, letter.here = event.descriptor.id, self._place, True
        assert event.descriptor.destination == letter.topic
        if letter.ordering and letter.deadline is not None:
            # The order gives it its date, which may be later than now.
            assert event.descriptor.created_us >= self.now
            letter.deadline = event.descriptor.created_us + letter.lifetime
        assert event.descriptor.deadline_us == letter.deadline
        self.letters[letter.id] = letter
        letter.wanted = bool(self._replaced)
        for sub in self.subs:
            # Perhaps another one has its name, which wanted something else.
            letter.wanted = letter.wanted or sub.stands is Truth.PERHAPS
            if sub.takes(letter, self.life):
                self._owe(sub, letter, must=sub.stands is Truth.YES)

    def _owe(self, sub: Sub, letter: Letter, *, must: bool) -> None:
        known = sub.owed.get(letter.id)
        letter.wanted = True
        letter.claimed = letter.claimed or must
        if known is not None:
            known.must = must
            return
        again = letter.handed_by_gone or self._is_held_for_gone(letter)
        sub.owed[letter.id] = Owed(letter, must, must_flag=again, may_flag=again or letter.claimed_before)
        standing = [each for each in sub.owed.values() if each.letter.here and each.acked is not Truth.YES]
        sub.peak = max(sub.peak, len(standing))

    def _is_held_for_gone(self, letter: Letter) -> bool:
        """Return True if a session has it of a subscription that is gone, and saw it."""
        handed = [each for session in self.sessions.values() for each in session.handed.values()]
        return any(owed.letter is letter and sub.stands is Truth.NO and _is_seen(owed) for _, sub, owed in handed)

    def _gone(self, letter: Letter) -> None:
        letter.here = False
        for sub, owed in self._claims(letter):
            del sub.owed[letter.id]
            for session in self.sessions.values():
                session.handed = {n: each for n, each in session.handed.items() if each[2] is not owed}
        for session in self.sessions.values():
            session.handed = {n: each for n, each in session.handed.items() if each[2].letter is not letter}

    def _claims(self, letter: Letter) -> list[tuple[Sub, Owed]]:
        return [(sub, owed) for sub in self.subs if (owed := sub.owed.get(letter.id)) is not None]

    # --- consuming -----------------------------------------------------------------------------------------

    def standing(self, key: tuple[str, str, bool]) -> Sub | None:
        return next((each for each in self.subs if each.name and each.key == key), None)

    def consume(self, command: int, consumer: int, session: int, sub: Sub) -> None:
        """Note that a consumer was made; `sub` is its subscription."""
        known = self.standing(sub.key) if sub.name else None
        made = None
        if known is not None and known.asked == sub.asked:
            if known.stands is Truth.PERHAPS:
                known.stands = Truth.YES
                self._look(known, perhaps=True)
                made = known
            sub = known
        else:
            if known is not None:
                self.end(known)
                self._replaced.append(known)
            self.subs.append(sub)
            self._subs_peak = max(self._subs_peak, len(self.subs))
            self._look(sub, perhaps=False)
            made = sub
        sub.consumers.append(consumer)
        self.consumers[consumer] = Consumer(consumer, session, sub)
        self.sessions[session].consumers.append(consumer)
        self.commands[command] = Command(made=made if sub.durable else None)

    def _look(self, sub: Sub, *, perhaps: bool) -> None:
        """Claim messages for a subscription that begins; `perhaps`: that of an earlier life may still exist."""
        for letter in self.letters.values():
            if not letter.alive(self.now) or not sub.takes(letter, self.life):
                continue
            if perhaps and (known := sub.owed.get(letter.id)) is not None and known.acked is Truth.YES:
                continue
            if letter.acknowledged is Truth.NO and all(not acks for acks in self._pending(letter)):
                # Of what has an order, that to which nobody had a claim is passed over today.
                self._owe(sub, letter, must=letter.claimed or not letter.ordering)
            elif letter.acknowledged is not Truth.YES or perhaps:
                self._owe(sub, letter, must=False)
        for owed in sub.owed.values() if perhaps else ():
            owed.exact = False

    def _pending(self, letter: Letter) -> Iterator[list[Owed]]:
        for command in self.commands.values():
            yield [owed for *_, owed in command.acked if owed.letter is letter]

    def credit(self, consumer: int, messages: int, nbytes: int) -> None:
        self.sessions[self.consumers[consumer].session].touched_us = self.now
        self.consumers[consumer].messages += messages
        self.consumers[consumer].nbytes += nbytes

    def end(self, sub: Sub) -> None:
        """A subscription is no more."""
        if sub in self.subs:
            self.subs.remove(sub)
        sub.stands = Truth.NO
        held = {id(owed) for session in self.sessions.values() for _, _, owed in session.handed.values()}
        held |= {id(owed) for command in self.commands.values() for *_, owed in command.acked}
        for owed in sub.owed.values():
            self._leave_behind(owed, certain=id(owed) not in held)

    def _leave_behind(self, owed: Owed, *, certain: bool = True) -> None:
        """Leave behind a claim that no consumer will get again.

        A later subscriber gets it, flagged if it was handed over.
        """
        if _is_seen(owed) and owed.acked is Truth.NO:
            owed.letter.claimed_before = True
            if certain:
                owed.letter.handed_by_gone = True
        if not owed.exact:
            owed.letter.claimed_before = True

    def give_back(self, session: Session, numbers: Collection[int], unread: Collection[int]) -> None:
        """A session has these no more."""
        for number in list(numbers):
            _, sub, owed = session.handed.pop(number)
            self._settle(session, number)
            owed.holder, owed.accompanied = None, False
            if number in unread:
                owed.told -= 1
            if sub.stands is Truth.NO:
                self._leave_behind(owed)

    def _settle(self, session: Session, number: int) -> None:
        session.touched_us = self.now
        if session.alone == number:
            session.alone = 0

    def retry(self, command: int, session: Session, number: int, count: int) -> None:
        """Note that a program tries a message again, which was counted so far."""
        owed = session.handed[number][2]
        self.commands[command] = Command(retried=(owed, 1 + owed.accompanied) if count else None)
        if not count:
            assert owed.letter.is_over(self.now), "it is here, and cannot be tried again"
            return
        owed.told += 1
        owed.accompanied = False
        assert owed.anchor is not None
        assert count == owed.anchor + owed.told, "the count is wrong"

    def _mix(self, sub: Sub) -> None:
        """Note that one of several consumers returned its messages: those on their way to others come first."""
        for owed in sub.owed.values() if sub.shared else ():
            owed.late = owed.late or owed.holder is None

    def close_consumer(self, consumer: int, unread: Collection[int] = ()) -> None:
        found = self.consumers.pop(consumer)
        session, sub = self.sessions[found.session], found.sub
        mine = [number for number in unread if session.handed.get(number, (0,))[0] == consumer]
        self.give_back(session, mine, unread)
        session.consumers.remove(consumer)
        sub.consumers.remove(consumer)
        self._mix(sub)
        if not sub.durable and not sub.consumers:
            self.end(sub)

    def commits(self, session: int) -> bool:
        """Return True if a commit of a session is not answered."""
        return any(each[0] == session for command in self.commands.values() if command.commit for each in command.acked)

    def recover(self, session: int, unread: Collection[int] = ()) -> None:
        found = self.sessions[session]
        self.give_back(found, found.handed, unread)
        for consumer in found.consumers:
            self._mix(self.consumers[consumer].sub)

    def close_session(self, session: int, unread: Collection[int] = ()) -> None:
        found = self.sessions[session]
        self.give_back(found, found.handed, unread)
        for consumer in found.consumers[:]:
            self.close_consumer(consumer)
        del self.sessions[session]

    # --- works ---------------------------------------------------------------------------------------------

    def work(
        self, number: int, letters: list[Letter], acks: list[tuple[int, Collection[int]]], *, commit: bool
    ) -> None:
        """A work begins; it sends `letters` and acknowledges what these sessions have under these numbers."""
        command = self.commands[number] = Command(letters, commit=commit)
        self.send(letters)
        for session, numbers in acks:
            for handed in numbers:
                consumer, sub, owed = self.sessions[session].handed.pop(handed)
                self._settle(self.sessions[session], handed)
                command.acked.append((session, handed, consumer, sub, owed))

    def _done(self, event: Done) -> None:
        command = self._answer(event.number)
        for *_, owed in command.acked:
            self._acknowledge(owed, Truth.YES)
        for letter in command.letters:
            letter.answered = True

    def _acknowledge(self, owed: Owed, acked: Truth) -> None:
        owed.acked, owed.holder = acked, None
        owed.letter.acks.append(owed)
        if acked is Truth.YES:
            owed.letter.handed_by_gone = owed.letter.claimed_before = False

    def _not_acknowledged(self, command: Command) -> None:
        for session, number, consumer, sub, owed in command.acked:
            if not owed.letter.here:
                if owed.letter.evicted and not owed.letter.is_over(self.now):
                    self._lose(sub, owed)
                continue
            owed.late = True
            if sub.stands is Truth.NO and _is_seen(owed):
                for _, other in self._claims(owed.letter):  # Of those who came meanwhile.
                    other.must_flag = other.may_flag = True
            if session in self.sessions:
                self.sessions[session].handed[number] = consumer, sub, owed
                continue
            owed.holder = None
            if sub.stands is Truth.NO:
                self._leave_behind(owed)

    def _answer(self, number: int) -> Command:
        assert number not in self.answered, f"{number} was answered before"
        self.answered.add(number)
        return self.commands.pop(number)

    # --- events --------------------------------------------------------------------------------------------

    def observe(self, events: Iterable[Event]) -> None:
        """Check these events, in this order."""
        self._handed_now: set[bytes] = set()
        self._lost_now: Counter[tuple[str, bytes]] = Counter()
        for event in events:
            take = self._takes.get(type(event))
            if take is not None:
                take(event)
        assert self._handed_now <= self._delivered, "handed over, and not said to be delivered"
        assert not self._lost_now - self._lost, "a claim is said to be lost that was none"
        self._lost -= self._lost_now
        self._untold -= self._lost_now

    def _stored(self, event: Stored) -> None:
        self.letters[event.message].answered = True

    def _tell_delivered(self, event: Delivered) -> None:
        for delivery in event.deliveries:
            assert delivery.message not in self._delivered, "delivered twice"
            self._delivered.add(delivery.message)

    def _claim_lost(self, event: ClaimLost) -> None:
        key = event.subscription, event.descriptor.id
        self._lost_now[key] += 1
        assert self._lost_now[key] <= self._lost[key], "said to be lost, and it is not"

    def _dropped(self, event: Dropped) -> None:
        for descriptor in event.descriptors:
            self._drop(self.letters[descriptor.id], event.reason)

    def _drop(self, letter: Letter, reason: Reason) -> None:
        if reason is Reason.EVICTED:
            self._evict(letter)
        elif reason is Reason.EXPIRED:
            assert letter.deadline is not None, "expired, and it has no end"
            assert letter.deadline <= self.now, "expired before its end"
        self._gone(letter)

    def _evict(self, letter: Letter) -> None:
        """Note an eviction. Its subscriptions are informed, also ended ones whose session has the message."""
        here = [each for each in self.letters.values() if each.here]
        assert len(here) >= self._messages_max, "evicted, and there is room"
        letter.evicted = True
        pending = [owed for command in self.commands.values() for *_, owed in command.acked]
        for sub, owed in self._claims(letter):
            if owed.acked is not Truth.YES and not any(owed is each for each in pending):
                fair = self._pins_max // self._subs_peak
                assert not owed.must or sub.peak > fair, "it had no more than its part of the pins"
                self._lose(sub, owed)
        for session in self.sessions.values():
            for _, sub, owed in session.handed.values():
                if owed.letter is letter and sub.stands is Truth.NO:
                    self._lose(sub, owed)
        for sub in [*self._replaced, *(each for each in self.subs if each.stands is Truth.PERHAPS)]:
            self._lost[sub.name, letter.id] += 1  # It stands until its successor is durable.

    def _lose(self, sub: Sub, owed: Owed) -> None:
        name = sub.name or sub.pattern
        self._lost[name, owed.letter.id] += 1
        self._untold[name, owed.letter.id] += owed.must and owed.acked is Truth.NO

    def _handed(self, event: Handed) -> None:
        assert event.number > self._number, "numbers rise"
        self._number = event.number
        self._handed_now.add(event.message)
        assert event.consumer in self.consumers, "handed to nobody"
        consumer, letter = self.consumers[event.consumer], self.letters[event.message]
        sub = consumer.sub
        assert consumer.messages > 0, "more than there was credit for"
        assert consumer.nbytes > 0, "more bytes than there was credit for"
        consumer.messages -= 1
        consumer.nbytes -= letter.size
        assert letter.alive(self.now), "handed over dead"
        assert letter.due <= self.now, "handed over before its time"
        assert event.unordered is (bool(sub.ordering) and letter.ordering is not sub.ordering)
        owed = sub.owed.get(letter.id)
        assert owed is not None, "nobody asked for it, or somebody acknowledged it before"
        assert owed.acked is not Truth.YES, "acknowledged, and is delivered again"
        pending = [each[-1] for command in self.commands.values() for each in command.acked]
        assert not any(owed is each for each in pending), "acknowledged, and is delivered again"
        assert owed.holder is None, "somebody has it"
        session = self.sessions[consumer.session]
        assert not session.waits(self.now), "it comes beside what comes alone"
        assert event.alone or not owed.doubtful, "an earlier life had it, and it does not come alone"
        assert not event.alone or (sub.durable and event.count > 1), "it comes alone, and nobody had it"
        session.alone = event.number if event.alone else 0
        session.alone_us, session.touched_us = (session.touched_us, self.now), self.now
        owed.accompanied = event.alone and not session.suspects.isdisjoint(session.handed)
        session.suspects.update((event.number,) if event.alone else ())
        self._check_order(sub, owed)
        self._check_count(owed, event.count)
        if owed.acked is Truth.PERHAPS:
            owed.acked = Truth.NO
            letter.acks = [each for each in letter.acks if each is not owed]
        owed.told += 1
        owed.holder, owed.must, owed.fresh = event.number, True, False
        session.handed[event.number] = event.consumer, sub, owed

    def _check_order(self, sub: Sub, owed: Owed) -> None:
        letter = owed.letter
        if self._is_delayed(letter):
            return
        for other in sub.owed.values():
            earlier = other.letter
            if (
                other.must and other.holder is None and other.acked is Truth.NO and not other.late
                and earlier.alive(self.now) and not self._is_delayed(earlier)
                and (earlier.topic, earlier.ordering) == (letter.topic, letter.ordering)
                and (letter.ordering or earlier.line == letter.line)
                and (other.fresh and owed.fresh if sub.shared else True)
            ):  # fmt: skip
                assert earlier.place >= letter.place, f"{letter.id!r} overtook {earlier.id!r}"

    def _is_delayed(self, letter: Letter) -> bool:
        return letter.due > 0

    def _check_count(self, owed: Owed, count: int) -> None:
        if owed.anchor is None:
            assert count > 1 or not owed.must_flag, "it comes again, and does not say so"
            assert count == 1 or owed.may_flag or not owed.exact, (
                f"{owed.letter.id!r} says that it comes again, and nobody had it"
            )
            owed.anchor = count - 1 - owed.told
        elif owed.exact:
            assert count == owed.anchor + owed.told + 1, "the count is wrong"
        else:
            assert count >= owed.anchor + owed.told + 1, "the count is too low"
            owed.anchor = count - 1 - owed.told
        owed.exact = True

    # --- crashes -------------------------------------------------------------------------------------------

    def crash(self, here: Collection[bytes], *, settled: bool) -> None:
        """Note that the host began anew, with these messages. `settled`: everything was written."""
        self.life += 1
        self._number = 0
        for letter in self.letters.values():
            self._come_back(letter, there=letter.id in here, settled=settled, full=len(here) >= self._messages_max)
        for session in self.sessions.values():
            for _, sub, owed in session.handed.values():
                owed.holder = None
                owed.told -= owed.accompanied
                owed.accompanied = False
                if sub.stands is Truth.NO:
                    self._leave_behind(owed)
        self.sessions, self.connections, self.consumers = {}, {}, {}
        for command in self.commands.values():
            self._resolve(command, here)
        self.commands = {}
        for sub in self.subs[:]:
            self._survive(sub, settled=settled)
        for letter in self.letters.values():
            if letter.here and letter.id not in here:
                self._gone(letter)
            letter.answered = True
            letter.claimed_before = letter.claimed_before or letter.wanted
        self._lost.clear()
        self._replaced = []
        self._untold.clear()

    def _come_back(self, letter: Letter, *, there: bool, settled: bool, full: bool) -> None:
        if letter.alive(self.now) and letter.answered:
            # What should have been deleted, and was not, may take its place.
            assert there or (full and not settled), "stored, and gone with the crash"
        if letter.here or not there:
            return
        assert not settled, "gone, and back with the crash"
        assert not letter.failed, "never sent, and back with the crash"
        letter.here = letter.claimed_before = True
        for sub in self.subs:
            if sub.durable and sub.takes(letter, self.life):
                self._owe(sub, letter, must=False)
                sub.owed[letter.id].exact = False

    def _survive(self, sub: Sub, *, settled: bool) -> None:
        sub.consumers = []
        for owed in sub.owed.values():
            owed.letter.handed_by_gone |= owed.told > 0 and owed.acked is Truth.NO
            owed.exact &= settled
            owed.doubtful = owed.exact and _is_seen(owed)
            owed.holder = None
        if not sub.durable:
            self.end(sub)

    def _resolve(self, command: Command, here: Collection[bytes]) -> None:
        """Of a command that was not answered either all or nothing is there."""
        found = {letter.id in here for letter in command.letters if letter.here and letter.deadline is None}
        assert len(found) <= 1, "a part of a work"
        if command.commit and found == {False}:
            self._not_acknowledged(command)
        else:
            acked = Truth.YES if command.commit and found == {True} else Truth.PERHAPS
            for *_, owed in command.acked:
                self._acknowledge(owed, acked)
        if command.retried is not None:
            owed, counted = command.retried
            owed.told -= counted
            owed.exact = False
        sub = command.made or command.ended
        if sub is not None and (sub.stands is not Truth.NO or command.ended):
            other = self.standing(sub.key)
            if other is None or other is sub:
                self._doubt(sub)

    def _doubt(self, sub: Sub) -> None:
        """Note that a subscription, or the one whose name it was to have, may or may not exist."""
        if sub not in self.subs:
            self.subs.append(sub)
        sub.stands = Truth.PERHAPS
        for owed in sub.owed.values():
            owed.must = owed.exact = False

    # --- in the end ----------------------------------------------------------------------------------------

    def check_complete(self) -> None:
        """Check, after the disk has caught up and enough time, that nothing is left that could be handed over."""
        assert not self._expected
        assert not self.commands, f"never answered: {self.commands}"
        assert not +self._untold, f"lost, and that was not told: {self._untold}"
        for sub in self.subs:
            hungry = [
                each for number in sub.consumers
                if (each := self.consumers[number]).messages > 0 and each.nbytes > 0
                and not self.sessions[each.session].may_wait(self.now)
            ]  # fmt: skip
            for owed in sub.owed.values() if hungry else ():
                waits = owed.must and owed.acked is Truth.NO and owed.holder is None
                assert not (waits and owed.letter.alive(self.now) and owed.letter.due <= self.now), "it is skipped"
