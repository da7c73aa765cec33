"""Programs that use messaging on the nodes of a `testing` network: they consume, acknowledge and collect messages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

from carrypost import testing
from carrypost.log.events import Event, Handed
from carrypost.messaging.commands import (
    Ack,
    Connect,
    Consume,
    Credit,
    Declare,
    DeclareQueue,
    Disconnect,
    Late,
    OpenSession,
    Receive,
    Subscribe,
    UnitOfWork,
)
from carrypost.messaging.messaging import MessagingCommands
from carrypost.model.descriptor import Descriptor
from carrypost.model.pattern import entry

PLENTY = 1_000_000
_numbers = count(1)


@dataclass(frozen=True, slots=True)
class Got:
    """One message as a program got it."""

    descriptor: Descriptor
    text: str
    count: int
    """Number of times that it was handed over for its subscription."""
    unordered: bool
    seconds: float


class Program:
    """One consumer on one node, with its own connection. A crash of its node ends it; another program continues."""

    def __init__(
        self,
        net: testing.Network,
        node: str,
        topic: str,
        selector: str | None = None,
        *,
        client: str = "",
        prefetch: int = PLENTY,
        acknowledges: bool = True,
        answer: Callable[[Got], None] | None = None,
        **asked: object,
    ) -> None:
        self.net, self.node = net, node
        self.got: list[Got] = []
        self.numbers: list[int] = []
        """Under which it got each of them."""
        self._acknowledges, self._answer = acknowledges, answer
        self._host = net.host(node)
        self.connection = self.messaging.execute(Connect(client), self.now)
        self.session = self.messaging.execute(OpenSession(self.connection), self.now)
        queued = topic.startswith("queue/")
        wish = Receive(topic, selector) if queued else Subscribe(entry(topic, selector), **asked)  # type: ignore[arg-type]
        self.consumer = self.messaging.execute(Consume(self.session, wish), self.now, next(_numbers))
        net.watch(self._take)
        self.messaging.execute(Credit(self.consumer, prefetch, PLENTY), self.now)

    @property
    def messaging(self) -> MessagingCommands:
        return self._host.messaging

    @property
    def now(self) -> int:
        return round(self.net.now * 1_000_000)

    @property
    def texts(self) -> list[str]:
        return [each.text for each in self.got]

    def close(self) -> None:
        """End the program; messages that it did not acknowledge go back."""
        self.messaging.execute(Disconnect(self.connection), self.now)
        self.consumer = 0

    def acknowledge(self, *numbers: int, late: Late = Late.ACCEPT) -> None:
        self._host.perform(UnitOfWork(next(_numbers), acks=(Ack(self.session, numbers, late=late),)), self.now)

    def _take(self, seconds: float, node: str, event: Event) -> None:
        if not isinstance(event, Handed) or (node, event.consumer) != (self.node, self.consumer):
            return
        if self.net.host(node) is not self._host:
            return  # Numbers begin anew with the next life.
        text = self.net.payload(node, event.descriptor).decode()
        got = Got(event.descriptor, text, event.count, event.unordered, seconds)
        self.got.append(got)
        self.numbers.append(event.number)
        if self._acknowledges:
            self.acknowledge(event.number)
            self.messaging.execute(Credit(self.consumer, 1, event.descriptor.length), self.now)
        if self._answer is not None:
            self._answer(got)


def declare(net: testing.Network, node: str, name: str, **options: object) -> str:
    """Declare a queue of a node; return its destination."""
    asked = Declare(name, **options)  # type: ignore[arg-type]
    return net.host(node).messaging.execute(DeclareQueue(asked), round(net.now * 1_000_000), next(_numbers))
