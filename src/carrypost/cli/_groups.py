"""Groups of commands, and how their help shows options."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from carrypost.cli._options import with_groups


class _Command(TyperCommand):
    """A command."""

    def get_params(self, ctx: Any) -> list[Any]:  # noqa: ANN401 - click's own, under whatever name typer has it
        """Return all parameters, as typer needs them to show help."""
        return _with_plain_flags(super().get_params(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 - likewise
        """Parse arguments; an error about one too many says which option names a topic or a queue."""
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter.__base__ as error:  # type: ignore[misc]  # Usage errors, which typer does not export.
            named = [each for each in self.params if not getattr(each, "hidden", False) and {"-t", "-q"} & {*each.opts}]
            if named and "unexpected extra argument" in str(getattr(error, "message", "")):
                error.message += f". Name the {named[0].name} with {named[0].opts[-1]}."
            raise


class _Group(TyperGroup):
    """A group of commands."""

    def get_params(self, ctx: Any) -> list[Any]:  # noqa: ANN401 - likewise
        """Return all parameters, as typer needs them to show help."""
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
        """Add a command, with the options of its groups."""
        add = super().command(name, cls=_Command, **options)
        return lambda function: add(with_groups(function))

    def callback(self, **options: Any) -> Callable[[Any], Any]:  # noqa: ANN401 - typer's own
        """Add what is done before a command, with the options of its groups."""
        add = super().callback(**options)
        return lambda function: add(with_groups(function))
