"""A contact: announcement, offer, request, data, acknowledgement, and the carrying afterwards (N1 to N6)."""

from __future__ import annotations

from itertools import pairwise

import pytest
from tests.support.examples import soaked

from carrypost import testing
from carrypost.gossip.transfers.outbox import FRAME_ROOM, PARCEL_GAIN, SMALL_HEADER_BYTES
from carrypost.gossip.wire import codec
from carrypost.gossip.wire.frames import Parcel
from carrypost.log.events import Event, NeighbourUp, Received


def payloads(net: testing.Network, node: str) -> list[bytes]:
    return [delivery.payload for delivery in net.deliveries(node)]


def test_a_message_takes_announcement_offer_request_data_and_acknowledgement() -> None:
    with testing.network("a", "b") as net:
        net.subscribe("b", "news")
        net.publish("a", "news", b"hello")
        net.link("a", "b")
        net.advance(10)
        assert payloads(net, "b") == [b"hello"]
        there, back = net.traffic("a", "b").frames, net.traffic("b", "a").frames
        assert there["Announce"]
        assert back["Announce"]
        assert (there["Offer"], back["Request"], there["Parcel"], back["Ack"]) == (1, 1, 1, 1)
        assert not there.keys() & {"DescriptorPart", "Data"}


@pytest.mark.parametrize(("nbytes", "parcels"), [(0, 1), (1_000, 1), (1_100, 0), (2_000, 0)])
def test_what_does_not_fit_into_one_datagram_goes_as_descriptor_and_data(nbytes: int, parcels: int) -> None:
    with testing.network("a", "b", compress=False, mtu_bytes=1_200) as net:
        net.subscribe("b", "news")
        net.publish("a", "news", bytes(nbytes), label="x" * 30)
        net.link("a", "b")
        net.advance(10)
        assert payloads(net, "b") == [bytes(nbytes)]
        there = net.traffic("a", "b")
        assert there.frames["Parcel"] == parcels
        assert there.frames["DescriptorPart"] == 1 - parcels
        assert bool(there.frames["Data"]) == (not parcels)
        assert there.bytes <= 1_200 * there.datagrams


def test_the_largest_parcel_fits_into_a_datagram() -> None:
    largest = 1_200 - FRAME_ROOM + PARCEL_GAIN
    with testing.network("a", "b", compress=False, mtu_bytes=1_200) as net:
        net.subscribe("b", "news")
        for nbytes in range(990, 1_025):
            net.publish("a", "news", bytes(nbytes), label="x" * 110)
        net.link("a", "b")
        net.advance(20)
        sizes = [len(each.payload) + len(each.descriptor.wire) + SMALL_HEADER_BYTES for each in net.deliveries("b")]
        assert len(sizes) == 35
        assert min(sizes) <= largest < max(sizes)
        sent = net.sent("a")
        assert sent.frames["Parcel"] == sum(size <= largest for size in sizes)
    number = 2**53
    wire, body = bytes(600), bytes(largest - SMALL_HEADER_BYTES - 600)
    worst = Parcel(number, number, 255, number, True, wire, body)
    assert len(codec.datagrams([worst], 1_200)[0]) <= 1_200


def test_a_parcel_that_got_lost_comes_again() -> None:
    with testing.network("a", "b", seed=3, loss=0.4) as net:
        net.subscribe("b", "news")
        for number in range(50):
            net.publish("a", "news", b"%d" % number)
        net.link("a", "b")
        net.advance(60)
        assert sorted(payloads(net, "b")) == sorted(b"%d" % number for number in range(50))
        assert net.traffic("a", "b").frames["Parcel"] > 50


def test_one_parcel_serves_all_who_asked() -> None:
    with testing.network("a", "b", "c", "d") as net:
        for name in "bcd":
            net.subscribe(name, "news")
            net.link("a", name)
        net.advance(30)
        net.publish("a", "news", b"hello")
        net.advance(5)
        assert [payloads(net, name) for name in "bcd"] == [[b"hello"]] * 3
        assert net.sent("a").frames["Parcel"] == 1


def test_only_what_matches_the_profile_is_offered() -> None:
    with testing.network("a", "b", "c") as net:
        net.subscribe("b", {"destination": "ChatRoom.*", "language": "English|German"})
        wanted = net.publish("a", "ChatRoom1", b"yes", attributes={"language": "German", "other": 1})
        net.publish("a", "ChatRoom1", b"no", attributes={"language": "Germanic"})
        net.publish("a", "ChatRoom1", b"no")
        net.publish("a", "MyChatRoom", b"no", attributes={"language": "English"})
        net.link("a", "b")
        net.link("a", "c")
        net.advance(30)
        assert [delivery.message for delivery in net.deliveries("b")] == [wanted]
        assert net.traffic("a", "b").frames["Parcel"] == 1
        assert net.traffic("a", "c").frames["Offer"] == 0


