"""Options of commands that use Spark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from carrypost.cli._output import say
from carrypost.errors import LocalError

if TYPE_CHECKING:
    from carrypost.lab.spark.session import SparkOptions

MasterOption = Annotated[
    str,
    typer.Option(
        "--master",
        envvar="CARRYPOST_MASTER",
        metavar="URL",
        help="Spark master: local[2], spark://host:7077, yarn and so on.",
    ),
]
MemoryOption = Annotated[
    str, typer.Option("--memory", metavar="4g", help="Memory of Spark's driver; default: a quarter of this machine's.")
]
ConfOption = Annotated[
    list[str], typer.Option("--conf", metavar="KEY=VALUE", help="Any Spark setting.", show_default=False)
]

EngineOption = Annotated[
    Literal["spark", "local"],
    typer.Option("--engine", help="local: in this process, without Java, for small inputs; the tables are the same."),
]


def suggest_local(options: SparkOptions | None, *, small: bool) -> None:
    """Say that Spark, if it is to be used, takes longer to start than the work would, where it does."""
    if options is not None and small and options.starts:
        say("for so little input, --engine local is faster")


def spark_options(master: str, memory: str, conf: Sequence[str], what: str = "") -> SparkOptions:
    """Return the three options as one value; raises `LocalError` for a setting that is not Spark's."""
    from carrypost.lab.spark.session import SparkOptions  # noqa: PLC0415 - needed by these commands only

    settings: dict[str, str] = {}
    for each in conf:
        key, equals, value = each.partition("=")
        if not (equals and key.startswith("spark.")):
            raise LocalError(
                f"--conf must be KEY=VALUE with a key of Spark, such as spark.executor.memory=2g, not {each!r}"
            )
        settings[key] = value
    return SparkOptions(master=master, memory=memory, conf=settings, name=f"carrypost {what}".rstrip())
