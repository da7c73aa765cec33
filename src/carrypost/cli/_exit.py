"""What failures mean to the shell.

A mistake of the caller ends with a sentence on stderr and exit code 2; a node that is not there, or there already, and
time that ran out have codes of their own; other failures of this package end with 1. Only what nobody foresaw shows a
traceback.
"""

from __future__ import annotations

import enum
import sys

from carrypost.errors import CarrypostError, LocalError, NoNodeError, RunningError


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
    LocalError: Exit.USAGE,
    NoNodeError: Exit.NO_NODE,
    RunningError: Exit.RUNNING,
}


def told(error: CarrypostError | TimeoutError) -> Exit:
    """Say what went wrong, and which code it ends with."""
    print(f"carrypost: {error}", file=sys.stderr)  # noqa: T201 - the one place that tells of failures
    return next((code for kind, code in _CODES.items() if isinstance(error, kind)), Exit.FAILED)
