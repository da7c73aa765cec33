"""Ours beside the papers': the values that they print, CAUSAL's tables with ours, and the verdict on top of a part.

`papers.toml` has the values, and the parameters that the papers give. Of CAUSAL the values are Tables I to VI, and the
figures that its text quotes. Tables I to III are those of the buses, IV to VI those of the walkers. Of several seeds
ours is the mean, and half of its 95 % interval stands below it. Differences are ours by the paper's, in per cent; those
of shares in points of per cent. A run that is only a part of the experiment gets none.

The verdict says what came out, before any table.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from markupsafe import Markup

from carrypost.lab.metrics import families
from carrypost.lab.report.blocks import Element, Piece, TableRow, give_or_take, paragraph, table, tag
from carrypost.lab.report.numbers import (
    ENDLESS,
    NOTHING,
    count,
    difference,
    interval,
    margin,
    mean,
    points,
    seconds,
    share,
    shown,
    tenths,
)
from carrypost.lab.report.study import Series, Study
from carrypost.lab.schemas import Table


class Time(float):
    """A length of time in seconds, which the paper prints in its own way."""


class Quad(msgspec.Struct, frozen=True, array_like=True):
    """Least, most, mean and standard deviation, in seconds."""

    min_s: Time
    max_s: Time
    avg_s: Time
    stdev_s: Time


class Processing(msgspec.Struct, frozen=True, array_like=True):
    """A column of Table II or V."""

    bcast: int
    rcvd: int
    codlvd: int
    codlvratio: float
    expd: int | None = None
    expratio: float | None = None


class Point(msgspec.Struct, frozen=True, array_like=True):
    """A point of a distribution that the text quotes: the share received or delivered in less than this time."""

    share: float
    value_s: float


class PaperLifetime(msgspec.Struct, frozen=True):
    """A column of Table II or V, and a line of Table III or VI."""

    processing: Processing
    tdelay: Quad
    ltcy: Quad
    codlvdelay: Quad
    lifetime_s: float | None = None
    """None: endless."""
    tdelay_points: tuple[Point, ...] = ()
    ltcy_points: tuple[Point, ...] = ()


class Experiment(msgspec.Struct, frozen=True):
    """One of the paper's two experiments; lifetimes in seconds, None: endless."""

    scenario: str
    """As the shipped scenario is called."""
    title: str
    section: str
    tables: tuple[str, str, str]
    figures: tuple[str, str, str, str]
    duration_s: Time
    nodes: int
    active_max: int
    activity: Quad
    contacts: int
    contact: Quad
    lifetimes: tuple[PaperLifetime, ...]
    pair: tuple[float | None, float | None]
    """Lifetimes of the two halves of figures 4, 6, 9 and 11."""
    ltcy_cut_s: float
    """End of the axis of latencies."""

    @property
    def of(self) -> dict[float | None, PaperLifetime]:
        """Printed values by lifetime."""
        return {each.lifetime_s: each for each in self.lifetimes}


def _experiment(scenario: str, printed: dict[str, Any]) -> Experiment:
    pair = [None if each == ENDLESS else each for each in printed["pair"]]
    values = {**printed, "scenario": scenario, "pair": pair}
    return msgspec.convert(values, Experiment, dec_hook=lambda kind, text: kind(seconds(text)))


_PRINTED = tomllib.loads(Path(__file__).with_name("papers.toml").read_text(encoding="utf-8"))
SOURCES: Mapping[str, Mapping[str, str]] = _PRINTED["sources"]
"""The papers: authors, title, place and a note."""
PARAMETERS: Mapping[str, Any] = _PRINTED["parameters"]
"""Keys of scenarios and their meanings, by what gives them."""
ROUTERS: Mapping[str, Mapping[str, Any]] = _PRINTED["one"]
"""The figures of The ONE's routers, by load and strategy."""
EXPERIMENTS = {name: _experiment(name, printed) for name, printed in _PRINTED["causal"].items()}
BUS, OSTERMALM = EXPERIMENTS["city_bus"], EXPERIMENTS["ostermalm"]

# Figure 8 shows the 140 walkers that enter in the first 20 minutes. Figure 11 is of node N777, which is there for five
# minutes from 1h49' on: received and co-delivered by lifetime; pending and co_delivered at most, at 20'.
ENTERED_S = 1_200.0
BUS_NODE = "L01-1"
WALKER_FROM_S = seconds("1h49'")
WALKER_STAY_S = 300.0
WALKER: dict[float | None, tuple[int, int]] = {300: (269, 274), 1_200: (760, 764)}
WALKER_PENDING_MAX = 400
WALKER_SOURCES_MAX = 150


