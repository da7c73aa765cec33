"""The end of the demonstration: what it cost, where the records are, and what to try next."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from carrypost.cli._output import blank, size
from carrypost.cli.demo.ledger import Ledger
from carrypost.cli.demo.scenes import Played

_COLUMNS = ("scene", "messages", "reads", "hops", "waiting", "datagrams", "bytes")
COMMANDS = (
    ("sub -t chat", "in one terminal: a node that subscribes to the topic"),
    ('pub -t chat "Hello."', "in another: publish a message"),
    ("console", "or type commands at a prompt; help lists them"),
)


def show(console: Console, played: Sequence[Played], ledger: Ledger, record: Path) -> None:
    """Print the table, the folder of the records, and commands to try."""
    table = blank("\nWhat the nodes recorded")
    for name in _COLUMNS:
        table.add_column(name, justify="left" if name == "scene" else "right", overflow="fold")
    for each in played:
        table.add_row(each.title, *_figures(each.messages, each.sent, ledger))
    everything = [message for each in played for message in each.messages]
    table.add_row("all", *_figures(everything, sum((each.sent for each in played), Counter[str]()), ledger))
    console.print(table)
    console.print(Text("hops, waiting: the maximum over all messages and readers; datagrams: sent by all nodes", "dim"))
    console.print(f"\nAll nodes have ended. Their records are in {_short(record)}, one JSON line per event.")
    console.print("\nTo try it yourself:")
    for command, what in (*COMMANDS, (f"web {shlex.quote(str(_short(record)))}", "in the browser: see what happened")):
        console.print(Text(f"  {_program()} {command}", "bold"), soft_wrap=True)
        console.print(Text(f"      {what}", "dim"))


def _figures(messages: Sequence[str], sent: Counter[str], ledger: Ledger) -> list[str]:
    """Return the figures of some messages, from the records."""
    read = [key for key, row in ledger.delivered.items() if key[0] in messages and row["node"] != row["source"]]
    hops = max((ledger.received[each]["hops"] or 0 for each in read if each in ledger.received), default=0)
    waited_s = max((ledger.wait_s(*each) for each in read), default=0.0)
    counts = [sum(each in ledger.published for each in messages), len(read), hops]
    return [*map(str, counts), f"{waited_s:.1f} s", f"{sent['datagrams']:,}", size(sent["bytes"])]


def _short(path: Path) -> Path:
    """Return a path as people would type it here."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def _program() -> str:
    """Return what this command is called as here."""
    called, name = Path(sys.argv[0]), "carrypost"
    on_path = shutil.which(name)
    if called.name != name or (on_path is not None and Path(on_path) == called.absolute()):
        return name
    return str(_short(called))
