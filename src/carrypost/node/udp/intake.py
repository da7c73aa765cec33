"""From raw datagrams to those for the host: assigns them to peers, and drops some undecoded.

Dropped are this node's own echoes, datagrams that the gate does not admit, and copies that came already by another
means. Each is counted. What is known about a source is determined once and kept in a bounded table, so that a datagram
costs a few lookups.

One node, heard at several addresses, is one peer (`Aliases`). A node announces itself by every means on every
interface, so its neighbours hear the same bytes from several of its addresses: IPv4 and IPv6, wireless and wired.
Addresses that send the same bytes to the link within `WINDOW_S` are taken for one *peer*. The host knows a peer by its
*name*, the address at which it was first heard, which stays until that address was silent for `KEEP_S`. Datagrams for
the peer go to its *destination*, one of its addresses. `Aliases` has no clock and no socket: `now_s` is any time in
seconds that never decreases.
"""

# The attack. Addresses are not authenticated, so a replayer that repeats the bytes of another gets
# into its peer, and can speak as that peer, as any attacker can that forges source addresses. What
# keeps it from taking the peer's place:
#
# - Only broadcasts count, never datagrams sent to this node alone.
# - A replayer is behind the node that it repeats. The destination moves only to an address that was
#   ahead of it `LEADS` times in a row, or when it fell silent, or when nothing can be sent to it.
# - Addresses that announce different nodes are never one peer. An address that changes its node is
#   a peer of its own until it has kept to one for `STEADY_S`.
# - A datagram is dropped as a duplicate only if its peer has it already; what a replayer sends
#   first under a name of its own takes nothing from other peers.
# - Every table is bounded. When they are full, a node may be seen as several peers, which costs
#   effort, not messages.

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from carrypost.gossip.wire.codec import MAGIC, VERSION
from carrypost.gossip.wire.frames import Announce
from carrypost.node.udp.channels import Channel, UdpTraffic
from carrypost.node.udp.sockets import Raw, SocketAddress, StaticPeer, address_text, socket_address

WINDOW_S = 2.0
"""Time within which equal bytes are one datagram."""
SILENT_S = 12.0
"""Silence after which a destination is replaced: two announcements at the default pace."""
KEEP_S = 60.0
"""Silence after which an address is forgotten."""
STEADY_S = 10.0
"""Time for which an address that announced another node than before is a peer of its own."""
LEADS = 3
"""Number of times in a row that an address has to be ahead of the destination to replace it."""
SIGHTINGS_MAX = 4_096
"""Number of datagrams that are remembered, at most for `WINDOW_S`."""
COPIES_MAX = 16
"""Number of ways of one datagram that are distinguished."""
LONE_MAX = 1_024
"""Number of addresses that are peers of their own; the one met first is forgotten first."""
JOINED_MAX = 512
"""Addresses that share a peer."""
MEMBERS_MAX = 8
"""Addresses of one peer."""

_PREAMBLE, _KIND = MAGIC + bytes((VERSION,)), Announce.__struct_config__.tag
_NODE_AT = 6
"""Index of the node's name in an announcement: after the preamble, two heads of arrays and the kind."""
_SHORT_ARRAY, _SHORT_TEXT, _TEXT = 0x90, 0xA0, 0xD9


def announced(datagram: bytes) -> bytes:
    """Return the node that a datagram announces, if its first frame is an announcement; else empty.

    Looks at a few bytes and decodes nothing: what it finds is compared, and believed in nothing else.
    """
    if len(datagram) <= _NODE_AT + 1 or datagram[_NODE_AT - 1] != _KIND or not datagram.startswith(_PREAMBLE):
        return b""
    if datagram[3] >> 4 != _SHORT_ARRAY >> 4 or datagram[4] >> 4 != _SHORT_ARRAY >> 4:
        return b""
    head = datagram[_NODE_AT]
    if head >> 5 == _SHORT_TEXT >> 5:
        return datagram[_NODE_AT + 1 : _NODE_AT + 1 + (head & 0x1F)]
    if head == _TEXT:
        return datagram[_NODE_AT + 2 : _NODE_AT + 2 + datagram[_NODE_AT + 1]]
    return b""


@dataclass(slots=True, eq=False)
class _Address:
    """An address that sends to the link."""

    text: str
    since_s: float
    heard_s: float
    node: bytes = b""
    """Node that it announced last; empty: none yet."""
    turned_s: float = -STEADY_S
    """Time at which it last announced another node than before."""
    peer: _Peer | None = None


