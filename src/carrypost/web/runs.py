"""Runs that pages can show, and the routes about them: what their files hold, as columns and as values.

Runs are found in files and folders, opened when they are asked for, and followed while they grow. For those that have
no record yet there is an example: forty walkers in a small town, emulated when it is opened.

Questions are answered in threads, since reading millions of rows takes a while, one thread at a time for each run.
"""

from __future__ import annotations

import asyncio
import hashlib
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from carrypost import emu
from carrypost.emu.records import ARROW_SCHEMA
from carrypost.emu.rows import MISSING
from carrypost.emu.summary import summarise
from carrypost.errors import CarrypostError, LocalError
from carrypost.log.record import Kind
from carrypost.web import run_copies, run_files, run_places, run_rows
from carrypost.web.run_copies import Inquiry, Meetings, Messages, meetings
from carrypost.web.run_rows import Filter, NodeRows, columns_answer, parts, stream_headers, table
from carrypost.web.server import NotFoundError, in_thread, json_answer, seconds, text_of, whole

EXAMPLE_NAME = "forty walkers"
EXAMPLE = """
name = "forty walkers"
duration_s = 600

[radio]
range_m = 60

[mobility]
model = "random-waypoint"
count = 40
side_m = 700
speed_min_m_per_s = 0.8
speed_max_m_per_s = 2.0
pause_min_s = 0
pause_max_s = 30

[[workload]]
kind = "broadcast"
first_s = 5
period_s = 400
lifetime_s = 400
size = 2000
"""
_SHARE = 0.9
"""Share of the emulation in the work of opening it."""


def emulated(folder: Path, tell: Callable[[float], None]) -> run_files.Source:
    """Return the example's run, whose record is kept in a folder."""
    record = folder / "walkers.parquet"
    scenario = emu.Scenario.parse(EXAMPLE, folder)

    def watch(progress: object) -> None:
        tell(_SHARE * min(1.0, getattr(progress, "t_us", 0) / scenario.duration_us))

    emu.run(scenario, out=record, watch=watch)
    return run_files.parquet(record)[0]


FOUND_MAX = 50
"""Number of records that are looked for where no path is given."""
NAMES = ("demo.json", "names.json")
_RECORDS, _STATES = "records", ".runs"
_ID_LETTERS = 10
_REMEMBERED_MAX = 8
_SUMMARY_ROWS_MAX = 5_000_000
_FOLLOW_S = 0.5
_FOLLOW_SHARE = 4
"""A run that is followed is read anew at most for one part in so many of the time."""
_RECORD_ENDINGS = (".parquet", *run_files.LINES)
Tell = Callable[[float], None]
_K = TypeVar("_K")
_V = TypeVar("_V")
_LAYERS = {"homes": Kind.HOME, "queues": Kind.ASSIGN, "reach": Kind.REACH}


class Opened:
    """A run whose rows were read once, and what was found out about it since."""

    def __init__(
        self, scan: run_files.Scan, found: run_places.Places, messages: Messages, info: dict[str, Any]
    ) -> None:
        self.scan, self.places, self.messages, self.info = scan, found, messages, info
        self._filters: OrderedDict[Filter, list[Any]] = OrderedDict()
        self._nodes: OrderedDict[int, NodeRows] = OrderedDict()

    @cached_property
    def meetings(self) -> Meetings:
        """Contacts by which messages may travel."""
        return meetings(self.scan)

    @cached_property
    def summary(self) -> dict[str, Any]:
        """Figures of the run; raises `LocalError` for runs with too many rows to be read at once."""
        if self.scan.rows > _SUMMARY_ROWS_MAX:
            raise LocalError(f"figures are made of at most {_SUMMARY_ROWS_MAX:,} rows; this run has {self.scan.rows:,}")
        source, names = self.scan.source, ARROW_SCHEMA.names
        parts = [source.read(group, *names) for group in range(len(source.groups))]
        whole = pa.concat_tables(parts).cast(ARROW_SCHEMA) if parts else ARROW_SCHEMA.empty_table()
        whole = whole.filter(pc.is_in(whole["kind"], pa.array([kind.value for kind in Kind])))
        found = msgspec.json.decode(summarise(whole, bound=False).json())
        return {key: value for key, value in found.items() if value is not None}

    def node(self, number: int) -> NodeRows:
        """Return the rows of a node; those of the last few nodes are remembered."""
        return _remembered(self._nodes, number, lambda: NodeRows(self.scan, number))

    def matches(self, wanted: Filter) -> list[Any]:
        """Return the rows that a filter lets through, by group; the last few filters are remembered."""
        return _remembered(self._filters, wanted, lambda: list(run_rows.matches(self.scan, wanted)))


