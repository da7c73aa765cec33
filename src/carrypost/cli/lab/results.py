"""Commands that make results of runs: families of metrics, pages about campaigns, the papers' own, and live tables.

Each hands its options to the laboratory, and shows the essential figures of what it wrote, for people or as JSON.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from carrypost.cli._exit import INTERRUPTED, Exit, orderly
from carrypost.cli._options import (
    Engine,
    Json,
    PathText,
    Spark,
    StreamJson,
    argument,
    needs_engine,
    needs_reports,
    option,
    page_path,
    path_argument,
    path_option,
    path_or_uri,
    suggest_local,
)
from carrypost.cli._output import blank, cell, duration, figures, line, progress, say, size, table
from carrypost.errors import LocalError
from carrypost.printing import many

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table as Shown

    from carrypost.lab.campaign.grid import Grid
    from carrypost.lab.folders import Folder, ObjectFolder
    from carrypost.lab.metrics.making import FilesToObjects, ObjectSources
    from carrypost.lab.metrics.plugins import Plugin
    from carrypost.lab.metrics.records import Source
    from carrypost.lab.report.study import Study
    from carrypost.lab.schemas import Table
    from carrypost.lab.spark.session import SparkOptions
    from carrypost.lab.stream import Live


PluginOption = Annotated[
    list[Path], path_option("--plugin", "Python file with metrics of your own; may be repeated.", "FILE.py")
]

_RATIO = "delivery_ratio"
_SHOWN = {name: name for name in ("run", "published", "received", "delivered", _RATIO)} | {"delivery_delay_s": "delay"}
"""Figures that fit into 80 columns, and their heads; JSON has all."""


def metrics(
    folder: Annotated[
        PathText,
        path_argument("Folder or URI in which `lab campaign` wrote `records`, or one record.", "DIR", path_or_uri),
    ],
    *,
    family: Annotated[list[str], option("--family -f", "Only these families; default: all.", "NAME")] = [],  # noqa: B006 - typer makes a new list
    window_s: Annotated[float, option("--window-s", "Width of the windows of counts over time.", min=0.001)] = 60.0,
    merge_runs: Annotated[
        bool, option("--merge-runs", "Treat the records of all real nodes as one run, with delays across nodes.")
    ] = False,
    out: Annotated[
        PathText | None,
        path_option("--out -o", "Folder or URI for the tables; default: DIR/metrics.", "FOLDER", parser=path_or_uri),
    ] = None,
    plugin: PluginOption = [],  # noqa: B006 - typer makes a new list
    engine: Engine,
    json: Json = False,
) -> None:
    """Compute the papers' metrics from records: one table per family, in DIR/metrics.

    Prints, for each run, the outcome of its messages and their mean delays.

    For example:

    * `carrypost lab metrics campaign`

    * `carrypost lab metrics records.parquet --family processing --family delays --out tables`

    * `carrypost lab metrics node-records --merge-runs` for a folder of records of real nodes

    * `carrypost lab metrics campaign --engine local` for records of some megabytes

    * `carrypost lab metrics campaign --plugin my_metrics.py` with metrics of your own
    """
    options = engine.needed("lab metrics")
    from carrypost.lab import engines  # noqa: PLC0415 - needed by this command only
    from carrypost.lab.folders import folder_of  # noqa: PLC0415
    from carrypost.lab.metrics import families_of  # noqa: PLC0415
    from carrypost.lab.metrics.making import SMALL_BYTES, Wanted, make  # noqa: PLC0415
    from carrypost.lab.metrics.plugins import families_with  # noqa: PLC0415

    plugins = read_plugins(plugin)
    tables = families_of(family, families_with(plugins))
    to = None if out is None else folder_of(out)
    wanted = Wanted(
        tables=tables, out=to if isinstance(to, Path) else None, window_s=window_s, merge_runs=merge_runs,
        plugins=plugins,
    )  # fmt: skip
    with sources_of(folder, to) as (source, shown):
        suggest_local(options, small=source.nbytes <= SMALL_BYTES)
        with orderly(), engines.opened(options) as on, progress("metrics", "runs") as move:
            home = make(
                on, source, wanted, on_progress=lambda done, total: move(done, total, ""),
                unreadable=lambda count: say(f"{many(count, 'line')} without a row of a record skipped"),
                remark=say,
            )  # fmt: skip
        _show(home, {each.name for each in tables}, json=json)
        say(f"{many(len(tables), 'family is', 'families are')} in {shown or home}")


@contextmanager
def sources_of(
    text: str | Path, out: Folder | None = None
) -> Iterator[tuple[Source | ObjectSources | FilesToObjects, str]]:
    """Yield the records that a text names, and the place of their tables if that is a folder of objects."""
    from carrypost.lab.folders import ObjectFolder, folder_of  # noqa: PLC0415
    from carrypost.lab.metrics.making import FilesToObjects, ObjectSources  # noqa: PLC0415 - needs the extra
    from carrypost.lab.metrics.records import Source  # noqa: PLC0415

    place = folder_of(str(text))
    if isinstance(place, Path) and not isinstance(out, ObjectFolder):
        yield Source.find(place), ""
        return
    with TemporaryDirectory(prefix="carrypost-metrics-") as scratch:
        home = Path(scratch)
        if isinstance(place, Path):
            assert isinstance(out, ObjectFolder)
            yield FilesToObjects(Source.find(place), home, out), str(out)
        elif isinstance(out, Path):
            yield ObjectSources(place, home), ""
        else:
            yield ObjectSources(place, home, out), str(out or place / "metrics")


def read_plugins(paths: Sequence[Path]) -> tuple[Plugin, ...]:
    """Return the plugins in these files."""
    from carrypost.lab.metrics.plugins import Plugin  # noqa: PLC0415 - needs the extra

    return tuple(map(Plugin.read, paths))


def _show(home: Path, made: set[str], *, json: bool) -> None:
    """Show the fates of messages by run, as far as they were asked for."""
    names, rows = _found(home, made)
    if json:
        for run in sorted(rows):
            line({name: rows[run][name] for name in names if name in rows[run]})
    elif rows:
        _print(rows, [name for name in names if any(name in row for row in rows.values())])


def _found(home: Path, made: set[str]) -> tuple[list[str], dict[str, dict[str, object]]]:
    """Return the names of all figures of a summary, and by run those that were made."""
    from carrypost.lab import folders  # noqa: PLC0415 - needs the extra
    from carrypost.lab.metrics import families  # noqa: PLC0415 - needs the extra

    counts, delays = families.COUNT_WORDS, {name: f"{word}_s" for name, word in families.DELAY_WORDS.items()}
    rows: dict[str, dict[str, object]] = {}
    sources: tuple[tuple[Table, Callable[[dict[str, Any]], dict[str, object]]], ...] = (
        (families.PROCESSING, lambda row: {word: _received(row).get(name, row[name]) for name, word in counts.items()}),
        (families.DELIVERY_RATIO, lambda row: {_RATIO: row["ratio"]}),
        (families.DELAY_SPREAD, lambda row: {delays[row["metric"]]: row["avg_s"]}),
    )
    for table_, figures_of in sources:
        for row in folders.read_arrow(home, table_).to_pylist() if table_.name in made else ():
            rows.setdefault(str(row["run"]), {"run": row["run"]}).update(figures_of(row))
    return ["run", *counts.values(), _RATIO, *delays.values()], rows


def _received(row: dict[str, Any]) -> dict[str, object]:
    """Return the number of received messages that were delivered; the family counts own messages, too, as its paper."""
    return {"codlvd": row["rcvd"] - row["expd"] - row["left"]}


def _print(rows: Mapping[str, Mapping[str, object]], names: Sequence[str]) -> None:
    """Print a short table for people, which fits into 80 columns if names of runs are short."""
    from carrypost.lab.report.numbers import share, shown  # noqa: PLC0415 - needs the extra

    def cell(name: str, value: object) -> str:
        if isinstance(value, float):
            return shown(value) if name.endswith("_s") else share(value)
        return "–" if value is None else str(value)

    names = [name for name in names if name in _SHOWN]
    heads = [_SHOWN[name] for name in names]
    body = [[cell(name, rows[run].get(name)) for name in names] for run in sorted(rows)]
    table("", heads, body, breakable=heads[1:])


_PAGE = PathText("report.html")


def report(
    folder: Annotated[
        PathText,
        path_argument(
            "The folder or URI that `lab campaign` made, or a folder with records of real nodes.", "DIR", path_or_uri
        ),
    ],
    *,
    out: Annotated[
        PathText,
        path_option("--out -o", "File or URI for the page (HTML).", "FILE", parser=page_path, default=True),
    ] = _PAGE,
    plugin: PluginOption = [],  # noqa: B006 - typer makes a new list
    engine: Engine,
    json: Json = False,
) -> None:
    """Write the report of a campaign, or of real nodes: tables and figures, in one self-contained HTML file.

    Records of real nodes (`record.folder` in their settings) get a page that shows who met whom, what was carried, and
    delays.

    Scenarios of `carrypost reproduce` get the papers' tables and figures, others a general part. Missing metrics are
    computed first. Each figure is also in the folder PAGE-figures, as SVG and as CSV.

    For example:

    * `carrypost lab report results --out report.html`

    * `carrypost lab report demo-record --out demo.html` for the records of real nodes

    * `carrypost lab report results --plugin my_metrics.py` adds metrics of your own

    * `carrypost lab report s3://bucket/results --out s3://bucket/report.html`
    """
    needs_reports()
    from carrypost.lab.folders import folder_of  # noqa: PLC0415 - needs the extra
    from carrypost.lab.report import field, page  # noqa: PLC0415 - needs the extra

    options, home, place = engine.chosen("lab report"), folder_of(folder), folder_of(out)
    found: dict[str, object] = {}
    with page.placed(place) as file:
        if isinstance(home, Path) and field.is_there(home):
            if plugin:
                raise LocalError("--plugin is for campaigns; for records of real nodes: carrypost lab metrics --plugin")
            page.check(file)
            test = field.FieldTest(home)
            if test.unreadable:
                say(f"{many(test.unreadable, 'line')} without a row of a record skipped")
            page.put(page.field_test(test, page.figures_beside(file).name), file)
            found |= field.summary(test)
        else:
            study = write_page(home, file, options, plugins=read_plugins(plugin))
            found |= {"runs": len(study.runs), "failed": len(study.failures)}
        nbytes = file.stat().st_size
    figures({"page": str(place), "bytes": nbytes, "figures": str(page.figures_beside(place))} | found, json=json)


@orderly()
def write_page(
    folder: Path | ObjectFolder,
    out: Path,
    options: SparkOptions | None,
    command: str = "",
    plugins: tuple[Plugin, ...] = (),
) -> Study:
    """Write the page of a campaign; return its study. Without options of Spark, metrics are made in this process."""
    from carrypost.lab.folders import ObjectFolder  # noqa: PLC0415
    from carrypost.lab.metrics import FAMILIES, making  # noqa: PLC0415 - needed by this command only
    from carrypost.lab.metrics.making import fetched  # noqa: PLC0415
    from carrypost.lab.report import page  # noqa: PLC0415

    def make(campaign: Path, tables: Sequence[Table]) -> None:
        from carrypost.lab import engines  # noqa: PLC0415 - needed where metrics are missing only

        # Whether tables of plugins that are there are current is known only when they have been compared.
        new = [each for each in tables if each in FAMILIES or not (campaign / making.METRICS / each.name).is_dir()]
        if new:
            say(f"computing {many(len(new), 'family', 'families')} of metrics of {folder}")
        wanted = making.Wanted(tables=tables, plugins=plugins)
        with sources_of(folder.uri if isinstance(folder, ObjectFolder) else campaign) as (source, _):
            suggest_local(options, small=bool(new) and source.nbytes <= making.SMALL_BYTES)
            with engines.opened(options) as on, progress("metrics", "runs") as move:
                making.make(on, source, wanted, on_progress=lambda done, total: move(done, total, ""))
        if isinstance(folder, ObjectFolder):
            folder.mirror(making.METRICS, campaign / making.METRICS)

    page.check(out)
    with nullcontext(folder) if isinstance(folder, Path) else fetched(folder) as local:
        study = page.complete(local, make, plugins)
        page.write(study, out, command, plugins)
    return study


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
        path_option("--out -o", "Folder for the results; default: reproduce-NAME, or reproduce-NAME-quick.", "DIR"),
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
    from carrypost.lab.campaign.grid import load  # noqa: PLC0415 - needed by this command only
    from carrypost.lab.campaign.reproduce import PAGE  # noqa: PLC0415
    from carrypost.lab.report.page import figures_beside  # noqa: PLC0415

    begun_s = time.monotonic()
    runs, page = load(file), folder / PAGE
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


_OUT = "Folder for tables and checkpoint, or URI for tables; default: DIR-live."
_NODES_MAX = 30
_NAME_MAX = 8
_MILLISECONDS = 1e3


def stream(
    source: Annotated[
        PathText,
        path_argument("Folder or URI with the records of nodes; subfolders are read, too.", "DIR", path_or_uri),
    ],
    *,
    out: Annotated[PathText | None, path_option("--out -o", _OUT, parser=path_or_uri)] = None,
    once: Annotated[bool, option("--once", "Read what is there, and stop.")] = False,
    every_s: Annotated[float, option("--every-s", "How often to look for new rows.", min=1.0)] = 5.0,
    window_s: Annotated[float, option("--window-s", "Length of the windows of the timeline.")] = 60.0,
    watermark_s: Annotated[
        float, option("--watermark-s", "Rows that arrive later than this are left out of the timeline.")
    ] = 120.0,
    horizon_s: Annotated[float, option("--horizon-s", "Delays longer than this are not counted.")] = 3_600.0,
    skew_s: Annotated[float, option("--skew-s", "How much the clocks of nodes may differ.")] = 60.0,
    cluster: Spark,
    json: StreamJson = False,
) -> None:
    """Follow the records that real nodes write (`record.folder` in their settings), until Ctrl-C.

    Keeps a summary on the terminal, and tables in Parquet under `--out`: nodes, metrics/timeline, metrics/delays,
    metrics/delay_cdf. Started again with the same `--out`, it continues where it stopped.

    For example:

    * `carrypost lab stream records --out live`

    * `carrypost lab stream records --out live --once` reads what is there, and stops
    """
    needs_engine("spark")
    from carrypost.lab.folders import folder_of  # noqa: PLC0415
    from carrypost.lab.spark.session import session  # noqa: PLC0415 - needed by this command only
    from carrypost.lab.stream import StreamOptions, begin, copies, follow  # noqa: PLC0415

    options = StreamOptions(window_s=window_s, watermark_s=watermark_s, horizon_s=horizon_s, skew_s=skew_s)
    records = folder_of(source)
    into = records.with_name(f"{records.name}-live") if out is None else folder_of(out)
    asked = cluster.options("lab stream")
    if not (isinstance(records, Path) and isinstance(into, Path)) and not asked.on_this_machine:
        raise LocalError(f"a stream of objects keeps its state here, so Spark must be here, too, not {asked.master}")
    with orderly(), copies(records, into) as here:
        begin(here.source, here.out, options)
        try:
            with session(asked) as spark, _shown(json=json) as show:

                def news(live: Live) -> None:
                    here.publish()
                    show(live)

                follow(
                    spark, here.source, here.out, options, every_s=None if once else every_s, on_news=news,
                    refresh=here.refresh,
                )  # fmt: skip
        except KeyboardInterrupt:
            say(f"stopped; {into} has the rows so far, and the same command continues from there")
            if once:
                raise typer.Exit(INTERRUPTED) from None


@contextmanager
def _shown(*, json: bool) -> Iterator[Callable[[Live], None]]:
    """Yield a function to call when there is news: it updates a table in place, or prints lines of JSON."""
    if json:
        yield _report
        return
    from rich.live import Live as Screen  # noqa: PLC0415 - loaded only where a table is shown

    with Screen(auto_refresh=False) as screen:

        def show(live: Live) -> None:
            screen.update(_tables(live), refresh=True)

        yield show


def _report(live: Live) -> None:
    from carrypost.lab.metrics.families import DELAY_WORDS  # noqa: PLC0415 - needs the extra

    line(
        {
            "nodes": sum(node != "?" for node in live.nodes["node"].to_pylist()),
            **{name: sum(live.nodes[name].to_pylist()) for name in live.nodes.column_names[2:]},
            "delays": {
                DELAY_WORDS[each.pop("metric")]: each for each in live.delays().drop_columns(["run"]).to_pylist()
            },
        }
    )


def _tables(live: Live) -> Group:
    from rich.console import Group  # noqa: PLC0415 - loaded only where a table is shown

    from carrypost.lab.metrics.families import DELAY_WORDS  # noqa: PLC0415 - needs the extra

    def headed(title: str, *columns: str) -> Shown:
        made = blank(title)
        for number, name in enumerate(columns):
            made.add_column(name, justify="right" if number else "left", no_wrap=True)
        return made

    counts = ("published", "received", "delivered", "expired", "dropped", "refused")
    known = [row for row in live.nodes.to_pylist() if row["node"] != "?"]
    title = f"{many(len(known), 'node')} at {time.strftime('%H:%M:%S')}"
    nodes = headed(title, "node", "ago", *counts, "sent")
    latest = sorted(known, key=lambda row: -row["last"])
    for row in latest[:_NODES_MAX]:
        ago = duration(max(0.0, time.time() - row["last"])) if row["last"] else "–"
        who = cell(row["node"])
        who.truncate(_NAME_MAX, overflow="ellipsis")
        nodes.add_row(who, ago, *(f"{row[each]:,}" for each in counts), size(row["bytes_sent"]))
    shares = ("p50_s", "p90_s", "p95_s", "p99_s")
    delays = headed("delays", "", "count", "mean", *(each.removesuffix("_s") for each in shares), "most")
    for row in live.delays().to_pylist():
        values = (row["avg_s"], *(row[each] for each in shares), row["max_s"])
        delays.add_row(DELAY_WORDS[row["metric"]].replace("_", " "), f"{row['count']:,}", *map(_seconds, values))
    unreadable, ahead = (sum(live.nodes[name].to_pylist()) for name in ("unreadable", "ahead"))
    more = [many(len(known) - _NODES_MAX, "more node")] if len(known) > _NODES_MAX else []
    more += [many(ahead, "row with a time in the future", "rows with times in the future")] if ahead else []
    more += [f"{many(unreadable, 'line')} without a row of a record"] if unreadable else []
    return Group(nodes, *more, delays)


def _seconds(seconds: float) -> str:
    return f"{seconds * _MILLISECONDS:.0f} ms" if abs(seconds) < 1 else duration(seconds)
