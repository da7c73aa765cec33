"""The part of a page about routing strategies on The ONE's default scenario, beside The ONE's own figures.

`uncontended`: links and buffers cost nothing. There The ONE's values are those of runs with 1 GB/s and 5 GB; those of
epidemic routing and PRoPHET, which were not run for 12 h, are of a model that moves messages instantly over the same
contacts and agrees with The ONE where that was run. There epidemic routing is `anti-entropy`, whose acknowledgements
purge copies; with contention it is `epidemic`, which evicts copies in the order of The ONE.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from markupsafe import Markup

from carrypost.lab.metrics.families import ONE
from carrypost.lab.report import origins, papers
from carrypost.lab.report.blocks import Element, Figures, Piece, TableRow, table
from carrypost.lab.report.numbers import count, mean, points, share, shown
from carrypost.lab.report.papers import Claim, beside
from carrypost.lab.report.study import Series, Study

TITLE = "Routing strategies beside The ONE"
WHOLE_S = 43_200.1
UNCONTENDED, CONTENDED = "uncontended", "contended"
_NAMES = {
    "direct": "direct", "first-contact": "first contact", "spray-and-wait": "spray-and-wait", "prophet": "PRoPHET",
    "anti-entropy": "epidemic", "epidemic": "epidemic",
}  # fmt: skip


class Reference(NamedTuple):
    """The ONE's figures of one router."""

    delivered: float
    relayed: float
    delivery_prob: float
    latency_avg: float
    hopcount_avg: float


REFERENCES: Mapping[tuple[str, str], Reference] = {
    (strategy, load): Reference(*figures) for load, of in papers.ROUTERS.items() for strategy, figures in of.items()
}
"""By strategy and load. Of epidemic routing and PRoPHET without contention: the model's."""
_COLUMNS = (
    ("delivered", count), ("relayed", count), ("delivery_prob", share), ("latency_avg", shown), ("hopcount_avg", mean)
)  # fmt: skip
_ORDER = ("spray-and-wait", "direct", "prophet", "epidemic", "first-contact")
"""By delivery_prob in The ONE, with contention."""


def section(study: Study, all_series: Sequence[Series], figures: Figures) -> Markup:
    """Return everything about this experiment."""
    found = {key: each for each in all_series if (key := _key(each)) in REFERENCES}
    return figures.filled(
        "baselines",
        verdict=papers.of_claims(_claims(study, found), all_series, WHOLE_S),
        uncontended=_table(study, found, UNCONTENDED),
        contended=_table(study, found, CONTENDED),
        ran=origins.ran(all_series),
        seeds=origins.seeds(all_series),
        failures=origins.failures(study, all_series[0].scenario),
        parameters=origins.parameters(all_series, None),
    )


def is_of_experiment(all_series: Sequence[Series]) -> bool:
    """Return True if all settings are of the experiment."""
    return all(_key(series) in REFERENCES for series in all_series)


def _key(series: Series) -> tuple[str, str]:
    """Return strategy and load, as the settings are called."""
    strategy, _, load = series.settings.rpartition("-")
    return strategy, load


def _whole(series: Series) -> bool:
    return series.first.duration_s == WHOLE_S


def _table(study: Study, found: Mapping[tuple[str, str], Series], load: str) -> Element:
    """Return a group of rows for each strategy: The ONE's figures, ours, and the differences."""
    groups = []
    for strategy, name in _NAMES.items():
        if (series := found.get((strategy, load))) is None:
            continue
        whole = _whole(series)
        cells = [
            beside(
                study.values(ONE, series, column), getattr(REFERENCES[strategy, load], column) if whole else None, show,
                **({"differ": points} if show is share else {}), whole=whole,
            )
            for column, show in _COLUMNS
        ]  # fmt: skip
        lines = [TableRow("", ["carrypost", *(each.ours for each in cells)], "ours")]
        if whole:
            one: list[Piece] = ["The ONE", *(each.paper for each in cells)]
            lines = [TableRow(name, one, "paper"), *lines]
            lines.append(TableRow("", ["difference", *(each.difference for each in cells)], "difference"))
        else:
            lines = [TableRow(name, lines[0].cells, "ours")]
        groups.append(lines)
    heads = ("strategy", "", "delivered", "relayed", "delivery_prob", "latency_avg", "hopcount_avg")
    return table(f"{load.capitalize()}, beside The ONE", heads, groups, texts=(0,))


def _claims(study: Study, found: Mapping[tuple[str, str], Series]) -> list[Claim]:
    """Return what The ONE's runs show, and whether ours show it."""
    order = Claim("with contention, by delivery_prob: " + " > ".join(_NAMES[each] for each in _ORDER))
    ours = {
        strategy: _mean(study.values(ONE, series, "delivery_prob"))
        for strategy in _ORDER
        if (series := found.get((strategy, CONTENDED))) is not None and _whole(series)
    }
    if len(ours) == len(_ORDER):
        ranked = sorted(ours, key=lambda each: -ours[each])
        text = " > ".join(f"{_NAMES[each]} {share(ours[each])}" for each in ranked)
        order = order._replace(ours=text, holds=tuple(ranked) == _ORDER)
    claims = [order]
    for (strategy, load), series in found.items():
        if load == UNCONTENDED and _whole(series):
            values, reference = study.values(ONE, series, "delivered"), REFERENCES[strategy, load].delivered
            claims.append(papers.quoted(
                f"without contention {_NAMES[strategy]} delivers {reference:,.0f}", _mean(values), reference, count
            ))  # fmt: skip
    return claims


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
