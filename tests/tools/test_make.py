"""Targets of `make`: the demonstration needs the package alone, the checks need the rest."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
INSTALLS = "-m pip install"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A tree in which nothing was made yet."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


def planned(tree: Path, target: str) -> list[str]:
    """Return the lines that make would run."""
    if shutil.which("make") is None:
        pytest.skip("there is no make")
    # Within `make test` this is a make inside another, which tells of the folders that it enters and leaves.
    command = ["make", "--no-print-directory", "--dry-run", target]
    ran = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=True)  # noqa: S603 - ours
    return ran.stdout.splitlines()


def test_the_demonstration_installs_the_package_alone(tree: Path) -> None:
    *lines, last = planned(tree, "demo")
    assert last == ".venv/bin/carrypost demo"
    (installed,) = [line for line in lines if INSTALLS in line]
    assert " --editable ." in installed
    assert "[" not in installed


def test_the_pages_need_neither_the_tools_nor_the_laboratory(tree: Path) -> None:
    lines = planned(tree, "web")
    assert [line.split("--editable ")[1].split()[0] for line in lines if INSTALLS in line] == [".", "'.[web,emu]'"]
    assert lines[-1] == ".venv/bin/carrypost web  --open"
    (tree / "demo-record").mkdir()
    assert planned(tree, "web")[-1] == ".venv/bin/carrypost web demo-record --open"


@pytest.mark.parametrize("target", ["test", "soak"])
def test_the_checks_install_the_rest_and_say_what_before_each_step(tree: Path, target: str) -> None:
    lines = planned(tree, target)
    steps = [number for number, line in enumerate(lines) if INSTALLS in line]
    assert [lines[number].split("--editable ")[1].split()[0] for number in steps] == [".", "'.[dev]'", "'.[lab]'"]
    for number in steps:
        assert lines[number - 1].startswith('echo "installing ')
    assert "--quiet" not in lines[steps[-1]], "the long step shows how far it is"


def test_the_package_is_built_without_the_laboratory(tree: Path) -> None:
    lines = planned(tree, "package")
    assert [line.split("--editable ")[1].split()[0] for line in lines if INSTALLS in line] == [
        ".",
        "'.[web,emu]'",
        "'.[dev]'",
    ]
    assert ".venv/bin/python -m build --no-isolation" in lines
    assert any(
        line.startswith("CARRYPOST_COMPILE=1 .venv/bin/python -m build --no-isolation --wheel") for line in lines
    )
