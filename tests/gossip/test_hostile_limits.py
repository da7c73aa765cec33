"""Limits at their smallest: no input of peers or programs raises out of a host."""

from __future__ import annotations

import dataclasses

import pytest
from tests.support.scrambled import Scrambled

from carrypost.config import Limits


@pytest.mark.parametrize("seed", range(4))
def test_nothing_raises_where_little_is_allowed(seed: int) -> None:
    Scrambled(seed).play(40)


@pytest.mark.parametrize("seed", range(2))
def test_nothing_raises_with_every_limit_at_its_smallest(seed: int) -> None:
    fields = dataclasses.fields(Limits)
    smallest = {each.name: each.metadata["rule"].kind.__metadata__[0].ge for each in fields}
    # It has to hold the largest profile and the largest descriptor.
    smallest["descriptor_buffer_bytes_max"] = 1_024
    Scrambled(seed, limits=smallest).play(40)


@pytest.mark.soak
@pytest.mark.parametrize("first", range(100, 3_100, 100))
def test_nothing_raises_where_little_is_allowed_for_long(first: int) -> None:
    for seed in range(first, first + 100):
        try:
            Scrambled(seed).play(150)
        except Exception as error:
            error.add_note(f"Scrambled({seed}).play(150)")
            raise
