"""A network in memory and in virtual time, for tests.

The nodes are the same hosts that run on real sockets, with a store in memory; no radio, no waiting, no
threads. A link gives the hosts no hint: their beacons find it. The same seed and the same calls give the same
run, and one more node does not change the chance of the others.

::

    async def scene():
        async with testing.network("a", "b", "c", seed=1, altruistic=True) as net:
            net.link("a", "b")
            net.subscribe("c", "news")
            net.publish("a", "news", b"hello")
            await net.run(60)

    testing.run(scene)

Programs run on these nodes as they would on real ones::

            async with net.context("a") as here, net.context("c", client_id="anna") as there:
                inbox = await there.create_durable_consumer(there.create_topic("news"), "inbox")
                await here.create_producer().send(here.create_topic("news"), "hello")
                print(await inbox.receive(timeout=60))

Without asyncio the same is ``with testing.network(...) as net`` and ``net.advance(60)``, without contexts.
"""

from __future__ import annotations

import asyncio
import math
from functools import partial
from pathlib import Path
from typing import Literal

from carrypost.classic import connections as classic
from carrypost.classic.connections import connection_of
from carrypost.config import Settings
from carrypost.emu.arguments import (
    check_callable,
    check_flag,
    check_keywords,
    check_record,
    check_seed,
    microseconds,
)
from carrypost.emu.engine import network as engine
from carrypost.emu.engine.applications import DeliveredMessage as Delivery
from carrypost.emu.engine.loop import DeadlockError, TimeLimitError, VirtualLoop, run
from carrypost.emu.engine.network import NetworkOptions, Watcher
from carrypost.emu.engine.radio import LinkModel, Traffic
from carrypost.emu.engine.recorder import RecordFile
from carrypost.errors import JMSException, ListenerException, RunawayError, StateError
from carrypost.gossip.wire.pieces import Blank
from carrypost.jms.connection import Connection
from carrypost.jms.context import Context
from carrypost.jms.destinations import named
from carrypost.jms.modes import SessionMode
from carrypost.jms.provider import Provider
from carrypost.jms.provider.local import LocalProvider
from carrypost.jms.provider.reconnecting import ReconnectingProvider
from carrypost.log.events import (
    ClaimLost,
    Delivered,
    Done,
    Dropped,
    Event,
    Handed,
    NeighbourDown,
    NeighbourUp,
    Received,
)
from carrypost.log.record import Record
from carrypost.model.descriptor_values import Privilege
from carrypost.model.descriptor_values import privilege as by_the_papers
from carrypost.traces.contacts import read_contacts

__all__ = [
    "Blank",
    "ClaimLost",
    "DeadlockError",
    "Delivered",
    "Delivery",
    "Done",
    "Dropped",
    "Event",
    "Handed",
    "NeighbourDown",
    "NeighbourUp",
    "Network",
    "Received",
    "Record",
    "RunawayError",
    "TimeLimitError",
    "Traffic",
    "Watcher",
    "network",
    "run",
]


