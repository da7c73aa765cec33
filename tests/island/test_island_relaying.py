"""Relays pass datagrams of others on, lead them round, report or refuse them, within bounds, and believe nothing."""

from __future__ import annotations

from collections import Counter

import pytest
from tests.support.frames import EIGHT, RECEIVED
from tests.support.islands import Islands, S

from carrypost.config import Limits
from carrypost.gossip.wire import codec
from carrypost.gossip.wire import frames as fr
from carrypost.model.ids import MessageId, NodeId, node_prefix

ACK = codec.datagrams([fr.Ack(1, b"\x01")], 1_200)[0]


def path(names: str) -> bytes:
    return b"".join(node_prefix(NodeId(name)) for name in names)


class Stage(Islands):
    """A line of hosts; the relay frames of one of them are noted."""

    def __init__(self, names: str = "abcd", **options: object) -> None:
        super().__init__(names, **options)
        self.refusals: Counter[str] = Counter()

    def begin(self) -> None:
        self.line()
        self.net.advance(3)

    def relays(self, name: str) -> int:
        return self.net.sent(name).frames["Relay"]

    def refused_by(self, name: str, *frames: fr.Frame, peer: str) -> dict[str, int]:
        """Give a host frames of a neighbour; return its refusals by reason."""
        before = Counter(self.net.host(name).overview().refused)
        self.net.inject(name, frames, peer)
        self.net.advance(0)
        return dict(Counter(self.net.host(name).overview().refused) - before)


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (fr.Relay(path("abcd"), 2, b"", ACK), "path"),  # It is not the host at that place.
        (fr.Relay(path("cbd"), 1, b"", ACK), "path"),  # The neighbour is not the one before.
        (fr.Relay(path("xab"), 2, b"", ACK), "path"),  # From a stranger.
        (fr.Relay(path("yxab"), 3, b"", ACK), "path"),
        (fr.Relay(path("ab"), 1, b"", codec.datagrams([fr.Relay(path("ab"), 1, b"", ACK)], 1_200)[0]), "relay"),
        (fr.Relay(path("ab"), 1, b"", codec.datagrams([fr.ProfileRequest(EIGHT)], 1_200)[0]), "relay"),
        (fr.Relay(path("ab"), 1, b"", b"CP\x01\x91\x92\x7f\x00"), "kind"),
        (fr.Relay(path("ab"), 1, b"", b"rubbish"), "magic"),
        (fr.Relay(path("ab"), 1, path("ac")), "broken"),  # No route leads there.
        (fr.Relay(path("ab"), 1, path("cd")), "broken"),  # Not an end of that link.
        (fr.Relay(path("a" + "".join(map(chr, range(200, 215))) + "b"), 16, b"", ACK), "path"),
    ],
)
def test_what_does_not_belong_on_a_path_is_refused(frame: fr.Relay, reason: str) -> None:
    with Stage() as stage:
        stage.begin()
        sent = stage.relays("b")
        assert stage.refused_by("b", frame, peer="a") == {reason: 1}
        assert stage.relays("b") == sent
        assert stage.refused_by("b", fr.Relay(path("abc"), 1, b"", ACK), peer="a") == {}
        assert stage.relays("b") == sent + 1


@pytest.mark.parametrize(
    "frame",
    [
        fr.Relay(path("aba"), 1, b"", b"x"),
        fr.Relay(path("ab")[:-1], 1, b"", b"x"),
        fr.Relay(path("ab"), 2, b"", b"x"),
        fr.Relay(path("ab"), 1, b"1234", b"x"),
        fr.Relay(path("ab"), 1),
        fr.Relay(path("a"), 0, b"", b"x"),
        fr.Relay(bytes(range(256)) + bytes(range(100, 110)), 1, b"", b"x"),
    ],
)
def test_a_relay_that_makes_no_sense_is_not_decoded(frame: fr.Relay) -> None:
    decoded = codec.decode(codec.datagrams([frame], 1_200)[0], Limits())
    assert decoded.frames == []
    assert decoded.refused == {"frame": 1}


def test_the_size_of_an_open_relay_is_that_of_its_bytes() -> None:
    for inner in ((RECEIVED[0],), tuple(RECEIVED[:-1]), (fr.BlankData(1, 2, 3, False, 1_000),) * 20):
        frame = fr.OpenRelay(inner, path("abcde"), 3, path("bc"))
        assert codec.wire_size(frame) == len(codec.encode(frame))


def test_no_more_is_passed_on_for_a_neighbour_than_may_be() -> None:
    with Stage(limits={"link_relay_bytes_per_s": 10_000}) as stage:
        stage.begin()
        relay = fr.Relay(path("abc"), 1, b"", bytes(1_000))
        refused = [stage.refused_by("b", relay, peer="a") for _ in range(40)]
        assert 18 <= refused.count({}) <= 20
        assert refused[-1] == {"relayed": 1}
        stage.net.advance(1)
        assert stage.refused_by("b", relay, peer="a") == {}
        assert stage.refused_by("b", fr.Relay(path("cba"), 1, b"", bytes(1_000)), peer="c") == {}
        assert stage.island("b").relaying.relayed_bytes < 25_000


def test_a_relay_that_cannot_go_on_is_led_round_once() -> None:
    """Check that the relay before a broken link is informed, and not the sender."""
    with Stage("abcde", announce_s_max=1.0) as stage:
        stage.link("ab", "bc", "cd", "be", "ed")
        stage.net.subscribe("d", "news")
        stage.net.advance(3)
        stage.net.unlink("b", "c")
        stage.net.unlink("c", "d")
        stage.net.advance(7)  # The neighbours notice; the island is told nothing.
        message = stage.net.publish("a", "news", bytes(100_000), recipients=["d"])
        stage.net.advance(2)
        assert stage.delivered("d") == {message: 1}
        assert {event.path for name, event in stage.received if name == "d"} == {("b", "e")}
        assert stage.island("a").relaying.relayed_bytes == 0


