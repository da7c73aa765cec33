"""A disk with less room than the cache, or that fails: which messages are refused or evicted, and the recovery."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from carrypost import testing
from carrypost.emu.engine.network import Network
from carrypost.errors import ResourceAllocationException
from carrypost.gossip.holdings.cache import CopyState
from carrypost.log.events import Dropped, Event, Reason, Stored
from carrypost.model.ids import MessageId

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


def test_carried_copies_give_way_to_sends_the_least_privileged_first(carrier: _Carrier) -> None:
    net = carrier.net
    net.fill_disk("carrier")
    sent = [net.publish("carrier", "mine", bytes(SIZE)) for _ in range(4)]
    net.advance(1)
    assert [event.message for event in carrier.events if isinstance(event, Stored)] == sent
    priorities_left = sorted({carrier.carried.index(each) % 10 for each in carrier.held()})
    assert priorities_left == [2, 3, 4, 5, 6, 7, 8, 9]  # Two levels gave way to the four.


def test_a_send_is_refused_when_nothing_carried_is_left_that_gives_way(carrier: _Carrier) -> None:
    net = carrier.net
    net.fill_disk("carrier")
    for _ in range(CARRIED):
        net.publish("carrier", "mine", bytes(SIZE))
    with pytest.raises(ResourceAllocationException, match="the disk is full: it takes 0 bytes of messages, not 20,000"):
        net.publish("carrier", "mine", bytes(SIZE))
    with pytest.raises(ResourceAllocationException, match="the disk is full"):
        net.publish("carrier", "mine", b"")  # Its descriptor takes room, too.
    assert len(carrier.evicted()) == CARRIED
    net.fill_disk("carrier", full=False)
    net.publish("carrier", "mine", bytes(SIZE))


def test_what_gave_way_comes_again_when_the_disk_has_room(carrier: _Carrier) -> None:
    net = carrier.net
    net.fill_disk("carrier")
    for _ in range(4):
        net.publish("carrier", "mine", bytes(SIZE))
    net.link("author", "carrier")
    net.advance(50)
    assert len(carrier.held()) == CARRIED - 4
    net.fill_disk("carrier", full=False)
    net.advance(60)
    assert carrier.held() == carrier.carried


def test_what_is_wanted_here_does_not_give_way_to_a_full_disk() -> None:
    with testing.network("author", "reader", seed=2, confirm=False, compress=False) as net:
        net.subscribe("reader", "news")
        net.link("author", "reader")
        wanted = [net.publish("author", "news", bytes(SIZE)) for _ in range(10)]
        net.advance(20)
        net.fill_disk("reader")
        with pytest.raises(ResourceAllocationException):
            net.publish("reader", "mine", bytes(SIZE))
        net.advance(5)
        states = {net.host("reader").state_of(each) for each in wanted}
        assert states == {CopyState.PINNED}


def test_own_messages_do_not_give_way_to_a_later_send_while_the_disk_is_full() -> None:
    with testing.network("author", seed=3, compress=False) as net:
        stored = [net.publish("author", "mine", bytes(SIZE)) for _ in range(10)]
        net.advance(1)
        net.fill_disk("author")
        with pytest.raises(ResourceAllocationException):
            net.publish("author", "mine", bytes(SIZE))
        net.fill_disk("author", full=False)
        later = net.publish("author", "mine", bytes(10 * SIZE))
        net.advance(1)
        states = {net.host("author").state_of(each) for each in (*stored, later)}
        assert states == {CopyState.FINISHED}


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


def test_what_the_disk_does_not_take_is_not_asked_for() -> None:
    with testing.network("author", "reader", seed=1, compress=False, rate_bytes_per_s=200_000) as net:
        net.subscribe("reader", "news")
        net.link("author", "reader")
        net.advance(8)
        net.fill_disk("reader")
        message = net.publish("author", "news", bytes(40_000))
        before = net.sent("author").frames["Data"]
        net.advance(24)
        assert net.sent("author").frames["Data"] == before
        net.fill_disk("reader", full=False)
        net.advance(20)
        assert [each.message for each in net.deliveries("reader")] == [message]


def test_room_that_messages_leave_on_a_full_disk_is_used_again() -> None:
    with testing.network("a", seed=1, compress=False) as net:
        net.publish("a", "mine", bytes(SIZE), lifetime_s=10)
        net.fill_disk("a")
        with pytest.raises(ResourceAllocationException):
            net.publish("a", "mine", bytes(SIZE))
        net.advance(11)
        net.publish("a", "mine", bytes(SIZE))


def test_a_failing_disk_costs_what_is_not_durable_and_the_node_goes_on_from_the_rest() -> None:
    with testing.network("a", "b", seed=1, disk_delay_s=1.0) as net:
        net.subscribe("b", "news")
        net.publish("a", "news", b"kept")
        net.advance(2)
        net.publish("a", "news", b"lost")
        net.fail_disk("a")
        net.link("a", "b")
        net.advance(30)
        assert [net.payload("b", each.descriptor) for each in net.deliveries("b")] == [b"kept"]
        assert net.host("a").incarnation == 2
