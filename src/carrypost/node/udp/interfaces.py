"""Network interfaces of this machine at the moment, and those that a node uses.

Interfaces come and go while a node runs: `snapshot` is called again and again, and costs a fraction of a millisecond.
"""

from __future__ import annotations

import fnmatch
import ipaddress
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import psutil

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
