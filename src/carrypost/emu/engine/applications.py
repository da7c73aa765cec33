"""Applications on emulated nodes: the inbox of tests, the workloads of a run, and programs that consume queues.

The inbox subscribes again whenever its node restarts, and confirms at once unless configured otherwise. Its deliveries
are kept over crashes, because the user of the emulation wants to see all of them. The payload is read from the store
before the confirmation, after which the host may drop it. Messaging is only kept awake here: messages that are handed
over to consumers are reported to the watchers.

Applications of a run publish by a period, by a script or by chance, and confirm deliveries. Each workload is a channel,
or a topic of its own, to which every node subscribes from its first join. Payloads are never made: their length is
counted as incompressible bytes, unless messages are signed. Deliveries to an application go into the record.

Messages for some of the hosts are the load of EMMA's evaluation (§4.1), drawn at random before the run. A given number
of messages is published within a span of time, as a Poisson process of which the number of events is known: their times
are independent and uniform over the span. Author, recipients, delivery mode and priority are drawn evenly. Every
message has a stream of chance of its own, and recipients are drawn last. So another number of recipients, other shares
or more messages leave the authors, modes and priorities of the others as they were.

Messages of random nodes are the load of the campus of JOMS (§3.3): to a topic, or to the queue of another node. Only
there messaging is open. Managers of queues declare them, and a program on each recipient's node consumes at once.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, islice, repeat, takewhile
from pathlib import Path
from typing import NamedTuple

from mypy_extensions import mypyc_attr

from carrypost.application.publishing import PRIORITY_MAX
from carrypost.chance import stream
from carrypost.config import Limits
from carrypost.emu.engine.driver import EmulatedDriver, NodeState
from carrypost.emu.scenario_tables import MESSAGES_MAX, RANDOM, WorkloadTable
from carrypost.errors import ConfigError, LocalError
from carrypost.log import events
from carrypost.log.events import Delivered, Event, Handed
from carrypost.messaging import commands as do
from carrypost.messaging.commands import Ack, Declare, Receive, UnitOfWork
from carrypost.model import address
from carrypost.model.address import exactly
from carrypost.model.descriptor import Descriptor, PayloadCodec
from carrypost.model.ids import MessageId, NodeId, shown
from carrypost.model.times import MICROSECONDS
from carrypost.overlay.modulators.modulator import Modulator
from carrypost.traces.contacts import Presence
from carrypost.traces.csvfiles import CsvRow, Line, read_text, rows

Pattern = str | Mapping[str, str]
Watch = Callable[[EmulatedDriver, Event], None]


@dataclass(frozen=True, slots=True, repr=False)
class DeliveredMessage:
    """One message as the application got it."""

    descriptor: Descriptor
    redelivered: bool
    """True if it was delivered before a crash, and not confirmed."""
    time: float
    """Virtual seconds."""
    stored: bytes | None
    """The payload as published; None for a blank one, which is made only when asked for."""

    def __repr__(self) -> str:
        return (
            f"Delivery(message={shown(self.message)}, destination={self.descriptor.destination!r}, "
            f"size={self.descriptor.size}, redelivered={self.redelivered}, time={self.time!r})"
        )

    @property
    def message(self) -> MessageId:
        """The message's id, as `publish` returned it."""
        return self.descriptor.id

    @property
    def payload(self) -> bytes:
        """The payload as published."""
        return bytes(self.descriptor.size) if self.stored is None else self.stored