def test_the_profile_is_the_union_of_the_subscriptions_and_a_message_comes_once() -> None:
    with testing.network("a", "b") as net:
        for pattern in ("news", "n.*", "sport"):
            net.subscribe("b", pattern)
        for destination in ("news", "sport", "weather"):
            net.publish("a", destination, destination.encode())
        net.link("a", "b")
        net.advance(30)
        assert sorted(payloads(net, "b")) == [b"news", b"sport"]


def test_both_sides_give_and_take_in_one_contact() -> None:
    with testing.network("a", "b") as net:
        net.subscribe("a", "to-a")
        net.subscribe("b", "to-b")
        for number in range(50):
            net.publish("a", "to-b", b"%d" % number)
            net.publish("b", "to-a", b"%d" % number)
        net.link("a", "b")
        net.advance(5)
        assert sorted(payloads(net, "a")) == sorted(payloads(net, "b")) == sorted(b"%d" % n for n in range(50))


def test_several_neighbours_exchange_at_once_and_everybody_gets_everything_once() -> None:
    names = ("a", "b", "c", "d", "e")
    with testing.network(*names) as net:
        for name in names:
            net.subscribe(name, "news")
            for number in range(20):
                net.publish(name, "news", f"{name}{number}".encode())
        for at, first in enumerate(names):
            for second in names[at + 1 :]:
                net.link(first, second)
        net.advance(30)
        everything = sorted(f"{name}{number}".encode() for name in names for number in range(20))
        for name in names:
            assert sorted(payloads(net, name)) == everything


def test_one_transmission_serves_all_who_asked() -> None:
    with testing.network("a", "b", "c", "d") as net:
        for name in "bcd":
            net.subscribe(name, "news")
            net.link("a", name)
        net.advance(30)
        net.publish("a", "news", testing.Blank(5_000))
        net.advance(5)
        for name in "bcd":
            assert len(net.deliveries(name)) == 1
            assert net.traffic("a", name).frames["Data"] == 5
        assert net.sent("a").frames["Data"] == 5
        assert net.sent("a").frames["DescriptorPart"] == 1
        assert net.sent("a").frames["Offer"] == 1


def test_what_one_of_several_requesters_missed_goes_to_that_one_alone() -> None:
    with testing.network("a", "b", "c", seed=2) as net:
        for name, loss in (("b", 0.0), ("c", 0.4)):
            net.subscribe(name, "news")
            net.link("a", name, loss=loss)
        net.advance(60)
        net.publish("a", "news", testing.Blank(50_000))
        net.advance(60)
        assert len(net.deliveries("b")) == len(net.deliveries("c")) == 1
        assert net.traffic("a", "b").frames["Data"] == 49
        assert net.traffic("a", "c").frames["Data"] > 49


def test_a_neighbour_that_has_it_already_is_not_sent_it_again() -> None:
    with testing.network("a", "b", "c") as net:
        for name in "bc":
            net.subscribe(name, "news")
        net.publish("a", "news", b"hello")
        for first, second in (("a", "b"), ("a", "c"), ("b", "c"), ("a", "b")):
            net.link(first, second)
            net.advance(20)
            net.unlink(first, second)
            net.advance(20)
        assert payloads(net, "b") == payloads(net, "c") == [b"hello"]
        assert net.sent("a").frames["Parcel"] == 2
        assert net.sent("b").frames["Parcel"] == net.sent("c").frames["Parcel"] == 0


def test_of_two_who_offer_the_same_one_is_asked() -> None:
    with testing.network("a", "b", "c") as net:
        for name in "bc":
            net.subscribe(name, "news")
        for _ in range(20):
            net.publish("a", "news", testing.Blank(3_000))
        net.link("a", "b")
        net.advance(20)
        before = net.sent("a").frames["Data"]
        net.link("a", "c")
        net.link("b", "c")
        net.advance(20)
        assert len(net.deliveries("c")) == 20
        assert net.sent("a").frames["Data"] - before + net.sent("b").frames["Data"] == 20 * 3


@pytest.mark.parametrize("paper_mode", [False, True])
def test_duplicated_datagrams_deliver_nothing_twice(paper_mode: bool) -> None:
    received: list[int] = []

    def count(_t: float, _node: str, event: Event) -> None:
        if isinstance(event, Received):
            received.append(len(event.receptions))

    with testing.network("a", "b", duplicate=1.0, reorder=0.5, paper_mode=paper_mode) as net:
        net.watch(count)
        net.subscribe("b", "news")
        for number in range(30):
            net.publish("a", "news", b"%d" % number)
        net.link("a", "b")
        net.advance(60)
        assert sorted(payloads(net, "b")) == sorted(b"%d" % number for number in range(30))
    assert sum(received) == 30


