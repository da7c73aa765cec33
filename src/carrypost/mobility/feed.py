"""Files of a GTFS feed: routes of the chosen types, trips of a day, times and places of stops, ways between them.

Reads ``stops``, ``routes``, ``trips``, ``stop_times``, ``calendar``, ``calendar_dates``, ``frequencies`` and ``shapes``
from a zip file or a folder. Routes, frequencies and shapes may be missing, and one of the two calendars as well.

A feed gives each route a number for its type, of the basic list (3 is a bus) or of the extended one (700 is a bus
service, 715 one on demand). A word such as bus stands for the basic number and all extended ones of its kind, a number
for itself alone (`RouteTypes`).

Each file is read once, from beginning to end, and its rows are counted. Errors are `LocalError` and name the file and
the line.
"""

from __future__ import annotations

import datetime as dt
import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from carrypost.errors import ConfigError, LocalError
from carrypost.log.files import refused
from carrypost.mobility import clock_s
from carrypost.traces.csvfiles import CsvRow, Line, read_text, rows

_KINDS: dict[str, tuple[range, ...]] = {
    "tram": (range(1), range(900, 1000)),
    "subway": (range(1, 2), range(400, 405), range(500, 700)),
    "rail": (range(2, 3), range(100, 200), range(300, 400)),
    "bus": (range(3, 4), range(200, 300), range(700, 800)),
    "ferry": (range(4, 5), range(1000, 1100), range(1200, 1300)),
    "cable-tram": (range(5, 6),),
    "aerial-lift": (range(6, 7), range(1300, 1400)),
    "funicular": (range(7, 8), range(1400, 1500)),
    "trolleybus": (range(11, 12), range(800, 900)),
    "monorail": (range(12, 13), range(405, 406)),
}
_TYPE_MAX = 1_702
"""The last number of the extended list."""


class RouteTypes:
    """The types of routes that are meant; without any all are."""

    def __init__(self, words: Sequence[str], what: str) -> None:
        self.words = tuple(words)
        self._meant: set[int] = set()
        for word in words:
            if word in _KINDS:
                self._meant.update(*_KINDS[word])
            elif word.isascii() and word.isdecimal() and int(word) <= _TYPE_MAX:
                self._meant.add(int(word))
            else:
                kinds = ", ".join(_KINDS)
                raise ConfigError(f"{what} must be one of {kinds}, or a number of GTFS such as 700, not {word!r}")

    def __bool__(self) -> bool:
        return bool(self.words)

    def __contains__(self, number: int) -> bool:
        return number in self._meant


def described(types: Iterable[int]) -> str:
    """Return the types for people, with the number of routes of each: bus (3) 622."""
    found = []
    for number, count in sorted(Counter(types).items()):
        kind = next((name for name, ranges in _KINDS.items() if any(number in each for each in ranges)), "other")
        found.append(f"{kind} ({number}) {count:,}")
    return ", ".join(found)


WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_TABLES = frozenset(
    ("stops", "routes", "trips", "stop_times", "calendar", "calendar_dates", "frequencies", "shapes", "agency")
)
_TABLE_BYTES_MAX = 1 << 31
"""Size beyond which a file in a zip file is refused as not being a timetable."""
_ADDED, _REMOVED = "1", "2"
_DEPARTURES_MAX = 100_000
"""Most departures of a repeated trip: more than one a second is a mistake in the feed."""
_ODD = re.compile(r"[^\w.+-]+")
"""Characters that are not allowed in the name of a node."""
_NAME_MAX = 12
"""Nor has a long name: in any script this leaves room for a number within what a node may be called."""


class StopTime(NamedTuple):
    """A stop of a trip."""

    lat: float
    lon: float
    arrival_s: float | None
    """Time of arrival; None if the feed has none. Likewise the departure."""
    departure_s: float | None
    along: float | None
    """Distance along its shape, in the shape's own measure; None: the feed does not say."""


class Trip(NamedTuple):
    """One way of a vehicle along its stops."""

    id: str
    route: str
    block: str
    """Block of the trip; one vehicle drives all trips of a block. Empty: the feed has none."""
    calls: list[StopTime]
    shape: str
    """Shape that it follows; empty: the feed does not say."""
    line: Line
    """Line in trips.txt."""


