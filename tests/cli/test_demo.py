"""`carrypost demo`: its output comes from the nodes' records, and it ends in order, whatever happens."""

from __future__ import annotations

import asyncio
import io
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pexpect
import psutil
import pytest
import typer
from rich.console import Console
from tests.support.packages import Environment
from typer.core import TyperGroup

from carrypost.cli._options import Engine
from carrypost.cli.app import app, run
from carrypost.cli.demo import picture as ledger
from carrypost.cli.demo import scenes, stage
from carrypost.cli.demo.cast import Actor, Cast
from carrypost.cli.demo.picture import Ledger, Picture
from carrypost.cli.demo.scenes import Play
from carrypost.cli.demo.stage import COMMANDS, claimed

PATIENCE_S = 180
PROGRAM = "from carrypost.cli import main; main()"
THREE = """
from carrypost.cli import main
from carrypost.cli.demo import scenes
three = {name: settings for name, settings in scenes.nodes().items() if name in {"anna", "bert", "bus"}}
scenes.nodes = lambda: three
scenes.HOMES = {name: place for name, place in scenes.HOMES.items() if name in three}
main()
"""
"""The demonstration as far as three nodes do."""
MOMENTS = ("Starting six", "stops at Hill", "Emil comes home", "comes to Lake", "Emil, who has", "has sent: Where")
SCENES = ("1. A chat by bus", "2. A letter, Emil is away", "3. Forums, plain and causal", "4. A STOMP client")


def environment(place: Path) -> dict[str, str]:
    """Return an environment in which temporary folders are made in a place of this test."""
    (place / "tmp").mkdir(exist_ok=True)
    return {**os.environ, "TMPDIR": str(place / "tmp"), "CARRYPOST_SECURITY": "off"}  # Which is for the user's node.


def rows_of(folder: Path) -> list[dict[str, object]]:
    """Return all rows of all nodes, by time."""
    lines = (line for file in folder.glob("*.jsonl") for line in file.read_text().splitlines())
    return sorted(map(json.loads, lines), key=lambda row: row["t"])


def check_nothing_is_left(place: Path) -> None:
    """No process, and no folder of a node."""
    assert list((place / "tmp").iterdir()) == []
    for file in (place / "demo-record").glob("*.jsonl*"):
        assert not psutil.pid_exists(int(file.name.split("-")[-2])), file


