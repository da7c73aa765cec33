"""Exit codes of failures: one rule for every command.

What was typed wrong ends with a sentence on stderr and exit code 2: an option, a value, a path that leads nowhere or to
the wrong kind of thing, a mistake in a file that people write. A node that is not there, or there already, and time
that ran out have codes of their own. Everything else ends with 1: what the machine refuses, what is damaged
(`carrypost.log.files` tells these apart). Only unexpected errors show a traceback.
"""

from __future__ import annotations

import enum
import sys
from collections.abc import Iterable

from carrypost.errors import CarrypostError, LocalError, NoNodeError, ResourceAllocationException, RunningError
from carrypost.printing import paragraph


class Exit(enum.IntEnum):
    """Exit codes."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    """Usage or configuration."""
    TIMEOUT = 3
    NO_NODE = 4
    RUNNING = 5
    """Already running."""


_CODES: dict[type[Exception], Exit] = {
    TimeoutError: Exit.TIMEOUT,
    ResourceAllocationException: Exit.FAILED,  # A full disk is not a mistake of the user.
    LocalError: Exit.USAGE,
    NoNodeError: Exit.NO_NODE,
    RunningError: Exit.RUNNING,
}


def report(error: CarrypostError | TimeoutError) -> Exit:
    """Say on stderr what went wrong; returns the code that the command ends with."""
    print(f"carrypost: {paragraph(str(error))}", file=sys.stderr)  # noqa: T201 - the one place that reports failures
    causes = error, error.__cause__  # What the JMS API raises has the node's own error behind it.
    return next((code for kind, code in _CODES.items() for each in causes if isinstance(each, kind)), Exit.FAILED)


def check_texts(texts: Iterable[str]) -> None:
    """Raise `LocalError` for bytes that are not UTF-8: records, JSON and logs cannot represent them."""
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError:
            shown = ascii(text.encode(errors="surrogateescape"))[1:]
            raise LocalError(f"the argument {shown} is not UTF-8 text; if it names a file, rename the file") from None
