"""The record of a real node: files are complete once they have their name, and rows describe what happened."""

from __future__ import annotations

import asyncio
import logging
import re
import resource
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from benchmarks._direct import Direct
from tests.support.loopback import apart
from tests.support.node_programs import Programs
from tests.support.nodes import QUICK, scene

from carrypost.errors import ConfigError, StateError
from carrypost.log.events import Delivery
from carrypost.log.record import Kind, Record
from carrypost.node.records import Archive
from carrypost.node.runtime import Node
from carrypost.node.settings import RecordSettings, parse

NAME = re.compile(r"anna-\d{8}T\d{6}-\d+-\d{6}\.jsonl")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time in seconds that the archive sees."""
    now_s = [1_000.0]
    monkeypatch.setattr("time.monotonic", lambda: now_s[0])
    return now_s


def archive(folder: Path, node: str = "anna", **settings: object) -> Archive:
    return Archive(folder, node, "run", RecordSettings(**settings))  # type: ignore[arg-type]


def tell(made: Archive, *times_s: int) -> None:
    for t in times_s:
        made.record.add(Kind.JOIN, t * 1_000_000, "anna")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def times(*files: Path) -> list[int]:
    record = Record.from_json_lines(line for file in files for line in file.read_bytes().splitlines())
    return [us // 1_000_000 for us in record.t_us]


@contextmanager
def files_up_to(nbytes: int) -> Iterator[None]:
    """No file can be longer than this, as on a disk that is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_rows_are_appended_and_the_file_gets_its_name_at_the_end(tmp_path: Path) -> None:
    made = archive(tmp_path / "deep" / "records")
    folder = tmp_path / "deep" / "records"
    made.flush()
    assert names(folder) == []
    tell(made, 1, 2)
    made.flush()
    (part,) = names(folder)
    assert NAME.fullmatch(part.removesuffix(".part"))
    tell(made, 3)
    made.flush()
    assert names(folder) == [part]
    tell(made, 4)
    made.flush(final=True)
    assert names(folder) == [part.removesuffix(".part")]
    assert times(folder / part.removesuffix(".part")) == [1, 2, 3, 4]
    assert made.lost == 0
    made.flush(final=True)
    assert len(names(folder)) == 1


@pytest.mark.usefixtures("clock")
def test_a_long_file_is_ended_and_another_begun(tmp_path: Path) -> None:
    made = archive(tmp_path, rotate_bytes=1024)
    for t in range(100):
        tell(made, t)
        made.flush()
    made.flush(final=True)
    files = sorted(tmp_path.iterdir())
    assert len(files) > 3
    assert all(NAME.fullmatch(file.name) for file in files)
    assert all(1024 <= file.stat().st_size < 1200 for file in files[:-1])
    assert times(*files) == list(range(100))


def test_an_old_file_is_ended_also_if_nothing_happens(tmp_path: Path, clock: list[float]) -> None:
    made = archive(tmp_path, rotate_s=5)
    tell(made, 1)
    made.flush()
    clock[0] += 4.9
    made.flush()
    assert names(tmp_path)[0].endswith(".part")
    clock[0] += 0.1
    made.flush()
    assert NAME.fullmatch(names(tmp_path)[0])
    clock[0] += 100
    made.flush()
    tell(made, 2)
    made.flush()
    assert len(names(tmp_path)) == 2, "the new file is as young as its first row"


@pytest.mark.usefixtures("clock")
def test_only_so_many_files_are_kept_and_only_own_ones_go(tmp_path: Path) -> None:
    other = archive(tmp_path, "anna-b", rotate_bytes=1024)
    for t in range(60):
        tell(other, t)
        other.flush()
    others = {name for name in names(tmp_path) if name.startswith("anna-b")}
    (tmp_path / "anna-notes.jsonl").write_text("mine")
    made = archive(tmp_path, rotate_bytes=1024, files_max=3)
    assert {name for name in names(tmp_path) if name.startswith("anna-b")} == others
    for t in range(200):
        tell(made, t)
        made.flush()
    made.flush(final=True)
    own = sorted(path for path in tmp_path.iterdir() if NAME.fullmatch(path.name))
    assert len(own) == 3
    kept = times(*own)
    assert kept == list(range(kept[0], 200))
    assert others | {"anna-notes.jsonl"} == set(names(tmp_path)) - {path.name for path in own}


