"""Programs with contexts, each a process with its own node, in namespaces: they are promised something, and killed."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.agents import Agent
from tests.support.nodes import Node, Nodes, scene, until
from tools.netns import Net
from tools.radio_hub import Radio

from tools import netns

pytestmark = pytest.mark.skipif(bool(netns.available()), reason=f"no network namespaces: {netns.available()}")

AGENT = Path(__file__).parents[1] / "support" / "jms_agent.py"
MESSAGES = 40


@pytest.fixture
def net() -> Iterator[Net]:
    with Net() as made:
        yield made


async def carries(bus: Node, messages: int) -> bool:
    return bool((await bus.client.status())["cache"]["messages"] >= messages)


@scene
async def test_what_was_sent_and_acknowledged_survives_kills_of_both_ends_and_a_carrier(
    net: Net, tmp_path: Path
) -> None:
    net.add("a", "bus", "c")
    radio = Radio(net, "a", "bus", "c")
    sent: list[str] = []
    async with Nodes(tmp_path, net, altruistic=True) as nodes:
        (bus,) = await nodes.start("bus")
        reader = Agent(AGENT, net, "c", "receive", tmp_path / "c")
        reader.wait(lambda: bool(reader.said("ready")))
        reader.kill()  # Its subscription stands, and nobody consumes.

        radio.link("a", "bus")
        first = 0
        for kill_after in (MESSAGES // 3, MESSAGES // 2, MESSAGES):  # The author dies in the middle of its work, twice.
            author = Agent(AGENT, net, "a", "send", tmp_path / "a", first, MESSAGES - first)
            author.wait(lambda: len(sent) + len(author.said("sent")) >= kill_after)  # noqa: B023 - waited for at once
            author.kill()
            sent += [number for (number,) in author.said("sent")]
            first = len(sent)
        # Once more, for the bus to come by. A send that was cut off may have been done: so it tells how many there are.
        author = Agent(AGENT, net, "a", "hold", tmp_path / "a")
        author.wait(lambda: bool(author.said("has")))
        ((there,),) = author.said("has")
        await until(functools.partial(carries, bus, int(there)))
        radio.unlink("a", "bus")
        author.kill()

        radio.link("bus", "c")
        got: dict[str, str] = {}
        done: set[str] = set()
        for limit in (3, 12, 25, None):
            reader = Agent(AGENT, net, "c", "receive", tmp_path / "c")
            if limit is None:
                wanted = set(map(str, range(MESSAGES))) - set(got.values())
                reader.wait(lambda: wanted <= {number for _, number, _ in reader.said("got")})  # noqa: B023 - likewise
                reader.wait(lambda: len(reader.said("got")) == len(reader.said("done")))  # noqa: B023 - likewise
            else:
                reader.wait(lambda: len(done) + len(reader.said("done")) >= limit)  # noqa: B023 - likewise
            reader.kill()
            for message, number, count in reader.said("got"):
                assert message not in done, "what was acknowledged came again"
                assert message not in got or int(count) > 1, "it came again, and did not say so"
                got[message] = number
            done |= {message for (message,) in reader.said("done")}
        assert set(got.values()) == set(map(str, range(MESSAGES))) >= set(sent)
        assert len(got.keys() - done) <= 3, "each kill leaves at most one message in doubt: the one being acknowledged"
