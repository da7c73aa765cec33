"""The verdict on top of a part of a page: what came out, before any table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from markupsafe import Markup

from carrypost.lab.metrics import families
from carrypost.lab.report.grids import Element, TableRow, table
from carrypost.lab.report.html import paragraph, tag
from carrypost.lab.report.intervals import interval
from carrypost.lab.report.paper import Experiment
from carrypost.lab.report.study import Series, Study
from carrypost.lab.report.times import difference, points, share, shown

_NEAR, _POINTS_NEAR = 0.1, 0.01
"""Differences up to these count as agreement: a tenth of the paper's figure, a percentage point of a share."""
_FALL = 0.02
"""Means that should rise may fall by this share: seeds differ by as much."""
_COUNTS = {"broadcasts": "bcast", "receptions": "rcvd", "co-deliveries": "codlvd"}


Show = Callable[[float | None], str]


class _Pair(NamedTuple):
    """A figure of ours and the paper's, for one choice of settings."""

    label: str
    ours: float
    paper: float


def against_paper(study: Study, all_series: Sequence[Series], paper: Experiment) -> Element:
    """Return a table: figures of the paper, and whether ours agree with them for all lifetimes."""
    rows = [
        _row(name, _pairs(study, all_series, paper, column), shares=False) for name, column in _COUNTS.items()
    ]  # fmt: skip
    rows.append(_row("share of copies co-delivered", _pairs(study, all_series, paper, "codlvratio"), shares=True))
    for name, metric in (("mean transmission delay", families.TDELAY), ("mean latency", families.LTCY)):
        pairs = []
        for series in all_series:
            quoted = paper.of.get(series.lifetime_s)
            found = interval(study.values(families.DELAY_SPREAD, series, "avg_s", metric=metric))
            if quoted is not None and found is not None:
                pairs.append(_Pair(series.label, found.mean, getattr(quoted, metric).avg_s))
        rows.append(_row(name, pairs, shares=False))
    heads = ["figure of the paper", "ours", "largest difference"]
    there = [row for row in rows if row is not None]
    return table("Verdict: do our runs agree with the paper?", heads, [there], texts=(0, 1))


def _pairs(study: Study, all_series: Sequence[Series], paper: Experiment, column: str) -> list[_Pair]:
    made = []
    for series in all_series:
        quoted = paper.of.get(series.lifetime_s)
        found = interval(study.values(families.PROCESSING, series, column))
        if quoted is not None and found is not None:
            made.append(_Pair(series.label, found.mean, getattr(quoted.processing, column)))
    return made


def _row(name: str, pairs: Sequence[_Pair], *, shares: bool) -> TableRow | None:
    if not pairs:
        return None

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
