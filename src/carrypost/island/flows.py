"""Flows: datagrams that a host passes on by their first bytes, as a router does.

All Relays that one host sends to another along one path begin alike, up to their bodies. The first one of such a *flow*
is decoded, checked and passed on as any frame is (`island.relaying`). That decides what becomes of the others as long
as the neighbours are the same: they go to the same one, with the same beginning, and of each no more is looked at than
whether it is one whole Relay. What is charged for them is the same.

A flow saves the work and not the checks: a datagram that begins as no flow does, or is beyond a budget, is left to the
long way, which counts it and says why.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from carrypost.gossip.wire import codec

if TYPE_CHECKING:
    from carrypost.config import Limits
    from carrypost.gossip.transfers.link import Link, Links
    from carrypost.gossip.wire.frames import Relay

FLOWS_MAX = 1_024
"""Flows that are kept; beyond it, all are found again, at the price of one Relay each that goes the long way."""
RELAY_BYTES_MIN = 1_000
"""A shorter datagram counts as this many bytes of `limits.link_relay_bytes_per_s`: each costs as much work."""
_OVERHEAD = codec.datagram_overhead(1)


class _Flow(NamedTuple):
    source: bytes
    """Prefix of the neighbour that it comes from: addresses may change hands."""
    head: bytes
    """Beginning of what comes."""
    to: str
    """Address of the next host."""
    moved: bytes
    """Beginning of what is sent there."""


class Flows:
    """The flows that one host is a relay of."""

    __slots__ = ("_flows", "_latest", "_limits", "_links", "_usable", "relayed_bytes")

    def __init__(self, links: Links, limits: Limits) -> None:
        self._links, self._limits = links, limits
        self._usable: list[Link] = []
        """The neighbours that the flows hold for: `Links.usable`, which is replaced when they change."""
        self._flows: dict[tuple[str, bytes], _Flow] = {}
        """By the address that they come from, and how they begin."""
        self._latest: dict[str, _Flow] = {}
        """By address, the flow of the last datagram: most often that of the next one."""
        self.relayed_bytes = 0
        """Bytes that were passed on for others, in flows or not."""

    def note(self, link: Link, frame: Relay, following: Link, moved: Relay) -> None:
        """Note what became of a Relay of a neighbour: it was sent to another one, with one place further in its path.

        A report of a broken link has no body, and nothing follows it.
        """
        if not frame.body:
            return
        if self._usable is not self._links.usable or len(self._flows) >= FLOWS_MAX:
            self._usable = self._links.usable
            self._flows.clear()
            self._latest.clear()
        flow = _Flow(link.prefix, codec.relay_head(frame), following.peer, codec.relay_head(moved))
        self._flows[link.peer, flow.head] = self._latest[link.peer] = flow

    def pass_on(self, datagram: bytes, peer: str, now: int) -> tuple[str, bytes] | None:
        """Return the datagram that is to be sent instead of one that came, and where to; None: it is of no flow."""
        flow = self._latest.get(peer)
        if flow is None or self._usable is not self._links.usable:
            return None
        if not datagram.startswith(flow.head):
            flow = self._flows.get((peer, codec.head_of_relay(datagram)))
            if flow is None:
                return None
            self._latest[peer] = flow
        link, at, length = self._links[peer], len(flow.head), len(datagram)
        if not (
            link.prefix == flow.source
            and at < length <= self._limits.datagram_bytes_max
            and codec.ends_with_body(datagram, at)
            and self._links.accounts.listens(peer, now, neighbour=True)
            and link.relayed.try_spend(max(length - _OVERHEAD, RELAY_BYTES_MIN), now)
        ):
            return None
        self.relayed_bytes += length - _OVERHEAD
        return flow.to, datagram.replace(flow.head, flow.moved, 1)  # of as many bytes: this copies once
