"""A driver that is killed in the middle of a campaign: started again, its records equal those of an undisturbed one."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from tests.support.campaigns import THREE, TWO_SETTINGS, campaign, records, states, three

from carrypost.lab import folders
from carrypost.lab.schemas import FAILURES, RUNS
from carrypost.printing import many

pytestmark = pytest.mark.soak
PATIENCE_S = 600
RUNS_ALL = 8


@pytest.fixture
def path(tmp_path: Path) -> Path:
    three(tmp_path, THREE.replace("period_s = 20", "period_s = 0.05"))
    return campaign(tmp_path, TWO_SETTINGS, seeds=f"{{last = {RUNS_ALL // 2}}}")


def start(path: Path, out: Path, *options: str) -> subprocess.Popen[bytes]:
    program = "from carrypost.cli import main; main()"
    command = [sys.executable, "-c", program, "lab", "campaign", str(path), "--out", str(out), *options]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)  # noqa: S603 - our own


def until_some_are_done(out: Path, program: subprocess.Popen[bytes]) -> None:
    until_s = time.monotonic() + PATIENCE_S
    while not (out / ".runs").is_dir() or not states(out):
        assert time.monotonic() < until_s
        assert program.poll() is None
        time.sleep(0.01)


def family(program: subprocess.Popen[bytes]) -> list[psutil.Process]:
    return psutil.Process(program.pid).children(recursive=True)


def is_worker(process: psutil.Process) -> bool:
    try:
        return "pyspark.daemon" in " ".join(process.cmdline())
    except psutil.Error:  # It ended.
        return False


def gone(processes: list[psutil.Process]) -> Iterator[bool]:
    _, alive = psutil.wait_procs(processes, timeout=60)
    for each in alive:
        yield each.status() == psutil.STATUS_ZOMBIE


def test_killed_and_begun_again_it_has_the_records_of_an_undisturbed_one(path: Path, tmp_path: Path) -> None:
    whole, out = tmp_path / "whole", tmp_path / "out"
    with start(path, whole, "--jobs", "1") as program:
        assert program.wait(PATIENCE_S) == 0
    with start(path, out, "--jobs", "2") as program:
        until_some_are_done(out, program)
        below = family(program)
        program.send_signal(signal.SIGKILL)
        program.wait(PATIENCE_S)
    assert all(gone(below))  # Nobody works on for a driver that is dead.
    done = len(states(out))
    assert 0 < done < RUNS_ALL
    with start(path, out, "--jobs", "2") as program:
        _, told = program.communicate(timeout=PATIENCE_S)
    assert program.returncode == 0
    assert f"{many(done, 'run is', 'runs are')} done already" in told.decode()
    assert records(out) == records(whole)
    tables = [folders.read_arrow(each, RUNS).drop(["cpu_s", "elapsed_s"]) for each in (out, whole)]
    assert tables[0].equals(tables[1])
    assert folders.read_arrow(out, FAILURES).num_rows == 0


def test_ctrl_c_ends_it_at_once_and_says_how_to_go_on(path: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with start(path, out, "--jobs", "1") as program:
        until_some_are_done(out, program)
        below = family(program)
        program.send_signal(signal.SIGINT)
        _, told = program.communicate(timeout=60)
    assert program.returncode == 130
    assert "run the same command again for the rest" in told.decode()
    assert "Traceback" not in told.decode()
    assert all(gone(below))
    assert not list(out.rglob("*.partial"))
    assert 0 < folders.read_arrow(out, RUNS).num_rows < RUNS_ALL


def test_a_process_that_dies_in_a_run_does_not_end_the_campaign(path: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with start(path, out, "--jobs", "1") as program:
        until_some_are_done(out, program)
        workers = [each for each in family(program) if is_worker(each)]
        assert len(workers) > 1
        workers[-1].kill()  # The youngest: one that runs, not the one that starts them.
        assert program.wait(PATIENCE_S) == 0
    assert len(records(out)) == RUNS_ALL
