"""Hostile peers: forged, altered, repeated and oversized messages; floods, bombs and incomplete messages.

In every case the host stays within its limits, says what it refused, and the honest exchange beside it completes.
"""

from __future__ import annotations

import gc
import itertools
import tracemalloc
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import zstandard
from tests.support.hostile import BODY_BYTES, Attacker, Message, Scene, message, scene, spoil

from carrypost.gossip.wire.frames import Ack, Data, DescriptorPart, HashList
from carrypost.log.events import Received, Refused
from carrypost.model.descriptor import Descriptor, PayloadCodec
from carrypost.model.ids import MessageId, NodeId
from carrypost.security.identity import Identity

ALAN = Identity.derived("attack", "alan")


def delivered(stage: Scene, node: str = "b") -> list[Descriptor]:
    return [delivery.descriptor for delivery in stage.net.deliveries(node)]


# --- forgery -------------------------------------------------------------------------------------------------------


def with_signature(given: Message, signature: bytes) -> Message:
    copy = msgspec.structs.replace(given.descriptor).with_signature(signature)
    return Message(copy, given.pieces, given.hashes)


def unsigned(_mallory: Attacker) -> Message:
    return with_signature(message(ALAN), b"")


def altered_signature(_mallory: Attacker) -> Message:
    given = message(ALAN)
    return with_signature(given, spoil(given.descriptor.signature))


def signed_by_another(mallory: Attacker) -> Message:
    """Alan's key in the descriptor, Mallory's signature under it."""
    return with_signature(message(ALAN), mallory.identity.sign(message(ALAN).descriptor).signature)


def signature_of_another(_mallory: Attacker) -> Message:
    return with_signature(message(ALAN), message(ALAN).descriptor.signature)


def no_key(mallory: Attacker) -> Message:
    return message(mallory.identity, author=b"no key")


def plain_author(_mallory: Attacker) -> Message:
    return message(Identity.plain("alan"))


def victims_name(_mallory: Attacker) -> Message:
    return message(Identity.derived(1, "b"))


@pytest.mark.parametrize(
    ("forge", "reason"),
    [
        (unsigned, "signature"),
        (altered_signature, "signature"),
        (signed_by_another, "signature"),
        (signature_of_another, "signature"),
        (no_key, "signature"),
        (plain_author, "security-level"),
        (victims_name, "own-message"),
    ],
)
def test_a_forged_author_is_refused(forge: Callable[[Attacker], Message], reason: str) -> None:
    with scene() as stage:
        mallory = stage.attacker("b")
        mallory.give("b", forge(mallory))
        stage.check()
        assert stage.refused()[reason] == 1


def test_a_descriptor_that_does_not_fit_the_offer_is_refused() -> None:
    with scene() as stage:
        mallory = stage.attacker("b")
        promised, given = message(mallory.identity), message(mallory.identity)
        mallory.say("b", mallory.offer(promised), *mallory.describe(given), *mallory.fragments(given))
        longer = message(mallory.identity, b"longer than promised")
        mallory.say("b", mallory.offer(longer, 2, length=3), *mallory.describe(longer, 2))
        stage.check()
        assert stage.refused()["id"] == stage.refused()["message-size"] == 1


def test_what_was_never_offered_is_not_taken() -> None:
    with scene() as stage:
        mallory = stage.attacker("b")
        given = message(mallory.identity)
        mallory.say("b", *mallory.describe(given), *mallory.fragments(given))
        stage.check()
        assert stage.refused()["unsolicited"] == 2


def test_what_nobody_here_wants_is_not_taken() -> None:
    with scene() as stage:
        mallory = stage.attacker("b")
        mallory.give("b", message(mallory.identity, destination="advertisements"))
        stage.check()
        assert stage.refused()["interest"] == 1


# --- altered payloads ----------------------------------------------------------------------------------------------

LARGE = bytes(range(256)) * 160
"""Two pieces and a half."""


@pytest.mark.parametrize("size", [5, 3_000, len(LARGE)])
@pytest.mark.parametrize("at", [0, -1])
def test_an_altered_fragment_is_refused_and_the_message_comes_from_somebody_else(size: int, at: int) -> None:
    with scene() as stage:
        mallory, honest = stage.attacker("b"), stage.attacker("b", address="honest")
        given = message(ALAN, LARGE[:size])
        fragments = mallory.fragments(given)
        fragments[at] = msgspec.structs.replace(fragments[at], body=spoil(fragments[at].body))
        mallory.say("b", mallory.offer(given), *mallory.describe(given), *fragments)
        assert stage.refused()["digest"] == 1
        assert delivered(stage) == []
        honest.give("b", given)
        (delivery,) = stage.net.deliveries("b")
        assert delivery.payload == LARGE[:size]
        stage.published.append(delivery.payload)
        stage.check()


