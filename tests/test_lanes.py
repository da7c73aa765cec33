"""Every test runs in one lane of the checks, chosen by what it uses; and one check that fails is failure."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tools import check, lanes


def test_every_file_of_tests_is_in_one_lane_and_no_other() -> None:
    found = [file for lane in lanes.LANES for file in lanes.files(lane)]
    assert sorted(found) == sorted(str(file.relative_to(lanes.ROOT)) for file in lanes.ROOT.glob("tests/**/test_*.py"))


@pytest.mark.parametrize(
    ("name", "text", "lane"),
    [
        ("test_new", "import random", "virtual"),
        ("test_new", "from carrypost import testing", "virtual"),
        ("test_new", "import socket", "realtime"),
        ("test_new", "from tests.nodes import Nodes", "realtime"),
        ("test_new", "def test_that() -> None:\n    from tools import netns", "realtime"),
        ("test_new", "from tools.radio_hub import Radio", "realtime"),  # It has sockets.
        ("test_new", "def test_that(spark: SparkSession) -> None: ...", "laboratory"),
        ("test_new", "def test_that(request):\n    request.getfixturevalue('spark')", "laboratory"),
        ("test_lab_new", "import random", "laboratory"),
        ("test_labels", "import random", "virtual"),
    ],
)
def test_a_new_file_goes_to_the_lane_of_what_it_uses(tmp_path: Path, name: str, text: str, lane: str) -> None:
    file = tmp_path / f"{name}.py"
    file.write_text(text, encoding="utf-8")
    assert lanes.lane_of(file) == lane


def test_a_check_that_fails_is_failure_and_the_others_run_all_the_same(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    programs = {"lint": "print('two mistakes'); raise SystemExit(3)", "imports": "print('a line'); print('all kept')"}
    for name, program in programs.items():
        monkeypatch.setitem(check.TOOLS, name, [sys.executable, "-c", program])
    assert check.main(["imports"]) == 0
    capsys.readouterr()
    assert check.main(["lint", "imports"]) == 1
    table = [line.split(maxsplit=3) for line in capsys.readouterr().out.splitlines()[-3:]]
    assert [(row[0], row[1], row[3:]) for row in table] == [
        ("lint", "failed", ["two mistakes"]), ("imports", "passed", ["all kept"]), ("all", "failed", []),
    ]  # fmt: skip


def test_programs_that_checks_start_keep_their_bytecode(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setitem(check.TOOLS, "lint", [sys.executable, "-c", "import sys; print(sys.dont_write_bytecode)"])
    assert check.main(["lint"]) == 0
    assert "\nFalse\n" in capsys.readouterr().out


def test_a_name_that_no_check_has_is_told_with_those_that_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert check.main(["lint", "nonsense"]) == 2
    assert "'nonsense'; there are: lint, format, types, imports, sizes, realtime" in capsys.readouterr().err
