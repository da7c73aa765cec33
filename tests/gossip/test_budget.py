"""Token buckets."""

from __future__ import annotations

import pytest

from carrypost.gossip.transfers.accounts import Budget

SECOND = 1_000_000


def test_a_budget_gives_what_was_saved_up_and_then_its_rate() -> None:
    budget = Budget(10, burst_s=2)
    assert sum(budget.try_spend(1, 0) for _ in range(100)) == 20
    assert sum(budget.try_spend(1, now) for now in range(0, 10 * SECOND, SECOND // 100)) == pytest.approx(100, abs=2)


def test_savings_have_a_limit() -> None:
    budget = Budget(10, burst_s=2)
    assert sum(budget.try_spend(1, 3_600 * SECOND) for _ in range(1_000)) == 20


def test_something_larger_than_the_whole_budget_passes_a_full_one_and_is_paid_for() -> None:
    budget = Budget(10, burst_s=2)
    assert budget.try_spend(50, 0)
    assert not budget.try_spend(1, 0)
    assert not budget.try_spend(1, 3 * SECOND - 1)
    assert budget.try_spend(1, 4 * SECOND)


def test_a_refusal_costs_nothing() -> None:
    budget = Budget(10, burst_s=1)
    assert budget.try_spend(6, 0)
    assert not budget.try_spend(6, 0)
    assert budget.try_spend(4, 0)


def test_a_debt_has_to_be_paid_before_anything_is_given() -> None:
    budget = Budget(10, burst_s=1)
    budget.spend(30, 0)
    assert not budget.try_spend(0, 0)
    assert not budget.try_spend(0, SECOND)
    assert budget.try_spend(0, 2 * SECOND + 1)


def test_a_clock_that_stands_still_gives_nothing_new() -> None:
    budget = Budget(10, burst_s=1)
    assert budget.try_spend(10, 5 * SECOND)
    assert not budget.try_spend(1, 5 * SECOND)
    assert not budget.try_spend(1, 4 * SECOND)
