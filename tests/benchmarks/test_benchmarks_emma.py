"""The benchmark of EMMA's strategy runs, and its figures can be true: bytes of frames, which no machine changes."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.benches import Bench

from benchmarks import emma


def test_lists_are_weighed_against_comparing_sets(tmp_path: Path) -> None:
    shown = Bench("emma").tables(tmp_path, "--quick", "--strict", "--json")
    assert list(shown) == ["Control", "Acknowledgements"]
    assert [(row["held"], row["new"]) for row in shown["Control"]] == [(100, 0), (100, 1), (100, 10), (100, 100)]
    for row in shown["Control"]:
        assert row["times"] == pytest.approx(row["anti-entropy bytes"] / row["exchange bytes"])
        assert 8 < row["list bytes a message"] <= 8.5
        assert row["met"]
    assert [row["messages acknowledged"] for row in shown["Acknowledgements"]] == [1, 100]
    assert all(20 < row["bytes"] <= 40 for row in shown["Acknowledgements"])


@pytest.mark.soak
def test_acknowledgements_of_ten_thousand_messages_take_no_more_bytes() -> None:
    assert 20 < emma.acknowledgements(emma.ACKNOWLEDGED[-1]) <= emma.ACKNOWLEDGEMENTS_GOAL
