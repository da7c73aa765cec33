"""`lab ingest` of each kind of input: lines by either engine, timetables in GTFS, and lists of messages of The ONE.

For lines the engine is chosen, the options of a format are checked, and the manifest is written. An existing table is
replaced, as a whole, by one of the same scenario; one of another scenario is left alone. Mistakes are found before
anything is written.

A timetable gives the positions of one service day of a feed, as the emulator's ``model = "gtfs"`` drives it. Times are
seconds since midnight of the service day, and go on after the next one. A reader of the positions alone can draw lines
between all samples of a node: no two are more than a minute apart, however long a vehicle stands, so that every
sensible maximum gap keeps them together; and a vehicle that was away comes back under another name, as NAME.2, so that
no line is drawn over the time in between.

A list of messages (`CreatedMessagesReport`) becomes a script: who sends what to whom, and when. The ONE's reports of
messages name hosts with the prefix of their group, as in `c42`, and its reports of connections number them, as in `42`.
So hosts get the names that they have in the file of contacts that belongs to the messages.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from carrypost.arrays import Floats, Ints
from carrypost.config.rules import nearest
from carrypost.errors import LocalError
from carrypost.lab import folders
from carrypost.lab.folders import Folder, ObjectFolder
from carrypost.lab.ingest import inputs, local
from carrypost.lab.ingest.inputs import GTFS, OPTIONS, IngestRequest, check_file_names
from carrypost.lab.ingest.local import Ingested, Tell, Work, told_bad
from carrypost.lab.schemas import CONTACTS, POSITIONS, Table
from carrypost.lab.spark.session import session
from carrypost.mobility.feed import RouteTypes
from carrypost.mobility.gtfs import Gtfs, Vehicle
from carrypost.model.times import MICROSECONDS
from carrypost.printing import many
from carrypost.traces.csvfiles import Line, has_content, read_text
from carrypost.traces.encounters import read_columns
from carrypost.traces.formats import Options
from carrypost.traces.formats.assembly import SPEED_MAX_M_PER_S
from carrypost.traces.formats.lines import plain_name
from carrypost.traces.formats.rules import Sum

STEP_US_MAX = 60 * MICROSECONDS
"""Longest time between two samples of a node."""


def positions(
    path: Path, *, day: str, shapes: bool = True, route_types: Sequence[str] = ()
) -> tuple[pa.Table, dict[str, object]]:
    """Return rows node, t, x, y, sorted by node and t, and the description of feed and day for the manifest."""
    try:
        dt.date.fromisoformat(day)
    except ValueError:
        raise LocalError(f"--day must be a day such as 2014-06-03, not {day!r}") from None
    RouteTypes(route_types, "--route-type")
    driven = Gtfs(file=str(path), day=day, shapes=shapes, route_types=tuple(route_types)).drive()
    stays = dict(sorted(stay for vehicle in driven.vehicles for stay in _stays(vehicle).items()))
    t_us = np.concatenate([t_us for t_us, _ in stays.values()])
    x, y = np.concatenate([places for _, places in stays.values()]).T
    names = np.repeat(np.arange(len(stays), dtype=np.int32), [len(t_us) for t_us, _ in stays.values()])
    node = pa.DictionaryArray.from_arrays(pa.array(names), pa.array(list(stays), pa.string())).cast(pa.string())
    schema = pa.schema([POSITIONS.arrow.field(name) for name in ("node", "t", "x", "y")])
    rows = pa.Table.from_arrays([node, pa.array(t_us / MICROSECONDS), pa.array(x), pa.array(y)], schema=schema)
    counts: dict[str, object] = {
        "feed": driven.feed,
        "day": {
            "date": day,
            **driven.counts,
            "vehicles": len(driven.vehicles),
            "nodes": len(stays),
            "first_s": float(t_us.min() / MICROSECONDS),
            "last_s": float(t_us.max() / MICROSECONDS),
        },
        "middle": {"lat": driven.middle[0], "lon": driven.middle[1]},
    }
    return rows, counts


def _stays(vehicle: Vehicle) -> dict[str, tuple[Ints, Floats]]:
    """Times and places from when to when a vehicle is there, by name."""
    t_us = np.array([t_us for t_us, _, _ in vehicle.samples], dtype=np.int64)
    places = np.array([(x, y) for _, x, y in vehicle.samples], dtype=np.float64)
    found = {}
    for number, (join_us, leave_us) in enumerate(vehicle.presences, 1):
        alive = slice(*np.searchsorted(t_us, [join_us, leave_us + 1]))
        name = vehicle.name if number == 1 else f"{vehicle.name}.{number}"
        found[name] = _filled(t_us[alive], places[alive])
    return found


def _filled(t_us: Ints, places: Floats) -> tuple[Ints, Floats]:
    """Return the same motion, with samples on long straight lines."""
    steps = -(-np.diff(t_us) // STEP_US_MAX)
    before = np.repeat(np.arange(len(steps)), steps)
    number = np.arange(len(before)) - np.repeat(steps.cumsum() - steps, steps)
    more_us = np.diff(t_us)[before] * number // steps[before]
    share = (more_us / np.diff(t_us)[before])[:, None]
    filled = places[before] + share * np.diff(places, axis=0)[before]
    return np.append(t_us[before] + more_us, t_us[-1]), np.concatenate([filled, places[-1:]])


FORMAT = "one-messages"
SCRIPT = "messages.csv"
_FIELDS = ("time", "ID", "size", "fromHost", "toHost", "TTL", "isResponse")
_TTL_S = 60


class Script(NamedTuple):
    """A script that was written."""

    path: Folder
    messages: int
    hosts: int


def write_script(path: Path, contacts: Path, out: Folder) -> Script:
    """Write the script of a list of messages into a folder; `contacts`: the file that names the hosts."""
    hosts = read_columns(contacts).contacts.nodes
    rows = list(_script_rows(path, frozenset(hosts), contacts))
    file = out / SCRIPT
    with folders.staged(file) as partial:
        lines = ["t,node,message,size,lifetime,recipients", *(",".join(row) for row in rows)]
        partial.write_text("\n".join(lines) + "\n", encoding="utf-8", newline="\n")
    return Script(file, len(rows), len({name for row in rows for name in (row[1], row[-1])}))


def _script_rows(path: Path, hosts: Collection[str], contacts: Path) -> Iterator[tuple[str, ...]]:
    """Yield the rows of the script; any bad line is an error."""
    labels: dict[str, int] = {}
    for number, text in enumerate(read_text(path).splitlines(), 1):
        if text.startswith("#") or not has_content(text):
            continue
        line, words = Line(str(path), number), text.split()
        if len(words) not in (len(_FIELDS) - 1, len(_FIELDS)):
            raise line.error(f"expected {' '.join(_FIELDS)}, not {text!r}")
        t, label, size, author, recipient, ttl = words[: len(_FIELDS) - 1]
        if (first := labels.setdefault(label, number)) != number:
            raise line.error(f"message {label!r} is created on line {first} already")
        line.time_us(t, "time")
        if not size.isdecimal():
            raise line.error(f"size must be a whole number of bytes, not {size!r}")
        lifetime_s = line.number_of(ttl, "TTL") * _TTL_S
        if lifetime_s <= 0:
            raise line.error(f"TTL must be a number of minutes above 0, not {ttl!r}")
        names = [_host(each, hosts, line, contacts) for each in (author, recipient)]
        yield t, names[0], label, size, f"{lifetime_s:.12g}", names[1]


def _host(name: str, hosts: Collection[str], line: Line, contacts: Path) -> str:
    """Return the name of a host in the contacts."""
    digits = name.lstrip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_-")
    found = name if name in hosts else digits
    if found not in hosts:
        raise line.error(f"there is no host {name!r} in {contacts}{nearest(digits or name, hosts)}")
    return found


SPAN_DEG_MAX = 5.0
"""Beyond, distances at the edge are more than a few per cent off."""
_COUNTED = {
    "joined_rows": "rows merged with another one of their pair that they overlap: {count:,}",
    "ignored_ups": "ignored: `up` of a pair that is in contact already: {count:,}; to count them: --overlaps",
    "ignored_downs": "ignored: `down` of a pair that is not in contact: {count:,}",
    "open_contacts": "{contacts} without an end in the log: they last until its last event",
    "self_contacts": "left out: {contacts} of nodes with themselves",
    "overlapping_contacts": "{contacts} whose first row overlaps the row before; to merge them: --overlaps",
    "empty_contacts": "left out: {contacts} of zero length",
}
"""Sentences about counts that are not 0."""


@dataclass(frozen=True, slots=True)
class Report:
    """The results to report."""

    facts: dict[str, Any]
    """As in the manifest."""
    remarks: list[str]
    """Remarks for people: assumptions, bad lines, warnings."""


def ingest(request: IngestRequest, tell: Tell | None = None) -> Report:
    """Read traces into a table, and record its origin in the manifest."""
    if not request.paths:
        raise LocalError("no file is named")
    for path in request.paths:
        if path.is_dir() and request.name != GTFS:
            raise LocalError(f"{path} is a folder; name the files in it")
    for name in request.names:
        if request.names.count(name) > 1:
            raise LocalError(f"{name} is named twice")
    if request.options.node_from_name:
        check_file_names(request.names)
    table = request.table
    _folder(request.out)
    _own(request, table)
    stale = _stale(request.out, table)
    facts: dict[str, Any] = {
        "scenario": request.scenario,
        "format": request.name,
        "source": [inputs.facts(path, name) for path, name in zip(request.paths, request.names, strict=True)],
    }
    with _without_traces(request.out):
        if request.name == GTFS:
            parameters, counts, remarks = _timetable(request)
        else:
            parameters, counts, remarks = _lines(request, tell)
        facts |= {"parameters": parameters, "counts": counts}
        folders.note(request.out, table, facts)
    return Report(facts | {"table": str(request.out / table.name)}, [*remarks, *stale])


def _folder(out: Folder) -> None:
    """Raise an error if there can be no folder."""
    if isinstance(out, ObjectFolder):
        return
    there = next((each for each in (out, *out.parents) if each.exists()), out)
    if there.exists() and not there.is_dir():
        raise LocalError(f"{there} is a file; choose a folder for --out")


@contextmanager
def _without_traces(out: Folder) -> Iterator[None]:
    """Remove new empty folders if the block raises."""
    made = [] if isinstance(out, ObjectFolder) else [each for each in (out, *out.parents) if not each.exists()]
    try:
        yield
    except BaseException:
        folders.leave(made)
        raise


def _stale(out: Folder, table: Table) -> list[str]:
    """Return a warning if there are contacts that `lab contacts` made of the positions that are replaced."""
    noted = folders.manifest(out).get(CONTACTS.name)
    source = noted.get("source") if isinstance(noted, dict) else None
    if table is not POSITIONS or not isinstance(source, str) or not (out / CONTACTS.name).is_dir():
        return []
    if isinstance(out, ObjectFolder):
        here = source in {str(out), str(out / POSITIONS.name)}
    else:
        # What was named may have been relative to another folder than this.
        lost = not Path(source).exists() and Path(source).name in {out.absolute().name, POSITIONS.name}
        made_of = Path(source).resolve()
        here = lost or out.resolve() in (made_of, *made_of.parents)
    if not here:
        return []
    return [(f"{out / CONTACTS.name} is out of date, since it was made from earlier positions; run lab contacts again")]


def _own(request: IngestRequest, table: Table) -> None:
    """Leave the tables of other scenarios alone."""
    folder = request.out / table.name
    if not folder.is_dir():
        return
    there: set[str] = set()
    with suppress(LocalError):  # What is there and cannot be read is replaced.
        for file in folders.parquet_files(folder, table):
            with suppress(OSError, pa.ArrowException):
                there.update(folders.texts_in(file, "scenario"))
    for other in sorted(there - {request.scenario}):
        raise LocalError(f"{folder} holds the scenario {other!r}; choose another --out, or the same --scenario")


def _timetable(request: IngestRequest) -> tuple[dict[str, Any], dict[str, Any], list[str]]:
    if len(request.paths) != 1 or request.day is None:
        raise LocalError("--format gtfs takes one feed at a time")
    rows, counts = positions(request.paths[0], day=request.day, shapes=request.shapes, route_types=request.route_types)
    named = rows.append_column("scenario", pa.array([request.scenario] * rows.num_rows, pa.string()))
    folders.write_arrow(named, request.out, POSITIONS)
    facts = {"positions": rows.num_rows, "nodes": len(pc.unique(rows["node"])), **counts}
    types = {"route_types": list(request.route_types)} if request.route_types else {}
    return {"day": request.day, "shapes": request.shapes, **types}, facts, []


def _lines(request: IngestRequest, tell: Tell | None) -> tuple[dict[str, Any], dict[str, Any], list[str]]:
    work = Work(request, local.begun(request), tell)
    remarks = _assumed(work)
    if request.engine == "spark":
        from carrypost.lab.ingest import spark  # noqa: PLC0415 - small work goes without Spark

        with session(request.spark) as active:
            found = spark.ingest(active, work)
    else:
        found = local.ingest(work)
    return _parameters(request, found), _counts(request, found), [*remarks, *_remarks(request, found)]


def _assumed(work: Work) -> list[str]:
    """Return the assumptions about files, once for all of which the same was assumed."""
    alike: dict[str, list[str]] = {}
    for name, rule in zip(work.request.names, work.rules, strict=True):
        if rule.assumptions:
            alike.setdefault(rule.assumptions.removeprefix(name), []).append(name)
    more = {text: f" ({len(names) - 1:,} more files likewise)" for text, names in alike.items() if names[1:]}
    return [f"{names[0]}{text}{more.get(text, '')}" for text, names in alike.items()]


def _parameters(request: IngestRequest, found: Ingested) -> dict[str, Any]:
    usual = Options()
    asked = {each: getattr(request.options, each) for each in OPTIONS}
    facts: dict[str, Any] = {each: value for each, value in asked.items() if value != getattr(usual, each)}
    if found.options.both_ways:
        facts["both_ways"] = True
    if request.name == "pairs":
        facts.setdefault("interval_s", 20.0)
    if request.lenient:
        facts["lenient"] = True
    if found.options.origin is not None:
        facts["origin"] = {"lat": found.options.origin[0], "lon": found.options.origin[1]}
    return {**facts, "engine": request.engine}


def _counts(request: IngestRequest, found: Ingested) -> dict[str, Any]:
    read = found.found
    counts = {
        "lines": read.lines,
        "bad_lines": read.bad_lines,
        "passed_lines": read.passed,
        "rows": read.made + read.left_out,
        "left_out_rows": read.left_out,
        "nodes": found.nodes,
        request.table.name: found.written,
        "first_s": found.first_us / MICROSECONDS,
        "last_s": found.last_us / MICROSECONDS,
    }
    more = dict(found.counts)
    if renamed := _renamed(read):
        more["renamed_nodes"] = len(renamed)
    if (lasting_us := more.pop("lasting_us", None)) is not None:
        counts["mean_s"] = round(lasting_us / max(1, found.written) / MICROSECONDS, 3)
    return counts | more


def _remarks(request: IngestRequest, found: Ingested) -> list[str]:
    remarks = []
    if found.found.bad_lines:
        remarks.append(f"bad lines: {found.found.bad_lines:,} of {found.found.lines:,}")
        remarks += told_bad(found.found, request.names).splitlines()
    remarks += [*_wide(found), *_called(_renamed(found.found))]
    counts = found.counts
    if found.options.both_ways and not request.options.both_ways:
        remarks.append("no pair has lines of both directions: each line is counted for both")
    if fast := counts.get("fast_moves"):
        remarks += [*found.warnings, f"moves faster than {SPEED_MAX_M_PER_S:.0f} m/s, in all: {fast:,}"]
    if count := counts.get("one_way_contacts"):
        seconds = counts["one_way_s"]
        remarks.append(f"left out: {many(count, 'contact')} one way only, {seconds:,} s with one direction only")
    for name, text in _COUNTED.items():
        if count := counts.get(name):
            remarks.append(text.format(count=count, contacts=many(count, "contact")))
    if counts.get("empty_contacts") and request.name == "imote":
        remarks[-1] += "; to extend sightings: --interval-s"
    return remarks


def _renamed(found: Sum) -> list[str]:
    """Return names that became others: nodes cannot have colons, and MAC addresses are in lower case."""
    return sorted(name for name in found.spelt if plain_name(name) != name)


def _called(names: list[str]) -> list[str]:
    others = f", and {len(names) - 1:,} more likewise" if names[1:] else ""
    return [
        f"names are written without colons, MAC addresses in lower case: {name} becomes {plain_name(name)}{others}"
        for name in names[:1]
    ]


def _wide(found: Ingested) -> list[str]:
    """Far from the middle a plane is not the Earth."""
    if found.options.origin is None:
        return []
    north, east = (found.found.most[each] - found.found.least[each] for each in "yx")
    if max(north, east) <= SPAN_DEG_MAX:
        return []
    lat, lon = found.options.origin
    span = f"places span {north:.1f} degrees of latitude and {east:.1f} of longitude"
    return [f"{span}: distances far from the middle ({lat:.2f}, {lon:.2f}) are off; are some of the places wrong?"]
