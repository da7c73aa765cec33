"""Paths that are given on the command line.

Every parameter that is a path is an `argument` or an `option` of this module: typer's own reading takes an empty text
for the folder that one is in, and answers for files of other users before a command can say what is wrong with them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NewType

import typer

Parser = Callable[[str | Path], Path] | Callable[[str], "PathText"]
_ELSEWHERE = re.compile(r"(?!file:)[A-Za-z][A-Za-z0-9+.-]+:/{1,2}(?=[^/])")
"""As object stores are written: s3://bucket/folder. Windows has drives of one letter."""


def path(text: str | Path) -> Path:
    """Return the path that a text names; an empty text is an error."""
    if not str(text):
        raise typer.BadParameter("a path must not be empty (the current folder is .)")
    if elsewhere := _ELSEWHERE.match(str(text)):
        raise typer.BadParameter(
            f"{elsewhere[0]}… is not supported: files and folders must be on a mounted file system that all "
            "machines share"
        )
    return Path(text)


PathText = NewType("PathText", str)
"""A path or a URI as it was given."""


def place(text: str) -> PathText:
    """Return a text that names a folder: a path, or a URI such as s3://bucket/folder; an empty text is an error."""
    if not text:
        raise typer.BadParameter("a path must not be empty (the current folder is .)")
    if (elsewhere := _ELSEWHERE.match(text)) and "://" not in elsewhere[0]:
        raise typer.BadParameter(f"{text} must be written {text.replace(':/', '://', 1)}")
    return PathText(text)


def page(text: str) -> PathText:
    """Return a text that names a page of HTML, as `place` does."""
    found = place(text)
    if "://" in found:
        _check_ending(found, (".html", ".htm"))
    else:
        ending_in(".html", ".htm")(found)
    return found


def ending_in(*endings: str) -> Parser:
    """Return a parser of paths of files whose kind follows from the ending of their name."""

    def checked(text: str | Path) -> Path:
        found = path(text)
        if found.is_file() or not found.exists():  # Of others, more can be said.
            _check_ending(text, endings)
        return found

    return checked


def _check_ending(text: str | Path, endings: Sequence[str]) -> None:
    if Path(text).suffix not in endings:
        known = f"{', '.join(endings[:-1])} or {endings[-1]}"
        raise typer.BadParameter(f"its name must end in {known}, which selects the format, not {str(text)!r}")


def argument(about: str, metavar: str | None = None, parser: Parser = path) -> Any:  # noqa: ANN401 - typer's own type says nothing
    """Return a positional parameter that is a path."""
    return typer.Argument(parser=parser, help=about, metavar=metavar)


def option(
    names: str, about: str, metavar: str | None = None, *, parser: Parser = path, default: bool | str = False
) -> Any:  # noqa: ANN401 - likewise
    """Return an option that is a path, with one name or two, as in ``--out -o``; `default` is shown as the default."""
    return typer.Option(*names.split(), parser=parser, help=about, metavar=metavar, show_default=default)
