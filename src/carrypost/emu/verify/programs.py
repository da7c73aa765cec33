"""Programs that use messaging in drawn runs, and accounts of what their subscriptions may and must be handed.

The programs subscribe in every way, acknowledge, commit, recover, come and go. On every node every topic has a
subscriber throughout, as the rules for records require: the plain application of workloads, or a consumer of messaging
that is never closed. Beside those there are subscriptions of all kinds. Programs act at random when they are notified
of something. Where a run must reach the flood bound they only consume. The faults that they find are in `problems`.

An account is kept beside the hosts, from their events. It knows the promises of messaging and nothing of their
implementation. A message whose acknowledgement is durable never comes again, neither to that subscription nor to a
later one. A message that comes again has a higher count. No consumer is handed more than it has credit for. A message
that was reported as a delivery while a subscription existed is handed to that subscription, unless the message expires
before.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from carrypost.chance import stream
from carrypost.emu.engine.driver import EmulatedDriver, NodeState
from carrypost.errors import InvalidDestinationException, OrderError, ResourceAllocationException
from carrypost.gossip.draft import Draft
from carrypost.gossip.holdings.cache import CopyState
from carrypost.gossip.wire.pieces import Blank
from carrypost.log.events import Delivered, Done, Dropped, Event, Expired, Handed, Published
from carrypost.log.journal import MESSAGE
from carrypost.messaging import commands as do
from carrypost.messaging.commands import Ack, Subscribe, UnitOfWork
from carrypost.model.address import exactly
from carrypost.model.descriptor import Descriptor, Ordering
from carrypost.model.headers import Headers
from carrypost.model.ids import MessageId, shown
from carrypost.model.pattern import entry


@dataclass(slots=True)
class Account:
    """The account of one subscription; of a durable one, through all lives of its node."""

    topic: str
    strange: frozenset[MessageId] = frozenset()
    """Acknowledged on this node before it was made: it has no claim to these."""
    counts: dict[MessageId, int] = field(default_factory=dict)
    """Number of times that it was handed each message."""
    acknowledged: set[MessageId] = field(default_factory=set)
    """For good."""
    owed: dict[MessageId, Descriptor] = field(default_factory=dict)
    """Delivered to the node while it stood, and not handed over yet."""
    doubtful: bool = False
    """True if only the host knows whether there is such a subscription."""

    def delivered(self, descriptor: Descriptor) -> None:
        """Note a delivery to the node, which may have handed the message over already.

        A subscription that may not exist has no claim: others may acknowledge the message before the subscription is
        made.
        """
        if not self.doubtful and descriptor.destination == self.topic and descriptor.id not in self.counts:
            self.owed[descriptor.id] = descriptor

    def handed(self, event: Handed) -> list[str]:
        """Check a message that is handed over; returns what is wrong with it."""
        message, name = event.message, shown(event.message)
        self.owed.pop(message, None)
        found = []
        if event.descriptor.destination != self.topic:
            found.append(f"{name} is of {event.descriptor.destination}, not of {self.topic}")
        if message in self.acknowledged:
            found.append(f"{name} was acknowledged, and is delivered again")
        if message in self.strange:
            found.append(f"{name} was acknowledged before the subscription was made, and is delivered nevertheless")
        before = self.counts.get(message, 0)
        # A crash counts against the first doubtful message of a program: the others repeat their counts.
        if event.count < before or (event.count == before and not event.alone):
            found.append(f"{name} comes with count {event.count}, as it did before")
        self.counts[message] = event.count
        return found

    def start_anew(self) -> None:
        """Note a crash before the answer to making or ending the subscription: it may be another one now."""
        self.doubtful = True
        self.strange = frozenset()
        self.counts.clear()
        self.owed.clear()

    def unread(self, message: MessageId) -> None:
        """Note that it was given back, and no program saw it."""
        if message in self.counts:
            self.counts[message] -= 1

    def forget(self, messages: Iterable[MessageId], *, forgetful: bool) -> None:
        """Copies are gone: what is received anew counts anew. A forgetful host does not know what was acknowledged."""
        for message in messages:
            self.owed.pop(message, None)
            self.counts.pop(message, None)
            if forgetful:
                self.acknowledged.discard(message)

    def overdue(self, now: int) -> list[str]:
        """Return the messages that a consumer with credit should have had by now."""
        return [
            f"{each.shown} was delivered, is alive, and was not handed over"
            for each in self.owed.values()
            if each.alive(now) and each.due_us < now
        ]


_BYTES = 1_000_000_000
_SENDS_MAX = 8
"""Largest number of units of work with sends of one node: consumers may send again for each message."""
_ACT, _SELDOM, _HALF = 0.15, 0.1, 0.5
_DELAY_US = 3_000_000
_GONE = (CopyState.UNKNOWN, CopyState.DONE, CopyState.DECLINED)


class PlannedSubscription(NamedTuple):
    """A subscription that a node's programs have, at times or throughout."""

    number: int
    topic: int
    asked: Subscribe
    client: str
    seats: int
    """Consumers of it."""
    credit: int
    standing: bool
    """Never closed."""


