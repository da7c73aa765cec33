"""One real node: acquires its folder, its disk and its sockets, drives its host, and releases all of it."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import random
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Self

from carrypost.errors import StateError
from carrypost.gossip.wire.codec import MAGIC
from carrypost.host import Host
from carrypost.log.events import ClaimLost, Event
from carrypost.log.journal import DATE, INCARNATION, Key, Value
from carrypost.model.descriptor_values import Privilege, privilege
from carrypost.model.ids import node_prefix
from carrypost.model.times import MICROSECONDS
from carrypost.node.driver import NodeClock, NodeDriver
from carrypost.node.folder import NodeFolder, exposed
from carrypost.node.records import RecordWriter, Traces
from carrypost.node.settings import NodeSettings, oversights
from carrypost.node.store.store import Store
from carrypost.node.udp.udp import Udp
from carrypost.overlay.events import ModulatorFault
from carrypost.security.identity import from_system
from carrypost.security.packets import Packets

Handlers = Mapping[type[Event], Callable[[Any], None]]
"""Functions that handle events, by class of event."""
_GARBAGE_THRESHOLDS = (20_000, 20, 50)
_log = logging.getLogger("carrypost.node")


class Node:
    """A node of the network on this machine; an asynchronous context manager."""

    def __init__(self, settings: NodeSettings, *, privilege: Privilege = privilege) -> None:
        self.settings = settings
        self.folder = NodeFolder(settings)
        limits = settings.core.limits
        self.udp = Udp(settings.udp, self._received, magic=MAGIC, datagram_bytes_max=limits.datagram_bytes_max)
        self.chronicle: RecordWriter | None = None
        self.traces: Traces | None = None
        self._privilege = privilege
        self._driver: NodeDriver | None = None
        self._exits = contextlib.ExitStack()
        self._programs: Handlers | None = None
        self._claims_lost = 0
        self._faults, self._last_fault = 0, ""
        """Number of faults of modulators in a row that are equal to the last one."""
        self._begun_s = 0.0

    # --- start and stop ----------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Acquire the folder, the disk and the sockets; raises `NodeError`, `StoreError` or `ConfigError`."""
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise

    async def _start(self) -> None:
        loop, home, core = asyncio.get_running_loop(), self.folder, self.settings.core
        home.create()
        self._exits.enter_context(home.locked())
        known_key = home.has_key
        identity = home.identity()
        if identity.signed and exposed(home.key_file):
            _log.warning("other users of this machine can read the key: chmod 600 %s", home.key_file)
        for sentence in oversights(core):
            _log.warning("%s", sentence)
        self.store = Store.open(home.store_file, lambda: loop.call_soon_threadsafe(self._answered))
        self._exits.callback(self.store.close)
        state = list(self.store.state())
        self.clock = NodeClock(_last_date(state))
        if self.clock.ahead_us > MICROSECONDS:
            _log.warning(
                "the system's clock is %d s behind this node's store, and is not believed until it is set",
                self.clock.ahead_us // MICROSECONDS,
            )
        if core.sealing.closed:
            self.udp.protect(Packets(node_prefix(identity.node), from_system))
        await self.udp.open()
        make = partial(Host, identity, core, random.SystemRandom(), privilege=self._privilege, meter=_cpu_us)
        driver = NodeDriver(make, core, self._handle_event, clock=self.clock, store=self.store, udp=self.udp)
        if (folder := self.settings.record_folder) is not None:
            self.chronicle = RecordWriter(folder, self.settings, driver)
        if self.settings.trace.enabled:
            self.traces = Traces(home.trace_file, self.settings.trace, driver)
        if not state and (known_key or not identity.signed):
            # The key, or a node of that name, may have had earlier incarnations whose store is gone: no number of
            # these may come again. A node does not start a thousand times in a second.
            state = [(INCARNATION, driver.now // 1_000)]
        self._begun_s = time.monotonic()
        self._driver = driver
        driver.start(state)

    async def stop(self) -> None:
        """Stop cleanly: everything sent is on disk."""
        with self._exits:  # The disk and the folder are given back whatever happens.
            await self._stop()

    async def _stop(self) -> None:
        # Sockets first: nothing new may come in while the last batches are written. The answers to
        # these still have to be processed, or programs would wait for ever.
        await self.udp.close()
        driver = self._driver
        if driver is not None:
            driver.stop()
            self.store.close()
            driver.answered()
            self._driver = None
        if self.chronicle is not None:
            self.chronicle.close()
            self.chronicle = None
        if self.traces is not None:
            self.traces.close()
            self.traces = None

    @property
    def driver(self) -> NodeDriver:
        """The driver of the host; raises `StateError` unless the node runs."""
        if self._driver is None:
            raise StateError("the node is not running")
        return self._driver

    @property
    def is_present(self) -> bool:
        """True if it runs, with a host that the store has begun."""
        return self._driver is not None and self._driver.is_present

    @property
    def host(self) -> Host:
        """The host, or the one before while another one is being restored; raises `StateError` unless the node runs."""
        return self.driver.host

    @property
    def outside(self) -> str:
        """A sentence for people if this node does not belong to the closed network that its settings name."""
        name = self.settings.core.sealing.closed
        if not name or self.host.closed.keys is not None:
            return ""
        return (
            f"sealing.closed: this node is in no circle {name!r}, so it hears nobody, and nobody hears it: join with "
            f"`carrypost circle join CODE`, or found the circle with `carrypost circle found {name}`"
        )

    @property
    def uptime_s(self) -> float:
        """Seconds since the node was started."""
        return time.monotonic() - self._begun_s

    # --- for programs with messaging -----------------------------------------------------------------------

    def attach(self, programs: Handlers) -> None:
        """Pass programs the events that they handle from now on: hand-overs of messaging, and ends of commands."""
        if self._programs is not None:
            raise StateError("this node serves programs already: they share one provider")
        self._programs = programs

    def detach(self) -> None:
        """Pass programs no events any more: their host is over."""
        self._programs = None

    # --- joints --------------------------------------------------------------------------------------------

    def _received(self, batch: list[tuple[str, bytes]]) -> None:
        if self._driver is not None:
            self._driver.received(batch)

    def _answered(self) -> None:
        if self._driver is not None:
            self._driver.answered()

    def _handle_event(self, event: Event) -> None:
        if self.chronicle is not None:
            self.chronicle.observe(event)
        if self.traces is not None:
            self.traces.observe(event)
        if isinstance(event, ClaimLost):
            self._warn_of_loss(event)
        elif isinstance(event, ModulatorFault):
            self._warn_of_fault(event)
        if self._programs is not None and (act := self._programs.get(type(event))) is not None:
            act(event)

    def _warn_of_fault(self, failed: ModulatorFault) -> None:
        """Log a fault that is another one than the last, and of equal ones those at powers of two."""
        self._faults = self._faults + 1 if failed.fault == self._last_fault else 1
        self._last_fault = failed.fault
        if self._faults.bit_count() == 1:
            _log.warning(
                "the modulator of %s failed with event %d of %s on channel %s: %s",
                failed.consumer, failed.number, failed.producer, failed.channel, failed.fault,
            )  # fmt: skip

    def _warn_of_loss(self, lost: ClaimLost) -> None:
        """Log losses at powers of two: a subscription that no program consumes may lose thousands."""
        self._claims_lost += 1
        if self._claims_lost.bit_count() == 1:
            _log.warning(
                "the subscription %s lost the message %s (%s); %d lost so far; run `carrypost doctor` for advice",
                lost.subscription, lost.descriptor.shown, lost.reason.value, self._claims_lost,
            )  # fmt: skip


def collect_seldom() -> None:
    """Collect cyclic garbage seldom, in a process that is nothing but a node.

    A node makes next to none, and keeps very many small objects alive; scanning them again and again would cost a relay
    a quarter of its time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GARBAGE_THRESHOLDS)


def _last_date(state: Iterable[tuple[Key, Value]]) -> int:
    """Return the last date in the store; 0 if there is none."""
    return next((value for key, value in state if key == DATE and isinstance(value, int)), 0)


def _cpu_us() -> int:
    """Return the CPU time of this thread so far, in microseconds."""
    return time.thread_time_ns() // 1_000
