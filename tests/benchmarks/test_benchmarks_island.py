"""The benchmark of the island runs, and its figures can be true: bytes of frames and virtual time."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.benches import Bench


def test_the_island_is_weighed_against_olsr(tmp_path: Path) -> None:
    shown = Bench("island").tables(tmp_path, "--quick", "--json")
    assert list(shown) == ["Bytes", "Changes"]
    by_kind = {(row["motion"], row["security"]): row for row in shown["Bytes"]}
    assert len(by_kind) == 4
    for row in by_kind.values():
        assert row["times"] == pytest.approx(row["island B/s"] / row["OLSR B/s"])
        assert row["island B/s"] > 0
        assert row["OLSR B/s"] >= 12
    assert by_kind["still", "off"]["link changes a host and minute"] == 0
    assert by_kind["still", "off"]["times"] < by_kind["moving", "off"]["times"] < by_kind["moving", "signed"]["times"]
    assert {row["loss"] for row in shown["Changes"]} == {0.0, 0.1}
    assert all(row["changes"] + row["nothing to say"] == 4 for row in shown["Changes"])
