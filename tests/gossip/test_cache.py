from __future__ import annotations

import pytest

from carrypost.config import Limits, Settings
from carrypost.errors import StateError
from carrypost.gossip.holdings.cache import DELIVERIES, ORDER, PUBLISHING, Cache
from carrypost.gossip.holdings.copies import Copy
from carrypost.gossip.slots import bits
from carrypost.log.events import Reason
from carrypost.model.descriptor import PIECE_BYTES, Descriptor, PayloadCodec
from carrypost.model.ids import NodeId
from carrypost.model.times import NEVER

NOW = 1_000


def message(
    name: str,
    *,
    author: str = "ann",
    created_us: int = 0,
    deadline_us: int | None = None,
    pieces: int = 1,
    destination: str = "news",
) -> Descriptor:
    return Descriptor(
        author=author,
        incarnation=0,
        sequence=int.from_bytes(name.encode(), "big"),
        created_us=created_us,
        deadline_us=deadline_us,
        destination=destination,
        size=pieces * PIECE_BYTES,
        length=pieces * PIECE_BYTES,
        codec=PayloadCodec.BLANK,
        root=b"",
        fragment_bytes=1_000,
        label=name,
    )


def cache_of(messages: int = 3, nbytes: int = 1_000, *, shares: bool = False, seen_max: int = 1_000) -> Cache:
    limits = Limits(seen_max=seen_max)
    return Cache(Settings.emulated(cache_messages_max=messages, cache_bytes_max=nbytes, shares=shares, limits=limits))


def offer(
    cache: Cache,
    descriptor: Descriptor,
    privilege: int = 4,
    *,
    nbytes: int = 100,
    interesting: bool = True,
    own: bool = False,
    giver: str | None = None,
) -> Copy | Reason:
    """Let a message in with all of its pieces."""
    return cache.admit(
        descriptor,
        nbytes=nbytes,
        privilege=privilege,
        interesting=interesting,
        own=own,
        giver=None if giver is None else NodeId(giver),
        held=(1 << descriptor.pieces) - 1,
        now=NOW,
    )


def put(cache: Cache, descriptor: Descriptor, privilege: int = 4, *, nbytes: int = 100) -> Copy:
    copy = offer(cache, descriptor, privilege, nbytes=nbytes)
    assert isinstance(copy, Copy)
    return copy


def names(cache: Cache, mask: int) -> str:
    return "".join(sorted(copy.descriptor.label for slot in bits(mask) if (copy := cache.copies[slot])))


def evicted(cache: Cache) -> str:
    return "".join(copy.descriptor.label for copy, reason in cache.pop_removed() if reason is Reason.EVICTED)


# -------------------------------------------------------------------------------------------- coming in


def test_a_copy_says_how_it_came_in() -> None:
    cache = cache_of()
    copy = cache.admit(
        message("a"),
        nbytes=10,
        privilege=7,
        interesting=False,
        giver=NodeId("bob"),
        hops=2,
        age_ms=5,
        now=NOW,
    )
    assert isinstance(copy, Copy)
    assert (copy.slot, copy.privilege, copy.interesting, copy.own, copy.giver) == (0, 7, False, False, "bob")
    assert (copy.hops, copy.age_ms, copy.received_us, copy.held, copy.held_bytes) == (2, 5, NOW, 0, 10)
    assert (copy.handle, copy.entry, (copy.here and copy.pins > 0), copy.whole) == (-1, None, False, False)
    assert cache.get(copy.id) is copy
    assert cache.copies[copy.slot] is copy
    assert (cache.messages, cache.bytes) == (1, 10)


def test_a_message_is_partial_from_its_first_piece_and_whole_with_its_last() -> None:
    cache = cache_of()
    copy = cache.admit(message("a", pieces=3), nbytes=10, privilege=4, interesting=True, now=NOW)
    assert isinstance(copy, Copy)
    states = [(cache.partial, cache.whole, copy.held, copy.whole)]
    for piece in (2, 0, 1):
        assert cache.grow(copy, piece, 100)
        states.append((cache.partial, cache.whole, copy.held, copy.whole))
    assert states == [(0, 0, 0, False), (1, 0, 0b100, False), (1, 0, 0b101, False), (0, 1, 0b111, True)]
    assert cache.bytes == copy.held_bytes == 310


