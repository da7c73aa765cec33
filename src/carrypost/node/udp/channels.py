"""Channels, the means by which nodes on a link are reached: the interfaces for them, and sending through them.

Interfaces come and go while a node runs: `snapshot` is called again and again, and costs a fraction of a millisecond.

A *channel* is one means on one interface: a listening socket, and a target to send to. It is planned from the present
state of the interface (`plan`); when that changes, the channel is closed and another one opened. `cover` finds the
fewest channels of an interface that reach every node heard on it.

An `Outlet` sends without waiting: datagrams that a socket does not accept at once wait in a bounded queue, or are
dropped. Datagrams may be lost anyway, so nothing there is an error to the caller; everything is counted.
"""

from __future__ import annotations

import asyncio
import enum
import errno
import fnmatch
import ipaddress
import itertools
import socket
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import psutil

from carrypost.node.settings import UdpSettings
from carrypost.node.udp import sockets
from carrypost.node.udp.sockets import Control, SocketAddress, family

_PREFIX_WITH_BROADCAST_MAX = 30
"""Longest prefix of a network with a broadcast address: those of one or two addresses have none."""
_MTU_BYTES_MAX = 1_500
"""MTU of Ethernet and of wireless networks."""
HEADERS_BYTES = 48
"""Bytes of the headers of IPv6 and UDP; those of IPv4 are shorter."""
_FAMILIES = frozenset({socket.AF_INET, socket.AF_INET6})
_Entry = tuple[int, str, str | None, str | None]
"""Family, address, netmask and broadcast address."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interface:
    """One interface, as it is now."""

    name: str
    index: int
    """The system's number for it; one that is removed and made again gets another."""
    up: bool
    """Switched on, and something is at the other end."""
    loopback: bool = False
    multicast: bool = True
    """Says that it can multicast."""
    ipv4: str = ""
    """First IPv4 address, from which it sends; empty: none."""
    broadcast: str = ""
    """Destination of broadcasts to the network of that address; empty: none."""
    link_local: str = ""
    """IPv6 address of the link, without the interface's name; empty: none."""
    addresses: tuple[str, ...] = ()
    """All of its addresses, without the interface's name."""
    mtu_bytes: int = 0
    """Length of the packets that it carries; 0: not known."""

    @property
    def usable(self) -> bool:
        """True if the interface can reach all nodes on its link."""
        return self.up and bool(self.broadcast or (self.multicast and (self.ipv4 or self.link_local)))


def snapshot() -> list[Interface]:
    """Return all interfaces of this machine, in the order of their numbers."""
    stats = psutil.net_if_stats()
    addresses: dict[str, list[_Entry]] = {}
    for label, entries in psutil.net_if_addrs().items():
        # Linux may label a second address "eth0:1"; it is the same interface.
        own = addresses.setdefault(label if label in stats else label.partition(":")[0], [])
        own += [(entry.family, entry.address, entry.netmask, entry.broadcast) for entry in entries]
    found = []
    for name, stat in stats.items():
        try:
            index = socket.if_nametoindex(name)
        except OSError:
            continue  # It has vanished since.
        flags = frozenset(stat.flags.split(",")) if stat.flags else None
        own = addresses.get(name, [])
        found.append(_interface(name, index, flags, own, up=stat.isup, mtu_bytes=stat.mtu or 0))
    return sorted(found, key=lambda interface: interface.index)


def selected(interfaces: Iterable[Interface], patterns: Sequence[str], *, usable: bool = True) -> list[Interface]:
    """Return the interfaces that the settings name; without patterns all of them, loopback only if it is alone.

    Not `usable`: including those that a node would use if they worked.
    """
    found = [each for each in interfaces if each.usable or not usable]
    if patterns:
        return [each for each in found if any(fnmatch.fnmatchcase(each.name, pattern) for pattern in patterns)]
    return [each for each in found if not each.loopback] or found


def datagram_bytes(used: Iterable[Interface]) -> int:
    """Return the longest datagram that all of these carry in one packet; 0 if that is not known for all of them.

    Loopback and some cables carry packets of 9,000 bytes and more. More than Ethernet's is not used: others on the same
    link may carry less, and a loss then costs more than a longer datagram gains.
    """
    carried = [each.mtu_bytes for each in used]
    return max(0, min([_MTU_BYTES_MAX, *carried]) - HEADERS_BYTES) if carried and all(carried) else 0


def _interface(
    name: str, index: int, flags: frozenset[str] | None, entries: Iterable[_Entry], *, up: bool, mtu_bytes: int
) -> Interface:
    loopback = "loopback" in flags if flags is not None else name.lower().startswith(("lo", "loopback"))
    found = [(each[0], each[1].partition("%")[0], *each[2:]) for each in entries if each[0] in _FAMILIES]
    v4 = [each for each in found if each[0] == socket.AF_INET]
    v6 = [address for kind, address, _, _ in found if kind == socket.AF_INET6]
    broadcasts = loopback or flags is None or "broadcast" in flags
    return Interface(
        name=name,
        index=index,
        up=up,
        loopback=loopback,
        # Linux does not say that loopback can multicast, but with IPv4 it does.
        multicast=loopback or flags is None or "multicast" in flags,
        ipv4=v4[0][1] if v4 else "",
        broadcast=_broadcast(*v4[0][1:]) if v4 and broadcasts else "",
        link_local=next((each for each in v6 if ipaddress.IPv6Address(each).is_link_local), ""),
        addresses=tuple(address for _, address, _, _ in found),
        mtu_bytes=mtu_bytes,
    )


