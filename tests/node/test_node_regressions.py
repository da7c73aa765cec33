"""Faults that were found in a real node by reading it: each test failed before its fault was mended."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import resource
import socket
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from benchmarks._direct import Direct
from tests.support.loopback import apart
from tests.support.nodes import QUICK, scene, until

from carrypost import testing
from carrypost.cli import _process, app, serve
from carrypost.cli._settings import NodeCommand
from carrypost.config import Limits, Settings
from carrypost.errors import ConfigError, ResourceAllocationException
from carrypost.gossip.holdings.cache import CopyState
from carrypost.host import Host
from carrypost.log.events import Confirmed, Delivered, Delivery
from carrypost.log.journal import SEEN, Key
from carrypost.node import driver as drivers
from carrypost.node.folder import NodeFolder
from carrypost.node.runtime import Node
from carrypost.node.settings import UdpSettings, parse
from carrypost.node.udp import channels, sockets
from carrypost.node.udp.channels import Outlet, Target, UdpTraffic
from carrypost.node.udp.sockets import StaticPeers
from carrypost.node.udp.udp import Udp
from carrypost.security.identity import Identity

S = 1_000_000
WITHIN_S = 10.0


@asynccontextmanager
async def running(folder: Path, **keywords: object) -> AsyncIterator[Node]:
    settings = parse("", {}, {**QUICK, "udp": apart(), **keywords, "node.data": str(folder)})
    async with Node(settings) as node:
        yield node


async def true(condition: Callable[[], object]) -> None:
    async def ask() -> object:
        return condition()

    await until(ask, WITHIN_S)


# --- what was confirmed never comes again ----------------------------------------------------------------------


def test_a_delivery_is_noted_as_confirmed_also_if_its_copy_gave_way_before() -> None:
    settings = Settings(security="off", cache_messages_max=3, limits=Limits(unconfirmed_max=1))
    host = Host(Identity.plain("anna"), settings, random.Random(1))
    now = 1_000 * S
    got: list[Delivery] = []
    kept: set[Key] = set()
    confirmed: list[bytes] = []

    def write() -> None:
        while (batch := host.changes()) is not None:
            kept.difference_update(batch.deletes)
            kept.update(batch.puts)
            host.durable(batch.serial, now)
        for event in host.events():
            match event:
                case Delivered(deliveries):
                    got.extend(deliveries)
                case Confirmed(messages):
                    confirmed.extend(messages)
                case _:
                    pass

    host.start(now)
    write()
    host.subscribe("news", now=now)
    for _ in range(6):
        now += S
        host.publish("news", b"", now=now, lifetime_us=1_000 * S)
        write()
    gone = [each.message for each in got if host.state_of(each.message) is CopyState.DONE]
    assert len(got) == 6
    assert gone
    host.confirm(gone, now)
    write()
    assert confirmed == gone
    assert {(SEEN, each, 0) for each in gone} <= kept


# --- one failure does not take others with it ------------------------------------------------------------------


@scene
async def test_a_program_that_fails_with_an_event_does_not_cost_others_what_they_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as node:

        def fail(_: object) -> None:
            raise ValueError("a mistake")

        direct = Direct(node, fail)
        node.attach(direct.handlers)
        direct.subscribe("news")
        await true(lambda: not node.store.status()["unanswered"])
        answers, written = node.store.answers, int(str(node.store.status()["batches"]))
        monkeypatch.setattr(node.store, "answers", list)
        sends = [direct.publish("news", b"") for _ in range(3)]
        await true(lambda: int(str(node.store.status()["batches"])) >= written + 3)
        monkeypatch.setattr(node.store, "answers", answers)
        node.driver.answered()  # All of them stored and delivered in one burst.
        assert len(await asyncio.wait_for(asyncio.gather(*sends), WITHIN_S)) == 3


@pytest.mark.pure("replaces methods of a host")
@scene
async def test_a_step_that_fails_does_not_silence_the_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drivers, "_AGAIN_S", 0.05)
    asyncio.get_running_loop().set_exception_handler(lambda _loop, _context: None)
    async with running(tmp_path) as node:
        tick = node.host.tick
        failed: list[int] = []

        def failing(now: int) -> None:
            if len(failed) < 3:
                failed.append(now)
                raise ValueError("a mistake")
            tick(now)

        monkeypatch.setattr(node.host, "tick", failing)
        await true(lambda: len(failed) == 3)
        sent = node.udp.status()["counters"]["sent"]  # type: ignore[index]
        await true(lambda: node.udp.status()["counters"]["sent"] > sent)  # type: ignore[index]


@scene
async def test_interfaces_are_followed_although_one_look_at_them_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    udp = Udp(UdpSettings(port=int(str(apart()["port"])), interfaces=("lo",), poll_s=0.05), lambda _batch: None)
    await udp.open()
    real, looks = channels.snapshot, Counter[str]()

    def odd() -> list[channels.Interface]:
        looks["all"] += 1
        if looks["all"] == 1:
            raise ValueError("a netmask that is none")
        return [] if looks["all"] < 4 else real()

    assert udp.addresses
    monkeypatch.setattr(channels, "snapshot", odd)
    await true(lambda: looks["all"] > 2 and not udp.addresses)
    await true(lambda: udp.addresses)
    await udp.close()


@scene
async def test_a_chore_that_died_does_not_keep_a_node_from_ending(tmp_path: Path) -> None:
    async with running(tmp_path) as node:

        async def die() -> None:
            raise ValueError("a mistake")

        node.udp._chores.append(asyncio.create_task(die()))  # noqa: SLF001 - whatever it may be that kills one
        await asyncio.sleep(0)
        direct = Direct(node, lambda _: None)
        node.attach(direct.handlers)
        future = direct.publish("news", b"")
    assert future.done()
    assert future.exception() is None
    with NodeFolder(node.settings).locked():
        pass


@pytest.mark.pure("replaces methods of a host")
@scene
async def test_a_peer_with_whose_frames_the_host_fails_costs_the_others_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as node:
        given: list[str] = []

        def receive(_frames: object, peer: str, _now: int, **_: object) -> bool:
            given.append(peer)
            if peer.startswith("bad"):
                raise KeyError(peer)
            return False

        monkeypatch.setattr(node.host, "receive", receive)
        with pytest.raises(KeyError, match="bad 1"):
            node.driver.received([(peer, b"") for peer in ("good 1", "bad 1", "good 2", "bad 2", "good 3")])
        assert given == ["good 1", "bad 1", "good 2", "bad 2", "good 3"]
        assert node.driver.failed == 2


@pytest.mark.pure("replaces methods of a host")
@scene
async def test_no_datagram_overtakes_another_of_the_same_peer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check relays behind datagrams that have to be decoded: they take the slow path, too."""
    async with running(tmp_path) as node:
        sent: list[tuple[str, list[bytes]]] = []
        decoded: list[str] = []

        def pass_on(found: bytes, peer: str, _now: int) -> tuple[str, bytes] | None:
            return ("next", peer.encode() + found) if found == b"relay" else None

        monkeypatch.setattr(node.host, "pass_on", pass_on)
        monkeypatch.setattr(node.host, "refused", lambda _reasons, peer, *_, **__: decoded.append(peer))
        monkeypatch.setattr(node.udp, "send", lambda found, to, **_: sent.append((to, found)))
        node.driver.received([("a", b"relay"), ("b", b"other"), ("b", b"relay"), ("a", b"relay"), ("c", b"relay")])
        assert sent == [("next", [b"arelay", b"arelay", b"crelay"])]
        assert decoded == ["b", "b"]
        node.driver.received([("b", b"relay")])
        assert sent[1:] == [("next", [b"brelay"])]


