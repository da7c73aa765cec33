"""Text for people: numbers of things, lengths of time, and text that others chose.

Text that others chose neither steers a terminal nor looks like another line of the output.
"""

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


def many(count: int, one: str, more: str = "") -> str:
    """Return a number of things: ``1 hop``, ``1,000 hops``. The plural is `more`, by default `one` with an s."""
    return f"{count:,} {one if count == 1 else more or f'{one}s'}"


def length_of_time(seconds: float) -> str:
    """Return a length of time in the longest unit of which it is a whole number: ``30 days``, ``1.5 s``."""
    for unit, size in (("day", 86_400), ("hour", 3_600), ("minute", 60)):
        count = seconds / size
        if count >= 1 and count == int(count):
            return many(int(count), unit)
    return f"{seconds:,g} s"


def raised(error: BaseException, most: int) -> str:
    """Return an error and the line that raised it, in at most so many characters."""
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    where = ""
    if place is not None:
        where = f" ({place.tb_frame.f_code.co_filename.rpartition('/')[2]}, line {place.tb_lineno})"
    return f"{type(error).__name__}: {error}"[: most - len(where)] + where
