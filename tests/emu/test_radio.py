"""The emulated radio: reach, delay, loss, duplication, order, rate, and counters."""

from __future__ import annotations

import random
from functools import partial

import pytest
from tests.support.air import MTU, Air, data, datagram_sizes, hello

from carrypost.emu.engine.radio import LinkModel
from carrypost.emu.engine.scheduler import Phase
from carrypost.errors import LocalError, StateError
from carrypost.gossip.wire import codec
from carrypost.gossip.wire.frames import Ack, BlankData, Data, Frame


def test_a_broadcast_reaches_everyone_linked_and_nobody_else() -> None:
    air = Air("abcd")
    air.radio.link("a", "b")
    air.radio.link("c", "a")
    air.send("a", hello())
    air.run()
    assert air.heard["b"] == air.heard["c"] == [(1_000, "a", (hello(),))]
    assert air.heard["d"] == air.heard["a"] == []


def test_a_frame_for_one_neighbour_is_not_heard_by_the_others() -> None:
    air = Air()
    air.radio.link("a", "b")
    air.radio.link("a", "c")
    air.send("a", hello(), to="c")
    air.run()
    assert (len(air.heard["b"]), len(air.heard["c"])) == (0, 1)


def test_a_frame_for_somebody_out_of_reach_is_lost_without_an_error() -> None:
    air = Air()
    air.send("a", hello(), to="b")
    air.run()
    assert air.heard["b"] == []
    assert air.radio.sent("a").datagrams == 1


def test_a_one_way_link_carries_one_way() -> None:
    air = Air()
    air.radio.link("a", "b", one_way=True)
    air.send("a", hello("a"))
    air.send("b", hello("b"))
    air.run()
    assert (len(air.heard["b"]), len(air.heard["a"])) == (1, 0)
    assert air.radio.linked("a", "b")
    assert not air.radio.linked("b", "a")
    air.radio.link("b", "a", one_way=True)
    air.send("b", hello("b"))
    air.run()
    assert len(air.heard["a"]) == 1


def test_ending_one_direction_leaves_the_other() -> None:
    air = Air()
    air.radio.link("a", "b")
    air.radio.unlink("a", "b", one_way=True)
    assert (air.radio.linked("a", "b"), air.radio.linked("b", "a")) == (False, True)
    air.radio.unlink("a", "b")
    assert not air.radio.linked("b", "a")


def test_wrong_links_are_refused_and_change_nothing() -> None:
    air = Air()
    air.radio.link("a", "b", one_way=True)
    with pytest.raises(StateError, match="'a' and 'b' are linked already"):
        air.radio.link("b", "a")
    assert not air.radio.linked("b", "a")
    with pytest.raises(LocalError, match="to itself"):
        air.radio.link("a", "a")
    with pytest.raises(LocalError, match="no node 'x'"):
        air.radio.link("a", "x")
    with pytest.raises(StateError, match="'a' and 'c' are not linked"):
        air.radio.unlink("a", "c")
    with pytest.raises(StateError, match="a node 'a' already"):
        air.radio.add("a", lambda _burst, _peer: None)


def test_a_datagram_that_would_arrive_at_the_end_of_its_link_is_lost() -> None:
    for end_us, arrives in ((1_000, False), (1_001, True)):
        air = Air()
        air.radio.link("a", "b")
        air.scheduler.post(end_us, Phase.DOWN, "a", partial(air.radio.unlink, "a", "b"))
        air.send("a", hello())
        air.run()
        assert bool(air.heard["b"]) is arrives
        assert (air.radio.traffic("a", "b").cut, air.radio.traffic("a", "b").arrived) == (
            1 - arrives,
            arrives,
        )


def test_a_datagram_does_not_arrive_over_the_next_link_of_the_same_pair() -> None:
    air = Air()
    air.radio.link("a", "b")
    air.send("a", hello())
    air.run(500)
    air.radio.unlink("a", "b")
    air.radio.link("a", "b")
    air.run()
    assert air.heard["b"] == []


