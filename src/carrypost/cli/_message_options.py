"""Options of commands about messages, values that are given with them, and completion of names in shells.

Values are bodies, templates, typed properties, modulators and lengths of time. Completion of topics and queues asks the
node that runs; where none does, there is none.
"""

from __future__ import annotations

import datetime as dt
import math
import re
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from carrypost.cli._options import Node, OptionGroup, argument, option, path_option
from carrypost.config import rules
from carrypost.errors import LocalError
from carrypost.log.files import read_bytes, refusing

if TYPE_CHECKING:
    from carrypost.cli._joining import Body
    from carrypost.jms.context import Context
    from carrypost.jms.messages import Message
    from carrypost.jms.messages.headers_and_properties import Properties
    from carrypost.model.properties import ValueType
    from carrypost.overlay.modulators.modulator import Modulator


_ANSWER_S = 1.0
"""People wait for a completion no longer than this."""
_HARMLESS = re.compile(r"[\w.@/+-]+")
"""Names without a character that a shell interprets. Other nodes choose names, and a shell would run `news$(rm x)`."""


def topics(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the named topics that begin with the text typed so far."""
    return _asked(ctx, "topic", incomplete)


def queues(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the known queues that begin with the text typed so far, by short names where these are unambiguous."""
    return _asked(ctx, "queue", incomplete)


def _asked(ctx: typer.Context, kind: str, incomplete: str) -> list[str]:
    import asyncio  # noqa: PLC0415 - keeps --help quick

    from carrypost.cli._joining import factory  # noqa: PLC0415

    async def ask() -> list[str]:
        at = Node(ctx.params.get("config"), ctx.params.get("data"))
        async with asyncio.timeout(_ANSWER_S), factory(at, attach=True).create_context() as context:
            return await known(context, kind)

    try:
        found = asyncio.run(ask())
    except Exception:  # noqa: BLE001 - a shell would show whatever it is in the middle of a line
        return []
    return [name for name in found if name.startswith(incomplete) and _HARMLESS.fullmatch(name)]


async def known(context: Context, kind: str) -> list[str]:
    """Return the names of all topics, or of all queues, that are in the directory of a node.

    A queue whose name no other one has stands there without its node.
    """
    from carrypost.naming import InitialContext  # noqa: PLC0415 - keeps --help quick

    found = await InitialContext(context).list(kind)
    shorts = Counter(name.partition("@")[0] for name in found)
    return [short if shorts[short := name.partition("@")[0]] == 1 else name for name in found]


_FIELD = re.compile(r"\{(n|time)\}")
# Leading zeros and plus signs are those of telephone numbers and codes, which stay text.
_WHOLE = re.compile(r"-?(0|[1-9]\d*)")
_DECIMAL = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?")
QUEUE, CHANNEL = "queue/", "channel/"
KINDS = ("topic/", "holder/", CHANNEL, QUEUE)
"""Beginnings of destinations in full. A topic whose name begins so must be given in full, too: topic/channel/x."""
_TRUTHS = {"true": True, "false": False}
_MODULE_BYTES_MAX = 16 << 20
"""Largest file of a module that is read. Brokers accept far less; but text is longer than the module."""


def length_s(text: str) -> float:
    """Return a length of time in seconds; raises `LocalError` for a text that is none."""
    try:
        return rules.length_s(text)
    except ValueError:
        raise LocalError(f"{text!r} must be a length of time: seconds, or 30min, 6h, 2d") from None


def _length(text: str | float) -> float:
    try:
        return length_s(str(text))
    except LocalError as error:
        raise typer.BadParameter(str(error)) from None


def duration_option(name: str, about: str, metavar: str = "TIME") -> typer.models.OptionInfo:
    """Return an option whose value is a length of time."""
    made: typer.models.OptionInfo = typer.Option(name, parser=_length, help=about, metavar=metavar, show_default=False)
    return made


class GivenBody(NamedTuple):
    """A body that was given."""

    content: str | bytes
    template: bool = False
    """True if it was typed: its fields are filled in for each message."""

    def message(self, number: int, properties: Sequence[str]) -> Message:
        """Return a message with this body, and properties as they were given; the first one has the number 1."""
        from carrypost.jms.messages import BytesMessage, TextMessage  # noqa: PLC0415 - keeps --help quick

        made: Message
        if isinstance(self.content, str):
            made = TextMessage(filled(self.content, number) if self.template else self.content)
        else:
            made = BytesMessage()
            made.write_bytes(self.content)
        for each in properties:
            set_property(made.properties, each)
        return made


def body(text: str | None, option: str | None, file: Path | None) -> GivenBody:
    """Return the body that was given: as an argument, by ``-p``, in a file, or else on stdin.

    Bytes that are UTF-8 without zeros are text. Of text on stdin a newline at its end is cut off.
    """
    if sum(each is not None for each in (text, option, file)) > 1:
        raise LocalError("the body was given more than once: use only one of BODY, -p and --file")
    if file is not None:
        with refusing(f"{file} cannot be read"):
            return GivenBody(_text_or_bytes(file.read_bytes()))
    typed = text if option is None else option
    if typed is not None:
        return GivenBody(typed, template=True)
    read = _text_or_bytes(_stdin())
    return GivenBody(read.removesuffix("\n") if isinstance(read, str) else read)


def _stdin() -> bytes:
    if sys.stdin is None or sys.stdin.closed:
        raise LocalError("there is no body, and stdin is closed: give the body as BODY, with -p, or with --file")
    if sys.stdin.isatty():
        sys.stderr.write("carrypost: type the body; Ctrl-D on a line of its own ends it\n")
    with refusing("stdin cannot be read"):
        read = sys.stdin.buffer.read()
    if not read:
        raise LocalError('there is no body, and stdin was empty: give the body as BODY; "" is an empty body')
    return read


def _text_or_bytes(read: bytes) -> str | bytes:
    try:
        return read if b"\0" in read else read.decode()
    except UnicodeDecodeError:
        return read


def filled(template: str, number: int) -> str:
    """Return a body with the number of the message for ``{n}`` and the time for ``{time}``."""
    now = dt.datetime.now().astimezone().isoformat(timespec="milliseconds")
    return _FIELD.sub(lambda field: str(number) if field[1] == "n" else now, template)


def topic(name: str, *, channel: bool = False, circle: str | None = None) -> str:
    """Return the destination that ``-t`` names: by its name, or in full, as commands print it.

    `circle`: the topic is one of that circle.
    """
    if circle is not None:
        if channel:
            raise LocalError("--circle and --channel exclude each other: brokers read the events of a channel")
        return _checked(f"circle/{circle}/{name}")
    if name.startswith(QUEUE):
        raise LocalError(
            f"-t requires a topic, and {name} is a queue: use -q, or write topic/{name} for a topic of that name"
        )
    if channel:
        return _checked(name if name.startswith(CHANNEL) else CHANNEL + name)
    return _checked(name if name.startswith(KINDS) else f"topic/{name}")


def queue(name: str) -> str:
    """Return the destination that ``-q`` names: by its name, or in full, as commands print it."""
    if name.startswith(KINDS) and not name.startswith(QUEUE):
        raise LocalError(
            f"-q requires a queue, and {name} is a topic: use -t, or write queue/{name} for a queue of that name"
        )
    return _checked(name if name.startswith(QUEUE) else QUEUE + name)


def _checked(text: str) -> str:
    """Return a destination, if programs may name one so: mistakes are reported before a node is looked for."""
    from carrypost.jms.destinations import as_destination  # noqa: PLC0415 - keeps --help quick

    as_destination(text)
    return text


def set_property(properties: Properties, text: str) -> None:
    """Set a property as ``name=value``, whose form tells its type, or ``name:type=value``."""
    head, equals, value = text.partition("=")
    name, colon, kind = head.partition(":")
    if not equals or not name:
        raise LocalError(
            f"--prop {text!r} must be NAME=VALUE, such as language=English, or with a type, such as level:int=3"
        )
    if not colon:
        properties[name] = _by_form(value)
        return
    from carrypost.config.rules import nearest  # noqa: PLC0415 - keeps --help quick
    from carrypost.model.properties import ValueType  # noqa: PLC0415

    kinds = {each.name.lower(): each for each in ValueType if ValueType.NULL < each <= ValueType.STRING}
    if kind not in kinds:
        hint = nearest(kind, kinds) or f"; there are {', '.join(kinds)}"
        raise LocalError(f"--prop {text!r}: unknown type {kind!r}{hint}")
    found = kinds[kind]
    try:
        read = value if found is ValueType.STRING else _by_type(found, value)
    except (KeyError, ValueError):
        raise LocalError(f"--prop {text!r}: {value!r} is not a valid {kind}") from None
    except OverflowError:
        raise LocalError(f"--prop {text!r}: {value!r} is out of the range of {kind}") from None
    properties.set(name, found, read)


def module(file: Path, parameters: bytes) -> Modulator:
    """Return the modulator of a WebAssembly module, or of its text, in a file."""
    from carrypost.overlay.modulators.modulator import Modulator  # noqa: PLC0415 - keeps --help quick

    content = read_bytes(file, _MODULE_BYTES_MAX)
    if content.startswith(b"\0"):
        return Modulator.wasm(content, parameters)
    # Files that cannot be modules are told apart here: to translate text takes wasmtime, which may be missing.
    if not content.strip():
        raise LocalError(f"{file} is empty: it must be a WebAssembly module, in binary or text format")
    try:
        text = content.decode()
    except UnicodeDecodeError:
        text = ""
    if not text.lstrip().startswith(("(", ";;")):
        raise LocalError(f"{file} must be a WebAssembly module, in binary or text format")
    try:
        return Modulator.wat(text, parameters)
    except LocalError as error:
        raise LocalError(f"{file}: {error}") from None


def digits(option: str, text: str) -> bytes:
    """Return bytes that were given as hexadecimal digits."""
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise LocalError(f"{option} must be pairs of hexadecimal digits, such as 0a1b, not {text!r}") from None


def _module(file: Path, parameters: Sequence[str]) -> Modulator:
    if any(not each.startswith("hex=") for each in parameters[:1]) or len(parameters) > 1:
        raise LocalError(
            f"--param {parameters[-1]!r}: a module takes one parameter, its bytes in hexadecimal: --param hex=0a1b"
        )
    return module(file, digits("--param hex", parameters[0][len("hex=") :] if parameters else ""))


def modulator(text: str | None, parameters: Sequence[str]) -> Modulator | None:
    """Return the modulator that was named, by its name or ``NAME:VERSION``, with parameters as ``name=value``.

    A name with a dot or a slash is that of a file, which has a module.
    """
    if text is None:
        if parameters:
            raise LocalError(
                f"--param {parameters[0]!r} requires --modulator: name the modulator, or leave --param out"
            )
        return None
    if "." in text or "/" in text:
        return _module(Path(text), parameters)
    from carrypost.overlay.modulators.modulator import Modulator  # noqa: PLC0415 - keeps --help quick

    name, colon, version = text.partition(":")
    if colon and not _WHOLE.fullmatch(version):
        raise LocalError(f"--modulator {text!r}: the version must be a whole number, as in {name}:1")
    given = {}
    for each in parameters:
        key, equals, value = each.partition("=")
        if not equals or not key:
            raise LocalError(f"--param {each!r} must be NAME=VALUE, such as area=[10,10,42,42]")
        given[key] = _parameter(each, value)
    try:
        return Modulator.named(name, version=int(version) if colon else None, **given)
    except LocalError as error:
        hint = "" if colon else f"; if brokers have it, give its version: --modulator {name}:1"
        raise LocalError(f"--modulator {text!r}: {error}{hint}") from error


def _parameter(text: str, value: str) -> object:
    if not value.startswith(("[", "{")):
        return _by_form(value)
    import json  # noqa: PLC0415 - keeps --help quick

    try:
        return json.loads(value)
    except ValueError as error:
        raise LocalError(f"--param {text!r}: the value must be JSON: {error}") from None


def _by_form(value: str) -> bool | float | str:
    if value in _TRUTHS:
        return _TRUTHS[value]
    if _WHOLE.fullmatch(value):
        return int(value)
    if not _DECIMAL.fullmatch(value):
        return value
    if math.isinf(found := float(value)):
        raise LocalError(f"{value!r} is out of the range of double")
    return found


def _by_type(kind: ValueType, value: str) -> bool | float:
    """Return a value of this type; NaN and infinities must be written as such, and not as too many digits."""
    from carrypost.model.properties import ValueType, nearest_float  # noqa: PLC0415 - keeps --help quick

    if kind is ValueType.BOOLEAN:
        return _TRUTHS[value.lower()]
    if kind not in {ValueType.FLOAT, ValueType.DOUBLE}:
        return int(value)
    found = nearest_float(float(value)) if kind is ValueType.FLOAT else float(value)
    if math.isinf(found) and "inf" not in value.lower():
        raise OverflowError
    return found


Qr = Annotated[bool, option("--qr", "Draw the code as a QR code.")]
Count = Annotated[int | None, option("--count", "Stop after this many messages.", "N", min=1)]


class NamedTopic(OptionGroup, frozen=True):
    """The topic of a command, which may be a channel, or of a circle."""

    topic: Annotated[str | None, option("--topic -t", "The topic.", "TOPIC", autocompletion=topics)] = None
    queue: Annotated[str | None, option("-q", "", hidden=True)] = None
    channel: Annotated[bool, option("--channel", "The topic is an event channel of the overlay.")] = False
    circle: Annotated[
        str | None, option("--circle", "The topic is of this circle; only members read it.", "CIRCLE")
    ] = None

    def destination(self, instead: str) -> str:
        """Return the destination; `instead` is the command for queues."""
        if self.queue is not None:
            named = f"-q names a queue: use carrypost {instead} -q {self.queue}"
            raise LocalError(f"this command works on topics (-t), and {named}")
        if not self.topic:
            raise LocalError("a topic is required: -t village.roads")
        return topic(self.topic, channel=self.channel, circle=self.circle)


class NamedQueue(OptionGroup, frozen=True):
    """The queue of a command."""

    queue: Annotated[
        str | None, option("--queue -q", "The queue, as NAME or NAME@NODE.", "QUEUE", autocompletion=queues)
    ] = None
    topic: Annotated[str | None, option("-t", "", hidden=True)] = None

    def name(self, instead: str) -> str:
        """Return the queue as it was named; `instead` is the command for topics."""
        if self.topic is not None:
            named = f"-t names a topic: use carrypost {instead} -t {self.topic}"
            raise LocalError(f"this command works on queues (-q), and {named}")
        if not self.queue:
            raise LocalError("a queue is required: -q Alan")
        return self.queue


class Wanted(OptionGroup, frozen=True):
    """Options of messages that are received."""

    select: Annotated[
        str | None, option("--select", "Only messages that match this selector (SQL-92).", "SELECTOR")
    ] = None
    limit_s: Annotated[float | None, duration_option("--for", "Wait no longer than this.")] = None


class Modulation(OptionGroup, frozen=True):
    """The modulator of a subscription to a channel."""

    modulator: Annotated[
        str | None,
        option(
            "--modulator", "Run this modulator on every event of the --channel, at the home broker.",
            "NAME[:VERSION]|FILE",
        ),
    ] = None  # fmt: skip
    param: Annotated[list[str], option("--param", "A parameter of the --modulator; write lists as JSON.", "K=V")] = []  # noqa: RUF012 - msgspec makes a new list


class Outgoing(OptionGroup, frozen=True):
    """Options of messages that are sent."""

    body: Annotated[str | None, argument("The body; {n} and {time} are replaced. Default: read stdin.", "[BODY]")] = (
        None
    )
    payload: Annotated[str | None, option("--payload -p", "The body, as an option.", "BODY")] = None
    file: Annotated[Path | None, path_option("--file", "Read the body from this file, unchanged.", "FILE")] = None
    prop: Annotated[
        list[str], option("--prop", "A property; the type follows from the value, or is given: k:int=v.", "K=V")
    ] = []  # noqa: RUF012 - msgspec makes a new list
    label: Annotated[str | None, option("--id", "A label; `trace` finds the message by it.", "LABEL")] = None
    ttl: Annotated[float | None, duration_option("--ttl", "Lifetime: 90, 30min, 6h, 2d. Default: the node's.")] = None
    receipt: Annotated[bool, option("--receipt", "Wait until the message is delivered.")] = False
    limit_s: Annotated[float | None, duration_option("--for", "How long to wait for --receipt.")] = None
    sealed: Annotated[
        bool, option("--sealed", "Refuse to send unless the message can be sealed for its readers alone.")
    ] = False  # fmt: skip
    plain: Annotated[bool, option("--plain", "Send in plain text, which all carriers can read.")] = False
    count: Annotated[int | None, option("--count", "Number of messages to send.", "N", min=1, show_default="1")] = None
    every: Annotated[
        float | None,
        duration_option("--every", "Send repeatedly with this pause; without --count until Ctrl-C."),
    ] = None


def run(at: Node, body: Body, embedding: str | None = None, *, json: bool = False, reconnect: bool = False) -> None:
    """Run a command in a context on a node, and end with its exit code."""
    from carrypost.cli import _joining  # noqa: PLC0415 - keeps --help quick

    if code := _joining.run(at, body, embedding, json=json, reconnect=reconnect):
        raise typer.Exit(code)
