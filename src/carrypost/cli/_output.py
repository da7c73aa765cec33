"""Output of commands: tables for people, lines of JSON for programs, codes, and the progress of long work.

Progress is shown on stderr: a bar on a terminal, elsewhere a line now and then.
"""

from __future__ import annotations

import io
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import typer

from carrypost.errors import CarrypostError
from carrypost.printing import paragraph, printable

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text


_STEERING = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""Characters that JSON need not escape, and that steer terminals: controls, line ends and marks of direction."""
_REDIRECTED_COLUMNS = 100_000
"""Width of tables where nobody sees an edge."""
_SHORT_S = 0.1
"""Lengths of time below this one are shown in milliseconds."""


def wants_json(asked: bool) -> bool:
    """Return True if JSON is to be printed, which is asked for by option; raises an error if nothing can be."""
    if sys.stdout is None:
        raise CarrypostError("stdout is closed: redirect the output to a file or to /dev/null")
    return asked


def streams_json(asked: bool) -> bool:
    """Return True if JSON is to be printed line by line: by option, or because stdout is not a terminal."""
    return wants_json(asked) or is_redirected()


def is_redirected() -> bool:
    """Return True if stdout is not a terminal."""
    return not sys.stdout.isatty()


def line(value: Mapping[str, object]) -> None:
    """Print a value as one line of JSON, at once."""
    try:
        text = msgspec.json.encode(value).decode()
    except UnicodeEncodeError:  # The name of the current folder may not be UTF-8: it is shown with escapes.
        text = json.dumps(value, default=str)
    typer.echo(_STEERING.sub(lambda found: f"\\u{ord(found[0]):04x}", text))
    sys.stdout.flush()


def say(sentence: str) -> None:
    """Print a remark for people, on stderr."""
    sys.stderr.write(f"carrypost: {paragraph(sentence)}\n")


def show_code(name: str, code: str, *, json: bool, qr: bool = False) -> None:
    """Print a code alone, so that other programs can take it; as a QR code, the text follows on stderr."""
    if json:
        line({name: code})
        return
    if qr:
        import segno  # noqa: PLC0415 - an extra

        drawn = io.StringIO()
        segno.make(code, error="l").terminal(out=drawn, compact=True)
        typer.echo(drawn.getvalue())
        say(code)
        return
    typer.echo(code)


def styled(text: str, **style: object) -> str:
    """Return printable text in a style, unless NO_COLOR is set; `typer.echo` removes it where there is no terminal."""
    text = paragraph(text)
    if not text or not any(style.values()) or os.environ.get("NO_COLOR"):
        return text
    return typer.style(text, **style)  # type: ignore[arg-type]  # typer's own


def blank(title: str | None, header_style: str = "table.header") -> Table:
    """Return a table for people, without columns yet."""
    from rich.table import Table  # noqa: PLC0415 - loaded only where a table is shown
    from rich.text import Text  # noqa: PLC0415

    return Table(
        # As text, it has no markup: it may contain what others chose.
        title=None if title is None else Text(title, "bold"), title_justify="left", header_style=header_style,
        box=None, padding=(0, 2, 0, 0), pad_edge=False,
    )  # fmt: skip


def table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], *, breakable: Sequence[str] = ()
) -> None:
    """Print a table for people; where it is too wide, `breakable` columns are broken, or all if there are none."""
    made = blank(title or None, header_style="underline")
    for name in columns:
        made.add_column(name, no_wrap=bool(breakable) and name not in breakable, overflow="fold")
    _show(made, rows)


def pairs(rows: Sequence[tuple[str, object]]) -> None:
    """Print names and values, in two columns."""
    from rich.table import Table  # noqa: PLC0415 - loaded only where a table is shown

    made = Table(box=None, show_header=False, pad_edge=False)
    made.add_column(style="bold", no_wrap=True)
    made.add_column(overflow="fold")
    _show(made, rows)


def figures(found: Mapping[str, object], *, json: bool) -> None:
    """Print what a command found: as a line of JSON, or for people, with the units that names and types stand for."""
    if json:
        line(found)
    else:
        pairs([(name.removesuffix("_s").replace("_", " "), _figure(name, value)) for name, value in found.items()])


def _figure(name: str, value: object) -> object:
    if isinstance(value, float):
        return f"{value * 1e3:.1f} ms" if 0 < value < _SHORT_S else duration(value)
    if isinstance(value, int):
        return size(value) if name == "bytes" else f"{value:,}"
    return value


def _show(made: Table, rows: Sequence[Sequence[object]]) -> None:
    from rich.console import Console  # noqa: PLC0415 - loaded only where a table is shown

    for row in rows:
        made.add_row(*map(cell, row))
    console = Console(highlight=False)
    if console.is_terminal:
        console.print(made)
        return
    console.width = _REDIRECTED_COLUMNS  # Other programs read it line by line, so no line is broken,
    with console.capture() as shown:
        console.print(made)
    typer.echo("\n".join(line.rstrip() for line in shown.get().splitlines()))  # or filled up to the longest.


def cell(value: object) -> Text:
    """Return a value as plain text, without markup or control characters that others could put into it."""
    from rich.text import Text  # noqa: PLC0415 - loaded only where a table is shown

    return Text(printable(str(value)))


def duration(seconds: float) -> str:
    """Return a length of time for people."""
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.1f} s"


def clock(seconds: float) -> str:
    """Return a time as people read it here, to the second."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def size(nbytes: float) -> str:
    """Return a number of bytes for people."""
    for unit in ("B", "kB", "MB"):
        if nbytes < 1_000:  # noqa: PLR2004 - decimal units
            return f"{nbytes:.0f} {unit}" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1_000
    return f"{nbytes:.1f} GB"


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
