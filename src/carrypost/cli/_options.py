"""Parameters of commands: options, paths, groups of options and of commands, and packages that some commands need.

A parameter of a command whose class is an `OptionGroup` stands for the options that are the fields of the class:
`with_groups` shows them to typer, and passes the command one value of the class. The value of `--json` is what it
means: True where lines of JSON are to be printed.

Every parameter that is a path is a `path_argument` or a `path_option`: typer's own reading takes an empty text for the
folder that one is in, and answers for files of other users before a command can say what is wrong with them.

`Commands` is a group of commands. Functions whose names begin with `needs_` say how to install the packages of an extra
where these are missing.
"""

from __future__ import annotations

import functools
import importlib.util
import inspect
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NewType

import msgspec
import typer
from typer.core import TyperCommand, TyperGroup

from carrypost.cli._output import say, streams_json, wants_json
from carrypost.errors import LocalError, NoNodeError

if TYPE_CHECKING:
    from carrypost.lab.spark.session import SparkOptions
    from carrypost.node.settings import NodeSettings


def needs_emulator() -> None:
    """Raise `LocalError` where what the emulator needs is not installed."""
    _needs("the emulator needs numpy and pyarrow", "emu", "numpy", "pyarrow")


def needs_reports() -> None:
    """Raise `LocalError` where what reports need is not installed."""
    what = "reports need numpy, pyarrow, jinja2 and vl-convert"
    _needs(what, "report", "numpy", "pyarrow", "jinja2", "vl_convert")


def needs_engine(engine: Literal["spark", "local"]) -> None:
    """Raise `LocalError` where what an engine of the laboratory needs is not installed."""
    _needs("the laboratory needs numpy and pyarrow", "emu", "numpy", "pyarrow")
    if engine == "spark":
        from carrypost.lab.spark.session import needs_extra  # noqa: PLC0415 - needed by some commands only

        needs_extra()


def needs_pages() -> None:
    """Raise `LocalError` where what web pages need is not installed."""
    _needs("web pages need starlette and uvicorn", "web", "starlette", "uvicorn")


def needs_records() -> None:
    """Raise `LocalError` where what web pages about records and campaigns need is not installed."""
    _needs("web pages about records and campaigns need numpy and pyarrow", "web,emu", "numpy", "pyarrow")


def needs_qr() -> None:
    """Raise `LocalError` where what QR codes need is not installed."""
    _needs("QR codes need segno", "qr", "segno")


def _needs(what: str, extra: str, *modules: str) -> None:
    """Say how to install what is missing, rather than which module is."""
    if not all(map(importlib.util.find_spec, modules)):
        raise LocalError(f"{what}: pip install 'carrypost[{extra}]'; in the source tree, '.[{extra}]'")


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


def path_or_uri(text: str) -> PathText:
    """Return a text that names a folder: a path, or a URI such as s3://bucket/folder; an empty text is an error."""
    if not text:
        raise typer.BadParameter("a path must not be empty (the current folder is .)")
    if (elsewhere := _ELSEWHERE.match(text)) and "://" not in elsewhere[0]:
        raise typer.BadParameter(f"{text} must be written {text.replace(':/', '://', 1)}")
    return PathText(text)


def page_path(text: str) -> PathText:
    """Return a text that names a page of HTML, as `path_or_uri` does."""
    found = path_or_uri(text)
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


def path_argument(about: str, metavar: str | None = None, parser: Parser = path) -> Any:  # noqa: ANN401 - typer's own type says nothing
    """Return a positional parameter that is a path."""
    return typer.Argument(parser=parser, help=about, metavar=metavar)


def path_option(
    names: str, about: str, metavar: str | None = None, *, parser: Parser = path, default: bool | str = False
) -> Any:  # noqa: ANN401 - likewise
    """Return an option that is a path, with one name or two, as in ``--out -o``; `default` is shown as the default."""
    return typer.Option(*names.split(), parser=parser, help=about, metavar=metavar, show_default=default)


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
Config = Annotated[Path | None, path_option("--config -c", "Settings file (TOML).", "FILE")]
Changes = Annotated[list[str], option("--set", "Any setting, named as in the file: udp.port=4000.", "KEY=VALUE")]
Scenario = Annotated[Path, path_argument("The scenario (TOML).", "SCENARIO.toml")]
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
        Path | None, path_option("--data -d", "The node's folder.", "FOLDER", default="the user's data folder")
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


class _Command(TyperCommand):
    """A command."""

    def get_params(self, ctx: Any) -> list[Any]:  # noqa: ANN401 - click's own, under whatever name typer has it
        """Return all parameters, as typer needs them to show help."""
        return _with_plain_flags(super().get_params(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 - likewise
        """Parse arguments; an error about one too many says which option names a topic or a queue."""
        words = list(args)
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter.__base__ as error:  # type: ignore[misc]  # Usage errors, which typer does not export.
            named = [each for each in self.params if not getattr(each, "hidden", False) and {"-t", "-q"} & {*each.opts}]
            if named and "unexpected extra argument" in str(getattr(error, "message", "")):
                given = {each.partition("=")[0] for each in words} & {*named[0].opts}
                advice = f"Name the {named[0].name} with {named[0].opts[-1]}."
                error.message += ". Put a body of several words in quotes." if given else f". {advice}"
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
