"""A link of a layer, which wraps each datagram in a `Relay` and crosses one host.

Its ends are not neighbours. Nothing in gossip or in the host knows of it: it is derived from `Link`, its own size
limits the frames that it carries, and unwrapped frames are handled as all others.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec
import pytest

from carrypost.config import Limits, Settings
from carrypost.gossip.holdings.copies import Copy
from carrypost.gossip.layer import Handler, Layer
from carrypost.gossip.transfers.link import HostContext, Link
from carrypost.gossip.wire import codec
from carrypost.gossip.wire.codec import fill_payloads
from carrypost.gossip.wire.frames import (
    Announce,
    Digest,
    Frame,
    Offer,
    OpenRelay,
    ProfileRequest,
    Relay,
    Transmission,
)
from carrypost.host import Host
from carrypost.log.events import Delivered, Event, Received
from carrypost.log.journal import PIECE, Batch
from carrypost.model.ids import PREFIX_BYTES, MessageId, NodeId, node_prefix
from carrypost.model.times import NEVER
from carrypost.security.identity import Identity

S = 1_000_000
DELAY_US = 5_000
LIMITS = Limits()
SIZES = (1, 900, 1_100, 1_300, 16_384, 100_000, 2_000_000)


def path(*nodes: str) -> bytes:
    return b"".join(node_prefix(NodeId(node)) for node in nodes)


class Tunnel(Link):
    """A link to a node that is two hops away."""

    def __init__(self, context: HostContext, target: str, via: str) -> None:
        self._path = path(context.node, via, target)
        room = len(codec.encode(Relay(self._path, 1, b"", bytes(256)))) - 256 + codec.datagram_overhead(1) + 1
        super().__init__(
            f"tunnel:{target}",
            context.links,
            broadcast=False,
            datagram_bytes_max=context.settings.datagram_bytes - room,
        )
        self._via = via
        self.claim(NodeId(target))

    def send(self, frames: Sequence[Frame]) -> None:
        via = self._links.get(self._via)
        if via is not None and via.usable:
            for start, stop, _ in codec.runs(codec.wire_sizes(frames), self.datagram_bytes_max):
                via.send((OpenRelay(tuple(frames[start:stop]), self._path, 1),))


class Tunnels(Layer):
    """Opens a tunnel to another node and offers published messages there; forwards wrapped datagrams for others."""

    def __init__(self, context: HostContext, target: str | None, via: str) -> None:
        self._context = context
        self._serial = 0
        self._offered: list[Copy] = []
        self.passed_on: Counter[tuple[str, str]] = Counter()
        self.tunnel: Tunnel | None = None
        if target is not None:
            self.tunnel = Tunnel(context, target, via)
            context.links.add(self.tunnel)
            context.links.open(self.tunnel, usable=True)

    @property
    def handlers(self) -> Mapping[type, Handler]:
        return {Relay: self._take, OpenRelay: self._take}

    def _take(self, link: Link, frames: Sequence[Relay | OpenRelay], now: int) -> None:
        for frame in frames:
            link.work.begin()
            link.work.credit()
            if frame.position == 1:
                (target,) = [each for each in self._context.links.usable if each.prefix == frame.path[-PREFIX_BYTES:]]
                self.passed_on[link.peer, target.peer] += 1
                target.send((msgspec.structs.replace(frame, position=2),))
            elif self.tunnel is not None:
                inner = frame.inner if isinstance(frame, OpenRelay) else codec.decode(frame.body, LIMITS).frames
                self.tunnel.receive_inner(inner, now)

    def published(self, copies: Sequence[Copy]) -> None:
        self._offered += copies
        self.expire(self._context.holdings.now_us)

    def expire(self, now: int) -> None:
        """Offer what the other side is not known to have, now and again every second."""
        tunnel = self.tunnel
        self._offered = [copy for copy in self._offered if tunnel is not None and not tunnel.known >> copy.slot & 1]
        self.due_us = now + S if self._offered else NEVER
        if tunnel is not None and self._offered:
            self._serial += 1
            tunnel.send((Offer(self._serial, tuple(map(self._context.holdings.entry_of, self._offered))),))

    def close(self) -> None:
        if self.tunnel is not None:
            self._context.links.remove(self.tunnel)
            self.tunnel = None


class Chain:
    """Hosts a, b and c. Each hears only the next one, and only announcements and wrapped frames are sent."""

    def __init__(self, *, security: str = "off", encoded: bool = False, **limits: int) -> None:
        self.now = 0
        self.encoded = encoded
        self.loss = random.Random(1)
        self.lost = 0.0
        self.settings = Settings.emulated(security=security, compress=False, limits=limits)
        keys = {name: Identity.generate() if security == "signed" else Identity.plain(name) for name in "abc"}
        self.names = {name: str(identity.node) for name, identity in keys.items()}
        self.hosts: dict[str, Host] = {}
        self.layers: dict[str, Tunnels] = {}
        self.stores: dict[str, dict[tuple[str, bytes, int], object]] = {name: {} for name in self.names.values()}
        self.events: dict[str, list[Event]] = {name: [] for name in self.names.values()}
        self.kinds: Counter[str] = Counter()
        self.air: list[tuple[int, str, str, Sequence[Frame], int]] = []
        for name, target in (("a", "c"), ("b", None), ("c", "a")):
            self._add(keys[name], None if target is None else self.names[target])

    def _add(self, identity: Identity, target: str | None) -> None:
        name = str(identity.node)

        def tunnels(context: HostContext) -> Tunnels:
            self.layers[name] = Tunnels(context, target, self.names["b"])
            return self.layers[name]

        self.hosts[name] = Host(identity, self.settings, random.Random(name), layers=[tunnels])
        self.hosts[name].start(0)

    def reach(self, name: str) -> list[str]:
        a, b, c = self.names.values()
        return [a, c] if name == b else [b]

    def drain(self) -> None:
        for name, host in self.hosts.items():
            while host.busy:
                while (batch := host.changes()) is not None:
                    self._write(name, host, batch)
                for transmission in host.outgoing():
                    self._transmit(name, transmission)
                self.events[name] += host.events()

    def _write(self, name: str, host: Host, batch: Batch) -> None:
        for key in batch.deletes:
            self.stores[name].pop(key, None)
        self.stores[name].update(batch.puts)
        host.durable(batch.serial, self.now)

    def _transmit(self, name: str, transmission: Transmission) -> None:
        frames, gone = fill_payloads(transmission.frames, lambda message, piece: self.piece(name, message, piece))
        assert not gone
        sizes = codec.wire_sizes(frames)
        mtu_bytes = self.settings.datagram_bytes
        for start, stop, nbytes in codec.runs(sizes, mtu_bytes):
            assert nbytes <= mtu_bytes
            sent: Sequence[Frame] = frames[start:stop]
            self.kinds.update(type(frame).__name__ for frame in sent)
            if self.encoded:
                (datagram,) = codec.datagrams(sent, mtu_bytes)
                assert len(datagram) == nbytes
                sent = codec.decode(datagram, LIMITS).frames
            for other in self.reach(name):
                if transmission.to in (None, other) and self.loss.random() >= self.lost:
                    self.air.append((self.now + DELAY_US, name, other, sent, nbytes))

    def piece(self, name: str, message: MessageId, piece: int) -> bytes | None:
        found = self.stores[name].get((PIECE, message, piece))
        return found if isinstance(found, bytes) else None

    def run(self, seconds: float) -> None:
        end = self.now + round(seconds * S)
        self.drain()
        while True:
            arrives = self.air[0][0] if self.air else NEVER
            due = min(arrives, *(host.next_deadline() or NEVER for host in self.hosts.values()))
            if due > end:
                break
            self.now = max(self.now, due)
            while self.air and self.air[0][0] <= self.now:
                _, sender, receiver, frames, nbytes = self.air.pop(0)
                self.hosts[receiver].receive(frames, sender, self.now, nbytes=nbytes)
                self.drain()
            for host in self.hosts.values():
                host.tick(self.now)
            self.drain()
        self.now = end


@pytest.mark.parametrize(
    ("security", "encoded", "loss"), [("signed", True, 0.0), ("off", False, 0.0), ("off", True, 0.1)]
)
def test_messages_of_any_size_cross_a_relay_over_a_link_of_a_layer(security: str, encoded: bool, loss: float) -> None:
    chain = Chain(security=security, encoded=encoded)
    a, b, c = chain.names.values()
    chain.hosts[c].subscribe("news", now=0)
    chain.run(3)
    chain.lost = loss
    payloads = {}
    for size in SIZES if not loss else SIZES[:-1]:
        payload = random.Random(size).randbytes(size)
        payloads[chain.hosts[a].publish("news", payload, now=chain.now)] = payload
        chain.run(1)
    chain.run(60)
    received = [each for each in chain.events[c] if isinstance(each, Received)]
    assert {each.peer for each in received} == {a}
    delivered = [each for event in chain.events[c] if isinstance(event, Delivered) for each in event.deliveries]
    assert {each.message for each in delivered} == set(payloads)
    for message, payload in payloads.items():
        pieces = [chain.piece(c, message, number) for number in range(-(-len(payload) // 16_384))]
        assert b"".join(piece or b"" for piece in pieces) == payload
    # The relay keeps nothing of it, and nothing travels but in relayed frames.
    assert chain.hosts[b].copies == 0
    assert set(chain.kinds) <= {"Announce", "Profile", "ProfileRequest", "Digest", "Relay", "OpenRelay"}
    relay = chain.layers[b]
    assert relay.passed_on[a, c] > len(payloads)
    assert relay.passed_on[c, a] > 0
    assert not any(host.overview().refused for host in chain.hosts.values())


def test_what_a_neighbour_and_the_far_end_want_reaches_each_once_and_in_small_buffers() -> None:
    """The far end hears of it twice, from the relay, too. What is broadcast does not reach it, and is not meant to."""
    chain = Chain(fragment_buffer_bytes_max=2**17, partials_max=8)
    a, b, c = chain.names.values()
    for name in (b, c):
        chain.hosts[name].subscribe("news", now=0)
    chain.run(3)
    messages = [chain.hosts[a].publish("news", bytes(size), now=chain.now) for size in (10, 50_000, 60_000, 200_000)]
    chain.run(60)
    for name in (b, c):
        delivered = [each for event in chain.events[name] if isinstance(event, Delivered) for each in event.deliveries]
        assert sorted(each.message for each in delivered) == sorted(messages)
    assert chain.layers[b].passed_on[a, c] > 0


def test_what_came_over_a_link_that_is_removed_is_asked_of_others() -> None:
    chain = Chain()
    a, b, c = chain.names.values()
    chain.hosts[c].subscribe("news", now=0)
    chain.run(3)
    chain.hosts[a].publish("news", bytes(500_000), now=chain.now)
    chain.run(0.05)
    chain.layers[c].close()
    chain.hosts[b].subscribe("news", now=chain.now)
    chain.run(20)
    assert [event.peer for event in chain.events[c] if isinstance(event, Received)] == [b]


def test_nobody_becomes_a_neighbour_inside_a_link_of_a_layer() -> None:
    chain = Chain()
    chain.run(3)
    forged = Announce(NodeId("z"), 1, 1, 1_000, bytes(8)), ProfileRequest(bytes(8)), Digest(bytes(8), 0)
    chain.hosts["b"]._links["c"].send((OpenRelay(forged, path("a", "b", "c"), 2),))  # noqa: SLF001 - what a relay may send
    chain.run(1)
    overview = chain.hosts["c"].overview()
    assert [each.node for each in overview.neighbours] == ["b"]
    assert overview.refused == {"unannounced": 1, "not-linked": 1}
