"""The frame of the command line."""

from __future__ import annotations

import os
import pty
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

import pytest
import typer
from typer.core import TyperGroup

import carrypost
from carrypost.cli import node
from carrypost.cli._output import progress
from carrypost.cli.app import app, run
from carrypost.cli.source_tree import available
from carrypost.extensions import BUILD
from carrypost.node.diagnosis import Finding

BENCHMARK = """
def main(argv):
    print("benchmark", *argv)
    return 3 if "fail" in argv else None
"""


@pytest.fixture
def benchmark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "benchmarks"
    folder.mkdir()
    (folder / "our_own.py").write_text(BENCHMARK)
    (folder / "_shared.py").write_text("")
    (folder / "no_main.py").write_text("")
    monkeypatch.chdir(tmp_path)
    return folder


def test_version_is_the_package_version_and_how_it_was_built(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"carrypost {carrypost.__version__} ({BUILD})\n"


def test_help_names_the_commands_and_gives_examples(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    shown = capsys.readouterr().out
    assert {"demo", "node", "pub", "lab"} <= set(shown.split())
    assert "bench" not in shown, "it serves those that change carrypost"
    assert "example" in shown


def commands(group: object, *path: str) -> Iterator[str]:
    """Yield every command as it is typed."""
    if not isinstance(group, TyperGroup):
        yield " ".join(path)
        return
    for name, inner in group.commands.items():
        yield from commands(inner, *path, name)


@pytest.mark.parametrize("command", list(commands(typer.main.get_command(app))))
def test_the_help_of_a_command_fits_a_terminal_and_gives_examples(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert run([*command.split(), "--help"]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    assert f"Usage: carrypost {command}" in shown.out
    assert "For example" in shown.out
    assert max(map(len, shown.out.splitlines())) <= 80
    assert "<bool>" not in shown.out, "a flag takes no value"


def test_every_example_in_a_help_is_a_command_line() -> None:
    tree = typer.main.get_command(app)
    seen = 0
    for name in commands(tree):
        command: Any = tree
        for part in name.split():
            command = command.commands[part]
        for example in re.findall(r"`([^`]*carrypost [^`]+)`", command.help.partition("For example")[2]):
            _, *arguments = shlex.split(example[example.index("carrypost") :])
            called: Any = tree
            while arguments and arguments[0] in getattr(called, "commands", ()):
                called = called.commands[arguments.pop(0)]
            called.make_context(example, arguments)  # Raises what is wrong with it.
            seen += 1
    assert seen > 50


def test_an_unknown_command_is_a_usage_error_told_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["benhc"]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "benhc" in shown.err


@pytest.mark.usefixtures("benchmark")
def test_bench_runs_a_benchmark_with_what_follows_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "our_own", "--size", "3", "--help"]) == 0
    assert capsys.readouterr().out == "benchmark --size 3 --help\n"


@pytest.mark.usefixtures("benchmark")
def test_bench_ends_with_the_exit_code_of_the_benchmark() -> None:
    assert run(["bench", "our_own", "fail"]) == 3


@pytest.mark.usefixtures("benchmark")
def test_bench_without_a_name_lists_the_benchmarks(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench"]) == 0
    names = capsys.readouterr().out.split()
    assert "our_own" in names
    assert "_shared" not in names


@pytest.mark.usefixtures("benchmark")
def test_an_unknown_benchmark_is_answered_with_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "theirs"]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "no benchmark called 'theirs'" in shown.err
    assert "our_own" in shown.err


def test_a_benchmark_of_the_source_tree_comes_before_one_of_the_working_directory(benchmark: Path) -> None:
    (benchmark / "core.py").write_text(BENCHMARK)
    found = available()
    assert found["core"] == Path(__file__).resolve().parents[2] / "benchmarks" / "core.py"
    assert found["our_own"] == benchmark / "our_own.py"


@pytest.mark.usefixtures("benchmark")
def test_a_file_without_main_is_no_benchmark(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "no_main"]) == 2
    assert "main(argv)" in capsys.readouterr().err


def test_the_package_imports_nothing_heavy() -> None:
    heavy = ["asyncio", "cryptography", "msgspec", "re2", "rich", "typer"]
    program = f"import sys, carrypost.cli; print([name for name in {heavy} if name in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)  # noqa: S603
    assert shown.stdout.strip() == "[]"


def test_the_tree_of_commands_loads_what_it_needs_to_show_help_and_no_more() -> None:
    heavy = ["asyncio", "carrypost.jms", "carrypost.node", "cryptography", "prompt_toolkit", "re2", "rich"]
    program = f"import sys, carrypost.cli.app; print([name for name in {heavy} if name in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)  # noqa: S603
    assert shown.stdout.strip() == "[]"


def test_the_package_runs_as_a_module() -> None:
    ran = subprocess.run([sys.executable, "-m", "carrypost", "--version"], capture_output=True, text=True, check=True)
    assert ran.stdout == f"carrypost {carrypost.__version__} ({BUILD})\n"


@contextmanager
def terminal() -> Iterator[tuple[TextIO, list[str]]]:
    """Yield a terminal, and a list that has its output when the block is over."""
    ours, theirs = pty.openpty()
    shown: list[str] = []
    with os.fdopen(theirs, "w") as stream:
        yield stream, shown
    parts = []
    with os.fdopen(ours, "rb", buffering=0) as screen, suppress(OSError):  # Linux raises it at the end.
        while part := screen.read(65_536):
            parts.append(part)
    shown.append(b"".join(parts).decode())


def test_a_bar_shows_how_many_there_are_from_its_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    with terminal() as (stream, shown):
        monkeypatch.setattr(sys, "stderr", stream)
        with progress("bus", "runs", 4):
            pass
    assert "0/4" in shown[0]
    assert "0/?" not in shown[0]


@pytest.mark.parametrize("no_color", ["", "1"])
def test_the_doctor_has_colours_unless_nobody_wants_them(monkeypatch: pytest.MonkeyPatch, no_color: str) -> None:
    monkeypatch.setenv("NO_COLOR", no_color)
    with terminal() as (stream, shown):
        monkeypatch.setattr(sys, "stdout", stream)
        node.show_finding(Finding(interface="lo", means="multicast", works=True, detail="heard"))
    assert ("\x1b[" in shown[0]) is not bool(no_color)
    assert "works" in shown[0]
