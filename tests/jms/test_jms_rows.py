"""Every row of the checklist that this part of JMS has to fulfil has a test named by its number."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

DEMANDED = {*range(1, 62), *range(63, 73), *range(74, 86), 87, 88, *range(90, 96), *range(97, 104)}
FILES = sorted(path.stem for path in Path(__file__).parent.glob("test_jms_rows_*.py"))


def rows_in(stem: str) -> set[int]:
    """Return the rows that tests of a file are named by."""
    names = vars(importlib.import_module(f"tests.jms.{stem}"))
    return {int(found[1]) for name in names if (found := re.match(r"test_row_(\d+)_", name))}


@pytest.mark.parametrize("stem", FILES)
def test_a_file_has_the_rows_that_it_says(stem: str) -> None:
    assert rows_in(stem) == set(importlib.import_module(f"tests.jms.{stem}").ROWS)


def test_every_row_has_a_test() -> None:
    assert set().union(*map(rows_in, FILES)) == DEMANDED