# --- static peers ----------------------------------------------------------------------------------------------


def told(*hosts: str) -> list[tuple[object, ...]]:
    return [(socket.AF_INET, socket.SOCK_DGRAM, 17, "", (host, 4000)) for host in hosts]


@scene
async def test_a_static_peer_keeps_its_address_while_there_is_no_name_server(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[list[tuple[object, ...]] | OSError] = [
        told("192.0.2.1"),
        OSError("no name server"),
        told("192.0.2.2"),
    ]

    def lookup(*_args: object, **_keywords: object) -> list[tuple[object, ...]]:
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer

    monkeypatch.setattr(socket, "getaddrinfo", lookup)
    peers, changes = StaticPeers(["village.example:4000"], Counter()), Counter[str]()
    found = []
    for _ in range(3):
        whole = await peers.resolve([socket.AF_INET], lambda: changes.update(["changed"]))
        found.append((whole, *peers.known))
    assert found == [(True, ("192.0.2.1", 4000)), (False, ("192.0.2.1", 4000)), (True, ("192.0.2.2", 4000))]
    assert changes["changed"] == 2


@scene
async def test_of_several_addresses_the_one_that_answers_is_kept_and_a_silent_one_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    turns = [told("192.0.2.1", "192.0.2.2"), told("192.0.2.2", "192.0.2.1")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_args, **_keywords: turns.pop(0))
    peers = StaticPeers(["village.example:4000"], Counter())
    (peer,) = peers.peers
    await peers.resolve([socket.AF_INET], lambda: None)
    peer.heard_s = time.monotonic()
    await peers.resolve([socket.AF_INET], lambda: None)
    assert list(peers.known) == [("192.0.2.1", 4000)]
    turns.append(told("192.0.2.1", "192.0.2.2"))
    peer.heard_s -= sockets.RESOLVE_S + 1
    await peers.resolve([socket.AF_INET], lambda: None)
    assert list(peers.known) == [("192.0.2.2", 4000)]


def test_a_name_server_that_does_not_answer_delays_neither_other_peers_nor_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answer = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_args, **_keywords: told() if answer.wait(60) else [])

    async def life() -> None:
        udp = Udp(
            UdpSettings(port=int(str(apart()["port"])), interfaces=("lo",), peers=("nobody.example:1", "127.0.0.1:2")),
            lambda _batch: None,
        )
        await udp.open()
        await true(lambda: list(udp.intake.statics) == [("127.0.0.1", 2)])
        await udp.close()

    began_s = time.monotonic()
    try:
        asyncio.run(life())
        assert time.monotonic() - began_s < WITHIN_S
    finally:
        answer.set()


