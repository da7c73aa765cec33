"""Discovery: the names of all nodes that a node is connected with, asked at once, over any number of hops."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import pytest
from tests.support.jms_encoded import EncodedNetwork
from tests.support.jms_scenes import SOON_S, scene

from carrypost import (
    Destination,
    IllegalArgumentException,
    IllegalStateException,
    Queue,
    ResourceAllocationException,
    Topic,
    testing,
)
from carrypost.messaging import control
from carrypost.messaging.commands import BindName, Discovered
from carrypost.messaging.directory import OWNER_MAX
from carrypost.messaging.namespace import Bind, Binding
from carrypost.model import address
from carrypost.model.descriptor import Ordering
from carrypost.model.headers import Headers
from carrypost.model.ids import NodeId
from carrypost.naming import Discovery, InitialContext

HOSTS = [f"h{number:02}" for number in range(30)]


@pytest.fixture(params=["direct", "encoded"])
def _ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once more with everything encoded that programs and node say to each other."""
    if request.param == "encoded":
        monkeypatch.setattr(testing, "Network", EncodedNetwork)


def test_a_discovery_among_thirty_hosts_finds_what_they_bound_and_names_the_silent() -> None:
    chance = random.Random(7)

    async def play() -> None:
        async with testing.network(*HOSTS, "apart", seed=7, island=True) as net:
            for number, host in enumerate(HOSTS[1:], 1):
                net.link(host, HOSTS[chance.randrange(max(0, number - 9), number)])
            bound: dict[str, Destination] = {}
            for host in (*HOSTS, "apart"):
                async with net.context(host) as ctx:
                    names = InitialContext(ctx)
                    for number in range(chance.randrange(4)):
                        name = f"{chance.choice(['news', 'mail', host])}-{number}"
                        meant = chance.choice([Topic(f"t.{number}"), Queue(f"{name}@{host}")])
                        told = chance.random() < 0.8
                        await names.bind(name, meant, advertise=told)
                        if told and host != "apart":
                            bound[f"{name}@{host}"] = meant
            await net.run(20)
            assert len(bound) > 20
            asker = chance.choice(HOSTS)
            async with net.context(asker) as ctx:
                assert await InitialContext(ctx).discover(30) == Discovery(bound, ())
                leaf = next(host for host in reversed(HOSTS) if host != asker and leaves_all_connected(net, host))
                net.kill(leaf)  # Nobody has noticed yet.
                left = {name: meant for name, meant in bound.items() if not name.endswith(f"@{leaf}")}
                began = net.now
                assert await InitialContext(ctx).discover(3) == Discovery(left, (NodeId(leaf),))
                assert net.now == pytest.approx(began + 3)

    testing.run(play)


def leaves_all_connected(net: testing.Network, host: str) -> bool:
    """Return True for a host with one neighbour: all others are connected without it."""
    return sum(other != host and net.linked(host, other) for other in HOSTS) == 1


@pytest.mark.usefixtures("_ways")
@scene("a", "b", "c", island=True)
async def test_a_discovery_finds_names_with_their_ordering_and_those_of_this_node(net: testing.Network) -> None:
    net.unlink("a", "c")
    async with net.context("a") as a, net.context("c") as c:
        await InitialContext(a).bind("mine", Topic("mine"))
        await InitialContext(c).bind("talk", c.create_topic("talk", ordering="causal"))
        await InitialContext(c).bind("kept", Topic("kept"), advertise=False)
        await InitialContext(c).bind("alias", Queue("Alan@x"))
        await InitialContext(c).create_subcontext("office")
        hall = await c.declare_topic("hall")
        await net.run(SOON_S)
        found = await InitialContext(a).discover(timeout=10)
        talk = Topic("talk", Ordering.CAUSAL)
        assert found.names == {"hall@c": hall, "mine@a": Topic("mine"), "talk@c": talk}
        assert found.silent == ()
        assert await InitialContext(a).lookup("talk@c") == found.names["talk@c"]


@scene("a", "b", island=True)
async def test_a_node_that_is_alone_finds_its_own_names_at_once(net: testing.Network) -> None:
    net.unlink("a", "b")
    async with net.context("a") as a:
        await InitialContext(a).bind("mine", Topic("mine"))
        assert await InitialContext(a).discover(1_000) == Discovery({"mine@a": Topic("mine")}, ())
        assert net.now < 1


@scene("a", "b", "c", "d", island=True, island_hops_max=2)
async def test_who_is_too_far_away_for_a_path_is_neither_reached_nor_waited_for(net: testing.Network) -> None:
    for one, other in ("ac", "ad", "bd"):
        net.unlink(one, other)
    await net.run(20)
    assert net.reach("a") == {"b": 1, "c": 2}
    began = net.now
    async with net.context("a") as a:
        assert await InitialContext(a).discover(1_000) == Discovery({}, ())
    assert net.now < began + SOON_S


@scene("a", "b", island=True)
async def test_as_many_names_as_a_node_may_have_come_in_parts(net: testing.Network) -> None:
    async with net.context("a") as a:
        host = net.host("b")
        for number in range(OWNER_MAX):
            name = f"{number:0200}"
            host.messaging.execute(BindName(Bind(name, f"topic/{name}")), round(net.now * 1e6), number + 1)
        await net.run(SOON_S)
        found = await InitialContext(a).discover(10)
        assert found.silent == ()
        assert list(found.names) == [f"{number:0200}@b" for number in range(OWNER_MAX)]


