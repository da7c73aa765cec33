"""Commands about traces: `carrypost lab ingest` makes tables of them, `lab contacts` finds contacts in positions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec

from carrypost.cli._exit import orderly
from carrypost.cli._options import (
    Engine,
    Json,
    OptionGroup,
    PathText,
    option,
    path_argument,
    path_option,
    path_or_uri,
    suggest_local,
)
from carrypost.cli._output import DESCRIPTION, bar, figures, line, pairs, say, table
from carrypost.errors import LocalError
from carrypost.model.times import MICROSECONDS

if TYPE_CHECKING:
    from carrypost.lab.ingest.run import Report


_MESSAGES = "one-messages"
_FORMATS = (
    "one-connections, one-movement, ns2, kth, imote, gps-csv (or csv), pairs, haslemere, gtfs, ion, ccp, contacts-csv; "
    "one-messages: a list of messages, as a script for scenarios."
)
_OUT = "Folder or URI for `positions` or `contacts`."
_INTERVAL = (
    "How long a row is valid: for pairs, before its time (default 20); for imote, after the last sighting (default 0)."
)


class Reading(OptionGroup, frozen=True):
    """The way in which the lines of a trace are read."""

    interval_s: Annotated[float | None, option("--interval-s", _INTERVAL)] = None
    distance_m: Annotated[float | None, option("--distance-m", "haslemere: drop pairs that are further apart.")] = None
    columns: Annotated[
        str, option("--columns", "Names of the columns, in place of a header: t,node,lat,lon.", "NAMES")
    ] = ""
    node_from_name: Annotated[
        bool,
        option(
            "--node-from-name",
            "gps-csv, imote, pairs: a file per node, or per observer, named after its file: node new_7 for new_7.txt.",
        ),
    ] = False
    nodes: Annotated[
        str,
        option("--nodes", "Keep these nodes only, and contacts among them: names, or a file of names.", "NAMES|FILE"),
    ] = ""
    time_unit: Annotated[
        Literal["s", "ms", "us", "ns", "min", "h"],
        option("--time-unit", "In tables: the unit of numeric times, such as ms."),
    ] = "s"
    date: Annotated[
        str, option("--date", "In tables: times are times of day, as 08:15:30, on this date (UTC): 2014-06-03.", "DATE")
    ] = ""
    date_from_name: Annotated[
        str,
        option("--date-from-name", "The same, each file dated by its name: %m%d%Y for 03252007.txt.", "PATTERN"),
    ] = ""
    unsorted: Annotated[bool, option("--unsorted", "Accept lines in any order of time.")] = False
    same_time: Annotated[
        Literal["error", "first", "last"], option("--same-time", "What to do with a node in two places at once.")
    ] = "error"
    overlaps: Annotated[
        bool,
        option(
            "--overlaps",
            "pairs, contacts-csv: merge rows of a pair that overlap, such as 0-60 and 50-90. one-connections: a "
            "contact lasts until there is a down for each up.",
        ),
    ] = False
    contacts: Annotated[
        PathText | None,
        path_option(
            "--contacts",
            "one-messages: the file of contacts that names the hosts, or its URI.",
            "FILE",
            parser=path_or_uri,
        ),
    ] = None
    both_ways: Annotated[bool, option("--both-ways", "ion, ccp: each line counts for both directions.")] = False


class Timetable(OptionGroup, frozen=True):
    """The part of a timetable that is read."""

    day: Annotated[str | None, option("--day", "gtfs: day of service, such as 2014-06-03.", "DATE")] = None
    shapes: Annotated[
        bool, option("--shapes/--no-shapes", "gtfs: follow the shapes of trips, or straight lines between stops.")
    ] = True
    route_type: Annotated[
        str, option("--route-type", "gtfs: only routes of these types, such as bus,ferry or 3,4.", "TYPES")
    ] = ""


def ingest(
    files: Annotated[
        list[PathText],
        path_argument(
            "Trace files, or their URIs; gzip, xz and zip are unpacked. gtfs: also a folder.", "FILE", path_or_uri
        ),
    ],
    *,
    format_: Annotated[str, option("--format -f", _FORMATS, "NAME")],
    scenario: Annotated[str, option("--scenario", "Name of the scenario in the table.", "NAME")],
    out: Annotated[PathText, path_option("--out -o", _OUT, "DIR", parser=path_or_uri)],
    timetable: Timetable,
    reading: Reading,
    lenient: Annotated[bool, option("--lenient", "Go on even if more than 1 % of the lines are bad.")] = False,
    engine: Engine,
    json: Json = False,
) -> None:
    """Read traces into a table of positions or contacts, with a manifest of its sources.

    Columns are named by a header or by --columns; a missing column is an error. Bad lines are counted, and the first
    ten are shown. More than 1 % of bad lines is an error, and so is anything that makes the whole trace useless, such
    as a node in two places at once. After an error nothing is written.

    For example:

    * `carrypost lab ingest primaryschool.tsv.gz --format pairs --scenario school --out school`

    * `carrypost lab ingest taxis.csv.gz --format gps-csv --scenario taxis --out taxis`, columns t, node, lat, lon

    * `carrypost lab ingest new_*.txt -f csv --node-from-name --columns lat,lon,fare,t --unsorted --scenario sf -o sf`

    * `carrypost lab ingest messages.txt --format one-messages --contacts contacts.txt --scenario city --out city`

    * `carrypost lab ingest feed.zip --format gtfs --day 2014-06-03 --route-type bus --scenario cairns --out cairns`
    """
    if format_ == _MESSAGES:
        _script(files, reading, out, json=json)
        return
    if reading.contacts is not None:
        raise LocalError(f"--contacts cannot be used with {format_}; it is for {_MESSAGES}")
    spark = engine.needed("lab ingest")
    from carrypost.lab.folders import folder_of, local_copies  # noqa: PLC0415
    from carrypost.lab.ingest import run  # noqa: PLC0415
    from carrypost.lab.ingest.inputs import IngestRequest  # noqa: PLC0415
    from carrypost.traces.formats import Options  # noqa: PLC0415 - needed by this command only

    given = {**msgspec.structs.asdict(reading), "columns": _words(reading.columns), "nodes": _names(reading.nodes)}
    del given["contacts"]
    places = [folder_of(each) for each in files]
    with orderly(), local_copies(places) as paths:
        asked = IngestRequest(
            paths=paths, copies_of=dict(zip(paths, places, strict=True)), format=format_, scenario=scenario,
            out=folder_of(out), options=Options(**given), day=timetable.day, shapes=timetable.shapes,
            route_types=_words(timetable.route_type), lenient=lenient, engine=engine.engine,
            spark=engine.options("lab ingest"),
        )  # fmt: skip
        suggest_local(spark, small=asked.small)
        with bar(scenario, DESCRIPTION, "Bar", "TaskProgress", "TimeElapsed", total=1.0) as update:
            report = run.ingest(asked, None if update is None else partial(_moved, update, scenario))
    _show(report, json=json)


def _script(files: Sequence[str], reading: Reading, out: str, *, json: bool) -> None:
    """Write the script of a list of messages."""
    from carrypost.lab.folders import folder_of, local_copies  # noqa: PLC0415
    from carrypost.lab.ingest import run  # noqa: PLC0415 - needed by this format only

    if reading.contacts is None:
        raise LocalError(f"--format {_MESSAGES} needs the contacts that belong to the messages: --contacts FILE")
    others = msgspec.structs.replace(reading, contacts=None)
    if others != Reading() or len(files) != 1:
        raise LocalError(f"--format {_MESSAGES} takes one file, and no option for reading it but --contacts")
    with orderly(), local_copies([folder_of(each) for each in (files[0], reading.contacts)]) as (listed, named):
        found = run.write_script(listed, named, folder_of(out))
    figures({"script": str(found.path), "messages": found.messages, "hosts": found.hosts}, json=json)


def _words(text: str) -> tuple[str, ...]:
    return tuple(each.strip() for each in text.split(",")) if text else ()


def _names(given: str) -> tuple[str, ...]:
    """Return names of nodes, given themselves or by a file with one or more in each line."""
    from carrypost.traces.csvfiles import has_content, read_text  # noqa: PLC0415 - needed here only
    from carrypost.traces.formats.lines import plain_name  # noqa: PLC0415

    if given and Path(given).is_file():
        given = ",".join(line for line in read_text(given).splitlines() if has_content(line))
    return tuple(sorted({plain_name(each) for each in given.replace(",", " ").split()}))


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


_SECONDS_MAX = 1e9


def _seconds(name: str, about: str) -> Any:  # noqa: ANN401 - typer's own type says nothing
    return option(name, about, "SECONDS")


class Search(OptionGroup, frozen=True):
    """The contacts that count, and what else is made of them."""

    range_m: Annotated[float, option("--range-m", "Range of the radio.", "METRES")]
    max_gap_s: Annotated[
        float, _seconds("--max-gap-s", "Do not interpolate between samples further apart than this.")
    ] = 600.0
    merge_gap_s: Annotated[
        float, _seconds("--merge-gap-s", "Merge contacts of a pair with no more than this between them.")
    ] = 0.0
    min_duration_s: Annotated[float, _seconds("--min-duration-s", "Then drop contacts shorter than this.")] = 0.0
    statistics: Annotated[
        bool, option("--statistics", "Also write DIR/statistics: durations, neighbours, activity.")
    ] = False
    window_s: Annotated[float, _seconds("--window-s", "Window of the means over time, with --statistics.")] = 60.0
    slab_s: Annotated[float | None, _seconds("--slab-s", "For tuning: changes the cost, never the result.")] = None


def contacts(
    positions: Annotated[
        PathText,
        path_argument("Folder or URI of a table of positions, or of its Parquet files.", "POSITIONS", path_or_uri),
    ],
    *,
    out: Annotated[
        PathText,
        path_option("--out -o", "Folder or URI for the table of contacts.", "DIR", parser=path_or_uri),
    ],
    search: Search,
    engine: Engine,
    json: Json = False,
) -> None:
    """Find when nodes were in range of each other: exact to the microsecond, on straight lines between samples.

    Writes DIR/contacts, sorted by start, and prints the number and durations of contacts. Scenarios are searched
    separately. The same positions give the same table with both engines.

    For example:

    * `carrypost lab contacts traces/city --range-m 50 --out traces/city`

    * `carrypost lab contacts traces/city --range-m 50 --max-gap-s 60 --merge-gap-s 5 --min-duration-s 1 --out near`

    * `carrypost lab contacts s3://bucket/big --range-m 100 --master spark://host:7077 --statistics --out s3://bucket/big`
    """
    options = engine.needed("lab contacts")
    from carrypost.lab import engines  # noqa: PLC0415
    from carrypost.lab.contacts import Wanted, extract, samples  # noqa: PLC0415
    from carrypost.lab.contacts.search import SAMPLES_HERE_MAX  # noqa: PLC0415
    from carrypost.lab.folders import folder_of  # noqa: PLC0415
    from carrypost.traces.encounters import Rules  # noqa: PLC0415 - needed by this command only

    rules = Rules(
        range_m=search.range_m,
        max_gap_us=_microseconds("--max-gap-s", search.max_gap_s, least=1),
        merge_gap_us=_microseconds("--merge-gap-s", search.merge_gap_s),
        min_duration_us=_microseconds("--min-duration-s", search.min_duration_s),
    )
    wanted = Wanted(
        rules=rules,
        slab_us=None if search.slab_s is None else max(1, _microseconds("--slab-s", search.slab_s)),
        statistics=search.statistics,
        window_s=max(1, _microseconds("--window-s", search.window_s)) / MICROSECONDS,
    )
    source, home = folder_of(positions), folder_of(out)
    suggest_local(options, small=samples(source) <= SAMPLES_HERE_MAX)
    with orderly(), bar(f"searching {source}", "Spinner", DESCRIPTION, "TimeElapsed"), engines.opened(options) as on:
        found = extract(source, home, wanted, on)
    _show_contacts(found, json=json)


def _microseconds(option: str, seconds: float, *, least: int = 0) -> int:
    if not 0 <= seconds < _SECONDS_MAX or round(seconds * MICROSECONDS) < least:
        raise LocalError(
            f"{option} must be a number of seconds, {'above 0' if least else '0 or more'}, not {seconds!r}"
        )
    return round(seconds * MICROSECONDS)


def _show_contacts(found: list[dict[str, Any]], *, json: bool) -> None:
    if json:
        for each in found:
            line(each)
        return
    names = max(found, key=len, default={"scenario": "", "contacts": 0})
    rows = [[_shown(each[name]) if name in each else "–" for name in names] for each in found]
    table("", [name.replace("_s", " s") for name in names], rows, breakable=["scenario"])


def _shown(value: object) -> object:
    if isinstance(value, float):
        return f"{value:,.3f}"
    return f"{value:,}" if isinstance(value, int) else value
