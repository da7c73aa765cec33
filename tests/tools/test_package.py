"""The package: built, installed outside the source tree, and used as the README says."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tarfile
from pathlib import Path
from zipfile import ZipFile

import pytest
from tests.support.loopback import apart
from tests.support.packages import ROOT, Environment, build
from tools.document_programs import programs

import carrypost
from carrypost.cli.app import run
from carrypost.cli.source_tree import SHIPPED

PATIENCE_S = 180


def environment(place: Path) -> dict[str, str]:
    """Return an environment for programs whose node is in this place, and hears only itself."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("CARRYPOST_", "PYTHON"))}
    given = {f"UDP_{name.upper()}": json.dumps(value) for name, value in apart().items()}
    return kept | {f"CARRYPOST_{name}": value for name, value in {**given, "NODE_DATA": str(place / "node")}.items()}


def output(command: list[str], place: Path) -> str:
    """Return what a program prints that runs in a folder outside the source tree."""
    ran = subprocess.run(  # noqa: S603 - our own
        command, cwd=place, env=environment(place), capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert (ran.returncode, ran.stderr) == (0, ""), ran.stdout
    return ran.stdout


def try_first_program(installed: Environment, place: Path) -> None:
    """Run the first program of the README, and check that it is the package that it uses."""
    first = next(each for each in programs() if each.path.name == "README.md")
    (place / "first.py").write_text(f"{first.source}\nimport carrypost\nprint(carrypost.__file__)\n")
    *said, where = output([installed.python, "first.py"], place).splitlines(keepends=True)
    assert "".join(said) == first.output
    assert Path(where).is_relative_to(installed.folder)


def shipped() -> set[str]:
    """Return the files that git has of what is shipped."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *SHIPPED]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)  # noqa: S603 - ours
    if ran.returncode:
        pytest.skip("this is not a git repository")
    return {each for each in ran.stdout.splitlines() if (ROOT / each).exists()}


def test_the_wheel_runs_the_first_program_and_has_examples_scenarios_and_documents(
    installed: Environment, tmp_path: Path
) -> None:
    try_first_program(installed, tmp_path)
    listed = output([installed.carrypost, "examples", "learn"], tmp_path)
    assert listed.split() == [f"learn/{name}" for name in SHIPPED]
    learn = tmp_path / "learn"
    assert {str(each.relative_to(learn)) for each in learn.rglob("*") if each.is_file()} == shipped()
    found = output([installed.python, "-c", "from carrypost.log.files import shipped; print(shipped())"], tmp_path)
    assert Path(found.strip(), "scenarios", "city_bus.toml").is_file()


@pytest.mark.soak
def test_wheel_and_sdist_work_in_an_environment_that_has_nothing_else(tmp_path: Path) -> None:
    sdist, wheel = sorted(build(tmp_path / "dist"), key=lambda path: path.suffix)
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert shipped() | {"Makefile", "constraints.txt", "pyproject.toml", "tools/check.py"} <= names
    with ZipFile(wheel) as archive:
        assert not [name for name in archive.namelist() if name.startswith(("tests/", "tools/"))]
    installed = Environment(tmp_path / "environment")
    installed.install(f"{wheel}[metrics,emu]", "--constraint", str(ROOT / "constraints.txt"))
    try_first_program(installed, tmp_path)
    told = output([installed.carrypost, "demo", "--quick"], tmp_path)
    assert "anna  is told: DELIVERED" in told
    output([installed.carrypost, "examples", "learn"], tmp_path)
    output([installed.python, "learn/examples/three_hosts.py"], tmp_path)


def test_examples_are_copied_into_a_new_folder_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["examples", "deep/learn"]) == 0
    assert Path("deep/learn/examples/chat.py").read_text() == (ROOT / "examples" / "chat.py").read_text()
    assert [each.name for each in Path("deep").iterdir()] == ["learn"]
    assert capsys.readouterr().out.split()[-1] == "deep/learn/scenarios"
    assert run(["examples", "deep/learn"]) == 2
    assert "deep/learn exists already: name a new folder" in capsys.readouterr().err
    Path("file").touch()
    assert run(["examples", "file/learn"]) == 2
    assert re.search(r"file/learn cannot be written: Not a directory", capsys.readouterr().err)


def test_the_readme_installs_the_version_that_is_built() -> None:
    readme = (ROOT / "README.md").read_text()
    (named,) = set(re.findall(r"carrypost-([\d.]+\w*)-py3-none-any\.whl", readme))
    assert named == carrypost.__version__
