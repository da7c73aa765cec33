"""JOMS-15 figure 3 as a script: two hosts that sleep at different times, and exchange once both are awake (N15).

H2 publishes a to j while it has no neighbour <1> and suspends <2>. H1 subscribes <3> and announces alone <4>. H2
resumes <5>, hears an announcement <6>, offers <7>, H1 requests <8>, H2 sends <9>, H1 hands each message to its handler
<10> and acknowledges <11>. The same runs in the other direction, and may be cut anywhere.
"""

from __future__ import annotations

import pytest

from carrypost import testing

TO_H1 = [f"{letter}" for letter in "abcdefghij"]
TO_H2 = [f"{letter}" for letter in "uvw"]
STEP_S = 0.0005
anywhere = pytest.mark.parametrize("every", [7, pytest.param(1, marks=pytest.mark.soak)])
"""Interrupt after every seventh datagram; in soaks after each one."""


def labels(net: testing.Network, node: str) -> list[str]:
    return [delivery.descriptor.label for delivery in net.deliveries(node)]


def arrived(net: testing.Network) -> int:
    return net.traffic("h1", "h2").arrived + net.traffic("h2", "h1").arrived


def until_both_are_awake(net: testing.Network) -> None:
    """<1> to <5>."""
    net.subscribe("h2", "for-h2")
    for label in TO_H1:
        net.publish("h2", "for-h1", label.encode() * 300, label=label)
    net.advance(10)
    assert net.deliveries("h2") == []
    net.suspend("h2")
    net.advance(60)
    net.add("h1")
    net.link("h1", "h2")
    net.subscribe("h1", "for-h.")
    for label in TO_H2:
        net.publish("h1", "for-h2", label.encode(), label=label)
    net.advance(60)
    assert net.traffic("h1", "h2").frames["Announce"] > 5
    assert net.traffic("h2", "h1").datagrams == 0
    net.resume("h2")


def finish(net: testing.Network) -> None:
    net.advance(60)
    assert sorted(labels(net, "h1")) == sorted(TO_H1 + TO_H2)
    assert sorted(labels(net, "h2")) == TO_H2


@pytest.mark.parametrize("paper_mode", [False, True])
def test_the_scene_plays_as_in_the_figure(paper_mode: bool) -> None:
    with testing.network("h2", paper_mode=paper_mode) as net:
        until_both_are_awake(net)
        finish(net)
        there, back = net.traffic("h2", "h1").frames, net.traffic("h1", "h2").frames
        assert there["Announce"]
        assert there["Offer"]
        assert back["Request"]
        assert (there["Parcel"], back["Parcel"]) == (len(TO_H1), len(TO_H2))
        assert back["Ack"] >= (len(TO_H1) if paper_mode else 1)


def test_the_handler_is_called_for_each_message_in_the_order_of_publication() -> None:
    with testing.network("h2") as net:
        until_both_are_awake(net)
        finish(net)
        assert [label for label in labels(net, "h1") if label in TO_H1] == TO_H1


@pytest.mark.parametrize("loss", [0.0, 0.3])
def test_in_paper_mode_each_message_is_acknowledged_before_the_next_goes_out(loss: float) -> None:
    with testing.network("h2", paper_mode=True, delay_s=0.02, loss=loss) as net:
        until_both_are_awake(net)
        seen = 0
        for _ in range(round(60 / 0.01)):
            acknowledged = net.traffic("h1", "h2").frames["Ack"]
            net.advance(0.01)
            sent = net.traffic("h2", "h1").frames["Parcel"]
            # No step is as long as the way there and back, so what went out in it is at most one new message,
            # and one that goes out for the first time has all before it acknowledged.
            assert sent - seen <= 1
            if not loss:
                assert sent <= acknowledged + 1
            seen = sent
        finish(net)


def test_without_paper_mode_many_are_on_their_way_at_once() -> None:
    with testing.network("h2", delay_s=0.02) as net:
        until_both_are_awake(net)
        while not net.traffic("h2", "h1").frames["Parcel"]:
            net.advance(STEP_S)
        assert net.traffic("h2", "h1").frames["Parcel"] == len(TO_H1)
        assert net.traffic("h1", "h2").frames["Ack"] == 0


def datagrams(paper_mode: bool) -> int:
    with testing.network("h2", paper_mode=paper_mode, rate_bytes_per_s=100_000) as net:
        until_both_are_awake(net)
        while len(net.deliveries("h1")) + len(net.deliveries("h2")) < len(TO_H1) + 2 * len(TO_H2):
            net.advance(STEP_S)
        net.advance(0.1)
        return arrived(net)


@anywhere
@pytest.mark.parametrize("paper_mode", [False, True])
@pytest.mark.parametrize("pause_s", [0.0, 0.4, 60.0])
def test_cut_after_any_datagram_nothing_wedges(paper_mode: bool, pause_s: float, every: int) -> None:
    for count in range(1, datagrams(paper_mode) + 1, every):
        with testing.network("h2", paper_mode=paper_mode, rate_bytes_per_s=100_000) as net:
            until_both_are_awake(net)
            while arrived(net) < count:
                net.advance(STEP_S)
            net.unlink("h1", "h2")
            net.advance(pause_s)
            net.link("h1", "h2")
            finish(net)


@anywhere
@pytest.mark.parametrize("paper_mode", [False, True])
@pytest.mark.parametrize("sleeper", ["h1", "h2"])
def test_either_host_may_fall_asleep_after_any_datagram(paper_mode: bool, sleeper: str, every: int) -> None:
    for count in range(1, datagrams(paper_mode) + 1, every):
        with testing.network("h2", paper_mode=paper_mode, rate_bytes_per_s=100_000) as net:
            until_both_are_awake(net)
            while arrived(net) < count:
                net.advance(STEP_S)
            net.suspend(sleeper)
            net.advance(40)
            net.resume(sleeper)
            finish(net)


@anywhere
@pytest.mark.parametrize("victim", ["h1", "h2"])
def test_either_host_may_crash_after_any_datagram(victim: str, every: int) -> None:
    for count in range(1, datagrams(False) + 1, every):
        with testing.network("h2", rate_bytes_per_s=100_000) as net:
            until_both_are_awake(net)
            while arrived(net) < count:
                net.advance(STEP_S)
            net.kill(victim)
            net.restart(victim)
            finish(net)


@anywhere
@pytest.mark.parametrize(("sender", "receiver"), [("h1", "h2"), ("h2", "h1")])
def test_one_direction_may_fail_after_any_datagram(sender: str, receiver: str, every: int) -> None:
    for count in range(1, datagrams(False) + 1, every):
        with testing.network("h2", rate_bytes_per_s=100_000) as net:
            until_both_are_awake(net)
            while arrived(net) < count:
                net.advance(STEP_S)
            net.unlink(sender, receiver, one_way=True)
            net.advance(0.5)
            net.link(sender, receiver, one_way=True)
            finish(net)
