"""The emulated radio where it is bad or busy: damage, bursts, known ends of links, shared air, nodes that leave."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import pytest
from tests.support.air import MTU, Air, data, datagram_sizes, hello

from carrypost import testing
from carrypost.emu.engine.radio import Burst, LinkModel, gathered
from carrypost.emu.engine.scheduler import Phase
from carrypost.errors import LocalError
from carrypost.gossip.wire.frames import Ack, Data, Frame

RATE = 100_000
SIZE = datagram_sizes([data(0)], MTU)[0]
AIR_US = SIZE * 10
"""Time that such a datagram is on the air at this rate."""


def sent_one_by_one(air: Air, count: int = 500) -> list[Frame]:
    air.radio.link("a", "b")
    frames: list[Frame] = [Data(1, n, n, last=False, body=bytes([n % 256]) * 40) for n in range(count)]
    for frame in frames:
        air.send("a", frame)
        air.run(10)
    air.run()
    return frames


def heard(air: Air, node: str = "b") -> list[Frame]:
    return [frame for _, _, frames in air.heard[node] for frame in frames]


# --- damage ------------------------------------------------------------------------------------------------


def test_of_damaged_datagrams_what_is_not_as_it_was_sent_goes_no_further() -> None:
    air = Air(model=LinkModel(corrupt=0.4))
    frames = sent_one_by_one(air)
    assert heard(air) == [frame for frame in frames if frame in heard(air)]
    damaged = [datagram for _, burst in air.bursts["b"] for datagram in burst if datagram.refused]
    assert len(damaged) == pytest.approx(200, abs=45)
    assert len(heard(air)) + len(damaged) == 500
    assert air.radio.traffic("a", "b").arrived == 500
    assert sum(datagram.refused.get("checksum", 0) for datagram in damaged) > 0
    assert air.radio.refused["frame"] + air.radio.refused["datagram"] > 0


def test_without_a_checksum_damage_may_go_unnoticed() -> None:
    air = Air(model=LinkModel(corrupt=0.4), checked=False)
    frames = sent_one_by_one(air)
    strange = [frame for frame in heard(air) if frame not in frames]
    assert strange
    assert all(isinstance(frame, Data | Ack) for frame in strange)


def test_of_a_damaged_datagram_the_frames_that_are_whole_are_taken() -> None:
    air = Air(model=LinkModel(corrupt=1.0))
    air.radio.link("a", "b")
    for n in range(100):
        air.send("a", *(data(10 * n + k, 20) for k in range(10)))
    air.run()
    assert len(air.heard["b"]) == 100
    found = air.numbers("b")
    assert len(set(found)) == len(found)
    assert 100 < len(found) <= 900
    assert set(heard(air)) <= {data(n, 20) for n in range(1_000)}


def test_of_a_datagram_whose_end_is_cut_off_nothing_is_taken() -> None:
    air = Air(model=LinkModel(truncate=0.3))
    frames = sent_one_by_one(air)
    cut = [datagram for _, burst in air.bursts["b"] for datagram in burst if datagram.refused]
    assert len(cut) == pytest.approx(150, abs=40)
    assert all(not datagram.frames and datagram.size == cut[0].size for datagram in cut[:1])
    assert all(datagram.frames == () for datagram in cut)
    assert heard(air) == [frame for frame in frames if frame in heard(air)]
    assert len(heard(air)) + len(cut) == 500


@pytest.mark.parametrize("fault", ["corrupt", "truncate"])
def test_damage_leaves_the_other_chances_alone(fault: str) -> None:
    fates = []
    for probability in (0.0, 0.5):
        air = Air(model=LinkModel(loss=0.3, reorder=0.2, duplicate=0.2, **{fault: probability}))  # type: ignore[arg-type]
        sent_one_by_one(air, 100)
        fates.append([t_us for t_us, _ in air.bursts["b"]])
    assert fates[0] == fates[1]


@pytest.mark.parametrize("security", ["off", "signed"])
def test_hosts_get_everything_over_a_link_that_damages_datagrams(security: str) -> None:
    with testing.network("a", "b", seed=2, security=security, compress=False, lifetime_s_default=3_600) as net:
        net.subscribe("b", "news")
        payloads = [bytes([n]) * (20 if n % 2 else 5_000) for n in range(40)]
        for payload in payloads:
            net.publish("a", "news", payload)
        # There is no public way to a link like that but a scenario.
        net._radio.link("a", "b", model=LinkModel(corrupt=0.1, truncate=0.1))  # noqa: SLF001
        net.advance(120)
        assert sorted(each.payload for each in net.deliveries("b")) == sorted(payloads)


# --- bursts ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gather_us", "bursts"),
    [(0, [1, 1, 1, 1, 1]), (AIR_US - 1, [1, 1, 1, 1, 1]), (AIR_US, [2, 2, 1]), (2 * AIR_US, [3, 2]), (10**6, [5])],
)
def test_datagrams_close_together_are_handed_over_together_when_the_last_is_there(
    gather_us: int, bursts: list[int]
) -> None:
    air = Air(model=LinkModel(delay_us=10, rate_bytes_per_s=RATE, gather_us=gather_us))
    air.radio.link("a", "b")
    air.send("a", *(data(n) for n in range(5)))
    air.run()
    assert [len(burst) for _, burst in air.bursts["b"]] == bursts
    assert air.numbers("b") == list(range(5))
    last = [sum(bursts[: n + 1]) for n in range(len(bursts))]
    assert [t_us for t_us, _ in air.bursts["b"]] == [10 + count * AIR_US for count in last]


def test_only_datagrams_of_one_transmission_are_handed_over_together() -> None:
    air = Air(model=LinkModel(delay_us=10, rate_bytes_per_s=RATE, gather_us=10**6))
    air.radio.link("a", "b")
    air.send("a", data(0), data(1))
    air.send("a", data(2), data(3))
    air.run()
    assert [len(burst) for _, burst in air.bursts["b"]] == [2, 2]


def test_nothing_is_kept_back_beyond_the_end_of_the_link() -> None:
    air = Air(model=LinkModel(delay_us=10, rate_bytes_per_s=RATE, gather_us=10**6))
    end_us = 10 + 3 * AIR_US
    air.radio.link("a", "b", until_us=end_us)
    air.scheduler.post(end_us, Phase.DOWN, "a", partial(air.radio.unlink, "a", "b"))
    air.send("a", *(data(n) for n in range(5)))
    air.run()
    assert air.numbers("b") == [0, 1]
    traffic = air.radio.traffic("a", "b")
    assert (traffic.arrived, traffic.cut) == (2, 3)


def test_gathering_takes_every_datagram_once_and_in_order() -> None:
    times = [3, 3, 4, 9, 10, 20, 20, 31]
    for gather_us in range(30):
        for until_us in range(35):
            runs = list(gathered(times, gather_us, until_us))
            assert [at for start, stop in runs for at in range(start, stop)] == list(range(len(times)))
            for start, stop in runs:
                assert times[stop - 1] - times[start] <= gather_us
                assert stop - start == 1 or times[stop - 1] < until_us


# --- links whose end is known ------------------------------------------------------------------------------


@pytest.mark.parametrize("model", [LinkModel(), LinkModel(loss=1e-9), LinkModel(rate_bytes_per_s=10**9)])
def test_what_would_arrive_at_the_known_end_of_its_link_or_later_is_lost_at_once(model: LinkModel) -> None:
    air_us = 0 if model.rate_bytes_per_s is None else 1
    for end_us, arrives in ((1_000 + air_us, False), (1_001 + air_us, True)):
        air = Air(model=model)
        air.radio.link("a", "b", until_us=end_us)
        air.send("a", hello())
        traffic = air.radio.traffic("a", "b")
        assert traffic.cut == (not arrives)
        assert len(air.scheduler) == arrives
        air.run()
        assert (len(air.heard["b"]), traffic.arrived) == (arrives, arrives)


def test_a_known_end_does_not_outlive_its_link() -> None:
    air = Air()
    air.radio.link("a", "b", until_us=500)
    air.run(500)
    air.radio.unlink("a", "b")
    air.radio.link("a", "b")
    air.send("a", hello())
    air.run()
    assert len(air.heard["b"]) == 1


# --- shared air --------------------------------------------------------------------------------------------


def times(air: Air, node: str) -> list[int]:
    return [t_us for t_us, _, _ in air.heard[node]]


def shared(names: str = "abc") -> Air:
    return Air(names, model=LinkModel(delay_us=10, rate_bytes_per_s=RATE), airtime="shared")


def test_where_the_air_is_shared_two_neighbours_take_turns() -> None:
    air = shared("ab")
    air.radio.link("a", "b")
    air.send("a", data(0))
    air.send("b", data(1))
    air.send("a", data(2))
    air.run()
    assert times(air, "b") == [10 + AIR_US, 10 + 3 * AIR_US]
    assert times(air, "a") == [10 + 2 * AIR_US]


def test_where_the_air_is_private_they_do_not() -> None:
    air = Air("ab", model=LinkModel(delay_us=10, rate_bytes_per_s=RATE))
    air.radio.link("a", "b")
    air.send("a", data(0))
    air.send("b", data(1))
    air.run()
    assert times(air, "a") == times(air, "b") == [10 + AIR_US]


def test_a_transmission_for_one_neighbour_silences_everybody_who_hears_it() -> None:
    air = shared("abcd")
    for name in "bc":
        air.radio.link("a", name)
    air.radio.link("c", "d")
    air.send("a", data(0), to="b")
    air.send("c", data(1), to="d")
    air.send("d", data(2), to="c")  # Hears `c`, and not `a`, so it waits for `c` only.
    air.run()
    assert times(air, "b") == [10 + AIR_US]
    assert times(air, "d") == [10 + 2 * AIR_US]
    assert times(air, "c") == [10 + 3 * AIR_US]


def test_where_the_air_is_paired_a_transmission_occupies_its_two_ends_alone() -> None:
    air = Air("abcd", model=LinkModel(delay_us=10, rate_bytes_per_s=RATE), airtime="paired")
    for names in ("ab", "ac", "bc", "cd"):
        air.radio.link(*names)
    air.send("a", data(0), to="b")
    air.send("c", data(1), to="d")  # Hears `a`, and need not wait.
    air.send("d", data(2), to="c")  # Both are busy with each other.
    air.send("c", data(3), to="b")  # `c` is busy twice, and `b` once.
    air.run()
    assert times(air, "d") == [10 + AIR_US]
    assert times(air, "c") == [10 + 2 * AIR_US]
    assert times(air, "b") == [10 + AIR_US, 10 + 3 * AIR_US]


def test_a_broadcast_takes_the_air_once_however_many_hear_it() -> None:
    air = shared("abcd")
    for name in "bcd":
        air.radio.link("a", name)
    air.send("a", data(0), data(1))
    air.run()
    assert times(air, "b") == times(air, "c") == times(air, "d") == [10 + AIR_US, 10 + 2 * AIR_US]


def test_what_goes_to_several_goes_at_the_rate_of_the_slowest() -> None:
    air = shared("abc")
    air.radio.link("a", "b")
    air.radio.link("a", "c", model=LinkModel(delay_us=10, rate_bytes_per_s=RATE // 2))
    air.send("a", data(0))
    air.send("a", data(1), to="b")
    air.run()
    assert (times(air, "b"), times(air, "c")) == ([10 + 2 * AIR_US, 10 + 3 * AIR_US], [10 + 2 * AIR_US])


def test_those_who_do_not_hear_each_other_send_at_once() -> None:
    air = shared("abcd")
    air.radio.link("a", "b")
    air.radio.link("c", "d")
    air.send("a", data(0))
    air.send("c", data(1))
    air.run()
    assert times(air, "b") == times(air, "d") == [10 + AIR_US]


@pytest.mark.parametrize(("airtime", "share"), [("private", 1.0), ("paired", 0.5), ("shared", 0.5)])
def test_a_node_that_relays_halves_its_channel_unless_airtime_is_private(airtime: str, share: float) -> None:
    def passed_on(chain: str) -> int:
        """Bytes that reached the end of the chain in ten seconds; a few are under way at any time."""
        air = Air("", model=LinkModel(delay_us=10, rate_bytes_per_s=RATE), airtime=airtime)  # type: ignore[arg-type]
        arrived = 0

        def take(at: int, burst: Burst, _peer: str) -> None:
            nonlocal arrived
            for datagram in burst:
                if at < len(chain) - 1:
                    air.send(chain[at], *datagram.frames, to=chain[at + 1])
                else:
                    arrived += datagram.size
                    air.send(chain[0], data(0), to=chain[1])

        for at, name in enumerate(chain):
            air.radio.add(name, partial(take, at))
        for near, far in pairwise(chain):
            air.radio.link(near, far)
        for _ in range(4):
            air.send(chain[0], data(0), to=chain[1])
        air.run(10_000_000)
        return arrived

    assert passed_on("ab") == pytest.approx(10 * RATE, rel=0.02)
    assert passed_on("abc") == pytest.approx(share * passed_on("ab"), rel=0.05)


# --- nodes that leave --------------------------------------------------------------------------------------


def test_a_node_that_left_is_not_known_any_more_and_may_come_again() -> None:
    air = Air()
    air.radio.link("a", "b")
    air.radio.link("b", "c")
    air.send("b", hello("b"))
    air.run(500)
    for name in "ac":
        air.radio.unlink("b", name)
    air.radio.remove("b")
    air.run()
    assert air.heard["a"] == air.heard["c"] == []
    with pytest.raises(LocalError, match="no node 'b'"):
        air.radio.link("a", "b")
    air.send("a", hello("a"), to="b")
    air.add("b")
    air.radio.link("a", "b")
    assert (air.radio.traffic("a", "b").datagrams, air.radio.sent("b").datagrams) == (0, 0)
    air.send("a", hello("a"))
    air.run()
    assert len(air.heard["b"]) == 1


def test_those_who_stay_keep_what_they_had() -> None:
    air = Air()
    air.radio.link("a", "b")
    air.radio.link("a", "c")
    air.send("a", hello())
    air.run()
    air.radio.unlink("a", "c")
    air.radio.remove("c")
    assert air.radio.sent("a").datagrams == 1
    assert air.radio.traffic("a", "b").datagrams == 1
    air.send("a", hello())
    air.run()
    assert len(air.heard["b"]) == 2
