"""Reconciliation of any two sets, over links that lose, double and swap digests, while the sets change."""

from __future__ import annotations

import random
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from tests.support.examples import examples

from carrypost.config import Limits
from carrypost.gossip.interest.index import ProfileIndex
from carrypost.gossip.slots import Slots, bits
from carrypost.gossip.strategy import review
from carrypost.gossip.wire import codec
from carrypost.gossip.wire.frames import Digest
from carrypost.model.descriptor import Descriptor, PayloadCodec
from carrypost.model.pattern import entry

PROFILE = b"8 bytes."
MTU_BYTES = 1200
RUNS_MAX = 500


class Held(NamedTuple):
    slot: int
    descriptor: Descriptor

    @property
    def destination(self) -> str:
        return self.descriptor.destination


class Side:
    """A host's set of fingerprints, and those that the other side is known to lack."""

    def __init__(self, chance: random.Random) -> None:
        self.book = ProfileIndex(Limits())
        self.view = self.book.learn((entry("news"),), PROFILE, ())
        self.copies: dict[int, list[Held]] = {}
        self.lacking: set[int] = set()
        # Slots differ from host to host: nothing may depend on them.
        self.slots = Slots()
        for _ in range(chance.randrange(5)):
            self.slots.allocate()

    def add(self, value: int) -> None:
        (slot,) = self.slots.allocate()
        descriptor = Descriptor("a", 1, slot, 0, None, "news", 0, 0, PayloadCodec.BLANK, b"", 1024)
        descriptor.__dict__["fingerprint"] = value
        self.copies.setdefault(value, []).append(Held(slot, descriptor))
        self.book.add(Held(slot, descriptor))
        self.book.mark_known(Held(slot, descriptor))

    def remove(self, value: int) -> None:
        copies = self.copies.pop(value)
        self.book.release(sum(1 << copy.slot for copy in copies))
        for copy in copies:
            self.slots.release(copy.slot)

    def answer(self, digest: Digest) -> list[Digest]:
        step = review.answer(self.view, digest)
        names = {copy.slot: value for value, copies in self.copies.items() for copy in copies}
        self.lacking |= {names[slot] for slot in bits(step.mine_only | step.wanted_mine)}
        return [] if step.reply is None else review.split(step.reply, MTU_BYTES)


class Link:
    """Carries digests between an initiator and the other, with its faults."""

    def __init__(self, chance: random.Random, fault_rate: float) -> None:
        self.chance = chance
        self.fault_rate = fault_rate
        self.datagrams = 0
        self.rounds = 0

    def carry(self, frames: list[Digest]) -> list[Digest]:
        arrived: list[Digest] = []
        for datagram in codec.datagrams(frames, MTU_BYTES):
            self.datagrams += 1
            copies = 1
            if self.chance.random() < self.fault_rate:
                copies = self.chance.choice([0, 0, 2])
            for frame in codec.decode(datagram, Limits()).frames * copies:
                assert isinstance(frame, Digest)
                arrived.append(frame)
        if self.fault_rate:
            self.chance.shuffle(arrived)
        return arrived

    def run(self, initiator: Side, other: Side) -> None:
        frames = review.split(review.opening(initiator.view), MTU_BYTES)
        self.rounds = 0
        listener, speaker = other, initiator
        while frames:
            frames = [reply for frame in self.carry(frames) for reply in listener.answer(frame)]
            listener, speaker = speaker, listener
            self.rounds += 1
            assert self.rounds <= review.ROUNDS_MAX + 1


def differences(a: Side, b: Side) -> tuple[set[int], set[int]]:
    return a.copies.keys() - b.copies.keys(), b.copies.keys() - a.copies.keys()


class Sets(NamedTuple):
    a: set[int]
    b: set[int]
    seed: int


@st.composite
def two_sets(draw: st.DrawFn) -> Sets:
    """Draw sets, evenly spread or in clusters with a long common prefix; Hypothesis picks sizes, a seed the numbers.

    Small or consecutive numbers would add up to one another, which hashes do not.
    """
    seed = draw(st.integers(0, 2**32))
    chance = random.Random(seed)
    values: list[int] = []
    for shared_bits in draw(st.lists(st.sampled_from([0, 0, 0, 6, 10, 22, 40]), min_size=1, max_size=4)):
        free_bits = 64 - shared_bits
        prefix = chance.getrandbits(64) >> free_bits << free_bits
        size = draw(st.integers(0, 400))
        values += [prefix | chance.getrandbits(free_bits) for _ in range(size)]
    of_a, of_b = draw(st.sampled_from([(0, 0), (1, 0), (0, 1), (3, 3), (50, 50), (100, 0), (0, 100)]))
    a = {value for value in values if chance.randrange(100) >= of_b}
    b = {value for value in values if value not in a or chance.randrange(100) >= of_a}
    return Sets(a, b, seed)


