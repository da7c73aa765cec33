from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.copies import copy, python

from tools import netns

PIPE = subprocess.PIPE


def told(text: str, *arguments: str, env: dict[str, str] | None = None) -> tuple[int, str, str]:
    """Run a text in a copy; return its exit code and its output."""
    process = copy(python("-c", text, *arguments), stdout=PIPE, stderr=PIPE, text=True, env=env)
    out, err = process.communicate(timeout=30)
    return process.returncode, out, err


def test_a_copy_has_the_arguments_environment_and_exit_code_of_a_program() -> None:
    text = "import os, sys; print(__name__, sys.argv, dict(os.environ)); sys.exit(3)"
    assert told(text, "x", env={"A": "b"}) == (3, "__main__ ['-c', 'x'] {'A': 'b'}\n", "")


def test_an_error_in_a_copy_shows_as_a_traceback_and_an_exit_code() -> None:
    code, out, err = told("1 / 0")
    assert (code, out) == (1, "")
    assert err.startswith("Traceback")
    assert err.endswith("ZeroDivisionError: division by zero\n")


def test_a_file_is_a_program(tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text("import sys\nif __name__ == '__main__':\n    print(sys.argv[1:], sys.stdin.read())\n")
    process = copy(python(file, 5), stdin=PIPE, stdout=PIPE, text=True)
    assert process.communicate("words", timeout=30)[0] == "['5'] words\n"
    assert process.returncode == 0


@pytest.fixture
def open_file(tmp_path: Path) -> Iterator[int]:
    with (tmp_path / "file").open("w") as file:
        yield file.fileno()


def test_a_copy_has_no_file_of_the_test(open_file: int) -> None:
    assert told(f"import os\ntry: os.fstat({open_file})\nexcept OSError as error: print(error.errno)") == (0, "9\n", "")


def test_a_copy_made_inside_a_loop_runs_its_own_and_ends_by_a_signal() -> None:
    text = "import asyncio; asyncio.run(asyncio.sleep(0)); print('ran', flush=True); import signal; signal.pause()"

    async def scene() -> int:
        with copy(python("-c", text), stdout=PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ran\n"
            process.send_signal(signal.SIGTERM)
            return process.wait(30)

    assert asyncio.run(scene()) == -signal.SIGTERM


def test_warnings_are_no_errors_in_a_copy() -> None:
    code, out, err = told("import warnings; warnings.warn('old', DeprecationWarning); warnings.warn('odd'); print(1)")
    assert (code, out) == (0, "1\n")
    assert "UserWarning: odd" in err
    assert "old" not in err


@pytest.mark.skipif(bool(netns.available()), reason=f"no network namespaces: {netns.available()}")
def test_a_copy_is_inside_a_namespace_in_the_same_folder_and_ends_with_the_net() -> None:
    text = "import os, signal, socket; print(socket.if_nameindex(), os.getcwd(), flush=True); signal.pause()"
    with netns.Net() as net:
        net.add("a", "b")
        net.cable("a", "b")
        process = copy(python("-c", text), net=net, namespace="a", stdout=PIPE, text=True)
        assert process.stdout is not None
        said = process.stdout.readline()
    assert "'lo'" in said
    assert "'eth0'" in said
    assert said.endswith(f" {Path.cwd()}\n")
    assert process.returncode == -signal.SIGKILL
    assert os.getpid() != process.pid
