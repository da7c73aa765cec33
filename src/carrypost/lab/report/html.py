"""The page's building blocks: texts and tables as HTML, everything from outside escaped.

A page is one file that needs nothing else: no script, no font, no picture from elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import accumulate, zip_longest

STYLE = """
:root{color-scheme:light}
body{font:15px/1.5 Helvetica,Arial,sans-serif;color:#1a1a1a;background:#fff;max-width:62rem;margin:2rem auto;
padding:0 1rem}
h1{font-size:1.6rem;line-height:1.2;margin:0 0 .3rem}
h2{font-size:1.25rem;margin:2.4rem 0 .5rem;border-bottom:1px solid #bbb}
h3{font-size:1.02rem;margin:1.6rem 0 .3rem}p{margin:.5rem 0;max-width:50rem}
.lead{color:#444}.part{border:2px solid #c2410c;padding:.5rem .8rem;max-width:48rem}
.wide{overflow-x:auto}
table{border-collapse:collapse;font-size:.82rem;margin:.5rem 0;font-variant-numeric:tabular-nums}
caption{caption-side:top;white-space:nowrap;text-align:left;font-weight:bold;padding:.3rem 0}
th,td{padding:.1rem .5rem;text-align:right;vertical-align:top;white-space:nowrap}
th{font-weight:normal}thead th{border-bottom:1px solid #888;color:#333;vertical-align:bottom;white-space:normal}
thead th:first-child,thead th.text{text-align:left}thead tr:first-child th[colspan]{text-align:center}
tbody{border-bottom:1px solid #ddd}tbody th{text-align:left;white-space:normal;overflow-wrap:anywhere;min-width:7em}
td.text{text-align:left;white-space:normal}td span{white-space:normal}
tr.paper{color:#555}tr.ours{font-weight:bold}tr.spread,tr.difference{color:#555;font-size:.95em}
figure{margin:1rem 0}figure svg{width:100%;height:auto;display:block}svg text{font-family:Helvetica,Arial,sans-serif}
figcaption{font-size:.85rem;color:#333;max-width:50rem}.half{font-size:.85rem;margin:.4rem 0 0 2.8rem}
code,pre{font:.82rem/1.4 ui-monospace,Menlo,Consolas,monospace}
pre{background:#f5f5f5;padding:.5rem .7rem;overflow-x:auto}
.note{font-size:.85rem;color:#444}.every{max-height:14rem;overflow-y:auto;border:1px solid #ddd}
@media print{body{font-size:10pt;margin:0;padding:0;max-width:none}
h1{font-size:16pt}h2{font-size:13pt}h3{font-size:11pt}
.note,figcaption,.half{font-size:9pt}
svg,tbody,figcaption,pre,.short{break-inside:avoid}h2,h3,caption,thead,.half{break-after:avoid}
figcaption{break-before:avoid}
table{font-size:7.5pt}th,td{padding:.05rem .3rem}.many table{font-size:6.5pt}
.many th,.many td{padding:.05rem .2rem}
figure svg{max-width:15cm!important}
pre{font-size:7.5pt;white-space:pre-wrap;overflow-wrap:anywhere}.every{columns:3;break-inside:auto;max-height:none;border:0}
.wide{overflow:visible}}
@page{margin:1.5cm}
"""


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


def joined(pieces: Iterable[Piece], between: str = "") -> Markup:
    """Several pieces as one; plain texts are escaped."""
    return Markup(
        between.join(piece.text if isinstance(piece, Markup) else escape(piece, quote=False) for piece in pieces)
    )


def tag(name: str, *inside: Piece, kind: str = "") -> Markup:
    """An element, of a class if that is told."""
    opened = f'{name} class="{kind}"' if kind else name
    return Markup(f"<{opened}>{joined(inside).text}</{name}>")


def paragraph(*inside: Piece, kind: str = "") -> Markup:
    """A paragraph."""
    return tag("p", *inside, kind=kind)


def code(text: str) -> Markup:
    """Commands and names as they are typed."""
    return tag("code", text)


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
    """A table of groups of rows; `over` stands above the heads and spans some; columns of `texts` are to the left.

    What is wider than the page follows as further tables, each with the first columns that are `kept`.
    """
    groups = [list(group) for group in groups]
    widths = _widths(heads, [line for group in groups for line in group], texts)
    spans = [span for _, span in over] or [1] * len(widths)
    parts = _parts(widths, spans, kept)
    made = []
    for number, columns in enumerate(parts):
        name = f"{caption} (continued)" if number else caption
        above = [span for span, first in zip(over, accumulate((0, *spans)), strict=False) if first in columns]
        lines = [[_of_columns(line, columns) for line in group] for group in groups]
        letters = sum(widths[column] for column in columns)
        moved = [columns.index(each + 1) - 1 for each in texts if each + 1 in columns]
        part = _table(name, [heads[column] for column in columns if column < len(heads)], lines, above, moved)
        kind = "wide" + " many" * (letters > _MANY) + " short" * (sum(map(len, groups)) <= _SHORT)
        made.append(tag("div", part, kind=kind))
    return joined(made)


def _of_columns(line: TableRow, columns: Sequence[int]) -> TableRow:
    cells = [line.cells[column - 1] for column in columns if 0 < column <= len(line.cells)]
    return TableRow(line.head, cells, line.kind)


def _parts(widths: Sequence[int], spans: Sequence[int], kept: int) -> list[list[int]]:
    """Columns by table: as many as have room, those below one head together, after those that all tables have."""
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
    """How many letters wide columns are at least, and what is between them; texts can be broken anywhere."""
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
    """A mean with half of its interval, which may stand below it."""
    return Markup(escape(mean, quote=False) + _BREAK + escape(f"± {half}", quote=False))


def page(title: str, body: Iterable[Piece]) -> str:
    """The whole file."""
    head = (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head>\n<body>\n"
    )
    return f"{head}{joined(body, chr(10)).text}\n</body></html>\n"
