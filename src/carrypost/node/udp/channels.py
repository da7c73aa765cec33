"""Means by which all nodes on a link are reached, and the choice of those that are needed.

A *channel* is one means on one interface: a listening socket, and a target to send to. It is planned from the present
state of the interface (`plan`); when that changes, the channel is closed and another one opened. `cover` finds the
fewest channels of an interface that reach every node heard on it.
"""

from __future__ import annotations

import enum
import itertools
import socket
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from carrypost.node.settings import UdpSettings
from carrypost.node.udp import sockets
from carrypost.node.udp.addresses import SocketAddress, family
from carrypost.node.udp.interfaces import Interface
from carrypost.node.udp.sockets import Control

LATELY_S = 30.0
"""Time after which a node that was not heard counts as gone: two times three announcements at the default pace."""
PEERS_MAX = 1_024
"""Number of peers of a channel that are remembered; further ones are served by every means."""


class Means(enum.StrEnum):
    """The means to reach all nodes on a link, the preferred one first."""

    IPV4_MULTICAST = "ipv4-multicast"
    IPV6_MULTICAST = "ipv6-multicast"
    IPV4_BROADCAST = "ipv4-broadcast"

    @property
    def setting(self) -> str:
        """The field of `UdpSettings` that switches it on."""
        return self.name.lower()


class Obstacle(enum.StrEnum):
    """Why an interface cannot have a means."""

    DOWN = "the interface is down, or nothing is connected to it"
    NO_IPV4 = "no IPv4 address"
    NO_IPV6 = "no IPv6 address of the link"
    NO_MULTICAST = "the interface cannot multicast"
    NO_BROADCAST = "the network has no broadcast address"


@dataclass(frozen=True, slots=True)
class Target:
    """The destination of a datagram, and the means to reach it."""

    address: SocketAddress
    control: Control | None = None
    """Ancillary data; None: there is none."""
    multicast_by: str = ""
    """Address of the interface by which IPv4 multicast leaves, where the system has no such data."""

    @property
    def family(self) -> socket.AddressFamily:
        """The address family: IPv4 or IPv6."""
        return family(self.address)


@dataclass(frozen=True, slots=True)
class ChannelPlan:
    """The parameters of a channel; one with others is another channel."""

    means: Means
    interface: str
    index: int
    source: str
    """The interface's own address."""
    group: str
    """The group or broadcast address."""
    port: int

    def listen(self) -> socket.socket:
        """Return a socket that hears the channel; raises `OSError`."""
        if self.means is Means.IPV6_MULTICAST:
            return sockets.listen_multicast_v6(self.group, self.port, self.index)
        if self.means is Means.IPV4_MULTICAST:
            return sockets.listen_multicast_v4(self.group, self.port, self.index, self.source)
        return sockets.listen_broadcast(self.group, self.port, self.interface)

    def target(self) -> Target:
        """Return the destination that reaches all nodes."""
        if self.means is Means.IPV6_MULTICAST:
            return Target((self.group, self.port, 0, self.index))
        if sockets.LINUX:
            # The system finds the source itself, even right after it has changed; but for loopback it takes another's.
            source = self.source if self.source.startswith("127.") else "0.0.0.0"  # noqa: S104 - this means any
            return Target((self.group, self.port), sockets.leaving_by(self.index, source))
        return Target((self.group, self.port), multicast_by=self.source)


def enabled(settings: UdpSettings) -> list[Means]:
    """Return the means that the settings allow."""
    return [means for means in Means if getattr(settings, means.setting)]


def plan(means: Means, interface: Interface, settings: UdpSettings) -> ChannelPlan | Obstacle:
    """Return the parameters of the channel, or the reason why the interface cannot have it."""
    if not interface.up:
        return Obstacle.DOWN
    source, group = {
        Means.IPV4_MULTICAST: (interface.ipv4, settings.group_v4),
        Means.IPV6_MULTICAST: (interface.link_local, settings.group_v6),
        Means.IPV4_BROADCAST: (interface.ipv4, interface.broadcast),
    }[means]
    if not source:
        return Obstacle.NO_IPV6 if means is Means.IPV6_MULTICAST else Obstacle.NO_IPV4
    if means is not Means.IPV4_BROADCAST and not interface.multicast:
        return Obstacle.NO_MULTICAST
    if not group:
        return Obstacle.NO_BROADCAST
    return ChannelPlan(means, interface.name, interface.index, source, group, settings.port)


class Channel:
    """One means on one interface."""

    def __init__(self, made: ChannelPlan, ear: socket.socket, close: Callable[[], None]) -> None:
        self.plan = made
        self.socket = ear
        self.close = close
        """Ends the reading and closes the socket."""
        self.target = made.target()
        self.heard = 0
        """Datagrams, duplicates included."""
        self.peers: dict[str, float] = {}
        """Time at which each peer was last heard by this means."""
        self.send_error = ""
        """Error of the system at the last send; empty: none."""

    def hears(self, peer: str, now_s: float) -> bool:
        """Note that a peer was heard on this channel; return True if it had not been heard here lately."""
        peers = self.peers
        new = peer not in peers
        if not new or len(peers) < PEERS_MAX:
            peers[peer] = now_s
        return new

    def forget(self, now_s: float) -> None:
        """Forget peers that were not heard lately."""
        self.peers = {peer: heard_s for peer, heard_s in self.peers.items() if now_s - heard_s <= LATELY_S}


def cover(channels: Iterable[Channel]) -> list[Channel]:
    """Return the fewest channels of one interface that reach all nodes heard on it, preferred ones first."""
    preference = list(Means).index
    able = sorted((each for each in channels if not each.send_error), key=lambda each: preference(each.plan.means))
    if any(len(each.peers) >= PEERS_MAX for each in able):
        return able
    everybody = _reached(able)
    for count in range(len(able)):
        for choice in itertools.combinations(able, count):
            if _reached(choice) == everybody:
                return list(choice)
    return able


def _reached(channels: Sequence[Channel]) -> frozenset[str]:
    return frozenset[str]().union(*(each.peers for each in channels))