def test_a_piece_held_already_costs_nothing() -> None:
    cache = cache_of()
    copy = put(cache, message("a"))
    assert cache.grow(copy, 0, 500)
    assert cache.bytes == 100


def test_what_is_here_or_done_may_not_be_admitted_again() -> None:
    cache = cache_of()
    copy = put(cache, message("a"))
    with pytest.raises(StateError, match="a is known already"):
        offer(cache, message("a"))
    cache.remove(copy, Reason.WITHDRAWN)
    with pytest.raises(StateError, match="a is known already"):
        offer(cache, message("a"))


def test_an_expired_message_is_refused_and_leaves_no_trace() -> None:
    cache = cache_of()
    assert offer(cache, message("a", deadline_us=NOW)) is Reason.EXPIRED
    assert cache.get(message("a").id) is None
    assert cache.copies == []


# ------------------------------------------------------------------------------------------- giving way


@pytest.mark.parametrize(
    ("privilege", "created_us", "interesting", "leaves"),
    [
        (9, 50, True, "a"),
        (5, 21, True, "a"),  # younger than a
        (5, 20, True, None),  # exactly as privileged and as old as a
        (5, 19, True, None),
        (4, 99, True, None),
        (9, 99, False, None),  # carried for others only
    ],
)
def test_a_newcomer_comes_in_only_over_a_lower_ranked_copy(
    privilege: int, created_us: int, interesting: bool, leaves: str | None
) -> None:
    cache = cache_of(2)
    put(cache, message("a", created_us=20), 5)
    put(cache, message("b", created_us=10), 6)
    verdict = offer(cache, message("n", created_us=created_us), privilege, interesting=interesting)
    assert (verdict is Reason.NO_ROOM) == (leaves is None)
    assert evicted(cache) == (leaves or "")
    assert names(cache, cache.whole) == ("ab" if leaves is None else "bn")
    assert names(cache, cache.declined) == (leaves or "n")


def test_carried_messages_give_way_before_interesting_ones_of_lower_privilege() -> None:
    cache = cache_of(2)
    put(cache, message("a"), 0)
    offer(cache, message("c"), 255, interesting=False)
    put(cache, message("n"), 1)
    assert evicted(cache) == "c"


def test_among_equals_the_one_that_came_first_gives_way() -> None:
    cache = cache_of(3)
    for name in "bac":
        put(cache, message(name))
    put(cache, message("n"), 5)
    put(cache, message("m"), 5)
    assert evicted(cache) == "ba"


def test_a_large_newcomer_evicts_several_or_nobody() -> None:
    cache = cache_of(9, 1_000)
    for name, privilege in (("a", 1), ("b", 2), ("c", 6)):
        put(cache, message(name), privilege, nbytes=300)
    assert offer(cache, message("n"), 5, nbytes=800) is Reason.NO_ROOM
    assert (evicted(cache), names(cache, cache.whole), cache.bytes) == ("", "abc", 900)
    put(cache, message("m"), 5, nbytes=700)
    assert (evicted(cache), names(cache, cache.whole), cache.bytes) == ("ab", "cm", 1_000)


def test_a_message_larger_than_the_cache_stays_outside() -> None:
    cache = cache_of(9, 1_000)
    put(cache, message("a"), 1)
    assert not cache.admits(1_001, 9)
    assert offer(cache, message("n"), 9, nbytes=1_001) is Reason.NO_ROOM
    assert names(cache, cache.whole) == "a"


def test_a_growing_copy_evicts_others_but_never_itself() -> None:
    cache = cache_of(9, 1_000)
    put(cache, message("a"), 1, nbytes=600)
    copy = cache.admit(message("n", pieces=3), nbytes=100, privilege=2, interesting=True, now=NOW)
    assert isinstance(copy, Copy)
    assert cache.grow(copy, 0, 400)
    assert evicted(cache) == "a"
    assert not cache.grow(copy, 1, 600)
    assert (copy.held, copy.held_bytes, cache.bytes, evicted(cache)) == (0b1, 500, 500, "")


def test_a_copy_that_left_does_not_grow() -> None:
    cache = cache_of()
    copy = cache.admit(message("a", pieces=2), nbytes=0, privilege=2, interesting=True, now=NOW)
    assert isinstance(copy, Copy)
    cache.remove(copy, Reason.PAYLOAD_GONE)
    assert not cache.grow(copy, 0, 10)


