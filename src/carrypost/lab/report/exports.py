"""Tables of a page as files, CSV and LaTeX, and the list of its contents.

They are found in the finished page, so that every table is there, whichever part made it. A table that is too wide for
the page comes in parts there, and is one file. LaTeX needs the package booktabs.
"""

from __future__ import annotations

import csv
import io
import re
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import NamedTuple

from markupsafe import Markup

CONTINUED = " (continued)"
_HEADING = re.compile(r"<h([23])>(.*?)</h\1>", re.DOTALL)
_TABLE = re.compile(r"<table>.*?</table>(?:</div>)?", re.DOTALL)
_FILES = re.compile(r'\s*<(p|span) class="files">.*?</\1>', re.DOTALL)
_TAG = re.compile(r"<[^>]*>")
_HEADINGS_MIN = 3
_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "\N{MINUS SIGN}": "$-$", "×": r"$\times$",
    "\N{EN DASH}": "--", "≤": r"$\leq$", "≥": r"$\geq$", "<": "$<$", ">": "$>$", "µ": r"$\mu$", "Δ": r"$\Delta$",
    "\N{LEFT DOUBLE QUOTATION MARK}": "``", "\N{RIGHT DOUBLE QUOTATION MARK}": "''",
    "\N{RIGHT SINGLE QUOTATION MARK}": "'", "…": r"\ldots{}", "\N{NO-BREAK SPACE}": "~",
    "\N{NARROW NO-BREAK SPACE}": r"\,", "\N{THIN SPACE}": r"\,", "→": r"$\to$",
}  # fmt: skip


class Heading(NamedTuple):
    """An entry of the contents."""

    level: int
    name: str
    text: str


def contents(body: str) -> tuple[Markup, list[Heading]]:
    """Return the page with names for its headings, and the list of these; empty where they are few."""
    found: list[Heading] = []

    def named(match: re.Match[str]) -> str:
        level, inside = match.groups()
        found.append(Heading(int(level), f"section-{len(found) + 1}", Markup(inside).striptags()))  # noqa: S704 - ours
        return f'<h{level} id="{found[-1].name}">{inside}</h{level}>'

    text = _HEADING.sub(named, body)
    if len(found) < _HEADINGS_MIN:
        return Markup(body), []  # noqa: S704 - ours
    return Markup(text), found  # noqa: S704 - ours


def unlinked(page: str) -> str:
    """Return a page without links to files beside it, for where it is alone."""
    return _FILES.sub("", page)


@dataclass
class Grid:
    """A table as texts."""

    caption: str = ""
    heads: list[list[tuple[str, int]]] = field(default_factory=list)
    """Rows of heads: each with the number of columns that it is above."""
    groups: list[list[list[str]]] = field(default_factory=list)
    """Rows of cells, by group."""

    @property
    def columns(self) -> list[str]:
        """The heads of the columns, each with those above it."""
        rows = [[text for text, span in row for _ in range(span)] for row in self.heads]
        return [": ".join(filter(None, column)) for column in zip(*rows, strict=False)]

    def csv(self) -> str:
        """Return the table as CSV, cells as they are shown."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self.columns)
        writer.writerows(row for group in self.groups for row in group)
        return text.getvalue()

    def latex(self, label: str) -> str:
        """Return the table for LaTeX, with rules of booktabs."""
        count = len(self.columns)
        lines = [r"\begin{table}", r"\centering", rf"\caption{{{_latex(self.caption)}}}", rf"\label{{tab:{label}}}"]
        lines += [rf"\begin{{tabular}}{{l{'r' * (count - 1)}}}", r"\toprule"]
        for row in self.heads:
            spanned = (rf"\multicolumn{{{span}}}{{c}}{{{_latex(text)}}}" if span > 1 else _latex(text)
                       for text, span in row)  # fmt: skip
            lines.append(" & ".join(spanned) + r" \\")
        for group in self.groups:
            lines.append(r"\midrule")
            lines += [" & ".join(map(_latex, row)) + r" \\" for row in group]
        return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}", ""])

    def beside(self, other: Grid) -> Grid:
        """Return this table with the columns of its next part, but for the first ones, which both have."""
        kept = 0
        for mine, theirs in zip(self._by_column(), other._by_column(), strict=False):
            if mine != theirs:
                break
            kept += 1
        heads = [[*mine, *_after(theirs, kept)] for mine, theirs in zip(self.heads, other.heads, strict=True)]
        groups = [
            [[*mine, *theirs[kept:]] for mine, theirs in zip(*pair, strict=True)]
            for pair in zip(self.groups, other.groups, strict=True)
        ]
        return Grid(self.caption, heads, groups)

    def _by_column(self) -> list[tuple[str, ...]]:
        return list(zip(self.columns, *(row for group in self.groups for row in group), strict=False))


def _after(row: list[tuple[str, int]], kept: int) -> list[tuple[str, int]]:
    """Return the heads of a row behind these columns."""
    done, found = 0, []
    for text, span in row:
        if done + span > kept:
            found.append((text, min(span, done + span - kept)))
        done += span
    return found


class _TableReader(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.grid = Grid()
        self._place = ""
        self._spans: list[int] = []
        self._cells: list[str] | None = None
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in {"caption", "thead", "tbody"}:
            self._place = tag
            if tag == "tbody":
                self.grid.groups.append([])
        elif tag == "tr":
            self._cells, self._spans = [], []
        elif tag in {"th", "td"} and self._cells is not None:
            self._cells.append("")
            self._spans.append(int(dict(attrs).get("colspan") or 1))

    def handle_endtag(self, tag: str) -> None:
        if tag != "tr" or self._cells is None:
            return
        row = [" ".join(cell.split()) for cell in self._cells]
        if self._place == "thead":
            self.grid.heads.append(list(zip(row, self._spans, strict=True)))
        else:
            self.grid.groups[-1].append(row)
        self._cells = None

    def handle_data(self, data: str) -> None:
        if self._cells:
            self._cells[-1] += data
        elif self._place == "caption" and self._cells is None:
            self.grid.caption += data.strip("\n")


def _latex(text: str) -> str:
    """Return a text for LaTeX; what the usual fonts lack becomes a question mark."""
    return "".join(_LATEX.get(each, each if ord(each) <= _LATIN_1 else "?") for each in text)


_LATIN_1 = 0xFF


def tables(body: str, beside: str) -> tuple[Markup, dict[str, str]]:
    """Return the page with a number and links below each table that has a caption, and the files by name."""
    grids: list[Grid] = []

    def linked(match: re.Match[str]) -> str:
        grid = _TableReader(match[0]).grid
        if not grid.caption:
            return match[0]
        if grid.caption.endswith(CONTINUED) and grids:
            grids[-1] = grids[-1].beside(grid)
            return match[0]
        grids.append(grid)
        name = f"table-{len(grids)}"
        links = " ".join(f'<a href="{beside}/{name}.{ending}">{ending.upper()}</a>' for ending in ("csv", "tex"))
        line = f'<p class="files">Table {len(grids)}: {links}</p>'
        return match[0].replace("</table>", f"</table>{line}", 1)

    text = Markup(_TABLE.sub(linked, body))  # noqa: S704 - ours
    files: dict[str, str] = {}
    for number, grid in enumerate(grids, 1):
        name = f"table-{number}"
        files |= {f"{name}.csv": grid.csv(), f"{name}.tex": grid.latex(name)}
    return text, files
