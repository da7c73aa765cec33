"""Files and folders that people name: refusals of the system as sentences, and results that are complete or absent.

One rule decides about a failure, for every command: a path that leads nowhere, or to the wrong kind of thing, is a
mistake of the caller (`LocalError`, exit code 2), and so is a mistake in a file that people write. Refusals of the
machine, such as a permission or a full disk, and damaged files are not (`FileError`, exit code 1).

A result is written under a hidden name, ``.NAME.PROCESS.partial``, and renamed when it is complete. Remains of a killed
process are removed by the next one that writes the same result.
"""

from __future__ import annotations

import errno
import hashlib
import importlib.resources
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from carrypost.errors import CarrypostError, FileError, LocalError

PARTIAL = ".partial"
_MISNAMED = frozenset(
    {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG, errno.ELOOP}
)  # fmt: skip
"""There is nothing of that name, or something else, such as a file where a folder is to be made."""
_FORBIDDEN = frozenset({errno.EACCES, errno.EPERM})
FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""Error numbers of a disk without room."""


def refused(
    what: str,
    error: Exception,
    *,
    advice: str = "",
    misnamed: type[CarrypostError] = LocalError,
    otherwise: type[CarrypostError] = FileError,
) -> CarrypostError:
    """Return the error for a failed operation; its class shows whether the caller or the system caused it."""
    kind = misnamed if isinstance(error, OSError) and error.errno in _MISNAMED else otherwise
    return kind(f"{what}: {reason(error)}{advice}")


@contextmanager
def refusing(what: str, *others: type[Exception], missing: str = "") -> Iterator[None]:
    """Turn refusals of the system, and other kinds of errors, into a sentence that begins with `what`.

    `missing` is the whole sentence for a file that is not there, unless that is a refusal as any other.
    """
    kinds: tuple[type[Exception], ...] = (OSError, *others)
    try:
        yield
    except kinds as error:
        if missing and isinstance(error, FileNotFoundError):
            raise LocalError(missing) from None
        raise refused(what, error) from None


def reason(error: Exception) -> str:
    """Return the reason of a refusal in the system's words, or the owner; or why something cannot be understood."""
    if not isinstance(error, OSError) or not error.errno:
        return " ".join(str(error).split())
    whose = _others(error.filename) if error.errno in _FORBIDDEN else None
    return os.strerror(error.errno) if whose is None else f"{whose} belongs to another user"


def _others(name: object) -> Path | None:
    """Return the part of a path, as far up as this user can see, that belongs to another user, but not to root."""
    if not isinstance(name, str | os.PathLike) or not hasattr(os, "geteuid"):
        return None
    path = Path(name).absolute()
    for each in (path, *path.parents):
        with suppress(OSError):
            return each if each.stat().st_uid not in {os.geteuid(), 0} else None
    return None


def read_text(path: Path, what: str, misnamed: type[LocalError] = LocalError) -> str:
    """Return the text of a file that people write; `what` says what failed if there is none."""
    try:
        return path.read_text(encoding="utf-8-sig")  # Some editors on Windows begin a file with a mark of its encoding.
    except UnicodeDecodeError:
        raise misnamed(f"{what}: it is not UTF-8 text") from None
    except OSError as error:
        raise refused(what, error, misnamed=misnamed) from None


def read_bytes(path: Path, bytes_max: int) -> bytes:
    """Return the content of a file that people name; raises an error if it is longer than it may be.

    Not more than that is read: the path may lead to an image of a disk, or to ``/dev/zero``.
    """
    with refusing(f"{path} cannot be read"), path.open("rb") as file:
        content = file.read(bytes_max + 1)
    if len(content) > bytes_max:
        raise LocalError(f"{path} cannot be read: it has more than {bytes_max:,} bytes")
    return content


def digest(path: Path) -> str:
    """Return the hash of a file, which is read in parts."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def shipped() -> Path:
    """Return the folder of scenarios, examples and documents: in the package, or the top of the source tree."""
    package = Path(str(importlib.resources.files("carrypost")))
    inside = package / "shipped"
    return inside if inside.is_dir() else package.parents[1]


# --- whole, or not there ---------------------------------------------------------------------------------------------


@contextmanager
def staged(target: Path) -> Iterator[Path]:
    """Yield a path for a file that replaces `target` when the block succeeds, and is removed otherwise."""
    if target.exists() and not target.is_file():
        raise LocalError(f"{target} cannot be written: it is not a regular file")
    written = partial(target)
    try:
        clear(target)
        try:
            yield written
            written.replace(target)
        finally:
            with suppress(OSError):  # What kept it from being written is what is reported.
                written.unlink(missing_ok=True)
    except OSError as error:
        raise refused(f"{target} cannot be written", error) from None


def keep_entry(path: Path) -> None:
    """Make the name of a new file durable, by syncing its folder."""
    with suppress(OSError):  # Windows cannot, and does not need it.
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def partial(target: Path) -> Path:
    """Return the name of a file, or a folder, while this process has not completed it."""
    return target.with_name(f".{target.name}.{os.getpid()}{PARTIAL}")


def clear(target: Path) -> None:
    """Remove the files that processes that are gone left half-written for this target."""
    for left in abandoned(target):
        if not left.is_dir():
            left.unlink(missing_ok=True)


def abandoned(target: Path, suffix: str = PARTIAL) -> list[Path]:
    """Return unfinished files that were to become this target, and whose process is gone."""
    if not target.parent.is_dir():
        return []
    start = f".{target.name}."
    return sorted(
        each
        for each in target.parent.iterdir()
        if each.name.startswith(start)
        and each.name.endswith(suffix)
        and (pid := each.name[len(start) : -len(suffix)]).isdecimal()
        and not _runs(int(pid))
    )


def _runs(pid: int) -> bool:
    import psutil  # noqa: PLC0415 - needed only where something was left

    return psutil.pid_exists(pid)
