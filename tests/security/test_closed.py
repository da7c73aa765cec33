"""Closed networks: members read and hear members alone, wherever a stranger stands and whatever it repeats."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from tests.support.letters import SIGNED
from tests.support.packet_bus import Bus, Sent

from carrypost import testing
from carrypost.config import Settings
from carrypost.errors import ConfigError

CLOSED: dict[str, Any] = {**SIGNED, "sealing": {"closed": "rescue"}}
MEMBERS = tuple("abcdefghij")
DAY_S = 86_400.0


def play(scene: Callable[[], Coroutine[Any, Any, None]], limit_s: float = DAY_S) -> None:
    """Run a scene in virtual time."""
    testing.run(scene, limit_s=limit_s)


class Watched:
    """A closed network in virtual time, and who met whom in it."""

    def __init__(self, net: testing.Network) -> None:
        self.net = net
        self.met: set[tuple[str, str]] = set()
        net.watch(self._watch)

    def _watch(self, _: float, node: str, event: testing.Event) -> None:
        if isinstance(event, testing.NeighbourUp):
            self.met.add((node, self.net.name(event.node)))

    def pairs(self) -> set[str]:
        """Return the pairs that met since the last call, in either direction."""
        met, self.met = {"".join(sorted(each)) for each in self.met}, set()
        return met

    def linked(self, node: str) -> list[str]:
        """Return the neighbours of a node with which it exchanges everything."""
        return sorted(
            self.net.name(each.node) for each in self.net.host(node).overview().neighbours if each.state == "linked"
        )


def rescue(net: testing.Network, *members: str) -> str:
    """Found a circle on the first node, and let others join; return the code."""
    net.found(members[0], "rescue")
    code = net.invite(members[0], "rescue")
    for each in members[1:]:
        net.join(each, code)
    return code


def read(net: testing.Network, node: str) -> list[bytes]:
    return [each.payload for each in net.deliveries(node)]


def test_a_node_without_the_secret_says_nothing_and_hears_nothing() -> None:
    async def scene() -> None:
        async with testing.network("a", "b", "x", seed=1, **CLOSED) as net:
            watched = Watched(net)
            for pair in ("ab", "ax", "bx"):
                net.link(*pair)
            await net.run(30)
            assert (watched.pairs(), net.sent("a").datagrams) == (set(), 0)
            rescue(net, "a", "b")
            net.subscribe("b", "news")
            net.subscribe("x", "news")
            net.publish("a", "news", b"bridge")
            await net.run(30)
            assert (watched.pairs(), net.sent("x").datagrams) == ({"ab"}, 0)
            assert (read(net, "b"), read(net, "x")) == ([b"bridge"], [])
            assert net.host("x").overview().neighbours == ()
            assert net.host("x").overview().refused["packet"] > 5

    play(scene)


def test_datagrams_are_32_bytes_longer_and_fit_the_same_links() -> None:
    sizes: list[int] = []

    async def scene() -> None:
        for changes in (SIGNED, CLOSED):
            async with testing.network("a", "b", seed=2, encoded=True, **changes) as net:
                rescue(net, "a", "b")
                net.link("a", "b")
                net.subscribe("b", "news")
                await net.run(5)
                before = net.sent("a").bytes, net.sent("a").datagrams
                net.publish("a", "news", bytes(100_000))
                await net.run(0.5)
                traffic = net.sent("a")
                sizes.append((traffic.bytes - before[0]) // (traffic.datagrams - before[1]))
                assert len(read(net, "b")) == 1

    play(scene)
    assert sizes[0] - 2 <= sizes[1] <= 1_200


def test_a_member_that_missed_three_epochs_reads_on_after_one_contact() -> None:
    async def scene() -> None:
        async with testing.network("a", "b", "c", seed=3, **CLOSED) as net:
            rescue(net, "a", "b", "c")
            for pair in ("ab", "ac", "bc"):
                net.link(*pair)
            await net.run(20)
            net.unlink("a", "c")
            net.unlink("b", "c")
            for _ in range(3):
                net.rotate("a", "rescue")
                await net.run(20)
            net.subscribe("c", "news")
            net.publish("a", "news", b"later")
            net.publish("c", "news", b"earlier")
            net.subscribe("b", "news")
            watched = Watched(net)
            net.link("b", "c")
            await net.run(40)
            assert (read(net, "b"), read(net, "c")) == ([b"later", b"earlier"], [b"earlier", b"later"])
            assert watched.linked("c") == ["b"]

    play(scene)


def test_two_halves_with_an_owner_each_agree_after_one_contact_and_removed_nodes_stay_out() -> None:
    async def scene() -> None:
        async with testing.network("a", "b", "x", "y", seed=4, **CLOSED) as net:
            net.found("a", "rescue")
            code = net.invite("a", "rescue")
            root = net.host("a").circles.export("rescue")
            for each in "bxy":
                net.join(each, code, **{"root": root} if each == "b" else {})
            for pair in ("ab", "ax", "ay", "bx", "by", "xy"):
                net.link(*pair)
            await net.run(30)
            for pair in ("ab", "ay", "bx", "xy"):
                net.unlink(*pair)
            net.remove("a", "rescue", "x")
            net.remove("b", "rescue", "y")
            await net.run(30)
            net.unlink("a", "x")
            net.unlink("b", "y")
            net.link("a", "b")
            await net.run(60)
            watched = Watched(net)
            for pair in ("ax", "ay", "bx", "by", "xy"):
                net.link(*pair)
            await net.run(60)
            assert watched.linked("a") == ["b"]
            assert watched.pairs() <= {"xy"}
            assert [net.name(each) for each in net.members("a", "rescue")] == ["a", "b"]
            assert net.members("a", "rescue") == net.members("b", "rescue")

    play(scene)


def test_removal_spreads_along_a_chain_and_a_new_key_with_an_old_code_gets_nothing() -> None:
    async def scene() -> None:
        async with testing.network("a", "b", "c", "x", "y", seed=5, **CLOSED) as net:
            code = rescue(net, "a", "b", "c", "x")
            for pair in ("ab", "bc", "cx", "bx"):
                net.link(*pair)
            await net.run(30)
            for pair in ("bc", "cx", "bx"):
                net.unlink(*pair)
            net.join("y", code)  # The removed member's other device, with the code that it kept.
            net.remove("a", "rescue", "x")
            for each in "bcxy":
                net.subscribe(each, "news")
            await net.run(30)
            watched = Watched(net)
            for outsider in "xy":
                net.link("b", outsider)
            net.publish("x", "news", b"from x")
            net.publish("y", "news", b"from y")
            net.publish("b", "news", b"from b")
            await net.run(40)
            assert "bx" not in watched.pairs()
            assert watched.linked("b") == ["a"]
            assert (read(net, "b"), read(net, "y"), read(net, "x")) == ([b"from b"], [b"from y"], [b"from x"])
            assert net.host("b").overview().refused["removed"] > 0
            net.link("c", "x")  # Nobody told c yet.
            await net.run(30)
            assert watched.linked("c") == ["x"]
            net.link("b", "c")
            await net.run(40)
            assert watched.linked("c") == ["b"]
            net.publish("b", "news", b"more")
            await net.run(20)
            assert [b"more" in read(net, each) for each in "cx"] == [True, False]

    play(scene)


def test_a_stranger_beside_ten_members_that_repeats_all_it_hears_gets_nothing() -> None:
    settings = Settings().replace(**CLOSED, announce_s_max=2.0, island=False)
    bus = Bus(MEMBERS, settings)
    first, *others = bus.stations.values()
    first.host.circles.found("rescue", 0)
    code = first.host.circles.invite("rescue", 0)
    for each in others:
        each.host.circles.join(code, 0)
    heard: list[Sent] = []
    answers: list[Sent] = []

    def watch(sent: Sent) -> None:
        sender, to, datagram = sent
        if sender == "stranger":
            return
        if to == "stranger":
            answers.append(sent)
        heard.append(sent)
        bus.air.append(("stranger", None, datagram))  # At once, also what was for one node alone, …

    bus.watch = watch
    others[0].host.subscribe("news", now=0)
    first.host.publish("news", b"bridge", now=0)
    bus.run(4)
    kept, bus.watch = list(heard), lambda sent: answers.append(sent) if sent[1] == "stranger" else None
    for _, _, datagram in kept[:: max(1, len(kept) // 200)]:  # … and again later.
        bus.put("stranger", None, datagram)
    bus.run(2)
    members = {each.node for each in bus.stations.values()}
    assert answers == []
    for each in bus.stations.values():
        assert each.met == members - {each.node}
        assert all(view.address != "stranger" for view in each.host.overview().neighbours)
        assert each.host.overview().refused["packet"] > len(kept) // 2
    assert others[0].payloads == [b"bridge"]


def test_closed_requires_what_it_needs_and_says_so() -> None:
    for changes in ({"security": "off"}, {"messaging": {"enabled": False}}, {"strategy": "anti-entropy"}):
        with pytest.raises(ConfigError, match=r"sealing\.closed requires security"):
            Settings().replace(**CLOSED | changes)
