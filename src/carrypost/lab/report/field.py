"""The page of a field test: records of real nodes in a folder. Who met whom, what was carried, and how long it took.

Only rows that nodes wrote are known. A contact is the time in which at least one of two nodes counted the other among
its neighbours. Times are those of the nodes' own clocks, which may differ.
"""

from __future__ import annotations

import json
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from markupsafe import Markup

from carrypost.errors import LocalError
from carrypost.lab.metrics import families, tables
from carrypost.lab.metrics.records import REAL, Source
from carrypost.lab.report import distributions, plots
from carrypost.lab.report.blocks import Figures, Picture
from carrypost.lab.report.numbers import NOTHING, count, shown
from carrypost.lab.report.plots import Axis, Extent
from carrypost.lab.schemas import RUNS
from carrypost.log.record import AGAIN, REDELIVERED, Kind
from carrypost.model import address
from carrypost.printing import many

NAMES = ("names.json", "demo.json")
"""Files beside the records that may have names of nodes, by id."""
_KINDS = (Kind.JOIN, Kind.LEAVE, Kind.UP, Kind.DOWN, Kind.PUBLISH, Kind.RECEIVE, Kind.DELIVER, Kind.EXPIRE)
_DESTINATIONS = (address.Kind.TOPIC, address.Kind.QUEUE, address.Kind.CHANNEL)
_DELAYS = {
    families.TDELAY: "publication to reception",
    families.LTCY: "reception to delivery",
    families.CODLVDELAY: "publication to delivery",
}
_LETTERS = 6
_ROWS_MAX = 60
_PAIRS_MAX = 40
Row = dict[str, Any]


def is_there(folder: Path) -> bool:
    """Return True if a folder has records and no campaign."""
    if (folder / RUNS.name).is_dir():
        return False
    try:
        Source.find(folder)
    except LocalError:
        return False
    return True


@dataclass(slots=True)
class Message:
    """A message that a program published or got."""

    author: str
    published_s: float | None = None
    size: int | None = None
    received_s: dict[str, float] = field(default_factory=dict)
    """First reception, by node."""
    hops: int = 0
    delivered: set[str] = field(default_factory=set)
    """Nodes with programs that got it, without the author's."""
    carriers: set[str] = field(default_factory=set)
    """Nodes other than the author that handed it on."""


