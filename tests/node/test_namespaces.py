"""Real nodes on real sockets, in network namespaces: hops, carriers, bad links, every means of reaching others (N9)."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import random
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from tests.support.nodes import Node, Nodes, scene, until
from tools.netns import End, Net
from tools.radio_hub import EVERY, Radio, Rule

from carrypost.model.descriptor import Ordering
from tools import netns

pytestmark = pytest.mark.skipif(bool(netns.available()), reason=f"no network namespaces: {netns.available()}")

MIB = 1024 * 1024


@pytest.fixture
def net() -> Iterator[Net]:
    with Net() as made:
        yield made


def noise(size: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(size)


def came_in(end: End) -> int:
    """Bytes that an interface has received."""
    return int(end.net.run(end.namespace, "cat", f"/sys/class/net/{end.interface}/statistics/rx_bytes"))


async def hears_once(node: Node, *others: Node) -> bool:
    """Return True if a node hears exactly these nodes, each at one address."""
    return sorted(peer["node"] for peer in await node.client.peers()) == sorted(other.id for other in others)


async def carries(node: Node, messages: int) -> bool:
    """Return True if a node holds this many messages, including incomplete ones and entries with sealing keys."""
    status = await node.client.status()
    return bool(status["cache"]["messages"] == messages)


async def served(giver: Node, taker: Node, end: End) -> None:
    """Wait until the taker has all that it requested: the giver owes nothing, and little came for a while."""

    async def quiet() -> bool:
        before = came_in(end)
        await asyncio.sleep(0.3)
        owed = [peer["queued"] for peer in await giver.client.peers() if peer["node"] == taker.id]
        return owed == [0] and came_in(end) < before + 10_000

    await until(quiet)


async def nothing_more(node: Node, pause_s: float = 0.5) -> None:
    with pytest.raises(TimeoutError):
        await node.program.receive(timeout_s=pause_s)


# --- hops and carriers ---------------------------------------------------------------------------------------------


async def hears_only(node: Node, other: Node) -> bool:
    """Return True if a node hears this one alone, and knows that all addresses of it are one peer."""
    return [peer["node"] for peer in await node.client.peers() if peer["state"] != "relayed"] == [other.id]


@pytest.mark.parametrize("means", ["radio", pytest.param("cables", marks=pytest.mark.soak)])
@scene
async def test_a_message_crosses_one_two_and_three_hops(net: Net, tmp_path: Path, means: str) -> None:
    names = "abcd"
    net.add(*names)
    if means == "radio":  # One interface each; those in the middle hear two that do not hear each other.
        radio = Radio(net, *names)
        for one, other in pairwise(names):
            radio.link(one, other)
    else:  # One interface for each neighbour.
        for one, other in pairwise(names):
            net.cable(one, other)
    async with Nodes(tmp_path, net, altruistic=True) as nodes:
        a, b, c, d = await nodes.start(*names)
        await b.meet(a, c)
        await c.meet(b, d)
        await until(functools.partial(hears_only, a, b))
        for node in (b, c, d):
            await node.program.subscribe(f"to.{node.name}")
            await a.program.send(f"to.{node.name}", node.name.encode())
        for hops, node in enumerate((b, c, d), 1):
            message = await node.receive()
            assert (message.body, message.source, message.hops) == (node.name.encode(), a.id, hops)
        await until(functools.partial(hears_only, d, c))


@pytest.mark.parametrize(
    "ordering",
    [
        Ordering.DELTA_CAUSAL,
        pytest.param(Ordering.CAUSAL, marks=pytest.mark.soak),
        pytest.param(Ordering.NONE, marks=pytest.mark.soak),
    ],
)
@scene
async def test_an_answer_never_comes_before_what_it_answers_where_an_order_is_asked_for(
    net: Net, tmp_path: Path, ordering: Ordering
) -> None:
    net.add(*"abc")
    radio = Radio(net, *"abc")
    async with Nodes(tmp_path, net) as nodes:
        a, b, c = await nodes.start(*"abc")
        for node in (a, b, c):
            await node.program.subscribe("forum", ordering=ordering)
        radio.link("a", "b")
        question = noise(200_000)
        await a.program.send("forum", question, priority=0, ordering=ordering)
        assert (await b.receive()).body == question
        radio.unlink("a", "b")
        await b.miss(a)
        await b.program.send("forum", b"the answer", priority=9, ordering=ordering)
        radio.link("b", "c")  # Who is more privileged goes first, and is shorter, too.
        came = [(await c.receive()).body, (await c.receive()).body]
        assert came == ([question, b"the answer"] if ordering else [b"the answer", question])


@scene
async def test_a_message_is_carried_to_somebody_whom_its_author_never_meets(net: Net, tmp_path: Path) -> None:
    net.add(*"abc")
    radio = Radio(net, *"abc")
    async with Nodes(tmp_path, net) as nodes:
        (a,) = await nodes.start("a")
        (b,) = await nodes.start("b", altruistic=["topic/news"])
        (c,) = await nodes.start("c")
        await c.program.subscribe("news")
        sent = await a.program.send("news", b"hello", properties={"n": 1}, label="the first")
        radio.link("a", "b")
        await until(functools.partial(carries, b, 1 + len("ab")))
        radio.unlink("a", "b")
        await b.miss(a)
        assert await a.end() == 0
        radio.link("b", "c")
        message = await c.receive()
        assert (message.id, message.body, message.source) == (sent, b"hello", a.id)
        assert (message.properties, message.label, message.hops) == ({"n": 1}, "the first", 2)
        assert not message.redelivered
        counted = radio.counters()
        assert not any(counted[pair].get("forwarded") for pair in ("a>c", "c>a"))


@pytest.mark.soak
@scene
async def test_halves_of_a_large_message_go_through_two_carriers_and_meet(net: Net, tmp_path: Path) -> None:
    payload = noise(16 * MIB)
    names = ("a", "b1", "b2", "c")
    net.add(*names)
    cables = {pair: net.cable(*pair) for pair in (("a", "b1"), ("a", "b2"), ("b1", "b2"), ("b1", "c"), ("b2", "c"))}
    for cable in cables.values():
        cable.reach(False)

    def crossed(giver: str, taker: str) -> int:
        return came_in(cables[giver, taker].ends[1])

    async def more_than(nbytes: int, giver: str, taker: str) -> bool:
        return crossed(giver, taker) > nbytes

    async with Nodes(tmp_path, net, altruistic=["topic/film"]) as nodes:
        a, b1, b2, c = await nodes.start(*names)
        await c.program.subscribe("film")
        sent = await a.program.send("film", payload)
        cables["a", "b1"].rate(100_000_000)  # So that the contact can be broken in the midst of it.
        cables["a", "b1"].reach(True)
        await until(functools.partial(more_than, 5 * MIB, "a", "b1"))
        cables["a", "b1"].reach(False)
        # b1 promises b2 what it has, and can hardly deliver; so b2 asks a for the rest only.
        cables["b1", "b2"].rate(400_000)
        cables["b1", "b2"].reach(True)
        await until(functools.partial(more_than, 50_000, "b1", "b2"))
        cables["a", "b2"].reach(True)
        await until(functools.partial(more_than, MIB, "a", "b2"))
        await served(a, b2, cables["a", "b2"].ends[1])
        cables["a", "b2"].reach(False)
        cables["b1", "b2"].reach(False)
        assert await a.end() == 0
        # Neither can have all of it.
        assert crossed("a", "b1") < len(payload)
        assert crossed("a", "b2") + crossed("b1", "b2") < len(payload)
        cables["b1", "c"].reach(True)
        await until(functools.partial(more_than, MIB, "b1", "c"))
        await served(b1, c, cables["b1", "c"].ends[1])
        cables["b1", "c"].reach(False)
        await nothing_more(c, 0)
        cables["b2", "c"].reach(True)
        message = await c.receive()
        assert (message.id, message.body == payload, message.source) == (sent, True, a.id)
        assert crossed("b1", "c") + crossed("b2", "c") < 1.15 * len(payload)


# --- links that are not as they should be --------------------------------------------------------------------------


@scene
async def test_everything_arrives_once_despite_loss_duplication_and_reordering(net: Net, tmp_path: Path) -> None:
    net.add(*"ab")
    radio = Radio(net, *"ab", seed="bad weather")
    sizes = [0, 10, 1_000, 3_000] * 3 + [20_000]
    async with Nodes(tmp_path, net) as nodes:
        everyone = await nodes.start(*"ab")
        for node in everyone:
            await node.program.subscribe("news")
        sent = set()
        for node in everyone:
            for number, size in enumerate(sizes):
                payload = noise(size, number)
                message = await node.program.send("news", payload)
                sent.add((message, node.id, hashlib.sha256(payload).digest()))
        radio.hear(EVERY, EVERY, Rule(heard=True, loss=0.2, duplicate=0.1, delay_s=(0.0, 0.01)))
        for node in everyone:
            received = [
                (message.id, message.source, hashlib.sha256(message.body).digest())
                for message in await node.collect(len(sent))
            ]
            assert len(received) == len(set(received))
            assert set(received) == sent
        await asyncio.gather(*(nothing_more(node) for node in everyone))
        counted = radio.counters()
        for pair in ("a>b", "b>a"):
            assert all(counted[pair][what] > 0 for what in ("lost", "duplicated", "forwarded"))


@scene
async def test_a_link_that_works_one_way_is_noticed_not_used_and_used_when_it_works_both_ways(
    net: Net, tmp_path: Path
) -> None:
    net.add(*"ab")
    radio = Radio(net, *"ab")
    radio.hear("b", "a")
    async with Nodes(tmp_path, net) as nodes:
        a, b = await nodes.start(*"ab")
        await a.program.subscribe("news.b")
        await b.program.subscribe("news.a")
        await a.program.send("news.a", b"from a")
        await b.program.send("news.b", b"from b")

        async def one_way() -> bool:
            return await b.states() == {a.id: "one-way"}

        await until(one_way)
        seen = radio.counters()["a>b"]["forwarded"]

        async def heard_more() -> bool:
            return radio.counters()["a>b"]["forwarded"] > seen + 5

        await until(heard_more)
        assert await one_way()
        assert await a.states() == {}
        assert (await a.client.status())["neighbours"] == (await b.client.status())["neighbours"] == 0
        assert await carries(a, 2)
        assert await carries(b, 2)
        radio.hear("a", "b")
        assert (await a.receive()).body == b"from b"
        assert (await b.receive()).body == b"from a"


# --- means ---------------------------------------------------------------------------------------------------------

ONLY_BROADCAST = {"ipv4_multicast": False, "ipv6_multicast": False}
ONLY_MULTICAST = {"ipv4_broadcast": False, "ipv6_multicast": False}


@pytest.mark.parametrize(
    ("names", "v4", "v6", "udp"),
    [
        pytest.param("ab", True, False, {}, id="IPv4 only"),
        pytest.param("ab", False, True, {}, id="IPv6 only"),
        pytest.param("abc", True, True, {}, id="both"),
        pytest.param("ab", True, True, ONLY_BROADCAST, id="broadcast only"),
        pytest.param("ab", True, True, ONLY_MULTICAST, id="IPv4 multicast only"),
    ],
)
@scene
async def test_nodes_meet_by_whatever_means_there_are(  # noqa: PLR0917 - as the table has them
    net: Net, tmp_path: Path, names: str, v4: bool, v6: bool, udp: dict[str, bool]
) -> None:
    net.add(*names)
    net.switch(*names, v4=v4, v6=v6)
    async with Nodes(tmp_path, net, udp=udp) as nodes:
        everyone = a, *others = await nodes.start(*names)
        for node in others:
            await node.program.subscribe("news")
        await a.meet(*others)
        for number in range(10):
            await a.program.send("news", noise(3_000, number))
        for node in others:
            received = await node.collect(10)
            assert {message.body for message in received} == {noise(3_000, number) for number in range(10)}
        await others[0].meet(*(other for other in everyone if other is not others[0]))
        # However many ways lead to a node, it is one neighbour.
        for node in everyone:
            await until(functools.partial(hears_once, node, *(other for other in everyone if other is not node)))


@scene
async def test_an_interface_may_appear_and_go_while_the_node_runs(net: Net, tmp_path: Path) -> None:
    net.add(*"ab")
    async with Nodes(tmp_path, net, udp={"poll_s": 0.1}) as nodes:
        a, b = await nodes.start(*"ab")
        await b.program.subscribe("news")
        await a.program.send("news", b"one")
        lan = net.switch(*"ab")
        assert (await b.receive()).body == b"one"
        lan.ends["b"].set(up=False)
        await a.miss(b)
        await a.program.send("news", b"two")
        lan.ends["b"].set(up=True)
        assert (await b.receive()).body == b"two"


@scene
async def test_a_neighbour_whose_addresses_change_stays_in_reach(net: Net, tmp_path: Path) -> None:
    net.add(*"ab")
    ends = net.switch(*"ab").ends.values()
    async with Nodes(tmp_path, net, udp={"poll_s": 0.1}) as nodes:
        a, b = await nodes.start(*"ab")
        await b.program.subscribe("news")
        await a.meet(b)
        for number, change in enumerate(("delete {0}", "add 10.88.0.{2}/24 brd +", "delete {1}")):
            for host, end in enumerate(ends, 1):
                net.ip(end.namespace, [f"address {change.format(*end.addresses, host)} dev {end.interface}"])
            payload = noise(30_000, number)
            await a.program.send("news", payload)
            assert (await b.receive()).body == payload
            await until(functools.partial(hears_once, a, b))


# --- time ----------------------------------------------------------------------------------------------------------


@scene
async def test_a_node_that_was_suspended_goes_on_where_it_was(net: Net, tmp_path: Path) -> None:
    payload = noise(3 * MIB // 2)
    net.add(*"ab")
    cable = net.cable("a", "b")
    cable.rate(8_000_000)

    async def more_than(nbytes: int) -> bool:
        return came_in(cable.ends[1]) > nbytes

    async with Nodes(tmp_path, net) as nodes:
        a, b = await nodes.start(*"ab")
        await b.program.subscribe("film")
        await a.program.send("film", payload)
        for asleep, awake, share in ((b, a, 1 / 3), (a, b, 2 / 3)):
            await until(functools.partial(more_than, int(len(payload) * share)))
            asleep.suspend()
            await awake.miss(asleep)
            asleep.resume()
        message = await b.receive()
        assert message.body == payload
        assert came_in(cable.ends[1]) < 1.4 * len(payload)
        await a.meet(b)
