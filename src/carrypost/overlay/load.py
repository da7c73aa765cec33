"""Load: the work of a broker's seats as a share of what it can do (OVERLAY §3.3, resource monitor)."""

# The load is the work that arrived in `load_window_s`, events times the time of one, divided by
# `load_window_s` times `capacity`. So it is above 1 where more arrives than can be done. The window
# is cut into slots, and ends with the last slot that is over: events that come at regular times
# make a steady load.
#
# Brokers compare loads as they will be (`predicted`). A seat that moves away counts no more. One
# that comes counts with the work that its old broker reported, until it has been here for a whole
# window. One that gets fewer events because brokers with producers are out of reach counts with the
# work that it had before, until a whole window after these are back.
#
# Nodes measure the time of an event. Where nothing measures it, as in emulation, work takes the
# time that is declared: `book` returns the time at which an event is worked off. Then its results
# leave.

from __future__ import annotations

from typing import TYPE_CHECKING

from carrypost.model.times import NEVER

if TYPE_CHECKING:
    from collections.abc import Container

    from carrypost.config.settings import Overlay
    from carrypost.overlay.items import Handoff

_SLOTS = 5
"""Parts of the window."""
_CHANGE = 0.05
"""Change of the load that is reported to adaptors and other brokers."""
DIGITS = 3
"""Digits to which loads are rounded before they are compared, so that sums of the same shares are equal."""
PERCENT_MAX = 255
"""Highest load that brokers report; it stands for this and more."""
_EXPECTED_MAX = 1.0
"""Most load that an expected seat counts with: another broker claims it, and may lie."""


class _Share:
    """The work of one seat."""

    def __init__(self, now: int) -> None:
        self.since_us = now
        """Time at which the seat came here."""
        self.slots: dict[int, int] = {}
        """Microseconds of work, by slot of the window."""
        self.arrived_us = 0
        """Work that arrived in the window that ended with the last slot."""
        self.expected_us = 0
        """Work that the seat's old broker reported; 0 once the seat has been here for a whole window."""
        self.before_us = 0
        """Work before producers were out of reach; 0 once all of them are back for a whole window."""
        self.until_us = 0
        """Time until which that work counts."""
        self.leaves = False
        """True if the seat moves away."""

    @property
    def work_us(self) -> int:
        """Work in one window: arrived, expected, or before producers were out of reach."""
        # The largest one, not the sum: the expected work is the same work, before it arrives.
        # Without it a broker would look idle until the events of its new seats find their way, or
        # come again, and attract more seats.
        return max(self.arrived_us, self.expected_us, self.before_us)


