"""Shows all of messaging on a node: queues, held topics, subscriptions, channels and sends."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from carrypost.cli._output import clock, duration, line, say, size, table
from carrypost.model.times import MICROSECONDS

_Row = Mapping[str, Any]


def show(found: Mapping[str, Any], *, json: bool) -> None:
    """Print it: for programs a line for each, with its kind."""
    messaging, channels = found["messaging"], found["channels"]
    if messaging is None:
        say("messaging is off on this node (messaging.enabled)")
    listed = {name: (messaging or {}).get(name, ()) for name in ("queues", "held", "subscriptions", "sends")}
    listed["channels"] = channels or ()
    if json:
        for kind, rows in listed.items():
            for row in rows:
                line({"kind": kind, **row})
        return
    for kind, (title, columns, cells) in _TABLES.items():
        if rows := listed[kind]:
            count = (messaging or {}).get("counts", {}).get(kind, len(rows))
            more = f" (the first {len(rows):,} of {count:,})" if count > len(rows) else ""
            table(f"\n{title}{more}", columns, list(map(cells, rows)), breakable=columns[:1])
    if messaging is not None and not any(listed.values()):
        say("this node has no queues, held topics, subscriptions, channels or followed sends")


def _queue(row: _Row) -> Sequence[object]:
    assigned = sum(each["messages"] for each in row["assigned"])
    demands = ", ".join(f"{each['node']}{' (silent)' if each['silent'] else ''}" for each in row["demands"])
    room = f"{size(row['bytes'])} of {size(row['bytes_max'])}"
    oldest = "-" if row["oldest_us"] is None else clock(row["oldest_us"] / MICROSECONDS)
    return row["name"], row["waiting"], row["delayed"], row["handed"], assigned, room, demands or "none", oldest


def _subscription(row: _Row) -> Sequence[object]:
    return row["name"], row["waiting"], row["handed"], row["consumers"], _until(row["lease_us"])


def _channel(row: _Row) -> Sequence[object]:
    home = row["home"] or f"none{row['refusal'] and ': '}{row['refusal']}"
    since = "-" if row["since_us"] is None else clock(row["since_us"] / MICROSECONDS)
    who = row["role"] if row["role"] != "broker" else f"broker for {row['client']}"
    busy = duration(row["busy_us"] / MICROSECONDS)
    return row["channel"], who, home, since, row["modulator"] or "-", row["results"], row["lost"], row["faults"], busy


def _send(row: _Row) -> Sequence[object]:
    left = f"{row['acknowledged']:,} of {row['acknowledged'] + row['left']:,}" if row["left"] else "-"
    state = f"{row['state']}{row['reason'] and ': '}{row['reason']}"
    return row["label"] or row["message"], row["destination"], state, left, _until(row["expires_us"])


def _held(row: _Row) -> Sequence[object]:
    return row["name"], row["subscribers"], ", ".join(node for node, *_ in row["nodes"][:3]) or "-"


def _until(date_us: int | None) -> str:
    return "-" if date_us is None else clock(date_us / MICROSECONDS)


_TABLES: dict[str, tuple[str, Sequence[str], Callable[[_Row], Sequence[object]]]] = {
    "queues": (
        "Queues",
        ("queue", "waiting", "delayed", "handed", "assigned", "bytes", "consumers", "oldest"),
        _queue,
    ),
    "held": ("Held topics", ("topic", "subscribers", "first of them"), _held),
    "subscriptions": ("Subscriptions", ("subscription", "waiting", "handed", "consumers", "ends"), _subscription),
    "channels": (
        "Channels",
        ("channel", "role", "home", "since", "modulator", "results", "lost", "faults", "worked"),
        _channel,
    ),
    "sends": ("Sends", ("message", "destination", "state", "recipients", "expires"), _send),
}
