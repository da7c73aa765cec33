"""Messages that go straight to their recipients through the island, and what becomes of them when it breaks."""

from __future__ import annotations

import random
from collections import Counter
from itertools import combinations

import pytest
from tests.support.islands import Islands, S

from carrypost.gossip.draft import Draft
from carrypost.gossip.wire import codec
from carrypost.gossip.wire import frames as fr
from carrypost.messaging.commands import UnitOfWork
from carrypost.model.ids import MessageId, node_prefix
from carrypost.model.times import NEVER

SIZES = (0, 100, 900, 1_000, 5_000, 100_000)


@pytest.mark.parametrize("options", [{"encoded": True}, {"security": "signed", "encoded": True}, {}, {"loss": 0.1}])
def test_messages_of_any_size_go_straight_and_nobody_else_has_a_copy(options: dict[str, object]) -> None:
    with Islands("abcde", seed=3, altruistic=True, **options) as islands:
        net = islands.net
        islands.found_s = 8
        islands.line()
        net.subscribe("d", "news")
        net.advance(3)
        messages = []
        for size in SIZES:
            messages.append(net.publish("a", "news", bytes(size), recipients=["d"]))
            net.advance(3)
            assert set(islands.copies()) <= {"a", "d"}
        net.advance(10)
        assert islands.delivered("d") == dict.fromkeys(messages, 1)
        received = [event for name, event in islands.received if name == "d"]
        assert {event.peer for event in received} == {islands.id("a")}
        assert {event.path for event in received} == {(islands.id("b"), islands.id("c"))}
        assert {each.hops for event in received for each in event.receptions} == {1}
        assert islands.copies() == {}
        assert islands.island("b").relaying.relayed_bytes > sum(SIZES)
        assert not islands.refused()


def test_a_host_does_not_wake_for_a_message_that_has_arrived() -> None:
    with Islands("ab", seed=3) as islands:
        net = islands.net
        islands.found_s = 8
        islands.line()
        net.subscribe("b", "news")
        net.advance(3)
        net.publish("a", "news", b"rain", recipients=["b"])
        while len(islands.copies()):
            net.advance(0.05)
        assert islands.island("a").ways.due_us == NEVER


def released(seed: int, loss: float) -> int:
    """Send messages over three hops that lose datagrams. Returns how many of them took longer than the patience."""
    with Islands("abcde", seed=seed, altruistic=True, loss=loss) as islands:
        net = islands.net
        islands.found_s = 8
        islands.line()
        net.subscribe("d", "news")
        net.advance(3)
        for size in SIZES:
            net.publish("a", "news", bytes(size), recipients=["d"])
            net.advance(3)
        net.advance(10)
        found = {each.descriptor.id for name, event in islands.received if name != "d" for each in event.receptions}
        if not found:
            assert islands.copies() == {}
            # The announcement that begins a contact may be lost, and what follows it not.
            assert islands.refused().keys() <= {"unannounced", "not-linked", "record-old"}
        net.advance(20)
        assert sorted(islands.delivered("d").values()) == [1] * len(SIZES)
        return len(found)


@pytest.mark.parametrize("seed", [5, 206, 272])
def test_losses_make_no_message_wait_longer_than_the_patience(seed: int) -> None:
    """Timeouts that double leave six tries (seed 5), three while no round trip is known (206), or learn a wrong one."""
    assert released(seed, 0.1) == 0


@pytest.mark.soak
def test_as_few_messages_outlast_the_patience_as_ten_tries_in_a_row_are_lost() -> None:
    """A message has two steps: its recipient says that it came, and acknowledges it."""
    loss, hops, tries, steps, seeds = 0.1, 3, 10, 2, 600
    in_vain = 1 - (1 - loss) ** (2 * hops)
    found = sum(released(seed, loss) for seed in range(seeds))
    assert found <= seeds * len(SIZES) * steps * in_vain**tries


def test_what_its_recipient_is_done_with_is_acknowledged_again_where_it_is_repeated() -> None:
    """Otherwise it is repeated for as long as the route lasts, before all that follows."""
    with Islands("abcd", altruistic=True, announce_s_max=60.0, announce_s_min=60.0) as islands:
        net = islands.net
        islands.found_s = 65
        islands.line()
        net.subscribe("d", "news")
        net.advance(65)
        net.unlink("c", "b", one_way=True)
        message = net.publish("a", "news", bytes(10), recipients=["d"])
        net.advance(3)
        assert islands.delivered("d") == {message: 1}
        assert islands.copies() == {"a": 1}
        net.link("c", "b", one_way=True)
        net.advance(1)
        assert islands.copies() == {}
        assert not islands.island("a").ways.withheld


