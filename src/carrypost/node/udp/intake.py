"""From raw datagrams to what the host is given: whose they are, and which are dropped undecoded.

Dropped are this node's own echoes, what the contact gate does not let in, and what came already by another means. Each
is counted. What is known about a source is worked out once and kept in a bounded table, so that a datagram costs a few
lookups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from carrypost.node.udp.addresses import SocketAddress, address_text, socket_address
from carrypost.node.udp.aliases import Aliases
from carrypost.node.udp.channels import Channel
from carrypost.node.udp.outlet import UdpTraffic
from carrypost.node.udp.readers import Raw
from carrypost.node.udp.statics import StaticPeer

SOURCES_MAX = 8_192
_ECHO, _GATED = "echoes", "gated"


class _Source:
    __slots__ = ("dropped", "name", "static", "text")

    def __init__(self, text: str, name: str, dropped: str, static: StaticPeer | None) -> None:
        self.text = text
        self.name = name
        """Of the peer."""
        self.dropped = dropped
        """Under what it is counted; empty: it is let in."""
        self.static = static


class Intake:
    """What comes in."""

    def __init__(self, traffic: UdpTraffic, hear: Iterable[str] | None, look_again: Callable[[], None]) -> None:
        self.aliases = Aliases()
        self.statics: Mapping[SocketAddress, StaticPeer] = {}
        self._traffic = traffic
        self._look_again = look_again
        self._hear: frozenset[str] | None = None
        self._allowed: frozenset[str] | None = None
        self._own: frozenset[tuple[str, int]] = frozenset()
        self._ports: frozenset[int] = frozenset()
        self._interface_names: Mapping[int, str] = {}
        self._sources: dict[SocketAddress, _Source] = {}
        self._version = 0
        self.hear = None if hear is None else frozenset(hear)

    @property
    def hear(self) -> frozenset[str] | None:
        """Whose datagrams are let in; None: everybody's."""
        return self._hear

    @hear.setter
    def hear(self, hear: frozenset[str] | None) -> None:
        self._hear = hear
        self._allowed = None if hear is None else hear | {self._spelled(text) for text in hear}
        self._sources.clear()

    def look(
        self,
        own: Iterable[tuple[str, int]],
        interface_names: Mapping[int, str],
        statics: Mapping[SocketAddress, StaticPeer],
    ) -> None:
        """This node's own addresses, the names of interfaces and the static peers are these now."""
        self._own = frozenset(own)
        self._ports = frozenset(port for _, port in self._own)
        self._interface_names = interface_names
        self.statics = statics
        self.hear = self._hear  # Its addresses are spelled with the names of interfaces.

    def take_unicast(self, raw: Raw, now_s: float) -> list[tuple[str, bytes]]:
        """What was sent to this node alone."""
        sources, batch, nbytes = self._sources, [], 0
        for datagram, address in raw:
            nbytes += len(datagram)
            source = sources.get(address) or self._meet(address)
            if source.dropped:
                self._traffic.counters[source.dropped] += 1
                continue
            if source.static is not None:
                source.static.heard_s = now_s
            batch.append((source.name, datagram))
        self._count(len(raw), nbytes)
        return batch

    def take_from_link(
        self, raw: Raw, channel: Channel | None, now_s: float, *, learn: bool = True
    ) -> tuple[list[tuple[str, bytes]], bool]:
        """What was said to everybody; and whether somebody was heard on that channel who had not been lately.

        Without a channel, and without `learn`: what may have been sent to this node alone.
        """
        counters, sources, aliases = self._traffic.counters, self._sources, self.aliases
        batch, nbytes, met = [], 0, False
        for datagram, address in raw:
            nbytes += len(datagram)
            source = sources.get(address) or self._meet(address)
            if source.dropped:
                counters[source.dropped] += 1
                continue
            name = aliases.heard(source.text, channel, datagram, now_s, learn=learn)
            if aliases.version != self._version:
                self._version = aliases.version
                sources.clear()
                met = True
            if name is None:
                counters["duplicates"] += 1
            else:
                batch.append((name, datagram))
            if channel is not None:
                channel.heard += 1
                met |= channel.hears(name or aliases.name(source.text), now_s)
            elif source.static is not None:
                source.static.heard_s = now_s
        self._count(len(raw), nbytes)
        return batch, met

    def addresses(self, peer: str) -> list[SocketAddress]:
        """Where a peer was heard from lately."""
        return [address for address, source in self._sources.items() if source.name == peer]

    def text(self, address: SocketAddress) -> str:
        """The address as the host sees it."""
        return address_text(address, self._interface_names)

    def _count(self, datagrams: int, nbytes: int) -> None:
        counters = self._traffic.counters
        counters["received"] += datagrams
        counters["received_bytes"] += nbytes

    def _meet(self, address: SocketAddress) -> _Source:
        """Work out what is to be known about a source."""
        if address[1] in self._ports and address[:2] not in self._own:
            self._look_again()  # It has this node's port: is it this node, at an address that is new?
        text = self.text(address)
        if address[:2] in self._own:
            dropped = _ECHO
        else:
            dropped = "" if self._allowed is None or text in self._allowed else _GATED
        if len(self._sources) >= SOURCES_MAX:
            self._sources.clear()
        source = _Source(text, self.aliases.name(text), dropped, self.statics.get(address))
        self._sources[address] = source
        return source

    def _spelled(self, text: str) -> str:
        """The address as datagrams have it."""
        try:
            return self.text(socket_address(text))
        except (OSError, ValueError):
            return text
