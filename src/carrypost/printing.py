"""Text that others chose, as people may see it: it neither steers a terminal nor looks like another line."""

from __future__ import annotations

_MARK = "\ufffd"
"""Stands for every character that is not shown: control characters, and those that reverse the direction of text."""
INDENT = "  "


def printable(text: str, kept: str = "") -> str:
    """Return text in which only printable characters, and those of `kept`, are shown."""
    return "".join(each if each.isprintable() or each in kept else _MARK for each in text)


def paragraph(text: str) -> str:
    """Return printable text of one or more lines; all but the first are indented, as the lines of others are not."""
    return printable(text, "\n\t").replace("\n", f"\n{INDENT}")
