"""How many examples Hypothesis tries where a test has a number of its own."""

from __future__ import annotations

from hypothesis import settings

LONG = 200
"""A profile with more examples than this searches for long."""


def examples(count: int, *, stateful_step_count: int = 50) -> settings:
    """So many examples; those of the profile where that searches for long, as `soak` and `more` do."""
    profile = settings().max_examples
    found = max(count, profile) if profile > LONG else count
    return settings(max_examples=found, stateful_step_count=stateful_step_count)
