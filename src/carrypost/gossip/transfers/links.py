"""All links of one host: by address, which of them are usable, and their timers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from carrypost.gossip.timers import Schedule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from carrypost.gossip.transfers.link import Link


class Links:
    """The links of one host."""

    __slots__ = ("_by_peer", "get", "schedule", "usable")

    def __init__(self) -> None:
        self._by_peer: dict[str, Link] = {}
        self.get: Callable[[str], Link | None] = self._by_peer.get
        """The link of an address. Asked for every datagram."""
        self.usable: list[Link] = []
        """The neighbours with whom messages may be exchanged."""
        self.schedule = Schedule()
        """When the first of their timers is due."""

    def __len__(self) -> int:
        return len(self._by_peer)

    def __iter__(self) -> Iterator[Link]:
        return iter(self._by_peer.values())

    def __getitem__(self, peer: str) -> Link:
        return self._by_peer[peer]

    def add(self, link: Link) -> None:
        """Keep a new link."""
        self._by_peer[link.peer] = link
        self.schedule.add(link.timers)

    def remove(self, link: Link) -> None:
        """Forget a link."""
        self.open(link, usable=False)
        del self._by_peer[link.peer]
        self.schedule.remove(link.timers)

    def open(self, link: Link, *, usable: bool) -> None:
        """Messages may be exchanged over a link, or no longer."""
        link.usable = usable
        self.usable = [link for link in self if link.usable]

    @property
    def sending(self) -> bool:
        """Whether anything is on its way to a neighbour."""
        return any(link.outbox.jobs for link in self.usable)
