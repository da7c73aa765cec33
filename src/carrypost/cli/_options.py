"""Options of commands: how they are written, and groups of them that several commands have.

A parameter of a command whose class is an `OptionGroup` stands for the options that are the fields of the class:
`with_groups` shows them to typer, and passes the command one value of the class. The value of `--json` is what it
means: True where lines of JSON are to be printed.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import typer

from carrypost.cli import _paths
from carrypost.cli._extras import needs_engine
from carrypost.cli._output import say, streams_json, wants_json
from carrypost.errors import LocalError, NoNodeError

if TYPE_CHECKING:
    from carrypost.lab.spark.session import SparkOptions
    from carrypost.node.settings import NodeSettings

_KEYWORD = inspect.Parameter.KEYWORD_ONLY
_ANSWER_S = 10.0
"""Within this a node answers, or it hangs."""


def option(names: str, about: str, metavar: str | None = None, **more: Any) -> Any:  # noqa: ANN401 - typer's own
    """Return an option with one name or two, as in ``--queue -q``."""
    return typer.Option(*names.split(), help=about, metavar=metavar, **more)


def argument(about: str, metavar: str | None = None) -> Any:  # noqa: ANN401 - typer's own
    """Return a positional parameter."""
    return typer.Argument(help=about, metavar=metavar)


Json = Annotated[bool, option("--json", "Print JSON lines, for programs.", callback=wants_json)]
StreamJson = Annotated[
    bool,
    option(
        "--json", "Print JSON lines even on a terminal (the default when output is redirected).", callback=streams_json
    ),
]
"""Of commands that print lines while they run: for each message, event or period."""
Config = Annotated[Path | None, _paths.option("--config -c", "Settings file (TOML).", "FILE")]
Changes = Annotated[list[str], option("--set", "Any setting, named as in the file: udp.port=4000.", "KEY=VALUE")]
Scenario = Annotated[Path, _paths.argument("The scenario (TOML).", "SCENARIO.toml")]
ScenarioChanges = Annotated[
    list[str], option("--set", "Override any key of the scenario: workload.0.lifetime_s=600.", "KEY=VALUE")
]
Seed = Annotated[str, option("--seed", "Seed of all random numbers: a whole number, or text.")]


class OptionGroup(msgspec.Struct, frozen=True):
    """Options that belong together, as one parameter of commands."""


def with_groups(command: Callable[..., Any]) -> Callable[..., Any]:
    """Return the command as typer is to see it: with the options of its groups. Empty defaults are not shown."""
    groups: dict[str, tuple[type[OptionGroup], list[str]]] = {}
    parameters: list[inspect.Parameter] = []
    for each in inspect.signature(command, eval_str=True).parameters.values():
        if isinstance(each.annotation, type) and issubclass(each.annotation, OptionGroup):
            fields = msgspec.structs.fields(each.annotation)
            groups[each.name] = each.annotation, [field.name for field in fields]
            for field in fields:
                default = inspect.Parameter.empty if field.required else field.default
                default = default if field.default_factory is msgspec.NODEFAULT else []
                parameters.append(inspect.Parameter(field.name, _KEYWORD, default=default, annotation=field.type))
        else:
            parameters.append(each.replace(kind=_KEYWORD))
    for parameter in parameters:
        if parameter.default in ("", []):
            (info,) = parameter.annotation.__metadata__
            info.show_default = False

    @functools.wraps(command)
    def run(**given: object) -> None:
        made = {name: kind(**{each: given.pop(each) for each in names}) for name, (kind, names) in groups.items()}
        command(**given, **made)

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # read by `inspect`
    run.__annotations__ = {}  # The signature has all of them.
    return run


# --- nodes -----------------------------------------------------------------------------------------------------------


class Place(OptionGroup, frozen=True):
    """The node of a command, as it is named on the command line."""

    config: Config = None
    data: Annotated[
        Path | None, _paths.option("--data -d", "The node's folder.", "FOLDER", default="the user's data folder")
    ] = None

    @property
    def start(self) -> str:
        """The command that starts the node."""
        from carrypost.node.settings import start_command  # noqa: PLC0415 - keeps --help quick

        return start_command(self.config, self.data)

    def settings(self) -> NodeSettings:
        """Return the settings of the node."""
        from carrypost.cli._settings import settings_of  # noqa: PLC0415 - keeps --help quick

        return settings_of(self.config, self.data, getattr(self, "changes", ()))

    def ask(self, what: str, *given: str, **named: object) -> Any:  # noqa: ANN401 - what the node says
        """Return what the node that runs here answers to a plain call."""
        import asyncio  # noqa: PLC0415 - keeps --help quick

        from carrypost.node.folder import NodeFolder  # noqa: PLC0415

        settings = self.settings()
        try:
            return asyncio.run(answer(settings, self.start, what, *given, **named))
        except NoNodeError:
            if NodeFolder(settings).is_new:
                raise missing(settings, f"make one with: {self.start}") from None
            raise


class Node(Place, frozen=True):
    """The node of a command that may run one itself, with settings of its own."""

    changes: Changes = []

    @property
    def makes(self) -> bool | None:
        """True: make a node in a folder without one. False: only in the user's own folder. None: in no folder."""
        return None


