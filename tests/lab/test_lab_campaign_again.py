"""Campaigns that failed to start, were interrupted after an edit, or overtaken by the next one; all without Spark."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from tests.support.campaigns import THREE, campaign, context_of, played, records, states, three

from carrypost import emu
from carrypost.cli.app import run as command
from carrypost.emu.runs import Prepared
from carrypost.errors import LabError
from carrypost.lab import folders
from carrypost.lab.campaign import grid, tasks
from carrypost.lab.campaign.campaign import begun
from carrypost.lab.campaign.grid import load
from carrypost.lab.engines import Answer, LocalEngine, Piece, Watch
from carrypost.lab.schemas import RUNS

CtrlC = Callable[[int], None]


@pytest.fixture(autouse=True)
def executor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path / "executor"))


@pytest.fixture
def ctrl_c(monkeypatch: pytest.MonkeyPatch) -> CtrlC:
    """Do Spark's part in this process, until Ctrl-C is pressed after some runs."""
    after = 0

    class Interrupted(LocalEngine):
        def each(
            self, name: str, do: Callable[[Piece], Answer], pieces: Sequence[Piece], watch: Watch = lambda _, __: None
        ) -> list[Answer]:
            super().each(name, do, pieces[:after], watch)
            raise KeyboardInterrupt

    monkeypatch.setattr("carrypost.lab.engines.opened", lambda _: nullcontext(Interrupted()))

    def choose(count: int) -> None:
        nonlocal after
        after = count

    return choose


@pytest.mark.parametrize("done", [0, 1])
def test_after_an_edit_and_ctrl_c_old_and_new_records_are_not_mixed(
    tmp_path: Path, ctrl_c: CtrlC, capsys: pytest.CaptureFixture[str], done: int
) -> None:
    three(tmp_path)
    path, out = campaign(tmp_path, seeds="[1, 2, 3]"), tmp_path / "out"
    with played(path, out):
        pass
    three(tmp_path, THREE.replace("period_s = 20", "period_s = 21"))
    ctrl_c(done)
    assert command(["lab", "campaign", str(path), "--out", str(out), "--json"]) == 130
    current = {run.name: run for run in load(path).runs}
    found = states(out)
    assert len(found) == done
    assert all(state["fingerprint"] == current[name].fingerprint for name, state in found.items())
    assert [*records(out)] == sorted(f"{current[name].stem}.parquet" for name in found)
    assert folders.read_arrow(out, RUNS).num_rows == done
    assert json.loads(capsys.readouterr().out)["done"] == done


@pytest.mark.parametrize("done", [0, 2])
def test_new_is_what_was_done_now_after_ctrl_c_too(
    tmp_path: Path, ctrl_c: CtrlC, capsys: pytest.CaptureFixture[str], done: int
) -> None:
    three(tmp_path)
    out = tmp_path / "out"
    with played(campaign(tmp_path, seeds="[1]"), out):
        pass
    ctrl_c(done)
    path = campaign(tmp_path, seeds="{last = 4}")
    assert command(["lab", "campaign", str(path), "--out", str(out), "--json"]) == 130
    told = json.loads(capsys.readouterr().out)
    assert (told["runs"], told["done"], told["new"]) == (4, 1 + done, done)


def test_records_under_names_of_before_are_replaced(tmp_path: Path, ctrl_c: CtrlC) -> None:
    three(tmp_path)
    path, out = campaign(tmp_path, seeds="[1]"), tmp_path / "out"
    with played(path, out) as running:
        (run,) = running.grid.runs
    before = records(out)
    for file in (running.place.record(run), running.place.state(run)):
        file.rename(file.with_name(f"three-default-1-0123abcd{file.suffix}"))
    ctrl_c(1)
    assert command(["lab", "campaign", str(path), "--out", str(out)]) == 130
    assert records(out) == before
    assert len(states(out)) == 1


# --- a task that outlives its campaign -----------------------------------------------------------------------


