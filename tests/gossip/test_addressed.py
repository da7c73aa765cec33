"""Messages addressed to a node: wanted without a subscription, carried by all, and offered to that node first."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from msgspec import structs
from tests.support.one_node import OneNode

from carrypost import testing
from carrypost.application.deliveries import Deliveries
from carrypost.config import Settings
from carrypost.errors import LocalError
from carrypost.gossip.draft import Draft
from carrypost.gossip.holdings.cache import CopyState
from carrypost.gossip.holdings.copies import Copy
from carrypost.gossip.interest.own_interests import OwnInterests
from carrypost.gossip.wire.frames import Offer
from carrypost.gossip.wire.pieces import Blank
from carrypost.log.events import Reason, Received
from carrypost.messaging.commands import UnitOfWork
from carrypost.model.ids import MessageId, NodeId
from carrypost.model.pattern import entry

TO_ALL = [entry("queue/.*"), entry("control/.*")]


@contextmanager
def at(net: testing.Network, node: str) -> Iterator[Deliveries]:
    """Yield the deliveries of a host within one step, for a layer to act."""
    host, now = net.host(node), round(net.now * 1e6)
    with host.step(now):
        yield host._deliveries  # noqa: SLF001 - what messaging is given when it joins a host
        host._steps.apply_interest_changes(now)  # noqa: SLF001


def carry(net: testing.Network, *nodes: str) -> None:
    for node in nodes:
        with at(net, node) as deliveries:
            deliveries.carry(TO_ALL)


def want(net: testing.Network, node: str, pattern: str, *, told: bool = False) -> int:
    with at(net, node) as deliveries:
        return deliveries.want(entry(pattern), advertised=told)


class Receptions:
    """The messages that each node received so far."""

    def __init__(self, net: testing.Network) -> None:
        self._found: list[tuple[str, str]] = []
        net.watch(self._watch)

    def _watch(self, _: float, node: str, event: object) -> None:
        if isinstance(event, Received):
            self._found += [(node, each.descriptor.label) for each in event.receptions]

    def at(self, node: str) -> list[str]:
        return [label for where, label in self._found if where == node]


# --- wanted, and not told ------------------------------------------------------------------------------------


def test_what_is_not_told_takes_no_room_in_the_profile_and_makes_it_no_other() -> None:
    own = OwnInterests(Settings.emulated(limits={"profile_entries_max": 2}), NodeId("here"))
    for name in "ab":
        own.add(entry(name))
    revision = own.revision
    numbers = [own.add(entry(f"queue/{number}"), advertised=False) for number in range(100)]
    assert own.revision == revision
    assert own.entries == (entry("a"), entry("b"))
    with pytest.raises(LocalError, match="more than 2 subscriptions"):
        own.add(entry("c"))
    own.remove(numbers)
    assert own.revision == revision
    assert own.entries == (entry("a"), entry("b"))


def test_a_node_wants_something_as_long_as_there_is_anything_that_it_does_not_tell() -> None:
    with testing.network("a", seed=1) as net:
        carry(net, "a")
        net.advance(5)
        own = net.host("a")._host_context.interests  # noqa: SLF001
        before = own.wants_something
        number = want(net, "a", "queue/a/.*")
        meanwhile = own.wants_something
        net.host("a").unsubscribe(number, round(net.now * 1e6))
        assert (before, meanwhile, own.wants_something) == (False, True, False)


def test_carrying_more_is_told_once_and_only_if_it_is_more() -> None:
    own = OwnInterests(Settings.emulated(altruistic=["news"]), NodeId("here"))
    own.carry(TO_ALL)
    revision = own.revision
    assert revision == 1
    own.carry([*TO_ALL, entry("news")])
    assert own.revision == revision


@pytest.mark.parametrize("told", [False, True])
def test_neighbours_hear_of_what_is_told_and_of_nothing_else(told: bool) -> None:
    with testing.network("a", "b", seed=1, announce_s_min=60, announce_s_max=60) as net:
        carry(net, "a", "b")
        net.link("a", "b")
        net.advance(100)
        before = net.sent("b").frames["Announce"]
        want(net, "b", "queue/b/.*", told=told)
        net.advance(2)
        assert net.sent("b").frames["Announce"] - before == told


def test_what_is_addressed_to_a_node_comes_to_it_over_others_who_carry_it() -> None:
    with testing.network("a", "b", "c", seed=1) as net:
        carry(net, "a", "b", "c")
        want(net, "c", "queue/c/.*")
        came = Receptions(net)
        net.publish("a", "queue/c/inbox", b"x", label="letter")
        net.link("a", "b")
        net.advance(10)
        net.unlink("a", "b")
        net.link("b", "c")
        net.advance(10)
        assert came.at("c") == ["letter"]
        assert net.host("c").state_of(net.publish("c", "queue/c/inbox", b"x")) is CopyState.FINISHED


@pytest.mark.parametrize("first", [True, False], ids=["evicted", "never let in"])
def test_what_there_was_no_room_to_carry_is_asked_for_once_it_is_wanted(first: bool) -> None:
    with testing.network("a", seed=1, digest_every=10_000) as net:
        net.add("b", cache_messages_max=3)
        came = Receptions(net)
        carry(net, "b")
        net.link("a", "b")
        net.advance(5)
        made: dict[str, MessageId] = {}
        others = ["0", "1", "2"]
        for label in ["letter", *others] if first else [*others, "letter"]:
            priority = 1 if label == "letter" else 8
            made[label] = net.publish("a", f"queue/{label}/inbox", b"x", label=label, priority=priority)
            net.advance(5)
        letter = made["letter"]
        assert net.host("b").state_of(letter) is not CopyState.WHOLE
        assert ("letter" in came.at("b")) is first
        want(net, "b", "queue/letter/inbox")
        net.advance(3)
        assert net.host("b").state_of(letter) is CopyState.WHOLE


# --- offered first -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [40, 400], ids=["sent first", "offered first"])
def test_what_is_addressed_to_a_neighbour_goes_before_what_it_only_carries(count: int) -> None:
    with testing.network(seed=1, rate_bytes_per_s=50_000, limits={"offer_entries_max": 10}) as net:
        net.add("a")
        net.add("b")
        carry(net, "a", "b")
        came = Receptions(net)
        for number in range(count):
            net.publish("a", f"queue/{number}/inbox", Blank(500), label=str(number), priority=5)
        for label, destination in (("letter", "queue/b/inbox"), ("notice", "control/b"), ("other", "queue/x/b")):
            net.publish("a", destination, Blank(500), label=label)
        net.link("a", "b")
        net.advance(60)
        assert set(came.at("b")[:2]) == {"letter", "notice"}
        assert came.at("b")[-1] == "other"


# --- carried within its share --------------------------------------------------------------------------------


def test_messages_between_nodes_push_nothing_else_out_of_a_carrier_and_are_not_fetched_in_vain_twice() -> None:
    unshared = {"share_author": 1.0, "share_neighbour": 1.0}
    with testing.network("a", "c", seed=1) as net:
        net.add("b", cache_messages_max=20, altruistic=["news"], limits=unshared)
        carry(net, "b")
        news = [net.publish("a", "news", b"x") for _ in range(15)]
        for node in "ac":
            net.link(node, "b")
        net.advance(10)
        letters = [net.publish(node, "queue/x/inbox", b"x", priority=9) for node in "ac" for _ in range(20)]
        net.advance(30)
        host = net.host("b")
        assert [host.state_of(each) for each in news] == [CopyState.WHOLE] * 15
        here = [each for each in letters if host.state_of(each) is CopyState.WHOLE]
        assert len(here) == 5
        before = [net.sent(node).frames["Parcel"] for node in "ac"]
        net.advance(300)  # Sets are compared several times.
        host.discard(news.pop(), Reason.WITHDRAWN, round(net.now * 1e6))
        net.publish("b", "news", b"x")  # A place was free, and is not any more when what was declined is looked at.
        net.advance(5)
        assert [net.sent(node).frames["Parcel"] for node in "ac"] == before
        for each in here[:2]:
            host.discard(each, Reason.PURGED, round(net.now * 1e6))
        net.advance(5)
        assert sum(host.state_of(each) is CopyState.WHOLE for each in letters) == 5


# --- carried by a neighbour ----------------------------------------------------------------------------------


def carried(net: testing.Network, node: str) -> list[str]:
    return [each.descriptor.label for each in net.host(node)._host_context.holdings.pop_carried()]  # noqa: SLF001


def copy_of(net: testing.Network, node: str, message: MessageId) -> Copy:
    copy = net.host(node)._host_context.holdings.cache.get(message)  # noqa: SLF001
    assert copy is not None
    return copy


def watched(net: testing.Network, node: str, payload: bytes, label: str) -> MessageId:
    message = net.publish(node, "news", payload, label=label)
    net.host(node)._host_context.holdings.watch(copy_of(net, node, message))  # noqa: SLF001
    return message


LARGE = random.Random(1).randbytes(100_000)


@pytest.mark.parametrize("payload", [b"x", LARGE], ids=["small", "large"])
def test_the_first_neighbour_that_has_a_message_is_told_once(payload: bytes) -> None:
    with testing.network("a", "b", "c", seed=1, rate_bytes_per_s=20_000) as net:
        for node in "bc":
            net.subscribe(node, "news")
        watched(net, "a", payload, "watched")
        net.publish("a", "news", payload, label="other")
        net.advance(10)
        assert carried(net, "a") == []
        net.link("a", "b")
        for _ in range(200):
            if net.deliveries("b"):
                break
            assert carried(net, "a") == []
            net.advance(0.1)
        net.advance(20)
        assert carried(net, "a") == ["watched"]
        net.link("a", "c")
        net.advance(20)
        assert len(net.deliveries("c")) == 2
        assert carried(net, "a") == []


def test_a_neighbour_that_offers_a_message_has_it() -> None:
    with testing.network("a", "b", "c", seed=1, disk_delay_s=0.5) as net:
        for node in "bc":
            net.subscribe(node, "news")
        net.link("a", "b")
        net.advance(5)
        message = net.publish("a", "news", b"x", label="watched")
        net.advance(5)
        net.unlink("a", "b")
        net.host("a")._host_context.holdings.watch(copy_of(net, "a", message))  # noqa: SLF001
        entry = net.host("b")._host_context.holdings.entry_of(copy_of(net, "b", message))  # noqa: SLF001
        net.inject("a", [Offer(1, (structs.replace(entry, pieces=b"\x01"),))], "b")
        assert carried(net, "a") == []
        net.inject("a", [Offer(2, (entry,))], "b")
        assert carried(net, "a") == ["watched"]


def test_that_a_neighbour_asks_for_nothing_of_an_offer_does_not_mean_that_it_has_it() -> None:
    with testing.network("a", seed=1) as net:
        net.add("b", cache_messages_max=2, altruistic=True)
        net.link("a", "b")
        for _ in range(2):
            net.publish("a", "news", b"x", priority=9)
        net.advance(10)
        watched(net, "a", b"x", "declined")
        net.advance(200)
        assert carried(net, "a") == []


@pytest.mark.parametrize("loss", [0, 0.3])
@pytest.mark.parametrize("payload", [b"x", LARGE], ids=["small", "large"])
def test_what_is_asked_for_and_finds_no_room_when_it_comes_is_not_carried(payload: bytes, loss: float) -> None:
    with testing.network("a", seed=3, loss=loss) as net:
        net.add("b", cache_messages_max=2, altruistic=True)
        labels = {str(number): watched(net, "a", payload, str(number)) for number in range(6)}
        net.link("a", "b")
        net.advance(300)
        here = [label for label, message in labels.items() if net.host("b").state_of(message) is CopyState.WHOLE]
        assert len(here) == 2
        assert sorted(carried(net, "a")) == here


def test_fragments_of_a_large_message_that_is_declined_do_not_go_out() -> None:
    payload = bytes(1_000_000)
    with testing.network("a", seed=1, rate_bytes_per_s=100_000) as net:
        net.add("b", cache_messages_max=1, altruistic=True)
        message, _ = [net.publish("a", "news", payload, priority=priority) for priority in (9, 0)]
        net.link("a", "b")
        net.advance(30)
        assert net.host("b").state_of(message) is CopyState.WHOLE
        assert net.sent("a").bytes < 1.5 * len(payload)
        assert net.sent("b").frames["Request"] < 20


def test_what_is_not_watched_any_more_is_not_told() -> None:
    with testing.network("a", "b", seed=1) as net:
        net.subscribe("b", "news")
        holdings = net.host("a")._host_context.holdings  # noqa: SLF001
        first, second, _ = [watched(net, "a", b"x", label) for label in ("first", "second", "third")]
        holdings.unwatch(copy_of(net, "a", first))
        net.link("a", "b")
        net.advance(10)
        holdings.unwatch(copy_of(net, "a", second))
        assert carried(net, "a") == ["third"]


def test_a_slot_that_was_freed_is_watched_no_more() -> None:
    with testing.network("a", "b", seed=1) as net:
        net.subscribe("b", "news")
        for number in range(40):  # Slots of what expired are freed together.
            message = net.publish("a", "news", b"x", lifetime_s=5 + number / 1_000)
            net.host("a")._host_context.holdings.watch(copy_of(net, "a", message))  # noqa: SLF001
        net.advance(10)
        for _ in range(40):
            net.publish("a", "news", b"x")
        net.link("a", "b")
        net.advance(10)
        assert len(net.deliveries("b")) == 40
        assert carried(net, "a") == []


# --- withheld ------------------------------------------------------------------------------------------------

SECRET, OTHER = Draft("control/m", b"", label="one"), Draft("control/m", b"", label="other")
"""Two messages that are sent in one unit of work: both leave only when both are durable."""


def sent(node: OneNode, *drafts: Draft) -> list[MessageId]:
    made = node.host.perform(UnitOfWork(node.next_number(), drafts), node.now)
    return [each.id for each in made]


def test_what_is_withheld_leaves_when_its_batch_is_durable() -> None:
    with testing.network("a", "b", seed=1, disk_delay_s=3) as net:
        net.advance(5)
        came = Receptions(net)
        net.subscribe("b", "control/m")
        net.link("a", "b")
        net.advance(5)
        host, now = net.host("a"), round(net.now * 1e6)
        host.perform(UnitOfWork(1, (SECRET, OTHER)), now)
        host.perform(UnitOfWork(2, (structs.replace(SECRET, label="alone"),)), now)
        net.advance(2.5)
        assert came.at("b") == ["alone"]
        net.advance(2.5)
        assert sorted(came.at("b")) == ["alone", "one", "other"]


def test_what_is_withheld_does_not_give_way_and_then_does() -> None:
    node = OneNode(cache_messages_max=3)
    message, _ = sent(node, *(structs.replace(each, destination="news", priority=0) for each in (SECRET, OTHER)))
    for node.now in range(1, 4):
        node.publish("news")
    assert node.host.state_of(message) is CopyState.UNSENT
    node.write()
    for node.now in range(4, 7):
        node.publish("news")
    assert node.host.state_of(message) is CopyState.DONE
