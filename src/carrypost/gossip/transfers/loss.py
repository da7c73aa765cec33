"""Loss recovery: what was sent to one neighbour, when it counts as lost, and how much more may be sent.

`LossRecovery` has the transfer frames in flight. `CongestionWindow` has the bytes that may be in flight on one link
(NewReno; RFC 5681; RFC 9002 §7, appendix B). `Timeout` has the time to wait for an acknowledgement (RFC 6298, RFC 9002
§5, §6.2).

`Unconfirmed` has messages that went to one neighbour unasked, from this host or another, and are not known to have
arrived. A *push* of this host is known by its serial. A message is *awaited* if another neighbour brought it unasked
and lists this neighbour as heard: then the giver sent it here as well, under the same serial. Both are confirmed by the
neighbour's announcements, which name the serials received from each giver, and an own push also by acknowledgements.
Pushes have no timers. A push is lost if an announcement that was made long enough after it does not name it, or if
three later ones are confirmed. The part that chose the push calls `pop_lost`, and decides what follows.
"""

# The window. A sender that sends all it has fills the queue of its radio, and the losses that
# follow cost more than the waiting would have. A fixed window is too small for a link with a long
# round trip and too large for a busy channel. TCP's answer fits with one exception: its loss means
# congestion, and on a radio it mostly means interference.
#
# - *Slow start*: up to the slow start threshold the window grows by what is acknowledged, and so
#   doubles per round trip.
# - *Congestion avoidance*: above the threshold it grows by one datagram per round trip.
# - *Loss*: threshold and window fall to 70 %, once per round trip. Further frames that were in
#   flight at a reduction may be lost as well; they were sent before the sender could know, and do
#   not count again (the recovery period of RFC 9002 §7.3.2, recognised by serials instead of times,
#   as by `recover` in RFC 6582).
# - *Timeout*: the threshold falls to half the window, the window to its minimum, and slow start
#   begins anew.
#
# What must hold: the window is never below two datagrams, so that one lost frame does not cost a
# timeout each time, and never above what the settings allow. `LossRecovery` alone calls
# these methods, and reads `nbytes`.
#
# Figures beside constants: means of six emulated transfers of 1 MB over a link with a round trip of
# 100 ms that loses datagrams at random.

# The timeout. Every transmission has a serial of its own, so every acknowledgement shows which of
# several transmissions of the same content it answers, and each may be measured (Karn's rule has
# nothing to exclude).
#
# Backing off. A timeout doubles after each one that passes in silence, until the next measurement.
# The bound depends on what is known of the link. Without any measurement the round trip may be a
# minute, and each attempt only makes a slow link slower. Once it was measured, silence is most
# likely loss, and a link that comes back should not be left idle for long.
#
# Patience. A sender that gives up after some time (`patience_us`) gains nothing by backing off that
# far: doubled timeouts leave room for six attempts within five seconds, or three where no round
# trip was measured, and a path of several hops may well lose all of them. So, until the patience is
# over, a timeout grows to a twelfth of it at most, or to two round trips. The window is as small as
# it gets by then: two datagrams are repeated each time.

