"""The page of a field test: records of real nodes in a folder. Who met whom, what was carried, and how long it took.

Only rows that nodes wrote are known. A contact is the time in which at least one of two nodes counted the other among
its neighbours. Times are those of the nodes' own clocks, which may differ.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from carrypost.errors import LocalError
from carrypost.lab.metrics import families, tables
from carrypost.lab.metrics.records import REAL, Source
from carrypost.lab.report import curves, distributions, plots
from carrypost.lab.report.curves import Extent
from carrypost.lab.report.html import Markup, TableRow, paragraph, table, tag
from carrypost.lab.report.pictures import Block, Figure
from carrypost.lab.report.plots import Axis
from carrypost.lab.report.times import count, share, shown
from carrypost.lab.schemas import RUNS
from carrypost.model import address
from carrypost.printing import many
from carrypost.record import AGAIN, REDELIVERED, Kind

NAMES = ("names.json", "demo.json")
"""Files beside the records that may have names of nodes, by id."""
_KINDS = (Kind.JOIN, Kind.LEAVE, Kind.UP, Kind.DOWN, Kind.PUBLISH, Kind.RECEIVE, Kind.DELIVER, Kind.EXPIRE)
_DESTINATIONS = (address.Kind.TOPIC, address.Kind.QUEUE, address.Kind.CHANNEL)
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
class Contact:
    """Two nodes, and the times of their contacts."""

    spans: list[tuple[float, float]] = field(default_factory=list)

    def merged(self) -> list[tuple[float, float]]:
        """Return the spans of both sides as one list, in order."""
        found: list[tuple[float, float]] = []
        for start, end in sorted(self.spans):
            if found and start <= found[-1][1]:
                found[-1] = found[-1][0], max(end, found[-1][1])
            else:
                found.append((start, end))
        return found


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
        found: dict[tuple[str, str], Contact] = {}
        last_s = {row["node"]: row["t"] for row in self.rows.select(["node", "t"]).to_pylist()}
        up: dict[tuple[str, str], float] = {}

        def end(node: str, peer: str, t_s: float) -> None:
            pair = (node, peer) if self.name(node) <= self.name(peer) else (peer, node)
            found.setdefault(pair, Contact()).spans.append((up.pop((node, peer)), t_s))

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
        return {pair: found[pair].merged() for pair in sorted(found, key=lambda pair: [*map(self.name, pair)])}

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


def body(test: FieldTest) -> list[Block]:
    """Return the whole page."""
    of_programs = pc.is_in(test.rows["message"].cast(pa.string()), pa.array(list(test.messages), pa.string()))
    found = tables(REAL, test.rows.filter(of_programs), [families.DELAY_SPREAD, families.DELAY_CDF])
    begun = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(test.first_s))
    return [
        tag("h1", title(test)),
        _verdict(test, found),
        paragraph(
            f"Records of {many(len(test.nodes), 'real node')}, from {begun}, over {shown(test.last_s - test.first_s)}. "
            "Times are since the first row, by each node's own clock.",
            kind="note",
        ),
        tag("h2", "Nodes"), _nodes(test),
        tag("h2", "Who met whom"), *_contacts(test),
        tag("h2", "What was carried"), _messages(test),
        tag("h2", "Delays"), *_delays(found),
    ]  # fmt: skip


def _verdict(test: FieldTest, found: Mapping[str, pa.Table]) -> Markup:
    """Return the outcome in a few sentences."""
    published = [each for each in test.messages.values() if each.published_s is not None]
    reached = [each for each in published if each.received_s]
    meetings = sum(map(len, test.contacts.values()))
    carried = sum(bool(each.carriers) for each in published)
    outcome = f"{len(reached):,} of {many(len(published), 'message')} reached another node"
    texts = [
        f"{many(len(test.nodes), 'node')} met {many(meetings, 'time')}, in {many(len(test.contacts), 'pair')}.",
        f"{outcome}, {carried:,} of them over a carrier.",
    ]
    both: Row = next(
        (row for row in found[families.DELAY_SPREAD.name].to_pylist() if row["metric"] == families.TDELAY), {}
    )
    if both.get("count"):
        texts.append(f"Half of all receptions took {shown(both['p50_s'])} or less, the longest {shown(both['max_s'])}.")
    return paragraph(" ".join(texts), kind="lead")


def _nodes(test: FieldTest) -> Markup:
    starts = Counter(row["node"] for row in test.events if row["kind"] == Kind.JOIN)
    published = Counter(each.author for each in test.messages.values() if each.published_s is not None)
    carried = Counter(node for message in test.messages.values() for node in message.carriers)
    received = Counter(node for message in test.messages.values() for node in message.received_s)
    delivered = Counter(node for message in test.messages.values() for node in message.delivered)
    sent = test.rows.filter(pc.equal(test.rows["kind"].cast(pa.string()), Kind.TRAFFIC.value))
    nbytes: Counter[str] = Counter()
    for row in sent.select(["node", "size"]).to_pylist():
        nbytes[row["node"]] += row["size"] or 0
    met = {node: len([pair for pair in test.contacts if node in pair]) for node in test.nodes}
    rows = [
        TableRow(
            test.name(node),
            [
                node, *(count(each) for each in (starts[node], met[node], published[node],
                received[node], delivered[node], carried[node], nbytes[node])),
            ],
        )
        for node in test.nodes
    ]  # fmt: skip
    heads = ["node", "id", "starts", "others met", "published", "received", "delivered", "carried", "bytes sent"]
    made = table("Nodes", heads, [rows], texts=(0,))
    note = "Carried: messages of others that the node handed on. Delivered: given to its own programs, without its own."
    return tag("div", made, paragraph(note, kind="note"))


def _contacts(test: FieldTest) -> list[Block]:
    if not test.contacts:
        return [paragraph("No node found another one.")]
    rows = [
        TableRow(
            f"{test.name(one)} – {test.name(two)}",
            [count(len(spans)), shown(sum(end - start for start, end in spans)),
             shown(max(end - start for start, end in spans)), test.at(spans[0][0]), test.at(spans[-1][1])],
        )
        for (one, two), spans in test.contacts.items()
    ]  # fmt: skip
    longest = sorted(test.contacts, key=lambda pair: -sum(end - start for start, end in test.contacts[pair]))
    drawn = [pair for pair in test.contacts if pair in longest[:_PAIRS_MAX]]
    names = [f"{test.name(one)} – {test.name(two)}" for one, two in drawn]
    unit_s, unit_name = distributions.unit(test.last_s - test.first_s)
    spans = {
        name: [((start - test.first_s) / unit_s, (end - test.first_s) / unit_s) for start, end in test.contacts[pair]]
        for name, pair in zip(names, drawn, strict=True)
    }
    axis = Axis(f"time ({unit_name})", max((test.last_s - test.first_s) / unit_s, 1e-6))
    more = f" The {_PAIRS_MAX} pairs with the longest contacts." if len(test.contacts) > _PAIRS_MAX else ""
    return [
        Figure([("", plots.spans(spans, axis, "contacts by time"))], [f"Contacts of pairs of nodes, by time.{more}"]),
        table(_first("Contacts of pairs", len(rows)), ["pair", "contacts", "in all", "longest", "first", "until"],
              [rows[:_ROWS_MAX]]),
    ]  # fmt: skip


def _messages(test: FieldTest) -> Markup:
    if not test.messages:
        return paragraph("No message was published.")
    rows = []
    for name, each in test.messages.items():
        taken = sorted(t_s - each.published_s for t_s in each.received_s.values()) if each.published_s else []
        rows.append(
            TableRow(
                name,
                [
                    test.name(each.author),
                    test.at(each.published_s) if each.published_s else "not recorded",
                    count(each.size), count(len(each.received_s)), count(len(each.delivered)), count(each.hops or None),
                    ", ".join(sorted(map(test.name, each.carriers))) or "–",
                    shown(taken[0] if taken else None), shown(taken[-1] if taken else None),
                ],
            )
        )  # fmt: skip
    heads = ["message", "author", "published", "bytes", "reached", "delivered", "hops", "carried by", "first after",
             "last after"]  # fmt: skip
    made = table(_first("Messages", len(rows)), heads, [rows[:_ROWS_MAX]], texts=(0, 6))
    note = (
        "Reached: nodes that received it. Hops: most of any node. Carried by: others than the author that handed it on."
    )
    return tag("div", made, paragraph(note, kind="note"))


def _delays(found: Mapping[str, pa.Table]) -> list[Block]:
    names = {
        families.TDELAY: "publication to reception", families.LTCY: "reception to delivery",
        families.CODLVDELAY: "publication to delivery",
    }  # fmt: skip
    columns = ("min_s", "avg_s", *(f"p{each}_s" for each in families.PERCENTILES), "max_s")
    spread = {row["metric"]: row for row in found[families.DELAY_SPREAD.name].to_pylist() if row["count"]}
    if not spread:
        return [paragraph("No node received a message of another one whose publication was recorded.")]
    rows = [
        TableRow(names[metric], [count(spread[metric]["count"]), *(shown(spread[metric][each]) for each in columns)])
        for metric in names
        if metric in spread
    ]
    heads = ["from … to", "copies", "least", "mean", *(f"{each} %" for each in families.PERCENTILES), "most"]
    made: list[Block] = [table("Delays, by percentile", heads, [rows])]
    if any(spread[metric]["min_s"] < 0 for metric in spread):
        why = "the clocks of two nodes differ, or a copy left before its publication was recorded"
        made.append(paragraph(f"Delays below 0: {why}.", kind="note"))
    cdf = [row for row in found[families.DELAY_CDF.name].to_pylist() if row["metric"] == families.TDELAY]
    most_s = max((row["value_ms"] for row in cdf), default=0) / 1_000  # Publications may be in records elsewhere.
    if most_s > 0:
        unit_s, unit_name = distributions.unit(most_s)
        x, y = (np.array([row[each] for row in cdf], np.float64) for each in ("value_ms", "share"))
        curve = curves.distribution([(x / 1_000 / unit_s, y)], Extent(most_s / unit_s, 1.0))
        axes = Axis(f"time from publication to reception ({unit_name})", most_s / unit_s), distributions.shares("share")
        assert curve is not None
        picture = plots.curves({"all": curve}, axes, "delays", steps=False, legend="")
        within = f"{share(1)} of the {spread[families.TDELAY]['count']:,} receptions are within {shown(most_s)}."
        made.append(Figure([("", picture)], [f"Time from publication to reception. {within}"]))
    return made


def _first(name: str, rows: int) -> str:
    return f"{name}, the first {_ROWS_MAX} of {rows:,}" if rows > _ROWS_MAX else name


def summary(test: FieldTest) -> dict[str, object]:
    """Return the figures that the command prints."""
    return {"nodes": len(test.nodes), "contacts": sum(map(len, test.contacts.values())), "messages": len(test.messages)}