def test_a_pinned_copy_stays_until_it_is_unpinned() -> None:
    cache = cache_of(2)
    pinned = put(cache, message("p"), 0)
    put(cache, message("a"), 1)
    cache.pin((pinned,), DELIVERIES)
    put(cache, message("n"), 9)
    assert evicted(cache) == "a"
    assert not cache.admits(10, 8)
    cache.unpin((pinned,), DELIVERIES)
    assert cache.admits(10, 8)
    put(cache, message("o"), 8)
    assert evicted(cache) == "p"


def test_no_owner_unpins_what_another_pinned() -> None:
    cache = cache_of(2)
    pinned = put(cache, message("p"), 0)
    put(cache, message("a"), 1)
    for owner in (DELIVERIES, ORDER, DELIVERIES):
        cache.pin((pinned,), owner)
    cache.unpin((pinned,), PUBLISHING)
    cache.unpin((pinned,), DELIVERIES)
    put(cache, message("n"), 9)
    assert evicted(cache) == "a"
    assert not cache.admits(10, 8)
    cache.unpin((pinned,), ORDER)
    put(cache, message("o"), 8)
    assert evicted(cache) == "p"


def test_a_thousand_pins_and_removals_do_not_change_the_order() -> None:
    cache = cache_of(3)
    first = put(cache, message("a"), 1)
    put(cache, message("b"), 2)
    assert not cache.admits(2_000, 9)
    for turn in range(1_000):
        cache.pin((first,), DELIVERIES)
        cache.unpin((first,), DELIVERIES)
        cache.remove(put(cache, message("c", deadline_us=9_000), turn % 9), Reason.EXPIRED)
        cache.pop_released()
    for name in "def":
        put(cache, message(name), 9)
    assert evicted(cache) == "ab"


def test_interests_that_change_change_the_rank() -> None:
    cache = cache_of(2)
    one, two = put(cache, message("a"), 1), put(cache, message("b"), 2)
    cache.set_interesting(two, False)
    put(cache, message("n"), 0)
    assert (one.here, two.here, evicted(cache)) == (True, False, "b")


def test_a_carried_message_that_becomes_interesting_no_longer_gives_way_first() -> None:
    cache = cache_of(2)
    carried = offer(cache, message("a"), 9, interesting=False)
    put(cache, message("b"), 1)
    assert offer(cache, message("n"), 0, interesting=False) is Reason.NO_ROOM
    assert isinstance(carried, Copy)
    cache.set_interesting(carried, True)
    put(cache, message("m"), 5)
    assert evicted(cache) == "b"


@pytest.mark.parametrize(
    ("length", "privilege", "interesting", "answer"),
    [
        (100, 5, True, True),
        (100, 3, True, True),  # as privileged as the least: its age decides, once it is known
        (100, 2, True, False),
        (100, 9, False, False),
        (901, 3, True, False),
        (901, 5, True, True),
    ],
)
def test_a_full_cache_asks_only_for_what_may_come_in(
    length: int, privilege: int, interesting: bool, answer: bool
) -> None:
    cache = cache_of(2, 1_000)
    put(cache, message("a"), 3)
    put(cache, message("b"), 5)
    assert cache.admits(length, privilege, interesting=interesting) is answer


# ----------------------------------------------------------------------------------------------- shares


def flooded() -> Cache:
    """Return a cache in which eight of nine copies, all but the first, have the same author."""
    cache = cache_of(9, 9_000, shares=True)
    offer(cache, message("a"), 1, giver="gus")
    for name in "stuvwxyz":
        offer(cache, message(name, author="flo"), 5, giver="flo")
    return cache


def test_while_there_is_room_nobody_looks_at_shares() -> None:
    assert flooded().messages == 9


def test_an_author_over_its_share_displaces_only_itself() -> None:
    cache = flooded()
    assert offer(cache, message("A", author="flo"), 5, giver="bob") is Reason.SHARE
    offer(cache, message("B", author="flo"), 6, giver="bob")
    assert evicted(cache) == "s"