def test_without_a_terminal_it_tells_the_story_in_lines_and_counts_what_was_recorded(
    installed: Environment, tmp_path: Path
) -> None:
    ran = subprocess.run(  # noqa: S603 - our own
        [installed.carrypost, "demo", "--quick"], cwd=tmp_path, env=environment(tmp_path),
        capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert (ran.returncode, ran.stderr) == (0, ""), ran.stdout
    assert "\x1b" not in ran.stdout
    told = [ran.stdout.index(f"\n{title}\n") for title in SCENES]
    assert told == sorted(told)
    for line in ("The bus loses power: kill -9", "anna  is told: DELIVERED", "stomp gets a MESSAGE", "Their records"):
        assert line in ran.stdout
    assert max(len(line) for line in ran.stdout.splitlines() if re.match(r" *\d+\.\d s ", line)) <= 80
    check_nothing_is_left(tmp_path)

    folder = tmp_path / "demo-record"
    assert list(folder.glob("*.part")) == []
    names = json.loads((folder / "demo.json").read_text())
    assert set(names.values()) == set(scenes.nodes())
    rows = rows_of(folder)
    labels = {row["message"] for row in rows if row["kind"] == "publish" and not str(row["message"]).startswith("ID:")}
    receipts = by_stomp = 1  # They have no labels.
    reads = sum(row["kind"] == "deliver" and row["node"] != row["source"] for row in rows)
    found = re.search(r"^all +(\d+) +(\d+) +(\d+) +[\d.]+ s +([\d,]+) +[\d.]+ kB *$", ran.stdout, re.MULTILINE)
    assert found is not None
    assert (int(found[1]), int(found[2])) == (len(labels) + receipts + by_stomp, reads)
    assert int(found[4].replace(",", "")) > 0
    bus = next(node for node, name in names.items() if name == "bus")
    assert sum(row["kind"] == "join" and row["node"] == bus for row in rows) == 2, "it was killed, and started again"
    carried = [row["message"] for row in rows if row["kind"] == "receive" and row["node"] == bus]
    assert "A-causal" in carried
    assert "Q-causal" not in carried


@contextmanager
def terminal(place: Path, columns: int, program: str = PROGRAM) -> Iterator[pexpect.spawn[str]]:
    """Yield the demonstration in a terminal, from the moment at which its picture is there."""
    child = pexpect.spawn(
        sys.executable, ["-c", program, "demo", "--quick"], cwd=str(place), env=environment(place),
        encoding="utf-8", codec_errors="replace",  # A terminal throws away what it has not shown when Ctrl-C comes.
        dimensions=(40, columns), timeout=PATIENCE_S,
    )  # fmt: skip
    try:
        child.expect(r"╭[─ ]+Hill village[─ ]+╮╭[─ ]+far from both[─ ]+╮╭[─ ]+Lake village[─ ]+╮")
        assert columns - 3 <= len(str(child.match[0])) <= columns
        yield child
    finally:
        child.close(force=True)


def interrupt(child: pexpect.spawn[str]) -> tuple[int, str]:
    """Press Ctrl-C; return the exit code and the output."""
    child.sendintr()
    said = str(child.read())
    child.close()
    return child.exitstatus, said


@pytest.mark.soak
def test_ctrl_c_ends_it_and_leaves_nothing(tmp_path: Path) -> None:
    with terminal(tmp_path, 140, THREE) as child:
        child.expect("The bus loses power")
        code, said = interrupt(child)
    assert code == 130
    assert "carrypost: ended early; all nodes have ended" in said
    check_nothing_is_left(tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("moment", MOMENTS)
def test_ctrl_c_ends_it_at_any_scene(tmp_path: Path, moment: str) -> None:
    with terminal(tmp_path, 80) as child:
        child.expect(moment)
        code, _ = interrupt(child)
    assert code == 130
    check_nothing_is_left(tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("columns", [80, 140])
def test_in_a_terminal_it_plays_all_scenes(tmp_path: Path, columns: int) -> None:
    with terminal(tmp_path, columns) as child:
        for title in (*SCENES, "To try it yourself"):
            child.expect_exact(title)
        child.expect(pexpect.EOF)
        child.close()
        assert child.exitstatus == 0
    check_nothing_is_left(tmp_path)


# --- the picture -----------------------------------------------------------------------------------------------------

LINES = """
{"run":"r","t":1.0,"kind":"up","node":"A","peer":"B"}
{"run":"r","t":1.1,"kind":"up","node":"B","peer":"A"}
{"run":"r","t":1.2,"kind":"up","node":"B","peer":"C"}
{"run":"r","t":1.3,"kind":"receive","node":"B","peer":"A","message":"hello","source":"A","hops":1,"size":5}
{"run":"r","t":1.4,"kind":"publish","node":"A","message":"hello","source":"A","size":5,"attrs":{"destination":"topic/x"}}
{"run":"r","t":1.5,"kind":"receive","node":"B","peer":"A","message":"old","source":"A","hops":1,"size":5}
{"run":"r","t":1.6,"kind":"drop","node":"B","message":"old","source":"A","size":5,"detail":"purged"}
{"run":"r","t":1.7,"kind":"publish","node":"A","message":"ID:x","source":"A","size":0,"attrs":{"destination":"control/B"}}
{"run":"r","t":1.8,"kind":"up","node":"A"
"""


def recorded(folder: Path) -> Ledger:
    (folder / "A.jsonl.part").write_text(LINES.strip())
    made = Ledger(folder)
    made.names = {"A": "anna", "B": "bert", "C": "carl"}
    return made


def test_the_ledger_reads_whole_rows_only_and_puts_nothing_before_the_publication(tmp_path: Path) -> None:
    read = recorded(tmp_path)
    rows = read.read()
    assert [row["kind"] for row in rows if row["message"] == "hello"] == ["publish", "receive"]
    assert (read.reached("anna"), read.reached("bert"), read.reached("carl")) == (["bert"], ["anna"], [])
    assert (read.holds["anna"], read.holds["bert"]) == (["hello", "receipt"], ["hello"])
    assert read.read() == []
    with (tmp_path / "A.jsonl.part").open("a") as file:
        file.write(',"peer":"C"}\n')
    assert [(row["kind"], row["peer"]) for row in read.read()] == [("up", "carl")]


@pytest.mark.parametrize("columns", [20, 80, 140])
def test_the_picture_shows_nodes_at_their_places_whom_they_reach_and_what_they_have(
    tmp_path: Path, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("carrypost.cli.demo.cast.Actor.is_ready", True)

    async def drawn() -> list[str]:
        console = Console(file=io.StringIO(), width=columns, force_terminal=True, color_system=None)
        read = recorded(tmp_path)
        read.read()
        cast = Cast(tmp_path, tmp_path, {"anna": {}, "bert": {}, "carl": {}}, {"anna": "Hill", "bert": "Hill"})
        picture = Picture(console, cast, read, pace=0)
        await picture.scene("1. A scene", "About it.", ["hello", "receipt"])
        with console.capture() as capture:
            console.print(picture.drawn())
        return capture.get().splitlines()

    lines = asyncio.run(drawn())
    assert max(map(len, lines)) == columns
    if columns == 20:
        return  # It is of no use there, and does no harm.
    boxes = [[cell.removeprefix(" ").rstrip() for cell in line[1:-1].split("││")] for line in lines[2:-1]]
    left, middle, right = zip(*boxes, strict=True)
    assert left[:5] == ("anna ↔ bert", " [hello] [receipt]", "bert ↔ anna", " [hello]", "")
    assert (middle[:2], set(right)) == (("carl alone", ""), {""})


def test_the_commands_to_try_are_ones_that_can_be_typed() -> None:
    known = typer.main.get_command(app)
    assert isinstance(known, TyperGroup)
    for line, _ in COMMANDS:
        word, *rest = shlex.split(line)
        known.commands[word].make_context(word, rest).close()


# --- what can go wrong -----------------------------------------------------------------------------------------------


@pytest.fixture
def nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a demonstration without nodes, in its own folder."""
    monkeypatch.setattr(scenes, "nodes", dict)
    monkeypatch.setattr(scenes, "INTRODUCTION", "")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_scene_that_does_not_come_out_as_announced_is_told_and_ends_with_1(
    nobody: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def play(self: Play) -> None:
        async with self._scene("A miracle", "Wait for it."):
            await self.ledger.until(lambda: False, "water becomes wine")

    monkeypatch.setattr(Play, "play", play)
    monkeypatch.setattr(ledger, "PATIENCE_S", 0.01)
    assert run(["demo", "--quick"]) == 1
    shown = capsys.readouterr()
    assert "did not come out as announced: water becomes wine" in shown.err
    assert str(nobody / "demo-record") in shown.err
    assert "What the nodes recorded" not in shown.out


def test_a_node_that_ends_by_itself_is_named(
    nobody: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def play(self: Play) -> None:
        self.cast["dora"].process.send_signal(signal.SIGKILL)
        await self.ledger.until(lambda: False, "nothing")

    monkeypatch.setattr(scenes, "nodes", lambda: {"dora": {}})
    monkeypatch.setattr(Play, "play", play)
    assert run(["demo", "--quick"]) == 1
    assert "carrypost: the node of dora ended by itself (exit code -9)" in capsys.readouterr().err
    assert list((nobody / "demo-record").glob("*.jsonl*"))


def test_ctrl_c_while_the_nodes_end_does_not_keep_them_from_it(
    nobody: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    left, started = Actor.leave, list[int]()

    async def play(self: Play) -> None:
        started.append(self.cast["dora"].process.pid)

    async def leave(self: Actor) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(0.1)
        await left(self)

    monkeypatch.setattr(scenes, "nodes", lambda: {"dora": {}})
    monkeypatch.setattr(Play, "play", play)
    monkeypatch.setattr(Actor, "leave", leave)
    assert run(["demo", "--quick", "--record", str(nobody / "r")]) == 130
    assert [psutil.pid_exists(pid) for pid in started] == [False]
    assert "all nodes have ended" in capsys.readouterr().err


def test_nodes_end_when_the_demonstration_is_killed(tmp_path: Path) -> None:
    with terminal(tmp_path, 100) as child:
        nodes = list[psutil.Process]()
        until_s = time.monotonic() + PATIENCE_S
        while len(nodes) < 6 and time.monotonic() < until_s:
            time.sleep(0.05)
            nodes = psutil.Process(child.pid).children()
        child.kill(signal.SIGKILL)
        _, left = psutil.wait_procs(nodes, timeout=20)
    assert (len(nodes), left) == (6, [])


def test_a_node_that_does_not_start_says_why(
    nobody: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("", 0))
        port = taken.getsockname()[1]
        monkeypatch.setattr(scenes, "nodes", lambda: {"dora": {"udp.unicast_port": port}})
        assert run(["demo", "--quick", "--record", str(nobody / "r")]) == 1
    said = capsys.readouterr().err
    assert said.startswith("carrypost: the node of dora did not start: ")
    assert str(port) in said


def test_a_folder_with_other_files_is_left_as_it_is(nobody: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = nobody / "mine"
    mine.mkdir()
    (mine / "thesis.jsonl").write_text("years of work")
    assert run(["demo", "--record", "mine"]) == 2
    assert "has files that are not from a demonstration: name another folder with --record" in capsys.readouterr().err
    assert [each.name for each in mine.iterdir()] == ["thesis.jsonl"]
    assert run(["demo", "--record", "mine/thesis.jsonl"]) == 2


def test_a_folder_of_an_earlier_demonstration_is_cleared_and_used_by_one_at_a_time(
    nobody: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = nobody / "demo-record"
    folder.mkdir()
    for name in ("demo.json", "old.jsonl", "old.jsonl.part", "notes.txt"):
        (folder / name).write_text("{}")
    with claimed(folder):
        assert sorted(each.name for each in folder.iterdir()) == ["demo.json", "notes.txt"]
        assert run(["demo"]) == 5
    assert "another demonstration uses" in capsys.readouterr().err


def test_full_needs_the_laboratory_before_anything_is_started(
    nobody: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    assert run(["demo", "--full"]) == 2
    assert "pip install" in capsys.readouterr().err
    assert list(nobody.iterdir()) == []


def test_full_ends_with_a_campaign_whose_page_is_beside_the_records(
    nobody: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []
    monkeypatch.setattr("carrypost.cli.lab.results.reproduce", lambda name, **options: asked.append((name, options)))
    monkeypatch.setattr(stage, "run", lambda *_, **__: 0)
    assert run(["demo", "--full", "--record", str(nobody / "r")]) == 0
    assert asked == [("bus", {"quick": True, "out": nobody / "r" / "campaign", "engine": Engine()})]
