"""Every test runs in one lane of the checks, chosen by its imports; one failing check fails the run."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tools import check, lanes, outcomes, part

PATIENCE_S = 60


def test_every_file_of_tests_is_in_one_lane_and_no_other() -> None:
    found = [file for lane in lanes.LANES for file in lanes.files(lane)]
    assert sorted(found) == sorted(str(file.relative_to(lanes.ROOT)) for file in lanes.ROOT.glob("tests/**/test_*.py"))


@pytest.mark.parametrize(
    ("name", "text", "lane"),
    [
        ("test_new", "import random", "virtual"),
        ("test_new", "from carrypost import testing", "virtual"),
        ("test_new", "import socket", "realtime"),
        ("test_new", "from tests.support.nodes import Nodes", "realtime"),
        ("test_new", "def test_that() -> None:\n    from tools import netns", "realtime"),
        ("test_new", "from tools.radio_hub import Radio", "realtime"),  # It has sockets.
        ("test_new", "def test_that(spark: SparkSession) -> None: ...", "laboratory"),
        ("test_new", "def test_that(request):\n    request.getfixturevalue('spark')", "laboratory"),
        ("test_lab_new", "import random", "laboratory"),
        ("test_labels", "import random", "virtual"),
        ("test_new", "from tests.support.browsers import Site", "browser"),
        ("test_new", "from tests.support import browsers, nodes", "browser"),
    ],
)
def test_a_new_file_goes_to_the_lane_of_what_it_uses(tmp_path: Path, name: str, text: str, lane: str) -> None:
    file = tmp_path / f"{name}.py"
    file.write_text(text, encoding="utf-8")
    assert lanes.lane_of(file) == lane


def test_the_parts_of_a_lane_have_all_its_files_once_and_take_about_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [f"test_{number}.py" for number in range(60)]
    for file in files:
        (tmp_path / file).touch()
    costs = {files[number]: cost_s for number, cost_s in ((3, 80.0), (4, 66.0), (5, 50.0), (50, 30.0))}
    monkeypatch.setattr(lanes, "ROOT", tmp_path)
    monkeypatch.setattr(lanes, "files", lambda _: files)
    monkeypatch.setattr(lanes, "recorded", lambda: costs)
    dealt = lanes.parts("virtual", without=files[7])
    assert sorted(file for part in dealt for file in part) == sorted(set(files) - {files[7]})
    taken_s = [sum(costs.get(file, lanes.USUAL_S) for file in part) for part in dealt]
    assert len(dealt) == 3
    assert max(taken_s) - min(taken_s) < 2 * lanes.USUAL_S
    assert len(lanes.parts("laboratory")) == 1  # Spark starts once.


def test_files_that_share_what_takes_long_to_make_are_in_one_part() -> None:
    together = {"tests/cli/test_demo.py", "tests/tools/test_package.py"}
    assert [together & set(part) for part in lanes.parts("realtime") if together & set(part)] == [together]


def programs(monkeypatch: pytest.MonkeyPatch, **texts: str) -> None:
    """Let the checks of these names be such programs."""
    for name, text in texts.items():
        monkeypatch.setitem(check.TOOLS, name, [sys.executable, "-c", text])


def test_a_check_that_fails_is_failure_and_the_others_run_all_the_same(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    programs(
        monkeypatch, lint="print('two mistakes'); raise SystemExit(3)", imports="print('a line'); print('all kept')"
    )
    monkeypatch.setitem(check.TOOLS, "format", ["no such tool"])
    assert check.main(["imports"]) == 0
    capsys.readouterr()
    assert check.main(["lint", "format", "imports"]) == 1
    table = [line.split(maxsplit=4) for line in capsys.readouterr().out.splitlines()[-4:]]
    assert [(row[0], row[1], row[4:]) for row in table] == [
        ("lint", "failed", ["two mistakes"]),
        ("format", "failed", ["no such tool: No such file or directory"]),
        ("imports", "passed", ["all kept"]),
        ("all", "failed", []),
    ]


def test_cpu_time_stands_beside_time_and_is_that_of_all_processes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    busy = "import time\nwhile time.process_time() < 0.15: pass"
    programs(
        monkeypatch, lint=f"import subprocess, sys; subprocess.run([sys.executable, '-c', {busy!r}])", imports=busy
    )
    assert check.main(["lint", "imports"]) == 0
    head, *rows = [line.split() for line in capsys.readouterr().out.splitlines()[-4:]]
    assert head[2:5] == ["CPU", "s", "seconds"]
    cpu_s = {row[0]: float(row[2]) for row in rows}
    assert min(cpu_s["lint"], cpu_s["imports"]) >= 0.15
    assert cpu_s["all"] == pytest.approx(cpu_s["lint"] + cpu_s["imports"], abs=0.2)


def test_while_it_runs_it_tells_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(check, "TELL_S", 0.05)
    programs(monkeypatch, types="import time; time.sleep(0.5)")
    assert check.main(["types"]) == 0
    assert "0 tests done; running: types; 0 wait\n" in capsys.readouterr().out


def test_tests_are_counted_while_they_run_and_the_dearest_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "test_cheap.py").write_text("def test_one(): pass\ndef test_two(): pass\n")
    (tmp_path / "test_dear.py").write_text(
        "import time\ndef test_three():\n    began = time.process_time()\n"
        "    while time.process_time() < began + 0.2: pass\ndef test_four(): assert False\n"
    )
    files = [str(tmp_path / f"test_{name}.py") for name in ("cheap", "dear")]
    monkeypatch.setattr(lanes, "parts", lambda _lane, without: [[file] for file in files if file != without])
    assert check.main(["virtual"]) == 1
    said = capsys.readouterr().out
    dearest = said.partition("the dearest tests\n")[2].splitlines()
    assert dearest[0].endswith("test_dear.py::test_three")
    assert len(dearest[: dearest.index("")]) == 4
    assert "1 failed, 3 passed in 2 parts" in said.splitlines()[-2]  # Though both files are in one folder.


def test_a_part_names_files_that_there_are(pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pytestconfig.option, "part", "tests/tools/test_lanes.py,tests/test_nothing.py", raising=False)
    with pytest.raises(pytest.UsageError, match=r"--part names what is not a file: .*tests/test_nothing\.py"):
        part.pytest_configure(pytestconfig)


def test_ctrl_c_ends_what_runs_and_nothing_else_begins(tmp_path: Path) -> None:
    text = f"""
