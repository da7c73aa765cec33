"""Views of profiles: matches, knowledge of them, and the XORs over both."""

from __future__ import annotations

import random
import tracemalloc
from functools import reduce
from operator import xor
from typing import NamedTuple

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule
from msgspec import structs

from carrypost.config import Limits
from carrypost.errors import LimitError, StateError
from carrypost.gossip.interest.index import ProfileIndex, View
from carrypost.gossip.slots import bits
from carrypost.model.descriptor import Descriptor, PayloadCodec
from carrypost.model.ids import NodeId
from carrypost.model.pattern import entry

NEWS, SPORT, ALL = (entry("news"),), (entry("sport"),), (entry(".*"),)


class Held(NamedTuple):
    slot: int
    descriptor: Descriptor

    @property
    def destination(self) -> str:
        return self.descriptor.destination


def held(slot: int, destination: str = "news", fingerprint: int | None = None) -> Held:
    descriptor = Descriptor("a", 1, slot, 0, None, destination, 0, 0, PayloadCodec.BLANK, b"", 1024)
    if fingerprint is not None:
        descriptor.__dict__["fingerprint"] = fingerprint
    return Held(slot, descriptor)


def add(book: ProfileIndex, *copies: Held) -> None:
    for copy in copies:
        book.add(copy)
        book.mark_known(copy)


def total(view: View) -> int:
    return reduce(xor, view.fingerprints)


def test_a_message_that_enters_is_matched_against_every_profile() -> None:
    book = ProfileIndex(Limits())
    news, sport = book.learn(NEWS, b"news", ()), book.learn(SPORT, b"sport", ())
    book.add(held(0, "news"))
    book.add(held(3, "sport"))
    assert (news.matches, sport.matches) == (0b1, 0b1000)


def test_a_new_profile_is_matched_against_everything_that_is_here() -> None:
    book = ProfileIndex(Limits())
    copies = [held(slot, "news" if slot % 2 else "sport") for slot in range(100)]
    add(book, *copies)
    news = book.learn(NEWS, b"news", copies)
    assert list(bits(news.matches)) == list(range(1, 100, 2))
    assert news.count == 50
    assert total(news) == reduce(xor, (copy.descriptor.fingerprint for copy in copies[1::2]))


def test_only_known_messages_count_in_the_set() -> None:
    book = ProfileIndex(Limits())
    news = book.learn(NEWS, b"news", ())
    book.add(held(5))
    assert (news.matches, news.count, total(news)) == (1 << 5, 0, 0)
    book.mark_known(held(5))
    assert (news.count, total(news)) == (1, held(5).descriptor.fingerprint)


def test_what_a_node_wants_for_itself_is_the_same_for_all_slots_at_once_whoever_had_them_before() -> None:
    chance = random.Random(1)
    book = ProfileIndex(Limits())
    entries = (entry("news"), *(structs.replace(entry(each), hops=1) for each in ("sport", "queue/.*", "control/.*")))
    view = book.learn(entries, b"mixed", ())
    places = ["news", "sport", "queue/b/x", "queue/c/news", "control/b", "control/all", "queue/b"]
    copies: list[Held | None] = [None] * 40
    for _ in range(500):
        slot = chance.randrange(40)
        if copies[slot] is not None:
            copies[slot] = None
            book.release(1 << slot)
        if chance.random() < 0.8:
            made = copies[slot] = held(slot, chance.choice(places))
            book.add(made)
        node = NodeId(chance.choice("bc"))
        mask = view.matches & chance.getrandbits(40)
        wanted = [copy for copy in copies if copy and mask >> copy.slot & 1 and view.wants(copy.descriptor, node)]
        assert list(bits(view.wanted(mask, copies, node))) == [copy.slot for copy in wanted]


def test_settling_twice_changes_nothing() -> None:
    book = ProfileIndex(Limits())
    news = book.learn(NEWS, b"news", ())
    add(book, held(5))
    book.mark_known(held(5))
    assert total(news) == held(5).descriptor.fingerprint