@mypyc_attr(allow_interpreted_subclasses=True)
class InboxApplication:
    """The application of one node."""

    def __init__(self, *, confirm: bool = True, watch: Watch | None = None) -> None:
        self.deliveries: list[DeliveredMessage] = []
        self._confirm = confirm
        self._watch = watch
        self._messaging = False
        """True if messaging is to be awake in every life of the node."""
        self._wanted: dict[int, tuple[Pattern, str | None, bool]] = {}
        self._subscriptions: dict[int, int] = {}
        self._number = 0

    def started(self, driver: EmulatedDriver) -> None:
        """Wake messaging on a new host, whose durable subscriptions are then announced, and subscribe again."""
        if self._messaging:
            driver.host.messaging.open(driver.now)
        for number, (pattern, selector, ordered) in self._wanted.items():
            self._subscriptions[number] = driver.host.subscribe(pattern, selector, ordered=ordered, now=driver.now)

    def open_messaging(self, driver: EmulatedDriver) -> None:
        """Wake messaging in this life and in every later one."""
        self._messaging = True
        if driver.state is not NodeState.DOWN:
            driver.host.messaging.open(driver.now)
            driver.drain()

    def subscribe(
        self, driver: EmulatedDriver, pattern: Pattern, selector: str | None = None, *, ordered: bool = False
    ) -> int:
        """Want what matches; the number that comes back stays valid over restarts."""
        subscription = driver.command().subscribe(pattern, selector, ordered=ordered, now=driver.now)
        self._number += 1
        self._wanted[self._number] = pattern, selector, ordered
        self._subscriptions[self._number] = subscription
        driver.drain()
        return self._number

    def unsubscribe(self, driver: EmulatedDriver, number: int) -> None:
        """End a subscription, known by the number that `subscribe` returned."""
        host = driver.command()
        if self._wanted.pop(number, None) is None:
            raise LocalError(f"node {driver.name!r} has no subscription {number}")
        host.unsubscribe(self._subscriptions.pop(number), driver.now)
        driver.drain()

    def handle_event(self, driver: EmulatedDriver, event: Event) -> None:
        """Handle an event of the host.

        A message without a readable payload is not delivered, even if the event reports it.
        """
        if type(event) is Delivered:
            readable = tuple([each for each in event.deliveries if self._got(driver, each)])
            if not readable:
                return
            if len(readable) < len(event.deliveries):
                event = Delivered(readable)
            mine = [delivery.message for delivery in event.deliveries if delivery.subscriptions]
            if self._confirm and mine:
                driver.host.confirm(mine, driver.now)
        if self._watch is not None:
            self._watch(driver, event)

    def _got(self, driver: EmulatedDriver, delivery: events.Delivery) -> bool:
        """Return True if the payload could be read from the store; if not, the host is informed of the reason."""
        descriptor = delivery.descriptor
        if not delivery.subscriptions:
            return True  # Messaging hands it over by itself.
        payload = None
        if descriptor.codec != PayloadCodec.BLANK and (payload := driver.payload(descriptor)) is None:
            return False
        self.deliveries.append(DeliveredMessage(descriptor, delivery.redelivered, driver.now / MICROSECONDS, payload))
        return True


def message_ids(messages: Iterable[MessageId | DeliveredMessage]) -> list[MessageId]:
    """Return the ids of deliveries, each given as a delivery or as an id."""
    allowed = "a list of message ids, as `publish` returns them, or of deliveries"
    if isinstance(messages, str | bytes | DeliveredMessage) or not isinstance(messages, Iterable):
        raise LocalError(f"confirm requires {allowed}, not {messages!r}")
    found = [each.message if isinstance(each, DeliveredMessage) else each for each in messages]
    for each in found:
        if not isinstance(each, bytes):
            raise LocalError(f"confirm requires {allowed}, not {each!r}")
    return found


# --- consumers of queues --------------------------------------------------------------------------------------

_CREDIT, _BYTES = 1_000, 1_000_000_000


class EmulatedQueue(NamedTuple):
    """The queue of a node."""

    name: str
    recipient: str
    """Name of the node that consumes it."""
    manager: str
    """Name of the node that manages it."""
    node: NodeId
    """Id of that node."""

    @property
    def destination(self) -> str:
        """The address that messages are sent to."""
        return address.queue(self.name, self.node)


class QueueConsumers:
    """The programs that declare and consume the queues of a run, on all nodes."""

    def __init__(self, queues: Iterable[EmulatedQueue]) -> None:
        self._queues = tuple(queues)
        self._numbers = Counter[str]()
        """The last number of a command, by node."""
        self._sessions: dict[str, int] = {}

    def started(self, driver: EmulatedDriver) -> None:
        """Declare the queues that a node manages and consume its own, on a host that has just started."""
        messaging, now, node = driver.host.messaging, driver.now, driver.name
        messaging.open(now)
        for each in self._queues:
            if each.manager == node:
                messaging.execute(do.DeclareQueue(Declare(each.name)), now, self._next(node))
        connection = messaging.execute(do.Connect(), now)
        self._sessions[node] = session = messaging.execute(do.OpenSession(connection), now)
        for each in self._queues:
            if each.recipient == node:
                consumer = messaging.execute(do.Consume(session, Receive(each.destination)), now, self._next(node))
                messaging.execute(do.Credit(consumer, _CREDIT, _BYTES), now)

    def acknowledge(self, driver: EmulatedDriver, handed: Handed) -> None:
        """Acknowledge a message, and make room for another one."""
        host, now, node = driver.host, driver.now, driver.name
        ack = Ack(self._sessions[node], (handed.number,))
        host.perform(UnitOfWork(self._next(node), acks=(ack,)), now)
        host.messaging.execute(do.Credit(handed.consumer, 1, handed.descriptor.size), now)

    def _next(self, node: str) -> int:
        self._numbers[node] += 1
        return self._numbers[node]


