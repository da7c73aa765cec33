"""Copies that a host holds, with their recipients and deadlines, for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from carrypost.gossip.holdings import owners
from carrypost.gossip.holdings.copy_states import state_of
from carrypost.model import address, ids
from carrypost.model.ids import MessageId, NodeId

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from carrypost.gossip.discovery.neighbour import Neighbour
    from carrypost.gossip.holdings.copies import Copy
    from carrypost.gossip.holdings.holdings import Holdings

_OWED = owners.DELIVERIES | owners.ORDER | owners.PUBLISHING | owners.CLAIMS | owners.QUEUES | owners.RECIPIENTS
"""Owners whose pins mean that programs of this node need a copy, or that it is not safe yet."""


class HeldCopy(msgspec.Struct, frozen=True):
    """The copy of one message, or a part of it."""

    serial: int
    """Place among all copies, in order of arrival."""
    id: MessageId
    message: str
    """The id as people see it."""
    label: str
    destination: str
    """The destination as programs write it."""
    source: NodeId
    role: str
    """own, wanted by a program here, or carried for others."""
    state: str
    """State by the protocol's table of a copy's life."""
    giver: NodeId | None
    hops: int
    received_us: int
    deadline_us: int | None
    size: int
    """Bytes of the message."""
    held_bytes: int
    owed: bool
    """True if a program of this node has still to get it, or its messaging needs it."""
    owed_to: list[str]
    """Subscriptions and queues of this node with a claim to it."""
    recipients: list[NodeId]
    """Nodes that it lists and that have not got it, as far as is known here."""
    asked_by: list[NodeId]
    """Linked neighbours whose interests match it: they want it, or carry it for others."""


def holding(
    holdings: Holdings,
    neighbours: Iterable[Neighbour],
    owed_to: Callable[[MessageId], list[str]],
    after: int,
    names: Collection[str],
    *,
    labels: Mapping[MessageId, str],
) -> Iterator[HeldCopy]:
    """Yield the copies, the oldest first: see `Host.holding`."""
    copies = [copy for copy in holdings.cache.copies if copy is not None and copy.here and copy.serial > after]
    if names:
        copies = [copy for copy in copies if _label(copy, labels) in names or ids.shown(copy.id) in names]
    linked = [(each.link.node, each.view.matches) for each in neighbours if each.link.usable and each.view is not None]
    for copy in sorted(copies, key=lambda copy: copy.serial):
        asked_by = [node for node, matches in linked if matches >> copy.slot & 1]
        yield _held(copy, holdings, _label(copy, labels), owed_to(copy.id), asked_by)


def _label(copy: Copy, labels: Mapping[MessageId, str]) -> str:
    return copy.readable.label or labels.get(copy.id, "")


def _held(copy: Copy, holdings: Holdings, label: str, owed_to: Sequence[str], asked_by: list[NodeId]) -> HeldCopy:
    descriptor = copy.descriptor
    # Control messages between nodes belong to no program, but messaging relies on them.
    own_control = copy.own and address.name_of(descriptor.destination) is None
    awaited = copy.interesting and not copy.finished
    return HeldCopy(
        serial=copy.serial,
        id=copy.id,
        message=ids.shown(copy.id),
        label=label,
        destination=address.written(descriptor.destination, descriptor.ordering.text),
        source=descriptor.node,
        role="own" if copy.own else "wanted" if copy.interesting else "carried",
        state=state_of(holdings.cache, copy.id).value,
        giver=copy.giver,
        hops=copy.hops,
        received_us=copy.received_us,
        deadline_us=descriptor.deadline_us,
        size=descriptor.size,
        held_bytes=copy.held_bytes,
        owed=bool(owed_to or copy.pins & _OWED or own_control or awaited),
        owed_to=list(owed_to),
        recipients=holdings.recipients.left(descriptor) if descriptor.listed else [],
        asked_by=asked_by,
    )