class Service(NamedTuple):
    """The trips of a day."""

    trips: list[Trip]
    """In the order of the feed; those with frequencies as often as they run."""
    counts: dict[str, int]
    """Rows of the feed that belong to the day: trips, routes, stop_times, and those of them that have no time."""


class Shape(NamedTuple):
    """A way on the ground, point by point."""

    places: list[tuple[float, float]]
    """Degrees north and east."""
    along: list[float]
    """Distance of each point along it, in a measure that stops share; empty: the feed does not say."""


_ShapePoint = tuple[float, tuple[float, float], float | None]
"""The number of a point in the shape, its position, and its distance along it."""


class _Stop(NamedTuple):
    """A row of stop_times.txt."""

    sequence: float
    row: CsvRow
    arrival_s: float | None
    departure_s: float | None
    along: float | None


class Feed:
    """A GTFS feed; its files are read when something is asked of them."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._texts: dict[str, str] | None = None if self._path.is_dir() else _unpacked(self._path)
        self.rows_read: Counter[str] = Counter()
        """Rows by file, of those that were read."""
        self.shapes_seen = 0
        """Different shapes, if they were read."""
        self._types: dict[str, tuple[Line, str]] = {}
        """Type of each route, with its line in the feed."""
        self._days: set[str] = set()
        """First and last days of services, and days of exceptions."""

    def service(self, day: dt.date, types: RouteTypes | None = None) -> Service:
        """Return all trips of a day, on routes of these types, with their stops."""
        services = self._services(day)
        names = self._route_names()
        chosen = {
            row.text("trip_id"): row
            for row in self._rows("trips", ("route_id", "service_id", "trip_id"), ("block_id", "shape_id"))
            if row.text("service_id") in services
        }
        if not chosen:
            known = f"; its calendar goes from {min(self._days)} to {max(self._days)}" if self._days else ""
            raise LocalError(f"{self._path}: no trip runs on {day.isoformat()}{known}")
        if types:
            chosen = self._of_types(chosen, types, day)
        stops = self._stops_of(chosen)
        places = {row.text("stop_id"): row for row in self._rows("stops", ("stop_id",), ("stop_lat", "stop_lon"))}
        repeats = self._frequencies()
        found: list[Trip] = []
        for trip, row in chosen.items():
            calls = _calls(trip, stops.get(trip, []), places)
            if len(calls) > 1:
                route = row.text("route_id")
                name = _ODD.sub("_", names.get(route) or route)[:_NAME_MAX]
                block, shape = _optional(row, "block_id"), _optional(row, "shape_id")
                found += _repeated(Trip(trip, name, block, calls, shape, row.line), repeats.get(trip))
        if not found:
            raise LocalError(f"{self._path}: trips of {day.isoformat()} have no stops")
        counts = {
            "trips": len(chosen),
            "routes": len({row.text("route_id") for row in chosen.values()}),
            "stop_times": sum(map(len, stops.values())),
            "stop_times_without_time": sum(stop.arrival_s is None for each in stops.values() for stop in each),
        }
        return Service(found, counts)

    def shapes(self, trips: Iterable[Trip]) -> dict[str, Shape]:
        """Return the shapes of these trips, by name; empty if the feed has no file of shapes."""
        if not self._has("shapes"):
            return {}
        needed = {trip.shape: trip for trip in trips if trip.shape}
        points: dict[str, list[_ShapePoint]] = {}
        columns = ("shape_id", "shape_pt_lat", "shape_pt_lon", "shape_pt_sequence")
        for row in self._rows("shapes", columns, ("shape_dist_traveled",)):
            mine = points.setdefault(row.text("shape_id"), [])
            if row.text("shape_id") in needed:
                place = _degrees(row, "shape_pt_lat", "shape_pt_lon")
                mine.append((row.number("shape_pt_sequence"), place, _along(row)))
        self.shapes_seen = len(points)
        for name, trip in needed.items():
            if name not in points:
                raise trip.line.error(f"there is no shape {name!r} in shapes.txt")
        return {name: _shape(points[name]) for name in needed}

    def _services(self, day: dt.date) -> set[str]:
        """Return the services that run on a day."""
        date = day.strftime("%Y%m%d")
        found: set[str] = set()
        if not (self._has("calendar") or self._has("calendar_dates")):
            raise LocalError(f"{self._path}: the feed has neither calendar.txt nor calendar_dates.txt")
        for row in self._rows("calendar", ("service_id", *WEEKDAYS, "start_date", "end_date"), needed=False):
            first, last = row.text("start_date"), row.text("end_date")
            self._days |= {first, last}
            if first <= date <= last and row.text(WEEKDAYS[day.weekday()]) == "1":
                found.add(row.text("service_id"))
        for row in self._rows("calendar_dates", ("service_id", "date", "exception_type"), needed=False):
            self._days.add(row.text("date"))
            if row.text("date") != date:
                continue
            if row.text("exception_type") == _ADDED:
                found.add(row.text("service_id"))
            elif row.text("exception_type") == _REMOVED:
                found.discard(row.text("service_id"))
            else:
                raise row.line.error(f"exception_type must be 1 or 2, not {row.text('exception_type')!r}")
        return found

    def _route_names(self) -> dict[str, str]:
        names: dict[str, str] = {}
        for row in self._rows("routes", ("route_id",), ("route_short_name", "route_type"), needed=False):
            names[row.text("route_id")] = _optional(row, "route_short_name")
            self._types[row.text("route_id")] = row.line, _optional(row, "route_type")
        return names

    def _of_types(self, trips: dict[str, CsvRow], types: RouteTypes, day: dt.date) -> dict[str, CsvRow]:
        """Return the trips whose routes are of these types."""
        numbers: dict[str, int] = {}
        for row in trips.values():
            route = row.text("route_id")
            if route not in self._types:
                raise row.line.error(f"there is no route {route!r} in routes.txt, so its type is unknown")
            line, number = self._types[route]
            if not (number.isascii() and number.isdecimal()):
                raise line.error(f"route_type must be a number of GTFS such as 3, not {number!r}")
            numbers[route] = int(number)
        chosen = {trip: row for trip, row in trips.items() if numbers[row.text("route_id")] in types}
        if not chosen:
            there = described(numbers[row.text("route_id")] for row in trips.values())
            wanted = " or ".join(types.words)
            raise LocalError(f"{self._path}: no trip of {day.isoformat()} is by {wanted}; trips by type: {there}")
        return chosen

    def _stops_of(self, trips: dict[str, CsvRow]) -> dict[str, list[_Stop]]:
        """Return the stops of these trips, in order of their sequence."""
        found: dict[str, list[_Stop]] = {}
        columns = ("trip_id", "stop_id", "stop_sequence")
        for row in self._rows("stop_times", columns, ("arrival_time", "departure_time", "shape_dist_traveled")):
            if (trip := row.text("trip_id")) in trips:
                arrival_s, departure_s = _time(row, "arrival_time"), _time(row, "departure_time")
                # Where only one of them is given, it is both.
                arrival_s = departure_s if arrival_s is None else arrival_s
                departure_s = arrival_s if departure_s is None else departure_s
                stop = _Stop(row.number("stop_sequence"), row, arrival_s, departure_s, _along(row))
                found.setdefault(trip, []).append(stop)
        for stops in found.values():
            stops.sort(key=lambda stop: stop.sequence)
        return found

    def _frequencies(self) -> dict[str, list[tuple[float, float, float]]]:
        """Return start, end and headway of repeated trips, by trip."""
        found: dict[str, list[tuple[float, float, float]]] = {}
        for row in self._rows("frequencies", ("trip_id", "start_time", "end_time", "headway_secs"), needed=False):
            first_s, end_s = _time(row, "start_time"), _time(row, "end_time")
            headway_s = row.number("headway_secs")
            if first_s is None or end_s is None:
                raise row.line.error("start_time and end_time must be given")
            if headway_s <= 0 or (end_s - first_s) / headway_s > _DEPARTURES_MAX:
                raise row.line.error(f"headway_secs must be above 0, not {headway_s:g}")
            found.setdefault(row.text("trip_id"), []).append((first_s, end_s, headway_s))
        return found

    def _has(self, table: str) -> bool:
        file = f"{table}.txt"
        return (self._path / file).is_file() if self._texts is None else file in self._texts

    def _rows(
        self, table: str, columns: Sequence[str], optional: Sequence[str] = (), *, needed: bool = True
    ) -> Iterator[CsvRow]:
        path = self._path / f"{table}.txt"
        if not self._has(table):
            if needed:
                raise LocalError(f"{self._path}: the feed has no {table}.txt")
            return
        text = read_text(path) if self._texts is None else self._texts[path.name]
        for row in rows(text, str(path), columns, optional):
            self.rows_read[table] += 1
            yield row


def _is_table(name: str) -> bool:
    """Return True if a file in the archive is one of the tables that are read here."""
    return "__MACOSX" not in name and PurePosixPath(name).name.removesuffix(".txt") in _TABLES


def _unpacked(path: Path) -> dict[str, str]:
    """Return the text files of a zip file, by name; some feeds are packed with their folder."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = [name for name in archive.namelist() if _is_table(name)]
            for name in names:
                # A zip file may unpack to a thousand times its size: the size is checked before
                # anything is unpacked.
                if (nbytes := archive.getinfo(name).file_size) > _TABLE_BYTES_MAX:
                    raise LocalError(f"{path}: {name} in it is too large, with {nbytes:,} bytes")
            return {PurePosixPath(name).name: archive.read(name).decode("utf-8-sig") for name in names}
    except FileNotFoundError:
        raise LocalError(f"{path}: there is no such file or folder") from None
    except UnicodeDecodeError:
        raise LocalError(f"{path}: a file in it is not UTF-8 text") from None
    except (OSError, zipfile.BadZipFile, zlib.error, RuntimeError, NotImplementedError) as error:
        raise refused(f"{path}: cannot be read as a zip file", error) from None


