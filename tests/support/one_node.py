"""One host with messaging, its store in a dictionary, and a disk that answers on command."""

from __future__ import annotations

import random
from collections.abc import Sequence

from carrypost.config import Settings
from carrypost.gossip.draft import Draft
from carrypost.host import Host
from carrypost.log.events import Done, Event, Handed
from carrypost.log.journal import Batch, Key, Value
from carrypost.messaging.commands import Ack, Connect, Consume, Credit, OpenSession, Subscribe, UnitOfWork
from carrypost.model.descriptor import Ordering
from carrypost.model.headers import Headers
from carrypost.model.ids import MessageId
from carrypost.model.pattern import entry
from carrypost.security.identity import Identity

S = 1_000_000
PLENTY = 1_000_000


class OneNode:
    """A node and its disk. Batches wait in `batches` until they are written, or gone with a crash."""

    def __init__(self, name: str = "n", **settings: object) -> None:
        self.name = name
        self.settings = Settings.emulated(compress=False, **settings)
        self.now = 0
        self.disk: dict[Key, Value] = {}
        self.batches: list[Batch] = []
        self.events: list[Event] = []
        self.number = 0
        self.boot()

    def boot(self, *, awake: bool = True) -> None:
        self.host = Host(Identity.plain(self.name), self.settings, random.Random(self.name))
        self.host.restore(list(self.disk.items()), self.now)
        if awake:
            self.host.messaging.open(self.now)
        self.batches = []
        self.write()

    def crash(self) -> None:
        """Crash: everything that was not written is gone."""
        self.boot()

    # --- the disk ------------------------------------------------------------------------------------------

    def collect(self) -> None:
        while self.host.busy:
            while (batch := self.host.changes()) is not None:
                self.batches.append(batch)
            self.host.outgoing()
            self.events += self.host.events()

    def write(self) -> None:
        """All batches that there are, and those that follow from them."""
        self.collect()
        while self.batches:
            self.write_one()

    def write_one(self) -> None:
        batch = self.batches.pop(0)
        for key in batch.deletes:
            self.disk.pop(key, None)
        self.disk.update(batch.puts)
        self.host.durable(batch.serial, self.now)
        self.collect()

    def pass_time(self, seconds: float) -> None:
        until = self.now + round(seconds * S)
        while (due := self.host.next_deadline()) is not None and due <= until:
            self.now = max(self.now, due)
            self.host.tick(self.now)
            self.write()
        self.now = until
        self.host.tick(self.now)
        self.write()

    # --- programs ------------------------------------------------------------------------------------------

    def next_number(self) -> int:
        self.number += 1
        return self.number

    def session(self, client: str = "") -> int:
        connection = self.host.messaging.execute(Connect(client), self.now)
        return self.host.messaging.execute(OpenSession(connection), self.now)

    def consume(self, session: int, topic: str, selector: str | None = None, **asked: object) -> int:
        wish = Subscribe(entry(topic, selector), **asked)  # type: ignore[arg-type]
        return self.host.messaging.execute(Consume(session, wish), self.now, self.next_number())

    def consumer(self, topic: str, selector: str | None = None, *, client: str = "", **asked: object) -> int:
        """Return a consumer with all the credit it may want, in a session of its own."""
        consumer = self.consume(self.session(client), topic, selector, **asked)
        self.credit(consumer)
        return consumer

    def credit(self, consumer: int, messages: int = PLENTY) -> None:
        self.host.messaging.execute(Credit(consumer, messages, PLENTY), self.now)

    def publish(
        self,
        topic: str,
        payload: bytes = b"x",
        *,
        lifetime_s: float | None = None,
        ordering: Ordering = Ordering.NONE,
        headers: Headers | None = None,
        **attributes: bool | float | str,
    ) -> MessageId:
        lifetime_us = None if lifetime_s is None else round(lifetime_s * S)
        return self.host.publish(
            topic, payload, now=self.now, attributes=attributes, lifetime_us=lifetime_us, ordering=ordering,
            headers=headers,
        )  # fmt: skip

    def work(self, *sends: Draft | int, acks: Sequence[Ack] = ()) -> int:
        number = self.next_number()
        self.host.perform(UnitOfWork(number, sends, tuple(acks)), self.now)
        return number

    def acknowledge(self, session: int, *handed: Handed) -> int:
        return self.work(acks=[Ack(session, tuple(each.number for each in handed))])

    # --- what came -----------------------------------------------------------------------------------------

    def handed(self, consumer: int | None = None) -> list[Handed]:
        """Return the messages that were handed over since the last call."""
        found = [each for each in self.events if isinstance(each, Handed) and consumer in (None, each.consumer)]
        self.events = [each for each in self.events if each not in found]
        return found

    def answers(self) -> list[Done]:
        found = [each for each in self.events if isinstance(each, Done)]
        self.events = [each for each in self.events if each not in found]
        return found
