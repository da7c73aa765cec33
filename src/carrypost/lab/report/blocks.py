"""The blocks of a page: texts as HTML, tables, and figures; tables and figures are also files beside the page.

A page is one file that needs nothing else: no script, no font, no picture from elsewhere. Its prose is in `templates`,
which Jinja fills: each part of a page has one, with the order of its tables, figures and texts. Everything from outside
is escaped.

Tables are shown as HTML, and are files as CSV and LaTeX, which needs the package booktabs. A table that is too wide for
the page comes in parts there, and is one file.

Figures and tables are numbered as they come on the page. Figure 4 with two halves gives ``figure-4a.svg``,
``figure-4a.pdf`` and the same of ``b``, for papers and slides, and ``figure-4a.csv`` and ``figure-4b.csv`` with the
points that are drawn, for other plotting programs.
"""

from __future__ import annotations

import csv
import io
import re
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from html import escape
from importlib.resources import files
from itertools import accumulate, zip_longest
from typing import NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined, Undefined, pass_context
from jinja2.runtime import Context
from markupsafe import Markup

from carrypost.lab.report import numbers
from carrypost.lab.report.numbers import NOTHING
from carrypost.printing import many

STYLE = files("carrypost.lab.report").joinpath("page.css").read_text(encoding="utf-8")
Piece = str | Markup
"""A text, which is escaped, or a piece of the page that is HTML already."""
_HEADING = re.compile(r"<h([23])>(.*?)</h\1>", re.DOTALL)
_HEADINGS_MIN = 3
Link = tuple[str, str]
"""The name of a file beside the page, and the path to it."""


@cache
def _templates() -> Environment:
    loader = PackageLoader("carrypost.lab.report")
    made = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        finalize=_printed,
    )  # fmt: skip
    made.globals |= {each.__name__: each for each in (numbers.shown, numbers.share, numbers.count, many)}
    return made


@pass_context
def _printed(context: Context, value: object) -> object:
    """Return what a template prints; what is no text, such as a table, is shown by the page that it is filled for."""
    show = context.get("show")
    return value if show is None or isinstance(value, str | int | float | Undefined) else show(value)


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


def give_or_take(mean: str, half: str) -> Markup:
    """Return a mean with half of its interval, which may stand below it."""
    return Markup("{}<span> </span>± {}").format(mean, half)


class Heading(NamedTuple):
    """An entry of the contents."""

    level: int
    name: str
    text: str


def contents(body: Markup) -> tuple[Markup, list[Heading]]:
    """Return the page with names for its headings, and the list of these; empty where they are few."""
    found: list[Heading] = []

    def named(match: re.Match[str]) -> str:
        level, inside = match.groups()
        found.append(Heading(int(level), f"section-{len(found) + 1}", Markup(inside).striptags()))  # noqa: S704 - ours
        return f'<h{level} id="{found[-1].name}">{inside}</h{level}>'

    text = Markup(_HEADING.sub(named, body))  # noqa: S704 - ours
    return (text, found) if len(found) >= _HEADINGS_MIN else (body, [])


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


_CLIP = re.compile(r'(?<=id=")clip\d+|(?<=url\(#)clip\d+')
_HEAD = re.compile(r'<svg[^>]*viewBox="0 0 ([\d.]+) ([\d.]+)"[^>]*>')
_FOR_SCRIPTS = re.compile(r' (?:class|role|aria-[a-z]+|pointer-events)="[^"]*"')
_PATH = re.compile(r'(?<= d=")[^"]+')
_INVISIBLE = re.compile(r"(?<=\.\d\d)\d+")
"""Digits of places that are less than a hundredth of a pixel."""
_SPACE = "http://www.w3.org/2000/svg"
FONT = "Helvetica, Arial, sans-serif"


def inline_svg(drawn: str, title: str) -> str:
    """Return a picture that scales with the page, with a title for screen readers instead of names of its parts."""
    drawn = _PATH.sub(lambda match: _INVISIBLE.sub("", match[0]), _FOR_SCRIPTS.sub("", drawn))
    names = list(dict.fromkeys(_CLIP.findall(drawn)))
    # Pictures of one page share their names, and Vega continues to count from one picture to the next.
    plain = _CLIP.sub(lambda match: f"c{names.index(match[0])}", drawn)
    own = f"{zlib.crc32((title + plain).encode()):x}"
    named = _CLIP.sub(lambda match: f"c{own}-{names.index(match[0])}", drawn)
    size = _HEAD.match(named)
    assert size is not None, "Vega gives every picture a size"
    width, height = size.groups()
    looks = f'viewBox="0 0 {width} {height}" style="max-width:{width}px" role="img"'
    return f"<svg {looks}><title>{escape(title)}</title>{named[size.end() :]}"


