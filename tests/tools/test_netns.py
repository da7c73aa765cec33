"""The namespaces and the radio hub of the other tests work as described, and leave nothing behind."""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from tools.netns import Net, NetError
from tools.radio_hub import EVERY, Radio, Rule

from tools import netns

pytestmark = pytest.mark.skipif(bool(netns.available()), reason=f"no network namespaces: {netns.available()}")

ROOT = Path(__file__).resolve().parents[2]
PORT = 5_000
FRAMES = 1_000
# Says what it heard, as numbers, after a pause in which nothing came.
LISTEN = """
import socket, sys
family, group, pause_s = sys.argv[1:]
six = family == "6"
heard = socket.socket(socket.AF_INET6 if six else socket.AF_INET, socket.SOCK_DGRAM)
heard.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
heard.bind(("::" if six else "", 5000))
if group and six:
    index = socket.if_nametoindex("eth0").to_bytes(4, sys.byteorder)
    heard.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, socket.inet_pton(socket.AF_INET6, group) + index)
elif group:
    index = socket.if_nametoindex("eth0").to_bytes(4, sys.byteorder)
    heard.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, socket.inet_aton(group) + bytes(4) + index)
print("ready", flush=True)
heard.settimeout(20)
try:
    while True:
        print(int(heard.recv(65536)[:8]))
        heard.settimeout(float(pause_s))
except TimeoutError:
    print("end", flush=True)
"""
SEND = """
import socket, struct, sys, time
family, target, count, size, every_s = sys.argv[1:]
six = family == "6"
out = socket.socket(socket.AF_INET6 if six else socket.AF_INET, socket.SOCK_DGRAM)
index = socket.if_nametoindex("eth0")
out.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"eth0")
if six:
    out.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, index)
else:
    out.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
    out.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, struct.pack("4s4si", bytes(4), bytes(4), index))
began = time.monotonic()
for number in range(int(count)):
    time.sleep(max(0, began + number * float(every_s) - time.monotonic()))
    out.sendto(b"%08d" % number + bytes(int(size) - 8), (target, 5000, 0, index) if six else (target, 5000))
"""


@pytest.fixture
def net() -> Iterator[Net]:
    with Net() as made:
        yield made


def listen(net: Net, node: str, *, family: int = 4, group: str = "", pause_s: float = 0.5) -> Callable[[], list[int]]:
    """Start to listen; return a function that waits for the end and returns the numbers heard."""
    command = [sys.executable, "-IS", "-c", LISTEN, str(family), group, str(pause_s)]
    program = net.popen(node, command, stdout=subprocess.PIPE)
    assert program.stdout is not None
    assert program.stdout.readline() == b"ready\n"

    def heard() -> list[int]:
        said, _ = program.communicate(timeout=30)
        assert said.endswith(b"end\n")
        return [int(line) for line in said.split()[:-1]]

    return heard


def send(net: Net, node: str, target: str, *, count: int = 100, size: int = 200, every_s: float = 0.0005) -> None:
    family = 6 if ":" in target else 4
    net.run(node, sys.executable, "-IS", "-c", SEND, str(family), target, str(count), str(size), str(every_s))


def address(end: netns.End, family: int = 4) -> str:
    return next(text.split("/")[0] for text in end.addresses if (":" in text) == (family == 6))


def close_to(expected: float, seen: int, count: int) -> bool:
    """Within five standard deviations of what chance allows."""
    deviation = statistics.NormalDist(sigma=(count * expected * (1 - expected)) ** 0.5).inv_cdf(1 - 3e-7)
    return abs(seen - count * expected) <= deviation


# --- namespaces ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["cable", "switch", "radio"])
def test_datagrams_of_every_kind_cross(net: Net, kind: str) -> None:
    net.add("a", "b")
    if kind == "cable":
        end = net.cable("a", "b").ends[1]
    elif kind == "switch":
        end = net.switch("a", "b").ends["b"]
    else:
        radio = Radio(net, "a", "b")
        radio.link("a", "b")
        end = radio.lan.ends["b"]
    for family, group, target in (
        (4, "", address(end)),
        (4, "", "255.255.255.255"),
        (4, "239.255.67.80", "239.255.67.80"),
        (6, "", address(end, 6)),
        (6, "ff12::4350", "ff12::4350"),
    ):
        # While the kernel asks for the neighbour's address, datagrams wait, and one that follows may overtake them.
        send(net, "a", target, count=1)
        heard = listen(net, "b", family=family, group=group, pause_s=0.1)
        send(net, "a", target, count=50)
        assert heard() == list(range(50)), target


