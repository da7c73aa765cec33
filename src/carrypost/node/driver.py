"""Drives one host by real time, real sockets and a real disk; its clock turns the system's time into the host's.

The loop is that of `host.driving`; this module connects it. Datagrams come in batches, and all frames of one neighbour
in one batch are passed to the host at once, so that they are acknowledged once. Only the store's writer is a thread of
its own; its answers come back to the event loop. A stopped driver writes, sends and waits for nothing any more, but
reports the events that the store's last answers release.

The clock gives the host's own time, in microseconds that never decrease, and the steps of the system's clock.
"""

# The clock. Deadlines are absolute, so dates have to follow the system's clock, and that may be
# wrong in every way: a phone that slept, a Raspberry Pi without a battery that boots in 1970, a bad
# GPS date, an administrator that sets it back by an hour.
#
# - Set forward, or the machine slept: follow at once, and report the step. That much silence was
#   none, and neighbours must not time out because of it.
# - Set back: report the step. The host's dates follow at once, since others refuse messages that
#   are dated ahead. Its own time, by which timers run, continues, and is ahead by its lead.
# - Corrected by less than a second: the host's own time runs at half speed until it is right.
# - Days behind what this node has already seen, when it starts: not believed until it is set. Time
#   continues from there, and the user is warned.

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from carrypost.config import Settings
from carrypost.config.settings import PACKET_BYTES
from carrypost.errors import NodeError, StateError
from carrypost.gossip.holdings.cache import CopyState
from carrypost.gossip.wire import codec, frames
from carrypost.gossip.wire.codec import fill_payloads
from carrypost.gossip.wire.frames import Announce, Frame, LinkState, Profile, Transmission
from carrypost.host import Host
from carrypost.host.driving import ProgramDriver
from carrypost.log.events import Event, HostLost, PayloadWanted
from carrypost.log.journal import Batch, Key, Value
from carrypost.model.descriptor import Descriptor
from carrypost.model.ids import MessageId
from carrypost.model.times import MICROSECONDS, NEVER
from carrypost.node.modules import Compiler
from carrypost.node.store.store import Store
from carrypost.node.store.writer import DiskWatch
from carrypost.node.udp.udp import Udp
from carrypost.overlay.modulators.modules import CompileWanted

STEP_US = MICROSECONDS
"""Time by which the system's clock may deviate between two readings before that counts as a step."""
WRONG_US = 24 * 3_600 * MICROSECONDS
"""A system clock that is this much behind at the start is wrong, and was not merely corrected."""


def _wall_us() -> int:
    return time.time_ns() // 1_000


def _steady_us() -> int:
    return time.monotonic_ns() // 1_000


class NodeClock:
    """The clock of one node. `floor_us`: the latest date that is known to have passed."""

    def __init__(
        self, floor_us: int = 0, *, wall_us: Callable[[], int] = _wall_us, steady_us: Callable[[], int] = _steady_us
    ) -> None:
        self._wall_us, self._steady_us = wall_us, steady_us
        self._steady, self._wall = steady_us(), wall_us()
        self._distrusts = floor_us - self._wall > WRONG_US
        self._now = floor_us if self._distrusts else self._wall
        self.lead_us = 0
        """Time by which the host's own time is ahead of its dates, because the system's clock was set back."""
        self._odd = 0
        self._steps: list[int] = []

    def now(self) -> int:
        """Return the host's own time: microseconds since 1970, ahead of the date by `lead_us`."""
        wall, steady = self._wall_us(), self._steady_us()
        passed, self._steady = steady - self._steady, steady
        set_by, self._wall = wall - self._wall - passed, wall
        going = self._now + passed
        if self._distrusts:
            self._distrusts = wall < going - self.lead_us and abs(set_by) < STEP_US
        gained = 0 if self._distrusts else wall + self.lead_us - going
        if abs(gained) >= STEP_US:
            self._steps.append(gained)
            self._now, self.lead_us = max(going, wall), max(self.lead_us - gained, 0)
        else:
            self._now = max(going + gained, self._now + self._half(passed)) if gained < 0 else going + gained
        return self._now

    def _half(self, passed: int) -> int:
        """Return half of the time that passed; odd microseconds are carried over."""
        half, self._odd = divmod(passed + self._odd, 2)
        return half

    def pop_steps(self) -> list[int]:
        """Return the steps of the clock since the last call, forward or back, for `Host.clock_stepped`."""
        steps, self._steps = self._steps, []
        return steps

    @property
    def ahead_us(self) -> int:
        """Time by which dates are ahead of the system's clock, because that is not believed; for people to see."""
        return max(0, self._now - self.lead_us - self._wall_us()) if self._distrusts else 0