def test_an_id_that_is_no_longer_known_leaves_the_set_and_keeps_its_match() -> None:
    book = ProfileIndex(Limits())
    news = book.learn(NEWS, b"news", ())
    add(book, held(5), held(6))
    book.mark_unknown(held(5))
    book.mark_unknown(held(5))
    assert (news.matches, news.known, total(news)) == (3 << 5, 1 << 6, held(6).descriptor.fingerprint)
    book.mark_known(held(5))
    assert news.known == 3 << 5


def test_many_slots_are_released_at_once_and_given_again() -> None:
    book = ProfileIndex(Limits())
    news, every = book.learn(NEWS, b"news", ()), book.learn(ALL, b"all", ())
    add(book, *(held(slot, "news" if slot % 2 else "sport") for slot in range(1000)))
    book.add(held(1000))  # on its way, not known
    book.release((1 << 1001) - 1)
    assert (news.matches, every.matches, book.known, total(news), total(every)) == (0, 0, 0, 0, 0)
    add(book, held(7, "sport"))
    assert (news.matches, every.known) == (0, 1 << 7)


def test_members_of_a_bucket_are_listed_in_order_of_their_fingerprints() -> None:
    book = ProfileIndex(Limits())
    every = book.learn(ALL, b"all", ())
    values = [0b101010_1111 << 54, 0b101010_0001 << 54, 0b101011_0000 << 54]
    add(book, *(held(slot, fingerprint=value) for slot, value in enumerate(values)))
    assert every.members(6, 0b101010) == [values[1], values[0]]
    assert every.members(10, 0b101010_1111) == [values[0]]
    assert every.members(2, 0b10) == every.members(0, 0) == [values[1], values[0], values[2]]
    assert [every.mask(depth, 0b1010101111 >> (10 - depth)) for depth in (0, 2, 6, 10)] == [7, 7, 3, 1]
    assert every.slots(values[2]) == [2]
    assert every.slots(values[2] + 1) == []


def test_two_ids_with_one_fingerprint_do_not_cancel_each_other() -> None:
    book = ProfileIndex(Limits())
    news, every = book.learn(NEWS, b"news", ()), book.learn(ALL, b"all", ())
    add(book, held(0, "news", 77), held(1, "sport", 77))
    assert (total(news), total(every), every.members(0, 0), every.slots(77)) == (77, 77, [77], [0, 1])
    book.mark_unknown(held(0, "news", 77))
    assert (total(news), total(every), every.slots(77)) == (0, 77, [1])
    book.mark_known(held(0, "news", 77))
    book.release(0b11)
    assert (total(news), total(every), book.twins) == (0, 0, 0)


def test_a_profile_that_is_known_is_not_learnt_again() -> None:
    book = ProfileIndex(Limits())
    assert book.learn(NEWS, b"news", ()) is book.learn(NEWS, b"news", [held(0)]) is book.view(b"news")
    assert book.view(b"sport") is None


def test_the_profile_unused_for_the_longest_time_is_forgotten_first() -> None:
    book = ProfileIndex(Limits(profiles_max=3))
    for digest in (b"1", b"2", b"3"):
        book.learn(NEWS, digest, ())
    book.keep(b"1")
    book.view(b"2")
    book.learn(NEWS, b"4", ())
    assert [book.view(digest) is not None for digest in (b"1", b"2", b"3", b"4")] == [True, True, False, True]


def test_a_profile_that_nobody_uses_keeps_no_lists_of_what_is_known() -> None:
    """Hundreds of them are remembered, and each would list all known ids once more."""
    book = ProfileIndex(Limits())
    book.learn(NEWS, b"news", ())
    add(book, *(held(slot) for slot in range(5_000)))
    tracemalloc.start()
    try:
        view = book.keep(b"news")
        members = [view.members(6, number) for number in range(64)]
        assert view.count == sum(map(len, members))
        shown, before = view.slots(members[0][0]), tracemalloc.get_traced_memory()[0]
        book.drop(b"news")
        freed = before - tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert freed > 5_000 * 8
    assert book.keep(b"news") is view
    assert [view.members(6, number) for number in range(64)] == members
    assert view.slots(members[0][0]) == shown


