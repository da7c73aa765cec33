"""The folder of a campaign, on disk or of objects: its lock, the states of its runs, and the tables made of them.

The folder holds ``records`` (a Parquet file for each run that is done), ``runs`` and ``failures``; the states are in
``.runs``. A state is written after its record, so a run that has one is over; a record without a state belongs to a
process that died in between, and is made again. Every file is complete or absent. A state contains the hash of its
record: a record that was damaged or overwritten since is made again.

The lock is held by the system for as long as the process lives, however it ends; what the file says is for people, and
for machines whose locks do not reach each other. It holds a token, new for each campaign: a process that finds it in
the file sees the same folder as the driver, and works for a campaign that is not over.

In a folder of objects, each task puts its record and then its state, and no folder is shared. The lock is an object
with the token of the campaign that began last. A second campaign is refused while a lock is there, but nothing keeps
two that begin in the same moment from both finding none: then the token of one of them is lost, and the tasks of that
one end, because they find another token before each record that they put. A record that was put before that stays, and
so does the lock of a driver that was killed; its message says which object to remove.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import socket
import tempfile
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import psutil
import pyarrow as pa

import carrypost
from carrypost.errors import CarrypostError, RunningError
from carrypost.lab import folders
from carrypost.lab.campaign.grid import CampaignRun
from carrypost.lab.folders import Folder, ObjectFolder, errors_naming
from carrypost.lab.schemas import FAILURES, RECORDS, RUNS, Table
from carrypost.log.files import digest

_LOCK_FILE = "lock"


class Holder(msgspec.Struct, frozen=True):
    """The holder of the lock."""

    pid: int
    host: str
    token: str


@contextmanager
def locked(folder: Path) -> Iterator[str]:
    """Hold the lock of this folder; its token."""
    path = folder / _LOCK_FILE
    with errors_naming(path):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        _lock(descriptor, path)
        token = secrets.token_hex(16)
        try:
            with errors_naming(path):
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, msgspec.json.encode(Holder(os.getpid(), socket.gethostname(), token)), 0)
            yield token
        finally:
            with suppress(OSError):
                os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)


def holder(folder: Path) -> Holder | None:
    """Return the holder of the lock, by its file."""
    try:
        return msgspec.json.decode((folder / _LOCK_FILE).read_bytes(), type=Holder)
    except (OSError, msgspec.DecodeError):
        return None


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except OSError:
        return False


def _lock(descriptor: int, path: Path) -> None:
    there = holder(path.parent)
    here = there is not None and there.host == socket.gethostname()
    owner = f"process {there.pid} on {there.host}" if there is not None else "another process"
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        taken = False
    except BlockingIOError:
        taken = True
    except OSError:  # A file system without locks.
        taken = there is not None and here and psutil.pid_exists(there.pid)
    if taken or not _is_at(descriptor, path):  # One that found nothing to begin with took its folder away.
        raise RunningError(f"a campaign is running in {path.parent.parent} already: {owner}")
    if there is not None and not here:
        raise RunningError(
            f"a campaign is running in {path.parent.parent}, or was when its machine stopped: {owner}; "
            f"if it is gone, remove {path}"
        )


DONE: Final = "done"
FAILED: Final = "failed"
_SUFFIX = ".json"
_PARTIAL = ".partial"
_RECORD = ".parquet"


class State(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a run."""

    run: str
    scenario: str
    settings: str
    seed: str
    status: Literal["done", "failed"]
    version: str
    fingerprint: str
    token: str = ""
    """Token of the campaign that it was part of when it ended."""
    rows: int | None = None
    size: int | None = None
    """Bytes of the record."""
    sha256: str | None = None
    """Hash of the record; without one it is not known whether the record is complete."""
    cpu_s: float | None = None
    elapsed_s: float | None = None
    record: str | None = None
    set: dict[str, str] = {}
    """Keys that its settings change, with their values."""
    error: str = ""
    traceback: str = ""
    kept: bool = msgspec.field(default=True)
    """True if it is in its file; a process that does not see the folder, or a full disk, keeps nothing."""


def done(run: CampaignRun, token: str, record: str, *, rows: int, written: Path) -> State:
    """Return the state of a run whose record is whole; `written` is where it is at the moment."""
    size, sha256 = written.stat().st_size, digest(written)
    return State(**_about(run, token), status=DONE, record=record, rows=rows, size=size, sha256=sha256)


def failed(run: CampaignRun, token: str, error: str, *, traceback: str = "", kept: bool = True) -> State:
    """Return the state of a run that failed."""
    return State(**_about(run, token), status=FAILED, error=error, traceback=traceback or error, kept=kept)


