"""Hostile peers: forged, meaningless and endless control frames, from unknown and from stolen addresses.

Control frames are not signed. A forger can delay an exchange; it can neither lose nor forge a message, nor make a host
keep more, send more or compute more than its limits say.
"""

from __future__ import annotations

import gc
import itertools
import time
import tracemalloc
from collections.abc import Callable, Sequence

import msgspec
import pytest
from tests.support.hostile import Attacker, Scene, message, scene
from tests.support.proofs import proven

from carrypost import testing
from carrypost.config import Limits
from carrypost.gossip.holdings.copies import Copy
from carrypost.gossip.holdings.memories import Memories
from carrypost.gossip.wire import codec
from carrypost.gossip.wire.frames import (
    Ack,
    Announce,
    Bucket,
    Data,
    DescriptorPart,
    Digest,
    Frame,
    HashList,
    Offer,
    OfferEntry,
    Parcel,
    PieceRequest,
    Profile,
    ProfileRequest,
    Request,
    Summary,
)
from carrypost.log.events import NeighbourDown, NeighbourUp
from carrypost.model.ids import MessageId, NodeId, node_prefix
from carrypost.model.pattern import Entry, encode_entries, entry, profile_digest
from carrypost.security.identity import Identity

HUGE = 2**63 - 1


def prefix(stage: Scene, node: str) -> bytes:
    return node_prefix(stage.net.host(node).node)


def said_by(stage: Scene, name: str, **changes: object) -> Announce:
    """Return an announcement that a host might make, but does not."""
    peers = tuple(prefix(stage, other) for other in "ab" if other != name)
    host = stage.net.host(name)
    own = profile_digest(encode_entries([entry("news")]))
    return msgspec.structs.replace(Announce(host.node, 1, 1, 1_000, own, peers), **changes)


# --- announcements -------------------------------------------------------------------------------------------------


def test_announcements_under_a_neighbours_name_from_another_address_do_not_touch_its_link() -> None:
    with scene() as stage:
        downs: list[str] = []
        stage.net.watch(lambda _t, node, event: downs.append(node) if isinstance(event, NeighbourDown) else None)
        mallory = Attacker(stage.net)
        stage.publish()
        for number in range(200):
            forged = said_by(stage, "a", incarnation=number % 3 * 10**6, counter=HUGE % (2**53) - 400 + number)
            mallory.say("b", msgspec.structs.replace(forged, heard=() if number % 2 else forged.heard))
            stage.net.advance(0.05)
        stage.check()
        assert len(stage.net.deliveries("b")) == len(stage.published)


def test_a_replayed_announcement_is_refused() -> None:
    with scene() as stage:
        mallory = stage.attacker("b")
        first = mallory.announcement("b")
        mallory.say("b", first)
        for old in (first, msgspec.structs.replace(first, counter=0), msgspec.structs.replace(first, incarnation=0)):
            mallory.say("b", old)
        assert stage.refused()["replay"] == 3
        mallory.say("b", mallory.announcement("b", incarnation=2, counter=0))
        assert stage.refused()["replay"] == 3
        stage.check()


@pytest.mark.parametrize(
    "changes",
    [
        {"incarnation": 2**53},
        {"counter": 2**53},
        {"incarnation": 2**53, "heard": ()},
        {"counter": 2**53, "heard": ()},
        {"incarnation": 2**53, "counter": 2**53, "heard": (), "period_ms": 2**31, "profile": b"nonsense"},
        {"node": NodeId("somebody-else")},
        {"node": NodeId("somebody-else"), "heard": (), "period_ms": 2**31, "profile": b"nonsense"},
    ],
)
def test_announcements_from_a_stolen_address_delay_a_contact_and_no_more(changes: dict[str, object]) -> None:
    with scene() as stage:
        mallory = Attacker(stage.net)
        for _ in range(10):
            mallory.say("b", said_by(stage, "a", **changes), as_="a")
            mallory.say("a", said_by(stage, "b", **changes), as_="b")
            stage.net.advance(0.7)
        stage.check(within_s=90)


def test_a_forged_source_is_sent_no_more_than_three_times_what_came_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with scene(strategy="anti-entropy") as stage:
        stage.published += [bytes([number]) * 500 for number in range(100)]
        for payload in stage.published:
            stage.net.publish("b", "news", payload)
        stage.net.advance(30)
        reflected: list[Frame] = []
        radio = stage.net._radio  # noqa: SLF001 - to see what goes to an address, whoever is there

        def send(sender: str, frames: Sequence[Frame], to: str | None, mtu_bytes: int) -> None:
            reflected.extend(frames if to == "victim" else ())
            sending(sender, frames, to, mtu_bytes)

        sending = radio.send
        monkeypatch.setattr(radio, "send", send)
        forger, came = Attacker(stage.net, "forger"), 0
        for _ in range(60):
            frames = [
                forger.announcement("b"),
                *forger.wants(".*"),
                Summary(1, 0, 1, 0),
                ProfileRequest(forger.profile),
            ]
            came += sum(map(len, codec.datagrams(frames, 60_000)))
            forger.say("b", *frames, as_="victim")
            stage.net.advance(1)
            assert sum(map(len, codec.datagrams(reflected, 60_000))) <= 3 * came
        assert {type(frame) for frame in reflected} == {Announce}
        assert stage.refused()["not-linked"] >= 60
        stage.check()


