"""A process with Java's machine, which runs programs of `test_openwire_java` by their names.

It is a process of its own because a process that has Java's machine cannot be copied, as other tests do
(`tests.support.copies`). Reads lines ``NAME PORT``, and answers each by a line of JSON: true and what the program
returned, or false and a traceback.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any, Self

import pytest
from tools.java_client import archives

WAIT_S = 120


class Agent:
    """The process, from the outside."""

    def __init__(self) -> None:
        pytest.importorskip("jpype", reason="needs JPype1, which `make` installs")
        if not archives():
            pytest.skip("needs ActiveMQ's client: run tools/java_client.py, or name its folder by JMS_JARS")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.java_agent"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[2], text=True,
        )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def run(self, name: str, port: int = 0) -> Any:  # noqa: ANN401 - the program's
        """Return what a program returns; raises what it raised, as text."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{name} {port}\n")
        self._process.stdin.flush()
        worked, result = json.loads(self._process.stdout.readline() or '[false, "the agent ended"]')
        assert worked, result
        return result


def main() -> None:
    """Run programs until standard input ends."""
    programs = importlib.import_module("tests.daemon.test_openwire_java")
    for line in sys.stdin:
        name, port = line.split()
        try:
            answer = (True, getattr(programs, name)(int(port)))
        except BaseException:  # noqa: BLE001 - the test shows it
            answer = (False, traceback.format_exc())
        print(json.dumps(answer), flush=True)  # noqa: T201 - the test reads it


if __name__ == "__main__":
    main()