# Loss recovery: theory of operation
# ----------------------------------
# A neighbour acknowledges *serials*. Each transmission has a serial of its own, higher than all
# before it, so an acknowledgement shows which of several transmissions of one content arrived:
# retransmissions are not ambiguous (RFC 9002 §2), and every acknowledgement may measure the round
# trip. From `sent` on a frame is *in flight*. It leaves that state in exactly one of these ways:
#
#     acknowledged    the neighbour named its serial;
#     lost            declared so, by the packet threshold or by a timeout; its content is returned, to be sent again;
#     spurious        it was a retransmission, and an earlier transmission of the same content arrived after all;
#     discarded       its content need not arrive any more.
#
# `LossRecovery` treats contents as values that can be compared, and knows nothing of their meaning.
# It calls no other module: each input (`sent`, `acknowledged`, `timed_out`, `discard`) returns what
# became of frames, and the sender decides what follows. Its only dependence on time is its one
# timer, `DECLARE_LOST`.
#
# Rules
# -----
# 1. *Packet threshold* (RFC 9002 §6.1.1). A frame is lost when an acknowledgement that leaves it
#    out names three frames in flight that were sent later. Acknowledgements repeat each other, but
#    a frame that was named once is not in flight any more, and does not count again.
# 2. *Timeout* (RFC 6298 §5). If nothing was acknowledged for a whole timeout, everything in flight
#    is lost. The timer starts when something is sent while it does not run, restarts at the end of
#    a burst (`restart`) and with each acknowledgement, and stops when nothing is in flight.
#    `Timeout` has its length.
# 3. *Window* (RFC 9002 §7). A frame may be sent while the window is `open`: while fewer bytes are
#    in flight than it allows. So the last frame may exceed it, by less than its own size.
#    `CongestionWindow` has its size.
# 4. *Late acknowledgements*. A lost frame is remembered by its serial. If that is acknowledged
#    after all, its content has arrived: it need not be sent again, and a retransmission of it that
#    is in flight is spurious.
#
# What must hold
# --------------
# - `bytes_in_flight` is the sum over `in_flight`, and every serial in flight is in `_order`,
#   rising.
# - While anything is in flight the timer runs. Otherwise one lost burst would stop the link for
#   good.
# - An acknowledgement may be forged by any attacker that can forge an address. One that names
#   nothing in flight is found out by its ends, without a look at every frame; one that names frames
#   not in flight changes nothing; and what is remembered of lost frames is bounded.
#
# Why it differs from QUIC
# ------------------------
# - No probes. After a timeout RFC 9002 §6.2 sends one or two packets, and declares nothing lost
#   until an acknowledgement comes. Here, as in TCP, a timeout returns everything to be sent again,
#   and the two datagrams of the smallest window are the probe; rule 4 makes up for a timeout that
#   came too early.
# - No time threshold (RFC 9002 §6.1.2). It exists for the last frames of a burst, which nothing
#   overtakes. The timeout covers these.
# - Rule 4 (TCP has F-RTO for it, RFC 5682). Without it a link whose round trip is longer than the
#   timeout never measured its round trip, since everything acknowledged counted as lost by then: it
#   declared everything lost again and again, and filled itself with retransmissions.
#
# Read on in `CongestionWindow`, `Timeout`, `AckTracker` (the other side) and `outbox`
# (what is sent).

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterable
from itertools import count, takewhile
from operator import attrgetter
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar

from carrypost.gossip.slots import bits
from carrypost.gossip.timers import DECLARE_LOST, Timers
from carrypost.gossip.wire.pieces import from_bitmap
from carrypost.model.times import NEVER

if TYPE_CHECKING:
    from carrypost.gossip.wire.frames import Receipt


INITIAL_WINDOW_BYTES: Final = 16 * 1024
"""Slightly more than the ten datagrams of RFC 6928 and RFC 9002 §7.2. Without loss, 4 KiB give 758 kB/s instead of 893;
64 KiB give 980, but all of it would be one burst, to a neighbour of which nothing is known."""
_DATAGRAMS_MIN: Final = 2
"""As in RFC 9002 §7.2. At 20 % loss, one datagram gives 21 kB/s instead of 25, since every loss of the only frame costs
a timeout."""
_REDUCTION: Final = 0.7
"""CUBIC's (RFC 9438 §4.6), since radio links lose datagrams without being congested. NewReno halves the window, and
gives 186 kB/s instead of 319 at 1 % loss; 0.85 gives 461, but yields to others too slowly where the link is
congested."""


