"""Assignments of a manager, message by message, beside a plain search through all waiting messages."""

from __future__ import annotations

import random
from itertools import count

import pytest

from carrypost.config import Settings
from carrypost.gossip.draft import Draft
from carrypost.host import Host
from carrypost.log.events import Handed
from carrypost.messaging.commands import (
    Ack,
    Connect,
    Consume,
    Credit,
    Declare,
    DeclareQueue,
    OpenSession,
    Receive,
    Release,
    UnitOfWork,
)
from carrypost.model.headers import Headers
from carrypost.security.identity import Identity

SELECTORS = {
    None: range(6), "kind = 1": (1,), "kind = 2": (2,), "kind > 2": (3, 4, 5), "kind = 9": (),
    "JMSCorrelationID = '2'": (2,), "JMSCorrelationID  =  '4'": (4,), "JMSCorrelationID = '9'": (),
}  # fmt: skip
PLENTY = 2**40


class Manager:
    """A host with one queue, and the messages that should wait in it."""

    def __init__(self) -> None:
        self._numbers = count(1)
        self.host = Host(Identity.plain("m"), Settings.emulated(beacons=False), random.Random(1))
        self.host.start(0)
        self.host.messaging.open(0)
        self.session = self.host.messaging.execute(OpenSession(self.host.messaging.execute(Connect(), 0)), 0)
        self.queue = self.host.messaging.execute(DeclareQueue(Declare("jobs")), 0, next(self._numbers))
        self.consumers = {
            self.host.messaging.execute(
                Consume(self.session, Receive(self.queue, selector)), 0, next(self._numbers)
            ): selector
            for selector in SELECTORS
        }
        self.waiting: list[tuple[int, int, int]] = []
        """Less priority, number, kind."""
        self.sent = 0

    def handed(self) -> list[Handed]:
        found = []
        while self.host.busy:
            while (batch := self.host.changes()) is not None:
                self.host.durable(batch.serial, 0)
            self.host.outgoing()
            found += [event for event in self.host.events() if isinstance(event, Handed)]
        return found

    def send(self, kind: int, priority: int) -> None:
        self.sent += 1
        attributes, headers = {"kind": kind, "number": self.sent}, Headers(correlation=str(kind))
        draft = Draft(self.queue, b"", attributes=attributes, priority=priority, headers=headers)
        self.host.perform(UnitOfWork(next(self._numbers), sends=(draft,)), 0)
        self.waiting.append((-priority, self.sent, kind))

    def expected(self, consumer: int) -> int | None:
        kinds = SELECTORS[self.consumers[consumer]]
        number = min((each for each in self.waiting if each[2] in kinds), default=(0, None, 0))[1]
        self.waiting = [each for each in self.waiting if each[1] != number]
        return number

    def give(self, consumer: int, *, back: bool) -> int | None:
        """Grant one credit; acknowledge the message that comes or, once in a while, return it."""
        self.host.messaging.execute(Credit(consumer, 1, PLENTY), 0)
        handed = self.handed()
        for each in handed:
            assert each.consumer == consumer
            if back:
                self.host.messaging.execute(Release(self.session, (each.number,), dead=False), 0, next(self._numbers))
                attributes = each.descriptor.attributes
                self.waiting.append(
                    (-each.descriptor.priority, int(str(attributes["number"])), int(str(attributes["kind"])))
                )
            else:
                self.host.perform(UnitOfWork(next(self._numbers), acks=(Ack(self.session, (each.number,)),)), 0)
            self.handed()
        return int(str(handed[0].descriptor.attributes["number"])) if handed else None


@pytest.mark.parametrize("seed", range(5))
def test_each_consumer_gets_the_first_of_what_its_selector_leaves_whatever_came_and_went_before(seed: int) -> None:
    chance, manager = random.Random(seed), Manager()
    for _ in range(150):
        if chance.random() < 0.6:
            manager.send(chance.randrange(6), chance.choice((1, 4, 9)))
            assert manager.handed() == []
            continue
        able = [
            each
            for each, selector in manager.consumers.items()
            if any(kind in SELECTORS[selector] for _, _, kind in manager.waiting)
        ]
        if able:
            consumer = chance.choice(able)
            expected = manager.expected(consumer)
            assert manager.give(consumer, back=chance.random() < 0.2) == expected
