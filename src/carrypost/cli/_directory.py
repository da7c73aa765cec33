"""Names on behalf of `carrypost ls`, `bind` and `unbind`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from carrypost.cli import _output
from carrypost.cli._exit import Exit
from carrypost.errors import LocalError
from carrypost.jms.destinations import Destination
from carrypost.naming import InitialContext

if TYPE_CHECKING:
    from carrypost.cli._joining import Joined

EMBEDDING = "the change is stored there, and other nodes learn of it once a node runs"
_QUEUE, _HOLDER = "queue/", "holder/"


async def ls(joined: Joined, context: str) -> int:
    """Print the names in a context of the directory; returns the exit code."""
    found = await InitialContext(joined.ctx).list_bindings(context)
    if not found:
        _output.say(f"no names are known here{f' below {context}' if context else ''}")
        return Exit.DONE
    rows = [
        {"name": each.name, "destination": str(each.bound) if isinstance(each.bound, Destination) else None}
        for each in found
    ]
    if joined.json:
        for row in rows:
            _output.line(row)
    else:
        _output.table("", ("name", "destination"), [(row["name"], row["destination"] or "(names)") for row in rows])
    return Exit.DONE


async def bind(
    joined: Joined,
    name: str,
    destination: str | None,
    *,
    private: bool,
    replace: bool,
    lease_s: float | None,
    tries: int | None,
) -> int:
    """Declare a queue or a held topic, or let a name stand for a destination; returns the exit code."""
    if destination is not None:
        if lease_s is not None:
            raise LocalError(
                "--lease requires a queue that this command declares: carrypost bind queue/NAME --lease 1h"
            )
        if tries is not None:
            raise LocalError("--tries requires a queue that this command declares: carrypost bind queue/NAME --tries 3")
        names = InitialContext(joined.ctx)
        await (names.rebind if replace else names.bind)(name, destination, advertise=not private)
        return _bound(joined, name, destination)
    if name.startswith(_QUEUE):
        redelivery = "never" if lease_s is None else "after_lease"
        queue = await joined.ctx.declare_queue(
            name.removeprefix(_QUEUE), redelivery=redelivery, lease_s=lease_s, tries=tries, advertise=not private
        )
        return _bound(joined, queue.queue_name, str(queue))
    if name.startswith(_HOLDER):
        topic = await joined.ctx.declare_topic(name.removeprefix(_HOLDER), advertise=not private)
        return _bound(joined, topic.topic_name, str(topic))
    raise LocalError(
        f"{name!r} needs a destination: write `carrypost bind {name} topic/TOPIC`, or `carrypost bind "
        f"queue/{name}` to declare a queue of that name on this node"
    )


def _bound(joined: Joined, name: str, destination: str) -> int:
    if joined.json:
        _output.line({"name": name, "destination": destination})
    else:
        typer.echo(f"{name} is {destination}")
    return Exit.DONE


async def unbind(joined: Joined, name: str) -> int:
    """End a queue or a held topic of this node, or let a name go; returns the exit code."""
    if name.startswith(_QUEUE):
        await joined.ctx.end_queue(name)
    elif name.startswith(_HOLDER):
        await joined.ctx.end_topic(name if "@" in name else f"{name}@{joined.ctx.node_id}")
    else:
        await InitialContext(joined.ctx).unbind(name)
    return Exit.DONE
