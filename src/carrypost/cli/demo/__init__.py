"""The demonstration: real nodes on loopback that meet, part and carry messages for each other.

Its command, `carrypost demo`, loads the rest when it is called.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from carrypost.cli._options import Engine, needs_engine, needs_reports, option, path_option

RecordOption = Annotated[Path, path_option("--record", "Folder for the nodes' records.", "FOLDER", default=True)]


def demo(
    *,
    quick: Annotated[bool, option("--quick", "Skip the pauses for reading; takes under 30 s.")] = False,
    full: Annotated[bool, option("--full", "Then run a small campaign of emulated buses on Spark.")] = False,
    record: RecordOption = Path("demo-record"),
) -> None:
    """Watch six real nodes on this machine store, carry and forward messages, without a server.

    It takes about a minute and uses only loopback. On a terminal, a picture shows which nodes reach each other and
    which messages they carry; if output is redirected, lines are printed. Everything shown comes from the nodes, whose
    records are kept in demo-record. If a scene does not end as announced, the exit code is 1.

    For example:

    * `carrypost demo`

    * `carrypost demo --quick --record records`

    * `carrypost demo --full` adds a small experiment, and prints where its report is
    """
    if full:
        needs_engine("spark")
        needs_reports()
    from carrypost.cli.demo import stage  # noqa: PLC0415 - keeps --help quick

    code = stage.run(record, quick=quick)
    if code or not full:
        raise typer.Exit(code)
    from carrypost.cli.lab.results import reproduce  # noqa: PLC0415 - needed by this option only

    out = record / stage.CAMPAIGN
    typer.echo(f"\nEmulated buses on Spark follow, a minute or two: carrypost reproduce bus --quick --out {out}")
    reproduce("bus", quick=True, out=out, engine=Engine())
