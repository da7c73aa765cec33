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


for command in (
    demo, node.node, node.stop, node.status, node.peers,
    messages.pub, messages.sub, messages.send, messages.receive, messages.browse, messages.ls, messages.bind,
    messages.unbind, messages.console, messages.trace, node.doctor, reproduce, web.web, source_tree.examples,
):  # fmt: skip
    app.command()(command)
for group in (messages.cache, keys.keys, circles.circle, modulators.modulators, emu.emu, lab.lab):
    app.add_typer(group)
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