class NewNode(Node, frozen=True):
    """The node of a command that may make one."""

    create: Annotated[bool, option("--create", "If --data names a folder without a node, make a new node there.")] = (
        False
    )

    @property
    def makes(self) -> bool | None:
        """The option."""
        return self.create


def missing(settings: NodeSettings, remedy: str) -> NoNodeError:
    """Return the error that a folder has no node; the folder may be mistyped, unless it is the user's own."""
    place = f"there is no node in {settings.data}"
    return NoNodeError(
        f"{place}: check the folder (--data), or {remedy}" if settings.place.data else f"{place} yet; {remedy}"
    )


async def answer(settings: NodeSettings, start: str, what: str, *given: str, **named: object) -> Any:  # noqa: ANN401 - likewise
    """Return what the node that runs here answers to a plain call; raises `TimeoutError` if it hangs.

    `start` is the command that starts the node, for users.
    """
    import asyncio  # noqa: PLC0415 - keeps --help quick

    from carrypost.attach.client import Client  # noqa: PLC0415

    try:
        async with asyncio.timeout(_ANSWER_S), await Client.connect(settings.control, start) as client:
            return await getattr(client, what)(*given, **named)
    except TimeoutError:
        raise TimeoutError(f"the node at {settings.control} does not answer") from None


# --- Spark ------------------------------------------------------------------------------------------------------------


class Spark(OptionGroup, frozen=True):
    """The cluster that a command uses."""

    master: Annotated[
        str,
        option("--master", "Spark master: local[2], spark://host:7077, yarn and so on.", "URL",
               envvar="CARRYPOST_MASTER")
    ] = "local[*]"  # fmt: skip
    memory: Annotated[
        str, option("--memory", "Memory of Spark's driver; default: a quarter of this machine's.", "4g")
    ] = ""
    conf: Annotated[list[str], option("--conf", "Any Spark setting.", "KEY=VALUE")] = []

    def options(self, what: str) -> SparkOptions:
        """Return the options as Spark takes them; raises `LocalError` for a setting that is not Spark's."""
        from carrypost.lab.spark.session import SparkOptions  # noqa: PLC0415 - needed by these commands only

        settings: dict[str, str] = {}
        for each in self.conf:
            key, equals, value = each.partition("=")
            if not (equals and key.startswith("spark.")):
                raise LocalError(
                    f"--conf must be KEY=VALUE with a key of Spark, such as spark.executor.memory=2g, not {each!r}"
                )
            settings[key] = value
        return SparkOptions(master=self.master, memory=self.memory, conf=settings, name=f"carrypost {what}")


class Engine(Spark, frozen=True):
    """The engine of a command: Spark, or this process."""

    engine: Annotated[
        Literal["spark", "local"],
        option("--engine", "local: in this process, without Java, for small inputs; the tables are the same."),
    ] = "spark"

    def chosen(self, what: str) -> SparkOptions | None:
        """Return the options of Spark; None if the work is done in this process."""
        return self.options(what) if self.engine == "spark" else None

    def needed(self, what: str) -> SparkOptions | None:
        """Return the same; raises `LocalError` where what the engine needs is not installed."""
        needs_engine(self.engine)
        return self.chosen(what)


def suggest_local(options: SparkOptions | None, *, small: bool) -> None:
    """Say that Spark, if it is to be used, takes longer to start than the work would, where it does."""
    if options is not None and small and options.starts:
        say("for so little input, --engine local is faster")
