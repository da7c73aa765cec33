from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carrypost.gossip.slots import Slots, bits, mask_of


def test_slots_are_taken_from_zero_upwards() -> None:
    slots = Slots()
    assert slots.allocate(4) == [0, 1, 2, 3]


def test_the_lowest_free_slot_is_taken_first() -> None:
    slots = Slots()
    for _ in range(5):
        slots.allocate()
    for slot in (3, 0, 4):
        slots.release(slot)
    assert slots.allocate(4) == [0, 3, 4, 5]


@given(st.lists(st.integers(min_value=0, max_value=9), max_size=80))
def test_no_slot_has_two_tenants(choices: list[int]) -> None:
    slots, taken, high = Slots(), list[int](), 0
    for choice in choices:
        if choice < 6 or not taken:
            (slot,) = slots.allocate()
            assert slot == min(set(range(len(taken) + 1)) - set(taken))
            taken.append(slot)
            high = max(high, len(taken))
            assert max(taken) < high
        else:
            slots.release(taken.pop(choice % len(taken)))


@pytest.mark.parametrize(
    ("mask", "slots"),
    [
        (0, []),
        (1, [0]),
        (0b1011, [0, 1, 3]),
        (1 << 63, [63]),
        (1 << 64, [64]),
        (1 << 9_999 | 1, [0, 9_999]),
        ((1 << 200) - 1, list(range(200))),
    ],
)
def test_bits_lists_the_slots_in_ascending_order(mask: int, slots: list[int]) -> None:
    assert list(bits(mask)) == slots
    assert mask_of(slots) == mask


@given(st.sets(st.integers(min_value=0, max_value=20_000), max_size=60))
def test_bits_and_mask_of_are_each_other_s_inverse(slots: set[int]) -> None:
    assert mask_of(slots) == sum(1 << slot for slot in slots)
    assert list(bits(mask_of(slots))) == sorted(slots)
