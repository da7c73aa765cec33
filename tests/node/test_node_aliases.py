"""One node at several addresses is one peer, and no node can take another's place."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carrypost.gossip.wire import codec
from carrypost.gossip.wire.frames import Announce, ProfileRequest
from carrypost.model.ids import NodeId
from carrypost.node.udp import intake as module
from carrypost.node.udp.intake import JOINED_MAX, KEEP_S, LONE_MAX, MEMBERS_MAX, SILENT_S, STEADY_S, WINDOW_S, Aliases
from carrypost.node.udp.intake import announced as announced_node

V4, V6, WIRED = "10.0.0.5:40001", "[fe80::5%wlan0]:40001", "10.9.0.5:40001"
MALLORY = "10.0.0.66:6666"
MULTICAST, BROADCAST, SIX = "v4 multicast", "v4 broadcast", "v6 multicast"


def announcement(node: str, counter: int) -> bytes:
    frame = Announce(NodeId(node), 1, counter, 1_000, bytes(8))
    (datagram,) = codec.datagrams([frame], 1_200)
    return datagram


def announcements(node: str) -> Iterator[bytes]:
    counter = 0
    while True:
        yield announcement(node, counter)
        counter += 1


# --- one peer ------------------------------------------------------------------------------------------------


def test_the_same_bytes_from_two_addresses_make_them_one_peer_that_is_given_them_once() -> None:
    aliases = Aliases()
    assert aliases.heard(V4, MULTICAST, b"hello", 0.0) == V4
    assert aliases.heard(V4, BROADCAST, b"hello", 0.1) is None
    assert aliases.heard(V6, SIX, b"hello", 0.2) is None
    assert aliases.heard(V6, SIX, b"something else", 0.3) == V4
    assert aliases.name(V6) == aliases.name(V4) == V4
    assert aliases.destination(V4) == V4


def test_the_same_bytes_long_after_each_other_say_nothing() -> None:
    aliases = Aliases()
    aliases.heard(V4, MULTICAST, b"hello", 0.0)
    assert aliases.heard(V6, SIX, b"hello", WINDOW_S + 0.1) == V6
    assert aliases.name(V6) == V6


def test_bytes_that_a_node_says_twice_on_purpose_come_twice_even_if_each_means_loses_one() -> None:
    aliases = Aliases()
    given_to_host = [
        aliases.heard(V4, MULTICAST, b"again", 0.0),
        aliases.heard(V6, SIX, b"again", 0.0),
        # The second time IPv4 is lost.
        aliases.heard(V6, SIX, b"again", 1.0),
    ]
    assert given_to_host == [V4, None, V4]


def test_a_peer_keeps_its_name_when_an_address_is_new_and_ahead() -> None:
    aliases = Aliases()
    spoken = announcements("anna")
    for second in range(5):
        aliases.heard(V6, SIX, next(spoken), second)
    for second in range(5, 10):
        datagram = next(spoken)
        assert aliases.heard(V4, MULTICAST, datagram, second) == (V4 if second == 5 else V6)
        assert aliases.heard(V6, SIX, datagram, second) is None
    assert aliases.name(V4) == V6
    assert aliases.destination(V6) == V4  # which is ahead whenever both are heard


def test_two_peers_that_turn_out_to_be_one_are_joined_under_the_elder_name() -> None:
    aliases = Aliases()
    pairs = ((V4, V6), (WIRED, "[fe80::9%eth0]:40001"), (WIRED, V6))
    for second, pair in enumerate(pairs):
        for address in pair:
            aliases.heard(address, address, b"%d" % second, second)
    assert {aliases.name(each) for each in (V4, V6, WIRED, "[fe80::9%eth0]:40001")} == {V4}


# --- destinations --------------------------------------------------------------------------------------------


def joined(*addresses: str) -> Aliases:
    aliases = Aliases()
    for address in addresses:
        aliases.heard(address, address, b"hello", 0.0)
    return aliases


def test_a_destination_that_falls_silent_gives_way_to_an_address_that_is_heard() -> None:
    aliases = joined(V4, V6)
    aliases.heard(V6, SIX, b"later", SILENT_S - 0.1)
    assert aliases.destination(V4) == V4
    aliases.heard(V6, SIX, b"much later", SILENT_S + 0.1)
    assert aliases.destination(V4) == V6
    assert aliases.name(V6) == V4


def test_a_destination_stays_unless_another_address_is_ahead_several_times_running() -> None:
    aliases = joined(V4, V6)
    orders = [(V6, V4), (V6, V4), (V4, V6), (V6, V4), (V6, V4)]
    for second, order in enumerate(orders, 1):
        for address in order:
            aliases.heard(address, address, b"%d" % second, second)
    assert aliases.destination(V4) == V4
    for address in (V6, V4):
        aliases.heard(address, address, b"once more", 6.0)
    assert aliases.destination(V4) == V6


def test_a_destination_that_cannot_be_reached_gives_way_to_an_address_that_is_heard() -> None:
    aliases = joined(V4, V6)
    assert aliases.failed(V4, 1.0)
    assert aliases.destination(V4) == V6
    assert aliases.failed(V4, 1.0)
    assert aliases.destination(V4) == V4
    aliases.heard(V4, MULTICAST, b"later", SILENT_S + 1)
    assert not aliases.failed(V4, SILENT_S + 1)  # the other one was not heard lately
    assert not aliases.failed(MALLORY, 1.0)


def test_addresses_are_forgotten_after_silence_and_the_peer_goes_on_under_another_name() -> None:
    aliases = joined(V4, V6, WIRED)
    aliases.heard(V6, SIX, b"later", KEEP_S)
    aliases.heard(WIRED, MULTICAST, b"later", KEEP_S)
    version = aliases.version
    aliases.expire(KEEP_S + 1)
    assert aliases.version > version
    assert aliases.name(V4) == V4
    assert aliases.name(V6) == aliases.name(WIRED) == V6
    aliases.expire(3 * KEEP_S)
    assert len(aliases) == 0


# --- hostile -------------------------------------------------------------------------------------------------


def test_a_replayer_never_becomes_the_destination_while_the_one_it_repeats_is_heard() -> None:
    aliases = Aliases()
    for second, datagram in zip(range(300), announcements("anna"), strict=False):
        assert aliases.heard(V4, MULTICAST, datagram, second) == V4
        assert aliases.heard(MALLORY, MULTICAST, datagram, second + 0.01) is None
        aliases.expire(second)
    assert aliases.destination(aliases.name(V4)) == V4


def test_a_replayer_that_was_there_first_loses_the_place_within_a_few_announcements() -> None:
    aliases = Aliases()
    spoken = announcements("anna")
    datagram = next(spoken)
    aliases.heard(MALLORY, MULTICAST, datagram, 0.0)
    aliases.heard(V4, MULTICAST, datagram, 0.01)
    for second in range(1, 4):
        datagram = next(spoken)
        aliases.heard(V4, MULTICAST, datagram, second)
        aliases.heard(V4, BROADCAST, datagram, second)
        aliases.heard(MALLORY, MULTICAST, datagram, second + 0.01)
    assert aliases.destination(aliases.name(V4)) == V4


@pytest.mark.parametrize("ahead", [True, False])
def test_a_node_that_repeats_the_announcements_of_another_is_not_taken_for_it(ahead: bool) -> None:
    aliases = Aliases()
    theirs, own = announcements("anna"), announcements("mallory")
    for second in range(30):
        aliases.heard(MALLORY, MULTICAST, next(own), second)
        datagram = next(theirs)
        for address in (MALLORY, V4) if ahead else (V4, MALLORY):
            assert aliases.heard(address, MULTICAST, datagram, second + 0.5) == address
    assert aliases.name(V4) == V4
    assert aliases.destination(V4) == V4


def test_an_address_whose_node_changed_is_taken_for_an_alias_again_once_it_has_settled() -> None:
    aliases = Aliases()
    aliases.heard(V4, MULTICAST, announcement("anna", 0), 0.0)
    datagram = announcement("bert", 0)  # another node was started there
    aliases.heard(V4, MULTICAST, datagram, 1.0)
    aliases.heard(V6, SIX, datagram, 1.0)
    assert aliases.name(V6) == V6
    datagram = announcement("bert", 1)
    aliases.heard(V4, MULTICAST, datagram, STEADY_S + 1.1)
    aliases.heard(V6, SIX, datagram, STEADY_S + 1.1)
    assert aliases.name(V6) == V4


def test_an_address_that_announces_another_node_leaves_its_peer() -> None:
    aliases = joined(V4, V6, WIRED)
    aliases.heard(V6, SIX, announcement("anna", 0), 1.0)
    assert aliases.heard(V4, MULTICAST, announcement("bert", 0), 1.0) == V4
    assert aliases.name(V6) == aliases.name(WIRED) == V6
    assert aliases.destination(V6) in {V6, WIRED}


def test_addresses_that_announced_different_nodes_are_not_joined_by_anything_they_both_say() -> None:
    aliases = Aliases()
    aliases.heard(V4, MULTICAST, announcement("anna", 0), 0.0)
    aliases.heard(MALLORY, MULTICAST, announcement("mallory", 0), 0.0)
    assert aliases.heard(V4, MULTICAST, b"data", 1.0) == V4
    assert aliases.heard(MALLORY, MULTICAST, b"data", 1.0) == MALLORY
    assert aliases.name(MALLORY) == MALLORY


def test_what_is_not_said_to_the_link_joins_nobody() -> None:
    aliases = Aliases()
    aliases.heard(V4, MULTICAST, b"hello", 0.0)
    assert aliases.heard(MALLORY, None, b"hello", 0.0, learn=False) == MALLORY
    assert aliases.name(MALLORY) == MALLORY


def test_forged_addresses_fill_bounded_tables_and_leave_those_of_honest_nodes_alone() -> None:
    aliases = joined(V4, V6)
    for number in range(3 * LONE_MAX):
        aliases.heard(f"10.1.{number >> 8}.{number & 255}:1", MULTICAST, b"%d" % number, 1.0)
        for copy in range(2):
            aliases.heard(f"10.{2 + copy}.{number >> 8}.{number & 255}:1", MULTICAST, b"pair %d" % number, 1.0)
    assert len(aliases) <= LONE_MAX + JOINED_MAX
    assert aliases.name(V6) == V4


def test_one_datagram_from_very_many_addresses_makes_no_large_peer_and_reaches_the_host_from_the_honest_one() -> None:
    aliases = Aliases()
    names = {aliases.heard(f"10.1.0.{number}:1", MULTICAST, b"same", 0.0) for number in range(200)}
    assert len(names) > 200 // MEMBERS_MAX / 2
    assert aliases.heard(V4, MULTICAST, b"same", 0.0) == V4


# --- announcements -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("node", ["n", "anna", "a" * 26, "b" * 31, "c" * 32, "d" * 64])
def test_the_node_of_an_announcement_is_found_in_its_bytes(node: str) -> None:
    assert announced_node(announcement(node, 7)) == node.encode()


@given(st.binary(max_size=100), st.booleans())
def test_other_bytes_announce_nobody_and_never_raise(data: bytes, alike: bool) -> None:
    found = announced_node(codec.MAGIC + bytes((codec.VERSION, 0x91, 0x96, 1)) + data if alike else data)
    assert alike or found == b""
    (request,) = codec.datagrams([ProfileRequest(bytes(8))], 1_200)
    assert announced_node(request) == b""


# --- any history ---------------------------------------------------------------------------------------------

ADDRESSES = [f"10.0.0.{number}:1" for number in range(8)]
DATAGRAMS = [announcement(node, counter) for node in ("anna", "bert") for counter in range(2)] + [b"1", b"2"]
HEARD = st.tuples(
    st.sampled_from(ADDRESSES),
    st.sampled_from("mb"),
    st.sampled_from(DATAGRAMS),
    st.sampled_from([0.0, 0.1, 3.0, 20.0]),
)


@given(st.lists(HEARD, max_size=60))
def test_whatever_is_heard_names_are_addresses_that_are_their_own_names_and_lead_to_members(
    history: list[tuple[str, str, bytes, float]],
) -> None:
    aliases, now_s = Aliases(), 0.0
    with pytest.MonkeyPatch.context() as patch:
        for limit, value in (("LONE_MAX", 4), ("JOINED_MAX", 4), ("MEMBERS_MAX", 3), ("SIGHTINGS_MAX", 4)):
            patch.setattr(module, limit, value)
        for address, way, datagram, pause_s in history:
            now_s += pause_s
            name = aliases.heard(address, way, datagram, now_s)
            assert name is None or name == aliases.name(address)
            assert len(aliases) <= 8
            if pause_s > 10:
                aliases.expire(now_s)
            groups: dict[str, set[str]] = {}
            for each in ADDRESSES:
                groups.setdefault(aliases.name(each), set()).add(each)
            for name_, members in groups.items():
                assert name_ in members
                assert aliases.destination(name_) in members
                assert len(members) <= 3