@pytest.mark.parametrize(
    "changes",
    [
        {"incarnation": 2**53, "heard": ()},
        {"counter": 2**53, "heard": ()},
        {"counter": 2**53},
        {"counter": 2**53, "period_ms": 1},
        {"incarnation": 2**53, "stamp": bytes(8), "token": bytes(8), "proof": bytes(8)},
        {"counter": 2**53, "profile": b"nonsense", "begins": b""},
    ],
)
def test_forged_announcements_do_not_separate_neighbours(changes: dict[str, object]) -> None:
    with scene() as stage:
        downs: list[str] = []
        stage.net.watch(lambda _t, node, event: downs.append(node) if isinstance(event, NeighbourDown) else None)
        mallory = Attacker(stage.net)
        for _ in range(600 // 9):
            for victim, robbed in ("ba", "ab"):
                begins = {"begins": prefix(stage, victim)} if "begins" in changes else {}
                mallory.say(victim, said_by(stage, robbed, **changes | begins), as_=robbed)
            stage.net.advance(9)
        assert downs == []
        assert stage.refused()["unproven"] >= 600 // 9
        stage.check()


def test_a_node_that_restarted_is_linked_again_by_its_first_announcement() -> None:
    with testing.network("a", "b", delay_s=0.05) as net:
        net.link("a", "b")
        net.advance(30)
        rows: list[tuple[float, str, str]] = []
        net.watch(lambda t, node, event: rows.append((t, node, type(event).__name__)))
        net.kill("b")
        net.restart("b")
        began = net.now
        net.advance(1)
        assert [what for t, node, what in rows if node == "a" and what.startswith("Neighbour")] == [
            "NeighbourDown",
            "NeighbourUp",
        ]
        assert {node for t, node, what in rows if what == "NeighbourUp" and t - began < 0.5} == {"a", "b"}


def test_a_neighbour_that_begins_reviews_all_the_time_has_few_messages_invited(monkeypatch: pytest.MonkeyPatch) -> None:
    invited: list[None] = []
    inviting = Memories.invite

    def invite(memories: Memories) -> tuple[list[Copy], list[Copy]]:
        invited.append(None)
        return inviting(memories)

    with scene() as stage:
        mallory = stage.attacker("b")
        mallory.agree("b")
        own = profile_digest(encode_entries([entry("news")]))
        monkeypatch.setattr(Memories, "invite", invite)
        for run in range(1, 101):
            mallory.say("b", Digest(own, 0, (Bucket(0, 0, (), ()),), (), 1, run=run))
        assert 0 < len(invited) <= 5
        stage.check()


def test_a_live_link_does_not_change_hands() -> None:
    with scene() as stage:
        ups: list[NodeId] = []
        stage.net.watch(lambda _t, _node, event: ups.append(event.node) if isinstance(event, NeighbourUp) else None)
        mallory = stage.attacker("b")
        for number in range(100):
            mallory.say("b", mallory.announcement("b", node=NodeId(f"name-{number}")))
        assert ups == [mallory.node]
        assert stage.refused()["address-taken"] == 100
        stage.net.advance(11)
        for _ in range(2):  # A new name has to be proven once more.
            mallory.say("b", mallory.announcement("b", node=NodeId("heir")))
        assert ups == [mallory.node, "heir"]
        stage.check()


def test_a_name_that_was_damaged_on_its_way_does_not_become_that_of_a_neighbour() -> None:
    with scene() as stage:
        ups: list[NodeId] = []
        stage.net.watch(lambda _t, _node, event: ups.append(event.node) if isinstance(event, NeighbourUp) else None)
        mallory, host = Attacker(stage.net), stage.net.host("b")
        shown = proven(host, mallory.announcement("b"), mallory.address, round(stage.net.now * 1e6))
        assert shown is not None
        damaged = msgspec.structs.replace(shown, node=NodeId("damaged"))
        host.receive([damaged], mallory.address, round(stage.net.now * 1e6))
        for _ in range(2):
            stage.net.advance(1)  # The address is asked for a proof of that name, or of the next.
            mallory.say("b", mallory.announcement("b"))
        assert ups == [mallory.node]


def test_more_neighbours_than_are_allowed_are_refused_and_those_that_are_there_go_on() -> None:
    with scene(limits={"neighbours_max": 8, "profiles_max": 8}) as stage:
        crowd = [Attacker(stage.net, f"crowd-{number}") for number in range(50)]
        for each in crowd:
            each.meet("b", f"nothing-{each.address}", hears=False)
        assert stage.refused()["neighbours"] == 43
        stage.check()


@pytest.mark.parametrize("lists", [True, False])
def test_a_crowd_that_says_that_it_will_be_long_silent_gives_way_to_newcomers(lists: bool) -> None:
    with scene(limits={"neighbours_max": 8, "heard_max": 8, "profiles_max": 10}) as stage:
        stage.net.unlink("a", "b")
        stage.net.subscribe("a", "and something else")
        stage.net.advance(60)
        for number in range(40):
            each = Attacker(stage.net, f"crowd-{number}")
            profile = each.wants(f"nothing-{number}")
            each.say("b", each.announcement("b"), *profile)
            if not lists:
                each.say("b", each.announcement())
            stage.net.advance(2)
        stage.net.advance(20)
        stage.net.link("a", "b")
        stage.check()


def test_more_neighbours_than_can_be_listed_are_not_pretended_to_be_heard() -> None:
    with scene(limits={"heard_max": 4}) as stage:
        for number in range(20):
            Attacker(stage.net, f"crowd-{number}").meet("b", hears=False)
        stage.check()
        assert stage.refused()["neighbours"] == 17


def test_a_heard_list_that_is_too_long_is_refused() -> None:
    with scene() as stage:
        mallory = Attacker(stage.net)
        mallory.say("b", mallory.announcement("b", heard=(prefix(stage, "b"),) * (Limits().heard_max + 1)))
        assert stage.refused()["limit"] == 1
        stage.check()


def test_nothing_is_taken_from_an_address_that_was_not_announced_or_does_not_hear_this_host() -> None:
    with scene() as stage:
        mallory = Attacker(stage.net)
        given = message(mallory.identity)
        mallory.give("b", given)
        assert stage.refused() == {"unannounced": 3}
        mallory.say("b", mallory.announcement())
        mallory.give("b", given)
        assert stage.refused() == {"unannounced": 3, "not-linked": 3}
        stage.check()


def test_half_messages_from_links_that_vanish_leave_nothing_behind() -> None:
    """Neighbours that do not list this host are forgotten silently; the buffers they filled must not outlive them."""
    limits = {"neighbours_max": 4, "heard_max": 4, "partials_max": 2, "fragment_buffer_bytes_max": 16_384}
    with scene(limits=limits) as stage:
        for number in range(30):
            mallory = Attacker(stage.net, f"crowd-{number}")
            given = message(mallory.identity, bytes(3_000))
            for lists in (("b",), (), ("b",), ()):
                mallory.say("b", mallory.announcement(*lists, period_ms=50))
                half = mallory.fragments(given)[:2]
                mallory.say("b", mallory.offer(given), *mallory.describe(given), *half)
            stage.net.advance(2)
        stage.check()


# --- profiles ------------------------------------------------------------------------------------------------------

BOMBS = [
    "(a+)+$", "(a|a)*$", "(a|aa)+$", "(.*)*x", "((((((((a*)*)*)*)*)*)*)*)*", "(a?){200}a{200}", "\\pL{1000}",
    "((a{100}){100}){100}", "(?i)" + "a" * 240, "[^x]*" * 40, "(" * 100, "a{1,1000}{1,1000}", "\\Q" * 120,
    "(?P<n>" * 40, "x*" * 120, ".*a" + "." * 200, "[[:alpha:]]" * 20,
]  # fmt: skip


@pytest.mark.parametrize("pattern", BOMBS)
def test_no_pattern_of_a_neighbour_costs_more_than_its_share_of_time(pattern: str) -> None:
    """Compared with a harmless profile on the same messages, so that a slow machine is no reason to fail."""
    value = "a" * 1_000

    def cost(text: str) -> float:
        with scene(security="off") as stage:
            mallory = Attacker(stage.net)
            for _ in range(20):
                stage.net.publish("b", "news", attributes={"x": value + "!"})
            mallory.say("b", mallory.announcement("b"))
            profile = mallory.wants(Entry((("x", text),)))
            began = time.process_time()
            mallory.say("b", mallory.announcement("b"), *profile)
            stage.net.advance(5)
            stage.published += [b""] * 20
            stage.check()
            return time.process_time() - began

    assert cost(pattern) < 20 * cost("harmless.*") + 0.5


def test_thousands_of_profiles_are_compiled_at_a_pace_and_few_are_kept() -> None:
    with scene(limits={"descriptor_buffer_bytes_max": 65_536, "link_waste_per_s": 2_000, "profiles_max": 32}) as stage:
        mallory = stage.attacker("b")

        def flood() -> None:
            for number in range(1_000):
                profile = mallory.wants(f"topic-{number}.*x+")
                mallory.say("b", mallory.announcement("b"), *profile)
                if number % 200 == 0:
                    stage.net.advance(0.5)

        flood()
        kept = memory(mallory, flood)
        assert kept < 500_000
        assert stage.refused()["muted"] > 1_950
        stage.check()


@pytest.mark.parametrize(
    ("destination", "terms", "selectors"),
    [pytest.param("other", 500, 40, marks=pytest.mark.soak), ("news", 150, 8)],
    ids=["read", "evaluated"],
)
def test_who_tells_one_profile_of_dear_selectors_after_the_other_is_muted(
    destination: str, terms: int, selectors: int
) -> None:
    text = "+".join(["n"] * terms)
    with scene(security="off", limits={"link_waste_per_s": 15_000}) as stage:
        mallory = stage.attacker("b")
        for _ in range(200):
            stage.net.publish("b", "news", attributes={"n": 2**62})
            stage.published.append(b"")
        for number in range(36):
            told = [Entry((("destination", destination),), f"{text}={number}{each}") for each in range(selectors)]
            profile = mallory.wants(*told)
            mallory.say("b", mallory.announcement("b"), *profile)
            stage.net.advance(0.5)
        assert stage.refused()["muted"] > 20
        stage.net.advance(5)
        stage.check()


def memory(mallory: Attacker, action: Callable[[], object], settle_s: float = 1) -> int:
    """Return the bytes that an action leaves allocated after `settle_s`."""
    mallory.net.advance(1)
    gc.collect()
    tracemalloc.start()
    try:
        action()
        mallory.net.advance(settle_s)
        mallory.heard.clear()
        gc.collect()
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


@pytest.mark.soak
def test_first_parts_of_things_that_never_become_whole_fit_into_bounded_memory_and_stand_in_nobodys_way() -> None:
    with scene() as stage:
        mallory = stage.attacker("b")

        def flood() -> None:
            for number in range(700):
                body = bytes(1 + number % 2 * 500)
                digest = number.to_bytes(8, "big")
                mallory.say("b", mallory.announcement("b", profile=digest), Profile(digest, number % 256, 256, body))
                given = message(mallory.identity)
                handle = number % 50
                part = DescriptorPart(handle, number, 0, 0, number % 200, 200 + number % 56, body)
                mallory.say("b", mallory.offer(given, handle), part)
                if number % 100 == 0:
                    stage.net.advance(0.1)

        flood()
        assert memory(mallory, flood) < 2_000_000
        # A profile and a descriptor that need parts come through while the flood goes on.
        stage.net.add("c", limits={"descriptor_bytes_max": 65_536})
        for number in range(30):
            stage.net.subscribe("c", "x" * 200 + str(number))
        stage.net.subscribe("c", "news")
        stage.net.link("b", "c")
        attributes = {str(number): "x" * 1_000 for number in range(6)}
        stage.net.publish("a", "news", b"long", attributes=attributes)
        stage.published.append(b"long")
        for _ in range(10):
            flood_some(mallory)
            stage.net.advance(1)
        stage.check()
        assert len(stage.net.deliveries("c")) == len(stage.published)


def flood_some(mallory: Attacker) -> None:
    for number in range(100):
        body = bytes(1_000)
        digest = number.to_bytes(8, "big")
        mallory.say("b", mallory.announcement("b", profile=digest), Profile(digest, 0, 2, body))
        given = message(mallory.identity)
        mallory.say("b", mallory.offer(given, number), DescriptorPart(number, number, 0, 0, 0, 2, body))


@pytest.mark.parametrize(
    ("entries", "reason"),
    [
        ([Entry((("x", str(number)),)) for number in range(2_049)], "profile"),
        ([Entry((("x", str(number) + "y" * 250),)) for number in range(300)], "profile"),
        ([Entry(())], "profile"),
        ([Entry((("y", "1"), ("x", "1")))], "profile"),
        ([Entry((("x", "1"),), None, 9)], "profile"),
    ],
)
def test_a_profile_with_too_much_of_anything_is_refused(entries: list[Entry], reason: str) -> None:
    with scene() as stage:
        mallory = Attacker(stage.net)
        encoded = encode_entries(entries)
        mallory.profile = profile_digest(encoded)
        mallory.say("b", mallory.announcement("b"), Profile(mallory.profile, 0, 1, encoded[:65_507]))
        for number in range(2 if len(encoded) > 65_507 else 0):
            mallory.say("b", Profile(mallory.profile, number, 2, encoded[number * 40_000 :][:40_000]))
        assert stage.refused()[reason] >= 1
        stage.check()


@pytest.mark.parametrize(
    "costly",
    [
        Entry((("x", "y" * 257),)),
        Entry((("x" * 1_025, "y"),)),
        Entry((("destination", "sport"),), "s" * 1_025),
        Entry(tuple((str(number), "y") for number in range(100, 165))),
    ],
)
def test_an_entry_with_too_much_of_anything_does_not_void_the_profile(costly: Entry) -> None:
    """The neighbour may have larger limits: it is offered what its other entries ask for, and what this may ask for."""
    with scene() as stage:
        mallory = Attacker(stage.net)
        mallory.meet("b", "news", costly)  # type: ignore[arg-type]
        mallory.agree("b")
        for destination in ("news", "sport"):
            mallory.heard.clear()
            message = stage.net.publish("b", destination, b"x" * 2_000)
            stage.net.advance(1)
            assert message in {each.message for offer in mallory.sends(Offer) for each in offer.entries}
        assert not stage.refused()["profile"]


def test_a_profile_that_is_not_the_announced_one_is_refused() -> None:
    with scene() as stage:
        mallory = Attacker(stage.net)
        mallory.say("b", mallory.announcement("b", profile=b"promised"))
        mallory.say("b", Profile(b"promised", 0, 1, encode_entries([entry("news")])))
        mallory.say("b", Profile(b"promised", 0, 1, b"\xc1"), Profile(b"anything", 0, 1, b"\xc1"))
        broken = profile_digest(b"\xc1")
        mallory.say("b", mallory.announcement("b", profile=broken), Profile(broken, 0, 1, b"\xc1"))
        assert stage.refused() == {"profile-digest": 2, "profile-stale": 1, "profile": 1}
        stage.check()


def test_a_neighbours_interests_do_not_crowd_out_ones_own() -> None:
    with scene(horizon_hops=3) as stage:
        mallory = Attacker(stage.net)
        mallory.say("b", mallory.announcement("b"))
        greedy = [Entry((("destination", f"!{number:04}"),)) for number in range(2_048)]
        mallory.say("b", *mallory.wants(*greedy), mallory.announcement("b"))
        assert stage.refused() == {"profile-stale": 1}
        mallory.say("b", *mallory.wants(*greedy))
        trudy = Attacker(stage.net, "trudy")
        picky = trudy.wants(Entry((("destination", "news"),), "a selector"), Entry((("destination", "news"),)))
        trudy.say("b", trudy.announcement("b"), *picky)
        stage.net.advance(5)
        stage.check()


def test_who_asks_for_the_profile_all_the_time_is_not_answered_all_the_time() -> None:
    with scene() as stage:
        for number in range(100):
            stage.net.subscribe("b", "y" * 200 + str(number))
        stage.net.advance(5)
        mallory = stage.attacker("b")
        stage.net.advance(1)
        asked = ProfileRequest(mallory.sends(Announce)[-1].profile)
        mallory.heard.clear()
        for _ in range(100):
            mallory.say("b", *[asked] * 50)
            stage.net.advance(0.01)
        answers = [frame for frame in mallory.sends(Profile) if frame.part == 0]
        assert 1 <= len(answers) <= 14
        assert stage.refused()["rate"] >= 4_900
        stage.check()


# --- digests -------------------------------------------------------------------------------------------------------


def senseless_digests() -> list[Digest]:
    own = profile_digest(encode_entries([entry("news")]))
    buckets = [
        Bucket(0, 0, tuple(range(64))),
        Bucket(0, 0, (1,) * 63),
        Bucket(0, 0, (), tuple(range(500))),
        Bucket(0, 0, (1,) * 64, (1,)),
        Bucket(2, 3, (7,) * 16),
        Bucket(6, 63, (7,) * 16),
        Bucket(7, 0, (7,) * 16),
        Bucket(62, 2**62 - 1, (7,) * 16),
        Bucket(62, 2**62 - 1, (), ()),
        Bucket(64, 2**64 - 1, (), (2**64 - 1,)),
        Bucket(6, 5, (), (2**64 - 1,)),
    ]
    found = [Digest(own, 0, (bucket,), number=number) for number, bucket in enumerate(buckets)]
    found += [Digest(own, number, (buckets[0],), (1, 2, 3), 9, 9, 0, 1) for number in range(256)]
    found += [Digest(own, number % 4, (), (), number, number, number, 2**16) for number in range(300)]
    found.append(Digest(own, 0, tuple(Bucket(6, number, (), ()) for number in range(64)) * 5))
    found.append(Digest(own, 0, (), tuple(range(2_049))))
    found.append(Digest(b"nonsense", 1, (buckets[0],)))
    return found


@pytest.mark.parametrize("pattern", ["news", "other"])
def test_senseless_digests_change_nothing(pattern: str) -> None:
    with scene() as stage:
        for number in range(100):
            stage.net.publish("a", "news", str(number).encode())
            stage.published.append(str(number).encode())
        mallory = stage.attacker("b", pattern=pattern)
        stage.publish()
        for digest in senseless_digests():
            mallory.say("b", digest)
            mallory.say("b", digest, as_="a")
        stage.check(within_s=150)
        assert {"digest", "limit", "profile-stale"} <= set(stage.refused())


@pytest.mark.parametrize("pattern", ["news", "other"])
def test_who_asks_without_end_and_answers_nothing_fills_no_memory(pattern: str) -> None:
    with scene() as stage:
        for number in range(200):
            stage.net.publish("a", "news", str(number).encode())
            stage.published.append(str(number).encode())
        mallory = stage.attacker("b", pattern=pattern)
        stage.net.advance(5)
        own = profile_digest(encode_entries([entry("news")]))
        numbers = itertools.count(1)

        def flood(count: int) -> None:
            for number in itertools.islice(numbers, count):
                mallory.say("b", Digest(own, 0, (Bucket(0, 0, (number,) * 64),), number=number, run=number % 3))
                if number % 50 == 0:
                    stage.net.advance(0.1)

        flood(150)
        assert memory(mallory, lambda: flood(150)) < 150_000
        stage.check(within_s=120)


def test_an_answer_in_endless_parts_fills_no_memory() -> None:
    with scene() as stage:
        stage.net.publish("b", "other")
        mallory = stage.attacker("b", pattern="other")

        def flood() -> None:
            asked = mallory.sends(Digest)[-1].number
            assert asked
            for part in range(2_000):
                mallory.say("b", Digest(mallory.profile, 1, answers=asked, part=part, parts=2**16))

        assert memory(mallory, flood, 0) < 100_000
        stage.check()


# --- offers --------------------------------------------------------------------------------------------------------


def test_offers_of_what_it_does_not_have_are_asked_for_a_while_and_then_forgotten() -> None:
    with scene(limits={"offers_open_max": 500}) as stage:
        mallory = stage.attacker("b")
        handles = itertools.count()
        for _ in range(10):
            entries = [OfferEntry(MessageId(b"%08d" % (n := next(handles))), n, 10, 255) for _ in range(500)]
            mallory.say("b", Offer(1, tuple(entries)))
        assert stage.refused()["offers-open"] == 4_500
        stage.check()
        mallory.heard.clear()
        stage.net.advance(60)
        assert mallory.sends(Request) == []


def test_of_a_neighbour_that_has_brought_nothing_only_so_many_offers_are_read() -> None:
    with scene() as stage:
        mallory = stage.attacker("b")
        numbers = itertools.count()

        def wanted() -> int:
            """Offer another page; return the number of messages that the host waits for."""
            entries = [OfferEntry(MessageId(b"%08d" % (n := next(numbers))), n, 10, 255) for _ in range(500)]
            mallory.say("b", Offer(next(numbers), tuple(entries)))
            return max(each.wanted for each in stage.net.host("b").overview().neighbours)

        assert [wanted() for _ in range(5)] == [500, 1_000, 1_500, 1_500, 1_500]
        assert stage.refused() == {"offers-open": 2}
        stage.published.append(b"a gift")
        mallory.say("b", mallory.parcel(message(mallory.identity, stage.published[-1]), next(numbers)))
        assert [wanted() for _ in range(2)] == [2_000, 2_500]


def test_offers_of_many_neighbours_fill_bounded_memory_and_leave_room_for_each() -> None:
    """Without a bound over all links, each of them adds its `offers_open_max` wants, and as many offers beside."""
    limits = {"offers_open_max": 200, "offers_all_max": 1_000, "neighbours_max": 30}
    with scene(security="off", lifetime_s_default=None, lifetime_s_max=None, routes_max=1, limits=limits) as stage:
        crowd = [stage.attacker("b", address=f"m{number}") for number in range(25)]
        stage.net.advance(1)

        def flood(round_: int) -> int:
            for number, mallory in enumerate(crowd):
                mallory.heard.clear()
                handles = range(400 * round_, 400 * (round_ + 1))
                entries = [OfferEntry(MessageId(b"%08d%08d" % (number, each)), each, 10, 255) for each in handles]
                mallory.say("b", Offer(round_, tuple(entries)))
            stage.net.advance(0)
            return sum(each.wanted for each in stage.net.host("b").overview().neighbours)

        # The first three have the common half, 200 and 200 and 100 of it. The others have their shares.
        assert flood(0) == 500 + 500 // 31 * 22
        assert memory(crowd[0], lambda: flood(1), 0) < 500_000
        # The honest neighbour has a share of its own: 16 messages are requested, and as many remembered for later.
        for number in range(28):
            stage.published.append(bytes([number]) * 2_000)
            stage.net.publish("a", "news", stage.published[-1])
        stage.check(within_s=10)
        stage.net.advance(60)
        # What was requested in vain makes room.
        assert flood(2) == 1_000
        stage.net.advance(0.1)
        assert any(frame.handles for frame in crowd[0].sends(Request))


def test_a_neighbour_that_promises_and_does_not_give_keeps_nobody_from_giving() -> None:
    """Check a neighbour that offers a message first, is asked for it, and sends something else."""
    with scene() as stage:
        stage.net.unlink("a", "b")
        stage.net.advance(30)
        mallory = stage.attacker("b")
        promised = []
        for number in range(5):
            payload = bytes([number]) * 30_000
            stage.net.publish("a", "news", payload)
            stage.published.append(payload)
            promised.append(stage.net.deliveries("a")[-1].descriptor)
        stage.net.link("a", "b")
        handles = itertools.count(100)
        filler = message(mallory.identity, bytes(60_000))
        mallory.say("b", mallory.offer(filler, 50), *mallory.describe(filler, 50))
        for round_ in range(80):
            for descriptor in promised:
                handle = next(handles) if round_ % 2 else 1
                shown = OfferEntry(descriptor.id, handle, descriptor.length, 255)
                mallory.say("b", Offer(handle, (shown,)))
            mallory.say("b", Data(50, 5_000 + round_, 0, False, bytes(1_024)))
            stage.net.advance(0.5)
        assert len(stage.net.deliveries("b")) == 5
        stage.check()


def test_a_neighbour_that_sends_rubbish_first_does_not_hold_up_who_offers_the_same() -> None:
    with scene() as stage:
        mallory, honest = stage.attacker("b"), stage.attacker("b", address="honest")
        given = message(honest.identity, bytes(3_000))
        fragments = mallory.fragments(given)
        fragments[1] = msgspec.structs.replace(fragments[1], body=b"x" * 1_024)
        mallory.say("b", mallory.offer(given))
        honest.say("b", honest.offer(given, 7))
        stage.net.advance(0.1)
        assert not any(frame.handles for frame in honest.sends(Request))
        mallory.say("b", *mallory.describe(given), *fragments)
        stage.net.advance(0.1)
        assert any(7 in frame.handles for frame in honest.sends(Request))


def test_an_offer_that_changes_under_its_handle_harms_nobody() -> None:
    with scene() as stage:
        mallory = stage.attacker("b")
        one, other = message(mallory.identity, bytes(40_000)), message(mallory.identity, bytes(100))
        for first, second in ((one, other), (other, one)):
            mallory.say("b", mallory.offer(first), *mallory.describe(first), *mallory.fragments(first)[:1])
            mallory.say("b", mallory.offer(first, length=16 * 1024 * 1024), mallory.offer(first, pieces=b"\xff" * 128))
            mallory.say("b", mallory.offer(second), *mallory.fragments(first)[1:], *mallory.describe(second))
        mallory.give("b", other, 3)
        stage.published.append(bytes(100))
        stage.check()


def test_offers_and_requests_with_too_much_of_anything_are_refused() -> None:
    with scene() as stage:
        mallory = stage.attacker("b")
        shown = OfferEntry(MessageId(b"x"), 1, 10, 255)
        to = prefix(stage, "b")
        frames: list[Frame] = [
            Offer(1, (shown,) * 513),
            Offer(1, (msgspec.structs.replace(shown, pieces=bytes(129)),)),
            Request(to, (1,) * 513),
            Request(to, (), (1,) * 513),
            Request(to, (), (), (PieceRequest(1, b"\xff"),) * 513),
            Request(to, (), (), (PieceRequest(1, bytes(129)),)),
            Ack(0, bytes(8_193)),
            HashList(1, 1, 2**53, bytes(32)),
            Data(1, 1, 2**53, False, b""),
            Data(1, 1, 0, False, bytes(16_385)),
            DescriptorPart(1, 1, 0, 0, 0, 2, bytes(8_193)),
            Parcel(1, 1, 0, 0, False, bytes(8_193), b""),
            Parcel(1, 1, 0, 0, False, message(mallory.identity).descriptor.wire, bytes(16_385)),
        ]
        for frame in frames:
            mallory.say("b", frame)
        assert stage.refused()["limit"] == len(frames)
        strange: list[Frame] = [
            Offer(1, (msgspec.structs.replace(shown, message=MessageId(bytes(99))),)),
            Offer(1, (msgspec.structs.replace(shown, privilege=256),)),
            Offer(1, (msgspec.structs.replace(shown, handle=-1),)),
            Offer(1, (msgspec.structs.replace(shown, length=2**60),)),
            Request(b"12345", ()),
            Ack(-1, b""),
            DescriptorPart(1, 1, 0, 0, 2, 2, b"x"),
            Parcel(1, -1, 0, 0, False, b"", b""),
            Parcel(1, 1, 2**53 + 1, 0, False, b"", b""),
        ]
        for frame in strange:
            mallory.say("b", frame)
        assert stage.refused()["frame"] == len(strange)
        stage.check()


# --- requests and acknowledgements ---------------------------------------------------------------------------------


def test_requests_for_what_is_not_there_or_for_somebody_else_are_refused() -> None:
    with scene() as stage:
        mallory = stage.attacker("b")
        to = prefix(stage, "b")
        mallory.say("b", Request(to, (1, HUGE), (5, HUGE), (PieceRequest(HUGE, b"\xff" * 128),)))
        mallory.say("b", Request(prefix(stage, "a"), (), (1,)))
        assert stage.refused()["handle"] == 3
        assert stage.refused()["not-for-me"] == 1
        stage.check()


def test_who_asks_for_the_same_all_the_time_and_never_acknowledges_is_sent_little() -> None:
    with scene() as stage:
        mallory = stage.attacker("b")
        mallory.agree("b")
        stage.net.publish("b", "news", bytes(1_000_000))
        stage.published.append(bytes(1_000_000))
        stage.net.advance(1)
        handles = tuple(each.handle for frame in mallory.sends(Offer) for each in frame.entries)
        mallory.heard.clear()
        for _ in range(600):
            mallory.say("b", Request(prefix(stage, "b"), (), handles))
            stage.net.advance(0.1)
        sent = sum(len(frame.body) for frame in mallory.sends(Data))
        assert 0 < sent < 250_000
        stage.check()


def leader(stage: Scene, reacts: Callable[[Attacker, Frame], None]) -> Attacker:
    """Return a neighbour that b served before it met a, and that asks at once for everything that it is offered.

    A message that several neighbours asked for is sent once, to the link, at the pace of the first.
    """
    stage.net.unlink("a", "b")
    stage.net.advance(30)
    mallory = stage.attacker("b")
    mallory.agree("b")
    stage.net.link("a", "b")
    stage.net.advance(5)

    def react(frame: Frame) -> None:
        if isinstance(frame, Offer):
            handles = tuple(each.handle for each in frame.entries)
            mallory.say("b", Request(prefix(stage, "b"), (frame.serial,), handles))
        reacts(mallory, frame)

    mallory.reacts = react
    return mallory


def says_nothing(_mallory: Attacker, _frame: Frame) -> None:
    pass


def leaves(mallory: Attacker, frame: Frame) -> None:
    if isinstance(frame, Data):
        mallory.say("b", mallory.announcement())


def acknowledges_one_by_one(mallory: Attacker, frame: Frame) -> None:
    """Often enough not to be given up, and slowly."""
    first = mallory.sends(Data)[:1]
    if first and isinstance(frame, Announce | Data):
        mallory.say("b", Ack(first[0].serial, b"\x01"))


@pytest.mark.parametrize("reacts", [says_nothing, leaves, acknowledges_one_by_one])
def test_a_requester_that_does_not_keep_up_holds_up_nobody_who_asked_for_the_same(
    reacts: Callable[[Attacker, Frame], None],
) -> None:
    with scene(compress=False) as stage:
        mallory = leader(stage, reacts)
        payload = bytes(range(256)) * 800
        stage.net.publish("b", "news", payload)
        stage.published.append(payload)
        for _ in range(50):
            stage.net.advance(0.1)
            if reacts is acknowledges_one_by_one and (found := mallory.sends(Data)):
                mallory.say("b", Ack(found[len(mallory.heard) % len(found)].serial, b"\x01"))
        assert mallory.sends(Data)
        assert len(stage.net.deliveries("a")) == 1
        stage.check()


@pytest.mark.parametrize(
    "frame",
    [
        Ack(0, b"\xff" * 8_192),
        Ack(1, b"\xff" * 100),
        Ack(HUGE, b"\xff" * 8_192),
        Ack(0, b""),
        Data(HUGE, HUGE, 2**10, True, b"x"),
        DescriptorPart(HUGE, HUGE, 2**53, 2**53, 0, 2, b"x"),
        HashList(3, HUGE, 0, bytes(32)),
        Parcel(HUGE, HUGE, 2**53, 2**53, True, message(Identity.derived(1, "a")).descriptor.wire, b"forgery"),
        Offer(HUGE, ()),
    ],
)
def test_forged_frames_from_a_stolen_address_delay_an_exchange_and_no_more(frame: Frame) -> None:
    with scene() as stage:
        mallory = Attacker(stage.net)
        stage.publish(size=400_000)
        for _ in range(200):
            mallory.say("b", frame, as_="a")
            mallory.say("a", frame, as_="b")
            stage.net.advance(0.02)
        stage.check(within_s=150)


def heard_on_the_way(stage: Scene, kinds: tuple[type, ...], change: Callable[[Frame], Frame | None]) -> None:
    """From now on, let a forged frame precede each frame of these kinds, or (answers) go back to its sender."""
    radio = stage.net._radio  # noqa: SLF001
    send, mallory = radio.send, Attacker(stage.net)

    def overheard(sender: str, frames: list[Frame], to: str | None, mtu_bytes: int) -> None:
        other = "b" if sender == "a" else "a"
        for frame in frames:
            if isinstance(frame, kinds) and (forged := change(frame)) is not None:
                victim, robbed = (sender, other) if isinstance(forged, Digest | Ack) else (other, sender)
                mallory.say(victim, forged, as_=robbed)
        send(sender, frames, to, mtu_bytes)

    radio.send = overheard  # type: ignore[method-assign, assignment]


def far_serial(frame: Frame) -> Frame | None:
    return Data(frame.handle, frame.serial + 4_000, 0, True, b"x") if isinstance(frame, Data) else None


def farther_serial(frame: Frame) -> Frame | None:
    return Data(frame.handle, frame.serial + 10**9, 0, True, b"x") if isinstance(frame, Data) else None


def other_body(frame: Frame) -> Frame | None:
    return msgspec.structs.replace(frame, body=bytes(len(frame.body))) if isinstance(frame, Data) else None


def other_hashes(frame: Frame) -> Frame | None:
    return msgspec.structs.replace(frame, hashes=bytes(len(frame.hashes))) if isinstance(frame, HashList) else None


def other_message(frame: Frame) -> Frame | None:
    if not isinstance(frame, Offer):
        return None
    entries = [msgspec.structs.replace(each, message=MessageId(bytes(16))) for each in frame.entries]
    return msgspec.structs.replace(frame, entries=tuple(entries))


def acknowledged(frame: Frame) -> Frame | None:
    return Ack(frame.serial, b"\xff" * 100) if isinstance(frame, Data) else None


def nothing_lacking(frame: Frame) -> Frame | None:
    if not isinstance(frame, Digest) or not frame.number:
        return None
    return Digest(frame.profile, frame.round + 1, (), (), 0, frame.number, run=frame.run)


@pytest.mark.parametrize(
    ("kinds", "change"),
    [
        ((Data,), far_serial),
        ((Data,), farther_serial),
        ((Data,), other_body),
        ((HashList,), other_hashes),
        ((Offer,), other_message),
        ((Digest,), nothing_lacking),
        ((Data,), acknowledged),
    ],
)
def test_a_forger_who_hears_everything_and_stops_loses_no_message(
    kinds: tuple[type, ...], change: Callable[[Frame], Frame | None]
) -> None:
    with scene() as stage:
        forged: list[Frame] = []
        forging = True

        def forge(frame: Frame) -> Frame | None:
            made = change(frame) if forging else None
            forged.extend([made] if made else [])
            return made

        heard_on_the_way(stage, kinds, forge)
        stage.net.unlink("a", "b")
        stage.net.advance(30)
        stage.publish()
        stage.net.link("a", "b")
        stage.net.advance(20)
        assert forged
        forging = False
        stage.check(within_s=300)