def test_a_task_of_a_campaign_that_is_over_does_not_touch_the_record_of_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    three(tmp_path)
    path, out = campaign(tmp_path, seeds="[1]"), tmp_path / "out"
    with begun(load(path), out) as dead:
        old = context_of(dead, dead.todo)
        (run,) = dead.todo
        real = Prepared.run
        whole: dict[str, bytes] = {}

        def slow(self: Prepared, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401 - passed on
            """Meanwhile its driver is killed, and the campaign begun again with another scenario."""
            with monkeypatch.context() as quick:
                quick.setattr(Prepared, "run", real)
                (dead.place.states / "lock").unlink()  # As the system does for a process that is gone.
                three(tmp_path, THREE.replace("period_s = 20", "period_s = 7"))
                with played(path, out):
                    pass
                whole.update(records(out))
                ended = real(self, *arguments, **options)
                with begun(load(path), out) as third:  # While the task has written, and not yet looked.
                    assert third.plan.todo == {}
                    assert records(out) == whole
            return ended

        monkeypatch.setattr(Prepared, "run", slow)
        state = tasks.play(old, run)
    assert (state.status, state.kept) == ("failed", False)
    assert len(whole) == 1
    assert records(out) == whole  # Nothing hidden is left, either.
    assert load(path).runs[0].fingerprint in {each["fingerprint"] for each in states(out).values()}
    with begun(load(path), out) as last:
        assert last.plan.todo == {}


# --- what could not begin ------------------------------------------------------------------------------------

_NO_JAVA = """
import carrypost.lab.spark.java
carrypost.lab.spark.java._packaged = lambda: None
from carrypost.cli import main
main()
"""


def test_without_java_nothing_is_left_behind(tmp_path: Path) -> None:
    three(tmp_path)
    arguments = ["lab", "campaign", str(campaign(tmp_path)), "--out", str(tmp_path / "new" / "out")]
    ended = subprocess.run(  # noqa: S603 - our own program
        [sys.executable, "-c", _NO_JAVA, *arguments], env={"PATH": "/nowhere"}, capture_output=True, check=False
    )
    assert ended.returncode == 1
    assert b"Spark needs Java" in ended.stderr
    assert not (tmp_path / "new").exists()


def no_cluster(_: object) -> None:
    raise LabError("there is no such cluster")


def test_without_spark_only_what_was_there_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    three(tmp_path)
    path, out = campaign(tmp_path), tmp_path / "new" / "out"
    monkeypatch.setattr("carrypost.lab.engines.session", no_cluster)
    monkeypatch.setattr("carrypost.lab.spark.java.java_home", lambda _: tmp_path)
    assert command(["lab", "campaign", str(path), "--out", str(out)]) == 1
    assert not (tmp_path / "new").exists()
    out.mkdir(parents=True)
    (out / "notes.txt").write_text("mine", encoding="utf-8")
    assert command(["lab", "campaign", str(path), "--out", str(out)]) == 1
    assert [each.name for each in out.iterdir()] == ["notes.txt"]


def test_without_spark_what_an_earlier_campaign_did_stays_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    three(tmp_path)
    path, out = campaign(tmp_path), tmp_path / "out"
    with played(path, out):
        pass
    before, kept = records(out), states(out)
    three(tmp_path, THREE.replace("period_s = 20", "period_s = 21"))
    monkeypatch.setattr("carrypost.lab.engines.session", no_cluster)
    assert command(["lab", "campaign", str(path), "--out", str(out)]) == 1
    assert (records(out), states(out)) == (before, kept)


# --- where files are unpacked --------------------------------------------------------------------------------


def unpacked_contacts(folder: Path) -> Path:
    (run,) = load(campaign(folder, seeds="[1]")).runs
    scenario = emu.Scenario.parse(run.text, file=run.file)
    found = grid.unpacked(scenario, run.files, dict(grid.contents(run.files)).__getitem__)
    return found.path("../shared/contacts.csv")


def lay_traps(folder: Path, real: Path) -> None:
    """Put other files where the contacts are looked for."""
    trap = folder / "carrypost" / real.parent.name
    trap.mkdir(parents=True)
    (trap / real.name).write_text("a,b,start,end\n", encoding="utf-8")
    (folder / "carrypost").chmod(0o777)


@pytest.mark.parametrize("given", [True, False])
def test_files_are_unpacked_where_nobody_else_can_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, given: bool
) -> None:
    three(tmp_path)
    real, common = unpacked_contacts(tmp_path), tmp_path / "common"
    lay_traps(common, real)
    if given:
        monkeypatch.setenv("SPARK_LOCAL_DIRS", str(common))
    else:
        monkeypatch.delenv("SPARK_LOCAL_DIRS")
        monkeypatch.setattr("tempfile.tempdir", str(common))
    found = unpacked_contacts(tmp_path)
    assert found.read_bytes() == real.read_bytes()
    assert {each.stat().st_mode & 0o777 for each in (real.parents[1], found.parents[1])} == {0o700}