@pytest.mark.parametrize("rest", [b"", b'{"run":"run","t":3.0,"ki', b"\xff\xfe"])
def test_what_a_killed_predecessor_left_is_completed(tmp_path: Path, rest: bytes) -> None:
    killed = archive(tmp_path)
    tell(killed, 1, 2)
    killed.flush()
    (part,) = tmp_path.iterdir()
    with part.open("ab") as file:
        file.write(rest)
    archive(tmp_path)
    (whole,) = tmp_path.iterdir()
    assert whole == part.with_suffix("")
    assert times(whole) == [1, 2]


def test_what_has_no_whole_row_is_not_kept(tmp_path: Path) -> None:
    killed = archive(tmp_path)
    tell(killed, 1)
    killed.flush()
    (part,) = tmp_path.iterdir()
    part.write_bytes(part.read_bytes()[:-1])
    archive(tmp_path)
    assert names(tmp_path) == []


def test_a_folder_that_can_no_longer_be_written_costs_rows_and_is_told_once_and_when_it_is_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = archive(tmp_path / "records")
    (tmp_path / "records").rmdir()
    (tmp_path / "records").write_text("mine")
    for t in range(5):
        tell(made, t)
        made.flush()
    made.flush(final=True)
    assert made.lost == 5
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "cannot be written: File exists; the node continues without it" in caplog.records[-1].getMessage()
    (tmp_path / "records").unlink()
    tell(made, 5)
    made.flush(final=True)
    assert made.lost == 5
    assert times(*(tmp_path / "records").iterdir()) == [5]
    assert [record.getMessage() for record in caplog.records[1:]] == [
        f"the record in {tmp_path / 'records'} can be written again; 5 rows are missing"
    ]


