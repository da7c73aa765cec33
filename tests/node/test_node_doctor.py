"""Findings of the doctor, on loopback and in namespaces with links that do not carry everything."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support.copies import copy, python
from tools.netns import Net

from carrypost.config import Limits, Settings
from carrypost.gossip.wire import codec
from carrypost.gossip.wire.frames import Announce
from carrypost.messaging.overview import MessagingOverview
from carrypost.model.ids import NodeId
from carrypost.node.diagnosis import Finding, Trial, diagnose, examine, examine_disk, narrow, of_node, of_settings
from carrypost.node.settings import UdpSettings
from carrypost.node.udp.channels import Interface, Means, Obstacle
from carrypost.node.udp.udp import Udp
from carrypost.security import packets
from tools import netns

in_namespaces = pytest.mark.skipif(bool(netns.available()), reason=f"no network namespaces: {netns.available()}")
FOUR, SIX, WIDE = Means.IPV4_MULTICAST, Means.IPV6_MULTICAST, Means.IPV4_BROADCAST
TIMEOUT_S = 1.0
DEADLINE_S = 20.0
EXAMINE = """
import asyncio, dataclasses, json, sys
from carrypost.node.diagnosis import examine
from carrypost.node.settings import UdpSettings
interface, timeout_s, settings = json.loads(sys.argv[1])
found = asyncio.run(examine(UdpSettings(**settings), interface, timeout_s=timeout_s))
print(json.dumps([dataclasses.asdict(each) for each in found]))
"""
ANNOUNCE = """
import asyncio, sys
from carrypost.gossip.wire import codec
from carrypost.gossip.wire.frames import Announce
from carrypost.node.settings import UdpSettings
from carrypost.node.udp.udp import Udp

async def main():
    udp = Udp(UdpSettings(), lambda batch: None)
    await udp.open()
    print(*udp.addresses, flush=True)
    for counter in range(10_000):
        plain = codec.datagrams([Announce("other", 1, counter, 50, bytes(8))], 1_200)
        udp.send([bytes.fromhex(each) for each in sys.argv[1:]] or plain, None, announcing=True)
        await asyncio.sleep(0.05)

