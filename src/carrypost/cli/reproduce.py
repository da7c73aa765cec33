"""`carrypost reproduce`: an experiment of the papers, from its scenario to the page, in one command."""

from __future__ import annotations

import os
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from carrypost.cli import _paths
from carrypost.cli._exit import Exit
from carrypost.cli._extras import needs_engine, needs_reports
from carrypost.cli._options import Engine, Json, argument, option
from carrypost.cli._output import figures, say
from carrypost.cli._progress import progress
from carrypost.cli._signals import INTERRUPTED, orderly

if TYPE_CHECKING:
    from carrypost.lab.campaign.grid import Grid
    from carrypost.lab.spark.session import SparkOptions

NameArgument = Annotated[
    str,
    argument(
        "The experiment: bus, ostermalm, emma, emma-island, overlay, balance, floodwatch, baselines or campus.", "NAME"
    ),
]


def reproduce(
    name: NameArgument,
    *,
    quick: Annotated[bool, option("--quick", "Only a small part, in a minute or two.")] = False,
    seeds: Annotated[str, option("--seeds", "Seeds, as 1, 1,2,5 or 1-10; tables show the mean.")] = "1",
    out: Annotated[
        Path | None,
        _paths.option("--out -o", "Folder for the results; default: reproduce-NAME, or reproduce-NAME-quick.", "DIR"),
    ] = None,
    engine: Engine,
    json: Json = False,
) -> None:
    """Reproduce an experiment of the papers: runs, metrics, and DIR/report.html, which compares both results.

    Movement and contacts are computed inside the runs, from the shipped scenarios. Stop with Ctrl-C, and continue with
    the same command.

    For example:

    * `carrypost reproduce bus --quick` for two hours of buses and two lifetimes

    * `carrypost reproduce bus --quick --engine local` for the same without Java and Spark

    * `carrypost reproduce ostermalm --out walkers` for all of it

    * `carrypost reproduce bus --seeds 1-10`

    * `carrypost reproduce emma --seeds 1-20` for groups of hosts and buffers of all sizes

    * `carrypost reproduce emma-island` for the same, with messages sent directly to connected hosts

    * `carrypost reproduce overlay` for brokers that follow mobility, and events of their clients

    * `carrypost reproduce balance` for brokers that share the work of their clients

    * `carrypost reproduce baselines` for routing strategies beside The ONE

    * `carrypost reproduce campus` for phones of eight people on two working days

    * `carrypost reproduce floodwatch` for modulators that move to the source of events
    """
    needs_engine(engine.engine)
    needs_reports()
    from carrypost.lab.campaign import reproduce as recipes  # noqa: PLC0415 - needs the extra
    from carrypost.lab.report import page  # noqa: PLC0415
    from carrypost.lab.spark.java import java_home  # noqa: PLC0415

    recipe, chosen = recipes.recipe(name), recipes.seeds_of(seeds)
    options = engine.options(f"reproduce {name}")
    folder = out if out is not None else Path(f"reproduce-{name}{'-quick' if quick else ''}")
    page.check(folder / recipes.PAGE)
    if engine.engine == "spark" and not recipes.is_complete(recipe, folder, chosen, quick=quick):
        with tempfile.TemporaryDirectory(prefix="carrypost-") as scratch:
            java_home(Path(scratch))  # Where there is none, nothing is left behind.
    file = recipes.laid_out(recipe, folder, chosen, quick=quick)
    cores = 1 if engine.engine == "local" else options.cores if options.in_process else os.cpu_count() or 1
    say(recipes.plan(recipe, chosen, quick=quick, cores=cores))
    command = recipes.command(recipe, chosen, quick=quick)
    raise typer.Exit(_do(file, folder, command, engine.chosen(f"reproduce {name}"), json=json))


@orderly()
def _do(file: Path, folder: Path, command: str, options: SparkOptions | None, *, json: bool) -> int:
    from carrypost.cli.lab.report import write_page  # noqa: PLC0415 - needed by this command only
    from carrypost.lab.campaign import grid, reproduce  # noqa: PLC0415
    from carrypost.lab.report.page import figures_beside  # noqa: PLC0415

    begun_s = time.monotonic()
    runs, page = grid.load(file), folder / reproduce.PAGE
    try:
        with ExitStack() as spark:  # One for runs and metrics, and none where both are there.
            failed = _campaign(runs, folder, options, spark)
            study = write_page(folder, page, options, command)
    except KeyboardInterrupt:
        say("interrupted; run the same command again to continue")
        return INTERRUPTED
    result: dict[str, object] = {
        "runs": len(runs.runs),
        "failed": failed,
        "page": str(page),
        "bytes": page.stat().st_size,
        "figures": str(figures_beside(page)),
        "elapsed_s": round(time.monotonic() - begun_s, 3),
    }
    figures(result, json=json)
    for each in study.failures:
        say(f"{each['run']} failed: {each['error']}")
    return Exit.FAILED if failed else Exit.DONE


def _campaign(runs: Grid, folder: Path, options: SparkOptions | None, spark: ExitStack) -> int:
    """Do the runs that are not done, without options of Spark here; how many of all have failed."""
    from carrypost.lab.campaign.campaign import begun  # noqa: PLC0415 - needed by this command only
    from carrypost.lab.engines import opened  # noqa: PLC0415

    with begun(runs, folder) as running:
        if todo := len(running.todo):
            say(f"{todo} of {len(runs.runs)} runs are to be done")
            if options is not None and options.starts:
                say("starting Spark, which may take a minute; --engine local runs without it, in one process")
            engine = spark.enter_context(opened(options))
            with progress(folder.name, "runs", todo) as move:
                running.conduct(engine, lambda so_far: move(so_far.done + so_far.failed, so_far.todo, ""))
        return len(running.found().failed)