def test_what_is_for_neighbours_alone_goes_over_their_own_links() -> None:
    with Islands("abcd", altruistic=True, announce_s_max=2.0) as islands:
        net = islands.net
        islands.link("ab", "ac", "cd")
        for name in "bc":
            net.subscribe(name, "news")
        net.advance(3)
        messages = [net.publish("a", "news", bytes(size), recipients=["b", "c"]) for size in (10, 50_000)]
        net.advance(3)
        assert [islands.delivered(name) for name in "bc"] == [dict.fromkeys(messages, 1)] * 2
        assert not any(net.sent(name).frames["Relay"] for name in "abcd")
        assert "d" not in islands.copies()
        net.advance(20)
        assert not islands.copies()
        assert "d" not in {name for name, _ in islands.received}


@pytest.mark.parametrize(
    ("recipients", "straight"), [("jklmnopq", True), ("cdefghijklmnop", True), ("bcdefghijklmnopq", False)]
)
def test_to_very_many_recipients_a_message_goes_from_hand_to_hand_alone(recipients: str, straight: bool) -> None:
    """In a line of 17, paths to all others have 136 hops, more than eight for each of them."""
    with Islands("abcdefghijklmnopq", altruistic=True, announce_s_max=2.0) as islands:
        net = islands.net
        islands.line()
        for name in recipients:
            net.subscribe(name, "news")
        net.advance(3)
        message = net.publish("a", "news", bytes(5_000), recipients=list(recipients))
        net.advance(6)
        assert [islands.delivered(name) for name in recipients] == [{message: 1}] * len(recipients)
        assert bool(net.sent("a").frames["Relay"]) == straight
        others = {name for name, _ in islands.received} - set(recipients)
        assert not others


def test_some_are_reached_straight_and_the_others_from_hand_to_hand() -> None:
    with Islands("abcde", altruistic=True, announce_s_max=2.0) as islands:
        net = islands.net
        islands.link("ab", "bc")
        for name in "ce":
            net.subscribe(name, "news")
        net.advance(3)
        message = net.publish("a", "news", bytes(5_000), recipients=["c", "e"])
        net.advance(1)
        assert [event.path for name, event in islands.received if name == "c"] == [("b",)]
        assert islands.island("a").ways.withheld == 0
        assert "b" in islands.copies()  # It carries for e.
        islands.unlink("ab")
        net.link("b", "e")
        net.advance(10)
        assert islands.delivered("e") == {message: 1}


def test_what_is_published_while_a_path_is_gone_for_a_moment_goes_straight_after_that() -> None:
    with Islands("abc", announce_s_max=0.4, announce_s_min=0.2) as islands:
        net = islands.net
        for pair in ("ab", "bc"):
            net.link(*pair)
        net.subscribe("c", "news")
        net.advance(5)
        for outage in range(4):
            net.unlink("b", "c")
            while "c" in net.reach("a"):
                net.advance(0.05)
            message = net.publish("a", "news", bytes([outage]), recipients=["c"])
            net.link("b", "c")
            net.advance(8)
            assert islands.delivered("c")[message] == 1


def test_a_message_waits_for_its_recipient_and_goes_straight_once_that_is_there() -> None:
    with Islands("abc", announce_s_max=2.0) as islands:
        net = islands.net
        islands.link("ab")
        net.subscribe("c", "news")
        net.advance(3)
        messages = [net.publish("a", "news", bytes(size), recipients=["c"]) for size in (0, 700, 90_000)]
        net.advance(20)
        islands.link("bc")
        net.advance(6)
        assert islands.delivered("c") == dict.fromkeys(messages, 1)
        assert {event.path for name, event in islands.received if name == "c"} == {("b",)}
        assert not islands.copies()


def test_offers_along_a_path_have_no_more_entries_than_a_frame_may() -> None:
    """The recipient acknowledges nothing, so all is offered again."""
    with Islands("abc", encoded=True, confirm=False, limits={"offer_entries_max": 1}) as islands:
        net = islands.net
        islands.line()
        net.subscribe("c", "news")
        net.advance(5)
        messages = [net.publish("a", "news", b"x", recipients=["c"]) for _ in range(3)]
        net.advance(5)
        assert islands.delivered("c") == dict.fromkeys(messages, 1)
        assert not islands.refused()