def test_an_altered_hash_list_is_refused_and_the_message_comes_from_somebody_else() -> None:
    with scene() as stage:
        mallory, honest = stage.attacker("b"), stage.attacker("b", address="honest")
        given = message(ALAN, LARGE)
        descriptor, hashes = mallory.describe(given)
        assert isinstance(hashes, HashList)
        altered = msgspec.structs.replace(hashes, hashes=spoil(hashes.hashes))
        mallory.say("b", mallory.offer(given), descriptor, altered, *mallory.fragments(given))
        assert stage.refused()["digest"] == 1
        honest.give("b", given)
        stage.published.append(LARGE)
        stage.check()


def test_pieces_that_wait_for_the_hash_list_are_checked_when_it_comes() -> None:
    with scene() as stage:
        mallory, honest = stage.attacker("b"), stage.attacker("b", address="honest")
        given = message(ALAN, LARGE)
        descriptor, hashes = mallory.describe(given)
        altered = [msgspec.structs.replace(each, body=spoil(each.body)) for each in mallory.fragments(given)]
        mallory.say("b", mallory.offer(given), descriptor, *altered, hashes)
        assert stage.refused()["digest"] == 1
        descriptor, hashes = honest.describe(given)
        honest.say("b", honest.offer(given), descriptor, *honest.fragments(given), hashes)
        stage.published.append(LARGE)
        stage.check()


def test_hash_lists_that_overlap_lie_outside_or_are_no_hashes_are_refused() -> None:
    with scene() as stage:
        mallory = stage.attacker("b")
        given = message(mallory.identity, LARGE)
        descriptor, _ = mallory.describe(given)
        mallory.say(
            "b", mallory.offer(given), descriptor, HashList(1, 50, 3, bytes(32)), HashList(1, 51, 2**53, bytes(32))
        )
        mallory.say("b", HashList(1, 52, 0, bytes(31)), HashList(1, 53, 0, b""))
        assert stage.refused()["hash-list"] + stage.refused()["frame"] + stage.refused()["limit"] == 4
        mallory.say("b", HashList(1, 54, 0, given.hashes[:64]), HashList(1, 55, 1, given.hashes[32:]))
        assert stage.refused()["digest"] == 1
        stage.check()


@pytest.mark.parametrize("security", ["signed", "off"])
@pytest.mark.parametrize("size", [5, 1_024, 16_384, 32_768, len(LARGE)])
def test_a_fragment_that_lies_outside_the_message_or_has_a_wrong_length_is_refused(size: int, security: str) -> None:
    with scene(security=security) as stage:
        mallory = stage.attacker("b")
        given = message(mallory.identity, LARGE[:size])
        mallory.say("b", mallory.offer(given), *mallory.describe(given))
        fragments = mallory.fragments(given)
        last = fragments[-1]
        for index in (last.index + 1, 16, 32, 48, 10**5):
            for body in (b"", bytes(BODY_BYTES), bytes(len(last.body))):
                if index > last.index:
                    mallory.say("b", Data(1, 900, index, False, body))
        for body in (last.body + b"x", last.body[:-1]):
            mallory.say("b", Data(1, 901, last.index, False, body))
        assert stage.refused()["fragment"] >= 11
        mallory.say("b", *fragments)
        stage.published.append(LARGE[:size])
        stage.check()


# --- replay --------------------------------------------------------------------------------------------------------


def test_a_message_that_was_delivered_is_not_delivered_again() -> None:
    with scene() as stage:
        given = message(ALAN)
        for name in ("mallory", "trudy", "oscar"):
            mallory = stage.attacker("b", address=name)
            for handle in range(5):
                mallory.give("b", given, handle)
            mallory.say("b", *mallory.fragments(given), *mallory.describe(given))
        assert len(delivered(stage)) == 1
        stage.published.append(b"rubbish")
        stage.check()


