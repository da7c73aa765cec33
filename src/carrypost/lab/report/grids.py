"""Tables of a page: values that are shown as HTML, and are files beside the page as CSV and LaTeX.

A table that is too wide for the page comes in parts there, and is one file. LaTeX needs the package booktabs.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, zip_longest

from markupsafe import Markup

from carrypost.lab.report.html import Link, Piece, filled, join, paragraph
from carrypost.lab.report.times import NOTHING

_MANY, _WIDEST = 105, 125
"""Letters side by side that a sheet has no room for at the usual size of tables, and at the next smaller one."""
_TEXT = 20
_BREAK = "<span> </span>"
_SHORT = 24
"""A table of no more rows is on one sheet."""
_LATIN_1 = 0xFF
_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "\N{MINUS SIGN}": "$-$", "×": r"$\times$",
    "\N{EN DASH}": "--", "≤": r"$\leq$", "≥": r"$\geq$", "<": "$<$", ">": "$>$", "µ": r"$\mu$", "Δ": r"$\Delta$",
    "\N{LEFT DOUBLE QUOTATION MARK}": "``", "\N{RIGHT DOUBLE QUOTATION MARK}": "''",
    "\N{RIGHT SINGLE QUOTATION MARK}": "'", "…": r"\ldots{}", "\N{NO-BREAK SPACE}": "~",
    "\N{NARROW NO-BREAK SPACE}": r"\,", "\N{THIN SPACE}": r"\,", "→": r"$\to$",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TableRow:
    """A row of a table."""

    head: Piece
    cells: Sequence[Piece]
    kind: str = ""


@dataclass(frozen=True, eq=False)
class Grid:
    """A table: groups of rows below heads, of which some may be below a further head that spans them."""

    caption: str
    heads: Sequence[Piece]
    groups: Sequence[Sequence[TableRow]]
    over: Sequence[tuple[str, int]] = ()
    """Heads above the heads, each with the number of columns that it spans."""
    texts: Sequence[int] = ()
    """Columns of texts, which are left-aligned; the first one behind the heads of rows is 0."""
    kept: int = 1
    """Columns at the beginning that all parts of a wide table have."""

    @cached_property
    def _rows(self) -> list[TableRow]:
        return [row for group in self.groups for row in group]

    @cached_property
    def _columns(self) -> list[tuple[Piece, ...]]:
        return list(zip_longest(self.heads, *map(_cells, self._rows), fillvalue=""))

    @cached_property
    def _there(self) -> list[int]:
        """Columns that are shown: those without any value are left out."""
        return [
            place for place, (_, *cells) in enumerate(self._columns)
            if place < self.kept or not {"", NOTHING}.issuperset(cells)
        ]  # fmt: skip

    def _above(self, columns: Sequence[int]) -> list[tuple[str, int]]:
        """Return the heads above some of these columns, each with the number of its columns that are shown at all."""
        begins, found = accumulate((span for _, span in self.over), initial=0), []
        for (name, span), first in zip(self.over, begins, strict=False):
            below = {*range(first, first + span)}
            if below & {*columns}:
                found.append((name, len(below & {*self._there})))
        return found

    # ------------------------------------------------------------------------------------------------------ as HTML
    def html(self, number: int = 0, links: Sequence[Link] = ()) -> Markup:
        """Return the table for a page; `links` are those to its files, below it with its number."""
        widths = [
            _width(column, broken=place - 1 in (-1, *self.texts)) for place, column in enumerate(self._columns)
        ]  # fmt: skip
        parts = []
        for part in self._parts(widths):
            columns = [place for place in part if place in self._there]
            many = sum(widths[place] for place in columns) > _MANY
            parts.append({"columns": columns, "over": self._above(columns), "many": many})
        short = len(self._rows) <= _SHORT
        return filled("table", table=self, parts=parts, short=short, number=number, links=links)

    def _parts(self, widths: Sequence[int]) -> list[list[int]]:
        """Return columns by part: as many as fit, those below one head together, after those that all parts have."""
        spans = [span for _, span in self.over] or [1] * len(widths)
        starts = accumulate(spans, initial=0)
        units = [list(range(start, min(start + span, len(widths)))) for start, span in zip(starts, spans, strict=False)]
        first = list(range(self.kept))
        parts: list[list[int]] = [first[:]]
        for unit in units:
            new = [column for column in unit if column >= self.kept]
            room = _WIDEST - sum(widths[column] for column in parts[-1])
            if len(parts[-1]) > self.kept and sum(widths[column] for column in new) > room:
                parts.append(first[:])
            parts[-1] += new
        return parts

    # ---------------------------------------------------------------------------------------------------- as a file
    def files(self, name: str) -> dict[str, str]:
        """Return the files of the table, by name."""
        return {f"{name}.csv": self.csv(), f"{name}.tex": self.latex(name)}

    def csv(self) -> str:
        """Return the table as CSV, cells as they are shown."""
        above = [name for name, span in self.over for _ in range(span)]
        heads = [": ".join(filter(None, each)) for each in zip_longest(above, map(_plain, self.heads), fillvalue="")]
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(map(self._texts, [heads, *map(_cells, self._rows)]))
        return text.getvalue()

    def latex(self, label: str) -> str:
        """Return the table for LaTeX, with rules of booktabs."""
        above = [
            rf"\multicolumn{{{span}}}{{c}}{{{_latex(name)}}}" if span > 1 else _latex(name)
            for name, span in self._above(self._there)
        ]
        rows = [above] if above else []
        rows.append(list(map(_latex, self._texts(self.heads))))
        lines = [r"\begin{table}", r"\centering", rf"\caption{{{_latex(self.caption)}}}", rf"\label{{tab:{label}}}"]
        lines += [rf"\begin{{tabular}}{{l{'r' * (len(self._there) - 1)}}}", r"\toprule"]
        for group in (rows, *(([*map(_latex, self._texts(_cells(row)))] for row in group) for group in self.groups)):
            lines += [*(" & ".join(row) + r" \\" for row in group), r"\midrule"]
        return "\n".join([*lines[:-1], r"\bottomrule", r"\end{tabular}", r"\end{table}", ""])

    def _texts(self, cells: Sequence[Piece]) -> list[str]:
        """Return the cells of the columns that are shown, as texts; those that a short row lacks are empty."""
        return [_plain(cells[place]) if place < len(cells) else "" for place in self._there]


Element = Piece | Grid
"""A text, a piece of the page that is HTML already, or a table."""


def _cells(row: TableRow) -> Sequence[Piece]:
    return [row.head, *row.cells]


def _plain(piece: Piece) -> str:
    """Return a piece as a text in one line."""
    return " ".join((piece.striptags() if isinstance(piece, Markup) else piece).split())


def _latex(text: str) -> str:
    """Return a text for LaTeX; what the usual fonts lack becomes a question mark."""
    return "".join(_LATEX.get(each, each if ord(each) <= _LATIN_1 else "?") for each in text)


def _width(column: Sequence[Piece], *, broken: bool) -> int:
    """Return the least width of a column in letters, and the space beside it; `broken`: it can be broken anywhere."""
    head, *cells = column
    width = max(
        max((len(part) for cell in cells for part in cell.split(_BREAK)), default=0), *map(len, head.split()), 0
    )
    return 2 + (min(width, _TEXT) if broken else width)


def table(
    caption: str, heads: Sequence[Piece], groups: Iterable[Sequence[TableRow]], *,
    over: Sequence[tuple[str, int]] = (), texts: Sequence[int] = (), kept: int = 1,
) -> Element:  # fmt: skip
    """Return a table of groups of rows, with the fields of a `Grid`; in place of one without rows, a sentence."""
    made = Grid(caption, heads, [list(group) for group in groups], over, texts, kept)
    if not any(made.groups):
        return paragraph(f"{caption}: there are no data in these runs.", kind="note")
    return made


def listed(caption: str, heads: Sequence[Piece], rows: Iterable[Sequence[Piece]], texts: Sequence[int] = ()) -> Element:
    """Return a table of rows whose first cell is their head."""
    return table(caption, heads, [[TableRow(head, cells) for head, *cells in rows]], texts=texts)


def comparison(
    caption: str, heads: Sequence[Piece], lines: Sequence[TableRow], *, texts: Sequence[int] = ()
) -> list[Element]:
    """Return a table of lines that are compared; columns in which all of them are alike become a sentence below it."""
    columns = list(zip(*(line.cells for line in lines), strict=True))
    same = [place for place, cells in enumerate(columns) if len(set(cells)) == 1]
    if len(lines) <= 1 or len(same) == len(columns):
        return [table(caption, heads, [lines], texts=texts)]
    kept = [place for place in range(len(columns)) if place not in same]
    rows = [TableRow(line.head, [line.cells[place] for place in kept], line.kind) for line in lines]
    shown = [join((heads[place + 1], " ", columns[place][0])) for place in same if columns[place][0] != NOTHING]
    made = table(caption, [heads[0], *(heads[place + 1] for place in kept)], [rows],
                 texts=[kept.index(place) for place in texts if place in kept])  # fmt: skip
    note = paragraph("The same in all rows: ", join(shown, "; "), ".", kind="note")
    return [made, note] if shown else [made]
