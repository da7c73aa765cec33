"""One campaign at a time in a folder, and how its runs know that they belong to it.

The lock is held by the system for as long as the process lives, however it ends; what the file says is for people, and
for machines whose locks do not reach each other. It holds a token, new for each campaign: a process that finds it in
the file sees the same folder as the driver, and works for a campaign that is not over.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
import psutil

from carrypost.errors import RunningError
from carrypost.lab.folders import errors_naming

_NAME = "lock"


class Holder(msgspec.Struct, frozen=True):
    """The holder of the lock."""

    pid: int
    host: str
    token: str


@contextmanager
def locked(folder: Path) -> Iterator[str]:
    """Hold the lock of this folder; its token."""
    path = folder / _NAME
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


def remove(folder: Path) -> None:
    """Remove the file of a lock that is held: its folder is to go, too."""
    with suppress(OSError):
        (folder / _NAME).unlink()


def holder(folder: Path) -> Holder | None:
    """Return the holder of the lock, by its file."""
    try:
        return msgspec.json.decode((folder / _NAME).read_bytes(), type=Holder)
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