def test_a_profile_in_use_is_never_forgotten_and_a_newcomer_is_refused() -> None:
    book = ProfileIndex(Limits(profiles_max=2))
    for digest in (b"1", b"2"):
        book.learn(NEWS, digest, ())
        book.keep(digest)
    with pytest.raises(LimitError):
        book.learn(NEWS, b"3", ())
    book.keep(b"1")
    book.drop(b"1")
    with pytest.raises(LimitError):
        book.learn(NEWS, b"3", ())
    book.drop(b"1")
    assert book.learn(NEWS, b"3", ()).digest == b"3"
    assert (book.view(b"1"), len(book)) == (None, 2)


def test_the_hosts_own_profile_is_always_learnt() -> None:
    book = ProfileIndex(Limits(profiles_max=1))
    book.learn(NEWS, b"1", ())
    book.keep(b"1")
    book.learn(SPORT, b"own", (), own=True)
    book.keep(b"own")
    book.drop(b"1")
    assert (book.view(b"1"), len(book)) == (None, 1)


@pytest.mark.parametrize("digest", [b"never learnt", b"never kept"])
def test_dropping_what_was_not_kept_is_a_mistake(digest: bytes) -> None:
    book = ProfileIndex(Limits())
    book.learn(NEWS, b"never kept", ())
    with pytest.raises(StateError):
        book.drop(digest)


class Book(RuleBasedStateMachine):
    """A machine that compares views with a full scan, after any change."""

    slots = st.integers(0, 200)

    def __init__(self) -> None:
        super().__init__()
        self.book = ProfileIndex(Limits(profiles_max=3))
        self.copies: dict[int, Held] = {}
        self.known: set[int] = set()
        self.views: list[tuple[View, str]] = []
        self.chance = random.Random(1)

    @rule(slot=slots, destination=st.sampled_from(["news", "sport"]), near=st.booleans())
    def enter(self, slot: int, destination: str, near: bool) -> None:
        if slot not in self.copies:
            value = self.chance.randrange(4) if near else self.chance.getrandbits(64)
            self.copies[slot] = held(slot, destination, value)
            self.book.add(self.copies[slot])

    @rule(slots=st.sets(slots))
    def settle(self, slots: set[int]) -> None:
        for slot in slots & self.copies.keys():
            self.book.mark_known(self.copies[slot])
            self.known.add(slot)

    @rule(slots=st.sets(slots))
    def unsettle(self, slots: set[int]) -> None:
        for slot in slots & self.copies.keys():
            self.book.mark_unknown(self.copies[slot])
            self.known.discard(slot)

    @rule(slots=st.sets(slots))
    def release(self, slots: set[int]) -> None:
        self.book.release(sum(1 << slot for slot in slots))
        self.known -= slots
        for slot in slots & self.copies.keys():
            del self.copies[slot]

    @rule(destination=st.sampled_from(["news", "sport", ".*"]))
    def learn(self, destination: str) -> None:
        if all(name != destination for _, name in self.views):
            digest = destination.encode()
            self.views.append((self.book.learn((entry(destination),), digest, self.copies.values()), destination))

    # A rule and no invariant: what is gathered between two looks must not depend on how often somebody looks.
    @rule()
    def look(self) -> None:
        assert set(bits(self.book.known)) == self.known
        for view, name in self.views:
            matching = {slot for slot, copy in self.copies.items() if copy.descriptor.destination == name}
            if name == ".*":
                matching = set(self.copies)
            values = {self.copies[slot].descriptor.fingerprint for slot in matching & self.known}
            assert set(bits(view.matches)) == matching
            assert set(bits(view.known)) == matching & self.known
            assert view.members(0, 0) == sorted(values)
            assert view.fingerprints == tuple(
                reduce(xor, (value for value in values if value >> 58 == bucket), 0) for bucket in range(64)
            )

    def teardown(self) -> None:
        self.look()


TestBook = Book.TestCase
