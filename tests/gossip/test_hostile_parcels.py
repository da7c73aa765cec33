"""Small messages that a neighbour sends whole: refused for the same reasons as if they came in parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from tests.support.hostile import Attacker, Message, message, scene, spoil

from carrypost.gossip.transfers import inbound
from carrypost.gossip.transfers.sending import WINDOW_BYTES_MAX
from carrypost.gossip.transfers.wants import BLOCK_US
from carrypost.gossip.wire.frames import Ack, Frame
from carrypost.gossip.wire.pieces import Blank
from carrypost.model.descriptor import Descriptor, PayloadCodec
from carrypost.security.identity import Identity, verify

ALAN = Identity.derived("attack", "alan")


def acknowledged(mallory: Attacker) -> set[int]:
    """Return the serials that the victim acknowledged."""
    return {
        ack.base + at
        for ack in mallory.sends(Ack)
        for at in range(8 * len(ack.bitmap))
        if ack.bitmap[at // 8] >> at % 8 & 1
    }


def altered(given: Message, **changes: object) -> Message:
    """Another descriptor under the old signature."""
    descriptor = msgspec.structs.replace(given.descriptor, **changes).with_signature(given.descriptor.signature)
    return Message(descriptor, given.pieces, given.hashes)


FAULTS: dict[str, tuple[Callable[[Attacker], Message], str]] = {
    "altered signature": (
        lambda _: altered(message(ALAN), priority=9),
        "signature",
    ),
    "an author without a key": (lambda _: message(Identity.plain("alan")), "security-level"),
    "the victim for author": (lambda _: message(Identity.derived(1, "b")), "own-message"),
    "expired": (lambda mallory: message(mallory.identity, deadline_us=4_000_000), "expired"),
    "from the future": (lambda mallory: message(mallory.identity, created_us=10**12), "created"),
    "for ever": (lambda mallory: message(mallory.identity, deadline_us=None), "deadline"),
    "not wanted": (lambda mallory: message(mallory.identity, destination="advertisements"), "interest"),
    "too long a label": (lambda mallory: message(mallory.identity, label="x" * 2_000), "descriptor-size"),
    "no digest": (lambda mallory: message(mallory.identity, root=b""), "digest-root"),
    "another payload": (lambda mallory: message(mallory.identity, root=bytes(32)), "digest"),
    "a bomb": (lambda mallory: message(mallory.identity, size=2**40, codec=PayloadCodec.ZSTD), "inflate-ratio"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_bad_message_is_refused_for_the_same_reason_whole_and_in_parts(name: str) -> None:
    make, reason = FAULTS[name]
    refused = []
    for whole in (False, True):
        with scene() as stage:
            mallory = stage.attacker("b")
            given = make(mallory)
            frames: list[Frame] = [mallory.parcel(given)]
            if not whole:
                frames = [*mallory.describe(given), *mallory.fragments(given)]
            mallory.say("b", mallory.offer(given), *frames)
            refused.append(stage.refused())
            stage.check()
    assert refused[0] == refused[1] == {reason: 1}


def test_a_parcel_that_does_not_fit_the_offer_is_refused() -> None:
    with scene() as stage:
        mallory = stage.attacker("b")
        promised, given = message(mallory.identity), message(mallory.identity)
        mallory.say("b", mallory.offer(promised), mallory.parcel(given))
        longer = message(mallory.identity, b"longer than promised")
        mallory.say("b", mallory.offer(longer, 2, length=3), mallory.parcel(longer, 2))
        assert stage.refused() == {"id": 1, "message-size": 1}
        stage.check()


def test_a_parcel_that_was_never_offered_is_taken_and_acknowledged() -> None:
    with scene() as stage:
        mallory = stage.attacker("b")
        given = message(mallory.identity)
        sent = mallory.parcel(given, last=True)
        mallory.say("b", sent)
        stage.net.advance(5)
        assert stage.refused() == {}
        assert acknowledged(mallory) == {sent.serial}
        assert [each.payload for each in stage.net.deliveries("b")] == [b"rubbish"]
        stage.check(strangers=True)


def test_more_unasked_parcels_than_may_be_on_their_way_are_refused_until_the_next_report() -> None:
    with scene() as stage:
        mallory = stage.attacker("b")
        given = [
            message(mallory.identity, b"%06d" % number + bytes(4_000), fragment_bytes=4_096) for number in range(40)
        ]
        parcels = [mallory.parcel(each, number) for number, each in enumerate(given, 1)]
        for at in range(0, 40, 10):
            mallory.say("b", *parcels[at : at + 10])
        came = [each.payload for each in stage.net.deliveries("b")]
        fitting = 2 * WINDOW_BYTES_MAX // (given[0].descriptor.wire_bytes + given[0].descriptor.length)
        assert len(came) == fitting < 40
        assert stage.refused() == {"unsolicited": 40 - fitting}
        stage.net.advance(5)
        mallory.say("b", *parcels[-5:])
        assert len(stage.net.deliveries("b")) == fitting + 5
        stage.check(strangers=True)


@pytest.mark.parametrize("strategy", ["exchange", "anti-entropy"])
def test_no_neighbour_sends_more_unasked_than_may_be_on_its_way_whatever_its_settings(strategy: str) -> None:
    greedy: dict[str, Any] = {
        "push_bytes_max": 65_507,
        "mtu_bytes": 65_507,
        "window_bytes_max": 2**30,
        "strategy": strategy,
    }
    with scene(mtu_bytes=65_507) as stage:
        stage.net.add("c", **greedy)
        stage.net.subscribe("c", "news")
        for turn in range(6):
            for number in range(20):
                stage.net.publish("c", "news", bytes([turn, number]) + bytes(500 + 6_000 * (number % 4)))
            if not turn:
                stage.net.link("b", "c", rate_bytes_per_s=100_000, delay_s=0.2)
            stage.net.advance(3)
        stage.net.advance(60)
        assert len(stage.net.deliveries("b")) == 120
        assert stage.refused() == {}


@pytest.mark.parametrize("name", FAULTS)
def test_a_bad_message_is_refused_for_the_same_reason_whether_it_was_offered_or_not(name: str) -> None:
    make, reason = FAULTS[name]
    with scene() as stage:
        mallory = stage.attacker("b")
        given = make(mallory)
        mallory.say("b", mallory.parcel(given))
        assert stage.refused() == {reason: 1}
        mallory.say("b", mallory.parcel(given, 2))
        assert stage.refused() == {reason: 1, "unsolicited": 1}  # It is not looked at again.
        stage.check()


def test_the_same_message_twice_in_one_burst_under_two_handles_comes_once() -> None:
    with scene() as stage:
        mallory = stage.attacker("b")
        given = message(mallory.identity)
        mallory.say("b", mallory.parcel(given, 1), mallory.parcel(given, 2), mallory.parcel(given, 3))
        assert [each.payload for each in stage.net.deliveries("b")] == [b"rubbish"]
        assert stage.refused() == {}
        stage.check(strangers=True)


def test_a_parcel_that_came_is_acknowledged_and_so_is_its_repetition() -> None:
    with scene() as stage:
        mallory = stage.attacker("b")
        given = message(mallory.identity)
        first, second = mallory.parcel(given, last=True), mallory.parcel(given, serial=7, last=True)
        mallory.say("b", mallory.offer(given), first)
        stage.net.advance(1)
        assert acknowledged(mallory) == {first.serial}
        mallory.say("b", second)
        stage.net.advance(1)
        assert acknowledged(mallory) >= {7}
        assert stage.refused() == {}
        stage.check(strangers=True)


def test_a_parcel_beside_an_announcement_that_ends_the_contact_is_refused() -> None:
    """Else it would be acknowledged over a link that is not used: the timer for that would be due for ever."""
    with scene() as stage:
        mallory = stage.attacker("b")
        given = message(mallory.identity)
        mallory.say("b", mallory.offer(given))
        mallory.say("b", mallory.parcel(given, last=True), mallory.announcement())
        stage.net.advance(5)
        assert stage.refused() == {"not-linked": 1}
        stage.check()


def test_of_parcels_that_come_together_only_those_that_came_are_acknowledged() -> None:
    """Send one of them twice, one that was not requested, and not in order."""
    with scene() as stage:
        mallory = stage.attacker("b")
        given = [message(mallory.identity) for _ in range(4)]
        for handle, each in enumerate(given):
            mallory.say("b", mallory.offer(each, handle))
        # The one with the serial 101 goes by another handle than it was offered by.
        for serials in ([(0, 100), (0, 100), (9, 101), (1, 102)], [(2, 110), (3, 105), (3, 112)]):
            sent = [mallory.parcel(given[handle % 4], handle, serial=serial) for handle, serial in serials]
            mallory.say("b", *sent[:-1], msgspec.structs.replace(sent[-1], last=True))
        stage.net.advance(5)
        assert acknowledged(mallory) == {100, 101, 102, 105, 110, 112}
        assert stage.refused() == {}
        stage.check(strangers=True)


@pytest.mark.parametrize("security", ["signed", "off"])
@pytest.mark.parametrize("body", [b"", b"rubbis", b"rubbish.", bytes(16_384)])
def test_a_parcel_with_a_body_of_another_length_is_refused(security: str, body: bytes) -> None:
    with scene(security=security) as stage:
        mallory, honest = stage.attacker("b"), stage.attacker("b", address="honest")
        given = message(ALAN if security == "signed" else Identity.plain("alan"))
        mallory.say("b", mallory.offer(given), mallory.parcel(given, body=body))
        assert stage.refused() == {"fragment": 1}
        assert stage.net.deliveries("b") == []
        honest.say("b", honest.offer(given), honest.parcel(given))
        assert [each.payload for each in stage.net.deliveries("b")] == [b"rubbish"]
        stage.check(strangers=True)


def test_an_altered_body_is_refused_and_the_message_comes_from_somebody_else() -> None:
    with scene() as stage:
        mallory, honest = stage.attacker("b"), stage.attacker("b", address="honest")
        given = message(ALAN)
        mallory.say("b", mallory.offer(given), mallory.parcel(given, body=spoil(b"rubbish")))
        assert stage.refused() == {"digest": 1}
        honest.say("b", honest.offer(given), honest.parcel(given))
        assert [each.payload for each in stage.net.deliveries("b")] == [b"rubbish"]
        stage.check(strangers=True)


@pytest.mark.parametrize("size", [3_000, 40_000])
def test_a_message_of_several_fragments_does_not_come_as_a_parcel(size: int) -> None:
    with scene() as stage:
        mallory, honest = stage.attacker("b"), stage.attacker("b", address="honest")
        payload = bytes(range(256)) * (size // 256)
        given = message(ALAN, payload)
        mallory.say("b", mallory.offer(given), mallory.parcel(given, body=given.pieces[0]))
        assert stage.refused() == {"fragment": 1}
        honest.give("b", given)
        assert [each.payload for each in stage.net.deliveries("b")] == [payload]
        stage.check(strangers=True)


def test_a_parcel_whose_body_is_wrong_costs_one_look_at_its_signature(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[Descriptor] = []

    def counted(found: Descriptor) -> None:
        looked.append(found)
        verify(found)

    monkeypatch.setattr(inbound, "verify", counted)
    with scene() as stage:
        mallory = stage.attacker("b")
        given = message(ALAN)
        for _ in range(50):
            mallory.say("b", mallory.offer(given), mallory.parcel(given, body=b"short"))
        assert len(looked) == 1
        stage.net.advance(BLOCK_US / 1e6 + 1)
        mallory.say("b", mallory.offer(given), mallory.parcel(given))
        assert [each.payload for each in stage.net.deliveries("b")] == [b"rubbish"]
        stage.check(strangers=True)


def test_a_blank_parcel_is_counted_and_its_bytes_are_not_kept() -> None:
    with scene(security="off") as stage:
        mallory = stage.attacker("b")
        given = message(Identity.plain("alan"), Blank(500))
        mallory.say("b", mallory.offer(given), mallory.parcel(given, body=b"x" * 500))
        (delivery,) = stage.net.deliveries("b")
        assert delivery.payload == bytes(500)
        mallory.say("b", mallory.offer(given, 2), mallory.parcel(given, 2, body=b"x" * 499))
        stage.check(strangers=True)


NUMBERS: list[dict[str, Any]] = [{"hops": 2**53}, {"age_ms": 2**53}, {"serial": 2**63 - 1}, {"hops": 0}]


@pytest.mark.parametrize("changes", NUMBERS)
def test_any_number_in_a_parcel_is_harmless(changes: dict[str, Any]) -> None:
    with scene() as stage:
        mallory = stage.attacker("b")
        given = message(mallory.identity)
        mallory.say("b", mallory.offer(given), mallory.parcel(given, **changes))
        assert len(stage.net.deliveries("b")) == 1
        stage.check(strangers=True)


def test_parcels_from_who_was_not_announced_or_does_not_hear_are_refused() -> None:
    with scene() as stage:
        stranger = Attacker(stage.net, "stranger")
        given = message(stranger.identity)
        stranger.say("b", stranger.parcel(given))
        assert stage.refused() == {"unannounced": 1}
        deaf = Attacker(stage.net, "deaf")
        deaf.say("b", deaf.announcement(), deaf.parcel(given))
        assert stage.refused() == {"unannounced": 1, "not-linked": 1}
        stage.check()


def test_a_parcel_of_a_message_that_came_meanwhile_is_not_taken_twice() -> None:
    with scene() as stage:
        one, other = stage.attacker("b"), stage.attacker("b", address="other")
        given = message(ALAN)
        for each in (one, other):
            each.say("b", each.offer(given))
        for each in (one, other):
            each.say("b", each.parcel(given, last=True))
        stage.net.advance(1)
        assert len(stage.net.deliveries("b")) == 1
        assert acknowledged(one) == acknowledged(other) != set()
        assert stage.refused() == {}
        stage.check(strangers=True)


def test_where_there_is_no_room_a_parcel_is_declined() -> None:
    with scene(security="off", cache_messages_max=1, shares=False) as stage:
        stage.net.publish("b", "news", b"", priority=9)
        mallory = stage.attacker("b")
        given = message(Identity.plain("alan"), priority=0)
        mallory.say("b", mallory.offer(given), mallory.parcel(given, last=True))
        stage.net.advance(1)
        assert [each.payload for each in stage.net.deliveries("b")] == [b""]  # Its own.
        assert stage.refused() == {"no-room": 1}
