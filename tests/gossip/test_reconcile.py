"""Reconciliation by examples: its results, its costs, and refused frames."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterable
from typing import NamedTuple

import pytest

from carrypost.config import Limits
from carrypost.errors import DecodeError, LimitError, RemoteError
from carrypost.gossip.interest.index import ProfileIndex, View
from carrypost.gossip.slots import bits
from carrypost.gossip.strategy import review
from carrypost.gossip.wire import codec
from carrypost.gossip.wire.frames import Bucket, Digest
from carrypost.model.descriptor import Descriptor, PayloadCodec
from carrypost.model.pattern import entry

PROFILE = b"8 bytes."
MTU_BYTES = 1200
CHANCE = random.Random(1)
HELD = [CHANCE.getrandbits(64) for _ in range(10_000)]
NEW = [CHANCE.getrandbits(64) for _ in range(1_000)]


class Held(NamedTuple):
    slot: int
    descriptor: Descriptor

    @property
    def destination(self) -> str:
        return self.descriptor.destination


def view_of(values: Iterable[int]) -> View:
    book = ProfileIndex(Limits())
    view = book.learn((entry("news"),), PROFILE, ())
    for slot, value in enumerate(values):
        descriptor = Descriptor("a", 1, slot, 0, None, "news", 0, 0, PayloadCodec.BLANK, b"", 1024)
        descriptor.__dict__["fingerprint"] = value
        book.add(Held(slot, descriptor))
        book.mark_known(Held(slot, descriptor))
    return view


class Run(NamedTuple):
    """The findings and the cost of a run over a lossless link."""

    initiator_only: set[int]
    other_only: set[int]
    sizes: list[list[int]]
    """Of the datagrams of each round."""

    @property
    def datagrams(self) -> int:
        return sum(map(len, self.sizes))

    @property
    def nbytes(self) -> int:
        return sum(map(sum, self.sizes))


def run(initiator: list[int], other: list[int], mtu_bytes: int = MTU_BYTES) -> Run:
    sides = [(view_of(other), other), (view_of(initiator), initiator)]
    found: tuple[set[int], set[int]] = (set(), set())
    sizes = []
    frames = review.split(review.opening(sides[1][0]), mtu_bytes)
    while frames:
        sent = codec.datagrams(frames, mtu_bytes)
        sizes.append([len(datagram) for datagram in sent])
        view, values = sides[len(sizes) % 2 - 1]
        frames = []
        for frame in [
            frame for datagram in sent for frame in codec.decode(datagram, Limits(datagram_bytes_max=65_507)).frames
        ]:
            assert isinstance(frame, Digest)
            step = review.answer(view, frame)
            found[len(sizes) % 2].update(values[slot] for slot in bits(step.mine_only | step.wanted_mine))
            frames += review.split(step.reply, mtu_bytes) if step.reply is not None else []
    return Run(found[0], found[1], sizes)


def test_equal_sets_cost_one_question_and_one_empty_answer() -> None:
    result = run(HELD, HELD[::-1])
    assert (result.initiator_only, result.other_only) == (set(), set())
    assert [len(sizes) for sizes in result.sizes] == [1, 1]
    assert result.nbytes < 640


@pytest.mark.parametrize(
    ("new", "datagrams_max", "bytes_max"),
    [(1, 4, 950), (10, 6, 3_600), (100, 26, 20_500), (1_000, 92, 94_000)],
)
@pytest.mark.parametrize("initiator_has_more", [True, False])
def test_the_cost_follows_what_is_new(new: int, datagrams_max: int, bytes_max: int, initiator_has_more: bool) -> None:
    more = HELD + NEW[:new]
    result = run(more, HELD) if initiator_has_more else run(HELD, more)
    found = (result.initiator_only, result.other_only)
    assert found == ((set(NEW[:new]), set()) if initiator_has_more else (set(), set(NEW[:new])))
    assert result.datagrams <= datagrams_max
    assert result.nbytes <= bytes_max


def test_differences_on_both_sides_are_found_in_one_run() -> None:
    result = run(HELD[5:] + NEW[:5], HELD[:-7])
    assert result.initiator_only == set(HELD[-7:] + NEW[:5])
    assert result.other_only == set(HELD[:5])
    assert result.datagrams <= 10


@pytest.mark.parametrize(
    ("initiator", "other", "datagrams", "bytes_max"),
    [
        ([], HELD, 2, 60),
        (HELD, [], 3, 670),
        (HELD[:5], HELD, 2, 110),
        (HELD, HELD[:5], 3, 720),
        ([], [], 2, 60),
    ],
)
def test_who_has_little_lists_it(initiator: list[int], other: list[int], datagrams: int, bytes_max: int) -> None:
    result = run(initiator, other)
    assert result.initiator_only == set(initiator) - set(other)
    assert result.other_only == set(other) - set(initiator)
    assert result.datagrams == datagrams
    assert result.nbytes <= bytes_max


@pytest.mark.parametrize("mtu_bytes", [576, 1200, 9_000, 65_507])
def test_every_frame_fits_the_datagram_and_is_answered_by_itself(mtu_bytes: int) -> None:
    result = run(HELD, NEW, mtu_bytes)
    assert result.initiator_only == set(HELD)
    assert result.other_only == set(NEW)
    assert max(map(max, result.sizes)) <= mtu_bytes


def test_what_fits_is_not_cut_and_what_is_cut_adds_up() -> None:
    small = Digest(PROFILE, 3, (Bucket(6, 1, (), tuple(range(1 << 58, (1 << 58) + 9))),), (1, 2, 3))
    assert review.split(small, MTU_BYTES) == [small]
    wanted = Digest(PROFILE, 3, small.buckets * 20, tuple(NEW))
    frames = review.split(wanted, MTU_BYTES)
    assert sum((frame.buckets for frame in frames), ()) == wanted.buckets
    assert sum((frame.wanted for frame in frames), ()) == wanted.wanted
    assert {(frame.profile, frame.round) for frame in frames} == {(PROFILE, 3)}


def test_a_digest_without_buckets_is_the_end_and_gets_no_answer() -> None:
    step = review.answer(view_of(HELD), Digest(PROFILE, 3, (), (HELD[4], NEW[0])))
    assert step == review.Step(None, 0, 1 << 4)


def test_two_messages_with_one_fingerprint_are_offered_together() -> None:
    mine = view_of([*HELD[:20], 77, 77])
    theirs = view_of(HELD[:20])
    reply = review.answer(theirs, review.opening(mine)).reply
    assert reply is not None
    assert review.answer(mine, reply).mine_only == 3 << 20


def test_a_set_with_one_prefix_of_fifty_bits_is_reconciled_in_bounded_rounds() -> None:
    near = sorted({(0xABCDE << 44) | CHANCE.getrandbits(14) for _ in range(400)})
    result = run(near[1:], near[:-1])
    assert (result.initiator_only, result.other_only) == ({near[-1]}, {near[0]})
    assert len(result.sizes) <= review.ROUNDS_MAX + 1


ZEROS = (0,) * 16


@pytest.mark.parametrize(
    "digest",
    [
        Digest(PROFILE, -1),
        Digest(PROFILE, review.ROUNDS_MAX + 1),
        Digest(PROFILE, 0, (), (1 << 64,)),
        Digest(PROFILE, 0, (), (-1,)),
        Digest(PROFILE, 0, (Bucket(0, 0, (0,) * 63),)),
        Digest(PROFILE, 0, (Bucket(0, 0, ZEROS),)),
        Digest(PROFILE, 0, (Bucket(0, 1, (0,) * 64),)),
        Digest(PROFILE, 0, (Bucket(0, 0),)),
        Digest(PROFILE, 1, (Bucket(6, 64, ZEROS),)),
        Digest(PROFILE, 1, (Bucket(6, -1, ZEROS),)),
        Digest(PROFILE, 1, (Bucket(6, 0, (0,) * 64),)),
        Digest(PROFILE, 1, (Bucket(7, 0, ZEROS),)),
        Digest(PROFILE, 1, (Bucket(62, 0, ZEROS),)),
        Digest(PROFILE, 1, (Bucket(62, 0),)),
        Digest(PROFILE, 1, (Bucket(66, 0, (), ()),)),
        Digest(PROFILE, 1, (Bucket(-4, 0, (), ()),)),
        Digest(PROFILE, 1, (Bucket(6, 0, ZEROS, ()),)),
        Digest(PROFILE, 1, (Bucket(6, 0, (), (1 << 58,)),)),
        Digest(PROFILE, 1, (Bucket(0, 0, (), (1 << 64,)),)),
        Digest(PROFILE, 1, (Bucket(0, 0, (), (-1,)),)),
    ],
)
def test_what_is_no_step_of_a_reconciliation_is_refused(digest: Digest) -> None:
    with pytest.raises(DecodeError) as caught:
        review.answer(view_of(HELD[:100]), digest)
    assert caught.value.reason == "digest"


@pytest.mark.parametrize(
    "buckets",
    [(Bucket(10, 0, (), ()),) * (review.BUCKETS_MAX + 1), (Bucket(6, 0, ZEROS),) * 9],
)
def test_a_frame_that_asks_about_too_much_at_once_is_refused(buckets: tuple[Bucket, ...]) -> None:
    with pytest.raises(LimitError):
        review.answer(view_of(HELD[:100]), Digest(PROFILE, 1, buckets))


def test_the_largest_question_gets_a_bounded_answer() -> None:
    view = view_of(HELD)
    wrong = tuple(NEW[:16])
    for buckets in ((Bucket(0, 0, tuple(NEW[:64])),), tuple(Bucket(6, n, wrong) for n in range(8))):
        reply = review.answer(view, Digest(PROFILE, 0, buckets)).reply
        assert reply is not None
        assert sum(len(b.fingerprints) + len(b.members or ()) for b in reply.buckets) <= 2_048


def test_random_digests_are_answered_or_refused() -> None:
    view = view_of(HELD[:500])
    chance = random.Random(2)
    answered = 0
    for _ in range(2_000):
        depth = chance.choice([0, 2, 6, 10, 14, 62, chance.randrange(70)])
        prefix = chance.getrandbits(min(depth, 64)) if depth else chance.choice([0, 0, 0, 1])
        children = tuple(chance.getrandbits(64) for _ in range(chance.choice([0, 16, 64])))
        members = chance.choice([None, (), tuple(chance.choices(HELD, k=3))])
        digest = Digest(PROFILE, chance.randrange(20), (Bucket(depth, prefix, children, members),))
        with contextlib.suppress(RemoteError):
            step = review.answer(view, digest)
            answered += 1
            assert step.reply is not None
            assert all(b.members is not None or b.depth > depth for b in step.reply.buckets)
    assert answered > 100
