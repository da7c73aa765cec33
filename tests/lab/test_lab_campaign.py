"""Campaigns on Spark; in long searches on a small cluster, to which code and files are really sent."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark import InheritableThread
from pyspark.sql import SparkSession
from tests.support.campaigns import FAILING, THREE, TWO_SETTINGS, campaign, records, states, three

from carrypost import emu
from carrypost.cli.app import run as command
from carrypost.lab import folders
from carrypost.lab.campaign.grid import load
from carrypost.lab.schemas import FAILURES, RECORDS, RUNS

pytestmark = pytest.mark.usefixtures("spark")


def plain(path: Path, folder: Path) -> dict[str, bytes]:
    """Return the records of a campaign's runs, made one by one in this process."""
    made = {}
    for run in load(path).runs:
        out = folder / "plain.parquet"
        scenario = folder / "scenarios" / run.file
        emu.run(scenario, run.seed, overrides=dict(run.overrides), settings=run.settings, out=out)
        made[f"{run.stem}.parquet"] = out.read_bytes()
    return dict(sorted(made.items()))


def test_records_are_those_of_plain_runs_and_a_run_that_fails_ends_nothing(
    tmp_path: Path, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    three(tmp_path)
    good = plain(campaign(tmp_path, TWO_SETTINGS), tmp_path)
    out = tmp_path / "out"
    path = campaign(tmp_path, TWO_SETTINGS, FAILING)
    assert command(["lab", "campaign", str(path), "--out", str(out), "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert {key: told[key] for key in ("runs", "done", "failed", "new")} == {
        "runs": 6, "done": 4, "failed": 2, "new": 6
    }  # fmt: skip
    assert records(out) == good

    failures = folders.read_arrow(out, FAILURES).to_pylist()
    assert [row["run"] for row in failures] == ["three/too long/1", "three/too long/2"]
    for row, failure in zip(failures, told["failures"], strict=True):
        assert "node 'c' is not present at 90.0 s" in row["error"]
        assert row["traceback"].startswith("Traceback")
        assert failure == {"run": row["run"], "error": row["error"]}
    runs = folders.read_arrow(out, RUNS).to_pylist()
    assert [row["run"] for row in runs] == [run.name for run in load(tmp_path / "campaign.toml").runs]
    assert sum(row["rows"] or 0 for row in runs) == folders.read(spark, out, RECORDS).count() == told["rows"]
    assert all(row["cpu_s"] > 0 for row in runs if row["status"] == "done")

    # What failed is done again, and only that.
    before = states(out)
    assert command(["lab", "campaign", str(campaign(tmp_path, TWO_SETTINGS, FAILING)), "--out", str(out)]) == 1
    assert "carrypost: 2 runs are repeated: failed before\n" in capsys.readouterr().err
    changed = {name for name, state in states(out).items() if state["token"] != before[name]["token"]}
    assert changed == {"three/too long/1", "three/too long/2"}

    # Mended, it is gone from the failures.
    mended = FAILING.replace("100", "85")
    assert command(["lab", "campaign", str(campaign(tmp_path, TWO_SETTINGS, mended)), "--out", str(out)]) == 0
    assert folders.read_arrow(out, FAILURES).num_rows == 0
    assert records(out) == plain(tmp_path / "campaign.toml", tmp_path)


def test_after_a_driver_was_killed_the_rest_is_done_and_nothing_is_left_half_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    three(tmp_path)
    path, out = campaign(tmp_path, seeds="[1, 2, 3]"), tmp_path / "out"
    assert command(["lab", "campaign", str(path), "--out", str(out)]) == 0
    whole, kept = records(out), states(out)
    first, second, third = (run.stem for run in load(path).runs)
    # One was not begun, one was half-written, and of the third the record was there and its state not yet.
    for name in (f"records/{first}.parquet", f"records/{second}.parquet"):
        (out / name).unlink()
    for stem in (first, second, third):
        (out / ".runs" / f"{stem}.json").unlink()
    (out / "records" / f".{second}.parquet.4711.partial").write_bytes(b"PAR1")
    (out / ".runs" / f".{third}.json.4711.partial").write_bytes(b"{")
    (out / ".runs" / "seen-4711").write_bytes(b"")
    capsys.readouterr()
    assert command(["lab", "campaign", str(path), "--out", str(out)]) == 0
    assert records(out) == whole
    assert states(out).keys() == kept.keys()
    hidden = [each.name for each in (out / ".runs").iterdir() if each.suffix != ".json"]
    assert hidden == ["lock"]


def test_a_changed_scenario_is_run_again_and_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    three(tmp_path)
    path, out = campaign(tmp_path, TWO_SETTINGS, seeds="[1]"), tmp_path / "out"
    assert command(["lab", "campaign", str(path), "--out", str(out)]) == 0
    before = states(out)
    text = TWO_SETTINGS.replace('lifetime_s" = 30', 'lifetime_s" = 31')
    capsys.readouterr()
    assert command(["lab", "campaign", str(campaign(tmp_path, text, seeds="[1]")), "--out", str(out)]) == 0
    told = capsys.readouterr().err
    assert "1 run is done already" in told
    assert "1 run is repeated: the scenario, or a file that it names, has changed" in told
    assert {name for name, each in states(out).items() if each["token"] != before[name]["token"]} == {"three/30 s/1"}
    assert records(out) == plain(path, tmp_path)


_WAIT_S_MAX = 60


@contextmanager
def one_executor(spark: SparkSession, folder: Path) -> Iterator[None]:
    """Keep one of the two executors busy meanwhile."""
    begun, over = folder / "begun", folder / "over"
    context = spark.sparkContext

    def busy(_: int) -> None:  # Sent as it is, without this module.
        begun.touch()
        until_s = time.monotonic() + _WAIT_S_MAX
        while not over.exists() and time.monotonic() < until_s:
            time.sleep(0.02)

    thread = InheritableThread(target=lambda: context.parallelize([1], 1).foreach(busy))
    thread.start()
    try:
        until_s = time.monotonic() + _WAIT_S_MAX
        while not begun.exists():
            assert time.monotonic() < until_s
            thread.join(0.02)
        yield
    finally:
        over.touch()
        thread.join(_WAIT_S_MAX)


@pytest.mark.soak
def test_results_are_the_same_with_one_worker_and_with_two(tmp_path: Path, spark: SparkSession) -> None:
    three(tmp_path)
    path = campaign(tmp_path, TWO_SETTINGS)
    assert command(["lab", "campaign", str(path), "--out", str(tmp_path / "two")]) == 0
    with one_executor(spark, tmp_path):
        assert command(["lab", "campaign", str(path), "--out", str(tmp_path / "one")]) == 0
    assert records(tmp_path / "one") == records(tmp_path / "two")
    told = [folders.read_arrow(tmp_path / name, RUNS).drop(["cpu_s", "elapsed_s"]) for name in ("one", "two")]
    assert told[0].equals(told[1])


def test_ctrl_c_leaves_whole_things_and_the_same_command_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    three(tmp_path, THREE.replace("period_s = 20", "period_s = 0.5"))
    path, out = campaign(tmp_path, seeds="{last = 4}"), tmp_path / "out"

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("carrypost.cli.lab.campaign._moved", interrupt)
        patch.setattr("carrypost.lab.spark.session._LOOK_S", 0.01)
        assert command(["lab", "campaign", str(path), "--out", str(out), "--json"]) == 130
    told = capsys.readouterr()
    found = json.loads(told.out)
    done = found["done"]
    assert found["new"] == done
    assert f"interrupted; {done} of 4 runs are done; run the same command again for the rest" in told.err
    assert folders.read_arrow(out, RUNS).num_rows == done < 4
    assert command(["lab", "campaign", str(path), "--out", str(out)]) == 0
    assert records(out) == plain(path, tmp_path)

    # After an edit, what is there is of the new text alone.
    three(tmp_path, THREE.replace("period_s = 20", "period_s = 0.4"))
    with monkeypatch.context() as patch:
        patch.setattr("carrypost.cli.lab.campaign._moved", interrupt)
        patch.setattr("carrypost.lab.spark.session._LOOK_S", 0.01)
        assert command(["lab", "campaign", str(path), "--out", str(out)]) == 130
    new = plain(path, tmp_path)
    there = {each.name: each.read_bytes() for each in (out / "records").glob("*.parquet")}
    assert len(there) < 4
    assert all(new[name] == content for name, content in there.items())


def test_a_full_disk_is_a_sentence_and_leaves_nothing_half_written(
    tmp_path: Path, small_disk: Callable[[int], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    three(tmp_path, THREE.replace("period_s = 20", "period_s = 0.05"))
    path, out = campaign(tmp_path), small_disk(40 * 1024) / "out"
    assert command(["lab", "campaign", str(path), "--out", str(out), "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["failed"] == 2
    assert all("cannot be written: No space left on device" in each["error"] for each in told["failures"])
    assert records(out) == {}


def test_a_folder_that_workers_do_not_see_is_refused_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    three(tmp_path)
    path = campaign(tmp_path)
    monkeypatch.chdir(tmp_path)
    # To each process another folder.
    assert command(["lab", "campaign", str(path), "--out", "/proc/self/cwd/out"]) == 2
    told = capsys.readouterr().err
    assert "does not see /proc/self/cwd/out: all machines of the cluster must share the folder" in told
    assert not (tmp_path / "out").exists()
