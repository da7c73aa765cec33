"""Files as blocks of whole lines: plain or compressed, read once from front to back, or in parts by byte ranges.

Parts of a file are ranges of bytes that begin after a line end and end with one; all of them together are the file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from carrypost.errors import LocalError
from carrypost.lab import folders
from carrypost.lab.objects import Folder
from carrypost.log.files import digest
from carrypost.traces.csvfiles import explained, opened, packing

HEAD_BYTES = 1 << 20
BLOCK_BYTES = 16 << 20
LINE_BYTES_MAX = 1 << 20
LONG_BYTES = 1 << 30
"""Length beyond which texts need not be distinguished."""
_READ_BYTES = 1 << 20
_WIDE = (b"\xff\xfe", b"\xfe\xff")


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


def facts(path: Path, name: str) -> dict[str, Any]:
    """Name, size and digest of a file; of a folder (a feed), as `sha256sum *.txt | sha256sum` has it."""
    if path.is_dir():
        files = {file.name: facts(file, file.name) for file in sorted(path.glob("*.txt")) if file.is_file()}
        listed = "".join(f"{file['sha256']}  {name}\n" for name, file in files.items())
        count, sha256 = sum(file["bytes"] for file in files.values()), hashlib.sha256(listed.encode()).hexdigest()
        return {"file": name, "bytes": count, "sha256": sha256}
    with explained(path):
        return {"file": name, "bytes": path.stat().st_size, "sha256": digest(path)}


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


def part(path: Folder, start: int, end: int) -> bytes:
    """Return a range of bytes of a plain file or object."""
    try:
        with path.open("rb") if isinstance(path, Path) else path.opened() as stream:
            stream.seek(start)
            found: bytes = stream.read(end - start)
            return found
    except FileNotFoundError:
        raise LocalError(f"{path}: all executors must see this file under the same path; one does not") from None
