"""The floor: the host's own publication of the same messages, and the bare commit of the same rows.

A host has neither disk nor sockets. It is drained after as many publications as a commit of the node has messages, as a
driver would drain it. A bare commit is SQL alone, in one thread, of rows that a node wrote and that are read before
timing.
"""

from __future__ import annotations

import gc
import os
import random
import statistics
import time
from pathlib import Path
from typing import Final

from benchmarks._jms_programs import BODY, TOPIC, Rows

from carrypost.config import Settings
from carrypost.host import Host
from carrypost.log.events import Delivered
from carrypost.log.journal import Durability
from carrypost.model.headers import BodyType, Headers
from carrypost.node.store import tables
from carrypost.security.identity import Identity

_SYNCS: Final = 25
_MILLISECOND_US: Final = 1_000


def _host(settings: Settings) -> Host:
    identity = Identity.derived(1, "bench") if settings.security == "signed" else Identity.plain("bench")
    host = Host(identity, settings, random.Random(1))
    host.start(0)
    host.messaging.open(0)
    _drain(host, 0)
    return host


def _drain(host: Host, now: int) -> list[Delivered]:
    """Process everything as if the disk took no time; return the deliveries."""
    found = []
    while host.busy:
        while (batch := host.changes()) is not None:
            host.durable(batch.serial, now)
        host.outgoing()
        found += [event for event in host.events() if isinstance(event, Delivered)]
    return found


def publish_us(
    settings: Settings, messages: int, per_commit: int, store: BareStore | None = None
) -> tuple[float, float]:
    """Return the CPU microseconds per message of a host that publishes, and of the bare commits in between.

    Messages, with the headers that a program gives them, are published, drained and committed in groups: after a commit
    the processor's caches are cold, here as on a node. Without a store messages are NON_PERSISTENT and nothing is
    committed.
    """
    host = _host(settings)
    published_s = committed_s = 0.0
    gc.collect()
    for first in range(1, messages + 1, per_commit):
        numbers = range(first, min(first + per_commit, messages + 1))
        now = first * _MILLISECOND_US
        began_s = time.process_time()
        for number in numbers:
            host.publish(
                TOPIC.address, BODY, now=now, persistent=store is not None,
                headers=Headers(body_type=BodyType.BYTES, connection=1, session=1, number=number),
            )  # fmt: skip
        _drain(host, now)
        ended_s = time.process_time()
        published_s += ended_s - began_s
        if store is not None:
            store.commit(len(numbers))
            committed_s += time.process_time() - ended_s
    return published_s / messages * 1e6, committed_s / messages * 1e6


def confirm_us(settings: Settings, messages: int) -> float:
    """Return the CPU microseconds of a message that a host without a disk delivers, and that is confirmed by itself."""
    host = _host(settings)
    for _ in range(messages):
        host.publish(TOPIC.address, BODY, now=0)
    _drain(host, 0)
    gc.collect()
    began_s = time.process_time()
    host.subscribe(TOPIC.address, now=0)
    while told := _drain(host, 0):
        for event in told:
            for delivery in event.deliveries:
                host.confirm((delivery,), 0)
    return (time.process_time() - began_s) / messages * 1e6


class BareStore:
    """Rows of messages, and a store that they are committed to by SQL alone, safe from the loss of power."""

    def __init__(self, path: Path, rows: Rows) -> None:
        self._rows, self._at = rows, 0
        self._connection = tables.open_writer(path)
        self._connection.execute(f"PRAGMA synchronous = {Durability.FULL.name}")
        self._inserts = {
            table: f"INSERT INTO {table} VALUES ({','.join('?' * len(found[0]))})"  # noqa: S608 - our own names
            for table, found in rows.items()
        }

    def commit(self, messages: int) -> None:
        """Commit the rows of the next messages, in one transaction."""
        first, self._at = self._at, self._at + messages
        self._connection.execute("BEGIN IMMEDIATE")
        for table, found in self._rows.items():
            self._connection.executemany(self._inserts[table], found[first : self._at])
        self._connection.execute("COMMIT")

    def close(self) -> None:
        """End it."""
        self._connection.close()


def fdatasync_ms(path: Path) -> float:
    """Return the wall time in which the disk makes two more pages of a file durable: the median."""
    times_s = []
    with path.open("wb", buffering=0) as file:
        for _ in range(_SYNCS):
            file.write(bytes(2 * tables.PAGE_BYTES))
            began_s = time.perf_counter()
            os.fdatasync(file.fileno())
            times_s.append(time.perf_counter() - began_s)
    return statistics.median(times_s) * 1e3
