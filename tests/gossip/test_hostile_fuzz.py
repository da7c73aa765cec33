"""Hostile peers: any valid frames, in any order, from unknown and stolen addresses, in the middle of an exchange.

Nothing that peers send raises out of a host, and once they stop the honest exchange completes.
"""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.support.examples import examples
from tests.support.frames import RECEIVED
from tests.support.hostile import Attacker, Message, Scene, message, scene

from carrypost.gossip.wire import frames as f
from carrypost.gossip.wire.frames import Frame
from carrypost.gossip.wire.pieces import HASH_BYTES
from carrypost.model.ids import MessageId, NodeId, node_prefix
from carrypost.model.pattern import Entry, encode_entries, entry, profile_digest
from carrypost.security.identity import Identity

MALLORY = Identity.derived("attack", "mallory")
NODES = {name: Identity.derived(1, name) for name in "ab"}
MESSAGES: list[Message] = [
    message(MALLORY, bytes(size), sequence=number, created_us=0, priority=number % 10)
    for number, size in enumerate((0, 7, 1_024, 3_000, 16_384, 40_000), 1)
]
PROFILES = [
    encode_entries([entry("news")]),
    encode_entries([entry("news"), entry(".*")]),
    encode_entries([Entry((("destination", "news"),), "n > 3"), Entry((("destination", "news"),))]),
    encode_entries([Entry((("destination", "(a+)+$"),), None, 1), Entry((("n", "("),))]),
    encode_entries([]),
    b"\xc1",
]

small = st.integers(0, 12)
counts = st.one_of(small, st.integers(0, 5_000), st.sampled_from([2**16, 2**31, 2**53]))
handles = st.one_of(small, st.integers(0, 2**25), st.just(2**63 - 1))
serials = st.one_of(small, st.integers(0, 10_000), st.just(2**63 - 1))
bitmaps = st.one_of(st.just(b""), st.binary(max_size=8), st.just(b"\xff" * 128))
digests = st.sampled_from([*map(profile_digest, PROFILES), b"nonsense"])
fingerprints = st.one_of(st.integers(0, 2**64 - 1), st.sampled_from([each.descriptor.fingerprint for each in MESSAGES]))
messages = st.sampled_from(MESSAGES)
ids = st.one_of(messages.map(lambda each: each.descriptor.id), st.binary(min_size=1, max_size=98).map(MessageId))
prefixes = st.sampled_from([node_prefix(each.node) for each in (*NODES.values(), MALLORY)])
names = st.sampled_from([NODES["a"].node, NODES["b"].node, MALLORY.node, NodeId("x")])


@st.composite
def buckets(draw: st.DrawFn) -> f.Bucket:
    depth = draw(st.sampled_from([0, 2, 6, 10, 14, 58, 62, 7, 64]))
    prefix = draw(st.integers(0, (1 << depth) - 1))
    if draw(st.booleans()):
        width = 64 - depth
        members = draw(st.lists(st.integers(0, (1 << width) - 1), max_size=20))
        return f.Bucket(depth, prefix, (), tuple(prefix << width | each for each in members))
    children = 64 if depth == 0 else 16
    return f.Bucket(depth, prefix, tuple(draw(st.lists(fingerprints, min_size=children, max_size=children))))


@st.composite
def transfers(draw: st.DrawFn) -> Frame:
    """Parts of messages that exist, of the right message or not."""
    each, handle, serial = draw(messages), draw(handles), draw(serials)
    wire, kind = each.descriptor.wire, draw(st.sampled_from(["whole", "part", "hashes", "data", "parcel"]))
    if kind == "whole":
        return f.DescriptorPart(handle, serial, draw(counts), draw(counts), 0, 1, wire)
    if kind == "part":
        part = draw(st.integers(0, 1))
        return f.DescriptorPart(handle, serial, 0, 0, part, 2, wire[part * 60 :][: 60 if not part else None])
    if kind == "hashes":
        start = draw(st.integers(0, 3))
        return f.HashList(handle, serial, start, each.hashes[start * HASH_BYTES :] or bytes(HASH_BYTES))
    if kind == "parcel":
        body = draw(st.sampled_from([*each.pieces, b"", b"nonsense"]))
        return f.Parcel(handle, serial, draw(counts), draw(counts), draw(st.booleans()), wire, body)
    piece = draw(st.sampled_from(each.pieces))
    number = draw(st.integers(0, 16))
    index = each.pieces.index(piece) * 16 + number
    return f.Data(handle, serial, index, draw(st.booleans()), piece[number * 1_024 :][:1_024])


