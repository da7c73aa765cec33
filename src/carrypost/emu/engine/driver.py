"""One emulated node: a host, its store, its place on the radio, its one timer.

The loop is that of `host.driving`. A batch is readable at once and answered at once or after the disk's delay; stored
payloads are inserted into the frames that name them; events go to the application. A crash takes everything that was
not durable; a suspended node misses what is sent to it, and on its return does what fell due.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from carrypost.chance import stream
from carrypost.config import UNBOUNDED, Settings
from carrypost.emu.engine.clock import EmulatedClock
from carrypost.emu.engine.memory import MemoryStore
from carrypost.emu.engine.radio import Burst, Datagram, Radio
from carrypost.emu.engine.scheduler import Phase, Scheduler
from carrypost.errors import StateError
from carrypost.gossip.wire.frames import Frame, Transmission
from carrypost.gossip.wire.payloads import fill_payloads
from carrypost.host import Host
from carrypost.host.driving import ProgramDriver
from carrypost.log.events import Event, PayloadWanted, Published
from carrypost.log.journal import Batch
from carrypost.model.descriptor import Descriptor, PayloadCodec
from carrypost.model.ids import NodeId
from carrypost.model.privilege import Privilege, privilege
from carrypost.model.times import NEVER
from carrypost.overlay.modulators.modules import CompileWanted
from carrypost.security import packets
from carrypost.security.entropy import derived
from carrypost.security.identity import Identity


class NodeState(enum.Enum):
    """The participation of a node."""

    RUNNING = "running"
    SUSPENDED = "suspended"
    DOWN = "down"


_RUNNING, _SUSPENDED, _DOWN = NodeState.RUNNING, NodeState.SUSPENDED, NodeState.DOWN
_TIMER = Phase.TIMER


class Application(Protocol):
    """The application that runs on a node."""

    def started(self, driver: EmulatedDriver) -> None:
        """Subscribe, on a host that has just started."""

    def handle_event(self, driver: EmulatedDriver, event: Event) -> None:
        """Handle an event of the host."""


@dataclass(frozen=True, slots=True)
class Environment:
    """The data that all nodes of one emulation share."""

    scheduler: Scheduler
    radio: Radio
    seed: int | str = 0
    names: dict[NodeId, str] = field(default_factory=dict)
    """Names of the nodes, by id."""

    def name(self, node: NodeId) -> str:
        """Return the name of the node that has this id; an unknown id is its own name."""
        return self.names.get(node, node)


@dataclass(slots=True)
class Disk:
    """The behaviour of a node's disk."""

    delay_us: int = 0
    full: bool = False
    """True if it takes no new messages."""
    store: MemoryStore = field(default_factory=MemoryStore)