# --- workloads ------------------------------------------------------------------------------------------------

PRIORITY = 4
"""Priority of messages without a given one."""
COLUMNS = ("t", "node", "message", "size")
"""Columns that a script has to have."""
OPTIONAL_COLUMNS = ("lifetime", "recipients", "persistent", "priority")
"""Columns that it may have besides; an empty cell says nothing."""
_WORDS = {"true": True, "false": False}


class Publication(NamedTuple):
    """One message that an application publishes, by a period, by a script or by chance."""

    t_us: int
    node: str
    message: str
    size: int
    lifetime_us: int | None
    """None: it lives without end."""
    line: int = 0
    """In the script; 0: there is none."""
    recipients: tuple[str, ...] = ()
    """Names of the nodes that it is for; none: it is for all subscribers."""
    persistent: bool = False
    priority: int = PRIORITY
    queue: str = ""
    """Name of the node that consumes the queue that it is sent to; empty: it is sent to a topic."""


@dataclass(frozen=True, slots=True)
class WorkloadApplication:
    """The application on every node: subscribes to all topics, confirms at once, has everything recorded."""

    topics: Sequence[str]
    observe: Callable[[EmulatedDriver, Event], None]
    confirmed: bool = False
    """Deliveries confirm themselves: the same where no node crashes, and less to do."""
    channels: Mapping[str, Sequence[tuple[str, Modulator | None]]] = field(default_factory=dict)
    """Channels that nodes consume, by the name of the node, with the modulator."""
    queues: QueueConsumers | None = None
    """Consumers of queues; None: there are no queues."""

    def started(self, driver: EmulatedDriver) -> None:
        """Subscribe to all topics and channels, on a host that has just started."""
        host, now = driver.host, driver.now
        for topic in self.topics:
            host.subscribe(exactly(topic), confirmed=self.confirmed, now=now)
        for channel, modulator in self.channels.get(driver.name, ()):
            if channel not in host.overlay.subscriptions().values():  # They survive a crash, unless it took the batch.
                host.overlay.consume(channel, now, modulator)
        for destination in host.overlay.subscriptions() if driver.name in self.channels else ():
            host.subscribe(exactly(destination), confirmed=self.confirmed, now=now)
        if self.queues is not None:
            self.queues.started(driver)

    def handle_event(self, driver: EmulatedDriver, event: Event) -> None:
        """Confirm deliveries, and have every event recorded."""
        if type(event) is Delivered and not self.confirmed:
            driver.host.confirm([delivery.descriptor.id for delivery in event.deliveries], driver.now)
        self.observe(driver, event)
        if type(event) is Handed and self.queues is not None:
            self.queues.acknowledge(driver, event)


def read_script(path: Path) -> list[Publication]:
    """Return the publications of a CSV file, by time, then in the order of its rows."""
    found: list[Publication] = []
    named: dict[str, int] = {}
    for row in rows(read_text(path), str(path), COLUMNS, OPTIONAL_COLUMNS):
        each = _publication(row)
        if (first := named.setdefault(each.message, each.line)) != each.line:
            raise row.line.error(f"message {each.message!r} is published on line {first} already")
        found.append(each)
    return sorted(found, key=lambda each: each.t_us)