asyncio.run(main())
"""


def free_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("", 0))
        port: int = probe.getsockname()[1]
        return port


def here(interface: str | None = "lo", **settings: object) -> list[Finding]:
    given: dict[str, Any] = {"port": free_port(), **settings}
    return asyncio.run(examine(UdpSettings(**given), interface, timeout_s=0.2))


def by_means(found: list[Finding]) -> dict[str, Finding]:
    return {each.means: each for each in found}


# --- on loopback ---------------------------------------------------------------------------------------------


def test_loopback_carries_ipv4_and_nothing_else() -> None:
    found = by_means(here())
    assert {means: each.works for means, each in found.items()} == {FOUR: True, SIX: False, WIDE: True}
    assert "between nodes on this machine" in found[FOUR].detail
    assert "IPv4 is enough" in found[SIX].advice
    assert {means: each.remark for means, each in found.items()} == {FOUR: "", SIX: "unused", WIDE: ""}


def test_what_the_settings_switch_off_is_examined_all_the_same_and_said() -> None:
    found = by_means(here(ipv4_multicast=False))
    assert found[FOUR].works
    assert "udp.ipv4_multicast" in found[FOUR].detail
    assert "switched off" not in found[WIDE].detail


def test_an_interface_that_is_not_there_is_said_with_those_that_are() -> None:
    (finding,) = here("gone0")
    assert not finding.works
    assert finding.detail == "There is no interface gone0."
    assert "lo" in finding.advice
    (finding,) = here(None, interfaces=("gone*",))
    assert "udp.interfaces" in finding.detail


def test_a_port_that_somebody_has_for_himself_is_said_with_who_it_is() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind(("", 0))
        port = other.getsockname()[1]
        found = here(port=port)
    assert not any(each.works for each in found)
    assert found[0].means == "port"
    assert f"UDP port {port}" in found[0].detail
    assert str(os.getpid()) in found[0].advice
    assert f"UDP port {port}" in by_means(found)[FOUR].advice


def test_a_node_that_runs_here_hears_probes_as_foreign_bytes_and_goes_on() -> None:
    async def scene() -> None:
        came: list[tuple[str, bytes]] = []
        settings = UdpSettings(port=free_port(), interfaces=("lo",))
        node, other = Udp(settings, came.extend), Udp(settings, lambda _: None)
        await node.open()
        await other.open()
        found = by_means(await examine(settings, "lo", timeout_s=0.3))
        other.send([b"hello"], None, announcing=True)
        deadline = time.monotonic() + DEADLINE_S
        while not came or came[-1][1] != b"hello":
            assert time.monotonic() < deadline
            await asyncio.sleep(0.01)
        await node.close()
        await other.close()
        assert found[FOUR].works
        assert found[WIDE].works
        assert not any(datagram.startswith(b"CP") for _, datagram in came)

    asyncio.run(scene())


def test_probes_in_a_closed_network_look_like_protected_datagrams() -> None:
    async def scene() -> None:
        came: list[tuple[str, bytes]] = []
        settings = UdpSettings(port=free_port(), interfaces=("lo",))
        node = Udp(settings, came.extend)
        await node.open()
        found = by_means(await examine(settings, "lo", timeout_s=0.3, closed=True))
        deadline = time.monotonic() + DEADLINE_S
        while not came:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.01)
        await node.close()
        assert found[FOUR].works
        assert all(datagram.startswith(packets.HEAD) for _, datagram in came)
        assert not codec.decode(came[0][1], Limits()).frames

    asyncio.run(scene())


def test_datagrams_that_a_node_here_would_refuse_for_their_length_are_named_with_their_sender() -> None:
    async def scene() -> None:
        settings = UdpSettings(port=free_port(), interfaces=("lo",))
        other = Udp(settings, lambda _: None)
        await other.open()
        examining = asyncio.create_task(examine(settings, "lo", timeout_s=0.5, limits=Limits(datagram_bytes_max=2_000)))
        while not examining.done():
            other.send([b"CP\1" + bytes(3_000), b"CP\1" + bytes(1_000)], None, announcing=True)
            await asyncio.sleep(0.02)
        finding, address = by_means(await examining)["datagrams"], other.addresses[0]
        await other.close()
        assert finding.heard == (address,)
        assert "3,003 bytes" in finding.detail
        assert "2,000" in finding.detail
        assert "limits.datagram_bytes_max" in finding.advice
        assert "mtu_bytes" in finding.advice

    asyncio.run(scene())


# --- what follows from what ----------------------------------------------------------------------------------


def trial(**came: object) -> Trial:
    given: dict[str, Any] = {"interface": "wlan0", "means": FOUR, "port": 17_232, "timeout_s": 1.0, **came}
    return Trial(**given)


@pytest.mark.parametrize(
    ("came", "otherwise", "works", "said", "advised"),
    [
        ({"obstacle": Obstacle.NO_IPV4}, set(), False, "no IPv4 address", "ip address add"),
        ({"obstacle": Obstacle.NO_MULTICAST}, set(), False, "cannot multicast", "ip link set wlan0 multicast on"),
        ({"listen_error": "ENOBUFS"}, set(), False, "ENOBUFS", "igmp_max_memberships"),
        ({"listen_error": "ENODEV"}, set(), False, "No such device", "down and up"),
        ({"send_error": "ENETUNREACH"}, set(), False, "Network is unreachable", "ip route add 224.0.0.0/4 dev wlan0"),
        ({"send_error": "EPERM"}, set(), False, "Sending IPv4 multicast failed", "firewall"),
        ({}, set(), False, "did not come back", "allow UDP port 17232"),
        ({"came_back": True}, set(), True, "not known whether", "static peers"),
        ({"came_back": True, "nodes_here": {"anna", "bert"}}, set(), True, "only a node on this one", "isolates"),
        ({"came_back": True}, {"10.0.0.5:1"}, False, "10.0.0.5:1 was heard by other means", "IGMP snooping"),
        ({"came_back": True, "others": {"10.0.0.5:1": 3}}, set(), True, "works: 10.0.0.5:1 was heard", ""),
        ({"others": {"10.0.0.5:1": 3}}, set(), True, "nodes on this machine", ""),
        ({"others": {"10.0.0.5:1": 3}, "send_error": "EPERM"}, set(), False, "but cannot be sent", "firewall"),
        ({"others": {f"10.0.0.{n}:1": 3 for n in range(9)}}, set(), True, "and 6 more", ""),
    ],
)
def test_what_was_tried_is_said_in_plain_words(
    came: dict[str, object], otherwise: set[str], works: bool, said: str, advised: str
) -> None:
    finding = diagnose(trial(**came), otherwise)
    assert finding.works is works
    assert said in finding.detail
    assert advised in finding.advice
    assert bool(advised) == bool(finding.advice)
    assert "{" not in finding.detail + finding.advice


# --- in namespaces -------------------------------------------------------------------------------------------


@pytest.fixture
def net() -> Iterator[Net]:
    with Net() as made:
        made.add("a", "b")
        yield made


def examining(net: Net, namespace: str, *arguments: object) -> subprocess.Popen[bytes]:
    program = python("-c", EXAMINE, json.dumps(arguments))
    return copy(program, net=net, namespace=namespace, stdout=subprocess.PIPE)


def examined(net: Net, interface: str | None = None, **settings: object) -> dict[str, Finding]:
    """Return the doctor's findings in namespace a."""
    program = examining(net, "a", interface, TIMEOUT_S, settings)
    said, _ = program.communicate(timeout=DEADLINE_S)
    found = [Finding(**{**each, "heard": tuple(each["heard"])}) for each in json.loads(said)]
    return by_means(found)


