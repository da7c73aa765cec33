"""Costs of an emulated run by kind of step: input from neighbours, and timers.

The clocks are around the two methods of the emulator's driver through which a host gets all input, and include
everything that follows: sending, storing and events. The time of reading the clocks is subtracted from the rest.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any, Final

from carrypost.emu.engine.driver import EmulatedDriver
from carrypost.emu.engine.radio import Burst
from carrypost.gossip.wire.frames import Announce, Digest, OpenParcel, Profile, ProfileRequest

LARGE: Final = 32
"""Messages of a large burst, at least."""
ALONE: Final = "Parcel that comes alone"
_KINDS: Final = {Digest: "Digest", **dict.fromkeys((Announce, Profile, ProfileRequest), "announcement")}


class Steps:
    """Clocks around the steps of all hosts of this process, by what the step is."""

    def __init__(self) -> None:
        self._spent: defaultdict[str, list[float]] = defaultdict(lambda: [0, 0.0])
        """Number of steps of each kind, and their CPU seconds."""
        self._clocks_s = 0.0
        for name, of in (("_receive", _received), ("_timer_fired", lambda _: ("timer", 1))):
            setattr(EmulatedDriver, name, self._clocked(getattr(EmulatedDriver, name), of))

    def _clocked(self, method: Callable[..., Any], of: Callable[[Any], tuple[str, int]]) -> Callable[..., Any]:
        def clocked(driver: EmulatedDriver, given: object, *others: object) -> None:
            began_s = time.process_time()
            name, count = of(given)
            start_s = time.process_time()
            method(driver, given, *others)
            ended_s = time.process_time()
            spent = self._spent[name]
            spent[0] += count
            spent[1] += ended_s - start_s
            self._clocks_s += start_s - began_s

        return clocked

    def rows(self, receptions: int, run_s: float) -> list[dict[str, Any]]:
        """Return a row for each kind of step, the most expensive first, and one for the rest of `run_s`."""
        per = 1e6 / max(1, receptions)
        found = [
            {"step": name, "times": count / max(1, receptions), "µs each": each_s / count * 1e6, "µs": each_s * per}
            for name, (count, each_s) in sorted(self._spent.items(), key=lambda item: -item[1][1])
        ]
        rest_s = run_s - self._clocks_s - sum(each_s for _, each_s in self._spent.values())
        return [*found, {"step": "radio, scheduler, publication", "times": None, "µs each": None, "µs": rest_s * per}]


def _received(burst: Burst) -> tuple[str, int]:
    """Return the kind and the number of received frames."""
    kinds = [type(frame) for datagram in burst for frame in datagram.frames]
    messages = kinds.count(OpenParcel)
    if messages == 1:
        return ALONE, 1
    if messages:
        return f"message in a burst of {LARGE} or more" if messages >= LARGE else "message in a smaller burst", messages
    return _KINDS.get(kinds[0], "Offer, Request, Ack") if kinds else "nothing readable", 1