class EmulatedDriver(ProgramDriver):
    """The driver of one emulated node: joins its host with store, radio and virtual time."""

    def __init__(
        self,
        name: str,
        settings: Settings,
        environment: Environment,
        application: Application,
        *,
        privilege: Privilege = privilege,
        clock: EmulatedClock | None = None,
    ) -> None:
        super().__init__(settings)
        self.name = name
        signed = settings.security == "signed"
        self.identity = Identity.derived(environment.seed, name) if signed else Identity.plain(name)
        environment.names[self.identity.node] = name
        self._datagram_bytes = settings.datagram_bytes
        self._closed = bool(settings.sealing.closed)
        self.disk = Disk()
        self.state = _DOWN
        self.gone = 0
        """Number of messages that were not sent because their payload was no longer in the store."""
        self.clock = clock or EmulatedClock()
        self._skewed = not self.clock.right
        self._scheduler = environment.scheduler
        self._radio = environment.radio
        self._seed = environment.seed
        self._application = application
        self._privilege = privilege
        self._host: Host | None = None
        self._boots = 0
        self._timer = 0
        """Number of the posted timer that counts."""
        self._late: list[Callable[[Host, int], None]] = []
        self._written_us = 0
        environment.radio.add(name, self._receive)

    @property
    def host(self) -> Host:
        """The host in its present incarnation; an error while the node is down."""
        if self._host is None:
            raise StateError(f"node {self.name!r} is down: restart it first")
        return self._host

    @property
    def now(self) -> int:
        """The node's own time, in microseconds, which never decreases."""
        return self.clock.local(self._scheduler.now) if self._skewed else self._scheduler.now

    @property
    def t_us(self) -> int:
        """The true time, by which the record goes."""
        return self._scheduler.now

    def step_clock(self, delta_us: int) -> None:
        """Set the node's clock forward or, by a negative amount, back."""
        self.clock.step(delta_us)
        self._skewed = True
        if self._host is not None:
            self._host.clock_stepped(delta_us)
        if self.state is _RUNNING:
            self._stop_timer()
            self._wake(self.now)

    def fill_disk(self, *, full: bool) -> None:
        """Let the disk take no new messages any more, or take them again."""
        self.disk.full = full
        if self._driven is not None:
            self._report_room(self._driven)
            self.drain()

    def _report_room(self, host: Host) -> None:
        """Inform the host of what the disk takes."""
        host.room(0 if self.disk.full else UNBOUNDED, self.now)

    @property
    def store(self) -> MemoryStore:
        """The contents of the node's disk."""
        return self.disk.store

    def boot(self) -> None:
        """Start, or start again from what the store holds."""
        if self.state is not _DOWN:
            raise StateError(f"node {self.name!r} is {self.state.value} already")
        self._boots += 1
        chance = stream(self._seed, self.name, "host", self._boots)
        host = self._host = self._driven = Host(
            self.identity, self.settings, chance, privilege=self._privilege,
            entropy=derived(self._seed, self.name, self._boots),
        )  # fmt: skip
        self.state = _RUNNING
        self.clock.restart()
        now = self.now
        state = list(self.store.state())
        if state:
            host.restore(state, now)
        else:
            host.start(now)
        self._report_room(host)
        self._application.started(self)
        self.drain()

    def crash(self) -> None:
        """Crash the node: batches that are not durable yet are lost."""
        if self.state is _DOWN:
            raise StateError(f"node {self.name!r} is down already")
        self.state = _DOWN
        self.host.close()
        self._host = self._driven = None
        self.store.crash()
        self._late.clear()
        self._early.clear()
        self._written_us = 0
        self._stop_timer()

    def suspend(self) -> None:
        """Stop for a while: the node hears, sends and does nothing until it is resumed."""
        if self.state is not _RUNNING:
            raise StateError(f"node {self.name!r} is {self.state.value} and cannot be suspended")
        self.state = _SUSPENDED
        self._driven = None
        self._stop_timer()

    def resume(self) -> None:
        """Continue after a suspension: first process the disk's answers, then do what fell due."""
        if self.state is not _SUSPENDED:
            raise StateError(f"node {self.name!r} is {self.state.value}, not suspended")
        self.state = _RUNNING
        self._driven = self._host
        now = self.now
        late, self._late = self._late, []
        for answer in late:
            answer(self.host, now)
        self._report_room(self.host)
        self._wake(now)

    def command(self) -> Host:
        """Return the host, for a command of the application; raises `StateError` if the node is down or suspended."""
        if self.state is _SUSPENDED:
            raise StateError(f"node {self.name!r} is suspended: resume it first")
        return self.host

    def inject(self, frames: Iterable[Frame], peer: str) -> None:
        """Give the host frames as if `peer` had sent them in one datagram."""
        self.command()
        self._receive([Datagram(tuple(frames), 0)], peer)

    def report_published(self) -> None:
        """Report what was just published to the application; other events wait for `drain`, in order.

        So a record has a publication before everything else of that instant: what had expired at this node by then and,
        if hosts answer later (ideal mode), what other nodes report meanwhile.
        """
        host = self.host
        events = host.events()
        self._early += [event for event in events if type(event) is not Published]
        for event in events:
            if type(event) is Published and self._host is host:
                self._application.handle_event(self, event)

    def later(self, action: Callable[[], None]) -> None:
        """Let the application act at this instant, after all events were reported, if the node is present by then."""
        self._scheduler.post(self._scheduler.now, Phase.PUBLISH, self.name, self._act, action, self._host)

    def _act(self, action: Callable[[], None], host: Host) -> None:
        if self._driven is host:
            self.drain()
        if self._driven is host:
            action()
            self.drain()

    def write(self) -> None:
        """Store the host's changes at once, before anything else is taken."""
        while (batch := self.host.changes()) is not None:
            self._write(batch)

    def _transmit(self, transmission: Transmission) -> None:
        frames, gone = fill_payloads(transmission.frames, self.disk.store.piece)
        for message in gone:
            self.gone += 1
            self.host.payload_gone(message, self.now)
        if not frames:
            return
        if self._closed:
            self._protect(frames, transmission.to)
        else:
            self._radio.send(self.name, frames, transmission.to, self._datagram_bytes)

    def _protect(self, frames: Sequence[Frame], to: str | None) -> None:
        """Send frames to members of the closed network, if this node has its secret."""
        peer, key = packets.parted(to or "")
        if (keys := self.host.closed.keys) is not None:
            self._radio.protect(self.name, key or keys.present.id)
            self._radio.send(self.name, frames, peer or None, self._datagram_bytes)

    def _report(self, events: Sequence[Event]) -> None:
        host = self._host
        for event in events:
            if type(event) is PayloadWanted:
                self.answer(event)
            elif type(event) is CompileWanted:
                self.compile(event)
            self._application.handle_event(self, event)
            if self._host is not host:
                return  # The application crashed its node: the remaining events are lost.

    async def room(self) -> None:
        """Return at once: there is room in memory."""

    def stored(self, descriptor: Descriptor) -> bytes:
        """Read a payload from the store; blank ones are made."""
        if descriptor.codec == PayloadCodec.BLANK:
            return bytes(descriptor.size)
        return self.store.payload(descriptor, self.settings.limits)

    def _write(self, batch: Batch) -> None:
        disk, scheduler = self.disk, self._scheduler
        # The common case, no delay and no fault, avoids the heap: it is one call for every batch of
        # every node.
        if not disk.delay_us and self._written_us <= scheduler.now:
            disk.store.write(batch)
            self.host.durable(batch.serial, self.clock.local(scheduler.now) if self._skewed else scheduler.now)
            return
        due = max(scheduler.now + disk.delay_us, self._written_us)
        disk.store.accept(batch)
        if due == scheduler.now:
            self._answer(batch)
            return
        self._written_us = due
        scheduler.post(due, Phase.DISK, self.name, self._answer_late, batch, self._host)

    def _answer_late(self, batch: Batch, host: Host) -> None:
        """Answer a batch after the disk's delay, unless a crash or a full disk took it meanwhile."""
        if self._host is host and batch.serial in self.store.unanswered:
            self._answer(batch)
            self.drain()

    def _answer(self, batch: Batch) -> None:
        self.store.commit(batch.serial)
        self._answer_host(lambda host, now: host.durable(batch.serial, now))

    def _answer_host(self, answer: Callable[[Host, int], None]) -> None:
        if self.state is _SUSPENDED:
            self._late.append(answer)
        else:
            answer(self.host, self.now)

    def _receive(self, burst: Burst, peer: str) -> None:
        host = self._driven
        if host is None:
            return
        now = self.clock.local(self._scheduler.now) if self._skewed else self._scheduler.now
        if self._closed or burst[0].key:
            burst, peer = self._open(host, burst, peer)
        if len(burst) == 1 and not burst[0].refused:
            frames: Sequence[Frame] = burst[0].frames
            nbytes = burst[0].size
        else:
            found: list[Frame] = []
            nbytes = 0
            for datagram in burst:
                found += datagram.frames
                nbytes += datagram.size
                if datagram.refused:
                    host.refused(datagram.refused, peer, now, nbytes=datagram.size)
            frames = found
        if host.receive(frames, peer, now, nbytes=nbytes) or host.busy:
            self.drain()

    def _open(self, host: Host, burst: Burst, peer: str) -> tuple[Burst, str]:
        """Return what this node can open of a burst, which is of one key, and the link address that it comes from."""
        keys, key = host.closed.keys, burst[0].key
        if self._closed and keys is not None and key == keys.present.id:
            return burst, peer
        if self._closed and keys is not None and any(key == each.id for each in keys.older):
            return burst, packets.under(peer, key)
        if self._closed:
            host.closed.refuse(len(burst))
            burst = []
        return [Datagram((), each.size, {"packet": 1}) for each in burst], peer

    def _arm(self, deadline_us: int) -> None:
        scheduler = self._scheduler
        t_us = scheduler.now
        if self._skewed:
            t_us = self.clock.world(deadline_us, t_us)
        elif deadline_us > t_us:
            t_us = deadline_us
        # The one that would come too late is posted and will come, but is not heeded: cheaper than to cancel it.
        self._timer += 1
        scheduler.post(t_us, _TIMER, self.name, self._timer_fired, self._timer)

    def _stop_timer(self) -> None:
        self._timer += 1
        self._armed_us = NEVER

    def _timer_fired(self, timer: int) -> None:
        host = self._driven
        if timer != self._timer or host is None:
            return
        now = self._scheduler.now
        self._armed_us = NEVER
        if host.tick(self.clock.local(now) if self._skewed else now):
            self.drain()
            return
        # Nothing but an announcement, as of most ticks. To drain the host for it would cost nodes alone 4 % more.
        for transmission in host.outgoing():
            if self._closed:
                self._protect(transmission.frames, transmission.to)
            else:
                self._radio.send(self.name, transmission.frames, transmission.to, self._datagram_bytes)
        self._rearm()