@dataclass(slots=True, eq=False)
class Seat:
    """One consumer in one life of its node."""

    wish: PlannedSubscription
    account: Account
    connection: int
    session: int
    credit: int
    inbox: dict[int, MessageId] = field(default_factory=dict)
    """Messages that it has and did not acknowledge."""
    alone: int = 0
    """The number of what came alone: it is owed nothing else until it acknowledged that."""


@dataclass(slots=True)
class OpenWork:
    """A unit of work, or another command, that was not answered."""

    acks: list[tuple[Seat, int, MessageId]]
    seat: int = 0
    """The consumer that a command made."""
    wish: PlannedSubscription | None = None
    """The subscription that a command made or ended."""
    labels: frozenset[str] = frozenset()
    messages: set[MessageId] = field(default_factory=set)


@dataclass(slots=True)
class NodePrograms:
    """The state of one node's programs."""

    driver: EmulatedDriver
    wishes: list[PlannedSubscription]
    plain: list[int]
    """Topics to which the plain application subscribes."""
    chance: random.Random
    accounts: dict[PlannedSubscription, Account] = field(default_factory=dict)
    """Of durable subscriptions, and of live ones that are open."""
    seats: dict[int, Seat] = field(default_factory=dict)
    open: dict[int, OpenWork] = field(default_factory=dict)
    gone: set[MessageId] = field(default_factory=set)
    """Copies that left in this life."""
    acknowledged: set[MessageId] = field(default_factory=set)
    number: int = 0
    sends: int = 0


