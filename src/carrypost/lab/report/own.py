"""The part of a page about metrics of one's own (`carrypost.lab.metrics.plugins`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from carrypost.errors import LocalError
from carrypost.lab.metrics.plugins import Plugin
from carrypost.lab.report import tables
from carrypost.lab.report.grids import Element, Grid, TableRow, table
from carrypost.lab.report.html import paragraph, tag
from carrypost.lab.report.pictures import Block, Figure
from carrypost.lab.report.study import Series, Study
from carrypost.lab.report.times import count, mean, share, shown
from carrypost.lab.schemas import Column, Table

_ROWS_MAX = 40


def part(study: Study, all_series: Sequence[Series], plugins: Sequence[Plugin]) -> list[Block]:
    """Return what plugins show of a scenario: what their own functions return, or their tables."""
    made: list[Block] = []
    for plugin in plugins:
        if plugin.report is not None:
            found = list(plugin.report(study, all_series))
            for each in found:
                if not isinstance(each, str | Grid | Figure):
                    raise LocalError(f"{plugin.path}: report must return parts of a page, not {each!r}")
            made += found
        else:
            for of in plugin.families:
                made += [tag("h3", of.name), *_shown(study, all_series, of)]
    return made


def _shown(study: Study, all_series: Sequence[Series], of: Table) -> list[Element]:
    """Return a family as a table: texts are keys, numbers are means over seeds."""
    keys = [each for each in of.columns[1:] if each.type == "string"]
    values = [each for each in of.columns[1:] if each.type != "string"]
    lines = [line for series in all_series for line in _rows(study, series, of, (keys, values))]
    heads = ["settings", *(each.name for each in (*keys, *values))]
    more = f", the first {_ROWS_MAX:,} of {len(lines):,} rows" if len(lines) > _ROWS_MAX else ""
    meaning = f"{of.meaning[:1].upper()}{of.meaning[1:]}{more}"
    meanings = "; ".join(f"{each.name}: {each.meaning}" for each in of.columns[1:])
    return [
        table(meaning, heads, [lines[:_ROWS_MAX]], texts=tuple(range(len(keys)))),
        paragraph(f"{meanings}.", kind="note"),
    ]


def _rows(study: Study, series: Series, of: Table, columns: tuple[list[Column], list[Column]]) -> list[TableRow]:
    keys, values = columns
    found: dict[tuple[str, ...], list[list[float]]] = {}
    for run in series.runs:
        rows = study.columns(of, run)
        for at in range(len(rows["run"])):
            key = tuple(str(rows[each.name][at]) for each in keys)
            figures = found.setdefault(key, [[] for _ in values])
            for figure, column in zip(figures, values, strict=True):
                figure.append(float(rows[column.name][at]))
    return [
        TableRow(series.settings, [*key, *(
            tables.over_seeds([each for each in figure if each == each], _show(column))  # noqa: PLR0124 - not a number
            for figure, column in zip(figures, values, strict=True)
        )])
        for key, figures in sorted(found.items())
    ]  # fmt: skip


def _show(column: Column) -> Callable[[float | None], str]:
    """Return how a column is written: by its unit, which its name ends with, or by its type."""
    if column.name.endswith("_s"):
        return shown
    if column.name.endswith(("ratio", "share")):
        return share
    return count if column.type.startswith("int") else mean
