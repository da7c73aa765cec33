"""Executors in their own processes: their tasks, the files that they unpack, and what is left; and a real cluster."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.support.campaigns import TWO_SETTINGS, campaign, records, three
from tests.support.spark_cluster import PATIENCE_S, standalone

from carrypost.errors import LabError
from carrypost.lab.campaign.campaign import begun, check_executors
from carrypost.lab.campaign.grid import load
from carrypost.lab.engines import opened
from carrypost.lab.spark.session import SparkOptions


def on_executors(spark: SparkSession) -> list[dict[str, Any]]:
    """Return data from the processes of executors; one that was just used is used again."""

    def told(_: Iterable[int]) -> Iterator[dict[str, Any]]:
        import gc  # noqa: PLC0415 - sent as it is, without this module

        from pyspark.core.broadcast import _broadcastRegistry  # noqa: PLC0415

        import carrypost  # noqa: PLC0415
        from carrypost.lab.campaign.grid import executor_folder  # noqa: PLC0415

        folder = executor_folder()
        yield {
            "package": carrypost.__file__,
            "unpacked": [sorted(each.name for each in home.iterdir()) for home in folder.glob("*")],
            "hidden": [each.name for each in folder.glob(".*")],
            "folder": str(folder),
            "threshold": gc.get_threshold(),
            "frozen": gc.get_freeze_count(),
            "kept": sum(hasattr(each, "_value") for each in _broadcastRegistry.values()),
        }

    return spark.sparkContext.parallelize(range(2), 2).mapPartitions(told).collect()


@pytest.mark.soak
def test_executors_run_what_was_sent_unpack_files_once_and_keep_nothing(spark: SparkSession, tmp_path: Path) -> None:
    three(tmp_path)
    (threshold,) = {each["threshold"] for each in on_executors(spark)}
    made = load(campaign(tmp_path, TWO_SETTINGS, seeds="{last = 4}"))
    with begun(made, tmp_path / "out") as running, opened(SparkOptions()) as engine:
        ended = running.conduct(engine)
    assert [state.status for state in ended] == ["done"] * 8
    for each in on_executors(spark):
        assert "carrypost.zip" in each["package"]
        assert "blockmgr-" in each["folder"]  # Of Spark, which removes it when the executor ends.
        files = [name for names in each["unpacked"] for name in names]
        assert {"contacts.csv", "nodes.csv", "publish.csv"} <= set(files)
        assert each["hidden"] == []
        assert each["threshold"] == threshold
        assert each["frozen"] == 0
        assert each["kept"] == 0


def test_an_executor_with_another_carrypost_is_refused(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    three(tmp_path)
    with begun(load(campaign(tmp_path)), tmp_path / "out") as running:
        monkeypatch.setattr("carrypost.__version__", "99")
        with pytest.raises(LabError, match=r"cannot run carrypost 99 \(it has carrypost .*install 'carrypost\[lab\]'"):
            check_executors(spark, running.place, running.token)
        assert sorted(each.name for each in running.place.states.iterdir()) == ["lock"]


# --- a master and two workers --------------------------------------------------------------------------------


@pytest.mark.soak
def test_a_campaign_on_a_master_with_two_workers_has_the_records_of_one_process(tmp_path: Path) -> None:
    three(tmp_path)
    path = campaign(tmp_path, TWO_SETTINGS)
    with begun(load(path), tmp_path / "here") as running, opened(SparkOptions(master="local[1]")) as engine:
        running.conduct(engine)
    with standalone(tmp_path) as address:
        program = "from carrypost.cli import main; main()"
        command = [sys.executable, "-c", program, "lab", "campaign", str(path), "--master", address, "--out"]
        subprocess.run([*command, str(tmp_path / "there")], check=True, timeout=PATIENCE_S)  # noqa: S603 - our own
        unseen = subprocess.run(  # noqa: S603
            [*command, "/proc/self/cwd/unseen"], cwd=tmp_path, capture_output=True, timeout=PATIENCE_S, check=False
        )
    assert records(tmp_path / "there") == records(tmp_path / "here")
    assert unseen.returncode == 2
    assert "does not see /proc/self/cwd/unseen" in unseen.stderr.decode()
    assert not list(tmp_path.glob("work-*/*/*/contacts.csv"))
