"""The tree of commands, and what their failures mean to the shell.

A mistake of the caller ends with a sentence on stderr and exit code 2, other failures of this package with 1;
only what nobody foresaw shows a traceback.
"""

from __future__ import annotations

import enum
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from carrypost import CarrypostError, LocalError, __version__


class Exit(enum.IntEnum):
    """Exit codes."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    """Usage or configuration."""
    TIMEOUT = 3
    NO_NODE = 4
    RUNNING = 5
    """Already running."""


app = typer.Typer(
    name="carrypost",
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"carrypost {__version__}")
        raise typer.Exit


@app.callback()
def carrypost(
    *,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Messaging for networks that are never whole: stored, carried and forwarded until the deadline.

    For example:

    * `carrypost --version`

    * `carrypost bench` lists the benchmarks

    * `carrypost bench NAME --help` tells what one of them takes
    """


@app.command(
    # Options before NAME are ours, everything after it is the benchmark's.
    context_settings={
        "allow_extra_args": True,
        "allow_interspersed_args": False,
        "ignore_unknown_options": True,
    }
)
def bench(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="Which one; left out: list them.", show_default=False)] = "",
) -> None:
    """Run a benchmark of the source tree; what follows NAME is handed to it."""
    from carrypost.cli import bench as benchmarks  # noqa: PLC0415 - needed by this command only

    if not name:
        for each in benchmarks.available():
            typer.echo(each)
        return
    raise typer.Exit(benchmarks.run(name, context.args))


def run(arguments: Sequence[str]) -> int:
    """Run one command line; returns its exit code."""
    try:
        app(list(arguments))
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else Exit.FAILED
    except CarrypostError as error:
        print(f"carrypost: {error}", file=sys.stderr)  # noqa: T201 - the one place that tells of failures
        return Exit.USAGE if isinstance(error, LocalError) else Exit.FAILED
    return Exit.DONE