def test_what_cannot_be_led_round_is_reported_and_the_link_avoided() -> None:
    """There is a longer way that only the sender can take."""
    with Stage("abcdef", announce_s_max=1.0) as stage:
        stage.link("ab", "bc", "cd", "ae", "ef", "fd")
        stage.net.subscribe("d", "news")
        stage.net.advance(3)
        stage.net.unlink("b", "c")
        stage.net.advance(7)
        message = stage.net.publish("a", "news", bytes(100_000), recipients=["d"])
        stage.net.advance(3)
        assert stage.delivered("d") == {message: 1}
        assert {event.path for name, event in stage.received if name == "d"} == {("e", "f")}
        assert stage.island("a").routes.path(NodeId("d"), round(stage.net.now * S)) == ("e", "f", "d")
        assert stage.copies() == {}


def test_no_relay_visits_a_host_twice() -> None:
    """Check a ring in which links vanish one after the other, unknown to all but their ends."""
    with Stage("abcdef", announce_s_max=1.0) as stage:
        stage.link("ab", "bc", "cd", "de", "ef", "fa")
        stage.net.subscribe("d", "news")
        stage.net.advance(3)
        visited: list[bytes] = []
        for name in stage.names:
            island = stage.island(name)
            take = island.relaying.handlers[fr.OpenRelay]

            def watched(link: object, frames: list[fr.OpenRelay], now: int, take: object = take) -> object:
                visited.extend(frame.path for frame in frames)
                return take(link, frames, now)  # type: ignore[operator]

            stage.net.host(name)._links.handlers[fr.OpenRelay] = watched  # noqa: SLF001 - to see what passes
        for pair in ("cd", "ab", "de"):
            stage.net.publish("a", "news", bytes(20_000), recipients=["d"])
            stage.net.advance(0.01)
            stage.net.unlink(*pair)
            stage.net.advance(4)
        assert len(visited) > 50
        for found in visited:
            hosts = [found[at : at + 4] for at in range(0, len(found), 4)]
            assert len(set(hosts)) == len(hosts) <= 17


def test_a_false_report_of_a_broken_link_moves_a_route_and_nothing_else() -> None:
    with Stage("abcde") as stage:
        stage.link("ab", "bc", "cd", "ae", "ed")
        stage.net.subscribe("c", "news")
        stage.net.advance(3)
        stage.net.publish("a", "news", bytes(10), recipients=["c"])
        stage.net.advance(1)
        lie = fr.Relay(path("ba"), 1, path("bc"))
        assert stage.refused_by("a", lie, peer="e") == {"path": 1}
        assert stage.refused_by("a", lie, peer="b") == {}
        assert stage.refused_by("a", lie, peer="b") == {"broken": 1}
        now = round(stage.net.now * S)
        assert stage.island("a").routes.path(NodeId("c"), now) == ("e", "d", "c")
        assert stage.island("a").routes.path(NodeId("c"), now + 60 * S) == ("b", "c")


def test_there_are_no_more_routes_than_may_be_and_idle_ones_close() -> None:
    with Stage("abcdef", routes_max=2) as stage:
        stage.line()
        for name in "cdef":
            stage.net.subscribe(name, "news")
        stage.net.advance(3)
        for name in "cdef":
            stage.net.publish("a", "news", bytes(10), recipients=[name])
            stage.net.advance(1)
            assert len(stage.island("a").relaying) <= 2
        assert [sum(stage.delivered(name).values()) for name in "cdef"] == [1, 1, 1, 1]
        for name in "cdef":
            stage.net.publish("a", "news", bytes(200_000), recipients=[name])
        stage.net.advance(30)
        assert [sum(stage.delivered(name).values()) for name in "cdef"] == [2, 2, 2, 2]
        stage.net.advance(70)
        assert len(stage.island("a").relaying) == 0
        assert not [link for link in stage.net.host("a")._links if link.route]  # noqa: SLF001


def offered(names: str, handle: int = 1) -> fr.Relay:
    """Return a datagram at the end of its path, with an offer of a message that nobody has."""
    offer = fr.Offer(handle, (fr.OfferEntry(MessageId(bytes([handle]) * 16), handle, 100, 0),))
    return fr.Relay(path(names), len(names) - 1, b"", codec.datagrams([offer], 1_200)[0])


def test_a_route_over_which_something_was_offered_and_never_sent_is_closed() -> None:
    with Stage(altruistic=True) as stage:
        stage.begin()
        assert stage.refused_by("b", offered("dcb"), peer="c") == {}
        assert len(stage.island("b").relaying) == 1
        stage.net.advance(30)
        assert len(stage.island("b").relaying) == 1
        stage.net.advance(90)
        assert len(stage.island("b").relaying) == 0


def test_a_route_over_which_a_message_is_requested_makes_no_room_for_another() -> None:
    with Stage(altruistic=True, routes_max=1) as stage:
        stage.begin()
        assert stage.refused_by("a", offered("cba"), offered("dcba"), peer="b") == {"routes": 1}
        stage.net.advance(1)
        assert stage.refused_by("a", offered("dcba"), peer="b") == {"routes": 1}
        stage.net.advance(40)
        assert stage.refused_by("a", offered("dcba"), peer="b") == {}
