"""`carrypost lab ingest`: traces that people bring, as tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from carrypost.cli import _paths
from carrypost.cli._extras import needs_engine
from carrypost.cli._output import JsonOption, line, pairs, say, wants_json
from carrypost.cli._progress import DESCRIPTION, bar
from carrypost.cli._signals import orderly
from carrypost.cli._spark import ConfOption, EngineOption, MasterOption, MemoryOption, spark_options, suggest_local

if TYPE_CHECKING:
    from carrypost.lab.ingest.run import Report

_FORMATS = (
    "one-connections, one-movement, ns2, kth, imote, gps-csv (or csv), pairs, haslemere, gtfs, ion, ccp, contacts-csv."
)
_INTERVAL = (
    "How long a row is valid: for pairs, before its time (default 20); for imote, after the last sighting (default 0)."
)

Files = Annotated[
    list[Path], _paths.argument("Trace files; gzip, xz and zip are unpacked. gtfs: also a folder.", "FILE")
]
FormatOption = Annotated[str, typer.Option("--format", "-f", metavar="NAME", help=_FORMATS)]
ScenarioOption = Annotated[str, typer.Option("--scenario", help="Name of the scenario in the table.", metavar="NAME")]
OutOption = Annotated[Path, _paths.option("--out -o", "Folder for `positions` or `contacts`.", "DIR")]
IntervalOption = Annotated[float | None, typer.Option("--interval-s", help=_INTERVAL)]
DistanceOption = Annotated[
    float | None, typer.Option("--distance-m", help="haslemere: drop pairs that are further apart.")
]
DayOption = Annotated[
    str | None, typer.Option("--day", help="gtfs: day of service, such as 2014-06-03.", metavar="DATE")
]
ShapesOption = Annotated[
    bool,
    typer.Option("--shapes/--no-shapes", help="gtfs: follow the shapes of trips, or straight lines between stops."),
]
ColumnsOption = Annotated[
    str,
    typer.Option(
        "--columns",
        help="Names of the columns, in place of a header: t,node,lat,lon.",
        metavar="NAMES",
        show_default=False,
    ),
]
NodeFromNameOption = Annotated[
    bool,
    typer.Option("--node-from-name", help="gps-csv: a file per node, named after its file: node new_7 for new_7.txt."),
]
TimeUnitOption = Annotated[
    Literal["s", "ms", "us", "ns", "min", "h"],
    typer.Option("--time-unit", help="In tables: the unit of numeric times, such as ms."),
]
DateOption = Annotated[
    str, typer.Option("--date", metavar="DATE", show_default=False,
                      help="In tables: times are times of day, such as 08:15:30, on this date (UTC): 2014-06-03."),
]  # fmt: skip
RouteTypeOption = Annotated[
    str,
    typer.Option(
        "--route-type",
        metavar="TYPES",
        help="gtfs: only routes of these types, such as bus,ferry or 3,4.",
        show_default=False,
    ),
]
UnsortedOption = Annotated[bool, typer.Option("--unsorted", help="Accept lines in any order of time.")]
SameTimeOption = Annotated[
    Literal["error", "first", "last"], typer.Option("--same-time", help="What to do with a node in two places at once.")
]
OverlapsOption = Annotated[
    bool,
    typer.Option("--overlaps", help="pairs, contacts-csv: merge rows of a pair that overlap, such as 0-60 and 50-90."),
]
BothWaysOption = Annotated[bool, typer.Option("--both-ways", help="ion, ccp: each line counts for both directions.")]
LenientOption = Annotated[bool, typer.Option("--lenient", help="Go on even if more than 1 % of the lines are bad.")]


def ingest(
    files: Files,
    *,
    format_: FormatOption,
    scenario: ScenarioOption,
    out: OutOption,
    interval_s: IntervalOption = None,
    distance_m: DistanceOption = None,
    day: DayOption = None,
    shapes: ShapesOption = True,
    route_type: RouteTypeOption = "",
    columns: ColumnsOption = "",
    node_from_name: NodeFromNameOption = False,
    time_unit: TimeUnitOption = "s",
    date: DateOption = "",
    unsorted: UnsortedOption = False,
    same_time: SameTimeOption = "error",
    overlaps: OverlapsOption = False,
    both_ways: BothWaysOption = False,
    lenient: LenientOption = False,
    engine: EngineOption = "spark",
    master: MasterOption = "local[*]",
    memory: MemoryOption = "",
    conf: ConfOption = [],  # noqa: B006 - typer makes a new list
    json: JsonOption = False,
) -> None:
    """Read traces into a table of positions or contacts, with a manifest of its sources.

    Columns are named by a header or by --columns; a missing column is an error. Bad lines are counted, and the first
    ten are shown. More than 1 % of bad lines is an error, and so is anything that makes the whole trace useless, such
    as a node in two places at once. After an error nothing is written.

    For example:

    * `carrypost lab ingest primaryschool.tsv.gz --format pairs --scenario school --out school`

    * `carrypost lab ingest taxis.csv.gz --format gps-csv --scenario taxis --out taxis`, columns t, node, lat, lon

    * `carrypost lab ingest new_*.txt -f csv --node-from-name --columns lat,lon,fare,t --unsorted --scenario sf -o sf`

    * `carrypost lab ingest feed.zip --format gtfs --day 2014-06-03 --route-type bus --scenario cairns --out cairns`
    """
    needs_engine(engine)
    from carrypost.emu.traces.formats import Options  # noqa: PLC0415 - needed by this command only
    from carrypost.lab.ingest import request, run  # noqa: PLC0415

    options = Options(
        interval_s=interval_s, distance_m=distance_m, unsorted=unsorted, same_time=same_time,
        columns=_words(columns), node_from_name=node_from_name, time_unit=time_unit, date=date, overlaps=overlaps,
        both_ways=both_ways,
    )  # fmt: skip
    asked = request.IngestRequest(
        paths=files, format=format_, scenario=scenario, out=out, options=options, day=day, shapes=shapes,
        route_types=_words(route_type), lenient=lenient, engine=engine,
        spark=spark_options(master, memory, conf, "lab ingest"),
    )  # fmt: skip
    suggest_local(asked.spark if engine == "spark" else None, small=asked.small)
    with orderly(), bar(scenario, DESCRIPTION, "Bar", "TaskProgress", "TimeElapsed", total=1.0) as update:
        report = run.ingest(asked, None if update is None else partial(_moved, update, scenario))
    _show(report, json=wants_json(json))


def _words(text: str) -> tuple[str, ...]:
    return tuple(each.strip() for each in text.split(",")) if text else ()


def _show(report: Report, *, json: bool) -> None:
    for each in report.remarks:
        say(each)
    if json:
        line(report.facts)
        return
    counts = report.facts["counts"]
    assert isinstance(counts, Mapping)
    rows: list[tuple[str, object]] = [("table", report.facts["table"])]
    rows += [(name.replace("_", " "), value) for name, value in _flat(counts) if value != "0" or name == "bad_lines"]
    pairs(rows)


def _flat(counts: Mapping[str, object], above: str = "") -> Iterator[tuple[str, str]]:
    for name, value in counts.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{above}{name} ")
        else:
            yield f"{above}{name}", f"{value:,}" if isinstance(value, int | float) else str(value)


def _moved(update: Callable[..., None], name: str, what: str, share: float) -> None:
    update(description=f"{name}: {what}", completed=share)
