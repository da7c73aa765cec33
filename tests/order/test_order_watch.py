"""The watch of waiting messages: nothing of those that left stays behind."""

from __future__ import annotations

from carrypost.model.descriptor import Barrier, Descriptor, Ordering, PayloadCodec
from carrypost.model.ids import NodeId
from carrypost.model.times import NEVER
from carrypost.order.causal import WaitingMessage, Watch


def waiting(number: int, source: str, tag: int, deadline_us: int = NEVER) -> WaitingMessage:
    descriptor = Descriptor(
        "author", 1, number, 0, None, "forum", 0, 0, PayloadCodec.BLANK, b"", 1_024, ordering=Ordering.CAUSAL
    )
    predecessors: Barrier = ((NodeId(source), tag, deadline_us),)
    return WaitingMessage(descriptor, predecessors, 0)


def sizes(watch: Watch) -> tuple[int, int, int]:
    return len(watch._filed), sum(map(len, watch.tags.values())), len(watch._due)  # noqa: SLF001


def test_a_thousand_that_wait_for_what_does_not_exist_and_leave_leave_nothing() -> None:
    watch = Watch()
    for number in range(1_000):
        one = waiting(number, f"nobody {number % 7}", number, 10**9 + number)
        watch.file(one)
        watch.leave(one)
    assert max(sizes(watch)) <= 65


def test_those_that_stay_are_found_after_others_were_swept_out() -> None:
    watch = Watch()
    stay = [waiting(number, "a", number, 10**9 + number) for number in range(10)]
    for one in stay:
        watch.file(one)
    for number in range(10, 300):
        one = waiting(number, "a", number, 10**9 + number)
        watch.file(one)
        watch.leave(one)
    assert watch.delivered(NodeId("a"), 4) == stay[:5]
    assert watch.dead(10**9 + 6) == stay[5:7]
    assert watch.dead(10**10) == stay[7:]
    assert watch.due_us == NEVER
    assert sizes(watch)[0] == 0


def test_one_that_leaves_does_not_take_others_along() -> None:
    watch = Watch()
    first, second = waiting(1, "a", 5, 100), waiting(2, "a", 5, 100)
    watch.file(first)
    watch.file(second)
    watch.leave(first)
    assert watch.dead(99) == []
    assert watch.dead(100) == [second]


def test_who_tells_a_later_deadline_is_looked_at_again_then_too() -> None:
    watch = Watch()
    honest, liar = waiting(1, "a", 5, 100), waiting(2, "a", 5, 500)
    watch.file(honest)
    watch.file(liar)
    assert watch.dead(100) == [honest, liar]  # Whoever it was filed for looks whether it is dead to it, too.
    watch.file(liar)
    assert watch.due_us == 500
    assert watch.dead(499) == []
    assert watch.dead(500) == [liar]