# --- sockets ---------------------------------------------------------------------------------------------------


class OneDead:
    """Replaces a socket that reaches one interface whose queue is never emptied, and others that work."""

    def __init__(self, dead: Target) -> None:
        self.dead = dead.address
        self.sent: list[bytes] = []

    def sendto(self, datagram: bytes, address: object) -> None:
        if address == self.dead:
            raise OSError(errno.ENOBUFS, os.strerror(errno.ENOBUFS))
        self.sent.append(datagram)


@scene
async def test_an_interface_that_takes_nothing_does_not_silence_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channels, "_PATIENCE_S", 0.05)
    dead, alive = Target(("192.0.2.255", 9)), Target(("127.0.0.1", 9))
    sending, traffic = OneDead(dead), UdpTraffic()
    made = Outlet(sending, traffic, asyncio.get_running_loop())  # type: ignore[arg-type]
    made.send([b"1", b"2"], dead)
    made.send([b"3"], alive)
    made.send([b"4"], dead)
    await true(lambda: sending.sent == [b"3"])
    assert traffic.counters["send_queue_dropped"] == 3
    made.send([b"5"], alive)
    assert sending.sent == [b"3", b"5"]
    made.close()


# --- the disk --------------------------------------------------------------------------------------------------


def test_carried_copies_go_on_giving_way_while_sends_go_on_failing() -> None:
    with testing.network("author", "carrier", "reader", seed=1, altruistic=True, compress=False) as net:
        net.subscribe("reader", "news")
        net.link("author", "carrier")
        carried = [net.publish("author", "news", bytes(20_000)) for _ in range(20)]
        net.advance(30)
        net.unlink("author", "carrier")
        net.fill_disk("carrier")
        for _ in range(40):
            with suppress(ResourceAllocationException):
                net.publish("carrier", "mine", bytes(20_000))
            net.advance(1)
        held = [each for each in carried if net.host("carrier").state_of(each) is CopyState.WHOLE]
        assert len(held) <= 12


def test_a_full_disk_that_cannot_even_take_the_name_of_who_has_it_locks_all_the_same(tmp_path: Path) -> None:
    home = NodeFolder(parse("", {}, {"node.data": str(tmp_path)}))
    home.create()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        with home.locked():
            pass
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


# --- the command line ------------------------------------------------------------------------------------------


def test_names_that_are_no_text_are_refused_in_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(["node", "--data", f"{tmp_path}/x\udcff"]) == 2
    assert "not UTF-8 text" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="not UTF-8 text"):
        _ = parse("", {}, {"node.data": f"{tmp_path}/x\udcff"}).control


def test_an_order_that_is_too_long_for_a_new_process_is_carried_out_in_this_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_args: object) -> None:
        raise OSError(errno.E2BIG, os.strerror(errno.E2BIG))

    ran: list[NodeCommand] = []
    monkeypatch.setattr(os, "execv", refuse)
    monkeypatch.setattr(serve, "run", ran.append)
    order = NodeCommand(config=None, data="x", changes=("a=1",), json=True, verbose=False)
    _process.become(order)
    assert ran == [order]
