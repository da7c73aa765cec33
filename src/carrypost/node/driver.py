"""Drives one host by real time, real sockets and a real disk.

After anything that happens to the host the driver goes round changes, outgoing, events until nothing is new
(docs/host.md has the rules). Datagrams come in batches, and what one neighbour sent in one batch is given to the host
at once, so that it is acknowledged once. Only the store's writer is a thread of its own; what it answers comes back to
the loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from carrypost.config import Settings
from carrypost.events import Event
from carrypost.gossip.transfers.accounts import price
from carrypost.gossip.wire import codec, frames
from carrypost.gossip.wire.frames import Announce, Frame, Profile, Transmission
from carrypost.gossip.wire.payloads import filled
from carrypost.host import Host
from carrypost.journal import Batch, Key, Value
from carrypost.model.times import MICROSECONDS
from carrypost.node.clock import Clock
from carrypost.node.store.disk_watch import DiskWatch
from carrypost.node.store.store import Store
from carrypost.node.udp.udp import Udp

_WAIT_S_MAX = 5.0
"""The system's clock may step while the node waits: it looks again after this at the latest."""
_AGAIN_S = 1.0
"""After a step that failed it is looked again whether something is due."""
_BACKLOG_BYTES_MAX = 32 * 1024 * 1024
"""What may wait for the disk, in memory."""
_AT_ONCE = 2_000
"""What one peer sent in one batch is given to the host at once, up to this price: so that no more is read of one who
sends what leads to nothing than its account allows."""
_UNREAD_MAX = 128
"""After so many datagrams of a muted peer that had to be taken off the sockets unread, the system drops the rest."""
_UNREAD_PEERS_MAX = 1_024
_TELLING = (Announce, Profile)
_log = logging.getLogger("carrypost.node")


@dataclass(frozen=True, slots=True)
class Machine:
    """What a host is joined with."""

    clock: Clock
    store: Store
    udp: Udp


class _Heard:
    """What one peer sent in one batch."""

    __slots__ = ("frames", "nbytes", "price")

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self.nbytes = 0
        self.price = 0


