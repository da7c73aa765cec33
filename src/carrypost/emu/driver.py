"""One emulated node: a host, its store, its place on the radio, its one timer.

After anything that happens to the host the driver goes round changes, outgoing, events until nothing is
new: a batch is readable at once and answered at once or after the disk's delay; stored payloads are put
into the frames that name them; events go to the application. A crash takes everything but what was durable;
a suspended node misses what is sent to it, and does on its return what fell due.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from carrypost.config import Settings
from carrypost.emu.chance import stream
from carrypost.emu.memory import MemoryStore
from carrypost.emu.radio import Burst, Datagram, Radio
from carrypost.emu.scheduler import Phase, RunawayError, Scheduler, Token
from carrypost.errors import StateError
from carrypost.events import Event
from carrypost.gossip.frames import Data, Frame, StoredData
from carrypost.gossip.journal import Batch
from carrypost.host import Host
from carrypost.model.ids import MessageId
from carrypost.model.privilege import Privilege, privilege
from carrypost.security.identity import Identity

ROUNDS_MAX = 100_000
"""How often a host may have something new without anything else happening."""


class Life(enum.Enum):
    """Whether a node takes part."""

    RUNNING = "running"
    SUSPENDED = "suspended"
    DOWN = "down"


class Application(Protocol):
    """What runs on a node."""

    def started(self, driver: Driver) -> None:
        """The host is new: subscribe (again)."""

    def take(self, driver: Driver, event: Event) -> None:
        """Something that the host tells."""


@dataclass(frozen=True, slots=True)
class World:
    """What all nodes of one emulation share."""

    scheduler: Scheduler
    radio: Radio
    seed: int | str = 0


@dataclass(slots=True)
class Disk:
    """How a node's disk behaves."""

    delay_us: int = 0
    full: bool = False
    """Batches that would put anything are lost."""
    store: MemoryStore = field(default_factory=MemoryStore)


