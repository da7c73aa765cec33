"""One run of a campaign as a process of an executor does it, and the folder that it leaves; all without Spark."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.campaigns import FAILING, THREE, TWO_SETTINGS, campaign, context_of, played, records, states, three

from carrypost import emu
from carrypost.cli.app import run as command
from carrypost.errors import RunningError
from carrypost.lab import folders
from carrypost.lab.campaign import tasks
from carrypost.lab.campaign.campaign import begun
from carrypost.lab.campaign.folder import CampaignFolder
from carrypost.lab.campaign.grid import contents, executor_folder, load, unpacked
from carrypost.lab.schemas import FAILURES, RUNS


@pytest.fixture(autouse=True)
def executor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path / 'executor'},/elsewhere")
    return tmp_path / "executor"


def test_a_record_is_that_of_a_plain_run_to_the_byte(tmp_path: Path) -> None:
    scenario = three(tmp_path)
    with played(campaign(tmp_path, TWO_SETTINGS, seeds='[1, "x"]'), tmp_path / "out") as running:
        pass
    expected = {}
    for run in running.grid.runs:
        plain = tmp_path / "plain.parquet"
        emu.run(scenario, run.seed, overrides=dict(run.overrides), settings=run.settings, out=plain)
        expected[f"{run.stem}.parquet"] = plain.read_bytes()
    assert records(tmp_path / "out") == dict(sorted(expected.items()))
    assert len(expected) == 4


def test_what_fails_is_a_row_with_the_drivers_names_of_files(tmp_path: Path) -> None:
    three(tmp_path)
    with played(campaign(tmp_path, FAILING, seeds="[1]"), tmp_path / "out") as running:
        pass
    (row,) = folders.read_arrow(tmp_path / "out", FAILURES).to_pylist()
    script = running.grid.runs[0].files[2].path
    assert row["run"] == "three/too long/1"
    assert row["error"] == f"{script}, line 3: node 'c' is not present at 90.0 s"
    assert "check_script" in row["traceback"]
    assert str(executor_folder()) not in row["traceback"]
    assert records(tmp_path / "out") == {}


def test_a_run_that_fails_now_leaves_no_record_of_before(tmp_path: Path) -> None:
    three(tmp_path)
    path = campaign(tmp_path, seeds="[1]")
    with played(path, tmp_path / "out"):
        pass
    assert len(records(tmp_path / "out")) == 1
    three(tmp_path, THREE.replace("duration_s = 60", "duration_s = 100"))
    with played(path, tmp_path / "out") as running:
        assert running.plan.todo == {"three/default/1": "changed"}
    assert records(tmp_path / "out") == {}
    assert [row["status"] for row in folders.read_arrow(tmp_path / "out", RUNS).to_pylist()] == ["failed"]


def damage_nothing(out: Path, stem: str) -> None:
    assert (out / "records" / f"{stem}.parquet").exists()


def remove_record(out: Path, stem: str) -> None:
    (out / "records" / f"{stem}.parquet").unlink()


def cut_record(out: Path, stem: str) -> None:
    path = out / "records" / f"{stem}.parquet"
    path.write_bytes(path.read_bytes()[:-10])


def garble_record(out: Path, stem: str) -> None:
    path = out / "records" / f"{stem}.parquet"
    path.write_bytes(bytes(path.stat().st_size))


def flip_a_bit(out: Path, stem: str) -> None:
    """Flip a bit within a page, so that Parquet's own metadata at the end stays valid."""
    path = out / "records" / f"{stem}.parquet"
    content = bytearray(path.read_bytes())
    content[len(content) // 4] ^= 1
    path.write_bytes(content)


def state_of_before(out: Path, stem: str) -> None:
    """From when states had no hash."""
    path = out / ".runs" / f"{stem}.json"
    told = json.loads(path.read_text("utf-8"))
    told.pop("sha256", None)
    path.write_text(json.dumps(told), encoding="utf-8")


def remove_state(out: Path, stem: str) -> None:
    (out / ".runs" / f"{stem}.json").unlink()


def cut_state(out: Path, stem: str) -> None:
    path = out / ".runs" / f"{stem}.json"
    path.write_bytes(path.read_bytes()[:-10])


def fail_state(out: Path, stem: str) -> None:
    path = out / ".runs" / f"{stem}.json"
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | {"status": "failed"}), encoding="utf-8")