Show = Callable[[float | None], str]
Differ = Callable[[float | None, float | None], str]
QUAD = ("min_s", "max_s", "avg_s", "stdev_s")
QUAD_HEADS = ("min", "max", "avg", "stdev")
INTERVAL = "95 % interval"
_MANY = 1_000
"""From here on figures are written without decimals."""
_REGISTRIES = ("c_barrier", "co_delivered", "pending", "cache")


@dataclass(frozen=True, slots=True)
class Beside:
    """A figure of the paper's and ours, ready to be shown."""

    paper: str
    ours: str
    half: str
    """Of the interval over seeds; empty: there is one."""
    difference: str


def beside(
    values: Sequence[float], paper: float | None, show: Show, differ: Differ = difference, *, whole: bool = True
) -> Beside:
    """Return one figure of all seeds beside the paper's; not `whole`: nothing to compare."""
    found = interval(values)
    ours = None if found is None else found.mean
    half = "" if found is None or found.half is None else f"± {_half(found.half, show, found.mean)}"
    return Beside(show(paper), show(ours), half, differ(ours, paper) if whole else NOTHING)


def _half(half: float, show: Show, middle: float) -> str:
    """Half of an interval, where its middle is written so: to the same place."""
    if show in {share, tenths}:
        return margin(half)
    places = 0 if max(middle, half) >= _MANY else 1
    if show in {count, mean} and middle >= 1 and round(half, places):
        return f"{half:,.{places}f}"
    return show(half)


def over_seeds(values: Sequence[float], show: Show) -> Piece:
    """Return the mean of all seeds and half of its interval, where that can be seen."""
    found = interval(values)
    if found is None:
        return NOTHING
    middle, half = found
    if half is None or show(half) == show(0.0) or show(middle - half) == show(middle) == show(middle + half):
        return show(middle)
    return give_or_take(show(middle), _half(half, show, middle))


def _lines(name: str, cells: Sequence[Beside], *, whole: bool) -> list[TableRow]:
    """Return the rows of one figure: the paper's, ours, half of its interval over seeds, and the difference."""
    lines = [
        TableRow(name, ["paper", *(cell.paper for cell in cells)], "paper"),
        TableRow("", ["ours", *(cell.ours for cell in cells)], "ours"),
    ]
    if any(cell.half for cell in cells):
        lines.append(TableRow("", [INTERVAL, *(cell.half for cell in cells)], "spread"))
    if whole:
        lines.append(TableRow("", ["difference", *(cell.difference for cell in cells)], "difference"))
    return lines


def scene(study: Study, series: Series, paper: Experiment, *, whole: bool) -> Element:
    """Table I or IV: nodes and contacts. All lifetimes have the same, so one series is enough."""

    def quad(name: str, of: Table, quoted: Quad) -> Iterable[tuple[str, Beside]]:
        for column, head in zip(QUAD, QUAD_HEADS, strict=True):
            values = study.values(of, series, column)
            yield f"{name}, {head}", beside(values, getattr(quoted, column), shown, whole=whole)

    durations = [each for run in series.runs if (each := run.duration_s) is not None]
    activity, contacts = families.ACTIVITY_SUMMARY, families.CONTACT_SUMMARY
    most = study.values(activity, series, "active_max")
    rows: list[tuple[str, Beside]] = [
        ("duration of the scenario", beside(durations, paper.duration_s, shown, whole=whole)),
        ("nodes", beside(study.values(activity, series, "nodes"), paper.nodes, count, whole=whole)),
        ("nodes at once, maximum", beside(most, paper.active_max, count, whole=whole)),
        *quad("activity per node", activity, paper.activity),
        ("contacts", beside(study.values(contacts, series, "contacts"), paper.contacts, count, whole=whole)),
        *quad("duration of contacts", contacts, paper.contact),
    ]  # fmt: skip
    several = any(cell.half for _, cell in rows)
    heads = ["", "paper", "ours", *([INTERVAL] * several), *(["difference"] * whole)]
    body = [
        TableRow(name, [cell.paper, cell.ours, *([cell.half] * several), *([cell.difference] * whole)])
        for name, cell in rows
    ]
    return table(f"{paper.tables[0]}: nodes and contacts", heads, [body])


def processing(study: Study, all_series: Sequence[Series], paper: Experiment, *, whole: bool) -> Element:
    """Table II or V: what became of messages."""
    figures: tuple[tuple[str, str, Show, Differ], ...] = (
        ("broadcast events", "bcast", count, difference),
        ("receive events", "rcvd", count, difference),
        ("co-delivery events", "codlvd", count, difference),
        ("co-delivery ratio", "codlvratio", share, points),
        ("expiry events", "expd", count, difference),
        ("expiry ratio", "expratio", share, points),
    )
    groups: list[list[TableRow]] = []
    for name, column, show, differ in figures:
        cells = []
        for series in all_series:
            quoted = paper.of.get(series.lifetime_s)
            values = study.values(families.PROCESSING, series, column)
            if series.lifetime_s is None and column.startswith("exp"):
                cells.append(Beside("N/A", "N/A", "", NOTHING))
            else:
                value = None if quoted is None else getattr(quoted.processing, column)
                cells.append(beside(values, value, show, differ, whole=whole))
        groups.append(_lines(name, cells, whole=whole))
    left = [beside(study.values(families.PROCESSING, each, "left"), None, count) for each in all_series]
    groups.append([TableRow("neither, at the end", ["ours", *(cell.ours for cell in left)], "ours")])
    heads = ["lifetime", "", *(series.label for series in all_series)]
    return table(f"{paper.tables[1]}: what became of messages", heads, groups, kept=2)


