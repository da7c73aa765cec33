"""Retransmission timeout of one link: the time to wait for an acknowledgement (RFC 6298, RFC 9002 §5, §6.2)."""

# Measuring. Every transmission has a serial of its own, so every acknowledgement shows which of
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

from __future__ import annotations

_TIMEOUT_START_US = 1_000_000
"""RFC 6298 §2.1."""
_TIMEOUT_MIN_US = 100_000
"""Five times the delay that an acknowledgement may have. The whole second of RFC 6298 §2.4 gives 9 kB/s instead of 25
at 20 % loss (on the link that `congestion` describes)."""
_TIMEOUT_MAX_US = 300_000_000
# Sixteen seconds without a measurement, four with one: see "Backing off" above.
_BACKOFF_BLIND_US = 16_000_000
_BACKOFF_US = 4_000_000
_ANSWER_MIN_US = 500_000
"""A short question waits its turn behind bursts of both sides, and its answer as well."""
_ANSWER_DOUBLINGS = 6
_TRIES = 12
"""Number of attempts within the patience. Since the first wait may be longer, ten of them fit."""
_EXPECTED_FACTOR = 3
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