def test_what_came_back_from_another_giver_gives_way_no_more_for_the_first_one() -> None:
    cache = cache_of(10, 10_000, shares=True)  # A giver may have half of it.
    for name in "abcdefgh":
        offer(cache, message(name, author=name), 1, giver="gus")
    for name in "AB":
        offer(cache, message(name, author=name), 5, giver="bob")
    offer(cache, message("C", author="C"), 5, giver="bob")
    assert evicted(cache) == "a"
    other = cache.get(message("h", author="h").id)
    assert other is not None
    cache.remove(other, Reason.PAYLOAD_GONE)
    offer(cache, message("a", author="a"), 1, giver="ann")
    offer(cache, message("D", author="D"), 5, giver="bob")
    assert evicted(cache) == "b"


def test_a_giver_over_its_share_displaces_only_what_it_gave() -> None:
    cache = flooded()
    assert offer(cache, message("A", author="eve"), 5, giver="flo") is Reason.SHARE
    offer(cache, message("B", author="eve"), 6, giver="flo")
    assert evicted(cache) == "s"


def test_others_displace_first_what_is_over_its_share() -> None:
    cache = flooded()
    offer(cache, message("A", author="eve"), 6, giver="bob")
    assert evicted(cache) == "s"
    offer(cache, message("B", author="eve"), 4, giver="bob")
    assert evicted(cache) == "a"


def test_what_grew_over_its_share_gives_way_first() -> None:
    cache = cache_of(9, 1_000, shares=True)
    offer(cache, message("a"), 1, nbytes=450)
    offer(cache, message("s", author="flo"), 5)
    grown = cache.admit(message("t", author="flo"), nbytes=0, privilege=6, interesting=True, now=NOW)
    assert isinstance(grown, Copy)
    offer(cache, message("b", author="bob"), 1, nbytes=200)
    assert not cache.admits(2_000, 9)
    assert cache.grow(grown, 0, 250)
    offer(cache, message("c", author="cat"), 7, nbytes=50)
    assert evicted(cache) == "s"


def test_without_shares_rank_alone_decides() -> None:
    cache = cache_of(9, 9_000, shares=False)
    offer(cache, message("a"), 1, giver="gus")
    for name in "stuvwxyz":
        offer(cache, message(name, author="flo"), 5, giver="flo")
    offer(cache, message("A", author="flo"), 5, giver="flo")
    assert evicted(cache) == "a"


def test_one_message_is_never_over_its_share() -> None:
    cache = cache_of(9, 1_000, shares=True)
    offer(cache, message("a"), 1, nbytes=600)
    assert isinstance(offer(cache, message("b", author="bob"), 2, nbytes=900), Copy)


def test_the_host_s_own_messages_have_no_share() -> None:
    cache = cache_of(2, shares=True)
    for name in "ab":
        offer(cache, message(name), 1, own=True)
    assert isinstance(offer(cache, message("c"), 2, own=True), Copy)


def carrying() -> Cache:
    """Twenty places, all taken: five by messages between nodes, which is the share of these."""
    cache = cache_of(20, 20_000, shares=True)
    for number in range(15):
        offer(cache, message(f"n{number:02}", author=f"n{number}"), 1, giver=f"g{number}", interesting=False)
    for number, where in enumerate(["queue/n/q", "queue/m/q", "control/n", "control/all", "queue/"]):
        author = f"q{number}"
        offer(cache, message(author, author=author, destination=where), 5, giver=author, interesting=False)
    return cache


def between(name: str, privilege: int, cache: Cache, *, interesting: bool = False) -> Copy | Reason:
    """Offer a message for the queue of another node."""
    return offer(
        cache, message(name, author=name, destination="queue/n/q"), privilege, giver=name, interesting=interesting
    )


def test_messages_between_nodes_displace_only_each_other_once_they_have_their_share() -> None:
    cache = carrying()
    assert between("A", 5, cache) is Reason.NO_ROOM
    assert names(cache, cache.declined) == "A"  # Whoever brings it, and whoever wrote it, there is no room.
    between("B", 6, cache)
    assert evicted(cache) == "q0"


