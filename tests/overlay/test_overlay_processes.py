"""Real nodes in namespaces, signed: paths follow when links move and a broker is killed; legs and events arrive."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.support.nodes import Nodes, scene, until
from tests.support.overlay_agents import agent
from tools.netns import Net
from tools.radio_hub import Radio, Rule

from carrypost.jms.destinations import ChannelTopic
from tools import netns

pytestmark = pytest.mark.skipif(bool(netns.available()), reason=f"no network namespaces: {netns.available()}")

SETTINGS: dict[str, object] = {
    "island": True,
    "island_patience_s": 2.0,
    "overlay": {"enabled": True, "broker": True, "neighbours_max": 2, "update_s": 1.0},
}
SIZE = 100_000


@pytest.mark.soak
@scene
async def test_paths_follow_links_that_move_and_a_broker_that_is_killed(tmp_path: Path) -> None:
    """A square of a, b, d and c: two paths lead from a to d."""
    with Net() as net:
        net.add(*"abcd")
        radio = Radio(net, *"abcd")
        for pair in ("ab", "ac", "bd", "cd"):
            radio.link(*pair)
        with agent(tmp_path / "a", SETTINGS, net) as a:
            async with Nodes(tmp_path, net, **SETTINGS) as nodes:
                names = {node.id: node.name for node in await nodes.start(*"bcd")} | {a.id: "a"}
                ids = {name: node for node, name in names.items()}

                async def view(name: str) -> dict[str, Any]:
                    found = a.ask() if name == "a" else (await nodes[name].client.status())["overlay"]
                    assert isinstance(found, dict)
                    return found

                async def path(one: str, other: str) -> Sequence[str]:
                    found = (await view(one))["paths"].get(ids[other], ())
                    return [names[each] for each in found]

                async def arrived(count: int) -> bool:
                    return bool((await view("d"))["arrived"] == count)

                async def is_known() -> bool:
                    views = [await view(name) for name in "abcd"]
                    known = all([*each["neighbours"].values()] == [1, 1] and len(each["paths"]) == 3 for each in views)
                    return known and len(await path("a", "d")) == 3

                await until(is_known)
                _, first, _ = await path("a", "d")
                other = "c" if first == "b" else "b"
                a.ask(send=ids["d"], size=SIZE)
                await until(lambda: arrived(1))
                assert sum([(await view(name))["legs"] for name in "bc"]) == 1

                radio.unlink("a", first)
                radio.unlink(first, "d")

                async def avoids() -> bool:
                    found = await path("a", "d")
                    return bool(found) and first not in found and not await path("a", first)

                await until(avoids)
                assert await path("d", "a")
                a.ask(send=ids["d"], size=SIZE)
                await until(lambda: arrived(2))
                radio.link("a", first)
                radio.link(first, "d")
                await nodes[other].kill()

                async def is_forgotten() -> bool:
                    alive = ("a", first, "d")
                    lost = [name for name in alive if await path(name, other)]
                    found = [await path(one, another) for one in alive for another in alive if one != another]
                    return not lost and all(each and other not in each for each in found)

                await until(is_forgotten)
                a.ask(send=ids["d"], size=SIZE)
                await until(lambda: arrived(3))


CHANNELS: dict[str, object] = {
    "neighbours_max": 3, "update_s": 1.0, "discovery_s": 0.5, "orphan_s": 2.0, "handoff_s": 2.0, "gap_s": 600.0,
}  # fmt: skip
"""Settings of overlays with clients. No event is given up: missing ones are waited for."""


def with_overlay(**settings: object) -> dict[str, object]:
    return {"island": True, "island_patience_s": 2.0, "overlay": {"enabled": True, **CHANNELS, **settings}}


@pytest.mark.parametrize(
    ("events", "moves"), [(200, "bd"), pytest.param(10_000, "bdebde", marks=pytest.mark.soak)], ids=["some", "many"]
)
@scene
async def test_events_come_once_and_in_order_while_links_move_and_homes_are_killed(
    tmp_path: Path, events: int, moves: str
) -> None:
    """Move the only link of the consumer from broker to broker, so that its seat follows.

    Each home is killed as soon as the next one expects the seat: links between brokers are slow, so that it has yet to
    get its state. All brokers have links to each other, and `a` is the home of the producer.
    """
    each_s = 0.01
    patience_s = 60 + 4 * events * each_s
    with Net() as net:
        net.add(*"pcabde")
        radio = Radio(net, *"pcabde")
        for one, other in combinations("abde", 2):
            radio.link(one, other, Rule(heard=True, delay_s=(0.1, 0.1)))
        for pair in ("pa", "bc"):
            radio.link(*pair)
        clients = with_overlay(broker=False)
        with agent(tmp_path / "p", clients, net) as producer, agent(tmp_path / "c", clients, net) as consumer:
            async with Nodes(tmp_path, net, **with_overlay(broker=True)) as nodes:
                ids = {node.name: node.id for node in await nodes.start(*"abde")}

                async def is_home(name: str) -> bool:
                    return bool(consumer.tell()["homes"] == [ids[name]])

                async def clients_of(name: str) -> int:
                    return int((await nodes[name].client.status())["overlay"]["clients"])

                async def is_expecting(name: str, before: int) -> bool:
                    return await clients_of(name) > before or await is_home(name)

                async def came(count: int) -> bool:
                    producer.tell()  # Fails if it emits no more.
                    return bool(consumer.tell()["count"] >= count)

                async def knows_all() -> bool:
                    return all(len(each.ask()["brokers"]) == len(ids) for each in (producer, consumer))

                await until(knows_all)
                consumer.tell(consume=True)
                await until(partial(is_home, "b"))
                producer.tell(emit=events, each_s=each_s)
                for part, (home, following) in enumerate(pairwise(moves), start=1):
                    await until(partial(came, events * part // len(moves)), patience_s)
                    before = await clients_of(following)
                    radio.link("c", following)
                    radio.unlink("c", home)
                    await until(partial(is_expecting, following, before))
                    await nodes[home].kill()
                    await until(partial(is_home, following))
                    if home in moves[part:]:
                        await nodes.start(home)
                await until(partial(came, events), patience_s)
                found = consumer.tell()
                assert (found["count"], found["last"], found["wrong"], found["lost"]) == (events, events, [], 0)
                assert producer.tell()["emitted"] == events


@pytest.mark.parametrize(("line", "killed"), [("abc", "b"), pytest.param("pabc", "pabc", marks=pytest.mark.soak)])
@scene
async def test_parts_that_merge_and_are_torn_lose_nothing_when_a_role_is_killed(
    tmp_path: Path, line: str, killed: str
) -> None:
    """Use a line of the producer, its home a, the consumer's home b, and the consumer c: a and b lose each other.

    In each part of the story events are sent while there is no path, one role is killed, and all events must arrive
    when the parts merge again.
    """
    flood = ChannelTopic("flood")
    with Net() as net:
        net.add(*line)
        radio = Radio(net, *line)
        for pair in pairwise(line):
            radio.link(*pair)
        async with Nodes(tmp_path, net, **with_overlay(broker=False)) as nodes:
            roles = {name: with_overlay(broker=name in "ab") for name in line}
            for name, settings in roles.items():
                await nodes.start(name, **settings)
            await nodes["b"].meet(nodes["a"], nodes["c"])
            await nodes["c"].program.subscribe(flood, durable=True)

            sent, came = 0, list[int]()

            async def send(count: int) -> None:
                nonlocal sent
                for _ in range(count):
                    sent += 1
                    await nodes[line[0]].program.send(flood, str(sent).encode(), persistent=True)

            async def receive() -> None:
                while not came or came[-1] < sent:
                    number = int((await nodes["c"].receive()).body)
                    if number not in came[-1:]:  # It was not acknowledged before the node was killed.
                        came.append(number)

            await send(3)
            await receive()
            for role in killed:
                radio.unlink("a", "b")
                await send(3)
                await nodes["a"].miss(nodes["b"])
                await send(2)
                await nodes[role].kill()
                await nodes.start(role, **roles[role])
                if role == "c":
                    await nodes["c"].program.subscribe(flood, durable=True)
                await send(2)
                radio.link("a", "b")
                await receive()
            assert came == list(range(1, sent + 1))
            assert (await nodes["c"].client.status())["overlay"]["lost"] == 0
