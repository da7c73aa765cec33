"""A disk with less room than the cache: which messages are evicted, and the recovery."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from carrypost import testing
from carrypost.config import Settings
from carrypost.emu.engine.network import Network
from carrypost.events import Dropped, Event, Failed, NeighbourUp, Reason, Stored
from carrypost.gossip.holdings.copy_states import CopyState
from carrypost.host import Host
from carrypost.model.ids import MessageId, NodeId
from carrypost.security.identity import Identity

SIZE = 20_000
CARRIED = 20


class _Carrier:
    """A node with twenty carried messages of priorities 0 to 9, two of each, and its events."""

    def __init__(self, net: Network) -> None:
        self.net = net
        self.events: list[Event] = []
        net.subscribe("reader", "news")
        net.link("author", "carrier")
        self.carried = [net.publish("author", "news", bytes(SIZE), priority=n % 10) for n in range(CARRIED)]
        net.advance(30)
        net.unlink("author", "carrier")
        net.watch(lambda _, node, event: self.events.append(event) if node == "carrier" else None)

    def held(self) -> list[MessageId]:
        host = self.net.host("carrier")
        return [each for each in self.carried if host.state_of(each) is CopyState.WHOLE]

    def evicted(self) -> list[MessageId]:
        return [
            descriptor.id
            for event in self.events
            if isinstance(event, Dropped) and event.reason is Reason.EVICTED
            for descriptor in event.descriptors
        ]


@pytest.fixture
def carrier() -> Iterator[_Carrier]:
    with testing.network("author", "carrier", "reader", seed=1, altruistic=True, compress=False) as net:
        found = _Carrier(net)
        assert found.held() == found.carried
        yield found


def test_a_send_that_the_disk_does_not_take_fails_and_the_least_privileged_carried_copies_go(
    carrier: _Carrier,
) -> None:
    net = carrier.net
    net.fill_disk("carrier")
    message = net.publish("carrier", "mine", bytes(SIZE))
    net.advance(0.1)
    assert Failed(message, "disk full") in carrier.events
    assert set(carrier.evicted()) == {carrier.carried[0], carrier.carried[10]}  # a tenth: both of priority 0


def test_further_losses_within_the_same_pause_do_not_confine_the_cache_further(carrier: _Carrier) -> None:
    net = carrier.net
    net.fill_disk("carrier")
    for _ in range(5):
        net.publish("carrier", "mine", bytes(SIZE))
        net.advance(0.5)
    assert len(carrier.evicted()) == 3  # the tenth, and one that gave way to the second send


def test_a_later_send_finds_room_because_carried_copies_give_way_to_it(carrier: _Carrier) -> None:
    net = carrier.net
    net.fill_disk("carrier")
    net.publish("carrier", "mine", bytes(SIZE))
    net.advance(1)
    net.fill_disk("carrier", full=False)
    sent = [net.publish("carrier", "mine", bytes(SIZE)) for _ in range(4)]
    net.advance(1)
    assert [event.message for event in carrier.events if isinstance(event, Stored)] == sent
    priorities_left = sorted({carrier.carried.index(each) % 10 for each in carrier.held()})
    assert priorities_left == [3, 4, 5, 6, 7, 8, 9]  # two more levels gave way to the four


def test_after_a_while_the_cache_may_have_all_of_its_room_again_and_gets_back_what_it_dropped(
    carrier: _Carrier,
) -> None:
    net = carrier.net
    net.fill_disk("carrier")
    net.publish("carrier", "mine", bytes(SIZE))
    net.advance(1)
    net.fill_disk("carrier", full=False)
    net.link("author", "carrier")
    net.advance(50)
    assert len(carrier.held()) == CARRIED - 2  # still confined
    net.advance(60)
    assert carrier.held() == carrier.carried


def test_what_is_wanted_here_does_not_give_way_to_a_full_disk() -> None:
    with testing.network("author", "reader", seed=2, confirm=False, compress=False) as net:
        net.subscribe("reader", "news")
        net.link("author", "reader")
        wanted = [net.publish("author", "news", bytes(SIZE)) for _ in range(10)]
        net.advance(20)
        net.fill_disk("reader")
        net.publish("reader", "mine", bytes(SIZE))
        net.advance(5)
        states = {net.host("reader").state_of(each) for each in wanted}
        assert states == {CopyState.PINNED}


def test_own_messages_do_not_give_way_to_a_later_send_while_the_disk_is_full() -> None:
    with testing.network("author", seed=3, compress=False) as net:
        stored = [net.publish("author", "mine", bytes(SIZE)) for _ in range(10)]
        net.advance(1)
        net.fill_disk("author")
        lost = net.publish("author", "mine", bytes(SIZE))
        net.advance(1)
        net.fill_disk("author", full=False)
        later = net.publish("author", "mine", bytes(10 * SIZE))
        net.advance(1)
        states = [net.host("author").state_of(each) for each in (*stored, lost, later)]
        assert states == [CopyState.FINISHED] * 10 + [CopyState.UNKNOWN, CopyState.FINISHED]


def test_what_is_wanted_here_comes_as_soon_as_the_disk_takes_it_again() -> None:
    with testing.network("author", "reader", seed=4, compress=False) as net:
        net.subscribe("reader", "news")
        net.link("author", "reader")
        net.fill_disk("reader")
        message = net.publish("author", "news", bytes(100 * SIZE))
        net.advance(20)
        assert net.deliveries("reader") == []
        net.fill_disk("reader", full=False)
        net.advance(40)
        assert [each.message for each in net.deliveries("reader")] == [message]


def test_what_is_missing_of_a_large_message_is_not_asked_for_while_the_disk_is_full() -> None:
    """Check that lost pieces are not requested again and again as the others come one by one."""
    with testing.network("author", "reader", seed=1, compress=False, rate_bytes_per_s=200_000) as net:
        net.subscribe("reader", "news")
        net.link("author", "reader")
        net.advance(8)
        net.fill_disk("reader")
        message = net.publish("author", "news", bytes(40_000))
        before = net.sent("reader").frames["Request"]
        net.advance(4)
        assert net.sent("reader").frames["Request"] - before == 1
        net.advance(20)
        assert net.sent("reader").frames["Request"] - before > 1, "it is tried again"
        net.fill_disk("reader", full=False)
        net.advance(20)
        assert [each.message for each in net.deliveries("reader")] == [message]


def test_of_an_event_whose_kind_recovery_does_not_know_a_lost_batch_says_nothing() -> None:
    host = Host(Identity.plain("a"), Settings.emulated(), random.Random(1))
    host.start(0)
    journal = host._outputs.journal  # noqa: SLF001 - what a layer would hold with its rows
    journal.put(("meta", b"row", 0), 1)
    journal.hold(NeighbourUp(NodeId("as if a commit were done")))
    batch = host.changes()
    assert batch is not None
    host.lost(batch.serial, "disk full", 0)
    for _ in range(3):
        assert not [event for event in host.events() if isinstance(event, NeighbourUp)]
        while (again := host.changes()) is not None:
            host.durable(again.serial, 2_000_000)
        host.tick(2_000_000)
