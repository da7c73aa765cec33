"""Benchmarks run by their command, in this process or apart, and the tables that they show."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import sysconfig
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from tests.support.copies import copy, python
from tools.netns import Net

from benchmarks import _processes
from carrypost.cli.app import run as command

Tables = dict[str, list[dict[str, Any]]]
COMMAND = str(Path(sysconfig.get_path("scripts")) / "carrypost")


def _copied(
    program: Sequence[str], environment: Mapping[str, str], net: Net | None, namespace: str
) -> subprocess.Popen[bytes]:
    pipe = subprocess.PIPE
    return copy(python(*program), net=net, namespace=namespace, stdin=pipe, stdout=pipe, env=environment)


@dataclass(frozen=True)
class Bench:
    """The benchmark of this name."""

    name: str

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(  # noqa: S603 - our own command
            [COMMAND, "bench", self.name, *arguments],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, **environment},
        )

    def here(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run it in this process, which has loaded most of what it uses; its nodes are copies of this process."""
        out, err = io.StringIO(), io.StringIO()
        with (
            mock.patch.object(_processes, "launch", _copied),
            mock.patch.object(sys, "path", list(sys.path)),
            mock.patch.dict(os.environ, environment),
            mock.patch.object(tempfile, "tempdir", environment.get("TMPDIR", tempfile.gettempdir())),
            redirect_stdout(out),
            redirect_stderr(err),
        ):
            code = command(["bench", self.name, *arguments])
        return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())

    def tables(self, folder: Path, *arguments: str, apart: bool = False, progress: bool = False) -> Tables:
        """Return the tables that it shows; nothing is left in `folder`, which it has for its own files.

        `apart`: it runs in a process of its own, with fresh nodes.
        """
        outcome = (self.run if apart else self.here)(*arguments, TMPDIR=str(folder))
        assert outcome.returncode == 0, outcome.stderr
        assert outcome.stderr or not progress
        assert list(folder.iterdir()) == []
        found: Tables = defaultdict(list)
        for line in outcome.stdout.splitlines():
            row = json.loads(line)
            found[row.pop("table")].append(row)
        for rows in found.values():
            assert all(row.keys() == rows[0].keys() for row in rows)
        return dict(found)
