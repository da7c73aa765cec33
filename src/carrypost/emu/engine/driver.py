"""One emulated node: a host, its clock, its store, its place on the radio, its one timer.

The loop is that of `host.driving`. A batch is readable at once and answered at once or after the disk's delay; stored
payloads are inserted into the frames that name them; events go to the application. A crash takes everything that was
not durable; a suspended node misses what is sent to it, and on its return does what fell due.

The clock may be wrong: set ahead or behind, too fast or too slow, and set anew now and then. `EmulatedClock.local` is
the node's own time, in whole microseconds. It never decreases, as hosts demand: it follows steps forward and, after a
step back, goes on and is ahead of the date that the clock shows, by its lead; nor is it ever below 0. Reckoned in whole
numbers, so that the same run gives the same times everywhere.

The store is in memory and behaves like a disk. A batch is readable as soon as it is taken and durable once it is
committed; batches are committed in the order in which they were taken. A crash loses those that were not. The meaning
of values is the host's business: of the keys only "piece" is known here, because payloads are read from the store and
do not come back at a restart.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import msgspec
from mypy_extensions import mypyc_attr

from carrypost.chance import stream
from carrypost.config import UNBOUNDED, Limits, Settings
from carrypost.emu.engine.radio import Burst, Datagram, Radio
from carrypost.emu.engine.scheduler import Phase, Scheduler
from carrypost.errors import StateError
from carrypost.gossip.wire.codec import assemble_payload, fill_payloads
from carrypost.gossip.wire.frames import Frame, Transmission
from carrypost.host import Host
from carrypost.host.driving import ProgramDriver
from carrypost.log.events import Event, PayloadWanted, Published
from carrypost.log.journal import PIECE, Batch, Key, PieceOf, Value
from carrypost.model.descriptor import Descriptor, PayloadCodec
from carrypost.model.descriptor_values import Privilege, privilege
from carrypost.model.ids import MessageId, NodeId
from carrypost.model.times import NEVER
from carrypost.overlay.modulators.modules import CompileWanted
from carrypost.security import packets
from carrypost.security.identity import Identity, derived

_BILLION: Final = 1_000_000_000


class EmulatedClock:
    """The clock of one emulated node, right or wrong."""

    __slots__ = ("_drift_ppb", "_lead_us", "_offset_us")

    def __init__(self, skew_us: int = 0, drift_ppm: float = 0.0) -> None:
        self._offset_us = skew_us
        self._drift_ppb = round(drift_ppm * 1_000)
        self._lead_us = 0

    @property
    def right(self) -> bool:
        """True if it shows the true time."""
        return not (self._offset_us or self._drift_ppb or self._lead_us)

    def local(self, t_us: int) -> int:
        """Return the node's own time at the true time `t_us`."""
        return max(self._shown(t_us), 0)

    def world(self, local_us: int, now_us: int) -> int:
        """Return the first instant, not before `now_us`, at which it shows `local_us` or more."""
        if self.local(now_us) >= local_us:
            return now_us
        t_us = (local_us - self._offset_us - self._lead_us) * _BILLION // (_BILLION + self._drift_ppb)
        while self._shown(t_us) >= local_us:
            t_us -= 1
        while self._shown(t_us) < local_us:
            t_us += 1
        return max(t_us, now_us)

    def step(self, delta_us: int) -> None:
        """Set the clock forward or, by a negative amount, back."""
        self._offset_us += delta_us
        self._lead_us = max(self._lead_us - delta_us, 0)

    def restart(self) -> None:
        """Begin another life of the node, whose own time is the date that the clock shows."""
        self._lead_us = 0

    def _shown(self, t_us: int) -> int:
        return t_us + t_us * self._drift_ppb // _BILLION + self._offset_us + self._lead_us


@mypyc_attr(allow_interpreted_subclasses=True)
class MemoryStore:
    """The contents of one node's emulated disk, and the batches on the way there."""

    __slots__ = ("_disk", "_accepted")

    def __init__(self) -> None:
        self._disk: dict[Key, Value] = {}
        self._accepted: dict[int, Batch] = {}

    def __len__(self) -> int:
        return len(self._disk)

    @property
    def unanswered(self) -> tuple[int, ...]:
        """Serials of the batches that are not durable yet, oldest first."""
        return tuple(self._accepted)

    def accept(self, batch: Batch) -> None:
        """Make a batch readable."""
        self._accepted[batch.serial] = self._resolved(batch)

    def commit(self, serial: int) -> None:
        """Make a batch durable."""
        oldest = next(iter(self._accepted), None)
        if serial != oldest:
            raise StateError(f"batches must be committed in order: {oldest} is next, not {serial}")
        self._apply(self._accepted.pop(serial))

    def write(self, batch: Batch) -> None:
        """Take and commit a batch in one."""
        if self._accepted:
            self.accept(batch)
            self.commit(batch.serial)
        else:
            self._apply(self._resolved(batch))

    def _resolved(self, batch: Batch) -> Batch:
        """Return the batch with the pieces of other messages that it refers to; a piece that is gone is left out."""
        if not batch.refers:
            return batch
        found = {
            key: self.get((PIECE, value.message, key[2])) if isinstance(value, PieceOf) else value
            for key, value in batch.puts.items()
        }
        puts = {key: value for key, value in found.items() if value is not None}
        return msgspec.structs.replace(batch, puts=puts, refers=False)

    def _apply(self, batch: Batch) -> None:
        disk = self._disk
        for key in batch.deletes:
            disk.pop(key, None)
        disk.update(batch.puts)

    def refuse(self, serial: int) -> None:
        """Drop a batch that could not be written."""
        if self._accepted.pop(serial, None) is None:
            raise StateError(f"no batch {serial} is on its way to the disk")

    def crash(self) -> None:
        """Lose all batches that are not durable."""
        self._accepted.clear()

    def get(self, key: Key) -> Value | None:
        """Return the value that was last put under `key`; None if there is none."""
        for batch in reversed(self._accepted.values()):
            if key in batch.puts:
                return batch.puts[key]
            if key in batch.deletes:
                return None
        return self._disk.get(key)

    def piece(self, message: MessageId, piece: int) -> bytes | None:
        """Return a piece of a payload; None if it is gone."""
        body = self.get((PIECE, message, piece))
        return body if isinstance(body, bytes) else None

    def payload(self, descriptor: Descriptor, limits: Limits) -> bytes:
        """Return a whole payload as it was published; raises as `assemble_payload` does."""
        return assemble_payload(descriptor, self.piece, limits)

    def state(self) -> Iterator[tuple[Key, Value]]:
        """Yield everything durable except payloads, in a fixed order, to restore a host from."""
        for key in sorted(self._disk):
            if key[0] != PIECE:
                yield key, self._disk[key]


class NodeState(enum.Enum):
    """The participation of a node."""

    RUNNING = "running"
    SUSPENDED = "suspended"
    DOWN = "down"


_RUNNING: Final = NodeState.RUNNING
_SUSPENDED: Final = NodeState.SUSPENDED
_DOWN: Final = NodeState.DOWN
_TIMER: Final = Phase.TIMER


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
