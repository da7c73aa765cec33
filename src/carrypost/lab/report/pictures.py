"""Figures and tables, numbered as they come on the page, each also as files beside it; figures with their numbers.

Figure 4 with two halves gives ``figure-4a.svg``, ``figure-4a.pdf`` and the same of ``b``, for papers and slides, and
``figure-4a.csv`` and ``figure-4b.csv`` with the points that are drawn, for other plotting programs.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from carrypost.lab.report import html, svg
from carrypost.lab.report.grids import Element, Grid, listed
from carrypost.lab.report.html import Link, Piece, join, paragraph

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
        return html.filled(template, show=self.show, figure=self.figure, listed=listed, **values)

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
            self.files |= {f"{name}.svg": svg.alone(picture.svg), f"{name}.csv": picture.csv()}
            links.append((f"({half}) " if half else "", self._links(name, "svg", "pdf", "csv")))
        return html.filled("figure", number=self._count, figure=block, links=links if self._beside else [])

    def _table(self, grid: Grid) -> Markup:
        if not grid.caption:
            return grid.html()
        self._tables += 1
        name = f"table-{self._tables}"
        self.files |= grid.files(name)
        return grid.html(self._tables, self._links(name, "csv", "tex") if self._beside else [])

    def _links(self, name: str, *endings: str) -> list[Link]:
        return [(ending.upper(), f"{self._beside}/{name}.{ending}") for ending in endings]