class FieldTest:
    """The records of real nodes."""

    def __init__(self, folder: Path) -> None:
        rows, self.unreadable = Source.find(folder).read()
        """Number of lines that are no rows of a record."""
        rows = rows.sort_by("t")
        if not rows.num_rows:
            lines = many(self.unreadable, "line is", "lines are")
            found = f"{lines} something else" if self.unreadable else "its files are empty"
            raise LocalError(f"{folder} has no row of a record: {found}")
        if not pc.all(pc.starts_with(rows["run"].cast(pa.string()), f"{REAL}/")).as_py():
            raise LocalError(f"{folder} has neither a campaign nor records of real nodes")
        self.folder = folder
        self.rows = rows
        self._names = _names(folder)
        chosen = rows.filter(pc.is_in(rows["kind"].cast(pa.string()), pa.array([each.value for each in _KINDS])))
        self.events: list[Row] = chosen.drop_columns(["run"]).to_pylist()
        self.first_s, self.last_s = (float(each.as_py()) for each in pc.min_max(rows["t"]).values())
        self.nodes = sorted(set(rows["node"].to_pylist()), key=self.name)

    def name(self, node: str) -> str:
        """Return the name of a node for people: its given one, or the beginning of its id."""
        return self._names.get(node, node[:_LETTERS])

    def at(self, t_s: float) -> str:
        """Return a time as seconds since the first row, for people."""
        return shown(t_s - self.first_s)

    @cached_property
    def contacts(self) -> dict[tuple[str, str], list[tuple[float, float]]]:
        """Spans in which two nodes knew each other as neighbours, by pair."""
        found: defaultdict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
        last_s = {row["node"]: row["t"] for row in self.rows.select(["node", "t"]).to_pylist()}
        up: dict[tuple[str, str], float] = {}

        def end(node: str, peer: str, t_s: float) -> None:
            pair = (node, peer) if self.name(node) <= self.name(peer) else (peer, node)
            found[pair].append((up.pop((node, peer)), t_s))

        for row in self.events:
            node, peer, t_s = row["node"], row["peer"], row["t"]
            if row["kind"] == Kind.UP:
                up.setdefault((node, peer), t_s)
            elif row["kind"] == Kind.DOWN and (node, peer) in up:
                end(node, peer, t_s)
            elif row["kind"] in {Kind.JOIN, Kind.LEAVE}:  # A node that was killed has no row of its end.
                for mine, other in [each for each in up if each[0] == node]:
                    end(mine, other, t_s)
        for node, peer in list(up):
            end(node, peer, last_s[node])
        return {pair: _merged(found[pair]) for pair in sorted(found, key=lambda pair: [*map(self.name, pair)])}

    @cached_property
    def messages(self) -> dict[str, Message]:
        """Messages that programs published or got, in order of time."""
        known = {row["message"] for row in self.events if row["kind"] == Kind.DELIVER or _of_program(row)}
        found: dict[str, Message] = {}
        for row in self.events:
            kind, node, peer = row["kind"], row["node"], row["peer"]
            if row["message"] not in known or row["detail"] in {AGAIN, REDELIVERED}:
                continue
            message = found.setdefault(row["message"], Message(row["source"] or ""))
            if kind == Kind.PUBLISH:
                message.published_s, message.size = row["t"], row["size"]
            elif kind == Kind.RECEIVE:
                message.received_s.setdefault(node, row["t"])
                message.hops = max(message.hops, row["hops"] or 0)
                message.carriers |= {peer} - {None, message.author}
            elif kind == Kind.DELIVER and node != message.author:
                message.delivered.add(node)
        return found


