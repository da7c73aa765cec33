"""Numbers of Hypothesis examples that differ from the profile's, and cases that only `make soak` runs."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from _pytest.mark import ParameterSet
from hypothesis import settings

LONG = 200
"""A profile with more examples than this searches for long."""


def examples(count: int, *, stateful_step_count: int = 50) -> settings:
    """Return settings for this many examples; for profiles that search for long, such as `soak` and `more`, theirs."""
    profile = settings().max_examples
    found = max(count, profile) if profile > LONG else count
    return settings(max_examples=found, stateful_step_count=stateful_step_count)


def soaked(cases: Iterable[object]) -> list[ParameterSet]:
    """Mark cases of a parametrised test as those that only `make soak` tries."""
    return [pytest.param(each, marks=pytest.mark.soak) for each in cases]
