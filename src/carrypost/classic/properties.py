"""Properties files of Java (`java.util.Properties`), in UTF-8: ``key = value``, comments, continued lines, escapes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from carrypost.errors import NamingException

_ENTRY = re.compile(r"((?:\\.|[^\\=:\s])+)(?:\s*[=:]\s*|\s+(?![=:]))(\S.*)", re.DOTALL)
_ESCAPE = re.compile(r"\\(u([0-9a-fA-F]{4})|u|.)", re.DOTALL)
_SIGNS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def read_properties(path: Path) -> dict[str, str]:
    """Return the keys and values of a file; raises `NamingException`, which has the line."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise NamingException(
            f"{path} cannot be read: {error.strerror}. Name a properties file, or pass a dict"
        ) from error
    except UnicodeDecodeError as error:
        raise NamingException(
            f"{path} is not text in UTF-8: write it as UTF-8, or with escapes such as \\u00e9"
        ) from error
    found: dict[str, str] = {}
    for number, line in _logical_lines(text):
        entry = _ENTRY.fullmatch(line)
        if entry is None:
            raise NamingException(f"{path}, line {number}: {line[:60]!r} has no value: a line must be KEY = VALUE")
        key, value = (_unescaped(each, path, number) for each in entry.groups())
        if key in found:
            raise NamingException(f"{path}, line {number}: {key!r} was given before: leave one of both out")
        found[key] = value.rstrip()
    return found


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield lines with their numbers, without comments; those that end in a backslash go on in the next one."""
    begun: list[str] = []
    first = 0
    for number, line in enumerate(text.split("\n"), 1):  # Reading the file has left no other ends of lines.
        stripped = line.lstrip(" \t\f")
        if not begun and (not stripped or stripped[0] in "#!"):
            continue
        first = first if begun else number
        goes_on = (len(stripped) - len(stripped.rstrip("\\"))) % 2
        begun.append(stripped[: len(stripped) - goes_on])
        if not goes_on:
            yield first, "".join(begun)
            begun = []
    if begun:
        yield first, "".join(begun)


def _unescaped(text: str, path: Path, number: int) -> str:
    def sign(found: re.Match[str]) -> str:
        if found[1] == "u":
            raise NamingException(f"{path}, line {number}: \\u must be followed by four hexadecimal digits")
        return chr(int(found[2], 16)) if found[2] else _SIGNS.get(found[1], found[1])

    try:  # Java writes characters beyond U+FFFF as two escapes.
        return _ESCAPE.sub(sign, text).encode("utf-16-le", "surrogatepass").decode("utf-16-le")
    except UnicodeDecodeError as error:
        half = int.from_bytes(error.object[error.start : error.start + 2], "little")
        raise NamingException(
            f"{path}, line {number}: \\u{half:04x} is half of a character: write both halves"
        ) from error
