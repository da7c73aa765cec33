"""Overviews of a host, and the copies that it holds, for people: values, taken at one moment.

`overview` returns figures of a host and its neighbours. `holding` returns copies with their recipients and deadlines.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from carrypost.gossip.holdings import cache
from carrypost.gossip.holdings.cache import state_of
from carrypost.island.island import IslandOverview
from carrypost.model import address, ids
from carrypost.model.ids import MessageId, NodeId
from carrypost.overlay.commands import OverlayView
from carrypost.security import packets

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from carrypost.gossip.acked.acked import Acked
    from carrypost.gossip.discovery.neighbour import Neighbour
    from carrypost.gossip.discovery.neighbours import Neighbours
    from carrypost.gossip.holdings.copies import Copy
    from carrypost.gossip.holdings.holdings import Holdings
    from carrypost.gossip.transfers.link import HostContext
    from carrypost.island.island import Island


ONE_WAY, OLDER = "one-way", "older"


class NeighbourView(msgspec.Struct, frozen=True):
    """One link of a host."""

    node: NodeId
    """Node that the other side claims to be; announcements are not signed."""
    address: str
    state: str
    """silent, heard, linked; one-way: heard for long without hearing this host; older: under an older key of a closed
    network, so that it gets charters alone."""
    since_us: int
    heard_us: int
    queued: int
    """Messages that it asked for and has not acknowledged."""
    wanted: int
    """Messages that it offered and that are still lacking here."""


class Overview(msgspec.Struct, frozen=True):
    """One host at one moment."""

    node: NodeId
    incarnation: int
    neighbours: tuple[NeighbourView, ...]
    places: int
    """Number of places for neighbours that are found by their announcements."""
    waiting: int
    """Number of nodes that found all places taken, lately, and wait for their turn."""
    datagram_bytes: int
    """The longest datagram that goes to all neighbours with which messages are exchanged."""
    messages: int
    """Copies in the cache."""
    bytes: int
    """Their payload."""
    closed: tuple[str, str] | None
    """The name of the closed network, and the id of its present key, empty if none is known; None: it is not closed."""
    acknowledgements: int
    """Records of acknowledgements that it knows and passes on."""
    island: IslandOverview | None
    """The island; None if it is off."""
    overlay: OverlayView | None
    """The overlay; None if it is off."""
    dropped: Mapping[str, int]
    """Number of copies that left or were not admitted, by reason."""
    refused: Mapping[str, int]
    """Number of refusals, by reason."""


def overview(
    context: HostContext,
    neighbours: Neighbours,
    acked: Acked,
    island: Island | None,
    incarnation: int,
    *,
    overlay: OverlayView | None,
) -> Overview:
    """Return an overview of the host."""
    places, holdings, closed = neighbours.places, context.holdings, context.links.closed
    views = tuple(
        NeighbourView(
            node=each.link.node,
            address=packets.parted(each.link.peer)[0],
            state=OLDER if each.link.is_old else ONE_WAY if each.one_way_reported else each.state.value,
            since_us=each.linked_us if each.link.usable else each.first_us,
            heard_us=each.heard_us,
            queued=len(each.link.outbox.jobs),
            wanted=len(each.link.inbox.wants),
        )
        for each in neighbours
    )
    return Overview(
        node=context.node,
        incarnation=incarnation,
        neighbours=views,
        places=places.count,
        waiting=places.waiting(holdings.now_us),
        datagram_bytes=context.links.datagram_bytes,
        messages=holdings.cache.messages,
        bytes=holdings.cache.bytes,
        closed=(closed.name, "" if closed.keys is None else closed.keys.present.id.hex()) if closed.name else None,
        acknowledgements=len(acked.known),
        island=None if island is None else island.overview(),
        overlay=overlay,
        dropped=dict(context.outputs.dropped),
        refused=dict(context.outputs.refused),
    )


_OWED = cache.DELIVERIES | cache.ORDER | cache.PUBLISHING | cache.CLAIMS | cache.QUEUES | cache.RECIPIENTS
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