class Network(engine.Network):
    """A network in virtual time, with contexts for programs.

    A listener that fails with a message too often is an error of the test, unless an exception listener is set: the
    error is raised when the network is left.
    """

    _providers: dict[str, ReconnectingProvider] | None = None
    _lives: dict[str, LocalProvider]
    """The providers of the present hosts."""
    _unheard: tuple[ListenerException, ...] = ()

    def context(
        self, node: str, mode: SessionMode = SessionMode.AUTO_ACKNOWLEDGE, *, client_id: str | None = None
    ) -> Context:
        """Return a context on a node, as `ConnectionFactory.create_context` makes one on a real node.

        It wakes messaging on every node of the network. `kill` ends it: after `restart`, make another.
        """
        return Context(self._connection(node, client_id), mode)

    def connection(
        self, node: str, client_id: str | None = None, domain: Literal["queue", "topic"] | None = None
    ) -> classic.Connection:
        """Return a connection on a node, as `ConnectionFactory.create_connection` makes one on a real node.

        `domain`: that of a `QueueConnection` or a `TopicConnection`. Else as `context`.
        """
        return connection_of(domain)(self._connection(node, client_id))

    def _connection(self, node: str, client_id: str | None) -> Connection:
        self._check(node)
        try:
            loop: object = asyncio.get_running_loop()
        except RuntimeError:
            loop = None
        if not isinstance(loop, VirtualLoop):
            raise StateError("contexts require virtual time: call this in an async function that testing.run runs")
        return Connection(_Seat(self, node), "" if client_id is None else named(client_id, "a client id"))

    def provider(self, node: str) -> Provider:
        """Return the provider below the contexts of a node."""
        if self._providers is None:
            self._providers, self._lives = {}, {}
            self.open_messaging()
            self.watch(self._route)
        found = self._providers.get(node)
        if found is None:
            attach = partial(self._attach_again, node)
            found = self._providers[node] = ReconnectingProvider(self._begin_life(node), attach, node, math.inf)
        return found

    def _begin_life(self, node: str) -> LocalProvider:
        made = self._lives[node] = LocalProvider(self._checked(node))
        return made

    async def _attach_again(self, node: str) -> LocalProvider:
        return self._begin_life(node)

    def unhandled(self, error: JMSException) -> None:
        """Note the error of a context without an exception listener.

        Errors of listeners, such as an `assert`, are raised later.
        """
        if isinstance(error, ListenerException):
            self._unheard += (error,)

    async def __aexit__(self, *raised: object) -> None:
        await super().__aexit__(*raised)
        if self._unheard and raised[1:2] == (None,):
            raise ExceptionGroup("listeners failed, and there was no exception listener", self._unheard)

    def _route(self, _: float, node: str, event: Event) -> None:
        if node in self._lives:
            self._lives[node].handle_event(event)

    def kill(self, node: str) -> None:
        """Crash a node: changes that were not durable are lost, and the store is kept. Links stay for its return."""
        super().kill(node)
        self._end(node, f"the node {node!r} was killed: restart it, and create another context")

    def fail_disk(self, node: str) -> None:
        """Let the disk of a node fail: changes that were not durable are lost, and another host is restored at once.

        Its contexts go on, as those of a node that ends and returns.
        """
        life = self._lives.pop(node, None) if self._providers else None
        super().fail_disk(node)
        if life is not None:
            life.end(f"the node {node!r} could not store its last changes: the disk failed")

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        for node in list(self._providers or {}):
            self._end(node, "the network is closed")

    def _end(self, node: str, reason: str) -> None:
        found = (self._providers or {}).pop(node, None)
        if found is not None:
            self._lives.pop(node, None)
            found.end(reason)


class _Seat:
    """The source of a context's provider."""

    def __init__(self, network: Network, node: str) -> None:
        self._network, self._node = network, node

    async def acquire(self) -> Provider:
        """Return the provider of the node."""
        return self._network.provider(self._node)

    async def release(self) -> None:
        """Nodes stay while their network does."""

    def unhandled(self, error: JMSException) -> None:
        """Pass the error on to the network, which raises it at its end."""
        self._network.unhandled(error)


def network(
    *names: str,
    seed: int | str = 0,
    confirm: bool = True,
    disk_delay_s: float = 0.0,
    delay_s: float = 0.001,
    loss: float = 0.0,
    duplicate: float = 0.0,
    reorder: float = 0.0,
    rate_bytes_per_s: int | None = None,
    encoded: bool = False,
    contacts: str | Path | None = None,
    record: Record | str | Path | None = None,
    privilege: Privilege = by_the_papers,
    **settings: object,
) -> Network:
    """Return a network of these nodes, all out of reach, to be used by ``async with`` or ``with``.

    The further keywords are `Settings`, on top of those of emulation (security off, no lifetimes).
    `confirm`: the application confirms what it is given, at once. `disk_delay_s`: how long a batch takes to
    become durable. `delay_s`, `loss`, `duplicate`, `reorder` (the last three are probabilities, per
    datagram) and `rate_bytes_per_s` are those of every link that does not say otherwise. `encoded`: every
    frame goes through its bytes. `contacts` is a file of contacts (`a,b,start,end`, or The ONE's connection events),
    which are played from the opening on; nodes that only it names are there too. `record` takes the event log, whose
    first row describes the run; as a path, it is written when the network is closed, as lines of JSON if it
    ends in .jsonl, else as Parquet.
    `privilege` is the application's rule for which of two messages matters more.
    """
    check_keywords(settings)
    check_record(record)
    check_seed(seed)
    check_flag("confirm", confirm)
    check_flag("encoded", encoded)
    check_callable("privilege", privilege)
    model = LinkModel(
        delay_us=microseconds(delay_s, "delay_s"),
        loss=loss,
        duplicate=duplicate,
        reorder=reorder,
        rate_bytes_per_s=rate_bytes_per_s,
    )
    file = RecordFile(record) if isinstance(record, str | Path) else None
    if isinstance(record, str | Path):
        record = Record(f"{Path(record).stem}/default/{seed}")
    options = NetworkOptions(
        seed=seed,
        confirm=confirm,
        disk_delay_us=microseconds(disk_delay_s, "disk_delay_s"),
        model=model,
        encoded=encoded,
        record=record,
        privilege=privilege,
        contacts=() if contacts is None else tuple(read_contacts(contacts)),
        file=file,
    )
    return Network(names, options, Settings.emulated(**settings))
