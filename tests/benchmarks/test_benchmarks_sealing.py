"""The benchmark of sealed messages runs, shows every table, and its figures can be true. Its speed is not tested."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.benches import Bench


@pytest.mark.soak
def test_sealed_messages_are_weighed_against_plain_ones(tmp_path: Path) -> None:
    shown = Bench("sealing").tables(tmp_path, "--quick", "--json", progress=True)
    assert list(shown) == ["small", "large", "air", "carry", "packets", "charter"]
    for row in [each for rows in shown.values() for each in rows]:
        assert row["times"] > 0
        assert row["met"] is (row["times"] <= row["goal"])
    for row in shown["air"]:
        assert row["sealed B"] > row["plain B"] > 1_000
