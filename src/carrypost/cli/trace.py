"""The command that shows what the node on this machine knows of a message."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from carrypost.cli._options import Json, Place, argument
from carrypost.cli._output import cell, clock, line, pairs, say, table
from carrypost.errors import CarrypostError
from carrypost.web.live.verdict import Verdict, sentence, verdict, written

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
    show(found, message, made, json=json)


def show(found: Mapping[str, Any], message: str, made: Verdict | None = None, *, json: bool) -> None:
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