def _merged(spans: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the spans of both sides as one list, in order."""
    found: list[tuple[float, float]] = []
    for start, end in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((start, end))
    return found


def _of_program(row: Row) -> bool:
    """Return True for the publication of a program's message; nodes publish messages of their own as well."""
    destination = dict(row["attrs"] or ()).get("destination", "")
    return row["kind"] == Kind.PUBLISH and destination.split("/")[0] in _DESTINATIONS


def _names(folder: Path) -> dict[str, str]:
    for name in NAMES:
        try:
            found = json.loads((folder / name).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if isinstance(found, Mapping):
            return {str(key): str(value) for key, value in found.items()}
    return {}


def title(test: FieldTest) -> str:
    """Return the title of the page."""
    return f"Field test: {test.folder.resolve().name}"


def body(test: FieldTest, figures: Figures) -> Markup:
    """Return the whole page."""
    of_programs = pc.is_in(test.rows["message"].cast(pa.string()), pa.array(list(test.messages), pa.string()))
    found = tables(REAL, test.rows.filter(of_programs), [families.DELAY_SPREAD, families.DELAY_CDF])
    spread = {row["metric"]: row for row in found[families.DELAY_SPREAD.name].to_pylist() if row["count"]}
    published = [each for each in test.messages.values() if each.published_s is not None]
    return figures.filled(
        "field",
        test=test,
        begun=time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(test.first_s)),
        published=len(published),
        reached=sum(bool(each.received_s) for each in published),
        carried=sum(bool(each.carriers) for each in published),
        both=spread.get(families.TDELAY),
        nodes=_nodes(test),
        contacts=[_contact(test, *pair, spans) for pair, spans in test.contacts.items()],
        spans=_spans(test),
        messages=[_message(test, name, each) for name, each in test.messages.items()],
        spread=spread,
        delays=[_delay(name, spread[metric]) for metric, name in _DELAYS.items() if metric in spread],
        percentiles=[f"{each} %" for each in families.PERCENTILES],
        received=_received(found[families.DELAY_CDF.name]),
        rows_max=_ROWS_MAX,
        pairs_max=_PAIRS_MAX,
    )


def _nodes(test: FieldTest) -> list[list[str]]:
    messages = test.messages.values()
    sent = test.rows.filter(pc.equal(test.rows["kind"].cast(pa.string()), Kind.TRAFFIC.value))
    nbytes: Counter[str] = Counter()
    for row in sent.select(["node", "size"]).to_pylist():
        nbytes[row["node"]] += row["size"] or 0
    counts = (
        Counter(row["node"] for row in test.events if row["kind"] == Kind.JOIN),
        Counter(node for pair in test.contacts for node in pair),
        Counter(each.author for each in messages if each.published_s is not None),
        Counter(node for each in messages for node in each.received_s),
        Counter(node for each in messages for node in each.delivered),
        Counter(node for each in messages for node in each.carriers),
        nbytes,
    )
    return [[test.name(node), node, *(count(each[node]) for each in counts)] for node in test.nodes]


def _contact(test: FieldTest, one: str, two: str, spans: Sequence[tuple[float, float]]) -> list[str]:
    lengths = [end - start for start, end in spans]
    ends = test.at(spans[0][0]), test.at(spans[-1][1])
    return [_pair(test, one, two), count(len(spans)), shown(sum(lengths)), shown(max(lengths)), *ends]


def _pair(test: FieldTest, one: str, two: str) -> str:
    return f"{test.name(one)} – {test.name(two)}"


def _spans(test: FieldTest) -> Picture | None:
    """Return the contacts of those pairs that met longest, by time."""
    longest = sorted(test.contacts, key=lambda pair: -sum(end - start for start, end in test.contacts[pair]))
    unit_s, unit_name = distributions.unit(test.last_s - test.first_s)
    spans = {
        _pair(test, *pair): [((start - test.first_s) / unit_s, (end - test.first_s) / unit_s) for start, end in times]
        for pair, times in test.contacts.items()
        if pair in longest[:_PAIRS_MAX]
    }
    axis = Axis(f"time ({unit_name})", max((test.last_s - test.first_s) / unit_s, 1e-6))
    return plots.spans(spans, axis, "contacts by time") if spans else None


def _message(test: FieldTest, name: str, each: Message) -> list[str]:
    taken = sorted(t_s - each.published_s for t_s in each.received_s.values()) if each.published_s else []
    return [
        name, test.name(each.author),
        test.at(each.published_s) if each.published_s else "not recorded",
        count(each.size), count(len(each.received_s)), count(len(each.delivered)), count(each.hops or None),
        ", ".join(sorted(map(test.name, each.carriers))) or NOTHING,
        shown(taken[0] if taken else None), shown(taken[-1] if taken else None),
    ]  # fmt: skip


def _delay(name: str, of: Row) -> list[str]:
    columns = ("min_s", "avg_s", *(f"p{each}_s" for each in families.PERCENTILES), "max_s")
    return [name, count(of["count"]), *(shown(of[each]) for each in columns)]


class _Received(NamedTuple):
    """The time from publication to reception, as a picture, and the longest."""

    picture: Picture | None
    most_s: float


def _received(cdf: pa.Table) -> _Received | None:
    rows = cdf.filter(pc.equal(cdf["metric"], families.TDELAY))
    x_s, y = (rows[each].to_numpy().astype(np.float64) for each in ("value_ms", "share"))
    if (most_s := x_s.max(initial=0) / 1_000) <= 0:  # Publications may be in records elsewhere.
        return None
    unit_s, unit_name = distributions.unit(most_s)
    curve = plots.distribution([(x_s / 1_000 / unit_s, y)], Extent(most_s / unit_s, 1.0))
    axes = Axis(f"time from publication to reception ({unit_name})", most_s / unit_s), distributions.shares("share")
    return _Received(plots.plain({"all": curve}, axes, "delays", ""), most_s)


def summary(test: FieldTest) -> dict[str, object]:
    """Return the figures that the command prints."""
    return {"nodes": len(test.nodes), "contacts": sum(map(len, test.contacts.values())), "messages": len(test.messages)}
