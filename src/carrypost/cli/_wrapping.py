"""Lines that break between words where a terminal ends; without typer and rich, which a node does not load."""

from __future__ import annotations

import shutil
import sys
import textwrap

from carrypost.printing import INDENT


def wrapped(text: str, indent: str = INDENT) -> str:
    """Return a line for stdout; on a terminal that is narrower, as several lines, all but the first indented."""
    if not sys.stdout.isatty():
        return text
    columns = shutil.get_terminal_size().columns
    return textwrap.fill(text, columns, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