def test_what_a_node_gains_is_offered_at_once_along_a_chain_of_neighbours() -> None:
    names = ("a", "b", "c", "d")
    with testing.network(*names, announce_s_min=60, announce_s_max=60, coalesce_s=0.1) as net:
        for name in names:
            net.subscribe(name, "news")
        for first, second in pairwise(names):
            net.link(first, second)
        net.advance(300)
        net.publish("a", "news", b"hello")
        net.advance(1)
        for hops, name in enumerate(names[1:], 1):
            (delivery,) = net.deliveries(name)
            assert delivery.time < 300 + hops * 0.15


def test_what_is_gained_while_something_is_on_its_way_goes_into_one_offer() -> None:
    with testing.network("a", "b", coalesce_s=2.0, delay_s=0.2, push_bytes_max=0) as net:
        net.subscribe("b", "news")
        net.link("a", "b")
        net.advance(30)
        for number in range(10):
            net.publish("a", "news", b"%d" % number)
            net.advance(0.01)
        net.advance(0.55)
        assert payloads(net, "b") == [b"0"]  # offered at once
        net.advance(1.5)
        assert len(payloads(net, "b")) == 10
        assert net.sent("a").frames["Offer"] == 2
        assert net.traffic("b", "a").frames["Request"] == 2


def test_with_many_in_reach_what_was_received_waits_for_the_coalescing_time() -> None:
    names = ("a", "b", "c", "d")
    with testing.network(*names, coalesce_s=2.0, altruistic=True) as net:
        for name in names[1:]:
            net.link("a", name)
        net.advance(30)
        before = net.sent("a").frames["Offer"]
        net.publish("b", "news", b"hello")
        net.advance(1)
        assert net.host("a").overview().messages == 1
        assert net.sent("a").frames["Offer"] == before
        net.advance(2)
        assert net.host("d").overview().messages == 1


def test_a_relay_passes_on_the_first_pieces_of_a_large_message_while_the_last_ones_come() -> None:
    """Check that over links of the same rate, three hops take little longer than one."""
    names = ("a", "b", "c", "d")
    with testing.network(*names, altruistic=True, rate_bytes_per_s=500_000, delay_s=0.001, compress=False) as net:
        net.subscribe("d", "files")
        for first, second in pairwise(names):
            net.link(first, second)
        net.advance(30)
        net.publish("a", "files", bytes(2_000_000))  # four seconds of one link
        net.advance(5)
        assert len(net.deliveries("d")) == 1


def test_a_received_message_is_carried_on_by_whoever_wanted_it() -> None:
    with testing.network("a", "b", "c", "d") as net:
        for name in "bcd":
            net.subscribe(name, "news")
        net.publish("a", "news", b"hello")
        for first, second in (("a", "b"), ("b", "c"), ("c", "d")):
            net.link(first, second)
            net.advance(20)
            net.unlink(first, second)
        assert payloads(net, "d") == [b"hello"]


def test_a_subscription_made_during_a_contact_brings_what_it_matches() -> None:
    with testing.network("a", "b") as net:
        net.publish("a", "news", b"before")
        net.link("a", "b")
        net.advance(30)
        net.subscribe("b", "news")
        net.advance(5)
        assert payloads(net, "b") == [b"before"]
        net.publish("a", "news", b"after")
        net.advance(1)
        assert payloads(net, "b") == [b"before", b"after"]


def test_a_subscription_delivers_what_is_in_the_cache_and_was_not_delivered() -> None:
    with testing.network("a", altruistic=True) as net:
        net.publish("a", "news", b"own")
        first = net.subscribe("a", "news")
        assert payloads(net, "a") == [b"own"]
        net.unsubscribe("a", first)
        net.subscribe("a", "n.*")
        net.advance(5)
        assert payloads(net, "a") == [b"own"]


def test_an_ended_subscription_ends_the_offers() -> None:
    with testing.network("a", "b") as net:
        number = net.subscribe("b", "news")
        net.link("a", "b")
        net.advance(30)
        net.unsubscribe("b", number)
        net.advance(10)
        net.publish("a", "news", b"too late")
        net.advance(30)
        assert payloads(net, "b") == []
        assert net.sent("a").frames["Offer"] == 0


def test_an_offer_larger_than_a_datagram_is_split() -> None:
    with testing.network("a", "b", mtu_bytes=576) as net:
        net.subscribe("b", "news")
        for number in range(300):
            net.publish("a", "news", b"%d" % number)
        net.link("a", "b")
        net.advance(10)
        assert len(net.deliveries("b")) == 300
        traffic = net.sent("a")
        assert traffic.frames["Offer"] > 10
        assert traffic.bytes <= traffic.datagrams * 576


