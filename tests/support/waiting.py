"""Waiting in the threads of tests, for what other threads and processes do."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE_S = 30.0
"""Time that something may take that ought to happen; a busy machine is not a fault."""


def eventually(condition: Callable[[], object], missing: str = "it did not happen in time") -> None:
    """Return once the condition is true. Fail with a text if it stays false."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s, missing
        time.sleep(0.01)  # Threads and processes of the system do not run in virtual time.