def test_an_author_over_its_share_displaces_none_of_its_news_by_messages_between_nodes() -> None:
    cache = cache_of(8, 8_000, shares=True)

    def letter(name: str, privilege: int) -> Copy | Reason:
        paper = message(name, author="ann", destination="queue/n/q")
        return offer(cache, paper, privilege, giver="ann", interesting=False)

    for number in range(6):
        offer(cache, message(f"n{number}", author="ann"), 1, giver="ann", interesting=False)
    for name in "st":
        letter(name, 5)
    letter("u", 6)
    assert evicted(cache) == "s"
    between("A", 7, cache)
    assert evicted(cache) == "t"
    letter("v", 9)
    assert evicted(cache) == "u"
    between("B", 8, cache)
    assert evicted(cache) == "A"
    assert letter("w", 9) is Reason.SHARE  # The first between nodes to give way is somebody else's.


def test_others_displace_first_what_is_carried_between_nodes_beyond_its_share() -> None:
    cache = cache_of(20, 20_000, shares=True)
    for number in range(14):
        offer(cache, message(f"n{number:02}", author=f"n{number}"), 1, interesting=False)
    for number in range(6):
        between(f"q{number}", 5, cache)
    offer(cache, message("A"), 6)
    assert evicted(cache) == "q0"
    offer(cache, message("B"), 6)
    assert evicted(cache) == "n00"


def test_what_is_wanted_here_has_no_part_in_the_share_of_what_is_carried_between_nodes() -> None:
    cache = carrying()
    between("A", 5, cache, interesting=True)
    assert evicted(cache) == "n00"
    kept = cache.get(message("q0", author="q0").id)
    assert kept is not None
    cache.set_interesting(kept, True)
    between("B", 5, cache)
    assert evicted(cache) == "n01"
    cache.set_interesting(kept, False)
    between("C", 6, cache)
    assert evicted(cache) == "q0"


def test_what_was_declined_between_nodes_displaces_others_once_its_share_is_not_used_up() -> None:
    cache = carrying()
    between("A", 5, cache)
    declined = cache.get(message("A", author="A").id)
    assert declined is not None
    assert cache.room.shared_out(declined, 1, 100)
    gone = cache.get(message("q4", author="q4").id)
    assert gone is not None
    cache.remove(gone, Reason.PURGED, done=True)
    offer(cache, message("B"), 4)
    assert cache.messages == 20
    assert not cache.room.shared_out(declined, 1, 100)


# ----------------------------------------------------------------------------------------------- memory


@pytest.mark.parametrize(
    ("reason", "done", "memory"),
    [
        (Reason.PAYLOAD_GONE, False, "declined"),
        (Reason.PAYLOAD_GONE, True, "done"),
        (Reason.WITHDRAWN, False, "done"),
        (Reason.EXPIRED, False, "nothing"),
        (Reason.EXPIRED, True, "nothing"),
    ],
)
def test_what_is_remembered_of_a_removed_copy(reason: Reason, done: bool, memory: str) -> None:
    cache = cache_of()
    copy = put(cache, message("a"))
    cache.remove(copy, reason, done=done)
    assert (cache.whole, cache.messages, cache.bytes, copy.here) == (0, 0, 0, False)
    assert (cache.done, cache.declined) == ((memory == "done") * 1, (memory == "declined") * 1)
    assert cache.pop_released() == (memory == "nothing")
    assert (cache.get(copy.id) is copy) == (memory != "nothing")
    assert cache.pop_removed() == []


def test_a_copy_marked_done_is_never_wanted_again_once_it_leaves() -> None:
    cache = cache_of(1)
    cache.mark_done((put(cache, message("a"), 1),))
    assert names(cache, cache.whole) == "a"
    put(cache, message("b"), 2)
    assert [
        names(cache, mask) for mask in (cache.done, cache.declined, (cache.whole | cache.done | cache.declined))
    ] == ["a", "", "ab"]


def test_an_own_message_that_is_evicted_is_done() -> None:
    cache = cache_of(1)
    offer(cache, message("a"), 1, own=True)
    put(cache, message("b"), 2)
    assert names(cache, cache.done) == "a"


def test_an_own_message_that_is_refused_leaves_no_trace() -> None:
    cache = cache_of(1)
    put(cache, message("a"), 5)
    assert offer(cache, message("b"), 4, own=True) is Reason.NO_ROOM
    assert cache.get(message("b").id) is None
    assert (cache.pop_released(), (cache.whole | cache.done | cache.declined)) == (0, 1)


