"""Lengths of datagrams: as the interfaces of both ends carry them, and as all neighbours in use take them."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import pytest
from benchmarks._processes import Worker, settings_file, start
from tests.support.proofs import tell
from tools.netns import Cable, Net

from carrypost.config import Limits, Settings
from carrypost.gossip.wire import codec
from carrypost.gossip.wire.codec import fill_payloads
from carrypost.gossip.wire.frames import Announce, Decoded, OpenParcel, Transmission
from carrypost.host import Host
from carrypost.log.events import Delivered
from carrypost.log.journal import PIECE
from carrypost.model.ids import MessageId, NodeId, node_prefix
from carrypost.model.times import MICROSECONDS
from carrypost.node.udp.channels import Interface, datagram_bytes
from carrypost.security.identity import Identity
from tools import netns

BASE, WIDE, NARROW = 1_200, 1_452, 1_232
"""Lengths where nothing is known, and on interfaces with an MTU of 1,500 and of 1,280."""
LABEL = "x" * 200
"""With it, a message of 1,000 bytes takes 1,300."""
DELAY_US = 1_000
LIMITS = Limits()


class Air:
    """Hosts that hear each other. A datagram longer than the receiver's interface carries is lost."""

    def __init__(self, security: str = "off", strategy: str = "exchange", **carried: int) -> None:
        self.now = 0
        self.settings = Settings().replace(
            security=security, strategy=strategy, compress=False, announce_s_max=1.0
        )  # fmt: skip
        self.carried: dict[str, int] = {}
        self.hosts: dict[str, Host] = {}
        self.delivered: dict[str, int] = {}
        self.packed: dict[str, int] = {}
        """By host: as long a datagram it packs several frames into."""
        self.pieces: dict[str, dict[tuple[MessageId, int], bytes]] = {}
        self.away: set[str] = set()
        self.longest: dict[str, int] = {}
        """By host: the longest datagram that it sent."""
        self.parcels = 0
        self.lost = 0
        self._air: list[tuple[int, str, str, bytes]] = []
        for name, nbytes in carried.items():
            self.add(name, nbytes)

    def add(self, name: str, nbytes: int, **changes: object) -> Host:
        settings = self.settings.replace(**changes)
        identity = Identity.generate() if settings.security == "signed" else Identity.plain(name)
        host = self.hosts[name] = Host(identity, settings, random.Random(name))
        self.delivered[name], self.pieces[name], self.packed[name] = 0, {}, settings.datagram_bytes
        host.restore((), self.now)
        self.carry(name, nbytes)
        return host

    def carry(self, name: str, nbytes: int, *, told: bool = True) -> None:
        """Give a host another interface."""
        self.carried[name] = nbytes
        if told:
            self.hosts[name].carry(nbytes, self.now)

    def run(self, seconds: float) -> None:
        end = self.now + round(seconds * MICROSECONDS)
        self._drain()
        while True:
            told = [host.next_deadline() for host in self.hosts.values()]
            due = [end + 1 if at is None else at for at in told]
            at = min(*due, self._air[0][0] if self._air else end + 1)
            if at > end:
                break
            self.now = max(self.now, at)
            while self._air and self._air[0][0] <= self.now:
                _, sender, hearer, datagram = self._air.pop(0)
                if self.away.isdisjoint((sender, hearer)):
                    self._hear(sender, hearer, datagram)
            for host in self.hosts.values():
                host.tick(self.now)
            self._drain()
        self.now = end

    def _hear(self, sender: str, hearer: str, datagram: bytes) -> None:
        if len(datagram) > (self.carried[hearer] or len(datagram)):
            self.lost += 1
            return
        decoded = codec.decode(datagram, LIMITS)
        self.parcels += sum(isinstance(frame, OpenParcel) for frame in decoded.frames)
        self.hosts[hearer].receive(decoded.frames, sender, self.now, nbytes=len(datagram))

    def _drain(self) -> None:
        for name, host in self.hosts.items():
            while host.busy:
                while (batch := host.changes()) is not None:
                    for (kind, message, piece), value in batch.puts.items():
                        if kind == PIECE and isinstance(value, bytes):
                            self.pieces[name][MessageId(message), piece] = value
                    host.durable(batch.serial, self.now)
                for transmission in host.outgoing():
                    self._transmit(name, transmission)
                delivered = [event for event in host.events() if isinstance(event, Delivered)]
                self.delivered[name] += sum(len(event.deliveries) for event in delivered)

    def _transmit(self, name: str, transmission: Transmission) -> None:
        frames, _ = fill_payloads(transmission.frames, lambda message, piece: self.pieces[name].get((message, piece)))
        for datagram in codec.datagrams(frames, self.packed[name]):
            self.longest[name] = max(self.longest.get(name, 0), len(datagram))
            self._send(name, transmission.to, datagram)

    def _send(self, name: str, to: str | None, datagram: bytes) -> None:
        reached = [each for each in self.hosts if each != name and to in (None, each)]
        self._air += [(self.now + DELAY_US, name, each, datagram) for each in reached]

    def publish(self, name: str, count: int = 1, size: int = 1_000) -> None:
        for _ in range(count):
            body = random.Random(size).randbytes(size)
            self.hosts[name].publish("news", body, label=LABEL, now=self.now)

    def meet(self) -> None:
        """Let all hosts subscribe to the news and hear each other."""
        for host in self.hosts.values():
            host.subscribe("news", now=self.now)
        self.run(3)

    def sizes(self) -> set[int]:
        """Return the lengths of the datagrams that the hosts send to all."""
        return {host.overview().datagram_bytes for host in self.hosts.values()}