def sides_of(sets: Sets) -> tuple[Side, Side, random.Random]:
    chance = random.Random(f"faults {sets.seed}")
    a, b = Side(chance), Side(chance)
    for side, values in ((a, sets.a), (b, sets.b)):
        for value in values:
            side.add(value)
    return a, b, chance


@given(two_sets())
@examples(15)
def test_any_two_sets_agree_after_one_lossless_run_and_its_cost_is_bounded(sets: Sets) -> None:
    a, b, chance = sides_of(sets)
    link = Link(chance, 0)
    link.run(a, b)
    assert (a.lacking, b.lacking) == (sets.a - sets.b, sets.b - sets.a)
    # Each difference costs at most one bucket per level it has to descend, and a list of FEW at the end.
    levels = link.rounds
    assert link.datagrams <= 2 + levels + len(sets.a ^ sets.b) * levels / 6


@given(two_sets(), st.sampled_from([0.1, 0.3]))
@examples(10)
def test_with_loss_doubling_and_swapping_nothing_false_is_found_and_all_in_the_end(
    sets: Sets, fault_rate: float
) -> None:
    a, b, chance = sides_of(sets)
    link = Link(chance, fault_rate)
    for _ in range(RUNS_MAX):
        link.run(a, b)
        assert a.lacking <= sets.a - sets.b
        assert b.lacking <= sets.b - sets.a
        if (a.lacking, b.lacking) == (sets.a - sets.b, sets.b - sets.a):
            return
    raise AssertionError("restarts do not help")


@given(two_sets(), st.integers(1, 60))
@examples(10)
def test_many_ids_with_one_fingerprint_are_one_member_and_hide_nobody_else(sets: Sets, twins: int) -> None:
    a, b, chance = sides_of(sets)
    value = chance.getrandbits(64)
    for _ in range(twins):
        a.add(value)
    for copied in list(sets.b)[:twins]:
        b.add(copied)
    Link(chance, 0).run(a, b)
    assert a.lacking == (sets.a - sets.b) | {value}
    assert b.lacking == sets.b - sets.a


class Neighbours(RuleBasedStateMachine):
    """Two hosts whose sets change between and within runs; a quiet run at any time finds the difference."""

    @initialize(seed=st.integers(0, 2**32), size=st.sampled_from([0, 10, 100, 600]))
    def meet(self, seed: int, size: int) -> None:
        self.chance = random.Random(seed)
        self.sides = Side(self.chance), Side(self.chance)
        for _ in range(size):
            value = self.chance.getrandbits(64)
            for side in self.sides:
                side.add(value)

    @rule(who=st.integers(0, 1), count=st.integers(1, 30), twin=st.booleans())
    def gain(self, who: int, count: int, twin: bool) -> None:
        for _ in range(count):
            self.sides[who].add(self.chance.getrandbits(64))
        if twin:
            self.sides[who].add(self.chance.choice(list(self.sides[who].copies)))

    @rule(who=st.integers(0, 1), count=st.integers(1, 30))
    def lose(self, who: int, count: int) -> None:
        held = list(self.sides[who].copies)
        for value in self.chance.sample(held, min(count, len(held))):
            self.sides[who].remove(value)

    @rule(initiator=st.integers(0, 1))
    def exchange_over_a_bad_link_that_moves_messages(self, initiator: int) -> None:
        """Exchange over a bad link, on which messages are handed over in the middle of the run."""
        a, b = self.sides[initiator], self.sides[1 - initiator]
        link = Link(self.chance, 0.3)
        frames = review.split(review.opening(a.view), MTU_BYTES)
        listener, speaker = b, a
        while frames:
            arrived = link.carry(frames)
            frames = []
            for frame in arrived:
                frames += listener.answer(frame)
                for value in listener.lacking & listener.copies.keys() - speaker.copies.keys():
                    speaker.add(value)
            listener, speaker = speaker, listener

    @rule(initiator=st.integers(0, 1))
    def a_quiet_run_finds_the_difference(self, initiator: int) -> None:
        a, b = self.sides[initiator], self.sides[1 - initiator]
        a.lacking, b.lacking = set(), set()
        link = Link(self.chance, 0)
        link.run(a, b)
        assert (a.lacking, b.lacking) == differences(a, b)

    def teardown(self) -> None:
        if hasattr(self, "sides"):
            self.a_quiet_run_finds_the_difference(0)


TestNeighbours = Neighbours.TestCase
TestNeighbours.settings = examples(10, stateful_step_count=20)