def _optional(row: CsvRow, column: str) -> str:
    return row.text(column) if column in row else ""


def _time(row: CsvRow, column: str) -> float | None:
    if column not in row:
        return None
    try:
        return clock_s(row.text(column), column)
    except ConfigError as error:
        raise row.line.error(str(error)) from None


def _calls(trip: str, stops: list[_Stop], places: dict[str, CsvRow]) -> list[StopTime]:
    """Return the stops of a trip, with times that never go back."""
    if len(stops) < 2:  # noqa: PLR2004 - from somewhere to somewhere
        return []
    for end in (stops[0], stops[-1]):
        if end.arrival_s is None:
            raise end.row.line.error(f"the first and the last stop of trip {trip} must have times")
    found: list[StopTime] = []
    latest_s = 0.0
    for stop in stops:
        if stop.arrival_s is not None and stop.departure_s is not None:
            if not latest_s <= stop.arrival_s <= stop.departure_s:
                raise stop.row.line.error(f"trip {trip} goes back in time here")
            latest_s = stop.departure_s
        place = places.get(stop.row.text("stop_id"))
        if place is None:
            raise stop.row.line.error(f"there is no stop {stop.row.text('stop_id')!r} in stops.txt")
        found.append(StopTime(*_degrees(place, "stop_lat", "stop_lon"), stop.arrival_s, stop.departure_s, stop.along))
    return found


