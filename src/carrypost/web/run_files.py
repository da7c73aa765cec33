"""Files of a run, as row groups in order of time, and one pass over all their rows: names, counts over time, spans.

A Parquet file is read group by group, and only the columns that are asked for; a group whose statistics lie outside the
time asked for is not read at all. JSON lines are kept in memory as columns: all files of a folder are one run, and what
nodes add to them is read when it is asked for. The one invariant: groups, and the rows in them, are in order of time.
A file that is not in order, or has several runs, is sorted in memory.

The pass over the rows is a `Scan`. A span ties a node to another one for a time: a contact, a neighbour seen, a
presence, a home broker, a host in reach. Rows of the other kinds are only counted there; by these counts later
questions know which groups to read.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from carrypost.arrays import Codes, Flags, Floats, Ints
from carrypost.emu.records import ENCODED_SCHEMA, check_columns, encoded_column, reading, texts_in
from carrypost.emu.rows import KIND, MISSING, Log, encoded
from carrypost.errors import FileError
from carrypost.log.files import refusing
from carrypost.log.record import SCHEMA, Kind, Line
from carrypost.traces.formats.lines import numbers
from carrypost.web.server import NotFoundError

TEXTS = tuple(column.name for column in SCHEMA if column.type == "string")
LINES = (".jsonl", ".ndjson")
PART = ".part"
_T_MAX = 1e12
"""Seconds: as microseconds they must fit into 64 bits."""
_GROUP_ROWS = 100_000


class Group(NamedTuple):
    """Rows that are read together."""

    first: int
    """Number of its first row in the run."""
    rows: int
    start: float
    end: float
    """Time of its last row."""


class Source(Protocol):
    """The rows of one run."""

    run: str
    path: Path
    groups: list[Group]
    notes: list[str]
    """Sentences about what is wrong with the files."""
    follows: bool
    """True if rows may be added."""

    def read(self, group: int, *columns: str) -> pa.Table:
        """Return columns of a group; texts are dictionaries."""

    def changed(self) -> bool:
        """Read what was added to the files; return True if anything was."""


def rows_of(source: Source) -> int:
    """Return the number of rows."""
    return source.groups[-1].first + source.groups[-1].rows if source.groups else 0


def within(source: Source, start: float, end: float) -> Iterator[int]:
    """Yield the groups that may have rows in a span of time."""
    for number, group in enumerate(source.groups):
        if group.start <= end and group.end >= start:
            yield number


class ParquetSource:
    """A Parquet file whose row groups are in order."""

    follows = False

    def __init__(self, path: Path, run: str, file: pq.ParquetFile, groups: list[Group]) -> None:
        self.path, self.run, self.groups = path, run, groups
        self.notes: list[str] = []
        self._file = file
        self._lock = threading.Lock()

    def read(self, group: int, *columns: str) -> pa.Table:
        """Return columns of a group; texts are dictionaries."""
        with self._lock, reading(self.path):
            return self._file.read_row_group(group, columns=list(columns), use_threads=False)

    def changed(self) -> bool:
        """Return False: a Parquet file is whole once it has its name."""
        return False


class TableSource:
    """Rows in memory."""

    follows = False

    def __init__(self, path: Path, run: str, table: pa.Table) -> None:
        self.path, self.run = path, run
        self.notes: list[str] = []
        self.groups: list[Group] = []
        self._table = table
        self._hold(table)

    def _hold(self, table: pa.Table) -> None:
        """Keep these rows, in order of time."""
        t = table["t"].to_numpy()
        there = np.abs(t) < _T_MAX  # Written so that nan fails, too.
        if not there.all():
            self.notes.append(f"{np.count_nonzero(~there):,} rows without a time that can be shown were left out")
            table = table.filter(pa.array(there))
            t = table["t"].to_numpy()
        if (np.diff(t) < 0).any():
            order = np.argsort(t, kind="stable")
            table, t = table.take(pa.array(order)), t[order]
        self._table = table.combine_chunks()
        self.groups = list(_cut(t))

    def read(self, group: int, *columns: str) -> pa.Table:
        """Return columns of a group; texts are dictionaries."""
        return self._table.select(columns).slice(self.groups[group].first, self.groups[group].rows)

    def changed(self) -> bool:
        """Return False: nothing is added."""
        return False


def _cut(t: Floats) -> Iterator[Group]:
    for first in range(0, len(t), _GROUP_ROWS):
        part = t[first : first + _GROUP_ROWS]
        yield Group(first, len(part), float(part[0]), float(part[-1]))


# --- Parquet ---------------------------------------------------------------------------------------------------------


def parquet(path: Path) -> list[Source]:
    """Return the runs of a Parquet file; raises `CarrypostError`."""
    with reading(path):
        with path.open("rb"):
            file = pq.ParquetFile(path, memory_map=True, read_dictionary=list(TEXTS))
            check_columns(path, file.schema_arrow.names)
        if not file.metadata.num_rows:
            raise FileError("it is empty")
    groups = list(_groups(path, file))
    with reading(path):
        names = list(map(str, texts_in(file, "run")))
    in_order = all(one.end <= two.start for one, two in pairwise(groups))
    if len(names) == 1 and in_order and all(-_T_MAX < group.start <= group.end < _T_MAX for group in groups):
        return [ParquetSource(path, names[0], file, groups)]
    return in_memory(path)


def in_memory(path: Path) -> list[Source]:
    """Return the runs of a Parquet file, sorted."""
    with reading(path):
        table = pq.read_table(path, columns=[each.name for each in SCHEMA], read_dictionary=list(TEXTS))
        run = table["run"].cast(pa.string())
        names = run.unique().to_pylist()
        return [TableSource(path, name or "", table.filter(pc.equal(run, name))) for name in names]


def _groups(path: Path, file: pq.ParquetFile) -> Iterator[Group]:
    at, first, span = file.schema_arrow.names.index("t"), 0, (-math.inf, -math.inf)
    for number in range(file.metadata.num_row_groups):
        about = file.metadata.row_group(number)
        known = about.column(at).statistics
        if not about.num_rows:
            span = span[1], span[1]
        elif known is not None and known.has_min_max:
            span = known.min, known.max
        else:
            with reading(path):
                t = file.read_row_group(number, columns=["t"])["t"].to_numpy()
            span = float(t.min()), float(t.max())
        yield Group(first, about.num_rows, *span)
        first += about.num_rows


# --- JSON lines ------------------------------------------------------------------------------------------------------


class _Line(Line, kw_only=True):
    """A row; all that makes it one is its time."""

    run: str = ""
    kind: str = ""
    node: str = ""


_DECODER = msgspec.json.Decoder(_Line)


class LinesSource(TableSource):
    """JSON lines: a file, or all files of a folder, as far as they are written."""

    follows = True

    def __init__(self, path: Path) -> None:
        self._read: dict[Path, int] = {}
        """Bytes of each file that are read, by its final name."""
        self._tables: list[pa.Table] = []
        self._bad = 0
        super().__init__(path, path.resolve().name, ENCODED_SCHEMA.empty_table())
        self._named = path.is_dir()  # Every node calls its run in another way.

    def changed(self) -> bool:
        """Read what was added to the files; return True if anything was."""
        fresh: list[_Line] = []
        with refusing(f"{self.path} cannot be read"):
            for file in lines_in(self.path) if self.path.is_dir() else [self.path]:
                fresh += self._added(file)
        if not fresh:
            return False
        self._tables.append(_table(fresh))
        self.notes = [f"{self._bad:,} lines are not rows of a record, and were left out"] if self._bad else []
        whole = pa.concat_tables(self._tables).unify_dictionaries()
        self._tables = [whole]
        if not self._named and (name := next((line.run for line in fresh if line.run), "")):
            self.run, self._named = name, True
        self._hold(whole)
        return True

    def _added(self, file: Path) -> list[_Line]:
        known = file.with_name(file.name.removesuffix(PART))
        with file.open("rb") as opened:
            begun = self._read.get(known, 0)
            opened.seek(begun)
            content = opened.read()
        whole = content.rfind(b"\n") + 1
        if not file.name.endswith(PART) and whole < len(content) and _row(content[whole:]) is not None:
            whole = len(content)  # The last line of a file need not end.
        self._read[known] = begun + whole
        try:
            return _DECODER.decode_lines(content[:whole])
        except (msgspec.MsgspecError, UnicodeDecodeError):
            lines = [line for line in content[:whole].splitlines() if line.strip()]
            found = [row for line in lines if (row := _row(line)) is not None]
            self._bad += len(lines) - len(found)
            return found


def _row(line: bytes) -> _Line | None:
    try:
        return _DECODER.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def lines_in(folder: Path) -> list[Path]:
    """Return the files of JSON lines in a folder, unfinished ones included."""
    found = [each for each in folder.iterdir() if each.name.removesuffix(PART).endswith(LINES) and each.is_file()]
    return sorted(found, key=lambda each: each.name)


def _table(lines: Iterable[_Line]) -> pa.Table:
    columns = ([getattr(line, field.name) for line in lines] for field in ENCODED_SCHEMA)
    arrays = [_column(field.type, values) for field, values in zip(ENCODED_SCHEMA, columns, strict=True)]
    return pa.Table.from_arrays(arrays, schema=ENCODED_SCHEMA)


def _column(kind: pa.DataType, values: list[Any]) -> pa.Array:
    """Return a column, without numbers that it cannot hold."""
    try:
        return encoded_column(kind, values)
    except (pa.ArrowException, OverflowError):
        most = 1 << (kind.bit_width - 1)
        return pa.array([None if each is None or not -most <= each < most else each for each in values], kind)


# --- one pass over all rows ------------------------------------------------------------------------------------------

BINS = 4096
"""Number of parts of the run for which rows are counted, by kind."""
NAME_MAX = 200
"""Characters of a name; a longer one is cut, with a number that tells it from others."""
ONE_WAY = "one-way"
SPANS = ("contact", "seen", "presence", "home", "reach")
_SEEN = (Kind.UP, Kind.DOWN, Kind.ONEWAY)
_TIED = (*_SEEN, Kind.JOIN, Kind.LEAVE, Kind.HOME, Kind.REACH, Kind.UNREACH)
"""Kinds of rows that begin or end a span, but for contacts, which have their end with them."""
_HOME = ("channel", "role", "subscription")


class UnsortedError(Exception):
    """Rows that are not in order of time, or have none."""


class Names:
    """Texts by number, each once."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.shown: list[str] = []
        """The same, cut where they are too long."""
        self._places: dict[str, int] = {}
        self._by_shown: dict[str, int] = {}
        self._array: pa.Array | None = None
        """The same as a column, as far as they were looked up."""

    def __len__(self) -> int:
        return len(self.texts)

    def add(self, text: str) -> int:
        """Return the number of a text."""
        place = self._places.get(text)
        if place is None:
            place = self._places[text] = len(self.texts)
            self.texts.append(text)
            self.shown.append(cut := text if len(text) <= NAME_MAX else f"{text[:NAME_MAX]}… ({place})")
            self._by_shown.setdefault(cut, place)
        return place

    def codes(self, texts: pa.Array) -> Ints:
        """Return the numbers of texts, -1 for an empty one, and -1 at the end, for those that are missing."""
        if self._array is None or len(self._array) != len(self.texts):
            self._array = pa.array(self.texts, pa.string())
        found = np.append(pc.index_in(texts, self._array).fill_null(MISSING).to_numpy(zero_copy_only=False), MISSING)
        fresh = np.flatnonzero(found[:-1] == MISSING)  # Mostly none: groups have the same names.
        found[fresh] = [self.add(text) if text else MISSING for text in texts.take(pa.array(fresh)).to_pylist()]
        return found.astype(np.int64)

    def known(self, text: str | None) -> int:
        """Return the number of a text, or -1 if it is not here."""
        return self._places.get(text or "", MISSING)

    def find(self, shown: str, what: str) -> int:
        """Return the number of a text as it is shown; raises `NotFoundError`."""
        if (place := self._by_shown.get(shown)) is None:
            raise NotFoundError(f"there is no {what} {shown[:NAME_MAX]!r} in this run")
        return place


