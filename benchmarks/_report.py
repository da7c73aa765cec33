"""Tables of results, the same for every benchmark.

On a terminal, a table is printed. In a pipe or with `--json`, one object per row is printed: `table` is the table's
name (its title up to the colon), the rest are its columns. Only figures of printed tables are rounded.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence

import msgspec
from rich.console import Console
from rich.table import Table

_PLACES = ((1_000, 0), (10, 1))
"""Number of decimal places of figures, by their size; smaller ones have two."""


def parser(name: str, description: str, example: str) -> argparse.ArgumentParser:
    """Command line of the benchmark called `name`, with what all of them take."""
    made = argparse.ArgumentParser(
        prog=f"carrypost bench {name}",
        description=description,
        epilog=f"For example: carrypost bench {name} {example}",
    )
    made.add_argument(
        "--json",
        action="store_true",
        default=None,
        help="print JSON lines even on a terminal (the default when output is redirected)",
    )
    return made


def positive(text: str) -> int:
    """Return an option's value: a whole number, 1 or more."""
    number = int(text)
    if number < 1:
        raise ValueError
    return number


def show(title: str, rows: Sequence[Mapping[str, object]], *, json: bool | None) -> None:
    """Print a table; `json` None: as JSON unless stdout is a terminal."""
    if json or (json is None and not sys.stdout.isatty()):
        name = title.partition(":")[0]
        for row in rows:
            print(msgspec.json.encode({"table": name, **row}).decode(), flush=True)
        return
    table = Table(title=title)
    for column in rows[0] if rows else ():
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(*map(_shown, row.values()))
    Console().print(table)


def _shown(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.{next((places for low, places in _PLACES if abs(value) >= low), 2)}f}"
    return str(value)
