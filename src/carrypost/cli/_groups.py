"""Groups of commands, and how their help shows options."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup


class _Command(TyperCommand):
    """A command."""

    def get_params(self, ctx: Any) -> list[Any]:  # noqa: ANN401 - click's own, under whatever name typer has it
        """All parameters, as typer asks for them to show help."""
        return _with_plain_flags(super().get_params(ctx))


class _Group(TyperGroup):
    """A group of commands."""

    def get_params(self, ctx: Any) -> list[Any]:  # noqa: ANN401 - likewise
        """All parameters, as typer asks for them to show help."""
        return _with_plain_flags(super().get_params(ctx))


def _with_plain_flags(parameters: list[Any]) -> list[Any]:
    """Show flags, which take no value, without the type that they have inside."""
    for each in parameters:
        if getattr(each, "is_flag", False) and each.metavar is None:
            each.metavar = ""
    return parameters


class Commands(typer.Typer):
    """A group that shows what there is in it if nothing is asked of it, unless its callback does something then."""

    def __init__(self, name: str, *, shows_help: bool = True, **options: Any) -> None:  # noqa: ANN401 - typer's own
        super().__init__(name=name, cls=_Group, no_args_is_help=shows_help, rich_markup_mode="markdown", **options)

    def command(self, name: str | None = None, **options: Any) -> Callable[[Any], Any]:  # noqa: ANN401 - typer's own
        """One more command."""
        return super().command(name, cls=_Command, **options)
