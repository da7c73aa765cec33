"""What messages cost and how they travel: bytes by delivery, hops, what is by time, long tails of contacts.

Tables and what is by time are means over seeds, tails the first seed; what the records do not tell is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean

import numpy as np

from carrypost.lab.metrics import families
from carrypost.lab.report import plots
from carrypost.lab.report.html import Markup, Piece, TableRow, figure, table, within
from carrypost.lab.report.plots import Axis, Floats
from carrypost.lab.report.seeds import half_width
from carrypost.lab.report.study import FinishedRun, Series, Study
from carrypost.lab.report.times import NOTHING, count, mean
from carrypost.lab.schemas import Table

_MS = 1_000.0
_UNITS = ((10_800.0, 3_600.0, "h"), (180.0, 60.0, "min"), (0.0, 1.0, "s"))
_BINS = 40
_MIDDLES = (np.arange(_BINS) + 0.5) / _BINS
_TAIL_MIN = 10
"""Values that a tail must have to be looked at."""


def travel(study: Study, all_series: Sequence[Series]) -> Markup:
    """Bytes sent by delivery to others, and hops."""
    lines = [
        TableRow(
            series.settings,
            [
                _cell([each for run in series.runs if (each := _bytes_by_delivery(study, run)) is not None], count),
                *(_cell(list(each), mean) for each in zip(*(_hops(study, run) for run in series.runs), strict=True)),
            ],
        )
        for series in all_series
    ]
    heads = ["settings", "bytes sent by delivery", "hops, mean", "share from the author, %"]
    return table("What it took to deliver", heads, [lines])


def _cell(values: Sequence[float | None], show: Callable[[float | None], str]) -> Piece:
    known = [each for each in values if each is not None]
    if not known:
        return NOTHING
    half = half_width(known)
    return within(show(fmean(known)), None if half is None else show(half))


def _bytes_by_delivery(study: Study, run: FinishedRun) -> float | None:
    """All that was sent, by what was delivered to others than its author."""
    sent = float(study.columns(families.TRAFFIC, run)["bytes"].sum())
    counts = study.row(families.PROCESSING, run)
    delivered = (counts.get("codlvd") or 0) - (counts.get("bcast") or 0)
    return sent / delivered if sent and delivered > 0 else None


def _hops(study: Study, run: FinishedRun) -> tuple[float | None, float | None]:
    """Mean of all receptions, and how many of a hundred came from the author."""
    found = study.columns(families.HOPS, run)
    received = float(found["received"].sum())
    if not received:
        return None, None
    return float((found["mean"] * found["received"]).sum()) / received, 100 * float(found["direct"].sum()) / received


def deliveries(study: Study, all_series: Sequence[Series]) -> list[Piece]:
    """Of messages published at a time, the mean share of recipients that got them."""
    return _by_time(
        study, all_series, _ratios, Axis("delivery ratio, mean", 1.03, labels=plots.SHARE.labels),
        "Mean share of recipients that a message is delivered to, by the time of its publication.",
    )  # fmt: skip


def _ratios(study: Study, run: FinishedRun) -> tuple[Floats, Floats]:
    found = study.columns(families.DELIVERY, run)
    ratio = found["ratio"].astype(np.float64)
    return found["published"][~np.isnan(ratio)], ratio[~np.isnan(ratio)]


def caches(study: Study, all_series: Sequence[Series]) -> list[Piece]:
    """Messages that nodes hold, by time."""
    return _by_time(
        study, all_series, _held, Axis("messages held, mean"), "Messages in the cache of a node that is there, by time."
    )


def _held(study: Study, run: FinishedRun) -> tuple[Floats, Floats]:
    found = study.columns(families.REGISTRIES, run)
    held = found["cache"].astype(np.float64)
    regular = ~np.isnan(held) & ~found["leaving"].astype(np.bool_)
    return found["t"][regular], held[regular]


def _by_time(
    study: Study,
    all_series: Sequence[Series],
    values: Callable[[Study, FinishedRun], tuple[Floats, Floats]],
    y: Axis,
    caption: str,
) -> list[Piece]:
    """Means of values by time, those of seeds together, with bands of 95 % where there are several."""
    found = {each.settings: [values(study, run) for run in each.runs] for each in all_series[: plots.CURVES_MAX]}
    last_s = max((float(t.max(initial=0.0)) for seeds in found.values() for t, _ in seeds), default=0.0)
    if not last_s:
        return []
    unit_s, unit = next((size, name) for least, size, name in _UNITS if last_s > least or not least)
    lines, bands = {}, {}
    for name, seeds in found.items():
        means = np.array([_binned(t / last_s, each) for t, each in seeds])
        seen = ~np.isnan(means).any(axis=0)
        if seen.any():
            lines[name] = _MIDDLES[seen] * last_s / unit_s, means[:, seen].mean(axis=0)
            bands[name] = np.array([half_width(column) or 0.0 for column in means[:, seen].T.tolist()])
    several = any(len(seeds) > 1 for seeds in found.values())
    axes = Axis(f"time since the start ({unit})", last_s / unit_s), y
    title = caption.rstrip(".").lower()
    picture = plots.curves(
        lines, axes, title, steps=False, legend="settings", height=180, bands=bands if several else {}
    )
    told = " Bands are 95 % intervals of the mean over seeds." if several else ""
    return [figure([("", picture)], [caption, told])]


def _binned(place: Floats, values: Floats) -> Floats:
    """The mean of the values in each of so many equal parts of the time; nan where there is none."""
    at = np.minimum((place * _BINS).astype(np.int64), _BINS - 1)
    count = np.bincount(at, minlength=_BINS)
    found: Floats = np.divide(np.bincount(at, values, _BINS), count, out=np.full(_BINS, np.nan), where=count > 0)
    return found


def tails(study: Study, all_series: Sequence[Series]) -> list[Piece]:
    """How many contacts, and times between them, are longer than so long: both axes by powers of ten."""
    made: list[Piece] = []
    kinds: tuple[tuple[Table, str], ...] = (
        (families.CONTACT_CDF, "duration of contacts"),
        (families.INTER_CONTACT_CDF, "time between contacts of a pair"),
    )
    for of, title in kinds:
        lines: dict[str, tuple[Floats, Floats]] = {}
        for series in all_series[: plots.CURVES_MAX]:
            found = study.columns(of, series.first)
            order = np.argsort(found["value_ms"])
            value_s, longer = found["value_ms"][order] / _MS, 1.0 - found["share"][order]
            seen = (value_s > 0) & (longer > 0)
            if seen.sum() >= _TAIL_MIN:
                lines[series.settings] = value_s[seen], longer[seen]
        if lines:
            axes = Axis(f"{title} (s)", log=True), Axis("share that is longer", log=True)
            picture = plots.curves(lines, axes, f"tail of the {title}", steps=False, legend="settings")
            made.append(figure([("", picture)], [f"How many are longer: {title}, on scales of powers of ten."]))
    return made