def test_who_carries_for_a_recipient_offers_it_there_along_a_path() -> None:
    """Check without the author, while the relay carries for no other node."""
    with Islands("abcd", announce_s_max=2.0) as islands:
        net = islands.net
        net.add("e", altruistic=True)
        islands.names.append("e")
        islands.link("ae", "bc", "cd")
        net.subscribe("d", "news")
        net.advance(3)
        message = net.publish("a", "news", bytes(50_000), recipients=["d"])
        net.advance(3)
        islands.unlink("ae")
        islands.link("eb")
        net.advance(8)
        assert islands.delivered("d") == {message: 1}
        assert [event.path for name, event in islands.received if name == "d"] == [("b", "c")]


def withheld(islands: Islands, seconds: float, name: str = "a") -> list[int]:
    """Count the messages that a host withholds, second by second."""
    found = []
    for _ in range(round(seconds)):
        islands.net.advance(1)
        found.append(islands.island(name).ways.withheld)
    return found


def test_nothing_is_withheld_longer_than_the_patience_and_after_two_failures_not_at_all() -> None:
    with Islands("abcd", altruistic=True, announce_s_max=60.0, announce_s_min=60.0) as islands:
        net = islands.net
        islands.found_s = 65
        islands.line()
        net.subscribe("d", "news")
        net.advance(65)
        net.suspend("c")  # It is believed to be there for minutes.
        for expected in ([1] * 4, [1] * 4, [], []):
            net.publish("a", "news", bytes(10), recipients=["d"])
            found = withheld(islands, 8)
            assert found[: len(expected)] == expected
            assert not any(found[len(expected) + 2 :])
        assert net.host("b").copies == 4
        withheld(islands, 70)
        net.publish("a", "news", bytes(10), recipients=["d"])
        assert withheld(islands, 2) == [1, 1]  # The minute is over: it is tried again.
        net.resume("c")
        net.advance(200)
        assert list(islands.delivered("d").values()) == [1] * 5


def test_what_is_acknowledged_frame_by_frame_and_never_by_its_recipient_is_released() -> None:
    """As with a host on the path that lies, or a program that takes its time."""
    with Islands("abcd", altruistic=True, confirm=False) as islands:
        net = islands.net
        islands.line()
        net.subscribe("d", "news")
        net.advance(3)
        message = net.publish("a", "news", bytes(50_000), recipients=["d"])
        found = withheld(islands, 10)
        assert found[:4] == [1] * 4
        assert found[8:] == [0, 0]
        assert islands.delivered("d") == {message: 1}
        assert net.host("b").copies == net.host("c").copies == 1
        net.confirm("d", [message])
        net.advance(15)
        assert not islands.copies()


def test_a_recipient_that_was_restarted_is_not_relied_upon() -> None:
    with Islands("abcd", altruistic=True, confirm=False, disk_delay_s=0.5) as islands:
        net = islands.net
        islands.line()
        net.subscribe("d", "news")
        net.advance(3)
        message = net.publish("a", "news", bytes(10), recipients=["d"])
        net.advance(0.6)
        assert islands.island("a").ways.withheld == 1
        islands.kill("d")
        assert islands.island("a").ways.withheld == 0
        islands.restart("d")
        net.advance(20)
        assert islands.delivered("d") == {message: 1}


def test_messages_that_must_be_durable_first_go_straight_then() -> None:
    with Islands("abc", disk_delay_s=0.2, altruistic=True) as islands:
        net = islands.net
        islands.line()
        net.advance(3)
        net.subscribe("c", "news")
        draft = Draft("news", b"x", withheld=True, recipients=(islands.id("c"),))
        host = net.host("a")
        host.perform(UnitOfWork(1, (draft,)), round(net.now * S))
        net.advance(0.1)
        assert net.sent("a").frames["Relay"] == 0
        net.advance(2)
        assert sum(islands.delivered("c").values()) == 1
        assert set(islands.copies()) <= {"a", "c"}
        assert "b" not in {name for name, _ in islands.received}