import pathlib, sys
sys.path.insert(0, {str(lanes.ROOT)!r})
from tools import check, jobs
check.workers = lambda: 1
jobs.PATIENCE_S = 0.2
forever = "import pathlib, sys, time; pathlib.Path(sys.argv[1]).touch(); time.sleep(600)"
for name in ("lint", "types"):
    check.TOOLS[name] = [sys.executable, "-c", forever, {str(tmp_path)!r} + "/" + name]
sys.exit(check.main(["lint", "types"]))
"""
    with subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:  # noqa: S603 - ours
        until_s = time.monotonic() + PATIENCE_S
        while not (tmp_path / "lint").exists():
            assert process.poll() is None
            assert time.monotonic() < until_s
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)  # To it alone, not to what it started.
        _, said = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, said) == (130, b"\ninterrupted\n")
    assert not (tmp_path / "types").exists()


def test_programs_that_checks_start_keep_their_bytecode(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    programs(monkeypatch, lint="import sys; print(sys.dont_write_bytecode)")
    assert check.main(["lint"]) == 0
    assert "\nFalse\n" in capsys.readouterr().out


def test_a_name_that_no_check_has_is_told_with_those_that_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert check.main(["lint", "nonsense"]) == 2
    assert "'nonsense'; there are: lint, format, types, imports, compiled, sizes, realtime" in capsys.readouterr().err


def test_counts_of_all_parts_are_summed_whatever_a_library_says_at_the_end() -> None:
    parts = [
        "..\n2 passed, 1 deselected in 0.1s\n",
        ".s\n1 passed, 1 skipped in 0.2s\nException ignored\n",
    ]
    assert outcomes.summed(parts) == "3 passed, 1 skipped, 1 deselected in 2 parts"