def test_a_namespace_has_no_interface_of_the_machine(net: Net) -> None:
    net.add("a")
    inside = net.run("a", "ip", "-brief", "link").splitlines()
    assert [line.split()[0] for line in inside] == ["lo"]


def test_one_family_of_addresses_can_be_left_out(net: Net) -> None:
    net.add("a", "b", "c")
    net.cable("a", "b", v6=False)
    net.switch("a", "c", v4=False)
    assert "inet6" not in net.run("a", "ip", "address", "show", "eth0")
    assert "inet " not in net.run("a", "ip", "address", "show", "eth1")


def test_out_of_reach_nothing_crosses_and_the_interface_stays_up(net: Net) -> None:
    net.add("a", "b")
    cable = net.cable("a", "b")
    cable.reach(False)
    heard = listen(net, "b", pause_s=0.1)
    send(net, "a", "255.255.255.255")
    assert "LOWER_UP" in net.run("b", "ip", "link", "show", "eth0")
    cable.reach(True)
    send(net, "a", "255.255.255.255", count=1)
    assert heard() == [0]


@pytest.mark.parametrize("family", [4, 6])
def test_an_interface_that_was_switched_off_works_again(net: Net, family: int) -> None:
    net.add("a", "b")
    cable = net.cable("a", "b")
    cable.ends[1].set(up=False)
    assert "LOWER_UP" not in net.run("a", "ip", "link", "show", "eth0")
    cable.ends[1].set(up=True)
    heard = listen(net, "b", family=family, pause_s=0.1)
    send(net, "a", address(cable.ends[1], family), count=1)
    assert heard() == [0]


def test_so_much_is_lost_as_was_said(net: Net) -> None:
    net.add("a", "b")
    cable = net.cable("a", "b")
    send(net, "a", address(cable.ends[1]), count=1)  # Else the question for the address may be what is lost.
    cable.ends[1].loss(0.5)
    cable.ends[1].loss(0.2)
    heard = listen(net, "b")
    send(net, "a", address(cable.ends[1]), count=FRAMES)
    assert close_to(0.8, len(heard()), FRAMES)


def test_a_rate_is_kept(net: Net) -> None:
    net.add("a", "b")
    cable = net.cable("a", "b")
    cable.rate(2_000_000)
    heard = listen(net, "b")
    began_s = time.monotonic()
    # Twice as much as fits.
    send(net, "a", address(cable.ends[1]), count=400, size=1_000, every_s=0.002)
    took_s = time.monotonic() - began_s
    arrived = len(heard())
    assert 0 < arrived * 1_042 * 8 < 2_000_000 * (took_s + 0.2)
    assert arrived > 150


def test_isolated_ports_reach_all_but_each_other(net: Net) -> None:
    net.add("a", "b", "c")
    lan = net.switch("a", "b", "c")
    for name in "ab":
        lan.ports[name].isolate(True)
    heard = {name: listen(net, name, pause_s=0.2) for name in "bc"}
    send(net, "a", "255.255.255.255", count=10)
    send(net, "c", address(lan.ends["b"]), count=1)
    assert heard["c"]() == list(range(10))
    assert heard["b"]() == [0]


def test_what_cannot_be_made_says_what_was_tried(net: Net) -> None:
    net.add("a")
    with pytest.raises(NetError, match=r"ip netns add a: .*exists"):
        net.add("a")


# --- the hub -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", [4, 6])
def test_the_hub_loses_repeats_and_reorders_as_often_as_it_was_told(net: Net, family: int) -> None:
    net.add("a", "b")
    radio = Radio(net, "a", "b", seed="counts")
    radio.link("a", "b", Rule(heard=True, loss=0.2, duplicate=0.1, delay_s=(0.001, 0.004)))
    heard = listen(net, "b", family=family, group="ff12::4350" if family == 6 else "")
    send(net, "a", "ff12::4350" if family == 6 else "255.255.255.255", count=FRAMES)
    numbers = heard()
    counted = radio.counters()
    times = Counter(numbers)
    assert close_to(0.8, len(times), FRAMES)
    assert close_to(0.1, sum(count - 1 for count in times.values()), len(times))
    assert set(times.values()) == {1, 2}
    assert sum(after < before for before, after in pairwise(numbers)) > FRAMES / 10
    assert counted["a>b"]["lost"] >= FRAMES - len(times)
    assert counted["a>b"]["duplicated"] >= len(numbers) - len(times)
    assert counted["hub"] == {"overrun": 0}