class Programs:
    """The application of every node of one run."""

    def __init__(
        self, topics: Sequence[str], observe: Callable[[EmulatedDriver, Event], None], *, seed: int,
        orderings: Sequence[Ordering], calm: bool, forgetful: bool,
    ) -> None:  # fmt: skip
        self.problems: list[str] = []
        self.handed = 0
        """Number of messages that were handed over."""
        self._topics, self._observe, self._orderings = topics, observe, orderings
        self._seed, self._calm = seed, calm
        self._forgetful = forgetful
        """Hosts remember fewer ids than there are: what was acknowledged may come again."""
        self._places: dict[str, NodePrograms] = {}

    # --- the life of a node --------------------------------------------------------------------------------

    def started(self, driver: EmulatedDriver) -> None:
        """Wake messaging on a new host, and make the permanent and some other subscriptions."""
        place = self._places.get(driver.name)
        if place is None:
            place = self._places[driver.name] = self._draw(driver)
        self._whole_or_not(place)
        for work in place.open.values():
            if work.wish is not None:  # Whether it was made, or ended, only the host knows.
                account = place.accounts.setdefault(work.wish, Account(self._topics[work.wish.topic]))
                account.start_anew()
        place.seats, place.open, place.gone = {}, {}, set()
        place.accounts = {wish: account for wish, account in place.accounts.items() if wish.asked.durable}
        driver.host.messaging.open(driver.now)
        for topic in place.plain:
            driver.host.subscribe(exactly(self._topics[topic]), now=driver.now)
        for wish in place.wishes:
            if wish.standing or self._calm or place.chance.random() < _HALF:
                self._open(place, wish)

    def _draw(self, driver: EmulatedDriver) -> NodePrograms:
        chance = stream(self._seed, driver.name, "programs")
        wishes: list[PlannedSubscription] = []
        plain: list[int] = []
        for topic in range(len(self._topics)):
            standing = chance.random() < _HALF
            if standing:
                wishes.append(self._wish(chance, topic, len(wishes), standing=True))
            else:
                plain.append(topic)
            wishes += [self._wish(chance, topic, len(wishes) + more) for more in range(chance.randrange(3))]
        return NodePrograms(driver, wishes, plain, chance)

    def _wish(self, chance: random.Random, topic: int, number: int, *, standing: bool = False) -> PlannedSubscription:
        durable, shared = (False, False) if standing else chance.choice(_KINDS)
        selector = chance.choice((None, None, "colour IS NULL"))
        asked = Subscribe(
            entry(exactly(self._topics[topic]), selector), self._orderings[topic],
            f"s{number}" if durable or shared else "", durable, shared,
        )  # fmt: skip
        seats = chance.randrange(1, 4) if shared else 1
        client = f"c{number}" if durable and not shared else ""
        return PlannedSubscription(number, topic, asked, client, seats, chance.choice((1, 3, 1_000)), standing)

    def _open(self, place: NodePrograms, wish: PlannedSubscription) -> None:
        driver, messaging = place.driver, place.driver.host.messaging
        for _ in range(wish.seats):
            connection = messaging.execute(do.Connect(wish.client), driver.now)
            session = messaging.execute(do.OpenSession(connection), driver.now)
            number = self._next(place)
            consumer = messaging.execute(do.Consume(session, wish.asked), driver.now, number)
            account = place.accounts.get(wish)
            if account is None:
                strange = frozenset() if self._forgetful else frozenset(place.acknowledged)
                account = place.accounts[wish] = Account(self._topics[wish.topic], strange)
            account.doubtful = False
            place.seats[consumer] = Seat(wish, account, connection, session, 0)
            place.open[number] = OpenWork([], seat=consumer, wish=wish)
            self._credit(place, consumer, wish.credit)

    def _next(self, place: NodePrograms) -> int:
        place.number += 1
        return place.number

    def _credit(self, place: NodePrograms, consumer: int, messages: int) -> None:
        place.seats[consumer].credit += messages
        place.driver.host.messaging.execute(do.Credit(consumer, messages, _BYTES), place.driver.now)

    def _whole_or_not(self, place: NodePrograms) -> None:
        """Note a crash before some units of work were answered: the store has all messages of each, or none."""
        stored = {key[1] for key, _ in place.driver.store.state() if key[0] == MESSAGE}
        for work in place.open.values():
            kept = work.messages - place.gone
            if kept and len(work.messages) == len(work.labels) and 0 < len(kept & stored) < len(kept):
                self._complain(place, f"half of a unit of work is in the store: {sorted(map(shown, kept & stored))}")

    # --- events --------------------------------------------------------------------------------------------

    def handle_event(self, driver: EmulatedDriver, event: Event) -> None:
        """Handle an event of the host."""
        place = self._places[driver.name]
        if type(event) is Delivered:
            mine = [each.message for each in event.deliveries if each.subscriptions]
            if mine:
                driver.host.confirm(mine, driver.now)
            self._owe(place, event)
        self._observe(driver, event)
        if isinstance(event, Handed):
            self._handed(place, event)
        elif isinstance(event, Done):
            self._answered(place, event)
        elif isinstance(event, Dropped | Expired):
            self._forget(place, {each.id for each in event.descriptors})
        elif isinstance(event, Published) and event.descriptor.label:
            for work in place.open.values():
                if event.descriptor.label in work.labels:
                    work.messages.add(event.descriptor.id)
        self._go_on(place)

    def _go_on(self, place: NodePrograms) -> None:
        """Do something of one's own, now and then."""
        if not self._calm and place.chance.random() < _ACT:
            place.driver.later(partial(place.chance.choice(_ACTIONS), self, place))

    def _owe(self, place: NodePrograms, event: Delivered) -> None:
        for delivery in event.deliveries:
            if not (delivery.known or delivery.redelivered or delivery.descriptor.joins):
                for account in place.accounts.values():
                    account.delivered(delivery.descriptor)

    def _forget(self, place: NodePrograms, messages: set[MessageId]) -> None:
        """Copies are gone, and all claims with them; an acknowledgement that came later meant nothing."""
        place.gone |= messages
        for account in place.accounts.values():
            account.forget(messages, forgetful=self._forgetful)
        for seat in place.seats.values():
            seat.inbox = {number: each for number, each in seat.inbox.items() if each not in messages}
        for work in place.open.values():
            work.acks = [ack for ack in work.acks if ack[2] not in messages]

    def _handed(self, place: NodePrograms, event: Handed) -> None:
        self.handed += 1
        seat = place.seats.get(event.consumer)
        if seat is None:
            self._complain(place, f"consumer {event.consumer} is closed, and is handed {event.descriptor.shown}")
            return
        seat.credit -= 1
        if seat.credit < 0:
            self._complain(place, f"{event.descriptor.shown} is handed over without credit")
        for problem in seat.account.handed(event):
            self._complain(place, problem)
        seat.inbox[event.number] = event.message
        if event.alone:
            seat.alone = event.number
        if self._calm or place.chance.random() < _HALF:
            self._acknowledge(place, event.consumer, [event.number])

    def _answered(self, place: NodePrograms, event: Done) -> None:
        work = place.open.pop(event.number, None)
        if work is None:
            self._complain(place, f"{type(event).__name__} of {event.number}, which was answered, or never asked for")
        else:
            for seat, _, message in work.acks:
                seat.account.acknowledged.add(message)
                place.acknowledged.add(message)

    def _complain(self, place: NodePrograms, text: str) -> None:
        if len(self.problems) < _SENDS_MAX:
            self.problems.append(f"{place.driver.name} at {place.driver.t_us / 1e6:.6f} s: {text} (programs)")

    # --- what programs do ----------------------------------------------------------------------------------

    def _acknowledge(self, place: NodePrograms, consumer: int, numbers: list[int], *, through: bool = False) -> None:
        seat = place.seats[consumer]
        done = [number for number in seat.inbox if number <= max(numbers)] if through else numbers
        acks = [(seat, number, seat.inbox.pop(number)) for number in done]
        ack = Ack(seat.session, through=max(numbers)) if through else Ack(seat.session, tuple(numbers))
        number = self._next(place)
        place.open[number] = OpenWork(acks)
        place.driver.host.perform(UnitOfWork(number, acks=(ack,)), place.driver.now)
        self._credit(place, consumer, len(done))

    def acknowledge_all(self, place: NodePrograms) -> None:
        """Let a session acknowledge all that it was handed so far."""
        consumer = self._somebody(place)
        if consumer is not None and place.seats[consumer].inbox:
            self._acknowledge(place, consumer, [max(place.seats[consumer].inbox)], through=True)

    def commit(self, place: NodePrograms) -> None:
        """Let a session send, and acknowledge with it; some of what it sends was drafted before."""
        consumer, chance = self._somebody(place), place.chance
        if consumer is None or place.sends >= _SENDS_MAX:
            return
        place.sends += 1
        seat, host, now = place.seats[consumer], place.driver.host, place.driver.now
        number = self._next(place)
        drafts = [self._message(place, seat, f"{place.driver.name}-w{number}-{part}") for part in range(1, 4)]
        drafts = drafts[: chance.randrange(1, 4)]
        acks = dict(seat.inbox) if chance.random() < _HALF else {}
        work = OpenWork(
            [(seat, each, message) for each, message in acks.items()],
            labels=frozenset(each.label for each in drafts),
        )
        place.open[number] = work
        try:
            sends = [host.draft(seat.session, each, now)[0] if chance.random() < _HALF else each for each in drafts]
            if chance.random() < _SELDOM:
                host.messaging.execute(do.Rollback(seat.session), now)
                del place.open[number]
                self._give_back(place, consumer)
                return
            host.perform(UnitOfWork(number, tuple(sends), (Ack(seat.session, tuple(acks)),)), now)
        except (ResourceAllocationException, OrderError):
            del place.open[number]
            host.messaging.execute(do.Rollback(seat.session), now)
            self._give_back(place, consumer)
            return
        for each in acks:
            del seat.inbox[each]
        self._credit(place, consumer, len(acks))

    def _message(self, place: NodePrograms, seat: Seat, label: str) -> Draft:
        chance, driver = place.chance, place.driver
        size = chance.choice((0, 10, 2_000, 20_000))
        payload: bytes | Blank = chance.randbytes(size) if driver.identity.signed else Blank(size)
        later = Headers(delivery_time_us=driver.now + _DELAY_US) if chance.random() < _SELDOM else None
        return Draft(
            self._topics[seat.wish.topic], payload, {}, chance.choice((None, 5_000_000, 60_000_000)), label,
            ordering=self._orderings[seat.wish.topic], headers=later,
        )  # fmt: skip

    def recover(self, place: NodePrograms) -> None:
        """Let a session recover all that it did not acknowledge."""
        consumer = self._somebody(place)
        if consumer is not None:
            place.driver.host.messaging.execute(do.Recover(place.seats[consumer].session), place.driver.now)
            self._give_back(place, consumer)

    def _give_back(self, place: NodePrograms, consumer: int) -> None:
        inbox = place.seats[consumer].inbox
        self._credit(place, consumer, len(inbox) + place.chance.randrange(2))
        inbox.clear()

    def close(self, place: NodePrograms) -> None:
        """Note that all consumers of a subscription are gone; a live subscription ends with them."""
        wishes = list(dict.fromkeys(seat.wish for seat in place.seats.values() if not seat.wish.standing))
        if not wishes:
            return
        wish = place.chance.choice(wishes)
        for consumer, seat in list(place.seats.items()):
            if seat.wish is wish:
                self._hang_up(place, consumer)
        if not wish.asked.durable:
            place.accounts.pop(wish, None)

    def _hang_up(self, place: NodePrograms, consumer: int) -> None:
        seat = place.seats.pop(consumer)
        unread = [number for number in seat.inbox if place.chance.random() < _HALF]
        for number in unread:
            seat.account.unread(seat.inbox[number])
        place.driver.host.messaging.execute(do.Disconnect(seat.connection, unread), place.driver.now)

    def reopen(self, place: NodePrograms) -> None:
        """Make a subscription, or consume it again."""
        taken = {seat.wish for seat in place.seats.values()}
        closed = [wish for wish in place.wishes if wish not in taken]
        if closed:
            self._open(place, place.chance.choice(closed))

    def unsubscribe(self, place: NodePrograms) -> None:
        """End a durable subscription without consumers."""
        taken = {seat.wish for seat in place.seats.values()}
        idle = [wish for wish in place.accounts if wish not in taken]
        if idle and place.chance.random() < _HALF:
            wish = place.chance.choice(idle)
            account, number = place.accounts.pop(wish), self._next(place)
            place.open[number] = OpenWork([], wish=wish)
            try:
                place.driver.host.messaging.execute(
                    do.Unsubscribe(wish.client, wish.asked.name), place.driver.now, number
                )
            except InvalidDestinationException:
                del place.open[number]
                if not account.doubtful:
                    raise

    def _somebody(self, place: NodePrograms) -> int | None:
        return place.chance.choice(list(place.seats)) if place.seats else None

    # --- the end -------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Check that consumers with credit, on nodes whose disks have answered, got all their messages."""
        for place in self._places.values():
            driver = place.driver
            if driver.state is not NodeState.RUNNING or driver.store.unanswered or driver.disk.full:
                continue
            for seat in place.seats.values():
                if seat.credit > 0 and seat.alone not in seat.inbox:
                    for problem in seat.account.overdue(driver.now):
                        self._complain(place, problem)


_KINDS = ((False, False), (True, False), (True, False), (False, True), (True, True))
"""Durable or not, shared or not."""
_ACTIONS = (
    Programs.acknowledge_all, Programs.commit, Programs.commit, Programs.recover, Programs.close, Programs.reopen,
    Programs.reopen, Programs.unsubscribe,
)  # fmt: skip