# --- what is agreed on ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("security", ["signed", "off"])
def test_a_message_of_a_thousand_bytes_is_one_frame_where_both_ends_carry_it(security: str) -> None:
    for carried, parcels in ((WIDE, 1), (NARROW, 0), (0, 0)):
        air = Air(security, a=carried, b=carried)
        air.meet()
        air.publish("a")
        air.run(1)
        assert (air.delivered["b"], air.parcels) == (1, parcels)
        assert 1_000 < air.longest["a"] <= (carried or BASE)


@pytest.mark.parametrize(
    ("a", "b", "agreed"), [(WIDE, WIDE, WIDE), (WIDE, NARROW, NARROW), (WIDE, 0, BASE), (0, 0, BASE)]
)
def test_both_send_what_both_take(a: int, b: int, agreed: int) -> None:
    air = Air(a=a, b=b)
    air.meet()
    assert air.sizes() == {agreed}
    for name in "ab":
        air.publish(name, 30)
        air.publish(name, 1, 40_000)
        air.publish(name, 100, 10)
    air.run(5)
    assert air.delivered == {"a": 262, "b": 262}
    assert (air.parcels == 260) is (agreed == WIDE)
    assert max(air.longest.values()) <= agreed
    assert air.lost == 0


def test_who_takes_less_makes_all_shorter_until_it_is_gone() -> None:
    air = Air(a=WIDE, b=WIDE)
    air.meet()
    air.add("c", NARROW)
    air.meet()
    assert air.sizes() == {NARROW}
    air.publish("a", 50)
    air.run(2)
    assert (air.delivered["b"], air.delivered["c"], air.lost) == (50, 50, 0)
    assert max(air.longest.values()) <= NARROW
    air.away.add("c")
    air.run(10)
    assert {air.hosts[name].overview().datagram_bytes for name in "ab"} == {WIDE}


@pytest.mark.parametrize("told", [True, False])
def test_what_is_on_its_way_arrives_though_less_comes_through_than_was_said(told: bool) -> None:
    air = Air(a=WIDE, b=WIDE)
    air.meet()
    air.carry("b", NARROW, told=False)  # Nobody has noticed yet.
    air.publish("a", 300)
    air.publish("a", 1, 100_000)
    air.run(0.2)
    assert air.lost > 0
    assert air.delivered["b"] < 301
    if told:  # Else it never is: something between the two carries less than their interfaces.
        air.carry("b", NARROW)
    air.run(5)
    assert air.delivered["b"] == 301
    lost = air.lost
    air.publish("a", 50)
    air.run(2)
    assert (air.delivered["b"], air.lost) == (351, lost)


def test_what_nobody_asked_for_is_offered_if_it_is_too_long_as_one_frame() -> None:
    """In two frames it would be refused for ever, and what waits behind it would never go."""
    air = Air(strategy="anti-entropy", a=WIDE, b=WIDE)
    air.meet()
    air.away.add("b")
    air.run(10)
    air.publish("a", 50)
    air.carry("b", NARROW, told=False)
    air.away.clear()
    air.run(20)
    assert air.lost > 0
    assert air.delivered["b"] == 50
    assert "unsolicited" not in air.hosts["b"].overview().refused


def test_an_interface_that_is_gone_or_unknown_leaves_what_everybody_takes() -> None:
    air = Air(a=WIDE, b=WIDE)
    air.meet()
    for carried, agreed in ((0, BASE), (WIDE, WIDE), (700, BASE), (WIDE, WIDE)):
        air.carry("a", carried)
        air.carried["a"] = WIDE
        air.run(2)
        assert air.sizes() == {agreed}
    air.away.add("b")
    air.run(10)
    air.carry("a", 0)
    air.away.clear()
    air.publish("a")
    air.run(5)
    assert (air.delivered["b"], air.parcels) == (1, 0)


def test_a_setting_is_heeded_to_the_byte_and_no_neighbour_changes_it() -> None:
    air = Air(a=WIDE)
    air.add("b", WIDE, mtu_bytes=600)
    air.meet()
    assert [air.hosts[name].overview().datagram_bytes for name in "ab"] == [WIDE, 600]
    air.publish("b", 20)
    air.run(2)
    assert air.delivered["a"] == 20
    assert air.longest["b"] <= 600


