"""Many small messages along one path: none waits for another for ever, and all are acknowledged as they arrive."""

from __future__ import annotations

from tests.support.hostile import message, scene
from tests.support.islands import Islands, S

from carrypost.gossip.holdings.cache import CopyState
from carrypost.gossip.wire.frames import ACKED_IDS_MAX
from carrypost.model.ids import NodeId


def stream(islands: Islands, count: int) -> None:
    """Let the first host of a line send messages to the last, which comes into reach only then."""
    islands.line("abc")
    islands.net.subscribe("d", "news")
    for _ in range(count):
        islands.net.publish("a", "news", b"small", recipients=["d"])
    islands.net.advance(1)
    islands.link("cd")
    islands.net.advance(4)
    assert sum(islands.delivered("d").values()) == count
    assert islands.copies() == {}


def test_what_is_pushed_is_taken_while_as_much_is_asked_for_as_may_be() -> None:
    """Otherwise requested messages would wait behind it for ever."""
    with Islands("abcd", limits={"offers_open_max": 5}) as islands:
        stream(islands, 2_060)


def test_a_parcel_needs_no_place_among_what_is_asked_for() -> None:
    with scene(limits={"offers_open_max": 3}) as stage:
        mallory = stage.attacker("b")
        promised = [message(mallory.identity, bytes([number])) for number in range(5)]
        for number, each in enumerate(promised, 1):
            mallory.say("b", mallory.offer(each, number))
        assert stage.refused() == {"offers-open": 2}
        given = message(mallory.identity, b"unasked")
        mallory.say("b", mallory.parcel(given, 9))
        assert stage.refused() == {"offers-open": 2}
        assert stage.net.host("b").state_of(given.descriptor.id) is CopyState.FINISHED


def test_who_acknowledges_many_messages_is_not_muted() -> None:
    """Check with ten records of acknowledgements, while a neighbour may waste the work of four."""
    with Islands("abcd", security="signed", limits={"link_waste_per_s": 600}) as islands:
        stream(islands, 300)
        assert not islands.net.host("a").overview().refused


def test_full_records_of_acknowledgements_do_not_wait_for_each_other() -> None:
    with Islands("abc") as islands:
        net = islands.net
        islands.line()
        net.subscribe("c", "news")
        net.advance(3)
        for count, left in ((1, 0), (200, 200 % ACKED_IDS_MAX)):
            for _ in range(count):
                net.publish("a", "news", b"small", recipients=["c"])
            net.advance(0.4)
            assert len(net.host("a").awaited()) == left
        net.advance(1)
        assert net.host("a").awaited() == {}


def test_a_link_that_is_back_is_used_at_once() -> None:
    """Ends avoid a link over which nothing could go, for a minute if it stays away."""
    with Islands("abcd", announce_s_max=1.0) as islands:
        net, routes = islands.net, islands.island("a").routes
        islands.line()
        net.subscribe("d", "news")
        net.advance(3)
        net.unlink("a", "b")
        net.advance(10)
        first = net.publish("a", "news", b"", recipients=["d"])
        assert routes.path(NodeId("d"), round(net.now * S)) is None
        net.link("a", "b")
        net.advance(3)
        assert routes.path(NodeId("d"), round(net.now * S)) == ("b", "c", "d")
        second = net.publish("a", "news", b"", recipients=["d"])
        net.advance(4)
        assert islands.delivered("d") == {first: 1, second: 1}