@scene("a", "b")
async def test_without_an_island_nobody_can_be_asked(net: testing.Network) -> None:
    async with net.context("a") as a:
        with pytest.raises(IllegalStateException, match="requires island = true"):
            await InitialContext(a).discover(1)


@pytest.mark.parametrize("wrong", [0, -1, "soon", None, True, float("nan")])
def test_a_timeout_is_a_length_of_time(wrong: object) -> None:
    @scene("a", island=True)
    async def play(net: testing.Network) -> None:
        async with net.context("a") as a:
            with pytest.raises(IllegalArgumentException, match="timeout must be "):
                await InitialContext(a).discover(wrong)  # type: ignore[arg-type]

    play()


# --- those who say what is not theirs to say -------------------------------------------------------------------


class Scene:
    """A node that asks, one that is asked, and one that sends anything; all in reach of each other."""

    def __init__(self, net: testing.Network) -> None:
        self.net = net
        self.ended: list[Discovered] = []
        net.open_messaging()
        net.watch(lambda _, __, event: self.ended.append(event) if isinstance(event, Discovered) else None)
        for one, other in (("asker", "asked"), ("asker", "evil"), ("asked", "evil")):
            net.link(one, other)
        net.advance(30)
        self.numbers = 0

    @property
    def now_us(self) -> int:
        return round(self.net.now * 1e6)

    def node(self, name: str) -> NodeId:
        return self.net.host(name).node

    def say(self, to: str, *items: control.Item) -> None:
        said = Headers(control=msgspec.msgpack.encode(items))
        destination = address.control(self.node(to))
        self.net.host("evil").publish(destination, b"", headers=said, now=self.now_us, lifetime_us=60_000_000)
        self.net.advance(2)

    def ask(self, *nodes: str) -> int:
        """Begin a discovery, and return the number by which nodes know it."""
        self.numbers += 1
        began = self.now_us
        asked = [self.node(name) for name in nodes]
        self.net.host("asker").messaging.discover(self.numbers, asked, began + 20_000_000, began)
        return began

    def refused(self, name: str) -> int:
        return self.net.host(name).overview().refused.get("discovery", 0)


@contextmanager
def scene_of(security: str) -> Iterator[Scene]:
    with testing.network("asker", "asked", "evil", seed=1, security=security, island=True) as net:
        yield Scene(net)


@pytest.mark.parametrize("security", ["off", "signed"])
def test_an_answer_counts_from_a_node_that_was_asked_for_names_of_its_own(security: str) -> None:
    with scene_of(security) as here:
        here.net.suspend("asked")
        number = here.ask("asked")
        topic, foreign = ("x", "topic/x", Ordering.NONE), ("x", address.queue("x", here.node("asked")), Ordering.NONE)
        here.say("asker", control.Found(number, 0, 1, (topic,)), control.Found(number + 1, 0, 0))
        assert here.refused("asker") == 2
        here.net.advance(30)
        assert here.ended == [Discovered(1, (), (here.node("asked"),))]

        number = here.ask("evil")  # It answers that it has no names: nothing else is heard of it after that.
        here.net.advance(1)
        here.say("asker", control.Found(number, 0, 1, (topic,)))
        assert here.ended[1:] == [Discovered(2)]
        assert here.refused("asker") == 3

        here.net.host("evil").messaging.execute(BindName(Bind("true", "topic/true")), here.now_us, 1)
        here.net.advance(1)
        wrong = [
            control.Found(0, 0, 1, (foreign,)),
            control.Found(0, 0, 1, (("a//b", "topic/x", Ordering.NONE),)),
            control.Found(0, 0, 1, (("a", "control/x", Ordering.NONE),)),
            control.Found(0, 0, OWNER_MAX + 1, (topic,)),
            control.Found(0, 1, 1, (topic,)),
        ]
        for item in wrong:
            number = here.ask("evil", "asked")
            here.say("asker", msgspec.structs.replace(item, number=number))
        here.net.advance(30)
        assert here.refused("asker") == 3 + len(wrong)
        true = Binding(address.queue_name("true", here.node("evil")), "topic/true")
        assert here.ended[2:] == [Discovered(number, (true,), (here.node("asked"),)) for number in range(3, 8)]


def test_a_node_answers_no_more_questions_than_its_account_allows() -> None:
    with scene_of("off") as here:
        until_us = here.now_us + 60_000_000
        here.say("asked", *(control.Discover(number, until_us) for number in range(30)))
        assert here.refused("asked") == 20
        assert control.DISCOVERIES_PER_S * control.SAVED_S == 100


def test_no_more_discoveries_are_open_than_may_be() -> None:
    with scene_of("off") as here:
        here.net.suspend("asked")
        for _ in range(control.DISCOVERIES_MAX):
            here.ask("asked")
        with pytest.raises(ResourceAllocationException, match="16 discoveries wait"):
            here.ask("asked")
        here.net.advance(21)
        here.ask("asked")
