"""Network interfaces, and the choice of those that are used."""

from __future__ import annotations

import socket
from types import SimpleNamespace

import psutil
import pytest

from carrypost.node.udp.channels import Interface, selected, snapshot
from carrypost.node.udp.sockets import address_text, literal, socket_address, split

LO = Interface(name="lo", index=1, up=True, loopback=True, ipv4="127.0.0.1", broadcast="127.255.255.255")
WIRED = Interface(name="eth0", index=2, up=True, ipv4="10.0.0.1", broadcast="10.0.0.255", link_local="fe80::1")
WIRELESS = Interface(name="wlan0", index=3, up=True, link_local="fe80::2")
DOWN = Interface(name="eth1", index=4, up=False, ipv4="10.0.1.1", broadcast="10.0.1.255")
BARE = Interface(name="dummy0", index=5, up=True)
DEAF = Interface(name="tun0", index=6, up=True, multicast=False, ipv4="10.8.0.1")


@pytest.mark.parametrize(
    ("there", "patterns", "used"),
    [
        ([LO], [], [LO]),
        ([LO, DOWN, BARE, DEAF], [], [LO]),
        ([LO, WIRED, WIRELESS], [], [WIRED, WIRELESS]),
        ([LO, WIRED, WIRELESS], ["lo"], [LO]),
        ([LO, WIRED, WIRELESS], ["wlan*", "lo"], [LO, WIRELESS]),
        ([LO, WIRED, DOWN], ["eth[1-9]"], []),
        ([DOWN], [], []),
    ],
)
def test_used_are_those_that_are_named_or_all_but_loopback(
    there: list[Interface], patterns: list[str], used: list[Interface]
) -> None:
    assert selected(there, patterns) == used


@pytest.mark.skipif(not hasattr(socket, "if_nametoindex"), reason="this system does not number interfaces")
def test_this_machine_has_loopback_which_can_multicast_and_broadcast() -> None:
    (loopback,) = [each for each in snapshot() if each.loopback]
    assert loopback.ipv4 == "127.0.0.1"
    assert loopback.broadcast == "127.255.255.255"
    assert loopback.usable
    assert loopback.link_local == ""


@pytest.mark.parametrize("told", [[], [None], ["10.1.255.255"], ["0.0.0.0"], ["10.1.2.3"]])  # noqa: S104 - it is told
def test_what_the_system_says_is_understood(monkeypatch: pytest.MonkeyPatch, told: list[str | None]) -> None:
    def entry(family: int, address: str, netmask: str | None = None, broadcast: str | None = None) -> SimpleNamespace:
        return SimpleNamespace(family=family, address=address, netmask=netmask, broadcast=broadcast)

    stats = {
        "eth0": SimpleNamespace(isup=True, flags="up,broadcast,running,multicast", mtu=1500),
        "ppp0": SimpleNamespace(isup=True, flags="up,pointopoint,running,multicast", mtu=1492),
        "gone0": SimpleNamespace(isup=True, flags="up", mtu=1500),
        "Ethernet": SimpleNamespace(isup=True, flags="", mtu=None),
    }
    addresses = {
        "eth0": [
            entry(socket.AF_INET, "10.1.2.3", "255.255.0.0", *told),
            entry(socket.AF_INET6, "fd00::2"),
            entry(socket.AF_INET6, "fe80::3%eth0"),
            entry(-1, "02:00:00:00:00:01"),
        ],
        "eth0:1": [entry(socket.AF_INET, "10.9.9.9", "255.255.255.0", "10.9.9.255")],
        "ppp0": [entry(socket.AF_INET, "10.8.0.1", "255.255.255.255")],
        "Ethernet": [entry(socket.AF_INET, "192.168.0.2", "255.255.255.254")],
    }
    numbers = {"eth0": 4, "ppp0": 2, "Ethernet": 3}

    def number(name: str) -> int:
        if name not in numbers:
            raise OSError("no such device")
        return numbers[name]

    monkeypatch.setattr(psutil, "net_if_stats", lambda: stats)
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: addresses)
    monkeypatch.setattr(socket, "if_nametoindex", number)
    assert snapshot() == [
        Interface(name="ppp0", index=2, up=True, ipv4="10.8.0.1", addresses=("10.8.0.1",), mtu_bytes=1492),
        Interface(name="Ethernet", index=3, up=True, ipv4="192.168.0.2", addresses=("192.168.0.2",)),
        Interface(
            name="eth0",
            index=4,
            up=True,
            ipv4="10.1.2.3",
            broadcast="10.1.255.255",
            link_local="fe80::3",
            addresses=("10.1.2.3", "fd00::2", "fe80::3", "10.9.9.9"),
            mtu_bytes=1500,
        ),
    ]


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("10.0.0.5:40001", ("10.0.0.5", 40_001)),
        ("[::1]:1", ("::1", 1, 0, 0)),
        ("[fe80::1%lo]:65535", ("fe80::1", 65_535, 0, 1)),
        ("[FE80:0::1%1]:9", ("fe80::1", 9, 0, 1)),
    ],
)
def test_addresses_are_written_and_read(text: str, address: tuple[str, int] | tuple[str, int, int, int]) -> None:
    assert socket_address(text) == address
    written = address_text(address, {1: "lo"})
    assert socket_address(written) == address
    assert address_text(socket_address(written), {1: "lo"}) == written


@pytest.mark.parametrize(
    "text", ["", "10.0.0.5", "10.0.0.5:", "10.0.0.5:0", "10.0.0.5:65536", "::1:5", ":5", "a:b", "a:٣"]
)
def test_other_texts_are_no_addresses(text: str) -> None:
    with pytest.raises(ValueError, match="not an address"):
        split(text)


def test_a_name_is_no_number_and_an_interface_has_to_be_there() -> None:
    assert literal("localhost", 5) is None
    assert literal("10.0.0", 5) is None
    with pytest.raises(ValueError, match="a name"):
        socket_address("localhost:5")
    with pytest.raises(OSError, match="interface"):
        socket_address("[fe80::1%gone0]:5")