def _about(run: CampaignRun, token: str) -> dict[str, Any]:
    return {
        "run": run.name,
        "scenario": run.scenario,
        "settings": run.settings,
        "seed": str(run.seed),
        "version": carrypost.__version__,
        "fingerprint": run.fingerprint,
        "token": token,
        "set": run.set,
    }


@dataclass(frozen=True, slots=True)
class CampaignFolder:
    """The folder of a campaign."""

    root: Path

    def __str__(self) -> str:
        return str(self.root)

    @property
    def shown_records(self) -> str:
        """Sentence that people are told of the place of records."""
        return str(self.records)

    @property
    def records(self) -> Path:
        """The folder of records."""
        return self.root / RECORDS.name

    @property
    def states(self) -> Path:
        """The folder of states."""
        return self.root / ".runs"

    def record(self, run: CampaignRun) -> Path:
        """Return the path of a run's record."""
        return self.records / f"{run.stem}{_RECORD}"

    def shown_record(self, run: CampaignRun) -> str:
        """Sentence that people are told of the place of a run's record."""
        return str(self.record(run))

    def state(self, run: CampaignRun) -> Path:
        """Return the path of a run's state."""
        return self.states / f"{run.stem}{_SUFFIX}"

    def partial(self, run: CampaignRun, token: str) -> Path:
        """Return the path to which a task of this campaign writes the record of a run: hidden, and of no other task."""
        return self.records / f".{run.stem}.{token}.{uuid.uuid4().hex[:8]}{_PARTIAL}"

    def parts(self, run: CampaignRun, token: str) -> Folder:
        """Return the hidden folder of this campaign that has the windows of a run until it is whole."""
        return self.states / f".{run.stem}.{token}{_PARTIAL}"

    @property
    def missing(self) -> list[Path]:
        """Folders that are still to be made, the innermost first."""
        wanted = (self.records, self.states, self.root, *self.root.parents)
        with folders.errors_naming(self.root):
            return [folder for folder in wanted if not folder.exists()]

    def make(self) -> None:
        """Make the folders, if they are not there."""
        for folder in (self.records, self.states):
            with folders.errors_naming(folder):
                folder.mkdir(parents=True, exist_ok=True)

    def forget(self, stem: str, *, state: bool = True) -> None:
        """Remove the record and the state of a run. In this order: a state without its record is made good."""
        record = self.records / f"{stem}{_RECORD}"
        with folders.errors_naming(record):
            record.unlink(missing_ok=True)
            if state:
                (self.states / f"{stem}{_SUFFIX}").unlink(missing_ok=True)

    def locked(self) -> AbstractContextManager[str]:
        """Hold the lock of this folder while a block lasts; its token."""
        return locked(self.states)

    def unlock(self) -> None:
        """Remove the file of the lock, which is held: its folder is to go, too."""
        with suppress(OSError):
            (self.states / _LOCK_FILE).unlink()

    def holder(self) -> Holder | None:
        """Return the holder of the lock."""
        return holder(self.states)

    def discard(self, written: Path) -> None:
        """Remove the file of a task that did not become a record."""
        written.unlink(missing_ok=True)

    def commit(self, run: CampaignRun, written: Path, state: State) -> None:
        """Give a record its name, and write its state; raises `OSError`."""
        written.replace(self.record(run))
        self.keep(run, state)

    def drop_record(self, run: CampaignRun) -> None:
        """Remove the record of a run, if there is one."""
        self.record(run).unlink(missing_ok=True)

    def state_of(self, run: CampaignRun) -> State | None:
        """Return the state of a run; None: there is none that can be read."""
        return read(self.state(run))

    def ended(self) -> set[str]:
        """Return the stems of runs that have a state."""
        return {entry.name.removesuffix(_SUFFIX) for entry in os.scandir(self.states) if entry.name.endswith(_SUFFIX)}

    def records_there(self) -> dict[str, int]:
        """Return the records by name, with their sizes."""
        return {path.name: path.stat().st_size for path in sorted(self.records.glob(f"*{_RECORD}"))}

    def is_whole(self, run: CampaignRun, state: State, sizes: dict[str, int]) -> bool:
        """Return True if the record of a run, one of those of these sizes, is the one that its state names."""
        path = self.record(run)
        try:
            return sizes.get(path.name) == state.size and digest(path) == state.sha256
        except OSError:
            return False

    def publish(self) -> None:
        """Do nothing: the tables of a campaign are written where they belong."""

    def keep(self, run: CampaignRun, state: State) -> None:
        """Write the state of a run; raises `OSError`."""
        path = self.state(run)
        partial = path.with_name(f".{path.name}.{os.getpid()}{_PARTIAL}")
        try:
            partial.write_bytes(msgspec.json.format(msgspec.json.encode(state), indent=1))
            partial.replace(path)
        finally:
            with suppress(OSError):
                partial.unlink(missing_ok=True)

    def states_there(self) -> dict[str, State]:
        """Return all states, by stem; what cannot be read is as if it were not there."""
        found = {}
        for path in sorted(self.states.glob(f"*{_SUFFIX}")):
            if (state := read(path)) is not None:
                found[path.name.removesuffix(_SUFFIX)] = state
        return found

    def clear(self) -> None:
        """Remove half-written files of dead processes. Only for the holder of the lock."""
        for folder in (self.records, self.states):
            for left in folder.glob(f".*{_PARTIAL}"):
                if left.is_dir():
                    shutil.rmtree(left, ignore_errors=True)
                else:
                    left.unlink(missing_ok=True)


