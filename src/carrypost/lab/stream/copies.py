"""Streams of objects: copies of records in a folder of the driver, and tables that are put where they belong.

Spark's streams need a folder for their state. With objects it is a temporary one of the driver, so executors must be on
its machine, and a stream that is started again reads all records again: it comes to the same tables.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from carrypost.lab import folders
from carrypost.lab.objects import Folder
from carrypost.lab.stream.live import METRICS, NODES

_RECORD = ".jsonl"


@dataclass(frozen=True)
class Copies:
    """The folders of the driver that a stream works with, and the places that they stand for."""

    records: Folder
    tables: Folder
    source: Path
    out: Path
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def refresh(self) -> None:
        """Copy records that are new: an object is complete, and never changes."""
        if isinstance(self.records, Path):
            return
        for name in self.records.names("", deep=True):
            target = self.source / name
            if name.endswith(_RECORD) and not target.exists():
                self.records.fetch(name, target.with_name(f".{target.name}.partial")).replace(target)

    def publish(self) -> None:
        """Put tables that are there, each file whole, and the manifest."""
        if isinstance(self.tables, Path):
            return
        with self._lock:
            for part in (NODES.name, METRICS):
                found = (path for path in (self.out / part).rglob("*.parquet") if ".partial" not in str(path))
                self.tables.replace(part, {path.relative_to(self.out / part).as_posix(): path for path in found})
            text = (self.out / folders.MANIFEST).read_text(encoding="utf-8")
            text = text.replace(str(self.source.resolve()), str(self.records))
            self.tables.write(folders.MANIFEST, text.encode())


@contextmanager
def copies(records: Folder, tables: Folder) -> Iterator[Copies]:
    """Yield folders of the driver for a stream; a path stands for itself."""
    with TemporaryDirectory(prefix="carrypost-stream-") as scratch:
        source, out = Path(scratch) / "records", Path(scratch) / "tables"
        source.mkdir()
        found = Copies(
            records,
            tables,
            records if isinstance(records, Path) else source,
            tables if isinstance(tables, Path) else out,
        )
        found.refresh()
        yield found