def test_frames_are_cut_into_datagrams_as_the_codec_does() -> None:
    chance = random.Random(5)
    for _ in range(50):
        frames = [data(n, chance.choice((0, 3, 200, 900, 1_300))) for n in range(chance.randrange(60))]
        air = Air()
        air.radio.link("a", "b")
        air.send("a", *frames)
        air.run()
        heard = [frames for _, _, frames in air.heard["b"]]
        sizes = [len(datagram) for datagram in codec.datagrams(frames, MTU)]
        assert [frame for datagram in heard for frame in datagram] == frames
        assert [datagram_sizes(datagram, MTU) for datagram in heard] == [[size] for size in sizes]
        assert air.radio.traffic("a", "b").bytes == sum(sizes)


def test_more_small_frames_than_a_datagram_may_have_are_cut_as_the_codec_does() -> None:
    frames = [Ack(n, b"") for n in range(1_100)]
    air = Air()
    air.radio.link("a", "b")
    air.radio.send("a", frames, None, 65_507)
    air.run()
    assert [len(datagram) for _, _, datagram in air.heard["b"]] == [512, 512, 76]
    assert air.radio.sent("a").bytes == sum(datagram_sizes(frames, 65_507))


def test_loss_strikes_whole_datagrams_at_about_its_probability() -> None:
    air = Air(model=LinkModel(loss=0.3))
    air.radio.link("a", "b")
    for n in range(0, 4_000, 2):
        air.send("a", data(n, 100), data(n + 1, 100))
    air.run()
    numbers = air.numbers("b")
    assert all(even + 1 == odd for even, odd in zip(numbers[::2], numbers[1::2], strict=True))
    traffic = air.radio.traffic("a", "b")
    assert traffic.lost == pytest.approx(600, abs=80)
    assert traffic.lost + traffic.arrived == traffic.datagrams == 2_000


def test_duplicates_arrive_in_addition() -> None:
    air = Air(model=LinkModel(duplicate=1.0))
    air.radio.link("a", "b")
    air.send("a", data(7))
    air.run()
    assert air.numbers("b") == [7, 7]
    assert air.radio.traffic("a", "b").arrived == 2


def test_reordered_datagrams_are_overtaken_and_none_is_lost() -> None:
    air = Air(model=LinkModel(reorder=0.2, reorder_us=50_000))
    air.radio.link("a", "b")
    for n in range(200):
        air.send("a", data(n))
        air.run(1_000)
    air.run()
    numbers = air.numbers("b")
    assert sorted(numbers) == list(range(200))
    assert numbers != list(range(200))


def test_without_reordering_datagrams_arrive_in_the_order_of_sending() -> None:
    air = Air(model=LinkModel(loss=0.2))
    air.radio.link("a", "b")
    air.send("a", *(data(n) for n in range(200)))
    air.run()
    numbers = air.numbers("b")
    assert numbers == sorted(numbers)


def test_a_rate_makes_datagrams_queue_for_the_link() -> None:
    air = Air(model=LinkModel(delay_us=10, rate_bytes_per_s=100_000))
    air.radio.link("a", "b")
    air.send("a", data(0), data(1), data(2))
    size = datagram_sizes([data(0)], MTU)[0]
    air.run(100_000)
    times = [t_us for t_us, _, _ in air.heard["b"]]
    assert times == [10 + (n + 1) * size * 10 for n in range(3)]
    air.send("a", data(3))
    air.run()
    assert air.heard["b"][-1][0] == 100_000 + 10 + size * 10


def test_a_link_may_differ_from_the_others() -> None:
    air = Air()
    air.radio.link("a", "b", model=LinkModel(delay_us=5))
    air.radio.link("a", "c")
    air.send("a", hello())
    air.run()
    assert (air.heard["b"][0][0], air.heard["c"][0][0]) == (5, 1_000)