def test_the_same_seed_loses_the_same_frames() -> None:
    rounds = []
    for seed in ("same", "same", "another"):
        with Net() as net:
            net.add("a", "b")
            radio = Radio(net, "a", "b", seed=seed, v6=False)
            radio.link("a", "b", Rule(heard=True, loss=0.5))
            heard = listen(net, "b", pause_s=0.2)
            send(net, "a", "255.255.255.255")
            rounds.append(heard())
    assert rounds[0] == rounds[1] != rounds[2]


def test_a_link_can_work_one_way_and_change(net: Net) -> None:
    net.add("a", "b")
    radio = Radio(net, "a", "b", v6=False)
    radio.hear("b", "a")
    heard = listen(net, "b", pause_s=0.2)
    send(net, "a", "255.255.255.255", count=10)
    assert heard() == list(range(10))
    heard = listen(net, "a", pause_s=0.2)
    send(net, "b", "255.255.255.255", count=10)
    radio.unlink(EVERY, EVERY)
    send(net, "b", "255.255.255.255", count=5)
    radio.hear("a", "b")
    send(net, "b", "255.255.255.255", count=3)
    assert heard() == list(range(3))
    counted = radio.counters()
    assert counted["a>b"] == {"forwarded": 10, "duplicated": 0}
    assert counted["b>a"] == {"forwarded": 3, "duplicated": 0, "unheard": 15}


def test_the_hub_takes_two_thousand_frames_a_second_of_four_nodes(net: Net) -> None:
    net.add(*"abcd")
    radio = Radio(net, *"abcd")
    radio.hear(EVERY, EVERY)
    heard = {name: listen(net, name, pause_s=0.3) for name in "bcd"}
    send(net, "a", "255.255.255.255", count=FRAMES, size=1_200)
    assert [len(heard[name]()) for name in "bcd"] == [FRAMES] * 3
    assert radio.counters()["hub"] == {"overrun": 0}


# --- nothing is left -----------------------------------------------------------------------------------------------


def inside(namespace: str) -> list[int]:
    """Processes in this network namespace."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if str((folder / "ns/net").readlink()) == namespace:
                found.append(int(folder.name))
        except OSError:  # Ended meanwhile, or somebody else's.
            continue
    return found


def gone(namespaces: list[str]) -> bool:
    deadline_s = time.monotonic() + 10
    while any(inside(name) for name in namespaces):
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.01)
    return True


def test_programs_end_with_the_net_and_no_name_is_left() -> None:
    names = set(Path("/run/netns").glob("*"))
    with Net() as net:
        net.add("a")
        program = net.popen("a", ["sleep", "60"], stdout=subprocess.PIPE)
        namespace = net.run("a", "readlink", "/proc/self/ns/net").strip()
        while program.pid not in inside(namespace):
            assert program.poll() is None
        assert set(Path("/run/netns").glob("*")) == names
    assert program.returncode == -signal.SIGKILL
    assert inside(namespace) == []


def test_everything_ends_when_whoever_made_it_is_killed() -> None:
    script = """
import subprocess, sys
from tools.netns import Net
from tools.radio_hub import Radio
net = Net()
net.add("a", "b")
radio = Radio(net, "a", "b")
net.popen("a", ["sh", "-c", "readlink /proc/self/ns/net; exec sleep 60"])
print(net.run(radio.lan.namespace, "readlink", "/proc/self/ns/net").strip(), flush=True)
print(net.call("readlink", "/proc/self/ns/net").strip(), flush=True)
sys.stdin.read()
"""
    command = [sys.executable, "-c", script]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as maker:  # noqa: S603
        assert maker.stdout is not None
        namespaces = [maker.stdout.readline().decode().strip() for _ in range(3)]
        assert all(inside(name) for name in namespaces)
        maker.kill()
    assert gone(namespaces)


def test_a_failure_inside_removes_everything_too() -> None:
    namespaces = []
    with pytest.raises(NetError), Net() as net:  # noqa: PT012 - the failure is inside
        net.add("a")
        net.popen("a", ["sleep", "60"])
        namespaces.append(net.run("a", "readlink", "/proc/self/ns/net").strip())
        net.add("a")
    assert gone(namespaces)