def _degrees(row: CsvRow, lat_column: str, lon_column: str) -> tuple[float, float]:
    lat, lon = row.number(lat_column), row.number(lon_column)
    if not (-90 <= lat <= 90 and -360 <= lon <= 360):  # noqa: PLR2004 - degrees
        raise row.line.error(f"{lat_column} and {lon_column} must be degrees, not {lat}, {lon}")
    return lat, lon


def _along(row: CsvRow) -> float | None:
    """Return the distance of a stop or a point along its shape, if the feed says so."""
    return row.number("shape_dist_traveled") if "shape_dist_traveled" in row else None


def _shape(points: list[_ShapePoint]) -> Shape:
    points.sort(key=lambda point: point[0])
    along = [distance for *_, distance in points if distance is not None]
    return Shape([place for _, place, _ in points], along if len(along) == len(points) else [])


def _repeated(trip: Trip, repeats: list[tuple[float, float, float]] | None) -> Iterator[Trip]:
    """Yield the trip, or all of its repetitions if it runs at intervals."""
    if not repeats:
        yield trip
        return
    leaves_s = trip.calls[0].departure_s
    assert leaves_s is not None, "checked with the calls"
    for first_s, end_s, headway_s in repeats:
        departure_s = first_s
        while departure_s < end_s:
            shift_s = departure_s - leaves_s
            calls = [
                call._replace(
                    arrival_s=None if call.arrival_s is None else call.arrival_s + shift_s,
                    departure_s=None if call.departure_s is None else call.departure_s + shift_s,
                )
                for call in trip.calls
            ]
            yield trip._replace(id=f"{trip.id}@{departure_s:.0f}", calls=calls)
            departure_s += headway_s