@contextmanager
def announcing(net: Net, namespace: str = "b", *, instead: bytes = b"") -> Iterator[list[str]]:
    """Announce by all means, or send another datagram instead; yields the addresses."""
    arguments = python("-c", ANNOUNCE, *filter(None, [instead.hex()]))
    program = copy(arguments, net=net, namespace=namespace, stdout=subprocess.PIPE)
    assert program.stdout is not None
    yield program.stdout.readline().decode().split()
    program.kill()
    program.wait()


def drop(net: Net, ethernet_prefix: int) -> None:
    """Namespace a loses what comes to Ethernet addresses that begin with these two bytes."""
    net.tc("a", "qdisc", "add", "dev", "eth0", "clsact")
    program = f"4,40 0 0 0,21 0 1 {ethernet_prefix},6 0 0 2,6 0 0 0"
    net.tc("a", "filter", "add", "dev", "eth0", "ingress", "bpf", "da", "bytecode", program)


@in_namespaces
def test_where_others_are_heard_everything_is_shown_to_work(net: Net) -> None:
    net.switch("a", "b")
    with announcing(net) as (v4, v6):
        found = examined(net)
    assert found.pop("nodes").detail == "1 other node was heard in 1 s: 0 on this machine, 1 on others."
    assert {means: each.works for means, each in found.items()} == dict.fromkeys(Means, True)
    assert {means: each.heard for means, each in found.items()} == {FOUR: (v4,), WIDE: (v4,), SIX: (v6,)}
    assert {each.advice for each in found.values()} == {""}


@in_namespaces
def test_datagrams_of_a_closed_network_show_that_somebody_is_heard(net: Net) -> None:
    net.switch("a", "b")
    with announcing(net, instead=packets.HEAD + bytes(60)) as (v4, v6):
        found = examined(net)
    assert {means: each.heard for means, each in found.items()} == {FOUR: (v4,), WIDE: (v4,), SIX: (v6,)}


@in_namespaces
def test_where_nobody_is_heard_it_says_what_was_shown_and_what_not(net: Net) -> None:
    net.switch("a", "b")
    for each in examined(net).values():
        assert each.works
        assert each.interface == "eth0"
        assert "datagrams came back" in each.detail
        assert "not known whether" in each.detail
        assert "isolates" in each.advice
        assert "static peers" in each.advice


@in_namespaces
@pytest.mark.parametrize(
    ("prefix", "lost"), [(0x0100, {FOUR}), (0x3333, {SIX}), (0xFFFF, {WIDE})], ids=["v4", "v6", "broadcast"]
)
def test_a_link_that_loses_one_means_is_found_out_by_the_others(net: Net, prefix: int, lost: set[Means]) -> None:
    net.switch("a", "b")
    drop(net, prefix)
    with announcing(net):
        found = examined(net)
    assert {means for means, each in found.items() if not each.works} == lost
    (finding,) = [found[each] for each in lost]
    assert "not on the link" in finding.detail
    assert "access point or switch filters" in finding.advice


@in_namespaces
def test_a_switch_that_floods_no_multicast_is_found_out(net: Net) -> None:
    lan = net.switch("a", "b")
    net.call("bridge", "-n", lan.namespace, "link", "set", "dev", lan.ports["a"].interface, "mcast_flood", "off")
    with announcing(net):
        found = examined(net)
    assert {means: found[means].works for means in Means} == {FOUR: False, SIX: False, WIDE: True}