def _remembered(known: OrderedDict[_K, _V], key: _K, make: Callable[[], _V]) -> _V:
    if key not in known:
        known[key] = make()
        while len(known) > _REMEMBERED_MAX:
            known.popitem(last=False)
    known.move_to_end(key)
    return known[key]


class Run:
    """A run, opened or not."""

    def __init__(
        self, name: str, make: Callable[[Tell], run_files.Source], given: tuple[Path | None, Path | None]
    ) -> None:
        self.id = name
        self._make = make
        self._given = given
        self.lock = threading.RLock()
        """Held by the one thread that reads."""
        self.progress = 0.0
        self.source: run_files.Source | None = None
        self._opened: Opened | None = None
        self._next_s = 0.0
        self._error: CarrypostError | None = None

    def opened(self) -> Opened:
        """Return the run, read as far as it is written by now."""
        with self.lock:
            if self._error is not None:
                raise self._error
            if self._opened is None or self._is_grown():
                begun = time.monotonic()
                try:
                    self._opened = self._open()
                except CarrypostError as error:
                    self._error = error
                    raise
                self._next_s = time.monotonic() + max(_FOLLOW_S, _FOLLOW_SHARE * (time.monotonic() - begun))
            return self._opened

    def _is_grown(self) -> bool:
        source = self.source
        return source is not None and source.follows and time.monotonic() >= self._next_s and source.changed()

    def _open(self) -> Opened:
        def tell(share: float) -> None:
            self.progress = share

        if self.source is None:
            self.source = self._make(tell)
            self.source.changed()
        try:
            scan = run_files.Scan(self.source, tell)
        except run_files.UnsortedError:
            run = self.source.run
            self.source = next(each for each in run_files.in_memory(self.source.path) if each.run == run)
            scan = run_files.Scan(self.source, tell)
        found = run_places.find(scan, *self._given)
        messages = Messages(scan)
        return Opened(scan, found, messages, self._info(self.source, scan, found, messages))

    @staticmethod
    def _info(
        source: run_files.Source, scan: run_files.Scan, found: run_places.Places, messages: Messages
    ) -> dict[str, Any]:
        return {
            "run": source.run,
            "seed": scan.attributes.get("seed"),
            "mode": scan.attributes.get("mode"),
            "start": scan.start,
            "end": scan.end,
            "rows": scan.rows,
            "range_m": found.range_m,
            "nodes": scan.names.shown,
            "names": _names(source.path),
            "kinds": scan.kinds,
            "brokers": sorted(scan.brokers | set(scan.spans["home"].b.tolist()) - {MISSING}),
            "layers": ["paths"] * scan.has_paths + [name for name, kind in _LAYERS.items() if scan.count(kind)],
            "positions": found.source,
            "why": found.why,
            "box": found.box,
            "chunk_s": run_places.chunk_s(scan, found),
            "first": messages.first,
            "follows": source.follows,
            "notes": [*source.notes, *_clocks(source, messages)],
        }


def _clocks(source: run_files.Source, messages: Messages) -> list[str]:
    """Return a sentence about the clocks of real nodes, if they differ."""
    if not source.follows or (by_s := messages.clocks_s) == 0.0:
        return []
    return [f"clocks of these nodes differ by {by_s:,.3f} s or more: messages were received before they were published"]