def test_a_profile_larger_than_a_datagram_is_split() -> None:
    with testing.network("a", "b") as net:
        for number in range(400):
            net.subscribe("b", f"a-destination-with-a-long-name-{number}")
        net.publish("a", "a-destination-with-a-long-name-399", b"hello")
        net.link("a", "b")
        net.advance(30)
        assert payloads(net, "b") == [b"hello"]
        assert net.sent("b").frames["Profile"] > 5
        assert net.sent("b").bytes <= net.sent("b").datagrams * 1_200


def test_a_contact_may_end_and_begin_at_any_time_and_goes_on_where_it_was() -> None:
    with testing.network("a", "b", rate_bytes_per_s=50_000) as net:
        net.subscribe("b", "news")
        for number in range(200):
            net.publish("a", "news", testing.Blank(1_000), label=str(number))
        for _ in range(100):
            net.link("a", "b")
            net.advance(1.7)
            net.unlink("a", "b")
            net.advance(20)
        assert sorted(int(delivery.descriptor.label) for delivery in net.deliveries("b")) == list(range(200))
        # What was on its way when a contact broke goes out again; what had come does not.
        assert 200 <= net.sent("a").frames["Parcel"] < 200 + 100 * 30


def test_a_node_that_lost_its_store_is_served_again() -> None:
    with testing.network("a", "b", disk_delay_s=3600) as net:
        net.advance(3601)
        net.subscribe("b", "news")
        net.publish("a", "news", b"hello", persistent=True)
        net.link("a", "b")
        net.advance(10)
        assert net.traffic("b", "a").frames["Ack"] == 1
        net.kill("b")
        net.restart("b")
        net.advance(2 * 3601)
        assert payloads(net, "b") == [b"hello"]


def test_neighbours_are_told_once_per_contact() -> None:
    ups: list[tuple[str, str]] = []

    def note(_t: float, node: str, event: Event) -> None:
        if isinstance(event, NeighbourUp):
            ups.append((node, event.node))

    with testing.network("a", "b", seed=2, loss=0.2) as net:
        net.watch(note)
        for _ in range(3):
            net.link("a", "b")
            net.advance(30)
            net.unlink("a", "b")
            net.advance(30)
    assert sorted(ups) == [("a", "b")] * 3 + [("b", "a")] * 3


@pytest.mark.parametrize("leaver", ["b", "c"])
@pytest.mark.parametrize("after_s", [0.5, 4.0, *soaked((1.0, 2.0))])
def test_who_shares_a_transmission_gets_the_rest_when_the_other_leaves(leaver: str, after_s: float) -> None:
    stayer = {"b": "c", "c": "b"}[leaver]
    with testing.network("a", "b", "c", rate_bytes_per_s=50_000) as net:
        for name in "bc":
            net.subscribe(name, "news")
            net.link("a", name)
        net.advance(30)
        net.publish("a", "news", testing.Blank(500_000))
        net.advance(after_s)
        net.unlink("a", leaver)
        net.advance(40)
        assert len(net.deliveries(stayer)) == 1
        assert net.deliveries(leaver) == []
        net.link("a", leaver)
        net.advance(40)
        assert len(net.deliveries(leaver)) == 1


def test_a_transmission_is_shared_by_neighbours_of_different_speed() -> None:
    with testing.network("a", "b", "c") as net:
        for name, rate in (("b", 200_000), ("c", 20_000)):
            net.subscribe(name, "news")
            net.link("a", name, rate_bytes_per_s=rate)
        net.advance(30)
        for _ in range(10):
            net.publish("a", "news", testing.Blank(50_000))
        net.advance(120)
        assert [len(net.deliveries(name)) for name in "bc"] == [10, 10]


def test_what_one_neighbour_does_not_want_is_not_offered_to_all() -> None:
    with testing.network(*"abcde", seed=1) as net:
        for name in "bcd":
            net.subscribe(name, "news")
        net.subscribe("e", "weather")
        for name in "bcde":
            net.link("a", name)
        net.advance(30)
        before = net.sent("e").frames["Request"]
        net.publish("a", "news", testing.Blank(100))
        net.advance(5)
        assert [len(net.deliveries(name)) for name in "bcde"] == [1, 1, 1, 0]
        assert net.sent("e").frames["Request"] == before


def test_in_a_clique_each_tells_all_others_once_what_it_has() -> None:
    names = "abcdefgh"
    with testing.network(*names, seed=1) as net:
        for number, name in enumerate(names):
            net.subscribe(name, "news")
            for other in names[number + 1 :]:
                net.link(name, other)
        net.advance(30)
        before = [net.sent(name).frames["Offer"] for name in names]
        net.publish("a", "news", testing.Blank(100))
        net.advance(1)
        assert [len(net.deliveries(name)) for name in names] == [1] * 8
        assert sum(net.sent(name).frames["Offer"] for name in names) - sum(before) <= 8
