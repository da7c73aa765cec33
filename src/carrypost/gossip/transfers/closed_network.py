"""The closed network that this host belongs to, if any: keys of its datagrams, and what is refused for its sake.

`application.circles` writes it, from the circle that the settings name; discovery, links and inspection read it. A link
under an older key carries charters and nothing else, so that a member that was away learns of the present epoch, and
nobody who was removed learns anything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

from carrypost.errors import ForgeryError, LimitError
from carrypost.model import address
from carrypost.model.pattern import Entry, encode_entries, entry, profile_digest
from carrypost.security import packets

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from carrypost.gossip.holdings.holdings import Holdings
    from carrypost.gossip.outputs import Outputs
    from carrypost.gossip.wire.frames import Announce
    from carrypost.model.descriptor import Descriptor
    from carrypost.model.ids import NodeId
    from carrypost.security.packets import PacketKeys

_PREVIOUS_EVERY = 4
"""Number of announcements of which one is sent under the key of the previous epoch, too."""


class Way(Protocol):
    """A link, as far as closed networks are concerned."""

    node: NodeId
    prefix: bytes
    is_old: bool


class Known(Protocol):
    """A neighbour, as far as closed networks are concerned."""

    heard_us: int

    @property
    def link(self) -> Way:
        """The link to it."""


class ClosedNetwork:
    """The closed network of one host."""

    __slots__ = (
        "_by_peer", "_destination", "_outputs", "_sent", "digest", "encoded", "entries", "keys", "name", "removed",
        "since_us",
    )  # fmt: skip

    def __init__(self, name: str, outputs: Outputs, by_peer: Mapping[str, Way]) -> None:
        self._outputs, self._by_peer = outputs, by_peer
        self.name = name
        """Name of the circle whose members make up the network; empty: this host is in no closed network."""
        self.keys: PacketKeys | None = None
        """None while this host has no secret of the circle: it says nothing, and hears nothing."""
        self.removed: frozenset[NodeId] = frozenset()
        """Nodes that were removed from the circle."""
        self.since_us = 0
        """Time since which the present key is used."""
        self.entries: tuple[Entry, ...] = ()
        self.encoded = self.digest = b""
        """The profile of links under older keys, which asks for charters alone."""
        self._destination = ""
        self._sent = 0

    def update(self, circle: NodeId, keys: PacketKeys, removed: frozenset[NodeId], now: int) -> None:
        """Take over the state of the circle."""
        if self.keys is None or keys.present != self.keys.present:
            self.since_us = now
        self.keys, self.removed = keys, removed
        if not self._destination:
            self._destination = address.control(circle)
            self.entries = (entry(address.exactly(self._destination)),)
            self.encoded = encode_entries(self.entries)
            self.digest = profile_digest(self.encoded)

    def forget(self) -> None:
        """Note that this host is in the circle no more."""
        self.keys, self.removed, self._destination = None, frozenset(), ""

    def prefix_at(self, peer: str) -> bytes:
        """Return the prefix of the node at a link address; empty if none is known there."""
        link = self._by_peer.get(peer)
        return b"" if link is None else link.prefix

    def refuse(self, count: int) -> None:
        """Count datagrams that a driver dropped at a lookup: strangers sent them, or repeated those of members."""
        self._outputs.refuse("packet", "", count=count)

    def admits(self, frame: Announce, peer: str, neighbours: Iterable[Known]) -> bool:
        """Return False for announcements of nodes that were removed, and of members that repeat under an older key."""
        if not self.name:
            return True
        if frame.node in self.removed:
            self._outputs.refuse("removed", peer)
            return False
        # A member that has the present key is heard under that, and its link is the one to use.
        return not packets.is_old(peer) or not any(
            each.link.node == frame.node and not each.link.is_old and each.heard_us > self.since_us
            for each in neighbours
        )

    def limited(self, frame: Announce, holdings: Holdings) -> Announce:
        """Return an announcement under an older key, as if its node asked for charters alone."""
        if holdings.index.view(self.digest) is None:
            holdings.index.learn(self.entries, self.digest, holdings.known_copies(), own=True)
        return msgspec.structs.replace(frame, profile=self.digest)

    def check(self, found: Descriptor, link: Way) -> None:
        """Refuse messages of authors that were removed, and all but charters under an older key."""
        if self.removed and found.node in self.removed:
            raise ForgeryError("removed")
        if link.is_old and (found.destination != self._destination or found.is_sealed):
            raise LimitError("older-key")

    def repeats(self) -> bytes:
        """Return the key under which the announcement that is due is sent as well; empty: none."""
        if self.keys is None or not self.keys.older:
            return b""
        self._sent += 1
        return b"" if self._sent % _PREVIOUS_EVERY else self.keys.older[0].id