@in_namespaces
def test_two_doctors_at_the_same_time_show_each_other_what_works(net: Net) -> None:
    net.switch("a", "b")
    programs = [examining(net, each, None, 4.0, {}) for each in ("a", "b")]
    for program in programs:
        said, _ = program.communicate(timeout=DEADLINE_S)
        found = json.loads(said)
        assert [(each["works"], len(each["heard"])) for each in found] == [(True, 1)] * 3


@in_namespaces
def test_clients_that_are_isolated_from_each_other_hear_nobody(net: Net) -> None:
    lan = net.switch("a", "b")
    for port in lan.ports.values():
        port.isolate(True)
    with announcing(net):
        found = examined(net)
    assert {each.heard for each in found.values()} == {()}
    assert all("isolates" in each.advice for each in found.values())


@in_namespaces
def test_a_node_on_the_same_machine_is_not_taken_for_another(net: Net) -> None:
    net.switch("a", "b")
    with announcing(net, "a"):
        found = examined(net)
    heard = found.pop("nodes")
    assert (heard.works, heard.heard) == (True, ("other",))
    assert heard.detail == "1 other node was heard in 1 s: 1 on this machine, 0 on others."
    assert {each.heard for each in found.values()} == {()}
    assert all("only a node on this one" in each.detail for each in found.values())


@in_namespaces
def test_an_interface_that_is_down_or_has_no_address_or_cannot_multicast_is_said(net: Net) -> None:
    net.cable("a", "b")
    net.ip("a", ["link set eth0 down"])
    found = examined(net)
    assert "down" in found["interface"].detail
    assert not found["interface"].works
    net.ip("a", ["link set eth0 up multicast off", "addr flush dev eth0", "addr add 10.5.0.1/31 dev eth0"])
    found = examined(net, "eth0")
    assert {each.works for each in found.values()} == {False}
    assert "cannot multicast" in found[FOUR].detail
    assert "ip link set eth0 multicast on" in found[FOUR].advice
    assert "no IPv6 address" in found[SIX].detail
    assert "no broadcast address" in found[WIDE].detail


@in_namespaces
def test_a_missing_route_is_said_with_the_command_that_adds_it(net: Net) -> None:
    net.cable("a", "b")
    net.run("a", *["ip", "-6", "route", "flush", "table", "local", "type", "multicast", "dev", "eth0"])
    found = examined(net)
    assert found[FOUR].works
    assert not found[SIX].works
    assert "failed: Network is unreachable" in found[SIX].detail
    command = found[SIX].advice.split("`")[1]
    net.run("a", *command.split())
    assert examined(net)[SIX].works


def test_other_nodes_on_loopback_are_counted_and_the_own_one_is_not() -> None:
    async def scene() -> None:
        settings = UdpSettings(port=free_port(), interfaces=("lo",))
        udp = Udp(settings, lambda _: None)
        await udp.open()
        examining = asyncio.create_task(examine(settings, "lo", timeout_s=0.5, own="own"))
        while not examining.done():
            for node in ("own", "anna", "bert"):
                frames = [Announce(NodeId(node), 1, 1, 50, bytes(8))]
                udp.send(codec.datagrams(frames, 1_200), None, announcing=True)
            await asyncio.sleep(0.02)
        found = by_means(await examining)
        await udp.close()
        assert found["nodes"].detail == "2 other nodes were heard in 0.5 s: 2 on this machine, 0 on others."
        assert found["nodes"].heard == ("anna", "bert")
        assert "between nodes on this machine; 2 others were heard." in found[FOUR].detail

    asyncio.run(scene())


def test_a_full_disk_and_a_node_that_cannot_write_are_told(small_disk: Callable[[int], Path], tmp_path: Path) -> None:
    assert examine_disk(tmp_path / "new" / "node", None) == []
    (finding,) = examine_disk(tmp_path, "the disk is full")
    assert (finding.means, finding.works) == ("disk", False)
    assert finding.detail == "The node on this machine could not store its last changes: the disk is full."
    folder = small_disk(4 * 1024 * 1024)
    for place in (folder, folder / "new" / "node"):
        (finding,) = examine_disk(place, None)
        assert finding.detail == f"The disk of {place} is full, or nearly: 4.0 MiB are free."
        assert "Make room" in finding.advice