class CongestionWindow:
    """The window of one link, in `nbytes`."""

    __slots__ = ("_datagram_bytes", "_max", "_min", "_recovery_end", "_slow_start_threshold", "nbytes")

    def __init__(self, datagram_bytes: int, bytes_max: int) -> None:
        self._datagram_bytes = datagram_bytes
        self._min = datagram_bytes * _DATAGRAMS_MIN
        self._max = max(bytes_max, self._min)
        self.nbytes = float(min(INITIAL_WINDOW_BYTES, self._max))
        self._slow_start_threshold = float(self._max)
        self._recovery_end = -1
        """The last serial in flight at the last reduction."""

    def on_acknowledged(self, nbytes: int) -> None:
        """Grow the window by bytes that were in flight and have arrived."""
        if self.nbytes < self._slow_start_threshold:
            window = self.nbytes + nbytes
        else:
            window = self.nbytes + self._datagram_bytes * nbytes / self.nbytes
        self.nbytes = min(window, self._max)

    def on_loss(self, last_lost: int, last_in_flight: int) -> None:
        """Reduce the window, once per round trip, for losses up to serial `last_lost` with others still in flight."""
        if last_lost > self._recovery_end:
            self._recovery_end = last_in_flight
            self.nbytes = self._slow_start_threshold = max(self._min, self.nbytes * _REDUCTION)

    def on_timeout(self, last_in_flight: int) -> None:
        """Restart with the smallest window: nothing up to this serial was acknowledged for a whole timeout."""
        self._recovery_end = last_in_flight
        self._slow_start_threshold = max(self._min, self.nbytes / 2)
        self.nbytes = float(self._min)


_TIMEOUT_START_US: Final = 1_000_000
"""RFC 6298 §2.1."""
_TIMEOUT_MIN_US: Final = 100_000
"""Five times the delay that an acknowledgement may have. The whole second of RFC 6298 §2.4 gives 9 kB/s instead of 25
at 20 % loss (on the link that is described above)."""
_TIMEOUT_MAX_US: Final = 300_000_000
# Sixteen seconds without a measurement, four with one: see "Backing off" above.
_BACKOFF_BLIND_US: Final = 16_000_000
_BACKOFF_US: Final = 4_000_000
_ANSWER_MIN_US: Final = 500_000
"""A short question waits its turn behind bursts of both sides, and its answer as well."""
_ANSWER_DOUBLINGS: Final = 6
_TRIES: Final = 12
"""Number of attempts within the patience. Since the first wait may be longer, ten of them fit."""
_EXPECTED_FACTOR: Final = 3
"""A round trip, and twice that for its variation: what RFC 6298 makes of a first measurement."""