def test_a_message_delivered_confirmed_and_evicted_is_not_delivered_again() -> None:
    """Offer it under several handles before it is here, so that only the memory of its id prevents another delivery."""
    with scene(cache_messages_max=4, shares=False) as stage:
        mallory = stage.attacker("b")
        given = message(ALAN)
        offers = [mallory.offer(given, handle) for handle in range(1, 9)]
        mallory.say("b", *offers, *mallory.describe(given, 8), *mallory.fragments(given, 8))
        assert [descriptor.id for descriptor in delivered(stage)] == [given.descriptor.id]
        for _ in range(8):
            mallory.give("b", message(ALAN, priority=9), 99)
        for handle in range(1, 9):
            mallory.say("b", *mallory.describe(given, handle), *mallory.fragments(given, handle))
            mallory.give("b", given, handle)
        assert [descriptor.id for descriptor in delivered(stage)].count(given.descriptor.id) == 1


def test_a_message_is_received_once_however_many_handles_it_is_offered_under() -> None:
    with scene() as stage:
        receptions: list[MessageId] = []
        stage.net.watch(
            lambda _t, _node, event: receptions.extend(
                each.descriptor.id for each in (event.receptions if isinstance(event, Received) else ())
            )
        )
        mallory = stage.attacker("b")
        given = message(ALAN)
        mallory.say("b", *(mallory.offer(given, handle) for handle in range(9)))
        for handle in range(9):
            mallory.say("b", *mallory.describe(given, handle), *mallory.fragments(given, handle))
        assert receptions == [given.descriptor.id]
        stage.published.append(b"rubbish")
        stage.check()


def test_a_message_is_refused_after_its_deadline() -> None:
    with scene() as stage:
        mallory = stage.attacker("b")
        given = message(ALAN, deadline_us=12_000_000)
        other = message(ALAN, deadline_us=12_000_000)
        mallory.give("b", given)
        mallory.say("b", mallory.offer(other, 2), *mallory.describe(other, 2))
        stage.net.advance(8)
        mallory.say("b", *mallory.fragments(other, 2))
        mallory.give("b", given, 3)
        assert stage.refused()["expired"] == 2
        stage.published.append(b"rubbish")
        stage.check()


# --- deadlines and dates -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"deadline_us": None}, "deadline"),
        ({"deadline_us": 2**53}, "deadline"),
        ({"deadline_us": 7_900_000_000}, "deadline"),
        ({"deadline_us": 0}, "expired"),
        ({"created_us": 2**53}, "created"),
        ({"created_us": 700_000_000, "deadline_us": 800_000_000}, "created"),
    ],
)
def test_a_deadline_or_date_too_far_ahead_is_refused(changes: dict[str, Any], reason: str) -> None:
    with scene() as stage:
        mallory = stage.attacker("b")
        mallory.give("b", message(mallory.identity, **changes))
        assert stage.refused()[reason] == 1
        stage.check()


def test_a_clock_within_the_allowed_skew_is_no_offence() -> None:
    with scene() as stage:
        mallory = stage.attacker("b")
        mallory.give("b", message(mallory.identity, created_us=600_000_000, deadline_us=7_700_000_000))
        assert len(delivered(stage)) == 1


# --- oversize everything -------------------------------------------------------------------------------------------

TEXT = "\u00e9"  # two bytes


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"destination": "news" + TEXT * 127}, "descriptor-size"),
        ({"label": TEXT * 129}, "descriptor-size"),
        ({"attributes": {TEXT * 513: 1}}, "descriptor-size"),
        ({"attributes": {"x": TEXT * 513}}, "descriptor-size"),
        ({"attributes": {str(number): number for number in range(65)}}, "descriptor-size"),
        ({"attributes": {str(number): "x" * 1_000 for number in range(9)}}, "limit"),
        ({"root": bytes(31)}, "digest-root"),
        ({"root": b""}, "digest-root"),
        ({"codec": PayloadCodec.BLANK}, "digest-root"),
        ({"size": 8}, "inflate-ratio"),
        ({"length": 16 * 1024 * 1024 + 1, "size": 16 * 1024 * 1024 + 1}, "message-size"),
        ({"length": 2**53, "size": 2**53}, "no-room"),
        ({"codec": PayloadCodec.ZSTD, "size": 7 * 101}, "inflate-ratio"),
        ({"codec": PayloadCodec.ZSTD, "size": 2**53}, "inflate-ratio"),
        ({"fragment_bytes": 1}, "descriptor"),
        ({"fragment_bytes": 2**20}, "descriptor"),
        ({"priority": 10}, "descriptor"),
        ({"sequence": 2**60}, "descriptor"),
    ],
)
def test_a_descriptor_with_too_much_of_anything_is_refused(changes: dict[str, Any], reason: str) -> None:
    with scene() as stage:
        stage.net.subscribe("b", "news.*")
        mallory = stage.attacker("b")
        mallory.give("b", message(mallory.identity, **changes))
        assert stage.refused()[reason] == 1
        stage.check()


