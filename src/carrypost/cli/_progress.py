"""Progress of long work, on stderr: a bar on a terminal, elsewhere a line now and then."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from carrypost.cli._output import duration

Move = Callable[[int, int, str], None]
"""Takes how many are over, of how many, and what else to show."""
DESCRIPTION = "{task.description}"
"""The column with the name of what is done."""
_LINE_EVERY_S = 30.0


@contextmanager
def bar(name: str, *columns: str, total: float | None = None) -> Iterator[Callable[..., None] | None]:
    """Show a bar on stderr while the block lasts; yield the function that moves it, or None without a terminal.

    The function has the parameters of `Progress.update`. Columns are texts with fields of the task, or names of rich's
    columns: ``Bar`` for ``BarColumn``.
    """
    if not sys.stderr.isatty():
        yield None
        return
    from rich import progress as of  # noqa: PLC0415 - loaded only where a bar is shown
    from rich.console import Console  # noqa: PLC0415

    made = (of.TextColumn(each, markup=False) if "{" in each else getattr(of, f"{each}Column")() for each in columns)
    with of.Progress(*made, console=Console(stderr=True), transient=True) as shown:
        yield partial(shown.update, shown.add_task(name, total=total, state="", left=""))


@contextmanager
def progress(name: str, unit: str, total: int | None = None) -> Iterator[Move]:
    """Show the progress of long work while the block lasts; `total`: the number of units, if it is known."""
    state = f"{unit}{{task.fields[state]}}"
    columns = (DESCRIPTION, "Bar", "MofNComplete", state, "TimeElapsed", "{task.fields[left]}")
    begun_s = reported_s = time.monotonic()
    reported = 0

    def move(over: int, total: int, state: str) -> None:
        nonlocal reported_s, reported
        now_s = time.monotonic()
        left = _left(now_s - begun_s, over, total)
        if update is not None:
            update(completed=over, total=total, state=state, left=left)
        elif now_s - reported_s >= _LINE_EVERY_S and over != reported:
            reported_s, reported = now_s, over
            sys.stderr.write(f"{name}: {over:,} of {total:,} {unit}{state}{', ' if left else ''}{left}\n")
            sys.stderr.flush()

    with bar(name, *columns, total=total) as update:
        yield move


def _left(elapsed_s: float, over: int, total: int) -> str:
    if not over or over >= total:
        return ""
    return f"about {duration(elapsed_s / over * (total - over))} left"
