"""`carrypost emu`: runs scenarios, reports their results, and fails with one sentence."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support import emulated

from carrypost.cli.app import run
from carrypost.emu import records

TEXT = """
duration_s = 100
[contacts]
file = "contacts.csv"
"""


@pytest.fixture
def scene(tmp_path: Path) -> str:
    emulated.contacts(tmp_path, "a,b,10,30", "b,c,20,60")
    (tmp_path / "scene.toml").write_text(TEXT + emulated.BROADCAST)
    return str(tmp_path / "scene.toml")


def test_a_run_writes_its_record_and_says_what_came_of_it(
    scene: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "records.parquet"
    assert run(["emu", "run", scene, "--seed", "3", "--out", str(out), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    table = records.read(out)
    assert (told["run"], told["nodes"], told["contacts"]) == ("scene/default/3", 3, 2)
    assert (told["rows"], told["record"]) == (table.num_rows, str(out))
    assert told["receptions"] == table["kind"].to_pylist().count("receive") > 0


def test_keys_and_mode_can_be_changed_on_the_command_line(scene: str, tmp_path: Path) -> None:
    out = str(tmp_path / "records.parquet")
    assert run(["emu", "run", scene, "--set", "workload.0.size=77", "--mode", "ideal", "--encoded", "-o", out]) == 0
    found = records.read(out).to_pylist()
    assert {row["size"] for row in found if row["kind"] == "publish"} == {77}
    attrs = dict(found[0]["attrs"])
    assert attrs["mode"] == "ideal"
    assert "size = 77" in attrs["scenario"]


def test_contacts_are_exported_for_the_one(scene: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "contacts.txt"
    assert run(["emu", "run", scene, "--export-one", str(out)]) == 0
    assert out.read_text().splitlines() == [
        "# host 0 is a",
        "# host 1 is b",
        "# host 2 is c",
        "10 CONN 0 1 up",
        "20 CONN 1 2 up",
        "30 CONN 0 1 down",
        "60 CONN 1 2 down",
    ]
    (tmp_path / "again.toml").write_text('duration_s = 100\n[contacts]\nfile = "contacts.txt"\n')
    capsys.readouterr()
    assert run(["emu", "run", str(tmp_path / "again.toml"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["contacts"] == 2


def test_a_record_is_shown(scene: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "records.parquet")
    assert run(["emu", "run", scene, "--out", out]) == 0
    capsys.readouterr()
    assert run(["emu", "show", out, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["run"], told["contacts"], told["published"]) == ("scene/default/1", 2, 15)


def test_several_records_are_shown_one_after_the_other(
    scene: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outs = [str(tmp_path / f"{seed}.parquet") for seed in (1, 2)]
    for seed, out in zip((1, 2), outs, strict=True):
        assert run(["emu", "run", scene, "--seed", str(seed), "--out", out]) == 0
    capsys.readouterr()
    assert run(["emu", "show", *outs, "--json"]) == 0
    shown = [json.loads(line)["run"] for line in capsys.readouterr().out.splitlines()]
    assert shown == ["scene/default/1", "scene/default/2"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--set", "workload.0.siez=1"], "did you mean size?"),
        (["--mode", "perfect"], 'mode must be "faithful" or "ideal"'),
        (["--out", "."], "the record . cannot be written: it is not a regular file"),
        (["--out", "/dev/null"], "the record /dev/null cannot be written: it is not a regular file"),
        (["--out", "nowhere/records.parquet"], "nowhere/records.parquet cannot be written"),
        (["--export-one", "nowhere/contacts.txt"], "nowhere/contacts.txt cannot be written"),
        (["--set", "contacts.file=none.csv"], "none.csv: there is no such file"),
    ],
)
def test_a_mistake_ends_with_a_sentence_and_code_2(
    scene: str, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["emu", "run", scene, *arguments]) == 2
    assert said in capsys.readouterr().err


def test_the_record_of_nobody_cannot_be_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["emu", "show", str(tmp_path / "none.parquet")]) == 2
    assert "cannot be read as a record" in capsys.readouterr().err


def test_soak_tries_ordered_topics_when_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["emu", "soak", "--order", "--seeds", "1", "--first", "3", "--out", str(tmp_path), "--json"]) == 0
    ordered = json.loads(capsys.readouterr().out)
    assert run(["emu", "soak", "--seeds", "1", "--first", "3", "--out", str(tmp_path), "--json"]) == 0
    assert ordered["tried"] == 1
    assert ordered != json.loads(capsys.readouterr().out)


def test_without_the_extra_the_line_that_installs_it_is_said(
    scene: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert run(["emu", "run", scene]) == 2
    assert "pip install 'carrypost[emu]'" in capsys.readouterr().err


def test_ctrl_c_leaves_a_readable_record_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "long.toml").write_text(
        'duration_s = 1e6\n[nodes]\ncount = 5\n[[workload]]\nkind = "broadcast"\nperiod_s = 1\nlifetime_s = 10\n'
    )
    out = tmp_path / "r.parquet"
    controller, terminal = pty.openpty()  # The bar tells when the run has begun.
    # Whoever runs these tests in the background may have told their children to ignore Ctrl-C.
    heed = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    program = f"{heed}; from carrypost.cli import main; main()"
    command = [sys.executable, "-c", program, "emu", "run", str(tmp_path / "long.toml"), "--out", str(out)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=terminal) as process:  # noqa: S603 - ours
        os.close(terminal)
        seen = b""
        while b"receptions" not in seen:
            seen += os.read(controller, 4096)
        process.send_signal(signal.SIGINT)
        said = _rest(controller)
        assert process.wait() == 130
    assert "has the rows up to then" in said
    table = records.read(out)
    assert table["kind"][0].as_py() == "run"
    assert table.num_rows > 1


def _rest(controller: int) -> str:
    found = b""
    with contextlib.suppress(OSError):  # The other side is closed.
        while part := os.read(controller, 4096):
            found += part
    os.close(controller)
    return found.decode(errors="replace")
