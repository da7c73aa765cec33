"""Numbers of order groups: how many one author may open, which ones make room, and that order outlives them."""

from __future__ import annotations

from random import Random

import pytest
from tests.support.happens_before import History
from tests.support.order_groups import SECOND_US as S
from tests.support.order_groups import GroupHost

from carrypost import testing
from carrypost.errors import OrderError
from carrypost.model.descriptor import Ordering

GROUPS_MAX = 8
SHARE = 2
"""A quarter of that (`share_author`)."""
SKEW_S = 60


def network(*names: str) -> testing.Network:
    return testing.network(
        *names, seed=1, limits={"groups_max": GROUPS_MAX}, skew_s_max=SKEW_S, lifetime_s_max=10_000
    )  # fmt: skip


def groups(net: testing.Network, node: str) -> list[str]:
    return [each.destination for each in net.host(node).registries(round(net.now * 1e6))]


def say(net: testing.Network, node: str, topics: list[str], *, ordering: str, lifetime_s: float = 100) -> None:
    for topic in topics:
        net.publish(node, topic, b"x", ordering=ordering, lifetime_s=lifetime_s)


@pytest.mark.parametrize("ordering", ["causal", "delta-causal"])
def test_one_author_does_not_open_all_the_groups_of_one_who_subscribes_to_everything(ordering: str) -> None:
    with network("attacker", "honest", "v") as net:
        net.subscribe("v", ".*")
        say(net, "attacker", [f"spam/{number}" for number in range(GROUPS_MAX)], ordering=ordering)
        net.link("attacker", "v")
        net.advance(5)
        assert len(groups(net, "v")) == SHARE
        say(net, "honest", ["news", "forum"], ordering=ordering)
        net.link("honest", "v")
        net.advance(5)
        assert {"news", "forum"} < set(groups(net, "v"))
        assert {each.descriptor.destination for each in net.deliveries("v")} >= {"news", "forum"}


def test_a_node_opens_as_many_groups_as_there_are() -> None:
    with network("a") as net:
        say(net, "a", [f"topic {number}" for number in range(GROUPS_MAX)], ordering="causal")
        with pytest.raises(OrderError, match="the node has 8 order groups, the maximum"):
            net.publish("a", "more", b"x", ordering="causal")


@pytest.mark.parametrize("subscribed", [False, True])
def test_causal_groups_make_room_when_all_that_they_know_is_dead_by_anybodys_clock(subscribed: bool) -> None:
    with network("a", "v") as net:
        everything = net.subscribe("v", ".*")
        net.link("a", "v")
        net.advance(5)
        say(net, "a", ["first"], ordering="causal", lifetime_s=100)
        say(net, "a", ["second"], ordering="causal", lifetime_s=120)
        net.advance(5)
        assert groups(net, "v") == ["first", "second"]
        if not subscribed:
            net.unsubscribe("v", everything)
            net.subscribe("v", "third")
        net.advance(100 + SKEW_S // 2)
        say(net, "a", ["third"], ordering="causal")
        net.advance(5)
        assert groups(net, "v") == ["first", "second"], "they may be alive to somebody whose clock is behind"
        net.advance(SKEW_S)
        say(net, "a", ["third"], ordering="causal", lifetime_s=1_000)
        net.advance(15)
        kept = ["second", "third"] if subscribed else ["third"]
        assert groups(net, "v") == kept, "no more than it takes of those that somebody subscribes to"
        net.kill("v")
        net.restart("v")
        net.advance(1)
        assert groups(net, "v") == kept
        say(net, "a", ["fourth", "fifth"], ordering="causal", lifetime_s=1_000)
        net.subscribe("v", "fourth|fifth")
        net.advance(15)
        assert len(groups(net, "v")) == SHARE, "a restart does not forget who opened them"


@pytest.mark.parametrize("ordering", [Ordering.CAUSAL, Ordering.DELTA_CAUSAL])
def test_order_holds_although_groups_are_forgotten_and_opened_again(ordering: Ordering) -> None:
    forgotten = given = 0
    for seed in range(25):
        rng, history = Random(seed), History()
        hosts = [GroupHost(name, ordering, history, ahead_us=rng.randrange(3) * S) for name in "abc"]
        for number in range(60):
            host, other = rng.choice(hosts), rng.choice(hosts)
            for each in hosts:
                each.reach(number * S)
            if rng.random() < 0.3:
                host.publish(f"{number}", rng.choice((2, 5, 20)) * S)
            for message in rng.sample(sorted(other.published), min(3, len(other.published))):
                if other is not host and other.published[message].alive(host.now) and message not in host.copies:
                    host.receive(other.published[message])
            if rng.random() < 0.3:
                forgotten += host.forget()
        assert not history.faults, (seed, history.faults)
        given += sum(map(len, history.orders.values()))
    assert forgotten > 50
    assert given > 500
