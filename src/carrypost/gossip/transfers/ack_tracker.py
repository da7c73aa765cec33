"""Arrivals of a neighbour's transfer frames, and the acknowledgements that report them.

An acknowledgement repeats what the last two reported, so that one may be lost. Serials mostly rise by one. A serial far
from the others (a forged one, or a frame that was delayed) must not keep those around it from being acknowledged: the
frames recorded so far are reported, and the bitmap starts anew at that serial.
"""

from __future__ import annotations

from carrypost.gossip.wire.frames import Ack
from carrypost.gossip.wire.pieces import to_bitmap

_WINDOW = 4096
_SLACK = 64
"""Room for serials that the first one heard has overtaken."""
_NOWHERE = -(2**62)


class AckTracker:
    """The serials heard from one neighbour lately, as far as they are less than `window` apart."""

    __slots__ = ("_base", "_bits", "_marks", "_slack", "_window", "count")

    def __init__(self, window: int = _WINDOW, slack: int = _SLACK) -> None:
        self._window, self._slack = window, slack
        self._base = _NOWHERE
        self._bits = 0
        self._marks = (0, 0)
        """The newest serials that the last two acknowledgements reported."""
        self.count = 0
        """Frames not acknowledged yet."""

    def note(self, serials: list[int]) -> list[Ack]:
        """Record frames that arrived, mostly with consecutive serials; return acknowledgements that are due at once."""
        first, count = serials[0], len(serials)
        # Bursts arrive with consecutive serials, and are recorded by one shift instead of a loop
        # over them.
        offset = first - self._base
        in_a_row = count == 1 or serials == list(range(first, first + count))
        if in_a_row and 0 <= offset <= self._window - count:
            self._bits |= ((1 << count) - 1) << offset
            self.count += count
            return []
        acks: list[Ack] = []
        for serial in serials:
            if not 0 <= serial - self._base < self._window:
                # A jump out of the window. Reporting first matters: otherwise one forged serial
                # would erase the arrivals that were not reported yet, and the sender would send
                # them all again.
                if self.count:
                    acks.append(self.report())
                self._base, self._bits, self._marks = serial - self._slack, 0, (0, 0)
            self._bits |= 1 << serial - self._base
            self.count += 1
        return acks

    @property
    def is_empty(self) -> bool:
        """True if the next report would have nothing to say."""
        return not self._bits

    def peek(self) -> Ack:
        """Return the acknowledgement of everything recorded, and repeat it next time: several hosts have to hear it."""
        return Ack(max(0, self._base), to_bitmap(self._bits >> max(0, -self._base)))

    def report(self) -> Ack:
        """Return the acknowledgement of everything recorded."""
        self.count = 0
        ack = self.peek()
        # Drop the bits that two reports had already: one report may be lost, two in a row hardly
        # ever are, and a retransmission covers that.
        shift = max(0, self._marks[0] - self._base)
        self._bits >>= shift
        self._base += shift
        self._marks = (self._marks[1], self._base + self._bits.bit_length())
        return ack