class Load:
    """The load of one broker."""

    def __init__(self, settings: Overlay) -> None:
        self.load_max = settings.load_max
        self.power = round(1_000 * settings.capacity * settings.speed)
        """Work that the broker can do, in thousandths of a processor of speed 1."""
        self.measured = 0.0
        """Load of the window that ended with the last slot."""
        self._capacity, self._slot_us = settings.capacity, max(round(settings.load_window_s * 1e6 / _SLOTS), 1)
        self._room_us = _SLOTS * self._slot_us * settings.capacity
        """Work that the broker can do in a window."""
        self._shares: dict[bytes, _Share] = {}
        """By the name of the seat's row; as many as there are seats."""
        self._slots: dict[int, int] = {}
        """Work of all seats by slot, those that left included."""
        self._reported, self._free_us = 0.0, 0
        self.due_us = NEVER
        """Time at which `expire` has something to do: the end of a slot, while there is work."""

    # --- seats ---------------------------------------------------------------------------------------------

    def add(self, name: bytes, now: int) -> None:
        """Begin to count the work of a seat."""
        self._shares[name] = _Share(now)

    def remove(self, name: bytes) -> None:
        """Forget a seat; idempotent. Its work stays in the window."""
        self._shares.pop(name, None)

    def expect(self, name: bytes, work: int, now: int) -> None:
        """Count the work of a seat, in thousandths of a processor, before its events arrive."""
        # Bounded, because another broker names the figure, and may lie.
        self._shares[name].expected_us = round(min(work / self.power, _EXPECTED_MAX) * self._room_us)
        self._wake(now)

    def leave(self, name: bytes, *, stays: bool = False) -> None:
        """Stop counting a seat that moves away; `stays`: count it again, as it does not move after all."""
        if (share := self._shares.get(name)) is not None:
            share.leaves = not stays

    def arrived(self, name: bytes, work_us: int, now: int) -> None:
        """Count an event of a seat, by the time that it will take."""
        if work_us:
            slot = now // self._slot_us
            for each in (self._slots, self._shares[name].slots):
                each[slot] = each.get(slot, 0) + work_us
            self._wake(now)

    def _wake(self, now: int) -> None:
        self.due_us = min(self.due_us, (now // self._slot_us + 1) * self._slot_us)

    # --- loads ---------------------------------------------------------------------------------------------

    @property
    def predicted(self) -> float:
        """Load as it will be: with seats that come, and without those that move away."""
        return sum(each.work_us for each in self._shares.values() if not each.leaves) / self._room_us

    def share(self, name: bytes) -> float:
        """Return the part of the load that one seat causes."""
        share = self._shares.get(name)
        return 0.0 if share is None else share.work_us / self._room_us

    def work(self, name: bytes) -> int:
        """Return the work of one seat, in thousandths of a processor."""
        return round(self.share(name) * self.power)

    def percent(self, work: int = 0) -> int:
        """Return the load that is reported to other brokers in percent, with the work of a seat that moves away."""
        return min(round(100 * (self.predicted + work / self.power)), PERCENT_MAX)

    def since_us(self, name: bytes) -> int:
        """Return the time at which a seat came here; NEVER if it is not here."""
        share = self._shares.get(name)
        return NEVER if share is None else share.since_us

    def refuses(self, item: Handoff) -> bool:
        """Return True if an offered seat would overload this broker, and its present broker is less loaded."""
        # A broker that is not overloaded accepts any seat, also one that moves only to be nearer.
        # An overloaded one accepts a seat from a broker that is worse off: otherwise nothing could
        # leave the worst broker while all are busy.
        after = round(self.predicted + item.work / self.power, DIGITS)
        return after > self.load_max and after >= item.load / 100

    def expire(self, now: int, cut_off: Container[bytes] = ()) -> bool:
        """Move the window. Returns True if adaptors need a notice: the load changed, or is too high.

        `cut_off`: seats that get fewer events at present, because producers are out of reach.
        """
        slot = now // self._slot_us
        # One slot more than a window: the slot in which the seat came is not a whole one.
        window_us = (_SLOTS + 1) * self._slot_us
        self.measured = _rolled(self._slots, slot) / self._room_us
        for name, share in self._shares.items():
            if name in cut_off:
                share.before_us, share.until_us = share.before_us or share.work_us, now + window_us
            elif share.until_us <= now:
                share.before_us = 0
            share.arrived_us = _rolled(share.slots, slot)
            if share.since_us + window_us <= now:
                share.expected_us = 0
        self.due_us = NEVER
        if self._slots or any(each.expected_us or each.before_us for each in self._shares.values()):
            self._wake(now)
        predicted = self.predicted
        changed = abs(predicted - self._reported) >= _CHANGE
        if changed:
            self._reported = predicted
        # An overloaded broker reports every slot, even without a change: a broker that refused
        # before may have room by now.
        return changed or predicted > self.load_max

    # --- time ----------------------------------------------------------------------------------------------

    def book(self, work_us: int, now: int) -> int:
        """Return the time at which an event is worked off, if nothing measures it: after those that came before.

        Events are worked off one after the other, by a broker that works for `capacity` of the time.
        """
        if not work_us:
            return now
        begin_us = max(now, self._free_us)
        # With `capacity` below 1 the rest of the time belongs to other work, so that the next event
        # begins later than this one ends.
        self._free_us = begin_us + round(work_us / self._capacity)
        return begin_us + work_us


def _rolled(slots: dict[int, int], current: int) -> int:
    """Drop work that is older than the window. Returns the work of slots that are over."""
    for slot in [each for each in slots if each < current - _SLOTS]:
        del slots[slot]
    return sum(work for slot, work in slots.items() if slot < current)
