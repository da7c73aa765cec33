"""Virtual time: what happens next, and in which order.

The clock is a whole number of microseconds that moves only by running what is due. At one instant things
run by phase, within a phase by node name, then in the order of scheduling; so the same calls give the same
run. What is scheduled for the present instant runs in it, whatever its phase: nothing is ever put off to a
time that it was not meant for. An instant that does not come to an end raises, and names who is busy.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

from carrypost.errors import RunawayError, StateError

INSTANT_STEPS_MAX = 1_000_000
"""Default for how many steps may run without time moving on."""


class Phase(enum.IntEnum):
    """The order of things that happen at one instant."""

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

        What is posted cannot be taken back: a caller that may change its mind has `action` find that out.
        """
        if t_us < self.now:
            raise StateError(f"{node}: {t_us} µs is in the past, it is {self.now} µs")
        self._serial += 1
        heappush(self._queue, (t_us, phase, node, self._serial, action, arguments))

    def next_time(self) -> int | None:
        """Return the time of the next action; None if there is none."""
        return self._queue[0][0] if self._queue else None

    def run_until(self, t_us: int) -> None:
        """Run everything that is due at or before `t_us`, which is the time afterwards.

        A run over the half-open interval [0, end) is ``run_until(end - 1)``.
        """
        if t_us < self.now:
            raise StateError(f"time does not go back: it is {self.now} µs, not {t_us} µs")
        if self._running:
            raise StateError("time is passing already: what happens in virtual time cannot let it pass")
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
        """Forget everything that was to come."""
        self._queue.clear()

    def _move(self, t_us: int) -> None:
        self.now, self._steps = t_us, 0
        if self._tally:
            self._tally.clear()

    def _watch(self, phase: Phase, node: str) -> None:
        """Close to the limit it is noted who is busy, so that the error can say so."""
        self._tally[node, phase.name.lower()] += 1
        if self._steps > self._steps_max:
            busy = ", ".join(f"{who} ({what} x {n})" for (who, what), n in self._tally.most_common(5))
            raise RunawayError(f"{self._steps_max} steps at {self.now} µs and no end; busiest of the last ones: {busy}")
