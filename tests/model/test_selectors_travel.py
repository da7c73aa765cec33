"""Selectors between hosts: where they are evaluated, what that saves, and that both sides of a contact agree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tests.gossip.test_carriers import meet
from tests.gossip.test_interests_selectors import HEAVY
from tests.support.hostile import Attacker, Refusals, message

from carrypost import InvalidSelectorException, testing
from carrypost.config import Limits
from carrypost.gossip.wire.frames import Profile
from carrypost.host import host as hosts
from carrypost.model.pattern import Entry, decode_entries
from carrypost.model.selector import STEPS_MAX

SIZE = 500


def numbers(net: testing.Network, node: str) -> list[int]:
    """Return the numbers of the messages that the application of a node has."""
    return sorted(int(each.descriptor.attributes["n"]) for each in net.deliveries(node))


# --- what it saves -------------------------------------------------------------------------------------------


def publish_forty(net: testing.Network) -> None:
    for number in range(40):
        net.publish("a", "news", testing.Blank(SIZE), attributes={"n": number, "odd": bool(number % 2)})


def over_a_carrier(selector: str | None) -> tuple[list[int], testing.Traffic]:
    """Send forty messages from a to c by b, which meets one at a time; return those that came, and the last traffic."""
    with testing.network("a", "c") as net:
        net.add("b", altruistic=True)
        net.subscribe("c", "news", selector)
        publish_forty(net)
        meet(net, "ab", "bc", "ab", "bc")
        assert net.traffic("a", "b").frames["Parcel"] == 40  # Who carries for anybody takes everything.
        return numbers(net, "c"), net.traffic("b", "c")


def test_a_selector_that_takes_half_halves_the_traffic_of_the_last_hop() -> None:
    everything, whole = over_a_carrier(None)
    selected, half = over_a_carrier("odd AND n >= 0")
    assert everything == list(range(40))
    assert selected == list(range(1, 40, 2))
    assert (whole.frames["Parcel"], half.frames["Parcel"]) == (40, 20)
    assert half.bytes - half.frame_bytes["Announce"] < 0.55 * (whole.bytes - whole.frame_bytes["Announce"])
    assert half.bytes < 0.6 * whole.bytes


def test_who_carries_for_its_neighbours_takes_only_what_their_selectors_take() -> None:
    with testing.network("a", "b", "c", horizon_hops=2) as net:
        net.subscribe("c", "news", "odd")
        net.link("a", "b")
        net.link("b", "c")
        net.advance(20)
        publish_forty(net)
        net.advance(20)
        assert numbers(net, "c") == list(range(1, 40, 2))
        assert net.traffic("a", "b").frames["Parcel"] == net.traffic("b", "c").frames["Parcel"] == 20


def test_what_does_not_match_is_neither_offered_nor_asked_for() -> None:
    with testing.network("a", "b") as net:
        net.subscribe("b", "news", "n > 100")
        net.link("a", "b")
        net.advance(10)
        for number in range(20):
            net.publish("a", "news", attributes={"n": number})
        net.advance(60)
        assert net.sent("a").frames["Offer"] == net.sent("b").frames["Request"] == 0
        net.publish("a", "news", attributes={"n": 101})
        net.advance(10)
        assert numbers(net, "b") == [101]


# --- checked again -------------------------------------------------------------------------------------------


def test_a_neighbour_that_sends_what_does_not_match_is_refused_on_receipt() -> None:
    with testing.network("b") as net:
        refused = Refusals()
        net.watch(refused.take)
        net.subscribe("b", "news", "n > 100")
        net.advance(1)
        mallory = Attacker(net)
        mallory.meet("b")
        for handle, number in enumerate((1, 101), 1):
            given = message(mallory.identity, attributes={"n": number})
            mallory.say("b", mallory.offer(given, handle))
            net.advance(0.1)
            mallory.say("b", mallory.parcel(given, handle))
        net.advance(1)
        assert numbers(net, "b") == [101]
        assert refused.at("b") == {"interest": 1}


def test_two_subscriptions_of_one_node_each_get_what_their_selector_takes() -> None:
    got: dict[object, tuple[int, ...]] = {}

    def note(_t: float, _node: str, event: testing.Event) -> None:
        if isinstance(event, testing.Delivered):
            got.update((each.descriptor.attributes["n"], each.subscriptions) for each in event.deliveries)

    with testing.network("a", "b") as net:
        net.watch(note)
        low = net.subscribe("b", "news", "n < 3")
        high = net.subscribe("b", "news", "n > 1")
        net.link("a", "b")
        for number in range(5):
            net.publish("a", "news", attributes={"n": number})
        net.advance(10)
        assert got == {0: (low,), 1: (low,), 2: (low, high), 3: (high,), 4: (high,)}


def test_where_messages_have_an_order_the_selector_narrows_what_is_delivered_and_nothing_else() -> None:
    profiles: list[Entry] = []
    with testing.network("a", "b") as net:
        net.subscribe("b", "forum", "n > 1", ordered=True)
        mallory = Attacker(net)
        mallory.reacts = lambda frame: (
            profiles.extend(decode_entries(frame.body, Limits())) if isinstance(frame, Profile) else None
        )
        mallory.meet("b")
        net.link("a", "b")
        for number in (0, 2, 1, 3):
            net.publish("a", "forum", attributes={"n": number}, ordering="causal")
        net.advance(10)
        assert [each.descriptor.attributes["n"] for each in net.deliveries("b")] == [2, 3]
        assert net.host("b").copies == 4
        assert set(profiles) == {Entry((("destination", "forum"),))}


# --- both sides agree ----------------------------------------------------------------------------------------


@contextmanager
def quiet_after(net: testing.Network, *names: str) -> Iterator[None]:
    """Check, after any setup, that for ten minutes nothing is offered, requested or refused again."""
    refused = Refusals()
    yield
    net.advance(120)
    net.watch(refused.take)
    before = sum((net.sent(name).frames for name in names), Counter[str]())
    net.advance(600)
    after = sum((net.sent(name).frames for name in names), Counter[str]())
    assert set(after - before) <= {"Announce", "Digest"}
    # Twelve times a question and its answer, for each profile of each pair: nothing differs.
    pairs = len(names) * (len(names) - 1) // 2
    assert (after - before)["Digest"] <= 12 * 2 * 2 * pairs
    assert not refused.counts


def unchecked(pattern: str, selector: str | None = None, **_: object) -> Entry:
    """Return an entry as a later version would make it."""
    return Entry((("destination", pattern),), selector)


FOREIGN = ["((( no selector", "n IS PRIME", "JMSFuture = 1", "", " " * 900, "NOT " * 40 + "odd", "+".join(["n"] * 500)]


@pytest.mark.parametrize("texts", [FOREIGN, HEAVY, [*FOREIGN, *HEAVY]], ids=["no selectors", "too heavy", "both"])
def test_hosts_agree_on_selectors_that_are_not_evaluated(texts: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts, "entry", unchecked)
    with testing.network("a", "b", limits={"selector_bytes_max": 2_048}) as net:
        for text in texts:
            net.subscribe("b", "news", text)
        net.subscribe("a", "sport")
        net.link("a", "b")
        with quiet_after(net, "a", "b"):
            for number in range(30):
                attributes: dict[str, object] = {"n": number, "odd": False, "language": "a" * (number * 20)}
                net.publish("a", "news", attributes=attributes)  # type: ignore[arg-type]  # they are values
                net.publish("b", "sport", attributes={"n": number})
        # What counts as matching on both sides is taken; what is not wanted at all is only carried.
        assert net.host("b").copies == 60
        assert numbers(net, "a") == list(range(30))
        if texts is HEAVY:
            assert numbers(net, "b") == [n for n in range(30) if n * 20 <= len(HEAVY) + 249]


def test_hosts_with_different_profiles_each_get_their_own_and_rest() -> None:
    with testing.network("a", "b", "c") as net:
        net.subscribe("a", "news", "n > 10")
        net.subscribe("b", "news", "n < 20 AND odd")
        net.subscribe("c", "news|sport", "n IS NOT NULL")
        for first, second in ("ab", "bc", "ac"):
            net.link(first, second)
        with quiet_after(net, "a", "b", "c"):
            for number in range(30):
                net.publish("abc"[number % 3], "news", attributes={"n": number, "odd": bool(number % 2)})
        assert numbers(net, "a") == list(range(11, 30))
        assert numbers(net, "b") == list(range(1, 20, 2))
        assert numbers(net, "c") == list(range(30))


def test_a_selector_of_one_s_own_beyond_the_bound_is_refused_and_the_text_names_the_bound() -> None:
    heavy = " OR ".join(["a LIKE '%_b%'"] * 40)
    with testing.network("a", limits={"selector_bytes_max": 65_536}) as net:
        with pytest.raises(InvalidSelectorException, match=f"{STEPS_MAX:,} are allowed"):
            net.subscribe("a", "news", heavy)
        assert len(heavy) < 1_024
