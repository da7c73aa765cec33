"""Random programs of the classic API against a model: sessions of all modes on three nodes.

Every program sends numbered messages to two queues and a topic, receives by sessions of all modes, with selectors,
acknowledges, commits, rolls back, recovers, stops, starts and closes. The model says what must hold: a message is
consumed at most once per subscription or queue, never if its send was rolled back, and flagged if it comes again.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from functools import cache
from itertools import combinations
from typing import Any

import pytest

from carrypost import IllegalStateException, JMSException, Message, SessionMode, testing
from carrypost.classic import Connection, MessageConsumer, Session

NODES = ("a", "b", "c")
MODES = (
    SessionMode.AUTO_ACKNOWLEDGE, SessionMode.CLIENT_ACKNOWLEDGE, SessionMode.DUPS_OK_ACKNOWLEDGE,
    SessionMode.SESSION_TRANSACTED,
)  # fmt: skip
BY_ITSELF = (SessionMode.AUTO_ACKNOWLEDGE, SessionMode.DUPS_OK_ACKNOWLEDGE)
STEPS = 80
SELECTORS = (None, "n >= 0", "even = TRUE", "even = FALSE")


class Model:
    """The actions of a program that bear on the messages it may receive."""

    def __init__(self) -> None:
        self.sent: set[int] = set()
        """Numbers of messages that were sent, or committed."""
        self.rolled_back: set[int] = set()
        self.given: Counter[tuple[str, int]] = Counter()
        """Number of times a message was given to a program, by queue or subscription."""
        self.consumed: Counter[tuple[str, int]] = Counter()

    def receive(self, place: str, message: Message, number: int) -> None:
        assert number in self.sent, f"{number} was not sent, or not committed"
        assert number not in self.rolled_back
        key = (place, number)
        assert not self.consumed[key], f"{number} comes again, although it was consumed"
        if self.given[key]:
            assert message.jms_redelivered, f"{number} comes again and is not flagged"
            assert message.get_int_property("JMSXDeliveryCount") > 1
        self.given[key] += 1

    def consume(self, keys: list[tuple[str, int]]) -> None:
        for key in keys:
            assert not self.consumed[key]
            self.consumed[key] += 1


class Seat:
    """One session of a program, with a consumer, and what it has received or sent and not ended."""

    def __init__(self, connection: Connection, session: Session, consumer: MessageConsumer, place: str) -> None:
        self.connection, self.session, self.consumer, self.place = connection, session, consumer, place
        self.pending: list[tuple[str, int]] = []
        self.drafts: list[int] = []
        self.last: Message | None = None
        self.mode = session.acknowledge_mode


class Program:
    """A random program."""

    def __init__(self, net: testing.Network, seed: int) -> None:
        self.net, self.chance, self.model = net, random.Random(seed), Model()
        self.connections: list[Connection] = []
        self.seats: list[Seat] = []
        self.number = 0
        self.opened = 0

    async def open(self) -> None:
        for node in NODES:
            self.connections.append(await self.net.connection(node, f"client-{node}"))
        session = await self.connections[0].create_session()
        for name in ("first", "second"):
            await session.declare_queue(name)
        await session.close()
        for connection in self.connections:
            await connection.start()
            for mode in MODES:
                await self.seat(connection, mode)

    async def seat(self, connection: Connection, mode: SessionMode) -> None:
        """Open a session with a consumer of a queue, or of a subscription of its own."""
        session = await connection.create_session(mode is SessionMode.SESSION_TRANSACTED, mode)
        self.opened += 1
        kind, selector = self.chance.choice(("first@a", "second@a", "topic")), self.chance.choice(SELECTORS)
        if kind == "topic":
            place = f"subscription-{self.opened}"
            consumer = await session.create_consumer("topic/news", selector)
        else:
            place, consumer = kind, await session.create_consumer(session.create_queue(kind), selector)
        self.seats.append(Seat(connection, session, consumer, place))

    async def run(self, steps: int) -> None:
        calls: list[Callable[[Seat], Any]] = [
            *[self.send] * 5, *[self.receive] * 8, *[self.end] * 4, *[self.again] * 2, self.stop, self.close, self.wait,
        ]  # fmt: skip
        for _ in range(steps):
            await self.chance.choice(calls)(self.chance.choice(self.seats))
        for seat in list(self.seats):
            await self.end(seat)

    # --- steps ---------------------------------------------------------------------------------------------

    async def send(self, seat: Seat) -> None:
        session = seat.session
        self.number += 1
        message = session.create_text_message(str(self.number))
        message.set_int_property("n", self.number)
        message.set_boolean_property("even", self.number % 2 == 0)
        to = self.chance.choice(("queue/first@a", "queue/second@a", "topic/news"))
        if session.transacted:
            seat.drafts.append(self.number)
        else:
            self.model.sent.add(self.number)
        await session.create_producer(to).send(message)

    async def receive(self, seat: Seat) -> None:
        message = await seat.consumer.receive(self.chance.choice((10, 2_000)))
        if message is None:
            return
        number = message.get_int_property("n")
        self.model.receive(seat.place, message, number)
        if seat.mode in BY_ITSELF:
            self.model.consume([(seat.place, number)])
        else:
            seat.pending.append((seat.place, number))
            seat.last = message

    async def end(self, seat: Seat) -> None:
        """Acknowledge or commit."""
        if seat.session.transacted:
            self.model.sent.update(seat.drafts)
            await seat.session.commit()
            seat.drafts.clear()
        elif seat.last is not None:
            await seat.last.acknowledge()
        self.model.consume(seat.pending)
        seat.pending.clear()
        seat.last = None

    async def again(self, seat: Seat) -> None:
        """Roll back or recover; in the wrong mode, that raises."""
        if seat.session.transacted:
            await seat.session.rollback()
            self.model.rolled_back.update(seat.drafts)
            with pytest.raises(IllegalStateException):
                await seat.session.recover()
        else:
            await seat.session.recover()
            with pytest.raises(IllegalStateException):
                await seat.session.commit()
        seat.pending.clear()
        seat.drafts.clear()
        seat.last = None

    async def stop(self, seat: Seat) -> None:
        await seat.connection.stop()
        assert await seat.consumer.receive(5_000) is None
        await seat.connection.start()

    async def close(self, seat: Seat) -> None:
        """Close a session, or a consumer first, and open another in its place."""
        if self.chance.random() < 0.5:
            await seat.consumer.close()
        await seat.session.close()
        self.model.rolled_back.update(seat.drafts)
        self.seats.remove(seat)
        await self.seat(seat.connection, seat.mode)

    async def wait(self, _: Seat) -> None:
        await self.net.run(30)


@cache
def played(seed: int, steps: int = STEPS) -> Model:
    """Run the program of a seed, and return what it did."""
    found: list[Model] = []

    async def play() -> None:
        settings: Any = {"messaging": {"redelivery_delay_s": 0.0, "tries": 100}}
        async with testing.network(*NODES, seed=seed, **settings) as net:
            for a, b in combinations(NODES, 2):
                net.link(a, b)
            program = Program(net, seed)
            await program.open()
            await program.run(steps)
            for connection in program.connections:
                await connection.close()
            found.append(program.model)

    testing.run(play)
    return found[0]


@pytest.mark.parametrize("seed", range(20))
def test_a_random_program_does_what_the_model_allows(seed: int) -> None:
    model = played(seed)
    assert model.sent


def test_programs_consume_redeliver_and_roll_back() -> None:
    models = [played(seed) for seed in range(3)]
    assert sum(model.consumed.total() for model in models) > 20
    assert any(count > 1 for model in models for count in model.given.values())
    assert any(model.rolled_back for model in models)


@pytest.mark.soak
def test_a_thousand_random_programs_do_what_the_model_allows() -> None:
    for seed in range(1_000):
        try:
            played.__wrapped__(seed)
        except (AssertionError, JMSException) as error:
            raise AssertionError(f"seed {seed}") from error