def _names(path: Path) -> dict[str, str]:
    """Return names of nodes that a file beside the records gives."""
    for name in NAMES:
        try:
            return msgspec.json.decode((path / name).read_bytes(), type=dict[str, str])
        except (OSError, msgspec.MsgspecError):
            continue
    return {}


class Entry(NamedTuple):
    """A line of the start page."""

    id: str
    run: str
    rows: int | None
    """None: they were not counted yet."""
    source: str
    example: bool = False


class Runs:
    """All runs that were found; without paths, those in a folder and one below, and an example."""

    def __init__(
        self, paths: Iterable[Path], positions: Path | None = None, scenario: Path | None = None, *,
        folder: Path | None = None,
    ) -> None:  # fmt: skip
        self._given = positions, scenario
        self._runs: dict[str, Run] = {}
        self._entries: list[Entry] = []
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        self.paths = list(paths)
        for path in self.paths:
            for source in sources(path):
                self._add(source)
        if not self.paths:
            for path in looked_for(folder or Path()):
                with suppress(CarrypostError):
                    for source in sources(path)[: FOUND_MAX - len(self._runs)]:
                        self._add(source)
            self._add_example()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Remove what was made for the time being."""
        if self._scratch is not None:
            self._scratch.cleanup()

    @property
    def only(self) -> Run | None:
        """The run at the one path that was given; None: there is more to choose from."""
        return next(iter(self)) if len(self.paths) == len(self._runs) == 1 else None

    @property
    def entries(self) -> list[Entry]:
        """All runs, without reading their rows."""
        return list(self._entries)

    def at(self, path: Path) -> str:
        """Return the id of the run in a record, which is added if it is not known yet; raises `CarrypostError`."""
        resolved = path.resolve()
        for each in self._entries:
            if Path(each.source).resolve() == resolved:
                return each.id
        self._add(run_files.parquet(path)[0])
        return self._entries[-1].id

    def _add(self, source: run_files.Source) -> None:
        key = str(source.path.resolve()) if source.follows else source.run
        name = base = hashlib.sha256(key.encode()).hexdigest()[:_ID_LETTERS]
        number = 1
        while name in self._runs:
            number += 1
            name = f"{base}-{number}"
        self._runs[name] = Run(name, lambda _: source, self._given)
        # JSON lines are read when they are asked for.
        rows = None if source.follows else run_files.rows_of(source)
        self._entries.append(Entry(name, source.run, rows, str(source.path)))

    def _add_example(self) -> None:
        def make(tell: Tell) -> run_files.Source:
            self._scratch = self._scratch or tempfile.TemporaryDirectory(prefix="carrypost-web-")
            return emulated(Path(self._scratch.name), tell)

        name = hashlib.sha256(EXAMPLE_NAME.encode()).hexdigest()[:_ID_LETTERS]
        self._runs[name] = Run(name, make, (None, None))
        self._entries.append(Entry(name, EXAMPLE_NAME, None, "an example, emulated when it is opened", example=True))

    def __iter__(self) -> Iterator[Run]:
        return iter(self._runs.values())

    def find(self, name: str) -> Run:
        """Return a run by its id; raises `NotFoundError`."""
        if name not in self._runs:
            raise NotFoundError(f"there is no run {name[:40]!r}; the start page has those that there are")
        return self._runs[name]


def looked_for(folder: Path) -> Iterator[Path]:
    """Yield records, folders of JSON lines and campaigns, in a folder and one below; those changed last come first."""
    found: list[Path] = []
    with suppress(OSError):
        for each in sorted(folder.iterdir()):
            if each.name.startswith("."):
                continue
            if each.name.endswith(_RECORD_ENDINGS):
                found.append(each)
            elif each.is_dir():
                with suppress(OSError):
                    inside = [each.name for each in each.iterdir()]
                    if any(name.endswith((*_RECORD_ENDINGS, run_files.PART)) or name == _RECORDS for name in inside):
                        found.append(each)
    yield from sorted(found, key=lambda each: -each.stat().st_mtime)[:FOUND_MAX]


def sources(path: Path) -> list[run_files.Source]:
    """Return the runs at a path: a record, a folder of JSON lines, or a campaign; raises `CarrypostError`."""
    if path.is_dir():
        if records := sorted((path / _RECORDS).glob("**/*.parquet")):
            return [source for record in records for source in run_files.parquet(record)]
        if (path / _STATES).is_dir():
            return []  # A campaign of which no run is over.
        if run_files.lines_in(path):
            return [run_files.LinesSource(path)]
        if records := sorted(path.glob("*.parquet")):
            return [source for record in records for source in run_files.parquet(record)]
        raise LocalError(f"{path} has no records: neither Parquet files nor JSON lines")
    if path.name.endswith(run_files.LINES):
        if not path.is_file():
            raise LocalError(f"{path} cannot be read as a record: there is no such file")
        return [run_files.LinesSource(path)]
    return run_files.parquet(path)


# --- routes ----------------------------------------------------------------------------------------------------------

LIMIT_MAX = 5_000
SPANS_MAX = 2_000_000
_OPENING_S = 0.4
"""Time after which an answer says how far the opening of a run is."""
Endpoint = Callable[[Opened, Request], Response]


class RunRoutes:
    """The routes about some runs."""

    def __init__(self, runs: Runs) -> None:
        self.runs = runs
        answers = {
            "tracks": tracks, "spans": spans, "density": density, "messages": messages, "copies": message_copies,
            "rows": rows, "samples": samples, "node": node_at, "why": why_not, "summary": summary,
        }  # fmt: skip
        self.routes = [
            Route("/api/runs", self._list),
            Route("/api/runs/{id}", self._info),
            *(Route(f"/api/runs/{{id}}/{name}", self._about(answer)) for name, answer in answers.items()),
        ]

    @property
    def only(self) -> str | None:
        """The page of the run at the one path that was given."""
        return None if self.runs.only is None else f"/replay/{self.runs.only.id}"

    async def _list(self, _: Request) -> Response:
        return json_answer([each._asdict() for each in self.runs.entries])

    async def _info(self, request: Request) -> Response:
        run = self.runs.find(request.path_params["id"])
        opening = asyncio.ensure_future(in_thread(lambda: run.opened().info))
        done, _ = await asyncio.wait([opening], timeout=_OPENING_S)
        if not done:
            opening.add_done_callback(lambda task: task.cancelled() or task.exception())
            return json_answer({"progress": round(run.progress, 3)}, 202)
        return json_answer(opening.result())

    def _about(self, endpoint: Endpoint) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            run = self.runs.find(request.path_params["id"])

            def work() -> Response:
                with run.lock:
                    return endpoint(run.opened(), request)

            return await in_thread(work)

        return answer


def _node(run: Opened, request: Request, name: str = "node") -> int | None:
    text = text_of(request, name)
    return run.scan.names.find(text, "node") if text else None


def _span(run: Opened, request: Request) -> tuple[float, float]:
    return seconds(request, "from", run.scan.start), seconds(request, "to", run.scan.end)


# --- answers ---------------------------------------------------------------------------------------------------------


def tracks(run: Opened, request: Request) -> Response:
    """Return samples of the movement of all nodes."""
    found = run.places
    rows = found.within(*_span(run, request))
    columns = {"node": found.node[rows], "t": found.t[rows], "x": found.x[rows], "y": found.y[rows]}
    return columns_answer(table(columns))


def spans(run: Opened, request: Request) -> Response:
    """Return spans of one kind, of all nodes or of one."""
    of = request.query_params.get("of", run_files.SPANS[0])
    if of not in run_files.SPANS:
        raise LocalError(f"of must be one of {', '.join(run_files.SPANS)}, not {of[:40]!r}")
    found = run.scan.spans[of]
    rows = found.overlapping(*_span(run, request), _node(run, request))
    if len(rows) > SPANS_MAX:
        raise LocalError(f"these are {len(rows):,} spans; ask for a shorter time, or for one node")
    columns = {name: getattr(found, name)[rows] for name in ("a", "b", "start", "end", "label")}
    return columns_answer(table(columns, {"labels": found.labels}))


def density(run: Opened, request: Request) -> Response:
    """Return the number of rows of each kind over time."""
    asked = whole(request, "bins", 512, run_files.BINS, 1)
    bins = 1 << (asked.bit_length() - 1)
    counts = run.scan.density(bins)
    return json_answer({"start": run.scan.start, "end": run.scan.end, "bins": bins, "counts": counts})


def messages(run: Opened, request: Request) -> Response:
    """Return messages whose id, label, author or destination has a text in it."""
    found = run.messages.found(text_of(request, "query"), control=request.query_params.get("control") == "1")
    after, limit = whole(request, "after", 0, 1 << 31), whole(request, "limit", 200, LIMIT_MAX, 1)
    return json_answer([run.messages.shown(place) for place in found[after : after + limit].tolist()])


def message_copies(run: Opened, request: Request) -> Response:
    """Return the copies of a message, and of those that descend from it."""
    return columns_answer(run_copies.copies_table(run.scan, run.messages, text_of(request, "message")))


def rows(run: Opened, request: Request) -> Response:
    """Return rows, a page at a time."""
    kinds = frozenset(filter(None, text_of(request, "kinds").split(",")))
    if unknown := sorted(kinds - set(run.scan.kinds)):
        raise NotFoundError(f"this run has no rows of kind {unknown[0][:40]!r}")
    node = _node(run, request)
    message = text_of(request, "message")
    family = run.messages.family(run.messages.names.texts[run.messages.place(message)]) if message else ()
    wanted = Filter(
        *_span(run, request), kinds, "" if node is None else run.scan.names.texts[node], frozenset(family),
        text_of(request, "detail"),
    )  # fmt: skip
    found = run.matches(wanted)
    if request.query_params.get("all") == "1":
        tables = run_rows.whole(run.scan, found)
        # Rows that are followed may be ordered anew while they are sent.
        stream = parts(run_rows.SHOWN, iter(list(tables)) if run.scan.source.follows else tables)
        return StreamingResponse(stream, headers=stream_headers("rows.arrows"))
    after, limit = whole(request, "after", -1, 1 << 62, -1), whole(request, "limit", 200, LIMIT_MAX, 1)
    if request.query_params.get("last") == "1":
        after = run_rows.last(run.scan, found, limit)
    return columns_answer(run_rows.page(run.scan, found, after, limit))


def samples(run: Opened, request: Request) -> Response:
    """Return samples of one kind, of all nodes or of one."""
    of = request.query_params.get("of", "load")
    if of not in run_rows.SAMPLES:
        raise LocalError(f"of must be one of {', '.join(run_rows.SAMPLES)}, not {of[:40]!r}")
    return columns_answer(run_rows.samples(run.scan, of, _node(run, request)))


def _one_node(run: Opened, request: Request, name: str) -> int:
    if (node := _node(run, request, name)) is None:
        raise LocalError(f"{name} must be the name of a node")
    return node


def node_at(run: Opened, request: Request) -> Response:
    """Return what is known of a node at an instant."""
    node = _one_node(run, request, "name")
    return json_answer(run.node(node).about(seconds(request, "at", run.scan.end)))


def why_not(run: Opened, request: Request) -> Response:
    """Return the reason for which a message is not at a node."""
    inquiry = Inquiry(run.scan, run.messages, run.meetings, run.info["names"])
    return json_answer(inquiry.answer(text_of(request, "message"), _one_node(run, request, "node")))


def summary(run: Opened, _: Request) -> Response:
    """Return the figures of a run."""
    return json_answer(run.summary)
