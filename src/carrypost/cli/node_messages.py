"""Commands about messages on the node of this machine: which it holds (`cache`), and what it knows of one (`trace`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
import typer

from carrypost.cli._options import Commands, Json, Place, argument, option
from carrypost.cli._output import cell, clock, line, pairs, say, size, table
from carrypost.errors import CarrypostError, LocalError
from carrypost.web.verdict import Verdict, sentence, verdict, written

cache = Commands("cache", help="Show what the node on this machine holds, for which receivers, and until when.")

MessageArgument = Annotated[str, argument("The id of a message, or a label.", "[ID|LABEL]")]
DestinationOption = Annotated[str, option("--to", "Only messages of this topic or queue.", "DESTINATION")]
ForeignOption = Annotated[bool, option("--foreign", "Only messages carried for other nodes.")]
_NOTHING = "the node holds no such messages"


@cache.command()
def inspect(
    message: MessageArgument = "",
    *,
    to: DestinationOption = "",
    foreign: ForeignOption = False,
    at: Place,
    json: Json = False,
) -> None:
    """List the messages that the node holds, oldest first.

    A message is *own* if a program of this node sent it, *wanted* if one subscribes to it, otherwise *carried*.

    For example:

    * `carrypost cache inspect`

    * `carrypost cache inspect --to queue/Alan`

    * `carrypost cache inspect --foreign --json`
    """
    _check_destination(to)
    found = at.ask("cache", message=message, destination=to, foreign=foreign)
    if json:
        for each in found:
            line(_line(each))
    elif found:
        columns = ("message", "destination", "role", "for", "until", "size")
        table("", columns, list(map(_row, found)), breakable=["message", "destination", "for"])
    else:
        say(_NOTHING)


@cache.command()
def purge(
    message: MessageArgument = "",
    *,
    to: DestinationOption = "",
    foreign: ForeignOption = False,
    force: Annotated[bool, option("--force", "Also messages that programs of this node have yet to receive.")] = False,
    at: Place,
    json: Json = False,
) -> None:
    """Remove messages from this node for good. Copies on other nodes stay, and do not come back.

    Messages that subscriptions or queues of this node have yet to deliver are kept, unless `--force` is given. With
    `--force`, the senders of messages in this node's queues are notified of the failure.

    For example:

    * `carrypost cache purge --foreign` removes what is carried for others

    * `carrypost cache purge firstMSG`

    * `carrypost cache purge --to queue/Alan --force`
    """
    if not (message or to or foreign):
        raise LocalError("name what to remove: a message's id or label, --to DESTINATION, or --foreign")
    _check_destination(to)
    chosen = {"message": message, "destination": to, "foreign": foreign}
    found = at.ask("cache", purge=True, force=force, **chosen)
    if not found and not foreign:
        say(_NOTHING)
    gone = [each for each in found if each["purged"]]
    if json:
        for each in found:
            line(_line(each) | {"purged": each["purged"]})
    else:
        typer.echo(f"messages removed: {len(gone):,} ({size(sum(each['held_bytes'] for each in gone))})")
    if spared := len(found) - len(gone):
        raise CarrypostError(
            f"messages kept: {spared:,}; programs here have yet to receive them, and --force removes them"
        )


def _check_destination(text: str) -> None:
    if text and "/" not in text:
        raise LocalError(f"is {text!r} a topic or a queue? Write --to topic/{text} or --to queue/{text}")


def _line(copy: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in copy.items() if name not in ("serial", "purged")}


def _row(copy: dict[str, Any]) -> tuple[object, ...]:
    whom = ", ".join(copy["owed_to"] or copy["recipients"]) or ("messaging" if copy["owed"] else "others")
    until = "-" if copy["expires"] is None else clock(copy["expires"])
    return copy["label"] or copy["message"], copy["destination"], copy["role"], whom, until, size(copy["size"])


_OFF = "this node keeps no history of messages: set trace.enabled = true to keep it from now on"


def trace(
    message: Annotated[str, argument("The id of a message, or a label.", "ID|LABEL")],
    at: Place,
    *,
    json: Json = False,
) -> None:
    """Show the history of a message on the node of this machine.

    Begins with a verdict: what became of the message, and what you can do. Then lists when the message was stored or
    received, and from which neighbour; the neighbours it was passed to; the subscriptions and queues it matched; for
    queues, the receivers it was assigned to; for own messages, their receipts; how it ended; and the copy held now. The
    history is kept only if the node has `trace.enabled = true`. Otherwise only the present state is shown.

    For example:

    * `carrypost trace firstMSG`, on a node that was started with `--set trace.enabled=true`

    * `carrypost trace firstMSG --json`
    """
    found = at.ask("trace", message)
    made = verdict(message, found, at.ask("peers"), at.ask("messaging")) if "sends" in found else None
    show_history(found, message, made, json=json)


def show_history(found: Mapping[str, Any], message: str, made: Verdict | None = None, *, json: bool) -> None:
    """Print what a node knows of a message; raises `CarrypostError` if that is nothing.

    `made`: the verdict; None if the node runs an earlier version, which does not say enough for one.
    """
    rows = [written(row) for row in found["rows"]] + [
        {"kind": "held", "t": each["received"], **each} for each in found["held"]
    ]
    if not found["kept"]:
        say(_OFF)
    if not rows and not found.get("sends"):
        text = f"this node knows no message with the id or label {message}"
        if made is not None:
            text = made.sentence[:1].lower() + made.sentence[1:].removesuffix(".")
        raise CarrypostError(text)
    if json:
        for row in rows:
            line({name: value for name, value in row.items() if name not in ("run", "node", "serial")})
        if made is not None:
            line({"kind": "verdict", **msgspec.to_builtins(made)})
        return
    if made is not None:
        pairs([(made.verdict, made.sentence), *([("", made.remedy)] if made.remedy else [])])
    for named in dict.fromkeys(row["message"] for row in rows):
        fields = [(_time(row), sentence(row)) for row in rows if row["message"] == named]
        table(f"Message {cell(named)}", ("time", "what"), fields, breakable=["what"])


def _time(row: Mapping[str, Any]) -> str:
    return "now" if row["kind"] == "held" else clock(row["t"])