class Driver:
    """Joins one host with one machine, on one event loop."""

    def __init__(self, host: Host, settings: Settings, machine: Machine, take: Callable[[Event], None]) -> None:
        self.host = host
        self.gone = 0
        """Frames that were not sent because their payload was no longer in the store."""
        self.overrun = 0
        """Datagrams that were not taken because the disk had too much to write already."""
        self.unread = 0
        """Datagrams that were not looked at, of those who caused too much work for nothing."""
        self.traffic: Counter[str] | None = None
        """Bytes sent by kind of frame, if somebody wants to know."""
        self._settings = settings
        self._unread_of: Counter[str] = Counter()
        """Unread datagrams by peer, until the system is told to drop them; cleared with every batch without any."""
        self._clock = machine.clock
        self._store = machine.store
        self._disk = DiskWatch(machine.store.path)
        self._udp = machine.udp
        self._take = take
        self._loop = asyncio.get_running_loop()
        self._running = False
        self._settling = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_us = 0

    def start(self, state: Iterable[tuple[Key, Value]]) -> None:
        """Begin, from what the store holds."""
        self._running = True
        self.host.restore(state, self.now())
        self.settle()

    def stop(self) -> None:
        """Hand the last changes to the store; nothing is sent any more, and time stands still."""
        if self._running:
            self.write()
        self._running = False
        self._disk.close()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @property
    def overloaded(self) -> bool:
        """So much waits for the disk that nothing more should be taken."""
        return self._store.unanswered_bytes > _BACKLOG_BYTES_MAX

    def now(self) -> int:
        """Microseconds; the host has been told if the clock stepped."""
        now = self._clock.now()
        if step_us := self._clock.take_step_us():
            self.host.clock_stepped(step_us)
        return now

    # --- what happens --------------------------------------------------------------------------------------

    def received(self, batch: Sequence[tuple[str, bytes]]) -> None:
        """Datagrams came, each with its sender's address."""
        if not self._running:
            return
        if self.overloaded:
            # The network is faster than the disk: as if the air had swallowed them, so that senders slow down.
            self.overrun += len(batch)
            return
        now = self.now()
        host, limits = self.host, self._settings.limits
        heard: dict[str, _Heard] = {}
        unread = 0
        for peer, datagram in batch:
            if not host.listens(peer, now):
                unread += 1
                self._unread_of[peer] += 1
                continue
            decoded = codec.decode(datagram, limits)
            if decoded.refused:
                host.refused(decoded.refused, peer, now, nbytes=len(datagram))
            found = heard.get(peer)
            if found is None:
                found = heard[peer] = _Heard()
            found.frames += decoded.frames
            found.nbytes += len(datagram)
            found.price += sum(map(price, decoded.frames))
            if found.price >= _AT_ONCE:
                del heard[peer]
                host.receive(found.frames, peer, now, nbytes=found.nbytes)
        for peer, found in heard.items():
            host.receive(found.frames, peer, now, nbytes=found.nbytes)
        self._count_unread(unread, now)
        self.settle()

    def _count_unread(self, unread: int, now: int) -> None:
        """Datagrams of muted peers were taken off the sockets; where they are many, the system is to do that."""
        if not unread:
            self._unread_of.clear()
            return
        self.unread += unread
        for peer, count in list(self._unread_of.items()):
            if count >= _UNREAD_MAX and (left_us := self.host.muted_until(peer) - now) > 0:
                del self._unread_of[peer]
                self._udp.shun(peer, left_us / MICROSECONDS)
        if len(self._unread_of) > _UNREAD_PEERS_MAX:
            self._unread_of.clear()

    def answered(self) -> None:
        """The store has written batches, or could not."""
        now = self.now()
        answers = self._store.answers()
        self._disk.take(answers)
        for serial, reason in answers:
            if reason is None:
                self.host.durable(serial, now)
            else:
                self.host.lost(serial, reason, now)
        self.settle()

    # --- what the host wants -------------------------------------------------------------------------------

    def settle(self) -> None:
        """Go round until the host has nothing new. Inside an event it only marks that there is more to do."""
        if self._settling:
            return
        self._settling = True
        try:
            while self._round():
                pass
        finally:
            self._settling = False
            if self._running:
                self._set_timer()

    def write(self) -> list[Batch]:
        """Take the host's changes into the store, before anything else is taken; the batches, if any."""
        batches: list[Batch] = []
        while (batch := self.host.changes()) is not None:
            batches.append(batch)
            self._store.submit(batch)
        return batches

    def _round(self) -> bool:
        busy = self._running and bool(self.write())
        for transmission in self.host.outgoing():
            busy = True
            if self._running:
                self._transmit(transmission)
        for event in self.host.events():
            busy = True
            try:
                self._take(event)
            except Exception:  # noqa: BLE001 - Who cannot take one must not cost others theirs: each is told once.
                _log.exception("an event of the host was not taken: %s", type(event).__name__)
        return busy

    def _transmit(self, transmission: Transmission) -> None:
        sent = self._resolved(transmission.frames)
        if not sent:
            return
        if transmission.to is None:
            # What tells of this node goes out by every means; the rest only where somebody is known to listen.
            telling = [frame for frame in sent if type(frame) in _TELLING]
            rest = [frame for frame in sent if type(frame) not in _TELLING]
            self._send(telling, None, announcing=True)
            self._send(rest, None, announcing=False)
        else:
            self._send(sent, transmission.to, announcing=False)
        if self.traffic is not None:
            for frame in sent:
                self.traffic[frames.kind(frame)] += codec.wire_size(frame)

    def _send(self, sent: Sequence[Frame], to: str | None, *, announcing: bool) -> None:
        if sent:
            self._udp.send(codec.datagrams(sent, self._settings.mtu_bytes), to, announcing=announcing)

    def _resolved(self, wanted: tuple[Frame, ...]) -> Sequence[Frame]:
        """The frames with their payload, less those whose payload is gone."""
        found, gone = filled(wanted, self._store.read)
        for message in gone:
            self.gone += 1
            self.host.payload_gone(message, self.now())
        return found

    # --- time ----------------------------------------------------------------------------------------------

    def _set_timer(self) -> None:
        deadline = self.host.next_deadline()
        if self._timer is not None:
            # A timer that comes too early is left to come: it looks again. Deadlines mostly move later.
            if deadline is not None and self._timer_us <= deadline:
                return
            self._timer.cancel()
            self._timer = None
        if deadline is not None:
            now = self.now()
            self._timer_us = max(deadline, now)
            delay_s = min((self._timer_us - now) / MICROSECONDS, _WAIT_S_MAX)
            self._timer = self._loop.call_later(delay_s, self._timer_fired)

    def _timer_fired(self) -> None:
        self._timer = None
        try:
            now = self.now()
            deadline = self.host.next_deadline()
            if deadline is not None and deadline <= now:
                self.host.tick(now)
                self.settle()
            else:
                self._set_timer()
        except Exception:
            self._look_again()
            raise

    def _look_again(self) -> None:
        """Whatever went wrong, the next step comes: a node whose timer stopped would be silent for ever."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_us = self._loop.call_later(_AGAIN_S, self._timer_fired), 0
