"""The benchmark of web pages runs, and its figures can be true. Speed is not tested."""

from __future__ import annotations

from pathlib import Path

from benchmarks import _web_live, web


def test_questions_are_compared_with_reading(tmp_path: Path) -> None:
    rows = {str(row["question"]): row for row in web.server_rows(web.crowd(tmp_path, quick=True))}
    assert set(rows) == {"open", "copies", "node", "why", "10 s of rows"}
    assert int(str(rows["open"]["rows"])) > 10_000
    assert rows["10 s of rows"]["rows"] == 200
    assert int(str(rows["10 s of rows"]["bytes"])) < 200_000


def test_lines_are_compared_with_decoding(tmp_path: Path) -> None:
    (row,) = web.line_rows(tmp_path, 2_000)
    assert row["lines"] == 2_000


def test_campaigns_are_compared_with_reading(tmp_path: Path) -> None:
    rows = list(_web_live.campaign_rows(tmp_path, quick=True))
    assert [str(row["unit"]) for row in rows] == ["times", "times"]
    assert all(float(str(row["value"])) > 0 for row in rows)