@dataclass(frozen=True, eq=False)
class Spans:
    """Times for which nodes are tied, in order of their start."""

    a: Codes
    b: Codes
    start: Floats
    end: Floats
    """Infinite where the record has no end."""
    label: Codes
    labels: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, a: Ints, b: Ints, times: tuple[Floats, Floats], label: Ints | None = None,
           labels: Sequence[str] = ()) -> Spans:  # fmt: skip
        """Return spans in any order as ordered ones."""
        order = np.argsort(times[0], kind="stable")
        label = np.full(len(a), MISSING) if label is None else label
        numbers = [each[order].astype(np.int32) for each in (a, b, label)]
        return cls(numbers[0], numbers[1], times[0][order], times[1][order], numbers[2], list(labels))

    def __len__(self) -> int:
        return len(self.a)

    def overlapping(self, start: float, end: float, node: int | None = None) -> Ints:
        """Return the places of spans that have a moment in common with a time, both ends included."""
        last = int(np.searchsorted(self.start, end, side="right"))
        there = self.end[:last] >= start
        if node is not None:
            there &= (self.a[:last] == node) | (self.b[:last] == node)
        return np.flatnonzero(there)

    def at(self, t: float, node: int | None = None) -> Ints:
        """Return the places of spans that hold at an instant."""
        found = self.overlapping(t, t, node)
        return found[self.end[found] > t]


