"""Rows of a run as pages ask for them: filtered, a page at a time, of one node, samples; and columns as Arrow streams.

Answers that are tables are Arrow streams, with JSON in the metadata of the schema.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from starlette.responses import Response

from carrypost.arrays import Flags, Ints
from carrypost.emu.records import ARROW_SCHEMA
from carrypost.emu.rows import MISSING, encoded
from carrypost.log.record import SCHEMA, Kind
from carrypost.web.run_files import Names, Scan, number, within

METADATA = "carrypost"
"""Key of the JSON in the metadata of a stream."""
_ARROW = "application/vnd.apache.arrow.stream"
_TYPES = {"i": pa.int32(), "f": pa.float64(), "u": pa.int32(), "b": pa.bool_()}


def table(columns: Mapping[str, Any], metadata: Mapping[str, Any] | None = None) -> pa.Table:
    """Return columns, which are arrays of numpy or of Arrow, as a table with JSON in its metadata."""
    arrays = {
        name: pa.array(each, _TYPES[each.dtype.kind]) if isinstance(each, np.ndarray) else each
        for name, each in columns.items()
    }
    return pa.table(arrays).replace_schema_metadata({METADATA: msgspec.json.encode(metadata or {})})


def parts(schema: pa.Schema, tables: Iterator[pa.Table]) -> Iterator[bytes]:
    """Yield the bytes of a stream of tables, piece by piece."""
    sink = _Pieces()
    with pa.ipc.new_stream(pa.PythonFile(sink, "w"), schema) as writer:
        for each in tables:
            writer.write_table(each)
            yield sink.take()
    yield sink.take()


class _Pieces:
    """A file whose content is taken away while it is written."""

    closed = False

    def __init__(self) -> None:
        self._written: list[bytes] = []

    def write(self, content: bytes) -> int:
        self._written.append(bytes(content))
        return len(content)

    def flush(self) -> None:
        """Do nothing: what was written is there."""

    def take(self) -> bytes:
        found, self._written = b"".join(self._written), []
        return found


def columns_answer(found: pa.Table) -> Response:
    """Return a table as an answer."""
    return Response(b"".join(parts(found.schema, iter((found,)))), media_type=_ARROW)


def stream_headers(name: str) -> dict[str, str]:
    """Return the headers of a stream that a browser keeps as a file."""
    return {"Content-Type": _ARROW, "Content-Disposition": f'attachment; filename="{name}"'}


_COLUMNS = [column.name for column in SCHEMA]
_TEXT_MAX = 1_000
"""Characters of a cell; in a download texts are whole."""
_LISTED_MAX = 200
_POINTS_MAX = 2_000
_OF_CACHE = [kind.value for kind in (Kind.PUBLISH, Kind.RECEIVE, Kind.DELIVER, Kind.DROP, Kind.EXPIRE, Kind.REFUSE)]
SAMPLES = {"load": Kind.LOAD.value, "path": Kind.PATH.value, "traffic": Kind.TRAFFIC.value,
           "cache": Kind.REGISTRY.value}  # fmt: skip


@dataclass(frozen=True)
class Filter:
    """Rows that are asked for; what is empty does not matter."""

    start: float = -math.inf
    end: float = math.inf
    kinds: frozenset[str] = frozenset()
    node: str = ""
    """Node, peer or author."""
    messages: frozenset[str] = frozenset()
    detail: str = ""
    """Part of the detail."""


def matches(scan: Scan, wanted: Filter) -> Iterator[tuple[int, Ints]]:
    """Yield the groups that have such rows, and the places of the rows in them."""
    candidates = set(scan.groups_with(*wanted.kinds)) if wanted.kinds else None
    for group in within(scan.source, wanted.start, wanted.end):
        if (candidates is None or group in candidates) and len(rows := _matching(scan, group, wanted)):
            yield group, rows


def _matching(scan: Scan, group: int, wanted: Filter) -> Ints:
    about = scan.source.groups[group]
    there = np.ones(about.rows, np.bool_)
    if about.start < wanted.start or about.end > wanted.end:
        t = scan.source.read(group, "t")["t"].to_numpy()
        there &= (t >= wanted.start) & (t <= wanted.end)
    for columns, texts in (
        (("kind",), wanted.kinds),
        (("message",), wanted.messages),
        (("node", "peer", "source"), {wanted.node} - {""}),
    ):
        if texts and there.any():
            chosen = pa.array(sorted(texts), pa.string())
            there &= _any_chosen(scan, group, columns, partial(pc.is_in, value_set=chosen))
    if wanted.detail and there.any():
        text = wanted.detail
        there &= _any_chosen(scan, group, ("detail",), lambda names: pc.match_substring(names, text, ignore_case=True))
    return np.flatnonzero(there)


def _any_chosen(scan: Scan, group: int, columns: Sequence[str], choose: Callable[[pa.Array], pa.Array]) -> Flags:
    """Return flags of rows that have a chosen text in one of these columns."""
    rows = scan.source.read(group, *columns)
    found = np.zeros(len(rows), np.bool_)
    for column in columns:
        (codes,), names = encoded(rows[column])
        found |= np.append(choose(names).to_numpy(zero_copy_only=False), False)[codes]
    return found


def last(scan: Scan, found: list[tuple[int, Ints]], limit: int) -> int:
    """Return the number after which the last rows follow."""
    for group, rows in reversed(found):
        if len(rows) > limit:
            return int(rows[-limit - 1]) + scan.source.groups[group].first
        limit -= len(rows)
    return -1


def page(scan: Scan, found: list[tuple[int, Ints]], after: int, limit: int) -> pa.Table:
    """Return the next rows after a row number; `total` and `next`, the number to go on after, are in the metadata."""
    parts: list[pa.Table] = []
    left, last = limit, after
    more = False
    for group, rows in found:
        first = scan.source.groups[group].first
        rest = rows[rows + first > after]
        if not len(rest):
            continue
        if not left:
            more = True
            break
        more = len(rest) > left
        chosen = rest[:left]
        part = scan.source.read(group, *_COLUMNS).take(pa.array(chosen)).append_column("row", pa.array(chosen + first))
        parts.append(cut(part))
        left, last = left - len(chosen), int(chosen[-1]) + first
        if more:
            break
    total = sum(len(rows) for _, rows in found)
    whole = pa.concat_tables(parts) if parts else _EMPTY
    return whole.replace_schema_metadata(
        {METADATA: msgspec.json.encode({"total": total, "next": last if more else None})}
    )


def whole(scan: Scan, found: list[tuple[int, Ints]]) -> Iterator[pa.Table]:
    """Yield all these rows, group by group."""
    for group, rows in found:
        part = scan.source.read(group, *_COLUMNS).take(pa.array(rows))
        numbers = pa.array(rows + scan.source.groups[group].first)
        yield part.append_column("row", numbers).cast(SHOWN)


SHOWN = ARROW_SCHEMA.append(pa.field("row", pa.int64()))
_EMPTY = SHOWN.empty_table()


def cut(table: pa.Table) -> pa.Table:
    """Return plain columns, whose texts are cut where they are too long."""
    for place, field in enumerate(SHOWN):
        column = table[field.name]
        if field.type == pa.string():
            column = pc.utf8_slice_codeunits(column.cast(pa.string()), 0, _TEXT_MAX)
        elif field.name == "attrs":
            column = pa.chunked_array([_cut_attrs(chunk) for chunk in column.chunks], field.type)
        table = table.set_column(place, field, column)
    return table


def _cut_attrs(maps: pa.MapArray) -> pa.MapArray:
    if not pc.any(pc.greater(pc.binary_length(maps.items), _TEXT_MAX)).as_py():
        return maps
    return pa.array(
        [None if each is None else [(key[:_TEXT_MAX], (value or "")[:_TEXT_MAX]) for key, value in each]
         for each in maps.to_pylist()], maps.type,
    )  # fmt: skip


# --- one node --------------------------------------------------------------------------------------------------------


class NodeRows:
    """The rows of one node that tell of its cache, read once."""

    def __init__(self, scan: Scan, node: int) -> None:
        self._scan, self._node = scan, node
        self._ids = Names()
        self.dropped: dict[str, list[float]] = {}
        self.refused: dict[str, list[float]] = {}
        """Number and time of the last one, by reason."""
        self.delivered: list[tuple[float, str]] = []
        begun: dict[int, float] = {}
        held: list[tuple[int, float, float]] = []
        for t, kind, message, detail, count in self._rows():
            number = self._ids.add(message or "")
            if kind in {Kind.PUBLISH, Kind.RECEIVE}:
                begun.setdefault(number, t)
            elif kind == Kind.DELIVER:
                begun.setdefault(number, t)
                self.delivered.append((t, message))
            elif kind == Kind.REFUSE:
                _tell(self.refused, detail, t, count)
            else:
                if kind == Kind.DROP:
                    _tell(self.dropped, detail, t, 1)
                if number in begun:
                    held.append((number, begun.pop(number), t))
        held += [(number, t, math.inf) for number, t in begun.items()]
        held.sort(key=lambda each: each[1])
        self._held = held

    def _rows(self) -> Iterator[tuple[float, str, str, str, int]]:
        node = self._scan.names.texts[self._node]
        chosen = pa.array([node], pa.string())
        kinds = pa.array(_OF_CACHE)
        for group in self._scan.groups_with(*_OF_CACHE):
            mine = _any_chosen(self._scan, group, ("node",), partial(pc.is_in, value_set=chosen))
            if not mine.any():
                continue
            rows = np.flatnonzero(mine & _any_chosen(self._scan, group, ("kind",), partial(pc.is_in, value_set=kinds)))
            part = self._scan.source.read(group, "t", "kind", "message", "detail", "attrs").take(pa.array(rows))
            texts = (part[name].cast(pa.string()).to_pylist() for name in ("kind", "message", "detail"))
            for t, kind, message, detail, attrs in zip(
                part["t"].to_pylist(), *texts, part["attrs"].to_pylist(), strict=True
            ):
                count = dict(attrs or ()).get("count", "1") if kind == Kind.REFUSE else "1"
                yield t, kind, message or "", (detail or "")[:_TEXT_MAX], int(count) if count.isdigit() else 1

    def holds(self, at: float) -> list[tuple[str, float]]:
        """Return the messages that the node has at a time, and since when, the newest first."""
        found = [(self._ids.shown[number], start) for number, start, end in self._held if start <= at < end]
        return found[::-1]

    def sizes(self) -> tuple[list[float], list[int]]:
        """Return the number of messages over time; thinned where there are very many changes."""
        change = sorted([(start, 1) for _, start, _ in self._held]
                        + [(end, -1) for *_, end in self._held if math.isfinite(end)])  # fmt: skip
        t = np.array([each for each, _ in change])
        size = np.cumsum(np.array([by for _, by in change], np.int64))
        kept = np.append(t[1:] != t[:-1], True)[: len(t)]  # Of one instant the last.
        t, size = t[kept], size[kept]
        step = max(1, len(t) // _POINTS_MAX)
        return t[::step].tolist(), size[::step].tolist()

    def about(self, at: float) -> dict[str, Any]:
        """Return what is known of the node at a time."""
        scan, shown = self._scan, self._scan.names.shown
        held = self.holds(at)
        until = [each for each in self.delivered if each[0] <= at]
        lives = scan.spans["presence"]
        mine = np.flatnonzero(lives.a == self._node)
        times, sizes = self.sizes()
        return {
            "name": shown[self._node],
            "lives": [[float(lives.start[row]), _finite(lives.end[row])] for row in mine.tolist()],
            "neighbours": self._tied("contact" if len(scan.spans["contact"]) else "seen", at),
            "homes": [{**each, "label": each["label"]} for each in self._tied("home", at, mine_only=True)],
            "island": self._tied("reach", at, mine_only=True),
            "holds": {"total": len(held), "messages": held[:_LISTED_MAX]},
            "delivered": {"total": len(until), "messages": [[name, t] for t, name in until[::-1][:_LISTED_MAX]]},
            "dropped": self.dropped,
            "refused": self.refused,
            "cache": {"t": times, "size": sizes},
        }

    def _tied(self, of: str, at: float, *, mine_only: bool = False) -> list[dict[str, Any]]:
        """Return the spans of a kind that hold at a time, each other node once."""
        spans, shown = self._scan.spans[of], self._scan.names.shown
        found: dict[tuple[int, int], dict[str, Any]] = {}
        for row in spans.at(at, self._node).tolist():
            a, b = int(spans.a[row]), int(spans.b[row])
            other = b if a == self._node else a
            if other < 0 or (mine_only and a != self._node):
                continue
            label = int(spans.label[row])
            key = (other, label if of == "home" else MISSING)
            found.setdefault(key, {
                "node": shown[other], "start": float(spans.start[row]), "end": _finite(spans.end[row]),
                "label": spans.labels[label] if label >= 0 else None,
            })  # fmt: skip
        return list(found.values())[:_LISTED_MAX]


def _tell(counts: dict[str, list[float]], reason: str, t: float, count: int) -> None:
    known = counts.setdefault(reason, [0, t])
    known[0] += count
    known[1] = t


def _finite(t: float) -> float | None:
    return float(t) if math.isfinite(t) else None


def samples(scan: Scan, of: str, node: int | None) -> pa.Table:
    """Return samples of a kind: load of brokers, length of paths, bytes sent, sizes of registries."""
    kind = SAMPLES[of]
    chosen = "" if node is None else scan.names.texts[node]
    parts: list[pa.Table] = []
    for group, rows in matches(scan, Filter(kinds=frozenset({kind}), node=chosen)):
        parts.append(scan.source.read(group, "t", "node", "size", "detail", "attrs").take(pa.array(rows)))
    details = Names()
    found = pa.concat_tables(parts) if parts else _EMPTY.select(["t", "node", "size", "detail", "attrs"])
    value = np.array([float(each or 0) for each in found["size"].to_pylist()])
    if of == "load":
        value /= 1_000
    elif of == "path":
        pairs = [number(dict(each or ()).get("pairs"), 1.0) for each in found["attrs"].to_pylist()]
        value /= np.maximum(np.array(pairs, np.float64), 1.0)
    nodes = found["node"].cast(pa.string()).to_pylist()
    labels = [MISSING if each is None else details.add(each) for each in found["detail"].cast(pa.string()).to_pylist()]
    columns = {
        "node": np.array([scan.names.known(each) for each in nodes], np.int32), "t": found["t"].to_numpy(),
        "value": value, "label": np.array(labels, np.int32),
    }  # fmt: skip
    return table(columns, {"labels": details.shown})
