"""The folder of the records: marked as the demonstration's, cleared by the next one, and used by one at a time."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import msgspec

from carrypost.errors import LocalError, RunningError
from carrypost.log.files import refusing

try:
    import fcntl
except ImportError:  # Windows: best effort
    fcntl = None  # type: ignore[assignment]

MARK = "demo.json"
"""File with the names of the nodes by their ids."""
CAMPAIGN = "campaign"
"""Folder of the campaign, inside that of the records."""


class RecordFolder:
    """A folder that is this demonstration's alone."""

    def __init__(self, path: Path, mark: BinaryIO) -> None:
        self.path = path
        self._mark = mark

    def name(self, names: Mapping[str, str]) -> None:
        """Write down the names of the nodes, for people and programs that read the records."""
        with refusing(f"the folder {self.path} cannot be used"):
            self._mark.truncate(0)
            self._mark.seek(0)
            self._mark.write(msgspec.json.format(msgspec.json.encode(names)) + b"\n")


@contextmanager
def claimed(path: Path) -> Iterator[RecordFolder]:
    """Make a folder for records, or take one that an earlier demonstration left, without its records.

    Raise `LocalError` if there are other files in it, and `RunningError` if another demonstration uses it.
    """
    with refusing(f"the folder {path} cannot be used"):
        path.mkdir(parents=True, exist_ok=True)
        if any(path.iterdir()) and not (path / MARK).exists():
            raise LocalError(f"{path} has files that are not from a demonstration: name another folder with --record")
        mark = (path / MARK).open("ab", buffering=0)
    with mark:
        if fcntl is not None:
            try:
                fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise RunningError(f"another demonstration uses {path}: name another folder with --record") from None
        with refusing(f"the folder {path} cannot be used"):
            for old in path.glob("*.jsonl*"):
                old.unlink()
        shutil.rmtree(path / CAMPAIGN, ignore_errors=True)
        yield RecordFolder(path, mark)
