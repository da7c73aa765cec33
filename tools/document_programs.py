"""Programs in documents: blocks of Python in Markdown, with what they print."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Program(NamedTuple):
    """A program in a document."""

    path: Path
    """Document in which it stands."""
    line: int
    """Number of its first line."""
    source: str
    output: str | None
    """The block of text right below it; None if there is none."""

    @property
    def place(self) -> str:
        """The document and the line at which it begins."""
        return f"{self.path.relative_to(ROOT)}:{self.line}"


def programs() -> Iterator[Program]:
    """Yield the programs of all documents."""
    for path in DOCUMENTS:
        text = path.read_text(encoding="utf-8")
        blocks = list(BLOCK.finditer(text))
        for block, below in zip_longest(blocks, blocks[1:]):
            if block[1] == "python":
                adjoins = below is not None and below[1] == "text" and not text[block.end() : below.start()].strip()
                line = text[: block.start()].count("\n") + 2
                yield Program(path, line, block[2], below[2] if below and adjoins else None)


def write(folder: Path) -> list[str]:
    """Write each program to a module in `folder`, for mypy, and return the names of the files.

    A file is called after its document and its first line, and has the line numbers of the document.
    """
    folder.mkdir()
    files = []
    for each in programs():
        file = folder / f"{each.path.stem.replace('-', '_')}_{each.line}.py"
        file.write_text("\n" * (each.line - 1) + each.source, encoding="utf-8")
        files.append(str(file))
    return files