@pytest.mark.parametrize("said", [1, BASE - 1, 65_508, 2**53])
def test_a_stranger_that_says_odd_sizes_makes_nothing_shorter_than_usual_or_longer_than_carried(said: int) -> None:
    air = Air(a=WIDE)
    host = air.hosts["a"]
    air.run(1)
    for counter in range(1, 20):  # It says something else every time.
        nbytes = said if counter % 2 else 0
        heard = (node_prefix(host.node),)
        told = Announce(NodeId("z"), 1, counter, 1_000, bytes(8), heard, b"", (), nbytes)
        tell(host, told, "z", air.now)
        assert BASE <= host.overview().datagram_bytes <= WIDE
        air.run(0.1)


def test_a_stranger_that_says_another_size_all_the_time_is_muted() -> None:
    air = Air(a=WIDE)
    host = air.hosts["a"]
    air.run(1)
    heard = (node_prefix(host.node),)
    for counter in range(1, 2_000):
        nbytes = WIDE if counter % 2 else BASE
        told = Announce(NodeId("z"), 1, counter, 1_000, bytes(8), heard, b"", (), nbytes)
        tell(host, told, "z", air.now)
    assert not host.listens("z", air.now)


@pytest.mark.parametrize("odd", [-1, 2**53 + 1, 2**64 - 1, "1452", 1452.0, None, b"x"])
def test_a_size_that_is_no_size_is_refused_with_its_frame(odd: object) -> None:
    fields = [1, "z", 1, 1, 1_000, bytes(8), [], b"", [], odd]
    datagram = codec.MAGIC + bytes((codec.VERSION,)) + msgspec.msgpack.encode([fields])
    assert codec.decode(datagram, LIMITS) == Decoded([], {"frame": 1})


def test_the_shortest_of_the_interfaces_counts_and_nothing_longer_than_ethernet_carries() -> None:
    def of(*mtu_bytes: int) -> int:
        return datagram_bytes([Interface(name="x", index=1, up=True, mtu_bytes=each) for each in mtu_bytes])

    assert of(1_500) == of(65_536) == of(9_000, 1_500) == WIDE
    assert of(1_500, 1_280) == NARROW
    assert of() == of(0) == of(1_500, 0) == of(10) == 0


# --- in namespaces -------------------------------------------------------------------------------------------------

in_namespaces = pytest.mark.skipif(bool(netns.available()), reason=f"no network namespaces: {netns.available()}")
_DROPPED = "/sys/class/net/{}/statistics/tx_dropped"


def node(net: Net, folder: Path, name: str) -> Worker:
    quick = {"announce_s_min": 0.1, "announce_s_max": 0.3}
    file = settings_file(folder / name, compress=False, **quick, udp={"port": 17_400, "poll_s": 0.1})
    return start(name, ["_worker.py", str(file)], net=net, namespace=name)


def cut(net: Net, name: str) -> int:
    """Return the number of packets that a machine fragmented."""
    lines = net.run(name, "cat", "/proc/net/snmp", "/proc/net/snmp6").splitlines()
    heads, values = [line.split() for line in lines if line.startswith("Ip:")]
    v6 = next(line.split() for line in lines if line.startswith("Ip6FragCreates"))
    return int(values[heads.index("FragCreates")]) + int(v6[1])


def dropped(cable: Cable) -> int:
    """Return the number of packets that did not fit into the other end's interface."""
    return sum(int(end.net.run(end.namespace, "cat", _DROPPED.format(end.interface))) for end in cable.ends)


def exchange(nodes: list[Worker], count: int) -> None:
    """Let each node send the other this many messages, and a long one."""
    for worker in nodes:
        worker.ask("publish", destination=worker.name, size=1_000, count=count)
        worker.ask("publish", destination=worker.name, size=100_000, count=1)
    for worker in nodes:
        worker.ask("await", count=count + 1)


@pytest.mark.soak
@in_namespaces
@pytest.mark.parametrize("mtus", [(1_500, 1_280), (9_000, 1_500)])
def test_nothing_is_cut_or_lost_between_interfaces_of_different_mtu(tmp_path: Path, mtus: tuple[int, int]) -> None:
    with Net() as net:
        net.add("a", "b")
        cable = net.cable("a", "b")
        for end, mtu in zip(cable.ends, mtus, strict=True):
            end.mtu(mtu)
        with node(net, tmp_path, "a") as a, node(net, tmp_path, "b") as b:
            nodes = [a, b]
            for worker, other in (nodes, nodes[::-1]):
                worker.answer()
                worker.ask("subscribe", pattern=other.name)
            a.ask("linked", count=1)
            before = dropped(cable)
            exchange(nodes, 100)
            assert (dropped(cable) - before, cut(net, "a"), cut(net, "b")) == (0, 0, 0)
            assert {worker.ask("status")["datagram_bytes"] for worker in nodes} == {min(*mtus, 1_500) - 48}
            cable.ends[1].mtu(1_300)
            exchange(nodes, 100)
            assert (cut(net, "a"), cut(net, "b")) == (0, 0)
