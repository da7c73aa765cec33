"""The tree of commands."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Annotated

import typer

from carrypost import CarrypostError, __version__
from carrypost.cli import circles, emu, keys, lab, messages, modulators, node, source_tree, web
from carrypost.cli._exit import Exit, check_texts, report
from carrypost.cli._options import Commands, option
from carrypost.cli.demo import demo
from carrypost.cli.lab.results import reproduce
from carrypost.extensions import BUILD
from carrypost.log.files import FULL, refused

app = Commands("carrypost", pretty_exceptions_enable=False)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"carrypost {__version__} ({BUILD})")
        raise typer.Exit


@app.callback()
def carrypost(
    *,
    version: Annotated[
        bool, option("--version", "Show the version, and how it was built.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Messaging without a server: nodes store, carry and forward messages until they expire.

    For example:

    * `carrypost demo` shows six nodes at work, in a minute

    * `carrypost node` runs a node on this machine

    * `carrypost sub -t village.roads` prints the messages of a topic

    * `carrypost pub -t village.roads "The bridge is closed."` publishes to it

    * `carrypost console` takes these commands and more at a prompt

    * `carrypost doctor` checks which ways of finding nodes work in this network

    * `carrypost emu run SCENARIO.toml --out records.parquet` runs thousands of hosts in virtual time
    """


app.command()(demo)
app.command()(node.node)
app.command()(node.stop)
app.command()(node.status)
app.command()(node.peers)
app.command()(messages.pub)
app.command()(messages.sub)
app.command()(messages.send)
app.command()(messages.receive)
app.command()(messages.browse)
app.command()(messages.ls)
app.command()(messages.bind)
app.command()(messages.unbind)
app.command()(messages.console)
app.command()(messages.trace)
app.add_typer(messages.cache)
app.command()(node.doctor)
app.add_typer(keys.keys)
app.add_typer(circles.circle)
app.add_typer(modulators.modulators)
app.add_typer(emu.emu)
app.add_typer(lab.lab)
app.command()(reproduce)
app.command()(web.web)
app.command()(source_tree.examples)


app.command(
    hidden=True,  # It needs the source tree, and serves those that change carrypost.
    # Options before NAME are ours, everything after it is the benchmark's.
    context_settings={"allow_extra_args": True, "allow_interspersed_args": False, "ignore_unknown_options": True},
)(source_tree.bench)


_tree = functools.cache(functools.partial(typer.main.get_command, app))
"""Makes the tree once, at the first command: that takes longer than many commands do."""


def run(arguments: Sequence[str]) -> int:
    """Run one command line; returns its exit code."""
    try:
        check_texts(arguments)
        _tree()(list(arguments), prog_name="carrypost")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else Exit.FAILED
    except (CarrypostError, TimeoutError) as error:
        return report(error)
    except OSError as error:
        if error.filename is None and error.errno not in FULL:  # Not about a file: an unexpected error.
            raise
        return report(
            refused(f"{error.filename or 'stdout'} cannot be {'used' if error.filename else 'written'}", error)
        )
    return Exit.DONE
