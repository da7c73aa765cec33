"""The record of a real node: JSON lines in files that are complete once they have their name."""

# Rows are collected in memory and appended at intervals to a file that ends in ``.part``. When it
# is long or old enough it gets its name by an atomic rename and a new one is begun, so that a
# reader of the folder, such as the laboratory's stream, sees only whole files. The remains of a
# killed predecessor are completed first: its last line may be cut short, and is removed.
#
# A record must never cost the node anything else. A folder that cannot be used is reported at once,
# to the user that named it, since that is a mistake in the settings. Later failures, and a disk
# that is full at the start, cost rows, which are counted: the node logs it once, and again when it
# is over.

from __future__ import annotations

import logging
import os
import re
import time
from pathlib import Path

from carrypost.errors import ConfigError, NodeError
from carrypost.log.files import FULL, reason, refused
from carrypost.log.record import Record
from carrypost.node.settings import RecordSettings

_PART = ".part"
_log = logging.getLogger("carrypost.log.record")


class Archive:
    """The files of one node's record."""

    def __init__(self, folder: Path, node: str, run: str, settings: RecordSettings) -> None:
        self.record = Record(run)
        self.lost = 0
        """Rows that could not be written."""
        self._folder = folder
        self._stem = re.sub(r"[^\w.-]", "_", node)
        # Another node's name may begin with this one's.
        self._own = re.compile(re.escape(self._stem) + r"-\d{8}T\d{6}-\d+-\d{6,}\.jsonl(\.part)?")
        self._settings = settings
        self._number = 0
        self._part: Path | None = None
        self._bytes = 0
        self._begun_s = 0.0
        self._failed = False
        self._complete()

    def _complete(self) -> None:
        """Give their names to the files that a killed predecessor left."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            for part in self._files(_PART):
                content = part.read_bytes()
                whole = content.rfind(b"\n") + 1
                if not whole:
                    part.unlink()
                    continue
                if whole < len(content):
                    os.truncate(part, whole)
                part.replace(part.with_suffix(""))
        except OSError as error:
            self._refuse(error)

    def begin(self) -> None:
        """Write the first rows; raises `ConfigError` or `NodeError` if the folder cannot be used."""
        try:
            self._append(self._lines())
        except OSError as error:
            self.lost += len(self.record)
            self._refuse(error)
        self.record.clear()

    def _refuse(self, error: OSError) -> None:
        """Prevent the node from starting if a record cannot be begun, except for a full disk, which passes."""
        if error.errno not in FULL:
            what = f"the record cannot be written to {self._folder}"
            raise refused(what, error, misnamed=ConfigError, otherwise=NodeError) from None
        self._warn(error)

    def _files(self, suffix: str = "") -> list[Path]:
        """Return the files of this node, the oldest first."""
        return sorted(
            each
            for each in self._folder.iterdir()
            if (found := self._own.fullmatch(each.name)) and (found[1] or "") == suffix
        )

    def flush(self, *, final: bool = False) -> None:
        """Append collected rows; end the file if it is long or old enough, or the last one."""
        if rows := len(self.record):
            lines = self._lines()
            self.record.clear()
            try:
                self._append(lines)
            except OSError as error:
                self.lost += rows
                self._warn(error)
        self._rotate(final=final)

    def _lines(self) -> bytes:
        return "".join(f"{line}\n" for line in self.record.json_lines()).encode()

    def _append(self, lines: bytes) -> None:
        if self._part is None or not self._part.exists():  # A user may have removed it.
            self._folder.mkdir(parents=True, exist_ok=True)
            self._number += 1
            stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
            self._part = self._folder / f"{self._stem}-{stamp}-{os.getpid()}-{self._number:06}.jsonl{_PART}"
            self._bytes, self._begun_s = 0, time.monotonic()
        with self._part.open("ab", buffering=0) as file:
            rest = memoryview(lines)
            try:
                while rest:
                    rest = rest[file.write(rest) :]
            except OSError:
                file.truncate(self._bytes)  # Half a line would spoil the next one.
                raise
        self._bytes += len(lines)
        if self._failed:
            self._failed = False
            _log.warning("the record in %s can be written again; %d rows are missing", self._folder, self.lost)

    def _rotate(self, *, final: bool) -> None:
        part, settings = self._part, self._settings
        if part is None or not (
            final or self._bytes >= settings.rotate_bytes or time.monotonic() - self._begun_s >= settings.rotate_s
        ):
            return
        try:
            if part.exists():
                part.replace(part.with_suffix(""))
            self._part = None
            for old in self._files()[: -settings.files_max]:
                old.unlink()
        except OSError as error:
            self._warn(error)

    def _warn(self, error: OSError) -> None:
        if not self._failed:
            path = error.filename or self._folder
            _log.warning("the record at %s cannot be written: %s; the node continues without it", path, reason(error))
        self._failed = True