def delays(study: Study, all_series: Sequence[Series], paper: Experiment, *, whole: bool) -> Element:
    """Table III or VI: transmission delays and co-delivery latencies."""
    groups: list[list[TableRow]] = []
    for series in all_series:
        quoted = paper.of.get(series.lifetime_s)
        cells = []
        for metric in families.DELAYS:
            quad = None if quoted is None else getattr(quoted, metric)
            for column in QUAD:
                values = study.values(families.DELAY_SPREAD, series, column, metric=metric)
                value = None if quad is None else getattr(quad, column)
                cells.append(beside(values, value, shown, whole=whole))
        groups.append(_lines(series.label, cells, whole=whole))
    heads = ["lifetime", "", *(QUAD_HEADS * len(families.DELAYS))]
    over = [
        ("", 2),
        ("tdelay (transmission delay)", 4),
        ("ltcy (co-delivery latency)", 4),
        ("codlvdelay = tdelay + ltcy", 4),
    ]
    return table(f"{paper.tables[2]}: delays", heads, groups, over=over, kept=2)


def registries(study: Study, all_series: Sequence[Series], head: str = "lifetime") -> Element:
    """Return the sizes of registries and barriers: mean and most.

    The paper has no such table. Empty where nothing is kept.
    """
    sizes = [
        name for name in _REGISTRIES
        if any(any(study.values(families.REGISTRY_SIZES, each, "max", registry=name)) for each in all_series)
    ]  # fmt: skip
    ordered = study.table(families.BARRIERS).num_rows > 0
    if not (sizes or ordered):
        return ""
    lines = []
    for series in all_series:
        cells = _carried(study, series) if ordered else []
        for name in sizes:
            for column, show in (("mean", mean), ("max", count)):
                values = study.values(families.REGISTRY_SIZES, series, column, registry=name)
                cells.append(over_seeds(values, show))
        lines.append(TableRow(series.label if head == "lifetime" else series.settings, cells))
    over = [("", 1), *([("entries of a barrier (scb)", 2)] * ordered), *((name, 2) for name in sizes)]
    heads = [head, *(["mean", "most"] * (ordered + len(sizes)))]
    what = "barriers and registries" if ordered else "registries (cache: messages held)"
    return table(f"Sizes of {what}", heads, [lines], over=over)


def _carried(study: Study, series: Series) -> list[Piece]:
    """Entries of the barriers of messages: mean and most."""
    means, most = [], []
    for run in series.runs:
        found = study.columns(families.BARRIERS, run)
        if messages := found["messages"].sum():
            means.append(float((found["entries"] * found["messages"]).sum() / messages))
            most.append(float(found["entries"].max()))
    return [over_seeds(means, mean), over_seeds(most, count)]


_NEAR, _POINTS_NEAR = 0.1, 0.01
"""Differences up to these count as agreement: a tenth of the paper's figure, a percentage point of a share."""
_FALL = 0.02
"""Means that should rise may fall by this share: seeds differ by as much."""
_VERDICT = (
    ("broadcasts", "processing", "bcast"), ("receptions", "processing", "rcvd"),
    ("co-deliveries", "processing", "codlvd"), ("share of copies co-delivered", "processing", "codlvratio"),
    ("mean transmission delay", families.TDELAY, "avg_s"), ("mean latency", families.LTCY, "avg_s"),
)  # fmt: skip
"""Figures that decide, each as a table, or a metric, and a column of it."""


class _Pair(NamedTuple):
    """A figure of ours and the paper's, for one choice of settings."""

    label: str
    ours: float
    paper: float


def against_paper(study: Study, all_series: Sequence[Series], paper: Experiment) -> Element:
    """Return a table: figures of the paper, and whether ours agree with them for all lifetimes."""
    rows = []
    for name, of, column in _VERDICT:
        spread = of in families.DELAYS
        family, equal = (families.DELAY_SPREAD, {"metric": of}) if spread else (families.PROCESSING, {})
        pairs = []
        for series in all_series:
            quoted, found = paper.of.get(series.lifetime_s), interval(study.values(family, series, column, **equal))
            if quoted is not None and found is not None:
                pairs.append(_Pair(series.label, found.mean, getattr(getattr(quoted, of), column)))
        if pairs:
            rows.append(_row(name, pairs, shares=column == "codlvratio"))
    heads = ["figure of the paper", "ours", "largest difference"]
    return table("Verdict: do our runs agree with the paper?", heads, [rows], texts=(0, 1))


