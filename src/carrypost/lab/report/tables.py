"""CAUSAL's tables with ours beside them: Tables I to III of the buses, IV to VI of the walkers.

Of several seeds ours is the mean, and half of its 95 % interval stands below it. Differences are ours by the
paper's, in per cent; those of shares in points of per cent. A run that is only a part of the experiment gets none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from carrypost.lab.metrics import families
from carrypost.lab.report.grids import Element, TableRow, table
from carrypost.lab.report.html import Piece, give_or_take
from carrypost.lab.report.intervals import interval
from carrypost.lab.report.paper import Experiment, Quad
from carrypost.lab.report.study import Series, Study
from carrypost.lab.report.times import NOTHING, count, difference, margin, mean, points, share, shown, tenths
from carrypost.lab.schemas import Table

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
