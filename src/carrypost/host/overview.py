"""Overviews of a host for people: values, taken at one moment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from carrypost.island.overview import IslandOverview
from carrypost.model.ids import NodeId
from carrypost.overlay.commands import OverlayView
from carrypost.security import packets

if TYPE_CHECKING:
    from carrypost.gossip.acked.acked import Acked
    from carrypost.gossip.discovery.neighbours import Neighbours
    from carrypost.gossip.transfers.host_context import HostContext
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