class Timeout:
    """The timeout of one link, in `us`."""

    __slots__ = ("_known_us", "_measured", "_patience_us", "_rttvar_us", "_silent_us", "_srtt_us", "us")

    def __init__(self, patience_us: int = 0) -> None:
        self._patience_us = patience_us
        """Time after which the sender gives up; 0: never."""
        self._silent_us = 0
        """Time spent waiting in vain since the last measurement."""
        self.us = _TIMEOUT_START_US
        self._srtt_us = 0.0
        self._rttvar_us = 0.0
        """Smoothed round trip and its variation."""
        self._known_us = 0
        """Timeout that was measured or is expected, without backoff; 0: nothing is known."""
        self._measured = False

    def measure(self, round_trip_us: int) -> None:
        """Update the timeout by the length of one round trip (RFC 6298 §2), and end any backoff."""
        self._silent_us = 0
        if not self._measured:
            self._measured = True
            self._srtt_us, self._rttvar_us = float(round_trip_us), round_trip_us / 2
        else:
            self._rttvar_us += (abs(self._srtt_us - round_trip_us) - self._rttvar_us) / 4
            self._srtt_us += (round_trip_us - self._srtt_us) / 8
        timeout_us = int(self._srtt_us + 4 * self._rttvar_us)
        self.us = self._known_us = min(_TIMEOUT_MAX_US, max(_TIMEOUT_MIN_US, timeout_us))

    def expect(self, round_trip_us: int) -> None:
        """Note how long the neighbour took to answer something short; used until a round trip is measured."""
        if not self._measured:
            # Only upwards: a short answer may overtake a burst, so that it says at least how long
            # data takes.
            self._known_us = min(_TIMEOUT_MAX_US, max(_TIMEOUT_MIN_US, _EXPECTED_FACTOR * round_trip_us))
            self.us = max(self.us, self._known_us)

    def back_off(self) -> None:
        """Double the timeout, within bounds, because nothing was acknowledged for a whole one (RFC 6298 §5.5)."""
        self._silent_us += self.us
        most_us = max(_BACKOFF_US, 2 * self._known_us) if self._known_us else _BACKOFF_BLIND_US
        if self._silent_us < self._patience_us:
            most_us = max(self._patience_us // _TRIES, 2 * self._known_us)
        self.us = min(most_us, 2 * self.us)

    def answer_us(self, tries: int, patience_us: int = 0) -> int:
        """Return the time to wait for the answer to something short that was asked `tries` times before.

        `patience_us`: time after which the caller gives up; 0: never.
        """
        answer_us = max(_ANSWER_MIN_US, 2 * self._known_us) if self._known_us else _TIMEOUT_START_US
        answer_us <<= min(tries, _ANSWER_DOUBLINGS)
        if patience_us:
            return min(answer_us, max(patience_us // _TRIES, 2 * self._known_us))
        return min(answer_us, max(_BACKOFF_US, 2 * self._known_us)) if self._known_us else answer_us


PACKET_THRESHOLD: Final = 3
"""kPacketThreshold of RFC 9002 §6.1.1, and the three duplicate acknowledgements of RFC 5681. Where nothing is reordered
it hardly matters: 2 and 5 make as many kB/s as 3, within 4 %."""
_LOST_MAX: Final = 4096
"""Number of lost frames that may still be acknowledged: as many serials as a receiver looks back
(`AckTracker`)."""

_STALE_SLACK: Final = 64
"""Serials no longer in flight are swept out when there are this many more than twice those in flight."""
_NBYTES: Final = attrgetter("nbytes")

Content = TypeVar("Content")


class SentFrame(Generic[Content]):
    """One transmission of a content, which is hashable: equal contents are the same thing sent twice."""

    __slots__ = ("content", "nbytes", "sent_us", "serial")

    def __init__(self, serial: int, content: Content, nbytes: int, sent_us: int) -> None:
        self.serial, self.content, self.nbytes, self.sent_us = serial, content, nbytes, sent_us


class Outcome(NamedTuple, Generic[Content]):
    """The consequences of an acknowledgement. Every frame in it was in flight, except the late ones."""

    arrived: list[SentFrame[Content]]
    """Acknowledged frames; the newest first."""
    late: list[SentFrame[Content]]
    """Frames acknowledged although they counted as lost; the oldest first."""
    spurious: list[SentFrame[Content]]
    """Retransmissions of frames that arrived late."""
    lost: list[SentFrame[Content]]
    """Frames declared lost; the oldest first."""


class LossRecovery(Generic[Content]):
    """The frames in flight to one neighbour. Serials rise with every call of `sent`."""

    __slots__ = (
        "_lost", "_order", "_serials", "_timeout", "_timers", "bytes_in_flight", "in_flight", "timeouts", "window",
    )  # fmt: skip

    def __init__(self, timers: Timers, datagram_bytes: int, window_bytes_max: int, patience_us: int = 0) -> None:
        self._timers = timers
        self.window = CongestionWindow(datagram_bytes, window_bytes_max)
        self._timeout = Timeout(patience_us)
        self.timeouts = 0
        """Number of timeouts in a row, without any acknowledgement (`pto_count` of RFC 9002)."""
        self.in_flight: dict[int, SentFrame[Content]] = {}
        """Frames by serial, rising. Bounded by the window."""
        self._order: deque[int] = deque()
        """The serials in flight, rising, and some that are not any more: finding the ends of a dict takes long once
        many entries were deleted there."""
        self._serials: dict[Content, set[int]] | None = None
        """The serials in flight by their contents, from the first late acknowledgement until `forget_lost`."""
        self.bytes_in_flight = 0
        self._lost: OrderedDict[int, SentFrame[Content]] = OrderedDict()
        """Lost frames by serial, which may be acknowledged late; at most `_LOST_MAX`."""

    @property
    def due_us(self) -> int:
        """Time at which the frames in flight count as lost."""
        return self._timers.due[DECLARE_LOST]

    @property
    def open(self) -> bool:
        """True if another frame may go out."""
        return self.bytes_in_flight < self.window.nbytes

    @property
    def room_bytes(self) -> float:
        """Number of bytes that may still go out."""
        return self.window.nbytes - self.bytes_in_flight

    @property
    def timeout_us(self) -> int:
        """Time to wait for an acknowledgement."""
        return self._timeout.us

    def answer_us(self, tries: int, patience_us: int = 0) -> int:
        """Return the time to wait for the answer to something short that was asked `tries` times before.

        `patience_us`: time after which the caller gives up; 0: never.
        """
        return self._timeout.answer_us(tries, patience_us)

    @property
    def unacknowledged(self) -> int:
        """Number of frames that an acknowledgement may name: those in flight, and the lost ones that are remembered."""
        return len(self.in_flight) + len(self._lost)

    def expect(self, round_trip_us: int) -> None:
        """Note how long something else took to be answered: frames sent here will hardly take less."""
        self._timeout.expect(round_trip_us)

    def sent(self, serial: int, content: Content, nbytes: int, now: int) -> None:
        """Record a frame that was sent."""
        self.sent_burst(serial, [SentFrame(serial, content, nbytes, now)], now)

    def sent_burst(self, serial: int, frames: list[SentFrame[Content]], now: int) -> None:
        """Record frames that were sent now, under this serial and those that follow it.

        Most frames that a node sends are parcels and come this way: a call for each of them cost 0.2 µs of the 1.6 µs
        that sending one takes.
        """
        self.in_flight.update(zip(count(serial), frames))
        self._order.extend(range(serial, serial + len(frames)))
        if self._serials is not None:
            for frame in frames:
                self._serials.setdefault(frame.content, set()).add(frame.serial)
        self.bytes_in_flight += sum(map(_NBYTES, frames))
        if frames and self._timers.due[DECLARE_LOST] == NEVER:
            self._timers.arm(DECLARE_LOST, now + self._timeout.us)

    def restart(self, now: int) -> None:
        """Restart the timer with a whole timeout, if anything is in flight."""
        self._timers.arm(DECLARE_LOST, now + self._timeout.us if self.in_flight else NEVER)

    def acknowledged(self, base: int, bitmap: int, now: int) -> Outcome[Content]:
        """Process an acknowledgement: the frame with serial base + i has arrived if bit i of the bitmap is set."""
        arrived = self._pop_all(self._named(base, bitmap))
        # Rule 4. Most links never lose anything, and then this costs one test.
        late = self._pop_late(base, bitmap) if self._lost else []
        spurious = self._undo_spurious(late) if late else []
        if arrived or late:
            # A frame that is first acknowledged in a later report would seem to have taken longer than it did. So a
            # late frame measures the round trip only if no other frame does.
            newest = arrived[0] if arrived else late[-1]
            self.timeouts = 0
            self._timeout.measure(now - newest.sent_us)
        if arrived:
            self.window.on_acknowledged(sum(map(_NBYTES, arrived)))
        overtaken = self._overtaken(arrived)
        lost: list[SentFrame[Content]] = []
        if overtaken:
            # The window shrinks once for a round trip, however many frames of it are lost: the
            # newest serial in flight marks where the next round trip begins.
            self.window.on_loss(overtaken[-1], self._ends()[1])
            lost = self._declare_lost(overtaken)
        self.restart(now)
        return Outcome(arrived, late, spurious, lost)

    def timed_out(self, now: int) -> list[SentFrame[Content]]:
        """Declare everything in flight lost, because nothing was acknowledged for a whole timeout; the oldest first."""
        lost: list[SentFrame[Content]] = []
        if self.in_flight:
            self.window.on_timeout(self._ends()[1])
            self._timeout.back_off()
            self.timeouts += 1
            lost = self._declare_lost(list(self.in_flight))
        self.restart(now)
        return lost

    def discard(self, serials: Iterable[int]) -> None:
        """Stop waiting for these frames, without drawing a conclusion about the link.

        The timer runs on. If nothing is left in flight when it ends, it only stops.
        """
        for serial in serials:
            self._pop(serial)

    def forget_lost(self) -> None:
        """Stop waiting for late acknowledgements, because no content is left that they could concern."""
        self._lost.clear()
        self._serials = None

    def _ends(self) -> tuple[int, int]:
        """Return the oldest and the newest serial in flight, of which there must be one."""
        in_flight, order = self.in_flight, self._order
        if len(order) > 2 * len(in_flight) + _STALE_SLACK:
            self._order = order = deque(in_flight)
        while order[0] not in in_flight:
            order.popleft()
        while order[-1] not in in_flight:
            order.pop()
        return order[0], order[-1]

    def _named(self, base: int, bitmap: int) -> list[int]:
        """Return the serials in flight that an acknowledgement names, the newest first."""
        in_flight = self.in_flight
        if not in_flight:
            return []
        # An acknowledgement of nothing in flight is not compared with every frame, since any attacker can send one.
        oldest, newest = self._ends()
        first = max(base, oldest)
        named = bitmap >> first - base & (1 << max(0, newest - first + 1)) - 1
        # By whichever is fewer, what is named or what is in flight.
        if named.bit_count() <= len(in_flight):
            serials = [serial for offset in bits(named) if (serial := first + offset) in in_flight]
        else:
            serials = _chosen(in_flight, first, named)
        serials.reverse()
        return serials

    def _overtaken(self, arrived: list[SentFrame[Content]]) -> list[int]:
        """Return the serials in flight that count as lost because enough of these were sent after them; rising."""
        if len(arrived) < PACKET_THRESHOLD:
            return []
        in_flight, end = self.in_flight, arrived[PACKET_THRESHOLD - 1].serial
        return [serial for serial in takewhile(end.__gt__, self._order) if serial in in_flight]

    def _pop_all(self, serials: list[int]) -> list[SentFrame[Content]]:
        """Remove frames from those in flight."""
        if self._serials is not None:
            return [self._pop(serial) for serial in serials]
        frames = list(map(self.in_flight.pop, serials))
        self.bytes_in_flight -= sum(map(_NBYTES, frames))
        return frames

    def _pop(self, serial: int) -> SentFrame[Content]:
        frame = self.in_flight.pop(serial)
        self.bytes_in_flight -= frame.nbytes
        if self._serials is not None:
            same = self._serials[frame.content]
            same.discard(serial)
            if not same:
                del self._serials[frame.content]
        return frame

    def _declare_lost(self, serials: list[int]) -> list[SentFrame[Content]]:
        lost = self._lost
        frames = []
        for serial in serials:
            frame = lost[serial] = self._pop(serial)
            frames.append(frame)
        # A neighbour that acknowledges nothing makes this grow by a window per timeout.
        while len(lost) > _LOST_MAX:
            lost.popitem(last=False)
        return frames

    def _pop_late(self, base: int, bitmap: int) -> list[SentFrame[Content]]:
        lost = self._lost
        # By whichever is shorter, what is named or what is lost: an acknowledgement may name 65,536 serials.
        if bitmap.bit_count() <= len(lost):
            serials = [base + offset for offset in bits(bitmap) if base + offset in lost]
        else:
            serials = _chosen(lost, base, bitmap)
        return [lost.pop(serial) for serial in serials]

    def _undo_spurious(self, late: list[SentFrame[Content]]) -> list[SentFrame[Content]]:
        # Contents are indexed only from the first late acknowledgement on: links without one, which
        # are most, save a dictionary entry per frame.
        if self._serials is None:
            self._serials = {}
            for serial, frame in self.in_flight.items():
                self._serials.setdefault(frame.content, set()).add(serial)
        found = {serial for frame in late for serial in self._serials.get(frame.content, ())}
        return [self._pop(serial) for serial in sorted(found)]


def _chosen(serials: Iterable[int], base: int, bitmap: int) -> list[int]:
    """Return the serials that an acknowledgement names, rising."""
    # By bytes: to shift a bitmap of 65,536 bits for every serial would take a hundred times as long.
    octets = bitmap.to_bytes((bitmap.bit_length() + 7) // 8, "little")
    nbits = 8 * len(octets)
    return sorted(
        serial
        for serial in serials
        if 0 <= (offset := serial - base) < nbits and octets[offset >> 3] >> (offset & 7) & 1
    )


class Push:
    """One message that went to the neighbour unasked."""

    __slots__ = ("nbytes", "overtaken", "since_us", "slot")

    def __init__(self, slot: int, nbytes: int, since_us: int) -> None:
        self.slot, self.since_us = slot, since_us
        self.nbytes = nbytes
        """Bytes on their way from this host; 0 if another host sent it."""
        self.overtaken = 0
        """Number of confirmed pushes that were sent later."""


class Unconfirmed:
    """Messages that went to one neighbour unasked, by the prefix of their sender and by serial."""

    __slots__ = ("_by_giver", "_lost", "_lost_elsewhere", "nbytes", "slots")

    def __init__(self) -> None:
        self._by_giver: defaultdict[bytes, dict[int, Push]] = defaultdict(dict)
        """Pushes by giver and serial, which rise. No giver is in here without a push."""
        self._lost = self._lost_elsewhere = 0
        """Slots of messages lost since the last `pop_lost`: of own pushes, and of others'."""
        self.nbytes = 0
        """Bytes of own pushes."""
        self.slots = 0
        """Slots of all pushes: these messages are neither offered nor pushed."""

    def add(self, giver: bytes, serial: int, slot: int, now: int, nbytes: int = 0) -> None:
        """Record a message that was sent to the neighbour; `nbytes` is 0 unless this host sent it."""
        self._by_giver[giver][serial] = Push(slot, nbytes, now)
        self.slots |= 1 << slot
        self.nbytes += nbytes

    def confirm(self, giver: bytes, base: int, bitmap: int) -> int:
        """Note that the serials base + i of a giver arrived, for each bit i; return the slots of their messages."""
        pushes = self._by_giver.get(giver)
        if pushes is None:
            return 0
        named = [serial for serial in pushes if serial >= base and bitmap >> serial - base & 1]
        slots = self._pop(giver, named)
        if pushes and named:
            for serial, push in pushes.items():
                push.overtaken += sum(serial < other for other in named)
            self._lose(giver, [serial for serial, push in pushes.items() if push.overtaken >= PACKET_THRESHOLD])
        return slots

    def announced(self, receipts: tuple[Receipt, ...]) -> int:
        """Process the receipts of an announcement; return the slots that they name."""
        confirmed = 0
        for receipt in receipts:
            if receipt.node in self._by_giver:
                confirmed |= self.confirm(receipt.node, receipt.base, from_bitmap(receipt.bitmap))
        return confirmed

    def lose(self, before_us: int) -> None:
        """Give up pushes sent up to `before_us`, because an announcement does not name them."""
        for giver, pushes in list(self._by_giver.items()):
            self._lose(giver, [serial for serial, push in pushes.items() if push.since_us <= before_us])

    @property
    def lost(self) -> bool:
        """True if anything was lost since the last `pop_lost`."""
        return bool(self._lost or self._lost_elsewhere)

    def pop_lost(self) -> tuple[int, int]:
        """Return and reset the slots of lost messages: of own pushes, and of those that others sent."""
        lost = self._lost, self._lost_elsewhere
        self._lost = self._lost_elsewhere = 0
        return lost

    def forget_slots(self, mask: int) -> None:
        """Forget what is known of slots that are freed for other messages."""
        gone = set(bits(mask & self.slots))
        for giver, pushes in list(self._by_giver.items()):
            self._pop(giver, [serial for serial, push in pushes.items() if push.slot in gone])
        self._lost &= ~mask
        self._lost_elsewhere &= ~mask

    def _lose(self, giver: bytes, serials: list[int]) -> None:
        nbytes = self.nbytes
        slots = self._pop(giver, serials)
        if self.nbytes < nbytes:
            self._lost |= slots
        else:
            self._lost_elsewhere |= slots

    def _pop(self, giver: bytes, serials: list[int]) -> int:
        """Remove pushes of a giver; return their slots."""
        pushes, slots, nbytes = self._by_giver[giver], 0, 0
        for serial in serials:
            push = pushes.pop(serial)
            slots |= 1 << push.slot
            nbytes += push.nbytes
        self.nbytes -= nbytes
        if not pushes:
            del self._by_giver[giver]
        self.slots &= ~slots
        return slots
