"""The loop that all drivers share: after each input the host is drained, and its timer is set again.

Draining means to take changes, then transmissions, then events, and to repeat until there are no more: handling one of
them may cause others. Changes come first, so that the store has everything that is sent and reported.

A driver derives from `HostDriver` and implements writing a batch, sending a transmission, reporting an event and
setting a timer. It calls `drain` after every call to the host, and `_wake` when the timer ends. Slow or full disks,
missing payloads, failing applications and stopping nodes are its own business. If programs use messaging, it derives
from `ProgramDriver`, which is the driver as programs see it.
"""

# Why a base class. The emulator and the real node differ in how they write, send, report and wait,
# and in nothing else. The order in which these happen is the whole contract between a host and its
# surroundings. They had loops of their own once, and those differed: an application that failed
# left an emulated node without a timer, and a host that was never done raised in the emulator only.
#
# What must hold.
# 1. Changes before transmissions before events: a frame may name a payload that the store must be
#    able to read, and a program that is notified of a message may read it at once.
# 2. A verb may call the host again (a listener that publishes). `drain` is not re-entered then; the
#    loop that is running picks up what is new, so events are reported in the order in which they
#    happened.
# 3. The timer is set whatever happens. A host that raised once may go on; a host that is never
#    woken is dead.

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final

from mypy_extensions import mypyc_attr

from carrypost.errors import RemoteError, RunawayError, StoreError
from carrypost.gossip.wire.pieces import Blank
from carrypost.model.descriptor import PayloadCodec
from carrypost.model.times import NEVER
from carrypost.overlay.modulators.programs import compiled

if TYPE_CHECKING:
    from collections.abc import Sequence

    from carrypost.config import Settings
    from carrypost.gossip.wire.frames import Transmission
    from carrypost.host.host import Host
    from carrypost.log.events import Event, PayloadWanted
    from carrypost.log.journal import Batch
    from carrypost.model.descriptor import Descriptor
    from carrypost.overlay.modulators.modules import CompileWanted

ROUNDS_MAX: Final = 100_000
"""Number of rounds in which a host may produce something new without any input."""


@mypyc_attr(allow_interpreted_subclasses=True)
class HostDriver(ABC):
    """Base of drivers: drains one host and keeps its one timer."""

    def __init__(self, host: Host | None = None) -> None:
        self._driven = host
        """The host to drain; None while it must be left alone. Drivers set it, even inside a verb."""
        self._early: list[Event] = []
        """Events that a driver took from the host early: reported with the next round, before others."""
        self._draining = False
        self._armed_us = NEVER
        """The deadline for which the timer is set: only an earlier one sets it again. `NEVER` if it is not set."""

    def drain(self) -> None:
        """Drain the host until it has nothing new, then set the timer.

        Inside a verb it returns at once, as the loop that called the verb will handle what is new. The timer is set
        even if a verb raised: a host that is never woken would be silent for ever.
        """
        if self._draining:
            return
        self._draining = True
        rounds = 0
        try:
            while (host := self._driven) is not None and (host.busy or self._early):
                # Two hosts, or a host and its program, that answer each other in zero time would
                # spin here for ever, and the emulator's clock would never move.
                if rounds == ROUNDS_MAX:
                    raise RunawayError(f"the host of {host.node!r} has something new after {ROUNDS_MAX} rounds")
                rounds += 1
                while (batch := host.changes()) is not None:
                    self._write(batch)
                for transmission in host.outgoing():
                    self._transmit(transmission)
                events = host.events()
                if self._early:
                    events, self._early = [*self._early, *events], []
                if events:
                    self._report(events)
        finally:
            self._draining = False
            self._rearm()

    def _wake(self, now: int) -> None:
        """Do what is due when the timer ends, if anything is, and drain the host."""
        self._armed_us = NEVER
        host = self._driven
        if host is not None:
            host.tick(now)
            self.drain()

    def _rearm(self) -> None:
        host = self._driven
        if host is None:
            return
        deadline_us = host.next_deadline()
        # Deadlines mostly move later. A timer that has become too early is left to come: nothing will be due, and it
        # is set again then.
        if deadline_us is not None and deadline_us < self._armed_us:
            self._arm(deadline_us)
            self._armed_us = deadline_us

    # --- verbs: what differs from driver to driver ---------------------------------------------------------

    @abstractmethod
    def _write(self, batch: Batch) -> None:
        """Pass a batch to the store, which can read it at once; `durable` follows, now or later."""

    @abstractmethod
    def _transmit(self, transmission: Transmission) -> None:
        """Send frames, together with the payloads that they name."""

    @abstractmethod
    def _report(self, events: Sequence[Event]) -> None:
        """Report the events of this round to the application.

        They are passed together, because only the driver knows what becomes of the rest if the application fails with
        one of them, or ends the node.
        """

    @abstractmethod
    def _arm(self, deadline_us: int) -> None:
        """Call `_wake` at that time by the host's clock, or soon if it has passed; replaces the time set before."""


@mypyc_attr(allow_interpreted_subclasses=True)
class ProgramDriver(HostDriver):
    """The driver of a host whose programs use messaging."""

    def __init__(self, settings: Settings, host: Host | None = None) -> None:
        super().__init__(host)
        self.settings = settings
        """Settings of the host."""

    @abstractmethod
    def command(self) -> Host:
        """Return the host for a command, after which it must be drained; raises `StateError` if it is suspended."""

    @property
    @abstractmethod
    def now(self) -> int:
        """The host's own time, in microseconds, which never decreases."""

    @property
    def date(self) -> int:
        """The date on the host, in microseconds since 1970: less than its own time after the clock was set back."""
        host, now = self._driven, self.now
        return now if host is None else host.date_of(now)

    def payload(self, descriptor: Descriptor) -> bytes | None:
        """Return a payload from the store, expanded; None, after informing the host, if that is not possible."""
        host = self.command()
        try:
            return self.stored(descriptor)
        except RemoteError as error:
            host.unreadable(descriptor.id, error.reason, self.now)
        except StoreError:
            self._report_gone(descriptor, host)
        self.drain()
        return None

    def answer(self, wanted: PayloadWanted) -> None:
        """Pass a payload to the host that one of its layers requested, unless it is gone."""
        descriptor = wanted.descriptor
        blank = descriptor.codec is PayloadCodec.BLANK
        payload = Blank(descriptor.size) if blank else self.payload(descriptor)
        if payload is not None:
            self.command().payload_read(descriptor.id, payload, self.now)

    def compile(self, wanted: CompileWanted) -> None:
        """Compile a module that the overlay wants to run, at once."""
        code, refusal = compiled(wanted.module, self.settings.limits)
        self.command().overlay.compiled(wanted.digest, self.now, code=code, refusal=refusal)

    def _report_gone(self, descriptor: Descriptor, host: Host) -> None:
        """Inform the host that a payload for a program is not in the store."""
        host.payload_gone(descriptor.id, self.now)

    @abstractmethod
    def stored(self, descriptor: Descriptor) -> bytes:
        """Read a payload from the store; raises `StoreError` if it is gone, `RemoteError` if it does not expand."""

    @abstractmethod
    async def room(self) -> None:
        """Wait while too much waits for the disk."""
