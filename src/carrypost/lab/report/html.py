"""The page's building blocks: texts, tables and figures as HTML, everything from outside escaped.

A page is one file that needs nothing else: no script, no font, no picture from elsewhere.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import zip_longest

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
th{font-weight:normal}thead th{border-bottom:1px solid #888;color:#333}
thead th:first-child,thead th.text{text-align:left}thead tr:first-child th[colspan]{text-align:center}
tbody{border-bottom:1px solid #ddd}tbody th{text-align:left}
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
table{font-size:7.5pt}th,td{padding:.05rem .3rem}.many table{font-size:6.5pt}.most table{font-size:6pt}
.many th,.many td,.most th,.most td{padding:.05rem .2rem}.many th,.most th{white-space:normal}
figure svg{max-width:15cm!important}
pre{font-size:7.5pt;white-space:pre-wrap;overflow-wrap:anywhere}.every{columns:3;break-inside:auto;max-height:none;border:0}
.wide{overflow:visible}}
@page{margin:1.5cm}
"""


@dataclass(frozen=True, slots=True)
class Picture:
    """A plot: as part of a page, as a file of its own, and the numbers that are drawn."""

    inline: str
    svg: str
    csv: str


@dataclass(frozen=True, slots=True)
class Markup:
    """A piece of the page that is HTML already."""

    text: str
    figures: tuple[tuple[Picture, ...], ...] = ()
    """That are in it, each of one picture or more."""


Piece = str | Markup
_MANY, _MOST = 105, 125
"""Letters side by side that a sheet has no room for at the usual size of tables, and at the next smaller one."""
_TEXT = 20
_BREAK = "<span> </span>"
_CAPTION = re.compile(r"<figcaption>(.*?)</figcaption>", re.DOTALL)
_SHORT = 24
"""A table of no more rows is on one sheet."""


def joined(pieces: Iterable[Piece], between: str = "") -> Markup:
    """Several pieces as one; plain texts are escaped."""
    pieces = list(pieces)
    text = between.join(piece.text if isinstance(piece, Markup) else escape(piece, quote=False) for piece in pieces)
    return Markup(text, tuple(each for piece in pieces if isinstance(piece, Markup) for each in piece.figures))


def tag(name: str, *inside: Piece, kind: str = "") -> Markup:
    """An element, of a class if that is told."""
    opened = f'{name} class="{kind}"' if kind else name
    content = joined(inside)
    return Markup(f"<{opened}>{content.text}</{name}>", content.figures)


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
    over: Sequence[tuple[str, int]] = (), texts: Sequence[int] = (),
) -> Markup:  # fmt: skip
    """A table of groups of rows; `over` stands above the heads and spans some; columns of `texts` are to the left."""
    spanning = Markup("".join(f'<th colspan="{span}">{escape(name)}</th>' for name, span in over))
    top = tag("tr", spanning) if over else Markup("")
    named = (tag("th", each, kind="text" if place - 1 in texts else "") for place, each in enumerate(heads))
    head = tag("thead", top, tag("tr", *named))
    groups = list(groups)
    body = [tag("tbody", *(_row(line, texts) for line in group)) for group in groups]
    title = tag("caption", caption) if caption else Markup("")
    letters = _letters([line for group in groups for line in group], texts)
    kind = "wide" + (" most" if letters > _MOST else " many" if letters > _MANY else "")
    return tag("div", tag("table", title, head, *body), kind=kind + " short" * (sum(map(len, groups)) <= _SHORT))


def _letters(lines: Sequence[TableRow], texts: Sequence[int]) -> int:
    """How wide a table is at least, columns apart from each other; texts can be broken anywhere."""
    columns = zip_longest(*([line.head, *line.cells] for line in lines), fillvalue="")
    widths = (max(map(_length, column)) for column in columns)
    return sum(2 + (min(width, _TEXT) if place - 1 in texts else width) for place, width in enumerate(widths))


def _length(cell: Piece) -> int:
    parts = cell.text.split(_BREAK) if isinstance(cell, Markup) else [cell]
    return max(map(len, parts))


def _row(line: TableRow, texts: Sequence[int]) -> Markup:
    cells = (tag("td", cell, kind="text" if place in texts else "") for place, cell in enumerate(line.cells))
    return tag("tr", tag("th", line.head), *cells, kind=line.kind)


def within(mean: str, half_width: str | None) -> Markup:
    """A mean with its interval, which may stand below it; alone where there is none, or none to be seen."""
    if half_width is None or half_width == "0":
        return Markup(escape(mean, quote=False))
    return Markup(escape(mean, quote=False) + _BREAK + escape(f"± {half_width}", quote=False))


def figure(pictures: Sequence[tuple[str, Picture]], caption: Sequence[Piece]) -> Markup:
    """Pictures, each with what it is of (may be empty), and what they show. The page numbers them."""
    parts: list[Markup] = []
    for of, picture in pictures:
        parts += [tag("div", of, kind="half")] if of else []
        parts.append(Markup(picture.inline))
    made = tag("figure", *parts, tag("figcaption", *caption))
    return Markup(made.text, (tuple(picture for _, picture in pictures),))


def _numbered(text: str) -> str:
    """With numbers for figures: before the caption, or after it where the figure is called like one of a paper's."""
    numbers = itertools.count(1)

    def caption(found: re.Match[str]) -> str:
        number, inside = next(numbers), found[1]
        if inside.startswith("<b>"):
            return f"<figcaption>{inside} [figure {number} of this page]</figcaption>"
        return f"<figcaption><b>Figure {number}.</b> {inside}</figcaption>"

    return _CAPTION.sub(caption, text)


def page(title: str, body: Iterable[Piece]) -> str:
    """The whole file."""
    head = (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head>\n<body>\n"
    )
    return f"{head}{_numbered(joined(body, chr(10)).text)}\n</body></html>\n"
