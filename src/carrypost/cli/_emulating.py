"""Progress of a run of the emulator: virtual time, its speed, contacts and receptions."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from carrypost.cli._output import duration
from carrypost.cli._progress import DESCRIPTION, bar
from carrypost.model.times import MICROSECONDS
from carrypost.printing import many

if TYPE_CHECKING:
    from carrypost.emu.engine.world import Progress

_COLUMNS = (DESCRIPTION, "Bar", "TaskProgress", "{task.fields[state]}", "TimeRemaining")


@contextmanager
def emulating(name: str, latest: Latest) -> Iterator[None]:
    """Show a bar on a terminal while a run lasts."""
    with bar(name, *_COLUMNS, total=1.0) as latest.update:
        yield


class Latest:
    """The last report of a run, and the bar that shows it on a terminal."""

    def __init__(self) -> None:
        self.t_us = self.contacts = self.receptions = 0
        self.update: Callable[..., None] | None = None
        self._begun_s = time.monotonic()

    def __call__(self, progress: Progress) -> None:
        self.t_us, self.contacts, self.receptions = progress.t_us, progress.contacts, progress.receptions
        if self.update is not None:
            seconds = progress.t_us / MICROSECONDS
            speed = f"{seconds / max(time.monotonic() - self._begun_s, 1e-3):,.0f} s/s"
            state = (
                f"{duration(seconds)}, {speed}, {many(self.contacts, 'contact')}, {many(self.receptions, 'reception')}"
            )
            self.update(completed=progress.t_us / progress.end_us, state=state)
