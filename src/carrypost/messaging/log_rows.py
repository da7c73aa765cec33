"""Rows of the event log that messaging appends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from carrypost.log.events import Assigned, Event, Receipt, SendState
from carrypost.log.record import Kind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from carrypost.log.record import Append, Record

_KINDS = {SendState.EXPIRED: Kind.FAILURE, SendState.FAILED: Kind.FAILURE, SendState.DELIVERED: Kind.RECEIPT}


def _assigned(record: Record, t_us: int, node: str, event: Assigned) -> None:
    """Append the assignment of a message to a node."""
    given = event.descriptor
    record.add(
        Kind.ASSIGN, t_us, node, message=record.named(given.id, given.label), source=given.node, size=given.size,
        detail=event.receiver,
    )  # fmt: skip


def _receipt(record: Record, t_us: int, node: str, event: Receipt) -> None:
    """Append news of the outcome of a message for its author."""
    kind = _KINDS.get(event.state)
    if kind is Kind.RECEIPT and event.acknowledged:
        return  # `Acknowledged` reports each recipient.
    if event.rose and kind is not None:
        message = record.named(event.message, event.label)
        record.add(kind, t_us, node, message=message, source=node, detail=event.reason or None)


ROWS: Mapping[type[Event], Append] = {Assigned: _assigned, Receipt: _receipt}
