"""Acknowledgements name the frames that arrived and nothing else, whatever their order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from carrypost.gossip.transfers.inbox import AckTracker
from carrypost.gossip.wire.frames import Ack

SERIALS = st.one_of(st.integers(0, 40), st.integers(0, 9_000))
RUNS = st.builds(lambda first, count: list(range(first, first + count)), SERIALS, st.integers(1, 70))
BURSTS = st.one_of(RUNS, st.lists(SERIALS, min_size=1, max_size=8))


def named(acks: list[Ack]) -> set[int]:
    return {ack.base + at for ack in acks for at in range(8 * len(ack.bitmap)) if ack.bitmap[at // 8] >> at % 8 & 1}


@given(st.lists(st.tuples(BURSTS, st.booleans()), max_size=12))
def test_serials_noted_together_are_acknowledged_as_if_they_came_one_by_one(
    bursts: list[tuple[list[int], bool]],
) -> None:
    together, singly = AckTracker(), AckTracker()
    for serials, reported in bursts:
        earlier = [ack for serial in serials for ack in singly.note([serial])]
        assert together.note(serials) == earlier
        assert together.count == singly.count
        if reported:
            assert together.report() == singly.report()


@given(st.lists(BURSTS, min_size=1, max_size=12))
def test_everything_that_came_is_acknowledged_and_nothing_else(bursts: list[list[int]]) -> None:
    receipts = AckTracker()
    acks: list[Ack] = []
    for serials in bursts:
        acks += receipts.note(serials)
        acks.append(receipts.report())
    assert named(acks) == {serial for serials in bursts for serial in serials}


def test_a_gap_that_a_repetition_makes_up_for_in_number_stays_a_gap() -> None:
    receipts = AckTracker()
    receipts.note([10])
    receipts.note([20, 20, 22])
    receipts.note([32, 30, 34])
    assert named([receipts.report()]) == {10, 20, 22, 30, 32, 34}