class _Marks(NamedTuple):
    """Rows that begin or end spans."""

    t: Floats
    kind: NDArray[np.int16]
    node: Ints
    peer: Ints
    label: Ints
    """Of homes, the number of channel, role and subscription; of hosts in reach, the hops."""


class Scan:
    """All that one pass finds in a run."""

    def __init__(self, source: Source, progress: Callable[[float], None] = lambda _: None) -> None:
        self.source = source
        self.names, self.labels = Names(), Names()
        self.rows = rows_of(source)
        there = [group for group in source.groups if group.rows]
        self.start = there[0].start + 0.0 if there else 0.0  # Not minus zero, which Parquet has as a minimum.
        self.end = there[-1].end if there else 0.0
        self._by_group: list[frozenset[str]] = []
        """The kinds of rows, by group."""
        self.brokers: set[int] = set()
        """Nodes that told of their load."""
        self.has_paths = False
        """True if receptions tell the path that the message took."""
        self._counts: dict[str, Ints] = {}
        """By kind, the number of rows in each part of the run."""
        self._contacts: list[tuple[Ints, Ints, Floats, Floats, Flags]] = []
        self._marks: list[_Marks] = []
        before = -math.inf
        for number, group in enumerate(source.groups):
            before = self._group(number, before)
            progress((group.first + group.rows) / max(1, self.rows))
        self.spans = self._spans()
        self.attributes = self._attributes()

    def _group(self, number: int, before: float) -> float:
        table = self.source.read(number, "t", "kind", "node", "peer", "source", "attrs")
        t = table["t"].to_numpy()
        if len(t) and not (t[0] >= before and (np.diff(t) >= 0).all()):  # Written so that nan fails, too.
            raise UnsortedError
        log = Log(table)
        self._count(t, log)
        of = self._places(log)
        node, peer = of[log.node], of[log.peer]
        self.brokers |= set(node[log.of(Kind.LOAD)].tolist())
        self.has_paths |= any(pc.index(chunk.keys, "path").as_py() >= 0 for chunk in table["attrs"].chunks)
        if len(rows := log.of(Kind.CONTACT)):
            self._take_contacts(log, rows, t[rows], node[rows], peer[rows])
        if len(rows := log.of(*_TIED)):
            labels = self._labels(number, log, rows)
            self._marks.append(_Marks(t[rows], log.kind[rows], node[rows], peer[rows], labels))
        return float(t[-1]) if len(t) else before

    def _count(self, t: Floats, log: Log) -> None:
        scale = BINS / (self.end - self.start) if self.end > self.start else 0.0
        at = np.minimum(((t - self.start) * scale).astype(np.int64), BINS - 1)
        first, last = (int(at[0]), int(at[-1])) if len(at) else (0, 0)
        size = len(log.kinds), last - first + 1
        counts = np.bincount(log.kind * np.int64(size[1]) + (at - first), minlength=size[0] * size[1]).reshape(size)
        found = {name: row for name, row in zip(log.kinds, counts, strict=True) if row.any()}
        for name, row in found.items():
            self._counts.setdefault(name, np.zeros(BINS, np.int64))[first : last + 1] += row
        self._by_group.append(frozenset(found))

    def _places(self, log: Log) -> Ints:
        """Return the numbers of nodes by their codes; -1 for none, and for other names."""
        there = np.zeros(len(log.names("node")) + 1, np.bool_)
        # The peer of a refusal may be an address.
        for codes in (log.node, log.source, log.peer[log.kind != KIND[Kind.REFUSE]]):
            there[codes] = True
        known = np.flatnonzero(there[:-1])
        of = np.full(len(there), MISSING)
        of[known] = self.names.codes(log.names("node").take(pa.array(known)))[:-1]
        return of

    def _take_contacts(self, log: Log, rows: Ints, t: Floats, a: Ints, b: Ints) -> None:
        heard = log.attribute("heard", rows)
        one_way = heard.is_valid().to_numpy(zero_copy_only=False)
        for row in np.flatnonzero(one_way).tolist():
            if self.names.texts[b[row]] == heard[row].as_py():
                a[row], b[row] = b[row], a[row]
        there = (a >= 0) & (b >= 0)
        end = _numbers(log.attribute("end", rows))
        self._contacts.append((a[there], b[there], t[there], end[there], one_way[there]))

    def _labels(self, number: int, log: Log, rows: Ints) -> Ints:
        """Return labels of rows that begin spans: hops of hosts in reach; channel, role and subscription of homes."""
        found = np.full(len(rows), MISSING)
        for kind, texts in (
            (Kind.REACH, lambda at: self.source.read(number, "hops")["hops"].take(pa.array(at)).to_pylist()),
            (Kind.HOME, lambda at: _joined(*(log.attribute(each, at).to_pylist() for each in _HOME))),
        ):
            which = log.kind[rows] == KIND[kind]
            if which.any():
                found[which] = [self.labels.add(str(text)) for text in texts(rows[which])]
        return found

    def _attributes(self) -> dict[str, str]:
        """Return the attributes of the first row that describes the run, if there is any."""
        for number in self.groups_with(Kind.RUN):
            table = self.source.read(number, "kind", "attrs")
            for attrs in table.filter(pc.equal(table["kind"].cast(pa.string()), Kind.RUN.value))["attrs"].to_pylist():
                if attrs:
                    return dict(attrs)
        return {}

    def groups_with(self, *kinds: str) -> Iterator[int]:
        """Yield the groups that have rows of these kinds."""
        return (number for number, found in enumerate(self._by_group) if not found.isdisjoint(kinds))

    @property
    def kinds(self) -> list[str]:
        """Kinds that the run has rows of."""
        return list(self._counts)

    def density(self, bins: int) -> dict[str, list[int]]:
        """Return the number of rows of each kind, in parts of the run of one length; their number divides `BINS`."""
        return {kind: found.reshape(bins, -1).sum(1).tolist() for kind, found in self._counts.items()}

    def count(self, kind: str) -> int:
        """Return the number of rows of a kind."""
        return int(self._counts[kind].sum()) if kind in self._counts else 0

    # --- spans -------------------------------------------------------------------------------------------------------

    def _spans(self) -> dict[str, Spans]:
        none = np.array([], np.int64), np.array([], np.int64), np.array([]), np.array([]), np.array([], np.bool_)
        a, b, start, end, one_way = (np.concatenate(each) for each in zip(none, *self._contacts, strict=True))
        found = {"contact": Spans.of(a, b, (start, end), one_way.astype(np.int64) - 1, [ONE_WAY])}
        nothing = np.array([], np.int64)
        empty = _Marks(np.array([], np.float64), np.array([], np.int16), nothing, nothing, nothing)
        marks = _Marks._make(np.concatenate(each) for each in zip(empty, *self._marks, strict=True))
        found["presence"] = lives = self._lives(marks)
        clip = _Clip(lives)
        found["seen"] = self._seen(self._of(marks, *_SEEN), clip)
        homes, reach = self._of(marks, Kind.HOME), self._of(marks, Kind.REACH, Kind.UNREACH)
        labels = max(1, len(self.labels))
        until = _until_next(homes.node * labels + homes.label, homes.t)[0]
        found["home"] = Spans.of(homes.node, homes.peer, (homes.t, until), homes.label, self.labels.texts)
        until = _until_next(self._pair(reach), reach.t)[0]
        begins = reach.kind == KIND[Kind.REACH]
        times = reach.t[begins], clip(reach.node, reach.t, until)[begins]
        found["reach"] = Spans.of(reach.node[begins], reach.peer[begins], times, reach.label[begins], self.labels.texts)
        self._contacts, self._marks = [], []
        return found

    @staticmethod
    def _of(marks: _Marks, *kinds: Kind) -> _Marks:
        which = np.isin(marks.kind, [KIND[kind] for kind in kinds])
        return _Marks._make(column[which] for column in marks)

    def _pair(self, marks: _Marks) -> Ints:
        return marks.node * len(self.names) + marks.peer

    def _seen(self, marks: _Marks, clip: _Clip) -> Spans:
        """Return neighbours as their hosts see them; of one that is heard and does not hear, the one heard is `a`."""
        until = clip(marks.node, marks.t, _until_next(self._pair(marks), marks.t)[0])
        begins = marks.kind != KIND[Kind.DOWN]
        one_way = marks.kind == KIND[Kind.ONEWAY]
        a, b = np.where(one_way, marks.peer, marks.node), np.where(one_way, marks.node, marks.peer)
        label = one_way.astype(np.int64) - 1
        return Spans.of(a[begins], b[begins], (marks.t[begins], until[begins]), label[begins], [ONE_WAY])

    def _lives(self, marks: _Marks) -> Spans:
        """Return the presences of nodes; a node without a row about it is present throughout."""
        marks = self._of(marks, Kind.JOIN, Kind.LEAVE)
        until, following = _until_next(marks.node, marks.t)
        joins = marks.kind == KIND[Kind.JOIN]
        killed = joins & (following >= 0) & joins[following]
        if killed.any():
            until[killed] = self._last_before(marks.node[killed], marks.t[following[killed]])
        first = np.ones(len(marks.t), np.bool_)
        first[following[following >= 0]] = False
        here = first & ~joins  # The record begins while they are present.
        rest = np.setdiff1d(np.arange(len(self.names)), marks.node)
        a = np.concatenate([marks.node[joins], marks.node[here], rest])
        start = np.concatenate([marks.t[joins], np.full(np.count_nonzero(here) + len(rest), self.start)])
        end = np.concatenate([until[joins], marks.t[here], np.full(len(rest), math.inf)])
        return Spans.of(a, np.full(len(a), MISSING), (start, end))

    def _last_before(self, node: Ints, t: Floats) -> Floats:
        """Return the time of the last row of a node before it joined again, for each."""
        found = np.full(len(node), self.start)
        for number in range(len(self.source.groups)):
            table = self.source.read(number, "t", "node")
            (codes,), names = encoded(table["node"])
            of, at = self.names.codes(names)[codes], table["t"].to_numpy()
            for place, (who, joined) in enumerate(zip(node.tolist(), t.tolist(), strict=True)):
                rows = at[(of == who) & (at < joined)]
                if len(rows):
                    found[place] = rows[-1]
        return found


