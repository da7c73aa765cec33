"""Commands about what the node on this machine holds."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from carrypost.cli._groups import Commands
from carrypost.cli._options import Json, Place, argument, option
from carrypost.cli._output import clock, line, say, size, table
from carrypost.errors import CarrypostError, LocalError

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