_WAIT_S_MAX = 5.0
"""Longest wait: the system's clock may step while the node waits."""
_AGAIN_S = 1.0
"""Delay after a step that failed before the host is checked again, and after a compiler that could not be started."""
_LOOK_US = 50_000
"""Time for which plenty of room on the disk is believed in."""
_PLENTY_BYTES = 64 * 1024 * 1024
_BACKLOG_BYTES_MAX = 32 * 1024 * 1024
"""Bytes that may wait for the disk, in memory."""
_AT_ONCE = 256
"""Number of frames of one peer in one batch that are passed to the host at once. So no more is read of a peer that
wastes work than its account allows."""
_READ_US = 2_000
"""CPU time of decoding what one peer sent, after which that is passed to the host, for the same reason."""
_UNREAD_MAX = 128
"""Number of unread datagrams of a muted peer after which the system drops the rest."""
_UNREAD_PEERS_MAX = 1_024
_LEFT = frozenset({CopyState.UNKNOWN, CopyState.DONE, CopyState.DECLINED})
"""States of messages that a host has no copy of."""
_TELLING_ALONE = (Announce, Profile)
"""Frames that announce this node, and so are sent by every means."""
_TELLING = (*_TELLING_ALONE, LinkState)
"""The same beside an announcement: one datagram costs less than two, although some of its copies reach no node."""
_log = logging.getLogger("carrypost.node")


class _Heard:
    """The frames of one peer in one batch."""

    __slots__ = ("frames", "nbytes", "read_us")

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self.nbytes = 0
        self.read_us = 0
        """Time that it took to decode them."""


