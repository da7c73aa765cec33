"""The benchmark of the laboratory runs, and its figures can be true; so do the scales. Speed is not tested."""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from typing import TYPE_CHECKING

import pytest
from benchmarks._lab_weigh import weigh, weigh_apart
from benchmarks._processes import BenchmarkError
from tests.support.benches import Tables

from benchmarks import lab
from carrypost.cli.app import run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BURN_S = 0.2
BURN = f"import time\nwhile time.process_time() < {BURN_S}: pass"
HOLD_BYTES = 150_000_000


def burn() -> str:
    end_s = time.process_time() + BURN_S
    while time.process_time() < end_s:
        pass
    return "done"


def child(code: str) -> None:
    subprocess.run([sys.executable, "-c", code], check=True)  # noqa: S603 - our own program


# --- the scales --------------------------------------------------------------------------------------------


def test_time_of_this_process_is_weighed_and_what_came_of_it_is_given() -> None:
    found = weigh(burn)
    assert found.result == "done"
    assert BURN_S <= found.cpu_s < 1
    assert found.wall_s >= BURN_S
    assert 0 < found.before_bytes <= found.peak_bytes


def test_time_of_children_that_ended_counts_unless_this_process_alone_is_weighed() -> None:
    assert weigh(lambda: child(BURN)).cpu_s >= BURN_S
    assert weigh(lambda: child(BURN), tree=False).cpu_s < BURN_S


@pytest.mark.soak
def test_time_of_what_was_started_before_counts_from_the_beginning_only() -> None:
    code = "import time\nprint(flush=True)\nwhile time.process_time() < 60: pass"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as busy:  # noqa: S603 - our own program
        assert busy.stdout is not None
        busy.stdout.readline()
        burn()
        burn()
        found = weigh(burn)
        busy.kill()
    assert BURN_S < found.cpu_s < 2 * found.wall_s + 0.1


@pytest.mark.parametrize(("tree", "least", "most"), [(True, 0.9, 1.5), (False, 0.0, 0.5)])
def test_memory_of_children_counts_unless_this_process_alone_is_weighed(tree: bool, least: float, most: float) -> None:
    code = f"held = b'x' * {HOLD_BYTES}\nprint(flush=True)\ninput()"
    pipe = subprocess.PIPE
    with contextlib.ExitStack() as stack:

        def hold() -> None:
            program = subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe)  # noqa: S603 - our own
            stack.enter_context(program)
            stack.callback(program.communicate, b"\n")
            assert program.stdout is not None
            program.stdout.readline()

        found = weigh(hold, tree=tree)
    assert least * HOLD_BYTES <= found.more_bytes <= most * HOLD_BYTES


def test_work_that_fails_fails_and_leaves_no_program() -> None:
    with pytest.raises(ZeroDivisionError):
        weigh(lambda: 1 // 0)
    assert weigh(burn).result == "done"


def test_work_apart_does_not_bear_what_this_process_holds() -> None:
    held = b"x" * HOLD_BYTES
    found = weigh_apart(json.loads, "[1, 2]")
    assert found.result == [1, 2]
    assert found.peak_bytes < len(held)
    assert weigh(burn).before_bytes > len(held)


def test_work_apart_that_fails_is_told(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(BenchmarkError, match=r"json\.loads ended with exit code 1"):
        weigh_apart(json.loads, "{")
    assert "JSONDecodeError" in capfd.readouterr().err


# --- the benchmark -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shown(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Tables:
    """Return the tables for small cases, on the Spark that is there."""
    assert spark.version
    folder = tmp_path_factory.mktemp("bench")
    out = io.StringIO()
    with contextlib.redirect_stdout(out), pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(folder))
        assert run(["bench", "lab", "--quick", "--json"]) == 0
    assert list(folder.iterdir()) == []
    found: Tables = defaultdict(list)
    for line in out.getvalue().splitlines():
        row = json.loads(line)
        found[row.pop("table")].append(row)
    for rows in found.values():
        assert all(row.keys() == rows[0].keys() for row in rows)
    return dict(found)


@pytest.mark.soak
def test_every_part_is_measured_on_spark_and_beside_it(shown: Tables) -> None:
    assert list(shown)[-2:] == ["Fixed", "Goals"]
    assert len(shown) == len(lab.PARTS) + 2
    for name in list(shown)[: len(lab.PARTS)]:
        engines = {row["engine"] for row in shown[name]}
        assert len(engines) > 1
        assert any("park" in engine for engine in engines)
        for row in shown[name]:
            assert 0 < row["wall s"] < 600
            assert 0 < row["CPU s"] < 600
            assert 1 < row["peak MB"] < 20_000


@pytest.mark.soak
def test_what_spark_costs_by_itself_is_told(shown: Tables) -> None:
    """Report only the times of the first job and of later ones if Spark is running already."""
    steps = ["first job", "second job", "first mapInArrow", "second mapInArrow"]
    assert [(row["before"], row["what"]) for row in shown["Fixed"]] == [(lab.PARTS[0], what) for what in steps]
    for row in shown["Fixed"]:
        assert 0 <= row["more MB"] <= row["peak MB"]
        assert 0 < row["wall s"] < 600


@pytest.mark.soak
def test_small_cases_meet_no_goals(shown: Tables) -> None:
    assert len(shown["Goals"]) >= len(lab.PARTS)
    for row in shown["Goals"]:
        assert row["measured"] > 0
        assert row["met"] is None