@pytest.mark.parametrize("means", Means)
def test_there_is_advice_against_every_obstacle_and_for_every_means(means: Means) -> None:
    blocked = [diagnose(trial(means=means, obstacle=each), set()).advice for each in Obstacle]
    assert len(set(blocked)) == len(Obstacle)
    failed: list[dict[str, object]] = [{"listen_error": "EIO"}, {"send_error": "EIO"}, {}, {"came_back": True}]
    for each, heard in ((each, heard) for each in failed for heard in (set[str](), {"another"})):
        advice = diagnose(trial(means=means, **each), heard).advice
        assert advice
        assert not {"{", "}"} & {*advice}


def test_findings_are_fit_for_json() -> None:
    assert json.loads(json.dumps([dataclasses.asdict(each) for each in here()]))


PLAIN: dict[str, Any] = {
    "heard": 1, "places": 168, "waiting": 0, "refused": {}, "messaging": None, "clock_ahead_s": 0.0,
    "clock_set_back_s": 0.0, "services": {},
}  # fmt: skip
"""The status of a node without problems."""


@pytest.mark.parametrize(
    ("heard", "waiting", "words"),
    [
        (167, 0, None),
        (168, 0, "none of its 168 places for neighbours left."),
        (168, 12, "left, and 12 others wait"),
        (168, 1, "left, and 1 other waits for a turn."),
    ],
)
def test_a_node_is_told_of_where_it_has_no_place_for_more_neighbours(
    heard: int, waiting: int, words: str | None
) -> None:
    findings = of_node({**PLAIN, "heard": heard, "waiting": waiting}, Limits())
    assert [words in finding.detail for finding in findings if words is not None] == [True] * len(findings)
    assert bool(findings) is (words is not None)


def test_a_node_is_told_of_that_refused_datagrams_for_their_length() -> None:
    status = {**PLAIN, "refused": {"oversize": 12, "magic": 3}}
    (finding,) = of_node(status, Limits(datagram_bytes_max=2_000))
    assert "12 datagrams of more than 2,000 bytes" in finding.detail
    assert "mtu_bytes" in finding.advice


@pytest.mark.parametrize(
    ("clock", "words"),
    [
        ({"clock_ahead_s": 200_000.0}, "200,000 s behind the dates in the node's store, so it is not believed"),
        ({"clock_set_back_s": 3_600.4}, "was 3,600 s ahead while the node was running, and was set back"),
        ({"clock_set_back_s": 0.4}, None),
    ],
)
def test_a_node_is_told_of_whose_clock_is_behind_or_was_set_back(clock: dict[str, float], words: str | None) -> None:
    findings = of_node({**PLAIN, **clock}, Limits())
    assert [(each.means, words in each.detail) for each in findings if words] == [("clock", True)] * len(findings)
    assert bool(findings) is (words is not None)


@pytest.mark.parametrize("lost", [0, 1_200])
def test_a_node_is_told_of_whose_subscriptions_lost_what_they_were_owed(lost: int) -> None:
    messaging = MessagingOverview(subscriptions=3, durable=2, consumers=1, claims=900, pinned=800, lost=lost)
    status = {**PLAIN, "messaging": messaging._asdict()}
    found = of_node(status, Limits())
    assert len(found) == bool(lost)
    for finding in found:
        assert not finding.works
        assert "lost 1,200 messages" in finding.detail
        assert "3 subscriptions (2 durable) with 1 consumer, 900 messages" in finding.detail
        assert "limits.unconfirmed_max" in finding.advice


def test_settings_are_told_of_with_which_others_would_refuse_what_a_node_sends() -> None:
    assert of_settings(Settings()) == of_settings(Settings(mtu_bytes=9_216)) == []
    (finding,) = of_settings(Settings(mtu_bytes=9_217, limits=Limits(datagram_bytes_max=60_000)))
    assert "9,217" in finding.detail
    assert "9,216" in finding.detail


@pytest.mark.parametrize(
    ("mtu_bytes", "setting", "advice"),
    [
        (0, None, ""),
        (1_248, None, ""),
        (1_247, None, "Set mtu_bytes to 1199"),
        (1_000, 952, ""),
        (1_000, 953, "Set mtu_bytes to 952"),
        (623, 600, "Raise the MTU of the interface to 624"),
    ],
)
def test_an_interface_is_told_of_that_cuts_datagrams_into_pieces(
    mtu_bytes: int, setting: int | None, advice: str
) -> None:
    found = narrow(Interface(name="x", index=1, up=True, mtu_bytes=mtu_bytes), Settings(mtu_bytes=setting))
    assert len(found) == bool(advice)
    for finding in found:
        assert (finding.interface, finding.works) == ("x", False)
        assert advice in finding.advice
