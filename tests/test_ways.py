"""The same text gives the same answers, in every way that a program can reach a node."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from tests.ways import WAYS, drawn


def compare(seed: int, folder: Path) -> list[object]:
    """Play the program of a seed in every way; return the answers that all of them gave."""
    program = drawn(seed)
    (first, play), *others = WAYS.items()
    expected = play(program, folder)
    for name, other in others:
        answers = other(program, folder)
        for number, (step, theirs, ours) in enumerate(zip(program, expected, answers, strict=True)):
            assert ours == theirs, f"seed {seed}, call {number} {step}: {first} answers {theirs}, {name} {ours}"
    return expected


@pytest.mark.parametrize("seed", [1, 2])
def test_a_random_program_gives_the_same_answers_in_every_way(seed: int, tmp_path: Path) -> None:
    answers = compare(seed, tmp_path)
    kinds = Counter(type(answer).__name__ for answer in answers)
    assert kinds["tuple"] > 15, "messages are sent and received"
    assert kinds["str"] > 0, "some calls raise"


@pytest.mark.soak
@pytest.mark.parametrize("first", range(0, 300, 30))
def test_many_random_programs_do(first: int, tmp_path: Path) -> None:
    for seed in range(first, first + 30):
        folder = tmp_path / str(seed)
        folder.mkdir()
        compare(seed, folder)