def other_version(out: Path, stem: str) -> None:
    path = out / ".runs" / f"{stem}.json"
    changes = {"version": "0.0.1", "fingerprint": "0"}
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | changes), encoding="utf-8")


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (damage_nothing, None),
        (remove_record, "damaged"),
        (cut_record, "damaged"),
        (garble_record, "damaged"),
        (flip_a_bit, "damaged"),
        (state_of_before, "damaged"),
        (remove_state, "missing"),
        (cut_state, "missing"),
        (fail_state, "failed"),
        (other_version, "other version"),
    ],
)
def test_only_what_is_missing_failed_or_changed_is_done_again(
    tmp_path: Path, damage: Callable[[Path, str], None], why: str | None
) -> None:
    three(tmp_path)
    path, out = campaign(tmp_path), tmp_path / "out"
    with played(path, out) as running:
        stem = running.grid.runs[1].stem
    before = records(out)
    damage(out, stem)
    (out / "records" / f".{stem}.parquet.99999999.partial").write_bytes(b"half")
    (out / ".runs" / f".{stem}.json.99999999.partial").write_bytes(b"half")
    with played(path, out) as running:
        assert running.plan.todo == ({} if why is None else {"three/default/2": why})
        assert not list(out.rglob("*.partial"))
    assert records(out) == before
    assert {state["status"] for state in states(out).values()} == {"done"}


def test_nothing_to_do_needs_no_spark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    three(tmp_path)
    path, out = campaign(tmp_path), tmp_path / "out"
    with played(path, out):
        pass
    monkeypatch.setattr("carrypost.lab.engines.session", None)
    assert command(["lab", "campaign", str(path), "--out", str(out), "--json"]) == 0
    told = capsys.readouterr()
    found = json.loads(told.out)
    assert (found["runs"], found["done"], found["new"], found["failed"]) == (2, 2, 0, 0)
    assert told.err == "carrypost: 2 runs are done already\n"


def test_runs_that_the_campaign_no_longer_names_stay_and_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    three(tmp_path)
    out = tmp_path / "out"
    with played(campaign(tmp_path), out):
        pass
    (out / "records" / "foreign.parquet").write_bytes(b"something")
    before = records(out)
    monkeypatch.setattr("carrypost.lab.engines.session", None)
    assert command(["lab", "campaign", str(campaign(tmp_path, seeds="[1]")), "--out", str(out)]) == 0
    assert records(out) == before
    told = f"2 in {out} do not belong to this campaign and will be kept: three/default/2, foreign.parquet"
    assert told in capsys.readouterr().err
    names = [row["run"] for row in folders.read_arrow(out, RUNS).to_pylist()]
    assert names == ["three/default/1", "three/default/2"]


def test_a_dry_run_tells_and_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    three(tmp_path)
    out = tmp_path / "out"
    assert command(["lab", "campaign", str(campaign(tmp_path)), "--out", str(out), "--dry-run", "--json"]) == 0
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [
        {"run": "three/default/1", "state": "missing"},
        {"run": "three/default/2", "state": "missing"},
    ]
    assert not out.exists()


# --- who works for which campaign ----------------------------------------------------------------------------


def test_two_campaigns_at_once_in_a_folder_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    three(tmp_path)
    path, out = campaign(tmp_path), tmp_path / "out"
    with begun(load(path), out):
        assert command(["lab", "campaign", str(path), "--out", str(out)]) == 5
    assert "a campaign is running in" in capsys.readouterr().err
    with begun(load(path), out):
        pass


_HOLD = """
import os, sys
from pathlib import Path
from carrypost.lab.campaign.folder import locked
with locked(Path(sys.argv[1])):
    os._exit(9)
"""


def test_the_lock_of_a_process_that_died_is_taken_over(tmp_path: Path) -> None:
    three(tmp_path)
    grid, out = load(campaign(tmp_path)), tmp_path / "out"
    with begun(grid, out) as running:
        running.begin()
        states_folder = running.place.states
    died = subprocess.run([sys.executable, "-c", _HOLD, states_folder], check=False)  # noqa: S603 - our own program
    assert died.returncode == 9
    assert json.loads((states_folder / "lock").read_text("utf-8"))["host"] == socket.gethostname()
    with begun(grid, out):
        pass


