"""Virtual time: the next event, and the order of events.

The clock is an integer number of microseconds that moves only by running what is due. At one instant actions run by
phase, within a phase by node name, then in the order of scheduling; so the same calls give the same run. An action
scheduled for the present instant runs in it, whatever its phase: nothing is ever postponed to a time that it was not
meant for. An instant that does not come to an end raises, and names the busy nodes.
"""

# Why phases. Two things at the same microsecond have no order in nature, but a run must have one,
# and it must not depend on which was scheduled first: that would change with any optimization of
# the code that schedules. The order chosen is the least surprising one for a record. What ends,
# ends before anything arrives; what arrives is heard before timers conclude that it did not; new
# nodes and links come after that; and a publication sees the links of its own instant.

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

from carrypost.errors import RunawayError, StateError

INSTANT_STEPS_MAX = 1_000_000
"""Default number of steps that may run without time advancing."""


class Phase(enum.IntEnum):
    """The order of events at one instant."""

    DOWN = 0
    LEAVE = 1
    """Or a crash."""
    DISK = 2
    ARRIVAL = 3
    TIMER = 4
    JOIN = 5
    """Or a restart."""
    UP = 6
    PUBLISH = 7


class Scheduler:
    """A clock in microseconds and the actions that are due by it."""

    __slots__ = ("_queue", "_running", "_serial", "_steps", "_steps_max", "_tally", "_watched", "now")

    def __init__(self, *, instant_steps_max: int = INSTANT_STEPS_MAX) -> None:
        self.now = 0
        self._queue: list[tuple[int, Phase, str, int, Callable[..., None], tuple[Any, ...]]] = []
        self._running = False
        self._serial = 0
        self._steps = 0
        self._steps_max = instant_steps_max
        self._watched = instant_steps_max - instant_steps_max // 10
        self._tally: Counter[tuple[str, str]] = Counter()

    def __len__(self) -> int:
        return len(self._queue)

    def post(self, t_us: int, phase: Phase, node: str, action: Callable[..., None], *arguments: object) -> None:
        """Call `action` with `arguments` at `t_us`, which may be the present instant but not the past.

        A posted action cannot be cancelled: a caller that may change its mind has `action` check for that.
        """
        if t_us < self.now:
            raise StateError(f"{node}: {t_us} µs is in the past, it is {self.now} µs")
        self._serial += 1
        heappush(self._queue, (t_us, phase, node, self._serial, action, arguments))

    def next_time(self) -> int | None:
        # Cancelling an entry of a heap is O(n), or needs a mark that is checked here for every
        # entry. Callers have such a mark anyway, the number of their timer.
        """Return the time of the next action; None if there is none."""
        return self._queue[0][0] if self._queue else None

    def run_until(self, t_us: int) -> None:
        """Run everything that is due at or before `t_us`, which is the time afterwards.

        A run over the half-open interval [0, end) is ``run_until(end - 1)``.
        """
        if t_us < self.now:
            raise StateError(f"time cannot go back from {self.now} µs to {t_us} µs")
        if self._running:
            raise StateError("time is passing already: code that runs in virtual time cannot advance it")
        self._running = True
        try:
            self._run(t_us)
        finally:
            self._running = False
        if t_us != self.now:
            self._move(t_us)

    def _run(self, end_us: int) -> None:
        queue = self._queue
        while queue and queue[0][0] <= end_us:
            t_us, phase, node, _, action, arguments = heappop(queue)
            if t_us != self.now:
                self._move(t_us)
            self._steps += 1
            if self._steps > self._watched:
                self._watch(phase, node)
            action(*arguments)

    def clear(self) -> None:
        """Forget all future actions."""
        self._queue.clear()

    def _move(self, t_us: int) -> None:
        self.now, self._steps = t_us, 0
        if self._tally:
            self._tally.clear()

    def _watch(self, phase: Phase, node: str) -> None:
        """Record the busy nodes close to the limit, so that the error can name them."""
        self._tally[node, phase.name.lower()] += 1
        if self._steps > self._steps_max:
            busy = ", ".join(f"{who} ({what} x {n})" for (who, what), n in self._tally.most_common(5))
            raise RunawayError(
                f"time does not advance at {self.now} µs after {self._steps_max} steps; busiest of them: {busy}"
            )