class NodeDriver(ProgramDriver):
    """Connects one host with one machine, on one event loop."""

    def __init__(
        self,
        make: Callable[[], Host],
        settings: Settings,
        take: Callable[[Event], None],
        *,
        clock: NodeClock,
        store: Store,
        udp: Udp,
    ) -> None:
        super().__init__(settings)
        self._make = make
        self.host = self._driven = make()
        """The host; while another one is being restored, the one before, which does nothing any more."""
        self._traces = False
        self.gone = 0
        """Number of frames that were not sent because their payload was no longer in the store."""
        self.overrun = 0
        """Number of datagrams that were dropped because the disk had too much to write already."""
        self.unread = 0
        """Number of unread datagrams, from peers that caused too much useless work."""
        self.failed = 0
        """Number of times that the host raised for the frames of one peer in one batch: each is a bug."""
        self.traffic: Counter[str] | None = None
        """Bytes sent by kind of frame, if they are counted."""
        self._carried_bytes = 0
        """Size of datagrams that the interfaces carry, as reported to the host."""
        self._unread_of: Counter[str] = Counter()
        """Unread datagrams by peer, until the system drops them; cleared with every batch without any."""
        self._failures: list[Exception] = []
        """Exceptions that it raised in the current batch."""
        self._clock = clock
        self._store = store
        self._disk = DiskWatch(store.path)
        self._look_us = 0
        """Time at which the room on the disk is looked at again."""
        self._udp = udp
        self._take = take
        self._loop = asyncio.get_running_loop()
        self._running = False
        self._timer: asyncio.TimerHandle | None = None
        self._waiting_for_room: list[asyncio.Future[None]] = []
        self._compiler = Compiler(settings.limits, settings.overlay.compile_share)
        self._compiling: asyncio.Task[None] | None = None
        self._wanted: dict[MessageId, PayloadWanted] = {}
        """Payloads that layers of the host asked for, in this order."""

    def start(self, state: Iterable[tuple[Key, Value]]) -> None:
        """Begin, from what the store holds, with messaging awake unless the settings have it switched off."""
        self._running = True
        self._begin(state)

    def _begin(self, state: Iterable[tuple[Key, Value]]) -> None:
        now = self.now
        self.host.restore(state, now)
        if self._traces:
            self.host.trace()
        self._carried_bytes = self._look_us = 0
        self._fit()
        self._look(now)
        if self.settings.messaging.enabled:
            self.host.messaging.open(now)
        self.drain()

    def trace(self) -> None:
        """Have the host report which neighbour has which message."""
        self._traces = True
        self.host.trace()

    @property
    def is_present(self) -> bool:
        """True if there is a host that the store has begun."""
        return self._running and self._driven is not None and self.host.ready

    def stop(self) -> None:
        """Pass the last changes to the store; nothing is sent any more, and time stands still."""
        while self._running and self._driven is not None and (batch := self.host.changes()) is not None:
            self._write(batch)
        self._running = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._compiling is not None:
            self._compiling.cancel()
        self._admit_waiting()

    def compile(self, wanted: CompileWanted) -> None:
        """Have a module compiled in a process of its own."""
        self._compiling = self._loop.create_task(self._compile(wanted))

    async def _compile(self, wanted: CompileWanted) -> None:
        found = None
        while found is None:
            try:
                found = await self._compiler.compile(wanted.module)
            # The machine has no room for a process. A module without an answer would keep all
            # others from being compiled, and a refusal would blame the module.
            except OSError as error:
                _log.warning("modules of clients cannot be compiled, trying again: %s", error)
                await asyncio.sleep(_AGAIN_S)
        if self._running and self._driven is not None:
            code, refusal, took_us, _ = found
            self.host.overlay.compiled(wanted.digest, self.now, code=code, refusal=refusal, took_us=took_us)
            self.drain()

    def command(self) -> Host:
        """Return the host, for a command of a program; raises `StateError` while there is none."""
        if not self._running:
            raise StateError("the node is not running")
        if self._driven is None:
            raise StateError("the node could not store its last changes, and is being restored: try again")
        self._look(self.now)
        return self.host

    async def room(self) -> None:
        """Wait while too much waits for the disk."""
        while self._running and self.overloaded:
            waiting = self._loop.create_future()
            self._waiting_for_room.append(waiting)
            await waiting

    def _admit_waiting(self) -> None:
        waiting, self._waiting_for_room = self._waiting_for_room, []
        for each in waiting:
            if not each.done():
                each.set_result(None)

    @property
    def overloaded(self) -> bool:
        """True if so much waits for the disk that nothing more should be accepted."""
        return self._store.unanswered_bytes > _BACKLOG_BYTES_MAX

    @property
    def now(self) -> int:
        """The host's own time in microseconds. If the clock stepped, the host learns of it first."""
        now = self._clock.now()
        for step_us in self._clock.pop_steps():
            self.host.clock_stepped(step_us)
            if step_us < 0:
                back_s = -step_us / MICROSECONDS
                _log.warning("the system's clock was set back by %.0f s: the dates of this node follow it", back_s)
            else:
                _log.info("the system's clock was set forward by %.0f s, or the system slept", step_us / MICROSECONDS)
        return now

    # --- what happens --------------------------------------------------------------------------------------

    def received(self, batch: Sequence[tuple[str, bytes]]) -> None:
        """Process datagrams, each with its sender's address.

        Raises the host's exception, but only after the frames of the other peers were processed.
        """
        if not self._running or self._driven is None:
            return
        now = self.now
        self._count_unprotected()
        self._look(now)
        own = self._pass_on(batch, now)
        if self.overloaded:
            # The network is faster than the disk: as if the air had swallowed them, so that senders slow down.
            self.overrun += len(own)
        elif own:
            self._decode(own, now)
            self.drain()
            if self._failures:
                failures, self._failures = self._failures, []
                self.failed += len(failures)
                raise failures[0]

    def _decode(self, batch: Sequence[tuple[str, bytes]], now: int) -> None:
        """Decode datagrams, and pass them to the host, those of each peer together."""
        host, limits = self.host, self.settings.limits
        heard: dict[str, _Heard] = {}
        unread, began_us = 0, host.clock_us()
        for peer, datagram in batch:
            if not host.listens(peer, now):
                unread += 1
                self._unread_of[peer] += 1
                continue
            decoded = codec.decode(datagram, limits)
            read_us, began_us = -began_us, host.clock_us()
            read_us += began_us
            if decoded.refused:
                host.refused(decoded.refused, peer, now, nbytes=len(datagram), read_us=read_us)
                read_us = 0
            found = heard.get(peer)
            if found is None:
                found = heard[peer] = _Heard()
            found.frames += decoded.frames
            found.nbytes += len(datagram)
            found.read_us += read_us
            if len(found.frames) >= _AT_ONCE or found.read_us >= _READ_US:
                del heard[peer]
                self._give(found, peer, now)
                began_us = host.clock_us()
        for peer, found in heard.items():
            self._give(found, peer, now)
        self._count_unread(unread, now)

    def _pass_on(self, batch: Sequence[tuple[str, bytes]], now: int) -> Sequence[tuple[str, bytes]]:
        """Forward datagrams that only pass through this node; return all others.

        None overtakes earlier ones from the same peer: its sender would believe those lost.
        """
        rest: list[tuple[str, bytes]] = []
        waiting: set[str] = set()
        passed_on: dict[str, list[bytes]] = {}
        for peer, datagram in batch:
            passed = None if peer in waiting else self.host.pass_on(datagram, peer, now)
            if passed is None:
                rest.append((peer, datagram))
                waiting.add(peer)
            else:
                passed_on.setdefault(passed[0], []).append(passed[1])
        for peer, datagrams in passed_on.items():
            self._send_bytes(datagrams, peer)
            if self.traffic is not None:
                self.traffic[frames.Relay.__name__] += sum(map(len, datagrams))
        return rest

    def _give(self, found: _Heard, peer: str, now: int) -> None:
        """Give the host what one peer sent."""
        try:
            self.host.receive(found.frames, peer, now, nbytes=found.nbytes, read_us=found.read_us)
        except Exception as error:  # noqa: BLE001 - A bug, which must not cost the other peers what they sent.
            self._failures.append(error)

    def _count_unread(self, unread: int, now: int) -> None:
        """Count datagrams of muted peers; have the system drop those of peers that send many."""
        if not unread:
            self._unread_of.clear()
            return
        self.unread += unread
        if max(self._unread_of.values(), default=0) >= _UNREAD_MAX:
            # Those that are about to send as many are included: to shun each by itself costs more.
            shunned = {
                peer: left_us / MICROSECONDS
                for peer, count in self._unread_of.items()
                if count >= _UNREAD_MAX // 4 and (left_us := self.host.muted_until(peer) - now) > 0
            }
            for peer in shunned:
                del self._unread_of[peer]
            if shunned:
                self._udp.shun(shunned)
        if len(self._unread_of) > _UNREAD_PEERS_MAX:
            self._unread_of.clear()

    def answered(self) -> None:
        """Process the store's answers: durable batches, or a lost one, with which all later ones are lost."""
        now = self.now
        for serial, reason in self._store.answers():
            if reason is not None:
                self._lose(reason)
                break
            self.host.durable(serial, now)
        self._look(now)
        self.drain()
        self._admit_waiting()

    def _lose(self, reason: str) -> None:
        """Drop the host, as memory is ahead of the disk now; a moment later, another one is restored from the store."""
        if self.host.ready:  # Else this is known, and the disk fails still.
            then = "the node goes on from what is stored" if self._running else "the last changes are not stored"
            _log.error("%s; %s", reason, then)
        self._driven = None
        self._wanted.clear()
        self._early.clear()
        if self._compiling is not None:
            self._compiling.cancel()
        self._report((HostLost(reason),))
        if self._running:
            self._wake_in(_AGAIN_S)

    def _restore(self) -> None:
        """Begin with another host from what the store has."""
        try:
            state = list(self._store.state())
        except NodeError as error:
            _log.warning("%s; trying again", error)
            self._wake_in(_AGAIN_S)
            return
        self.host.close()
        self.host = self._driven = self._make()
        self._armed_us = NEVER
        self._begin(state)

    # --- what the host wants -------------------------------------------------------------------------------

    def _write(self, batch: Batch) -> None:
        if self._running:
            self._store.submit(batch)

    def _report(self, events: Sequence[Event]) -> None:
        for event in events:
            try:
                if type(event) is PayloadWanted:
                    self._want(event)
                elif type(event) is CompileWanted:
                    self.compile(event)
                self._take(event)
            except Exception:  # noqa: BLE001 - a failing handler must not cost others their events
                _log.exception("an event of the host was not processed: %s", type(event).__name__)

    def _want(self, wanted: PayloadWanted) -> None:
        """Have a payload read in a turn of the loop by itself: modulators may work on it for as long as a step."""
        if not self._wanted:
            self._loop.call_soon(self._answer_first)
        self._wanted[wanted.descriptor.id] = wanted

    def _answer_first(self) -> None:
        if not self._wanted:
            return
        wanted = self._wanted.pop(next(iter(self._wanted)))
        if self._wanted:
            self._loop.call_soon(self._answer_first)
        if self._running:
            self.answer(wanted)
            self.drain()

    def _transmit(self, transmission: Transmission) -> None:
        if not self._running:
            return
        sent, gone = fill_payloads(transmission.frames, self._store.read)
        for message in gone:
            self.gone += 1
            self.host.payload_gone(message, self.now)
        if transmission.to is None:
            # Announcements go out by every means; the rest only where a node is known to listen.
            telling = _TELLING if any(type(each) is Announce for each in sent) else _TELLING_ALONE
            for announcing in (True, False):
                self._send(
                    [each for each in sent if (type(each) in telling) is announcing], None, announcing=announcing
                )
        else:
            self._send(sent, transmission.to, announcing=False)
        if self.traffic is not None:
            for frame in sent:
                self.traffic[frames.kind(frame)] += codec.wire_size(frame)

    def _send(self, sent: Sequence[Frame], to: str | None, *, announcing: bool) -> None:
        if sent:
            self._send_bytes(codec.datagrams(sent, self.settings.datagram_bytes), to, announcing=announcing)

    def _send_bytes(self, datagrams: Sequence[bytes], to: str | None, *, announcing: bool = False) -> None:
        node = b""
        if (protection := self._udp.protection) is not None:
            protection.rekey(self.host.closed.keys)
            node = b"" if to is None else self.host.closed.prefix_at(to)
        self._udp.send(datagrams, to, announcing=announcing, node=node)

    def _count_unprotected(self) -> None:
        """Count datagrams that a closed network dropped, and let it open those under keys that became known."""
        if (protection := self._udp.protection) is not None:
            protection.rekey(self.host.closed.keys)
            refused, protection.refused = protection.refused, 0
            if refused:
                self.host.closed.refuse(refused)

    def stored(self, descriptor: Descriptor) -> bytes:
        """Read a payload from the store."""
        return self._store.payload(descriptor, self.settings.limits)

    def _report_gone(self, descriptor: Descriptor, host: Host) -> None:
        if host.state_of(descriptor.id) in _LEFT:
            _log.debug(
                "the message %s is gone before its program received it: it expired, or was consumed elsewhere",
                descriptor.shown,
            )
        else:
            _log.warning(
                "the body of the message %s is missing in the store: it is not delivered, unless a neighbour "
                "sends it again",
                descriptor.shown,
            )
        super()._report_gone(descriptor, host)

    def _fit(self) -> None:
        """Inform the host of the longest datagram that the interfaces carry, if that has changed: they come and go."""
        carried_bytes = self._udp.datagram_bytes
        if carried_bytes and self._udp.protection is not None:
            carried_bytes -= PACKET_BYTES
        if carried_bytes != self._carried_bytes:
            self._carried_bytes = carried_bytes
            self.host.carry(carried_bytes, self.now)

    def _look(self, now: int) -> None:
        """Inform the host of the room on the disk, unless a moment ago there was plenty: others use the disk, too."""
        if self._running and self._driven is not None and now >= self._look_us:
            room_bytes = self._store.room_bytes
            self._look_us = now + _LOOK_US if room_bytes > _PLENTY_BYTES else now
            self.host.room(room_bytes, now)
            self._disk.update(room_bytes, now)

    # --- time ----------------------------------------------------------------------------------------------

    def _arm(self, deadline_us: int) -> None:
        if self._running:
            self._wake_in(min((deadline_us - self.now) / MICROSECONDS, _WAIT_S_MAX))

    def _wake_in(self, delay_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(delay_s, self._timer_fired)

    def _timer_fired(self) -> None:
        self._timer = None
        if self._driven is None:
            self._restore()
            return
        try:
            self._count_unprotected()
            self._fit()
            self._look(self.now)
            self._wake(self.now)
        except Exception:
            self._wake_in(_AGAIN_S)
            self._armed_us = 0  # What is overdue, because it failed, is no reason to come sooner.
            raise
