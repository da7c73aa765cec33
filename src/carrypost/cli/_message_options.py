"""Options that several commands about messages have, and how those commands run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from carrypost.cli import _completion, _given, _paths

if TYPE_CHECKING:
    from carrypost.cli import _joining

Topic = Annotated[
    str | None, typer.Option("--topic", "-t", help="The topic.", metavar="TOPIC", autocompletion=_completion.topics)
]
Queue = Annotated[
    str | None,
    typer.Option(
        "--queue", "-q", help="The queue, as NAME or NAME@NODE.", metavar="QUEUE", autocompletion=_completion.queues
    ),
]
Channel = Annotated[bool, typer.Option("--channel", help="The topic is an event channel of the overlay.")]
Modulator = Annotated[
    str | None,
    typer.Option(
        "--modulator",
        help="Run this modulator on every event of the --channel, at the home broker.",
        metavar="NAME[:VERSION]|FILE",
    ),
]
Param = Annotated[
    list[str],
    typer.Option(
        "--param", help="A parameter of the --modulator; write lists as JSON.", metavar="K=V", show_default=False
    ),
]
NoTopic = Annotated[str | None, typer.Option("-t", hidden=True)]
NoQueue = Annotated[str | None, typer.Option("-q", hidden=True)]
Body = Annotated[
    str | None,
    typer.Argument(help="The body; {n} and {time} are replaced. Default: read stdin.", metavar="[BODY]"),
]
Payload = Annotated[str | None, typer.Option("--payload", "-p", help="The body, as an option.", metavar="BODY")]
File = Annotated[Path | None, _paths.option("--file", "Read the body from this file, unchanged.", "FILE")]
Prop = Annotated[
    list[str],
    typer.Option(
        "--prop",
        help="A property; the type follows from the value, or is given: k:int=v.",
        metavar="K=V",
        show_default=False,
    ),
]
Label = Annotated[str | None, typer.Option("--id", help="A label; `trace` finds the message by it.", metavar="LABEL")]
Ttl = Annotated[float | None, _given.duration_option("--ttl", "Lifetime: 90, 30min, 6h, 2d. Default: the node's.")]
Receipt = Annotated[bool, typer.Option("--receipt", help="Wait until the message is delivered.")]
ReceiptFor = Annotated[float | None, _given.duration_option("--for", "How long to wait for --receipt.")]
Every = Annotated[
    float | None, _given.duration_option("--every", "Send repeatedly with this pause; without --count until Ctrl-C.")
]
Times = Annotated[
    int | None, typer.Option("--count", help="Number of messages to send.", min=1, metavar="N", show_default="1")
]
Select = Annotated[
    str | None, typer.Option("--select", help="Only messages that match this selector (SQL-92).", metavar="SELECTOR")
]
For = Annotated[float | None, _given.duration_option("--for", "Wait no longer than this.")]
Count = Annotated[int | None, typer.Option("--count", help="Stop after this many messages.", min=1, metavar="N")]


Create = Annotated[
    bool, typer.Option("--create", help="If --data names a folder without a node, make a new node there.")
]


def run(at: _joining.NodeOptions, body: _joining.Body, embedding: str | None = None) -> None:
    """Run a command, and end with its exit code."""
    from carrypost.cli import _joining  # noqa: PLC0415 - keeps --help quick

    if code := _joining.run(at, body, embedding):
        raise typer.Exit(code)


def node_options(
    config: Path | None,
    data: Path | None,
    changes: list[str],
    *,
    json: bool = False,
    reconnect: bool = False,
    create: bool | None = None,
) -> _joining.NodeOptions:
    """Return the node that a command uses; `create` is None if the command makes none in any folder."""
    from carrypost.cli._joining import NodeOptions  # noqa: PLC0415 - keeps --help quick

    return NodeOptions(config, data, tuple(changes), json, reconnect, create)