def check_script(
    path: Path, script: Sequence[Publication], presences: Mapping[str, Sequence[Presence]], limits: Limits
) -> None:
    """Check that authors of a script are there when they publish, and that limits allow what they publish."""
    for each in script:
        line = Line(str(path), each.line)
        if each.node not in presences:
            raise line.error(f"there is no node {each.node!r}")
        if not any(presence.includes(each.t_us) for presence in presences[each.node]):
            raise line.error(f"node {each.node!r} is not present at {each.t_us / MICROSECONDS} s")
        if each.size > limits.message_bytes_max:
            raise line.error(
                f"size must be at most {limits.message_bytes_max:,} (message_bytes_max), not {each.size:,}"
            )
        if len(each.message.encode()) > limits.label_bytes_max:
            raise line.error(f"message must have at most {limits.label_bytes_max:,} bytes (label_bytes_max)")
        for name in each.recipients:
            if name not in presences:
                raise line.error(f"recipients: there is no node {name!r}")
        if len(each.recipients) > limits.recipients_max:
            raise line.error(
                f"recipients must be at most {limits.recipients_max:,} (recipients_max), not {len(each.recipients):,}"
            )


def _publication(row: CsvRow) -> Publication:
    size = row.number("size")
    if size < 0 or size != int(size):
        raise row.line.error(f"size must be a whole number of bytes, 0 or more, not {row.text('size')}")
    lifetime_us = row.time_us("lifetime") if "lifetime" in row else None
    if lifetime_us == 0:
        raise row.line.error(f"lifetime must be at least a microsecond, or empty for none, not {row.text('lifetime')}")
    node = row.line.node(row.text("node"))
    return Publication(
        row.time_us("t"), node, row.text("message"), int(size), lifetime_us, row.line.number,
        _recipients(row, node), _persistent(row), _priority(row),
    )  # fmt: skip


def _recipients(row: CsvRow, author: str) -> tuple[str, ...]:
    named = row.text("recipients").split() if "recipients" in row else []
    for name in named:
        if row.line.node(name) == author:
            raise row.line.error(f"recipients must not include the author, {author!r}: leave it out")
        if named.count(name) > 1:
            raise row.line.error(f"recipients name {name!r} twice")
    return tuple(named)


def _persistent(row: CsvRow) -> bool:
    word = row.text("persistent").lower() if "persistent" in row else "false"
    if word not in _WORDS:
        raise row.line.error(f"persistent must be true, false or empty, not {row.text('persistent')!r}")
    return _WORDS[word]


def _priority(row: CsvRow) -> int:
    if "priority" not in row:
        return PRIORITY
    found = row.number("priority")
    if not (0 <= found <= PRIORITY_MAX and found == int(found)):
        raise row.line.error(f"priority must be a whole number from 0 to {PRIORITY_MAX}, not {row.text('priority')}")
    return int(found)


# --- messages for some of the hosts, drawn at random ----------------------------------------------------------
def addressed(
    workload: WorkloadTable,
    name: str,
    presences: Mapping[str, Sequence[Presence]],
    limits: Limits,
    seed: int | str,
    *,
    end_us: int,
) -> list[Publication]:
    """Draw the publications of a workload, called `name` in errors and in the seed of its chance, by time."""
    hosts = sorted(presences)
    many = _count(workload, name, len(hosts), limits)
    lifetime_us = None if workload.lifetime_s is None else round(workload.lifetime_s * MICROSECONDS)
    found: list[Publication] = []
    for number, t_us in enumerate(_moments(workload, name, seed, end_us)):
        chance = stream(seed, "addressed", name, number)
        author = _author(hosts, presences, t_us, chance.random(), name)
        persistent = chance.random() < workload.persistent
        priority = chance.randrange(workload.priorities)
        others = [host for host in hosts if host != author]
        recipients = tuple(sorted(chance.sample(others, many)))
        found.append(Publication(
            t_us, author, "", _size(workload, name, number, seed), lifetime_us,
            recipients=recipients, persistent=persistent, priority=priority,
        ))  # fmt: skip
    return found


# --- messages of random nodes to a topic, or to queues --------------------------------------------------------
def managers(nodes: Sequence[str], workload: WorkloadTable, name: str, seed: int | str) -> dict[str, str]:
    """Return the manager of each node's queue; with a third one, each node manages one queue of another.

    So nobody sends to a queue that it manages, and every node finds recipients. Empty: the workload has no queues.
    """
    least = {"none": 0, "recipient": 2, "third": 3}[workload.queue]
    if len(nodes) < least:
        who = "an author and a recipient" if workload.queue == "recipient" else "an author, a recipient and a manager"
        raise ConfigError(
            f'{name}.queue: "{workload.queue}" needs {least} nodes or more, {who}; there '
            + (f"are {len(nodes)}" if len(nodes) > 1 else "is only one")
        )
    if workload.queue != "third":
        return {node: node for node in nodes} if least else {}
    circle = stream(seed, RANDOM, name, "managers").sample(list(nodes), len(nodes))
    return dict(zip(circle, [*circle[1:], circle[0]], strict=True))


