"""Messages declined for want of room are requested once there is room, and do not displace each other meanwhile."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.gossip.test_offers_regressions import Scene
from tests.support.examples import examples

from carrypost import testing
from carrypost.gossip.holdings.cache import CopyState
from carrypost.gossip.wire.frames import Offer, OfferEntry, kind
from carrypost.model.ids import MessageId

PROMPT_S = 2.0
REVIEW_S = 90.0
"""Sets are compared again within this time."""


def labels(net: testing.Network, node: str) -> str:
    return "".join(sorted(each.descriptor.label for each in net.deliveries(node) if each.descriptor.label))


def fill(net: testing.Network, author: str, lifetimes_s: list[float | None], size: int = 1) -> None:
    """Publish what matters more than anything that follows."""
    for lifetime_s in lifetimes_s:
        net.publish(author, "news", testing.Blank(size), priority=9, lifetime_s=lifetime_s)


@pytest.mark.parametrize("author", ["a", "b"])
@pytest.mark.parametrize(
    ("messages_max", "bytes_max", "shares"), [(40, 10**9, False), (10**6, 4_000, False), (40, 10**9, True)]
)
def test_each_place_that_becomes_free_is_used_at_once_by_what_was_declined(
    messages_max: int, bytes_max: int, shares: bool, author: str
) -> None:
    with testing.network("a", "c") as net:
        net.add("b", cache_messages_max=messages_max, cache_bytes_max=bytes_max, shares=shares)
        net.subscribe("b", "news")
        net.link("a", "b")
        net.link("c", "b")
        fill(net, author, [None] * 36 + [60.0, 70.0, 90.0, 120.0], size=100)
        net.advance(20)
        for priority, label in enumerate("fedcba", 1):
            net.publish("c", "news", testing.Blank(100), priority=priority, label=label)
        net.advance(30)
        assert labels(net, "b") == ""
        came = []
        for seconds in (60.0, 70.0, 90.0, 120.0):
            net.advance(seconds + PROMPT_S - net.now)
            came.append(labels(net, "b"))
        assert came == ["a", "ab", "abc", "abcd"]
        net.advance(120)
        assert labels(net, "b") == "abcd"


def test_room_that_becomes_free_while_nothing_happens_is_used_within_the_contact() -> None:
    with testing.network("a", "b", cache_messages_max=100, shares=False, announce_s_max=600.0) as net:
        net.subscribe("b", "news")
        net.link("a", "b")
        fill(net, "b", [None] * 99 + [1_000.0])
        net.publish("a", "news", b"x", priority=1, label="a")
        net.advance(999)
        assert labels(net, "b") == ""
        net.advance(1 + PROMPT_S)
        assert labels(net, "b") == "a"


@pytest.mark.parametrize("confirmed", [1, 3])
def test_what_found_only_unconfirmed_deliveries_comes_once_some_of_them_are_confirmed(confirmed: int) -> None:
    with testing.network("a", "b", confirm=False, cache_messages_max=8, shares=False) as net:
        net.subscribe("b", "news")
        net.link("a", "b")
        for _ in range(4):  # The half of the cache that nobody pins.
            net.publish("b", "weather", b"x", priority=9)
        for _ in range(4):
            net.publish("a", "news", b"x")
        net.advance(10)
        first = [each.message for each in net.deliveries("b")]
        net.advance(10)
        for label in "abcd":
            net.publish("a", "news", b"x", label=label)
            net.advance(0.1)
        net.advance(20)
        assert labels(net, "b") == ""
        net.confirm("b", first[:confirmed])
        net.advance(2 * PROMPT_S)
        assert len(labels(net, "b")) == confirmed


def test_what_was_evicted_comes_back_from_who_offered_it_once_there_is_room() -> None:
    with testing.network("a") as net:
        net.add("b", altruistic=True, cache_messages_max=30, shares=False)
        evicted = net.publish("a", "news", b"x", priority=1)
        net.link("a", "b")
        net.advance(10)
        fill(net, "a", [None] * 29 + [60.0])
        net.advance(20)
        assert net.host("b").state_of(evicted) is CopyState.DECLINED
        net.advance(60 + PROMPT_S - net.now + 10)
        assert net.host("b").state_of(evicted) is CopyState.WHOLE


def test_what_was_declined_in_an_earlier_contact_is_offered_again_by_a_review_when_there_is_room() -> None:
    with testing.network("a") as net:
        net.add("b", altruistic=True, cache_messages_max=30, shares=False)
        declined = [net.publish("a", "news", b"x", priority=1) for _ in range(3)]
        net.link("a", "b")
        net.advance(10)
        fill(net, "a", [None] * 28 + [400.0, 500.0])
        net.advance(20)
        net.unlink("a", "b")
        net.advance(60)
        net.link("a", "b")
        net.advance(300)
        for seconds, expected in ((401.0, 1), (501.0, 2)):
            net.advance(seconds + REVIEW_S - net.now)
            here = [net.host("b").state_of(message) is CopyState.WHOLE for message in declined]
            assert sum(here) == expected


def test_a_message_that_is_offered_by_who_is_over_its_share_comes_in_room_that_nobody_uses() -> None:
    with testing.network("a", "c") as net:
        net.add("b", altruistic=True, cache_messages_max=40)
        net.link("c", "b")
        for _ in range(30):
            net.publish("c", "news", b"x", lifetime_s=200.0)
        net.advance(10)
        net.link("a", "b")
        messages = [net.publish("a", "news", b"x", priority=1) for _ in range(25)]
        net.advance(40)
        before = sum(net.host("b").state_of(message) is CopyState.WHOLE for message in messages)
        assert before < 25
        net.advance(160 + 2 * PROMPT_S)
        assert all(net.host("b").state_of(message) is CopyState.WHOLE for message in messages)


def test_what_is_offered_beyond_the_bound_on_open_offers_follows_soon() -> None:
    with testing.network("a", "b", limits={"offers_open_max": 5}) as net:
        net.subscribe("b", "news")
        for _ in range(10):
            net.publish("a", "news", b"x")
        net.link("a", "b")
        net.advance(10)
        assert len(net.deliveries("b")) == 10


def test_what_was_offered_while_the_disk_was_full_is_asked_for_when_it_had_time_to_recover() -> None:
    with testing.network("a", "b", announce_s_max=60.0) as net:
        net.subscribe("b", "news")
        net.link("a", "b")
        net.advance(60)
        net.fill_disk("b")
        net.publish("a", "news", b"first")
        net.advance(1)
        net.fill_disk("b", full=False)
        net.publish("a", "news", b"second", label="b")
        net.advance(6)
        assert labels(net, "b") == "b"


def test_a_full_cache_rests_though_its_neighbours_have_more_than_it_can_hold() -> None:
    with testing.network("a", "c") as net:
        net.add("b", altruistic=True, cache_messages_max=20, cache_bytes_max=3_000, shares=False)
        for number, author in enumerate("ac" * 30):
            net.publish(author, "news", testing.Blank(number * 37 % 400), priority=number % 3)
        net.link("a", "b")
        net.link("c", "b")
        net.advance(300)
        before = [net.sent(name).frames["Parcel"] for name in "abc"]
        net.advance(600)
        assert [net.sent(name).frames["Parcel"] for name in "abc"] == before


def test_what_is_remembered_of_declined_offers_is_bounded_and_ends_with_the_contact() -> None:
    scene = Scene(cache_messages_max=1, limits={"offers_open_max": 50})
    scene.host.publish("news", b"x", now=scene.now, priority=9)
    scene.passes(1)
    for page in range(30):
        entries = [OfferEntry(MessageId(b"x:1:%d" % (page * 100 + n + 1)), page * 100 + n, 10, 0) for n in range(100)]
        scene.says(Offer(page + 1, tuple(entries)))
        answers = [frame for frame in scene.settle() if kind(frame) == "Request"]
        assert len(answers) == 1
    link, memories = scene.host._links["b"], scene.host._host_context.holdings.cache.memories  # noqa: SLF001
    assert len(memories.offers(link)) == 50
    scene.passes(600)
    assert len(memories.offers(link)) == 0


# ------------------------------------------------------------------------------ whatever comes, and whenever it goes

PUBLICATIONS = st.lists(
    st.tuples(
        st.sampled_from("ac"),
        st.sampled_from([0, 10, 300, 900, 20_000]),
        st.integers(0, 9),
        st.sampled_from([None, None, 20.0, 60.0, 61.0, 150.0]),
        st.sampled_from([0.0, 0.0, 0.01, 1.0, 10.0]),
    ),
    min_size=1,
    max_size=40,
)


@examples(12)
@given(
    published=PUBLICATIONS,
    messages_max=st.integers(1, 30),
    bytes_max=st.sampled_from([1_000, 3_000, 40_000]),
    shares=st.booleans(),
    subscribed=st.booleans(),
)
def test_after_a_long_contact_nothing_is_missing_that_there_is_room_for(
    published: list[tuple[str, int, int, float | None, float]],
    messages_max: int,
    bytes_max: int,
    shares: bool,
    subscribed: bool,
) -> None:
    with testing.network("a", "c") as net:
        net.add("b", altruistic=True, cache_messages_max=messages_max, cache_bytes_max=bytes_max, shares=shares)
        if subscribed:
            net.subscribe("b", "news")
        net.link("a", "b")
        net.link("c", "b")
        sent: dict[MessageId, tuple[int, float | None]] = {}
        for author, size, priority, lifetime_s, pause_s in published:
            message = net.publish(author, "news", testing.Blank(size), priority=priority, lifetime_s=lifetime_s)
            sent[message] = size, None if lifetime_s is None else net.now + lifetime_s
            net.advance(pause_s)
        net.advance(400)
        there = net.host("b")
        cache = there.overview()
        for message, (size, deadline_s) in sent.items():
            if deadline_s is None and there.state_of(message) in (CopyState.UNKNOWN, CopyState.DECLINED):
                assert cache.messages + 1 > messages_max or cache.bytes + size > bytes_max