def _broadcast(address: str, netmask: str | None, reported: str | None) -> str:
    """Return the broadcast address. Linux uses the last address of a network even where none is configured."""
    # If none was set, some systems report the address itself.
    if reported not in {None, "0.0.0.0", address}:  # noqa: S104 - not bound to, but compared
        return str(reported)
    network = ipaddress.IPv4Network((address, netmask or "255.255.255.255"), strict=False)
    return str(network.broadcast_address) if network.prefixlen <= _PREFIX_WITH_BROADCAST_MAX else ""


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


QUEUE_BYTES_MAX = 1 << 20
_PAUSE_S = 0.003
"""Delay before the next attempt if the system cannot signal when there is room again."""
_PATIENCE_S = 0.5
"""Time after which an interface that accepts nothing must not keep the others waiting."""
_COUNTED = ("received", "received_bytes", "sent", "sent_bytes", "echoes", "duplicates", "gated", "send_queue_dropped")
_ONE_ONLY = frozenset({errno.EMSGSIZE})
"""Errors that say nothing about the next datagram to the same target."""


class UdpTraffic:
    """Counters of datagrams sent, received and dropped, by reason."""

    def __init__(self) -> None:
        self.counters = dict.fromkeys(_COUNTED, 0)
        self.errors: Counter[str] = Counter()
        """Errors, by the system's names for them."""

    def failed(self, error: OSError) -> str:
        """Count an error; returns the system's name for it."""
        name = errno.errorcode.get(error.errno or 0, type(error).__name__)
        self.errors[name] += 1
        return name


class Outlet:
    """The sending side of one socket."""

    def __init__(self, sending: socket.socket, traffic: UdpTraffic, loop: asyncio.AbstractEventLoop) -> None:
        self._socket = sending
        self._traffic = traffic
        self._loop = loop
        self._queue: deque[tuple[bytes, Target]] = deque()
        self._queue_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._writing = False
        self._refused_s: float | None = None
        """Time since which the interface of the first in the queue accepts nothing."""
        self._multicast_by = ""

    def send(self, datagrams: Sequence[bytes], target: Target) -> str:
        """Send datagrams, or queue them; return the system's name of an error, or an empty text."""
        failure = ""
        for position, datagram in enumerate(datagrams):
            if self._queue:
                self._wait_with(datagrams[position:], target)
                break
            error = self._transmit(datagram, target)
            if error is None:
                continue
            if error.errno in {errno.EAGAIN, errno.EWOULDBLOCK, errno.ENOBUFS}:
                self._wait_with(datagrams[position:], target)
                self._wait(error)
                break
            failure = self._traffic.failed(error)
            if error.errno not in _ONE_ONLY:
                break
        return failure

    def close(self) -> None:
        """Drop what is queued."""
        self._queue.clear()
        self._queue_bytes = 0
        self._rest()

    def _transmit(self, datagram: bytes, target: Target) -> OSError | None:
        try:
            if target.control is not None:
                self._socket.sendmsg((datagram,), target.control, 0, target.address)
            else:
                if target.multicast_by and target.multicast_by != self._multicast_by:
                    address = socket.inet_aton(target.multicast_by)
                    self._socket.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, address)
                    self._multicast_by = target.multicast_by
                self._socket.sendto(datagram, target.address)
        except OSError as error:
            return error
        counters = self._traffic.counters
        counters["sent"] += 1
        counters["sent_bytes"] += len(datagram)
        return None

    # --- the queue -----------------------------------------------------------------------------------------

    def _wait_with(self, datagrams: Sequence[bytes], target: Target) -> None:
        for datagram in datagrams:
            if self._queue_bytes + len(datagram) > QUEUE_BYTES_MAX:
                self._traffic.counters["send_queue_dropped"] += 1
                continue
            self._queue.append((datagram, target))
            self._queue_bytes += len(datagram)

    def _wait(self, error: OSError) -> None:
        """Continue when there is room: the loop signals it, unless the interface's own queue is full."""
        if error.errno != errno.ENOBUFS and self._timer is None:
            try:
                self._loop.add_writer(self._socket, self._flush)
            except NotImplementedError:
                pass
            else:
                self._writing = True
                return
        self._rest()
        self._timer = self._loop.call_later(_PAUSE_S, self._flush)

    def _rest(self) -> None:
        if self._writing:
            self._loop.remove_writer(self._socket)
            self._writing = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _flush(self) -> None:
        self._timer = None
        while self._queue:
            datagram, target = self._queue[0]
            error = self._transmit(datagram, target)
            if error is not None and error.errno in {errno.EAGAIN, errno.EWOULDBLOCK, errno.ENOBUFS}:
                if error.errno == errno.ENOBUFS and self._tired():
                    self._give_up(target)
                    continue
                if error.errno == errno.ENOBUFS or not self._writing:
                    self._wait(error)
                return
            self._refused_s = None
            if error is not None:
                self._traffic.failed(error)
            self._queue.popleft()
            self._queue_bytes -= len(datagram)
        self._refused_s = None
        self._rest()

    def _tired(self) -> bool:
        """Return True if the first datagram in the queue has waited long enough for its interface."""
        now_s = self._loop.time()
        if self._refused_s is None:
            self._refused_s = now_s
        return now_s - self._refused_s >= _PATIENCE_S

    def _give_up(self, target: Target) -> None:
        """Drop what waits for this target."""
        kept = [each for each in self._queue if each[1] != target]
        self._traffic.counters["send_queue_dropped"] += len(self._queue) - len(kept)
        self._queue = deque(kept)
        self._queue_bytes = sum(len(datagram) for datagram, _ in kept)
