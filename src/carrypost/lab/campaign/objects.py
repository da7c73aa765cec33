"""The folder of a campaign as objects: each task puts its record and then its state, and no folder is shared.

The lock is an object with the token of the campaign that began last. A second campaign is refused while a lock is
there, but nothing keeps two that begin in the same moment from both finding none: then the token of one of them is
lost, and the tasks of that one end, because they find another token before each record that they put. A record that was
put before that stays, and so does the lock of a driver that was killed; its message says which object to remove.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from carrypost.errors import CarrypostError, RunningError
from carrypost.lab import folders
from carrypost.lab.campaign.grid import CampaignRun
from carrypost.lab.campaign.lock import Holder
from carrypost.lab.campaign.states import CampaignFolder, State, decoded
from carrypost.lab.objects import ObjectFolder
from carrypost.lab.schemas import FAILURES, RECORDS, RUNS

_STATES = ".runs"
_LOCK, _WINDOWS = f"{_STATES}/lock", f"{_STATES}/windows"
_SUFFIX, _RECORD = ".json", ".parquet"


@dataclass(frozen=True, slots=True)
class CampaignObjects(CampaignFolder):
    """The folder of a campaign as objects; `root` is a folder of the driver, for its tables."""

    objects: ObjectFolder

    def __str__(self) -> str:
        return str(self.objects)

    @classmethod
    def opened(cls, objects: ObjectFolder, scratch: Path) -> CampaignObjects:
        """Return the campaign in these objects."""
        return cls(scratch, objects)

    @property
    def missing(self) -> list[Path]:
        """Folders that are still to be made: none, since objects need none."""
        return []

    @property
    def shown_records(self) -> str:
        """Sentence that people are told of the place of records."""
        return f"{self.objects}/{RECORDS.name}"

    def make(self) -> None:
        """Fetch the manifest, which later entries are added to."""
        if (content := self.objects.read(folders.MANIFEST)) is not None:
            (self.root / folders.MANIFEST).write_bytes(content)

    @contextmanager
    def locked(self) -> Iterator[str]:
        """Hold the lock, as far as an object can be one; its token."""
        if (there := self.holder()) is not None:
            raise RunningError(
                f"a campaign is running in {self}, or was when its driver ended: process {there.pid} on {there.host}; "
                f"if it is gone, remove {self}/{_LOCK}"
            )
        token = secrets.token_hex(16)
        self.objects.write(_LOCK, msgspec.json.encode(Holder(os.getpid(), socket.gethostname(), token)))
        try:
            yield token
        finally:
            if (there := self.holder()) is not None and there.token == token:
                self.objects.delete(_LOCK)

    def unlock(self) -> None:
        """Remove nothing: the lock goes with its campaign."""

    def holder(self) -> Holder | None:
        """Return the holder of the lock."""
        content = self.objects.read(_LOCK)
        try:
            return None if content is None else msgspec.json.decode(content, type=Holder)
        except msgspec.DecodeError:
            return None

    def shown_record(self, run: CampaignRun) -> str:
        """Sentence that people are told of the place of a run's record."""
        return f"{self.shown_records}/{run.stem}{_RECORD}"

    def parts(self, run: CampaignRun, token: str) -> ObjectFolder:
        """Return the folder of objects that has the windows of a run until it is whole."""
        return self.objects / f"{_WINDOWS}/{run.stem}.{token}"

    def partial(self, run: CampaignRun, token: str) -> Path:  # noqa: ARG002 - as any folder of a campaign
        """Return a file of this machine to which a task writes the record of a run."""
        return Path(tempfile.mkdtemp(prefix="carrypost-record-")) / f"{run.stem}{_RECORD}"

    def discard(self, written: Path) -> None:
        """Remove the file of a task, and its folder."""
        shutil.rmtree(written.parent, ignore_errors=True)

    def commit(self, run: CampaignRun, written: Path, state: State) -> None:
        """Put a record, and then its state; raises `OSError`."""
        try:
            self.objects.put(f"{RECORDS.name}/{run.stem}{_RECORD}", written)
        except CarrypostError as error:
            raise OSError(0, str(error)) from None
        self.keep(run, state)

    def keep(self, run: CampaignRun, state: State) -> None:
        """Put the state of a run; raises `OSError`."""
        try:
            self.objects.write(f"{_STATES}/{run.stem}{_SUFFIX}", msgspec.json.encode(state))
        except CarrypostError as error:
            raise OSError(0, str(error)) from None

    def drop_record(self, run: CampaignRun) -> None:
        """Remove the record of a run, if there is one."""
        self.objects.delete(f"{RECORDS.name}/{run.stem}{_RECORD}")

    def forget(self, stem: str, *, state: bool = True) -> None:
        """Remove the record and the state of a run."""
        self.objects.delete(f"{RECORDS.name}/{stem}{_RECORD}")
        if state:
            self.objects.delete(f"{_STATES}/{stem}{_SUFFIX}")

    def state_of(self, run: CampaignRun) -> State | None:
        """Return the state of a run."""
        return decoded(self.objects.read(f"{_STATES}/{run.stem}{_SUFFIX}"))

    def ended(self) -> set[str]:
        """Return the stems of runs that have a state."""
        return {Path(name).stem for name in self.objects.names(_STATES) if name.endswith(_SUFFIX)}

    def states_there(self) -> dict[str, State]:
        """Return all states, by stem."""
        names = [name for name in sorted(self.objects.names(_STATES)) if name.endswith(_SUFFIX)]
        found = {Path(name).stem: decoded(content) for name, content in self.objects.read_all(names).items()}
        return {stem: state for stem, state in found.items() if state is not None}

    def records_there(self) -> dict[str, int]:
        """Return the records by name, with their sizes."""
        there = self.objects.names(RECORDS.name)
        return {Path(name).name: each.size for name, each in there.items() if name.endswith(_RECORD)}

    def is_whole(self, run: CampaignRun, state: State, sizes: dict[str, int]) -> bool:
        """Return True if the record of a run has the size that its state names: an object is there whole or not."""
        return sizes.get(f"{run.stem}{_RECORD}") == state.size

    def clear(self) -> None:
        """Remove windows of campaigns that are over; a put that was cut short left nothing."""
        (self.objects / _WINDOWS).clear()

    def publish(self) -> None:
        """Put the tables that were written to the folder of the driver."""
        for table in (RUNS, FAILURES):
            if (self.root / table.name).is_dir():
                files = {file.name: file for file in (self.root / table.name).glob("*.parquet")}
                self.objects.replace(table.name, files)
        with suppress(FileNotFoundError):
            self.objects.write(folders.MANIFEST, (self.root / folders.MANIFEST).read_bytes())
