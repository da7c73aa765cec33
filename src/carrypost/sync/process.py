"""The one loop of this process, begun by the first call.

A process that was forked off has no such thread. A thread that runs an event loop of its own must not wait for another.
Both get `IllegalStateException`.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from contextlib import suppress

from carrypost.errors import IllegalStateException
from carrypost.sync.loop import Loop

_begun: list[Loop] = []
_beginning = threading.Lock()


def running() -> Loop:
    """Return the loop that some call has begun."""
    return _begun[0]


def post(function: Callable[[], object]) -> None:
    """Have the loop call a function, if it runs, and in this process. May be called by ending generators, anywhere."""
    if _begun[0].pid == os.getpid():
        with suppress(IllegalStateException):
            _begun[0].post(function)


def loop() -> Loop:
    """Return the loop of this process; raises `IllegalStateException` where it cannot be waited for."""
    # Waiting here would block the very loop that others in this thread need, so that it is refused,
    # not merely slow.
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        raise IllegalStateException(
            "carrypost.sync would block the event loop of this thread: use the classes of carrypost, which "
            "are awaited, or asyncio.to_thread"
        )
    if not _begun:
        # Checked again under the lock: two threads may make their first call at the same time.
        with _beginning:
            if not _begun:
                _begun.append(Loop())
    if _begun[0].pid != os.getpid():
        raise IllegalStateException(
            "carrypost.sync was used before this process was forked, and its thread does not survive a fork: "
            "fork before the first call, or use multiprocessing.get_context('spawn')"
        )
    return _begun[0]
