"""Runs of CAUSAL's experiments on limited links beside those on unlimited ones, and beside the paper.

The paper states neither the rate of links nor the order in which messages are sent. Both decide how many messages
arrive before their predecessors, and so how long they wait.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from carrypost.lab.metrics import families
from carrypost.lab.report.grids import Element, TableRow, table
from carrypost.lab.report.intervals import interval
from carrypost.lab.report.paper import Experiment, PaperLifetime
from carrypost.lab.report.study import Series, Study, matched
from carrypost.lab.report.tables import over_seeds
from carrypost.lab.report.times import NOTHING, count, difference, lifetime, share, shown
from carrypost.lab.schemas import Table


class Links(NamedTuple):
    """The series of an experiment by their links, labelled by lifetime."""

    unlimited: tuple[Series, ...]
    limited: tuple[Series, ...]


class _Figure(NamedTuple):
    name: str
    of: Table
    column: str
    show: Callable[[float | None], str]
    paper: Callable[[PaperLifetime], float | None]
    where: dict[str, str]


_LATENCY = {"metric": families.LTCY}
_FIGURES = (
    _Figure("receive events", families.PROCESSING, "rcvd", count, lambda each: each.processing.rcvd, {}),
    _Figure("co-delivery ratio", families.PROCESSING, "codlvratio", share, lambda each: each.processing.codlvratio, {}),
    _Figure("ltcy, avg", families.DELAY_SPREAD, "avg_s", shown, lambda each: each.ltcy.avg_s, _LATENCY),
    _Figure("ltcy, stdev", families.DELAY_SPREAD, "stdev_s", shown, lambda each: each.ltcy.stdev_s, _LATENCY),
    _Figure("ltcy, max", families.DELAY_SPREAD, "max_s", shown, lambda each: each.ltcy.max_s, _LATENCY),
    _Figure("pending, most", families.REGISTRY_SIZES, "max", count, lambda _: None, {"registry": "pending"}),
)


def by_links(all_series: Sequence[Series]) -> Links:
    """Divide series by their links; if all are limited there is nothing to compare, and they count as the others."""
    plain = _labelled([each for each in all_series if _rate(each) is None])
    limited = _labelled([each for each in all_series if _rate(each) is not None])
    return Links(plain, limited) if plain else Links(limited, ())


def _labelled(all_series: Sequence[Series]) -> tuple[Series, ...]:
    """Label series by their lifetimes, where these differ."""
    lifetimes = [each.lifetime_s for each in all_series]
    return tuple(
        replace(each, label=lifetime(each.lifetime_s))
        if lifetimes.count(each.lifetime_s) == 1 and each.first.in_force
        else each
        for each in all_series
    )


def _rate(series: Series) -> int | None:
    """Return the rate of links in bytes/s; None: no limit, or not known."""
    radio: dict[str, Any] = series.first.in_force.get("radio", {})
    found = radio.get("rate_bytes_per_s")
    return found if isinstance(found, int) else None


class LimitedLinks(NamedTuple):
    """The comparison of a page."""

    table: Element
    rate: str
    reached: float | None
    """Largest difference of receptions from those on unlimited links."""


def compared(study: Study, links: Links, paper: Experiment, *, whole: bool) -> LimitedLinks | None:
    """Return the paper's figures, ours on unlimited links, and ours on limited ones; None if there are none of these.

    All with the seeds that runs of a lifetime on both kinds of links have.
    """
    groups, off = [], []
    unlimited = {each.lifetime_s: each for each in links.unlimited}
    for series in links.limited:
        if (plain := unlimited.get(series.lifetime_s)) is None:
            continue
        both = matched([plain, series])
        quoted = paper.of.get(series.lifetime_s)
        rows: list[TableRow] = []
        for figure in _FIGURES:
            values = [study.values(figure.of, each, figure.column, **figure.where) for each in both]
            printed = None if quoted is None else figure.paper(quoted)
            cells = [
                NOTHING if printed is None else figure.show(printed),
                *(over_seeds(e, figure.show) for e in values),
            ]
            means = [None if (found := interval(each)) is None else found.mean for each in values]
            rows.append(TableRow(series.label if not rows else "", [
                figure.name, *cells, difference(means[1], printed) if whole and printed else NOTHING,
            ]))  # fmt: skip
            if figure.column == "rcvd" and means[0] and means[1] is not None:
                off.append(abs(means[1] / means[0] - 1))
        groups.append(rows)
    if not groups:
        return None
    heads = ["lifetime", "", "paper", "unlimited", "limited", "difference from the paper"]
    rates = ", ".join(dict.fromkeys(f"{_rate(each):,} bytes/s" for each in links.limited))
    return LimitedLinks(table("Waiting on limited links", heads, groups, kept=2), rates, max(off, default=None))
