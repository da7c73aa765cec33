"""Answers of the server: rows, nodes, samples, figures; questions that are wrong, and files that are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support.pages import Browser

from carrypost.emu.records import ARROW_SCHEMA
from carrypost.errors import CarrypostError
from carrypost.web.runs import EXAMPLE, Runs


def lines(*rows: dict[str, Any]) -> str:
    return "".join(msgspec.json.encode(row).decode() + "\n" for row in rows)


def row(t: float, kind: str, node: str, **more: object) -> dict[str, Any]:
    return {"t": t, "kind": kind, "node": node, **more}


ROWS = [
    row(0, "join", "a"),
    row(0, "join", "b"),
    row(1, "publish", "a", message="m", source="a", size=10, attrs={"destination": "x"}),
    row(2, "up", "a", peer="b"),
    row(2, "up", "b", peer="a"),
    row(3, "receive", "b", peer="a", message="m", source="a", hops=1),
    row(4, "refuse", "b", peer="10.0.0.1:7", detail="size", attrs={"count": "3"}),
    row(5, "drop", "b", message="m", source="a", detail="evicted"),
    row(6, "load", "b", size=1500),
    row(7, "path", "a", size=9, detail="network", attrs={"pairs": "4"}),
    row(8, "nothing we know", "b", detail="x"),
    row(9, "leave", "b"),
]


@pytest.fixture
def browser(tmp_path: Path) -> Browser:
    (tmp_path / "run.jsonl").write_text(lines(*ROWS))
    return Browser(tmp_path / "run.jsonl")


def test_rows_come_a_page_at_a_time_from_either_end(browser: Browser) -> None:
    answer = browser.api("/rows", limit=5)
    assert answer.columns["t"] == [0, 0, 1, 2, 2]
    assert answer.metadata == {"total": 12, "next": 4}
    assert browser.api("/rows", limit=5, after=4).columns["row"] == [5, 6, 7, 8, 9]
    assert browser.api("/rows", limit=3, last=1).columns["row"] == [9, 10, 11]
    assert browser.api("/rows", limit=20, last=1).columns["row"] == list(range(12))
    assert browser.api("/rows", kinds="up,drop", to=4).columns["row"] == [3, 4]
    assert browser.api("/rows", node="b", kinds="up").columns["row"] == [3, 4]
    assert browser.api("/rows", detail="EVICT").columns["row"] == [7]
    assert browser.api("/rows", message="m", from_=2).columns["kind"] == ["receive", "drop"]
    everything = browser.api("/rows", all=1).table
    assert (len(everything), everything.schema.names[-1]) == (12, "row")


def test_a_node_is_described_at_an_instant(browser: Browser) -> None:
    then = browser.api("/node", name="b", at=4).json
    assert then["holds"] == {"total": 1, "messages": [["m", 3]]}
    assert then["neighbours"] == [{"node": "a", "start": 2, "end": None, "label": None}] or then["neighbours"][0]["end"]
    assert then["refused"] == {"size": [3, 4]}
    assert then["dropped"] == {"evicted": [1, 5]}
    assert then["lives"] == [[0, 9]]
    assert then["cache"] == {"t": [3, 5], "size": [1, 0]}
    assert browser.api("/node", name="b", at=6).json["holds"]["total"] == 0
    assert "10.0.0.1:7" not in browser.api("").json["nodes"]


def test_samples_have_their_units(browser: Browser) -> None:
    assert browser.api("/samples", of="load").columns["value"] == [1.5]
    answer = browser.api("/samples", of="path", node="a")
    assert (answer.columns["value"], answer.metadata["labels"]) == ([2.25], ["network"])
    assert browser.api("/samples", of="traffic").columns["t"] == []


def test_figures_are_those_of_the_summary(browser: Browser) -> None:
    assert browser.api("/summary").json["published"] == 1


@pytest.mark.parametrize(
    ("path", "query", "status"),
    [
        ("/rows", {"limit": "1e9"}, 400),
        ("/rows", {"limit": 1_000_000}, 400),
        ("/rows", {"limit": 0}, 400),
        ("/rows", {"from_": "nan"}, 400),
        ("/rows", {"to": "-"}, 400),
        ("/rows", {"kinds": "nonsense"}, 404),
        ("/rows", {"node": "nobody"}, 404),
        ("/rows", {"message": "../m"}, 404),
        ("/rows", {"detail": "x" * 2_000}, 400),
        ("/tracks", {"from_": "inf"}, 400),
        ("/spans", {"of": "__proto__"}, 400),
        ("/samples", {"of": "nonsense"}, 400),
        ("/density", {"bins": 0}, 400),
        ("/density", {"bins": 1 << 40}, 400),
        ("/node", {}, 400),
        ("/node", {"name": "b", "at": "nan"}, 400),
        ("/copies", {"message": "none"}, 404),
        ("/nonsense", {}, 404),
    ],
)
def test_questions_that_cannot_be_answered_are_refused_in_one_sentence(
    browser: Browser, path: str, query: dict[str, object], status: int
) -> None:
    answer = browser.api(path, **query)
    assert answer.status == status
    if path != "/nonsense":
        assert len(answer.json["error"]) < 300
        assert "\n" not in answer.json["error"]


@pytest.mark.parametrize(
    "content",
    ["", "\n\n", "nonsense\n", '{"t": 1}\n', '{"t": "x"}\n{"kind": 5}\n', '{"t": 1e308, "kind": "join", "node": "a"}\n',
     '{"t":1,"kind":"join","node":"a"}\n{"t":2,"ki', '{"t":-5,"kind":"home","node":"a"}\n{"t":1,"kind":"contact"}\n'],
)  # fmt: skip
def test_lines_that_are_no_record_are_shown_as_far_as_they_go(tmp_path: Path, content: str) -> None:
    (tmp_path / "run.jsonl").write_text(content)
    browser = Browser(tmp_path / "run.jsonl")
    info = browser.api("").json
    assert info["rows"] in {0, 1, 2}
    for path in ("/rows", "/tracks", "/spans", "/density", "/messages", "/samples"):
        assert browser.api(path).status == 200


def test_clocks_that_differ_are_told(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(lines(row(9, "publish", "a", message="m", source="a")))
    (tmp_path / "b.jsonl").write_text(
        lines(row(7.5, "receive", "b", peer="a", message="m"), row(8, "receive", "c", peer="b", message="unknown"))
    )
    (note,) = Browser(tmp_path).api("").json["notes"]
    assert note.startswith("clocks of these nodes differ by 1.500 s or more")
    assert Browser(tmp_path / "a.jsonl").api("").json["notes"] == []


def test_rows_that_a_node_adds_are_there_and_half_a_line_waits(tmp_path: Path) -> None:
    file = tmp_path / "1.jsonl.part"
    file.write_text(lines(*ROWS[:3]) + '{"t":2,"kind":"up"')
    browser = Browser(tmp_path)
    run = next(iter(browser.runs))
    assert run.opened().scan.rows == 3
    with file.open("a") as more:
        more.write(',"node":"a","peer":"b"}\n')
    run._next_s = 0.0  # noqa: SLF001 - it looks again twice a second
    assert run.opened().scan.rows == 4


@pytest.mark.parametrize("cut", [4, 100, -20])
def test_damaged_parquet_is_refused_in_one_sentence(tmp_path: Path, cut: int) -> None:
    table = pa.Table.from_pylist(
        [{"run": "r", "t": 1.0, "kind": "join", "node": "a", "attrs": None} for _ in range(5)], ARROW_SCHEMA
    )
    pq.write_table(table, tmp_path / "whole.parquet")
    (tmp_path / "cut.parquet").write_bytes((tmp_path / "whole.parquet").read_bytes()[:cut])
    with pytest.raises(CarrypostError, match=r"cut\.parquet cannot be read as a record") as told:
        Runs([tmp_path / "cut.parquet"])
    assert "\n" not in str(told.value)


def test_groups_without_statistics_and_out_of_order_are_sorted(tmp_path: Path) -> None:
    rows = [{"run": "r", "t": float(9 - t), "kind": "join", "node": f"n{t}", "attrs": None} for t in range(10)]
    pq.write_table(
        pa.Table.from_pylist(rows, ARROW_SCHEMA), tmp_path / "r.parquet", row_group_size=3, write_statistics=False
    )
    assert Browser(tmp_path / "r.parquet").api("/rows").columns["t"] == [float(t) for t in range(10)]


def test_without_paths_records_here_and_one_below_are_found_and_an_example(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("", "nodes", ".hidden", "deep/er"):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / folder / "x.jsonl").write_text(lines(*ROWS))
    (tmp_path / "broken.parquet").write_text("nonsense")
    monkeypatch.setattr("carrypost.web.runs.EXAMPLE", EXAMPLE.replace("duration_s = 600", "duration_s = 30"))
    with Runs([], folder=tmp_path) as runs:
        found = {Path(each.source).name for each in runs.entries}
        assert found == {"x.jsonl", "nodes", "an example, emulated when it is opened"}
        assert runs.only is None
        *_, walkers = runs
        opened = walkers.opened()
        assert (len(opened.scan.names), opened.places.source) == (40, "mobility")
        scratch = opened.scan.source.path.parent
        assert scratch.is_dir()
    assert not scratch.exists()


def test_a_crowd_of_folders_is_found_as_far_as_fifty(tmp_path: Path) -> None:
    for number in range(60):
        (tmp_path / f"{number}.jsonl").write_text("")
    assert len(Runs([], folder=tmp_path).entries) == 51