def random_messages(
    workload: WorkloadTable, name: str, times: Mapping[str, Sequence[Presence]], queues: Mapping[str, str],
    seed: int | str, *, end_us: int,
) -> list[Publication]:  # fmt: skip
    """Draw the publications of a workload, by time: authors and moments evenly from the times of nodes.

    `queues` has the manager of each node's queue.
    """
    spans = [
        (node, each.join_us, end_us if each.leave_us is None else min(each.leave_us, end_us))
        for node, spans in sorted(times.items())
        for each in spans
        if each.join_us < end_us
    ]
    ends = list(accumulate(until_us - since_us for _, since_us, until_us in spans))
    if not ends:
        raise ConfigError(f"{name}: no node is ever there to publish")
    lifetime_us = None if workload.lifetime_s is None else round(workload.lifetime_s * MICROSECONDS)
    found: list[Publication] = []
    for number in range(workload.messages):
        chance = stream(seed, RANDOM, name, number)
        place = chance.randrange(ends[-1])
        at = bisect_right(ends, place)
        author, _, until_us = spans[at]
        others = [node for node, manager in queues.items() if author not in {node, manager}]
        queue = chance.choice(sorted(others)) if queues else ""
        size = _size(workload, name, number, seed)
        found.append(Publication(until_us - ends[at] + place, author, "", size, lifetime_us, queue=queue))
    return sorted(found, key=lambda each: (each.t_us, each.node))


def _moments(workload: WorkloadTable, name: str, seed: int | str, end_us: int) -> list[int]:
    """Draw the times of publications, in order."""
    chance = stream(seed, "addressed", name)
    first_us, within_us = (round(each_s * MICROSECONDS) for each_s in (workload.first_s, workload.within_s))
    if workload.intervals_s is None:
        return sorted(first_us + chance.randrange(within_us) for _ in range(workload.messages))
    low_us, high_us = (round(each_s * MICROSECONDS) for each_s in workload.intervals_s)
    if (end_us - first_us) // low_us > MESSAGES_MAX:
        raise ConfigError(f"{name}.every_s: there would be more than {MESSAGES_MAX:,} messages; choose a longer time")
    moments = accumulate(repeat(None), lambda t_us, _: t_us + chance.randint(low_us, high_us), initial=first_us)
    return list(takewhile(lambda t_us: t_us < end_us, islice(moments, 1, None)))


def _size(workload: WorkloadTable, name: str, number: int, seed: int | str) -> int:
    """Draw the size of a message, by a chance of its own, so that nothing else depends on the range."""
    low, high = workload.sizes
    return low if low == high else stream(seed, "addressed", name, number, "size").randint(low, high)


def _count(workload: WorkloadTable, name: str, hosts: int, limits: Limits) -> int:
    """Return the number of recipients of a message."""
    key = f"{name}.recipients"
    if hosts <= 1:
        raise ConfigError(f"{name}: recipients must be hosts other than the author, and there is only one host")
    most, why = min((hosts - 1, f"there are {hosts} hosts"), (limits.recipients_max, "settings.limits.recipients_max"))
    many = int(workload.recipients)
    if workload.recipients < 1:
        many = min(max(1, round(workload.recipients * hosts)), hosts - 1)
    if many > most:
        raise ConfigError(f"{key} must be at most {most} ({why}), not {many}")
    return many


def _author(
    hosts: Sequence[str], presences: Mapping[str, Sequence[Presence]], t_us: int, chance: float, name: str
) -> str:
    """Return one of the hosts that are there."""
    there = [host for host in hosts if any(presence.includes(t_us) for presence in presences[host])]
    if not there:
        raise ConfigError(f"{name}: no host is present at {t_us / MICROSECONDS:g} s to publish; choose a later first_s")
    return there[int(chance * len(there))]
