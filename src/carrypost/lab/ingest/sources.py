"""Files as blocks of whole lines: plain or compressed, read once from front to back, or in parts by byte ranges.

The compression is recognized by the first bytes, whatever the name: gzip, xz, or zip with one file in it. Parts of a
file are ranges of bytes that begin after a line end and end with one; all of them together are the file.
"""

from __future__ import annotations

import gzip
import hashlib
import lzma
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

from carrypost.errors import LocalError
from carrypost.files import digest, refused
from carrypost.lab import folders

HEAD_BYTES = 1 << 20
BLOCK_BYTES = 16 << 20
LINE_BYTES_MAX = 1 << 20
LONG_BYTES = 1 << 30
"""Length beyond which texts need not be distinguished."""
_ENCRYPTED = 1
"""Flag of a file in a zip file."""
_READ_BYTES = 1 << 20
_GZIP, _XZ, _ZIP = b"\x1f\x8b", b"\xfd7zXZ\x00", b"PK"
_OPEN: Mapping[str, Any] = {"gzip": gzip.open, "xz": lzma.open, "": Path.open}
_WIDE = (b"\xff\xfe", b"\xfe\xff")


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Raise a sentence for a file that cannot be read."""
    try:
        yield
    except FileNotFoundError:
        raise LocalError(f"{path}: there is no such file") from None
    except (OSError, EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, NotImplementedError) as error:
        raise refused(f"{path} cannot be read", error) from None


def packing(path: Path) -> str:
    """Return the compression of a file; empty: none."""
    with explained(path), path.open("rb") as stream:
        start = stream.read(6)
    kinds = ((_GZIP, "gzip"), (_XZ, "xz"), (_ZIP, "zip"))
    return next((name for magic, name in kinds if start.startswith(magic)), "")


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """Yield the text of a file, unpacked."""
    kind = packing(path)
    with explained(path), ExitStack() as ending:
        if kind == "zip":
            archive = ending.enter_context(zipfile.ZipFile(path))
            yield ending.enter_context(archive.open(_only(archive, path)))
        else:
            yield ending.enter_context(_OPEN[kind](path, "rb"))


def _only(archive: zipfile.ZipFile, path: Path) -> zipfile.ZipInfo:
    # Packers of one system leave notes of their own.
    files = [each for each in archive.infolist() if not (each.is_dir() or each.filename.startswith("__MACOSX/"))]
    if len(files) != 1:
        raise LocalError(
            f"{path} must hold one text file, and holds {len(files)}: unpack it, and name the files you want"
        )
    if files[0].flag_bits & _ENCRYPTED:
        raise LocalError(f"{path} is encrypted: unpack it first")
    return files[0]


def head(path: Path) -> bytes:
    """Return the first lines of a file."""
    with opened(path) as stream:
        data = stream.read(HEAD_BYTES)
    if data.startswith(_WIDE) or b"\x00" in data:
        raise LocalError(f"{path} is not UTF-8 text")
    if b"\r" in data.strip() and b"\n" not in data:
        raise LocalError(
            f"{path}: its lines must end with LF or CR LF, not with CR alone; convert it with tr '\\r' '\\n' "
            "< FILE > NEW"
        )
    whole = len(data) < HEAD_BYTES
    return data if whole else data[: data.rfind(b"\n") + 1] or data


def facts(path: Path) -> dict[str, Any]:
    """Size and digest of a file; of a folder (a feed), of its text files as `sha256sum *.txt | sha256sum` has it."""
    if path.is_dir():
        files = {file.name: facts(file) for file in sorted(path.glob("*.txt")) if file.is_file()}
        listed = "".join(f"{file['sha256']}  {name}\n" for name, file in files.items())
        count, sha256 = sum(file["bytes"] for file in files.values()), hashlib.sha256(listed.encode()).hexdigest()
        return {"file": str(path), "bytes": count, "sha256": sha256}
    with explained(path):
        return {"file": str(path), "bytes": path.stat().st_size, "sha256": digest(path)}


def text_bytes(path: Path) -> int:
    """Return the length of the text.

    A compressed one is read until it is known to be long: a small file may hold much.
    """
    if not packing(path):
        with explained(path):
            return path.stat().st_size
    total = 0
    with opened(path) as stream:
        while total < LONG_BYTES and (data := stream.read(_READ_BYTES)):
            total += len(data)
    return total


def blocks(path: Path, block_bytes: int = BLOCK_BYTES) -> Iterator[tuple[int, bytes]]:
    """Yield the whole text in blocks of lines, each with the number of its first line."""
    number, left = 1, b""
    with opened(path) as stream, explained(path):
        while data := stream.read(block_bytes):
            end = data.rfind(b"\n") + 1
            if not end:
                left = _grown(path, number, left + data)
                continue
            block, left = left + data[:end], data[end:]
            yield number, block
            number += block.count(b"\n")
        if left:
            yield number, left


def _grown(path: Path, number: int, data: bytes) -> bytes:
    if len(data) > max(LINE_BYTES_MAX, BLOCK_BYTES):
        raise LocalError(
            f"{path}, line {number}: is longer than {LINE_BYTES_MAX:,} bytes; the file must be text in lines"
        )
    return data


def unpacked(path: Path, folder: Path) -> Path:
    """Return a plain file with the text: itself, or a copy in this folder."""
    if not packing(path):
        return path
    made = folder / f"{hashlib.sha256(str(path).encode()).hexdigest()[:16]}.txt"
    with opened(path) as stream:
        while data := stream.read(_READ_BYTES):
            # Here and not around it: an error of writing names the copy, not the file.
            with folders.errors_naming(made), made.open("ab") as copy:
                copy.write(data)
    return made


def ranges(path: Path, block_bytes: int = BLOCK_BYTES) -> list[tuple[int, int]]:
    """Ranges of bytes of a plain file that hold whole lines, of about that size."""
    found: list[tuple[int, int]] = []
    with explained(path), path.open("rb") as stream:
        size = path.stat().st_size
        start = 0
        while start < size:
            end = _line_end(stream, min(start + block_bytes, size), size)
            found.append((start, end))
            start = end
    return found


def _line_end(stream: IO[bytes], position: int, size: int) -> int:
    """Return the first position from there on that follows a line end; the end of the file counts."""
    stream.seek(position - 1)
    while position < size:
        data = stream.read(_READ_BYTES)
        found = data.find(b"\n")
        if found >= 0:
            return min(size, stream.tell() - len(data) + found + 1)
        position += len(data)
    return size


def part(path: Path, start: int, end: int) -> bytes:
    """Return a range of bytes of a plain file."""
    try:
        with path.open("rb") as stream:
            stream.seek(start)
            return stream.read(end - start)
    except FileNotFoundError:
        raise LocalError(f"{path}: all executors must see this file under the same path; one does not") from None
