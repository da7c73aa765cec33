"""From raw datagrams to those for the host: assigns them to peers, and drops some undecoded.

Dropped are this node's own echoes, datagrams that the gate does not admit, and copies that came already by another
means. Each is counted. What is known about a source is determined once and kept in a bounded table, so that a datagram
costs a few lookups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from carrypost.node.udp.addresses import SocketAddress, address_text, socket_address
from carrypost.node.udp.aliases import Aliases
from carrypost.node.udp.channels import Channel
from carrypost.node.udp.outlet import UdpTraffic
from carrypost.node.udp.readers import Raw
from carrypost.node.udp.statics import StaticPeer

Known = Mapping[SocketAddress, StaticPeer]
"""Static peers by their addresses."""
SOURCES_MAX = 8_192
"""Number of addresses that are remembered; beyond that all of them are determined anew, which costs only time."""
_ECHO, _GATED = "echoes", "gated"


class _Source(NamedTuple):
    """The state of one address that datagrams come from."""

    text: str
    name: str
    """The peer that it belongs to."""
    dropped: str
    """The counter for its dropped datagrams; empty: it is admitted."""
    static: StaticPeer | None


class Intake:
    """Decides which datagrams the host gets, and under which names."""

    def __init__(self, traffic: UdpTraffic, gate: Iterable[str] | None, look_again: Callable[[], None]) -> None:
        self.aliases = Aliases()
        self.statics: Known = {}
        self._traffic = traffic
        self._look_again = look_again
        self._gate: frozenset[str] | None = None
        self._allowed: frozenset[str] | None = None
        self._own: frozenset[tuple[str, int]] = frozenset()
        self._ports: frozenset[int] = frozenset()
        self._interface_names: Mapping[int, str] = {}
        self._sources: dict[SocketAddress, _Source] = {}
        self._version = 0
        self.gate = None if gate is None else frozenset(gate)

    @property
    def gate(self) -> frozenset[str] | None:
        """The addresses whose datagrams are admitted; None: all."""
        return self._gate

    @gate.setter
    def gate(self, gate: frozenset[str] | None) -> None:
        self._gate = gate
        self._allowed = None if gate is None else gate | {self._spelled(text) for text in gate}
        self._sources.clear()

    def look(self, own: Iterable[tuple[str, int]], interface_names: Mapping[int, str], statics: Known) -> None:
        """Update this node's own addresses, the names of interfaces and the static peers."""
        self._own = frozenset(own)
        self._ports = frozenset(port for _, port in self._own)
        self._interface_names = interface_names
        self.statics = statics
        self.gate = self._gate  # Its addresses are spelled with the names of interfaces.

    def accept(
        self, raw: Raw, now_s: float, channel: Channel | None, *, to_all: bool
    ) -> tuple[list[tuple[str, bytes]], bool]:
        """Return the datagrams to decode, each with its peer; and True if a peer was heard that had not been lately.

        `to_all`: they were, or may have been, broadcast, so that copies may have come another way. If the channel is
        not known, because a node's own port is the shared one, nothing is learnt from them.
        """
        counters, sources, aliases = self._traffic.counters, self._sources, self.aliases
        batch, nbytes, met = [], 0, False
        for datagram, address in raw:
            nbytes += len(datagram)
            source = sources.get(address) or self._meet(address)
            if source.dropped:
                counters[source.dropped] += 1
                continue
            name: str | None = source.name
            if to_all:
                name = aliases.heard(source.text, channel, datagram, now_s, learn=channel is not None)
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
        counters["received"] += len(raw)
        counters["received_bytes"] += nbytes
        return batch, met

    def addresses(self, peer: str) -> list[SocketAddress]:
        """Return the addresses from which a peer was heard lately."""
        return [address for address, source in self._sources.items() if source.name == peer]

    def text(self, address: SocketAddress) -> str:
        """Return the address as the host sees it."""
        return address_text(address, self._interface_names)

    def _meet(self, address: SocketAddress) -> _Source:
        """Determine what is known about a source."""
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
        """Return the address as datagrams have it."""
        try:
            return self.text(socket_address(text))
        except (OSError, ValueError):
            return text
