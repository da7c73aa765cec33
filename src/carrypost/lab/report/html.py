"""The page's building blocks: texts and tables as HTML, everything from outside escaped.

A page is one file that needs nothing else: no script, no font, no picture from elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from itertools import accumulate, zip_longest

from carrypost.lab.report.times import NOTHING

STYLE = files("carrypost.lab.report").joinpath("page.css").read_text(encoding="utf-8")


@dataclass(frozen=True, slots=True)
class Markup:
    """A piece of the page that is HTML already."""

    text: str


Piece = str | Markup
_MANY, _WIDEST = 105, 125
"""Letters side by side that a sheet has no room for at the usual size of tables, and at the next smaller one."""
_TEXT = 20
_BREAK = "<span> </span>"
_SHORT = 24
"""A table of no more rows is on one sheet."""


def join(pieces: Iterable[Piece], between: str = "") -> Markup:
    """Join several pieces to one; plain texts are escaped."""
    return Markup(
        between.join(piece.text if isinstance(piece, Markup) else escape(piece, quote=False) for piece in pieces)
    )


def tag(name: str, *inside: Piece, kind: str = "") -> Markup:
    """Return an element, with a class if `kind` is given."""
    opened = f'{name} class="{kind}"' if kind else name
    return Markup(f"<{opened}>{join(inside).text}</{name}>")


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
    widths = _widths(heads, every, texts)
    spans = [span for _, span in over] or [1] * len(widths)
    empty = {place for place in range(kept, len(widths)) if all(_is_empty(line, place) for line in every)}
    over = [
        (name, sum(place not in empty for place in range(first, first + span)))
        for (name, span), first in zip(over, accumulate((0, *spans)), strict=False)
    ]
    parts = [[column for column in part if column not in empty] for part in _parts(widths, spans, kept)]
    made = []
    for number, columns in enumerate(parts):
        name = f"{caption} (continued)" if number else caption
        above = [
            (head, many)
            for (head, many), first, span in zip(over, accumulate((0, *spans)), spans, strict=False)
            if many and {*range(first, first + span)} & {*columns}
        ]
        lines = [[_of_columns(line, columns) for line in group] for group in groups]
        letters = sum(widths[column] for column in columns)
        moved = [columns.index(each + 1) - 1 for each in texts if each + 1 in columns]
        part = _table(name, [heads[column] for column in columns if column < len(heads)], lines, above, moved)
        kind = "wide" + " many" * (letters > _MANY) + " short" * (sum(map(len, groups)) <= _SHORT)
        made.append(tag("div", part, kind=kind))
    return join(made)


def comparison(caption: str, heads: Sequence[Piece], lines: Sequence[TableRow], *, texts: Sequence[int] = ()) -> Markup:
    """Return a table of lines that are compared; columns in which all of them are alike become a sentence below it."""
    columns = list(zip(*(line.cells for line in lines), strict=True))
    same = [place for place, cells in enumerate(columns) if len(set(map(_plain, cells))) == 1]
    if len(lines) <= 1 or len(same) == len(columns):
        return table(caption, heads, [lines], texts=texts)
    kept = [place for place in range(len(columns)) if place not in same]
    rows = [TableRow(line.head, [line.cells[place] for place in kept], line.kind) for line in lines]
    shown = [join((heads[place + 1], " ", columns[place][0])) for place in same if columns[place][0] != NOTHING]
    made = table(caption, [heads[0], *(heads[place + 1] for place in kept)], [rows],
                 texts=[kept.index(place) for place in texts if place in kept])  # fmt: skip
    return join([made, paragraph("The same in all rows: ", join(shown, "; "), ".", kind="note")]) if shown else made


def _is_empty(line: TableRow, place: int) -> bool:
    return place > len(line.cells) or (place > 0 and line.cells[place - 1] in {"", NOTHING})


def _of_columns(line: TableRow, columns: Sequence[int]) -> TableRow:
    cells = [line.cells[column - 1] for column in columns if 0 < column <= len(line.cells)]
    return TableRow(line.head, cells, line.kind)


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


def _table(
    caption: str, heads: Sequence[Piece], groups: Sequence[Sequence[TableRow]], over: Sequence[tuple[str, int]],
    texts: Sequence[int],
) -> Markup:  # fmt: skip
    spanning = Markup("".join(f'<th colspan="{span}">{escape(name)}</th>' for name, span in over))
    top = tag("tr", spanning) if over else Markup("")
    named = (tag("th", each, kind="text" if place - 1 in texts else "") for place, each in enumerate(heads))
    head = tag("thead", top, tag("tr", *named))
    body = [tag("tbody", *(_row(line, texts) for line in group)) for group in groups]
    title = tag("caption", caption) if caption else Markup("")
    return tag("table", title, head, *body)


def _widths(heads: Sequence[Piece], lines: Sequence[TableRow], texts: Sequence[int]) -> list[int]:
    """Return the least widths of columns in letters, and the space between them; texts can be broken anywhere."""
    columns = zip_longest(*([line.head, *line.cells] for line in lines), fillvalue="")
    found = [max(map(_length, column)) for column in columns] or [0] * len(heads)
    words = [max(map(len, _plain(head).split()), default=0) for head in heads]
    widths = (max(pair) for pair in zip_longest(found, words, fillvalue=0))
    return [2 + (min(width, _TEXT) if place - 1 in (-1, *texts) else width) for place, width in enumerate(widths)]


def _plain(piece: Piece) -> str:
    return piece.text if isinstance(piece, Markup) else piece


def _length(cell: Piece) -> int:
    parts = cell.text.split(_BREAK) if isinstance(cell, Markup) else [cell]
    return max(map(len, parts))


def _row(line: TableRow, texts: Sequence[int]) -> Markup:
    cells = (tag("td", cell, kind="text" if place in texts else "") for place, cell in enumerate(line.cells))
    return tag("tr", tag("th", line.head), *cells, kind=line.kind)


def give_or_take(mean: str, half: str) -> Markup:
    """Return a mean with half of its interval, which may stand below it."""
    return Markup(escape(mean, quote=False) + _BREAK + escape(f"± {half}", quote=False))


def page(title: str, body: Iterable[Piece]) -> str:
    """Return the whole file."""
    head = (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>\n{STYLE}</style></head>\n<body>\n"
    )
    return f"{head}{join(body, chr(10)).text}\n</body></html>\n"
