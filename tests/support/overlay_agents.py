"""Nodes of the overlay in programs of their own (`overlay_agent.py`), which tests give orders."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.copies import copy, python
from tests.support.nodes import QUICK, toml
from tools.netns import Net


class Agent:
    """A node in a program of its own, which gives it orders."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process, self.pid = process, process.pid
        self.id = self._answer()["node"]

    def ask(self, **order: object) -> dict[str, Any]:
        """Give an order; returns the view of the overlay after it."""
        found = self.tell(view=True, **order)["overlay"]
        assert isinstance(found, dict)
        return found

    def tell(self, **order: object) -> dict[str, Any]:
        """Send an order to the agent; return its state afterwards."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        found = json.loads(self._process.stdout.readline())
        assert isinstance(found, dict)
        assert not found["error"], found["error"]
        return found


@contextmanager
def agent(
    folder: Path, settings: Mapping[str, object], net: Net | None = None, *, fresh: bool = False
) -> Iterator[Agent]:
    """Start the program `overlay_agent.py`; its node has the name of the folder, and of the namespace, if any.

    It is a copy of this process (`tests.support.copies`), or a `fresh` interpreter.
    """
    folder.mkdir()
    file, name = folder / "node.toml", folder.name
    file.write_text(toml({**QUICK, **settings, "node": {"data": "data", "name": name}}), encoding="utf-8")
    program, pipe = Path(__file__).with_name("overlay_agent.py"), subprocess.PIPE
    with (
        subprocess.Popen([sys.executable, program, file], stdin=pipe, stdout=pipe)  # noqa: S603 - our own program
        if fresh
        else copy(python(program, file), net=net, namespace=name, stdin=pipe, stdout=pipe)
    ) as process:
        try:
            yield Agent(process)
        finally:
            process.kill()