def svg_file(picture: str) -> str:
    """Return a picture of a page as a file: with a size, on white, in the page's letters."""
    size = _HEAD.match(picture)
    assert size is not None, "`inline` gives every picture a size"
    width, height = size.groups()
    head = (
        f'<svg xmlns="{_SPACE}" viewBox="0 0 {width} {height}" width="{width}" height="{height}" font-family="{FONT}">'
    )
    return f'{head}<rect width="{width}" height="{height}" fill="#fff"/>{picture[size.end() :]}\n'


Cell = str | float | None


@dataclass(frozen=True, slots=True)
class Picture:
    """A plot, and the numbers in it."""

    svg: str
    """For the middle of a page."""
    heads: Sequence[str]
    rows: Sequence[Sequence[Cell]]

    def csv(self) -> str:
        """Return the numbers, with a line of heads."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self.heads)
        writer.writerows([_cell(each) for each in row] for row in self.rows)
        return text.getvalue()


def _cell(value: Cell) -> str:
    return "" if value is None else f"{value:.9g}" if isinstance(value, int | float) else value


Pictures = Picture | Sequence[tuple[str, Picture]] | None
"""One, several with what each is of (may be empty), or none."""


@dataclass(frozen=True, slots=True)
class Figure:
    """Pictures, and what they show."""

    pictures: Pictures
    caption: Piece
    paper: str = ""
    """The figure of the paper that it stands for."""

    def halves(self) -> list[tuple[str, str, Picture]]:
        """Return the letter of each picture, what it is of, and itself."""
        if isinstance(self.pictures, Picture):
            return [("", "", self.pictures)]
        pictures = self.pictures or ()
        letters = "abcdefgh" if len(pictures) > 1 else [""]
        return [(letter, *each) for letter, each in zip(letters, pictures, strict=False)]


Block = Element | Figure
"""A part of a page."""


class Figures:
    """The figures and tables of a page, numbered in the order in which they are shown, and their files.

    `beside` is the folder of the files, for links to them; empty: there are no links.
    """

    def __init__(self, beside: str = "") -> None:
        self.files: dict[str, str] = {}
        """By name."""
        self._beside = beside
        self._count = self._tables = 0

    def filled(self, template: str, **values: object) -> Markup:
        """Return a template with these values; blocks that it prints are shown, and it can make figures and tables."""
        return filled(template, show=self.show, figure=self.figure, listed=listed, **values)

    def show(self, *blocks: Block | Iterable[Block]) -> Markup:
        """Return parts of the page; each figure, and each table with a caption, gets the next number."""
        return join((self._shown(each) for each in blocks), "\n")

    def figure(self, pictures: Pictures, paper: str = "", missing: str = "", *, caller: Callable[[], Markup]) -> Markup:
        """Return a figure whose caption a template calls with; without pictures, a note of what the paper's shows."""
        if pictures:
            return self.show(Figure(pictures, caller().strip(), paper))
        return paragraph(f"The paper's {paper} {missing}", kind="note") if missing else Markup("")

    def _shown(self, block: Block | Iterable[Block]) -> Piece:
        if isinstance(block, str):
            return block
        if isinstance(block, Grid):
            return self._table(block)
        if not isinstance(block, Figure):
            return self.show(*block)
        self._count += 1
        links = []
        for half, _, picture in block.halves():
            name = f"figure-{self._count}{half}"
            self.files |= {f"{name}.svg": svg_file(picture.svg), f"{name}.csv": picture.csv()}
            links.append((f"({half}) " if half else "", self._links(name, "svg", "pdf", "csv")))
        return filled("figure", number=self._count, figure=block, links=links if self._beside else [])

    def _table(self, grid: Grid) -> Markup:
        if not grid.caption:
            return grid.html()
        self._tables += 1
        name = f"table-{self._tables}"
        self.files |= grid.files(name)
        return grid.html(self._tables, self._links(name, "csv", "tex") if self._beside else [])

    def _links(self, name: str, *endings: str) -> list[Link]:
        return [(ending.upper(), f"{self._beside}/{name}.{ending}") for ending in endings]