class _Peer:
    """Several addresses of one node."""

    __slots__ = ("destination", "leader", "leads", "members", "name", "node")

    def __init__(self, elder: _Address) -> None:
        self.name = elder.text
        self.node = elder.node
        self.members = {elder.text: elder}
        self.destination = elder
        self.leader = elder
        self.leads = 0
        """Number of consecutive times that the leader was ahead of the destination."""


@dataclass(slots=True)
class _Copies:
    """A datagram that came more than once."""

    by_way: dict[Hashable, int]
    """Number of arrivals on each way."""
    taken: dict[str, int]
    """Number of them that each peer was given."""
    led: bool = False
    """True if its first address was counted as ahead of the destination."""


_Sighting = tuple[str, Hashable, str, float]
"""A datagram that was heard lately: its first address and way, its peer, and the time."""


class Aliases:
    """Addresses that are one peer, and datagrams that are duplicates."""

    def __init__(self) -> None:
        self.version = 0
        """Rises whenever `name` may return something else than before."""
        self._lone: dict[str, _Address] = {}
        self._joined: dict[str, _Address] = {}
        self._peers: dict[str, _Peer] = {}
        # Two generations: to forget the older half at once is cheaper than one after the other.
        self._sightings: dict[int, _Sighting] = {}
        self._sightings_before: dict[int, _Sighting] = {}
        self._copies: dict[int, _Copies] = {}
        self._copies_before: dict[int, _Copies] = {}
        self._turned_over_s = 0.0

    def __len__(self) -> int:
        return len(self._lone) + len(self._joined)

    def name(self, address: str) -> str:
        """Return the name of the peer that has this address."""
        joined = self._joined.get(address)
        return address if joined is None or joined.peer is None else joined.peer.name

    def destination(self, name: str) -> str:
        """Return the address to which datagrams for this peer are sent."""
        peer = self._peers.get(name)
        return name if peer is None else peer.destination.text

    def heard(self, address: str, way: Hashable, datagram: bytes, now_s: float, *, learn: bool = True) -> str | None:
        """Process a broadcast datagram: return the name of the peer, or None if that peer already got it.

        `way`: interface and means by which it came. The n-th copy on one way is new if fewer than n were passed on, so
        that bytes which a node sends twice on purpose are not lost. Without `learn` nothing is concluded about
        addresses.
        """
        source = self._joined.get(address) or self._lone.get(address) or self._separate(_Address(address, now_s, now_s))
        source.heard_s = now_s
        key = hash(datagram)  # Keyed by the interpreter with a secret of its own, and as quick as it gets.
        sighting = self._sightings.get(key) or self._sightings_before.get(key)
        if sighting is not None and now_s - sighting[3] <= WINDOW_S:
            return self._again(key, sighting, source, way, datagram if learn else b"")
        if learn:
            if (node := announced(datagram)) and node != source.node:
                self._announces(source, node, now_s)
            if source.peer is not None and now_s - source.peer.destination.heard_s > SILENT_S:
                self._direct(source.peer, source)
        name = address if source.peer is None else source.peer.name
        if len(self._sightings) >= SIGHTINGS_MAX // 2:
            self._turn_over(now_s)
        self._sightings[key] = (address, way, name, now_s)
        if sighting is not None:  # Long ago: its copies do not count any more.
            self._copies.pop(key, None)
            self._copies_before.pop(key, None)
        return name

    def failed(self, name: str, now_s: float) -> bool:
        """Choose another destination for a peer to which nothing can be sent; return True if there is one."""
        peer = self._peers.get(name)
        if peer is None:
            return False
        others = [each for each in peer.members.values() if each is not peer.destination]
        heard = max(others, key=lambda each: each.heard_s)
        if now_s - heard.heard_s > SILENT_S:
            return False
        self._direct(peer, heard)
        return True

    def expire(self, now_s: float) -> None:
        """Forget what was not heard for long. To be called every few seconds."""
        for table in (self._joined, self._lone):
            for address in [each for each in table.values() if now_s - each.heard_s > KEEP_S]:
                self._leave(address)
                self._lone.pop(address.text, None)
        if now_s - self._turned_over_s > WINDOW_S:
            self._turn_over(now_s)

    # --- datagrams -----------------------------------------------------------------------------------------

    def _turn_over(self, now_s: float) -> None:
        self._turned_over_s = now_s
        self._sightings_before, self._sightings = self._sightings, {}
        self._copies_before, self._copies = self._copies, {}

    def _again(self, key: int, sighting: _Sighting, source: _Address, way: Hashable, learned: bytes) -> str | None:
        """Process bytes that were heard before: return the name, if the peer gets this copy; else None."""
        first, first_way, first_name, _ = sighting
        copies = self._copies.get(key) or self._copies_before.get(key)
        if copies is None:
            copies = self._copies[key] = _Copies({(first_way, first): 1}, {first_name: 1})
        if learned:
            if node := announced(learned):
                self._announces(source, node, source.heard_s)
            self._follows(first, source, copies)
        name, by_way, taken = self._name(source), copies.by_way, copies.taken
        known_way = (way, source.text)
        if known_way not in by_way and len(by_way) >= COPIES_MAX:
            return None if name in taken else name
        count = by_way[known_way] = by_way.get(known_way, 0) + 1
        if count <= taken.get(name, 0):
            return None
        if name in taken or len(taken) < COPIES_MAX:
            taken[name] = count
        return name

    def _follows(self, first_text: str, source: _Address, copies: _Copies) -> None:
        """Learn from a source that sends what another address sent first."""
        first = self._joined.get(first_text) or self._lone.get(first_text)
        if first is None or first is source:
            return
        if first.peer is None or first.peer is not source.peer:
            before = (self._name(first), self._name(source))
            if self._join(first, source, source.heard_s):
                copies.taken[self._name(source)] = max(copies.taken.get(name, 0) for name in before)
        elif source is first.peer.destination and not copies.led:
            copies.led = True
            peer = first.peer
            peer.leads = peer.leads + 1 if peer.leader is first else 1
            peer.leader = first
            if peer.leads >= LEADS:
                self._direct(peer, first)
        elif first is first.peer.destination:
            first.peer.leads = 0

    # --- peers ---------------------------------------------------------------------------------------------

    @staticmethod
    def _name(address: _Address) -> str:
        return address.text if address.peer is None else address.peer.name

    def _separate(self, address: _Address) -> _Address:
        """Make an address a peer of its own."""
        address.peer = None
        self._joined.pop(address.text, None)
        if len(self._lone) >= LONE_MAX:
            del self._lone[next(iter(self._lone))]
        self._lone[address.text] = address
        return address

    def _announces(self, source: _Address, node: bytes, now_s: float) -> None:
        if node == source.node:
            return
        if source.node:
            source.turned_s = now_s
        source.node = node
        peer = source.peer
        if peer is not None and not peer.node:
            peer.node = node
        elif peer is not None and peer.node != node:
            self._leave(source)

    @staticmethod
    def _direct(peer: _Peer, destination: _Address) -> None:
        peer.destination = destination
        peer.leads = 0

    def _join(self, first: _Address, source: _Address, now_s: float) -> bool:
        """Make the two one peer, unless something speaks against it."""
        if now_s - max(first.turned_s, source.turned_s) < STEADY_S:
            return False
        elder, younger = (source, first) if source.since_s < first.since_s else (first, source)
        if elder.peer is None and younger.peer is not None:
            elder, younger = younger, elder
        one, other = elder.peer or _Peer(elder), younger.peer or _Peer(younger)
        if one.node and other.node and one.node != other.node:
            return False
        entering = [each for peer in (one, other) for each in peer.members.values() if each.text not in self._joined]
        if len(one.members) + len(other.members) > MEMBERS_MAX or len(self._joined) + len(entering) > JOINED_MAX:
            return False
        one.node = one.node or other.node
        one.members |= other.members
        if first is not one.destination:
            one.leader, one.leads = first, LEADS - 1  # Once more, and it was no accident that it was ahead.
        self._peers.pop(other.name, None)
        self._peers[one.name] = one
        for member in one.members.values():
            member.peer = one
            self._lone.pop(member.text, None)
            self._joined[member.text] = member
        self.version += 1
        return True

    def _leave(self, address: _Address) -> None:
        """Remove an address from its peer."""
        peer = address.peer
        if peer is None:
            return
        self.version += 1
        self._separate(address)
        del peer.members[address.text], self._peers[peer.name]
        rest = list(peer.members.values())
        if len(rest) == 1:
            self._separate(rest[0])
            return
        if peer.name == address.text:
            peer.name = rest[0].text
        if peer.destination is address:
            self._direct(peer, max(rest, key=lambda each: each.heard_s))
        self._peers[peer.name] = peer


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
