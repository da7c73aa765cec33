"""The congestion window of one link: the bytes that may be in flight (NewReno; RFC 5681; RFC 9002 §7, appendix B)."""

# The problem. A sender that sends all it has fills the queue of its radio, and the losses that
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
# timeout each time, and never above what the settings allow. `loss` alone calls these methods, and
# reads `nbytes`.
#
# Figures beside constants, here and in `timeout` and `loss`: means of six emulated transfers of 1
# MB over a link with a round trip of 100 ms that loses datagrams at random.

from __future__ import annotations

INITIAL_WINDOW_BYTES = 16 * 1024
"""Slightly more than the ten datagrams of RFC 6928 and RFC 9002 §7.2. Without loss, 4 KiB give 758 kB/s instead of 893;
64 KiB give 980, but all of it would be one burst, to a neighbour of which nothing is known."""
_DATAGRAMS_MIN = 2
"""As in RFC 9002 §7.2. At 20 % loss, one datagram gives 21 kB/s instead of 25, since every loss of the only frame costs
a timeout."""
_REDUCTION = 0.7
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
