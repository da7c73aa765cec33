"""The page's building blocks: templates, texts and tables as HTML, everything from outside escaped.

A page is one file that needs nothing else: no script, no font, no picture from elsewhere. Its prose is in
`templates`, which Jinja fills: each part of a page has one, with the order of its tables, figures and texts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import accumulate, zip_longest

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from carrypost.lab.report import times
from carrypost.lab.report.times import NOTHING
from carrypost.printing import many

STYLE = files("carrypost.lab.report").joinpath("page.css").read_text(encoding="utf-8")
Piece = str | Markup
"""A text, which is escaped, or a piece of the page that is HTML already."""
_MANY, _WIDEST = 105, 125
"""Letters side by side that a sheet has no room for at the usual size of tables, and at the next smaller one."""
_TEXT = 20
_BREAK = "<span> </span>"
_SHORT = 24
"""A table of no more rows is on one sheet."""


@cache
def _templates() -> Environment:
    loader = PackageLoader("carrypost.lab.report")
    made = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    made.globals |= {each.__name__: each for each in (times.shown, times.share, times.count, many, listed)}
    return made


def filled(template: str, **values: object) -> Markup:
    """Return a template with these values."""
    return Markup(_templates().get_template(f"{template}.html").render(values).strip())  # noqa: S704 - it escapes


def join(pieces: Iterable[Piece], between: str = "") -> Markup:
    """Join several pieces to one; plain texts are escaped."""
    return Markup(between).join(pieces)  # noqa: S704 - of ours


def tag(name: str, *inside: Piece, kind: str = "") -> Markup:
    """Return an element, with a class if `kind` is given."""
    looks = Markup(' class="{}"').format(kind) if kind else ""
    return Markup("<{0}{1}>{2}</{0}>").format(name, looks, join(inside))


def paragraph(*inside: Piece, kind: str = "") -> Markup:
    """Return a paragraph."""
    return tag("p", *inside, kind=kind)


@dataclass(frozen=True, slots=True)
class TableRow:
    """A row of a table."""

    head: Piece
    cells: Sequence[Piece]
    kind: str = ""


def table(
    caption: str, heads: Sequence[Piece], groups: Iterable[Sequence[TableRow]], *,
    over: Sequence[tuple[str, int]] = (), texts: Sequence[int] = (), kept: int = 1,
) -> Markup:  # fmt: skip
    """Return a table of groups of rows; `over` is above the heads and spans some; columns of `texts` are left-aligned.

    Columns beyond the width of the page follow as further tables, each with the first `kept` columns. Columns without
    any value are left out, and in place of a table without rows there is a sentence.
    """
    groups = [list(group) for group in groups]
    every = [line for group in groups for line in group]
    if not every:
        return paragraph(f"{caption}: there are no data in these runs.", kind="note")
    columns = list(zip_longest(heads, *([line.head, *line.cells] for line in every), fillvalue=""))
    widths = [_width(column, broken=place - 1 in (-1, *texts)) for place, column in enumerate(columns)]
    empty = {place for place, (_, *cells) in enumerate(columns) if place >= kept and {"", NOTHING}.issuperset(cells)}
    spans = [span for _, span in over] or [1] * len(columns)
    begins = list(accumulate(spans, initial=0))
    parts = []
    for part in _parts(widths, spans, kept):
        there = [place for place in part if place not in empty]
        above = [
            (name, many)
            for (name, span), first in zip(over, begins, strict=False)
            if (many := len({*range(first, first + span)} - empty)) and {*range(first, first + span)} & {*there}
        ]
        parts.append({"columns": there, "over": above, "many": sum(widths[place] for place in there) > _MANY})
    return filled(
        "table", caption=caption, heads=heads, groups=groups, parts=parts, texts=texts, short=len(every) <= _SHORT
    )


def listed(caption: str, heads: Sequence[Piece], rows: Iterable[Sequence[Piece]], texts: Sequence[int] = ()) -> Markup:
    """Return a table of rows whose first cell is their head."""
    return table(caption, heads, [[TableRow(head, cells) for head, *cells in rows]], texts=texts)


def comparison(caption: str, heads: Sequence[Piece], lines: Sequence[TableRow], *, texts: Sequence[int] = ()) -> Markup:
    """Return a table of lines that are compared; columns in which all of them are alike become a sentence below it."""
    columns = list(zip(*(line.cells for line in lines), strict=True))
    same = [place for place, cells in enumerate(columns) if len(set(cells)) == 1]
    if len(lines) <= 1 or len(same) == len(columns):
        return table(caption, heads, [lines], texts=texts)
    kept = [place for place in range(len(columns)) if place not in same]
    rows = [TableRow(line.head, [line.cells[place] for place in kept], line.kind) for line in lines]
    shown = [join((heads[place + 1], " ", columns[place][0])) for place in same if columns[place][0] != NOTHING]
    made = table(caption, [heads[0], *(heads[place + 1] for place in kept)], [rows],
                 texts=[kept.index(place) for place in texts if place in kept])  # fmt: skip
    return join([made, paragraph("The same in all rows: ", join(shown, "; "), ".", kind="note")]) if shown else made


def _parts(widths: Sequence[int], spans: Sequence[int], kept: int) -> list[list[int]]:
    """Return columns by table: as many as fit, those below one head together, after those that all tables have."""
    starts = list(accumulate((0, *spans)))
    units = [list(range(start, min(start + span, len(widths)))) for start, span in zip(starts, spans, strict=False)]
    first = list(range(kept))
    parts: list[list[int]] = [first[:]]
    for unit in units:
        new = [column for column in unit if column >= kept]
        room = _WIDEST - sum(widths[column] for column in parts[-1])
        if len(parts[-1]) > kept and sum(widths[column] for column in new) > room:
            parts.append(first[:])
        parts[-1] += new
    return parts


def _width(column: Sequence[Piece], *, broken: bool) -> int:
    """Return the least width of a column in letters, and the space beside it; `broken`: it can be broken anywhere."""
    head, *cells = column
    width = max(
        max((len(part) for cell in cells for part in cell.split(_BREAK)), default=0), *map(len, head.split()), 0
    )
    return 2 + (min(width, _TEXT) if broken else width)


def give_or_take(mean: str, half: str) -> Markup:
    """Return a mean with half of its interval, which may stand below it."""
    return Markup("{}<span> </span>± {}").format(mean, half)
