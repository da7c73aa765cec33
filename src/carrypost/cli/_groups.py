"""Groups of commands."""

from __future__ import annotations

import typer


def group(name: str, about: str) -> typer.Typer:
    """A group that shows what there is in it if nothing is asked of it."""
    return typer.Typer(name=name, no_args_is_help=True, rich_markup_mode="markdown", help=about)