def test_one_more_node_does_not_disturb_the_chance_of_the_others() -> None:
    def outcome(*, with_third: bool) -> list[tuple[int, str, tuple[Frame, ...]]]:
        air = Air("ab", model=LinkModel(loss=0.3, duplicate=0.2, reorder=0.2))
        if with_third:
            air.add("c")
            air.radio.link("c", "a")
            air.radio.link("c", "b")
        air.radio.link("a", "b")
        for n in range(100):
            if with_third:
                air.send("c", hello("c"))
            air.send("a", data(n))
            air.run(500)
        air.run()
        return [entry for entry in air.heard["b"] if entry[1] == "a"]

    assert outcome(with_third=True) == outcome(with_third=False)


def test_the_same_seed_gives_the_same_fate_and_another_seed_another() -> None:
    def outcome(seed: int) -> list[int]:
        air = Air(seed=seed, model=LinkModel(loss=0.5))
        air.radio.link("a", "b")
        air.send("a", *(data(n) for n in range(100)))
        air.run()
        return air.numbers("b")

    assert outcome(1) == outcome(1)
    assert outcome(1) != outcome(2)


def test_a_pair_that_meets_again_goes_on_with_its_chance() -> None:
    air = Air(model=LinkModel(loss=0.5))
    fates = []
    for _ in range(2):
        air.radio.link("a", "b")
        air.send("a", *(data(n) for n in range(50)))
        air.run()
        fates.append(air.numbers("b"))
        air.heard["b"].clear()
        air.radio.unlink("a", "b")
    assert fates[0] != fates[1]


def test_through_their_bytes_frames_arrive_equal_and_blanks_as_zeros() -> None:
    sent: list[Frame] = [hello(), data(1, 50), Ack(3, b"\x01"), BlankData(1, 2, 3, last=True, length=40)]
    for encoded in (False, True):
        air = Air(encoded=encoded)
        air.radio.link("a", "b")
        air.send("a", *sent)
        air.run()
        (_, _, heard) = air.heard["b"][0]
        blank = Data(1, 2, 3, last=True, body=bytes(40)) if encoded else sent[3]
        assert heard == (*sent[:3], blank)
        assert not air.radio.refused


def test_what_is_sent_is_counted_per_direction_and_per_node_by_kind() -> None:
    air = Air()
    air.radio.link("a", "b")
    air.radio.link("a", "c")
    air.send("a", hello(), data(1, 10), data(2, 10))
    air.send("a", data(3, 10), to="b")
    air.run()
    near, far, sent = air.radio.traffic("a", "b"), air.radio.traffic("a", "c"), air.radio.sent("a")
    assert (near.frames, far.frames) == ({"Announce": 1, "Data": 3}, {"Announce": 1, "Data": 2})
    assert (sent.datagrams, sent.frames) == (2, {"Announce": 1, "Data": 3})
    assert sent.frame_bytes["Data"] == sum(codec.wire_size(data(n, 10)) for n in (1, 2, 3))
    assert sent.bytes == near.bytes == sum(sent.frame_bytes.values()) + 2 * codec.datagram_overhead(1)
    assert air.radio.traffic("b", "a").datagrams == 0


def test_what_is_sent_need_not_be_counted_for_each_link() -> None:
    air = Air(by_link=False)
    air.radio.link("a", "b")
    air.send("a", hello(), data(1, 10))
    air.run()
    near, sent = air.radio.traffic("a", "b"), air.radio.sent("a")
    assert sent.frames == {"Announce": 1, "Data": 1}
    assert (near.frames, near.datagrams, near.bytes, near.arrived) == ({}, 0, 0, 1)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("loss", 1.5),
        ("duplicate", -0.1),
        ("reorder", 2),
        ("corrupt", 1.1),
        ("truncate", -1),
        ("delay_us", -1),
        ("reorder_us", 0),
        ("gather_us", -1),
        ("rate_bytes_per_s", 0),
        ("rate_bytes_per_s", 1.5),
    ],
)
def test_a_link_that_cannot_be_is_refused(name: str, value: float) -> None:
    with pytest.raises(LocalError, match=name):
        LinkModel(**{name: value})  # type: ignore[arg-type]
