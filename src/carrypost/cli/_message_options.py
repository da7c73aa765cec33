"""Options that several commands about messages have, and how those commands run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from carrypost.cli import _completion, _given, _paths
from carrypost.cli._options import Node, OptionGroup, argument, option

if TYPE_CHECKING:
    from carrypost.cli._joining import Body

Topic = Annotated[str | None, option("--topic -t", "The topic.", "TOPIC", autocompletion=_completion.topics)]
Queue = Annotated[
    str | None, option("--queue -q", "The queue, as NAME or NAME@NODE.", "QUEUE", autocompletion=_completion.queues)
]
Channel = Annotated[bool, option("--channel", "The topic is an event channel of the overlay.")]
Circle = Annotated[str | None, option("--circle", "The topic is of this circle; only members read it.", "CIRCLE")]
Qr = Annotated[bool, option("--qr", "Draw the code as a QR code.")]
NoTopic = Annotated[str | None, option("-t", "", hidden=True)]
NoQueue = Annotated[str | None, option("-q", "", hidden=True)]
Count = Annotated[int | None, option("--count", "Stop after this many messages.", "N", min=1)]


class Wanted(OptionGroup, frozen=True):
    """Options of messages that are received."""

    select: Annotated[
        str | None, option("--select", "Only messages that match this selector (SQL-92).", "SELECTOR")
    ] = None
    limit_s: Annotated[float | None, _given.duration_option("--for", "Wait no longer than this.")] = None


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


class Message(OptionGroup, frozen=True):
    """Options of messages that are sent."""

    body: Annotated[str | None, argument("The body; {n} and {time} are replaced. Default: read stdin.", "[BODY]")] = (
        None
    )
    payload: Annotated[str | None, option("--payload -p", "The body, as an option.", "BODY")] = None
    file: Annotated[Path | None, _paths.option("--file", "Read the body from this file, unchanged.", "FILE")] = None
    prop: Annotated[
        list[str], option("--prop", "A property; the type follows from the value, or is given: k:int=v.", "K=V")
    ] = []  # noqa: RUF012 - msgspec makes a new list
    label: Annotated[str | None, option("--id", "A label; `trace` finds the message by it.", "LABEL")] = None
    ttl: Annotated[
        float | None, _given.duration_option("--ttl", "Lifetime: 90, 30min, 6h, 2d. Default: the node's.")
    ] = None
    receipt: Annotated[bool, option("--receipt", "Wait until the message is delivered.")] = False
    limit_s: Annotated[float | None, _given.duration_option("--for", "How long to wait for --receipt.")] = None
    sealed: Annotated[
        bool, option("--sealed", "Refuse to send unless the message can be sealed for its readers alone.")
    ] = False  # fmt: skip
    plain: Annotated[bool, option("--plain", "Send in plain text, which all carriers can read.")] = False
    count: Annotated[int | None, option("--count", "Number of messages to send.", "N", min=1, show_default="1")] = None
    every: Annotated[
        float | None,
        _given.duration_option("--every", "Send repeatedly with this pause; without --count until Ctrl-C."),
    ] = None


def run(at: Node, body: Body, embedding: str | None = None, *, json: bool = False, reconnect: bool = False) -> None:
    """Run a command in a context on a node, and end with its exit code."""
    from carrypost.cli import _joining  # noqa: PLC0415 - keeps --help quick

    if code := _joining.run(at, body, embedding, json=json, reconnect=reconnect):
        raise typer.Exit(code)