def test_a_folder_that_cannot_be_written_at_the_start_is_refused_unless_the_disk_is_full(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("mine")
    for folder in ("file", "file/records"):
        with pytest.raises(ConfigError, match=rf"the record cannot be written to .*{folder}"):
            archive(tmp_path / folder)
    made = archive(tmp_path / "records")
    tell(made, 1)
    with files_up_to(10):
        made.begin()
    assert (made.lost, len(made.record)) == (1, 0)
    assert [record.getMessage().partition(": ")[2] for record in caplog.records] == [
        "File too large; the node continues without it"
    ]


def test_a_full_disk_costs_rows_but_never_half_of_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made = archive(tmp_path)
    tell(made, 1)
    made.flush()
    (part,) = tmp_path.iterdir()
    with files_up_to(part.stat().st_size + 10):
        for _ in range(2):
            tell(made, 2, 3)
            made.flush()
    assert made.lost == 4
    tell(made, *range(10, 1_000))
    made.flush(final=True)
    assert times(part.with_suffix("")) == [1, *range(10, 1_000)]
    told, over = caplog.records
    assert told.getMessage().partition(": ")[2] == "File too large; the node continues without it"
    assert over.getMessage().endswith(" can be written again; 4 rows are missing")


def test_somebody_may_tidy_up_while_the_node_runs(tmp_path: Path) -> None:
    made = archive(tmp_path / "records")
    tell(made, 1)
    made.flush()
    for file in (tmp_path / "records").iterdir():
        file.unlink()
    (tmp_path / "records").rmdir()
    tell(made, 2)
    made.flush(final=True)
    assert times(*(tmp_path / "records").iterdir()) == [2]
    assert made.lost == 0


# --- of real nodes ----------------------------------------------------------------------------------------------------


async def until(condition: Callable[[], object], patience_s: float = 20.0) -> None:
    deadline_s = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline_s
        await asyncio.sleep(0.01)


@scene
async def test_the_record_of_two_real_nodes_tells_what_happened_in_order(tmp_path: Path) -> None:
    udp = apart()

    def node(name: str) -> Node:
        record = {"folder": str(tmp_path / "records"), "sample_s": 0.1, "rotate_bytes": 1024}
        place = {"data": str(tmp_path / name), "name": name}
        return Node(parse("", {}, {**QUICK, "security": "off", "udp": udp, "node": place, "record": record}))

    async with node("a") as a, node("a-b") as b, Programs(a).context() as here, Programs(b).context() as there:
        reader = await there.create_consumer("topic/news")
        await until(lambda: [each.state for each in a.host.overview().neighbours] == ["linked"])
        for number in range(5):
            await here.send("topic/news", str(number))
        for _ in range(5):
            got = await reader.receive(timeout=20)
            assert got is not None
            await got.acknowledge()
        await until(lambda: min(a.uptime_s, b.uptime_s) > 0.4)  # long enough for samples in between
    files = sorted((tmp_path / "records").iterdir())
    assert all(file.suffix == ".jsonl" for file in files)
    records = {
        name: Record.from_json_lines(
            line for file in files if file.name.startswith(f"{name}-2") for line in file.read_bytes().splitlines()
        )
        for name in ("a", "a-b")
    }
    rows = {name: list(record.rows()) for name, record in records.items()}
    for name, own in rows.items():
        assert [row["kind"] for row in own[:2]] == ["run", "join"]
        assert own[-1]["kind"] == "leave"
        assert {row["node"] for row in own} == {name}
        assert {row["run"] for row in own} == {f"node/{name}"}
        assert {row["kind"] for row in own} <= set(Kind)
        assert [row["t"] for row in own] == sorted(row["t"] for row in own)
        assert {row["detail"] for row in own if row["kind"] == "traffic"} >= {"Announce"}
        assert sum(row["kind"] == "registry" for row in own) > 1
    told = rows["a"][0]["attrs"]
    assert told is not None
    assert told["security"] == "off"
    moments = {(row["kind"], row["message"]): row["t"] for own in rows.values() for row in own if row["message"]}
    published = [row["message"] or "" for row in rows["a"] if row["kind"] == "publish"]
    assert len(published) == 5
    for message in published:
        assert moments["publish", message] <= moments["receive", message] <= moments["deliver", message]
    for kind in ("receive", "deliver"):
        messages = [row["message"] for row in rows["a-b"] if row["kind"] == kind]
        assert len(messages) == 5
        assert set(messages) == set(published)
        assert not [row for row in rows["a"] if row["kind"] == kind]
    (up,) = [row for row in rows["a"] if row["kind"] == "up"]
    assert up["peer"] == "a-b"


@scene
async def test_the_row_of_a_publication_comes_before_those_of_what_it_sets_off(tmp_path: Path) -> None:
    settings = {"udp": apart(), "node.data": str(tmp_path / "n"), "record.folder": str(tmp_path / "records")}
    async with Node(parse("", {}, settings | {"cache_messages_max": 1, "messaging.enabled": False})) as node:
        got: list[Delivery] = []
        direct = Direct(node, got.extend)
        node.attach(direct.handlers)
        direct.subscribe("news")
        await direct.publish("news", b"x", label="first")
        await until(lambda: got)
        with pytest.raises(StateError, match="the cache is full"):
            await direct.publish("news", b"x", label="never")
        await direct.confirm(got)  # Now it may give way.
        await direct.publish("news", b"x", label="second")
        await until(lambda: len(got) == 2)
    lines = [line for file in (tmp_path / "records").iterdir() for line in file.read_bytes().splitlines()]
    assert [(row["kind"], row["message"]) for row in Record.from_json_lines(lines).rows() if row["message"]] == [
        ("publish", "first"), ("deliver", "first"), ("publish", "second"), ("drop", "first"), ("deliver", "second"),
    ]  # fmt: skip


@scene
async def test_a_node_whose_record_can_no_longer_be_written_works(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place = tmp_path / "place"
    record = {"folder": str(place / "records"), "sample_s": 0.1}
    async with (
        Node(parse("", {}, {"udp": apart(), "node.data": str(tmp_path / "n"), "record": record})) as node,
        Programs(node).context() as ctx,
    ):
        shutil.rmtree(place)
        place.write_text("mine")
        await ctx.send("topic/news", b"")
        assert node.chronicle is not None
        await until(lambda: node.chronicle is not None and node.chronicle.archive.lost)
    assert any("cannot be written: Not a directory" in record.getMessage() for record in caplog.records)
