"""Start of Spark, and the handling of its failures."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import psutil
import pyarrow as pa
import pyspark
import pytest
from py4j.protocol import Py4JNetworkError
from pyspark.errors import PySparkException
from tests.support.campaigns import campaign, played, three

import carrypost
from carrypost.cli._options import Spark
from carrypost.cli.app import run as command
from carrypost.errors import LabError, LocalError
from carrypost.lab.spark.java import java_home
from carrypost.lab.spark.session import (
    SparkOptions,
    cause_of,
    conf_folder,
    explained,
    package_zip,
    scratch_folder,
    session,
    watched,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


PATIENCE_S = 120.0


@pytest.mark.parametrize(
    ("master", "in_process", "here"),
    [
        ("local", True, True),
        ("local[2]", True, True),
        ("local[*]", True, True),
        ("local-cluster[2,1,1024]", False, True),
        ("spark://127.0.0.1:7077", False, True),
        ("spark://localhost:7077", False, True),
        ("spark://10.0.0.9:7077", False, False),
        ("yarn", False, False),
    ],
)
def test_only_a_cluster_elsewhere_has_to_reach_the_driver(master: str, in_process: bool, here: bool) -> None:
    options = SparkOptions(master=master)
    assert (options.in_process, options.on_this_machine) == (in_process, here)
    assert ("spark.driver.bindAddress" in options.settings) is here


@pytest.mark.parametrize(
    ("master", "memory", "conf", "said"),
    [
        ("locl[2]", "", [], "--master must be such as local[2]"),
        ("local[2]", "4 GB", [], "must be written such as 4g or 512m, not '4 GB'"),
        ("local[2]", "", ["executor.memory=2g"], "--conf must be KEY=VALUE with a key of Spark"),
        ("local[2]", "", ["spark.executor.memory"], "--conf must be KEY=VALUE with a key of Spark"),
    ],
)
def test_wrong_options_are_told(master: str, memory: str, conf: list[str], said: str) -> None:
    with pytest.raises(LocalError, match=re.escape(said)):
        Spark(master, memory, conf).options("")


@pytest.mark.parametrize(
    ("master", "ui"), [("local[2]", "false"), ("spark://localhost:7077", "true"), ("yarn", "true")]
)
def test_the_pages_of_spark_are_there_where_a_cluster_is_named(master: str, ui: str) -> None:
    assert SparkOptions(master=master).settings["spark.ui.enabled"] == ui


@pytest.mark.soak
def test_the_master_of_spark_submit_is_used_and_the_end_is_quiet(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "from carrypost.lab.spark.session import SparkOptions, session\n"
        "with session(SparkOptions(name='ours')) as spark:\n"
        "    context, zone = spark.sparkContext, spark.conf.get('spark.sql.session.timeZone')\n"
        "    print(context.master, context.appName, zone, spark.range(5).count())\n"
        "try:\n"
        "    with session(SparkOptions(master='yarn')):\n"
        "        pass\n"
        "except Exception as error:\n"
        "    print(error)\n"
    )
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    with session_environment(tmp_path) as environment:
        done = subprocess.run(  # noqa: S603 - Spark's own command
            [str(submit), "--master", "local[1]", str(program)],
            env=environment, capture_output=True, text=True, timeout=PATIENCE_S * 3, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "local[1] ours UTC 5",
        "spark-submit was given --master local[1]: leave out --master yarn behind it",
    ]
    assert "Traceback" not in done.stderr
    assert "Exception" not in done.stderr


@contextlib.contextmanager
def session_environment(folder: Path) -> Iterator[dict[str, str]]:
    """Yield the variables with which `spark-submit` finds Java, and stays on loopback."""
    given = {
        "JAVA_HOME": str(java_home(folder)), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_CONF_DIR": str(conf_folder()), "SPARK_LOCAL_DIRS": str(folder / "local"),
    }  # fmt: skip
    yield {**os.environ, **given}


def test_the_cause_of_a_failure_is_its_innermost_exception() -> None:
    class Java(Exception):  # noqa: N818 - as Py4J's stand-in for an exception of the JVM
        def __init__(self, message: str | None, cause: Java | None = None) -> None:
            super().__init__(message)
            self.getMessage, self.getCause = lambda: message, lambda: cause

    inner = Java("Connection refused: node7/10.0.0.7:7077")
    failure = RuntimeError("An error occurred while calling None.JavaSparkContext.")
    failure.java_exception = Java("failed to connect", Java(None, inner))  # type: ignore[attr-defined]
    assert cause_of(failure) == "Connection refused: node7/10.0.0.7:7077"
    trace = "Job aborted\nTraceback (most recent call last):\n  File x\n    y()\nValueError: no such column\n\n\tat org"
    assert cause_of(RuntimeError(trace)) == "ValueError: no such column"
    assert cause_of(RuntimeError("first\nsecond")) == "first"


def test_folders_that_killed_processes_left_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        pass
    recent = f"carrypost-spark-{ended.pid}-recent"
    for name in (f"carrypost-spark-{ended.pid}-x", f"carrypost-spark-{os.getpid()}-y", "carrypost-spark-z_1", recent):
        (tmp_path / name / "work").mkdir(parents=True)
        if name != recent:
            os.utime(tmp_path / name, (0, 0))
    made = scratch_folder()
    assert {each.name for each in tmp_path.iterdir()} == {
        made.name, f"carrypost-spark-{os.getpid()}-y", "carrypost-spark-z_1", recent
    }  # fmt: skip


def test_what_is_asked_of_spark_itself_wins() -> None:
    options = Spark("local[3]", "512m", ["spark.sql.shuffle.partitions=7", "spark.x=a=b"]).options("")
    settings = options.settings
    assert (settings["spark.driver.memory"], settings["spark.sql.shuffle.partitions"]) == ("512m", "7")
    assert settings["spark.x"] == "a=b"


def test_settings_of_a_spark_of_ones_own_win_over_ours_and_those_of_the_command_over_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SPARK_CONF_DIR", raising=False)
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "spark-defaults.conf").write_text(
        "# ours\nspark.ui.enabled true\nspark.driver.memory=3g\n\nspark.master  yarn\n", encoding="utf-8"
    )
    plain = SparkOptions(master="local[2]").settings
    assert "spark.ui.enabled" not in plain
    assert "spark.driver.memory" not in plain
    assert plain["spark.master"] == "local[2]"
    asked = SparkOptions(memory="1g", conf={"spark.ui.enabled": "false"}).settings
    assert (asked["spark.driver.memory"], asked["spark.ui.enabled"]) == ("1g", "false")
    assert conf_folder() == tmp_path / "conf"


def test_shuffles_of_a_cluster_do_not_follow_the_processors_of_the_driver() -> None:
    assert SparkOptions(master="local[3]").settings["spark.sql.shuffle.partitions"] == "6"
    assert "spark.sql.shuffle.partitions" not in SparkOptions(master="spark://10.0.0.9:7077").settings


def test_applications_are_called_what_they_do() -> None:
    assert Spark("local[2]").options("lab metrics").settings["spark.app.name"] == "carrypost lab metrics"


@pytest.mark.parametrize("place", ["s3://bucket/records", "hdfs://host:9000/records", "gs:/bucket"])
def test_a_file_that_is_in_no_file_system_is_refused(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["lab", "campaign", place, "--out", "x"]) == 2
    assert f"{place.split('/', maxsplit=1)[0]}" in (told := capsys.readouterr().err)
    sentence = "is not supported: files and folders must be on a mounted file system"
    assert sentence in " ".join(told.replace("│", " ").split())


def test_a_uri_with_one_stroke_is_refused_where_uris_are_taken(capsys: pytest.CaptureFixture[str]) -> None:
    near = ["--range-m", "5", "--out", "x"]
    traced = ["trace.csv", "--format", "csv", "--scenario", "s", "--out"]
    for order in (
        ["metrics"], ["campaign", "campaign.toml", "--out"], ["ingest", *traced], ["stream"], ["contacts", *near],
    ):  # fmt: skip
        assert command(["lab", *order, "s3:/bucket"]) == 2
        assert "s3:/bucket must be written s3://bucket" in " ".join(capsys.readouterr().err.replace("│", " ").split())


def test_a_session_that_is_there_is_used_and_stays(spark: SparkSession) -> None:
    with session(SparkOptions(master="local[1]")) as found:
        assert found is spark
    assert spark.range(3).count() == 3


def test_times_are_utc_and_nothing_is_written_where_the_command_was_given(spark: SparkSession) -> None:
    assert spark.sql("SELECT CAST(TIMESTAMP '1970-01-01 00:00:00' AS bigint)").first() == (0,)
    assert not (Path.cwd() / "spark-warehouse").exists()
    assert "SPARK_LOCAL_DIRS" in os.environ


@pytest.mark.soak
def test_executors_are_other_processes_and_run_this_package(spark: SparkSession) -> None:
    def where(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield pa.RecordBatch.from_pylist([{"pid": os.getpid(), "file": carrypost.__file__, "cwd": str(Path.cwd())}])

    found = spark.range(0, 2, numPartitions=2).mapInArrow(where, "pid long, file string, cwd string").collect()
    assert all(each.pid != os.getpid() and "carrypost.zip" in each.file for each in found)
    assert all("site-packages" not in each.cwd for each in found)


def test_the_package_is_zipped_whole_and_the_same_every_time(tmp_path: Path) -> None:
    first = package_zip(tmp_path).read_bytes()
    assert package_zip(tmp_path).read_bytes() == first
    names = zipfile.ZipFile(tmp_path / "carrypost.zip").namelist()
    assert {"carrypost/__init__.py", "carrypost/emu/runs.py"} <= set(names)
    assert "carrypost/lab/spark/conf/log4j2.properties" in names
    assert not any(name.endswith(".pyc") for name in names)


@pytest.mark.soak
def test_the_zip_alone_is_a_package_that_runs_campaigns(tmp_path: Path) -> None:
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); import carrypost.lab.campaign.tasks as task; print(task.__file__)"
    )
    command = [sys.executable, "-c", program, str(package_zip(tmp_path))]
    told = subprocess.check_output(command, text=True)  # noqa: S603 - our own code
    assert told.startswith(str(tmp_path / "carrypost.zip"))


def test_what_our_code_finds_wrong_in_an_executor_is_told_as_it_says(spark: SparkSession) -> None:
    def failing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if batch.num_rows:
                raise LocalError("walkers.txt, line 7: two nodes with one id?")
            yield batch

    with pytest.raises(LocalError, match=r"^walkers.txt, line 7: two nodes with one id\?$"), session():
        spark.range(2).mapInArrow(failing, "id long").collect()


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("… java.io.IOException: No space left on device\n\tat …", "Spark failed: the disk is full"),
        (
            "[FAILED_READ_FILE] Encountered error while reading file file:/data/x.parquet. ParquetDecodingException",
            "/data/x.parquet: it is damaged",
        ),
        ("java.lang.OutOfMemoryError: Java heap space", "give it more with --memory"),
        ("\n  [UNRESOLVED_COLUMN] no such thing\nmore", r"Spark failed: [UNRESOLVED_COLUMN] no such thing"),
    ],
)
def test_of_pages_of_traces_one_sentence_is_told(said: str, told: str) -> None:
    with pytest.raises(LabError, match=re.escape(told)) as raised, explained():
        raise PySparkException(said)
    assert "\n" not in str(raised.value)


def test_a_mistake_in_a_query_is_one_sentence(spark: SparkSession, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(LabError, match="nowhere"), session():
        spark.sql("SELECT nowhere FROM range(3)")
    with pytest.raises(LabError, match="nowhere"), session():
        spark.range(3).select("nowhere")
    assert capfd.readouterr().err == ""


def is_spark(process: psutil.Process) -> bool:
    """Return True for the script that starts Spark, and for the Java that it becomes."""
    try:
        return "pyspark-shell" in process.cmdline()
    except psutil.Error:  # It has ended meanwhile.
        return False


def test_java_ends_with_a_command_that_is_interrupted_or_killed_while_spark_starts(tmp_path: Path) -> None:
    three(tmp_path)
    with played(campaign(tmp_path, seeds="[1]"), tmp_path / "out"):
        pass
    order = [sys.executable, "-c", "from carrypost.cli import main; main()", "lab", "metrics", str(tmp_path / "out")]
    order += ["--conf", "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"]
    scratch = os.environ | {"TMPDIR": str(tmp_path)}  # Its folder stays behind where a process is killed.
    until_s = time.monotonic() + PATIENCE_S
    below: list[psutil.Process] = []
    for number in (signal.SIGKILL, signal.SIGINT):
        with subprocess.Popen(order, stderr=subprocess.PIPE, text=True, env=scratch) as process:  # noqa: S603 - ours
            while not (mine := [each for each in psutil.Process(process.pid).children() if is_spark(each)]):
                assert process.poll() is None
                assert time.monotonic() < until_s
                time.sleep(0.02)
            below += mine
            process.send_signal(number)
            _, told = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == (130 if number == signal.SIGINT else -number)
        assert "Traceback" not in told
    _, left = psutil.wait_procs(below, timeout=PATIENCE_S * 3)
    alive = [each for each in left if each.status() != psutil.STATUS_ZOMBIE]  # Its new parent may be slow to look.
    for each in alive:
        each.kill()
    assert not alive


@pytest.mark.parametrize("failure", [Py4JNetworkError("Answer from Java side is empty"), ConnectionRefusedError()])
def test_ctrl_c_is_only_that_although_spark_tidies_up_over_a_broken_connection(failure: Exception) -> None:
    def tidied_up() -> NoReturn:
        try:
            raise KeyboardInterrupt
        finally:
            raise failure

    with pytest.raises(KeyboardInterrupt), explained():
        tidied_up()


def test_ctrl_c_while_spark_works_is_only_that(spark: SparkSession, capfd: pytest.CaptureFixture[str]) -> None:
    def work() -> int:
        return spark.sparkContext.parallelize([0.0, 60.0], 2).map(time.sleep).count()

    def ctrl_c() -> None:
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()

    ctrl_c()
    with pytest.raises(KeyboardInterrupt), session():
        watched(spark, "nothing", work, lambda _, __: None)
    ctrl_c()
    with pytest.raises(KeyboardInterrupt), session():
        work()
    assert capfd.readouterr().err == ""
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    spark.sparkContext.cancelAllJobs()
    assert spark.range(3).count() == 3