def _row(name: str, pairs: Sequence[_Pair], *, shares: bool) -> TableRow:
    def off(each: _Pair) -> float:
        return abs(each.ours - each.paper) / (1.0 if shares else each.paper or 1.0)

    near = [each for each in pairs if off(each) <= (_POINTS_NEAR if shares else _NEAR)]
    worst = max(pairs, key=off)
    text = "agree for every lifetime" if len(near) == len(pairs) else "differ for every lifetime"
    if 0 < len(near) < len(pairs):
        text = f"agree for {len(near)} of {len(pairs)} lifetimes"
    shown_off = (points if shares else difference)(worst.ours, worst.paper)
    return TableRow(name, [text, f"{shown_off}, at {worst.label}"])


class Claim(NamedTuple):
    """A statement of a paper, and our measurement of it."""

    paper: str
    ours: str = ""
    """Empty: these runs do not measure it."""
    holds: bool = False


def of_claims(claims: Sequence[Claim], all_series: Sequence[Series], whole_s: float) -> list[Element]:
    """Return a table of statements that hold or do not; `whole_s` is the length of a whole run.

    Statements that cannot be checked with these runs are listed below the table.
    """
    made: list[Element] = []
    lengths = dict.fromkeys(each.first.duration_s for each in all_series)
    if any(each != whole_s for each in lengths):
        lasted = f"These runs last {', '.join(map(shown, lengths))} in place of {shown(whole_s)}."
        text = f"{lasted} Whole runs are needed for a verdict."
        made.append(paragraph(tag("b", "A part. "), text, kind="part"))
    rows = [TableRow(each.paper, [each.ours, "yes" if each.holds else "no"]) for each in claims if each.ours]
    if rows:
        heads = ["the paper says", "we measured", "holds"]
        made.append(table("Verdict: does it hold in our runs?", heads, [rows], texts=(0,)))
        near = f"{100 * _NEAR:g} %"
        note = f"Values count as equal if they differ by at most {near}, and paths as much shorter by more than {near}."
        made.append(paragraph(note, kind="note"))
    if missing := "; ".join(each.paper for each in claims if not each.ours):
        made.append(paragraph(f"Not measured by these runs: {missing}.", kind="note"))
    return made


def quoted(text: str, ours: float | None, paper: float, show: Show) -> Claim:
    """Return the statement that a figure has a value; it holds if ours is near."""
    if ours is None:
        return Claim(text)
    return Claim(text, f"{show(ours)}, {difference(ours, paper)}", is_near(ours, paper))


def is_near(ours: float, paper: float) -> bool:
    """Return True if two figures agree."""
    return abs(ours - paper) <= _NEAR * abs(paper)


def is_less(ours: float, other: float) -> bool:
    """Return True if a figure is less by more than agreement allows."""
    return ours < (1 - _NEAR) * other


def rising(text: str, means: Mapping[float, float], unit: str, show: Show) -> Claim:
    """Return the statement that means rise with a number, such as a period in `unit`."""
    if len(means) <= 1:
        return Claim(text)
    ordered = [means[each] for each in sorted(means)]
    rises = ordered[-1] > ordered[0] and all(after >= (1 - _FALL) * before for before, after in pairwise(ordered))
    listed = ", ".join(f"{show(means[each])} at {each:g} {unit}" for each in sorted(means))
    return Claim(text, listed, rises)


def of_campaign(study: Study, all_series: Sequence[Series]) -> Markup:
    """Return sentences: how many messages arrived, how soon, and which settings were best and worst."""
    ratios = {each.settings: interval(study.values(families.DELIVERY_RATIO, each, "ratio")) for each in all_series}
    known = {name: found.mean for name, found in ratios.items() if found is not None}
    if not known:
        return paragraph("No message had a recipient.", kind="lead")
    best, worst = max(known, key=lambda name: known[name]), min(known, key=lambda name: known[name])
    text = f"Messages were delivered to {share(known[best])} of their recipients"
    if known[best] != known[worst]:
        text += (
            f" with “{best}”, the best of {len(known)} settings, and to {share(known[worst])} with “{worst}”, the worst"
        )
    delays = [
        each for series in all_series
        for each in study.values(families.DELAY_SPREAD, series, "p50_s", metric=families.CODLVDELAY)
    ]  # fmt: skip
    if delays:
        spread = " to ".join(dict.fromkeys((shown(min(delays)), shown(max(delays)))))
        text += f". Half of the deliveries took {spread} or less"
    return paragraph(f"{text}.", kind="lead")