def test_a_lock_of_another_machine_is_respected_until_somebody_removes_it(tmp_path: Path) -> None:
    three(tmp_path)
    grid, out = load(campaign(tmp_path)), tmp_path / "out"
    with begun(grid, out) as running:
        running.begin()
        lock = running.place.states / "lock"
    lock.write_text(json.dumps({"pid": 1, "host": "elsewhere", "token": "x"}), encoding="utf-8")
    with pytest.raises(RunningError, match="process 1 on elsewhere; if it is gone, remove"), begun(grid, out):
        pass
    lock.unlink()
    with begun(grid, out):
        pass


def test_a_process_that_does_not_see_the_folder_or_comes_too_late_writes_nothing(tmp_path: Path) -> None:
    three(tmp_path)
    with begun(load(campaign(tmp_path, seeds="[1]")), tmp_path / "out") as running:
        running.begin()
        shared = context_of(running, running.todo)
        (run,) = running.todo
    late = tasks.play(shared, run)  # The campaign is over.
    assert (late.status, late.kept) == ("failed", False)
    assert "does not see" in late.error
    nowhere = tasks.play(tasks.TaskContext(CampaignFolder(tmp_path / "nowhere"), running.token, {}), run)
    assert (nowhere.status, nowhere.kept) == ("failed", False)
    assert records(tmp_path / "out") == {}
    assert states(tmp_path / "out") == {}
    assert not (tmp_path / "nowhere").exists()


def test_a_run_of_which_processes_died_fails_and_is_not_tried_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    three(tmp_path)
    with begun(load(campaign(tmp_path, seeds="[1]")), tmp_path / "out") as running:
        shared = context_of(running, running.todo)
        (run,) = running.todo
        monkeypatch.setattr(tasks, "attempts", lambda: 2)
        assert "2 processes that ran it died" in tasks.play(shared, run).error
        monkeypatch.setattr(tasks, "attempts", lambda: 1)
        assert tasks.play(shared, run).status == "failed"  # Known already.
        (tmp_path / "out" / ".runs" / f"{run.stem}.json").unlink()
        assert tasks.play(shared, run).status == "done"


# --- files that scenarios name -------------------------------------------------------------------------------


def test_files_anywhere_are_unpacked_once_and_whole(tmp_path: Path, executor: Path) -> None:
    absolute = tmp_path / "shared" / "contacts.csv"
    three(tmp_path, THREE.replace('"../shared/contacts.csv"', f'"{absolute}"'))
    (run,) = load(campaign(tmp_path, seeds="[1]")).runs
    fetched: list[str] = []
    sent = dict(contents(run.files))

    def fetch(digest: str) -> bytes:
        fetched.append(digest)
        return sent[digest]

    scenario = emu.Scenario.parse(run.text, overrides=run.overrides, file=run.file)
    there = unpacked(scenario, run.files, fetch)
    assert there.path(str(absolute)).read_bytes() == absolute.read_bytes()
    assert there.path(str(absolute)).is_relative_to(executor)
    assert len(fetched) == 3
    unpacked(scenario, run.files, fetch)
    assert len(fetched) == 3
    assert there.text == scenario.text
    assert there.in_force() == scenario.in_force()


def test_a_folder_and_equal_files_of_other_names_are_unpacked(tmp_path: Path) -> None:
    home = three(tmp_path).parent
    feed = home / "feed"
    feed.mkdir()
    for name in ("stops.txt", "trips.txt"):
        (feed / name).write_text("same", encoding="utf-8")
    text = 'duration_s = 5\n[mobility]\nmodel = "gtfs"\nfile = "feed"\nday = "2024-01-02"\n'
    three(tmp_path, text, "gtfs.toml")
    (run,) = load(campaign(tmp_path, seeds="[1]", scenarios='["scenarios/gtfs.toml"]')).runs
    there = unpacked(emu.Scenario.parse(run.text, file=run.file), run.files, dict(contents(run.files)).__getitem__)
    moved = Path(getattr(there.mobility, "file", ""))
    assert moved.name == "feed"
    assert sorted(path.name for path in moved.iterdir()) == ["stops.txt", "trips.txt"]
    assert there.in_force() == emu.Scenario.load(home / "gtfs.toml").in_force()
