"""Real sockets: on loopback, and in network namespaces with other machines and changing links."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import logging
import os
import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.copies import copy, python
from tests.support.waiting import eventually
from tools.netns import Net

from carrypost.errors import ConfigError, NodeError
from carrypost.node.settings import UdpSettings
from carrypost.node.udp import channels as udp_channels
from carrypost.node.udp import sockets
from carrypost.node.udp.channels import Channel, ChannelPlan, Interface, Means, Outlet, Target, UdpTraffic, cover
from carrypost.node.udp.udp import Udp
from tools import netns

DEADLINE_S = 20.0
AGENT = Path(__file__).parents[1] / "support" / "udp_agent.py"
in_namespaces = pytest.mark.skipif(bool(netns.available()), reason=f"no network namespaces: {netns.available()}")


def free_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("", 0))
        port: int = probe.getsockname()[1]
        return port


class Node(Udp):
    """Sockets on loopback, and the datagrams that arrived."""

    def __init__(self, **settings: object) -> None:
        self.came: list[tuple[str, bytes]] = []
        self.batches: list[int] = []
        given: dict[str, Any] = {"interfaces": ("lo",), **settings}
        options = {name: given.pop(name) for name in ("magic", "datagram_bytes_max") if name in given}
        super().__init__(UdpSettings(**given), self._keep, **options)

    def _keep(self, batch: list[tuple[str, bytes]]) -> None:
        self.came += batch
        self.batches.append(len(batch))

    @property
    def address(self) -> str:
        return self.addresses[0]

    @property
    def counters(self) -> dict[str, Any]:
        counters = self.status()["counters"]
        assert isinstance(counters, dict)
        return counters


@contextlib.asynccontextmanager
async def nodes(*settings: dict[str, Any], port: int = 0) -> AsyncIterator[list[Node]]:
    port = port or free_port()
    made = [Node(port=port, **each) for each in settings]
    try:
        for each in made:
            await each.open()
        yield made
    finally:
        for each in made:
            await each.close()


async def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not come about in time"
        await asyncio.sleep(0.005)


def run(scene: Coroutine[Any, Any, None]) -> None:
    asyncio.run(scene)


# --- on loopback ---------------------------------------------------------------------------------------------


def test_what_interfaces_carry_is_known_unless_peers_may_be_behind_routers() -> None:
    async def scene() -> None:
        async with nodes({}, {"peers": ("127.0.0.1:9",)}) as (a, b):
            assert (a.datagram_bytes, b.datagram_bytes) == (1_452, 0)

    run(scene())


def test_an_announcement_reaches_every_other_node_once_and_tells_where_to_answer() -> None:
    async def scene() -> None:
        async with nodes({}, {}, {}) as (a, b, c):
            a.send([b"one", b"two"], None, announcing=True)
            await until(lambda: len(b.came) >= 2 and len(c.came) >= 2)
            await until(lambda: b.counters["duplicates"] == c.counters["duplicates"] == 2)
            assert b.came == c.came == [(a.address, b"one"), (a.address, b"two")]
            b.send([b"to you"], a.address, announcing=False)
            await until(lambda: a.came)
            assert a.came == [(b.address, b"to you")]
            await until(lambda: a.counters["echoes"] == 4)
            assert len(c.came) == 2

    run(scene())


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets a program filter its own sockets")
def test_the_system_drops_what_does_not_begin_with_the_magic_on_every_socket() -> None:
    async def scene() -> None:
        async with nodes({}, {"magic": b"CP"}) as (a, b):
            for to in (None, b.address):
                a.send([b"", b"C", b"noise", b"PC rubbish", b"CP", b"CP and more"], to, announcing=to is None)
                await until(lambda: len(b.came) >= 2)
                assert b.came == [(a.address, b"CP"), (a.address, b"CP and more")]
                b.came.clear()
            await until(lambda: b.counters["duplicates"] == 2)
            assert b.counters["received"] == 6

    run(scene())


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets a program filter its own sockets")
def test_the_system_drops_what_a_shunned_peer_sends_until_its_time_is_over_and_nothing_else() -> None:
    async def scene() -> None:
        async with nodes({}, {}, {"magic": b"CP"}) as (a, b, c):
            for each in (a, b):
                each.send([b"CP I am " + each.address.encode()], None, announcing=True)  # The same would be one peer.
            await until(lambda: len(c.came) == 2)
            c.came.clear()
            c.shun({a.address: 0.5})
            received = c.counters["received"]
            a.send([b"CP by all means"], None, announcing=True)
            a.send([b"CP to you"] * 50, c.address, announcing=False)
            b.send([b"CP from b"], c.address, announcing=False)
            await until(lambda: c.came)
            assert c.came == [(b.address, b"CP from b")]
            assert c.counters["received"] == received + 1
            c.came.clear()

            async def heard_again() -> None:
                while not c.came:
                    a.send([b"CP it is over"], c.address, announcing=False)
                    await asyncio.sleep(0.05)

            await asyncio.wait_for(heard_again(), DEADLINE_S)
            assert c.came[0] == (a.address, b"CP it is over")

    run(scene())


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets a program filter its own sockets")
def test_a_filter_knows_sources_of_both_families_by_address_and_port(family: socket.AddressFamily) -> None:
    loopback = "127.0.0.1" if family == socket.AF_INET else "::1"
    with contextlib.ExitStack() as exits:
        ear, *mouths = (exits.enter_context(socket.socket(family, socket.SOCK_DGRAM)) for _ in range(4))
        for each in (ear, *mouths):
            each.bind((loopback, 0))
        ear.settimeout(DEADLINE_S)

        def heard(*shunned: socket.socket) -> list[bytes]:
            sockets.attach_filter(ear, b"CP", [each.getsockname() for each in shunned])
            for number, each in enumerate(mouths):
                each.sendto(b"CP%d" % number, ear.getsockname())
                each.sendto(b"XX%d" % number, ear.getsockname())
            sockets.attach_filter(ear, b"")
            mouths[0].sendto(b"end", ear.getsockname())
            return list(iter(lambda: ear.recv(100), b"end"))

        assert heard() == [b"CP0", b"CP1", b"CP2"]
        assert heard(mouths[1]) == [b"CP0", b"CP2"]
        assert heard(mouths[2], mouths[0]) == [b"CP1"]
        assert heard(*mouths) == []


def test_a_datagram_that_is_too_long_is_cut_off_one_byte_behind_the_limit() -> None:
    async def scene() -> None:
        async with nodes({}, {"datagram_bytes_max": 1_000}) as (a, b):
            a.send([b"x" * 1_000, b"x" * 1_001, b"x" * 20_000], b.address, announcing=False)
            await until(lambda: len(b.came) == 3)
            assert [len(datagram) for _, datagram in b.came] == [1_000, 1_001, 1_001]

    run(scene())


def test_each_means_alone_is_enough_and_other_groups_are_not_heard() -> None:
    async def scene(means: str, **elsewhere: object) -> None:
        off = {name: name == means for name in ("ipv4_multicast", "ipv4_broadcast", "ipv6_multicast")}
        async with nodes(off, off, off | elsewhere) as (a, b, other):
            a.send([b"hello"], None, announcing=True)
            await until(lambda: b.came)
            assert b.came == [(a.address, b"hello")]
            assert bool(other.came) != bool(elsewhere)

    run(scene("ipv4_multicast", group_v4="239.255.67.81"))
    run(scene("ipv4_broadcast"))


def test_broadcasts_that_announce_nothing_go_only_where_somebody_is_heard_and_by_one_means() -> None:
    async def scene() -> None:
        async with nodes({}, {}) as (a, b):
            a.send([b"nobody is there"], None, announcing=False)
            assert a.counters["sent"] == 0
            b.send([b"I am"], None, announcing=True)
            await until(lambda: a.came)
            a.send([b"data"], None, announcing=False)
            assert a.counters["sent"] == 1
            await until(lambda: b.came)
            assert b.came == [(a.address, b"data")]

    run(scene())


def test_a_static_peer_is_reached_by_unicast_though_all_means_are_off() -> None:
    async def scene() -> None:
        off = dict.fromkeys(("ipv4_multicast", "ipv4_broadcast", "ipv6_multicast"), False)
        port = free_port()
        fixed = {**off, "unicast_port": port, "peers": ("127.0.0.1:9",)}
        async with nodes(fixed, {**off, "peers": (f"localhost:{port}",)}) as (a, b):

            def met() -> bool:
                b.send([b"hello"], None, announcing=True)  # The name has to be resolved first.
                return bool(a.came)

            await until(met)
            assert a.address == f"127.0.0.1:{port}"
            assert set(a.came) == {(b.address, b"hello")}
            b.send([b"data"], None, announcing=False)
            a.send([b"answer"], b.address, announcing=False)
            await until(lambda: b.came)
            assert b.came == [(a.address, b"answer")]
            assert (b.address, b"data") not in a.came  # b had not heard it then
            b.send([b"data"], None, announcing=False)
            await until(lambda: (b.address, b"data") in a.came)

    run(scene())


def test_a_static_peer_that_is_heard_on_the_link_gets_broadcasts_once() -> None:
    async def scene() -> None:
        port = free_port()
        async with nodes({"unicast_port": port}, {"peers": (f"127.0.0.1:{port}",)}) as (a, b):
            a.send([b"hello"], None, announcing=True)
            await until(lambda: b.came)
            a.send([b"to you"], b.address, announcing=False)
            await until(lambda: (a.address, b"to you") in b.came)
            sent = b.counters["sent"]
            b.send([b"data"], None, announcing=False)
            assert b.counters["sent"] == sent + 1

    run(scene())


def test_static_peers_that_cannot_be_found_are_said_once_and_tried_again(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("carrypost.node.udp.udp.RETRY_S", 0.01)

    async def scene() -> None:
        # A name that is too long fails without anybody being asked.
        async with nodes({"peers": (f"{'x' * 70}:17232", "[fe80::1%gone0]:17232")}) as (a,):
            await until(lambda: a.counters["errors"].get("resolve", 0) >= 4)
            a.send([b"hello"], None, announcing=True)

    with caplog.at_level(logging.WARNING, "carrypost.udp"):
        run(scene())
    assert sorted(record.getMessage().split()[2] for record in caplog.records) == [
        "[fe80::1%gone0]:17232",
        f"{'x' * 70}:17232",
    ]


def test_the_gate_decides_who_is_heard_and_can_be_turned_at_any_time() -> None:
    async def scene() -> None:
        async with nodes({"hear": ()}, {}, {}) as (a, b, c):
            assert a.intake.gate == frozenset()
            b.send([b"1"], a.address, announcing=False)
            await until(lambda: a.counters["gated"] == 1)
            a.intake.gate = frozenset({b.address})
            for each in (b, c):
                each.send([b"2"], None, announcing=True)
            await until(lambda: a.counters["gated"] == 3 and a.counters["duplicates"] == 1)
            assert a.came == [(b.address, b"2")]
            a.intake.gate = None
            c.send([b"3"], a.address, announcing=False)
            await until(lambda: len(a.came) == 2)
            assert a.came[1] == (c.address, b"3")

    run(scene())


def test_a_burst_comes_whole_and_in_batches() -> None:
    async def scene() -> None:
        async with nodes({}, {}) as (a, b):
            burst = [b"%d" % number for number in range(1_000)]
            a.send(burst, b.address, announcing=False)
            await until(lambda: len(b.came) == 1_000)
            assert [datagram for _, datagram in b.came] == burst
            assert max(b.batches) == 128

    run(scene())


def test_a_loop_that_cannot_watch_sockets_reads_them_all_the_same() -> None:
    class Unwatching(asyncio.SelectorEventLoop):
        def add_reader(self, *_given: object) -> None:
            raise NotImplementedError

        add_writer = add_reader  # type: ignore[assignment]

    async def scene() -> None:
        async with nodes({}, {}) as (a, b):
            a.send([b"hello"], None, announcing=True)
            await until(lambda: b.came)
            b.send([b"%d" % number for number in range(200)], a.address, announcing=False)
            await until(lambda: len(a.came) == 200)
            assert b.came == [(a.address, b"hello")]

    with asyncio.Runner(loop_factory=Unwatching) as runner:
        runner.run(scene())


def test_sending_never_raises_whatever_the_address() -> None:
    async def scene() -> None:
        async with nodes({}) as (a,):
            for to in ("", "nonsense", "10.0.0.5", "[fe80::1%gone0]:1", "[fe80::1%99999999999]:1", "name:5"):
                a.send([b"x"], to, announcing=False)
            a.send([bytes(70_000)], "127.0.0.1:9", announcing=False)
            assert a.counters["errors"] == {"address": 6, "EMSGSIZE": 1}
            assert a.counters["sent"] == 0
        a.send([b"x"], None, announcing=True)
        a.send([b"x"], "127.0.0.1:9", announcing=False)

    run(scene())


def test_status_is_json_and_says_what_works() -> None:
    async def scene() -> None:
        async with nodes({}, {}) as (a, b):
            a.send([b"hello"], None, announcing=True)
            await until(lambda: b.counters["duplicates"])
            (interface,) = json.loads(json.dumps(b.status()))["interfaces"]
            assert interface["name"] == "lo"
            by_means = {each.pop("means"): each for each in interface["means"]}
            assert by_means["ipv4-multicast"] == {"usable": True, "error": None, "heard": 1, "peers": 1}
            assert by_means["ipv4-broadcast"] == {"usable": True, "error": None, "heard": 1, "peers": 1}
            assert not by_means["ipv6-multicast"]["usable"]
            assert by_means["ipv6-multicast"]["error"] == "no IPv6 address of the link"

    run(scene())


def test_several_nodes_may_have_the_shared_port_as_their_own_only_one_after_the_other() -> None:
    async def scene() -> None:
        port = free_port()
        async with nodes({"unicast_port": port}, {}, port=port) as (a, b):
            b.send([b"hello"], None, announcing=True)
            a.send([b"hello from a"], None, announcing=True)
            await until(lambda: a.came and b.came)
            b.send([b"to you"], a.address, announcing=False)
            await until(lambda: len(a.came) == 2)
            # Broadcasts came to its own socket as well, and not to the host.
            assert a.came == [(b.address, b"hello"), (b.address, b"to you")]
            assert b.came == [(f"127.0.0.1:{port}", b"hello from a")]
            third = Node(port=port, unicast_port=port)
            with pytest.raises(NodeError, match=f"UDP port {port} .*unicast_port.* is in use"):
                await third.open()

    run(scene())


# --- what a machine may refuse -------------------------------------------------------------------------------


def opened(**settings: object) -> None:
    async def scene() -> None:
        node = Node(**settings)
        try:
            await node.open()
        finally:
            await node.close()

    run(scene())


def test_an_own_port_that_is_taken_is_an_error_that_says_which_and_what_to_do() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", 0))
        port = other.getsockname()[1]
        with pytest.raises(NodeError, match=rf"UDP port {port} \(setting udp.unicast_port\) is in use.*choose another"):
            opened(port=free_port(), unicast_port=port)


def test_a_shared_port_that_somebody_does_not_share_is_an_error_that_says_which_and_what_to_do() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind(("", 0))
        port = other.getsockname()[1]
        with pytest.raises(NodeError, match=rf"UDP port {port} \(setting udp.port\) is in use.*stop that program"):
            opened(port=port)


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only root can become somebody without rights")
@pytest.mark.parametrize("settings", [{"port": 700}, {"unicast_port": 700}])
def test_a_port_for_the_administrator_is_an_error_that_says_so(settings: dict[str, int]) -> None:
    program = (
        "import asyncio, os, sys; sys.path[:0] = {path}; from carrypost.node.udp.udp import Udp;"
        "from carrypost.node.settings import UdpSettings; import carrypost.errors; os.setuid(65534);"
        "asyncio.run(Udp(UdpSettings(interfaces=('lo',), **{settings}), print).open())"
    ).format(path=sys.path, settings={"port": free_port()} | settings)
    start = Path("/proc/sys/net/ipv4/ip_unprivileged_port_start")
    if start.exists() and int(start.read_text()) <= 700:
        pytest.skip("this system gives all ports to everybody")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)  # noqa: S603
    assert "NodeError: no permission for UDP port 700" in done.stderr
    assert "from 1024 up" in done.stderr


def test_a_node_that_could_reach_nobody_is_a_mistake_in_the_settings() -> None:
    with pytest.raises(ConfigError, match="all means of discovery are off"):
        opened(ipv4_multicast=False, ipv4_broadcast=False, ipv6_multicast=False)


@pytest.mark.parametrize("peer", ["10.0.0.5", "fe80::1:17232", "name:", "name:0", "name:70000", ":17232", "[fe80::1]"])
def test_a_peer_that_is_no_address_is_a_mistake_in_the_settings(peer: str) -> None:
    with pytest.raises(ConfigError, match=r"udp\.peers"):
        opened(peers=(peer,))


def test_a_machine_without_ipv6_is_no_trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "has_ipv6", False)

    async def scene() -> None:
        async with nodes({}, {}) as (a, b):
            a.send([b"hello"], None, announcing=True)
            await until(lambda: b.came)

    run(scene())


def test_no_interface_is_one_warning_and_not_an_error(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[Interface] = []

    def look() -> list[Interface]:
        looks.append(Interface(name=f"fake{len(looks)}", index=9, up=True))
        return looks[-1:]

    monkeypatch.setattr(udp_channels, "snapshot", look)

    async def scene() -> None:
        async with nodes({"interfaces": ("nothing*",), "poll_s": 0.05}) as (a,):
            a.send([b"hello"], None, announcing=True)
            assert a.addresses == []
            await until(lambda: len(looks) > 3)

    with caplog.at_level(logging.WARNING, "carrypost.udp"):
        run(scene())
    assert [record.getMessage() for record in caplog.records] == [
        "no usable interface called nothing*; waiting for one; there are: fake0"
    ]


def test_opening_that_fails_leaves_no_socket_behind() -> None:
    folder = Path("/proc/self/fd")
    if not folder.exists():
        pytest.skip("only Linux shows the open files of a process")
    before = len(list(folder.iterdir()))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind(("", 0))
        with pytest.raises(NodeError):
            opened(port=free_port(), unicast_port=other.getsockname()[1])
    assert len(list(folder.iterdir())) == before


# --- a socket that takes nothing -----------------------------------------------------------------------------


class Stuck:
    """Stands in for a socket whose buffer is full until it is said not to be."""

    def __init__(self, error: int) -> None:
        self.error = error
        self.full = True
        self.sent: list[bytes] = []
        self.ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)

    def fileno(self) -> int:
        return self.ends[0].fileno()

    def sendto(self, datagram: bytes, _address: object) -> None:
        if self.full:
            raise OSError(self.error, os.strerror(self.error))
        self.sent.append(datagram)


@pytest.mark.parametrize("error", [errno.EAGAIN, errno.ENOBUFS])
def test_what_a_full_socket_does_not_take_waits_in_order_and_beyond_a_bound_is_dropped(
    error: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(udp_channels, "QUEUE_BYTES_MAX", 10)

    async def scene() -> None:
        stuck, traffic = Stuck(error), UdpTraffic()
        outlet = Outlet(stuck, traffic, asyncio.get_running_loop())  # type: ignore[arg-type]
        target = Target(("127.0.0.1", 9))
        assert outlet.send([b"1234", b"5678"], target) == ""
        outlet.send([b"too much"], target)
        stuck.full = False
        outlet.send([b"9"], target)
        await until(lambda: len(stuck.sent) == 3)
        outlet.send([b"direct"], target)
        assert stuck.sent == [b"1234", b"5678", b"9", b"direct"]
        assert traffic.counters["send_queue_dropped"] == 1
        assert traffic.counters["sent"] == 4
        outlet.close()
        for end in stuck.ends:
            end.close()

    run(scene())


# --- which means are needed ----------------------------------------------------------------------------------

FOUR, SIX, WIDE = Means.IPV4_MULTICAST, Means.IPV6_MULTICAST, Means.IPV4_BROADCAST


@pytest.mark.parametrize(
    ("heard", "needed"),
    [
        ({}, []),
        ({WIDE: "a"}, [WIDE]),
        ({WIDE: "a", SIX: "a"}, [SIX]),
        ({FOUR: "ab", SIX: "ab", WIDE: "ab"}, [FOUR]),
        ({FOUR: "a", SIX: "ab"}, [SIX]),
        ({FOUR: "a", SIX: "b", WIDE: "ab"}, [WIDE]),
        ({FOUR: "ac", SIX: "bc", WIDE: "c"}, [FOUR, SIX]),
        ({FOUR: "a", SIX: "b", WIDE: "c"}, [FOUR, SIX, WIDE]),
    ],
)
def test_as_few_means_as_reach_all_who_are_heard(heard: dict[Means, str], needed: list[Means]) -> None:
    channels = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as unused:
        for means in reversed(Means):
            group = "ff12::4350" if means is SIX else "239.255.67.80"
            channels.append(Channel(ChannelPlan(means, "eth0", 1, "10.0.0.1", group, 5_000), unused, unused.close))
            for peer in heard.get(means, ""):
                channels[-1].hears(peer, 0.0)
        assert [each.plan.means for each in cover(channels)] == needed


# --- in namespaces -------------------------------------------------------------------------------------------


class Agent:
    """`Udp` in another namespace."""

    def __init__(self, net: Net, namespace: str, **settings: object) -> None:
        self.came: list[tuple[str, str]] = []
        self.logs: list[str] = []
        self._answers: queue.Queue[Any] = queue.Queue()
        program, pipe = python(AGENT, json.dumps({"poll_s": 0.1, **settings})), subprocess.PIPE
        self._program = copy(program, net=net, namespace=namespace, stdin=pipe, stdout=pipe)
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        self.addresses: list[str] = self._answers.get(timeout=DEADLINE_S)

    def _read(self) -> None:
        assert self._program.stdout is not None
        for line in self._program.stdout:
            said = json.loads(line)
            if "received" in said:
                self.came += [(peer, text) for peer, text in said["received"]]
            elif "log" in said:
                self.logs.append(said["log"])
            else:
                self._answers.put(said["answer"])

    def _do(self, **command: object) -> object:
        assert self._program.stdin is not None
        self._program.stdin.write(json.dumps(command).encode() + b"\n")
        self._program.stdin.flush()
        return self._answers.get(timeout=DEADLINE_S)

    def send(self, *datagrams: str, to: str | None = None, announcing: bool = False) -> None:
        self._do(do="send", datagrams=datagrams, to=to, announcing=announcing)

    def status(self) -> dict[str, Any]:
        status = self._do(do="status")
        assert isinstance(status, dict)
        return status

    def means(self) -> dict[str, dict[str, Any]]:
        """By interface and means."""
        return {
            f"{interface['name']} {each['means']}": each
            for interface in self.status()["interfaces"]
            for each in interface["means"]
        }

    @property
    def usable(self) -> set[str]:
        return {name for name, means in self.means().items() if means["usable"]}

    def close(self) -> None:
        assert self._program.stdin is not None
        self._program.stdin.close()
        assert self._program.wait(DEADLINE_S) == 0
        self._reader.join()


@pytest.fixture
def net() -> Iterator[Net]:
    with Net() as made:
        yield made


@contextlib.contextmanager
def agents(net: Net, *namespaces: str, **settings: object) -> Iterator[list[Agent]]:
    made = [Agent(net, each, **settings) for each in namespaces]
    yield made
    for each in made:
        each.close()


THREE = {f"eth0 {means}" for means in Means}


@in_namespaces
def test_a_node_heard_by_three_means_and_two_families_is_one_peer(net: Net) -> None:
    net.add("a", "b")
    net.switch("a", "b")
    with agents(net, "a", "b") as (a, b):
        assert a.usable == b.usable == THREE
        assert [address.rpartition(":")[0] for address in a.addresses] == ["10.77.1.1", "[fe80::1:1%eth0]"]
        a.send("hello", announcing=True)
        eventually(lambda: all(b.means()[each]["heard"] == 1 for each in THREE))
        assert b.came == [(a.addresses[0], "hello")]
        assert {b.means()[each]["peers"] for each in THREE} == {1}
        b.send("answer", to=a.addresses[0])
        b.send("data for all")
        eventually(lambda: len(a.came) == 2)
        assert a.came == [(b.addresses[0], "answer"), (b.addresses[0], "data for all")]
        b.send("from its other address", to=a.addresses[1])
        eventually(lambda: len(a.came) == 3)
        # b had announced nothing yet, so a could not know whose that is; now it does.
        assert a.came[2] == (b.addresses[1], "from its other address")
        b.send("hello", announcing=True)
        eventually(lambda: a.status()["counters"]["duplicates"] == 2)
        b.send("again", to=a.addresses[1])
        eventually(lambda: len(a.came) == 5)
        assert a.came[4] == (b.addresses[0], "again")
        assert a.status()["counters"]["echoes"] > 0
        assert a.status()["counters"]["errors"] == {}


@in_namespaces
@pytest.mark.parametrize(("family", "number"), [("v4", 0), ("v6", 1)])
def test_one_family_alone_is_enough(net: Net, family: str, number: int) -> None:
    net.add("a", "b")
    net.cable("a", "b", v4=family == "v4", v6=family == "v6")
    with agents(net, "a", "b") as (a, b):
        (mine,) = a.addresses
        a.send("hello", announcing=True)
        eventually(lambda: b.came)
        assert b.came == [(mine, "hello")]
        b.send("answer", to=mine)
        eventually(lambda: a.came)
        assert a.came == [(b.addresses[0], "answer")]
        assert len([each for each in THREE if ("ipv6" in each) == bool(number)]) == len(a.usable)


@in_namespaces
def test_data_for_several_uses_the_means_that_each_of_them_is_heard_by(net: Net) -> None:
    net.add("a", "b", "c")
    net.switch("a", "b", "c")
    with (
        agents(net, "a") as (a,),
        agents(net, "b", ipv4_multicast=False, ipv4_broadcast=False) as (b,),
        agents(net, "c", ipv4_multicast=False, ipv6_multicast=False) as (c,),
    ):
        b.send("I am b", announcing=True)
        c.send("I am c", announcing=True)
        eventually(lambda: len(a.came) == 2)
        before = a.status()["counters"]["sent"]
        a.send("data")
        eventually(lambda: b.came and c.came)
        assert b.came == [(a.addresses[1], "data")]
        assert c.came == [(a.addresses[0], "data")]
        assert a.status()["counters"]["sent"] == before + 2


@in_namespaces
def test_interfaces_appear_and_vanish_and_loopback_serves_while_there_is_no_other(net: Net) -> None:
    net.add("a", "b")
    with agents(net, "a", "b") as (a, b):
        assert a.usable == {"lo ipv4-multicast", "lo ipv4-broadcast"}
        net.cable("a", "b")
        eventually(lambda: a.usable == b.usable == THREE)
        a.send("hello", announcing=True)
        eventually(lambda: b.came)
        net.ip("a", ["link del eth0"])
        eventually(lambda: a.usable == b.usable == {"lo ipv4-multicast", "lo ipv4-broadcast"})
        net.ip("a", ["link add eth0 type veth peer name eth1"])
        net.ip("a", ["addr add 10.5.0.1/24 dev eth0", "link set eth0 up", "link set eth1 up"])
        eventually(lambda: {"eth0 ipv4-multicast", "eth0 ipv4-broadcast"} <= a.usable)
        assert not any("lo" in each for each in a.usable)
        assert a.logs[:5] == ["used: lo", "no longer used: lo", "used: eth0", "no longer used: eth0", "used: lo"]


@in_namespaces
def test_an_address_that_changes_is_the_one_that_is_sent_from(net: Net) -> None:
    net.add("a", "b")
    net.cable("a", "b", v6=False)
    with agents(net, "a", "b") as (a, b):
        port = a.addresses[0].partition(":")[2]
        a.send("one", announcing=True)
        eventually(lambda: b.came)
        net.ip("a", ["addr del 10.77.1.1/24 dev eth0"])
        eventually(lambda: a.status()["addresses"] in ([], ["127.0.0.1:" + port]))
        net.ip("a", ["addr add 10.77.1.9/24 dev eth0"])
        eventually(lambda: a.status()["addresses"] == ["10.77.1.9:" + port])
        a.send("two", announcing=True)
        eventually(lambda: len(b.came) == 2)
        assert b.came == [("10.77.1.1:" + port, "one"), ("10.77.1.9:" + port, "two")]
        b.send("answer", to="10.77.1.9:" + port)
        eventually(lambda: a.came)
        assert a.came == [(b.addresses[0], "answer")]


@in_namespaces
def test_broadcasts_go_to_the_network_that_an_interface_is_in_now(net: Net) -> None:
    net.add("a", "b")
    net.cable("a", "b", v6=False)
    with agents(net, "a", "b", ipv4_multicast=False, ipv6_multicast=False) as (a, b):
        for name, address in (("a", "10.5.0.1"), ("b", "10.5.0.2")):
            # The new one first, so that the interface is never without.
            net.ip(name, [f"addr add {address}/16 dev eth0", f"addr del 10.77.1.{address[-1]}/24 dev eth0"])
        eventually(lambda: a.status()["addresses"][0].startswith("10.5.0.1:"))
        eventually(lambda: b.status()["addresses"][0].startswith("10.5.0.2:"))
        a.send("hello", announcing=True)
        eventually(lambda: b.came)
        assert b.came == [(a.status()["addresses"][0], "hello")]


@in_namespaces
def test_a_peer_that_is_first_heard_by_one_family_needs_one_means_once_it_is_known_by_both(net: Net) -> None:
    net.add("a", "b")
    net.cable("a", "b")
    with agents(net, "a", "b") as (a, b):
        net.tc("a", "qdisc", "add", "dev", "eth0", "clsact")
        only_v6 = "4,40 0 0 0,21 1 0 13107,6 0 0 2,6 0 0 0"  # 0x3333: Ethernet addresses of IPv6 multicast
        net.tc("a", "filter", "add", "dev", "eth0", "ingress", "bpf", "da", "bytecode", only_v6)
        b.send("one", announcing=True)
        eventually(lambda: a.came)
        net.tc("a", "filter", "del", "dev", "eth0", "ingress")
        b.send("two", announcing=True)
        eventually(lambda: a.status()["counters"]["duplicates"] == 2)
        sent = a.status()["counters"]["sent"]
        a.send("data")
        assert a.status()["counters"]["sent"] == sent + 1


@in_namespaces
def test_own_echoes_from_an_address_that_is_new_are_still_echoes(net: Net) -> None:
    net.add("a", "b")
    net.cable("a", "b", v6=False)
    with agents(net, "a", poll_s=3_600) as (a,):
        net.ip("a", ["addr del 10.77.1.1/24 dev eth0", "addr add 10.77.1.9/24 dev eth0"])
        a.send("hello", announcing=True)  # Broadcast still works, from the new address; nobody has looked yet.
        eventually(lambda: a.status()["counters"]["echoes"] >= 1)
        assert a.came == []


@in_namespaces
def test_a_node_on_two_links_is_one_peer_and_answers_find_the_link_that_is_left(net: Net) -> None:
    net.add("a", "b")
    first, second = net.cable("a", "b"), net.cable("a", "b")
    with agents(net, "a", "b") as (a, b):
        a.send("hello", announcing=True)
        b.send("hello", announcing=True)
        eventually(lambda: b.status()["counters"]["duplicates"] == 5)
        assert len(b.came) == 1
        name = b.came[0][0]
        end = {first.ends[0].addresses[0].split("/")[0]: first}.get(name.split(":")[0], second).ends[1]
        end.set(up=False)
        eventually(lambda: not any(each.startswith(end.interface) for each in b.usable))
        b.send("by the other link", to=name)
        eventually(lambda: "by the other link" in {text for _, text in a.came})


@in_namespaces
def test_names_of_interfaces_may_be_patterns(net: Net) -> None:
    net.add("a", "b")
    net.cable("a", "b")
    net.cable("a", "b")
    with agents(net, "a", interfaces=["e*1", "lo"]) as (a,):
        assert {each.split()[0] for each in a.usable} == {"eth1", "lo"}


def test_peers_are_bounded() -> None:
    with pytest.raises(ConfigError, match="at most"):
        opened(peers=tuple(f"10.0.0.1:{port}" for port in range(1, sockets.PEERS_MAX + 2)))
