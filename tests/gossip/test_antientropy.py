"""The strategy `anti-entropy`: lists, what each side sends upon them, full buffers, mixed networks, losses, lies."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.examples import examples

from carrypost import testing
from carrypost.config import Limits, parse
from carrypost.emu.engine.network import Network
from carrypost.errors import ConfigError, StateError
from carrypost.gossip.strategy import lists
from carrypost.gossip.wire import codec
from carrypost.gossip.wire.frames import Frame, Missing, OpenParcel, Summary, packed
from carrypost.log.events import Dropped, Event, Reason, Received
from carrypost.model.descriptor import Descriptor, PayloadCodec

SIZES = (*[0, 10, 1_000, 3_000] * 3, 20_000)
OTHERS: list[dict[str, Any]] = [
    {"strategy": "anti-entropy"},
    {"altruistic": True},
    {"altruistic": True, "paper_mode": True},
    {"strategy": "anti-entropy", "push_bytes_max": 0},
]


def held(net: Network, node: str) -> set[str]:
    """Return the labels of complete messages at a node."""
    return {copy.descriptor.label for copy in net.host(node)._holdings.known_copies() if copy.whole}  # noqa: SLF001


def frames(net: Network, *kinds: str) -> list[int]:
    """Count the frames of these kinds that `a` and `b` sent."""
    total = sum((Counter(net.sent(name).frames) for name in "ab"), Counter[str]())
    return [total[kind] for kind in kinds]


def meeting(net: Network, count: int = 30, size: int = 20) -> None:
    """Let `a` and `b` meet, each with this many messages, a third of them in common."""
    net.link("a", "b")
    net.advance(5)
    for number in range(count // 3):
        net.publish("a", "news", bytes(size), label=f"both{number}")
    net.advance(20)
    net.unlink("a", "b")
    net.advance(40)
    for node in "ab":
        for number in range(count - count // 3):
            net.publish(node, "news", bytes(size), label=f"{node}{number}")
    net.advance(1)


def test_each_sends_what_the_other_lacks_and_nothing_is_offered_or_asked_for() -> None:
    with testing.network("a", "b", seed=1, strategy="anti-entropy") as net:
        meeting(net)
        before = frames(net, "Summary", "Missing", "Parcel", "Ack", "Offer", "Request", "Digest")
        net.link("a", "b")
        net.advance(3)
        assert held(net, "a") == held(net, "b")
        assert len(held(net, "a")) == 50
        after = frames(net, "Summary", "Missing", "Parcel", "Ack", "Offer", "Request", "Digest")
        assert [now - then for now, then in zip(after, before, strict=True)] == [1, 1, 40, 2, 0, 0, 0]
        assert not net.deliveries("b")  # Nobody subscribes: all of it is carried.


def test_the_list_takes_eight_and_a_half_bytes_a_message() -> None:
    for count in (100, 1_000):
        parts = lists._cut(list(range(2**63, 2**63 + count)), 142)  # noqa: SLF001
        listed = [Summary(9, part, len(parts), 0, packed(each)) for part, each in enumerate(parts)]
        assert sum(map(len, codec.datagrams(listed, 1_200))) <= 8.5 * count
        assert all(len(each) <= 1_200 for each in codec.datagrams(listed, 1_200))


@pytest.mark.parametrize("count", [0, 1, 141, 142, 143, 283, 284, 1_000])
def test_the_parts_of_a_list_are_sound_and_leave_no_gap(count: int) -> None:
    numbers = list(range(5, 5 + count))
    parts = lists._cut(numbers, 142)  # noqa: SLF001
    assert parts[0] == numbers[:142]
    for before, after in pairwise(parts):
        assert after[0] == before[-1]
    assert sorted({each for part in parts for each in part}) == numbers
    for part, each in enumerate(parts):
        (frame,) = codec.decode(
            codec.datagrams([Summary(1, part, len(parts), 0, packed(each))], 9_000)[0], Limits()
        ).frames
        assert isinstance(frame, Summary)


def test_larger_messages_and_a_long_list_come_as_well() -> None:
    with testing.network("a", "b", seed=2, strategy="anti-entropy") as net:
        meeting(net, count=450)
        for size in (3_000, 70_000):
            net.publish("a", "news", bytes(size), label=str(size))
        net.link("a", "b")
        net.advance(20)
        assert len(held(net, "a")) == 150 + 2 * 300 + 2
        assert held(net, "a") == held(net, "b")
        assert frames(net, "Summary")[0] >= 4


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("smaller", [False, True])
@pytest.mark.parametrize("loss", [0.0, 0.2])
def test_it_gets_along_with_other_strategies_and_with_losses(other: dict[str, Any], smaller: bool, loss: float) -> None:
    with testing.network(seed=3, loss=loss, duplicate=loss / 2, delay_s=0.005) as net:
        settings: list[dict[str, Any]] = [{"strategy": "anti-entropy"}, other]
        for name, each in zip("ab" if smaller else "ba", settings, strict=True):
            net.add(name, **each)
            net.subscribe(name, "news")
        net.advance(1)
        for node in "ab":
            for number, size in enumerate(SIZES):
                net.publish(node, "news", bytes(size), label=f"{node}{number}")
        net.link("a", "b")
        met_s = net.now
        while any(len(net.deliveries(node)) < 2 * len(SIZES) for node in "ab"):
            net.advance(0.25)
            assert net.now - met_s < 40
        assert net.now - met_s < 15 or loss


def test_three_in_a_line_of_which_one_moves_pass_everything_on() -> None:
    with testing.network("a", "b", "c", seed=4, strategy="anti-entropy", loss=0.1) as net:
        net.subscribe("c", "news")
        for number in range(40):
            net.publish("a", "news", bytes(50), label=str(number))
        net.link("a", "b")
        net.advance(20)
        net.unlink("a", "b")
        net.link("b", "c")
        net.advance(20)
        assert len(net.deliveries("c")) == 40


def test_who_does_not_know_the_lists_is_compared_with_after_two_of_them() -> None:
    with testing.network(seed=5) as net:
        net.add("a", strategy="anti-entropy")
        net.add("b", altruistic=True)
        del net.host("b")._links.handlers[Summary]  # noqa: SLF001 - as an earlier version is
        net.publish("a", "news", b"x", label="a")
        net.publish("b", "news", b"x", label="b")
        net.link("a", "b")
        net.advance(15)
        assert frames(net, "Summary", "Missing") == [2, 0]
        assert held(net, "a") == held(net, "b") == {"a", "b"}


def test_more_than_a_session_is_good_for_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lists, "SESSION_LISTED_MAX", 15)
    with testing.network("a", "b", seed=6, strategy="anti-entropy") as net:
        for node in "ab":
            for number in range(16):
                net.publish(node, "news", bytes(20), label=f"{node}{number}")
        net.link("a", "b")
        net.advance(5)
        assert frames(net, "Summary")[0] == 0
        assert len(held(net, "a") & held(net, "b")) == 32


# --- full buffers ----------------------------------------------------------------------------------------------------


def test_nothing_below_the_floor_of_a_full_buffer_is_sent_or_asked_for() -> None:
    with testing.network(seed=7) as net:
        net.add("a", strategy="anti-entropy", cache_messages_max=10, shares=False)
        net.add("b", strategy="anti-entropy", shares=False)
        for number in range(10):
            net.publish("a", "news", b"x", priority=5, label=f"a{number}")
        for number in range(20):
            net.publish("b", "news", b"x", priority=9 if number < 3 else 1, label=f"b{number}")
        net.link("a", "b")
        net.advance(5)
        assert net.sent("b").frames["Parcel"] == 3
        assert {"b0", "b1", "b2"} < held(net, "a")
        assert len(held(net, "a")) == 10
        assert len(held(net, "b")) == 27  # Three gave way at `a` before they were sent.
        net.advance(60)
        assert net.sent("b").frames["Parcel"] == 3


def test_what_finds_no_room_is_declined_and_not_sent_for_ever() -> None:
    with testing.network(seed=8) as net:
        net.add("a", strategy="anti-entropy", cache_messages_max=10, shares=False)
        net.add("b", strategy="anti-entropy", shares=False)
        for number in range(60):
            net.publish("b", "news", b"x", priority=number % 10, label=f"{number}")
        net.link("a", "b")
        net.advance(120)
        best = {str(number) for number in range(60) if number % 10 in {8, 9}}
        assert len(held(net, "a")) == 10
        assert held(net, "a") <= best
        assert net.sent("b").frames["Parcel"] <= 80
        assert not net.host("b").overview().neighbours[0].queued


def test_the_highest_rank_goes_first_whoever_wants_what() -> None:
    order: list[str] = []
    with testing.network(seed=9, strategy="anti-entropy", rate_bytes_per_s=2_000) as net:
        for name in "ab":
            net.add(name)
        net.subscribe("b", "mine")

        def watch(_now: float, node: str, event: Event) -> None:
            if node == "b" and isinstance(event, Received):
                order.extend(each.descriptor.label for each in event.receptions)

        net.watch(watch)
        for number in range(40):
            priority = (7 * number) % 10
            net.publish("a", "mine" if priority == 0 else "news", bytes(100), priority=priority, label=str(priority))
        net.link("a", "b")
        net.advance(30)
    assert len(order) == 40
    assert order == sorted(order, reverse=True)


CLASSES = st.tuples(st.booleans(), st.integers(0, 9))


@given(
    st.lists(st.tuples(st.sampled_from("abc"), CLASSES), min_size=1, max_size=25),
    st.lists(st.sampled_from([("a", "b"), ("b", "c"), ("a", "c")]), min_size=1, max_size=5),
    st.integers(1, 6),
)
@examples(20)
def test_persistent_is_never_displaced_by_non_persistent_nor_higher_priority_by_lower(
    published: list[tuple[str, tuple[bool, int]]], meetings: list[tuple[str, str]], room: int
) -> None:
    with testing.network("a", "b", "c", seed=1, strategy="anti-entropy", cache_messages_max=room, shares=False) as net:
        classes: dict[str, tuple[bool, int]] = {}

        def watch(_now: float, node: str, event: Event) -> None:
            if isinstance(event, Dropped) and event.reason is Reason.EVICTED:
                here = [classes[label] for label in held(net, node)]
                assert all(min(here) >= classes[each.label] for each in event.descriptors)

        net.watch(watch)
        for number, (node, (persistent, priority)) in enumerate(published):
            label = str(number)
            classes[label] = (persistent, priority)
            with suppress(StateError):  # All that is there ranks higher.
                net.publish(node, "news", b"x", persistent=persistent, priority=priority, label=label)
        for one, other in meetings:
            union = held(net, one) | held(net, other)
            best = sorted((classes[label] for label in union), reverse=True)[:room]
            net.link(one, other)
            net.advance(6)
            for node in (one, other):
                assert sorted((classes[label] for label in held(net, node)), reverse=True) == best
            net.unlink(one, other)
            net.advance(30)


# --- misuse and lies -------------------------------------------------------------------------------------------------


def test_a_wrong_choice_says_what_to_do() -> None:
    assert parse('strategy = "anti-entropy"').strategy == "anti-entropy"
    with pytest.raises(ConfigError, match=r'"exchange" where paper_mode is true.*leave one of them out'):
        parse('strategy = "anti-entropy"\npaper_mode = true')
    with pytest.raises(ConfigError, match=r'"exchange" or "anti-entropy".*did you mean anti-entropy'):
        parse('strategy = "antientropy"')
    with pytest.raises(ConfigError, match="did you mean exchange"):
        parse("", {"CARRYPOST_STRATEGY": "exchanges"})


TWO = packed((1, 2))


@pytest.mark.parametrize(
    ("frame", "refusal"),
    [
        (Summary(1, 1, 1, 0), "frame"),
        (Summary(1, 0, 2, 0), "frame"),
        (Summary(1, 0, 2, 0, packed((1,))), "frame"),
        (Summary(1, 0, 1, 0, packed((2, 1))), "frame"),
        (Summary(1, 0, 1, 0, packed((1, 1))), "frame"),
        (Summary(1, 0, 1, 0, b"1234567"), "frame"),
        (Summary(1, 0, 1, 2**53 + 1), "frame"),
        (Summary(1, 0, 1, 256 << 54), "frame"),
        (Summary(1, 0, 1_025, 0, TWO), "limit"),
        (Summary(1, 0, 1, 0, packed(range(2_049))), "limit"),
        (Missing(1, 0, packed((2, 1))), "frame"),
        (Missing(1, 0, b"1"), "frame"),
        (Missing(1, 0, b"", 2**54 - 1), "frame"),
    ],
)
def test_wrong_parts_ranges_and_floors_are_refused_before_anything_looks_at_them(frame: Frame, refusal: str) -> None:
    (datagram,) = codec.datagrams([frame], 65_000)
    limits = Limits(datagram_bytes_max=65_000)
    assert codec.decode(datagram, limits).refused == {refusal: 1}
    assert codec.decode(datagram, limits).frames == []


def test_a_list_that_changes_its_parts_and_answers_to_nothing_are_refused_and_the_session_goes_on() -> None:
    with testing.network("a", "b", seed=10, strategy="anti-entropy", delay_s=1.0) as net:
        for node in "ab":
            net.publish(node, "news", b"x", label=node)
        net.link("a", "b")
        while not net.sent("a").frames["Summary"]:
            net.advance(0.1)
        net.inject("a", [Missing(1, 0, TWO), Missing(1, 7, b""), Missing(99, 0, TWO)], "b")
        assert net.host("a").overview().refused == {"missing": 2}
        net.advance(1.01)  # Until then the address of `a` is not proven.
        net.inject("b", [Summary(50, 0, 2, 0, TWO), Summary(50, 1, 3, 0, TWO)], "a")
        assert net.host("b").overview().refused == {"summary": 1}
        net.advance(20)
        assert held(net, "a") == held(net, "b") == {"a", "b"}


def test_who_lists_nothing_again_and_again_is_sent_everything_once_and_charged() -> None:
    with testing.network("a", "b", seed=11, strategy="anti-entropy") as net:
        for number in range(50):
            net.publish("b", "news", bytes(50), label=str(number))
        net.link("a", "b")
        net.advance(5)
        assert net.sent("b").frames["Parcel"] == 50
        for session in range(1_000, 1_400):
            net.inject("b", [Summary(session, 0, 1, 0)], "a")
            net.advance(0.01)
        assert net.sent("b").frames["Parcel"] <= 100  # Offered, and asked for, at most once more.
        assert len(held(net, "a")) == 50


def test_unasked_parcels_that_are_wrong_are_refused_declined_and_leave_nothing_behind() -> None:
    with testing.network("a", "b", seed=13, strategy="anti-entropy") as net:
        net.publish("a", "news", b"x", label="a")
        net.link("a", "b")
        net.advance(5)
        before = net.sent("b").frames["Request"]
        parcels: list[Frame] = []
        for number in range(40):
            made = Descriptor("m", 1, number, 0, None, "news", 9, 9, PayloadCodec.PLAIN, b"", 1024)
            parcels.append(OpenParcel(1_000 + number, 10_000 + number, 0, 0, False, made, b"short"))
        net.inject("b", parcels, "a")
        net.advance(1)
        assert net.host("b").overview().refused["fragment"] == 40
        assert net.sent("b").frames["Request"] == before + 40
        (neighbour,) = net.host("b").overview().neighbours
        assert (neighbour.wanted, neighbour.queued) == (0, 0)
        net.publish("a", "news", b"x", label="later")
        net.advance(10)
        assert held(net, "b") == {"a", "later"}


def test_lists_of_a_stranger_are_refused() -> None:
    with testing.network("a", seed=12, strategy="anti-entropy") as net:
        net.inject("a", [Summary(1, 0, 1, 0), Missing(1, 0)], "z")
        assert net.host("a").overview().refused == {"unannounced": 2}