def test_a_long_descriptor_in_parts_is_taken_up_to_the_limit_and_not_beyond() -> None:
    with scene() as stage:
        mallory = stage.attacker("b")
        for handle, texts in ((1, 7), (2, 8)):
            attributes = {str(number): "x" * 1_000 for number in range(texts)}
            given = message(mallory.identity, attributes=attributes)
            wire = given.descriptor.wire
            bodies = [wire[at : at + 1_000] for at in range(0, len(wire), 1_000)]
            parts = [DescriptorPart(handle, 9, 0, 0, at, len(bodies), body) for at, body in enumerate(bodies)]
            mallory.say("b", mallory.offer(given, handle), *parts, *mallory.fragments(given, handle))
        assert len(delivered(stage)) == 1
        assert stage.refused()["descriptor-size"] == 1
        stage.published.append(b"rubbish")
        stage.check()


# --- bombs ---------------------------------------------------------------------------------------------------------


def bomb(identity: Identity, squeezed: bytes, size: int) -> Message:
    """Return a payload that says that it becomes `size` bytes."""
    packed = message(identity, squeezed)
    given = message(identity, squeezed, codec=PayloadCodec.ZSTD, size=size)
    return Message(given.descriptor, packed.pieces, packed.hashes)


@pytest.mark.parametrize("security", ["signed", "off"])
def test_a_decompression_bomb_harms_nobody(security: str) -> None:
    with scene(security=security) as stage:
        mallory = stage.attacker("b")
        compress = zstandard.ZstdCompressor().compress
        zeros = compress(bytes(16 * 1024 * 1024))
        unsized = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(50_000))
        mallory.give("b", bomb(mallory.identity, zeros, 16 * 1024 * 1024))
        assert stage.refused()["inflate-ratio"] == 1
        tracemalloc.start()
        for handle, (squeezed, size) in enumerate(
            [
                (zeros, len(zeros) * 100),
                (zeros * 3, len(zeros) * 300),
                (unsized, len(unsized)),
                (compress(b"x" * 500), 501),
                (compress(b"x" * 500)[:-3], 500),
                (b"no zstd at all", 1_000),
                (b"", 0),
            ],
            2,
        ):
            mallory.give("b", bomb(mallory.identity, squeezed, size), handle)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 2_000_000
        assert stage.refused()["inflate"] == 7
        stage.check()


# --- half messages and floods ------------------------------------------------------------------------------------


def held(mallory: Attacker, action: Callable[[], None]) -> tuple[int, int]:
    """Bytes that an action leaves allotted, and the most that were at any time."""
    mallory.net.advance(1)
    gc.collect()
    tracemalloc.start()
    try:
        action()
        mallory.heard.clear()
        gc.collect()
        return tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("security", "count"), [("signed", 1_000), ("off", 1_000), pytest.param("signed", 10_000, marks=pytest.mark.soak)]
)
def test_thousands_of_half_messages_fit_into_bounded_memory(security: str, count: int) -> None:
    """Each lacks its last fragment: 2 or 20 MB of fragments in all, and as much again around them, were they kept."""
    limits = {"fragment_buffer_bytes_max": 64 * 1024, "partials_max": 64}
    with scene(security=security, limits=limits) as stage:
        mallory = stage.attacker("b")
        halves = (message(mallory.identity, bytes(3_000)) for _ in itertools.count())

        def half(messages: int) -> None:
            for number, each in zip(range(messages), halves, strict=False):
                handle = number % 2_000
                fragments = mallory.fragments(each, handle)[:-1]
                mallory.say("b", mallory.offer(each, handle), *mallory.describe(each, handle), *fragments)
                if number % 500 == 0:
                    stage.net.advance(0.5)

        half(count - 500)
        kept, peak = held(mallory, lambda: half(500))
        assert peak < 4_000_000
        assert kept < 1_500_000
        assert stage.refused()["partials"] > 0.9 * count
        stage.check()


@pytest.mark.parametrize("security", ["signed", pytest.param("off", marks=pytest.mark.soak)])
def test_very_small_fragments_do_not_take_more_memory_than_large_ones(security: str) -> None:
    limits = {"fragment_buffer_bytes_max": 64 * 1024, "partials_max": 4_096}
    with scene(security=security, limits=limits) as stage:
        mallory = stage.attacker("b")
        codec = PayloadCodec.BLANK if security == "off" else PayloadCodec.PLAIN
        given = message(mallory.identity, bytes(2**20), fragment_bytes=64, codec=codec)

        def scatter(handle: int) -> None:
            mallory.say("b", mallory.offer(given, handle), *mallory.describe(given, handle))
            for index in range(0, 2**14, 6):
                mallory.say("b", Data(handle, index, index, last=False, body=bytes(64)))

        scatter(1)
        kept, _ = held(mallory, lambda: scatter(2))
        assert kept < 300_000
        stage.check()


