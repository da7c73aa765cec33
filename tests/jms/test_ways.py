"""The same text gives the same answers, in every way that a program can reach a node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.support.ways import Play, drawn, ways


def compare(seed: int, opened: Mapping[str, Play]) -> list[object]:
    """Play the program of a seed in every way; return the answers that all of them gave."""
    program = drawn(seed)
    (first, play), *others = opened.items()
    expected = play(program, f"p{seed}")
    for at, (name, other) in enumerate(others):
        answers = other(program, f"p{seed}.{at}")
        for number, (step, theirs, ours) in enumerate(zip(program, expected, answers, strict=True)):
            assert ours == theirs, f"seed {seed}, call {number} {step}: {first} answers {theirs}, {name} {ours}"
    return expected


def test_a_random_program_gives_the_same_answers_in_every_way(tmp_path: Path) -> None:
    with ways(tmp_path) as opened:
        for seed in (1, 2):
            kinds = Counter(type(answer).__name__ for answer in compare(seed, opened))
            assert kinds["tuple"] > 15, "messages are sent and received"
            assert kinds["str"] > 0, "some calls raise"


@pytest.mark.soak
@pytest.mark.parametrize("first", range(0, 300, 30))
def test_many_random_programs_do(first: int, tmp_path: Path) -> None:
    with ways(tmp_path) as opened:
        for seed in range(first, first + 30):
            compare(seed, opened)
