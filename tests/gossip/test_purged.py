"""Messages that their addressee is done with leave all caches; no node can purge another's messages."""

from __future__ import annotations

import random

import pytest
from tests.gossip.test_addressed import Receptions, carry, want

from carrypost import testing
from carrypost.gossip.holdings import memories
from carrypost.gossip.holdings.cache import CopyState
from carrypost.gossip.holdings.memories import Purged
from carrypost.gossip.transfers.arrivals_and_removals import strike
from carrypost.log.events import Dropped, Reason
from carrypost.model.address import control, queue
from carrypost.model.ids import MessageId, NodeId

MANAGER, MALLORY = NodeId("m"), NodeId("mallory")
INBOX = queue("inbox", MANAGER)
S = 1_000_000
LARGE = random.Random(1).randbytes(100_000)


def notice(net: testing.Network, at: str, *messages: MessageId, by: NodeId = MANAGER, seconds: float = 3_600) -> None:
    """A notice is taken at a node."""
    host, now = net.host(at), round(net.now * S)
    with host.step(now):
        strike(host._host_context, messages, by, now + round(seconds * S))  # noqa: SLF001 - as messaging does


def refused(net: testing.Network, node: str) -> dict[str, int]:
    return dict(net.host(node).overview().refused)


class Drops:
    """Why copies left each node."""

    def __init__(self, net: testing.Network) -> None:
        self.found: list[tuple[str, str]] = []
        net.watch(self._watch)

    def _watch(self, _: float, node: str, event: object) -> None:
        if isinstance(event, Dropped):
            self.found += [(node, event.reason)] * len(event.descriptors)


# --- the register --------------------------------------------------------------------------------------------


def ids(first: int, count: int) -> list[MessageId]:
    return [MessageId(number.to_bytes(4, "big")) for number in range(first, first + count)]


def test_an_id_counts_against_the_messages_of_the_node_whose_notice_named_it() -> None:
    register = Purged()
    register.add(ids(0, 2), MANAGER, 100, 0)
    assert [register.names(each, MANAGER, 50) for each in ids(0, 3)] == [True, True, False]
    assert not register.names(ids(0, 1)[0], MALLORY, 50)


def test_an_id_counts_as_long_as_any_notice_that_names_it() -> None:
    register = Purged()
    register.add(ids(0, 1), MANAGER, 100, 0)
    register.add(ids(0, 1), MANAGER, 50, 0)
    (message,) = ids(0, 1)
    assert register.names(message, MANAGER, 99)
    assert not register.names(message, MANAGER, 100)
    register.add(ids(1, 1), MALLORY, 1_000 * S, 100 * S)
    assert len(register) == 1
    assert list(register.by_node) == [MALLORY]


def test_one_node_has_only_its_latest_ids_remembered() -> None:
    register = Purged()
    register.add(ids(0, 3), MALLORY, S, 0)
    for first in range(0, 3 * memories.PURGED_NODE_IDS_MAX, 1_000):
        register.add(ids(first, 1_000), MANAGER, S, 0)
    assert len(register) == 3 + memories.PURGED_NODE_IDS_MAX
    latest = ids(3 * memories.PURGED_NODE_IDS_MAX - 1_000, 1_000)
    assert all(register.names(each, MANAGER, 0) for each in latest)
    assert register.names(ids(0, 1)[0], MALLORY, 0)


