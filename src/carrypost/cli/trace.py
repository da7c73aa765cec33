"""The command that shows what the node on this machine knows of a message."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from carrypost.cli._options import Json, Place, argument
from carrypost.cli._output import cell, clock, line, pairs, say, table
from carrypost.errors import CarrypostError
from carrypost.model import address
from carrypost.web.live.verdict import Verdict, verdict

_SENTENCES = {
    "publish": "stored here: a program of this node sent it to {destination}",
    "receive": "received from {peer}, hop {hops}",
    "pass": "passed to {peer}",
    "deliver": "matched a subscription or a queue of this node",
    "assign": "assigned to a receiver at {detail}",
    "receipt": "delivered, according to its receipt {peer}",
    "failure": "failed: {detail}",
    "drop": "left this node: {detail}",
    "expire": "expired before it could be delivered",
    "refuse": "refused: {detail}",
}
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
    rows = [_written(row) for row in found["rows"]] + [
        {"kind": "held", "t": each["received"], **each} for each in found["held"]
    ]
    if not found["kept"]:
        say(_OFF)
    if not rows and not found.get("sends"):
        sentence = f"this node knows no message with the id or label {message}"
        if made is not None:
            sentence = made.sentence[:1].lower() + made.sentence[1:].removesuffix(".")
        raise CarrypostError(sentence)
    if json:
        for row in rows:
            line({name: value for name, value in row.items() if name not in ("run", "node", "serial")})
        if made is not None:
            line({"kind": "verdict", **msgspec.to_builtins(made)})
        return
    if made is not None:
        pairs([(made.verdict, made.sentence), *([("", made.remedy)] if made.remedy else [])])
    for named in dict.fromkeys(row["message"] for row in rows):
        fields = [(_time(row), _sentence(row)) for row in rows if row["message"] == named]
        table(f"Message {cell(named)}", ("time", "what"), fields, breakable=["what"])


def _written(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a row with the destination as commands take it."""
    attrs = row.get("attrs", {})
    if "destination" not in attrs:
        return row
    return {**row, "attrs": {**attrs, "destination": address.written(attrs["destination"])}}


def _time(row: Mapping[str, Any]) -> str:
    return "now" if row["kind"] == "held" else clock(row["t"])


def _sentence(row: Mapping[str, Any]) -> str:
    if row["kind"] == "held":
        until = "" if row["expires"] is None else f", until {clock(row['expires'])}"
        return f"held here ({row['role']}) for {', '.join(row['owed_to']) or 'others'}{until}"
    values = {"peer": "", "hops": "", "detail": "", "destination": "", **row.get("attrs", {}), **row}
    sentence = _SENTENCES.get(row["kind"], row["kind"]).format_map(values)
    path = row.get("attrs", {}).get("path")
    return f"{sentence}, by way of {path}" if path else sentence.strip()
