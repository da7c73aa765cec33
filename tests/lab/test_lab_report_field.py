"""`lab report` of the records of real nodes: who met whom, what was carried, delays."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from carrypost.cli.app import run
from carrypost.lab.metrics.records import Source
from carrypost.lab.report.field import FieldTest

T0 = 1_795_000_000.0
IDS = {name: f"{name}node{'x' * 20}" for name in ("anna", "bus", "carl")}


def row(t: float, node: str, kind: str, **more: object) -> dict[str, object]:
    named = {key: IDS.get(str(value), value) for key, value in more.items()}
    return {"run": f"node/{IDS[node]}", "t": T0 + t, "kind": kind, "node": IDS[node]} | named


def message(name: str, source: str) -> dict[str, object]:
    return {"message": name, "source": source, "size": 7}


HELLO, NEWS, OWN = message("hello", "anna"), message("news", "anna"), message("ID:own", "carl")
ROWS = {
    "anna": [
        row(0, "anna", "join"),
        row(1, "anna", "publish", **HELLO, attrs={"destination": "topic/village"}),
        row(10, "anna", "up", peer="bus"),
        row(20, "anna", "down", peer="bus"),
        row(30, "anna", "publish", **NEWS, attrs={"destination": "topic/village"}),
        row(99, "anna", "leave"),
    ],
    "bus": [
        row(0, "bus", "join"),
        row(9, "bus", "up", peer="anna"),
        row(11, "bus", "receive", **HELLO, hops=1, peer="anna"),
        row(19, "bus", "down", peer="anna"),
        row(40, "bus", "up", peer="carl"),  # It is killed: there is no `down`.
        row(45, "bus", "traffic", size=1234, detail="Offer"),
    ],
    "carl": [
        row(0, "carl", "join"),
        row(2, "carl", "publish", **OWN, attrs={"destination": "directory/x"}),
        row(41, "carl", "receive", **HELLO, hops=2, peer="bus"),
        row(43, "carl", "deliver", **HELLO),
        row(50, "carl", "deliver", **HELLO, detail="redelivered"),
    ],
}


@pytest.fixture
def records(tmp_path: Path) -> Path:
    folder = tmp_path / "walk"
    folder.mkdir()
    for name, rows in ROWS.items():
        (folder / f"{name}.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in rows), encoding="utf-8")
    (folder / "names.json").write_text(json.dumps({IDS["anna"]: "Anna", IDS["bus"]: "Bus 7"}), encoding="utf-8")
    return folder


def test_contacts_are_what_either_side_saw_and_end_with_a_node_that_was_killed(records: Path) -> None:
    test = FieldTest(records)
    found = {tuple(map(test.name, pair)): spans for pair, spans in test.contacts.items()}
    assert found == {("Anna", "Bus 7"): [(T0 + 9, T0 + 20)], ("Bus 7", "carlno"): [(T0 + 40, T0 + 45)]}


def test_messages_of_programs_have_their_carriers_and_those_of_nodes_are_left_out(records: Path) -> None:
    hello, news = FieldTest(records).messages.values()
    assert hello.carriers == {IDS["bus"]}
    assert hello.received_s == {IDS["bus"]: T0 + 11, IDS["carl"]: T0 + 41}
    assert (hello.hops, hello.delivered) == (2, {IDS["carl"]})
    assert not news.received_s


def test_a_folder_of_records_gets_a_page(records: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = records.parent / "page.html"
    assert run(["lab", "report", str(records), "--out", str(page), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["nodes"], told["contacts"], told["messages"]) == (3, 2, 2)
    text = re.sub(r"<[^>]+>", " ", page.read_text(encoding="utf-8"))
    words = " ".join(text.split())
    assert "3 nodes met 2 times, in 2 pairs. 1 of 2 messages reached another node, 1 of them over a carrier." in words
    assert "Anna – Bus 7 1 11" in words
    assert "hello Anna 1" in words
    assert "1,234" in words
    assert "Figure 2" in words
    assert (records.parent / "page-figures" / "figure-1.csv").is_file()


def test_records_of_an_emulated_run_are_not_a_field_test(records: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for file in records.glob("*.jsonl"):
        file.write_text(file.read_text(encoding="utf-8").replace("node/", "three/default/"), encoding="utf-8")
    assert run(["lab", "report", str(records), "--out", str(records.parent / "page.html")]) == 2
    assert "has neither a campaign nor records of real nodes" in " ".join(capsys.readouterr().err.split())


def test_a_node_whose_messages_come_from_others_alone_gets_a_page(records: Path) -> None:
    for name in ("anna", "bus"):
        (records / f"{name}.jsonl").unlink()
    page = records.parent / "page.html"
    assert run(["lab", "report", str(records), "--out", str(page)]) == 0
    words = " ".join(re.sub(r"<[^>]+>", " ", page.read_text(encoding="utf-8")).split())
    assert "Records of 1 real node" in words
    assert "reception to delivery 1 2 s" in words
    assert "publication to reception" not in words


def test_clocks_that_are_a_day_apart_give_times_that_people_can_read(records: Path) -> None:
    file = records / "bus.jsonl"
    rows = [each | {"t": float(str(each["t"])) - 86_400} for each in ROWS["bus"]]
    file.write_text("".join(f"{json.dumps(each)}\n" for each in rows), encoding="utf-8")
    page = records.parent / "page.html"
    assert run(["lab", "report", str(records), "--out", str(page)]) == 0
    words = " ".join(re.sub(r"<[^>]+>", " ", page.read_text(encoding="utf-8")).split())
    assert "\u221223 h 59 min 50 s" in words
    assert "Delays below 0" in words
    assert "e+0" not in words


def test_a_record_that_is_cut_short_is_used_and_the_rest_is_counted(
    records: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = records / "anna.jsonl"
    file.write_bytes(file.read_bytes()[:-20])
    assert run(["lab", "report", str(records), "--out", str(records.parent / "page.html")]) == 0
    assert "1 line without a row of a record skipped" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "has no row of a record: its files are empty"),
        ('{"run": "no', "has no row of a record: 1 line is something else"),
    ],
)
def test_a_folder_without_a_row_is_refused(
    tmp_path: Path, content: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.jsonl").write_text(content, encoding="utf-8")
    assert run(["lab", "report", str(tmp_path), "--out", str(tmp_path / "page.html")]) == 2
    assert said in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "page.html").exists()


def test_a_damaged_file_is_named(records: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows, _ = Source.find(records).read()
    folder = records.parent / "tables"
    folder.mkdir()
    pq.write_table(rows, folder / "a.parquet")
    data = bytearray((folder / "a.parquet").read_bytes())
    data[4:300] = bytes(296)  # The first pages; the end of the file tells what is in it.
    (folder / "a.parquet").write_bytes(data)
    assert run(["lab", "report", str(folder), "--out", str(records.parent / "page.html")]) == 1
    assert "a.parquet cannot be read as a table of records" in " ".join(capsys.readouterr().err.split())