def tuples(of: st.SearchStrategy[Any], most: int = 5) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(of, max_size=most).map(tuple)


entries = st.builds(
    f.OfferEntry, ids, handles, st.one_of(counts, messages.map(lambda each: each.descriptor.length)),
    st.integers(0, 255), bitmaps,
)  # fmt: skip
promises = st.builds(
    lambda each, handle, serial: f.Offer(
        serial, (f.OfferEntry(each.descriptor.id, handle, each.descriptor.length, 255),)
    ),
    messages,
    small,
    serials,
)
frames: st.SearchStrategy[Frame] = st.one_of(
    st.builds(f.Announce, names, counts, counts, st.integers(1, 2**31), digests, tuples(prefixes)),
    st.sampled_from(PROFILES).map(lambda body: f.Profile(profile_digest(body), 0, 1, body)),
    st.builds(f.Profile, digests, st.integers(0, 2), st.integers(3, 300), st.binary(min_size=1, max_size=50)),
    st.builds(f.ProfileRequest, digests),
    st.builds(
        f.Digest, digests, st.integers(0, 20), tuples(buckets()), tuples(fingerprints), counts, counts, small,
        st.integers(13, 2**16),
    ),
    st.builds(f.Digest, digests, st.integers(0, 3), tuples(buckets()), tuples(fingerprints), small, small),
    st.builds(f.Offer, serials, tuples(entries)),
    promises,
    st.builds(
        f.Request, prefixes, tuples(serials), tuples(handles), tuples(st.builds(f.PieceRequest, handles, bitmaps)),
    ),
    transfers(),
    st.sampled_from(RECEIVED),  # So that no kind is left out.
    st.builds(f.Ack, serials, st.one_of(bitmaps, st.just(b"\xff" * 8_192))),
    st.builds(f.Data, handles, serials, counts, st.booleans(), st.binary(max_size=20)),
)  # fmt: skip
Step = tuple[str, str, list[Frame], float]
steps = st.tuples(
    st.sampled_from("ab"),
    st.sampled_from(["mallory", "trudy", "a", "b"]),
    st.lists(frames, min_size=1, max_size=6),
    st.sampled_from([0.0, 0.01, 0.3, 3.0]),
)


def play(stage: Scene, script: list[Step]) -> None:
    mallory = stage.attacker("a", "b")
    trudy = stage.attacker("a", "b", address="trudy", pattern="other")
    assert isinstance(trudy, Attacker)
    stage.publish(size=50_000)
    for victim, address, thrown, pause_s in script:
        if address != victim:
            mallory.say(victim, *thrown, as_=address)
        stage.net.advance(pause_s)


@given(st.lists(steps, max_size=30))
@examples(12)
def test_any_frames_in_any_order_raise_nothing_and_lose_nothing(
    script: list[Step],
) -> None:
    with scene() as stage:
        play(stage, script)
        stage.check(within_s=400, strangers=True)


@given(st.lists(steps, max_size=30))
@examples(12)
def test_any_frames_in_any_order_raise_nothing_where_little_is_allowed(
    script: list[Step],
) -> None:
    """Small caches and buffers, a horizon, a crash: here strangers may well push the honest out."""
    limits = {
        "neighbours_max": 3, "partials_max": 2, "fragment_buffer_bytes_max": 16_384, "offers_open_max": 3,
        "profiles_max": 2, "seen_max": 3, "unconfirmed_max": 2,
    }  # fmt: skip
    with scene(cache_messages_max=4, cache_bytes_max=120_000, horizon_hops=3, limits=limits) as stage:
        play(stage, script)
        stage.net.advance(60)
        stage.net.kill("b")
        stage.net.restart("b")
        stage.net.advance(60)