def test_a_declined_message_may_still_come_and_keeps_its_slot() -> None:
    cache = cache_of(1)
    put(cache, message("a"), 5)
    assert offer(cache, message("b"), 4) is Reason.NO_ROOM
    memory = cache.get(message("b").id)
    assert memory is not None
    assert not memory.here
    assert offer(cache, message("b"), 6) is memory
    assert (names(cache, cache.whole), names(cache, cache.declined), memory.slot) == ("b", "a", 1)


def test_declined_messages_are_asked_for_again_once_there_is_room() -> None:
    cache = cache_of(10, 10_000)
    copies = [put(cache, message(name), 5) for name in "abcdefghij"]
    offer(cache, message("n"), 1)
    cache.remove(copies[0], Reason.WITHDRAWN)
    assert names(cache, cache.declined) == "n"
    cache.remove(copies[1], Reason.WITHDRAWN)
    assert cache.declined == 0
    assert (cache.pop_released(), cache.get(message("n").id)) == (1 << 10, None)


def test_the_room_a_copy_leaves_is_no_reason_to_ask_for_it_again() -> None:
    cache = cache_of(10, 10_000)
    cache.remove(put(cache, message("a")), Reason.PAYLOAD_GONE)
    assert names(cache, cache.declined) == "a"


def test_memory_is_bounded_and_forgets_the_earliest_deadline_first() -> None:
    cache = cache_of(seen_max=2)
    for name, deadline_us in (("a", 9_000), ("b", None), ("c", 8_000), ("d", 9_500)):
        cache.remember(message(name, deadline_us=deadline_us))
    assert names(cache, cache.done) == "bd"
    assert cache.pop_released() == 0b101


def test_memory_is_bounded_in_bytes_too() -> None:
    first, second = message("a", deadline_us=9_000), message("b", deadline_us=9_500)
    limits = Limits(seen_bytes_max=len(first.wire) + len(second.wire) - 1)
    cache = Cache(Settings.emulated(limits=limits))
    cache.remember(first)
    assert names(cache, cache.done) == "a"
    cache.remember(second)
    assert names(cache, cache.done) == "b"
    cache.expire(9_500)
    cache.remember(message("c"))
    assert names(cache, cache.done) == "c"


def test_what_is_remembered_after_a_restart_is_known() -> None:
    cache = cache_of()
    cache.remember(message("a"))
    cache.remember(message("b"), done=False)
    cache.remember(message("b"))
    assert (names(cache, cache.done), cache.declined, cache.messages) == ("ab", 0, 0)


# -------------------------------------------------------------------------------------------- deadlines


def test_everything_goes_at_its_deadline_and_only_copies_are_named() -> None:
    cache = cache_of(2)
    pinned = put(cache, message("p", deadline_us=3_000), 9)
    cache.pin((pinned,), DELIVERIES)
    put(cache, message("a", deadline_us=2_000), 5)
    offer(cache, message("n", deadline_us=2_500), 1)
    cache.remember(message("d", deadline_us=2_600))
    cache.remember(message("e"))
    assert (cache.deadlines.due_us, cache.expire(1_999)) == (2_000, [])
    assert [copy.descriptor.label for copy in cache.expire(3_000)] == ["a", "p"]
    assert (cache.whole, cache.declined, names(cache, cache.done), cache.messages) == (0, 0, "e", 0)
    assert cache.pop_released() == 0b1111
    assert cache.deadlines.due_us == NEVER


def test_a_slot_is_not_given_again_before_its_release_was_told() -> None:
    cache = cache_of()
    put(cache, message("a", deadline_us=2_000))
    cache.expire(2_000)
    assert put(cache, message("b")).slot == 1
    assert cache.pop_released() == 1
    assert cache.pop_released() == 0
    assert put(cache, message("c")).slot == 0


def test_what_was_released_before_its_deadline_does_not_expire() -> None:
    cache = cache_of()
    first = put(cache, message("a", deadline_us=2_000))
    put(cache, message("b", deadline_us=5_000))
    cache.remove(first, Reason.EXPIRED)
    assert cache.expire(4_999) == []
    assert cache.deadlines.due_us == 5_000
    assert [copy.descriptor.label for copy in cache.expire(5_000)] == ["b"]
