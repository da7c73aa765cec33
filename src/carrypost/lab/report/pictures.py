"""Figures: pictures with their captions, numbered as they come on the page, each also as a file and as numbers.

Figure 4 with two halves gives ``figure-4a.svg`` and ``figure-4b.svg``, for papers and slides, and ``figure-4a.csv`` and
``figure-4b.csv`` with the points that are drawn, for other plotting programs.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from carrypost.lab.report import svg
from carrypost.lab.report.html import Markup, Piece, tag

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


@dataclass(frozen=True, slots=True)
class Figure:
    """Pictures, each with what it is of (may be empty), and what they show."""

    pictures: Sequence[tuple[str, Picture]]
    caption: Sequence[Piece]
    paper: str = ""
    """The figure of the paper that it stands for."""

    def markup(self, number: int) -> Markup:
        """Return the figure for the page."""
        parts: list[Markup] = []
        for half, picture in self._halves():
            of = f"{half} {picture[0]}".strip()
            parts += [tag("div", of, kind="half")] if of else []
            parts.append(Markup(picture[1].svg))
        name = tag("b", f"Figure {number}")
        paper = f", the paper's {self.paper}. " if self.paper else ". "
        return tag("figure", *parts, tag("figcaption", name, paper, *self.caption))

    def files(self, number: int) -> dict[str, str]:
        """Return the files of this figure, by name."""
        made: dict[str, str] = {}
        for half, (_, picture) in self._halves():
            name = f"figure-{number}{half.strip('()')}"
            made |= {f"{name}.svg": svg.alone(picture.svg), f"{name}.csv": picture.csv()}
        return made

    def _halves(self) -> Iterable[tuple[str, tuple[str, Picture]]]:
        letters = [f"({chr(ord('a') + place)})" for place in range(len(self.pictures))]
        return zip(letters if len(letters) > 1 else [""] * len(letters), self.pictures, strict=True)


Block = Piece | Figure
"""A part of a page."""


def numbered(body: Iterable[Block]) -> tuple[list[Piece], dict[str, str]]:
    """Return a page whose figures have their numbers, and the files of all of them."""
    pieces: list[Piece] = []
    files: dict[str, str] = {}
    count = 0
    for block in body:
        if isinstance(block, Figure):
            count += 1
            pieces.append(block.markup(count))
            files |= block.files(count)
        else:
            pieces.append(block)
    return pieces, files