def test_of_too_many_the_node_that_was_silent_for_longest_is_forgotten() -> None:
    register = Purged()
    nodes = [NodeId(f"n{number}") for number in range(memories.PURGED_IDS_MAX // memories.PURGED_NODE_IDS_MAX + 1)]
    for node in nodes[:-1]:
        register.add(ids(0, memories.PURGED_NODE_IDS_MAX), node, S, 0)
    register.add(ids(0, 1), nodes[0], S, 0)
    register.add(ids(0, memories.PURGED_NODE_IDS_MAX), nodes[-1], S, 0)
    assert len(register) == memories.PURGED_IDS_MAX
    assert set(register.by_node) == set(nodes) - {nodes[1]}


# --- what is here --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("destination", [INBOX, control(MANAGER)])
def test_what_is_here_goes_at_once_and_does_not_come_again(destination: str) -> None:
    with testing.network("a", "b", seed=1) as net:
        carry(net, "b")
        drops, came = Drops(net), Receptions(net)
        message = net.publish("a", destination, b"x", label="x")
        net.link("a", "b")
        net.advance(10)
        assert net.host("b").state_of(message) is CopyState.WHOLE
        notice(net, "b", message)
        net.advance(200)
        assert net.host("b").state_of(message) is CopyState.DONE
        assert drops.found == [("b", Reason.PURGED)]
        assert came.at("b") == ["x"]
        notice(net, "a", message)
        assert net.host("a").state_of(message) is CopyState.DONE


@pytest.mark.parametrize("destination", [INBOX, control(MANAGER), control(NodeId("mallory2")), "control/all", "news"])
def test_nobody_purges_what_is_addressed_to_another(destination: str) -> None:
    with testing.network("a", seed=1) as net:
        drops = Drops(net)
        message = net.publish("a", destination, b"x")
        net.advance(1)
        notice(net, "a", message, by=MALLORY)
        net.advance(1)
        assert net.host("a").state_of(message) is CopyState.FINISHED
        assert refused(net, "a") == {"purge-authority": 1}
        assert drops.found == []


def test_a_notice_may_name_a_message_twice() -> None:
    with testing.network("a", seed=1) as net:
        want(net, "a", "queue/.*")
        message = net.publish("a", INBOX, b"x")
        notice(net, "a", message, message)
        assert net.host("a").overview().messages == 0
        assert net.host("a").state_of(message) is CopyState.DONE


def test_what_there_was_no_room_for_is_not_asked_for_any_more() -> None:
    with testing.network("a", seed=1) as net:
        net.add("b", cache_messages_max=2)
        carry(net, "b")
        came = Receptions(net)
        letters = [net.publish("a", INBOX, b"x", label="letter", priority=1) for _ in range(2)]
        net.link("a", "b")
        net.advance(10)
        others = [net.publish("a", "queue/x/inbox", b"x", label="other", priority=9) for _ in range(2)]
        net.advance(10)
        assert [net.host("b").state_of(each) for each in letters] == [CopyState.DECLINED] * 2
        notice(net, "b", letters[0])
        notice(net, "b", *others, by=NodeId("x"))
        net.advance(100)
        assert [net.host("b").state_of(each) for each in letters] == [CopyState.DONE, CopyState.WHOLE]
        assert came.at("b").count("letter") == 3


# --- what comes later ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("payload", [b"x", LARGE], ids=["small", "large"])
@pytest.mark.parametrize("wanted", [False, True])
def test_what_was_named_before_it_came_is_refused_once_and_then_known(wanted: bool, payload: bytes) -> None:
    with testing.network("a", "b", "c", seed=1) as net:
        for node in "bc":
            carry(net, node)
        if wanted:
            want(net, "b", "queue/.*")
        message = net.publish("a", INBOX, payload, label="x")
        net.link("a", "c")
        net.advance(10)
        notice(net, "b", message)
        for node in "ac":
            net.link(node, "b")
        net.advance(200)
        assert net.host("b").state_of(message) is CopyState.DONE
        assert refused(net, "b")["purged"] == 1
        frames = [net.sent(node).frames for node in "ac"]
        assert sum(each["Parcel"] + each["DescriptorPart"] for each in frames) <= 3  # One from a to c, and one to b.
        net.unlink("a", "b")
        net.advance(30)
        net.link("a", "b")
        net.advance(100)
        assert refused(net, "b")["purged"] == 1


def test_what_was_named_is_refused_also_where_the_memory_of_ids_is_full() -> None:
    with testing.network("a", "b", seed=1, limits={"seen_max": 1}) as net:
        carry(net, "a", "b")
        net.subscribe("b", "news")
        kept = net.publish("b", "news", b"x")
        net.host("b").discard(kept, Reason.WITHDRAWN, 0)  # It lives for ever, so it is the last to be forgotten.
        message = net.publish("a", INBOX, b"x", lifetime_s=60)
        notice(net, "b", message)
        news = net.publish("a", "news", b"comes in the same datagram")
        net.link("a", "b")
        net.advance(5)
        assert refused(net, "b")["purged"] >= 1
        assert net.host("b").state_of(message) is CopyState.UNKNOWN
        assert [each.message for each in net.deliveries("b")] == [kept, news]


def test_a_notice_that_lapsed_keeps_nothing_away() -> None:
    with testing.network("a", "b", seed=1) as net:
        carry(net, "b")
        message = net.publish("a", INBOX, b"x")
        notice(net, "b", message, seconds=60)
        net.advance(60)
        net.link("a", "b")
        net.advance(10)
        assert net.host("b").state_of(message) is CopyState.WHOLE


def test_a_notice_that_names_others_messages_does_not_keep_them_away() -> None:
    with testing.network("a", "b", seed=1) as net:
        carry(net, "b")
        net.subscribe("b", "news")
        messages = [net.publish("a", destination, b"x") for destination in (INBOX, control(MANAGER), "news")]
        notice(net, "b", *messages, by=MALLORY)
        net.link("a", "b")
        net.advance(10)
        assert [net.host("b").state_of(each) for each in messages[:2]] == [CopyState.WHOLE] * 2
        assert len(net.deliveries("b")) == 1
        assert "purged" not in refused(net, "b")


def test_a_neighbour_that_was_not_told_is_not_taken_for_hostile() -> None:
    with testing.network("a", "b", seed=1) as net:
        carry(net, "b")
        net.subscribe("b", "news")
        messages = [net.publish("a", INBOX, b"x", priority=9) for _ in range(2_000)]
        net.publish("a", "news", b"x", priority=1)
        notice(net, "b", *messages)
        net.link("a", "b")
        net.advance(5)
        found = refused(net, "b")
        found.pop("offers-open")  # Of a new neighbour, more than 1,024 at a time are not read; it repeats them.
        assert found == {"purged": 2_000}
        assert len(net.deliveries("b")) == 1
        assert net.host("b").muted_until("a") <= net.now * S


@pytest.mark.parametrize("seconds", [0.5, 1.5], ids=["descriptor", "first pieces"])
def test_what_is_on_its_way_when_it_is_named_does_not_come_in(seconds: float) -> None:
    with testing.network("a", "b", seed=1, rate_bytes_per_s=20_000) as net:
        carry(net, "b")
        drops, came = Drops(net), Receptions(net)
        net.link("a", "b")
        net.advance(5)
        message = net.publish("a", INBOX, LARGE)
        net.advance(seconds)
        state = CopyState.PARTIAL if seconds > 1 else CopyState.UNKNOWN
        assert net.host("b").state_of(message) is state
        notice(net, "b", message)
        net.advance(60)
        assert net.host("b").state_of(message) is CopyState.DONE
        assert came.at("b") == []
        assert drops.found == ([("b", Reason.PURGED)] if state is CopyState.PARTIAL else [])


def test_with_signatures_only_the_addressee_speaks_for_its_messages() -> None:
    with testing.network(
        "a", "b", "m", seed=1, security="signed", lifetime_s_default=3_600, lifetime_s_max=7_200
    ) as net:
        carry(net, "b")
        manager, other = net.host("m").node, net.host("a").node
        first, second = [net.publish("a", queue("inbox", manager), b"x") for _ in range(2)]
        notice(net, "b", first, by=manager)
        notice(net, "b", first, second, by=other)
        net.link("a", "b")
        net.advance(10)
        assert net.host("b").state_of(first) is CopyState.DONE
        assert net.host("b").state_of(second) is CopyState.WHOLE
        assert refused(net, "b") == {"purged": 1}


@pytest.mark.parametrize("seconds", [1.4, 3.0], ids=["descriptor", "first pieces"])
def test_what_one_neighbour_was_asked_for_in_vain_is_not_asked_of_another(seconds: float) -> None:
    with testing.network("a", "b", "c", seed=1) as net:
        for node in "bc":
            carry(net, node)
        net.link("a", "c")
        message = net.publish("a", INBOX, LARGE)
        net.advance(20)
        net.unlink("a", "c")
        for node in "ac":
            net.link(node, "b", rate_bytes_per_s=20_000)
        net.advance(seconds)
        assert net.host("b").state_of(message) is (CopyState.PARTIAL if seconds > 2 else CopyState.UNKNOWN)
        (asked,) = givers(net, "b")
        notice(net, "b", message)
        net.advance(60)
        assert net.host("b").state_of(message) is CopyState.DONE
        assert givers(net, "b") == {asked}


def givers(net: testing.Network, node: str) -> set[str]:
    """Return the nodes that sent data to a node."""
    return {other for other in "abc" if other != node and net.traffic(other, node).frames["Data"]}
