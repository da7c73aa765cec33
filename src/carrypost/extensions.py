"""Compiled modules: use them where they fit, and the sources beside them where they do not.

`make compiled` puts extension modules beside the sources of some packages, and a list of them into `MANIFEST`. Python
prefers an extension to a source. So if they were made for another Python, or from other sources, `choose` makes it
import the sources. The same happens with `CARRYPOST_PURE=1`.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import EXTENSION_SUFFIXES, SOURCE_SUFFIXES, FileFinder, ModuleSpec, SourceFileLoader
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from types import ModuleType

PACKAGE = os.path.dirname(os.path.abspath(__file__))
MANIFEST = os.path.join(PACKAGE, "extensions.txt")
"""List of the sources that were compiled, and of those that they import. Its first line is the suffix of extension
modules of the Python that they were compiled for. Further lines have the size, the time of modification, the SHA-256
and the path of a source each; a wheel has none."""
PURE = "CARRYPOST_PURE"
"""Environment variable that asks for the sources."""


class _SourcesOnly:
    """Finds the modules of this package by their sources."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.startswith("carrypost."):
            for folder in path or ():
                if spec := FileFinder(folder, (SourceFileLoader, SOURCE_SUFFIXES)).find_spec(fullname, target):
                    return spec
        return None


def _digest(path: str) -> str:
    import hashlib  # noqa: PLC0415 - rarely needed, and every command imports this module

    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def _is_older(line: str) -> bool:
    """Return True if the source in this line was changed since the extensions were made."""
    size, mtime_ns, digest, name = line.split(" ", 3)
    path = os.path.join(PACKAGE, name)
    try:
        found = os.stat(path)
        if (found.st_size, found.st_mtime_ns) == (int(size), int(mtime_ns)):
            return False
        return _digest(path) != digest
    except OSError:
        return True


def _misfit(lines: Sequence[str]) -> str:
    """Return the reason for which these extensions cannot be used; empty if they can."""
    if not lines:
        return "was not compiled to the end"
    if lines[0] not in EXTENSION_SUFFIXES:
        return "was compiled for another Python"
    try:
        return "was changed since it was compiled" if any(map(_is_older, lines[1:])) else ""
    except ValueError:
        return "has a damaged list of compiled modules"


def choose() -> str:
    """Return "compiled" if the extensions are to be imported, else "pure"; says on stderr why they do not fit."""
    try:
        with open(MANIFEST, encoding="utf-8", errors="replace") as file:
            lines = file.read().splitlines()
    except OSError:
        return "pure"
    if not os.environ.get(PURE):
        misfit = _misfit(lines)
        if not misfit:
            return "compiled"
        print(f"carrypost {misfit}: running as pure Python; `make compiled` compiles it again", file=sys.stderr)
    sys.meta_path.insert(0, _SourcesOnly())
    return "pure"


def manifest(sources: Iterable[str]) -> str:
    """Return the list for extensions made from these sources, which are paths in this package."""
    lines = [EXTENSION_SUFFIXES[0]]
    for name in sources:
        path = os.path.join(PACKAGE, name)
        found = os.stat(path)
        lines.append(f"{found.st_size} {found.st_mtime_ns} {_digest(path)} {name}")
    return "\n".join(lines) + "\n"


BUILD = choose()
"""Build that this process runs: "compiled" or "pure"."""
