"""`carrypost lab campaign`."""

from __future__ import annotations

import dataclasses
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from carrypost.cli._exit import INTERRUPTED, Exit, orderly
from carrypost.cli._options import Engine, Json, PathText, option, path_argument, path_option, path_or_uri
from carrypost.cli._output import Move, figures, line, progress, say, table
from carrypost.errors import LocalError
from carrypost.printing import many

if TYPE_CHECKING:
    from carrypost.lab.campaign.campaign import Campaign, CampaignProgress, Found
    from carrypost.lab.campaign.folder import CampaignPlan
    from carrypost.lab.campaign.grid import Grid
    from carrypost.lab.folders import ObjectFolder
    from carrypost.lab.spark.session import SparkOptions

_LOCAL = "local[*]"
_SHOWN_MAX = 20
_NAMES_MAX = 3
_AGAIN = {
    "failed": "failed before",
    "changed": "the scenario, or a file that it names, has changed",
    "other version": "made by another version of carrypost",
    "damaged": "no record, or a damaged one",
}
"""Why runs of which there was something are done again."""
_RETRIES = 4
"""Number of times that Spark tries a task whose process died; on one machine its own default is never again."""


def campaign(
    file: Annotated[Path, path_argument("Scenarios, settings and seeds (TOML).", "CAMPAIGN.toml")],
    *,
    out: Annotated[
        PathText,
        path_option(
            "--out -o",
            "Folder for records, runs and failures: a path, or a URI such as s3://bucket/results.",
            "DIR",
            parser=path_or_uri,
        ),
    ],
    jobs: Annotated[
        int | None, option("--jobs", "Number of runs at the same time; default: one per processor.", min=1)
    ] = None,
    dry_run: Annotated[bool, option("--dry-run", "Only list the runs that are to be done.")] = False,
    engine: Engine,
    json: Json = False,
) -> None:
    """Emulate scenarios × settings × seeds. Each run, or each window of a population run, is a Spark task.

    Run again, the command does only the runs that are missing, failed or changed. A run that fails becomes a row of
    DIR/failures; the others go on. DIR/records is one table for Spark, pyarrow or duckdb. Stop with Ctrl-C, and
    continue with the same command.

    CAMPAIGN.toml:

    ```
    scenarios = ["bus.toml"]
    seeds = [1, 2, 3]                          # or {first = 1, last = 30}
    [[settings]]
    name = "20min"
    set = {"workload.0.lifetime_s" = 1200}
    ```

    For example:

    * `carrypost lab campaign campaign.toml --out results`

    * `carrypost lab campaign campaign.toml --out results --jobs 2`

    * `carrypost lab campaign campaign.toml --out /shared/results --master spark://host:7077`
    """
    options = _options(engine, jobs)
    from carrypost.lab.campaign.campaign import placed  # noqa: PLC0415
    from carrypost.lab.campaign.folder import plan  # noqa: PLC0415
    from carrypost.lab.campaign.grid import load  # noqa: PLC0415 - needs the extra
    from carrypost.lab.folders import folder_of  # noqa: PLC0415

    made, home = load(file), folder_of(out)
    if dry_run:
        with placed(home) as place:
            _show_plan(made, plan(made.runs, place), json=json)
        return
    raise typer.Exit(_conduct(made, home, options, json=json))


def _options(engine: Engine, jobs: int | None) -> SparkOptions | None:
    if (options := engine.needed("lab campaign")) is None:
        return None
    if options.in_process:
        cores = "*" if options.master == _LOCAL else str(options.cores)
        if options.master.count(",") == 0:
            return dataclasses.replace(options, master=f"local[{jobs or cores},{_RETRIES}]")
    elif jobs is not None:
        if not options.master.startswith("spark://"):
            raise LocalError(
                "--jobs requires a local or spark:// master; for others, set the number of executors with --conf"
            )
        return dataclasses.replace(options, conf={"spark.cores.max": str(jobs), **options.conf})
    return options


@orderly()
def _conduct(made: Grid, out: Path | ObjectFolder, options: SparkOptions | None, *, json: bool) -> int:
    from carrypost.lab.campaign.campaign import begun, needs_java  # noqa: PLC0415 - needed by this command only
    from carrypost.lab.engines import opened  # noqa: PLC0415

    begun_s = time.monotonic()
    if options is not None and isinstance(out, Path):
        needs_java(out)
    with begun(made, out) as running:
        _report(running.plan, out)
        interrupted = False
        try:
            if running.todo:
                with opened(options) as engine, progress(made.path.name, "runs", len(running.todo)) as move:
                    running.conduct(engine, partial(_moved, move))
        except KeyboardInterrupt:
            interrupted = True
        found = running.found()
    if interrupted:
        say(
            f"interrupted; {len(found.done):,} of {len(made.runs):,} runs are done; run the same command "
            "again for the rest"
        )
    _show(running, found, time.monotonic() - begun_s, json=json)
    if interrupted:
        return INTERRUPTED
    return Exit.FAILED if found.failed else Exit.DONE


def _moved(move: Move, so_far: CampaignProgress) -> None:
    state = f", {so_far.failed:,} failed" if so_far.failed else ""
    state += f", {so_far.windows:,} of {so_far.windows_todo:,} windows" if so_far.windows_todo else ""
    move(so_far.done + so_far.failed, so_far.todo, state)


def _report(plan: CampaignPlan, out: Path | ObjectFolder) -> None:
    """Report what was found in the folder, on stderr."""
    if plan.done:
        say(f"{many(plan.done, 'run is', 'runs are')} done already")
    for why, reason in _AGAIN.items():
        if count := plan.because(why):
            say(f"{many(count, 'run is', 'runs are')} repeated: {reason}")
    if plan.strangers:
        names = ", ".join(plan.strangers[:_NAMES_MAX]) + (" and more" if len(plan.strangers) > _NAMES_MAX else "")
        found = many(len(plan.strangers), f"in {out} does not belong", f"in {out} do not belong")
        say(f"{found} to this campaign and will be kept: {names}")


def _show(running: Campaign, found: Found, elapsed_s: float, *, json: bool) -> None:
    result: dict[str, object] = {
        "campaign": running.grid.path.name,
        "runs": len(running.grid.runs),
        "done": len(found.done),
        "failed": len(found.failed),
        "new": found.new,
        "rows": found.rows,
        "cpu_s": round(found.cpu_s, 3),
        "elapsed_s": round(elapsed_s, 3),
        "records": running.place.shown_records,
    }
    failures = [(state.run, state.error) for state in found.failed]
    listed = {"failures": [{"run": run, "error": error} for run, error in failures]} if json else {}
    figures(result | listed, json=json)
    if failures and not json:
        more = f", the first {_SHOWN_MAX}" if len(failures) > _SHOWN_MAX else ""
        title = f"failed{more} (with traceback: {running.place}/failures)"
        table(title, ("run", "error"), failures[:_SHOWN_MAX], breakable=("error",))


def _show_plan(made: Grid, plan: CampaignPlan, *, json: bool) -> None:
    rows = [(run.name, plan.todo.get(run.name, "done")) for run in made.runs]
    if json:
        for run, state in rows:
            line({"run": run, "state": state})
        return
    table(f"{len(plan.todo):,} of {len(rows):,} runs are to be done", ("run", "state"), rows)
