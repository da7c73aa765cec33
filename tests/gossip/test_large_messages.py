"""Large messages: pieces travel through different carriers and meet again, and a broken contact keeps them (N9)."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Callable
from functools import partial

import pytest
import zstandard

from carrypost import testing
from carrypost.config import Settings
from carrypost.gossip.wire.codec import fill_payloads
from carrypost.host import Host
from carrypost.log.events import Event, Received
from carrypost.log.journal import PIECE, StoredMessage
from carrypost.model.descriptor import PIECE_BYTES, Descriptor, PayloadCodec
from carrypost.model.ids import MessageId
from carrypost.security.identity import Identity

MIB = 1024 * 1024
RATE = 1_000_000


def noise(size: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(size)


def data_bytes(net: testing.Network, a: str, b: str) -> int:
    """Payload bytes that `a` sent to `b`, within two per cent."""
    traffic = net.traffic(a, b)
    return traffic.frame_bytes["Data"] - 16 * traffic.frames["Data"]


def part(net: testing.Network, a: str, b: str, nbytes: int) -> None:
    """Let two nodes meet until this many bytes of payload have passed."""
    start = data_bytes(net, a, b)
    net.link(a, b, rate_bytes_per_s=RATE)
    while data_bytes(net, a, b) - start < nbytes:
        net.advance(0.01)
    net.unlink(a, b)
    net.advance(60)


@pytest.mark.parametrize("security", ["signed", pytest.param("off", marks=pytest.mark.soak)])
def test_a_message_of_sixteen_mebibytes_arrives(security: str) -> None:
    payload = noise(16 * MIB)
    with testing.network("a", "b", security=security, lifetime_s_default=86_400, cache_bytes_max=32 * MIB) as net:
        net.subscribe("b", "film")
        net.publish("a", "film", payload)
        net.link("a", "b")
        net.advance(60)
        (delivery,) = net.deliveries("b")
        assert delivery.payload == payload
        assert net.sent("a").frames["Data"] == 16 * MIB // 1024
        assert net.sent("a").frame_bytes["Data"] < 1.03 * 16 * MIB


def test_a_large_message_arrives_over_a_bad_link() -> None:
    payload = noise(MIB)
    with testing.network("a", "b", security="signed", loss=0.05, duplicate=0.05, reorder=0.1) as net:
        net.subscribe("b", "film")
        net.publish("a", "film", payload)
        net.link("a", "b")
        net.advance(300)
        assert [delivery.payload for delivery in net.deliveries("b")] == [payload]
        assert net.sent("a").frame_bytes["Data"] < 1.25 * MIB


def test_halves_that_went_through_different_carriers_meet_again() -> None:
    payload = noise(512 * 1024)
    events: list[tuple[str, Received]] = []

    def note(_t: float, node: str, event: Event) -> None:
        if isinstance(event, Received):
            events.append((node, event))

    with testing.network("a", "b", "c", "d", security="signed", altruistic=("film",)) as net:
        net.watch(note)
        net.subscribe("d", "film")
        net.publish("a", "film", payload)
        part(net, "a", "b", 300 * 1024)
        # b promises c the pieces that it has, but is slow; so c asks a for the others only.
        net.link("b", "c", rate_bytes_per_s=1_000)
        net.advance(10)
        net.link("a", "c", rate_bytes_per_s=RATE)
        net.advance(5)
        net.unlink("a", "c")
        net.unlink("b", "c")
        net.advance(60)
        assert events == []
        net.link("b", "d")
        net.advance(30)
        assert net.deliveries("d") == []
        first = data_bytes(net, "b", "d")
        net.unlink("b", "d")
        net.link("c", "d")
        net.advance(30)
        assert [delivery.payload for delivery in net.deliveries("d")] == [payload]
        assert 0 < first < len(payload)
        assert first + data_bytes(net, "c", "d") < 1.03 * len(payload)


def test_two_partial_carriers_in_reach_at_once_each_give_what_the_other_lacks() -> None:
    payload = noise(256 * 1024)
    with testing.network("a", "b", "c", "d", security="signed", altruistic=True) as net:
        net.publish("a", "film", payload)
        part(net, "a", "b", 100 * 1024)
        net.link("b", "d")
        net.advance(30)
        half = data_bytes(net, "b", "d")
        assert 0 < half < len(payload)
        net.unlink("b", "d")
        net.advance(30)
        net.link("a", "c")
        net.advance(30)
        net.unlink("a", "c")
        net.subscribe("d", "film")
        net.link("c", "d")
        net.link("b", "d")
        net.advance(30)
        assert [delivery.payload for delivery in net.deliveries("d")] == [payload]
        assert data_bytes(net, "c", "d") < 1.03 * len(payload) - half


@pytest.mark.parametrize("security", ["signed", "off"])
def test_a_broken_contact_keeps_whole_pieces_and_does_not_ask_for_them_again(security: str) -> None:
    payload = noise(640 * 1024)
    with testing.network("a", "b", security=security) as net:
        net.subscribe("b", "film")
        net.publish("a", "film", payload)
        for _ in range(8):
            net.link("a", "b", rate_bytes_per_s=30_000)
            net.advance(7)
            net.unlink("a", "b")
            net.advance(60)
        assert [delivery.payload for delivery in net.deliveries("b")] == [payload]
        arrived = data_bytes(net, "a", "b")
        lost = net.traffic("a", "b").cut * 1_024
        # What arrived is what was needed, and the rest of the piece that was under way at each end.
        assert arrived - lost < len(payload) * 1.02 + 8 * 3 * PIECE_BYTES


def test_pieces_survive_a_crash() -> None:
    payload = noise(512 * 1024)
    with testing.network("a", "b", security="signed") as net:
        net.subscribe("b", "film")
        net.publish("a", "film", payload)
        part(net, "a", "b", 300 * 1024)
        net.kill("b")
        net.restart("b")
        before = data_bytes(net, "a", "b")
        net.link("a", "b")
        net.advance(30)
        assert [delivery.payload for delivery in net.deliveries("b")] == [payload]
        assert data_bytes(net, "a", "b") - before < 0.9 * len(payload)


def test_a_neighbour_gets_the_growth_of_a_half_received_message_before_it_is_whole() -> None:
    payload = noise(400 * 1024)
    with testing.network("a", "b", "c", security="signed") as net:
        for name in "bc":
            net.subscribe(name, "film")
        net.link("a", "b", rate_bytes_per_s=20_000)
        net.link("b", "c")
        net.advance(10)
        net.publish("a", "film", payload)
        net.advance(15)
        assert net.deliveries("b") == []
        assert data_bytes(net, "b", "c") > 100 * 1024
        net.advance(15)
        (at_b,), (at_c,) = net.deliveries("b"), net.deliveries("c")
        assert at_c.payload == payload
        assert at_c.time - at_b.time < 3


class Ferry:
    """Carries frames between two hosts by hand; keeps the payloads of the first one only."""

    def __init__(self) -> None:
        settings = Settings.emulated(security="signed", compress=False, beacons=False)

        # Of several messages the newest goes first, so that the others stay half received.
        def newest_first(descriptor: Descriptor) -> int:
            return int(descriptor.label)

        self.hosts = {
            name: Host(Identity.derived(1, name), settings, random.Random(1), privilege=newest_first) for name in "ab"
        }
        self.pieces: dict[tuple[bytes, int], bytes] = {}
        self.now = 0
        self.held: dict[MessageId, int] = {}
        for host in self.hosts.values():
            host.start(0)
            self.store(host)

    def store(self, host: Host) -> None:
        while (batch := host.changes()) is not None:
            for (kind, name, number), value in batch.puts.items():
                if kind == PIECE and host is self.hosts["a"] and isinstance(value, bytes):
                    self.pieces[name, number] = value
                elif isinstance(value, StoredMessage) and host is self.hosts["b"]:
                    self.held[value.descriptor.id] = value.held
            host.durable(batch.serial, self.now)

    def holds(self, message: MessageId, pieces: int) -> bool:
        return self.held.get(message, 0).bit_count() >= pieces

    def contact(self, until: Callable[[], bool]) -> None:
        for name, other in (("a", "b"), ("b", "a")):
            self.hosts[name].link(other, True, self.now)
        while not until():
            self.now += 10_000
            for name, other in (("a", "b"), ("b", "a")):
                host = self.hosts[name]
                host.tick(self.now)
                self.store(host)
                frames = [frame for sent in host.outgoing() for frame in sent.frames]
                host.events()
                found, gone = fill_payloads(frames, lambda message, piece: self.pieces[message, piece])
                assert not gone
                self.hosts[other].receive(found, name, self.now)
                self.store(self.hosts[other])
        for name, other in (("a", "b"), ("b", "a")):
            self.hosts[name].link(other, False, self.now)
            self.hosts[name].outgoing()


def test_what_comes_in_while_the_rest_is_on_its_way_follows_without_a_timeout() -> None:
    """Check that a relay forwards the pieces that it has, and the rest as they arrive, on an equally fast link."""
    with testing.network("a", "b", "c", altruistic=True) as net:
        net.subscribe("c", "film")
        net.link("a", "b", rate_bytes_per_s=RATE)
        net.link("b", "c", rate_bytes_per_s=RATE)
        net.advance(30)
        payloads = [noise(MIB, seed) for seed in range(4)]
        for payload in payloads:
            net.publish("a", "film", payload)
        net.advance(30)
        found = net.deliveries("c")
        assert sorted(each.payload for each in found) == sorted(payloads)
        # All of it at full speed, one large message later on the second link, and a second for everything else.
        assert max(each.time for each in found) - 30 < 5 * MIB * 1.05 / RATE + 1


@pytest.mark.parametrize("count", [25, pytest.param(100, marks=pytest.mark.soak)])
def test_memory_stays_bounded_while_many_half_received_messages_wait(count: int) -> None:
    ferry = Ferry()
    ferry.hosts["b"].subscribe("film", now=0)
    before = 0
    for number in range(count):
        message = ferry.hosts["a"].publish("film", noise(16 * PIECE_BYTES, number), now=ferry.now, label=str(number))
        ferry.store(ferry.hosts["a"])
        if number == 10:
            tracemalloc.start()
            before = tracemalloc.get_traced_memory()[0]
        ferry.contact(partial(ferry.holds, message, 4))
    kept = sum(map(len, ferry.pieces.values())) * (count - 10) // count
    used, peak = (each - before - kept for each in tracemalloc.get_traced_memory())
    tracemalloc.stop()
    assert len(ferry.held) == count
    waiting = sum(held.bit_count() for held in ferry.held.values()) * PIECE_BYTES
    assert 6 * MIB * count < 100 * waiting < 20 * MIB * count
    assert used < 2 * MIB
    assert peak < 4 * MIB
    ferry.contact(lambda: set(ferry.held.values()) == {0xFFFF})


def test_unverified_fragments_are_bounded_and_the_messages_still_arrive() -> None:
    limits = {"fragment_buffer_bytes_max": 64 * 1024, "partials_max": 8}
    with testing.network("a", "b", security="signed", limits=limits, loss=0.1) as net:
        net.subscribe("b", "film")
        payloads = [noise(100 * 1024, seed) for seed in range(30)]
        for payload in payloads:
            net.publish("a", "film", payload)
        net.link("a", "b")
        net.advance(600)
        assert sorted(delivery.payload for delivery in net.deliveries("b")) == sorted(payloads)


def test_a_payload_is_compressed_once_at_publication_and_expanded_at_the_end_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[str] = []
    compressor, decompressor = zstandard.ZstdCompressor, zstandard.ZstdDecompressor

    def compress(*, write_checksum: bool) -> zstandard.ZstdCompressor:
        made.append("compressor")
        return compressor(write_checksum=write_checksum)

    def expand(*, max_window_size: int) -> zstandard.ZstdDecompressor:
        made.append("expander")
        return decompressor(max_window_size=max_window_size)

    monkeypatch.setattr(zstandard, "ZstdCompressor", compress)
    monkeypatch.setattr(zstandard, "ZstdDecompressor", expand)
    text = b"".join(b"line %d of a long report\n" % number for number in range(20_000))
    with testing.network("a", "b", "c", security="signed", altruistic=True) as net:
        net.subscribe("c", "report")
        net.publish("a", "report", text)
        assert made == ["compressor"]
        net.link("a", "b")
        net.link("b", "c")
        net.advance(30)
        (delivery,) = net.deliveries("c")
        assert delivery.payload == text
        assert made == ["compressor", "expander"]
        descriptor = delivery.descriptor
        assert (descriptor.codec, descriptor.size) == (PayloadCodec.ZSTD, len(text))
        assert descriptor.length < len(text) / 3
        assert net.sent("a").frame_bytes["Data"] < 1.05 * descriptor.length + 100
        assert net.sent("a").bytes < len(text)


def test_without_compression_the_payload_travels_as_it_is() -> None:
    with testing.network("a", "b", compress=False) as net:
        net.subscribe("b", "report")
        net.publish("a", "report", b"a" * 50_000)
        net.link("a", "b")
        net.advance(30)
        (delivery,) = net.deliveries("b")
        assert (delivery.payload, delivery.descriptor.length) == (b"a" * 50_000, 50_000)


def test_a_message_that_was_evicted_in_mid_transfer_and_came_back_in_part_is_still_wanted() -> None:
    with testing.network("a", "c", seed=1, compress=False, shares=False) as net:
        net.add("d", cache_bytes_max=5 * PIECE_BYTES, shares=False)
        net.subscribe("d", "news")
        net.publish("a", "news", testing.Blank(5 * PIECE_BYTES), priority=1, label="large")
        net.publish("c", "news", testing.Blank(3 * PIECE_BYTES), priority=9, label="urgent", lifetime_s=60)
        net.link("a", "d", rate_bytes_per_s=9_000)
        net.advance(5)  # Some pieces of the large one are there,
        net.link("c", "d")
        net.advance(5)  # have to give way to the urgent one, and the next one fits beside it.
        net.unlink("a", "d")
        net.unlink("c", "d")
        net.advance(120)
        assert [each.descriptor.label for each in net.deliveries("d")] == ["urgent"]
        net.link("a", "d")
        net.advance(30)
        assert [each.descriptor.label for each in net.deliveries("d")] == ["urgent", "large"]


def test_a_relay_that_passes_pieces_on_as_they_come_vouches_for_them_once() -> None:
    with testing.network(
        "a", "b", "c", security="signed", altruistic=True, rate_bytes_per_s=1_000_000, compress=False,
        lifetime_s_default=3600, lifetime_s_max=86_400,
    ) as net:  # fmt: skip
        net.subscribe("c", "files")
        net.link("a", "b")
        net.link("b", "c")
        net.advance(30)
        payload = random.Random(1).randbytes(3_000_000)
        net.publish("a", "files", payload)
        net.advance(10)
        assert [delivery.payload for delivery in net.deliveries("c")] == [payload]
        sent = net.traffic("b", "c")
        pieces = -(-len(payload) // PIECE_BYTES)
        assert sent.frame_bytes["HashList"] < 1.5 * 32 * pieces
        assert sent.frames["DescriptorPart"] <= 2
        assert sent.frames["Offer"] > 10  # It did pass them on as they came.


def test_a_neighbour_that_forgot_what_vouches_for_the_pieces_is_told_again() -> None:
    """Check a neighbour with room for one half-received message, when another one comes in between."""
    with testing.network(
        "a", "b", "c", altruistic=True, rate_bytes_per_s=400_000, compress=False, limits={"partials_max": 1}
    ) as net:
        net.link("a", "b")
        net.link("b", "c")
        net.advance(30)
        for number in range(6):
            net.publish("a" if number % 2 else "b", "files", bytes([number]) * 400_000)
        net.advance(120)
        assert net.host("c").overview().messages == 6