class Driver:
    """Joins one host with the emulated world."""

    def __init__(
        self,
        name: str,
        identity: Identity,
        settings: Settings,
        world: World,
        application: Application,
        *,
        privilege: Privilege = privilege,
    ) -> None:
        self.name = name
        self.identity = identity
        self.settings = settings
        self.disk = Disk()
        self.life = Life.DOWN
        self.gone = 0
        """Frames that were not sent because their payload was no longer in the store."""
        self._world = world
        self._application = application
        self._privilege = privilege
        self._host: Host | None = None
        self._boots = 0
        self._settling = False
        self._timer: Token | None = None
        self._timer_us = 0
        self._answers: list[Token] = []
        self._late: list[Callable[[Host, int], None]] = []
        self._written_us = 0
        world.radio.add(name, self._receive)

    @property
    def host(self) -> Host:
        """The host in its present life."""
        if self._host is None:
            raise StateError(f"node {self.name!r} is down: restart it first")
        return self._host

    @property
    def now(self) -> int:
        """Virtual microseconds."""
        return self._world.scheduler.now

    @property
    def store(self) -> MemoryStore:
        """What the node has on its disk."""
        return self.disk.store

    def boot(self) -> None:
        """Start, or start again from what the store holds."""
        if self.life is not Life.DOWN:
            raise StateError(f"node {self.name!r} is {self.life.value} already")
        self._boots += 1
        chance = stream(self._world.seed, self.name, "host", self._boots)
        host = self._host = Host(self.identity, self.settings, chance, privilege=self._privilege)
        self.life = Life.RUNNING
        now = self.now
        state = list(self.store.state())
        if state:
            host.restore(state, now)
        else:
            host.start(now)
        self._application.started(self)
        self.settle()

    def crash(self) -> None:
        """End without notice; batches that were not answered are lost."""
        if self.life is Life.DOWN:
            raise StateError(f"node {self.name!r} is down already")
        self.life = Life.DOWN
        self._host = None
        self.store.crash()
        cancel = self._world.scheduler.cancel
        for token in self._answers:
            cancel(token)
        self._answers.clear()
        self._late.clear()
        self._written_us = 0
        self._stop_timer()

    def suspend(self) -> None:
        """Stand still: nothing is heard, said or done."""
        if self.life is not Life.RUNNING:
            raise StateError(f"node {self.name!r} is {self.life.value} and cannot be suspended")
        self.life = Life.SUSPENDED
        self._stop_timer()

    def resume(self) -> None:
        """Go on: first the disk's answers, then what fell due."""
        if self.life is not Life.SUSPENDED:
            raise StateError(f"node {self.name!r} is {self.life.value}, not suspended")
        self.life = Life.RUNNING
        now = self.now
        late, self._late = self._late, []
        for answer in late:
            answer(self.host, now)
        self._tick_if_due()
        self.settle()

    def command(self) -> Host:
        """The host, to tell it something; `settle` must follow."""
        if self.life is Life.SUSPENDED:
            raise StateError(f"node {self.name!r} is suspended: resume it first")
        return self.host

    def inject(self, frames: Iterable[Frame], peer: str) -> None:
        """Give the host frames as if `peer` had sent them in one datagram."""
        self.command()
        self._receive([Datagram(tuple(frames), 0)], peer)

    def settle(self) -> None:
        """Go round until the host has nothing new. Inside an event it only marks that there is more to do."""
        if self._settling:
            return
        self._settling = True
        try:
            for _ in range(ROUNDS_MAX):
                if not self._round():
                    break
            else:
                raise RunawayError(f"the host of {self.name!r} has something new after {ROUNDS_MAX} rounds")
        finally:
            self._settling = False
        if self.life is Life.RUNNING:
            self._set_timer()

    def write(self) -> list[Batch]:
        """Take the host's changes into the store, before anything else is taken; the batches, if any."""
        batches: list[Batch] = []
        while (batch := self.host.changes()) is not None:
            batches.append(batch)
            self._write(batch)
        return batches

    def _round(self) -> bool:
        """Whether there was anything. The application may crash the node by what it does with an event."""
        if self.life is not Life.RUNNING:
            return False
        host = self.host
        busy = bool(self.write())
        for transmission in host.outgoing():
            busy = True
            frames = self._resolved(transmission.frames)
            if frames:
                self._world.radio.send(self.name, frames, transmission.to, self.settings.mtu_bytes)
        for event in host.events():
            busy = True
            self._application.take(self, event)
            if self._host is not host:
                break
        return busy

    def _write(self, batch: Batch) -> None:
        self.store.take(batch)
        scheduler = self._world.scheduler
        due = max(scheduler.now + self.disk.delay_us, self._written_us)
        if due == scheduler.now:
            self._answer(batch)
            return
        self._written_us = due
        self._answers = [token for token in self._answers if token.pending]
        self._answers.append(scheduler.at(due, Phase.DISK, self.name, lambda: self._answer(batch, settle=True)))

    def _answer(self, batch: Batch, *, settle: bool = False) -> None:
        if self.disk.full and batch.puts:
            self.store.refuse(batch.serial)
            self._tell(lambda host, now: host.lost(batch.serial, "disk full", now))
        else:
            self.store.commit(batch.serial)
            self._tell(lambda host, now: host.durable(batch.serial, now))
        if settle:
            self.settle()

    def _tell(self, answer: Callable[[Host, int], None]) -> None:
        if self.life is Life.SUSPENDED:
            self._late.append(answer)
        else:
            answer(self.host, self.now)

    def _resolved(self, frames: tuple[Frame, ...]) -> tuple[Frame, ...]:
        """The frames with their payload, less those whose payload is gone."""
        if not any(type(frame) is StoredData for frame in frames):
            return frames
        found: list[Frame] = []
        gone: dict[MessageId, None] = {}
        for frame in frames:
            if not isinstance(frame, StoredData):
                found.append(frame)
                continue
            body = self.store.read(frame.message, frame.piece, frame.offset, frame.length)
            if body is None:
                self.gone += 1
                gone[frame.message] = None
            else:
                found.append(Data(frame.handle, frame.serial, frame.index, frame.last, body))
        for message in gone:
            self.host.payload_gone(message, self.now)
        return tuple(found)

    def _receive(self, burst: Burst, peer: str) -> None:
        if self.life is not Life.RUNNING:
            return
        now = self.now
        for datagram in burst:
            if datagram.refused:
                self.host.refused(datagram.refused, peer)
            self.host.receive(datagram.frames, peer, now, nbytes=datagram.size)
        self.settle()

    def _set_timer(self) -> None:
        deadline = self.host.next_deadline()
        if self._timer is not None:
            # A timer that comes too early is left to come: it looks again. Deadlines mostly move later.
            if deadline is not None and self._timer_us <= deadline:
                return
            self._stop_timer()
        if deadline is not None:
            self._timer_us = max(deadline, self.now)
            self._timer = self._world.scheduler.at(self._timer_us, Phase.TIMER, self.name, self._timer_fired)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._world.scheduler.cancel(self._timer)
            self._timer = None

    def _timer_fired(self) -> None:
        self._timer = None
        if self._tick_if_due():
            self.settle()
        else:
            self._set_timer()

    def _tick_if_due(self) -> bool:
        now = self.now
        deadline = self.host.next_deadline()
        if deadline is None or deadline > now:
            return False
        self.host.tick(now)
        return True
