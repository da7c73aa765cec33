"""Messages that a layer has no room for stay with their carriers, and are requested again when there is room."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tests.gossip.test_addressed import Receptions, carry, want

from carrypost import testing
from carrypost.gossip.holdings.cache import ORDER, QUEUES, CopyState
from carrypost.gossip.holdings.copies import Copy
from carrypost.gossip.layer import Layer
from carrypost.gossip.transfers.link import HostContext
from carrypost.log.events import Reason
from carrypost.model.ids import MessageId

PROMPT_S = 3.0
ROOM = 3


class Shelf(Layer):
    """Has room for three messages to queues; takes all others for granted."""

    def __init__(self, ground: HostContext) -> None:
        self._holdings = ground.holdings
        self.here: list[Copy] = []

    def receive(self, copies: Sequence[Copy]) -> Sequence[Copy]:
        for copy in copies:
            if not copy.descriptor.destination.startswith("queue/") or copy in self.here:
                continue
            if len(self.here) < ROOM:
                self.here.append(copy)
                self._holdings.cache.pin((copy,), QUEUES)
            else:
                self._holdings.discard(copy, Reason.PENDING)
        return ()

    def consume(self, net: testing.Network, node: str, count: int) -> None:
        """Make room for this many messages, and inform gossip."""
        with net.host(node).step(round(net.now * 1e6)):
            for copy in self.here[:count]:
                self._holdings.discard(copy, Reason.PURGED, done=True)
            del self.here[:count]
            self._holdings.cache.reopen()


def shelf_at(net: testing.Network, node: str) -> Shelf:
    """Return a host that wants messages addressed to it, as far as its shelf has room."""
    host = net.host(node)
    shelf = Shelf(host._host_context)  # noqa: SLF001 - messaging joins a host in this way
    host._layers.insert(shelf)  # noqa: SLF001
    carry(net, node)
    want(net, node, f"queue/{node}/.*")
    return shelf


def letters(net: testing.Network, count: int) -> list[MessageId]:
    return [net.publish("a", "queue/b/inbox", b"x", label=str(number)) for number in range(count)]


def arrived(net: testing.Network, messages: Sequence[MessageId]) -> list[bool]:
    """Return which of these the shelf has, or had."""
    states = [net.host("b").state_of(each) for each in messages]
    return [state in (CopyState.WHOLE, CopyState.FINISHED, CopyState.PINNED, CopyState.DONE) for state in states]


@pytest.mark.parametrize("places", [20_000, 12], ids=["cache with room", "small cache"])
def test_what_was_turned_away_is_asked_of_a_neighbour_in_reach_once_there_is_room(places: int) -> None:
    with testing.network("a", seed=1, digest_every=10_000) as net:
        net.add("b", cache_messages_max=places, digest_every=10_000, shares=False)
        shelf = shelf_at(net, "b")
        came = Receptions(net)
        net.link("a", "b")
        net.advance(5)
        sent = letters(net, 8)
        net.advance(200)
        assert sum(arrived(net, sent)) == 3
        assert len(came.at("b")) == 8  # Each came once, and not again as long as it cannot be kept.
        for consumed in (2, 3, 1):
            shelf.consume(net, "b", consumed)
            net.advance(PROMPT_S)
            assert len(shelf.here) == min(3, 8 - sum(net.host("b").state_of(m) is CopyState.DONE for m in sent))
        assert all(arrived(net, sent))


@pytest.mark.parametrize("places", [20_000, 12], ids=["cache with room", "small cache"])
def test_what_was_turned_away_comes_from_a_neighbour_that_is_met_later(places: int) -> None:
    with testing.network("a", "c", seed=1) as net:
        net.add("b", cache_messages_max=places, shares=False)
        shelf = shelf_at(net, "b")
        carry(net, "c")
        sent = letters(net, 5)
        net.link("a", "b")
        net.link("a", "c")
        net.advance(10)
        net.unlink("a", "b")
        net.advance(30)
        assert sum(arrived(net, sent)) == 3
        net.link("b", "c")
        net.advance(100)
        assert sum(arrived(net, sent)) == 3
        net.unlink("b", "c")
        net.advance(30)
        shelf.consume(net, "b", 3)
        net.link("b", "c")
        net.advance(10)
        assert all(arrived(net, sent))


def test_who_turns_messages_away_does_not_let_come_what_another_turned_away() -> None:
    with testing.network("a", "b", seed=1) as net:
        shelf = shelf_at(net, "b")
        came = Receptions(net)
        net.subscribe("b", "forum")
        net.link("a", "b")
        sent = letters(net, 6)
        for _ in range(10):  # Order looks outside every ten seconds, when something is delivered.
            net.publish("a", "forum", b"x", ordering="causal", label="forum")
            net.advance(11)
        assert len([label for label in came.at("b") if label != "forum"]) == 6
        with net.host("b").step(round(net.now * 1e6)):
            net.host("b")._host_context.holdings.cache.reopen(ORDER)  # noqa: SLF001
        net.advance(100)
        assert len([label for label in came.at("b") if label != "forum"]) == 6
        shelf.consume(net, "b", 3)
        net.advance(PROMPT_S)
        assert all(arrived(net, sent))


def test_what_was_turned_away_and_expired_is_not_mistaken_for_what_has_its_slot() -> None:
    with testing.network("a", "b", seed=1) as net:
        shelf = shelf_at(net, "b")
        net.link("a", "b")
        net.advance(5)
        for number in range(40):
            net.publish("a", "queue/b/inbox", b"x", lifetime_s=10 + number / 100)
        net.advance(20)
        shelf.here.clear()
        sent = letters(net, 3)
        net.advance(5)
        cache = net.host("b")._host_context.holdings.cache  # noqa: SLF001
        assert set(cache.memories.turned_away.values()) == {0}
        assert all(arrived(net, sent))