def wander(seed: int, *, island: bool, hours: float) -> tuple[Counter[str], int, int]:
    """Let hosts meet and part at random while they write to each other.

    Return the number of messages that each host got, the number of all, and the longest time for which one was
    withheld.
    """
    chance = random.Random(seed)
    names = "abcdefgh"
    pairs = [a + b for a, b in combinations(names, 2)]
    sent: dict[str, list[MessageId]] = {name: [] for name in names}
    since: dict[bytes, float] = {}
    longest = 0.0
    with Islands(names, seed=seed, altruistic=True, announce_s_max=2.0, acked_s=2.0, island=island) as islands:
        net = islands.net
        for name in names:
            net.subscribe(name, "news")
        while net.now < 3_600 * hours:
            pair = chance.choice(pairs)
            if net.linked(*pair):
                islands.unlink(pair)
            elif sum(net.linked(*each) for each in pairs) < len(names) + 2:
                islands.link(pair)
            author, *others = chance.sample(names, chance.choice((2, 2, 3)))
            size = chance.choice((10, 900, 3_000, 60_000))
            message = net.publish(author, "news", bytes(size), recipients=others)
            for name in others:
                sent[name].append(message)
            net.advance(chance.uniform(0, 20))
            held = [each for name in names for each in islands.withheld(name)]
            since = {each: since.get(each, net.now) for each in held}
            longest = max([longest, *[net.now - start for start in since.values()]])
        for pair in pairs:
            if not net.linked(*pair):
                net.link(*pair)
        net.advance(60)
        for name in names:
            found = islands.delivered(name)
            assert set(found.values()) <= {1}
            assert found.keys() <= set(sent[name])
        got = Counter({name: len(islands.delivered(name)) for name in names})
    return got, sum(map(len, sent.values())), round(longest)


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.soak), pytest.param(3, marks=pytest.mark.soak)])
def test_as_much_arrives_as_from_hand_to_hand_while_recipients_come_and_go_and_nothing_waits_long(seed: int) -> None:
    hours = 0.2 if seed == 1 else 1.0
    got, count, longest = wander(seed, island=True, hours=hours)
    assert sum(got.values()) == count
    assert (sum(wander(seed, island=False, hours=hours)[0].values())) == count
    assert longest <= 25


def test_a_recipient_whose_routes_are_all_in_use_keeps_no_message_from_others() -> None:
    """The author dies while another recipient cannot be reached: then only the first recipient has the message."""
    with Islands("abcde", altruistic=True, routes_max=1) as islands:
        net = islands.net
        islands.line()
        for name in "be":
            net.subscribe(name, "news")
        net.advance(3)
        net.unlink("c", "d")
        offer = fr.Offer(1, (fr.OfferEntry(MessageId(bytes(16)), 1, 100, 0),))
        path = b"".join(node_prefix(islands.id(name)) for name in "dcb")
        net.inject("b", [fr.Relay(path, 2, b"", codec.datagrams([offer], 1_200)[0])], "c")
        message = net.publish("a", "news", bytes(10), recipients=["b", "e"])
        net.advance(0.5)
        assert islands.delivered("b") == {message: 1}
        islands.kill("a")
        net.advance(61)
        assert not islands.withheld("b")
        net.link("c", "d")
        net.advance(10)
        assert islands.delivered("e") == {message: 1}


def reconnect(islands: Islands, lost_s: float = 0.01) -> None:
    """End the contact of a and b, and begin another one, as a driver reports it that watches the radio."""
    for up in (False, True):
        for here, there in ("ab", "ba"):
            islands.net.host(here).link(there, up, round(islands.net.now * S))
        islands.net.advance(lost_s)


def test_what_is_published_at_the_begin_of_a_contact_does_not_wait_for_what_is_unacknowledged_since_the_last() -> None:
    with Islands("ab", confirm=False) as islands:
        islands.told = False
        net = islands.net
        net.subscribe("b", "news")
        net.link("a", "b")
        net.advance(8)
        first = net.publish("a", "news", b"first", recipients=["b"])
        net.advance(0.05)
        assert islands.withheld("a") == [first]
        reconnect(islands)
        second = net.publish("a", "news", b"second", recipients=["b"])
        assert islands.withheld("a") == [first, second]
        net.advance(0.02)
        assert islands.delivered("b") == {first: 1, second: 1}


def test_what_was_lost_with_a_contact_goes_as_soon_as_the_next_begins() -> None:
    with Islands("ab") as islands:
        islands.told = False
        net = islands.net
        net.subscribe("b", "news")
        net.link("a", "b")
        net.advance(8)
        net.unlink("a", "b")
        message = net.publish("a", "news", b"first", recipients=["b"])
        net.advance(0.05)
        net.link("a", "b")
        reconnect(islands)
        net.advance(0.02)
        assert islands.delivered("b") == {message: 1}