class _Clip:
    """Ends spans where the node that saw them ended."""

    def __init__(self, lives: Spans) -> None:
        order = np.lexsort((lives.start, lives.a))
        self._node, self._start, self._end = lives.a[order], lives.start[order], lives.end[order]

    def __call__(self, node: Ints, start: Floats, end: Floats) -> Floats:
        found = end.copy()
        first = np.searchsorted(self._node, np.arange(int(node.max(initial=0)) + 2))
        for place in range(int(np.diff(first).max(initial=0))):
            at = first[node] + place
            there = at < first[node + 1]
            at = np.minimum(at, max(0, len(self._node) - 1))
            inside = there & (self._start[at] <= start) & (start <= self._end[at])
            found = np.where(inside, np.minimum(found, np.where(inside, self._end[at], found)), found)
        return found


def _until_next(key: Ints, t: Floats) -> tuple[Floats, Ints]:
    """Return the time of the next row with the same key, and its place; infinite and -1 where there is none."""
    order = np.argsort(key, kind="stable")
    same = key[order[1:]] == key[order[:-1]]
    following = np.full(len(key), MISSING)
    following[order[:-1][same]] = order[1:][same]
    return np.where(following >= 0, t[following] if len(t) else t, math.inf), following


def _numbers(texts: pa.Array) -> Floats:
    """Return texts as numbers; infinite where they are none."""
    found = numbers(texts)
    return np.where(np.isnan(found), math.inf, found)


def number(text: str | None, otherwise: float) -> float:
    """Return the number that a text is."""
    try:
        return float(text) if text is not None else otherwise
    except ValueError:
        return otherwise


def _joined(*columns: Sequence[str | None]) -> list[str]:
    return [" ".join(filter(None, each)) for each in zip(*columns, strict=True)]
