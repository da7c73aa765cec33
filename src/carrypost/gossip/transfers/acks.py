"""Arrivals of a neighbour's transfer frames, and the acknowledgements that report them.

An acknowledgement reports what the last two did as well, so that one may get lost. Serials mostly rise by one; one that
is far from the others (a forged one, or one that was long on its way) must not keep those around it from being
acknowledged: the frames noted so far are reported, and the bitmap starts anew where it is.
"""

from __future__ import annotations

from carrypost.gossip.wire.frames import Ack
from carrypost.gossip.wire.pieces import to_bitmap

_WINDOW = 4096
_SLACK = 64
"""Room for serials that were overtaken by the first one heard."""
_NOWHERE = -(2**62)


class Receipts:
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
        """Note frames that arrived, mostly with serials in a row. Returns acknowledgements that are due at once."""
        first, count = serials[0], len(serials)
        offset = first - self._base
        in_a_row = count == 1 or serials == list(range(first, first + count))
        if in_a_row and 0 <= offset <= self._window - count:
            self._bits |= ((1 << count) - 1) << offset
            self.count += count
            return []
        acks: list[Ack] = []
        for serial in serials:
            if not 0 <= serial - self._base < self._window:
                if self.count:
                    acks.append(self.report())
                self._base, self._bits, self._marks = serial - self._slack, 0, (0, 0)
            self._bits |= 1 << serial - self._base
            self.count += 1
        return acks

    @property
    def told(self) -> bool:
        """True if nothing is left that the next report would say."""
        return not self._bits

    def peek(self) -> Ack:
        """The acknowledgement of everything noted, for one of several who have to hear it: the next one repeats it."""
        return Ack(max(0, self._base), to_bitmap(self._bits >> max(0, -self._base)))

    def report(self) -> Ack:
        """The acknowledgement of everything noted."""
        self.count = 0
        ack = self.peek()
        shift = max(0, self._marks[0] - self._base)
        self._bits >>= shift
        self._base += shift
        self._marks = (self._marks[1], self._base + self._bits.bit_length())
        return ack
