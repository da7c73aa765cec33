"""`Batch`: messages of one intake that a program in another thread takes without asking the event loop for each.

The messages stay in the intake, so that nothing has to be undone when the program takes no more of them. A message is
consumed when the program takes it. The intake is informed by `report`, which the loop calls before the program's next
request, and after 50 ms at the latest. A crash before that repeats messages, and loses none.

`pop` belongs to the program's thread. Everything else is called by the thread of the loop.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from math import inf
from time import monotonic
from typing import TYPE_CHECKING

from carrypost.model.times import MICROSECONDS

if TYPE_CHECKING:
    from carrypost.jms.messages import Message
    from carrypost.log.events import Handed

BATCH_MAX = 32
"""Number of messages of one batch: larger ones did not measurably reduce the cost of a hop between threads."""
BATCH_BYTES_MAX = 1 << 20
"""Bytes of the bodies of one batch: they are in memory before the program wants them."""
_TOLD_S = 0.05


class Batch:
    """The first messages that wait in an intake, with their bodies."""

    def __init__(self, read: Sequence[tuple[Handed, Message]], now_us: int, took: Callable[[Handed], None]) -> None:
        self._read, self._took = read, took
        left_us = min(_end_us(handed) for handed, _ in read) - now_us
        self._until = monotonic() + left_us / MICROSECONDS
        """Time at which the first of them expires, by the steady clock."""
        self._popped = self._reported = 0
        self._closed = False
        self._lock = threading.Lock()
        """A message is either taken, or stays in the intake when the batch is closed."""
        self._loop = asyncio.get_running_loop()
        self._idle = False
        """True if no timer runs, because the program took nothing for a while."""
        self._timer: asyncio.TimerHandle | None = None
        self._begin_timer()

    @property
    def messages(self) -> list[Message]:
        """The messages of the batch."""
        return [message for _, message in self._read]

    def pop(self) -> Message | None:
        """Return the next message; None if there is none, or the rest was returned.

        A signal handler may raise at any moment, as Ctrl-C does. Then nothing is taken.
        """
        at = self._popped
        try:
            with self._lock:
                if self._closed or at == len(self._read) or monotonic() >= self._until:
                    return None
                message = self._read[at][1]
                self._popped = at + 1
            if self._idle:
                self._idle = False
                self._loop.call_soon_threadsafe(self._begin_timer)
        except BaseException:
            self._popped = max(at, self._reported)
            raise
        return message

    def report(self) -> None:
        """Inform the intake of the messages that were taken."""
        while self._reported < self._popped:
            handed, _ = self._read[self._reported]
            self._reported += 1
            self._took(handed)

    def close(self) -> None:
        """Return the rest to the intake. Idempotent."""
        with self._lock:
            self._closed = True
        self.report()
        if self._timer is not None:
            self._timer.cancel()

    @property
    def is_over(self) -> bool:
        """True if the intake knows of everything that was or will be taken."""
        return self._closed or self._reported == len(self._read)

    def _begin_timer(self) -> None:
        self._timer = self._loop.call_later(_TOLD_S, self._report_in_time)

    def _report_in_time(self) -> None:
        self._idle = self._reported == self._popped
        self.report()
        if not self._idle and not self.is_over:
            self._begin_timer()


def _end_us(handed: Handed) -> float:
    """Return the time after which a message may not be given to its program any more."""
    deadline_us = handed.descriptor.deadline_us
    return min(inf if deadline_us is None else deadline_us, handed.lease_us or inf)