def test_hash_lists_count_as_part_of_what_the_cache_holds() -> None:
    """One piece of each of many large messages: the hash list is half as long as the piece."""
    with scene(cache_bytes_max=2**22, shares=False) as stage:
        mallory = stage.attacker("b")
        large = message(mallory.identity, bytes(2**22))

        def give() -> None:
            for number in range(300):
                descriptor = msgspec.structs.replace(large.descriptor, created_us=number, sequence=10**9 + number)
                given = Message(mallory.identity.sign(descriptor), large.pieces[:1], large.hashes)
                mallory.say("b", mallory.offer(given), *mallory.describe(given), *mallory.fragments(given))

        kept, _ = held(mallory, give)
        assert kept < 6_000_000
        stage.check()


# --- floods --------------------------------------------------------------------------------------------------------


def honest_news(stage: Scene, count: int) -> list[MessageId]:
    """Publish messages of the lowest priority, and check that they are delivered."""
    found = [stage.net.publish("a", "news", str(number).encode(), priority=0) for number in range(count)]
    stage.net.advance(10)
    assert {descriptor.id for descriptor in delivered(stage)} == set(found)
    return found


def assert_carried(stage: Scene, messages: list[MessageId]) -> None:
    """Check that they are still at b, for a later neighbour."""
    stage.net.unlink("a", "b")
    stage.net.add("c")
    stage.net.subscribe("c", "news")
    stage.net.link("b", "c")
    stage.net.advance(60)
    assert set(messages) <= {descriptor.id for descriptor in delivered(stage, "c")}


def test_one_author_who_floods_does_not_push_out_what_others_wrote() -> None:
    with scene(cache_messages_max=40) as stage:
        messages = honest_news(stage, 30)
        mallory = stage.attacker("b")
        for number in range(300):
            mallory.give("b", message(mallory.identity, priority=9, persistent=True, created_us=number % 2), number)
        assert stage.refused()["share"] > 100
        assert_carried(stage, messages)


@pytest.mark.parametrize("renames", [False, True])
def test_one_neighbour_who_floods_under_many_names_does_not_push_out_what_others_gave(renames: bool) -> None:
    with scene(cache_messages_max=40) as stage:
        messages = honest_news(stage, 20)
        mallory = stage.attacker("b")
        for number in range(200):
            author = Identity.derived("crowd", str(number))
            mallory.give("b", message(author, priority=9, persistent=True, created_us=number % 2), number)
            if renames and number % 25 == 0:
                stage.net.advance(11)
                for _ in range(2):  # A new name has to be proven once more.
                    mallory.say("b", mallory.announcement("b", node=NodeId(f"name-{number}")))
        assert stage.refused()["share"] > 50
        assert_carried(stage, messages)


def test_frames_beyond_what_a_link_may_waste_are_refused() -> None:
    with scene(limits={"link_waste_per_s": 1_000}) as stage:
        mallory = stage.attacker("b")
        stage.net.advance(1)
        for _ in range(50):
            mallory.say("b", *[Ack(0, b"")] * 100)
        assert stage.refused()["muted"] > 4_500
        stage.net.advance(10)
        assert stage.net.host("b").listens(mallory.address, round(stage.net.now * 1e6))
        stage.check()


def test_many_forged_signatures_in_a_row_are_refused_unread() -> None:
    with scene(limits={"link_waste_per_s": 4_000}) as stage:
        mallory = stage.attacker("b")
        for number in range(100):
            mallory.give("b", altered_signature(mallory), number)
        assert 20 <= stage.refused()["signature"] <= 60
        assert stage.refused()["muted"] > 40
        stage.check()


def test_every_refusal_is_told_with_a_reason_and_the_address() -> None:
    with scene() as stage:
        told: list[Refused] = []
        stage.net.watch(lambda _t, _node, event: told.append(event) if isinstance(event, Refused) else None)
        mallory = stage.attacker("b")
        mallory.give("b", altered_signature(mallory))
        mallory.say("b", *[Ack(-1, b"")] * 5)
        assert told == [Refused("signature", "mallory"), Refused("frame", "mallory", 5)]
