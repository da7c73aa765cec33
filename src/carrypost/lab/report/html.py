"""The page's building blocks: templates and texts as HTML, everything from outside escaped.

A page is one file that needs nothing else: no script, no font, no picture from elsewhere. Its prose is in
`templates`, which Jinja fills: each part of a page has one, with the order of its tables, figures and texts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined, Undefined, pass_context
from jinja2.runtime import Context
from markupsafe import Markup

from carrypost.lab.report import times
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
    made.globals |= {each.__name__: each for each in (times.shown, times.share, times.count, many)}
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