def read(path: Path) -> State | None:
    """Return a state; None: there is none that can be read."""
    try:
        return decoded(path.read_bytes())
    except OSError:
        return None


def decoded(content: bytes | None) -> State | None:
    """Return the state that a file contains; None: it contains none."""
    try:
        return None if content is None else msgspec.json.decode(content, type=State)
    except msgspec.DecodeError:
        return None


# --- what is to be done --------------------------------------------------------------------------------------

MISSING, CHANGED, OTHER_VERSION, DAMAGED = "missing", "changed", "other version", "damaged"


@dataclass(frozen=True, slots=True)
class CampaignPlan:
    """The contents of a campaign's folder, and the runs to be done."""

    todo: Mapping[str, str]
    """Runs that are to be done, by name, and why: missing, failed, changed, made by another version, damaged."""
    done: int
    """Number of runs that are done."""
    strangers: tuple[str, ...]
    """Runs in the folder that the campaign does not name; of records that belong to none, the file."""
    outdated: tuple[str, ...] = ()
    """Stems of runs that the campaign names and whose files are called otherwise now."""

    def because(self, why: str) -> int:
        """Return the number of runs to be done for this reason."""
        return sum(each == why for each in self.todo.values())


def plan(runs: Sequence[CampaignRun], place: CampaignFolder) -> CampaignPlan:
    """Return the plan of the runs to do."""
    there, sizes = place.states_there(), place.records_there()
    todo = {}
    for run in runs:
        state = there.get(run.stem)
        if (why := _why(run, state, place, sizes)) is not None:
            todo[run.name] = why
    mine = {run.stem for run in runs}
    names = {run.name for run in runs}
    strangers = [state.run for stem, state in there.items() if stem not in mine and state.run not in names]
    outdated = [stem for stem, state in there.items() if stem not in mine and state.run in names]
    known = mine | there.keys()
    strangers += [name for name in sorted(sizes) if name.removesuffix(_RECORD) not in known]
    return CampaignPlan(todo, len(runs) - len(todo), tuple(strangers), tuple(outdated))


def _why(run: CampaignRun, state: State | None, place: CampaignFolder, sizes: dict[str, int]) -> str | None:
    if state is None or state.run != run.name:
        return MISSING
    if state.status == FAILED:
        return FAILED
    if state.fingerprint != run.fingerprint:
        return CHANGED if state.version == carrypost.__version__ else OTHER_VERSION
    return None if place.is_whole(run, state, sizes) else DAMAGED


# --- tables --------------------------------------------------------------------------------------------------


def write_tables(place: CampaignFolder, runs: Sequence[CampaignRun], unkept: Iterable[State] = ()) -> None:
    """Make the tables `runs` and `failures` of all states that are in the folder, and of those that are not."""
    order = {run.name: index for index, run in enumerate(runs)}
    found = {state.run: state for state in (*place.states_there().values(), *unkept)}
    ordered = sorted(found.values(), key=lambda state: (order.get(state.run, len(order)), state.run))
    folders.write_arrow(_table(ordered, RUNS), place.root, RUNS)
    folders.write_arrow(_table([state for state in ordered if state.status == FAILED], FAILURES), place.root, FAILURES)


def _table(states: Sequence[State], table: Table) -> pa.Table:
    columns = {name: [_value(getattr(state, name)) for state in states] for name in table.names}
    return pa.table(columns, schema=table.arrow)


def _value(value: Any) -> Any:  # noqa: ANN401 - a field of a state
    """Return a value as Arrow takes it, which has maps as lists of pairs."""
    return list(value.items()) if isinstance(value, dict) else value


_STATES = ".runs"
_LOCK, _WINDOWS = f"{_STATES}/lock", f"{_STATES}/windows"


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
