"""Answers what a node holds and knows of messages, and throws copies away: the calls `cache` and `trace`."""

from __future__ import annotations

from itertools import islice
from typing import Any

from carrypost.attach import calls
from carrypost.host.held import HeldCopy
from carrypost.model import ids
from carrypost.model.times import MICROSECONDS
from carrypost.node.runtime import Node

_PAGE = 500
"""Copies of one answer."""


class HeldCopies:
    """Copies of one node, as commands ask for them."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def page(self, call: calls.Cache) -> list[dict[str, Any]]:
        """Return the next copies that are asked for, after throwing away those that are to be."""
        names = ids.spellings(call.message) if call.message else ()
        held = self._node.host.holding(after=call.after, names=names)
        page = list(islice((each for each in held if _is_asked_for(each, call)), _PAGE))
        purged = {each.id for each in page if call.purge and (call.force or not each.owed)}
        if purged:
            driver = self._node.driver
            driver.host.purge(purged, driver.now)
            driver.drain()
        return [_row(each) | {"purged": each.id in purged} for each in page]

    def trace(self, call: calls.Trace) -> dict[str, Any]:
        """Return the rows of a message, what is held, followed and queued of it now, and whether rows are kept."""
        traces = self._node.traces
        if not call.message:  # As their label most messages have none.
            return {"kept": traces is not None, "rows": [], "held": [], "sends": [], "entries": []}
        rows = [] if traces is None else traces.find(call.message)
        names = ids.spellings(call.message) | {row["message"] for row in rows}
        host = self._node.host
        held, views = list(islice(host.holding(names=names), _PAGE)), host.messaging.views()
        return {
            "kept": traces is not None,
            "rows": rows,
            "held": list(map(_row, held)),
            "sends": [] if views is None else views.sends_named(names),
            "entries": [] if views is None else [entry for each in held for entry in views.entries_of(each.id)],
        }


def _is_asked_for(copy: HeldCopy, call: calls.Cache) -> bool:
    queue, topic = copy.destination.rpartition("@")[0], copy.destination.rpartition("?")[0]
    return (not call.destination or call.destination in (copy.destination, queue, topic)) and (
        not call.foreign or copy.role == "carried"
    )


def _row(copy: HeldCopy) -> dict[str, Any]:
    deadline_us = copy.deadline_us
    return {
        "serial": copy.serial,
        "message": copy.message,
        "label": copy.label,
        "destination": copy.destination,
        "source": copy.source,
        "role": copy.role,
        "state": copy.state,
        "giver": copy.giver,
        "hops": copy.hops,
        "received": copy.received_us / MICROSECONDS,
        "expires": None if deadline_us is None else deadline_us / MICROSECONDS,
        "size": copy.size,
        "held_bytes": copy.held_bytes,
        "owed": copy.owed,
        "owed_to": copy.owed_to,
        "recipients": copy.recipients,
        "asked_by": copy.asked_by,
    }
